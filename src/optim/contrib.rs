//! Optimizers that optax keeps apart: `optax.contrib`.
//!
//! ```
//! use podracer::optim::Optimizer;
//! use podracer::optim::contrib::prodigy;
//! use podracer::{Array, Tensor, grad, interpret};
//!
//! // Prodigy estimates the step size itself, so that its learning rate is 1.
//! let minimize = interpret(|mut x: Tensor| {
//!     let optimizer = prodigy(1.0);
//!     let mut state = optimizer.init(&x);
//!     for _ in 0..60 {
//!         let grads = grad(|x: Tensor| (x - 3.0).square().sum(..))(x);
//!         (x, state) = optimizer.step(x, grads, state);
//!     }
//!     x
//! });
//! assert!((minimize.call(Array::from(0.0f32))?.item::<f32>()? - 3.0).abs() < 1.0);
//! # Ok::<(), podracer::Error>(())
//! ```

mod cocob;
mod dadapt;
mod mechanic;
mod muon;
mod plateau;
mod sam;
mod schedule_free;

use super::LearningRate;
use super::lbfgs::tree_vdot;
use crate::trace::{DType, Tensor, ops};
use crate::tree::{self, Tree};

pub use cocob::*;
pub use dadapt::*;
pub use mechanic::*;
pub use muon::*;
pub use plateau::*;
pub use sam::*;
pub use schedule_free::*;

/// Type of scalars beside these parameters: f64 if every leaf is f64, else f32.
#[track_caller]
fn scalar_type<P: Tree<Tensor>>(params: &P) -> DType {
    tree_vdot(&tree::leaves(params), &[]).dtype()
}

/// Returns the learning rate of this update, and its next state.
#[track_caller]
fn rate_of<L: LearningRate>(
    learning_rate: &L,
    state: L::State,
    dtype: DType,
) -> (Tensor, L::State) {
    learning_rate.scale(1.0, &ops::ones([], dtype), state)
}

/// Returns the sum of the absolute elements of all leaves.
#[track_caller]
fn sum_of_absolutes(leaves: &[Tensor], dtype: DType) -> Tensor {
    let zero = ops::zeros([], dtype);
    leaves.iter().fold(zero, |sum, leaf| sum + leaf.abs().sum(..).to(dtype))
}
