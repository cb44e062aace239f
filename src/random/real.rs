//! Sampling from continuous distributions.

use super::{Key, bits, check_shape};
use crate::trace::ops::Operand;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor, TensorType};

/// Layout of a float type: the unsigned type of its size, the number of explicit mantissa bits, the
/// bit pattern of 1, the smallest positive normal number, and the dtype of the random bits of a
/// uniform sample.
struct Format {
    unsigned: DType,
    mantissa: u32,
    one: u64,
    tiny: f64,
    drawn: DType,
}

#[track_caller]
fn format(name: &str, dtype: DType) -> Format {
    let (unsigned, mantissa, one, tiny_exponent, drawn) = match dtype {
        DType::F16 => (DType::U16, 10, 0x3C00, -14, DType::U16),
        // The seven mantissa bits are taken from 8 random bits, not from 16.
        DType::BF16 => (DType::U16, 7, 0x3F80, -126, DType::U8),
        DType::F32 => (DType::U32, 23, 0x3F80_0000, -126, DType::U32),
        DType::F64 => (DType::U64, 52, 0x3FF0_0000_0000_0000, -1022, DType::U64),
        _ => fail_op(name, format!("draws floats, and was asked for {dtype}")),
    };
    Format { unsigned, mantissa, one, tiny: 2f64.powi(tiny_exponent), drawn }
}

/// Samples uniform numbers in `[low, high)`: `jax.random.uniform`. The bounds are numbers, or
/// tensors of type `dtype` that broadcast to `shape`. f32 numbers are multiples of 2^-23 of the
/// range.
///
/// The result can be `high` itself if it rounds to the upper bound.
#[op]
pub fn uniform(
    key: Key<Tensor>,
    shape: impl Into<Shape>,
    dtype: DType,
    low: impl Operand,
    high: impl Operand,
) -> Tensor {
    let shape = shape.into();
    let format = format("uniform", dtype);
    let scalar = TensorType::scalar(dtype);
    let (low, high) = (low.to_tensor(&scalar), high.to_tensor(&scalar));
    check_shape("uniform", &shape, &[low, high]);
    let random = bits(key, &shape, format.drawn).to(format.unsigned);
    let unused = 8 * format.drawn.size() as u32 - format.mantissa;
    // Random mantissa bits of a number in [1, 2).
    let float = ((random >> unused) | format.one).bitcast(dtype) - 1.0;
    low.maximum(float * (high - low) + low)
}

/// Samples from the normal distribution with mean 0 and variance 1: `jax.random.normal`.
#[op]
pub fn normal(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let format = format("normal", dtype);
    // The next representable number above -1: the inverse error function is infinite at -1.
    let low = -1.0 + 0.5f64.powi(format.mantissa as i32 + 1);
    uniform(key, shape, dtype, low, 1.0).erf_inv() * std::f64::consts::SQRT_2
}

/// Samples from the normal distribution with mean 0 and variance 1, truncated to `(lower, upper)`:
/// `jax.random.truncated_normal`.
#[op]
pub fn truncated_normal(
    key: Key<Tensor>,
    lower: f64,
    upper: f64,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    // The open interval as a closed interval.
    let (inner_lower, inner_upper) = match dtype {
        DType::F16 => {
            let bits = [lower, upper].map(|x| half::f16::from_f32(x as f32).to_bits());
            let [low, high] = inwards(bits).map(half::f16::from_bits);
            (low.to_f64(), high.to_f64())
        }
        DType::BF16 => {
            let bits = [lower, upper].map(|x| half::bf16::from_f32(x as f32).to_bits());
            let [low, high] = inwards(bits).map(half::bf16::from_bits);
            (low.to_f64(), high.to_f64())
        }
        DType::F32 => ((lower as f32).next_up() as f64, (upper as f32).next_down() as f64),
        DType::F64 => (lower.next_up(), upper.next_down()),
        _ => fail_op("truncated_normal", format!("draws floats, and was asked for {dtype}")),
    };
    let scalar = TensorType::scalar(dtype);
    let sqrt_2 = std::f64::consts::SQRT_2;
    let low = (lower.to_tensor(&scalar) / sqrt_2).erf();
    let high = (upper.to_tensor(&scalar) / sqrt_2).erf();
    let draw = sqrt_2 * uniform(key, shape, dtype, low, high).erf_inv();
    draw.clip(inner_lower, inner_upper)
}

/// The bits of the numbers of 16 bits next to two bounds, between them.
fn inwards([lower, upper]: [u16; 2]) -> [u16; 2] {
    const SIGN: u16 = 0x8000;
    let next = |bits: u16, sign: u16| match bits {
        0 | SIGN => sign | 1,
        bits if bits & SIGN == sign => bits + 1,
        bits => bits - 1,
    };
    [next(lower, 0), next(upper, SIGN)]
}

/// Samples from the exponential distribution of rate 1: `jax.random.exponential`.
#[op]
pub fn exponential(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    -(-uniform(key, shape, dtype, 0.0, 1.0)).log1p()
}

/// Samples from the standard Gumbel distribution: `jax.random.gumbel` in its default mode.
#[op]
pub fn gumbel(key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let tiny = format("gumbel", dtype).tiny;
    -(-uniform(key, shape, dtype, tiny, 1.0).log()).log()
}
