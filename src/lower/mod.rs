//! From a Program to machine code: StableHLO text, the PJRT runtime, native parts, and the cache
//! of compiled executables.

pub mod cache;
pub mod native;
pub mod pjrt;
