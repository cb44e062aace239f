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
mod segmentation;
mod self_supervised;
#[cfg(test)]
mod tests;

use crate::trace::Tensor;
use crate::trace::tensor::fail_op;

pub use classification::*;
pub use ctc::{CtcLoss, ctc_loss, ctc_loss_with_forward_probs};
pub use divergence::*;
pub use regression::*;
pub use segmentation::*;
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

/// Ends the trace with an error unless all tensors have one shape. `names` are those of the arguments.
#[track_caller]
fn ensure_same_shape<const N: usize>(op: &str, names: [&str; N], tensors: [Tensor; N]) {
    for (name, tensor) in names.iter().zip(tensors) {
        if tensor.shape() != tensors[0].shape() {
            let problem = format!(
                "{} and {name} must have one shape, and are {} and {}",
                names[0],
                tensors[0].ty(),
                tensor.ty()
            );
            fail_op(op, problem);
        }
    }
}

/// Ends the trace with an error unless `inner` has the shape of `values` without its last axis.
/// `names` are those of both arguments.
#[track_caller]
fn ensure_without_last_axis(op: &str, names: [&str; 2], values: Tensor, inner: Tensor) {
    let shape = values.shape();
    if shape.rank() == 0 || inner.shape() != shape.without_axis(shape.rank() - 1) {
        let [outer_name, inner_name] = names;
        let problem = format!(
            "{inner_name} must have the shape of {outer_name} without the last axis; {outer_name} is {}, \
             {inner_name} is {}",
            values.ty(),
            inner.ty()
        );
        fail_op(op, problem);
    }
}

/// Returns the elements of `values`, `[.., classes]`, that the integers `indices`, `[..]`, choose along
/// the last axis. Ends the trace with an error if types or shapes do not fit; `names` are those of both.
#[track_caller]
fn chosen(op: &str, names: [&str; 2], values: Tensor, indices: Tensor) -> Tensor {
    if !indices.dtype().is_int() {
        fail_op(op, format!("{} must be integers, and are {}", names[1], indices.ty()));
    }
    ensure_without_last_axis(op, names, values, indices);
    values.take_along_axis(indices.expand_dims(-1), -1).squeeze(-1)
}
