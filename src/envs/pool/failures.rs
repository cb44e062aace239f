//! Policy for environments that fail, and the record of their failures.

use std::collections::VecDeque;

/// Policy of a pool for an environment whose `step` returns an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The call that would have returned its row fails, and so does every later call.
    #[default]
    Stop,
    /// Its episode is truncated at that step and the other environments continue. The failed step
    /// counts as not taken: its reward is 0 and its observation ([`final_obs`], if the pool resets
    /// in the same step) is the previous one. [`EnvPool::take_failures`] returns the errors. A failed
    /// step of a game of several agents truncates the episodes of all of them.
    ///
    /// Keeps a copy of each environment's last observation. An error of a reset and any panic still
    /// end the pool.
    ///
    /// [`final_obs`]: crate::envs::Batch::final_obs
    /// [`EnvPool::take_failures`]: crate::envs::EnvPool::take_failures
    Truncate,
}

/// Failed step in a pool that continues after failures ([`OnError::Truncate`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Index of the environment.
    pub env_id: usize,
    /// Number of the step since the reset, from 1.
    pub step: u32,
    /// Error message of the environment.
    pub message: String,
}

/// Maximum number of failures kept until they are taken; older ones are dropped.
const MAX_STORED_FAILURES: usize = 1 << 16;

/// Failures of a pool, oldest first.
#[derive(Debug, Default)]
pub(in crate::envs) struct Failures(VecDeque<Failure>);

impl Failures {
    pub(in crate::envs) fn push(&mut self, failure: Failure) {
        if self.0.len() == MAX_STORED_FAILURES {
            self.0.pop_front();
        }
        self.0.push_back(failure);
    }

    pub(in crate::envs) fn drain(&mut self) -> Vec<Failure> {
        self.0.drain(..).collect()
    }
}
