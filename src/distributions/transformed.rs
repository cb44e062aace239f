//! Bijectors, and distributions of what they make of a sample.

use std::f64::consts::LN_2;

use super::multivariate::sum_last;
use crate::distributions::distribution::Distribution;
use crate::random::Key;
use crate::trace::Tensor;
use crate::trace::numpy::logit;
use crate::trace::ops::zeros_like;
use crate::trace::tensor::fail_op;

/// Differentiable function with an inverse: `distrax.Bijector`.
pub trait Bijector {
    /// Returns `y = f(x)`.
    fn forward(&self, x: Tensor) -> Tensor;

    /// Returns the `x` of `y = f(x)`.
    fn inverse(&self, y: Tensor) -> Tensor;

    /// Returns the logarithm of the absolute determinant of the Jacobian of `f` at `x`, one for each
    /// value.
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor;

    /// Returns that of the inverse at `y`.
    #[track_caller]
    fn inverse_log_det_jacobian(&self, y: Tensor) -> Tensor {
        -self.forward_log_det_jacobian(self.inverse(y))
    }

    /// Number of axes of one value: 0 for elementwise functions.
    fn event_ndims(&self) -> usize {
        0
    }
}

/// Hyperbolic tangent of each element: `distrax.Tanh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tanh;

impl Bijector for Tanh {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        x.tanh()
    }

    #[track_caller]
    fn inverse(&self, y: Tensor) -> Tensor {
        y.atanh()
    }

    #[track_caller]
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor {
        2.0 * (LN_2 - x - (-2.0 * x).softplus())
    }
}

/// Sigmoid of each element: `distrax.Sigmoid`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sigmoid;

impl Bijector for Sigmoid {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        x.sigmoid()
    }

    #[track_caller]
    fn inverse(&self, y: Tensor) -> Tensor {
        logit(y)
    }

    #[track_caller]
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor {
        -(-x).softplus() - x.softplus()
    }
}

/// `scale x + shift` of each element: `distrax.ScalarAffine`.
#[derive(Debug, Clone, Copy)]
pub struct ScalarAffine {
    /// Number that is added.
    pub shift: Tensor,
    /// Factor, not 0.
    pub scale: Tensor,
}

impl ScalarAffine {
    /// Returns the function `scale x + shift`.
    pub fn new(shift: Tensor, scale: Tensor) -> ScalarAffine {
        ScalarAffine { shift, scale }
    }
}

impl Bijector for ScalarAffine {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        self.scale * x + self.shift
    }

    #[track_caller]
    fn inverse(&self, y: Tensor) -> Tensor {
        (y - self.shift) / self.scale
    }

    #[track_caller]
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor {
        self.scale.abs().log().broadcast_to((x + self.scale + self.shift).shape())
    }
}

/// Composition of bijectors, of which the last is applied first: `distrax.Chain`.
pub struct Chain(
    /// The bijectors.
    pub Vec<Box<dyn Bijector>>,
);

impl Bijector for Chain {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        self.0.iter().rev().fold(x, |x, bijector| bijector.forward(x))
    }

    #[track_caller]
    fn inverse(&self, y: Tensor) -> Tensor {
        self.0.iter().fold(y, |y, bijector| bijector.inverse(y))
    }

    #[track_caller]
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor {
        let (mut x, mut sum) = (x, None);
        for bijector in self.0.iter().rev() {
            let log_det = bijector.forward_log_det_jacobian(x);
            let log_det = sum_last(log_det, self.event_ndims() - bijector.event_ndims());
            sum = Some(sum.map_or(log_det, |sum: Tensor| sum + log_det));
            x = bijector.forward(x);
        }
        sum.unwrap_or_else(|| zeros_like(x))
    }

    fn event_ndims(&self) -> usize {
        self.0.iter().map(|bijector| bijector.event_ndims()).max().unwrap_or(0)
    }
}

/// A bijector of arrays: the last `ndims` axes belong to one value, `distrax.Block`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<B> {
    /// Bijector of each element.
    pub bijector: B,
    /// Number of axes.
    pub ndims: usize,
}

impl<B> Block<B> {
    /// Returns the bijector of arrays along the last `ndims` axes.
    pub fn new(bijector: B, ndims: usize) -> Block<B> {
        Block { bijector, ndims }
    }
}

impl<B: Bijector> Bijector for Block<B> {
    #[track_caller]
    fn forward(&self, x: Tensor) -> Tensor {
        self.bijector.forward(x)
    }

    #[track_caller]
    fn inverse(&self, y: Tensor) -> Tensor {
        self.bijector.inverse(y)
    }

    #[track_caller]
    fn forward_log_det_jacobian(&self, x: Tensor) -> Tensor {
        sum_last(self.bijector.forward_log_det_jacobian(x), self.ndims)
    }

    fn event_ndims(&self) -> usize {
        self.bijector.event_ndims() + self.ndims
    }
}

/// Distribution of `bijector.forward(x)` for samples `x` of `distribution`: `distrax.Transformed`, by the
/// change of variables. Values of both have the same number of axes; see [`Block`] and
/// [`Independent`](super::Independent).
///
/// ```
/// use podracer::distributions::{Block, DiagNormal, Distribution, Tanh, Transformed};
/// use podracer::{Array, Key, Tensor, interpret};
///
/// let sample = interpret(|(key, mean): (Key<Tensor>, Tensor)| {
///     let normal = DiagNormal::new(mean, mean.exp());
///     let policy = Transformed::new(normal, Block::new(Tanh, 1));
///     policy.sample_and_log_prob(key)
/// });
/// let (action, log_prob) = sample.call((Key::new(0), Array::from([0.1f32, -0.2])))?;
/// assert!(action.to_vec::<f32>()?.iter().all(|x| x.abs() < 1.0));
/// assert!(log_prob.item::<f32>()?.is_finite());
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformed<D, B> {
    /// Distribution before the bijector.
    pub distribution: D,
    /// The bijector.
    pub bijector: B,
}

impl<D: Distribution, B: Bijector> Transformed<D, B> {
    /// Returns the distribution of transformed samples.
    ///
    /// # Errors
    /// Ends the trace if values of the distribution and of the bijector have different numbers of axes.
    #[track_caller]
    pub fn new(distribution: D, bijector: B) -> Transformed<D, B> {
        let (of_values, of_bijector) = (distribution.event_ndims(), bijector.event_ndims());
        if of_values != of_bijector {
            let problem = format!(
                "values of the distribution have {of_values} axes, and those of the bijector \
                 {of_bijector}; Block and Independent add axes"
            );
            fail_op("transformed", problem);
        }
        Transformed { distribution, bijector }
    }

    /// Samples a value and returns it with its log density, without an inverse; gradients flow through
    /// both.
    #[track_caller]
    pub fn sample_and_log_prob(&self, key: Key<Tensor>) -> (Tensor, Tensor) {
        let x = self.distribution.sample(key);
        let log_det = self.bijector.forward_log_det_jacobian(x);
        (self.bijector.forward(x), self.distribution.log_prob(x) - log_det)
    }
}

impl<D: Distribution, B: Bijector> Distribution for Transformed<D, B> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        self.bijector.forward(self.distribution.sample(key))
    }

    #[track_caller]
    fn log_prob(&self, y: Tensor) -> Tensor {
        let x = self.bijector.inverse(y);
        self.distribution.log_prob(x) - self.bijector.forward_log_det_jacobian(x)
    }

    fn event_ndims(&self) -> usize {
        self.distribution.event_ndims()
    }
}
