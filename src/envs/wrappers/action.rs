//! Action wrappers.

use super::wrapped::{Wrapper, wrap};
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};

/// Wrapper that rescales continuous actions, as gymnasium's `RescaleAction`.
#[derive(Debug)]
pub struct RescaleAction {
    min: f64,
    max: f64,
    low: Vec<f64>,
    high: Vec<f64>,
}

impl RescaleAction {
    /// Wraps `env` so that each element of its actions ranges from `min` to `max`, mapped linearly
    /// to its own bounds.
    ///
    /// Returns an error for an environment whose actions have no finite bounds, and unless `min <
    /// max`.
    pub fn wrap(env: Box<dyn Env>, min: f64, max: f64) -> Result<Box<dyn Env>> {
        let spec = env.spec();
        let problem = |what: String| Error::Config(format!("{}: RescaleAction: {what}", spec.id));
        if !(min < max && min.is_finite() && max.is_finite()) {
            return Err(problem(format!("{min} to {max} is no range")));
        }
        let Space::Box { low, high, shape, .. } = &spec.action else {
            return Err(problem(format!("its actions are {}, not continuous", spec.action)));
        };
        let elements = |bound: &Bound| (0..shape.numel()).map(|i| bound.at(i)).collect::<Vec<_>>();
        let (low, high) = (elements(low), elements(high));
        if !low.iter().chain(&high).all(|bound| bound.is_finite()) {
            return Err(problem("its actions have no finite bounds".into()));
        }
        Ok(wrap(env, RescaleAction { min, max, low, high }))
    }
}

impl Wrapper for RescaleAction {
    fn spec(&self, mut spec: EnvSpec) -> EnvSpec {
        if let Space::Box { low, high, .. } = &mut spec.action {
            (*low, *high) = (self.min.into(), self.max.into());
        }
        spec
    }

    fn action(&mut self, action: &mut Vec<f32>) {
        for (value, (&low, &high)) in action.iter_mut().zip(self.low.iter().zip(&self.high)) {
            let share = (f64::from(*value) - self.min) / (self.max - self.min);
            // Rounding must not exceed the bounds.
            *value = (low + (high - low) * share).clamp(low, high) as f32;
        }
    }
}
