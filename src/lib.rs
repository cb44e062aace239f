//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

// The derive writes `::podracer`, which must also mean this crate within it.
extern crate self as podracer;

pub mod envs;
pub mod error;
pub mod lower;
pub mod rl;
pub mod trace;
pub mod tree;

pub use error::{Error, Result};
pub use trace::{DType, Literal, Program, Shape, Tensor, TensorType};
pub use tree::Tree;
