//! Sebulba (Hessel et al. 2021), as Cleanba has it (Huang et al. 2023): actors step environments on
//! their devices while a learner, replicated by `pmap`, trains on its own.
//!
//! ```text
//! actor thread 0   rollout 1 (v1)   rollout 2 (v1)   rollout 3 (v2)   rollout 4 (v3)
//!                         |\               |\               |\
//! learner                   update 1 -> v2   update 2 -> v3   update 3 -> v4
//! ```
//!
//! The policy is exactly [`LAG`] versions behind; [`ActorLearnerQueues`] enforce the order. [`Layout`] assigns
//! devices to actors and learners, and numbers the environments; [`run_actor_learner()`] runs the threads;
//! [`Reduce`] sums over environments, devices and processes. A [`RunStatus`] holds the status of each
//! thread, and a [`LiveView`] displays it.

mod actor_learner;
mod actors;
mod agent;
mod checkpoint;
mod config;
mod exchange;
mod layout;
mod learner;
mod options;
mod queues;
mod reduce;
mod rollout;
mod setup;
mod stats;
mod status;
mod threads;
mod train;
mod view;

pub use actor_learner::{
    ActorRollout, LAG, Learner, LearnerBatch, Schedule, run_actor_learner, version_of,
};
pub use agent::{Agent, Sizes};
pub use checkpoint::{ActorSnapshot, ActorState};
pub use config::UpdateConfig;
pub use exchange::{Across, Exchange};
pub(crate) use layout::indivisible;
pub use layout::{Layout, World};
pub use options::{Protocol, SebulbaOptions};
pub use queues::{ActorLearnerQueues, Waiting};
pub use reduce::Reduce;
pub(crate) use rollout::keys_of;
pub use rollout::{EnvState, Rollout, RolloutResults, collect_rollout};
pub use stats::{RolloutTimes, Stats, Window};
pub use status::{Activity, RunStatus, Snapshot, ThreadSnapshot, ThreadStatus};
pub use threads::run;
pub use train::{TrainFunctions, policy, train};
pub use view::{LiveView, watch};
