//! Trains PPO with masked MultiDiscrete actions: `cargo run --release --example ppo_masked`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_masked::Args>()
}
