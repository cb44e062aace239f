//! Probability distributions over actions.
//!
//! Each is a tree of its parameters, so that it can be returned from functions and mapped. Draws
//! take a [`Key`]; a sample is a function of the parameters that derivatives go through, unless the
//! distribution is discrete.

mod action;
mod derived;
mod distribution;
mod multi_categorical;
mod multivariate;
mod positive;
mod transformed;
mod univariate;

use std::f64::consts::{LN_2, PI};

use crate::random::{self, Key};
use crate::trace::ops::{self, Operand, where_};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor, TensorType};
use crate::tree::Tree;

pub use action::ActionDistribution;
pub use derived::{
    Clipped, Cumulative, Deterministic, Joint, Logistic, MixtureOfTwo, OneHotCategorical, Quantized,
};
pub use distribution::{ClosedForm, Distribution};
pub use multi_categorical::MultiCategorical;
pub use multivariate::{Independent, MixtureSameFamily, MultivariateNormalTri};
pub use positive::{Dirichlet, Gamma};
pub use transformed::{Bijector, Block, Chain, ScalarAffine, Sigmoid, Tanh, Transformed};
pub use univariate::{Bernoulli, Beta, Gumbel, Laplace, LogStddevNormal, Uniform};

/// Categorical distribution with probabilities `softmax(logits)` along the last axis.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Categorical<T> {
    /// Log probabilities up to a constant, `f[.., classes]`.
    pub logits: T,
}

impl Categorical<Tensor> {
    /// Returns the distribution with these logits, `f[.., classes]`.
    pub fn new(logits: Tensor) -> Categorical<Tensor> {
        Categorical { logits }
    }

    /// Returns the distribution with these logits, with invalid classes masked: where `allowed`
    /// (bool, of the shape of `logits`) is false, logits become -1e8 (Huang & Ontanon 2022).
    #[track_caller]
    pub fn masked(logits: Tensor, allowed: Tensor) -> Categorical<Tensor> {
        Categorical { logits: where_(allowed, logits, ops::full_like(logits, -1e8)) }
    }

    /// Returns the distribution over the greatest of these preferences, which have equal probabilities:
    /// `distrax.Greedy`.
    #[track_caller]
    pub fn greedy(preferences: Tensor) -> Categorical<Tensor> {
        Categorical::epsilon_greedy(preferences, 0.0)
    }

    /// Returns the distribution of [`greedy`](Categorical::greedy) with probability `1 - epsilon`, else
    /// the uniform one: `distrax.EpsilonGreedy`. `epsilon` is a number or a traced scalar.
    #[track_caller]
    pub fn epsilon_greedy(preferences: Tensor, epsilon: impl Operand) -> Categorical<Tensor> {
        let greatest = preferences.eq(preferences.max_keepdims(-1)).to(preferences.dtype());
        let epsilon = epsilon.to_tensor(&TensorType::scalar(preferences.dtype()));
        let uniform = epsilon / preferences.dim(-1) as f64;
        let probs = (1.0 - epsilon) * (greatest / greatest.sum_keepdims(-1)) + uniform;
        Categorical { logits: probs.log() }
    }

    /// Returns the distribution with probabilities `softmax(logits / temperature)`: `distrax.Softmax`.
    /// The temperature is a number or a traced scalar.
    #[track_caller]
    pub fn softmax(logits: Tensor, temperature: impl Operand) -> Categorical<Tensor> {
        let temperature = temperature.to_tensor(&TensorType::scalar(logits.dtype()));
        Categorical { logits: logits / temperature }
    }

    /// Samples classes (i32, the shape of `logits` without the last axis), as
    /// `jax.random.categorical`.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        random::categorical(key, self.logits, -1)
    }

    /// Returns the most likely class, i32; the first one if several are equally likely.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        self.logits.argmax(-1)
    }

    /// Returns the log probabilities of all classes.
    #[track_caller]
    pub fn log_probs(&self) -> Tensor {
        self.logits.log_softmax(-1)
    }

    /// Returns the probabilities of all classes.
    #[track_caller]
    pub fn probs(&self) -> Tensor {
        self.logits.softmax(-1)
    }

    /// Returns the log probability of each class in `class`, integers of the shape of `logits`
    /// without the last axis.
    #[track_caller]
    pub fn log_prob(&self, class: Tensor) -> Tensor {
        // For few classes a masked sum is faster than a gather, whose derivative is a scatter.
        let log_probs = self.log_probs();
        let chosen = ops::one_hot(class, log_probs.dim(-1), DType::Bool);
        where_(chosen, log_probs, ops::zeros_like(log_probs)).sum(-1)
    }

    /// Returns the entropy, over the last axis. Classes of probability 0 contribute 0.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let (log_probs, probs) = (self.log_probs(), self.probs());
        -(probs * where_possible(probs, log_probs)).sum(-1)
    }

    /// Returns the Kullback-Leibler divergence `sum(p log(p / q))` of this distribution, `p`, from
    /// `other`, `q`, over the last axis. Classes with `p` = 0 contribute 0.
    #[track_caller]
    pub fn kl(&self, other: &Categorical<Tensor>) -> Tensor {
        let probs = self.probs();
        let ratio = self.log_probs() - other.log_probs();
        (probs * where_possible(probs, ratio)).sum(-1)
    }
}

/// Returns `x`, and 0 where the probability is 0, because 0 times an infinite logarithm would be
/// NaN.
#[track_caller]
fn where_possible(probs: Tensor, x: Tensor) -> Tensor {
    where_(probs.eq(0.0), ops::zeros_like(x), x)
}

/// Elementwise normal distribution.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Normal<T> {
    /// Mean.
    pub mean: T,
    /// Standard deviation, of a shape that broadcasts to that of the mean.
    pub std: T,
}

impl Normal<Tensor> {
    /// Returns the distribution with this mean and standard deviation.
    pub fn new(mean: Tensor, std: Tensor) -> Normal<Tensor> {
        Normal { mean, std }
    }

    /// Samples `mean + std * noise`, of the shape of the mean; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        let ty = self.mean.ty();
        self.mean + self.std * random::normal(key, ty.shape, ty.dtype)
    }

    /// Returns the mean.
    pub fn mode(&self) -> Tensor {
        self.mean
    }

    /// Returns the log density at `x`, for each element.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let distance = (x - self.mean) / self.std;
        distance.square() * -0.5 - self.std.log() - 0.5 * (2.0 * PI).ln()
    }

    /// Returns the entropy of each element, of the shape of the mean.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        let std = self.std.broadcast_to(self.mean.shape());
        std.log() + (0.5 + 0.5 * (2.0 * PI).ln())
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`, for each element.
    #[track_caller]
    pub fn kl(&self, other: &Normal<Tensor>) -> Tensor {
        let ratio = self.std / other.std;
        let distance = (self.mean - other.mean) / other.std;
        (ratio.square() + distance.square() - 1.0) * 0.5 - ratio.log()
    }
}

/// Independent normal distributions along the last axis, as one distribution of vectors:
/// `distrax.MultivariateNormalDiag`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct DiagNormal<T> {
    /// Normal distribution of each element.
    pub normal: Normal<T>,
}

impl DiagNormal<Tensor> {
    /// Returns the distribution with this mean, `f[.., size]`, and a standard deviation that
    /// broadcasts to it.
    pub fn new(mean: Tensor, std: Tensor) -> DiagNormal<Tensor> {
        DiagNormal { normal: Normal::new(mean, std) }
    }

    /// Samples `mean + std * noise`; gradients flow through the sample.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        self.normal.sample(key)
    }

    /// Returns the mean.
    pub fn mode(&self) -> Tensor {
        self.normal.mean
    }

    /// Returns the log density at `x: f[.., size]`, over the last axis.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        self.normal.log_prob(x).sum(-1)
    }

    /// Returns the entropy, over the last axis.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        self.normal.entropy().sum(-1)
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`, over the last
    /// axis.
    #[track_caller]
    pub fn kl(&self, other: &DiagNormal<Tensor>) -> Tensor {
        self.normal.kl(&other.normal).sum(-1)
    }
}

/// Form of the squashing correction in the density of a [`TanhNormal`]. The forms differ where
/// `tanh` saturates; keep that of the algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TanhCorrection {
    /// `log(scale (1 - y^2) + eps)`: Haarnoja et al. 2018 and CleanRL's SAC, with an eps of 1e-6.
    Clipped(f64),
    /// `log(scale) + 2 (log 2 - x - softplus(-2x))`, exact for every x.
    Exact,
}

/// A normal distribution squashed to a box: `tanh(x) * scale + bias`, independent along the last
/// axis. The policy of SAC.
#[derive(Debug, Clone, Copy, Tree)]
pub struct TanhNormal<T> {
    /// Distribution before the `tanh`, `f[.., size]`.
    pub normal: Normal<T>,
    /// Half of the box's extent, `[size]` or a scalar.
    pub scale: T,
    /// The box's center, `[size]` or a scalar.
    pub bias: T,
}

impl TanhNormal<Tensor> {
    /// Returns the distribution on the box from -1 to 1.
    #[track_caller]
    pub fn new(mean: Tensor, std: Tensor) -> TanhNormal<Tensor> {
        let scale = ops::ones([], mean.dtype());
        TanhNormal { normal: Normal::new(mean, std), scale, bias: ops::zeros([], mean.dtype()) }
    }

    /// Returns the distribution on the box from `low` to `high`.
    #[track_caller]
    pub fn within(mean: Tensor, std: Tensor, low: Tensor, high: Tensor) -> TanhNormal<Tensor> {
        let (scale, bias) = ((high - low) / 2.0, (high + low) / 2.0);
        TanhNormal { normal: Normal::new(mean, std), scale, bias }
    }

    /// Samples a value and returns it with its log density over the last axis; gradients flow
    /// through both.
    #[track_caller]
    pub fn sample_and_log_prob(
        &self,
        key: Key<Tensor>,
        correction: TanhCorrection,
    ) -> (Tensor, Tensor) {
        let x = self.normal.sample(key);
        let squashed = x.tanh();
        (squashed * self.scale + self.bias, self.density(x, squashed, correction))
    }

    /// Returns the log density, over the last axis, of the value that `x` is squashed to.
    #[track_caller]
    pub fn log_prob_unsquashed(&self, x: Tensor, correction: TanhCorrection) -> Tensor {
        self.density(x, x.tanh(), correction)
    }

    /// Returns the value that the mean is squashed to.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        self.normal.mean.tanh() * self.scale + self.bias
    }

    #[track_caller]
    fn density(&self, x: Tensor, squashed: Tensor, correction: TanhCorrection) -> Tensor {
        if x.rank() == 0 {
            fail_op("tanh_normal", "its elements stand along the last axis; the mean is a scalar");
        }
        let volume = match correction {
            TanhCorrection::Clipped(eps) => (self.scale * (1.0 - squashed.square()) + eps).log(),
            TanhCorrection::Exact => 2.0 * (LN_2 - x - (x * -2.0).softplus()) + self.scale.log(),
        };
        (self.normal.log_prob(x) - volume).sum(-1)
    }
}

#[cfg(test)]
mod tests;
