//! `jax.random`: the first input is the words of a key.

use podracer::nn::init;
use podracer::random;
use podracer::trace::op::Precision;
use podracer::trace::ops::constant;
use podracer::{DType, Key, Tensor};

use super::Function;

const SHAPE: [usize; 2] = [3, 2];
const KERNEL: [usize; 4] = [3, 2, 2, 4];
const F32: DType = DType::F32;

fn key(x: &[Tensor]) -> Key<Tensor> {
    Key::from_data(x[0])
}

/// Draws that are JAX's to the bit also where many functions are compiled at once, at the compiler's level 0,
/// with their derivatives. `src/random/tests/draws.rs` compares draws that are compiled by themselves.
pub const TO_THE_BIT: &[&str] = &[
    "random_beta",
    "random_binomial",
    "random_cauchy",
    "random_double_sided_maxwell",
    "random_geometric",
    "random_laplace",
    "random_lognormal",
    "random_maxwell",
    "random_multinomial",
    "random_poisson",
    "random_rademacher",
    "random_rayleigh",
    "random_triangular",
    "random_weibull_min",
];

pub const FUNCTIONS: &[Function] = &[
    ("random_cauchy", |x| vec![random::cauchy(key(x), SHAPE, F32)]),
    ("random_laplace", |x| vec![random::laplace(key(x), SHAPE, F32)]),
    ("random_logistic", |x| vec![random::logistic(key(x), SHAPE, F32)]),
    ("random_rademacher", |x| {
        [DType::I32, F32].map(|dtype| random::rademacher(key(x), SHAPE, dtype)).to_vec()
    }),
    ("random_maxwell", |x| vec![random::maxwell(key(x), SHAPE, F32)]),
    ("random_double_sided_maxwell", |x| {
        vec![random::double_sided_maxwell(key(x), 0.5, 2.0, SHAPE, F32)]
    }),
    ("random_orthogonal", |x| {
        vec![random::orthogonal(key(x), 3, 3, [], F32), random::orthogonal(key(x), 2, 3, [2], F32)]
    }),
    ("random_ball", |x| {
        vec![random::ball(key(x), 3, 2.0, [2], F32), random::ball(key(x), 2, 1.0, [3], F32)]
    }),
    ("random_generalized_normal", |x| vec![random::generalized_normal(key(x), 1.5, SHAPE, F32)]),
    ("random_geometric", |x| {
        vec![random::geometric(key(x), constant([0.1f32, 0.7]), SHAPE, DType::I32)]
    }),
    ("random_poisson", |x| {
        let means = [[0.5f32, 30.0], [0.0, 400.0]];
        means.map(|mean| random::poisson(key(x), constant(mean), SHAPE, DType::I32)).to_vec()
    }),
    ("random_binomial", |x| {
        vec![
            random::binomial(key(x), 20.0, constant([0.3f32, 0.8]), SHAPE, F32),
            random::binomial(key(x), constant([200.0f32, 7.0]), 0.4, SHAPE, F32),
        ]
    }),
    ("random_multinomial", |x| {
        let p = constant([[0.2f32, 0.5, 0.3], [0.1, 0.1, 0.8]]);
        vec![random::multinomial(key(x), constant([10.0f32, 100.0]), p)]
    }),
    ("init_uniform", |x| vec![init::uniform(0.5).draw(key(x), KERNEL, F32)]),
    ("init_normal", |x| vec![init::normal(0.5).draw(key(x), KERNEL, F32)]),
    ("init_truncated_normal", |x| vec![init::truncated_normal(0.5).draw(key(x), KERNEL, F32)]),
    ("init_delta_orthogonal", |x| vec![init::delta_orthogonal(0.5).draw(key(x), KERNEL, F32)]),
    ("random_pareto", |x| vec![random::pareto(key(x), x[1], SHAPE, F32)]),
    ("random_weibull_min", |x| vec![random::weibull_min(key(x), x[1], x[2], SHAPE, F32)]),
    ("random_rayleigh", |x| vec![random::rayleigh(key(x), x[1], SHAPE, F32)]),
    ("random_wald", |x| vec![random::wald(key(x), x[1], SHAPE, F32)]),
    ("random_triangular", |x| vec![random::triangular(key(x), x[1], 1.0, 2.0, SHAPE, F32)]),
    ("random_lognormal", |x| vec![random::lognormal(key(x), x[1], SHAPE, F32)]),
    ("random_gamma", |x| {
        vec![random::gamma(key(x), x[1], SHAPE, F32), random::loggamma(key(x), x[1], SHAPE, F32)]
    }),
    ("random_beta", |x| vec![random::beta(key(x), x[1], x[2], SHAPE, F32)]),
    ("random_dirichlet", |x| vec![random::dirichlet(key(x), x[1], [2], F32)]),
    ("random_t", |x| vec![random::t(key(x), x[1], SHAPE, F32)]),
    ("random_chisquare", |x| vec![random::chisquare(key(x), x[1], SHAPE, F32)]),
    ("random_f", |x| vec![random::f(key(x), x[1], x[2], SHAPE, F32)]),
    ("random_multivariate_normal", |x| {
        let cov = x[2].matmul_with(x[2].t(), Precision::Highest);
        vec![random::multivariate_normal(key(x), x[1], cov, SHAPE)]
    }),
];
