//! Trains PPO on an Atari game: `cargo run --release --example ppo_atari`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_atari::Args>()
}
