//! Incomplete gamma and beta functions, and the Hurwitz zeta function: `jax.scipy.special`.

use super::special::betaln;
use crate::trace::control::while_loop;
use crate::trace::custom::custom_jvp;
use crate::trace::jvp::jvp;
use crate::trace::ops::{broadcast_pair, full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;
use crate::tree::{self, Tree};

/// Calls `f`, of f32 or f64, with operands of those types, or of f16 or bf16: in f32, its floats rounded
/// to the type of the operands, as in JAX.
#[track_caller]
pub(super) fn in_f32<const N: usize, Y: Tree<Tensor>>(
    op: &str,
    x: [Tensor; N],
    f: impl FnOnce([Tensor; N]) -> Y,
) -> Y {
    let dtype = x[0].dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        if !matches!(dtype, DType::F32 | DType::F64) {
            fail_op(op, format!("takes f16, bf16, f32 or f64, and was given {}", x[0].ty()));
        }
        return f(x);
    }
    // Operands of other types stay what they are, for `f` to refuse.
    let wide = |x: Tensor| if x.dtype() == dtype { x.to(DType::F32) } else { x };
    let y = f(x.map(wide));
    let rounded = |y: Tensor| if y.dtype() == DType::F32 { y.to(dtype) } else { y };
    let leaves: Vec<Tensor> = tree::leaves(&y).into_iter().map(rounded).collect();
    tree::replace(&y, leaves)
}

/// Unit in the last place of 1 of f32 or f64.
pub(super) fn epsilon(x: Tensor) -> f64 {
    if x.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() }
}

/// Most terms of a series or a continued fraction.
const MAX_TERMS: i32 = 2000;

/// Least iterations of a continued fraction whose derivative is asked for: at whole numbers the value
/// is exact after a few.
const DERIVATIVE_TERMS: f64 = 100.0;

/// The partial derivative of an elementwise `f` at `x`, by forward mode.
pub(super) fn partial(f: impl FnOnce(Tensor) -> Tensor, x: Tensor) -> Tensor {
    jvp(f, x, ones_like(x)).1
}

/// `x^a e^-x / gamma(b)`.
fn gamma_factor(a: Tensor, x: Tensor, b: Tensor) -> Tensor {
    (a * x.log() - x - b.lgamma()).exp()
}

/// The lower incomplete gamma function, regularized, by its power series; for `x` up to `a + 1`.
fn lower_series(a: Tensor, x: Tensor, eps: f64) -> Tensor {
    // From 1, not from `1 / a`, whose derivative overflows.
    let first = ones_like(a);
    let step = |(n, term, sum, i): (Tensor, Tensor, Tensor, Tensor)| {
        let n = n + 1.0;
        let term = term * (x / n);
        (n, term, sum + term, i + 1)
    };
    let unfinished = |(_, term, sum, i): (Tensor, Tensor, Tensor, Tensor)| {
        term.abs().gt(sum.abs() * (eps * 0.01)).any(..) & i.lt(MAX_TERMS)
    };
    let start = (a, first, first, crate::trace::ops::constant(0i32));
    while_loop(unfinished, step, start).2 * gamma_factor(a, x, a + 1.0)
}

/// The upper incomplete gamma function, regularized, by its continued fraction (Lentz's method); for
/// `x` above `a` and 1.
fn upper_fraction(a: Tensor, x: Tensor, eps: f64, least: f64) -> Tensor {
    type Carry = (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor);
    let b = x + 1.0 - a;
    let d = 1.0 / b;
    let step = |(i, b, c, d, h, change): Carry| {
        let i = i + 1.0;
        let numerator = i * (a - i);
        let b = b + 2.0;
        let d = 1.0 / away_from_zero(numerator * d + b);
        let c = away_from_zero(b + numerator / c);
        let (factor, change) = settled(d * c, change, eps);
        (i, b, c, d, h * factor, change)
    };
    let unfinished = |(i, _, _, _, _, change): Carry| {
        (change.gt(eps).any(..) | i.max(..).lt(least)) & i.max(..).lt(f64::from(MAX_TERMS))
    };
    let start = (zeros_like(x), b, full_like(x, 1e30), d, d, ones_like(x));
    while_loop(unfinished, step, start).4 * gamma_factor(a, x, a)
}

/// A factor of a continued fraction, and its distance from 1. After a distance of at most `eps` that is
/// rounding, which would add up while other elements go on: the factor is 1 then, with its derivatives.
fn settled(factor: Tensor, before: Tensor, eps: f64) -> (Tensor, Tensor) {
    let done = before.le(eps);
    let rest = (factor - 1.0).stop_gradient();
    let factor = factor - where_(done, rest, zeros_like(rest));
    (factor, where_(done, before, rest.abs()))
}

fn away_from_zero(x: Tensor) -> Tensor {
    where_(x.abs().lt(1e-30), full_like(x, 1e-30), x)
}

/// The lower (or the upper) incomplete gamma function, regularized, of positive finite numbers; other
/// arguments give finite numbers without meaning.
fn incomplete_gamma(a: Tensor, x: Tensor, upper: bool, eps: f64, least: f64) -> Tensor {
    let good = a.gt(0.0) & x.gt(0.0) & x.is_finite() & a.is_finite();
    let (a, x) = (where_(good, a, ones_like(a)), where_(good, x, ones_like(x)));
    let far = x.gt(1.0) & x.gt(a);
    let series = lower_series(a, where_(far, a, x), eps);
    let fraction =
        upper_fraction(where_(far, a, ones_like(a)), where_(far, x, full_like(x, 2.0)), eps, least);
    match upper {
        true => where_(far, fraction, 1.0 - series),
        false => where_(far, 1.0 - fraction, series),
    }
}

/// [`incomplete_gamma`] with its values at the ends of its domain, and both derivatives.
fn gamma_with_rule(op: &'static str, [a, x]: [Tensor; 2], upper: bool) -> Tensor {
    let eps = epsilon(a);
    let (a, x) = broadcast_pair(op, a, x);
    let at_zero = if upper { 1.0 } else { 0.0 };
    let value = move |(a, x): (Tensor, Tensor)| {
        let inner = incomplete_gamma(a, x, upper, eps, 0.0);
        let inner = where_(x.eq(0.0), full_like(x, at_zero), inner);
        let end = x.eq(f64::INFINITY) | (a.eq(0.0) & x.gt(0.0));
        let inner = where_(end, full_like(x, 1.0 - at_zero), inner);
        // All of the distribution lies above a finite `x`.
        let above = a.eq(f64::INFINITY) & x.is_finite();
        let inner = where_(above, full_like(x, at_zero), inner);
        let outside = x.lt(0.0) | a.lt(0.0) | (a.eq(0.0) & x.eq(0.0)) | a.is_nan() | x.is_nan();
        where_(outside, full_like(x, f64::NAN), inner)
    };
    let rule = move |(a, x): (Tensor, Tensor), (ta, tx): (Tensor, Tensor)| {
        let by_a = partial(|a| incomplete_gamma(a, x, upper, eps, DERIVATIVE_TERMS), a);
        // At 0, which denormal numbers count as in compiled code, and at infinity.
        let by_a = where_(x.log().is_inf(), zeros_like(a), by_a);
        let by_a = where_(a.gt(0.0) & x.ge(0.0), by_a, full_like(a, f64::NAN));
        let density = ((a - 1.0) * x.log() - x - a.lgamma()).exp();
        let by_x = if upper { -density } else { density };
        (value((a, x)), by_a * ta + by_x * tx)
    };
    custom_jvp(value, rule)((a, x))
}

/// `jax.scipy.special.gammainc`, `lax.igamma`: the regularized lower incomplete gamma function
/// `P(a, x)`; NaN of negative numbers. With derivatives by both.
///
/// ```
/// use podracer::trace::numpy::gammainc;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(a, x): (Tensor, Tensor)| gammainc(a, x));
/// // P(1, x) = 1 - exp(-x).
/// let y = f.call((Array::from(1.0f32), Array::from(2.0f32)))?.item::<f32>()?;
/// assert!((y - 0.8646647).abs() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn gammainc(a: Tensor, x: Tensor) -> Tensor {
    in_f32("gammainc", [a, x], |x| gamma_with_rule("gammainc", x, false))
}

/// `jax.scipy.special.gammaincc`, `lax.igammac`: the regularized upper incomplete gamma function
/// `Q(a, x) = 1 - P(a, x)`; see [`gammainc`].
#[op(at_line)]
pub fn gammaincc(a: Tensor, x: Tensor) -> Tensor {
    in_f32("gammaincc", [a, x], |x| gamma_with_rule("gammaincc", x, true))
}

/// `lax.igamma_grad_a`: the derivative of [`gammainc`] by `a`.
#[op(at_line)]
pub fn igamma_grad_a(a: Tensor, x: Tensor) -> Tensor {
    in_f32("igamma_grad_a", [a, x], gradient_by_a)
}

fn gradient_by_a([a, x]: [Tensor; 2]) -> Tensor {
    let (a, x) = broadcast_pair("igamma_grad_a", a, x);
    let inner = partial(|a| incomplete_gamma(a, x, false, epsilon(a), DERIVATIVE_TERMS), a);
    let inner = where_(x.eq(0.0), zeros_like(x), inner);
    // NaN is neither.
    where_(x.ge(0.0) & a.gt(0.0), inner, full_like(x, f64::NAN))
}

/// `lax.random_gamma_grad`: the derivative by `a` of a sample `x` of the gamma distribution of shape
/// `a`, drawn by inversion.
#[op(at_line)]
pub fn random_gamma_grad(a: Tensor, x: Tensor) -> Tensor {
    in_f32("random_gamma_grad", [a, x], |[a, x]| {
        let (a, x) = broadcast_pair("random_gamma_grad", a, x);
        let density = ((a - 1.0) * x.log() - x - a.lgamma()).exp();
        let gradient = -gradient_by_a([a, x]) / density;
        // Samples that are 0 do not move, and no sample lies where the density is 0.
        let still = x.log().is_inf() | density.eq(0.0);
        where_(still & a.gt(0.0) & x.ge(0.0), zeros_like(x), gradient)
    })
}

/// The continued fraction of the incomplete beta function (Lentz's method), for `x` below
/// `(a + 1) / (a + b + 2)`.
fn beta_fraction(a: Tensor, b: Tensor, x: Tensor, eps: f64, least: f64) -> Tensor {
    type Carry = (Tensor, Tensor, Tensor, Tensor, Tensor);
    let sum = a + b;
    let d = 1.0 / away_from_zero(1.0 - sum * x / (a + 1.0));
    let step = |(m, c, d, h, change): Carry| {
        let m = m + 1.0;
        let twice = m * 2.0;
        let apply = |c: Tensor, d: Tensor, numerator: Tensor| {
            (away_from_zero(1.0 + numerator / c), 1.0 / away_from_zero(1.0 + numerator * d))
        };
        let even = m * (b - m) * x / ((a - 1.0 + twice) * (a + twice));
        let (c, d) = apply(c, d, even);
        let h = h * (c * d);
        let odd = -(a + m) * (sum + m) * x / ((a + twice) * (a + 1.0 + twice));
        let (c, d) = apply(c, d, odd);
        let (factor, change) = settled(c * d, change, eps);
        (m, c, d, h * factor, change)
    };
    let unfinished = |(m, _, _, _, change): Carry| {
        (change.gt(eps).any(..) | m.max(..).lt(least)) & m.max(..).lt(f64::from(MAX_TERMS))
    };
    while_loop(unfinished, step, (zeros_like(x), ones_like(x), d, d, ones_like(x))).3
}

fn incomplete_beta(a: Tensor, b: Tensor, x: Tensor, eps: f64, least: f64) -> Tensor {
    let good = a.gt(0.0) & b.gt(0.0) & x.gt(0.0) & x.lt(1.0);
    let half = full_like(x, 0.5);
    let [a, b, x] = [a, b, x].map(|y| where_(good, y, half));
    let swapped = x.ge((a + 1.0) / (a + b + 2.0));
    let (p, q) = (where_(swapped, b, a), where_(swapped, a, b));
    let y = where_(swapped, 1.0 - x, x);
    let factor = (p * y.log() + q * (-y).log1p() - betaln(p, q)).exp() / p;
    let part = factor * beta_fraction(p, q, y, eps, least);
    where_(swapped, 1.0 - part, part)
}

/// `jax.scipy.special.betainc`, `lax.betainc`: the regularized incomplete beta function, of `a` and `b`
/// from 0, not both 0, and of `x` from 0 to 1; else NaN. With derivatives by all three.
#[op(at_line)]
pub fn betainc(a: Tensor, b: Tensor, x: Tensor) -> Tensor {
    in_f32("betainc", [a, b, x], beta_with_rule)
}

fn beta_with_rule([a, b, x]: [Tensor; 3]) -> Tensor {
    let eps = epsilon(a);
    let (a, b) = broadcast_pair("betainc", a, b);
    let (a, x) = broadcast_pair("betainc", a, x);
    let b = b.broadcast_to(a.shape());
    let value = move |(a, b, x): (Tensor, Tensor, Tensor)| {
        let inner = incomplete_beta(a, b, x, eps, 0.0);
        let inner = where_(x.eq(0.0), zeros_like(x), inner);
        let inner = where_(x.eq(1.0), ones_like(x), inner);
        // All of the distribution lies at 0, or at 1.
        let at_zero = a.eq(0.0) | b.eq(f64::INFINITY);
        let at_one = b.eq(0.0) | a.eq(f64::INFINITY);
        let inner = where_(at_zero & x.gt(0.0), ones_like(x), inner);
        let inner = where_(at_one & x.lt(1.0), zeros_like(x), inner);
        let inside = a.ge(0.0) & b.ge(0.0) & x.ge(0.0) & x.le(1.0) & !(at_zero & at_one);
        where_(inside, inner, full_like(x, f64::NAN))
    };
    let rule = move |(a, b, x), (ta, tb, tx): (Tensor, Tensor, Tensor)| {
        let (a, b, x): (Tensor, Tensor, Tensor) = (a, b, x);
        let by_a = partial(|a| incomplete_beta(a, b, x, eps, DERIVATIVE_TERMS), a);
        let by_b = partial(|b| incomplete_beta(a, b, x, eps, DERIVATIVE_TERMS), b);
        let by_x = ((a - 1.0) * x.log() + (b - 1.0) * (-x).log1p() - betaln(a, b)).exp();
        (value((a, b, x)), by_a * ta + by_b * tb + by_x * tx)
    };
    custom_jvp(value, rule)((a, b, x))
}

/// Even Bernoulli numbers `B(2k) / (2k)!`, from k = 1.
const BERNOULLI: [f64; 8] = [
    1.0 / 12.0,
    -1.0 / 720.0,
    1.0 / 30_240.0,
    -1.0 / 1_209_600.0,
    1.0 / 47_900_160.0,
    -691.0 / 1_307_674_368_000.0,
    1.0 / 74_724_249_600.0,
    -3617.0 / 10_670_622_842_880_000.0,
];

/// Terms of the zeta function that are added before the formula of Euler and Maclaurin.
const HEAD: usize = 10;

/// `jax.scipy.special.zeta`, `lax.zeta`: the Hurwitz zeta function, the sum of `(q + k)^-x` over all
/// `k` from 0, for `x` above 1: infinite at 1, NaN below. It is infinite where `q` is 0 or a negative
/// whole number.
#[op(at_line)]
pub fn zeta(x: Tensor, q: Tensor) -> Tensor {
    in_f32("zeta", [x, q], hurwitz)
}

fn hurwitz([x, q]: [Tensor; 2]) -> Tensor {
    let (x, q) = broadcast_pair("zeta", x, q);
    let good = x.gt(1.0) & q.gt(0.0);
    let (s, a) = (where_(good, x, full_like(x, 2.0)), where_(good, q, ones_like(q)));
    let mut sum = zeros_like(x);
    for k in 0..HEAD {
        sum = sum + (a + k as f64).pow(-s);
    }
    let w = a + HEAD as f64;
    let power = w.pow(-s);
    sum = sum + power * w / (s - 1.0) + power * 0.5;
    // B(2k) / (2k)! times s (s + 1) .. (s + 2k - 2) w^(-s - 2k + 1).
    let mut term = power / w * s;
    for (k, factor) in BERNOULLI.iter().enumerate() {
        sum = sum + term * *factor;
        let next = 2.0 * k as f64 + 1.0;
        term = term * (s + next) * (s + (next + 1.0)) / w.square();
    }
    let pole = x.eq(1.0) | (q.le(0.0) & q.eq(q.floor()));
    let (one, pole) = (x.eq(1.0), pole & x.ge(1.0));
    // NaN has derivatives that are NaN, and the pole at 1 an infinite one, there and nowhere else.
    let undefined = where_(good | pole, zeros_like(x), x + q) * f64::NAN;
    let at_one = 1.0 / where_(one, x - 1.0, ones_like(x));
    let outside = where_(pole, full_like(x, f64::INFINITY), undefined);
    let outside = where_(one, at_one, outside);
    where_(good, sum, outside)
}
