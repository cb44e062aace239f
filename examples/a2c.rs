//! Trains an A2C agent: `cargo run --release --example a2c`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::a2c::Args>()
}
