//! Hypergeometric functions and Bessel functions of whole order: `jax.scipy.special`.

use super::incomplete::{epsilon, in_f32};
use super::special::gammasgn;
use crate::trace::control::{scan, while_loop};
use crate::trace::ops::{
    arange, broadcast_pair, constant, full_like, ones_like, stack, where_, zeros_like,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// Most terms of a series.
const MAX_TERMS: f64 = 5000.0;

/// The sum of terms from 1 on, each of which is `ratio(k)` times the one before.
fn series(like: Tensor, eps: f64, ratio: impl Fn(Tensor) -> Tensor) -> Tensor {
    type Carry = (Tensor, Tensor, Tensor);
    let step = |(k, term, sum): Carry| {
        let term = term * ratio(k);
        (k + 1.0, term, sum + term)
    };
    let unfinished =
        |(k, term, sum): Carry| term.abs().gt(sum.abs() * (eps * 0.1)).any(..) & k.lt(MAX_TERMS);
    let one = ones_like(like);
    let zero = constant(0.0f32).to(like.dtype());
    while_loop(unfinished, step, (zero, one, one)).2
}

/// `jax.scipy.special.hyp1f1`: Kummer's confluent hypergeometric function, by its power series.
#[op(at_line)]
pub fn hyp1f1(a: Tensor, b: Tensor, x: Tensor) -> Tensor {
    in_f32("hyp1f1", [a, b, x], kummer)
}

fn kummer([a, b, x]: [Tensor; 3]) -> Tensor {
    let eps = epsilon(x);
    let (a, b) = broadcast_pair("hyp1f1", a, b);
    let (a, x) = broadcast_pair("hyp1f1", a, x);
    let b = b.broadcast_to(a.shape());
    // Kummer's transformation, so that terms of negative numbers do not cancel.
    let negative = x.lt(0.0) & b.ne(f64::INFINITY);
    let (first, size) = (where_(negative, b - a, a), where_(negative, -x, x));
    let sum = series(x, eps, |k| (first + k) / (b + k) * (size / (k + 1.0)));
    let value = where_(negative, x.exp() * sum, sum);
    // Where the series divides 0 by 0, or infinity by infinity; elsewhere it has the derivatives.
    let fails = value.is_nan();
    let value = where_(fails & x.eq(0.0), ones_like(x), value);
    let value = where_(b.eq(0.0), full_like(x, f64::INFINITY), value);
    let value = where_(fails & a.eq(b), x.exp(), value);
    where_((fails | b.eq(0.0)) & a.eq(0.0), ones_like(x), value)
}

/// `jax.scipy.special.hyp2f1`: Gauss's hypergeometric function for `x` from -infinity to 1, by its power
/// series; NaN above 1, where it is complex, unless it is a polynomial (`a` or `b` is 0 or a negative
/// whole number).
#[op(at_line)]
pub fn hyp2f1(a: Tensor, b: Tensor, c: Tensor, x: Tensor) -> Tensor {
    in_f32("hyp2f1", [a, b, c, x], gauss)
}

fn gauss([a, b, c, x]: [Tensor; 4]) -> Tensor {
    let eps = epsilon(x);
    let (a, x) = broadcast_pair("hyp2f1", a, x);
    let [b, c] = [b, c].map(|y| broadcast_pair("hyp2f1", x, y).1);
    let is_negative = |p: Tensor| p.le(0.0) & p.eq(p.floor());
    let is_polynomial = is_negative(a) | is_negative(b);
    let inside = x.lt(1.0) | is_polynomial;
    let at_one = where_(is_polynomial, zeros_like(x), x).eq(1.0);
    let x = where_(inside, x, full_like(x, 0.5));
    // Pfaff's transformation moves negative numbers to 0..1.
    let negative = x.lt(0.0);
    let second = where_(negative, c - b, b);
    let y = where_(negative, x / (x - 1.0), x);
    // A series whose numerators reach 0 ends there, also if its denominators reach it later.
    let ended = |p: Tensor, k: Tensor| is_negative(p) & k.ge(-p);
    let ratio = |k: Tensor| {
        let ratio = (a + k) * (second + k) / (c + k) * (y / (k + 1.0));
        where_(ended(a, k) | ended(second, k), zeros_like(ratio), ratio)
    };
    let sum = series(x, eps, ratio);
    let value = where_(negative, (1.0 - x).pow(-a) * sum, sum);
    // A denominator that is 0 before that is a pole.
    let ends = |p: Tensor| is_negative(p) & p.ge(c);
    let pole = is_negative(c) & !ends(a) & !ends(b) & x.ne(0.0) & !(a + b).is_nan();
    let value = where_(pole, full_like(x, f64::INFINITY), value);
    let value = where_(x.eq(0.0) & !(a + b + c).is_nan(), ones_like(x), value);
    let value = where_(inside, value, full_like(x, f64::NAN));
    where_(at_one, gauss_at_one(a, b, c), value)
}

/// The limit of [`gauss`] at 1: Gauss's product of gamma functions.
fn gauss_at_one(a: Tensor, b: Tensor, c: Tensor) -> Tensor {
    let rest = c - a - b;
    let converges = rest.gt(0.0);
    let rest = where_(converges, rest, ones_like(rest));
    let sign = [c, c - a, c - b].into_iter().map(gammasgn).fold(ones_like(c), |x, y| x * y);
    let size = c.lgamma() + rest.lgamma() - (c - a).lgamma() - (c - b).lgamma();
    let diverges =
        where_((a + b + c).is_nan(), full_like(c, f64::NAN), full_like(c, f64::INFINITY));
    where_(converges, sign * size.exp(), diverges)
}

/// `jax.scipy.special.bessel_jn` with `v` and `n_iter`: the Bessel functions of the first kind of orders
/// 0 to `v`, along a new first axis, by downward recurrence from order `n_iter`, which must be above
/// `v` and the absolute values of `z`.
#[op(at_line)]
pub fn bessel_jn(z: Tensor, v: usize, n_iter: usize) -> Tensor {
    if n_iter <= v || n_iter > 1000 {
        let problem = format!("takes iterations above order {v}, at most 1000; was given {n_iter}");
        fail_op("bessel_jn", problem);
    }
    in_f32("bessel_jn", [z], |[z]| bessel(z, v, n_iter))
}

fn bessel(z: Tensor, v: usize, n_iter: usize) -> Tensor {
    // Ratios of neighboring orders, and the sum J0 + 2 J2 + 2 J4 + .. = 1 in units of the order.
    let step = |(ratio, sum): (Tensor, Tensor), n: Tensor| {
        let ratio = 1.0 / (n * 2.0 / z - ratio);
        let weight = 2.0 - (n - 1.0).modulo(2.0) * 2.0;
        ((ratio, sum * ratio + weight), ratio)
    };
    let orders = (n_iter as i32 - arange(n_iter, DType::I32)).to(z.dtype());
    let last = if n_iter.is_multiple_of(2) { 2.0 } else { 0.0 };
    let start = (full_like(z, 0.0), full_like(z, last));
    let ((_, sum), ratios) = scan(step, start, orders);
    let mut rows = vec![1.0 / (sum - 1.0)];
    for order in 1..=v {
        rows.push(rows[order - 1] * ratios.index_axis(0, (n_iter - order) as isize));
    }
    stack(&rows, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::jvp::jvp;
    use crate::trace::literal::Literal;
    use crate::trace::ops::{constant, zeros_like};
    use crate::trace::testing::numbers;

    /// By `a`, `b` and `x` where a formula of its own would take the place of the series.
    #[test]
    fn hyp1f1_keeps_its_derivatives_at_special_operands() {
        // At x = 0 the slope is a / b; at a = b those by a and b are opposite, and that by x is e^x.
        for (operands, expected) in [
            ([1.0f32, 2.0, 0.0], [0.0, 0.0, 0.5]),
            ([2.0, 2.0, 1.0], [1.165_381_8, -1.165_381_8, 2.718_281_7]),
        ] {
            let found = numbers(|| {
                let [a, b, x] = operands.map(|value| constant(Literal::scalar(value)));
                let (one, zero) = (ones_like(x), zeros_like(x));
                let along = |t| jvp(|(a, b, x)| hyp1f1(a, b, x), (a, b, x), t).1;
                [along((one, zero, zero)), along((zero, one, zero)), along((zero, zero, one))]
            });
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{operands:?}: {found}, not {expected}");
            }
        }
    }
}
