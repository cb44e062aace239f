//! Losses by their formulas in NumPy: `tests/fixtures/algos/on_policy.py` made the numbers.

use std::collections::HashMap;

use podracer::DType;
use podracer::envs::ObsKind;
use podracer::nn::{Activation, Dense, Encoder, Mlp};
use podracer::trace::ops::constant;
use podracer::{Array, Tensor, interpret};

/// What NumPy computed, by name.
pub fn numbers(name: &str) -> Vec<f64> {
    let text = include_str!("../fixtures/algos/on_policy.json");
    let all: HashMap<String, Vec<f64>> = serde_json::from_str(text).unwrap();
    all[name].clone()
}

/// sin(0.7 i + phase) in f64, rounded to f32.
pub fn wave<const R: usize>(shape: [usize; R], phase: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| (0.7 * i as f64 + phase).sin() as f32).collect();
    constant(values.as_slice()).reshape(shape)
}

/// `i32` of any shape.
pub fn ints<const R: usize>(shape: [usize; R], values: &[i32]) -> Tensor {
    constant(values).reshape(shape)
}

/// `f32` of any shape.
pub fn floats<const R: usize>(shape: [usize; R], values: &[f32]) -> Tensor {
    constant(values).reshape(shape)
}

pub fn dense(sizes: [usize; 2], phase: f64) -> Dense<Tensor> {
    Dense { w: wave(sizes, phase), b: Some(wave([sizes[1]], phase + 0.5)) }
}

pub fn mlp(sizes: &[usize], phase: f64) -> Mlp<Tensor> {
    let pairs = sizes.windows(2).enumerate();
    let layers = pairs.map(|(k, pair)| dense([pair[0], pair[1]], phase + 0.1 * k as f64));
    Mlp { layers: layers.collect(), activation: Activation::Tanh }
}

/// Two layers of four units for observations of three numbers.
pub fn trunk() -> Encoder<Tensor> {
    let dense = vec![dense([3, 4], 0.1), dense([4, 4], 0.2)];
    Encoder {
        convs: Vec::new(),
        dense,
        obs_kind: ObsKind::Vector,
        shape: [3].into(),
        compute_dtype: DType::F32,
    }
}

/// Fails unless what `f` gives is the fixture `name`.
#[track_caller]
pub fn expect(name: &str, f: impl Fn() -> Vec<Tensor>) {
    let run = interpret(|_: Tensor| f());
    let message: Vec<Array> = run.call(Array::from(0.0f32)).unwrap();
    let ours: Vec<f64> =
        message.iter().flat_map(|x| x.to_vec::<f32>().unwrap()).map(f64::from).collect();
    let theirs = numbers(name);
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a - b).abs() <= 2e-5 * b.abs().max(1.0), "{name}: {ours:?}, expected {theirs:?}");
    }
}

/// The log probabilities of the policy that acted: those of now and a wave.
pub fn acted(now: &str) -> Tensor {
    let now: Vec<f32> = numbers(now).iter().map(|&x| x as f32).collect();
    constant(now.as_slice()) + 0.2 * wave([now.len()], 5.0)
}
