//! Losses and their gradients against optax; `tests/fixtures/optim/make.py` generates the fixtures.

use super::*;
use crate::trace::DType;
use crate::trace::ops::{self, arange, constant};
use crate::trace::testing::{Fixture, interpret, numbers, wave};
use crate::value_and_grad;

const ROUNDING: f64 = 2e-6;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../tests/fixtures/optim/optim.json"))
}

/// Compares values, and gradients of the sum of products with a wave.
fn check(name: &str, loss: impl Fn(&[Tensor]) -> Tensor, arguments: impl Fn() -> Vec<Tensor>) {
    let fixture = fixture();
    let both = || {
        value_and_grad(|x: Vec<Tensor>| {
            let value = loss(&x);
            ((value * wave(value.shape(), 0.5)).sum(..), value)
        })(arguments())
    };
    fixture.close(&format!("loss_{name}"), numbers(|| both().0.1), ROUNDING);
    fixture.close(&format!("grad_{name}"), numbers(|| both().1), ROUNDING);
}

fn x() -> Tensor {
    2.0 * wave([4, 5], 0.3)
}

fn y() -> Tensor {
    wave([4, 5], 2.0)
}

fn probs() -> Tensor {
    (3.0 * y()).softmax(-1)
}

fn log_probs() -> Tensor {
    x().log_softmax(-1)
}

/// 1 at every third element, else 0.
fn binary() -> Tensor {
    (arange(20, DType::I32) % 3).eq(0).to(DType::F32).reshape([4, 5])
}

fn signs() -> Tensor {
    2.0 * binary() - 1.0
}

fn classes() -> Tensor {
    constant([0i32, 4, 1, 3])
}

#[test]
fn regression_losses_are_those_of_optax() {
    let both = || vec![x(), y()];
    check("squared_error", |a| squared_error(a[0], a[1]), both);
    check("l2_loss", |a| l2_loss(a[0], a[1]), both);
    check("l2_loss_alone", |a| l2_loss(a[0], 0.0), || vec![x()]);
    check("huber_loss", |a| huber_loss(a[0], a[1], 0.7), both);
    check("log_cosh", |a| log_cosh(a[0], a[1]), both);
    check("cosine_similarity", |a| cosine_similarity(a[0], a[1], 1e-6), both);
    check("cosine_distance", |a| cosine_distance(a[0], a[1], 0.0), both);
}

#[test]
fn classification_losses_are_those_of_optax() {
    let both = || vec![x(), probs()];
    let alone = || vec![x()];
    check("softmax_cross_entropy", |a| softmax_cross_entropy(a[0], a[1]), both);
    check(
        "softmax_cross_entropy_with_integer_labels",
        |a| softmax_cross_entropy_with_integer_labels(a[0], classes()),
        alone,
    );
    check("safe_softmax_cross_entropy", |a| safe_softmax_cross_entropy(a[0], binary()), alone);
    check("sigmoid_binary_cross_entropy", |a| sigmoid_binary_cross_entropy(a[0], a[1]), both);
    let large = || vec![9.0 * x()];
    check("sigmoid_focal_loss", |a| sigmoid_focal_loss(a[0], binary(), None, 2.0), large);
    let weighted = |a: &[Tensor]| sigmoid_focal_loss(a[0], probs(), Some(0.3), 1.5);
    check("sigmoid_focal_loss_alpha", weighted, alone);
    check("hinge_loss", |a| hinge_loss(a[0], signs()), alone);
    check("perceptron_loss", |a| perceptron_loss(a[0], signs()), alone);
    check("sparsemax_loss", |a| sparsemax_loss(a[0], binary().to(DType::I32)), alone);
    check("multiclass_hinge_loss", |a| multiclass_hinge_loss(a[0], classes()), alone);
    check("multiclass_perceptron_loss", |a| multiclass_perceptron_loss(a[0], classes()), alone);
    check("poly_loss_cross_entropy", |a| poly_loss_cross_entropy(a[0], a[1], 1.5), both);
    check("smooth_labels", |a| smooth_labels(a[0], 0.1), || vec![probs()]);
    check("ranking_softmax_loss", |a| ranking_softmax_loss(a[0], probs()), alone);
}

#[test]
fn divergences_are_those_of_optax() {
    let both = || vec![log_probs(), probs()];
    check("kl_divergence", |a| kl_divergence(a[0], a[1]), both);
    check("kl_divergence_zero", |a| kl_divergence(a[0], binary()), || vec![log_probs()]);
    let logs = || vec![log_probs(), probs().log()];
    let with_logs = |a: &[Tensor]| kl_divergence_with_log_targets(a[0], a[1]);
    check("kl_divergence_with_log_targets", with_logs, logs);
    check("convex_kl_divergence", |a| convex_kl_divergence(a[0], a[1]), || vec![x(), probs()]);
}

#[test]
fn sparse_and_fenchel_young_losses_are_those_of_optax() {
    check(
        "multiclass_sparsemax_loss",
        |a| multiclass_sparsemax_loss(a[0], classes()),
        || vec![x()],
    );
    let max = |scores: Tensor| scores.logsumexp(-1) + scores.index_axis(-1, 0).square();
    let loss = make_fenchel_young_loss(max);
    check("make_fenchel_young_loss", |a| loss(a[0], a[1]), || vec![x(), probs()]);
}

#[test]
fn losses_of_segmentation_are_those_of_optax() {
    let both = || vec![wave([2, 3, 2, 4], 0.7), (2.0 * wave([2, 3, 2, 4], 1.9)).softmax(-1)];
    check("dice_loss", |a| dice_loss(a[0], a[1], None, DiceLoss::default()), both);
    let options = DiceLoss {
        smooth: 0.3,
        alpha: 0.2,
        beta: 0.8,
        ignore_background: true,
        ..DiceLoss::default()
    };
    let weights = || Some(constant([1.0f32, 2.0, 0.5, 3.0]));
    check("dice_loss_options", |a| dice_loss(a[0], a[1], weights(), options), both);
    let given = DiceLoss { smooth: 0.3, apply_softmax: false, ..DiceLoss::default() };
    let masks = || both()[1];
    let of_probs = |a: &[Tensor]| dice_loss(a[0].softmax(-1), masks(), None, given);
    check("dice_loss_smooth", of_probs, || vec![both()[0]]);
    check("binary_dice_loss", |a| binary_dice_loss(a[0], binary(), 1.0, true), || vec![x()]);
    let first = |x: Tensor| x.slice_axis(-1, 0, 1);
    check(
        "binary_dice_loss_axis",
        |a| binary_dice_loss(a[0], first(masks()), 0.5, true),
        || vec![first(both()[0])],
    );
    let options = DiceLoss { smooth: 0.5, ignore_background: true, ..DiceLoss::default() };
    check(
        "multiclass_generalized_dice_loss",
        |a| multiclass_generalized_dice_loss(a[0], a[1], options),
        both,
    );
}

#[test]
fn losses_of_embeddings_are_those_of_optax() {
    let labels = || constant([0i32, 1, 0, 1]);
    check("ntxent", |a| ntxent(a[0], labels(), 0.5), || vec![x()]);
    check(
        "triplet_margin_loss",
        |a| triplet_margin_loss(a[0], a[1], a[2], 2, 1.0, 1e-6),
        || vec![x(), y(), wave([4, 5], 4.0)],
    );
}

/// Paddings `[rows, columns]`: 1 from the length of each row on.
fn paddings(lengths: [i32; 3], columns: usize) -> Tensor {
    let positions = arange(columns, DType::I32).expand_dims(0);
    positions.ge(constant(lengths).expand_dims(1)).to(DType::F32)
}

#[test]
fn ctc_is_that_of_optax() {
    let logits = || vec![2.0 * wave([3, 8, 6], 0.4)];
    let labels = || constant([1i32, 1, 3, 0, 5, 2, 2, 4, 3, 0, 0, 0]).reshape([3, 4]);
    let loss = move |logits, options| {
        ctc_loss(logits, paddings([8, 7, 5], 8), labels(), paddings([3, 4, 1], 4), options)
    };
    check("ctc_loss", |a| loss(a[0], CtcLoss::default()), logits);
    let last = CtcLoss { blank_id: 5, ..CtcLoss::default() };
    check("ctc_loss_blank", |a| loss(a[0], last).slice_axis(0, 0, 1), logits);
}

/// Logits that are large or infinite leave values and gradients finite where optax's are.
#[test]
fn large_logits_stay_finite() {
    let values = numbers(|| {
        let logits = constant([f32::NEG_INFINITY, 0.0, 1.0]);
        let labels = constant([0.0f32, 0.5, 0.5]);
        let safe = value_and_grad(|x: Tensor| safe_softmax_cross_entropy(x, labels))(logits);
        let large = constant([-200.0f32, 200.0]);
        let focal = |x: Tensor| sigmoid_focal_loss(x, constant([1i32, 1]), None, 2.0).sum(..);
        (safe, value_and_grad(focal)(large))
    });
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    assert_eq!(values[4], 200.0);
}

#[test]
fn arguments_that_do_not_fit_end_the_trace() {
    let refused = |f: fn() -> Tensor| {
        let error = interpret::<(), Tensor>((), |()| f()).unwrap_err().to_string();
        assert!(error.contains("src/losses/tests.rs"), "{error}");
        error
    };
    let error = refused(|| l2_loss(x(), wave([5], 0.0)));
    assert!(error.contains("must have one shape, and are f32[4,5] and f32[5]"), "{error}");
    let error = refused(|| huber_loss(arange(3, DType::I32), 1, 1.0));
    assert!(error.contains("predictions must be floats, and are i32[3]"), "{error}");
    let error = refused(|| softmax_cross_entropy_with_integer_labels(x(), probs()));
    assert!(error.contains("labels must be integers, and are f32[4,5]"), "{error}");
    let error = refused(|| ntxent(x(), ops::zeros([3], DType::I32), 0.1));
    assert!(error.contains("takes embeddings [n, features] and labels [n]"), "{error}");
    let error = refused(|| {
        let labels = ops::zeros([3, 4], DType::I32);
        let options = CtcLoss { blank_id: 6, ..CtcLoss::default() };
        ctc_loss(wave([3, 8, 6], 0.0), paddings([8; 3], 8), labels, paddings([4; 3], 4), options)
    });
    assert!(error.contains("the blank is class 6 of 6"), "{error}");
}
