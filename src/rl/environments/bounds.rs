//! Bounds of continuous actions.

use std::hash::{Hash, Hasher};

use crate::Tensor;
use crate::envs::Space;
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
    let elements = (0..shape[0]).map(|i| inside(low.at(i), high.at(i)));
    let (low, high) = elements.unzip();
    Ok(Bounds { low, high })
}

/// Returns the least and the greatest `f32` from `low` to `high`; the bounds rounded to `f32` if there is
/// none.
fn inside(low: f64, high: f64) -> (f32, f32) {
    let (least, greatest) = (low as f32, high as f32);
    let up = if f64::from(least) < low { least.next_up() } else { least };
    let down = if f64::from(greatest) > high { greatest.next_down() } else { greatest };
    if up <= down { (up, down) } else { (least, greatest) }
}

/// Bounds of continuous actions, which are vectors of A numbers; infinite for an element without bounds.
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

    /// Returns true if every element has two bounds, whose distance and sum are finite in `f32`.
    pub fn are_finite(&self) -> bool {
        let finite =
            |(low, high): (&f32, &f32)| (high - low).is_finite() && (high + low).is_finite();
        self.low.iter().zip(&self.high).all(finite)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Shape;

    /// Clipped numbers of `f32` lie between the bounds of `f64`.
    #[test]
    fn bounds_lie_inside_those_of_the_space() {
        let (low, high) =
            (vec![-0.1, 0.1, 1.0 + 1e-12, -1e300], vec![0.3, 0.7, 1.0 + 1e-11, 1e-50]);
        let shape: Shape = [4].into();
        let space = Space::Box {
            low: low.clone().into(),
            high: high.clone().into(),
            shape,
            dtype: DType::F32,
        };
        let bounds = bounds_of(&space).unwrap();
        for i in [0, 1, 3] {
            let inner = [bounds.low[i], bounds.high[i]].map(f64::from);
            assert!(low[i] <= inner[0] && inner[1] <= high[i], "{i}: {inner:?}");
            assert!(i == 3 || (low[i] - inner[0]).abs() + (high[i] - inner[1]).abs() < 1e-7);
        }
        // There is no f32 between these.
        assert_eq!((bounds.low[2], bounds.high[2]), (1.0, 1.0));
        assert!(bounds.are_finite());
        let free = Space::f32([1], f64::NEG_INFINITY, 0.0);
        assert!(!bounds_of(&free).unwrap().are_finite());
    }
}
