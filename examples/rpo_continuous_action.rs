//! Trains RPO: `cargo run --release --example rpo_continuous_action`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::rpo_continuous_action::Args>()
}
