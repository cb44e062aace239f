//! Running normalization of observations and rewards as functions of tensors, for training compiled
//! as a whole.
//!
//! The results equal those of Gymnasium's vector wrappers, and of
//! [`envs::wrappers`](crate::envs::wrappers) on the host. The state is a tree: carry it through a
//! [`scan`](crate::trace::control::scan), and save it with the parameters.
//!
//! ```
//! use podracer::nn::normalize::{NormalizeObservation, RunningMeanStd};
//! use podracer::{Array, DType, Tensor, interpret};
//!
//! let f = interpret(|obs: Tensor| {
//!     let stats = RunningMeanStd::new([2], DType::F32);
//!     NormalizeObservation::default().step(obs, stats) // obs f32[3,2]
//! });
//! let obs = Array::new([3, 2], &[1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0])?;
//! let (normalized, stats) = f.call(obs)?;
//! assert!((stats.mean.to_vec::<f32>()?[1] - 20.0).abs() < 1e-3);
//! assert!((normalized.to_vec::<f32>()?[5] - 1.5f32.sqrt()).abs() < 1e-2);
//! # Ok::<(), podracer::Error>(())
//! ```

use crate::trace::ops::{self, Operand};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::Tree;

/// Running mean and variance of each element: Gymnasium's `RunningMeanStd`.
///
/// Batches are merged by the parallel form of Welford's algorithm (Chan, Golub, LeVeque 1979).
#[derive(Debug, Clone, Tree)]
pub struct RunningMeanStd<T> {
    /// Mean of each element.
    pub mean: T,
    /// Population variance of each element.
    pub var: T,
    /// Number of examples plus 1e-4, a scalar.
    pub count: T,
}

impl RunningMeanStd<Tensor> {
    /// Returns the initial statistics: mean 0 and variance 1 with a count of 1e-4, as in Gymnasium.
    ///
    /// `dtype` is the float type of the statistics. Gymnasium uses f64; with f32 the statistics
    /// stop changing after 2^24 batches of one example, or of any one size.
    #[op("RunningMeanStd::new")]
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> RunningMeanStd<Tensor> {
        if !dtype.is_float() {
            fail_op("RunningMeanStd", format!("statistics are floats, and not {dtype}"));
        }
        let shape = shape.into();
        let mean = ops::zeros(shape.clone(), dtype);
        let var = ops::ones(shape, dtype);
        RunningMeanStd { mean, var, count: ops::full([], 1e-4, dtype) }
    }

    /// Updates the statistics with `batch: [.., *shape]`, whose leading axes enumerate examples.
    #[op("RunningMeanStd::update")]
    pub fn update(self, batch: Tensor) -> RunningMeanStd<Tensor> {
        let RunningMeanStd { mean, var, count } = self;
        let leading = self.leading("update", batch);
        let examples: usize = batch.shape()[..leading].iter().product();
        if examples == 0 {
            return self;
        }
        let batch = batch.to(mean.dtype());
        let axes: Vec<isize> = (0..leading as isize).collect();
        let batch_mean = batch.mean(&axes[..]);
        let batch_var = batch.var(&axes[..]);
        let batch_count = examples as f64;
        let total = count + batch_count;
        let delta = batch_mean - mean;
        let squares =
            var * count + batch_var * batch_count + delta.square() * (count * batch_count / total);
        RunningMeanStd {
            mean: mean + delta * (batch_count / total),
            var: squares / total,
            count: total,
        }
    }

    /// Normalizes `x: [.., *shape]` to mean 0 and variance 1. The result has the dtype of `x` if
    /// that is a float, else that of the statistics.
    #[op("RunningMeanStd::normalize")]
    pub fn normalize(&self, x: Tensor, epsilon: f64) -> Tensor {
        self.leading("normalize", x);
        let dtype = if x.dtype().is_float() { x.dtype() } else { self.mean.dtype() };
        let centered = x.to(self.mean.dtype()) - self.mean;
        (centered / (self.var + epsilon).sqrt()).to(dtype)
    }

    /// Returns the number of axes of `x` before those of the statistics.
    #[track_caller]
    fn leading(&self, op: &str, x: Tensor) -> usize {
        let (shape, expected) = (x.shape(), self.mean.shape());
        match shape.len().checked_sub(expected.len()) {
            Some(leading) if shape[leading..] == expected[..] => leading,
            _ => fail_op(
                op,
                format!(
                    "the statistics are of {}, which {} does not end with",
                    self.mean.ty(),
                    x.ty()
                ),
            ),
        }
    }
}

/// Normalization of observations to mean 0 and variance 1, with clipping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeObservation {
    /// Epsilon added to the variance.
    pub epsilon: f64,
    /// Maximum absolute value of a normalized element.
    pub clip: f64,
}

impl Default for NormalizeObservation {
    /// Returns an epsilon of 1e-8 and CleanRL's clip range of 10.
    fn default() -> Self {
        NormalizeObservation { epsilon: 1e-8, clip: 10.0 }
    }
}

impl NormalizeObservation {
    /// Updates `stats` with the batch `obs: [.., *shape]`, and normalizes it with the new
    /// statistics.
    #[op("NormalizeObservation::step")]
    pub fn step(
        &self,
        obs: Tensor,
        stats: RunningMeanStd<Tensor>,
    ) -> (Tensor, RunningMeanStd<Tensor>) {
        let stats = stats.update(obs);
        (self.apply(obs, &stats), stats)
    }

    /// Normalizes `obs: [.., *shape]` without updating `stats`: for final observations of episodes,
    /// and for evaluation.
    #[op("NormalizeObservation::apply")]
    pub fn apply(&self, obs: Tensor, stats: &RunningMeanStd<Tensor>) -> Tensor {
        stats.normalize(obs, self.epsilon).clip(-self.clip, self.clip)
    }
}

/// State of [`NormalizeReward`].
#[derive(Debug, Clone, Tree)]
pub struct NormalizeRewardState<T> {
    /// Discounted return so far of each environment.
    pub returns: T,
    /// Statistics of the returns.
    pub stats: RunningMeanStd<T>,
}

/// Normalization of rewards by the standard deviation of the discounted return, with clipping.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeReward {
    /// Discount factor of the return.
    pub gamma: f64,
    /// Epsilon added to the variance.
    pub epsilon: f64,
    /// Maximum absolute value of a normalized reward.
    pub clip: f64,
}

impl Default for NormalizeReward {
    /// Returns a discount of 0.99, an epsilon of 1e-8 and CleanRL's clip range of 10.
    fn default() -> Self {
        NormalizeReward { gamma: 0.99, epsilon: 1e-8, clip: 10.0 }
    }
}

impl NormalizeReward {
    /// Returns the state before the first step of environments of shape `shape`, such as
    /// `[num_envs]`; `dtype` is that of the statistics.
    #[op("NormalizeReward::init")]
    pub fn init(&self, shape: impl Into<Shape>, dtype: DType) -> NormalizeRewardState<Tensor> {
        let stats = RunningMeanStd::new([], dtype);
        NormalizeRewardState { returns: ops::zeros(shape, dtype), stats }
    }

    /// Updates `state` with one step of every environment, and normalizes its rewards with the new
    /// statistics. As in Gymnasium, the reward that ends an episode is the first of the next
    /// return.
    ///
    /// `reward` is a float and `terminated` a bool, both of the state's shape.
    #[track_caller]
    pub fn step(
        &self,
        reward: Tensor,
        terminated: Tensor,
        state: NormalizeRewardState<Tensor>,
    ) -> (Tensor, NormalizeRewardState<Tensor>) {
        self.step_discounted(reward, terminated, state, self.gamma)
    }

    /// Like [`step`](NormalizeReward::step), with the discount factor `gamma`, a number or a scalar
    /// `f32[]`, in place of its own.
    #[op("NormalizeReward::step")]
    pub(crate) fn step_discounted(
        &self,
        reward: Tensor,
        terminated: Tensor,
        state: NormalizeRewardState<Tensor>,
        gamma: impl Operand,
    ) -> (Tensor, NormalizeRewardState<Tensor>) {
        let NormalizeRewardState { returns, stats } = state;
        for (name, x) in [("reward", reward), ("terminated", terminated)] {
            let right =
                if name == "reward" { x.dtype().is_float() } else { x.dtype() == DType::Bool };
            if x.shape() != returns.shape() || !right {
                let kind = if name == "reward" { "a float" } else { "a bool" };
                let shape = returns.shape();
                fail_op(
                    "NormalizeReward",
                    format!("{name} is {}, expected {kind} of shape {shape}", x.ty()),
                );
            }
        }
        let kept = ops::where_(terminated, ops::zeros_like(returns), returns * gamma);
        let returns = kept + reward.to(returns.dtype());
        let stats = stats.update(returns);
        let scaled = reward.to(returns.dtype()) / (stats.var + self.epsilon).sqrt();
        let scaled = scaled.clip(-self.clip, self.clip).to(reward.dtype());
        (scaled, NormalizeRewardState { returns, stats })
    }
}
