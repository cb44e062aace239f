//! Tests of the library from outside, in one binary.

mod build;
mod stablehlo_text;
