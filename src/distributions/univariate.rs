//! Distributions of numbers.

use std::f64::consts::{LN_2, PI};

use super::distribution::distributions;
use crate::random::{self, Key};
use crate::trace::numpy::{betaln, xlogy};
use crate::trace::ops::where_;
use crate::trace::types::Shape;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Euler's constant.
const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// The shape that two parameters broadcast to.
#[track_caller]
pub(super) fn shape_of(a: Tensor, b: Tensor) -> Shape {
    (a + b).shape()
}

/// Uniform distribution from `low` to `high`: `distrax.Uniform`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Uniform<T> {
    /// Lower bound.
    pub low: T,
    /// Upper bound, of a shape that broadcasts with that of the lower one.
    pub high: T,
}

impl Uniform<Tensor> {
    /// Returns the distribution from `low` to `high`.
    pub fn new(low: Tensor, high: Tensor) -> Uniform<Tensor> {
        Uniform { low, high }
    }

    /// Samples a number of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let range = self.high - self.low;
        self.low + range * random::uniform(key, range.shape(), range.dtype(), 0.0, 1.0)
    }

    /// Returns the log density at `x`, minus infinity outside of the bounds.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let outside = x.lt(self.low) | x.gt(self.high);
        where_(outside, f64::NEG_INFINITY, -(self.high - self.low).log())
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        (self.high - self.low).log()
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`, infinite unless its
    /// bounds are within those of `other`.
    #[track_caller]
    pub fn kl(&self, other: &Uniform<Tensor>) -> Tensor {
        let within = other.low.le(self.low) & self.high.le(other.high);
        where_(within, other.entropy() - self.entropy(), f64::INFINITY)
    }
}

/// Bernoulli distribution with probability `sigmoid(logits)` of 1: `distrax.Bernoulli`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Bernoulli<T> {
    /// Log odds of 1.
    pub logits: T,
}

impl Bernoulli<Tensor> {
    /// Returns the distribution with these log odds of 1.
    pub fn new(logits: Tensor) -> Bernoulli<Tensor> {
        Bernoulli { logits }
    }

    /// Returns the distribution with these probabilities of 1.
    #[track_caller]
    pub fn from_probs(probs: Tensor) -> Bernoulli<Tensor> {
        Bernoulli { logits: probs.log() - (1.0 - probs).log() }
    }

    /// Returns the probability of 1.
    #[track_caller]
    pub fn probs(&self) -> Tensor {
        self.logits.sigmoid()
    }

    /// Samples 0 or 1, `i32`.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let probs = self.probs();
        let uniform = random::uniform(key, probs.shape(), probs.dtype(), 0.0, 1.0);
        uniform.lt(probs).to(DType::I32)
    }

    /// Returns the more likely of 0 and 1, `i32`.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        self.logits.gt(0.0).to(DType::I32)
    }

    /// Returns the log probabilities of 0 and 1.
    #[track_caller]
    fn log_probs(&self) -> [Tensor; 2] {
        [-self.logits.softplus(), -(-self.logits).softplus()]
    }

    /// Returns the log probability of `x`, 0 and 1 of any type.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let [zero, one] = self.log_probs();
        let x = x.to(zero.dtype());
        times(zero, 1.0 - x) + times(one, x)
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let ([zero, one], p) = (self.log_probs(), self.probs());
        -(times(zero, (-self.logits).sigmoid()) + times(one, p))
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Bernoulli<Tensor>) -> Tensor {
        let ([zero, one], [other_zero, other_one]) = (self.log_probs(), other.log_probs());
        let (q, p) = ((-self.logits).sigmoid(), self.probs());
        times(one, p) - times(other_one, p) + times(zero, q) - times(other_zero, q)
    }
}

/// Returns `x * y`, and 0 where `y` is 0 even if `x` is infinite.
#[track_caller]
fn times(x: Tensor, y: Tensor) -> Tensor {
    let none = y.eq(0.0);
    where_(none, 0.0, where_(none, 0.0, x) * y)
}

/// Beta distribution: `distrax.Beta`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Beta<T> {
    /// Concentration at 1, above 0.
    pub alpha: T,
    /// Concentration at 0, above 0.
    pub beta: T,
}

impl Beta<Tensor> {
    /// Returns the distribution with these concentrations.
    pub fn new(alpha: Tensor, beta: Tensor) -> Beta<Tensor> {
        Beta { alpha, beta }
    }

    /// Samples a number from 0 to 1 of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let shape = shape_of(self.alpha, self.beta);
        random::beta(key, self.alpha, self.beta, shape, self.alpha.dtype())
    }

    /// Returns the log density at `x`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let (a, b) = (self.alpha - 1.0, self.beta - 1.0);
        xlogy(a, x) + xlogy(b, 1.0 - x) - betaln(self.alpha, self.beta)
    }

    /// Returns the mean.
    #[track_caller]
    pub fn mean(&self) -> Tensor {
        self.alpha / (self.alpha + self.beta)
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let (a, b) = (self.alpha, self.beta);
        let of_both = (a + b - 2.0) * (a + b).digamma();
        betaln(a, b) - (a - 1.0) * a.digamma() - (b - 1.0) * b.digamma() + of_both
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Beta<Tensor>) -> Tensor {
        let (da, db) = (self.alpha - other.alpha, self.beta - other.beta);
        let constants = betaln(other.alpha, other.beta) - betaln(self.alpha, self.beta);
        let sum = (self.alpha + self.beta).digamma();
        constants + da * self.alpha.digamma() + db * self.beta.digamma() - (da + db) * sum
    }
}

/// Gumbel distribution of maxima: `distrax.Gumbel`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Gumbel<T> {
    /// Location, the mode.
    pub loc: T,
    /// Scale, above 0.
    pub scale: T,
}

impl Gumbel<Tensor> {
    /// Returns the distribution with this location and scale.
    pub fn new(loc: Tensor, scale: Tensor) -> Gumbel<Tensor> {
        Gumbel { loc, scale }
    }

    /// Samples a number of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let shape = shape_of(self.loc, self.scale);
        self.scale * random::gumbel(key, shape, self.loc.dtype()) + self.loc
    }

    /// Returns the log density at `x`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let z = (x - self.loc) / self.scale;
        -(z + (-z).exp()) - self.scale.log()
    }

    /// Returns the mode, the location.
    pub fn mode(&self) -> Tensor {
        self.loc
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let shape = shape_of(self.loc, self.scale);
        (self.scale.log() + (1.0 + EULER_GAMMA)).broadcast_to(shape)
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Gumbel<Tensor>) -> Tensor {
        let ratio = self.scale / other.scale;
        let distance = (other.loc - self.loc) / other.scale;
        let of_exponential = (distance + (ratio + 1.0).lgamma()).expm1();
        EULER_GAMMA * (ratio - 1.0) - ratio.log() + of_exponential - distance
    }
}

/// Laplace distribution: `distrax.Laplace`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Laplace<T> {
    /// Location, the mean.
    pub loc: T,
    /// Scale, above 0.
    pub scale: T,
}

impl Laplace<Tensor> {
    /// Returns the distribution with this location and scale.
    pub fn new(loc: Tensor, scale: Tensor) -> Laplace<Tensor> {
        Laplace { loc, scale }
    }

    /// Samples a number of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let shape = shape_of(self.loc, self.scale);
        self.loc + self.scale * random::laplace(key, shape, self.loc.dtype())
    }

    /// Returns the log density at `x`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        -((x - self.loc) / self.scale).abs() - LN_2 - self.scale.log()
    }

    /// Returns the mode, the location.
    pub fn mode(&self) -> Tensor {
        self.loc
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        (self.scale.log() + (1.0 + LN_2)).broadcast_to(shape_of(self.loc, self.scale))
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &Laplace<Tensor>) -> Tensor {
        let distance = (self.loc - other.loc).abs();
        let difference = self.scale.log() - other.scale.log();
        (difference - distance / self.scale).exp() + distance / other.scale - 1.0 - difference
    }
}

/// Elementwise normal distribution with the logarithm of its standard deviation as a parameter:
/// `distrax.LogStddevNormal`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct LogStddevNormal<T> {
    /// Mean.
    pub mean: T,
    /// Logarithm of the standard deviation, of a shape that broadcasts to that of the mean.
    pub log_std: T,
}

impl LogStddevNormal<Tensor> {
    /// Returns the distribution with this mean and log standard deviation.
    pub fn new(mean: Tensor, log_std: Tensor) -> LogStddevNormal<Tensor> {
        LogStddevNormal { mean, log_std }
    }

    /// Samples a number of each element; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let ty = self.mean.ty();
        self.mean + self.log_std.exp() * random::normal(key, ty.shape, ty.dtype)
    }

    /// Returns the mean.
    pub fn mode(&self) -> Tensor {
        self.mean
    }

    /// Returns the log density at `x`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let distance = (x - self.mean) * (-self.log_std).exp();
        distance.square() * -0.5 - self.log_std - 0.5 * (2.0 * PI).ln()
    }

    /// Returns the entropy, of the shape of the mean.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        self.log_std.broadcast_to(self.mean.shape()) + (0.5 + 0.5 * (2.0 * PI).ln())
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &LogStddevNormal<Tensor>) -> Tensor {
        let difference = self.log_std - other.log_std;
        let distance = (self.mean - other.mean) * (-other.log_std).exp();
        ((2.0 * difference).exp() + distance.square() - 1.0) * 0.5 - difference
    }
}

distributions! {
    Uniform 0;
    Bernoulli 0;
    Beta 0;
    Gumbel 0;
    Laplace 0;
    LogStddevNormal 0;
}
