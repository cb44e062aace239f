//! Trains SAC: `cargo run --release --example sac_continuous_action`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::sac_continuous_action::Args>()
}
