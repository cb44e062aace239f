//! Podracer: a JAX-like functional tracing compiler frontend in Rust, with reinforcement learning
//! on top.

pub mod envs;
pub mod error;
pub mod trace;
