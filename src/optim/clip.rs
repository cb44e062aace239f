//! Gradient clipping.

use super::leaves::{map_leaves, map_updates};
use super::scale::{scalar, stateless_by_leaf, stateless_by_param};
use super::{GradientTransformation, leaves_of};
use crate::trace::ops::{self, Operand, where_};
use crate::trace::tensor::{fail_op, function};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Computes the Euclidean norm over all elements of all leaves, a scalar: `optax.global_norm`. The
/// result is f32, or f64 if every leaf is f64.
#[track_caller]
pub fn global_norm<M: Tree<Tensor>>(grads: &M) -> Tensor {
    let [leaves] = leaves_of("global_norm", ["grads"], [grads]);
    let wide = !leaves.is_empty() && leaves.iter().all(|leaf| leaf.dtype() == DType::F64);
    let dtype = if wide { DType::F64 } else { DType::F32 };
    let mut total = None;
    for leaf in leaves {
        let squares = leaf.to(dtype).square().sum(..);
        total = Some(match total {
            Some(total) => total + squares,
            None => squares,
        });
    }
    match total {
        Some(total) => Tensor::sqrt(total),
        None => ops::zeros([], dtype),
    }
}

/// Transformation built by [`clip_by_global_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipByGlobalNorm<S = f64>(S);

/// Clips gradients to a global norm of at most `max_norm`, a number or a traced scalar:
/// `optax.clip_by_global_norm`. Gradients of a smaller norm are unchanged, others become
/// `(g / norm) * max_norm`.
///
/// In a [`chain`](super::chain()) it is the first element; outside of one,
/// `clip_by_global_norm(0.5).apply(grads)` returns the clipped gradients.
pub fn clip_by_global_norm<S: Operand>(max_norm: S) -> ClipByGlobalNorm<S> {
    ClipByGlobalNorm(max_norm)
}

impl<S: Operand> ClipByGlobalNorm<S> {
    /// Returns the clipped gradients.
    #[track_caller]
    pub fn apply<M: Tree<Tensor>>(&self, grads: M) -> M {
        let norm = global_norm(&grads);
        let small = norm.lt(scalar("max_norm", self.0, norm.dtype()));
        let mut clipped = Vec::new();
        for g in tree::leaves(&grads) {
            let max_norm = self.0.to_tensor(&g.ty()).to(g.dtype());
            clipped.push(where_(small, g, g / norm.to(g.dtype()) * max_norm));
        }
        tree::replace(&grads, clipped)
    }
}

impl<S: Operand, P: Tree<Tensor>> GradientTransformation<P> for ClipByGlobalNorm<S> {
    type State = ();

    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let grads = tree::replace(grads, tree::leaves(grads));
        (self.apply(grads), ())
    }
}

/// Clips gradients to a global norm of at most `max_norm` by PyTorch's formula
/// (`torch.nn.utils.clip_grad_norm_`): `g * min(1, max_norm / (norm + 1e-6))`.
#[track_caller]
pub fn clip_grad_norm<M: Tree<Tensor>>(grads: M, max_norm: f64) -> M {
    let factor = (max_norm / (global_norm(&grads) + 1e-6)).minimum(1.0);
    let mut clipped = Vec::new();
    for g in tree::leaves(&grads) {
        clipped.push(g * factor.to(g.dtype()));
    }
    tree::replace(&grads, clipped)
}

/// Transformation built by [`clip`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip<S = f64>(S);

/// Clips each element of the updates to `-max_delta..=max_delta`, a number or a traced scalar:
/// `optax.clip`.
pub fn clip<S: Operand>(max_delta: S) -> Clip<S> {
    Clip(max_delta)
}

impl<S: Operand, P: Tree<Tensor>> GradientTransformation<P> for Clip<S> {
    type State = ();

    fn init(&self, _: &P) {}

    #[track_caller]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
        let _scope = function("clip");
        let updates = map_updates("clip", grads, |u| {
            let bound = scalar("max_delta", self.0, u.dtype());
            u.clip(-bound, bound)
        });
        (updates, ())
    }
}

/// Transformation built by [`clip_by_block_rms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipByBlockRms {
    threshold: f64,
}

/// Clips the updates of each leaf to a root mean square of at most `threshold`:
/// `optax.clip_by_block_rms`.
pub fn clip_by_block_rms(threshold: f64) -> ClipByBlockRms {
    ClipByBlockRms { threshold }
}

stateless_by_leaf! {
    ClipByBlockRms "clip_by_block_rms": |this, u| {
        u / (u.square().mean(..).sqrt() / this.threshold).maximum(1.0)
    };
}

/// Transformation built by [`adaptive_grad_clip`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveGradClip {
    /// Largest ratio of the norm of an update to that of its parameters.
    pub clipping: f64,
    /// Least norm of parameters.
    pub eps: f64,
}

/// Clips updates to `clipping` times the norm of the parameters, unit by unit:
/// `optax.adaptive_grad_clip` (Brock et al. 2021).
///
/// A unit is a whole vector, a column of a matrix, or an output channel of the kernel of a
/// convolution, whose last axis has the outputs. The default `eps` is 1e-3.
///
/// # Errors
/// The update ends the trace at leaves of more than 5 axes.
pub fn adaptive_grad_clip(clipping: f64) -> AdaptiveGradClip {
    AdaptiveGradClip { clipping, eps: 1e-3 }
}

/// Computes the norm of each unit of `x`, broadcast to the shape of `x`.
#[track_caller]
fn unitwise_norm(x: Tensor) -> Tensor {
    let shape = x.shape();
    let squares = x.square();
    let total = match shape.iter().filter(|&&size| size != 1).count() {
        0 | 1 => squares.sum(..),
        _ => match shape.rank() {
            2 | 3 => squares.sum_keepdims(0),
            4 => squares.sum_keepdims([0, 1, 2]),
            5 => squares.sum_keepdims([0, 1, 2, 3]),
            rank => {
                let problem = format!("takes leaves of at most 5 axes, and one has {rank}");
                fail_op("adaptive_grad_clip", problem)
            }
        },
    };
    total.sqrt().broadcast_to(shape)
}

stateless_by_param! {
    AdaptiveGradClip "adaptive_grad_clip": |this, u, p| {
        let max_norm = this.clipping * unitwise_norm(p).maximum(this.eps);
        let norm = unitwise_norm(u);
        where_(norm.lt(max_norm), u, u * (max_norm / norm.maximum(1e-6)))
    };
}
