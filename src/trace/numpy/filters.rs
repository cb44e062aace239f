//! Window functions of signal processing, and logarithmic ranges.

use crate::trace::literal::Literal;
use crate::trace::ops::{Operand, constant, linspace};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, TensorType};

/// `n` values of `f` at positions from 0 to 1; one value is that of the middle, as in NumPy.
#[track_caller]
fn window(n: usize, dtype: DType, f: impl Fn(f64) -> f64) -> Tensor {
    if !dtype.is_float() {
        fail_op("window", format!("takes a float type, and was given {dtype}"));
    }
    let at = |i: usize| if n == 1 { 0.5 } else { i as f64 / (n - 1) as f64 };
    let values: Vec<f64> = (0..n).map(|i| f(at(i))).collect();
    constant(Literal::new([n], &values)).to(dtype)
}

/// Sum of cosines: `a0 - a1 cos(2 pi t) + a2 cos(4 pi t)`.
fn cosines(a: [f64; 3], t: f64) -> f64 {
    let angle = 2.0 * std::f64::consts::PI * t;
    a[0] - a[1] * angle.cos() + a[2] * (2.0 * angle).cos()
}

/// `jnp.bartlett`: the triangular window of `n` elements.
#[op]
pub fn bartlett(n: usize, dtype: DType) -> Tensor {
    window(n, dtype, |t| 1.0 - (2.0 * t - 1.0).abs())
}

/// `jnp.blackman`: the Blackman window of `n` elements.
#[op]
pub fn blackman(n: usize, dtype: DType) -> Tensor {
    window(n, dtype, |t| cosines([0.42, 0.5, 0.08], t))
}

/// `jnp.hamming`: the Hamming window of `n` elements.
#[op]
pub fn hamming(n: usize, dtype: DType) -> Tensor {
    window(n, dtype, |t| cosines([0.54, 0.46, 0.0], t))
}

/// `jnp.hanning`: the Hann window of `n` elements.
#[op]
pub fn hanning(n: usize, dtype: DType) -> Tensor {
    window(n, dtype, |t| cosines([0.5, 0.5, 0.0], t))
}

/// `jnp.kaiser`: the Kaiser window of `n` elements and shape `beta`.
#[op]
pub fn kaiser(n: usize, beta: f64, dtype: DType) -> Tensor {
    // The modified Bessel function of order 0 by its power series.
    let bessel = |x: f64| {
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..500 {
            term *= (x / (2.0 * f64::from(k))).powi(2);
            sum += term;
        }
        sum
    };
    window(n, dtype, |t| bessel(beta * (1.0 - (2.0 * t - 1.0).powi(2)).sqrt()) / bessel(beta))
}

/// `jnp.logspace`: `n` powers of `base`, with exponents from `start` to `stop`.
#[op]
pub fn logspace(start: f64, stop: f64, n: usize, base: f64, dtype: DType) -> Tensor {
    let exponents = linspace(start, stop, n, dtype);
    base.to_tensor(&TensorType::new(dtype, [n])).pow(exponents)
}

/// `jnp.geomspace`: `n` numbers from `start` to `stop`, of one sign, with equal ratios.
#[op]
pub fn geomspace(start: f64, stop: f64, n: usize, dtype: DType) -> Tensor {
    let signs = (start * stop).is_nan() || start * stop <= 0.0;
    if signs {
        fail_op("geomspace", format!("takes ends of one sign; was given {start} and {stop}"));
    }
    let sizes = logspace(start.abs().log10(), stop.abs().log10(), n, 10.0, dtype);
    if start < 0.0 { -sizes } else { sizes }
}
