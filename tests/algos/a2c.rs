//! A2C: its loss against NumPy, its runs against each other, errors about bad settings.

use std::path::Path;

use podracer::algos::a2c::{Agent, Args, Rollout, Samples, a2c_loss, compute_gae, make_samples};
use podracer::rl::Algorithm;
use podracer::trace::ops::{constant, stack};

use super::fixture::{expect, floats, ints, mlp, wave};
use super::message;

fn args(runs: &Path, more: &[&str]) -> Args {
    let runs = format!("--runs-dir={}", runs.display());
    let small = ["--total-timesteps=240", "--num-envs=4", "--json", &runs];
    Args::from_flags(small.into_iter().chain(more.iter().copied())).unwrap()
}

#[test]
fn advantages_are_those_of_numpy() {
    let dones = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let steps = || (wave([5, 2], 0.1), floats([5, 2], &dones), wave([5, 2], 0.2), wave([2], 0.3));
    expect("gae", || {
        let (rewards, dones, values, next_value) = steps();
        <[_; 2]>::from(compute_gae(rewards, dones, values, next_value, (0.9, 0.8))).to_vec()
    });
    let args = Args::from_flags(["--gamma=0.9", "--gae-lambda=0.8"]).unwrap();
    expect("explained_variance", || {
        let (rewards, dones, values, next_value) = steps();
        let (obs, next_obs) = (wave([5, 2, 3], 0.4), wave([2, 3], 0.5));
        let rollout = Rollout { obs, actions: ints([5, 2], &[0; 10]), rewards, dones, next_obs };
        vec![make_samples(rollout, values, next_value, &args).1]
    });
}

#[test]
fn the_loss_is_that_of_numpy() {
    let args = Args::from_flags(["--ent-coef=0.02"]).unwrap();
    expect("a2c", || {
        let agent = Agent { actor: mlp(&[3, 4, 4, 2], 0.1), critic: mlp(&[3, 4, 4, 1], 1.1) };
        let batch = Samples {
            obs: wave([6, 3], 1.0),
            actions: ints([6], &[0, 1, 1, 0, 1, 0]),
            advantages: wave([6], 6.0),
            returns: wave([6], 7.0),
        };
        let (loss, [policy, value, entropy]) = a2c_loss(&agent, &batch, &args);
        vec![stack(&[loss, policy, value, entropy], 0) + constant(0.0f32)]
    });
}

#[test]
fn settings_out_of_range_are_refused() {
    let runs = tempfile::tempdir().unwrap();
    let error = |flags: &[&str]| message(args(runs.path(), flags).train());
    assert_eq!(
        error(&["--num-steps=0"]),
        "--num-steps 0: must be a whole number from 1 to 1048576"
    );
    assert_eq!(
        error(&["--rms-prop-alpha=1.5"]),
        "--rms-prop-alpha 1.5: must be a number from 0 to 1"
    );
    assert_eq!(
        error(&["--total-timesteps=19"]),
        "--total-timesteps 19: must be at least one batch, num-envs * num-steps = 20"
    );
    let continuous = error(&["--env-id=Pendulum-v1"]);
    assert!(continuous.contains("a2c chooses among discrete actions"), "{continuous}");
    assert!(std::fs::read_dir(runs.path()).unwrap().next().is_none(), "a run was begun");
}
