//! PPO on a pool of environments: CleanRL's `ppo.py`, with the rollout and the update compiled.
//!
//! ```sh
//! cargo run --release --example ppo_envpool_jit
//! cargo run --release --example ppo_envpool_jit -- --env-id Acrobot-v1 --seed 3 --save-model
//! cargo run --release --example ppo_envpool_jit -- --env-id Breakout-v5 --total-timesteps 10000000
//! cargo run --release --example ppo_envpool_jit -- --mode eager --total-timesteps 20000
//! cargo run --release --example ppo_envpool_jit -- --help
//! ```
//!
//! Without flags it trains on CartPole-v1 for 500,000 steps: a few seconds, and a mean return near 490 of
//! 500. It prints progress on standard error and the result on standard output; curves are in the run's
//! folder (`tensorboard --logdir runs`). Flags and defaults are CleanRL's. `--mode eager` runs the same
//! functions operation by operation, as JAX does outside `jit`.
//!
//! An algorithm is the struct of its settings: `algorithm::main` parses the command line into it, trains,
//! and prints the result. The network, the loss and the training loop are in `src/algos/ppo.rs`, and the
//! variant for images is in `src/algos/ppo_atari_envpool.rs`. `podracer train NAME` runs every algorithm
//! this way.

use std::process::ExitCode;

use podracer::algos::{ppo, ppo_atari_envpool};
use podracer::rl::algorithm;
use podracer::{DType, envs};

/// Returns true if observations of the environment are images: arrays of bytes, as Atari's are.
fn has_image_observations(env_id: &str) -> bool {
    envs::spec(env_id).is_ok_and(|spec| spec.observation.dtype() == DType::U8)
}

fn main() -> ExitCode {
    // The environment decides which flags there are: its id is read before the command line is parsed.
    let env_id = algorithm::env_id_in(std::env::args());
    if env_id.is_some_and(|id| has_image_observations(&id)) {
        algorithm::main::<ppo_atari_envpool::Args>()
    } else {
        algorithm::main::<ppo::Args>()
    }
}
