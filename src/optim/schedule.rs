//! Schedules: hyperparameters that depend on the number of updates.

use crate::trace::{DType, Tensor};

/// Schedule of a number over the count of updates.
///
/// As in optax, the first update uses the value at count 0: pass the state's count before the
/// update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Constant value.
    Constant(f64),
    /// `optax.linear_schedule`: from `init` to `end` in `steps` updates, then `end`.
    Linear {
        /// Initial value.
        init: f64,
        /// Final value.
        end: f64,
        /// Number of updates between them; if 0, the value is always `init`.
        steps: u32,
    },
    /// `optax.cosine_decay_schedule`: half a cosine from `init` to `alpha * init` in `steps`
    /// updates, then constant.
    Cosine {
        /// Initial value.
        init: f64,
        /// Number of updates; at least 1.
        steps: u32,
        /// Final value as a fraction of the initial one.
        alpha: f64,
    },
}

impl Schedule {
    /// Returns the value (f32) after `count` updates, an integer scalar.
    #[track_caller]
    pub fn at(self, count: Tensor) -> Tensor {
        let count = count.to(DType::F32);
        match self {
            Schedule::Constant(value) => crate::trace::ops::full_like(count, value),
            Schedule::Linear { init, steps: 0, .. } => crate::trace::ops::full_like(count, init),
            Schedule::Linear { init, end, steps } => {
                let left = 1.0 - count.clip(0.0, steps as f64) / steps as f64;
                (init - end) * left + end
            }
            Schedule::Cosine { init, steps, alpha } => {
                let steps = steps.max(1) as f64;
                let angle = count.minimum(steps) * std::f64::consts::PI / steps;
                init * ((1.0 - alpha) * (0.5 * (angle.cos() + 1.0)) + alpha)
            }
        }
    }

    /// Returns the value after `count` updates, computed on the host, for logs.
    pub fn value(self, count: u64) -> f64 {
        match self {
            Schedule::Constant(value) => value,
            Schedule::Linear { init, steps: 0, .. } => init,
            Schedule::Linear { init, end, steps } => {
                let left = 1.0 - count.min(steps as u64) as f64 / steps as f64;
                (init - end) * left + end
            }
            Schedule::Cosine { init, steps, alpha } => {
                let steps = steps.max(1) as u64;
                let part = count.min(steps) as f64 / steps as f64;
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * part).cos());
                init * ((1.0 - alpha) * cosine + alpha)
            }
        }
    }
}
