//! Trains PPO against itself: `cargo run --release --example ppo_self_play`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_self_play::Args>()
}
