//! Losses of predictions of numbers.

use super::{ensure_floats, ensure_same_shape};
use crate::trace::Tensor;
use crate::trace::ops::{Operand, logaddexp};
use crate::trace::tensor::op;

/// Returns `predictions - targets`.
#[track_caller]
fn errors(op: &str, predictions: Tensor, targets: impl Operand) -> Tensor {
    ensure_floats(op, ["predictions"], [predictions]);
    predictions - targets
}

/// Returns `predictions - targets` of predictions and targets that have one shape, or of a number.
#[track_caller]
fn errors_of_one_shape(op: &str, predictions: Tensor, targets: impl Operand) -> Tensor {
    ensure_floats(op, ["predictions"], [predictions]);
    let targets = targets.to_tensor(&predictions.ty());
    ensure_same_shape(op, ["predictions", "targets"], [predictions, targets]);
    predictions - targets
}

/// Computes `(predictions - targets)^2` for each element: `optax.squared_error`.
///
/// `targets` is a number, or a tensor of the same shape.
///
/// # Errors
/// Ends the trace if the shapes differ, or if the predictions are not floats.
#[op]
pub fn squared_error(predictions: Tensor, targets: impl Operand) -> Tensor {
    errors_of_one_shape("squared_error", predictions, targets).square()
}

/// Computes `(predictions - targets)^2 / 2` for each element: `optax.l2_loss`.
///
/// # Errors
/// Ends the trace in the cases of [`squared_error`].
#[op]
pub fn l2_loss(predictions: Tensor, targets: impl Operand) -> Tensor {
    let error = errors_of_one_shape("l2_loss", predictions, targets);
    // The half first: twice an error may overflow in the derivative.
    (0.5 * error) * error
}

/// Computes the Huber loss for each element (Huber 1964), `optax.huber_loss`: quadratic up to an
/// error of `delta`, 1 in optax, then linear.
#[op]
pub fn huber_loss(predictions: Tensor, targets: impl Operand, delta: f64) -> Tensor {
    let size = errors("huber_loss", predictions, targets).abs();
    let quadratic = size.minimum(delta);
    0.5 * quadratic.square() + delta * (size - quadratic)
}

/// Computes `log(cosh(predictions - targets))` for each element: `optax.log_cosh`.
#[op]
pub fn log_cosh(predictions: Tensor, targets: impl Operand) -> Tensor {
    let errors = errors("log_cosh", predictions, targets);
    logaddexp(errors, -errors) - std::f64::consts::LN_2
}

/// Computes the cosine of the angle between vectors along the last axis: `optax.cosine_similarity`.
///
/// Squared norms count as at least `epsilon`, 0 in optax.
#[op]
pub fn cosine_similarity(predictions: Tensor, targets: Tensor, epsilon: f64) -> Tensor {
    let names = ["predictions", "targets"];
    ensure_floats("cosine_similarity", names, [predictions, targets]);
    let unit = |x: Tensor| x / x.square().sum_keepdims(-1).maximum(epsilon).sqrt();
    (unit(predictions) * unit(targets)).sum(-1)
}

/// Computes `1 - cosine_similarity`: `optax.cosine_distance`.
#[op]
pub fn cosine_distance(predictions: Tensor, targets: Tensor, epsilon: f64) -> Tensor {
    1.0 - cosine_similarity(predictions, targets, epsilon)
}
