//! Iterative linear algebra for optimizers.

use crate::random::{Key, uniform};
use crate::trace::Tensor;
use crate::trace::control::{ScanOptions, scan_with, while_loop};
use crate::trace::op::Precision;
use crate::trace::ops::{self, where_};
use crate::trace::tensor::{fail_op, op};

/// Ends the trace unless `matrix` is square and of floats.
#[track_caller]
fn ensure_square(op: &str, matrix: Tensor) {
    let ty = matrix.ty();
    if ty.rank() != 2 || ty.shape[0] != ty.shape[1] || !ty.dtype.is_float() {
        fail_op(op, format!("takes a square matrix of floats, and was given {ty}"));
    }
}

fn product(a: Tensor, b: Tensor) -> Tensor {
    a.matmul_with(b, Precision::Highest)
}

/// Computes the eigenvalue of the largest absolute value of a symmetric matrix `[n, n]`, a scalar,
/// and its eigenvector, `[n]`, by power iteration: `optax.power_iteration`.
///
/// The iteration starts at the vector of optax's default and ends after `num_iters` (100 in optax)
/// products, or when the residual is below `error_tolerance` (1e-6 in optax) times the eigenvalue.
///
/// # Errors
/// Ends the trace unless `matrix` is a square matrix of floats.
#[op(at_line)]
pub fn power_iteration(matrix: Tensor, num_iters: usize, error_tolerance: f64) -> (Tensor, Tensor) {
    ensure_square("power_iteration", matrix);
    let start = uniform(Key::constant(0), [matrix.dim(0)], matrix.dtype(), -1.0, 1.0);
    let unit = |v: Tensor| 1.0 / v.norm() * v;
    let start = unit(start);
    let limit = i32::try_from(num_iters).unwrap_or(i32::MAX);
    let continues = |(v, z, eigenvalue, count): (Tensor, Tensor, Tensor, Tensor)| {
        let residual = (z - eigenvalue * v).norm();
        let converged = (residual / eigenvalue).abs().lt(error_tolerance);
        !converged & count.lt(limit)
    };
    let step = |(_, z, _, count): (Tensor, Tensor, Tensor, Tensor)| {
        let v = unit(z);
        let z = product(matrix, v);
        (v, z, (v * z).sum(..), count + 1)
    };
    let zero = ops::zeros([], matrix.dtype());
    let first = (start, product(matrix, start), zero, ops::constant(0i32));
    let (_, z, eigenvalue, _) = while_loop(continues, step, first);
    (eigenvalue, unit(z))
}

/// Computes `matrix^(-1/p)` of a symmetric positive semidefinite matrix, `p` 1, 2, 4 or 8, and the
/// error of the iteration, a scalar: `optax.matrix_inverse_pth_root`, a part of Shampoo (Gupta et al.
/// 2018). It is Newton's iteration with optax's defaults: 100 iterations at most, tolerance 1e-6, and
/// 1e-6 of the largest eigenvalue added to the diagonal.
///
/// # Errors
/// Ends the trace unless `matrix` is a square matrix of floats, and `p` one of these.
#[op(at_line)]
pub fn matrix_inverse_pth_root(matrix: Tensor, p: u32) -> (Tensor, Tensor) {
    ensure_square("matrix_inverse_pth_root", matrix);
    if ![1, 2, 4, 8].contains(&p) {
        fail_op("matrix_inverse_pth_root", format!("p must be 1, 2, 4 or 8, and is {p}"));
    }
    let ridge = 1e-6 * power_iteration(matrix, 100, 1e-6).0.maximum(1e-16);
    let alpha = -1.0 / f64::from(p);
    if matrix.dim(0) == 1 {
        return ((matrix + ridge).pow(alpha), ops::zeros([], matrix.dtype()));
    }
    newton(matrix, ridge, alpha, p)
}

type Newton = (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor);

fn newton(matrix: Tensor, ridge: Tensor, alpha: f64, p: u32) -> (Tensor, Tensor) {
    let identity = ops::eye(matrix.dim(0), matrix.dtype());
    let damped = matrix + ridge * identity;
    let z: Tensor = (1.0 + f64::from(p)) / (2.0 * damped.norm());
    let distance = |m: Tensor| (m - identity).abs().max(..);
    let first = damped * z;
    let root = identity * z.pow(1.0 / f64::from(p));
    let continues =
        |(count, _, _, _, error, decreasing): Newton| count.lt(100) & error.gt(1e-6) & decreasing;
    let step = |(count, m, h, _, error, _): Newton| {
        let factor = (1.0 - alpha) * identity + alpha * m;
        let mut power = factor;
        for _ in 0..p.ilog2() {
            power = product(power, power);
        }
        let next = product(power, m);
        let now = distance(next);
        (count + 1, next, product(h, factor), h, now, now.lt(error * 1.2))
    };
    let start = (ops::constant(0i32), first, root, root, distance(first), ops::constant(true));
    let (_, m, h, old, _, decreasing) = while_loop(continues, step, start);
    (where_(decreasing, h, old), distance(m))
}

/// Solves `min |a x - b|` over `x >= 0` by `iters` steps of accelerated projected gradients:
/// `optax.nnls`. `a: f[m, n]`, `b: f[m]` or `f[m, k]`; the result is `f[n]` or `f[n, k]`.
///
/// # Errors
/// Ends the trace if the shapes do not fit.
#[op(at_line)]
pub fn nnls(a: Tensor, b: Tensor, iters: usize) -> Tensor {
    let (left, right) = (a.ty(), b.ty());
    let fits = left.rank() == 2
        && (1..=2).contains(&right.rank())
        && left.shape[0] == right.shape[0]
        && left.dtype == right.dtype
        && left.dtype.is_float();
    if !fits {
        let problem = format!("takes floats a [m, n] and b [m] or [m, k], and was given {left}");
        fail_op("nnls", format!("{problem} and {right}"));
    }
    let (q, linear) = (a.t().matmul(a), a.t().matmul(b));
    let largest = q.abs().sum(0).max(..).minimum(q.norm());
    let bound = where_(largest.eq(0.0), 1.0, largest);
    let step = |(x, p, c): (Tensor, Tensor, Tensor), ()| {
        let next = (1.0 + (1.0 + 4.0 * c.square()).sqrt()) / 2.0;
        let new = (p - (q.matmul(p) - linear) / bound).maximum(0.0);
        ((new, new + (c - 1.0) / next * (new - x), next), ())
    };
    let x = ops::zeros_like(linear);
    let start = (x, x, ops::zeros([], left.dtype));
    scan_with(step, start, (), ScanOptions::length(iters)).0.0
}
