//! The integration tests: one binary, one module per room.

mod build;
mod cache;
mod callbacks;
mod cases;
mod chunks;
mod cli;
mod complex;
mod conv_formulas;
#[path = "../convolutions/mod.rs"]
mod convolutions;
mod cost;
mod derive;
mod documents;
mod dtypes;
mod elementary;
mod errors;
mod eval;
mod explain;
mod export;
mod export_mutations;
mod features;
mod ffi;
mod fixture;
mod fork;
mod gpu;
mod halves;
mod imports;
mod integers;
mod jax;
mod laws;
mod layers;
mod limits;
mod linalg;
mod lowering;
mod memory;
mod messages;
#[path = "../models/mod.rs"]
mod models;
mod names;
mod nans;
mod narrow;
mod outside;
mod parity;
#[path = "../peers/mod.rs"]
mod peers;
mod pjrt;
mod precision;
mod programs;
mod props;
#[path = "../recipes/mod.rs"]
mod recipes;
mod remat;
mod results;
mod rows;
mod sizes;
mod special_values;
mod stablehlo_text;
mod statistics;
mod text;
mod timeline;
mod transforms;
mod vacuous;
mod where_to_change;
mod words;

use podracer::jit::run_program;
use podracer::{Array, Jit, Literal, Mode, Program, Tensor, Tree};

/// Compiled in less time, for functions that run once on little. What the optimizer makes of
/// Programs is tested by `jax`, and by all that trains.
fn quickly<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B>(
    function: Jit<A, B, F>,
) -> Jit<A, B, F> {
    function
        .compiler_option("xla_backend_optimization_level", 0)
        .compiler_option("xla_llvm_disable_expensive_passes", true)
}

/// Runs a Program compiled.
#[track_caller]
fn run(program: &Program, inputs: &[Literal]) -> Vec<Literal> {
    let inputs: Vec<Array> = inputs.iter().cloned().map(Array::from).collect();
    let outputs = run_program(program, &inputs, Mode::Jit).unwrap();
    outputs.iter().map(|output| output.to_literal().unwrap()).collect()
}
