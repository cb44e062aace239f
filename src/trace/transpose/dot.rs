//! Transposition of general products.

use crate::trace::check::free_axes;
use crate::trace::op::{Axes, DotDims};
use crate::trace::ops::dot_general;
use crate::trace::tensor::Tensor;
use crate::trace::types::TensorType;

/// The cotangent of the left operand: the result's cotangent contracted with the right operand over
/// its free axes, and the axes moved back to their positions.
pub(crate) fn transpose_lhs(dims: &DotDims, lhs: &TensorType, rhs: Tensor, ct: Tensor) -> Tensor {
    let num_batch = dims.lhs_batch.len();
    let lhs_free = free_axes(lhs.rank(), &dims.lhs_contract, &dims.lhs_batch);
    let rhs_free = free_axes(rhs.rank(), &dims.rhs_contract, &dims.rhs_batch);
    let first_rhs = num_batch + lhs_free.len();
    let product = dot_general(
        ct,
        rhs,
        DotDims {
            lhs_contract: (first_rhs..first_rhs + rhs_free.len()).collect(),
            rhs_contract: rhs_free,
            lhs_batch: (0..num_batch).collect(),
            rhs_batch: dims.rhs_batch.clone(),
            precision: dims.precision,
        },
    );
    // Axes of the product: batch, free axes of lhs, contracted axes in the order of rhs's axes.
    let mut contracted: Vec<usize> = (0..dims.rhs_contract.len()).collect();
    contracted.sort_by_key(|&i| dims.rhs_contract[i]);
    let places = dims
        .lhs_batch
        .iter()
        .copied()
        .chain(lhs_free)
        .chain(contracted.into_iter().map(|i| dims.lhs_contract[i]));
    put_back(product, places)
}

/// The cotangent of the right operand; the mirror image of [`transpose_lhs`].
pub(crate) fn transpose_rhs(dims: &DotDims, lhs: Tensor, rhs: &TensorType, ct: Tensor) -> Tensor {
    let num_batch = dims.lhs_batch.len();
    let lhs_free = free_axes(lhs.rank(), &dims.lhs_contract, &dims.lhs_batch);
    let rhs_free = free_axes(rhs.rank(), &dims.rhs_contract, &dims.rhs_batch);
    let product = dot_general(
        lhs,
        ct,
        DotDims {
            lhs_contract: lhs_free.clone(),
            rhs_contract: (num_batch..num_batch + lhs_free.len()).collect(),
            lhs_batch: dims.lhs_batch.clone(),
            rhs_batch: (0..num_batch).collect(),
            precision: dims.precision,
        },
    );
    // Axes of the product: batch, contracted axes in the order of lhs's axes, free axes of rhs.
    let mut contracted: Vec<usize> = (0..dims.lhs_contract.len()).collect();
    contracted.sort_by_key(|&i| dims.lhs_contract[i]);
    let places = dims
        .rhs_batch
        .iter()
        .copied()
        .chain(contracted.into_iter().map(|i| dims.rhs_contract[i]))
        .chain(rhs_free);
    put_back(product, places)
}

/// Moves axis `i` to the position that the `i`th of `places` names.
fn put_back(x: Tensor, places: impl Iterator<Item = usize>) -> Tensor {
    let mut permutation = Axes::from_elem(0, x.rank());
    for (from, to) in places.enumerate() {
        permutation[to] = from;
    }
    x.transpose(&permutation)
}
