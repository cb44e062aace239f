//! IMPALA (Espeholt et al. 2018) on the Sebulba architecture, as in Cleanba's `cleanba_impala.py`.
//!
//! Actors and learner are those of the example `sebulba_ppo`. The loss is another one: V-trace corrects each
//! rollout for the difference between the policy that acted and the one that learns, and a rollout is used
//! once.
//!
//! ```sh
//! # One device for the actors, three for the learner: CPU devices of this process.
//! cargo run --release --example sebulba_impala -- \
//!     --env-id CartPole-v1 --num-devices 4 --actor-device-ids 0 --learner-device-ids 1 2 3
//! # MinAtar, one device for each side.
//! cargo run --release --example sebulba_impala -- \
//!     --env-id MinAtar/Breakout-v1 --num-devices 2 --learner-device-ids 1
//! cargo run --release --example sebulba_impala -- --help
//! ```
//!
//! It prints progress on standard error and the result on standard output; curves are in the run's folder
//! (`tensorboard --logdir runs`). V-trace and the training loop are in `src/algos/cleanba_impala.rs`;
//! devices, queues and several processes are described in `docs/sebulba.md`.

use std::process::ExitCode;

use podracer::algos::cleanba_impala::Args;
use podracer::rl::algorithm;

fn main() -> ExitCode {
    algorithm::main::<Args>()
}
