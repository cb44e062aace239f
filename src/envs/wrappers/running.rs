//! Running mean and variance.

use crate::array::Array;
use crate::error::{Error, Result};
use crate::trace::literal::Literal;

/// Running mean and variance of each element: gymnasium's class.
///
/// Batches are merged by the parallel form of Welford's algorithm (Chan, Golub, LeVeque 1979).
#[derive(Debug, Clone, PartialEq)]
pub struct RunningMeanStd {
    mean: Vec<f64>,
    var: Vec<f64>,
    count: f64,
}

impl RunningMeanStd {
    /// Creates empty statistics: mean 0 and variance 1 with the weight of 1e-4 examples, as in
    /// gymnasium.
    ///
    /// # Panics
    /// If `width` is 0.
    pub fn new(width: usize) -> RunningMeanStd {
        assert!(width > 0, "there is nothing to have a mean");
        RunningMeanStd { mean: vec![0.0; width], var: vec![1.0; width], count: 1e-4 }
    }

    /// Returns the mean of each element.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the variance of each element: the mean squared distance from the mean.
    pub fn var(&self) -> &[f64] {
        &self.var
    }

    /// Returns the number of examples, plus 1e-4.
    pub fn count(&self) -> f64 {
        self.count
    }

    /// Adds `examples`, one after the other; an empty slice changes nothing.
    ///
    /// # Panics
    /// If they are not a whole number of examples.
    pub fn update(&mut self, examples: &[f64]) {
        let width = self.mean.len();
        assert_eq!(examples.len() % width, 0, "examples have {width} elements each");
        if examples.is_empty() {
            return;
        }
        let batch_count = (examples.len() / width) as f64;
        let count = self.count + batch_count;
        for i in 0..width {
            let column = || examples[i..].iter().step_by(width);
            let batch_mean = column().sum::<f64>() / batch_count;
            let batch_var =
                column().map(|x| (x - batch_mean) * (x - batch_mean)).sum::<f64>() / batch_count;
            let delta = batch_mean - self.mean[i];
            let squares = self.var[i] * self.count
                + batch_var * batch_count
                + delta * delta * self.count * batch_count / count;
            self.mean[i] += delta * batch_count / count;
            self.var[i] = squares / count;
        }
        self.count = count;
    }

    /// Returns mean and variance `f64[width]` and count `f64`: a tree to be saved with a model's
    /// parameters.
    pub fn to_arrays(&self) -> (Array, Array, Array) {
        let row = |values: &[f64]| Array::from(Literal::from(values.to_vec()));
        (row(&self.mean), row(&self.var), Array::from(self.count))
    }

    /// Inverse of [`to_arrays`](RunningMeanStd::to_arrays).
    ///
    /// # Errors
    /// If the arrays have other types or shapes, or invalid values: a negative variance, NaN.
    pub fn from_arrays((mean, var, count): (&Array, &Array, &Array)) -> Result<RunningMeanStd> {
        let (mean, var) = (mean.to_vec::<f64>()?, var.to_vec::<f64>()?);
        let count = count.item::<f64>()?;
        let stats = RunningMeanStd { mean, var, count };
        if stats.is_valid() {
            return Ok(stats);
        }
        Err(Error::Argument(format!("these are not a running mean and variance: {stats:?}")))
    }

    fn is_valid(&self) -> bool {
        !self.mean.is_empty()
            && self.mean.len() == self.var.len()
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.var.iter().all(|var| *var >= 0.0 && var.is_finite())
            && self.count > 0.0
            && self.count.is_finite()
    }

    /// Serializes count, means and variances.
    pub(super) fn save(&self) -> Vec<u8> {
        let values = [self.count].into_iter().chain(self.mean.iter().chain(&self.var).copied());
        values.flat_map(f64::to_le_bytes).collect()
    }

    /// Inverse of [`save`](RunningMeanStd::save), for statistics of the same width.
    pub(super) fn restored(&self, state: &[u8]) -> Option<RunningMeanStd> {
        let width = self.mean.len();
        let (chunks, rest) = state.as_chunks::<8>();
        let values: Vec<f64> = chunks.iter().map(|chunk| f64::from_le_bytes(*chunk)).collect();
        if values.len() != 1 + 2 * width || !rest.is_empty() {
            return None;
        }
        let (mean, var) = values[1..].split_at(width);
        let stats = RunningMeanStd { mean: mean.into(), var: var.into(), count: values[0] };
        stats.is_valid().then_some(stats)
    }
}
