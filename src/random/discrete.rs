//! Sampling of integers, choices and permutations.

use super::{Key, bits, check_shape};
use crate::random::real::{gumbel, uniform};
use crate::trace::ops::{self, IndexMode, Operand, where_};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor, TensorType};

/// Returns the smallest and the largest value of an integer type.
fn range_of(dtype: DType) -> (i64, u64) {
    let bits = if dtype.is_int4() { 4 } else { 8 * dtype.size() as u32 };
    if dtype.is_unsigned() {
        (0, u64::MAX >> (64 - bits))
    } else {
        (i64::MIN >> (64 - bits), u64::MAX >> (65 - bits))
    }
}

/// Converts to another integer type, saturating instead of wrapping.
#[track_caller]
fn to_saturating(x: Tensor, dtype: DType) -> Tensor {
    let (from, into) = (range_of(x.dtype()), range_of(dtype));
    let mut x = x;
    if from.0 < into.0 {
        x = x.maximum(into.0);
    }
    if from.1 > into.1 {
        x = x.minimum(into.1);
    }
    x.to(dtype)
}

/// Samples integers in `low..high`: `jax.random.randint`. `dtype` is any integer type; the bounds
/// are numbers, or integer tensors that broadcast to `shape`. The result is `low` where `high` is
/// not above `low`. `high` may be one more than the largest value of `dtype`.
///
/// Each number is the remainder of 64 random bits (128 for 64-bit types), computed in two halves;
/// ranges that are not powers of two are slightly biased.
#[op]
pub fn randint(
    key: Key<Tensor>,
    shape: impl Into<Shape>,
    low: impl Operand,
    high: impl Operand,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let scalar = TensorType::scalar(DType::I64);
    let (low, high) = (low.to_tensor(&scalar), high.to_tensor(&scalar));
    check_shape("randint", &shape, &[low, high]);
    if !dtype.is_int() {
        fail_op("randint", format!("draws integers, and was asked for {dtype}"));
    }
    for bound in [low, high] {
        if !bound.dtype().is_int() {
            fail_op("randint", format!("bounds are integers, and one is {}", bound.ty()));
        }
    }
    let (smallest, largest) = range_of(dtype);
    if dtype.size() < 4 {
        // Sampled as i32, which has less bias.
        let low = low.to(DType::I32).clip(smallest, largest);
        let high = high.to(DType::I32).clip(smallest, largest + 1);
        return randint(key, shape, low, high, DType::I32).to(dtype);
    }
    let unsigned = if dtype.size() == 4 { DType::U32 } else { DType::U64 };
    let beyond = if range_of(high.dtype()).1 > largest { Some(high.gt(largest)) } else { None };
    let (low, high) = (to_saturating(low, dtype), to_saturating(high, dtype));

    let span = (high - low).to(unsigned);
    let mut span = where_(high.le(low), ops::ones_like(span), span);
    if let Some(beyond) = beyond {
        // The span of the full range wraps to 0, and a remainder by 0 leaves the number unchanged,
        // as required.
        span = where_(beyond & high.gt(low), span + 1, span);
    }
    let (first, second) = key.split();
    let (upper, lower) = (bits(first, &shape, unsigned), bits(second, &shape, unsigned));
    // (upper * 2^bits + lower) % span without a wider type: 2^bits % span is computed from its
    // root.
    let root = ops::full_like(span, 2f64.powi(4 * unsigned.size() as i32)) % span;
    let multiplier = (root * root) % span;
    let offset = ((upper % span) * multiplier + lower % span) % span;
    low + offset.to(dtype)
}

/// Samples `true` with probability `p`, a number or a float tensor that broadcasts to `shape`:
/// `jax.random.bernoulli`.
#[op]
pub fn bernoulli(key: Key<Tensor>, p: impl Operand, shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    let p = p.to_tensor(&TensorType::scalar(DType::F32));
    check_shape("bernoulli", &shape, &[p]);
    uniform(key, shape, p.dtype(), 0.0, 1.0).lt(p)
}

/// Samples indices (i32) along `axis` of `logits` with probabilities `softmax(logits)`, and removes
/// that axis: `jax.random.categorical`, the argmax of `logits + gumbel noise`.
#[op]
pub fn categorical(key: Key<Tensor>, logits: Tensor, axis: isize) -> Tensor {
    let noise = gumbel(key, logits.shape(), logits.dtype());
    (noise + logits).argmax(axis)
}

/// [`categorical`] with several samples of each distribution: `draws` are axes inserted before the
/// remaining axes of `logits`.
#[op]
pub fn categorical_shaped(
    key: Key<Tensor>,
    logits: Tensor,
    axis: isize,
    draws: impl Into<Shape>,
) -> Tensor {
    let (shape, draws) = (logits.shape(), draws.into());
    let axis = ops::axis_of("categorical", axis, shape.rank());
    let full: Shape = draws.iter().chain(shape.iter()).copied().collect();
    let noise = gumbel(key, full, logits.dtype());
    (noise + logits).argmax((draws.rank() + axis) as isize)
}

/// Shuffles the elements of `x` along `axis`, each line along `axis` independently.
#[track_caller]
fn shuffle(key: Key<Tensor>, x: Tensor, axis: isize) -> Tensor {
    // Random sort keys can be equal. With this many successive sorts all permutations are equally
    // likely, except with probability below 1/n (JAX's rule).
    let size = x.numel().max(1) as f64;
    let rounds = (3.0 * size.ln() / (u32::MAX as f64).ln()).ceil() as usize;
    let (mut key, mut x) = (key, x);
    for _ in 0..rounds {
        let (next, now) = key.split();
        let words = bits(now, x.shape(), DType::U32);
        x = ops::sort_by(words, &[x], axis).1[0];
        key = next;
    }
    x
}

/// Returns the numbers `0..n` (i32) in a random order: `jax.random.permutation(key, n)`.
#[op]
pub fn permutation(key: Key<Tensor>, n: usize) -> Tensor {
    shuffle(key, ops::arange(n, DType::I32), 0)
}

/// Returns `x` with its slices along `axis` in a random order:
/// `jax.random.permutation(key, x, axis)`.
#[op]
pub fn permutation_of(key: Key<Tensor>, x: Tensor, axis: isize) -> Tensor {
    if x.rank() == 1 {
        return shuffle(key, x, axis);
    }
    let order = permutation(key, x.dim(axis));
    x.take_mode(order, axis, IndexMode::Clip)
}

/// Samples numbers (i32) from `0..n` uniformly, with or without replacement: the indices of
/// `jax.random.choice(key, n, shape, replace)`.
#[op]
pub fn choice(key: Key<Tensor>, n: usize, shape: impl Into<Shape>, replace: bool) -> Tensor {
    let shape = shape.into();
    check_choice(n, &shape, replace);
    if replace {
        return randint(key, shape, 0, n, DType::I32);
    }
    permutation(key, n).slice_axis(0, 0, shape.numel()).reshape(shape)
}

/// Samples numbers (i32) from `0..n` with the probabilities `p: f[n]`, with or without replacement:
/// the indices of `jax.random.choice(key, n, shape, replace, p)`.
///
/// With replacement, each sample is compared with all cumulative sums of the probabilities.
#[op]
pub fn choice_weighted(
    key: Key<Tensor>,
    p: Tensor,
    shape: impl Into<Shape>,
    replace: bool,
) -> Tensor {
    let (ty, shape) = (p.ty(), shape.into());
    if ty.rank() != 1 || !ty.dtype.is_float() {
        fail_op("choice", format!("takes a vector of probabilities, and was given {ty}"));
    }
    let n = ty.shape[0];
    check_choice(n, &shape, replace);
    if replace {
        let sums = p.cumsum(0);
        let total = sums.index_axis(0, -1);
        let at = total * (1.0 - uniform(key, &shape, ty.dtype, 0.0, 1.0));
        // Number of smaller cumulative sums, as `searchsorted` with `side="left"`.
        return sums.lt(at.expand_dims(-1)).to(DType::I32).sum(-1);
    }
    // The top elements of log p + Gumbel noise are a sample without replacement (Vieira 2014).
    let scores = gumbel(key, [n], ty.dtype) + p.log();
    (-scores).argsort(0).slice_axis(0, 0, shape.numel()).reshape(shape)
}

#[track_caller]
fn check_choice(n: usize, shape: &Shape, replace: bool) {
    let draws = shape.numel();
    if draws > 0 && (n == 0 || (!replace && draws > n)) {
        let how = if replace { "" } else { " without repetition" };
        fail_op("choice", format!("{draws} draws from {n} numbers{how}"));
    }
}
