//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

extern crate self as podracer;

pub mod error;
pub mod lower;
pub mod trace;
pub mod tree;

pub use error::{Error, Result};
pub use trace::{DType, Literal, Program, Shape, Tensor, TensorType};
pub use tree::Tree;
