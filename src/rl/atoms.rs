//! Distributions of returns over fixed atoms: what C51 (Bellemare et al. 2017) and what is built
//! on it share.

use super::flags::expect;
use crate::Tensor;
use crate::error::Result;
use crate::trace::DType;
use crate::trace::ops::{arange, constant};

/// Evenly spaced returns, each of which has a probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Atoms {
    /// How many there are; at least 2.
    pub count: usize,
    /// The lowest.
    pub v_min: f64,
    /// The highest.
    pub v_max: f64,
}

impl Atoms {
    /// Fails unless they are at least two, from `--v-min` up to `--v-max`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the flag.
    pub fn check(&self) -> Result<()> {
        let Atoms { count, v_min, v_max } = *self;
        expect(count > 1, "n-atoms", count, "at least 2")?;
        let numbers = v_min.is_finite() && v_max.is_finite();
        expect(numbers, "v-min", v_min, "a number, as --v-max")?;
        expect(v_min < v_max, "v-max", v_max, &format!("above --v-min {v_min}"))
    }

    /// Between two neighbours.
    fn distance(&self) -> f64 {
        (self.v_max - self.v_min) / (self.count - 1) as f64
    }

    /// The returns themselves, `f32[count]`, rounded once.
    pub fn values(&self) -> Tensor {
        let last = (self.count - 1) as f64;
        let at = |i: usize| match i + 1 == self.count {
            true => self.v_max as f32,
            false => (self.v_min + (self.v_max - self.v_min) * (i as f64 / last)) as f32,
        };
        constant((0..self.count).map(at).collect::<Vec<f32>>().as_slice())
    }

    /// The expected return under `probs: f32[.., count]`: `f32[..]`.
    #[track_caller]
    pub fn mean(&self, probs: Tensor) -> Tensor {
        (probs * self.values()).sum(-1)
    }

    /// The distribution of `reward + discount * Z`, where `Z` has the probabilities `probs:
    /// f32[B, count]`, back on the atoms: `f32[B, count]`. `reward` and `discount` are `f32[B]`.
    ///
    /// A return between two atoms is shared by them, the nearer one gets more; one beyond the last
    /// atom is the last atom's. That is the paper's equation 7, which needs no scatter: atom `j`
    /// gets `max(0, 1 - |b_i - j|)` of what lies at `b_i`.
    #[track_caller]
    pub fn project(&self, reward: Tensor, discount: Tensor, probs: Tensor) -> Tensor {
        let moved = reward.expand_dims(-1) + discount.expand_dims(-1) * self.values();
        let place = (moved.clip(self.v_min, self.v_max) - self.v_min) / self.distance();
        // Rounding may carry the highest beyond the last atom.
        let place = place.minimum((self.count - 1) as f64).expand_dims(-2); // [B, 1, from]
        let atom = arange(self.count, DType::F32).expand_dims(-1); // [to, 1]
        let share = (1.0 - (place - atom).abs()).maximum(0.0);
        (share * probs.expand_dims(-2)).sum(-1)
    }
}
