//! The integration tests: one binary, one module per room.

mod derive;
mod envs;
mod eval;
mod pjrt;
mod rl;
//! Tests of the library from outside, in one binary.

mod build;
mod stablehlo_text;
