//! Reshaping of rollouts into training samples, minibatches of these, and the explained variance of their
//! returns.

use crate::trace::Tensor;
use crate::trace::ops::{IndexMode, full_like, where_};
use crate::tree::{self, Tree};

/// Reshapes the leaves of a rollout, `[T, N, ..]`, to samples `[T N, ..]`.
#[track_caller]
pub fn merge_time_and_env<S: Tree<Tensor, With<Tensor> = S>>(rollout: S) -> S {
    tree::map(rollout, |x: Tensor| {
        let shape = x.shape();
        x.reshape([&[shape[0] * shape[1]], &shape[2..]].concat())
    })
}

/// Gathers the samples of these indices, `i32[B]`, from a tree whose leaves have the samples as
/// their first axis.
#[track_caller]
pub fn gather_minibatch<S: Tree<Tensor, With<Tensor> = S>>(samples: S, indices: Tensor) -> S {
    tree::map(samples, |x: Tensor| x.take_mode(indices, 0, IndexMode::Clip))
}

/// Returns the explained variance of `returns` by `values`, both of one shape: `1 - Var(returns - values) /
/// Var(returns)`, `f32[]`. It is 1 for a perfect prediction, at most 0 for one that is no better than a
/// constant, and NaN if all returns are equal, as in CleanRL.
#[track_caller]
pub fn explained_variance(values: Tensor, returns: Tensor) -> Tensor {
    let variance = returns.var(..);
    let explained = 1.0 - (returns - values).var(..) / variance;
    where_(variance.eq(0.0), full_like(variance, f64::NAN), explained)
}
