//! Functions that are integrals: sine and cosine integrals, Fresnel integrals, Owen's T function.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_PI_2, PI};

use super::incomplete::in_f32;
use crate::trace::custom::custom_jvp;
use crate::trace::ops::{broadcast_pair, full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, op};

/// Nodes and weights of the Gauss-Legendre rule over 0 to 1.
fn rule(count: usize) -> Vec<(f64, f64)> {
    // Values of the Legendre polynomial of degree `count`, and of its derivative.
    let legendre = |x: f64| {
        let (mut before, mut value) = (1.0, x);
        for k in 1..count {
            let k = k as f64;
            (before, value) = (value, ((2.0 * k + 1.0) * x * value - k * before) / (k + 1.0));
        }
        (value, count as f64 * (x * value - before) / (x * x - 1.0))
    };
    let node = |i: usize| {
        let mut x = (PI * (i as f64 + 0.75) / (count as f64 + 0.5)).cos();
        for _ in 0..20 {
            let (value, slope) = legendre(x);
            x -= value / slope;
        }
        let slope = legendre(x).1;
        (0.5 * (x + 1.0), 1.0 / ((1.0 - x * x) * slope * slope))
    };
    (0..count).map(node).collect()
}

/// The integral of `f(t)` for t from 0 to 1.
fn integral(count: usize, like: Tensor, f: impl Fn(f64) -> Tensor) -> Tensor {
    rule(count).into_iter().fold(zeros_like(like), |sum, (t, weight)| sum + f(t) * weight)
}

/// `1 - n1 z + n2 z^2 - ..`, a divergent series that is cut at its end.
fn alternating(z: Tensor, factors: &[f64]) -> Tensor {
    factors.iter().rev().fold(ones_like(z), |sum, &factor| 1.0 - z * factor * sum)
}

/// `jax.scipy.special.sici`: the sine integral and the cosine integral of `|x|`, the latter `-inf`
/// at 0.
#[op(at_line)]
pub fn sici(x: Tensor) -> (Tensor, Tensor) {
    let slopes = |x: Tensor, t: Tensor| {
        let zero = x.eq(0.0);
        let safe = where_(zero, ones_like(x), x);
        let sine = where_(zero, ones_like(x), safe.sin() / safe);
        (sine_and_cosine_integrals(x), (t * sine, t * (x.cos() / x)))
    };
    in_f32("sici", [x], |[x]| custom_jvp(sine_and_cosine_integrals, slopes)(x))
}

fn sine_and_cosine_integrals(x: Tensor) -> (Tensor, Tensor) {
    const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;
    let size = x.abs();
    let far = size.gt(25.0);
    let near = where_(far, ones_like(x), size);
    let si = integral(40, x, |t| (near * t).sin() / t);
    // 1 - cos(y) without cancellation.
    let cin = integral(40, x, |t| (near * (0.5 * t)).sin().square() * (2.0 / t));
    let ci = near.log() + EULER_GAMMA - cin;
    let large = where_(far, size, full_like(x, 30.0));
    let z = 1.0 / large.square();
    // (2k)(2k - 1) and (2k + 1)(2k).
    let even: Vec<f64> = (1..9).map(|k| f64::from(2 * k * (2 * k - 1))).collect();
    let odd: Vec<f64> = (1..9).map(|k| f64::from(2 * k * (2 * k + 1))).collect();
    let (f, g) = (alternating(z, &even) / large, alternating(z, &odd) * z);
    let (sin, cos) = unless_infinite(large, |x| (x.sin(), x.cos()));
    let si = where_(far, FRAC_PI_2 - f * cos - g * sin, si);
    let ci = where_(far, f * sin - g * cos, ci);
    let ci = where_(x.eq(0.0), full_like(x, f64::NEG_INFINITY), ci);
    (where_(x.signbit(), -si, si), ci)
}

/// A sine and a cosine, 0 of infinity, where what they multiply is 0.
fn unless_infinite(x: Tensor, f: impl FnOnce(Tensor) -> (Tensor, Tensor)) -> (Tensor, Tensor) {
    let infinite = x.is_inf();
    let (sin, cos) = f(where_(infinite, zeros_like(x), x));
    (where_(infinite, zeros_like(x), sin), where_(infinite, zeros_like(x), cos))
}

/// `jax.scipy.special.fresnel`: the integrals of `sin(pi t^2 / 2)` and of `cos(pi t^2 / 2)` from 0 to
/// `x`.
#[op(at_line)]
pub fn fresnel(x: Tensor) -> (Tensor, Tensor) {
    let slopes = |x: Tensor, t: Tensor| {
        let (sin, cos) = of_phase(x.square());
        (fresnel_integrals(x), (t * sin, t * cos))
    };
    in_f32("fresnel", [x], |[x]| custom_jvp(fresnel_integrals, slopes)(x))
}

fn fresnel_integrals(x: Tensor) -> (Tensor, Tensor) {
    let size = x.abs();
    let far = size.gt(4.0);
    let near = where_(far, ones_like(x), size);
    let phase = near.square() * FRAC_PI_2;
    let s = near * integral(48, x, |t| (phase * (t * t)).sin());
    let c = near * integral(48, x, |t| (phase * (t * t)).cos());
    let large = where_(far, size, full_like(x, 5.0));
    let square = large.square();
    let z = (1.0 / (square * PI)).square();
    // (4k - 1)(4k - 3) and (4k + 1)(4k - 1).
    let even: Vec<f64> = (1..9).map(|k| f64::from((4 * k - 1) * (4 * k - 3))).collect();
    let odd: Vec<f64> = (1..9).map(|k| f64::from((4 * k + 1) * (4 * k - 1))).collect();
    let f = alternating(z, &even) / (large * PI);
    let g = alternating(z, &odd) / (large * square * (PI * PI));
    let (sin, cos) = of_phase(square);
    let s = where_(far, 0.5 - f * cos - g * sin, s);
    let c = where_(far, 0.5 + f * sin - g * cos, c);
    let negative = x.lt(0.0);
    (where_(negative, -s, s), where_(negative, -c, c))
}

/// The sine and the cosine of `square * pi / 2`: the phase modulo 2 pi comes from the square modulo 4,
/// which is 0 for numbers whose square overflows.
fn of_phase(square: Tensor) -> (Tensor, Tensor) {
    let square = where_(square.is_inf(), zeros_like(square), square);
    let phase = square.modulo(4.0) * FRAC_PI_2;
    (phase.sin(), phase.cos())
}

/// `jax.scipy.special.owens_t`: Owen's T function.
#[op(at_line)]
pub fn owens_t(h: Tensor, a: Tensor) -> Tensor {
    let rule = |(h, a): (Tensor, Tensor), (th, ta): (Tensor, Tensor)| {
        let zero = (h.eq(0.0) & !a.is_nan()) | (a.eq(0.0) & !h.is_nan());
        let product = where_(zero, zeros_like(h), h * a);
        let density = (h.square() * -0.5).exp() / (8.0 * PI).sqrt();
        let by_h = -density * (product * FRAC_1_SQRT_2).erf();
        let both = (h.square() + product.square()) * -0.5;
        let by_a = both.exp() / ((a.square() + 1.0) * (2.0 * PI));
        (t_integral((h, a)), th * by_h + ta * by_a)
    };
    in_f32("owens_t", [h, a], |[h, a]| {
        custom_jvp(t_integral, rule)(broadcast_pair("owens_t", h, a))
    })
}

fn t_integral((h, a): (Tensor, Tensor)) -> Tensor {
    let size = a.abs();
    let beyond = size.gt(1.0);
    // With the sign of `a`, of which the inner integral is an odd function.
    let slope = where_(beyond, 1.0 / where_(beyond, a, ones_like(a)), a);
    let height = where_(beyond, h * size, h);
    // The integral from 0 to `slope`, for slopes up to 1.
    let half = height.square() * -0.5;
    let inner = integral(32, h, |t| {
        let y = (slope * t).square() + 1.0;
        (half * y).exp() / y
    });
    let inner = inner * slope / (2.0 * PI);
    // T(h, a) = (Phi(h) + Phi(ah)) / 2 - Phi(h) Phi(ah) - T(ah, 1 / a), for h of 0 and more.
    let [p, q] = [h, h * size].map(|y| super::probability::ndtr(-y.abs()));
    let outer = (p + q) * 0.5 - p * q;
    let outer = where_(a.lt(0.0), -outer, outer) - inner;
    where_(beyond, outer, inner)
}
