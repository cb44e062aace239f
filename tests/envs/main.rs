//! Environments and their pool: one binary, one module per family.

mod pool;
mod soak;
mod xla;
