//! PPO with a memory: its loss against NumPy, both ways through a rollout, its runs, its bad settings.

use std::path::Path;

use podracer::algos::ppo_atari_lstm::{Agent, Args, Samples, Sequence, Split, loss, train};
use podracer::nn::LstmCell;
use podracer::rl::Algorithm;
use podracer::trace::ops::constant;
use podracer::{Array, Tensor, interpret, tree};

use super::fixture::{acted, dense, expect, floats, ints, trunk, wave};
use super::{same_twice, scalars, told};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--env-id=CartPolePositions-v0",
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

/// Five steps of two environments: episodes begin at steps 0 and 3 of the first, 2 and 4 of the other.
const FIRSTS: [f32; 10] = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];

fn agent() -> Agent<Tensor> {
    Agent {
        trunk: trunk(),
        lstm: LstmCell { w_i: wave([4, 16], 3.0), w_h: wave([4, 16], 3.5), b: wave([16], 4.0) },
        recurrent_bias: floats([16], &[0.0; 16]),
        actor: dense([4, 2], 0.3),
        critic: dense([4, 1], 1.3),
    }
}

fn batch(split: Option<Split<Tensor>>) -> Samples<Tensor> {
    Samples {
        obs: wave([5, 2, 3], 1.0),
        firsts: floats([5, 2], &FIRSTS),
        memory: (wave([2, 4], 2.0), wave([2, 4], 2.5)),
        actions: ints([5, 2], &[0, 1, 1, 0, 1, 0, 0, 1, 1, 0]),
        logprobs: acted("lstm_log_prob").reshape([5, 2]),
        advantages: wave([5, 2], 6.0),
        returns: wave([5, 2], 7.0),
        values: wave([5, 2], 8.0),
        split,
    }
}

#[test]
fn the_loss_is_that_of_numpy_whole_and_split() {
    let args = Args::from_flags([]).unwrap();
    expect("lstm", || tree::leaves(&loss(&agent(), &batch(None), &args).1));
    let split = Split::of(&FIRSTS, 2, &[vec![0, 1]]).unwrap().remove(0);
    // Pieces of 3 and 2 steps, and of 2, 2 and 1: five, rounded up to eight, of at most four steps.
    assert_eq!(split.rows.shape()[..], [4, 8]);
    expect("lstm", || {
        let split = tree::map(split.clone(), |x: Array| match x.to_vec::<i32>() {
            Ok(values) => constant(values.as_slice()).reshape(x.shape().to_vec()),
            Err(_) => constant(x.to_vec::<f32>().unwrap().as_slice()),
        });
        tree::leaves(&loss(&agent(), &batch(Some(split)), &args).1)
    });
}

#[test]
fn a_batch_of_other_environments_is_split_by_its_own_episodes() {
    // The same rollout, of which the batch takes the environments in the other order.
    let args = Args::from_flags([]).unwrap();
    let split = Split::of(&FIRSTS, 2, &[vec![0, 1], vec![1, 0]]).unwrap().remove(1);
    let run = interpret(|split: Option<Split<Tensor>>| {
        let turned = |x: Tensor, axis| x.take(constant([1i32, 0].as_slice()), axis);
        let Samples { memory, split, .. } = batch(split);
        let rest = tree::map(batch(None), |x: Tensor| turned(x, if x.dim(0) == 5 { 1 } else { 0 }));
        let memory = tree::map(memory, |x: Tensor| turned(x, 0));
        loss(&agent(), &Samples { memory, split, ..rest }, &args).0
    });
    let whole = run.call(None).unwrap().item::<f32>().unwrap();
    let parts = run.call(Some(split)).unwrap().item::<f32>().unwrap();
    assert!((whole - parts).abs() < 1e-6, "{whole} {parts}");
}

#[test]
fn both_ways_train_the_same_agent() {
    let runs = tempfile::tempdir().unwrap();
    let run = |way: &str| {
        let flags = ["--sequence", way, "--save-model", "--eval-episodes=2"];
        train(&args(runs.path(), &flags)).unwrap()
    };
    let (whole, parts) = (same_twice(|| run("scan")), run("split"));
    assert_eq!(args(runs.path(), &["--sequence=split"]).sequence, Sequence::Split);
    let (whole, parts) = (scalars(&whole.run_dir), scalars(&parts.run_dir));
    assert_eq!(whole.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 3);
    for (key, values) in &whole {
        if key.0.starts_with("losses") {
            for (a, b) in values.iter().zip(&parts[key]) {
                // Sums are in another order, and later updates see the roundings of earlier ones.
                assert!((a - b).abs() <= 1e-3 * a.abs().max(1.0), "{key:?}: {a}, split {b}");
            }
        }
    }
}

#[test]
fn frames_are_seen_one_by_one() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--env-id=Pong-v5", "--num-envs=2", "--num-steps=4", "--total-timesteps=8"];
    let summary = train(&args(runs.path(), &[&flags[..], &["--save-model"]].concat())).unwrap();
    let file = Path::new(&summary.run_dir).join("ppo_atari_lstm.safetensors");
    let saved = podracer::rl::checkpoint::load(file).unwrap();
    let first = saved.entries().find(|x| x.name == "$.agent.trunk.convs[0].w").unwrap();
    assert_eq!(first.ty.to_string(), "f32[8,8,1,32]");
}

#[test]
fn settings_out_of_range_are_told() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| told(train(&args(runs.path(), flags)));
    assert_eq!(
        error(&["--num-minibatches=8"]),
        "--num-minibatches 8: must be a divisor of --num-envs 4: minibatches are whole environments"
    );
    let other = error(&["--env-id=Taxi-v3"]);
    assert!(other.contains("ppo_atari_lstm takes images"), "{other}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}
