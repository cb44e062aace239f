//! Trains a PQN agent: `cargo run --release --example pqn`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::pqn::Args>()
}
