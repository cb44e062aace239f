//! Trains TD3: `cargo run --release --example td3_continuous_action`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::td3_continuous_action::Args>()
}
