//! PPO with an LSTM: its loss against NumPy, both values of `--sequence`, its runs, refused settings.

use std::path::Path;

use podracer::algos::ppo_atari_lstm::{Agent, Args, Samples, Sequence, SplitSequences, ppo_loss};
use podracer::nn::{LstmCell, RecurrentCell, RecurrentState};
use podracer::rl::Algorithm;
use podracer::trace::ops::constant;
use podracer::{Array, Tensor, interpret, tree};

use super::fixture::{acted, dense, expect, floats, ints, trunk, wave};
use super::{message, scalars};

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
const EPISODE_STARTS: [f32; 10] = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];

fn agent() -> Agent<Tensor> {
    Agent {
        trunk: trunk(),
        lstm: RecurrentCell::Lstm(LstmCell {
            w_i: wave([4, 16], 3.0),
            w_h: wave([4, 16], 3.5),
            b: wave([16], 4.0),
        }),
        recurrent_bias: Some(floats([16], &[0.0; 16])),
        actor: dense([4, 2], 0.3),
        critic: dense([4, 1], 1.3),
        nvec: vec![2],
    }
}

fn batch() -> Samples<Tensor> {
    Samples {
        initial_lstm_state: RecurrentState::Two((wave([2, 4], 2.0), wave([2, 4], 2.5))),
        obs: wave([5, 2, 3], 1.0),
        episode_starts: floats([5, 2], &EPISODE_STARTS),
        actions: ints([5, 2, 1], &[0, 1, 1, 0, 1, 0, 0, 1, 1, 0]),
        logprobs: acted("lstm_log_prob").reshape([5, 2]),
        advantages: wave([5, 2], 6.0),
        returns: wave([5, 2], 7.0),
        values: wave([5, 2], 8.0),
    }
}

#[test]
fn the_loss_equals_that_of_numpy_with_scan_and_split() {
    let args = Args::from_flags([]).unwrap();
    expect("lstm", || tree::leaves(&ppo_loss(&agent(), &batch(), None, &args).1));
    let minibatches = [vec![0, 1]];
    let mut splits = SplitSequences::of_minibatches(&EPISODE_STARTS, 2, &minibatches).unwrap();
    let split = splits.remove(0);
    // Sequences of 3 and 2 steps, and of 2, 2 and 1: five, rounded up to eight, of at most four steps.
    assert_eq!(split.steps.shape()[..], [4, 8]);
    expect("lstm", || {
        let split = tree::map(split.clone(), |x: Array| match x.to_vec::<i32>() {
            Ok(values) => constant(values.as_slice()).reshape(x.shape().to_vec()),
            Err(_) => constant(x.to_vec::<f32>().unwrap().as_slice()),
        });
        tree::leaves(&ppo_loss(&agent(), &batch(), Some(&split), &args).1)
    });
}

#[test]
fn a_minibatch_of_reordered_environments_is_split_by_its_own_episodes() {
    // The minibatch has the environments of the rollout in reverse order.
    let args = Args::from_flags([]).unwrap();
    let minibatches = [vec![0, 1], vec![1, 0]];
    let mut splits = SplitSequences::of_minibatches(&EPISODE_STARTS, 2, &minibatches).unwrap();
    let split = splits.remove(1);
    let run = interpret(|split: Option<SplitSequences<Tensor>>| {
        let reversed = |x: Tensor, axis| x.take(constant([1i32, 0].as_slice()), axis);
        let batch = tree::map(batch(), |x: Tensor| reversed(x, if x.dim(0) == 5 { 1 } else { 0 }));
        ppo_loss(&agent(), &batch, split.as_ref(), &args).0
    });
    let scan = run.call(None).unwrap().item::<f32>().unwrap();
    let split = run.call(Some(split)).unwrap().item::<f32>().unwrap();
    assert!((scan - split).abs() < 1e-6, "{scan} {split}");
}

#[test]
fn scan_and_split_train_the_same_agent() {
    let runs = tempfile::tempdir().unwrap();
    assert_eq!(args(runs.path(), &["--sequence=split"]).sequence, Sequence::Split);
    for rnn in ["lstm", "mingru", "lru"] {
        scan_and_split_train_the_same(runs.path(), rnn);
    }
}

fn scan_and_split_train_the_same(runs: &Path, rnn: &str) {
    let run = |sequence: &str| {
        let flags = ["--rnn", rnn, "--sequence", sequence, "--save-model", "--eval-episodes=2"];
        scalars(&args(runs, &flags).train().unwrap().run_dir)
    };
    let (scan, split) = (run("scan"), run("split"));
    assert_eq!(scan.keys().filter(|(tag, _)| tag == "losses/value_loss").count(), 3);
    for (key, values) in &scan {
        if key.0.starts_with("losses") {
            for (a, b) in values.iter().zip(&split[key]) {
                // The order of sums differs, and later updates start from rounded parameters.
                let close = (a - b).abs() <= 1e-3 * a.abs().max(1.0);
                assert!(close, "{rnn} {key:?}: {a}, split {b}");
            }
        }
    }
}

#[test]
fn observations_are_single_frames() {
    let runs = tempfile::tempdir().unwrap();
    let flags = [
        "--env-id=Pong-v5",
        "--num-envs=2",
        "--num-steps=4",
        "--total-timesteps=8",
        "--save-model",
        "--eval-episodes=0",
    ];
    let summary = args(runs.path(), &flags).train().unwrap();
    let file = Path::new(&summary.run_dir).join("ppo_atari_lstm.safetensors");
    let saved = podracer::rl::checkpoint::load(file).unwrap();
    let first = saved.entries().find(|x| x.name == "$.agent.trunk.convs[0].w").unwrap();
    assert_eq!(first.ty.to_string(), "f32[8,8,1,32]");
}

/// Harvest's actions are three components of 13 choices; its mask is a part of the observation.
#[test]
fn multi_discrete_actions_train_with_scan_and_split() {
    let runs = tempfile::tempdir().unwrap();
    for sequence in ["scan", "split"] {
        let flags =
            ["--env-id=Harvest-v0", "--sequence", sequence, "--save-model", "--eval-episodes=1"];
        let summary = args(runs.path(), &flags).train().unwrap();
        let file = Path::new(&summary.run_dir).join("ppo_atari_lstm.safetensors");
        let saved = podracer::rl::checkpoint::load(file).unwrap();
        let actor = saved.entries().find(|x| x.name == "$.agent.actor.w").unwrap();
        assert_eq!(actor.ty.to_string(), "f32[128,39]");
        let entropy = &scalars(&summary.run_dir)[&("losses/entropy".to_string(), 128)];
        // At first each component is nearly uniform, of entropy log 13.
        assert!((entropy[0] - 3.0 * 13f32.ln()).abs() < 0.1, "{entropy:?}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--num-minibatches=8"]),
        "--num-minibatches 8: must be a divisor of --num-envs 4: minibatches are whole environments"
    );
    let other = error(&["--env-id=Taxi-v3"]);
    assert!(other.contains("ppo_atari_lstm takes images"), "{other}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was started");
}
