//! Polynomials: vectors of coefficients, of the highest power first, as in `jnp.poly...`.

use num_complex::Complex;

use crate::trace::numpy::eigen::lstsq;
use crate::trace::numpy::nonsymmetric::eigvals;
use crate::trace::numpy::signal::{ConvolveMode, convolve};
use crate::trace::ops::{IndexMode, arange, concatenate, full, iota, where_, zeros};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

#[track_caller]
fn ensure_vector(op: &str, p: Tensor) -> usize {
    if p.rank() != 1 {
        fail_op(op, format!("takes a vector of coefficients, and was given {}", p.ty()));
    }
    p.numel()
}

/// `p` with zeros in front, `size` coefficients.
#[track_caller]
fn lengthened(p: Tensor, size: usize) -> Tensor {
    p.pad(&[(size - p.numel()) as i64], &[0], 0.0)
}

/// `jnp.polyval`: the polynomial at each element of `x`, by Horner's rule.
#[op(at_line)]
pub fn polyval(p: Tensor, x: Tensor) -> Tensor {
    let count = ensure_vector("polyval", p);
    let start = zeros(x.shape(), x.dtype());
    (0..count).fold(start, |value, i| value * x + p.index_axis(0, i as isize))
}

/// `jnp.polyadd`: the sum of two polynomials.
#[op]
pub fn polyadd(p: Tensor, q: Tensor) -> Tensor {
    let size = ensure_vector("polyadd", p).max(ensure_vector("polyadd", q));
    lengthened(p, size) + lengthened(q, size)
}

/// `jnp.polysub`: the difference of two polynomials.
#[op]
pub fn polysub(p: Tensor, q: Tensor) -> Tensor {
    let size = ensure_vector("polysub", p).max(ensure_vector("polysub", q));
    lengthened(p, size) - lengthened(q, size)
}

/// `jnp.polymul`: the product of two polynomials.
#[op]
pub fn polymul(p: Tensor, q: Tensor) -> Tensor {
    convolve(p, q, ConvolveMode::Full)
}

/// `jnp.polydiv`: the quotient and the remainder of two polynomials. The remainder has as many
/// coefficients as `p`; those in front are 0.
#[op(at_line)]
pub fn polydiv(p: Tensor, q: Tensor) -> (Tensor, Tensor) {
    let (n, m) = (ensure_vector("polydiv", p), ensure_vector("polydiv", q));
    if m == 0 {
        fail_op("polydiv", "divides by a polynomial without coefficients");
    }
    if n < m {
        return (zeros([1], p.dtype()), p);
    }
    let (mut rest, mut quotient) = (p, Vec::new());
    for i in 0..=n - m {
        let factor = rest.slice_axis(0, i, i + 1) / q.slice_axis(0, 0, 1);
        let product = q * factor;
        rest = rest - product.pad(&[i as i64], &[(n - m - i) as i64], 0.0);
        quotient.push(factor);
    }
    (concatenate(&quotient, 0), rest)
}

/// `jnp.polyder`: the derivative of order `m`.
#[op]
pub fn polyder(p: Tensor, m: usize) -> Tensor {
    let mut count = ensure_vector("polyder", p);
    let mut p = p;
    for _ in 0..m {
        if count == 0 {
            break;
        }
        count -= 1;
        let powers = arange(count, DType::I32);
        p = p.slice_axis(0, 0, count) * (count as i32 - powers).to(p.dtype());
    }
    p
}

/// `jnp.polyint`: the integral of order `m`, with constants of integration 0.
#[op]
pub fn polyint(p: Tensor, m: usize) -> Tensor {
    ensure_vector("polyint", p);
    let mut p = p.to_inexact();
    for _ in 0..m {
        let count = p.numel();
        let powers = crate::trace::ops::arange(count, DType::I32);
        p = (p / (count as i32 - powers).to(p.dtype())).pad(&[0], &[1], 0.0);
    }
    p
}

/// `jnp.poly` of a vector of roots: the coefficients of the polynomial with these roots and a leading
/// 1.
#[op(at_line)]
pub fn poly(roots: Tensor) -> Tensor {
    let count = ensure_vector("poly", roots);
    let roots = roots.to_inexact();
    let one = full([1], 1.0, roots.dtype());
    (0..count).fold(one, |p, i| {
        let root = roots.slice_axis(0, i, i + 1);
        p.pad(&[0], &[1], 0.0) - (p * root).pad(&[1], &[0], 0.0)
    })
}

/// `jnp.roots(p, strip_zeros=False)`: the roots of the polynomial with the coefficients `p: [n]`, which may
/// be complex: the eigenvalues of its companion matrix, `[n - 1]`, complex. Zeros at the front lower the
/// degree: as many roots at the end are NaN. The order of the roots is not LAPACK's.
///
/// ```
/// use podracer::trace::numpy::roots;
/// use podracer::{Array, Complex, Tensor, interpret};
/// let r = interpret(|p: Tensor| roots(p)).call(Array::from([1.0f32, -3.0, 2.0]))?; // (x - 1) (x - 2)
/// let r = r.to_vec::<Complex<f32>>()?;
/// assert!((r[0] + r[1] - 3.0).norm() < 1e-5 && (r[0] * r[1] - 2.0).norm() < 1e-5);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// Ends the trace if `p` is no vector.
#[op(at_line)]
pub fn roots(p: Tensor) -> Tensor {
    let count = ensure_vector("roots", p);
    let p = p.to_inexact();
    if count < 2 {
        return zeros([0], p.dtype().complex());
    }
    let degree = count - 1;
    let numbers = arange(count, DType::I32);
    let leading = where_(p.ne(0.0), numbers, count as i32).min(..);
    // Zeros at the front are moved to the end.
    let p = p.take_mode((numbers + leading) % count as i32, 0, IndexMode::Clip);
    let head = where_(leading.eq(count as i32), 1.0, p.index_axis(0, 0));
    let first_row = (-p.slice_axis(0, 1, count) / head).expand_dims(0);
    // The matrix of the lower degree, beside zeros: its eigenvalues, and zeros at the end.
    let [row, column] = [0, 1].map(|axis| iota([degree, degree], axis, DType::I32));
    let below = row.eq(column + 1) & (row + leading).lt(degree as i32);
    let companion = where_(row.eq(0), first_row, below.to(p.dtype()));
    let roots = eigvals(companion);
    let order = roots.eq(0.0).to(DType::I32).argsort(0);
    let sorted = roots.take_mode(order, 0, IndexMode::Clip);
    let exists = (numbers.slice_axis(0, 0, degree) + leading).lt(degree as i32);
    where_(exists, sorted, Complex::new(f64::NAN, f64::NAN))
}

/// `jnp.polyfit`: the coefficients of the polynomial of degree `deg` that is nearest to the points `(x,
/// y)` in the sum of squares. `x: f[n]`, `y: f[n]` or `f[n, k]`; the result is `[deg + 1]` or `[deg + 1,
/// k]`.
///
/// ```
/// use podracer::trace::numpy::polyfit;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(x, y): (Tensor, Tensor)| polyfit(x, y, 1));
/// let p = f.call((Array::from([0.0f32, 1.0, 2.0]), Array::from([1.0f32, 3.0, 5.0])))?;
/// let p = p.to_vec::<f32>()?;
/// assert!((p[0] - 2.0).abs() < 1e-5 && (p[1] - 1.0).abs() < 1e-5);
/// # Ok::<(), podracer::Error>(())
/// ```
///
/// # Errors
/// Ends the trace if `x` is no vector of f32 or f64 that is not empty, or if `y` has another length or
/// type.
#[op(at_line)]
pub fn polyfit(x: Tensor, y: Tensor, deg: usize) -> Tensor {
    let (points, values) = (x.ty(), y.ty());
    let fits = points.rank() == 1
        && (1..=2).contains(&values.rank())
        && values.shape[0] == points.shape[0]
        && points.shape[0] > 0
        && values.dtype == points.dtype
        && matches!(points.dtype, DType::F32 | DType::F64);
    if !fits {
        let problem = format!("takes x [n] and y [n] or [n, k], and was given {points}");
        fail_op("polyfit", format!("{problem} and {values}"));
    }
    let powers = x.vander(deg + 1);
    let scale = powers.square().sum(0).sqrt();
    let epsilon = if points.dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
    let rcond = points.shape[0] as f64 * epsilon;
    let solution = lstsq(powers / scale, y, Some(rcond)).0;
    solution / if y.rank() == 1 { scale } else { scale.expand_dims(1) }
}
