//! Environments and their pool: one binary, one module per family.

mod pool;
mod xla;
