//! Gradient clipping by norm (Pascanu et al. 2013).

use super::leaves_of;
use crate::trace::ops::{self, where_};
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

/// Clips gradients to a global norm of at most `max_norm`: `optax.clip_by_global_norm`. Gradients
/// of a smaller norm are unchanged, others become `(g / norm) * max_norm`.
#[track_caller]
pub fn clip_by_global_norm<M: Tree<Tensor>>(grads: M, max_norm: f64) -> M {
    let norm = global_norm(&grads);
    let small = norm.lt(max_norm);
    let mut clipped = Vec::new();
    for g in tree::leaves(&grads) {
        clipped.push(where_(small, g, g / norm.to(g.dtype()) * max_norm));
    }
    tree::replace(&grads, clipped)
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
