//! General products.

use smallvec::SmallVec;

use crate::trace::check::{Problem, ensure};
use crate::trace::op::{Axes, DotDims};
use crate::trace::ops::dot_general;
use crate::trace::tensor::Tensor;
use crate::trace::types::{DType, TensorType};

/// Axes of an operand of rank `rank` that are neither contracted nor paired, in order.
pub(crate) fn free_axes(rank: usize, contract: &[usize], batch: &[usize]) -> SmallVec<[usize; 4]> {
    (0..rank).filter(|axis| !contract.contains(axis) && !batch.contains(axis)).collect()
}

pub(crate) fn infer(
    dims: &DotDims,
    lhs: &TensorType,
    rhs: &TensorType,
) -> Result<TensorType, Problem> {
    ensure!(
        lhs.dtype == rhs.dtype,
        [0, 1],
        "element types differ: lhs {lhs}, rhs {rhs}; convert one with .to(dtype)"
    );
    ensure!(lhs.dtype != DType::Bool, [0, 1], "bool has no product; convert it with .to(dtype)");
    let pairs = [
        ("contracted", &dims.lhs_contract, &dims.rhs_contract),
        ("batch", &dims.lhs_batch, &dims.rhs_batch),
    ];
    for (kind, left, right) in pairs {
        ensure!(
            left.len() == right.len(),
            [0, 1],
            "{} {kind} axes of lhs {lhs}, {} of rhs {rhs}",
            left.len(),
            right.len()
        );
        for (&l, &r) in left.iter().zip(right.iter()) {
            ensure!(
                l < lhs.rank() && r < rhs.rank(),
                [0, 1],
                "{kind} axes {l} of lhs {lhs} and {r} of rhs {rhs} do not exist"
            );
            ensure!(
                lhs.shape[l] == rhs.shape[r],
                [0, 1],
                "{kind} axes differ: lhs {lhs} axis {l} ({}), rhs {rhs} axis {r} ({})",
                lhs.shape[l],
                rhs.shape[r]
            );
        }
    }
    let lhs_free = free_axes(lhs.rank(), &dims.lhs_contract, &dims.lhs_batch);
    let rhs_free = free_axes(rhs.rank(), &dims.rhs_contract, &dims.rhs_batch);
    ensure!(
        lhs_free.len() + dims.lhs_contract.len() + dims.lhs_batch.len() == lhs.rank()
            && rhs_free.len() + dims.rhs_contract.len() + dims.rhs_batch.len() == rhs.rank(),
        [0, 1],
        "an axis of lhs {lhs} or rhs {rhs} is named twice"
    );
    let batch = dims.lhs_batch.iter().map(|&axis| lhs.shape[axis]);
    let left = lhs_free.iter().map(|&axis| lhs.shape[axis]);
    let right = rhs_free.iter().map(|&axis| rhs.shape[axis]);
    let shape: crate::trace::types::Shape = batch.chain(left).chain(right).collect();
    Ok(TensorType::new(lhs.dtype, shape))
}

/// The cotangent of the left operand: the result's cotangent contracted with the right operand
/// over its free axes, and the axes put back in their places.
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

/// Moves axis `i` to the place that the `i`th of `places` names.
fn put_back(x: Tensor, places: impl Iterator<Item = usize>) -> Tensor {
    let mut permutation = Axes::from_elem(0, x.rank());
    for (from, to) in places.enumerate() {
        permutation[to] = from;
    }
    x.transpose(&permutation)
}
