//! Composed functions against JAX: values, and gradients by every float input, compiled and
//! interpreted. The numbers are JAX's own (`tests/fixtures/jax/make.py`, `numeric.py`); what is at stake here are
//! its conventions.

mod basics;
mod differences;
mod loaded;
mod models;
mod more;
mod numeric;
mod policy;
mod programs;
mod reductions;

use std::collections::{BTreeMap, BTreeSet};

use podracer::{Array, Literal, Result, Tensor, interpret, jit, vjp};

use crate::chunks::in_chunks;
use crate::fixture::{compare, read};

/// A function of `make.py`, stated once more.
type Function = (&'static str, fn(&[Tensor]) -> Vec<Tensor>);

fn functions() -> Vec<Function> {
    [models::FUNCTIONS, basics::FUNCTIONS, programs::FUNCTIONS, more::FUNCTIONS, numeric::FUNCTIONS]
        .concat()
}

/// What JAX says of one function.
#[derive(Debug, Default, Clone)]
struct Fixture {
    inputs: Vec<Literal>,
    outputs: Vec<Literal>,
    cts: Vec<Literal>,
    grads: Vec<Literal>,
}

fn fixtures() -> BTreeMap<String, Fixture> {
    ["functions", "numeric"]
        .into_iter()
        .flat_map(|file| read(&format!("tests/fixtures/jax/{file}.safetensors")))
        .map(|(name, mut kinds)| {
            let [inputs, outputs, cts, grads] =
                ["in", "out", "ct", "grad"].map(|kind| kinds.remove(kind).unwrap_or_default());
            assert!(kinds.is_empty(), "{name}: {:?}", kinds.keys());
            (name, Fixture { inputs, outputs, cts, grads })
        })
        .collect()
}

/// The results of `f`, then what the cotangents at the end of `args` pull back to each float
/// input.
fn value_and_pullback(f: fn(&[Tensor]) -> Vec<Tensor>, n: usize, args: &[Tensor]) -> Vec<Tensor> {
    let (x, cts) = args.split_at(n);
    let at: Vec<usize> = (0..n).filter(|&i| x[i].dtype().is_float()).collect();
    let of_floats = |floats: Vec<Tensor>| {
        let mut x = x.to_vec();
        for (&i, float) in at.iter().zip(floats) {
            x[i] = float;
        }
        f(&x)
    };
    let of_floats: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &of_floats;
    let (mut results, pull) = vjp(of_floats, at.iter().map(|&i| x[i]).collect());
    let mut cts = cts.iter().copied();
    let cts = results
        .iter()
        .map(|y| match y.dtype().is_float() {
            true => cts.next().expect("a cotangent for each float result"),
            false => podracer::trace::ops::zeros_like(*y),
        })
        .collect();
    results.extend(pull(cts));
    results
}

/// Runs many functions in one Program: a compilation costs more than what is in it.
fn run(chunk: &[(Function, Fixture)], compiled: bool, faults: &mut Vec<String>) -> Result<()> {
    let args: Vec<Vec<Array>> = chunk
        .iter()
        .map(|(_, x)| x.inputs.iter().chain(&x.cts).cloned().map(Array::from).collect())
        .collect();
    let together = |args: Vec<Vec<Tensor>>| -> Vec<Vec<Tensor>> {
        let each = chunk.iter().zip(&args);
        each.map(|(((_, f), x), args)| value_and_pullback(*f, x.inputs.len(), args)).collect()
    };
    let together: &dyn Fn(Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>> = &together;
    let results =
        if compiled { jit(together).call(args)? } else { interpret(together).call(args)? };
    let how = if compiled { "compiled" } else { "interpreted" };
    for (((name, _), fixture), found) in chunk.iter().zip(results) {
        let found: Vec<Literal> = found.iter().map(Array::to_literal).collect::<Result<_>>()?;
        let expected: Vec<Literal> =
            fixture.outputs.iter().chain(&fixture.grads).cloned().collect();
        if let Err(difference) = compare(&found, &expected) {
            let results = fixture.outputs.len();
            faults.push(format!("{name}, {how} ({results} results, then gradients): {difference}"));
        }
    }
    Ok(())
}

#[test]
fn values_and_gradients_are_those_of_jax() {
    let fixtures = fixtures();
    let functions = functions();
    let stated: BTreeSet<&str> = functions.iter().map(|(name, _)| *name).collect();
    let recorded: BTreeSet<&str> = fixtures.keys().map(String::as_str).collect();
    assert_eq!(stated, recorded, "functions stated here, and functions in the fixture");
    assert!(stated.len() >= 60);

    let only = std::env::var("JAX_CASE").unwrap_or_default();
    let cases: Vec<(Function, Fixture)> = functions
        .into_iter()
        .filter(|(name, _)| name.contains(&only))
        .map(|(name, f)| ((name, f), fixtures[name].clone()))
        .collect();
    let mut faults = Vec::new();
    for compiled in [false, true] {
        let run = |chunk: &[_], faults: &mut _| run(chunk, compiled, faults);
        faults.extend(in_chunks(&cases, 30, |case| case.0.0, run));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
