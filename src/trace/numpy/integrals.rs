//! Exponential integrals and the dilogarithm: `jax.scipy.special`.

use std::f64::consts::PI;

use super::incomplete::in_f32;
use crate::trace::custom::custom_jvp;
use crate::trace::literal::Literal;
use crate::trace::ops::{constant, full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// `E_n(x)` times `exp(x)` by its continued fraction, from the end; for `x` of 1 and more.
fn fraction(n: u32, x: Tensor) -> Tensor {
    let n = f64::from(n);
    let tail = (1..60).rev().map(f64::from).fold(x, |tail, k| x + (n + k - 1.0) / (1.0 + k / tail));
    1.0 / tail
}

/// `jax.scipy.special.expn`: the generalized exponential integral `E_n(x)` of `x` from 0 on; NaN of
/// negative numbers.
#[op(at_line)]
pub fn expn(n: u32, x: Tensor) -> Tensor {
    if n > 1000 {
        fail_op("expn", format!("takes orders up to 1000, and was given {n}"));
    }
    let rule = move |x: Tensor, t: Tensor| {
        let before = if n == 0 {
            // The derivative of exp(-x) / x.
            (-x).exp() * (1.0 / x + 1.0 / x.square())
        } else {
            exponential_integral(n - 1, x)
        };
        (exponential_integral(n, x), -t * before)
    };
    in_f32("expn", [x], |[x]| custom_jvp(move |x| exponential_integral(n, x), rule)(x))
}

fn exponential_integral(n: u32, x: Tensor) -> Tensor {
    if n == 0 {
        return where_(x.lt(0.0), full_like(x, f64::NAN), (-x).exp() / x);
    }
    let far = x.gt(1.0);
    let large = where_(far, x, full_like(x, 2.0));
    let small = where_(far | x.le(0.0), ones_like(x), x);
    let above = fraction(n, large) * (-large).exp();
    // The power series, with the logarithm in the term of power n - 1.
    let digamma: f64 = (1..n).map(|k| 1.0 / f64::from(k)).sum::<f64>() - EULER_GAMMA;
    let mut sum = zeros_like(x);
    let mut term = ones_like(x);
    for k in 0..30u32 {
        sum = match k + 1 == n {
            true => sum - term * (small.log() - digamma),
            false => sum - term / (f64::from(k) - f64::from(n) + 1.0),
        };
        term = term * (-small / (f64::from(k) + 1.0));
    }
    // Orders above the number of terms have no logarithm in reach.
    let at_zero = if n == 1 { f64::INFINITY } else { 1.0 / (f64::from(n) - 1.0) };
    let value = where_(far, above, sum);
    let value = where_(x.eq(0.0), full_like(x, at_zero), value);
    where_(x.lt(0.0) | x.is_nan(), full_like(x, f64::NAN), value)
}

/// `jax.scipy.special.exp1`: the exponential integral `E_1(x)`; see [`expn`].
#[op]
pub fn exp1(x: Tensor) -> Tensor {
    expn(1, x)
}

/// `jax.scipy.special.expi`: the exponential integral `Ei(x)`.
#[op(at_line)]
pub fn expi(x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| (principal_value(x), t * (x.exp() / x));
    in_f32("expi", [x], |[x]| custom_jvp(principal_value, rule)(x))
}

fn principal_value(x: Tensor) -> Tensor {
    let (negative, far) = (x.lt(0.0), x.gt(40.0));
    let below = -exponential_integral(1, where_(negative, -x, ones_like(x)));
    let near = where_(negative | far | x.eq(0.0), ones_like(x), x);
    let (mut sum, mut term) = (near.log() + EULER_GAMMA, ones_like(x));
    for k in (1..120).map(f64::from) {
        term = term * (near / k);
        sum = sum + term / k;
    }
    // The asymptotic series, up to its least term.
    let large = where_(far, x, full_like(x, 50.0));
    let series = (1..38).rev().fold(ones_like(x), |sum, k| 1.0 + sum * f64::from(k) / large);
    let above = large.exp() / large * series;
    let value = where_(negative, below, where_(far, above, sum));
    let value = where_(x.eq(f64::INFINITY), full_like(x, f64::INFINITY), value);
    where_(x.eq(0.0), full_like(x, f64::NEG_INFINITY), value)
}

/// `jax.scipy.special.spence`: the integral of `log(t) / (1 - t)` from 1 to `x`, the dilogarithm of
/// `1 - x`; NaN of negative numbers.
#[op(at_line)]
pub fn spence(x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| {
        let one = x.eq(1.0);
        let safe = where_(one, full_like(x, 2.0), x);
        let slope = where_(one, full_like(x, -1.0), safe.log() / (1.0 - safe));
        (dilogarithm(x), t * slope)
    };
    in_f32("spence", [x], |[x]| custom_jvp(dilogarithm, rule)(x))
}

fn dilogarithm(x: Tensor) -> Tensor {
    let positive = x.gt(0.0);
    let x0 = where_(positive, x, ones_like(x));
    // Arguments above 2 by their inverse, those below 1/2 by their distance to 1.
    let above = x0.gt(1.5);
    let inverse = 1.0 / where_(above, x0, full_like(x, 2.0));
    let y = where_(above, inverse, x0);
    let below = y.lt(0.5);
    let z = where_(below, y, 1.0 - y);
    // Li2(z) by powers of w = -log(1 - z), with the Bernoulli numbers over (2k + 1)!.
    let w = -(-z).log1p();
    let square = w.square();
    let coefficients = [
        1.0 / 36.0,
        -1.0 / 3600.0,
        1.0 / 211_680.0,
        -1.0 / 10_886_400.0,
        1.0 / 526_901_760.0,
        -691.0 / 16_999_766_784_000.0,
        1.0 / 1_120_863_744_000.0,
    ];
    let series = coefficients
        .iter()
        .rev()
        .fold(zeros_like(x), |sum, &coefficient| (sum + coefficient) * square);
    let li = w * (1.0 - w * 0.25 + series);
    let (log_y, log_1) = (y.log(), (-where_(below, y, zeros_like(y))).log1p());
    let value = where_(below, PI * PI / 6.0 - log_y * log_1 - li, li);
    let value = where_(above, -value - where_(above, x0, ones_like(x)).log().square() * 0.5, value);
    let outside = where_(x.eq(0.0), full_like(x, PI * PI / 6.0), full_like(x, f64::NAN));
    where_(positive, value, outside)
}

/// `jax.scipy.special.bernoulli`: the Bernoulli numbers from 0 to `n`, with `B1 = -1/2`.
#[op]
pub fn bernoulli(n: usize, dtype: DType) -> Tensor {
    if !dtype.is_float() || n > 256 {
        fail_op(
            "bernoulli",
            format!("takes a float type and numbers up to 256; was given {dtype}, {n}"),
        );
    }
    let mut numbers = vec![0.0; n + 1];
    for (k, number) in numbers.iter_mut().enumerate() {
        *number = match k {
            0 => 1.0,
            1 => -0.5,
            2 => 1.0 / 6.0,
            _ if k % 2 == 1 => 0.0,
            // 2 (2k)! zeta(2k) / (2 pi)^2k, with alternating sign.
            _ => {
                let sum: f64 = 1.0 + (2..60).map(|j| f64::from(j).powi(-(k as i32))).sum::<f64>();
                let size = (1..=k).fold(2.0 * sum, |size, j| size * j as f64 / (2.0 * PI));
                if k % 4 == 0 { -size } else { size }
            }
        };
    }
    constant(Literal::new([n + 1], &numbers)).to(dtype)
}
