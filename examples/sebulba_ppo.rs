//! PPO on the Sebulba architecture (Hessel et al. 2021), as in Cleanba's `cleanba_ppo.py`.
//!
//! Actor threads step environments on their devices while the learner, replicated by `pmap`, trains on its
//! own devices. The policy of the actors is exactly one version behind the learner's.
//!
//! ```sh
//! # One device for the actors, three for the learner: CPU devices of this process.
//! cargo run --release --example sebulba_ppo -- \
//!     --env-id CartPole-v1 --num-devices 4 --actor-device-ids 0 --learner-device-ids 1 2 3
//! # Atari, one device for each side.
//! cargo run --release --example sebulba_ppo -- \
//!     --env-id Pong-v5 --num-devices 2 --learner-device-ids 1 --network nature
//! cargo run --release --example sebulba_ppo -- --help
//! ```
//!
//! The first command ends after 1,000,000 steps with a mean return of 500. It prints progress on standard
//! error and the result on standard output; curves are in the run's folder (`tensorboard --logdir runs`).
//! The loss and the training loop are in `src/algos/cleanba_ppo.rs`; devices, queues, several processes and
//! what they promise are described in `docs/sebulba.md`.

use std::process::ExitCode;

use podracer::algos::cleanba_ppo::Args;
use podracer::rl::algorithm;

fn main() -> ExitCode {
    algorithm::main::<Args>()
}
