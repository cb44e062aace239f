//! The bounds of continuous actions.

use crate::Tensor;
use crate::envs::{Bound, Space};
use crate::error::{Error, Result};
use crate::random::{self, Key};
use crate::trace::DType;
use crate::trace::ops::constant;

/// The bounds of actions, or what an algorithm that needs some says of them.
pub(super) fn bounds_of(action: &Space) -> std::result::Result<Bounds, &'static str> {
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

/// The bounds of continuous actions, which are vectors of A numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Bounds {
    /// From `low` to `high`, of as many elements.
    ///
    /// # Errors
    /// [`Error::Config`] if they differ in number, or if an upper bound is not above the lower one.
    pub fn new(low: &[f32], high: &[f32]) -> Result<Bounds> {
        let rising = low.iter().zip(high).all(|(low, high)| low < high);
        if low.len() != high.len() || !rising {
            return Err(Error::Config(format!(
                "the bounds of actions from {low:?} to {high:?}: must be as many, and rising"
            )));
        }
        Ok(Bounds { low: low.to_vec(), high: high.to_vec() })
    }

    /// A: how many numbers an action has.
    pub fn size(&self) -> usize {
        self.low.len()
    }

    /// The lower bounds, `f32[A]`.
    pub fn low(&self) -> Tensor {
        constant(self.low.as_slice())
    }

    /// The upper bounds, `f32[A]`.
    pub fn high(&self) -> Tensor {
        constant(self.high.as_slice())
    }

    /// Half of the distance between them, `f32[A]`: CleanRL's `action_scale`.
    pub fn scale(&self) -> Tensor {
        (self.high() - self.low()) / 2.0
    }

    /// The middle between them, `f32[A]`: CleanRL's `action_bias`.
    pub fn bias(&self) -> Tensor {
        (self.high() + self.low()) / 2.0
    }

    /// `n` actions, each element drawn evenly from between its bounds: `f32[n, A]`.
    pub fn sample(&self, key: Key<Tensor>, n: usize) -> Tensor {
        let unit = random::uniform(key, [n, self.size()], DType::F32, 0.0, 1.0);
        self.low() + unit * (self.high() - self.low())
    }

    /// `action: f32[.., A]`, each element between its bounds.
    pub fn clip(&self, action: Tensor) -> Tensor {
        action.maximum(self.low()).minimum(self.high())
    }
}
