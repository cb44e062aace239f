//! Trains IMPALA with actors and learners on many devices: `cargo run --release --example sebulba_impala --
//! --env-id CartPole-v1 --num-devices 4 --actor-device-ids 0 --learner-device-ids 1 2 3`.

use std::process::ExitCode;

use podracer::algos::cleanba_impala::Args;
use podracer::rl::{algorithm, sebulba};

/// What suits environments that show a few numbers; Cleanba's settings are for Atari. Flags that are
/// given come after and count.
const SMALL: &[&str] = &[
    "--total-timesteps=1500000",
    "--local-num-envs=12",
    "--num-actor-threads=1",
    "--learning-rate=1e-3",
    "--vf-coef=0.25",
];

fn main() -> ExitCode {
    algorithm::run::<Args>(sebulba::with_small(SMALL, std::env::args_os()))
}
