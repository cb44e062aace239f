//! Trains PPO on environments that are part of the compiled program: `cargo run --release --example ppo_anakin`.

use std::process::ExitCode;

fn main() -> ExitCode {
    podracer::rl::algorithm::main::<podracer::algos::ppo_anakin::Args>()
}
