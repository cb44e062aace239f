//! PPO with masks: its loss against NumPy, no invalid action is sampled, errors about bad settings.

use std::path::Path;

use podracer::algos::ppo_masked::{Agent, Args, Samples, ppo_loss};
use podracer::distributions::MultiCategorical;
use podracer::rl::Algorithm;
use podracer::rl::environments::spaces::Masked;
use podracer::trace::ops::concatenate;
use podracer::{Key, Tensor, interpret, tree};

use super::fixture::{acted, dense, expect, floats, ints, wave};
use super::message;

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--total-timesteps=384",
        "--num-envs=4",
        "--num-steps=32",
        "--num-minibatches=2",
        "--update-epochs=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

#[rustfmt::skip]
const ALLOWED: [f32; 30] = [
    1.0, 1.0, 1.0, 1.0, 1.0,
    1.0, 0.0, 1.0, 1.0, 0.0,
    0.0, 1.0, 0.0, 0.0, 1.0,
    1.0, 1.0, 0.0, 1.0, 1.0,
    0.0, 1.0, 1.0, 1.0, 1.0,
    0.0, 0.0, 1.0, 1.0, 0.0,
];

#[test]
fn the_loss_is_that_of_numpy() {
    let args = Args::from_flags([]).unwrap();
    let sizes = Masked { features: 3, nvec: vec![3, 2] };
    expect("masked", || {
        let agent = Agent {
            hidden: [dense([3, 4], 0.1), dense([4, 4], 0.2)],
            actor: dense([4, 5], 0.3),
            critic: dense([4, 1], 1.3),
            sizes: sizes.clone(),
        };
        let batch = Samples {
            obs: concatenate(&[wave([6, 3], 1.0), floats([6, 5], &ALLOWED)], 1),
            actions: ints([6, 2], &[0, 1, 2, 0, 1, 1, 1, 0, 2, 1, 2, 0]),
            logprobs: acted("masked_log_prob"),
            advantages: wave([6], 6.0),
            returns: wave([6], 7.0),
            values: wave([6], 8.0),
        };
        tree::leaves(&ppo_loss(&agent, &batch, &args).1)
    });
}

#[test]
fn only_valid_actions_are_sampled() {
    let run = interpret(|key: Key<Tensor>| {
        let allowed = floats([6, 5], &ALLOWED).gt(0.5);
        let policy = MultiCategorical::masked(wave([6, 5], 0.0), allowed, &[3, 2]);
        policy.sample(key)
    });
    let mut sampled = [[false; 5]; 6];
    for seed in 0..60 {
        let actions = run.call(Key::new(seed)).unwrap();
        for (env, pair) in actions.to_vec::<i32>().unwrap().chunks(2).enumerate() {
            sampled[env][pair[0] as usize] = true;
            sampled[env][3 + pair[1] as usize] = true;
        }
    }
    let allowed: Vec<bool> = ALLOWED.iter().map(|&x| x == 1.0).collect();
    assert_eq!(sampled.concat(), allowed);
}

#[test]
fn logits_that_are_not_those_of_nvec_are_refused() {
    for (nvec, shown) in [(&[3, 3][..], "[3, 3]"), (&[][..], "[]")] {
        let sample = |key: Key<Tensor>| MultiCategorical::new(wave([6, 5], 0.0), nvec).sample(key);
        let error = interpret(sample).call(Key::new(1)).unwrap_err().to_string();
        let expected = format!(
            "MultiCategorical: takes [B, n] where n is the sum of nvec {shown}, and was given f32[6,5]"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn it_trains_without_masks() {
    let runs = tempfile::tempdir().unwrap();
    let summary = args(runs.path(), &["--no-mask", "--eval-episodes=0"]).train().unwrap();
    assert_eq!(summary.global_step, 384);
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    let plain = error(&["--env-id=CartPole-v1"]);
    assert!(plain.contains("ppo_masked takes masked MultiDiscrete actions"), "{plain}");
    let two = error(&["--env-id=ConnectFour-v0"]);
    assert!(two.contains("is for 1 player, and this environment has 2"), "{two}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}
