//! Trains DDPG: `cargo run --release --example ddpg_continuous_action`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ddpg_continuous_action::Args>()
}
