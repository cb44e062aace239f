//! From a [`Program`](crate::trace::Program) to machine code: StableHLO text, the PJRT runtime, and
//! the cache of compiled executables.

pub mod artifact;
pub mod cache;
pub mod callbacks;
pub mod compile_log;
pub mod conv;
pub mod cost;
pub mod dump;
mod emit_collective;
mod emit_control;
mod emit_conv;
mod emit_elementwise;
mod emit_gather;
mod emit_linalg;
mod emit_native;
mod emit_reduce;
mod emit_rows;
mod emit_shape;
mod emit_threefry;
mod emitter;
pub mod hlo;
pub(crate) mod lapack;
mod mlir;
pub mod native_calls;
mod options;
pub mod pjrt;
pub mod stablehlo;

pub use stablehlo::{LowerOptions, Platform, compile_flags, stablehlo};
