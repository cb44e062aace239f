//! From a [`Program`](crate::trace::Program) to machine code: StableHLO text, the PJRT runtime, and
//! the cache of compiled executables.

pub mod cache;
pub mod compile_log;
pub mod conv;
pub mod cost;
pub mod custom_calls;
pub mod dump;
mod fusion;
mod options;
pub mod pjrt;
mod platform;
pub mod stablehlo;

pub use stablehlo::{LowerOptions, Platform, compile_flags, stablehlo};
