//! Trains PPO with curiosity: `cargo run --release --example ppo_rnd_envpool`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_rnd_envpool::Args>()
}
