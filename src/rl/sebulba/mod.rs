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
//! devices to actors and learners, and numbers the environments; [`drive()`] runs the threads;
//! [`Reduce`] sums over environments, devices and processes. A [`RunStatus`] holds the status of each
//! thread, and a [`LiveView`] displays it.

mod agent;
#[cfg(any(feature = "mpi", test))]
mod arrivals;
mod board;
mod checkpoint;
mod drive;
mod exchange;
mod lanes;
mod layout;
#[cfg(feature = "mpi")]
mod mpi;
mod options;
mod reduce;
mod rollout;
mod simulate;
mod stats;
mod threads;
mod train;
mod view;

pub use agent::{Agent, Network, Sizes, Trunk};
pub use board::{Activity, RunStatus, Seen, Snapshot, ThreadStatus};
pub use checkpoint::{ActorSnapshot, ActorState};
pub use drive::{ActorRollout, LAG, Learner, LearnerBatch, Schedule, drive, version_of};
pub use exchange::{Across, Exchange, expect_same};
pub use lanes::{ActorLearnerQueues, Waiting};
pub use layout::{Layout, World, indivisible};
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use options::{Protocol, SebulbaOptions};
pub use reduce::Reduce;
pub use rollout::{Playing, Rollout, begin, collect, keys_of};
pub use simulate::{Costs, Forecast, Shape, simulate};
pub use stats::{RolloutTimes, Stats, Window, processor_time};
pub use threads::run;
pub use train::{Hooks, Update, play, train};
pub use view::{LiveView, watch};
