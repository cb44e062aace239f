//! From a Program to machine code: StableHLO text, the PJRT runtime, native parts, and the cache
//! of compiled executables.

pub mod pjrt;
