//! What becomes of an environment that fails.

use std::collections::VecDeque;

/// What the pool does when an environment's `step` returns an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The call that would have delivered its row fails, and so does every later one.
    #[default]
    Stop,
    /// Its episode ends there as truncated and the others go on. The failed step counts as not
    /// taken: its reward is 0 and its observation ([`final_obs`], where the pool resets in the same
    /// step) is the one before it. [`EnvPool::take_failures`] tells what went wrong.
    ///
    /// Keeps a copy of each environment's last observation. An error of a reset, and a panic
    /// anywhere, end the pool all the same.
    ///
    /// [`final_obs`]: super::Batch::final_obs
    /// [`EnvPool::take_failures`]: super::EnvPool::take_failures
    Truncate,
}

/// A step that failed in a pool that goes on ([`OnError::Truncate`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The environment.
    pub env_id: usize,
    /// Which step of its episode it was, from 1.
    pub step: u32,
    /// The environment's error.
    pub message: String,
}

/// Failures that nobody has asked for are forgotten beyond this many.
const KEPT: usize = 1 << 16;

/// The failures of a pool, oldest first.
#[derive(Debug, Default)]
pub(super) struct Failures(VecDeque<Failure>);

impl Failures {
    pub(super) fn push(&mut self, failure: Failure) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(failure);
    }

    pub(super) fn drain(&mut self) -> Vec<Failure> {
        self.0.drain(..).collect()
    }
}
