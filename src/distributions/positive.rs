//! Distributions of positive numbers and of probabilities.

use super::distribution::distributions;
use super::univariate::shape_of;
use crate::random::{self, Key};
use crate::trace::Tensor;
use crate::trace::ops::where_;
use crate::trace::tensor::fail_op;
use crate::tree::Tree;

/// Gamma distribution: `distrax.Gamma`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Gamma<T> {
    /// Shape parameter, above 0.
    pub concentration: T,
    /// Inverse of the scale, above 0.
    pub rate: T,
}

impl Gamma<Tensor> {
    /// Returns the distribution with this shape parameter and inverse scale.
    pub fn new(concentration: Tensor, rate: Tensor) -> Gamma<Tensor> {
        Gamma { concentration, rate }
    }

    /// Samples a number of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let shape = shape_of(self.concentration, self.rate);
        random::gamma(key, self.concentration, shape, self.concentration.dtype()) / self.rate
    }

    /// Returns the log density at `x`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let a = self.concentration;
        a * self.rate.log() + (a - 1.0) * x.log() - self.rate * x - a.lgamma()
    }

    /// Returns the mean.
    #[track_caller]
    pub fn mean(&self) -> Tensor {
        self.concentration / self.rate
    }

    /// Returns the mode, NaN if the shape parameter is below 1.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        let a = self.concentration;
        where_(a.ge(1.0), (a - 1.0) / self.rate, f64::NAN)
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let a = self.concentration;
        a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Gamma<Tensor>) -> Tensor {
        let (a, b) = (self.concentration, other.concentration);
        let rates = b * (self.rate.log() - other.rate.log());
        let constants = b.lgamma() - a.lgamma() + (a - b) * a.digamma();
        rates + constants + (other.rate - self.rate) * (a / self.rate)
    }
}

/// Dirichlet distribution of probabilities along the last axis: `distrax.Dirichlet`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Dirichlet<T> {
    /// Concentrations above 0, `f[.., classes]`.
    pub concentration: T,
}

impl Dirichlet<Tensor> {
    /// Returns the distribution with these concentrations.
    ///
    /// # Errors
    /// Ends the trace unless there are two classes at least.
    #[track_caller]
    pub fn new(concentration: Tensor) -> Dirichlet<Tensor> {
        if concentration.rank() == 0 || concentration.dim(-1) < 2 {
            let problem =
                format!("takes two classes at least, and was given {}", concentration.ty());
            fail_op("dirichlet", problem);
        }
        Dirichlet { concentration }
    }

    /// Samples probabilities; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let ty = self.concentration.ty();
        random::dirichlet(key, self.concentration, &ty.shape[..ty.rank() - 1], ty.dtype)
    }

    /// Returns the logarithm of the multivariate beta function of the concentrations.
    #[track_caller]
    fn log_normalization(&self) -> Tensor {
        self.concentration.lgamma().sum(-1) - self.concentration.sum(-1).lgamma()
    }

    /// Returns the log density at `x`, probabilities along the last axis.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        ((self.concentration - 1.0) * x.log()).sum(-1) - self.log_normalization()
    }

    /// Returns the mean.
    #[track_caller]
    pub fn mean(&self) -> Tensor {
        self.concentration / self.concentration.sum_keepdims(-1)
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let (a, classes) = (self.concentration, self.concentration.dim(-1) as f64);
        let sum = a.sum(-1);
        let of_sum = (sum - classes) * sum.digamma();
        self.log_normalization() + of_sum - ((a - 1.0) * a.digamma()).sum(-1)
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Dirichlet<Tensor>) -> Tensor {
        let (a, b) = (self.concentration, other.concentration);
        let logs = a.digamma() - a.sum_keepdims(-1).digamma();
        other.log_normalization() - self.log_normalization() + ((a - b) * logs).sum(-1)
    }
}

distributions! {
    Gamma 0;
    Dirichlet 1;
}
