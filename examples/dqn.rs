//! Trains a DQN agent: `cargo run --release --example dqn`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::dqn::Args>()
}
