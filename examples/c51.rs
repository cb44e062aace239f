//! Trains a C51 agent: `cargo run --release --example c51`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::c51::Args>()
}
