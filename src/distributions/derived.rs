//! Distributions made of others by clipping, rounding, choice and combination.

use super::univariate::shape_of;
use super::{Categorical, Normal};
use crate::distributions::distribution::Distribution;
use crate::random::{self, Key};
use crate::trace::numpy::log_ndtr;
use crate::trace::ops::{self, one_hot, where_};
use crate::trace::tensor::fail_op;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Distributions of numbers with known probabilities of intervals.
pub trait Cumulative: Distribution {
    /// Returns the logarithm of the probability of numbers up to `x`.
    fn log_cdf(&self, x: Tensor) -> Tensor;

    /// Returns the logarithm of the probability of numbers above `x`.
    fn log_survival_function(&self, x: Tensor) -> Tensor;
}

impl Cumulative for Normal<Tensor> {
    #[track_caller]
    fn log_cdf(&self, x: Tensor) -> Tensor {
        log_ndtr((x - self.mean) / self.std)
    }

    #[track_caller]
    fn log_survival_function(&self, x: Tensor) -> Tensor {
        log_ndtr(-(x - self.mean) / self.std)
    }
}

/// Logistic distribution: `distrax.Logistic`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Logistic<T> {
    /// Location, the mean.
    pub loc: T,
    /// Scale, above 0.
    pub scale: T,
}

impl Logistic<Tensor> {
    /// Returns the distribution with this location and scale.
    pub fn new(loc: Tensor, scale: Tensor) -> Logistic<Tensor> {
        Logistic { loc, scale }
    }

    /// Returns the mode, the location.
    pub fn mode(&self) -> Tensor {
        self.loc
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        (self.scale.log() + 2.0).broadcast_to(shape_of(self.loc, self.scale))
    }

    #[track_caller]
    fn standardized(&self, x: Tensor) -> Tensor {
        (x - self.loc) / self.scale
    }
}

impl Distribution for Logistic<Tensor> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        let (shape, dtype) = (shape_of(self.loc, self.scale), self.loc.dtype());
        let tiny = if dtype == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
        let uniform = random::uniform(key, shape, dtype, tiny, 1.0);
        self.scale * (uniform.log() - (-uniform).log1p()) + self.loc
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let z = self.standardized(x);
        -z - 2.0 * (-z).softplus() - self.scale.log()
    }
}

impl Cumulative for Logistic<Tensor> {
    #[track_caller]
    fn log_cdf(&self, x: Tensor) -> Tensor {
        -(-self.standardized(x)).softplus()
    }

    #[track_caller]
    fn log_survival_function(&self, x: Tensor) -> Tensor {
        -self.standardized(x).softplus()
    }
}

/// Distribution of one number, `loc`: `distrax.Deterministic` without tolerances.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Deterministic<T> {
    /// The number.
    pub loc: T,
}

impl Deterministic<Tensor> {
    /// Returns the distribution of this number.
    pub fn new(loc: Tensor) -> Deterministic<Tensor> {
        Deterministic { loc }
    }

    /// Returns the number.
    pub fn mode(&self) -> Tensor {
        self.loc
    }
}

impl Distribution for Deterministic<Tensor> {
    fn sample(&self, _: Key<Tensor>) -> Tensor {
        self.loc
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let equal = x.eq(self.loc);
        where_(equal, ops::zeros_like(x - self.loc), f64::NEG_INFINITY)
    }
}

/// Distribution of numbers clipped to bounds, which have the probability of all that is outside of them:
/// `distrax.Clipped`.
#[derive(Debug, Clone, Copy)]
pub struct Clipped<D> {
    /// Distribution before the bounds.
    pub distribution: D,
    /// Lower bound.
    pub minimum: Tensor,
    /// Upper bound.
    pub maximum: Tensor,
}

impl<D: Cumulative> Clipped<D> {
    /// Returns the distribution of numbers clipped to `minimum..=maximum`, which broadcast to the batch.
    pub fn new(distribution: D, minimum: Tensor, maximum: Tensor) -> Clipped<D> {
        Clipped { distribution, minimum, maximum }
    }
}

impl<D: Cumulative> Distribution for Clipped<D> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        self.distribution.sample(key).maximum(self.minimum).minimum(self.maximum)
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let at_minimum = self.distribution.log_cdf(self.minimum);
        let at_maximum = self.distribution.log_survival_function(self.maximum);
        let inside = self.distribution.log_prob(x);
        let log_prob = where_(x.eq(self.maximum), at_maximum, inside);
        let log_prob = where_(x.eq(self.minimum), at_minimum, log_prob);
        where_(x.lt(self.minimum) | x.gt(self.maximum), f64::NEG_INFINITY, log_prob)
    }
}

/// Distribution of numbers rounded up to integers, and clipped to bounds if there are some:
/// `distrax.Quantized`.
#[derive(Debug, Clone, Copy)]
pub struct Quantized<D> {
    /// Distribution of the numbers.
    pub distribution: D,
    /// Least integer, if there is one.
    pub low: Option<f64>,
    /// Greatest integer, if there is one.
    pub high: Option<f64>,
}

impl<D: Cumulative> Quantized<D> {
    /// Returns the distribution of integers; bounds that are no integers are rounded inwards.
    pub fn new(distribution: D, low: Option<f64>, high: Option<f64>) -> Quantized<D> {
        Quantized { distribution, low: low.map(f64::ceil), high: high.map(f64::floor) }
    }
}

impl<D: Cumulative> Cumulative for Quantized<D> {
    #[track_caller]
    fn log_cdf(&self, x: Tensor) -> Tensor {
        let y = x.floor();
        let mut result = self.distribution.log_cdf(y);
        if let Some(low) = self.low {
            result = where_(y.lt(low), f64::NEG_INFINITY, result);
        }
        if let Some(high) = self.high {
            result = where_(y.lt(high), result, 0.0);
        }
        result
    }

    #[track_caller]
    fn log_survival_function(&self, x: Tensor) -> Tensor {
        let y = x.floor();
        let mut result = self.distribution.log_survival_function(y);
        if let Some(low) = self.low {
            result = where_(y.lt(low), 0.0, result);
        }
        if let Some(high) = self.high {
            result = where_(y.lt(high), result, f64::NEG_INFINITY);
        }
        result
    }
}

impl<D: Cumulative> Distribution for Quantized<D> {
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        let mut sample = self.distribution.sample(key).ceil();
        if let Some(low) = self.low {
            sample = sample.maximum(low);
        }
        if let Some(high) = self.high {
            sample = sample.minimum(high);
        }
        sample
    }

    /// Returns the log probability of the integer `x`, minus infinity if it is none or out of bounds.
    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let (cdf, cdf_before) = (self.log_cdf(x), self.log_cdf(x - 1.0));
        let (above, above_before) =
            (self.log_survival_function(x), self.log_survival_function(x - 1.0));
        // The smaller tail loses fewer digits.
        let upper = above.lt(cdf);
        let big = where_(upper, above_before, cdf);
        let small = where_(upper, above, cdf_before);
        let log_prob = big + (-(small - big).exp()).log1p();
        let possible = x.eq(x.floor()) & !cdf.is_inf() & !above_before.is_inf();
        where_(possible, log_prob, f64::NEG_INFINITY)
    }
}

/// Mixture of two distributions, which may be of different types: `distrax.MixtureOfTwo`.
#[derive(Debug, Clone, Copy)]
pub struct MixtureOfTwo<A, B> {
    /// Probability of the first one, a scalar.
    pub prob_a: Tensor,
    /// First distribution.
    pub component_a: A,
    /// Second distribution.
    pub component_b: B,
}

impl<A: Distribution, B: Distribution> MixtureOfTwo<A, B> {
    /// Returns the mixture.
    ///
    /// # Errors
    /// Ends the trace unless the probability is a scalar and values of both have equal numbers of axes.
    #[track_caller]
    pub fn new(prob_a: Tensor, component_a: A, component_b: B) -> MixtureOfTwo<A, B> {
        let axes = [component_a.event_ndims(), component_b.event_ndims()];
        if prob_a.rank() != 0 || axes[0] != axes[1] {
            let problem = format!(
                "takes a scalar probability and values of equal numbers of axes; got {} and values of \
                 {} and {} axes",
                prob_a.ty(),
                axes[0],
                axes[1]
            );
            fail_op("mixture_of_two", problem);
        }
        MixtureOfTwo { prob_a, component_a, component_b }
    }
}

impl<A: Distribution, B: Distribution> Distribution for MixtureOfTwo<A, B> {
    /// Samples from one of both, the same one for all elements of the batch.
    #[track_caller]
    fn sample(&self, key: Key<Tensor>) -> Tensor {
        let [_, of_a, of_b, of_choice] = key.split_n();
        let from_a = random::bernoulli(of_choice, self.prob_a, []);
        where_(from_a, self.component_a.sample(of_a), self.component_b.sample(of_b))
    }

    #[track_caller]
    fn log_prob(&self, x: Tensor) -> Tensor {
        let of_a = self.prob_a.log() + self.component_a.log_prob(x);
        let of_b = (1.0 - self.prob_a).log() + self.component_b.log_prob(x);
        ops::logaddexp(of_a, of_b)
    }

    fn event_ndims(&self) -> usize {
        self.component_a.event_ndims()
    }
}

/// Categorical distribution of vectors with a 1 at the class and zeros elsewhere:
/// `distrax.OneHotCategorical`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct OneHotCategorical<T> {
    /// Distribution of the class.
    pub categorical: Categorical<T>,
}

impl OneHotCategorical<Tensor> {
    /// Returns the distribution with these logits, `f[.., classes]`.
    pub fn new(logits: Tensor) -> OneHotCategorical<Tensor> {
        OneHotCategorical { categorical: Categorical::new(logits) }
    }

    #[track_caller]
    fn vector(&self, class: Tensor) -> Tensor {
        let logits = self.categorical.logits;
        one_hot(class, logits.dim(-1), logits.dtype())
    }

    /// Samples vectors of the type of the logits.
    #[track_caller]
    pub fn sample(&self, key: Key<Tensor>) -> Tensor {
        self.vector(self.categorical.sample(key))
    }

    /// Samples vectors through which gradients flow as if they were the probabilities:
    /// `distrax.straight_through_wrapper(distrax.OneHotCategorical)`.
    #[track_caller]
    pub fn sample_straight_through(&self, key: Key<Tensor>) -> Tensor {
        let probs = self.categorical.probs();
        self.sample(key) + (probs - probs.stop_gradient())
    }

    /// Returns the vector of the most likely class.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        self.vector(self.categorical.mode())
    }

    /// Returns the log probability of the vector `x: [.., classes]`.
    #[track_caller]
    pub fn log_prob(&self, x: Tensor) -> Tensor {
        let log_probs = self.categorical.log_probs();
        let none = x.eq(0.0);
        where_(none, 0.0, where_(none, 0.0, log_probs) * x).sum(-1)
    }

    /// Returns the entropy.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        self.categorical.entropy()
    }

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    #[track_caller]
    pub fn kl(&self, other: &OneHotCategorical<Tensor>) -> Tensor {
        self.categorical.kl(&other.categorical)
    }
}

super::distribution::distributions! {
    OneHotCategorical 1;
}

/// Independent distributions as one: `distrax.Joint` of a tuple of 2 to 4 distributions. Their batches have
/// equal shapes.
///
/// ```
/// use podracer::distributions::{Categorical, Joint, Normal};
/// use podracer::{Array, Key, Tensor, interpret};
///
/// let sample = interpret(|(key, x): (Key<Tensor>, Tensor)| {
///     let policy = Joint((Normal::new(x, x.exp()), Categorical::new(x.expand_dims(-1))));
///     let actions = policy.sample(key);
///     policy.log_prob(actions)
/// });
/// assert!(sample.call((Key::new(0), Array::from([0.1f32, -0.2])))?.to_vec::<f32>()?[0].is_finite());
/// # Ok::<(), podracer::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Joint<C>(
    /// Tuple of the distributions.
    pub C,
);

macro_rules! joint_of_tuple {
    ($count:literal: $($name:ident $index:tt),*) => {
        impl<$($name: Distribution),*> Joint<($($name,)*)> {
            /// Samples a value of each distribution, with keys of their own.
            #[track_caller]
            pub fn sample(&self, key: Key<Tensor>) -> [Tensor; $count] {
                let mut keys = key.split_vec($count).into_iter();
                [$(self.0.$index.sample(keys.next().expect("a key each")),)*]
            }

            /// Returns the sum of the log densities of the values.
            #[track_caller]
            pub fn log_prob(&self, values: [Tensor; $count]) -> Tensor {
                let log_probs = [$(self.0.$index.log_prob(values[$index]),)*];
                log_probs.into_iter().reduce(|sum, next| sum + next).expect("two at least")
            }
        }

        impl<$($name: super::distribution::ClosedForm),*> Joint<($($name,)*)> {
            /// Returns the sum of the entropies.
            #[track_caller]
            pub fn entropy(&self) -> Tensor {
                let entropies = [$(self.0.$index.entropy(),)*];
                entropies.into_iter().reduce(|sum, next| sum + next).expect("two at least")
            }

            /// Returns the Kullback-Leibler divergence of this distribution from `other`.
            #[track_caller]
            pub fn kl(&self, other: &Self) -> Tensor {
                let divergences = [$(self.0.$index.kl(&other.0.$index),)*];
                divergences.into_iter().reduce(|sum, next| sum + next).expect("two at least")
            }
        }
    };
}
joint_of_tuple!(2: A 0, B 1);
joint_of_tuple!(3: A 0, B 1, C 2);
joint_of_tuple!(4: A 0, B 1, C 2, D 3);
