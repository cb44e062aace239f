//! Matrix factorizations and solutions of systems.

use std::iter::Sum;
use std::ops::{Div, Mul, Sub};

use num_complex::Complex64;

use super::number::Number;
use crate::trace::literal::Literal;
use crate::trace::op::TriangularSolveOp;
use crate::trace::types::TensorType;

/// Row by row (Cholesky and Banachiewicz), of the lower triangle.
pub(super) fn cholesky(x: &Literal, ty: &TensorType) -> Literal {
    let n = *ty.shape.last().expect("matrices");
    let mut l = f64::lift(x);
    for matrix in l.chunks_exact_mut((n * n).max(1)) {
        let mut fails = false;
        for i in 0..n {
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| matrix[i * n + k] * matrix[j * n + k]).sum();
                let rest = matrix[i * n + j] - sum;
                if i == j {
                    // NaN is not positive.
                    fails |= rest.is_nan() || rest <= 0.0;
                    matrix[i * n + j] = rest.sqrt();
                } else {
                    matrix[i * n + j] = rest / matrix[j * n + j];
                }
            }
            matrix[i * n + i + 1..(i + 1) * n].fill(0.0);
        }
        if fails {
            (0..n).for_each(|i| matrix[i * n..=i * n + i].fill(f64::NAN));
        }
    }
    f64::lower(ty, &l)
}

/// Substitution, forwards or backwards.
pub(super) fn triangular_solve(op: &TriangularSolveOp, a: &Literal, b: &Literal) -> Literal {
    match a.ty().dtype.is_complex() {
        true => substitute::<Complex64>(op, a, b),
        false => substitute::<f64>(op, a, b),
    }
}

fn substitute<N>(op: &TriangularSolveOp, a: &Literal, b: &Literal) -> Literal
where
    N: Number + Sub<Output = N> + Mul<Output = N> + Div<Output = N> + Sum,
{
    let (rank, ty) = (a.ty().rank(), b.ty());
    let n = a.ty().shape[rank - 1];
    let (rows, columns) = (ty.shape[rank - 2], ty.shape[rank - 1]);
    let (matrices, mut x) = (N::lift(a), N::lift(b));
    if x.is_empty() {
        return b.clone();
    }
    for (a, x) in matrices.chunks_exact(n * n).zip(x.chunks_exact_mut(rows * columns)) {
        // `X op(A) = B` is `op(A)^T X^T = B^T`.
        let transposed = op.transpose_a == op.left_side;
        let at = |i: usize, j: usize| if transposed { a[j * n + i] } else { a[i * n + j] };
        let forwards = op.lower != transposed;
        for side in 0..if op.left_side { columns } else { rows } {
            let place = |i: usize| {
                if op.left_side { i * columns + side } else { side * columns + i }
            };
            for step in 0..n {
                let i = if forwards { step } else { n - 1 - step };
                let known = if forwards { 0..i } else { i + 1..n };
                let sum: N = known.map(|j| at(i, j) * x[place(j)]).sum();
                let rest = x[place(i)] - sum;
                x[place(i)] = if op.unit_diagonal { rest } else { rest / at(i, i) };
            }
        }
    }
    N::lower(ty, &x)
}
