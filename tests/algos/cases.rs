//! What the tests of the algorithms share: values that JAX gave, and runs that are compared.

use std::path::Path;

use podracer::nn::{Activation, Dense, Mlp};
use podracer::rl::Algorithm;
use podracer::{Array, Error};
use serde_json::Value;

/// One case of `tests/fixtures/algos/values.json`.
pub struct Case {
    name: &'static str,
    arrays: Value,
}

impl Case {
    pub fn of(name: &'static str) -> Case {
        let text = include_str!("../fixtures/algos/values.json");
        let all: Value = serde_json::from_str(text).unwrap();
        Case { name, arrays: all[name].clone() }
    }

    fn values(&self, key: &str) -> (Vec<usize>, Vec<f64>) {
        let entry = &self.arrays[key];
        assert!(entry.is_object(), "{}: no {key}", self.name);
        (
            serde_json::from_value(entry["shape"].clone()).unwrap(),
            serde_json::from_value(entry["values"].clone()).unwrap(),
        )
    }

    pub fn f32(&self, key: &str) -> Array {
        let (shape, values) = self.values(key);
        Array::new(shape, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()).unwrap()
    }

    pub fn i32(&self, key: &str) -> Array {
        let (shape, values) = self.values(key);
        Array::new(shape, &values.iter().map(|&x| x as i32).collect::<Vec<_>>()).unwrap()
    }

    /// Boards of MinAtar with one channel, `bool[B, 10, 10, 1]`.
    pub fn boards(&self, key: &str) -> Array {
        let (shape, values) = self.values(key);
        let cells: Vec<bool> = values.iter().map(|&x| x != 0.0).collect();
        Array::new([shape[0], 10, 10, 1], &cells).unwrap()
    }

    /// A layer with the kernel and the bias of these names.
    pub fn dense(&self, w: &str, b: &str) -> Dense<Array> {
        Dense { w: self.f32(w), b: Some(self.f32(b)) }
    }

    /// One layer as a network.
    pub fn mlp(&self, w: &str, b: &str) -> Mlp<Array> {
        Mlp { layers: vec![self.dense(w, b)], activation: Activation::Relu }
    }

    pub fn close(&self, key: &str, found: &Array) {
        let (shape, expected) = self.values(key);
        assert_eq!(found.shape()[..], shape[..], "{}: {key}", self.name);
        for (i, (a, b)) in found.to_vec::<f32>().unwrap().iter().zip(&expected).enumerate() {
            let near = (f64::from(*a) - b).abs() <= 2e-6 * b.abs().max(1.0);
            assert!(near, "{}: {key}[{i}] is {a}, and JAX gives {b}", self.name);
        }
    }
}

/// The settings of a small run in `runs`.
pub fn args<A: Algorithm>(runs: &Path, small: &[&str], more: &[&str]) -> A {
    let runs = ["--json", "--runs-dir", runs.to_str().unwrap()];
    A::from_flags(small.iter().chain(more).copied().chain(runs)).unwrap()
}

/// What is told of settings that cannot be; nothing of a run is left behind.
pub fn refused<A: Algorithm>(small: &[&str], more: &[&str]) -> String {
    let runs = tempfile::tempdir().unwrap();
    let message = match args::<A>(runs.path(), small, more).train() {
        Err(Error::Config(message) | Error::Env(message)) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(std::fs::read_dir(runs.path()).unwrap().count(), 0, "a run was begun");
    message
}
