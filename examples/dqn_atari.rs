//! Trains a DQN agent on images: `cargo run --release --example dqn_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::dqn_atari::Args>()
}
