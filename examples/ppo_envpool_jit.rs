//! Trains PPO on a pool of environments: `cargo run --release --example ppo_envpool_jit`.
//!
//! `--env-id Breakout-v5`, or another game, takes the variant for images.

use std::process::ExitCode;

use podracer::algos::{ppo, ppo_atari_envpool};
use podracer::rl::algorithm;
use podracer::{DType, envs};

fn main() -> ExitCode {
    let images = |id: String| envs::spec(&id).is_ok_and(|x| x.observation.dtype() == DType::U8);
    if algorithm::env_id_in(std::env::args()).is_some_and(images) {
        algorithm::main::<ppo_atari_envpool::Args>()
    } else {
        algorithm::main::<ppo::Args>()
    }
}
