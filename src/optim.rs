//! Optimizers and gradient transformations: optax.
//!
//! An optimizer is a plain struct of hyperparameters, with optax's names, defaults and formulas
//! (optax 0.2.8); the function of its name gives the defaults. Its state is a separate tree:
//!
//! ```
//! use podracer::optim::{Adam, AdamState, adam, clip_by_global_norm};
//! use podracer::{Tensor, Tree};
//!
//! fn update<P: Tree<Tensor>>(
//!     params: P,
//!     grads: P,
//!     state: AdamState<Tensor, P>,
//! ) -> (P, AdamState<Tensor, P>) {
//!     let adam = Adam { eps: 1e-5, ..adam(2.5e-4) };
//!     adam.step(params, clip_by_global_norm(0.5).apply(grads), state)
//! }
//! ```
//!
//! # Chains
//!
//! [`GradientTransformation`] is the interface of all of them; [`Optimizer`] is another name of it.
//! [`chain`](chain()) composes transformations, and its state is the tuple of their states:
//!
//! ```
//! use podracer::optim::{OptState, Optimizer, add_decayed_weights, chain, clip_by_global_norm};
//! use podracer::optim::{scale_by_adam, scale_by_learning_rate, warmup_cosine_decay_schedule};
//! use podracer::{Array, Tensor, grad, jit};
//!
//! fn optimizer() -> impl Optimizer<Tensor> {
//!     chain((
//!         clip_by_global_norm(0.5),
//!         scale_by_adam(),
//!         add_decayed_weights(1e-4),
//!         scale_by_learning_rate(warmup_cosine_decay_schedule(0.0, 0.1, 10, 100, 0.0)),
//!     ))
//! }
//!
//! let init = jit(|params: Tensor| (params, optimizer().init(&params)));
//! let step = jit(|(params, state)| {
//!     let grads = grad(|x: Tensor| (x - 1.0).square().sum(..))(params);
//!     optimizer().step(params, grads, state)
//! });
//! let (mut params, mut state) = init.call(Array::from([0.0f32; 3]))?;
//! for _ in 0..100 {
//!     (params, state) = step.call((params, state))?;
//! }
//! assert!((params.to_vec::<f32>()?[0] - 1.0).abs() < 0.1);
//! # Ok::<(), podracer::Error>(())
//! ```
//!
//! Hyperparameters other than the first are changed by struct update:
//! `Lion { weight_decay: 0.1, ..lion(3e-4) }`, `ScaleByAdam { eps: 1e-5, ..scale_by_adam() }`.
//!
//! The learning rate is a number, a traced scalar or a [`Schedule`]; in a chain it may also be a
//! function of the count of updates. [`inject_hyperparams`] keeps it in the state.
//!
//! Gradients, states and parameters must have the same structure and types; otherwise tracing fails
//! with an error that names the first leaf that differs.

mod accumulate;
mod adam;
mod add;
mod chain;
mod clip;
mod condition;
pub mod contrib;
mod factored;
mod inject;
mod lbfgs;
mod leaves;
mod linear_algebra;
mod linesearch;
mod masked;
mod microbatch;
mod moments;
mod monitoring;
mod optimizers;
mod rms;
mod scale;
mod schedule;
mod sgd;
mod sm3;
mod step_size;
#[cfg(test)]
mod tests;
mod transformation;
mod tree_math;
mod zoom;

use crate::trace::ops::{self, Operand};
use crate::trace::tensor::fail_op;
use crate::trace::{Tensor, TensorType};
use crate::tree::{self, Tree};

use adam::increment;

pub use accumulate::*;
pub use adam::{Adam, AdamState, RAdam};
pub use add::*;
pub use chain::*;
pub use clip::*;
pub use condition::*;
pub use factored::*;
pub use inject::*;
pub use lbfgs::{ScaleByLbfgs, ScaleByLbfgsState, lbfgs, scale_by_lbfgs};
pub use linear_algebra::*;
pub use linesearch::*;
pub use masked::*;
pub use microbatch::*;
pub use moments::*;
pub use monitoring::*;
pub use optimizers::*;
pub use rms::*;
pub use scale::*;
pub use schedule::*;
pub use sgd::{RmsProp, RmsPropState, Sgd, SgdState};
pub use sm3::*;
pub use step_size::*;
pub use transformation::{GradientTransformation, OptState, Optimizer};
pub use tree_math::*;
pub use zoom::*;

/// The corresponding leaves of several trees, checked to have one structure and the same float
/// types. `names` are the names of the trees in messages.
#[track_caller]
fn leaves_of<M: Tree<Tensor>, const N: usize>(
    op: &str,
    names: [&str; N],
    trees: [&M; N],
) -> [Vec<Tensor>; N] {
    let leaves = trees.map(tree::leaves);
    for ((name, tree), leaves_of_tree) in names.iter().zip(trees).zip(&leaves) {
        let difference = tree::structure_difference::<Tensor, Tensor, M, M>(
            trees[0],
            tree,
            "leaf ",
            [names[0], name],
        );
        if let Some(difference) = difference {
            let problem = format!("{} and {name} must have one structure: {difference}", names[0]);
            fail_op(op, problem);
        }
        ensure_floats_of_one_type(op, [names[0], name], [&leaves[0], leaves_of_tree], &|i| {
            tree::paths(tree).swap_remove(i)
        });
    }
    leaves
}

/// Ends the trace with an error unless the leaves are floats of the same types. `path` gives a
/// leaf's path by its index.
#[track_caller]
fn ensure_floats_of_one_type(
    op: &str,
    names: [&str; 2],
    [first, leaves]: [&[Tensor]; 2],
    path: &dyn Fn(usize) -> String,
) {
    for (i, (expected, leaf)) in first.iter().zip(leaves).enumerate() {
        let (expected, ty) = (expected.ty(), leaf.ty());
        if ty != expected || !ty.dtype.is_float() {
            let path = path(i);
            let [there, here] = names.map(|name| tree::path_of(name, &path));
            let problem = if ty == expected {
                format!("{here} is {ty}, and optimizers take floats")
            } else {
                format!(
                    "{} and {} must have equal types: {there} is {expected}, {here} is {ty}",
                    names[0], names[1]
                )
            };
            fail_op(op, problem);
        }
    }
}

/// Returns a tree of the same structure whose leaves are zeros.
#[track_caller]
fn zeros_like<M: Tree<Tensor>>(params: &M) -> M {
    let mut zeros = Vec::new();
    for leaf in tree::leaves(params) {
        zeros.push(ops::zeros_like(leaf));
    }
    tree::replace(params, zeros)
}

/// Computes `-learning_rate * direction` for every leaf.
#[track_caller]
fn scaled(directions: Vec<Tensor>, learning_rate: impl Operand) -> Vec<Tensor> {
    let mut updates = Vec::with_capacity(directions.len());
    for direction in directions {
        let ty = direction.ty();
        let rate = learning_rate.to_tensor(&TensorType::scalar(ty.dtype));
        if rate.rank() != 0 || !rate.dtype().is_float() {
            fail_op("learning_rate", format!("must be a float scalar, and is {}", rate.ty()));
        }
        updates.push(-rate.to(ty.dtype) * direction);
    }
    updates
}

/// Computes `params + updates` for every leaf: `optax.apply_updates`.
#[track_caller]
pub fn apply_updates<M: Tree<Tensor>>(params: M, updates: M) -> M {
    let [old, updates] = leaves_of("apply_updates", ["params", "updates"], [&params, &updates]);
    let mut new = Vec::with_capacity(old.len());
    for (param, update) in old.into_iter().zip(updates) {
        new.push(param + update);
    }
    tree::replace(&params, new)
}

/// Returns `new` if `steps`, an integer scalar, is a multiple of `period`, else `old`:
/// `optax.periodic_update`, the hard update of target networks.
///
/// # Errors
/// Ends the trace if `period` is 0, or if the trees differ in structure or types.
#[track_caller]
pub fn periodic_update<M: Tree<Tensor>>(new: &M, old: &M, steps: Tensor, period: usize) -> M {
    let [news, olds] = leaves_of("periodic_update", ["new", "old"], [new, old]);
    let due = (steps % accumulate::period("periodic_update", "period", period)).eq(0);
    let chosen = news.into_iter().zip(olds);
    let chosen = chosen.map(|(new, old)| ops::where_(due.broadcast_to(new.shape()), new, old));
    tree::replace(new, chosen.collect::<Vec<_>>())
}

/// Computes `tau * new + (1 - tau) * old` for every leaf: `optax.incremental_update`, the soft
/// update (Polyak averaging) of target networks. A `tau` of 1 copies `new`.
#[track_caller]
pub fn incremental_update<M: Tree<Tensor>>(new: &M, old: &M, tau: f64) -> M {
    let [news, olds] = leaves_of("incremental_update", ["new", "old"], [new, old]);
    let mut mixed = Vec::with_capacity(news.len());
    for (new, old) in news.into_iter().zip(olds) {
        mixed.push(new * tau + old * (1.0 - tau));
    }
    tree::replace(new, mixed)
}
