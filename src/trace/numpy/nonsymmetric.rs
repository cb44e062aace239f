//! Eigenvalues and eigenvectors of general square matrices, by the QR algorithm on the Hessenberg form
//! with one shift a step (Golub & Van Loan 2013, sections 7.4 to 7.6). Real matrices are computed as
//! complex ones.

use num_complex::Complex;

use super::eigen::{adjoint, epsilon, householder, known, product, reflected, scaled, sign_of};
use super::linalg::{batch_of, for_each, lu_of_matrix, lu_solve};
use crate::trace::control::{fori_loop, while_loop};
use crate::trace::custom::custom_jvp;
use crate::trace::ops::{
    IndexMode, arange, complex, concatenate, constant, expect_square, eye, iota, where_, zeros_like,
};
use crate::trace::tensor::{Tensor, op};
use crate::trace::types::DType;

/// Maximum number of QR steps for each row, of at least ten rows: LAPACK's number in `zlahqr`. Most
/// matrices need 2 to 3.
const MAX_STEPS_PER_ROW: usize = 30;

/// Steps without a new eigenvalue after which one step has an exceptional shift.
const EXCEPTIONAL: i32 = 10;

/// The upper Hessenberg matrix `h` and the unitary `q` with `a = q h q^H`, by Householder's reflections.
fn hessenberg(a: Tensor) -> (Tensor, Tensor) {
    let n = a.dim(0);
    let reflect = |k: Tensor, (h, q): (Tensor, Tensor)| {
        let (v, _) = householder(h.dynamic_index_clamped(1, k), k + 1);
        let columns = |x: Tensor| adjoint(reflected(adjoint(x), v));
        (columns(reflected(h, v)), columns(q))
    };
    fori_loop(0, n.saturating_sub(2), reflect, (a, eye(n, a.dtype())))
}

/// The block of a Hessenberg matrix on which the QR algorithm works.
struct Window {
    /// First row of the block that has not converged.
    first: Tensor,
    /// Last row but one of the block; -1 if there is none.
    last: Tensor,
}

/// `z`, whose first rows are a Hessenberg matrix, with zeros for the elements of the subdiagonal that
/// are rounding, and the last block between such zeros.
fn deflate(z: Tensor) -> (Tensor, Window) {
    let n = z.dim(1);
    let h = z.slice_axis(0, 0, n);
    let diagonal = h.diagonal().abs();
    let sizes = diagonal.slice_axis(0, 0, n - 1) + diagonal.slice_axis(0, 1, n);
    let below = h.slice_axis(0, 1, n).slice_axis(1, 0, n - 1).diagonal().abs();
    let sizes = where_(sizes.eq(0.0), h.norm(), sizes);
    let active = below.gt(sizes * epsilon(z.dtype()));
    let numbers = arange(n - 1, DType::I32);
    let last = where_(active, numbers, -1).max(..);
    let first = where_(!active & numbers.lt(last), numbers, -1).max(..) + 1;
    let shape = [z.dim(0), n];
    let (row, column) = (iota(shape, 0, DType::I32), iota(shape, 1, DType::I32));
    let small = (!active).pad(&[1], &[(z.dim(0) - n) as i64], 0.0).expand_dims(1);
    let lost = row.gt(column + 1) | (row.eq(column + 1) & small);
    (where_(lost & row.lt(n as i32), 0.0, z), Window { first, last })
}

/// The elements at the rows and columns `k` and `k + 1`, row by row.
fn corner(z: Tensor, k: Tensor) -> [Tensor; 4] {
    let block = z.dynamic_slice_clamped(&[k, k], [2, 2]).reshape([4]);
    [0, 1, 2, 3].map(|i| block.index_axis(0, i))
}

/// Wilkinson's shift: the eigenvalue of the block's last corner that is closer to its last element. If
/// `exceptional`, LAPACK's shift for a block that does not converge.
fn shift_of(z: Tensor, last: Tensor, exceptional: Tensor) -> Tensor {
    let [a, b, c, d] = corner(z, last);
    let half = (a - d) * 0.5;
    let root = (half * half + b * c).sqrt();
    let (sum, difference) = (half + root, half - root);
    let larger = where_(sum.abs().ge(difference.abs()), sum, difference);
    let none = larger.eq(0.0);
    let step = where_(none, 0.0, b * c / where_(none, 1.0, larger));
    where_(exceptional, d + (c.abs() * 0.75).to(z.dtype()), d - step)
}

/// One step of the QR algorithm with this shift: rotations of neighboring rows and columns, each of
/// which moves the element below the subdiagonal that the one before has made one place down.
fn qr_step(z: Tensor, window: Window, shift: Tensor) -> Tensor {
    let (m, n, dtype) = (z.dim(0), z.dim(1), z.dtype());
    let shift = where_(arange(2, DType::I32).eq(0), shift, 0.0);
    let rotate = |k: Tensor, z: Tensor| {
        let zero = zeros_like(k);
        let rows = z.dynamic_slice_clamped(&[k, zero], [2, n]);
        let start = rows.dynamic_index_clamped(1, k) - shift;
        let pair = where_(k.eq(window.first), start, rows.dynamic_index_clamped(1, k - 1));
        let norm = pair.norm();
        let is_active = k.ge(window.first) & k.le(window.last) & norm.gt(0.0);
        let unit = pair / where_(is_active, norm, 1.0).to(dtype);
        let c = where_(is_active, unit.index_axis(0, 0), 1.0);
        let s = where_(is_active, unit.index_axis(0, 1), 0.0);
        let (x, y) = (rows.slice_axis(0, 0, 1), rows.slice_axis(0, 1, 2));
        let rows = concatenate(&[c.conj() * x + s.conj() * y, c * y - s * x], 0);
        let z = z.dynamic_update_slice_clamped(rows, &[k, zero]);
        let columns = z.dynamic_slice_clamped(&[zero, k], [m, 2]);
        let (x, y) = (columns.slice_axis(1, 0, 1), columns.slice_axis(1, 1, 2));
        let columns = concatenate(&[c * x + s * y, c.conj() * y - s.conj() * x], 1);
        z.dynamic_update_slice_clamped(columns, &[zero, k])
    };
    fori_loop(0, n - 1, rotate, z)
}

/// The Schur form of a matrix: `t`, upper triangular, whose diagonal has the eigenvalues; with `vectors`
/// the unitary `q` of `a = q t q^H` in the rows below; and true if the iteration has converged.
fn schur(a: Tensor, vectors: bool) -> (Tensor, Tensor) {
    let n = a.dim(0);
    let (h, q) = hessenberg(a);
    let z = if vectors { concatenate(&[h, q], 0) } else { h };
    type State = (Tensor, Tensor, Tensor, (Tensor, Tensor));
    let step = |(count, steps_since_deflation, z, (first, last)): State| {
        let exceptional = (steps_since_deflation % EXCEPTIONAL).eq(EXCEPTIONAL - 1);
        let z = qr_step(z, Window { first, last }, shift_of(z, last, exceptional));
        let (z, window) = deflate(z);
        let steps_since_deflation = where_(window.last.eq(last), steps_since_deflation + 1, 0);
        (count + 1, steps_since_deflation, z, (window.first, window.last))
    };
    let max_steps = i32::try_from(MAX_STEPS_PER_ROW.saturating_mul(n.max(10))).unwrap_or(i32::MAX);
    let continues = |(count, _, _, (_, last)): State| count.lt(max_steps) & last.ge(0);
    let (z, window) = deflate(z);
    // The iteration would not converge with NaN or infinity.
    let finite = a.is_finite().all(..);
    let last = where_(finite, window.last, -1);
    let start = (constant(0i32), constant(0i32), z, (window.first, last));
    let (_, _, z, (_, last)) = while_loop(continues, step, start);
    (z, last.lt(0) & finite)
}

/// The eigenvectors of an upper triangular matrix, columns, by substitution for all of them at once.
/// Close eigenvalues are moved apart as LAPACK does.
fn triangular_eigenvectors(t: Tensor) -> Tensor {
    let (n, dtype) = (t.dim(0), t.dtype());
    let values = t.diagonal();
    let least = t.norm() * epsilon(dtype);
    let least = where_(least.eq(0.0), 1.0, least);
    let numbers = arange(n, DType::I32);
    let strict = t.triu(1);
    let step = |i: Tensor, x: Tensor| {
        let row = constant(n as i32 - 1) - i;
        let distance = values - values.dynamic_index_clamped(0, row);
        let distance = where_(distance.abs().lt(least), least.to(dtype), distance);
        let known = product(strict.dynamic_index_clamped(0, row), x) / distance;
        let found = where_(numbers.gt(row), known, 0.0);
        let x = x.dynamic_update_index_clamped(0, row, where_(numbers.eq(row), 1.0, found));
        // Without this, vectors of defective matrices overflow.
        x / found.abs().maximum(1.0).to(dtype)
    };
    fori_loop(0, n, step, zeros_like(t))
}

/// Scales columns to norm 1 and rotates their phases so that the largest elements are real and positive.
fn normalized(v: Tensor) -> Tensor {
    let v = v / v.norm_along(2.0, 0).expand_dims(0).to(v.dtype());
    let largest = v.abs().argmax(0).expand_dims(0);
    v * sign_of(v.take_along_axis_mode(largest, 0, IndexMode::Clip)).conj()
}

/// Eigenvalues, and eigenvectors if `vectors`, of a complex matrix; NaN if the iteration does not
/// converge, or an element is infinite or NaN.
fn eig_by_qr(a: Tensor, vectors: bool) -> Vec<Tensor> {
    let n = a.dim(0);
    if n < 2 {
        return [a.diagonal(), eye(n, a.dtype())].map(|x| known(a, x)).to_vec();
    }
    let (a, power) = scaled(a);
    let (z, converged) = schur(a, vectors);
    let t = z.slice_axis(0, 0, n).triu(0);
    let mut results = vec![t.diagonal() * power.to(a.dtype())];
    if vectors {
        let q = z.slice_axis(0, n, 2 * n);
        results.push(normalized(product(q, triangular_eigenvectors(t))));
    }
    let nan = Complex::new(f64::NAN, f64::NAN);
    results.into_iter().map(|x| where_(converged, x, nan)).collect()
}

/// Solves `v y = x` by operations that are linear in `x`, so that it can be transposed.
fn solve(v: Tensor, x: Tensor) -> Tensor {
    let (lu, _, permutation) = lu_of_matrix(v);
    lu_solve(lu, permutation, x)
}

/// Eigenvalues and eigenvectors, with the derivative of both for different eigenvalues (Giles 2008). Of
/// the derivatives of an eigenvector, which differ by multiples of it, this is the one that keeps its
/// norm and the phase of its largest element.
fn eig_of_matrix(a: Tensor) -> (Tensor, Tensor) {
    let values = |a: Tensor| {
        let found = eig_by_qr(a, true);
        (found[0], found[1])
    };
    let rule = |a: Tensor, t: Tensor| {
        let (w, v) = eig_of_matrix(a);
        let identity = eye(a.dim(0), a.dtype());
        let factors: Tensor = 1.0 / (identity + w.expand_dims(0) - w.expand_dims(1)) - identity;
        let inner = product(solve(v, t), v);
        let change = product(v, factors * inner);
        let largest = v.abs().argmax(0).expand_dims(0);
        let at_largest = |x: Tensor| x.take_along_axis_mode(largest, 0, IndexMode::Clip).squeeze(0);
        let growth = (v.conj() * change).sum(0).real();
        let rotation = at_largest(change).imag() / at_largest(v).real();
        let dv = change - v * complex(growth, rotation).expand_dims(0);
        ((w, v), (inner.diagonal(), dv))
    };
    custom_jvp(values, rule)(a)
}

/// Eigenvalues with their derivative, which needs no derivative of eigenvectors.
fn eigvals_of_matrix(a: Tensor) -> Tensor {
    let rule = |a: Tensor, t: Tensor| {
        let (w, v) = eig_of_matrix(a);
        (w, (solve(v, t) * v.t()).sum(-1))
    };
    custom_jvp(|a: Tensor| eig_by_qr(a, false)[0], rule)(a)
}

/// `jnp.linalg.eig`: the eigenvalues `[.., n]` and the eigenvectors `[.., n, n]`, columns, of square
/// matrices `a: [.., n, n]` of f32, f64, c64 or c128. Both are complex. Vectors have norm 1, and their
/// largest elements are real and positive.
///
/// The order of the eigenvalues is not that of LAPACK. Those of real matrices are computed as those of
/// complex ones: where LAPACK gives real numbers, imaginary parts may be rounding instead of 0. All are
/// NaN if an element of the matrix is infinite or NaN.
///
/// Derivatives are those of different eigenvalues. Of eigenvectors they are what JAX has in
/// `lax.linalg.eig` with `enable_eigvec_derivs=True` only.
///
/// ```
/// use podracer::trace::numpy::eig;
/// use podracer::{Array, Complex, Tensor, interpret};
/// let rotation = Array::from([[0.0f32, -1.0], [1.0, 0.0]]);
/// let (w, _) = interpret(|a: Tensor| eig(a)).call(rotation)?;
/// let w = w.to_vec::<Complex<f32>>()?;
/// assert!((w[0] + w[1]).norm() < 1e-6 && (w[0] * w[1] - 1.0).norm() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn eig(a: Tensor) -> (Tensor, Tensor) {
    expect_square("eig", a);
    let of_matrix = |args: &[Tensor]| {
        let (w, v) = eig_of_matrix(args[0]);
        vec![w, v]
    };
    let all = for_each(&batch_of(a), of_matrix, &[a.to(a.dtype().complex())]);
    (all[0], all[1])
}

/// `jnp.linalg.eigvals`: the eigenvalues of [`eig`], `[.., n]`, complex. Differentiable if the matrix is
/// diagonalizable.
#[op(at_line)]
pub fn eigvals(a: Tensor) -> Tensor {
    expect_square("eigvals", a);
    let of_matrix = |args: &[Tensor]| vec![eigvals_of_matrix(args[0])];
    for_each(&batch_of(a), of_matrix, &[a.to(a.dtype().complex())])[0]
}
