//! Tangents: `None` is a zero that is never written out.

use smallvec::SmallVec;

use crate::trace::ops::zeros_like;
use crate::trace::tensor::Tensor;
use crate::trace::types::DType;

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
        (Some(a), Some(b)) => Some(add(a, b)),
        (a, b) => a.or(b),
    }
}

/// The sum of two tangents that are not zero. Those of a type without arithmetic are added as `f32`,
/// which holds the sum of two floats of 8 bits exactly or nearly so, and rounded.
pub(crate) fn add(a: Tensor, b: Tensor) -> Tensor {
    summed(a.dtype(), |within| a.to(within) + b.to(within))
}

/// A sum of tangents of type `dtype`, which `sum` makes in a type that has arithmetic.
pub(crate) fn summed(dtype: DType, sum: impl FnOnce(DType) -> Tensor) -> Tensor {
    sum(if dtype.is_narrow() { DType::F32 } else { dtype }).to(dtype)
}

/// The tangent, written out if it is zero.
pub(crate) fn instantiate(tangent: Option<Tensor>, primal: Tensor) -> Tensor {
    tangent.unwrap_or_else(|| zeros_like(primal))
}
