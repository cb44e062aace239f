//! Functions of probabilities and of the normal distribution: `jax.scipy.special`.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use num_complex::Complex;

use super::faddeeva::wofz;
use super::incomplete::{in_f32, partial};
use crate::trace::custom::custom_jvp;
use crate::trace::jvp::jvp;
use crate::trace::ops::{broadcast_pair, full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, op};
use crate::trace::types::DType;

/// `jax.scipy.special.logit`: `log(p / (1 - p))`.
#[op]
pub fn logit(p: Tensor) -> Tensor {
    p.log() - (-p).log1p()
}

/// `jax.scipy.special.xlogy`: `x log(y)`, and 0 where `x` is 0.
#[op(at_line)]
pub fn xlogy(x: Tensor, y: Tensor) -> Tensor {
    let pair = broadcast_pair("xlogy", x, y);
    let value = |(x, y): (Tensor, Tensor)| {
        let zero = x.eq(0.0) & !y.is_nan();
        where_(zero, zeros_like(x), x * where_(zero, ones_like(y), y).log())
    };
    let rule = move |(x, y): (Tensor, Tensor), (tx, ty): (Tensor, Tensor)| {
        (value((x, y)), tx * y.log() + ty * (x / y))
    };
    custom_jvp(value, rule)(pair)
}

/// `jax.scipy.special.xlog1py`: `x log(1 + y)`, and 0 where `x` is 0.
#[op(at_line)]
pub fn xlog1py(x: Tensor, y: Tensor) -> Tensor {
    let pair = broadcast_pair("xlog1py", x, y);
    let value = |(x, y): (Tensor, Tensor)| {
        let zero = x.eq(0.0) & !y.is_nan();
        where_(zero, zeros_like(x), x * where_(zero, zeros_like(y), y).log1p())
    };
    let rule = move |(x, y): (Tensor, Tensor), (tx, ty): (Tensor, Tensor)| {
        (value((x, y)), tx * y.log1p() + ty * (x / (y + 1.0)))
    };
    custom_jvp(value, rule)(pair)
}

/// `jax.scipy.special.entr`: `-x log(x)`; 0 at 0, and `-inf` of negative numbers.
#[op]
pub fn entr(x: Tensor) -> Tensor {
    let negative = x.lt(0.0);
    let value = |x: Tensor| xlogy(x, x);
    let rule = move |x: Tensor, t: Tensor| (value(x), t * (x.log() + 1.0));
    where_(negative, full_like(x, f64::NEG_INFINITY), -custom_jvp(value, rule)(x))
}

/// `jax.scipy.special.rel_entr`: `p log(p / q)`; 0 where `p` is 0 and `q` is not negative, infinite
/// where either is out of range.
#[op(at_line)]
pub fn rel_entr(p: Tensor, q: Tensor) -> Tensor {
    let (p, q) = broadcast_pair("rel_entr", p, q);
    let both = p.gt(0.0) & q.gt(0.0);
    let none = p.eq(0.0) & q.ge(0.0);
    let (safe_p, safe_q) = (where_(both, p, ones_like(p)), where_(both, q, ones_like(q)));
    let log_ratio = |p: Tensor, q: Tensor| p.log() - q.log();
    let value = move |(p, q): (Tensor, Tensor)| p * log_ratio(p, q);
    let rule = move |(p, q): (Tensor, Tensor), (tp, tq): (Tensor, Tensor)| {
        (value((p, q)), tp * (log_ratio(p, q) + 1.0) - tq * (p / q))
    };
    let value = custom_jvp(value, rule)((safe_p, safe_q));
    let outside = where_(none, zeros_like(p), full_like(p, f64::INFINITY));
    where_(both, value, outside)
}

/// `jax.scipy.special.kl_div`: [`rel_entr`] less `p`, plus `q`.
#[op]
pub fn kl_div(p: Tensor, q: Tensor) -> Tensor {
    rel_entr(p, q) - p + q
}

/// `jax.scipy.special.ndtr`: the distribution function of the standard normal distribution.
#[op]
pub fn ndtr(x: Tensor) -> Tensor {
    (x * -FRAC_1_SQRT_2).erfc() * 0.5
}

/// `1 - 1/x^2 + 3/x^4 - ..`, of the tail of the normal distribution.
fn tail_series(x: Tensor) -> Tensor {
    let inverse = 1.0 / x.square();
    let first = full_like(x, 1.0);
    [11.0, 9.0, 7.0, 5.0, 3.0, 1.0].iter().fold(first, |sum, &odd| 1.0 - inverse * odd * sum)
}

/// `jax.scipy.special.log_ndtr`: the logarithm of [`ndtr`], exact also in both tails.
#[op(at_line)]
pub fn log_ndtr(x: Tensor) -> Tensor {
    in_f32("log_ndtr", [x], |[x]| logarithm_of_ndtr(x))
}

fn logarithm_of_ndtr(x: Tensor) -> Tensor {
    let limit = if x.dtype() == DType::F64 { -20.0 } else { -10.0 };
    let (low, high) = (x.lt(limit), x.gt(5.0));
    let tail = where_(low, x, full_like(x, limit));
    let far =
        tail.square() * -0.5 - (-tail).log() - 0.5 * (2.0 * PI).ln() + tail_series(tail).log();
    let middle = ndtr(where_(low | high, zeros_like(x), x)).log();
    let top = (-ndtr(-where_(high, x, full_like(x, 5.0)))).log1p();
    where_(low, far, where_(high, top, middle))
}

/// `jax.scipy.special.ndtri`: the inverse of [`ndtr`]; infinite at 0 and 1, NaN outside.
#[op(at_line)]
pub fn ndtri(p: Tensor) -> Tensor {
    let rule = |p: Tensor, t: Tensor| {
        let x = quantile_of_normal(p);
        (x, t * ((x.square() * 0.5).exp() * (2.0 * PI).sqrt()))
    };
    in_f32("ndtri", [p], |[p]| custom_jvp(quantile_of_normal, rule)(p))
}

fn quantile_of_normal(p: Tensor) -> Tensor {
    let upper = p.gt(0.5);
    let lower = where_(upper, 1.0 - p, p);
    let inside = lower.gt(0.0);
    let small = where_(inside, lower, full_like(p, 0.25));
    // A first value from the tail's logarithm, or from the inverse error function.
    let tail = small.lt(0.02);
    let root = (where_(tail, small, full_like(p, 0.02)).log() * -2.0).sqrt();
    let far = -(root - (root.log() + 0.5 * (2.0 * PI).ln()) / root);
    let near = (where_(tail, full_like(p, 0.25), small) * 2.0 - 1.0).erf_inv() * SQRT_2;
    // Newton's method on the logarithm, which is concave.
    let target = small.log();
    let mut x = where_(tail, far, near);
    for _ in 0..3 {
        let log_p = log_ndtr(x);
        let log_density = x.square() * -0.5 - 0.5 * (2.0 * PI).ln();
        x = where_(tail, x - (log_p - target) * (log_p - log_density).exp(), x);
    }
    let x = where_(upper, -x, x);
    let end = where_(p.eq(0.0), full_like(p, f64::NEG_INFINITY), full_like(p, f64::INFINITY));
    let outside = where_(lower.eq(0.0), end, full_like(p, f64::NAN));
    where_(inside, x, outside)
}

/// `jax.scipy.special.boxcox`: `(x^lambda - 1) / lambda`, and `log(x)` where `lambda` is 0.
#[op(at_line)]
pub fn boxcox(x: Tensor, lambda: Tensor) -> Tensor {
    power_of_logarithm(x.log(), lambda)
}

/// `jax.scipy.special.boxcox1p`: [`boxcox`] of `1 + x`.
#[op(at_line)]
pub fn boxcox1p(x: Tensor, lambda: Tensor) -> Tensor {
    power_of_logarithm(x.log1p(), lambda)
}

fn power_of_logarithm(log: Tensor, lambda: Tensor) -> Tensor {
    let value = |(log, lambda): (Tensor, Tensor)| {
        let zero = lambda.eq(0.0);
        let safe = where_(zero, ones_like(lambda), lambda);
        where_(zero, log, (safe * log).expm1() / safe)
    };
    let rule = move |(log, lambda): (Tensor, Tensor), (tl, tn): (Tensor, Tensor)| {
        let by_lambda = partial(|lambda| value((log, lambda)), lambda);
        // Near 0 that is a difference of two huge numbers: `log^2` times the sum of
        // `(k + 1) power^k / (k + 2)!`.
        let power = lambda * log;
        let near = power.abs().lt(0.5);
        let square = where_(near, log, zeros_like(log)).square() * 0.5;
        let power = where_(near, power, zeros_like(power));
        let series = (2..16).rev().map(f64::from).fold(zeros_like(power), |sum, n| {
            // From the last term; each is `power n / ((n - 1) (n + 1))` times the one before.
            1.0 + power * (n / ((n - 1.0) * (n + 1.0))) * sum
        });
        let (y, along_log) = jvp(|log| value((log, lambda)), log, tl);
        (y, along_log + tn * where_(near, square * series, by_lambda))
    };
    custom_jvp(value, rule)(broadcast_pair("boxcox", log, lambda))
}

/// `jax.scipy.special.erfcx`: `exp(x^2) erfc(x)`, without overflow. Floats, c64 or c128.
#[op(at_line)]
pub fn erfcx(x: Tensor) -> Tensor {
    if x.dtype().is_complex() {
        return wofz(x * Complex::new(0.0, 1.0));
    }
    let rule = |x: Tensor, t: Tensor| {
        let y = scaled_erfc(x);
        // The difference of two equal numbers beyond that: the first term of its series.
        let far = x.gt(1e8);
        let inverse = 1.0 / where_(far, x, ones_like(x));
        let slope = x * y * 2.0 - 2.0 / PI.sqrt();
        (y, t * where_(far, -inverse.square() / PI.sqrt(), slope))
    };
    in_f32("erfcx", [x], |[x]| custom_jvp(scaled_erfc, rule)(x))
}

fn scaled_erfc(x: Tensor) -> Tensor {
    let far = x.gt(2.5);
    let low = where_(far, zeros_like(x), x);
    let near = low.square().exp() * low.erfc();
    // The continued fraction, from its end.
    let high = where_(far, x, full_like(x, 2.5));
    let tail = (1..48).rev().fold(high, |tail, k| high + 0.5 * f64::from(k) / tail);
    where_(far, 1.0 / (tail * PI.sqrt()), near)
}

/// `jax.scipy.special.dawsn`: Dawson's integral `exp(-x^2)` times the integral of `exp(t^2)` from 0 to
/// `x`.
#[op(at_line)]
pub fn dawsn(x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| {
        let y = dawson(x);
        let far = x.abs().gt(1e8);
        let inverse = 1.0 / where_(far, x, ones_like(x));
        (y, t * where_(far, -inverse.square() * 0.5, 1.0 - x * y * 2.0))
    };
    in_f32("dawsn", [x], |[x]| custom_jvp(dawson, rule)(x))
}

/// Rybicki's sum of exponentials at odd multiples of `STEP`, and the power series near 0.
fn dawson(x: Tensor) -> Tensor {
    const STEP: f64 = 0.2;
    let size = x.abs();
    let near = size.lt(0.2);
    let small = where_(near, x, zeros_like(x));
    let square = small.square();
    let series = (1..12)
        .rev()
        .fold(ones_like(x), |sum, k| 1.0 - square * (2.0 / (2.0 * f64::from(k) + 1.0)) * sum);
    let large = where_(near, ones_like(x), size);
    // `1 / (2 x)` beyond: sums of exponentials around infinity are NaN.
    let infinite = size.is_inf();
    let large = where_(infinite, ones_like(x), large);
    let middle = (large * (0.5 / STEP)).round() * 2.0;
    let rest = large - middle * STEP;
    let mut sum = zeros_like(x);
    for k in (-31..=31).step_by(2).map(f64::from) {
        sum = sum + (-(rest - k * STEP).square()).exp() / (middle + k);
    }
    let sum = where_(infinite, zeros_like(x), sum);
    let far = where_(x.lt(0.0), -sum, sum) / PI.sqrt();
    where_(near, small * series, far)
}
