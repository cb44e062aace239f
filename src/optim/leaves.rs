//! Functions over the corresponding leaves of several trees.

use std::panic::Location;

use super::leaves_of;
use crate::trace::tensor::at_line;
use crate::trace::{DType, Tensor, ops};
use crate::tree::{self, Tree};

/// Applies `f` to the corresponding leaves of `N` trees and returns `K` trees of its results.
/// `names` are the names of the trees in messages.
#[track_caller]
pub(super) fn map_leaves<M: Tree<Tensor>, const N: usize, const K: usize>(
    op: &str,
    names: [&str; N],
    trees: [&M; N],
    f: impl Fn([Tensor; N]) -> [Tensor; K],
) -> [M; K] {
    let at = Location::caller();
    let leaves = leaves_of(op, names, trees);
    let mut results: [Vec<Tensor>; K] = std::array::from_fn(|_| Vec::new());
    let mut columns = leaves.map(Vec::into_iter);
    let mut next_row = || {
        let row: [Option<Tensor>; N] = std::array::from_fn(|n| columns[n].next());
        row.into_iter().collect::<Option<Vec<Tensor>>>()?.try_into().ok()
    };
    while let Some(row) = next_row() {
        for (column, value) in results.iter_mut().zip(at_line(at, || f(row))) {
            column.push(value);
        }
    }
    results.map(|leaves| tree::replace(trees[0], leaves))
}

/// Type of the scalars that belong to leaves of `dtype`, such as bias corrections: f64 for f64, else f32.
pub(super) fn scalar_type(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Type of the scalars that belong to all of these leaves: f64 if one of them is f64.
#[track_caller]
pub(super) fn scalar_type_of(leaves: &[Tensor]) -> DType {
    let wide = leaves.iter().any(|leaf| leaf.dtype() == DType::F64);
    if wide { DType::F64 } else { DType::F32 }
}

/// Applies `f` to each leaf of `updates`.
#[track_caller]
pub(super) fn map_updates<M: Tree<Tensor>>(
    op: &str,
    updates: &M,
    f: impl Fn(Tensor) -> Tensor,
) -> M {
    let [updates] = map_leaves(op, ["updates"], [updates], |[u]| [f(u)]);
    updates
}

/// Returns a tree of the same structure whose leaves are full of `value`.
#[track_caller]
pub(super) fn full_like<M: Tree<Tensor>>(params: &M, value: f64) -> M {
    let mut full = Vec::new();
    for leaf in tree::leaves(params) {
        full.push(ops::full_like(leaf, value));
    }
    tree::replace(params, full)
}

/// Returns a tree of the same structure whose leaves are the scalar `f` of each leaf.
#[track_caller]
pub(super) fn scalars<M: Tree<Tensor>>(params: &M, f: impl Fn(Tensor) -> Tensor) -> M {
    let at = Location::caller();
    let mut scalars = Vec::new();
    for leaf in tree::leaves(params) {
        scalars.push(at_line(at, || f(leaf)));
    }
    tree::replace(params, scalars)
}

/// Returns `on_true` if the scalar bool `predicate` holds, else `on_false`, for every leaf of two
/// trees of one structure.
#[track_caller]
pub(super) fn select<M: Tree<Tensor>>(predicate: Tensor, on_true: &M, on_false: M) -> M {
    let mut chosen = Vec::new();
    for (new, old) in tree::leaves(on_true).into_iter().zip(tree::leaves(&on_false)) {
        chosen.push(ops::where_(predicate, new, old));
    }
    tree::replace(&on_false, chosen)
}

/// Returns true, a scalar, if every element of every leaf is finite.
#[track_caller]
pub(super) fn all_finite<M: Tree<Tensor>>(updates: &M) -> Tensor {
    let mut finite = ops::constant(true);
    for leaf in tree::leaves(updates) {
        finite = finite & leaf.abs().lt(f64::INFINITY).all(..);
    }
    finite
}
