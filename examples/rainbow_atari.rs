//! Trains a Rainbow agent on images: `cargo run --release --example rainbow_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::rainbow_atari::Args>()
}
