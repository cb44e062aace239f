//! Trains a phasic policy gradient: `cargo run --release --example ppg`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppg::Args>()
}
