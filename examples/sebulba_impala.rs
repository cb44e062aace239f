//! Trains IMPALA with actors and learners on many devices: `cargo run --release --example sebulba_impala --
//! --env-id CartPole-v1 --num-devices 4 --actor-device-ids 0 --learner-device-ids 1 2 3`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::cleanba_impala::Args>()
}
