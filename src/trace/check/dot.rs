//! The type of a general product.

use smallvec::SmallVec;

use super::problem::{Problem, ensure};
use crate::trace::op::DotDims;
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
    ensure!(
        lhs.dtype != DType::Bool,
        [0, 1],
        "is not defined for bool; convert it with .to(dtype)"
    );
    let pairs = [
        ("contracting", &dims.lhs_contract, &dims.rhs_contract),
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
                "{kind} axes must have equal sizes: lhs {lhs} axis {l} ({}), rhs {rhs} axis {r} ({})",
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
