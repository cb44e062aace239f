//! Tests of distributions against JAX; `tests/fixtures/nn/make.py` generates the fixtures.

mod distrax;

use super::*;
use crate::trace::DType;
use crate::trace::testing::{Fixture, numbers, wave};
use crate::trace::transpose::grad;

const ROUNDING: f64 = 2e-6;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../tests/fixtures/nn/nn.json"))
}

/// Returns logits with an impossible class and a nearly certain one.
fn categorical() -> Categorical<Tensor> {
    let (row, column) = (ops::constant([1i32, 2]), ops::constant([2i32, 0]));
    let special = ops::constant([f32::NEG_INFINITY, 60.0]);
    Categorical::new((wave([4, 5], 0.2) * 3.0).at(&[row, column]).set(special))
}

#[test]
fn categorical_is_that_of_jax() {
    let fixture = fixture();
    let log_prob = numbers(|| categorical().log_prob(ops::constant([0i32, 4, 1, 3])));
    fixture.close("categorical_log_prob", log_prob, ROUNDING);
    fixture.close("categorical_entropy", numbers(|| categorical().entropy()), ROUNDING);
    let kl = numbers(|| categorical().kl(&Categorical::new(wave([4, 5], 0.9))));
    fixture.close("categorical_kl", kl, ROUNDING);
    let sample = numbers(|| categorical().sample(Key::constant(42)));
    fixture.same("categorical_sample", sample);
    assert_eq!(numbers(|| categorical().mode())[2], 0.0);
}

#[test]
fn the_gradient_of_the_entropy_is_finite_where_a_class_is_impossible() {
    let gradient = numbers(|| {
        grad(|logits: Tensor| Categorical::new(logits).entropy().sum(..))(categorical().logits)
    });
    fixture().close("categorical_entropy_grad", gradient, ROUNDING);
}

#[test]
fn masked_classes_are_impossible() {
    let masked = || {
        let allowed = ops::constant([false, true, true, false]);
        Categorical::masked(ops::constant([9.0f32, 0.0, 0.0, 9.0]), allowed)
    };
    assert_eq!(numbers(|| masked().probs()), [0.0, 0.5, 0.5, 0.0]);
    let entropy = numbers(|| masked().entropy())[0];
    assert!((entropy - LN_2).abs() < 1e-7, "{entropy}");
    for seed in 0..20 {
        let class = numbers(|| masked().sample(Key::constant(seed)))[0];
        assert!(class == 1.0 || class == 2.0, "{class}");
    }
}

#[test]
fn normal_is_that_of_jax() {
    let fixture = fixture();
    let normal = || Normal::new(wave([4, 3], 0.3), wave([3], 0.5).exp());
    let log_prob = numbers(|| normal().log_prob(wave([4, 3], 1.5)));
    fixture.close("normal_log_prob", log_prob.clone(), ROUNDING);
    fixture.close("normal_sample", numbers(|| normal().sample(Key::constant(42))), ROUNDING);
    fixture.close("normal_entropy", numbers(|| normal().entropy()), ROUNDING);
    let diagonal = numbers(|| DiagNormal { normal: normal() }.log_prob(wave([4, 3], 1.5)));
    let sum: f64 = log_prob[..3].iter().sum();
    assert!((diagonal[0] - sum).abs() < 1e-5);
    assert_eq!(numbers(|| DiagNormal { normal: normal() }.entropy()).len(), 4);
    let kl = numbers(|| normal().kl(&normal()));
    assert!(kl.iter().all(|kl| kl.abs() < 1e-6), "{kl:?}");
    // Closed form: KL(N(1, 2) || N(0, 1)) = -log 2 + (4 + 1) / 2 - 1/2.
    let scalar = |x: f32| ops::constant([x]);
    let kl = numbers(|| {
        let unit = DiagNormal::new(scalar(0.0), scalar(1.0));
        DiagNormal::new(scalar(1.0), scalar(2.0)).kl(&unit)
    });
    assert!((kl[0] - (2.0 - LN_2)).abs() < 1e-6, "{kl:?}");
}

#[test]
fn both_forms_of_the_squashed_normal_are_those_of_jax() {
    let fixture = fixture();
    for (name, correction) in
        [("tanh_clipped", TanhCorrection::Clipped(1e-6)), ("tanh_exact", TanhCorrection::Exact)]
    {
        let results = numbers(|| {
            let (mean, std) = (wave([4, 3], 0.3), wave([3], 0.5).exp());
            let low = ops::constant([-1.0f32, -1.5, -1.0]);
            let high = ops::constant([1.0f32, 2.5, 0.0]);
            let policy = TanhNormal::within(mean, std, low, high);
            policy.sample_and_log_prob(Key::constant(42), correction)
        });
        fixture.close("tanh_action", &results[..12], ROUNDING);
        fixture.close(name, &results[12..], 1e-5);
    }
    // The exact form stays finite for large values.
    let far = numbers(|| {
        let unit = TanhNormal::new(ops::zeros([1], DType::F32), ops::ones([1], DType::F32));
        unit.log_prob_unsquashed(ops::constant([30.0f32]), TanhCorrection::Exact)
    });
    assert!((far[0] - (-450.9189385 - 2.0 * (LN_2 - 30.0))).abs() < 1e-3, "{far:?}");
}
