//! The gamma distribution, and the distributions made of it.

use super::{Key, parameters};
use crate::random::continuous::rademacher;
use crate::random::real::{exponential, normal, uniform};
use crate::trace::control::while_loop;
use crate::trace::custom::custom_jvp;
use crate::trace::numpy::random_gamma_grad;
use crate::trace::ops::{Operand, ones_like, where_, zeros_like};
use crate::trace::remat::optimization_barrier;
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::vmap::vmap;
use crate::trace::{DType, Shape, TensorType};

/// One sample for the shape parameter `alpha`, a scalar, by the rejection method of Marsaglia and
/// Tsang (2000), or its logarithm. Shapes below 1 are raised by 1 and corrected by a power of a
/// uniform number.
fn sample(key: Key<Tensor>, alpha: Tensor, log_space: bool) -> Tensor {
    type Carry = (Key<Tensor>, Tensor, Tensor, Tensor);
    let (dtype, scalar) = (alpha.dtype(), TensorType::scalar(alpha.dtype()));
    let number = |value: f64| value.to_tensor(&scalar);
    let large = alpha.ge(1.0);
    let d = where_(large, alpha, alpha + 1.0) - 1.0 / 3.0;
    // XLA merges this factor with the one of `normal` where it knows both; JAX's keeps them apart.
    let c = optimization_barrier(number(1.0 / 3.0) / d.sqrt());
    let rejected = |(_, square, v, u): Carry| {
        let squeezed = u.ge(1.0 - square * square * 0.0331);
        squeezed & u.log().ge(square * 0.5 + d * (1.0 - v + v.log()))
    };
    let propose = |(key, ..): Carry| {
        let [key, of_x, of_u] = key.split_n();
        let draw = |(key, ..): (Key<Tensor>, Tensor, Tensor)| {
            let (key, now) = key.split();
            let x = normal(now, [], dtype);
            (key, x, x * c + 1.0)
        };
        let start = (of_x, number(0.0), number(-1.0));
        let negative = |(_, _, v): (Key<Tensor>, Tensor, Tensor)| v.le(0.0);
        let (_, x, v) = while_loop(negative, draw, start);
        (key, x * x, v * v * v, uniform(of_u, [], dtype, 0.0, 1.0))
    };
    let (key, of_boost) = key.split();
    // The first proposal counts as rejected.
    let start = (key, number(0.0), number(1.0), number(2.0));
    let (_, _, v, _) = while_loop(rejected, propose, start);
    if log_space {
        let log = -exponential(of_boost, [], dtype);
        let boost = where_(large | log.eq(0.0), zeros_like(log), log * (1.0 / alpha));
        d.log() + v.log() + boost
    } else {
        let power = (1.0 - uniform(of_boost, [], dtype, 0.0, 1.0)).pow(1.0 / alpha);
        d * v * where_(large, ones_like(power), power)
    }
}

/// Samples for each of the shape parameters `a`, with their derivative by it.
fn samples(key: Key<Tensor>, a: Tensor, log_space: bool) -> Tensor {
    let shape = a.shape();
    let value = move |(words, a): (Tensor, Tensor)| {
        let keys = Key::from_data(words).split_batch(a.numel());
        let each = |(key, alpha): (Key<Tensor>, Tensor)| sample(key, alpha, log_space);
        vmap(each)((keys, a))
    };
    let rule = move |(words, a): (Tensor, Tensor), (_, t): (Tensor, Tensor)| {
        let drawn = value((words, a));
        let (wide, tiny) = match a.dtype() {
            DType::F64 => (DType::F64, f64::MIN_POSITIVE),
            _ => (DType::F32, f32::MIN_POSITIVE.into()),
        };
        let x = drawn.to(wide);
        let x = if log_space { x.exp().maximum(tiny) } else { x };
        let slope = random_gamma_grad(a.to(wide), x);
        let slope = if log_space { slope / x } else { slope };
        (drawn, t * slope.to(t.dtype()))
    };
    custom_jvp(value, rule)((key.into_data(), a.ravel())).reshape(shape)
}

/// Samples from the gamma distribution of shape parameter `a`, a number or a tensor that broadcasts to
/// `shape`, and scale 1: `jax.random.gamma`. With a derivative by `a`.
///
/// ```
/// use podracer::random::{self, Key};
/// use podracer::{DType, Tensor, interpret};
/// let draw = interpret(|key: Key<Tensor>| random::gamma(key, 2.0, [3], DType::F32));
/// assert!(draw.call(Key::new(0))?.to_vec::<f32>()?.iter().all(|&x| x > 0.0));
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn gamma(key: Key<Tensor>, a: impl Operand, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let [a] = parameters("gamma", &shape, dtype, [a.to_tensor(&TensorType::scalar(dtype))]);
    samples(key, a, false)
}

/// Samples the logarithm of [`gamma`], which does not vanish for small `a`: `jax.random.loggamma`.
#[op(at_line)]
pub fn loggamma(
    key: Key<Tensor>,
    a: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let [a] = parameters("loggamma", &shape, dtype, [a.to_tensor(&TensorType::scalar(dtype))]);
    samples(key, a, true)
}

/// Samples from the beta distribution of parameters `a` and `b`, numbers or tensors that broadcast to
/// `shape`: `jax.random.beta`.
#[op(at_line)]
pub fn beta(
    key: Key<Tensor>,
    a: impl Operand,
    b: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let (shape, scalar) = (shape.into(), TensorType::scalar(dtype));
    let given = [a.to_tensor(&scalar), b.to_tensor(&scalar)];
    let [a, b] = parameters("beta", &shape, dtype, given);
    let (of_a, of_b) = key.split();
    let (x, y) = (samples(of_a, a, true), samples(of_b, b, true));
    let largest = x.maximum(y);
    let (x, y) = ((x - largest).exp(), (y - largest).exp());
    x / (x + y)
}

/// Samples from the Dirichlet distribution of the concentrations along the last axis of `alpha`:
/// `jax.random.dirichlet`. The result is `shape`, to which the other axes of `alpha` broadcast, and
/// the last axis.
#[op(at_line)]
pub fn dirichlet(key: Key<Tensor>, alpha: Tensor, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let (shape, ty) = (shape.into(), alpha.ty());
    let Some(&classes) = ty.shape.last() else {
        fail_op("dirichlet", format!("takes at least one axis, and was given {ty}"))
    };
    let full = shape.with_axis(shape.rank(), classes);
    let [alpha] = parameters("dirichlet", &full, dtype, [alpha]);
    let log = samples(key, alpha, true);
    let weights = (log - log.max_keepdims(-1).stop_gradient()).exp();
    weights / weights.sum_keepdims(-1)
}

/// Samples from Student's t distribution of `df` degrees of freedom: `jax.random.t`.
#[op(at_line)]
pub fn t(key: Key<Tensor>, df: impl Operand, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let [df] = parameters("t", &shape, dtype, [df.to_tensor(&TensorType::scalar(dtype))]);
    let (of_normal, of_gamma) = key.split();
    let half = df / 2.0;
    normal(of_normal, &shape, dtype) * (half / samples(of_gamma, half, false)).sqrt()
}

/// Samples from the chi-squared distribution of `df` degrees of freedom: `jax.random.chisquare`.
#[op(at_line)]
pub fn chisquare(
    key: Key<Tensor>,
    df: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let given = [df.to_tensor(&TensorType::scalar(dtype))];
    let [df] = parameters("chisquare", &shape, dtype, given);
    samples(key, df / 2.0, true).exp() * 2.0
}

/// Samples from the F distribution of `dfnum` and `dfden` degrees of freedom: `jax.random.f`.
#[op(at_line)]
pub fn f(
    key: Key<Tensor>,
    dfnum: impl Operand,
    dfden: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let (shape, scalar) = (shape.into(), TensorType::scalar(dtype));
    let given = [dfnum.to_tensor(&scalar), dfden.to_tensor(&scalar)];
    let [dfnum, dfden] = parameters("f", &shape, dtype, given);
    let (of_den, of_num) = key.split();
    let num = chisquare(of_num, dfnum, &shape, dtype) / dfnum;
    num / (chisquare(of_den, dfden, &shape, dtype) / dfden)
}

/// Samples from the generalized normal distribution of power `p`: `jax.random.generalized_normal`.
#[op(at_line)]
pub fn generalized_normal(
    key: Key<Tensor>,
    p: f64,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let (of_size, of_sign) = key.split();
    let size = gamma(of_size, 1.0 / p, &shape, dtype);
    rademacher(of_sign, &shape, dtype) * size.pow(1.0 / p)
}

/// Samples uniformly from the unit ball of the `p`-norm in `d` dimensions, the last axis:
/// `jax.random.ball`.
#[op(at_line)]
pub fn ball(key: Key<Tensor>, d: usize, p: f64, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let (of_direction, of_radius) = key.split();
    let full = shape.with_axis(shape.rank(), d);
    let direction = generalized_normal(of_direction, p, full, dtype);
    let radius = exponential(of_radius, &shape, dtype);
    let norm = (direction.abs().pow(p).sum(-1) + radius).pow(1.0 / p);
    direction / norm.expand_dims(-1)
}
