//! Functions that communicate, and their derivatives by each member, against JAX's `pmap` on eight
//! devices (`tests/fixtures/transforms/collectives.py`).

#[path = "../it/transforms/collectives.rs"]
mod collectives;
#[path = "../it/transforms/orders.rs"]
mod orders;

use podracer::{Array, Axis, Literal, Mode, Sharded, Tensor, pmap_with_mode, shard};

use super::devices;
use crate::fixture::{Kinds, compare, read};

type Lists = Vec<Vec<Tensor>>;

/// The checks of one function, by one member on each of eight devices.
fn run(
    f: fn(Axis, &[Tensor]) -> Vec<Tensor>,
    kinds: &Kinds,
    mode: Mode,
) -> podracer::Result<Vec<Vec<Sharded>>> {
    let devices = devices(8);
    let arrays = |kind: &str| -> Vec<Array> {
        kinds.get(kind).cloned().unwrap_or_default().into_iter().map(Array::from).collect()
    };
    let args = shard(&vec![arrays("in"), arrays("ct"), arrays("v")], &devices)?;
    let member = |axis: Axis, given: Lists| {
        // One row each: without the axis of size 1 that the shards have.
        let row =
            |list: &Vec<Tensor>| -> Vec<Tensor> { list.iter().map(|x| x.squeeze(0)).collect() };
        let [x, cts, v] = [0, 1, 2].map(|i| row(&given[i]));
        collectives::inside(f, kinds, axis, [&x, &cts, &v])
    };
    pmap_with_mode(mode, "i", member).call(args)
}

#[test]
fn functions_along_an_axis_are_those_of_jax() {
    let mut fixtures = read("tests/fixtures/transforms/collectives.safetensors");
    let mut faults = Vec::new();
    for (name, f) in collectives::FUNCTIONS {
        let kinds = fixtures.remove(*name).expect("a fixture of each function");
        for mode in [Mode::Jit, Mode::Interpret] {
            let found = match run(*f, &kinds, mode) {
                Ok(found) => found,
                Err(error) => {
                    faults.push(format!("{name}, {mode}: {error}"));
                    continue;
                }
            };
            let asked = collectives::INSIDE.iter().filter(|(_, kind)| kinds.contains_key(*kind));
            for ((check, kind), found) in asked.zip(found) {
                let whole = |y: &Sharded| y.stack().and_then(|y| y.to_literal()).unwrap();
                let found: Vec<Literal> = found.iter().map(whole).collect();
                if let Err(difference) = compare(&found, &kinds[*kind]) {
                    faults.push(format!("{name}, {mode}, {check}: {difference}"));
                }
            }
        }
    }
    assert!(fixtures.is_empty(), "not stated: {:?}", fixtures.keys());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
