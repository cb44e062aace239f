//! Normalization of kernels: functions of a kernel that stand before a layer.

use std::hash::{Hash, Hasher};

use super::norms::widened;
use crate::random::{self, Key};
use crate::trace::ops;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Divides `x` by its Euclidean norm over `axes`.
#[track_caller]
fn l2_normalize(x: Tensor, axes: &[isize], epsilon: f64) -> Tensor {
    x * (x.square().sum_keepdims(axes) + epsilon).rsqrt()
}

/// Weight normalization (Salimans & Kingma 2016): flax's `WeightNorm`. Each output feature of a
/// kernel gets norm 1, times a trainable scale. The layer takes the kernel that this returns:
/// `Dense { w: norm.apply(dense.w), ..dense.clone() }.apply(x)`.
#[derive(Debug, Clone, Tree)]
pub struct WeightNorm<T> {
    /// Scale, `[outputs]`; `None` is flax's `use_scale=False`.
    pub scale: Option<T>,
    /// Epsilon added to the squared norm.
    pub epsilon: f64,
}

impl WeightNorm<Tensor> {
    /// Initializes it in f32 for a kernel `[.., outputs]`, with scale 1 and epsilon 1e-12.
    #[op("WeightNorm::init")]
    pub fn init(outputs: usize) -> WeightNorm<Tensor> {
        WeightNorm { scale: Some(ops::ones([outputs], DType::F32)), epsilon: 1e-12 }
    }

    /// Returns the normalized kernel, of the same shape as `kernel: [.., outputs]`.
    #[op("WeightNorm::apply")]
    pub fn apply(&self, kernel: Tensor) -> Tensor {
        super::norms::expect_features("WeightNorm", kernel, &[self.scale]);
        let axes: Vec<isize> = (0..kernel.rank() as isize - 1).collect();
        let unit = l2_normalize(widened("WeightNorm", kernel), &axes, self.epsilon);
        super::norms::scaled(unit, self.scale, None).to(kernel.dtype())
    }
}

/// State of [`SpectralNorm`] for one kernel: flax keeps it in `batch_stats`.
#[derive(Debug, Clone, Tree)]
pub struct SpectralStats<T> {
    /// Left singular vector of the transposed kernel so far, `[1, outputs]`.
    pub u: T,
    /// Largest singular value so far, a scalar.
    pub sigma: T,
}

/// Spectral normalization (Miyato et al. 2018): flax's `SpectralNorm`. A kernel is divided by its
/// largest singular value, which power iteration approximates. The layer takes the kernel that this
/// returns, as with [`WeightNorm`]. It has no parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpectralNorm {
    /// Number of power iterations of one call.
    pub n_steps: usize,
    /// Epsilon added to squared norms.
    pub epsilon: f64,
}

impl Default for SpectralNorm {
    /// Returns flax's defaults: 1 step, epsilon 1e-12.
    fn default() -> SpectralNorm {
        SpectralNorm { n_steps: 1, epsilon: 1e-12 }
    }
}

impl Hash for SpectralNorm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.n_steps, self.epsilon.to_bits()).hash(state);
    }
}

impl SpectralNorm {
    /// Returns the state before the first call, in f32, for a kernel `[.., outputs]`.
    #[op("SpectralNorm::init")]
    pub fn init(&self, key: Key<Tensor>, outputs: usize) -> SpectralStats<Tensor> {
        let u = random::normal(key, [1, outputs], DType::F32);
        SpectralStats { u, sigma: ops::constant(1.0f32) }
    }

    /// Returns the normalized kernel, of the same shape as `kernel: [.., outputs]`, and the state:
    /// the next one if `update_stats`, else the given one. A kernel of fewer than two axes is
    /// returned as it is.
    #[op("SpectralNorm::apply")]
    pub fn apply(
        &self,
        kernel: Tensor,
        stats: SpectralStats<Tensor>,
        update_stats: bool,
    ) -> (Tensor, SpectralStats<Tensor>) {
        let shape = kernel.shape();
        if shape.rank() < 2 || self.n_steps == 0 {
            return (kernel, stats);
        }
        let outputs = kernel.dim(-1);
        if stats.u.shape()[..] != [1, outputs] {
            let problem =
                format!("the state is of {}, and the kernel {}", stats.u.ty(), kernel.ty());
            fail_op("SpectralNorm", problem);
        }
        let rows = shape[..shape.rank() - 1].iter().product();
        let matrix = widened("SpectralNorm", kernel).reshape([rows, outputs]);
        let (mut u, mut v) = (stats.u, stats.u);
        for _ in 0..self.n_steps {
            v = l2_normalize(u.matmul(matrix.t()), &[0, 1], self.epsilon);
            u = l2_normalize(v.matmul(matrix), &[0, 1], self.epsilon);
        }
        let (u, v) = (u.stop_gradient(), v.stop_gradient());
        let sigma = v.matmul(matrix).matmul(u.t()).reshape([]);
        let divisor = ops::where_(sigma.ne(0.0), sigma, ops::ones_like(sigma));
        let normal = (matrix / divisor).reshape(&shape).to(kernel.dtype());
        let next = SpectralStats { u, sigma };
        (normal, if update_stats { next } else { stats })
    }
}
