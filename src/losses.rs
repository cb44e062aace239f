//! Loss functions: `optax.losses`.
//!
//! Functions over classes take the last axis as that of the classes; move another one there with
//! [`Tensor::moveaxis`](crate::Tensor::moveaxis). They return one loss for each example: take its
//! mean.
//!
//! ```
//! use podracer::losses::softmax_cross_entropy_with_integer_labels;
//! use podracer::{Array, Tensor, grad, interpret};
//!
//! let step = interpret(|(logits, labels): (Tensor, Tensor)| {
//!     let loss = |logits| softmax_cross_entropy_with_integer_labels(logits, labels).mean(..);
//!     (loss(logits), grad(loss)(logits))
//! });
//! let logits = Array::new([2, 2], &[0.0f32, 0.0, 3.0, 3.0])?;
//! let (loss, grads) = step.call((logits, Array::from([1i32, 0])))?;
//! assert!((loss.item::<f32>()? - 2f32.ln()).abs() < 1e-6);
//! assert_eq!(grads.to_vec::<f32>()?, [0.25, -0.25, -0.25, 0.25]);
//! # Ok::<(), podracer::Error>(())
//! ```

mod classification;
mod ctc;
mod divergence;
mod regression;
pub mod rl;
mod self_supervised;
#[cfg(test)]
mod tests;

use crate::trace::Tensor;
use crate::trace::tensor::fail_op;

pub use classification::*;
pub use ctc::{CtcLoss, ctc_loss, ctc_loss_with_forward_probs};
pub use divergence::*;
pub use regression::*;
pub use self_supervised::*;

/// Ends the trace with an error unless the tensors are floats. `names` are those of the arguments.
#[track_caller]
fn ensure_floats<const N: usize>(op: &str, names: [&str; N], tensors: [Tensor; N]) {
    for (name, tensor) in names.iter().zip(tensors) {
        if !tensor.dtype().is_float() {
            fail_op(op, format!("{name} must be floats, and are {}", tensor.ty()));
        }
    }
}

/// Ends the trace with an error unless both tensors have one shape.
#[track_caller]
fn ensure_same_shape(op: &str, names: [&str; 2], a: Tensor, b: Tensor) {
    if a.shape() != b.shape() {
        let problem = format!(
            "{} and {} must have one shape, and are {} and {}",
            names[0],
            names[1],
            a.ty(),
            b.ty()
        );
        fail_op(op, problem);
    }
}
