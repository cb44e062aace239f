//! Functions around the gamma function: `jax.scipy.special`.

use crate::trace::custom::custom_jvp;
use crate::trace::ops::{broadcast_pair, full_like, ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, op};

/// `jax.scipy.special.betaln`: the logarithm of the beta function of positive numbers,
/// `lgamma(a) + lgamma(b) - lgamma(a + b)`, exact also where the last two nearly cancel.
#[op(at_line)]
pub fn betaln(a: Tensor, b: Tensor) -> Tensor {
    let (a, b) = broadcast_pair("betaln", a, b);
    // Chosen by one comparison: minimum and maximum would share the derivatives of equals.
    let first = a.lt(b);
    let (small, large) = (where_(first, a, b), where_(first, b, a));
    let near = large.lgamma() - (small + large).lgamma();
    // Stirling's series of either; their common terms are cancelled symbolically.
    let far_large = where_(large.lt(8.0), 8.0, large);
    let sum = small + far_large;
    let far = stirling(far_large)
        - stirling(sum)
        - (sum - 0.5) * (small / far_large).log1p()
        - small * (far_large.log() - 1.0);
    small.lgamma() + where_(large.lt(8.0), near, far)
}

/// `lgamma(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2)`, for `x` of 8 and more.
fn stirling(x: Tensor) -> Tensor {
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    // B(2k) / (2k (2k - 1)), from the last.
    let terms = [-1.0 / 1680.0, 1.0 / 1260.0, -1.0 / 360.0, 1.0 / 12.0];
    let first = zeros_like(x) + 1.0 / 1188.0;
    inverse * terms.iter().fold(first, |sum, &term| sum * square + term)
}

/// `jax.scipy.special.gammasgn`: the sign of the gamma function; NaN of negative whole numbers.
#[op]
pub fn gammasgn(x: Tensor) -> Tensor {
    let floor = x.floor();
    let odd = x.lt(0.0) & floor.modulo(2.0).ne(0.0);
    // The pole at 0 has a side.
    let negative = odd | (x.eq(0.0) & x.signbit());
    let sign = where_(negative, -ones_like(x), ones_like(x));
    where_((x.lt(0.0) & x.eq(floor)) | x.is_nan(), full_like(x, f64::NAN), sign)
}

/// `jax.scipy.special.gamma`: the gamma function.
#[op]
pub fn gamma(x: Tensor) -> Tensor {
    gammasgn(x) * x.lgamma().exp()
}

/// `jax.scipy.special.factorial`: `gamma(n + 1)`, and 0 of negative numbers.
#[op]
pub fn factorial(n: Tensor) -> Tensor {
    where_(n.lt(0.0), zeros_like(n), (n + 1.0).lgamma().exp())
}

/// `jax.scipy.special.comb`: `n` over `k`; 0 where `k` is not in `0..=n`.
#[op(at_line)]
pub fn comb(n: Tensor, k: Tensor) -> Tensor {
    let (n, k) = broadcast_pair("comb", n, k);
    let inside = k.le(n) & n.ge(0.0) & k.ge(0.0);
    let (n, k) = (where_(inside, n, zeros_like(n)), where_(inside, k, zeros_like(k)));
    let log = (n + 1.0).lgamma() - (k + 1.0).lgamma() - (n + 1.0 - k).lgamma();
    where_(inside, log.exp(), zeros_like(n))
}

/// `jax.scipy.special.beta`: the beta function.
#[op(at_line)]
pub fn beta(a: Tensor, b: Tensor) -> Tensor {
    let (a, b) = broadcast_pair("beta", a, b);
    gammasgn(a) * gammasgn(b) * gammasgn(a + b) * betaln(a, b).exp()
}

/// `jax.scipy.special.poch`: `gamma(z + m) / gamma(z)`, and 1 where `m` is 0.
#[op(at_line)]
pub fn poch(z: Tensor, m: Tensor) -> Tensor {
    let (z, m) = broadcast_pair("poch", z, m);
    let value = |(z, m): (Tensor, Tensor)| {
        let ratio = ((z + m).lgamma() - z.lgamma()).exp() * gammasgn(z + m) * gammasgn(z);
        where_(m.eq(0.0), ones_like(z), ratio)
    };
    let rule = move |(z, m): (Tensor, Tensor), (tz, tm): (Tensor, Tensor)| {
        let (y, by_m) = (value((z, m)), (z + m).digamma());
        (y, y * (by_m - z.digamma()) * tz + y * by_m * tm)
    };
    custom_jvp(value, rule)((z, m))
}

/// `jax.scipy.special.multigammaln`: the logarithm of the gamma function of dimension `d`.
#[op]
pub fn multigammaln(a: Tensor, d: usize) -> Tensor {
    let size = d as f64;
    let constant = full_like(a, 0.25 * size * (size - 1.0) * std::f64::consts::PI.ln());
    (0..d).fold(constant, |sum, j| sum + (a - 0.5 * j as f64).lgamma())
}

/// `jax.scipy.special.i0`: the modified Bessel function of the first kind of order 0.
#[op(at_line)]
pub fn i0(x: Tensor) -> Tensor {
    let value = |x: Tensor| x.abs().exp() * x.bessel_i0e();
    custom_jvp(value, move |x: Tensor, t: Tensor| (value(x), t * i1(x)))(x)
}

/// `jax.scipy.special.i1`: the modified Bessel function of the first kind of order 1.
#[op]
pub fn i1(x: Tensor) -> Tensor {
    x.abs().exp() * x.bessel_i1e()
}
