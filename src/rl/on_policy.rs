//! Parts shared by on-policy algorithms: rollouts, advantages, the terms of PPO's objective and
//! their metrics, gradient steps, epochs of minibatches.
//!
//! Rollouts are `[T, N]`: T steps of N environments. An algorithm defines its networks and its
//! loss, and combines them with these parts.

mod epochs;
mod rollout;
mod training;

use crate::error::Result;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{IndexMode, full_like, stack, where_, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, random};

pub use super::pools::any as pool_of;
pub use super::truncation::{bootstrap_truncated, bootstrap_truncated_batch};
pub use epochs::{Learner, Minibatch, epochs, steps};
pub use rollout::{Act, Acted, Played, Playing, Rollout, Samples, play};
pub use training::{Schedule, train};

/// Generalized advantage estimation (Schulman et al. 2016): returns advantages, and returns, which
/// are advantages plus values; `f32[T, N]`.
///
/// `ends` is 1 where the step ended its episode, which cuts off later rewards and values. With
/// `lambda` 1 the returns are the discounted sums of future rewards up to the end of the rollout,
/// plus the discounted `next_value: f32[N]`.
#[track_caller]
pub fn gae(
    rewards: Tensor,
    ends: Tensor,
    values: Tensor,
    next_value: Tensor,
    (gamma, lambda): (f64, f64),
) -> (Tensor, Tensor) {
    let turn = |(advantage, next_value): (Tensor, Tensor),
                (reward, end, value): (Tensor, Tensor, Tensor)| {
        let going_on = 1.0 - end;
        let delta = reward + gamma * next_value * going_on - value;
        let advantage = delta + gamma * lambda * going_on * advantage;
        ((advantage, value), advantage)
    };
    let start = (zeros_like(next_value), next_value);
    let (_, advantages) = scan_with(turn, start, (rewards, ends, values), ScanOptions::reversed());
    (advantages, advantages + values)
}

/// Returns advantages minus their mean, divided by their population standard deviation.
#[track_caller]
pub fn normalize(advantages: Tensor) -> Tensor {
    (advantages - advantages.mean(..)) / (advantages.std(..) + 1e-8)
}

/// Returns advantages minus their mean, divided by their sample standard deviation, whose divisor
/// is `n - 1`: PyTorch's `Tensor.std`, which CleanRL's PyTorch scripts use.
#[track_caller]
pub fn normalize_by_sample_std(advantages: Tensor) -> Tensor {
    let count: usize = advantages.shape().iter().product();
    let centered = advantages - advantages.mean(..);
    let variance = centered.square().sum(..) / count.saturating_sub(1).max(1) as f64;
    centered / (variance.sqrt() + 1e-8)
}

/// Measures of the change of a policy since it acted; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Ratios<T> {
    /// Estimate `mean(-log ratio)` of the KL divergence.
    pub old_approx_kl: T,
    /// Estimate `mean(ratio - 1 - log ratio)` of the KL divergence.
    pub approx_kl: T,
    /// Fraction of ratios that differ from 1 by more than the clip range.
    pub clipfrac: T,
}

/// PPO's clipped surrogate loss (Schulman et al. 2017): `mean(max(-A r, -A clip(r, 1 - c, 1 + c)))`
/// with `logratio = log r`, the log probability minus that of the policy that acted.
#[track_caller]
pub fn policy_loss(logratio: Tensor, advantages: Tensor, clip: f64) -> (Tensor, Ratios<Tensor>) {
    let ratio = logratio.exp();
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let ratios = Ratios {
        old_approx_kl: (-logratio).mean(..),
        approx_kl: ((ratio - 1.0) - logratio).mean(..),
        clipfrac: (ratio - 1.0).abs().gt(clip).to(DType::F32).mean(..),
    };
    (unclipped.maximum(clipped).mean(..), ratios)
}

/// Metrics of a gradient step of PPO; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Total loss.
    pub loss: T,
    /// Value loss.
    pub value_loss: T,
    /// Policy loss.
    pub policy_loss: T,
    /// Mean entropy.
    pub entropy: T,
    /// Measures of the change of the policy.
    pub ratios: Ratios<T>,
}

/// Metrics of an update of PPO; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Report<T> {
    /// Metrics of the last gradient step, but `clipfrac` is the mean over all.
    pub metrics: Metrics<T>,
    /// Result of [`explained_variance`] for the values before the update.
    pub explained_variance: T,
}

/// Returns half of the mean squared error of values. With `clip`, each squared error is the larger
/// one of that of the value and that of the value clipped to within `clip` of `old`.
#[track_caller]
pub fn value_loss(value: Tensor, old: Tensor, returns: Tensor, clip: Option<f64>) -> Tensor {
    let mut error = (value - returns).square();
    if let Some(clip) = clip {
        let near = old + (value - old).clip(-clip, clip);
        error = error.maximum((near - returns).square());
    }
    0.5 * error.mean(..)
}

/// Returns `1 - var(R - v) / var(R)`; NaN if all returns are equal.
#[track_caller]
pub fn explained_variance(values: Tensor, returns: Tensor) -> Tensor {
    let variance = returns.var(..);
    let explained = 1.0 - (returns - values).var(..) / variance;
    where_(variance.eq(0.0), full_like(variance, f64::NAN), explained)
}

/// Returns the sample indices, below `size`, of each minibatch of all epochs, each epoch in a
/// random order of its own: `i32[epochs * minibatches, size / minibatches]`.
#[track_caller]
pub fn orders(key: Key<Tensor>, epochs: usize, minibatches: usize, size: usize) -> Tensor {
    let mut orders = Vec::new();
    for key in key.split_vec(epochs) {
        orders.push(random::permutation(key, size));
    }
    stack(&orders, 0).reshape([epochs * minibatches, size / minibatches])
}

/// Gathers the samples at these indices from a tree whose leaves have samples as their first axis.
#[track_caller]
pub fn rows<S: Tree<Tensor, With<Tensor> = S>>(samples: S, indices: Tensor) -> S {
    tree::map(samples, |x: Tensor| x.take_mode(indices, 0, IndexMode::Clip))
}

/// Reshapes `[T, N, ..]` to `[T N, ..]`.
#[track_caller]
pub fn flat(x: Tensor) -> Tensor {
    let shape = x.shape();
    x.reshape([&[shape[0] * shape[1]], &shape[2..]].concat())
}

/// Returns the learning rate of update `k` of `updates`, counted from 0: CleanRL's linear decay to
/// 0.
pub fn annealed(learning_rate: f64, anneal: bool, k: u64, updates: u64) -> f64 {
    learning_rate * if anneal { 1.0 - k as f64 / updates as f64 } else { 1.0 }
}

/// Returns the mean of scalars `f32[]` of several calls.
///
/// # Errors
/// Returns errors of the computations that made them.
pub fn mean<'a>(scalars: impl Iterator<Item = &'a Array>) -> Result<f32> {
    let values = scalars.map(Array::item::<f32>).collect::<Result<Vec<f32>>>()?;
    Ok(values.iter().sum::<f32>() / values.len().max(1) as f32)
}
