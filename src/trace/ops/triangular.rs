//! Triangles of matrices, Cholesky factorization and triangular systems. Matrices are the last two
//! axes; axes before them are batches.

use std::panic::Location;

use super::{iota, zeros_like};
use crate::trace::op::{Op, TriangularSolveOp};
use crate::trace::ops::elementwise::where_;
use crate::trace::tensor::{Tensor, at_line, bind1, fail_op, op};
use crate::trace::types::DType;

/// `lax.linalg.cholesky`, `jnp.linalg.cholesky`: the lower triangular L with `L L^H = x`, of
/// Hermitian positive definite matrices `x: [.., n, n]` of f32, f64, c64 or c128. A matrix that is not
/// Hermitian is symmetrized, `(x + x^H) / 2`, as JAX does. If a matrix is not positive definite its
/// triangle is NaN.
#[op(at_line)]
pub fn cholesky(x: Tensor) -> Tensor {
    expect_square("cholesky", x);
    bind1(Op::Cholesky, &[hermitian_part(x)], Location::caller())
}

/// `lax.linalg.triangular_solve`: the `X` of `op(A) X = B` or of `X op(A) = B` for triangular
/// matrices `a: [.., n, n]` of f32, f64, c64 or c128, and right sides `b` of the same axes before the last two.
/// `b` may also have one axis less: then it is a vector, or a batch of them.
///
/// ```
/// use podracer::trace::op::TriangularSolveOp;
/// use podracer::trace::ops::triangular_solve;
/// use podracer::{Array, Tensor, interpret};
/// let lower = TriangularSolveOp { left_side: true, lower: true, ..TriangularSolveOp::default() };
/// let f = interpret(move |(a, b): (Tensor, Tensor)| triangular_solve(a, b, lower));
/// let (a, b) = (Array::from([[2.0f32, 9.0], [1.0, 4.0]]), Array::from([2.0f32, 9.0]));
/// assert_eq!(f.call((a, b))?.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn triangular_solve(a: Tensor, b: Tensor, op: TriangularSolveOp) -> Tensor {
    let at = Location::caller();
    if b.rank() + 1 == a.rank() {
        let axis = if op.left_side { -1 } else { -2 };
        return at_line(at, || {
            let columns = b.expand_dims(axis);
            bind1(Op::TriangularSolve(op), &[a, columns], at).squeeze(axis)
        });
    }
    bind1(Op::TriangularSolve(op), &[a, b], at)
}

/// Returns true for the element types of factorizations.
pub(crate) fn is_wide_inexact(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::C64 | DType::C128)
}

/// `(x + x^H) / 2`, of real matrices `(x + x^T) / 2`.
#[track_caller]
pub(crate) fn hermitian_part(x: Tensor) -> Tensor {
    (x + x.swapaxes(-1, -2).conj()) * 0.5
}

/// Checks that `a` is a square matrix of floats or complex numbers, or a batch of them.
#[track_caller]
pub(crate) fn expect_square(name: &str, a: Tensor) {
    let ty = a.ty();
    let rank = ty.rank();
    let square = rank >= 2 && ty.shape[rank - 1] == ty.shape[rank - 2];
    if !square || !is_wide_inexact(ty.dtype) {
        let problem = format!("takes square matrices of f32, f64, c64 or c128, and was given {ty}");
        fail_op(name, problem);
    }
}

impl Tensor {
    /// The lower triangle of the last two axes: elements above diagonal `k` become 0.
    #[op]
    pub fn tril(self, k: i32) -> Tensor {
        let shape = self.shape();
        let rank = shape.rank();
        if rank < 2 {
            fail_op("tril", format!("takes a matrix, and was given {}", self.ty()));
        }
        let square = [shape[rank - 2], shape[rank - 1]];
        let row = iota(square, 0, DType::I32);
        let column = iota(square, 1, DType::I32);
        where_((row + k).ge(column), self, zeros_like(self))
    }

    /// `jnp.triu`: the upper triangle of the last two axes: elements below diagonal `k` become 0.
    #[op]
    pub fn triu(self, k: i32) -> Tensor {
        if self.rank() < 2 {
            fail_op("triu", format!("takes a matrix, and was given {}", self.ty()));
        }
        where_(self.at_or_below(k - 1), zeros_like(self), self)
    }

    /// Mask like `jnp.tri`: true if the row is at or below diagonal `k`, over the last two axes.
    #[track_caller]
    fn at_or_below(self, k: i32) -> Tensor {
        let shape = self.shape();
        let rank = shape.rank() as isize;
        let rows = iota(&shape, rank - 2, DType::I32);
        let columns = iota(&shape, rank - 1, DType::I32);
        (rows + k).ge(columns)
    }
}
