//! Trains an agent on images that learns from another: `cargo run --release --example qdagger_dqn_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::qdagger_dqn_atari::Args>()
}
