//! Bounds of continuous actions.

use std::hash::{Hash, Hasher};

use crate::Tensor;
use crate::envs::{Bound, Space};
use crate::error::{Error, Result};
use crate::random::{self, Key};
use crate::trace::DType;
use crate::trace::ops::constant;

/// Returns the bounds of an action space, or the requirement that it does not meet, as part of an
/// error message.
pub(in crate::rl) fn bounds_of(action: &Space) -> std::result::Result<Bounds, &'static str> {
    let Space::Box { low, high, shape, dtype } = action else {
        return Err("takes continuous actions");
    };
    if shape.rank() != 1 || *dtype != DType::F32 {
        return Err("takes vectors of f32 as actions");
    }
    let side = |bound: &Bound| (0..shape[0]).map(|i| bound.at(i) as f32).collect();
    let bounds = Bounds { low: side(low), high: side(high) };
    if bounds.low.iter().chain(&bounds.high).any(|bound| !bound.is_finite()) {
        return Err("needs bounds of every action");
    }
    Ok(bounds)
}

/// Bounds of continuous actions, which are vectors of A numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Hash for Bounds {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let bits = |bounds: &[f32]| bounds.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        (bits(&self.low), bits(&self.high)).hash(state);
    }
}

impl Bounds {
    /// Creates bounds from `low` to `high`, which have equal lengths.
    ///
    /// # Errors
    /// [`Error::Config`] if the lengths differ, or if an upper bound is not above the lower one.
    pub fn new(low: &[f32], high: &[f32]) -> Result<Bounds> {
        let rising = low.iter().zip(high).all(|(low, high)| low < high);
        if low.len() != high.len() || !rising {
            return Err(Error::Config(format!(
                "the bounds of actions from {low:?} to {high:?}: must be as many, and rising"
            )));
        }
        Ok(Bounds { low: low.to_vec(), high: high.to_vec() })
    }

    /// Returns A, the number of elements of an action.
    pub fn size(&self) -> usize {
        self.low.len()
    }

    /// Returns the lower bounds, `f32[A]`.
    pub fn low(&self) -> Tensor {
        constant(self.low.as_slice())
    }

    /// Returns the upper bounds, `f32[A]`.
    pub fn high(&self) -> Tensor {
        constant(self.high.as_slice())
    }

    /// Returns half of the distance between the bounds, `f32[A]`.
    pub(crate) fn action_scale(&self) -> Tensor {
        (self.high() - self.low()) / 2.0
    }

    /// Returns the midpoints of the bounds, `f32[A]`.
    pub(crate) fn action_bias(&self) -> Tensor {
        (self.high() + self.low()) / 2.0
    }

    /// Samples `n` actions uniformly within the bounds: `f32[n, A]`.
    pub fn sample(&self, key: Key<Tensor>, n: usize) -> Tensor {
        let unit = random::uniform(key, [n, self.size()], DType::F32, 0.0, 1.0);
        self.low() + unit * (self.high() - self.low())
    }

    /// Clips `action: f32[.., A]` to the bounds.
    pub fn clip(&self, action: Tensor) -> Tensor {
        action.maximum(self.low()).minimum(self.high())
    }
}
