//! Several devices in one process: `pmap`, its collectives, and what goes wrong with them. These
//! tests are a binary of their own, because a process has one runtime.

mod anakin;
mod arrays;
mod callbacks;
mod collectives;
mod env_pools;
#[path = "../it/fixture.rs"]
mod fixture;
mod function_cache;
mod language_model;
mod mesh;
mod model_training;
#[path = "../models/mod.rs"]
mod models;
mod one_device;
mod parallel;
mod pmap;
mod ppo_atari_multigpu;
mod programs;
#[path = "../recipes/mod.rs"]
mod recipes;
mod sebulba;
mod sebulba_faults;
mod sebulba_resume;
mod settings;
mod sharding;
mod transforms;

use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::{Array, Result};

/// Starts the runtime with eight devices, and gives the first `n`.
fn devices(n: usize) -> Vec<usize> {
    Runtime::start(RuntimeOptions::with_cpu_devices(8)).expect("the runtime starts");
    (0..n).collect()
}

/// 0, 1, 2, ... in the given shape.
fn count(shape: &[usize]) -> Array {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    Array::new(shape, &values).expect("as many as the shape takes")
}

/// The error of a call, as the user reads it.
fn error<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("must fail").to_string()
}
