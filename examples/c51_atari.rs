//! Trains a C51 agent on images: `cargo run --release --example c51_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::c51_atari::Args>()
}
