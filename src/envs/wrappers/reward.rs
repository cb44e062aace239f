//! Wrappers of rewards. Episode statistics count the rewards that come in.

use crate::envs::env::{Env, StepOutcome};
use crate::error::{Error, Result};

use super::wrapped::{Wrapper, wrap};

/// Rewards through a function, as gymnasium's `TransformReward`.
#[derive(Debug)]
pub struct TransformReward<F>(F);

impl<F: FnMut(f64) -> f64 + Send + 'static> TransformReward<F> {
    /// `env` with `f(reward)` for each reward.
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

/// Rewards brought to the nearest bound, as gymnasium's `ClipReward`.
#[derive(Debug)]
pub struct ClipReward {
    low: f64,
    high: f64,
}

impl ClipReward {
    /// `env` with rewards from `low` to `high`. Fails unless `low <= high`.
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
