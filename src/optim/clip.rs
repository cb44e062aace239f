//! Gradient clipping.

use super::leaves::{map_leaves, map_updates};
use super::leaves_of;
use super::scale::{scalar, stateless_by_leaf, stateless_by_param};
use crate::optim::transformation::GradientTransformation;
use crate::trace::ops::{self, Operand, where_};
use crate::trace::tensor::{fail_op, op};
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
        let small = norm.le(scalar("max_norm", self.0, norm.dtype()));
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

    #[op("clip")]
    fn update(&self, grads: &P, (): (), _: &P) -> (P, ()) {
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

/// Computes the norm of each unit of `x`, broadcast to the shape of `x`: `optax.unitwise_norm`. Units
/// are those of [`adaptive_grad_clip`].
///
/// # Errors
/// Ends the trace if `x` has more than 5 axes.
#[op]
pub fn unitwise_norm(x: Tensor) -> Tensor {
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
                fail_op("unitwise_norm", problem)
            }
        },
    };
    total.sqrt().broadcast_to(shape)
}

/// Clips each unit of `grad` to `max_norm`, given its norm: `optax.unitwise_clip`. All three have one
/// shape. Norms are at least `div_eps` (1e-6 in optax) where they divide.
///
/// # Errors
/// Ends the trace if the shapes differ.
#[op]
pub fn unitwise_clip(norm: Tensor, max_norm: Tensor, grad: Tensor, div_eps: f64) -> Tensor {
    for (name, other) in [("norm", norm), ("max_norm", max_norm)] {
        if other.shape() != grad.shape() {
            let problem = format!("{name} is {}, and grad is {}", other.ty(), grad.ty());
            fail_op("unitwise_clip", format!("shapes must be equal; {problem}"));
        }
    }
    where_(norm.lt(max_norm), grad, grad * (max_norm / norm.maximum(div_eps)))
}

stateless_by_param! {
    AdaptiveGradClip "adaptive_grad_clip": |this, u, p| {
        let max_norm = this.clipping * unitwise_norm(p).maximum(this.eps);
        unitwise_clip(unitwise_norm(u), max_norm, u, 1e-6)
    };
}

/// Returns the number of examples, the size of axis 0 of every leaf.
#[track_caller]
fn batch_size(op: &str, leaves: &[Tensor]) -> usize {
    let size = leaves.first().and_then(|leaf| leaf.shape().first().copied());
    for leaf in leaves {
        if size.is_none() || leaf.shape().first().copied() != size {
            let problem = "gradients must have the examples along axis 0 of every leaf";
            fail_op(op, format!("{problem}; one is {}, another {}", leaves[0].ty(), leaf.ty()));
        }
    }
    size.unwrap_or(0)
}

/// Clips the gradient of each example, of these leaves together, to a norm of at most `max_norm`.
/// Returns the sums over the examples, and the number of those clipped.
#[track_caller]
fn clipped_sums(leaves: &[Tensor], max_norm: f64) -> (Vec<Tensor>, Tensor) {
    let squares =
        |leaf: Tensor| leaf.square().reshape([leaf.dim(0), leaf.numel() / leaf.dim(0).max(1)]);
    let mut total = squares(leaves[0]).sum(1);
    for leaf in &leaves[1..] {
        total = total + squares(*leaf).sum(1);
    }
    let norm = total.sqrt();
    let ratio: Tensor = max_norm / where_(norm.eq(0.0), 1.0, norm);
    let factors = where_(norm.eq(0.0), 1.0, ratio.minimum(1.0));
    let sum = |leaf: &Tensor| {
        let mut shape = vec![1; leaf.rank()];
        shape[0] = leaf.dim(0);
        (factors.reshape(shape) * *leaf).sum(0)
    };
    (leaves.iter().map(sum).collect(), factors.lt(1.0).to(DType::I32).sum(..))
}

/// Clips the gradient of each example to a global norm of at most `max_norm` and adds them up:
/// `optax.per_example_global_norm_clip`, a part of differentially private SGD (Abadi et al. 2016).
///
/// Axis 0 of every leaf has the examples. Returns the sums, and the number of clipped examples,
/// `i32`.
///
/// # Errors
/// Ends the trace if there is no leaf, or if axis 0 has different sizes.
#[op]
pub fn per_example_global_norm_clip<M: Tree<Tensor>>(grads: &M, max_norm: f64) -> (M, Tensor) {
    let [leaves] = leaves_of("per_example_global_norm_clip", ["grads"], [grads]);
    if leaves.is_empty() {
        fail_op("per_example_global_norm_clip", "takes gradients with at least one leaf");
    }
    batch_size("per_example_global_norm_clip", &leaves);
    let (sums, clipped) = clipped_sums(&leaves, max_norm);
    (tree::replace(grads, sums), clipped)
}

/// Clips the gradient of each example, leaf by leaf, and adds them up:
/// `optax.per_example_layer_norm_clip` (McMahan et al. 2018).
///
/// The bounds of the leaves combine to `max_norm`: they are equal if `uniform`, otherwise they go
/// by the root of the number of elements. Returns the sums, and for each leaf the number of clipped
/// examples, `i32`.
///
/// # Errors
/// Ends the trace if axis 0, that of the examples, has different sizes.
#[op]
pub fn per_example_layer_norm_clip<M: Tree<Tensor>>(
    grads: &M,
    max_norm: f64,
    uniform: bool,
) -> (M, M) {
    let [leaves] = leaves_of("per_example_layer_norm_clip", ["grads"], [grads]);
    let examples = batch_size("per_example_layer_norm_clip", &leaves).max(1);
    let sizes: Vec<usize> = leaves.iter().map(|leaf| leaf.numel() / examples).collect();
    let total: usize = sizes.iter().sum();
    let (mut sums, mut counts) = (Vec::new(), Vec::new());
    for (leaf, size) in leaves.iter().zip(&sizes) {
        let share =
            if uniform { 1.0 / leaves.len() as f64 } else { *size as f64 / total.max(1) as f64 };
        let (sum, clipped) = clipped_sums(&[*leaf], max_norm * share.sqrt());
        sums.extend(sum);
        counts.push(clipped);
    }
    (tree::replace(grads, sums), tree::replace(grads, counts))
}
