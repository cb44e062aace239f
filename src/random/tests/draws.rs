//! Draws to the bit: `tests/fixtures/random/draws.py` generates the fixture. Each function is compiled by itself
//! with the default options, as in the script, because what XLA fuses changes last bits.

use super::super::*;
use crate::jit;
use crate::trace::testing::Fixture;

const SHAPE: [usize; 2] = [25, 2];
const F32: DType = DType::F32;

fn a() -> Tensor {
    ops::constant([0.7f32, 2.5])
}

fn b() -> Tensor {
    ops::constant([1.5f32, 0.7])
}

/// A covariance of `n` numbers.
fn covariance(n: usize) -> Tensor {
    let all = ops::constant([[1.0f32, 0.3, 0.2], [0.3, 0.5, 0.1], [0.2, 0.1, 2.0]]);
    all.slice_axis(0, 0, n).slice_axis(1, 0, n)
}

type Draw = (&'static str, fn(Key<Tensor>) -> Tensor);

/// Draws that are JAX's to the bit.
const EQUAL: &[Draw] = &[
    ("uniform", |k| uniform(k, SHAPE, F32, 0.0, 1.0)),
    ("gumbel", |k| gumbel(k, SHAPE, F32)),
    ("exponential", |k| exponential(k, SHAPE, F32)),
    ("cauchy", |k| cauchy(k, SHAPE, F32)),
    ("laplace", |k| laplace(k, SHAPE, F32)),
    ("logistic", |k| logistic(k, SHAPE, F32)),
    ("pareto", |k| pareto(k, a(), SHAPE, F32)),
    ("weibull_min", |k| weibull_min(k, 2.0, 1.5, SHAPE, F32)),
    ("rayleigh", |k| rayleigh(k, a(), SHAPE, F32)),
    ("triangular", |k| triangular(k, ops::constant([0.0f32, 0.5]), 1.0, 2.0, SHAPE, F32)),
    ("normal", |k| normal(k, SHAPE, F32)),
    ("truncated_normal", |k| truncated_normal(k, -2.0, 2.0, SHAPE, F32)),
    ("lognormal", |k| lognormal(k, a(), SHAPE, F32)),
    ("wald", |k| wald(k, a(), SHAPE, F32)),
    ("maxwell", |k| maxwell(k, SHAPE, F32)),
    ("double_sided_maxwell", |k| double_sided_maxwell(k, 0.5, 2.0, SHAPE, F32)),
];

/// Draws made of powers. They are JAX's to the bit on an AMD EPYC, which made the fixture. On an Intel Xeon
/// with the XLA of 2025 JAX's own had other last bits.
const BY_PROCESSOR: &[Draw] = &[
    ("beta", |k| beta(k, a(), b(), SHAPE, F32)),
    ("gamma", |k| gamma(k, a(), SHAPE, F32)),
    ("loggamma", |k| loggamma(k, a(), SHAPE, F32)),
    ("chisquare", |k| chisquare(k, a(), SHAPE, F32)),
    ("t", |k| t(k, a(), SHAPE, F32)),
    ("f", |k| f(k, a(), b(), SHAPE, F32)),
    ("generalized_normal", |k| generalized_normal(k, 1.5, SHAPE, F32)),
    ("gamma_of_a_number", |k| gamma(k, 0.5, SHAPE, F32)),
    ("dirichlet", |k| dirichlet(k, ops::constant([0.3f32, 2.5, 1.0]), [20], F32)),
    ("ball", |k| ball(k, 3, 2.0, [20], F32)),
    ("ball_of_1", |k| ball(k, 2, 1.0, [20], F32)),
];

/// Draws made of factors of matrices, which are LAPACK's in JAX.
const CLOSE: &[Draw] = &[
    ("multivariate_normal_of_2", |k| {
        multivariate_normal(k, ops::constant([0.1f32, 0.2]), covariance(2), [20])
    }),
    ("multivariate_normal", |k| {
        multivariate_normal(k, ops::constant([0.1f32, 0.2, 0.3]), covariance(3), [20])
    }),
    ("orthogonal", |k| orthogonal(k, 3, 3, [4], F32)),
];

/// Numbers of elements and of those with other bits, and the largest difference.
#[derive(Debug, Default)]
struct Difference {
    count: usize,
    other_bits: usize,
    largest: f32,
}

fn difference((name, f): Draw) -> Difference {
    let fixture = Fixture::new(include_str!("../../../tests/fixtures/random/draws.json"));
    let draw = jit(f);
    let mut found = Difference::default();
    for seed in 0..4 {
        let ours = draw.call(Key::new(seed)).unwrap().to_vec::<f32>().unwrap();
        let theirs = fixture.case(&format!("{name}/{seed}"));
        assert_eq!(ours.len(), theirs.len(), "{name}");
        for (x, y) in ours.into_iter().zip(theirs) {
            let y = *y as f32;
            found.count += 1;
            found.other_bits += usize::from(x.to_bits() != y.to_bits());
            found.largest = found.largest.max((x - y).abs() / y.abs().max(1.0));
        }
    }
    found
}

fn differences(draws: &[Draw]) -> Vec<(&'static str, Difference)> {
    draws.iter().map(|&draw| (draw.0, difference(draw))).collect()
}

#[test]
fn draws_are_those_of_jax_to_the_bit() {
    let all = differences(EQUAL);
    assert!(all.iter().all(|(_, found)| found.other_bits == 0), "{all:#?}");
}

#[test]
fn draws_made_of_powers_are_those_of_jax_but_for_last_bits() {
    let all = differences(BY_PROCESSOR);
    assert!(all.iter().all(|(_, found)| found.largest <= 4e-6), "{all:#?}");
}

#[test]
fn draws_made_of_factors_are_those_of_jax_to_rounding() {
    let all = differences(CLOSE);
    assert!(all.iter().all(|(_, found)| found.largest <= 1e-5), "{all:#?}");
}
