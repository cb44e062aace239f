//! Running statistics of observations and rewards.

use crate::trace::ops::{constant, zeros};
use crate::tree::Tree;
use crate::{DType, Tensor};

/// Running mean and variance, by Chan et al.'s update.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Moments<T> {
    pub count: T, // number of examples
    pub mean: T,  // mean of each element
    pub var: T,   // variance of each element
}

impl Moments<Tensor> {
    /// Returns the initial statistics for elements of this shape: mean 0, variance 1, count 1e-4.
    pub fn new(shape: &[usize]) -> Moments<Tensor> {
        let mean = zeros(shape, DType::F32);
        Moments { count: constant(1e-4f32), mean, var: mean + 1.0 }
    }

    /// Updates the statistics with the B examples of `x: f32[B, ..]`.
    pub fn update(self, x: Tensor) -> Moments<Tensor> {
        let size = x.dim(0) as f64;
        let (mean, var) = (x.mean(0), x.var(0));
        let count = self.count + size;
        let delta = mean - self.mean;
        let squares =
            self.var * self.count + var * size + delta.square() * self.count * size / count;
        Moments { count, mean: self.mean + delta * size / count, var: squares / count }
    }

    /// Normalizes `x: f32[B, ..]` by mean and standard deviation, clipped to between -5 and 5.
    pub fn whiten(&self, x: Tensor) -> Tensor {
        ((x - self.mean) * (self.var + 1e-8).rsqrt()).clip(-5.0, 5.0)
    }
}
