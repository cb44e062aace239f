//! Environments and their pool: one binary, one module per family.

mod atari;
mod pool;
mod soak;
mod xla;
