//! Trains PPO with actors and learners on many devices: `cargo run --release --example sebulba_ppo --
//! --env-id CartPole-v1 --num-devices 4 --actor-device-ids 0 --learner-device-ids 1 2 3`.

use std::process::ExitCode;

use podracer::algos::cleanba_ppo::Args;
use podracer::rl::{algorithm, sebulba};

/// What suits environments that show a few numbers; Cleanba's settings are for Atari. Flags that are
/// given come after and count.
const SMALL: &[&str] = &[
    "--total-timesteps=1000000",
    "--local-num-envs=12",
    "--num-actor-threads=1",
    "--num-steps=32",
    "--learning-rate=2.5e-3",
    "--clip-coef=0.2",
];

fn main() -> ExitCode {
    algorithm::run::<Args>(sebulba::with_small(SMALL, std::env::args_os()))
}
