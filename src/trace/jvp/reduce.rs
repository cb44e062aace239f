//! Derivatives of reductions and sorting.

use super::tangent::Tangents;
use crate::error::Loc;
use crate::trace::op::{Axes, Op, ReduceOp};
use crate::trace::ops::{IndexMode, iota, where_, zeros_like};
use crate::trace::tensor::{Tensor, Tensors, bind};
use crate::trace::types::DType;

/// Tangent of a maximum or minimum. Equal extreme elements share the derivative. If the extreme is
/// NaN no element equals it: the tangent is NaN, and cotangents pull back to 0.
pub(crate) fn jvp_extreme(x: Tensor, y: Tensor, t: Tensor, axes: &Axes) -> Tensor {
    let shape = x.shape();
    let at = x.eq(y.keep_axes(&shape, axes));
    let count = at.to(x.dtype()).reduce(ReduceOp::Sum, axes.clone());
    where_(at, t, zeros_like(t)).reduce(ReduceOp::Sum, axes.clone()) / count
}

/// The product's tangent by a tree of two-factor products, which needs no division, so that zeros
/// do no harm.
pub(crate) fn jvp_product(x: Tensor, t: Tensor, axes: &Axes) -> Tensor {
    let rank = x.rank();
    // The reduced axes merged into one, at the front.
    let kept: Axes = (0..rank).filter(|axis| !axes.contains(axis)).collect();
    let permutation: Axes = axes.iter().chain(&kept).copied().collect();
    let shape = x.shape();
    let merged: usize = axes.iter().map(|&axis| shape[axis]).product();
    let flat: Vec<usize> = [merged].into_iter().chain(kept.iter().map(|&a| shape[a])).collect();
    let (mut x, mut t) =
        (x.transpose(&permutation).reshape(&flat), t.transpose(&permutation).reshape(&flat));
    let mut size = merged;
    while size > 1 {
        let half = size / 2;
        let part = |v: Tensor, from: usize, to: usize| v.slice_axis(0, from, to);
        let (a, b) = (part(x, 0, half), part(x, half, 2 * half));
        let (ta, tb) = (part(t, 0, half), part(t, half, 2 * half));
        let (mut product, mut tangent) = (a * b, ta * b + a * tb);
        if size % 2 == 1 {
            product = crate::trace::ops::concatenate(&[product, part(x, size - 1, size)], 0);
            tangent = crate::trace::ops::concatenate(&[tangent, part(t, size - 1, size)], 0);
        }
        (x, t) = (product, tangent);
        size = size.div_ceil(2);
    }
    match merged {
        // An empty product is the constant 1.
        0 => t.reduce(ReduceOp::Sum, [0].as_slice().into()),
        _ => t.squeeze(0),
    }
}

/// Tangents follow the stable order of the keys.
pub(crate) fn jvp_sort(
    axis: usize,
    x: &[Tensor],
    t: &[Option<Tensor>],
    at: Loc,
) -> (Tensors, Tangents) {
    let places = iota(x[0].shape(), axis as isize, DType::I32);
    let operands: Vec<Tensor> = x.iter().copied().chain([places]).collect();
    let mut sorted = bind(Op::Sort { axis }, &operands, at);
    let order = sorted.pop().expect("the places sorted with the operands");
    let tangents = t
        .iter()
        .map(|t| t.map(|t| t.take_along_axis_mode(order, axis as isize, IndexMode::Clip)))
        .collect();
    (sorted, tangents)
}
