//! Tests of shared code with the algorithms of this crate.

mod flags;
mod memory;
