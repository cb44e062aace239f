//! Initializers: initial distributions of a layer's parameters.
//!
//! Kernels have output features on the last axis and input features on the last but one; the axes
//! before are the window of a convolution. `fan_in` is therefore the product of all sizes except
//! the last.

use crate::random::{self, Key};
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Shape, Tensor};
use crate::trace::{numpy, ops};

/// Initializer of a parameter tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Every element has this value.
    Constant(f64),
    /// Uniform numbers from 0 to this one.
    Uniform(f64),
    /// Normal distribution of this standard deviation.
    Normal(f64),
    /// Standard normal distribution truncated to (-2, 2), times this number.
    TruncatedNormal(f64),
    /// Kernel of a convolution whose middle element is an orthonormal matrix times a gain, and whose
    /// others are 0.
    DeltaOrthogonal(f64),
    /// Matrix with orthonormal columns (or rows, if it is wide) times a gain.
    Orthogonal(f64),
    /// Distribution with mean 0 and a variance of `scale` divided by a number of units.
    VarianceScaling {
        /// Variance times the number of units.
        scale: f64,
        /// Units that are counted.
        fan: Fan,
        /// The shape of the distribution.
        distribution: Distribution,
    },
}

/// Units that [`Init::VarianceScaling`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fan {
    /// Input units of an output unit (`fan_in`).
    In,
    /// Output units of an input unit (`fan_out`).
    Out,
    /// Mean of `fan_in` and `fan_out`.
    Average,
}

/// The shape of the distribution of [`Init::VarianceScaling`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Uniform around 0.
    Uniform,
    /// Normal.
    Normal,
    /// Normal, truncated at two standard deviations and rescaled to the same variance.
    TruncatedNormal,
}

/// Returns the initializer with zeros.
pub fn zeros() -> Init {
    Init::Constant(0.0)
}

/// Returns the initializer with ones.
pub fn ones() -> Init {
    Init::Constant(1.0)
}

/// Returns the initializer that sets every element to `value`.
pub fn constant(value: f64) -> Init {
    Init::Constant(value)
}

/// Uniform numbers from 0 to `scale`: `jax.nn.initializers.uniform`.
pub fn uniform(scale: f64) -> Init {
    Init::Uniform(scale)
}

/// Normal numbers of standard deviation `stddev`: `jax.nn.initializers.normal`.
pub fn normal(stddev: f64) -> Init {
    Init::Normal(stddev)
}

/// Standard normal numbers truncated to (-2, 2), times `stddev`:
/// `jax.nn.initializers.truncated_normal`.
pub fn truncated_normal(stddev: f64) -> Init {
    Init::TruncatedNormal(stddev)
}

/// Kernels of convolutions that map orthonormal features at first (Xiao et al. 2018):
/// `jax.nn.initializers.delta_orthogonal`. They have 3 to 5 axes, and no fewer output features than
/// input features.
pub fn delta_orthogonal(gain: f64) -> Init {
    Init::DeltaOrthogonal(gain)
}

/// Orthonormal columns times `gain` (Saxe et al. 2014), `jax.nn.initializers.orthogonal`. PPO uses
/// gains of sqrt(2) for hidden layers, 0.01 for the policy's and 1 for the value's head.
pub fn orthogonal(gain: f64) -> Init {
    Init::Orthogonal(gain)
}

fn scaling(scale: f64, fan: Fan, distribution: Distribution) -> Init {
    Init::VarianceScaling { scale, fan, distribution }
}

/// Variance `1 / fan_in`, truncated normal (LeCun et al. 1998): flax's default for kernels.
pub fn lecun_normal() -> Init {
    scaling(1.0, Fan::In, Distribution::TruncatedNormal)
}

/// Variance `1 / fan_in`, uniform: `U(+-sqrt(3 / fan_in))`.
pub fn lecun_uniform() -> Init {
    scaling(1.0, Fan::In, Distribution::Uniform)
}

/// Variance `2 / fan_in`, truncated normal (He et al. 2015): `jax.nn.initializers.he_normal`, also
/// called `kaiming_normal` there. PyTorch's of that name is [`kaiming_normal`].
pub fn he_normal() -> Init {
    scaling(2.0, Fan::In, Distribution::TruncatedNormal)
}

/// Variance `2 / fan_in`, uniform: `jax.nn.initializers.he_uniform`.
pub fn he_uniform() -> Init {
    scaling(2.0, Fan::In, Distribution::Uniform)
}

/// Variance `2 / fan_in`, normal: `torch.nn.init.kaiming_normal_`.
pub fn kaiming_normal() -> Init {
    scaling(2.0, Fan::In, Distribution::Normal)
}

/// Uniform for layers before a leaky ReLU of slope `a`: `U(+-sqrt(6 / ((1 + a^2) fan_in)))`,
/// `torch.nn.init.kaiming_uniform_`.
pub fn kaiming_uniform(a: f64) -> Init {
    scaling(2.0 / (1.0 + a * a), Fan::In, Distribution::Uniform)
}

/// Variance `2 / (fan_in + fan_out)`, truncated normal (Glorot & Bengio 2010).
pub fn glorot_normal() -> Init {
    scaling(1.0, Fan::Average, Distribution::TruncatedNormal)
}

/// Variance `2 / (fan_in + fan_out)`, uniform.
pub fn glorot_uniform() -> Init {
    scaling(1.0, Fan::Average, Distribution::Uniform)
}

/// `U(+-1 / sqrt(fan_in))`: PyTorch's default for the weights and biases of linear and
/// convolutional layers.
pub fn torch_default() -> Init {
    scaling(1.0 / 3.0, Fan::In, Distribution::Uniform)
}

/// Standard deviation of the standard normal distribution truncated to (-2, 2).
const TRUNCATED_STD: f64 = 0.879_625_661_034_239_8;

impl Init {
    /// Samples a tensor from this distribution. `dtype` is f16, bf16, f32 or f64; orthogonal matrices are
    /// f32 or f64, as in JAX.
    #[op("Init::draw")]
    pub fn draw(self, key: Key<Tensor>, shape: impl Into<Shape>, dtype: DType) -> Tensor {
        let shape = shape.into();
        let plain = matches!(
            self,
            Init::Constant(_) | Init::Uniform(_) | Init::Normal(_) | Init::TruncatedNormal(_)
        );
        if plain {
            return self.draw_fans(key, &shape, dtype, (1, 1));
        }
        if shape.rank() < 2 {
            let problem = format!("a kernel has at least two axes, and the shape is {shape}");
            fail_op("init", problem);
        }
        let rank = shape.rank();
        let window = Shape::from(&shape[..rank - 2]).numel();
        let fans = (window.saturating_mul(shape[rank - 2]), window.saturating_mul(shape[rank - 1]));
        self.draw_fans(key, &shape, dtype, fans)
    }

    /// [`Init::draw`] with given numbers of input and output units: for biases, which use the
    /// `fan_in` of their kernel.
    #[track_caller]
    pub(crate) fn draw_fans(
        self,
        key: Key<Tensor>,
        shape: &Shape,
        dtype: DType,
        (fan_in, fan_out): (usize, usize),
    ) -> Tensor {
        let is_wide = matches!(dtype, DType::F32 | DType::F64);
        let needs_wide = matches!(self, Init::Orthogonal(_) | Init::DeltaOrthogonal(_));
        if needs_wide && !is_wide {
            fail_op("init", format!("draws f32 or f64, and was asked for {dtype}"));
        }
        if !is_wide && !matches!(dtype, DType::F16 | DType::BF16) {
            fail_op("init", format!("draws floats, and was asked for {dtype}"));
        }
        let (scale, fan, distribution) = match self {
            Init::Constant(value) => return ops::full(shape, value, dtype),
            Init::Orthogonal(gain) => return orthogonal_matrix(key, shape, dtype) * gain,
            Init::DeltaOrthogonal(gain) => return delta_kernel(key, shape, dtype) * gain,
            Init::Uniform(scale) => return random::uniform(key, shape, dtype, 0.0, 1.0) * scale,
            Init::Normal(stddev) => return random::normal(key, shape, dtype) * stddev,
            Init::TruncatedNormal(stddev) => {
                return random::truncated_normal(key, -2.0, 2.0, shape, dtype) * stddev;
            }
            Init::VarianceScaling { scale, fan, distribution } => (scale, fan, distribution),
        };
        let units = match fan {
            Fan::In => fan_in as f64,
            Fan::Out => fan_out as f64,
            Fan::Average => (fan_in + fan_out) as f64 / 2.0,
        };
        // Each step is rounded as in JAX, so that samples are equal bit for bit.
        let round = |x: f64| match dtype {
            DType::F16 => half::f16::from_f32(x as f32).to_f64(),
            DType::BF16 => half::bf16::from_f32(x as f32).to_f64(),
            DType::F32 => x as f32 as f64,
            _ => x,
        };
        let variance = round(scale / units);
        match distribution {
            Distribution::Uniform => {
                let limit = round(round(3.0 * variance).sqrt());
                random::uniform(key, shape, dtype, -1.0, 1.0) * limit
            }
            Distribution::Normal => random::normal(key, shape, dtype) * round(variance.sqrt()),
            Distribution::TruncatedNormal => {
                let std = round(round(variance.sqrt()) / round(TRUNCATED_STD));
                random::truncated_normal(key, -2.0, 2.0, shape, dtype) * std
            }
        }
    }
}

/// Samples a matrix of `shape`, with all axes before the last merged, with orthonormal columns or
/// rows.
#[track_caller]
fn orthogonal_matrix(key: Key<Tensor>, shape: &Shape, dtype: DType) -> Tensor {
    if shape.rank() < 2 {
        fail_op("orthogonal", format!("takes at least two axes, and the shape is {shape}"));
    }
    let columns = shape[shape.rank() - 1];
    let rows = Shape::from(&shape[..shape.rank() - 1]).numel();
    let tall = random::normal(key, [rows.max(columns), rows.min(columns)], dtype);
    let q = numpy::orthonormal_columns_unscaled(tall);
    let matrix = if rows < columns { q.t() } else { q };
    matrix.reshape(shape)
}

/// Samples the kernel of [`Init::DeltaOrthogonal`].
#[track_caller]
fn delta_kernel(key: Key<Tensor>, shape: &Shape, dtype: DType) -> Tensor {
    let rank = shape.rank();
    if !(3..=5).contains(&rank) || shape[rank - 1] < shape[rank - 2] {
        let problem = format!(
            "takes 3 to 5 axes, the last no smaller than the one before, and the shape is {shape}"
        );
        fail_op("delta_orthogonal", problem);
    }
    let features = Shape::from(&shape[rank - 2..]);
    let matrix = orthogonal_matrix(key, &features, dtype);
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    for axis in 0..rank - 2 {
        let middle = shape[axis].saturating_sub(1) / 2;
        (low[axis], high[axis]) = (middle as i64, (shape[axis] - 1 - middle) as i64);
    }
    let one: Vec<usize> = vec![1; rank - 2];
    matrix.reshape([&one[..], &features[..]].concat()).pad(&low, &high, 0.0)
}
