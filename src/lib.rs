//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

pub mod error;
pub mod trace;
pub mod tree;
