//! Limited-memory BFGS.

use super::{
    Chain, LearningRate, ScaleByLearningRate, chain, global_norm, increment, leaves_of,
    scale_by_learning_rate, zeros_like,
};
use crate::optim::transformation::GradientTransformation;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{self, arange, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// Transformation built by [`scale_by_lbfgs`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleByLbfgs {
    /// Number of past updates that the approximation uses.
    pub memory_size: usize,
    /// If true, the initial approximation is the identity times the scale of the last step.
    pub scale_init_precond: bool,
}

/// State of [`scale_by_lbfgs`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = M)]
pub struct ScaleByLbfgsState<T, M> {
    /// Number of updates made, `i32`.
    pub count: T,
    /// Parameters of the update before.
    pub params: M,
    /// Gradients of the update before.
    pub updates: M,
    /// Past differences of parameters, along a new first axis.
    pub diff_params_memory: M,
    /// Past differences of gradients, along a new first axis.
    pub diff_updates_memory: M,
    /// Inverse products of both, `[memory_size]`.
    pub weights_memory: T,
}

/// Multiplies gradients by an approximation of the inverse Hessian from past updates:
/// `optax.scale_by_lbfgs` (Liu & Nocedal 1989). Defaults: a memory of 10, true.
///
/// # Errors
/// Ends the trace if the memory has no elements.
pub fn scale_by_lbfgs() -> ScaleByLbfgs {
    ScaleByLbfgs { memory_size: 10, scale_init_precond: true }
}

/// Returns L-BFGS with a fixed learning rate or a schedule:
/// `optax.lbfgs(learning_rate, linesearch=None)`.
///
/// [`backtracking_linesearch`](super::backtracking_linesearch) scales its updates by a search along
/// them.
pub fn lbfgs<L: LearningRate>(learning_rate: L) -> Chain<(ScaleByLbfgs, ScaleByLearningRate<L>)> {
    chain((scale_by_lbfgs(), scale_by_learning_rate(learning_rate)))
}

/// Computes the inner product over all elements of all leaves, in f32, or f64 if every leaf is f64:
/// `optax.tree.vdot`.
#[track_caller]
pub(super) fn tree_vdot(a: &[Tensor], b: &[Tensor]) -> Tensor {
    let wide = !a.is_empty() && a.iter().all(|leaf| leaf.dtype() == DType::F64);
    let dtype = if wide { DType::F64 } else { DType::F32 };
    let mut total = ops::zeros([], dtype);
    for (a, b) in a.iter().zip(b) {
        total = total + (a.to(dtype) * b.to(dtype)).sum(..);
    }
    total
}

/// Returns `a + factor * b` for every leaf.
#[track_caller]
pub(super) fn add_scaled(a: &[Tensor], factor: Tensor, b: &[Tensor]) -> Vec<Tensor> {
    a.iter().zip(b).map(|(a, b)| *a + factor.to(a.dtype()) * *b).collect()
}

/// Past differences of parameters and gradients, and the inverse products of both.
struct Memory {
    params: Vec<Tensor>,
    updates: Vec<Tensor>,
    weights: Tensor,
}

impl Memory {
    fn at(&self, index: Tensor) -> (Vec<Tensor>, Vec<Tensor>, Tensor) {
        let pick =
            |leaves: &[Tensor]| leaves.iter().map(|leaf| leaf.dynamic_index(0, index)).collect();
        (pick(&self.params), pick(&self.updates), self.weights.dynamic_index(0, index))
    }

    /// Returns `vector` times the inverse Hessian, by the two-loop recursion over the indices from
    /// the oldest to the newest.
    fn precondition(&self, vector: Vec<Tensor>, scale: Tensor, indices: Tensor) -> Vec<Tensor> {
        let right = |vector: Vec<Tensor>, index: Tensor| {
            let (params, updates, weight) = self.at(index);
            let alpha = weight * tree_vdot(&params, &vector);
            (add_scaled(&vector, -alpha, &updates), alpha)
        };
        let (vector, alphas) = scan_with(right, vector, indices, ScanOptions::reversed());
        let vector: Vec<Tensor> = vector.into_iter().map(|v| scale.to(v.dtype()) * v).collect();
        let left = |vector: Vec<Tensor>, (index, alpha): (Tensor, Tensor)| {
            let (params, updates, weight) = self.at(index);
            let beta = weight * tree_vdot(&updates, &vector);
            (add_scaled(&vector, alpha - beta, &params), ())
        };
        scan_with(left, vector, (indices, alphas), ScanOptions::default()).0
    }
}

impl<P: Tree<Tensor>> GradientTransformation<P> for ScaleByLbfgs {
    type State = ScaleByLbfgsState<Tensor, P>;

    #[track_caller]
    fn init(&self, params: &P) -> Self::State {
        if self.memory_size == 0 {
            fail_op("scale_by_lbfgs", "memory_size must be at least 1");
        }
        let memory = || {
            let mut stacked = Vec::new();
            for leaf in tree::leaves(params) {
                let mut shape = vec![self.memory_size];
                shape.extend_from_slice(&leaf.shape());
                stacked.push(ops::zeros(shape, leaf.dtype()));
            }
            tree::replace(params, stacked)
        };
        let dtype = tree_vdot(&tree::leaves(params), &[]).dtype();
        ScaleByLbfgsState {
            count: ops::constant(0i32),
            params: zeros_like(params),
            updates: zeros_like(params),
            diff_params_memory: memory(),
            diff_updates_memory: memory(),
            weights_memory: ops::zeros([self.memory_size], dtype),
        }
    }

    #[op("scale_by_lbfgs", at_line)]
    fn update(&self, grads: &P, state: Self::State, params: &P) -> (P, Self::State) {
        let names = ["updates", "params", "old updates", "old params"];
        let trees = [grads, params, &state.updates, &state.params];
        let leaves = leaves_of("scale_by_lbfgs", names, trees);
        self.update_leaves(grads, leaves, state)
    }
}

impl ScaleByLbfgs {
    fn update_leaves<P: Tree<Tensor>>(
        &self,
        grads: &P,
        [g, p, old_g, old_p]: [Vec<Tensor>; 4],
        state: ScaleByLbfgsState<Tensor, P>,
    ) -> (P, ScaleByLbfgsState<Tensor, P>) {
        let size = self.memory_size as i32;
        let later = state.count.gt(0);
        let index = state.count % size;
        let last = (index + (size - 1)) % size;
        let difference = |new: &[Tensor], old: &[Tensor]| -> Vec<Tensor> {
            let pairs = new.iter().zip(old);
            pairs.map(|(new, old)| where_(later, *new - *old, 0.0)).collect()
        };
        let (diff_params, diff_updates) = (difference(&p, &old_p), difference(&g, &old_g));
        let product = tree_vdot(&diff_updates, &diff_params);
        let zero = product.eq(0.0);
        let weight = where_(zero, 0.0, 1.0 / where_(zero, 1.0, product));
        let put = |memory: &P, new: &[Tensor]| -> Vec<Tensor> {
            let memory = tree::leaves(memory).into_iter().zip(new);
            memory.map(|(memory, new)| memory.dynamic_update_index(0, last, *new)).collect()
        };
        let memory = Memory {
            params: put(&state.diff_params_memory, &diff_params),
            updates: put(&state.diff_updates_memory, &diff_updates),
            weights: state.weights_memory.dynamic_update_index(0, last, weight),
        };
        let scale = if self.scale_init_precond {
            let square = tree_vdot(&diff_updates, &diff_updates);
            let positive = square.gt(0.0);
            let ratio = where_(positive, product / where_(positive, square, 1.0), 1.0);
            let first = global_norm(grads).stop_gradient().reciprocal().minimum(1.0);
            where_(later, ratio, first)
        } else {
            ops::ones_like(product)
        };
        let indices = (arange(self.memory_size, DType::I32) + index) % size;
        let updates = memory.precondition(g.clone(), scale, indices);
        let state = ScaleByLbfgsState {
            count: increment(state.count),
            params: tree::replace(grads, p),
            updates: tree::replace(grads, g),
            diff_params_memory: tree::replace(grads, memory.params),
            diff_updates_memory: tree::replace(grads, memory.updates),
            weights_memory: memory.weights,
        };
        (tree::replace(grads, updates), state)
    }
}
