//! Trains PPO with a memory: `cargo run --release --example ppo_atari_lstm`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_atari_lstm::Args>()
}
