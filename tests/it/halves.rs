//! Draws and initial parameters in bf16 and f16 against JAX; `tests/fixtures/random/halves.py` generates
//! the fixture.

use std::collections::BTreeMap;

use podracer::nn::init::{self, Init};
use podracer::random::{self, Key};
use podracer::{DType, Tensor, jit};

type Draw = (&'static str, fn(Key<Tensor>, DType) -> Tensor);

fn kernel(init: Init, key: Key<Tensor>, dtype: DType) -> Tensor {
    init.draw(key, [8, 6], dtype)
}

const DRAWS: &[Draw] = &[
    ("normal", |k, d| random::normal(k, [64], d)),
    ("truncated_normal", |k, d| random::truncated_normal(k, -2.0, 1.5, [64], d)),
    ("exponential", |k, d| random::exponential(k, [64], d)),
    ("gumbel", |k, d| random::gumbel(k, [64], d)),
    ("laplace", |k, d| random::laplace(k, [64], d)),
    ("pareto", |k, d| random::pareto(k, 2.0, [64], d)),
    ("gamma", |k, d| random::gamma(k, 2.0, [64], d)),
    ("rademacher", |k, d| random::rademacher(k, [64], d)),
    ("lecun_normal", |k, d| kernel(init::lecun_normal(), k, d)),
    ("lecun_uniform", |k, d| kernel(init::lecun_uniform(), k, d)),
    ("he_normal", |k, d| kernel(init::he_normal(), k, d)),
    ("he_uniform", |k, d| kernel(init::he_uniform(), k, d)),
    ("glorot_normal", |k, d| kernel(init::glorot_normal(), k, d)),
    ("glorot_uniform", |k, d| kernel(init::glorot_uniform(), k, d)),
    ("init_normal", |k, d| kernel(Init::Normal(0.25), k, d)),
    ("init_uniform", |k, d| kernel(Init::Uniform(0.25), k, d)),
    ("init_truncated_normal", |k, d| kernel(Init::TruncatedNormal(0.25), k, d)),
];

#[test]
fn draws_of_16_bits_are_those_of_jax() {
    let text = include_str!("../fixtures/random/halves.json");
    let fixture: BTreeMap<String, Vec<f64>> = serde_json::from_str(text).unwrap();
    let mut faults = Vec::new();
    for (suffix, dtype, ulp) in
        [("bf16", DType::BF16, 2f64.powi(-7)), ("f16", DType::F16, 2f64.powi(-10))]
    {
        for (name, draw) in DRAWS {
            let ours = jit(|key: Key<Tensor>| draw(key, dtype)).call(Key::new(42)).unwrap();
            assert_eq!(ours.dtype(), dtype);
            let ours = ours.to_literal().unwrap().to_f64_vec();
            let agrees = |theirs: &Vec<f64>| {
                assert_eq!(ours.len(), theirs.len());
                let pairs = || ours.iter().zip(theirs);
                let different = pairs().filter(|(a, b)| a != b).count();
                // Inverse error functions of two versions of XLA differ in few last bits.
                let near = pairs().all(|(a, b)| (a - b).abs() <= 2.0 * ulp * b.abs().max(1e-2));
                near && different * 20 <= ours.len()
            };
            let theirs = &fixture[&format!("{name}_{suffix}")];
            let other_cpu = fixture.get(&format!("{name}_{suffix}_other_cpu"));
            if !agrees(theirs) && !other_cpu.is_some_and(agrees) {
                faults.push(format!("{name} {suffix}: {ours:?} for {theirs:?} or {other_cpu:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
