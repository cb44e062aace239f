//! Transformed functions against JAX: values, first and second derivatives forwards and backwards,
//! batches, and loops over batches; compiled and interpreted. The numbers are JAX's own
//! (`tests/fixtures/transforms/make.py`, and `record.py` for what the kinds mean).

mod batches;
mod branches;
mod checks;
mod collectives;
mod custom;
mod derivatives;
mod edges;
mod loops;
mod orders;
mod remat;

use std::collections::{BTreeMap, BTreeSet};

use podracer::{Array, Axis, Literal, Result, Tensor, interpret, jit, vmap_axis};

use crate::fixture::{Kinds, compare, read};
use crate::quickly;
use checks::{Checks, GIVEN};
use orders::Orders;

/// A function of `make.py`, stated once more.
type Function = (&'static str, fn(&[Tensor]) -> Vec<Tensor>);

type Case = (&'static str, fn(&[Tensor]) -> Vec<Tensor>, Kinds);

fn functions() -> Vec<Function> {
    [
        derivatives::FUNCTIONS,
        derivatives::OF_OPERATIONS,
        loops::SCANS,
        loops::WHILES,
        branches::FUNCTIONS,
        custom::FUNCTIONS,
        remat::FUNCTIONS,
        batches::FUNCTIONS,
    ]
    .concat()
}

/// Everything about the functions in one Program: a compilation costs more than what is in it.
fn run(cases: &[Case], compiled: bool, faults: &mut Vec<String>) -> Result<()> {
    let args: Vec<Vec<Vec<Array>>> = cases
        .iter()
        .map(|(_, _, kinds)| {
            let arrays = |kind: &&str| kinds.get(*kind).cloned().unwrap_or_default();
            let given = GIVEN.iter().map(arrays);
            given.map(|arrays| arrays.into_iter().map(Array::from).collect()).collect()
        })
        .collect();
    let together = |args: Vec<Vec<Vec<Tensor>>>| -> Vec<Checks<Tensor>> {
        let each = cases.iter().zip(&args);
        each.map(|((_, f, kinds), given)| checks::checks(*f, kinds, given, compiled)).collect()
    };
    let together: &dyn Fn(Vec<Vec<Vec<Tensor>>>) -> Vec<Checks<Tensor>> = &together;
    let results = if compiled {
        quickly(jit(together)).call(args)?
    } else {
        interpret(together).call(args)?
    };
    let how = if compiled { "compiled" } else { "interpreted" };
    for ((name, _, kinds), found) in cases.iter().zip(results) {
        for (check, found) in found {
            let kind = checks::kind_of(&check);
            let found: Vec<Literal> = found.iter().map(Array::to_literal).collect::<Result<_>>()?;
            if let Err(difference) = compare(&found, &kinds[kind]) {
                faults.push(format!("{name}, {how}, {check}: {difference}"));
            }
        }
    }
    Ok(())
}

/// The functions of one list, some at a time; one by one where they do not even run.
fn held_to_jax(functions: &[Function], compiled: bool) {
    let mut fixtures = read("tests/fixtures/transforms/functions.safetensors");
    let only = std::env::var("JAX_CASE").unwrap_or_default();
    let cases: Vec<Case> = functions
        .iter()
        .filter(|(name, _)| name.contains(&only))
        .map(|(name, f)| (*name, *f, fixtures.remove(*name).unwrap_or_default()))
        .collect();
    let mut faults = Vec::new();
    for chunk in cases.chunks(24) {
        if run(chunk, compiled, &mut faults).is_ok() {
            continue;
        }
        for case in chunk {
            if let Err(error) = run(std::slice::from_ref(case), compiled, &mut faults) {
                faults.push(format!("{}: {error}", case.0));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

macro_rules! tests {
    ($($name:ident: $list:expr,)*) => {
        mod interpreted {
            use super::*;
            $(
                #[test]
                fn $name() {
                    held_to_jax($list, false);
                }
            )*
        }
        mod compiled {
            use super::*;
            $(
                #[test]
                fn $name() {
                    held_to_jax($list, true);
                }
            )*
        }
    };
}
tests! {
    derivatives: derivatives::FUNCTIONS,
    derivatives_of_operations: derivatives::OF_OPERATIONS,
    scans: loops::SCANS,
    whiles: loops::WHILES,
    branches: branches::FUNCTIONS,
    custom: custom::FUNCTIONS,
    remat: remat::FUNCTIONS,
    batches: batches::FUNCTIONS,
}

/// The functions along a named axis, by `vmap_axis`: what each member computes, and derivatives of
/// the whole.
fn along_an_axis(compiled: bool) {
    let mut fixtures = read("tests/fixtures/transforms/collectives.safetensors");
    type Lists = Vec<Vec<Tensor>>;
    // Of the whole function: the gradient, its derivative forwards, and backwards.
    let outer = ["ograd", "ofr", "orr"];
    let mut faults = Vec::new();
    for (name, f) in collectives::FUNCTIONS {
        let mut kinds = fixtures.remove(*name).unwrap_or_default();
        for kind in kinds.keys().map(String::as_str) {
            let used = outer.contains(&kind)
                || GIVEN.contains(&kind)
                || collectives::INSIDE.iter().any(|(_, k)| *k == kind);
            assert!(used, "{name}/{kind} is never looked at");
        }
        if compiled {
            // The rest is compiled over devices.
            kinds.retain(|kind, _| !["tan", "fr", "rr", "ofr", "orr"].contains(&kind.as_str()));
        }
        let member = |axis: Axis, given: Lists| {
            let [x, cts, v] = [0, 1, 2].map(|i| given[i].as_slice());
            collectives::inside(*f, &kinds, axis, [x, cts, v])
        };
        let all = |x: &[Tensor]| vmap_axis("i", |axis, x: Vec<Tensor>| f(axis, &x))(x.to_vec());
        let everything = |given: Lists| -> (Lists, Lists) {
            let inside = vmap_axis("i", member)(given.clone());
            let orders = Orders(&all);
            let [x, cts, v] = [0, 1, 2].map(|i| given[i].as_slice());
            let order = |kind: &&str| match *kind {
                "ograd" => orders.grad(x, cts),
                "ofr" => orders.fr(x, cts, v),
                _ => orders.rr(x, cts, v),
            };
            let asked = outer.iter().filter(|kind| kinds.contains_key(**kind));
            let outside = asked.map(order).collect();
            (inside, outside)
        };
        let everything: &dyn Fn(Lists) -> (Lists, Lists) = &everything;
        let arrays = |kind: &str| -> Vec<Array> {
            kinds.get(kind).cloned().unwrap_or_default().into_iter().map(Array::from).collect()
        };
        let args = vec![arrays("in"), arrays("ct"), arrays("v")];
        let found = if compiled {
            quickly(jit(everything)).call(args)
        } else {
            interpret(everything).call(args)
        };
        let (inside, outside) = match found {
            Ok(found) => found,
            Err(error) => {
                faults.push(format!("{name}: {error}"));
                continue;
            }
        };
        let asked = collectives::INSIDE.iter().filter(|(_, kind)| kinds.contains_key(*kind));
        let inside = asked.copied().zip(inside);
        let asked = outer.iter().filter(|kind| kinds.contains_key(**kind));
        let outside = asked.map(|kind| ("outside", *kind)).zip(outside);
        for ((check, kind), found) in inside.chain(outside) {
            let found: Vec<Literal> = found.iter().map(|y| y.to_literal().unwrap()).collect();
            if let Err(difference) = compare(&found, &kinds[kind]) {
                faults.push(format!("{name}, {check} ({kind}): {difference}"));
            }
        }
    }
    assert!(fixtures.is_empty(), "not stated here: {:?}", fixtures.keys());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn interpreted_collectives_equal_jax() {
    along_an_axis(false);
}

#[test]
fn compiled_collectives_equal_jax() {
    along_an_axis(true);
}

#[test]
fn no_fixture_is_left_unchecked() {
    let fixtures = read("tests/fixtures/transforms/functions.safetensors");
    let functions = functions();
    let stated: BTreeSet<&str> = functions.iter().map(|(name, _)| *name).collect();
    assert_eq!(stated.len(), functions.len(), "a function is stated twice");
    let recorded: BTreeSet<&str> = fixtures.keys().map(String::as_str).collect();
    assert_eq!(stated, recorded, "functions stated here, and functions in the fixture");
    assert!(stated.len() >= 150, "{}", stated.len());

    // Every kind of every function is either given or held against what is found.
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, kinds) in &fixtures {
        let checked: BTreeSet<&str> = checks::checked(kinds, false).map(checks::kind_of).collect();
        for kind in kinds.keys() {
            let used = GIVEN.contains(&kind.as_str()) || checked.contains(kind.as_str());
            assert!(used, "{name}/{kind} is never looked at");
        }
        for check in checks::checked(kinds, false) {
            *times.entry(check).or_default() += 1;
        }
    }
    for (check, _) in checks::CHECKS {
        assert!(times.get(check).is_some_and(|times| *times >= 10), "{check}: {times:?}");
    }
}
