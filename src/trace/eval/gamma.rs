//! The logarithm of the gamma function and its derivatives.

// Coefficients as they were published.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)]

use std::f64::consts::PI;

/// Lanczos' approximation with g = 7 and nine terms: the first coefficient, and those of
/// `1 / (z + 1)`, `1 / (z + 2)`, ..
const FIRST: f64 = 0.99999999999980993227684700473478;
const LANCZOS: [f64; 8] = [
    676.520368121885098567009190444019,
    -1259.13921672240287047156078755283,
    771.3234287776530788486528258894,
    -176.61502916214059906584551354,
    12.507343278686904814458936853,
    -0.13857109526572011689554707,
    9.984369578019570859563e-6,
    1.50563273514931155834e-7,
];
const G: f64 = 7.0;

/// `log |gamma(x)|`; infinite at 0 and the negative whole numbers.
pub(super) fn lgamma(x: f64) -> f64 {
    if x.is_infinite() {
        return f64::INFINITY;
    }
    let reflected = x < 0.5;
    let z = if reflected { -x } else { x - 1.0 };
    let sum = LANCZOS.iter().zip(1..).fold(FIRST, |sum, (c, i)| sum + c / (z + i as f64));
    let t = z + G + 0.5;
    let log_t = (G + 0.5).ln() + (z / (G + 0.5)).ln_1p();
    let log = (z + 0.5 - t / log_t) * log_t + (2.0 * PI).ln() / 2.0 + sum.ln();
    if !reflected {
        return log;
    }
    // gamma(x) gamma(1 - x) = pi / sin(pi x), of the distance to the nearest whole number.
    let fraction = x.abs() - x.abs().floor();
    let log_sine = (PI * fraction.min(1.0 - fraction)).sin().ln();
    if log_sine.is_finite() { PI.ln() - log_sine - log } else { -log_sine }
}

/// The derivative of [`lgamma`]; NaN at 0 and the negative whole numbers.
pub(super) fn digamma(x: f64) -> f64 {
    if x <= 0.0 && x == x.floor() {
        return f64::NAN;
    }
    let reflected = x < 0.5;
    let z = if reflected { -x } else { x - 1.0 };
    let (mut above, mut below) = (0.0, FIRST);
    for (c, i) in LANCZOS.iter().zip(1..) {
        let place = z + i as f64;
        above -= c / (place * place);
        below += c / place;
    }
    let t = z + G + 0.5;
    let log_t = (G + 0.5).ln() + (z / (G + 0.5)).ln_1p();
    let y = log_t + above / below - G / t;
    if !reflected {
        return y;
    }
    let fraction = PI * (x + (x + 0.5).floor().abs());
    y - PI * fraction.cos() / fraction.sin()
}

/// The derivative of order `n`, a whole number from 0, of [`digamma`]; NaN for other orders.
pub(super) fn polygamma(n: f64, x: f64) -> f64 {
    if n < 0.0 || n != n.floor() || n.is_infinite() {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    let sign = if n % 2.0 == 1.0 { 1.0 } else { -1.0 };
    sign * lgamma(n + 1.0).exp() * zeta(n + 1.0, x)
}

/// Hurwitz' zeta function, the sum of `(q + k)^-s` over `k` from 0, for whole `s` of at least 2, by
/// the formula of Euler and Maclaurin.
fn zeta(s: f64, q: f64) -> f64 {
    if q <= 0.0 && q == q.floor() {
        return if s % 2.0 == 0.0 { f64::INFINITY } else { f64::NAN };
    }
    if q.is_nan() {
        return q;
    }
    // The Bernoulli numbers B2, B4, .. over (2 j)!.
    const BERNOULLI: [f64; 12] = [
        8.333333333333333333e-2,
        -1.388888888888888889e-3,
        3.306878306878306878e-5,
        -8.267195767195767196e-7,
        2.087675698786809898e-8,
        -5.284190138687493185e-10,
        1.338253653068467883e-11,
        -3.389680296322582867e-13,
        8.586062056277844565e-15,
        -2.174868698558061873e-16,
        5.509002828360229515e-18,
        -1.395446468581252334e-19,
    ];
    // From here on the asymptotic series is exact to rounding.
    const FAR: f64 = 10.0;
    let (mut sum, mut a) = (0.0, q);
    while a < FAR {
        sum += a.powf(-s);
        a += 1.0;
    }
    let power = a.powf(-s);
    sum += power * (a / (s - 1.0) + 0.5);
    let mut factor = power * s / a;
    for (j, b) in BERNOULLI.iter().enumerate() {
        sum += b * factor;
        let k = 2.0 * j as f64 + 1.0;
        factor *= (s + k) * (s + k + 1.0) / (a * a);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_functions_have_known_values() {
        let near = |x: f64, y: f64| assert!((x - y).abs() <= 1e-13 * y.abs().max(1.0), "{x} {y}");
        near(lgamma(0.5), PI.sqrt().ln());
        near(lgamma(11.0), 3628800f64.ln());
        near(lgamma(-1.5), (4.0 / 3.0 * PI.sqrt()).ln());
        assert_eq!([0.0, -2.0, f64::NEG_INFINITY].map(lgamma), [f64::INFINITY; 3]);
        // Minus Euler's constant, and its relatives.
        near(digamma(1.0), -0.57721566490153286);
        near(digamma(-0.5), 0.03648997397857652);
        assert!(digamma(-3.0).is_nan() && lgamma(f64::NAN).is_nan());
        near(polygamma(1.0, 1.0), PI * PI / 6.0);
        near(polygamma(1.0, 0.5), PI * PI / 2.0);
        near(polygamma(3.0, 1.0), PI.powi(4) / 15.0);
        near(polygamma(2.0, 1.0), -2.0 * 1.2020569031595942);
        assert!(polygamma(0.5, 1.0).is_nan() && polygamma(-1.0, 1.0).is_nan());
    }
}
