//! Tangents: `None` is a zero that is never written out.

use smallvec::SmallVec;

use crate::trace::ops::zeros_like;
use crate::trace::tensor::Tensor;

/// Form in which control flow is differentiated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Values and tangents run through one loop.
    Forward,
    /// A linear frame is on top: values run through a loop below it, which also saves the residuals
    /// for the loop of the tangents in the frame.
    Linearize,
}

/// A tangent for each of an equation's results.
pub(crate) type Tangents = SmallVec<[Option<Tensor>; 2]>;

/// The sum of two tangents.
pub(crate) fn add_tangents(a: Option<Tensor>, b: Option<Tensor>) -> Option<Tensor> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    }
}

/// The tangent, written out if it is zero.
pub(crate) fn instantiate(tangent: Option<Tensor>, primal: Tensor) -> Tensor {
    tangent.unwrap_or_else(|| zeros_like(primal))
}
