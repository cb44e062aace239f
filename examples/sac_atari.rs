//! Trains a SAC agent on images: `cargo run --release --example sac_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::sac_atari::Args>()
}
