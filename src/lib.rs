//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

pub mod error;
pub mod lower;
pub mod trace;
