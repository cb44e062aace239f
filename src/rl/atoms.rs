//! Categorical distributions of returns over fixed atoms, as in C51 (Bellemare et al. 2017) and the
//! algorithms based on it.

use super::flags::ensure;
use crate::Tensor;
use crate::error::Result;
use crate::trace::DType;
use crate::trace::ops::{IndexMode, arange, constant, ones_like, where_};

/// Evenly spaced support of a categorical distribution of returns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Atoms {
    /// Number of atoms; at least 2.
    pub count: usize,
    /// Lowest atom.
    pub v_min: f64,
    /// Highest atom.
    pub v_max: f64,
}

impl Atoms {
    /// Checks that there are at least two atoms, and that `--v-min` is below `--v-max`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) that names the flag.
    pub fn check(&self) -> Result<()> {
        let Atoms { count, v_min, v_max } = *self;
        ensure(count > 1, "n-atoms", count, "at least 2")?;
        let numbers = v_min.is_finite() && v_max.is_finite();
        ensure(numbers, "v-min", v_min, "a number, as --v-max")?;
        ensure(v_min < v_max, "v-max", v_max, &format!("above --v-min {v_min}"))
    }

    /// Returns the distance between two neighbouring atoms.
    fn distance(&self) -> f64 {
        (self.v_max - self.v_min) / (self.count - 1) as f64
    }

    /// Returns the atoms `f32[count]`, each rounded once.
    pub fn values(&self) -> Tensor {
        let last = (self.count - 1) as f64;
        let at = |i: usize| match i + 1 == self.count {
            true => self.v_max as f32,
            false => (self.v_min + (self.v_max - self.v_min) * (i as f64 / last)) as f32,
        };
        constant((0..self.count).map(at).collect::<Vec<f32>>().as_slice())
    }

    /// Returns the expected return under `probs: f32[.., count]`: `f32[..]`.
    #[track_caller]
    pub fn mean(&self, probs: Tensor) -> Tensor {
        (probs * self.values()).sum(-1)
    }

    /// Projects the distribution of `reward + discount * Z`, where `Z` has the probabilities
    /// `probs: f32[B, count]`, onto the atoms: `f32[B, count]`. `reward` and `discount` are
    /// `f32[B]`.
    ///
    /// The probability of a return between two atoms is divided between them in proportion to
    /// proximity; returns beyond the last atom are assigned to it. This is equation 7 of the paper,
    /// which needs no scatter: atom `j` gets `max(0, 1 - |b_i - j|)` of the probability at `b_i`.
    #[track_caller]
    pub fn project(&self, reward: Tensor, discount: Tensor, probs: Tensor) -> Tensor {
        let moved = reward.expand_dims(-1) + discount.expand_dims(-1) * self.values();
        let place = self.place(moved).expand_dims(-1); // [B, from, 1]
        let atom = arange(self.count, DType::F32); // [to]
        (share(place, atom) * probs.expand_dims(-1)).sum(-2)
    }

    /// Faster [`project`](Atoms::project) for discounts that are 0 or at least `least`: the `b_i`
    /// of a row are spaced by its discount, so that only about `2 / least` of them, whose indices
    /// are known, are near an atom. (3 of 101 at 0.99: a quarter of the time.)
    #[track_caller]
    pub fn project_near(
        &self,
        reward: Tensor,
        discount: Tensor,
        least: f64,
        probs: Tensor,
    ) -> Tensor {
        // An open interval of two atom distances holds no more than this. If it is many, use all of
        // them.
        let near = (2.0 / least).floor() + 1.0;
        if near > 8.0 {
            return self.project(reward, discount, probs);
        }
        let [reward, discount] = [reward, discount].map(|x| x.expand_dims(-1)); // f32[B, 1]
        let last = (self.count - 1) as f64;
        let atom = arange(self.count, DType::F32).expand_dims(0); // f32[1, count]
        let moves = discount.gt(0.0);
        let step = where_(moves, discount, ones_like(discount));
        let start = (reward + step * self.v_min - self.v_min) / self.distance();
        // The shares computed below include a part of the returns that lie beyond an end by less
        // than one atom distance; the rest is added here.
        let place = start + step * atom;
        let below = (probs * (-place).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
        let above = (probs * (place - last).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
        let mut moved = below * one_at(atom, 0.0) + above * one_at(atom, last);
        let first = ((atom - 1.0 - start) / step).floor() + 1.0;
        for turn in 0..near as usize {
            let from = first + turn as f64;
            let prob = probs.take_along_axis_mode(from.to(DType::I32), -1, IndexMode::Clip);
            let there = (from.ge(0.0) & from.le(last)).to(DType::F32);
            moved = moved + there * prob * share(start + step * from, atom);
        }
        // With discount 0 the whole distribution is at the reward.
        let fixed = probs.sum(-1).expand_dims(-1) * share(self.place(reward), atom);
        where_(moves.broadcast_to(fixed.shape()), moved, fixed)
    }

    /// Returns the positions of `returns` on the support in units of atoms, clipped to its ends.
    fn place(&self, returns: Tensor) -> Tensor {
        let place = (returns.clip(self.v_min, self.v_max) - self.v_min) / self.distance();
        // Rounding may move the highest return beyond the last atom.
        place.minimum((self.count - 1) as f64)
    }
}

/// Returns the share that `atom` gets of the probability at `place`, both in units of atoms.
fn share(place: Tensor, atom: Tensor) -> Tensor {
    (1.0 - (place - atom).abs()).maximum(0.0)
}

/// Returns 1 at the atom with this index, otherwise 0.
fn one_at(atom: Tensor, number: f64) -> Tensor {
    atom.eq(number).to(DType::F32)
}
