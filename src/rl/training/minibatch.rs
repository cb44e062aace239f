//! Reshaping of rollouts into training samples, and minibatches of these.

use crate::trace::Tensor;
use crate::trace::ops::IndexMode;
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
