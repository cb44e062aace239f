//! Running normalisation of observations and rewards as functions over tensors, for training that
//! is compiled as a whole.
//!
//! The numbers are those of gymnasium's vector wrappers, and of
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

use crate::trace::ops;
use crate::trace::tensor::{fail_op, function};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::Tree;

/// Mean and variance of everything seen so far, element by element: gymnasium's class.
///
/// Batches are merged by the parallel form of Welford's algorithm (Chan, Golub, LeVeque 1979).
#[derive(Debug, Clone, Tree)]
pub struct RunningMeanStd<T> {
    /// The mean of each element.
    pub mean: T,
    /// The variance of each element: the mean squared distance from the mean.
    pub var: T,
    /// How many examples there were, plus 1e-4: a scalar.
    pub count: T,
}

impl RunningMeanStd<Tensor> {
    /// Of nothing: mean 0 and variance 1 with the weight of 1e-4 of an example, as gymnasium.
    ///
    /// `dtype` is that of the statistics, a float. Gymnasium has f64; with f32 the statistics
    /// stand still after 2^24 batches of one example, or of any one size.
    #[track_caller]
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> RunningMeanStd<Tensor> {
        let _scope = function("RunningMeanStd::new");
        if !dtype.is_float() {
            fail_op("RunningMeanStd", format!("statistics are floats, and not {dtype}"));
        }
        let shape = shape.into();
        let mean = ops::zeros(shape.clone(), dtype);
        let var = ops::ones(shape, dtype);
        RunningMeanStd { mean, var, count: ops::full([], 1e-4, dtype) }
    }

    /// The statistics with `batch` taken in, whose leading axes, beyond those of the statistics,
    /// count examples: `[.., *shape]`.
    #[track_caller]
    pub fn update(self, batch: Tensor) -> RunningMeanStd<Tensor> {
        let _scope = function("RunningMeanStd::update");
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

    /// `x: [.., *shape]` with mean 0 and variance 1, in its own float type, or that of the
    /// statistics if it has none.
    #[track_caller]
    pub fn normalize(&self, x: Tensor, epsilon: f64) -> Tensor {
        let _scope = function("RunningMeanStd::normalize");
        self.leading("normalize", x);
        let dtype = if x.dtype().is_float() { x.dtype() } else { self.mean.dtype() };
        let centred = x.to(self.mean.dtype()) - self.mean;
        (centred / (self.var + epsilon).sqrt()).to(dtype)
    }

    /// How many axes `x` has before those of the statistics.
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

/// Observations of mean 0 and variance 1, within limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeObservation {
    /// What is added to the variance.
    pub epsilon: f64,
    /// The largest size of a normalised element.
    pub clip: f64,
}

impl Default for NormalizeObservation {
    /// 1e-8, and CleanRL's limit: 10.
    fn default() -> Self {
        NormalizeObservation { epsilon: 1e-8, clip: 10.0 }
    }
}

impl NormalizeObservation {
    /// Takes the batch `obs: [.., *shape]` into `stats`, and normalises it with the new ones.
    #[track_caller]
    pub fn step(
        &self,
        obs: Tensor,
        stats: RunningMeanStd<Tensor>,
    ) -> (Tensor, RunningMeanStd<Tensor>) {
        let _scope = function("NormalizeObservation::step");
        let stats = stats.update(obs);
        (self.apply(obs, &stats), stats)
    }

    /// Normalises `obs: [.., *shape]` with `stats` as they are: for last observations of episodes,
    /// and for evaluation.
    #[track_caller]
    pub fn apply(&self, obs: Tensor, stats: &RunningMeanStd<Tensor>) -> Tensor {
        let _scope = function("NormalizeObservation::apply");
        stats.normalize(obs, self.epsilon).clip(-self.clip, self.clip)
    }
}

/// The state of [`NormalizeReward`].
#[derive(Debug, Clone, Tree)]
pub struct NormalizeRewardState<T> {
    /// The discounted return so far of each environment.
    pub returns: T,
    /// The statistics of the returns.
    pub stats: RunningMeanStd<T>,
}

/// Rewards divided by the spread of the discounted return, within limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormalizeReward {
    /// The discount of the return.
    pub gamma: f64,
    /// What is added to the variance.
    pub epsilon: f64,
    /// The largest size of a normalised reward.
    pub clip: f64,
}

impl Default for NormalizeReward {
    /// 0.99, 1e-8, and CleanRL's limit: 10.
    fn default() -> Self {
        NormalizeReward { gamma: 0.99, epsilon: 1e-8, clip: 10.0 }
    }
}

impl NormalizeReward {
    /// The state before the first step of environments in the arrangement `shape`, such as
    /// `[num_envs]`; `dtype` is that of the statistics.
    #[track_caller]
    pub fn init(&self, shape: impl Into<Shape>, dtype: DType) -> NormalizeRewardState<Tensor> {
        let _scope = function("NormalizeReward::init");
        let stats = RunningMeanStd::new([], dtype);
        NormalizeRewardState { returns: ops::zeros(shape, dtype), stats }
    }

    /// Takes one step of every environment into `state`, and normalises its rewards with the new
    /// statistics. As in gymnasium, a return starts again with the reward that ends an episode.
    ///
    /// `reward` is a float and `terminated` a bool, both of the state's shape.
    #[track_caller]
    pub fn step(
        &self,
        reward: Tensor,
        terminated: Tensor,
        state: NormalizeRewardState<Tensor>,
    ) -> (Tensor, NormalizeRewardState<Tensor>) {
        let _scope = function("NormalizeReward::step");
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
        let kept = ops::where_(terminated, ops::zeros_like(returns), returns * self.gamma);
        let returns = kept + reward.to(returns.dtype());
        let stats = stats.update(returns);
        let scaled = reward.to(returns.dtype()) / (stats.var + self.epsilon).sqrt();
        let scaled = scaled.clip(-self.clip, self.clip).to(reward.dtype());
        (scaled, NormalizeRewardState { returns, stats })
    }
}
