//! Returns, temporal-difference errors and policy losses of reinforcement learning: rlax.
//!
//! Functions have rlax's names and argument order. Two things differ: time is the first axis and
//! others may follow it, such as that of environments, so that no `vmap` is needed; and an axis of
//! actions or atoms is the last one.
//!
//! Names end in the time step: `v_tm1` are values of the states before actions, `v_t` of those
//! after. Targets are constants, as rlax has it by default: errors have derivatives by their
//! predictions only. Returns, which rlax does not stop by default, have derivatives by all.
//!
//! ```
//! use podracer::losses::rl::lambda_returns;
//! use podracer::{Array, Tensor, interpret};
//!
//! let returns = interpret(|(rewards, discounts, values): (Tensor, Tensor, Tensor)| {
//!     lambda_returns(rewards, discounts, values, 0.5)
//! });
//! let row = Array::from([1.0f32, 1.0]);
//! let returns = returns.call((row.clone(), row.clone(), Array::from([2.0f32, 4.0])))?;
//! assert_eq!(returns.to_vec::<f32>()?, [4.5, 5.0]);
//! # Ok::<(), podracer::Error>(())
//! ```

mod categorical;
mod exploration;
mod mpo;
mod policy_gradients;
mod popart;
mod returns;
#[cfg(test)]
mod tests;
mod transforms;
mod value_learning;
mod vtrace;

use super::{ensure_floats, ensure_same_shape};
use crate::trace::Tensor;
use crate::trace::ops::Operand;
use crate::trace::tensor::fail_op;

pub use categorical::*;
pub use exploration::*;
pub use mpo::*;
pub use policy_gradients::*;
pub use popart::*;
pub use returns::*;
pub use transforms::*;
pub use value_learning::*;
pub use vtrace::*;

/// Ends the trace with an error unless the tensors are floats of one shape with a first axis of at
/// least one step, that of time.
#[track_caller]
fn ensure_sequences<const N: usize>(op: &str, names: [&str; N], tensors: [Tensor; N]) {
    ensure_floats(op, names, tensors);
    let shape = tensors[0].shape();
    if shape.rank() == 0 || shape[0] == 0 {
        let problem = format!("{} needs at least one step of time, and is {}", names[0], shape);
        fail_op(op, problem);
    }
    ensure_same_shape(op, names, tensors);
}

/// Returns a number, or a tensor that broadcasts, as a tensor of the shape of `like`.
#[track_caller]
fn broadcast_like(value: impl Operand, like: Tensor) -> Tensor {
    let value = value.to_tensor(&like.ty());
    value.to(like.dtype()).broadcast_to(like.shape())
}

/// Returns the elements that actions, integers, choose along the last axis.
#[track_caller]
fn chosen(op: &str, values: Tensor, actions: Tensor) -> Tensor {
    super::chosen(op, ["values", "actions"], values, actions)
}
