//! PPO on images with Gymnasium's wrappers: its loss against NumPy, its runs, refused settings.

use std::path::Path;

use podracer::algos::ppo_atari::{Agent, Args, Samples, ppo_loss};
use podracer::rl::Algorithm;
use podracer::tree;

use super::fixture::{acted, dense, expect, ints, trunk, wave};
use super::{DIVERGING, expect_traced_nan, message};

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = [
        "--env-id=MinAtar/Breakout-v1",
        "--total-timesteps=192",
        "--num-envs=4",
        "--num-steps=16",
        "--num-minibatches=2",
        "--update-epochs=2",
        "--json",
        &runs,
    ];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

#[test]
fn the_loss_equals_that_of_numpy() {
    let args = Args::from_flags([]).unwrap();
    expect("ppo", || {
        let agent = Agent { trunk: trunk(), actor: dense([4, 2], 0.3), critic: dense([4, 1], 1.3) };
        let batch = Samples {
            obs: wave([6, 3], 1.0),
            actions: ints([6], &[0, 1, 1, 0, 1, 0]),
            logprobs: acted("ppo_log_prob"),
            advantages: wave([6], 6.0),
            returns: wave([6], 7.0),
            values: wave([6], 8.0),
        };
        tree::leaves(&ppo_loss(&agent, &batch, &args).1)
    });
}

#[test]
fn an_atari_game_is_trained_on() {
    let runs = tempfile::tempdir().unwrap();
    let flags = ["--env-id=Pong-v5", "--num-envs=2", "--num-steps=8", "--total-timesteps=16"];
    let summary = args(runs.path(), &flags).train().unwrap();
    assert_eq!(summary.global_step, 16);
}

#[test]
fn a_nan_of_a_rollout_is_traced_to_its_operation() {
    let runs = tempfile::tempdir().unwrap();
    let flags = [&DIVERGING[..], &["--learning-rate=1e15"]].concat();
    expect_traced_nan(args(runs.path(), &flags).train());
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--num-minibatches=5"]),
        "--num-minibatches 5: must be a divisor of the batch, num-envs * num-steps = 64"
    );
    let vector = error(&["--env-id=CartPole-v1"]);
    assert!(
        vector
            .contains("ppo_atari takes images u8[channels, height, width] of at least 36 by 36 or"),
        "{vector}"
    );
    let unknown = error(&["--env-id=Pomg-v5"]);
    assert!(unknown.contains("Pong-v5"), "{unknown}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was started");
}
