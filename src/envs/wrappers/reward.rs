//! Reward wrappers. Episode statistics count the unchanged rewards.

use super::wrapped::{Wrapper, wrap};
use crate::envs::env::{Env, StepOutcome};
use crate::error::{Error, Result};

/// Wrapper that applies a function to rewards, as gymnasium's `TransformReward`.
#[derive(Debug)]
pub struct TransformReward<F>(F);

impl<F: FnMut(f64) -> f64 + Send + 'static> TransformReward<F> {
    /// Wraps `env` and replaces each reward by `f(reward)`.
    ///
    /// ```
    /// use podracer::envs::{make, wrappers::TransformReward};
    /// let env = TransformReward::wrap(make("Pendulum-v1")?, |reward| reward * 0.1);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn wrap(env: Box<dyn Env>, f: F) -> Box<dyn Env> {
        wrap(env, TransformReward(f))
    }
}

impl<F: FnMut(f64) -> f64 + Send + 'static> Wrapper for TransformReward<F> {
    fn outcome(&mut self, outcome: StepOutcome) -> StepOutcome {
        StepOutcome { reward: (self.0)(outcome.reward), ..outcome }
    }
}

/// Wrapper that clips rewards to bounds, as gymnasium's `ClipReward`.
#[derive(Debug)]
pub struct ClipReward {
    low: f64,
    high: f64,
}

impl ClipReward {
    /// Wraps `env` and clips its rewards to `low` and `high`. Returns an error unless `low <=
    /// high`.
    pub fn wrap(env: Box<dyn Env>, low: f64, high: f64) -> Result<Box<dyn Env>> {
        if low <= high {
            return Ok(wrap(env, ClipReward { low, high }));
        }
        let id = env.spec().id;
        Err(Error::Config(format!("{id}: ClipReward: {low} to {high} is no range")))
    }
}

impl Wrapper for ClipReward {
    fn outcome(&mut self, outcome: StepOutcome) -> StepOutcome {
        StepOutcome { reward: outcome.reward.clamp(self.low, self.high), ..outcome }
    }
}
