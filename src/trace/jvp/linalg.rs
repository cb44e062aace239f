//! Derivatives of matrix factorizations and solutions.

use crate::trace::op::{Precision, TriangularSolveOp};
use crate::trace::ops::{eye, triangular_solve};
use crate::trace::tensor::Tensor;

/// The tangent of `l = cholesky(x)`: `l phi(l^-1 t l^-H)`, phi the lower triangle with half of the
/// diagonal, and of `t` the lower triangle only (Murray 2016, "Differentiation of the Cholesky
/// decomposition", forward mode).
pub(super) fn jvp_cholesky(l: Tensor, t: Tensor) -> Tensor {
    let t = t.tril(0) + t.tril(-1).swapaxes(-1, -2).conj();
    let lower = TriangularSolveOp { lower: true, ..TriangularSolveOp::default() };
    let right = triangular_solve(l.conj(), t, TriangularSolveOp { transpose_a: true, ..lower });
    let both = triangular_solve(l, right, TriangularSolveOp { left_side: true, ..lower });
    let size = l.dim(-1);
    let phi = both.tril(0) / (eye(size, l.dtype()) + 1.0);
    l.matmul_with(phi, Precision::Highest)
}

/// The part of the tangent of `y`, the solution for the matrix `a`, that comes from its tangent
/// `t`.
pub(super) fn jvp_triangular_solve(
    op: &TriangularSolveOp,
    a: Tensor,
    y: Tensor,
    t: Tensor,
) -> Tensor {
    let ones = i32::from(op.unit_diagonal);
    let t = -if op.lower { t.tril(-ones) } else { t.triu(ones) };
    let t = if op.transpose_a { t.swapaxes(-1, -2) } else { t };
    let solved = |x: Tensor| triangular_solve(a, x, *op);
    let (size, others) = (a.dim(-1), y.dim(if op.left_side { -1 } else { -2 }));
    // Both orders are right; the product comes first if it leaves less to solve.
    match (op.left_side, size > others) {
        (true, true) => solved(t.matmul_with(y, Precision::Highest)),
        (true, false) => solved(t).matmul_with(y, Precision::Highest),
        (false, true) => solved(y.matmul_with(t, Precision::Highest)),
        (false, false) => y.matmul_with(solved(t), Precision::Highest),
    }
}
