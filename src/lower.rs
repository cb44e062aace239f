//! From a [`Program`](crate::trace::Program) to machine code: StableHLO text, the PJRT runtime, and
//! the cache of compiled executables.

pub mod artifact;
pub mod cache;
pub mod callbacks;
pub mod compile_log;
pub mod conv;
pub mod cost;
pub mod dump;
pub mod hlo;
pub(crate) mod lapack;
pub mod native_calls;
mod options;
pub mod pjrt;
pub mod stablehlo;

pub use stablehlo::{LowerOptions, Platform, compile_flags, stablehlo};
