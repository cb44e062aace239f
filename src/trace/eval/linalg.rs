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
    match ty.dtype.is_complex() {
        true => factor::<Complex64>(x, ty),
        false => factor::<f64>(x, ty),
    }
}

/// Numbers with a conjugate; the conjugate of a real number is the number.
trait Conjugate: Number {
    fn conjugate(self) -> Self;
    fn real(self) -> f64;
    fn from_real(x: f64) -> Self;
}

impl Conjugate for f64 {
    fn conjugate(self) -> f64 {
        self
    }

    fn real(self) -> f64 {
        self
    }

    fn from_real(x: f64) -> f64 {
        x
    }
}

impl Conjugate for Complex64 {
    fn conjugate(self) -> Complex64 {
        self.conj()
    }

    fn real(self) -> f64 {
        self.re
    }

    fn from_real(x: f64) -> Complex64 {
        x.into()
    }
}

fn factor<N>(x: &Literal, ty: &TensorType) -> Literal
where
    N: Conjugate + Sub<Output = N> + Mul<Output = N> + Div<Output = N> + Sum,
{
    let n = *ty.shape.last().expect("matrices");
    let mut l = N::lift(x);
    for matrix in l.chunks_exact_mut((n * n).max(1)) {
        let mut fails = false;
        for i in 0..n {
            for j in 0..=i {
                let products = (0..j).map(|k| matrix[i * n + k] * matrix[j * n + k].conjugate());
                let rest = matrix[i * n + j] - products.sum();
                if i == j {
                    let rest = rest.real();
                    // NaN is not positive.
                    fails |= rest.is_nan() || rest <= 0.0;
                    matrix[i * n + j] = N::from_real(rest.sqrt());
                } else {
                    matrix[i * n + j] = rest / matrix[j * n + j];
                }
            }
            matrix[i * n + i + 1..(i + 1) * n].fill(N::ZERO);
        }
        if fails {
            (0..n).for_each(|i| matrix[i * n..=i * n + i].fill(N::from_real(f64::NAN)));
        }
    }
    N::lower(ty, &l)
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
