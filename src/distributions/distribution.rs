//! Interface of distributions that others are made of.

use super::{Categorical, DiagNormal, Normal};
use crate::random::Key;
use crate::trace::Tensor;

/// Distribution of scalars, or of arrays along the last axes: `distrax.Distribution`.
///
/// Methods of the same names belong to the distributions themselves; the trait is for those that take
/// others: [`Independent`](super::Independent), [`MixtureSameFamily`](super::MixtureSameFamily) and
/// [`Transformed`](super::Transformed).
pub trait Distribution {
    /// Samples a value of each element of the batch.
    fn sample(&self, key: Key<Tensor>) -> Tensor;

    /// Returns the log density or log probability at `x`, one for each element of the batch.
    fn log_prob(&self, x: Tensor) -> Tensor;

    /// Number of axes of one value: 0 for scalars, 1 for vectors.
    fn event_ndims(&self) -> usize {
        0
    }
}

/// Distributions whose entropy and divergence have closed forms.
pub trait ClosedForm: Distribution {
    /// Returns the entropy.
    fn entropy(&self) -> Tensor;

    /// Returns the Kullback-Leibler divergence of this distribution from `other`.
    fn kl(&self, other: &Self) -> Tensor;
}

/// Implements the traits by the methods of the types, whose values have this number of axes.
macro_rules! distributions {
    ($($name:ident $axes:literal;)*) => {$(
        impl $crate::distributions::Distribution for $name<$crate::trace::Tensor> {
            #[track_caller]
            fn sample(&self, key: $crate::random::Key<$crate::trace::Tensor>) -> $crate::trace::Tensor {
                $name::sample(self, key)
            }

            #[track_caller]
            fn log_prob(&self, x: $crate::trace::Tensor) -> $crate::trace::Tensor {
                $name::log_prob(self, x)
            }

            fn event_ndims(&self) -> usize {
                $axes
            }
        }

        impl $crate::distributions::ClosedForm for $name<$crate::trace::Tensor> {
            #[track_caller]
            fn entropy(&self) -> $crate::trace::Tensor {
                $name::entropy(self)
            }

            #[track_caller]
            fn kl(&self, other: &Self) -> $crate::trace::Tensor {
                $name::kl(self, other)
            }
        }
    )*};
}
pub(super) use distributions;

distributions! {
    Categorical 0;
    Normal 0;
    DiagNormal 1;
}
