//! Functions of `trace::numpy` and `random` against JAX: values, and gradients by every float input,
//! compiled and interpreted; and the law that `vmap` of a function is the function of each example.
//! The numbers are JAX's own (`tests/fixtures/names/make.py`).

mod arrays;
mod decompositions;
mod functions;
mod sampling;
mod statistics;

use std::collections::{BTreeMap, BTreeSet};

use podracer::trace::ops::{constant, stack, zeros_like};
use podracer::{Array, Complex, Literal, Result, Tensor, interpret, jit, vjp, vmap};

use crate::chunks::{in_chunks, unpack};
use crate::fixture::{compare, read};
use crate::quickly;

/// A function of the script, stated once more.
pub type Function = (&'static str, fn(&[Tensor]) -> Vec<Tensor>);

fn suite() -> Suite {
    let some = [arrays::FUNCTIONS, decompositions::FUNCTIONS, functions::FUNCTIONS];
    let functions = [&some[..], &[sampling::FUNCTIONS, statistics::FUNCTIONS]].concat().concat();
    Suite { functions, fixture: "tests/fixtures/names/names.safetensors" }
}

/// Numbers of JAX for one function.
#[derive(Clone)]
struct Case {
    inputs: Vec<Literal>,
    outputs: Vec<Literal>,
    grads: Vec<Literal>,
}

fn cases(path: &str) -> BTreeMap<String, Case> {
    let unpacked = read(path).into_iter().map(|(name, kinds)| {
        let [inputs, outputs, grads] = ["in", "out", "grad"].map(|kind| unpack(&kinds[kind][0]));
        (name, Case { inputs, outputs, grads })
    });
    unpacked.collect()
}

/// Halves from -1 to 1, as the script's; of complex numbers in both parts.
fn cotangent(k: usize, y: Tensor) -> Tensor {
    if !y.dtype().is_inexact() {
        return zeros_like(y);
    }
    let half = |number: usize| (number % 5) as f32 / 2.0 - 1.0;
    if y.dtype().is_complex() {
        let halves: Vec<Complex<f32>> = (0..y.numel())
            .map(|i| Complex::new(half(i * 7 + k * 3), half(i * 3 + k + 1)))
            .collect();
        return constant(Literal::new(y.shape(), &halves[..])).to(y.dtype());
    }
    let halves: Vec<f32> = (0..y.numel()).map(|i| half(i * 7 + k * 3)).collect();
    constant(Literal::new(y.shape(), &halves[..])).to(y.dtype())
}

/// The results of `f`, and cotangents pulled back to each float input.
fn evaluate(f: fn(&[Tensor]) -> Vec<Tensor>, x: &[Tensor], grads: bool) -> Vec<Tensor> {
    if !grads {
        return f(x);
    }
    let at: Vec<usize> = (0..x.len()).filter(|&i| x[i].dtype().is_inexact()).collect();
    let of_floats = |floats: Vec<Tensor>| {
        let mut x = x.to_vec();
        for (&i, float) in at.iter().zip(floats) {
            x[i] = float;
        }
        f(&x)
    };
    let of_floats: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &of_floats;
    let (mut results, pull) = vjp(of_floats, at.iter().map(|&i| x[i]).collect());
    let cts = results.iter().enumerate().map(|(k, &y)| cotangent(k, y)).collect();
    results.extend(pull(cts));
    results
}

fn check(name: &str, found: &[Literal], expected: &[Literal], how: &str, faults: &mut Vec<String>) {
    if let Err(difference) = compare(found, expected) {
        faults.push(format!("{name}, {how}: {difference}"));
    }
}

/// Runs many functions in one Program: a compilation costs more than what is in it.
fn run(chunk: &[(Function, Case)], compiled: bool, faults: &mut Vec<String>) -> Result<()> {
    let args: Vec<Vec<Array>> =
        chunk.iter().map(|(_, x)| x.inputs.iter().cloned().map(Array::from).collect()).collect();
    let together = |args: Vec<Vec<Tensor>>| -> Vec<Vec<Tensor>> {
        let each = chunk.iter().zip(&args);
        each.map(|(((_, f), x), args)| evaluate(*f, args, !x.grads.is_empty())).collect()
    };
    let together: &dyn Fn(Vec<Vec<Tensor>>) -> Vec<Vec<Tensor>> = &together;
    let results = match compiled {
        true => quickly(jit(together)).call(args)?,
        false => interpret(together).call(args)?,
    };
    let how = if compiled { "compiled" } else { "interpreted" };
    for (((name, _), case), found) in chunk.iter().zip(results) {
        let found: Vec<Literal> = found.iter().map(Array::to_literal).collect::<Result<_>>()?;
        let expected: Vec<Literal> = case.outputs.iter().chain(&case.grads).cloned().collect();
        check(name, &found, &expected, how, faults);
        let (drawn, of_jax) = (&found[..case.outputs.len()], &case.outputs[..]);
        if compiled && sampling::TO_THE_BIT.contains(name) && drawn != of_jax {
            faults.push(format!("{name}, {how}: {drawn:?} instead of {of_jax:?}"));
        }
    }
    Ok(())
}

/// Functions, and the file with JAX's numbers for them.
pub struct Suite {
    pub functions: Vec<Function>,
    pub fixture: &'static str,
}

impl Suite {
    fn chosen(&self) -> Vec<(Function, Case)> {
        let cases = cases(self.fixture);
        let only = std::env::var("JAX_CASE").unwrap_or_default();
        let functions = self.functions.iter().filter(|(name, _)| name.contains(&only));
        functions.map(|&(name, f)| ((name, f), cases[name].clone())).collect()
    }

    /// Checks that the functions are those of the fixture.
    pub fn is_complete(&self) {
        let cases = cases(self.fixture);
        let stated: BTreeSet<&str> = self.functions.iter().map(|(name, _)| *name).collect();
        let recorded: BTreeSet<&str> = cases.keys().map(String::as_str).collect();
        assert_eq!(stated, recorded, "functions stated here, and functions in the fixture");
    }

    /// Compares values and gradients with JAX's.
    pub fn agrees(&self, compiled: bool) {
        let faults = in_chunks(
            &self.chosen(),
            25,
            |case| case.0.0,
            |chunk, faults| run(chunk, compiled, faults),
        );
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }

    /// Compares `vmap` of each function with the function of each example.
    pub fn batches(&self) {
        let mut faults = Vec::new();
        let chosen = self.chosen();
        for ((name, f), case) in chosen.into_iter().filter(|(_, case)| !case.inputs.is_empty()) {
            let inputs: Vec<Array> = case.inputs.iter().cloned().map(Array::from).collect();
            match interpret(move |x: Vec<Tensor>| both(f, &x)).call(inputs) {
                Ok((batched, each)) => {
                    let list = |arrays: &[Array]| -> Vec<Literal> {
                        arrays.iter().map(|array| array.to_literal().unwrap()).collect()
                    };
                    check(name, &list(&batched), &list(&each), "vmap", &mut faults);
                }
                Err(error) => faults.push(format!("{name}: {error}")),
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }
}

#[test]
fn functions_are_those_of_the_fixture() {
    suite().is_complete();
    assert!(suite().functions.len() > 100);
}

#[test]
fn interpreted_values_and_gradients_are_those_of_jax() {
    suite().agrees(false);
}

#[test]
fn compiled_values_and_gradients_are_those_of_jax() {
    suite().agrees(true);
}

/// Another example for a function: the elements in opposite order along every axis.
fn another(x: Tensor) -> Tensor {
    (0..x.rank()).fold(x, |x, axis| x.flip(axis as isize))
}

/// The results of `f` for two examples, in one batch and one after the other.
fn both(f: fn(&[Tensor]) -> Vec<Tensor>, x: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    let others: Vec<Tensor> = x.iter().map(|&x| another(x)).collect();
    let pairs = x.iter().zip(&others);
    let batch: Vec<Tensor> = pairs.map(|(&x, &other)| stack(&[x, other], 0)).collect();
    let batched = vmap(move |x: Vec<Tensor>| f(&x))(batch);
    let each = f(x).into_iter().zip(f(&others));
    (batched, each.map(|(first, second)| stack(&[first, second], 0)).collect())
}

#[test]
fn vmap_is_the_function_of_each_example() {
    suite().batches();
}
