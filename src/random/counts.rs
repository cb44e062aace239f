//! Distributions of counts.

use super::{Key, parameters};
use crate::random::real::uniform;
use crate::trace::control::{scan, while_loop};
use crate::trace::literal::Literal;
use crate::trace::ops::{IndexMode, Operand, constant, full, full_like, where_, zeros, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::{DType, Shape, TensorType};

/// State of a loop that draws until every element has an accepted sample.
type Accepting = (Tensor, Tensor, Key<Tensor>);

fn all_accepted(state: &Accepting) -> Tensor {
    state.1.all(..)
}

/// Samples numbers of failures before the first success, plus 1, of trials with success probability
/// `p`: `jax.random.geometric`. `dtype` is an integer type.
#[op]
pub fn geometric(
    key: Key<Tensor>,
    p: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let [p] = probabilities("geometric", &shape, [p.to_tensor(&TensorType::scalar(DType::F32))]);
    let u = uniform(key, &shape, p.dtype(), 0.0, 1.0);
    let u = where_(u.eq(0.0), full_like(u, 1.0), u);
    ((u.log() / (-p).log1p()).floor() + 1.0).to(dtype)
}

/// Parameters in their own float type.
#[track_caller]
fn probabilities<const N: usize>(op: &str, shape: &Shape, given: [Tensor; N]) -> [Tensor; N] {
    let dtype = given[0].dtype();
    parameters(op, shape, dtype, given)
}

/// Poisson samples of means below 10, by products of uniform numbers (Knuth).
fn poisson_by_products(key: Key<Tensor>, mean: Tensor) -> Tensor {
    let shape = mean.shape();
    type Carry = (Tensor, Key<Tensor>, Tensor);
    let unfinished = |(_, _, log_product): Carry| log_product.gt(-mean).any(..);
    let step = |(count, key, log_product): Carry| {
        let (key, now) = key.split();
        let count = where_(log_product.gt(-mean), count + 1, count);
        let u = uniform(now, &shape, DType::F32, 0.0, 1.0);
        (count, key, log_product + u.log().to(mean.dtype()))
    };
    let start = (zeros(&shape, DType::I32), key, zeros_like(mean));
    while_loop(unfinished, step, start).0 - 1
}

/// Poisson samples of large means, by transformed rejection (Hormann 1993).
fn poisson_by_rejection(key: Key<Tensor>, mean: Tensor) -> Tensor {
    let shape = mean.shape();
    let log_mean = mean.log();
    let b = mean.sqrt() * 2.53 + 0.931;
    let a = b * 0.02483 - 0.059;
    let inverse_alpha = 1.1328 / (b - 3.4) + 1.1239;
    let v_r = 0.9277 - 3.6224 / (b - 2.0);
    let step = |(drawn, accepted, key): Accepting| {
        let [key, of_u, of_v] = key.split_n();
        let u = uniform(of_u, &shape, mean.dtype(), 0.0, 1.0) - 0.5;
        let v = uniform(of_v, &shape, mean.dtype(), 0.0, 1.0);
        let shifted = 0.5 - u.abs();
        let k = ((a * 2.0 / shifted + b) * u + mean + 0.43).floor();
        let s = (v * inverse_alpha / (a / (shifted * shifted) + b)).log();
        let t = -mean + k * log_mean - (k + 1.0).lgamma();
        let at_once = shifted.ge(0.07) & v.le(v_r);
        let rejected = k.lt(0.0) | (shifted.lt(0.013) & v.gt(shifted));
        let accept = at_once | (!rejected & s.le(t));
        (where_(accept, k, drawn), accepted | accept, key)
    };
    let start = (full_like(mean, -1.0), full(&shape, 0.0, DType::Bool), key);
    while_loop(|state: Accepting| !all_accepted(&state), step, start).0.to(DType::I32)
}

/// Samples from the Poisson distribution of this mean, an f32 tensor that broadcasts to `shape` or a
/// number: `jax.random.poisson`. `dtype` is an integer type. Samples of an infinite mean are the largest
/// `i32`, for which JAX's loop takes minutes.
#[op(at_line)]
pub fn poisson(
    key: Key<Tensor>,
    mean: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    if !dtype.is_int() {
        fail_op("poisson", format!("draws integers, and was asked for {dtype}"));
    }
    let given = [mean.to_tensor(&TensorType::scalar(DType::F32))];
    let [mean] = probabilities("poisson", &shape, given);
    let small = mean.is_nan() | mean.lt(10.0);
    // Both loops draw from the same key; the elements of the other one are done at once.
    let words = key.into_data();
    let of_products = where_(small, mean, zeros_like(mean));
    // No sample of an infinite mean would be accepted.
    let infinite = mean.eq(f64::INFINITY);
    let of_rejection = where_(small | infinite, full_like(mean, 1e5), mean);
    let by_products = poisson_by_products(Key::from_data(words), of_products);
    let by_rejection = poisson_by_rejection(Key::from_data(words), of_rejection);
    let drawn = where_(small, by_products, by_rejection);
    let drawn = where_(infinite, full_like(drawn, f64::from(i32::MAX)), drawn);
    where_(mean.eq(0.0), zeros_like(drawn), drawn).to(dtype)
}

/// Binomial samples of small means, by geometric steps.
fn binomial_by_steps(key: Key<Tensor>, count: Tensor, p: Tensor) -> Tensor {
    let shape = p.shape();
    let log_failure = (-p).log1p();
    type Carry = (Tensor, Tensor, Key<Tensor>);
    let unfinished = |(_, sum, _): Carry| sum.le(count).any(..);
    let step = |(steps, sum, key): Carry| {
        let (now, key) = key.split();
        let steps = where_(sum.le(count), steps + 1.0, steps);
        let u = uniform(now, &shape, p.dtype(), 0.0, 1.0);
        (steps, sum + (u.log() / log_failure).ceil(), key)
    };
    while_loop(unfinished, step, (zeros_like(p), zeros_like(p), key)).0 - 1.0
}

/// Error of Stirling's formula of `log(k!)`.
fn stirling_tail(k: Tensor) -> Tensor {
    // log(k!) - (k + 1/2) log(k + 1) + (k + 1) - log(2 pi) / 2.
    let mut table = [0.0f64; 10];
    let mut log_factorial = 0.0f64;
    for (k, value) in table.iter_mut().enumerate() {
        let x = k as f64 + 1.0;
        *value = log_factorial - (x - 0.5) * x.ln() + x - 0.5 * (2.0 * std::f64::consts::PI).ln();
        log_factorial += x.ln();
    }
    let few = k.le(9.0);
    // The series is computed from the clamped number as well, as in JAX.
    let k = k.clamp(0.0, 9.0);
    let at = k.floor().to(DType::I32);
    let exact =
        constant(Literal::new([10], &table)).to(k.dtype()).take_mode(at, 0, IndexMode::Clip);
    let square = (k + 1.0) * (k + 1.0);
    let series = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0);
    where_(few, exact, series)
}

/// Binomial samples of large means, by transformed rejection (Hormann 1993, BTRS).
fn binomial_by_rejection(key: Key<Tensor>, count: Tensor, p: Tensor) -> Tensor {
    let shape = p.shape();
    let deviation = (count * p * (1.0 - p)).sqrt();
    let b = deviation * 2.53 + 1.15;
    let a = b * 0.0248 - 0.0873 + p * 0.01;
    let c = count * p + 0.5;
    let v_r = 0.92 - 4.2 / b;
    let r = p / (1.0 - p);
    let alpha = (5.1 / b + 2.83) * deviation;
    let m = ((count + 1.0) * p).floor();
    let step = |(drawn, accepted, key): Accepting| {
        let [key, of_u, of_v] = key.split_n();
        let u = uniform(of_u, &shape, p.dtype(), 0.0, 1.0);
        let v = uniform(of_v, &shape, p.dtype(), 0.0, 1.0);
        let u = u - 0.5;
        let shifted = 0.5 - u.abs();
        let at_once = shifted.ge(0.07) & v.le(v_r);
        let k = ((a * 2.0 / shifted + b) * u + c).floor();
        let rejected = k.lt(0.0) | k.gt(count);
        let v = (v * alpha / (a / (shifted * shifted) + b)).log();
        let bound = (m + 0.5) * ((m + 1.0) / (r * (count - m + 1.0))).log()
            + (count + 1.0) * ((count - m + 1.0) / (count - k + 1.0)).log()
            + (k + 0.5) * (r * (count - k + 1.0) / (k + 1.0)).log()
            + stirling_tail(m)
            + stirling_tail(count - m)
            - stirling_tail(k)
            - stirling_tail(count - k);
        let accept = at_once | (!rejected & v.le(bound));
        (where_(accept, k, drawn), accepted | accept, key)
    };
    let start = (full_like(p, -1.0), full(&shape, 0.0, DType::Bool), key);
    while_loop(|state: Accepting| !all_accepted(&state), step, start).0
}

/// Samples numbers of successes in `n` trials with success probability `p`, both numbers or tensors
/// that broadcast to `shape`: `jax.random.binomial`. The result is of `dtype`, a float type; NaN where a
/// parameter is negative or NaN.
#[op(at_line)]
pub fn binomial(
    key: Key<Tensor>,
    n: impl Operand,
    p: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let (shape, scalar) = (shape.into(), TensorType::scalar(dtype));
    let given = [n.to_tensor(&scalar), p.to_tensor(&scalar)];
    let [count, p] = parameters("binomial", &shape, dtype, given);
    let low = p.lt(0.5);
    let q = where_(low, p, 1.0 - p);
    let bad_count = count.is_nan() | count.lt(0.0);
    let bad_q = q.is_nan() | q.lt(0.0);
    let is_nan = q.is_nan();
    let infinite = count.is_inf();
    let q = where_(bad_q, full_like(q, 0.01), q);
    let few = bad_count | (count * q).le(10.0);
    let count = count.floor();
    let words = key.into_data();
    let by_steps =
        binomial_by_steps(Key::from_data(words), where_(few, count, zeros_like(count)), q);
    let by_rejection = binomial_by_rejection(
        Key::from_data(words),
        where_(few, full_like(count, 1e4), count),
        where_(few, full_like(q, 0.5), q),
    );
    let drawn = where_(few, by_steps, by_rejection);
    let drawn = where_(bad_q | bad_count, full_like(drawn, f64::NAN), drawn);
    let drawn = where_(infinite & !(bad_q | bad_count), full_like(drawn, f64::INFINITY), drawn);
    where_(low | bad_count | is_nan | infinite, drawn, count - drawn)
}

/// Samples how many of `n` trials, a number or a tensor of the other axes of `p`, end in each class, with
/// probabilities along the last axis of `p`: `jax.random.multinomial`.
#[op(at_line)]
pub fn multinomial(key: Key<Tensor>, n: impl Operand, p: Tensor) -> Tensor {
    let ty = p.ty();
    if ty.rank() == 0 || !ty.dtype.is_float() {
        fail_op("multinomial", format!("takes probabilities along an axis, and was given {ty}"));
    }
    let batch = ty.shape.without_axis(ty.rank() - 1);
    let n = n.to_tensor(&TensorType::scalar(ty.dtype)).to(ty.dtype).broadcast_to(&batch);
    let first = p.moveaxis(-1, 0);
    let left = first.cumsum_reverse(0);
    let ratios = first / where_(left.eq(0.0), full_like(left, 1.0), left);
    let step = |rest: Tensor, (ratio, key): (Tensor, Key<Tensor>)| {
        let count = binomial(key, rest, ratio.clip(0.0, 1.0), &batch, ty.dtype);
        (rest - count, count)
    };
    let keys = key.split_batch(first.dim(0));
    scan(step, n, (ratios, keys)).1.moveaxis(0, -1)
}
