//! Continuous distributions that are a function of uniform or normal numbers.

use super::{Key, parameters};
use crate::random::discrete::bernoulli;
use crate::random::real::{exponential, normal, uniform};
use crate::trace::numpy::orthonormal_columns_unscaled;
use crate::trace::ops::{Operand, cholesky, where_};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::vmap::vmap;
use crate::trace::{DType, Shape, TensorType};

/// Distance from 1 to the next number above, and the least normal number.
#[track_caller]
fn limits(op: &str, dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (2f64.powi(-10), 2f64.powi(-14)),
        DType::BF16 => (2f64.powi(-7), 2f64.powi(-126)),
        DType::F32 => (f32::EPSILON.into(), f32::MIN_POSITIVE.into()),
        DType::F64 => (f64::EPSILON, f64::MIN_POSITIVE),
        _ => fail_op(op, format!("draws floats, and was asked for {dtype}")),
    }
}

/// Samples from the standard Cauchy distribution: `jax.random.cauchy`.
#[op]
pub fn cauchy(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let (eps, _) = limits("cauchy", dtype);
    ((uniform(key, shape, dtype, eps, 1.0) - 0.5) * std::f64::consts::PI).tan()
}

/// Samples from the standard Laplace distribution: `jax.random.laplace`.
#[op]
pub fn laplace(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let (eps, _) = limits("laplace", dtype);
    let u = uniform(key, shape, dtype, -1.0 + 0.5 * eps, 1.0);
    u.sign() * (-u.abs()).log1p()
}

/// Samples from the standard logistic distribution: `jax.random.logistic`.
#[op]
pub fn logistic(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let (_, tiny) = limits("logistic", dtype);
    let x = uniform(key, shape, dtype, tiny, 1.0);
    x.log() - (-x).log1p()
}

/// Samples from the Pareto distribution of shape parameter `b`: `jax.random.pareto`.
#[op]
pub fn pareto(key: Key<Tensor>, b: impl Operand, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let [b] = parameters("pareto", &shape, dtype, [b.to_tensor(&TensorType::scalar(dtype))]);
    (exponential(key, shape, dtype) / b).exp()
}

/// Samples -1 or 1, each with probability 1/2: `jax.random.rademacher`. `dtype` is any number type
/// with a sign.
#[op]
pub fn rademacher(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    if dtype.is_unsigned() || dtype == DType::Bool {
        fail_op("rademacher", format!("draws numbers with a sign, and was asked for {dtype}"));
    }
    bernoulli(key, 0.5, shape).to(dtype) * 2 - 1
}

/// Samples from the Maxwell distribution of scale 1: `jax.random.maxwell`.
#[op]
pub fn maxwell(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    normal(key, shape.with_axis(shape.rank(), 3), dtype).square().sum(-1).sqrt()
}

/// Samples from the double-sided Maxwell distribution around `loc`: `jax.random.double_sided_maxwell`
/// with scalar parameters.
#[op]
pub fn double_sided_maxwell(
    key: Key<Tensor>,
    loc: f64,
    scale: f64,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let (of_size, of_sign) = key.split();
    let size = maxwell(of_size, &shape, dtype);
    rademacher(of_sign, &shape, dtype) * size * scale + loc
}

/// Samples from the Weibull distribution: `jax.random.weibull_min`.
#[op(at_line)]
pub fn weibull_min(
    key: Key<Tensor>,
    scale: impl Operand,
    concentration: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let (shape, scalar) = (shape.into(), TensorType::scalar(dtype));
    let given = [scale.to_tensor(&scalar), concentration.to_tensor(&scalar)];
    let [scale, concentration] = parameters("weibull_min", &shape, dtype, given);
    let u = uniform(key, &shape, dtype, 0.0, 1.0);
    (-(-u).log1p()).pow(1.0 / concentration) * scale
}

/// Samples from the Rayleigh distribution: `jax.random.rayleigh`.
#[op]
pub fn rayleigh(
    key: Key<Tensor>,
    scale: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let given = [scale.to_tensor(&TensorType::scalar(dtype))];
    let [scale] = parameters("rayleigh", &shape, dtype, given);
    scale * (uniform(key, &shape, dtype, 0.0, 1.0).log() * -2.0).sqrt()
}

/// Samples from the Wald (inverse Gaussian) distribution of this mean: `jax.random.wald`.
#[op(at_line)]
pub fn wald(key: Key<Tensor>, mean: impl Operand, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let [mean] = parameters("wald", &shape, dtype, [mean.to_tensor(&TensorType::scalar(dtype))]);
    let (of_normal, of_choice) = key.split();
    let y = normal(of_normal, &shape, dtype).square();
    let z = uniform(of_choice, &shape, dtype, 0.0, 1.0);
    let square = mean.square();
    let root = (mean * 4.0 * y + square * y.square()).sqrt();
    let x = mean + square * y / 2.0 - mean / 2.0 * root;
    where_(z.le(mean / (mean + x)), x, square / x)
}

/// Samples from the triangular distribution over `left..right` with this `mode`:
/// `jax.random.triangular`.
#[op(at_line)]
pub fn triangular(
    key: Key<Tensor>,
    left: impl Operand,
    mode: impl Operand,
    right: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let (shape, scalar) = (shape.into(), TensorType::scalar(dtype));
    let given = [left.to_tensor(&scalar), mode.to_tensor(&scalar), right.to_tensor(&scalar)];
    let [left, mode, right] = parameters("triangular", &shape, dtype, given);
    let u = uniform(key, &shape, dtype, 0.0, 1.0);
    let width = right - left;
    let low = left + (u * width * (mode - left)).sqrt();
    let high = right - ((1.0 - u) * width * (right - mode)).sqrt();
    where_(u.lt((mode - left) / width), low, high)
}

/// Samples from the log-normal distribution: `jax.random.lognormal`.
#[op]
pub fn lognormal(
    key: Key<Tensor>,
    sigma: impl Operand,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let given = [sigma.to_tensor(&TensorType::scalar(dtype))];
    let [sigma] = parameters("lognormal", &shape, dtype, given);
    (normal(key, &shape, dtype) * sigma).exp()
}

/// Samples from the normal distribution with means along the last axis of `mean` and covariances `cov`,
/// `[.., n, n]`, positive definite: `jax.random.multivariate_normal` by Cholesky factors. The result
/// is `shape`, to which the axes before broadcast, and the last axis.
#[op(at_line)]
pub fn multivariate_normal(
    key: Key<Tensor>,
    mean: Tensor,
    cov: Tensor,
    shape: impl Into<Shape>,
) -> Tensor {
    let (shape, ty, matrix) = (shape.into(), mean.ty(), cov.ty());
    let n = ty.shape.last().copied().unwrap_or(0);
    if ty.rank() == 0 || matrix.rank() < 2 || matrix.shape[matrix.rank() - 2..] != [n, n] {
        let problem = format!("takes means [.., n] and covariances [.., n, n]: {ty} and {matrix}");
        fail_op("multivariate_normal", problem);
    }
    let noise = normal(key, shape.with_axis(shape.rank(), n), ty.dtype);
    let factor = cholesky(cov);
    let batch = Shape::from(&matrix.shape[..matrix.rank() - 2]);
    let draws = match batch.rank() {
        0 => noise.matmul(factor.t()),
        _ => factor.matmul(noise.expand_dims(-1)).squeeze(-1),
    };
    let draws = mean + draws;
    if draws.shape() != shape.with_axis(shape.rank(), n) {
        let problem = format!("the parameters {ty} and {matrix} do not broadcast to {shape}");
        fail_op("multivariate_normal", problem);
    }
    draws
}

/// Samples matrices of `n` rows and `m` columns with orthonormal rows or columns, uniformly:
/// `jax.random.orthogonal`. The result is `shape`, then both axes.
#[op(at_line)]
pub fn orthogonal(
    key: Key<Tensor>,
    n: usize,
    m: usize,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let (rows, columns) = (n.max(m), n.min(m));
    let noise = normal(key, [shape.numel(), rows, columns], dtype);
    let q = vmap(|x: Tensor| orthonormal_columns_unscaled(x))(noise);
    let q = if n < m { q.swapaxes(-1, -2) } else { q };
    q.reshape([&shape[..], &[n, m]].concat())
}
