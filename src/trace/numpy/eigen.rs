//! Eigenvalues of symmetric and Hermitian matrices, and singular values, by Jacobi's rotations.
//!
//! A sweep rotates every pair of rows once, half of the rows against the other half at a time, so that
//! each step is a few operations on whole matrices.

use super::linalg::{batch_of, for_each};
use crate::trace::control::{ScanOptions, fori_loop, scan_with, while_loop};
use crate::trace::custom::custom_jvp;
use crate::trace::op::Precision;
use crate::trace::ops::{
    IndexMode, arange, complex, concatenate, constant, expect_square, eye, full_like,
    hermitian_part, is_wide_inexact, ones, ones_like, where_, zeros, zeros_like,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Sweeps after which the iteration ends in any case; matrices of a few hundred rows need 6 to 10.
const MAX_SWEEPS: i32 = 15;

pub(super) fn product(a: Tensor, b: Tensor) -> Tensor {
    a.matmul_with(b, Precision::Highest)
}

/// The conjugate transpose of a matrix; of a real matrix the transpose.
pub(super) fn adjoint(a: Tensor) -> Tensor {
    a.t().conj()
}

/// The relative distance of two numbers of this type.
pub(super) fn epsilon(dtype: DType) -> f64 {
    if dtype.real() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() }
}

/// `a` divided by a power of 2 near its largest element, and this power. Squares of the elements neither
/// overflow nor vanish then, and no bit of them changes. The power is 1 if all are zeros, if one is not
/// finite, and for types other than f32, f64, c64 and c128.
pub(super) fn scaled(a: Tensor) -> (Tensor, Tensor) {
    let size = a.real().abs().maximum(a.imag().abs()).max(..);
    let (bits, exponent) = match size.dtype() {
        DType::F64 => (DType::I64, constant(0x7ff0i64 << 48)),
        DType::F32 => (DType::I32, constant(0x7f80_0000i32)),
        _ => return (a, ones_like(size)),
    };
    let power = (size.bitcast(bits) & exponent).bitcast(size.dtype());
    let power = where_(power.gt(0.0) & size.is_finite(), power, 1.0);
    (a / power.to(a.dtype()), power)
}

/// `x` if all of `a` is finite, else NaN. An iteration on other numbers may end at once, with finite ones.
pub(super) fn known(a: Tensor, x: Tensor) -> Tensor {
    let nan = full_like(x.real(), f64::NAN);
    let nan = if x.dtype().is_complex() { complex(nan, nan) } else { nan };
    where_(a.is_finite().all(..), x, nan)
}

/// The cosine and the sine, of the smaller angle, that make `b` of `[[a, b], [b*, d]]` zero. The sine
/// has the phase of `b`.
fn rotation(a: Tensor, b: Tensor, d: Tensor) -> (Tensor, Tensor) {
    if b.dtype().is_complex() {
        let (cosine, sine) = rotation(a, b.abs(), d);
        return (cosine.to(b.dtype()), sine.to(b.dtype()) * b.sign());
    }
    let none = b.eq(0.0);
    let tau = (d - a) / (2.0 * where_(none, 1.0, b));
    let sign = sign_of(tau);
    let tangent = sign / (tau.abs() + (1.0 + tau.square()).sqrt());
    let tangent = where_(none, 0.0, tangent);
    let cosine = (1.0 + tangent.square()).rsqrt();
    (cosine, tangent * cosine)
}

/// 1 where `x` is not negative, else -1; of complex numbers `x / |x|`, and 1 at 0.
pub(super) fn sign_of(x: Tensor) -> Tensor {
    match x.dtype().is_complex() {
        true => where_(x.eq(0.0), ones_like(x), x.sign()),
        false => where_(x.ge(0.0), ones_like(x), full_like(x, -1.0)),
    }
}

/// Rotates the first half of the rows against the second.
fn rotate_rows(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor {
    let half = x.dim(0) / 2;
    let (top, bottom) = (x.slice_axis(0, 0, half), x.slice_axis(0, half, 2 * half));
    let (c, s) = (cosine.expand_dims(1), sine.expand_dims(1));
    concatenate(&[c * top - s * bottom, s.conj() * top + c * bottom], 0)
}

/// The next round of a tournament: the first row stays, the others move one place around the circle.
fn next_round(rows: usize) -> Vec<i32> {
    let half = rows / 2;
    // Places in order of the circle: the first half forwards, the second backwards.
    let circle: Vec<usize> = (0..half).chain((half..rows).rev()).collect();
    let mut order = vec![0; rows];
    for i in 1..rows {
        let from = if i == 1 { circle[rows - 1] } else { circle[i - 1] };
        order[circle[i]] = from as i32;
    }
    order
}

fn reordered(x: Tensor, order: Tensor, axis: isize) -> Tensor {
    x.take_mode(order, axis, IndexMode::Clip)
}

/// The eigenvalues in ascending order and the eigenvectors, columns, of a symmetric or Hermitian matrix.
fn eigh_by_rotations(a: Tensor) -> (Tensor, Tensor) {
    let (values, vectors) = rotated_to_diagonal(a);
    (known(a, values), known(a, vectors))
}

fn rotated_to_diagonal(a: Tensor) -> (Tensor, Tensor) {
    let (n, dtype) = (a.dim(0), a.dtype());
    if n < 2 {
        return (a.diagonal().real(), eye(n, dtype));
    }
    // Rows and columns of zeros have no rotations.
    let rows = n.next_multiple_of(2);
    let missing = (rows - n) as i64;
    let (a, power) = scaled(a);
    let full = a.pad(&[0, 0], &[missing, missing], 0.0);
    let scale = full.norm();
    let off_diagonal = |a: Tensor| (a * (1.0 - eye(rows, dtype))).norm();
    let order = constant(&next_round(rows)[..]);
    let step = |_: Tensor, (a, v): (Tensor, Tensor)| {
        let half = rows / 2;
        let diagonal = a.diagonal().real();
        let (first, last) = (diagonal.slice_axis(0, 0, half), diagonal.slice_axis(0, half, rows));
        let (c, s) = rotation(first, a.slice_axis(1, half, rows).diagonal(), last);
        let a = rotate_rows(adjoint(rotate_rows(a, c, s)), c, s);
        let v = rotate_rows(v, c, s);
        (reordered(reordered(a, order, 0), order, 1), reordered(v, order, 0))
    };
    let sweep = |(count, a, v): (Tensor, Tensor, Tensor)| {
        let (a, v) = fori_loop(0, rows - 1, step, (a, v));
        (count + 1, a, v)
    };
    let continues = |(count, a, _): (Tensor, Tensor, Tensor)| {
        count.lt(MAX_SWEEPS) & off_diagonal(a).gt(0.5 * epsilon(dtype) * scale)
    };
    let start = (constant(0i32), full, eye(rows, dtype));
    let (_, a, v) = while_loop(continues, sweep, start);
    // After whole sweeps the rows are in their first order.
    let (values, vectors) = (a.diagonal().real().slice_axis(0, 0, n), v.slice_axis(0, 0, n));
    let order = values.argsort(0);
    let vectors = adjoint(vectors.slice_axis(1, 0, n));
    (reordered(values, order, 0) * power, reordered(vectors, order, 1))
}

/// [`eigh_by_rotations`] with its derivative in closed form, for different eigenvalues (Giles 2008).
fn eigh_of_matrix(a: Tensor) -> (Tensor, Tensor) {
    let rule = |a: Tensor, t: Tensor| {
        let (w, v) = eigh_of_matrix(a);
        let identity = eye(a.dim(0), w.dtype());
        let differences = identity + w.expand_dims(0) - w.expand_dims(1);
        let factors: Tensor = 1.0 / differences - identity;
        let inner = product(product(adjoint(v), t), v);
        ((w, v), (inner.diagonal().real(), product(v, factors.to(a.dtype()) * inner)))
    };
    custom_jvp(eigh_by_rotations, rule)(a)
}

/// `jnp.linalg.eigh`: the eigenvalues `[.., n]` in ascending order and the eigenvectors `[.., n, n]`,
/// columns, of symmetric matrices `a: [.., n, n]` of f32 or f64, or Hermitian matrices of c64 or c128.
/// The eigenvalues are real. A matrix that is not Hermitian is symmetrized, `(a + a^H) / 2`, as JAX does.
/// All results are NaN if an element of the matrix is infinite or NaN.
///
/// Signs and phases of eigenvectors may differ from LAPACK's. Derivatives of eigenvectors are those of different
/// eigenvalues, and infinite where two are equal, as in JAX.
///
/// ```
/// use podracer::trace::numpy::eigh;
/// use podracer::{Array, Tensor, interpret};
/// let (w, v) = interpret(|a: Tensor| eigh(a)).call(Array::from([[2.0f32, 1.0], [1.0, 2.0]]))?;
/// let (w, v) = (w.to_vec::<f32>()?, v.to_vec::<f32>()?);
/// assert!((w[0] - 1.0).abs() < 1e-6 && (w[1] - 3.0).abs() < 1e-6);
/// assert!((v[0] + v[2]).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn eigh(a: Tensor) -> (Tensor, Tensor) {
    expect_square("eigh", a);
    let of_matrix = |args: &[Tensor]| {
        let (w, v) = eigh_of_matrix(args[0]);
        vec![w, v]
    };
    let all = for_each(&batch_of(a), of_matrix, &[hermitian_part(a)]);
    (all[0], all[1])
}

/// `jnp.linalg.eigvalsh`: the eigenvalues of [`eigh`].
#[op(at_line)]
pub fn eigvalsh(a: Tensor) -> Tensor {
    expect_square("eigvalsh", a);
    eigh(a).0
}

/// The columns of `x` reflected at the plane that is orthogonal to `v`, whose norm is 1.
pub(super) fn reflected(x: Tensor, v: Tensor) -> Tensor {
    x - 2.0 * v.expand_dims(1) * product(v.conj(), x).expand_dims(0)
}

/// A Householder reflection of `column`: its unit vector, and a sign. The reflection sets the elements
/// after element `i` to 0 and keeps those before it. Element `i` becomes `-sign` times the norm of the
/// elements from `i` on. The sign is that of element `i`, a phase if it is complex, so that nothing
/// cancels.
pub(super) fn householder(column: Tensor, i: Tensor) -> (Tensor, Tensor) {
    let (numbers, dtype) = (arange(column.dim(0), DType::I32), column.dtype());
    let column = where_(numbers.ge(i), column, 0.0);
    let norm = column.norm();
    let sign = sign_of(column.dynamic_index_clamped(0, i));
    let corner = numbers.eq(i).to(dtype);
    let v = column + sign * where_(norm.eq(0.0), 1.0, norm).to(dtype) * corner;
    (v / v.norm().to(dtype), sign)
}

/// An orthogonal matrix of `columns` columns whose first ones are those of `u: [m, k]`, as far as these
/// are orthonormal; columns of zeros are completed. By Householder's reflections.
fn completed(u: Tensor, columns: usize) -> Tensor {
    let (m, k, dtype) = (u.dim(0), u.dim(1), u.dtype());
    let reflect = |rest: Tensor, i: Tensor| {
        let (v, sign) = householder(rest.dynamic_index_clamped(1, i), i);
        (reflected(rest, v), (v, -sign))
    };
    let steps = arange(k, DType::I32);
    let (_, (vs, signs)) = scan_with(reflect, u, steps, ScanOptions::default());
    let back = |q: Tensor, v: Tensor| (reflected(q, v), ());
    let start = eye(m, dtype).slice_axis(1, 0, columns);
    let (q, ()) = scan_with(back, start, vs, ScanOptions::reversed());
    let ones = ones([columns - k], dtype);
    q * concatenate(&[signs, ones], 0).expand_dims(0)
}

/// `u: [m, k]`, `s: [n]` and `vt: [n, n]` of a matrix of `m >= n`, by rotations of its columns (Hestenes
/// 1958). `k` is `m` if `full`, else `n`.
fn svd_of_tall(a: Tensor, full: bool) -> (Tensor, Tensor, Tensor) {
    let (m, n, dtype) = (a.dim(0), a.dim(1), a.dtype());
    let (a, power) = scaled(a);
    let rows = n.next_multiple_of(2).max(2);
    // From here on the columns are rows, which are contiguous.
    let columns = a.t().pad(&[0, 0], &[(rows - n) as i64, 0], 0.0);
    let order = constant(&next_round(rows)[..]);
    let tolerance = epsilon(dtype);
    let floor = columns.squared_size().sum(..) * (tolerance * tolerance);
    let step = |_: Tensor, (x, v, worst): (Tensor, Tensor, Tensor)| {
        let half = rows / 2;
        let (top, bottom) = (x.slice_axis(0, 0, half), x.slice_axis(0, half, rows));
        let (aa, bb) = (top.squared_size().sum(1), bottom.squared_size().sum(1));
        let ab = (top * bottom.conj()).sum(1);
        let bound = (aa * bb).sqrt();
        // Columns of nothing but rounding are left.
        let small = aa.minimum(bb).le(floor) | ab.abs().le(tolerance * bound);
        let ab = where_(small, 0.0, ab);
        let (c, s) = rotation(aa, ab, bb);
        let worst = worst.maximum((!small).to(aa.dtype()).max(..));
        let (x, v) = (rotate_rows(x, c, s), rotate_rows(v, c, s));
        (reordered(x, order, 0), reordered(v, order, 0), worst)
    };
    let sweep = |(count, x, v, _): (Tensor, Tensor, Tensor, Tensor)| {
        let start = (x, v, zeros([], dtype.real()));
        let (x, v, worst) = fori_loop(0, rows - 1, step, start);
        (count + 1, x, v, worst)
    };
    let continues = |(count, _, _, worst): (Tensor, Tensor, Tensor, Tensor)| {
        count.lt(MAX_SWEEPS) & worst.gt(0.0)
    };
    let start = (constant(0i32), columns, eye(rows, dtype), ones([], dtype.real()));
    let (_, x, v, _) = while_loop(continues, sweep, start);
    // The rotations `v` act on the transposed matrix: `a = u diag(s) v*`.
    let (x, vt) = (x.slice_axis(0, 0, n), v.slice_axis(0, 0, n).slice_axis(1, 0, n).conj());
    let s = x.squared_size().sum(1).sqrt();
    let order = (-s).argsort(0);
    let (x, s, vt) = (reordered(x, order, 0), reordered(s, order, 0), reordered(vt, order, 0));
    let least = s.max(..) * (tolerance * m as f64);
    let known = s.gt(least) & s.gt(0.0);
    let unit = x / where_(known, s, 1.0).expand_dims(1).to(dtype);
    let u = where_(known.expand_dims(1), unit, 0.0).t();
    (completed(u, if full { m } else { n }), s * power, vt)
}

fn svd_by_rotations(a: Tensor, full: bool) -> (Tensor, Tensor, Tensor) {
    let (u, s, vt) = if a.dim(0) >= a.dim(1) {
        svd_of_tall(a, full)
    } else {
        let (v, s, ut) = svd_of_tall(a.t(), full);
        (ut.t(), s, v.t())
    };
    (known(a, u), known(a, s), known(a, vt))
}

/// [`svd_by_rotations`] with its derivative in closed form, for different singular values (Giles 2008).
/// Columns that only complete a basis turn no more than they must to stay orthogonal.
fn svd_of_matrix(a: Tensor, full: bool) -> (Tensor, Tensor, Tensor) {
    let rule = move |a: Tensor, t: Tensor| {
        let (u, s, vt) = svd_of_matrix(a, full);
        let (m, n, k) = (a.dim(0), a.dim(1), s.dim(0));
        let dtype = a.dtype();
        let (u1, v1) = (u.slice_axis(1, 0, k), adjoint(vt.slice_axis(0, 0, k)));
        let identity = eye(k, s.dtype());
        let ds = product(product(adjoint(u1), t), v1);
        let (row, column) = (s.expand_dims(0), s.expand_dims(1));
        let f: Tensor = 1.0 / ((row + column) * (row - column) + identity) - identity;
        let nothing = s.eq(0.0);
        let inverse = where_(nothing, 0.0, 1.0 / where_(nothing, 1.0, s));
        let skew = (identity * inverse.expand_dims(1)).to(dtype);
        let (f, row, column) = (f.to(dtype), row.to(dtype), column.to(dtype));
        let (right, left) = (row * ds, column * ds);
        let skew = 0.5 * (ds - adjoint(ds)) * skew;
        let mut du = product(u1, f * (right + adjoint(right)) + skew);
        let mut dv = product(v1, f * (left + adjoint(left)));
        if m > n {
            let rest = product(t, v1);
            du = du + (rest - product(u1, product(adjoint(u1), rest))) / row;
        }
        if n > m {
            let rest = product(adjoint(t), u1);
            dv = dv + (rest - product(v1, product(adjoint(v1), rest))) / row;
        }
        let whole = |basis: Tensor, first: Tensor, change: Tensor| {
            let columns = basis.dim(1);
            if columns == k {
                return change;
            }
            let others = basis.slice_axis(1, k, columns);
            concatenate(&[change, -product(first, product(adjoint(change), others))], 1)
        };
        let (du, dv) = (whole(u, u1, du), whole(adjoint(vt), v1, dv));
        ((u, s, vt), (du, ds.diagonal().real(), adjoint(dv)))
    };
    custom_jvp(move |a: Tensor| svd_by_rotations(a, full), rule)(a)
}

/// Ends the trace unless `a` is a matrix of f32, f64, c64 or c128 that is not empty, or a batch of them.
#[track_caller]
fn expect_matrix(name: &str, a: Tensor) {
    let ty = a.ty();
    let fits = ty.rank() >= 2 && ty.shape.iter().rev().take(2).all(|&size| size > 0);
    if !fits || !is_wide_inexact(ty.dtype) {
        let problem = "takes matrices of f32, f64, c64 or c128 that are not empty";
        fail_op(name, format!("{problem}, and was given {ty}"));
    }
}

/// `jnp.linalg.svd`: `u`, the singular values `s: [.., k]` in descending order, and `vt`, with `a = u
/// diag(s) vt`, of matrices `a: [.., m, n]` of f32, f64, c64 or c128; `k` is the smaller of `m` and `n`. If
/// `full_matrices`, JAX's default, `u` is `[.., m, m]` and `vt: [.., n, n]`, else `[.., m, k]` and
/// `[.., k, n]`.
///
/// All results are NaN if an element of the matrix is infinite or NaN. Signs and phases of pairs of vectors
/// may differ from LAPACK's. Derivatives of vectors are those of different
/// singular values, as in JAX.
///
/// # Errors
/// Ends the trace at other types and at empty matrices.
///
/// ```
/// use podracer::trace::numpy::svd;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|a: Tensor| {
///     let (u, s, vt) = svd(a, false);
///     (s, (u * s).matmul(vt))
/// });
/// let (s, again) = f.call(Array::from([[3.0f32, 0.0], [4.0, 5.0]]))?;
/// assert!((s.to_vec::<f32>()?[0] - 45f32.sqrt()).abs() < 1e-5);
/// assert!((again.to_vec::<f32>()?[2] - 4.0).abs() < 1e-5);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn svd(a: Tensor, full_matrices: bool) -> (Tensor, Tensor, Tensor) {
    expect_matrix("svd", a);
    let of_matrix = |args: &[Tensor]| {
        let (u, s, vt) = svd_of_matrix(args[0], full_matrices);
        vec![u, s, vt]
    };
    let all = for_each(&batch_of(a), of_matrix, &[a]);
    (all[0], all[1], all[2])
}

/// `jnp.linalg.svdvals`: the singular values of [`svd`]. Their derivatives are finite where some are
/// equal.
///
/// # Errors
/// Ends the trace in the cases of [`svd`].
#[op(at_line)]
pub fn svdvals(a: Tensor) -> Tensor {
    expect_matrix("svdvals", a);
    let rule = |a: Tensor, t: Tensor| {
        let (u, s, vt) = svd_of_matrix(a, false);
        (s, product(product(adjoint(u), t), adjoint(vt)).diagonal().real())
    };
    let values = custom_jvp(|a: Tensor| svd_by_rotations(a, false).1, rule);
    for_each(&batch_of(a), |args| vec![values(args[0])], &[a])[0]
}

/// `jnp.linalg.pinv`: the pseudo-inverses (Moore and Penrose) of matrices `a: [.., m, n]` of f32, f64,
/// c64 or c128. Singular values up to `rtol` times the largest count as 0; without `rtol`, ten epsilons times the
/// larger of `m` and `n`.
///
/// # Errors
/// Ends the trace in the cases of [`svd`].
#[op(at_line)]
pub fn pinv(a: Tensor, rtol: Option<f64>) -> Tensor {
    expect_matrix("pinv", a);
    for_each(&batch_of(a), |args| vec![pinv_of_matrix(args[0], rtol)], &[a])[0]
}

/// [`pinv`] of one matrix, with its derivative for a constant rank (Golub & Pereyra 1973).
fn pinv_of_matrix(a: Tensor, rtol: Option<f64>) -> Tensor {
    let inverse = move |a: Tensor| {
        let (m, n) = (a.dim(0), a.dim(1));
        let rtol = rtol.unwrap_or(10.0 * m.max(n) as f64 * epsilon(a.dtype()));
        let (u, s, vt) = svd_by_rotations(a, false);
        let kept = s.gt(rtol * s.max(..));
        let factors = where_(kept, 1.0 / where_(kept, s, 1.0), 0.0);
        product(adjoint(vt) * factors.expand_dims(0).to(a.dtype()), adjoint(u))
    };
    let rule = move |a: Tensor, t: Tensor| {
        let p = pinv_of_matrix(a, rtol);
        let (m, n) = (a.dim(0), a.dim(1));
        let three = |x: Tensor, y: Tensor, z: Tensor| {
            if m >= n { product(product(x, y), z) } else { product(x, product(y, z)) }
        };
        let (s, r) = (three(p, adjoint(p), adjoint(t)), three(adjoint(t), adjoint(p), p));
        (p, s - three(p, t, p) - three(s, a, p) + r - three(p, a, r))
    };
    custom_jvp(inverse, rule)(a)
}

/// `jnp.linalg.matrix_rank`: the number of singular values above `tol`, `i32[..]`; without `tol`, above
/// the largest times epsilon times the larger size of the matrix.
///
/// # Errors
/// Ends the trace in the cases of [`svd`].
#[op(at_line)]
pub fn matrix_rank(a: Tensor, tol: Option<f64>) -> Tensor {
    expect_matrix("matrix_rank", a);
    let s = svdvals(a).stop_gradient();
    let larger = a.dim(-1).max(a.dim(-2)) as f64;
    let bound = match tol {
        Some(tol) => zeros_like(s) + tol,
        None => s.max_keepdims(-1) * (larger * epsilon(a.dtype())),
    };
    s.gt(bound).to(DType::I32).sum(-1)
}

/// `jnp.linalg.lstsq`: the least-squares solution of `a x = b` of least norm, for `a: [m, n]` and `b:
/// [m]` or `[m, k]` of f32, f64, c64 or c128; the squared norms of the residuals, `[k]`; the rank, an `i32` scalar; and the
/// singular values of `a`.
///
/// Singular values below `rcond` times the largest count as 0; without `rcond`, epsilon times the
/// larger of `m` and `n`.
///
/// # Errors
/// Ends the trace if the shapes do not fit, and in the cases of [`svd`].
#[op(at_line)]
pub fn lstsq(a: Tensor, b: Tensor, rcond: Option<f64>) -> (Tensor, Tensor, Tensor, Tensor) {
    expect_matrix("lstsq", a);
    let (left, right) = (a.ty(), b.ty());
    let fits = left.rank() == 2
        && (1..=2).contains(&right.rank())
        && left.shape[0] == right.shape[0]
        && left.dtype == right.dtype;
    if !fits {
        let problem = format!("takes a [m, n] and b [m] or [m, k], and was given {left}");
        fail_op("lstsq", format!("{problem} and {right}"));
    }
    let columns = if b.rank() == 1 { b.expand_dims(1) } else { b };
    let larger = a.dim(0).max(a.dim(1)) as f64;
    let rcond = rcond.unwrap_or(larger * epsilon(a.dtype()));
    let (u, s, vt) = svd(a, false);
    let kept = s.gt(0.0) & s.ge(rcond * s.index_axis(0, 0));
    let inverse = where_(kept, 1.0 / where_(kept, s, 1.0), 0.0).to(a.dtype());
    let x = product(adjoint(vt), inverse.expand_dims(1) * product(adjoint(u), columns));
    let residuals = (columns - product(a, x)).squared_size().sum(0);
    let x = if b.rank() == 1 { x.squeeze(1) } else { x };
    (x, residuals, kept.to(DType::I32).sum(..), s)
}
