//! Trains PPO for continuous actions: `cargo run --release --example ppo_continuous_action`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_continuous_action::Args>()
}
