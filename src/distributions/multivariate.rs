//! Distributions of vectors, of independent elements, and mixtures.

use std::f64::consts::PI;

use super::Categorical;
use super::distribution::distributions;
use crate::distributions::distribution::{ClosedForm, Distribution};
use crate::random::{self, Key};
use crate::trace::Tensor;
use crate::trace::op::TriangularSolveOp;
use crate::trace::ops::{broadcast_shapes, cholesky, one_hot, triangular_solve};
use crate::trace::tensor::fail_op;
use crate::trace::types::Shape;
use crate::tree::Tree;

/// Normal distribution of vectors with the covariance `L L^T`: `distrax.MultivariateNormalTri`. The one
/// with a diagonal covariance is [`DiagNormal`](super::DiagNormal).
#[derive(Debug, Clone, Copy, Tree)]
pub struct MultivariateNormalTri<T> {
    /// Mean, `f[.., size]`.
    pub loc: T,
    /// Lower triangular matrix `L`, `f[.., size, size]`, f32 or f64, without zeros on its diagonal.
    pub scale_tri: T,
}

impl MultivariateNormalTri<Tensor> {
    /// Returns the distribution with this mean and the lower triangle of this matrix.
    ///
    /// # Errors
    /// Ends the trace unless the matrix is square and of the size of the mean.
    #[track_caller]
    pub fn new(loc: Tensor, scale_tri: Tensor) -> MultivariateNormalTri<Tensor> {
        let (mean, scale) = (loc.ty(), scale_tri.ty());
        let size = mean.shape.last().copied();
        if size.is_none()
            || scale.rank() < 2
            || scale.shape.iter().rev().take(2).any(|&n| Some(n) != size)
        {
            let problem =
                format!("takes a mean [.., size] and a matrix [.., size, size]; got {mean}");
            fail_op("multivariate_normal_tri", format!("{problem} and {scale}"));
        }
        MultivariateNormalTri { loc, scale_tri: scale_tri.tril(0) }
    }

    /// Returns the distribution with this mean and covariance, `f[.., size, size]`, symmetric and positive
    /// definite: `distrax.MultivariateNormalFullCovariance`.
    ///
    /// # Errors
    /// Ends the trace unless the matrix is square and of the size of the mean.
    #[track_caller]
    pub fn from_covariance(loc: Tensor, covariance: Tensor) -> MultivariateNormalTri<Tensor> {
        MultivariateNormalTri::new(loc, cholesky(covariance))
    }

    /// The triangle times a vector of each element.
    #[track_caller]
    fn scaled(&self, x: Tensor) -> Tensor {
        self.scale_tri.matmul(x.expand_dims(-1)).squeeze(-1)
    }

    /// The inverse of the triangle times matrices; axes before the last two broadcast.
    #[track_caller]
    fn solved(&self, b: Tensor) -> Tensor {
        let lower =
            TriangularSolveOp { left_side: true, lower: true, ..TriangularSolveOp::default() };
        let (left, right) = (self.scale_tri.shape(), b.shape());
        let batch = |shape: &Shape| Shape::from(&shape[..shape.rank() - 2]);
        let both = broadcast_shapes("multivariate_normal_tri", &[batch(&left), batch(&right)]);
        let full = |x: Tensor| {
            let shape = x.shape();
            x.broadcast_to([&both[..], &shape[shape.rank() - 2..]].concat())
        };
        triangular_solve(full(self.scale_tri), full(b), lower)
    }

    /// Returns the logarithm of the determinant of the triangle.
    #[track_caller]
    fn log_det(&self) -> Tensor {
        self.scale_tri.diagonal().abs().log().sum(-1)
    }

    /// Samples `mean + L noise`; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let shape = (self.loc + self.scale_tri.diagonal()).shape();
        self.loc + self.scaled(random::normal(key, shape, self.loc.dtype()))
    }

    /// Returns the mean.
    pub fn mode(&self) -> Tensor {
        self.loc
    }

    /// Returns the log density at `x: f[.., size]`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let z = self.solved((x - self.loc).expand_dims(-1)).squeeze(-1);
        let constant = 0.5 * self.loc.dim(-1) as f64 * (2.0 * PI).ln();
        z.square().sum(-1) * -0.5 - self.log_det() - constant
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let constant = 0.5 * self.loc.dim(-1) as f64 * (1.0 + (2.0 * PI).ln());
        let batch = self.loc.shape().without_axis(self.loc.rank() - 1);
        let log_det = self.log_det();
        let full = broadcast_shapes("multivariate_normal_tri", &[log_det.shape(), batch]);
        log_det.broadcast_to(full) + constant
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &MultivariateNormalTri<Tensor>) -> Tensor {
        let ratio = other.solved(self.scale_tri).square().sum([-2, -1]);
        let distance = other.solved((self.loc - other.loc).expand_dims(-1)).square().sum([-2, -1]);
        let logs = other.log_det() - self.log_det();
        (ratio + distance - self.loc.dim(-1) as f64) * 0.5 + logs
    }
}

distributions! {
    MultivariateNormalTri 1;
}

/// Distribution of arrays with independent elements: `distrax.Independent`. The last `ndims` axes of the
/// batch of `distribution` become axes of one value.
#[derive(Debug, Clone, Copy)]
pub struct Independent<D> {
    /// Distribution of each element.
    pub distribution: D,
    /// Number of axes.
    pub ndims: usize,
}

/// Adds up the last axes.
#[track_caller]
pub(super) fn sum_last(x: Tensor, ndims: usize) -> Tensor {
    if x.rank() < ndims {
        fail_op("independent", format!("takes {ndims} axes, and there is {}", x.ty()));
    }
    let axes: Vec<isize> = (1..=ndims as isize).map(|axis| -axis).collect();
    if axes.is_empty() { x } else { x.sum(&axes[..]) }
}

impl<D> Independent<D> {
    /// Returns the distribution of arrays along the last `ndims` axes.
    pub fn new(distribution: D, ndims: usize) -> Independent<D> {
        Independent { distribution, ndims }
    }
}

impl<D: Distribution> Distribution for Independent<D> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        self.distribution.sample(key)
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        sum_last(self.distribution.log_prob(x), self.ndims)
    }

    fn event_ndims(&self) -> usize {
        self.distribution.event_ndims() + self.ndims
    }
}

impl<D: ClosedForm> ClosedForm for Independent<D> {
    #[track_caller]
    fn entropy(&self) -> Tensor {
        sum_last(self.distribution.entropy(), self.ndims)
    }

    #[track_caller]
    fn kl(&self, other: &Self) -> Tensor {
        sum_last(self.distribution.kl(&other.distribution), self.ndims)
    }
}

/// Mixture of distributions of one family: `distrax.MixtureSameFamily`. The last axis of the batch of
/// `components` has the components.
#[derive(Debug, Clone, Copy)]
pub struct MixtureSameFamily<D> {
    /// Distribution of the component, `[.., components]`.
    pub mixture: Categorical<Tensor>,
    /// Distributions of the components.
    pub components: D,
}

impl<D> MixtureSameFamily<D> {
    /// Returns the mixture of `components` by the probabilities of `mixture`.
    pub fn new(mixture: Categorical<Tensor>, components: D) -> MixtureSameFamily<D> {
        MixtureSameFamily { mixture, components }
    }
}

impl<D: Distribution> Distribution for MixtureSameFamily<D> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        let (of_mixture, of_components) = key.split();
        let all = self.components.sample(of_components);
        let chosen = self.mixture.sample(of_mixture);
        let count = self.mixture.logits.dim(-1);
        let mut mask = one_hot(chosen, count, all.dtype());
        for _ in 0..self.event_ndims() {
            mask = mask.expand_dims(-1);
        }
        (all * mask).sum(-1 - self.event_ndims() as isize)
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let expanded = x.expand_dims(-1 - self.event_ndims() as isize);
        (self.components.log_prob(expanded) + self.mixture.log_probs()).logsumexp(-1)
    }

    fn event_ndims(&self) -> usize {
        self.components.event_ndims()
    }
}
