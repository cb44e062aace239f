//! Solutions of triangular systems: batching.

use super::Batched;
use crate::trace::op::TriangularSolveOp;
use crate::trace::ops;
use crate::trace::tensor::Tensor;
use crate::trace::types::Shape;

pub(crate) fn triangular_solve(
    op: &TriangularSolveOp,
    a: Batched,
    b: Batched,
    size: usize,
) -> Tensor {
    if a.mapped {
        return ops::triangular_solve(a.full(size), b.full(size), *op);
    }
    // One matrix for the whole batch: all right sides together are more right sides.
    let lane = b.example_type().shape;
    let rank = lane.rank();
    let others = if op.left_side { rank - 1 } else { rank - 2 };
    let merged: Shape = lane.without_axis(others).with_axis(others, size * lane[others]);
    let cut: Shape = lane.with_axis(others, size);
    let sides = b.tensor.moveaxis(0, others as isize).reshape(merged);
    ops::triangular_solve(a.tensor, sides, *op).reshape(cut).moveaxis(others as isize, 0)
}
