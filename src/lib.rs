//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

// The derive writes `::podracer`, which must also mean this crate within it.
extern crate self as podracer;

pub mod algos;
pub mod array;
pub mod distributions;
pub mod envs;
pub mod error;
pub mod jit;
pub mod lower;
pub mod nn;
pub mod optim;
pub mod random;
pub mod rl;
pub mod runtime;
pub mod trace;
pub mod tree;

pub use array::Array;
pub use error::{Error, Result};
pub use jit::{Jit, Mode, eager, interpret, jit, make_program};
pub use random::Key;
pub use trace::jvp::jvp;
pub use trace::linearize::linearize;
pub use trace::transpose::{grad, value_and_grad, vjp};
pub use trace::{DType, Literal, Program, Shape, Tensor, TensorType, vmap};
pub use tree::Tree;
