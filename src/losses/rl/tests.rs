//! Values and gradients against rlax; `tests/fixtures/rlax/make.py` generates the fixtures.

use super::*;
use crate::random::Key;
use crate::trace::ops::{arange, constant, linspace};
use crate::trace::testing::{Fixture, interpret, numbers, wave};
use crate::trace::{DType, ops};
use crate::value_and_grad;

const ROUNDING: f64 = 2e-6;
/// Tolerance of the inverse of `signed_hyperbolic`, a small difference of numbers near 500.
const CANCELLATION: f64 = 1e-4;
const T: usize = 6;
const A: usize = 4;
const K: usize = 5;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../../tests/fixtures/rlax/rlax.json"))
}

/// Compares values, and gradients of the sum of products with waves.
fn check_all(
    name: &str,
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
    arguments: impl Fn() -> Vec<Tensor>,
) {
    let fixture = fixture();
    let both = || {
        value_and_grad(|x: Vec<Tensor>| {
            let values = f(&x);
            let mut total = ops::zeros([], DType::F32);
            for value in &values {
                total = total + (*value * wave(value.shape(), 0.5)).sum(..);
            }
            (total, values)
        })(arguments())
    };
    let hyperbolic = name.starts_with("transformed") || name.starts_with("muzero");
    let tolerance = if hyperbolic { CANCELLATION } else { ROUNDING };
    fixture.close(name, numbers(|| both().0.1), tolerance);
    fixture.close(&format!("grad_{name}"), numbers(|| both().1), tolerance);
}

fn check(name: &str, f: impl Fn(&[Tensor]) -> Tensor, arguments: impl Fn() -> Vec<Tensor>) {
    check_all(name, |x| vec![f(x)], arguments);
}

fn rewards() -> Tensor {
    wave([T], 0.1)
}

fn discounts() -> Tensor {
    0.5 + 0.4 * wave([T], 0.7)
}

fn values() -> Tensor {
    wave([T], 1.3)
}

fn v_tm1() -> Tensor {
    wave([T], 2.2)
}

fn lambdas() -> Tensor {
    0.5 + 0.3 * wave([T], 3.1)
}

fn rhos() -> Tensor {
    wave([T], 4.0).exp()
}

fn q_tm1() -> Tensor {
    wave([T, A], 0.4)
}

fn q_t() -> Tensor {
    wave([T, A], 2.9)
}

fn a_tm1() -> Tensor {
    arange(T, DType::I32) % A
}

fn a_t() -> Tensor {
    (arange(T, DType::I32) * 2 + 1) % A
}

fn pi() -> Tensor {
    (2.0 * wave([T, A], 5.0)).softmax(-1)
}

fn mu() -> Tensor {
    0.4 + 0.2 * wave([T], 1.0)
}

#[test]
fn returns_are_those_of_rlax() {
    let three = || vec![rewards(), discounts(), values()];
    check("lambda_returns", |x| lambda_returns(x[0], x[1], x[2], 0.7), three);
    check(
        "lambda_returns_of_lambdas",
        |x| lambda_returns(x[0], x[1], x[2], x[3]),
        || vec![rewards(), discounts(), values(), lambdas()],
    );
    let two = || vec![rewards(), discounts()];
    check("discounted_returns", |x| discounted_returns(x[0], x[1], 0.3), two);
    for n in [1, 3, 6, 9] {
        let returns = |x: &[Tensor]| n_step_bootstrapped_returns(x[0], x[1], x[2], n, 0.8);
        check(&format!("n_step_{n}"), returns, three);
    }
    check(
        "importance_corrected",
        |x| importance_corrected_td_errors(x[0], x[1], x[2], 0.9, x[3]),
        || vec![rewards(), discounts(), rhos(), wave([T + 1], 1.9)],
    );
    check(
        "gae",
        |x| truncated_generalized_advantage_estimation(x[0], x[1], 0.9, x[2]),
        || vec![rewards(), discounts(), wave([T + 1], 1.9)],
    );
    check(
        "off_policy_q_and_v",
        |x| general_off_policy_returns_from_q_and_v(x[0], x[1], x[2], x[3], x[4]),
        || {
            let c_t = lambdas().slice_axis(0, 0, T - 1);
            vec![wave([T - 1], 3.3), values(), rewards(), discounts(), c_t]
        },
    );
    check(
        "off_policy_action_values",
        |x| general_off_policy_returns_from_action_values(x[0], a_t(), x[1], x[2], x[3], x[4]),
        || vec![q_t(), rewards(), discounts(), lambdas(), pi()],
    );
    check("upgo", |x| upgo_returns(x[0], x[1], x[2]), three);
}

#[test]
fn vtrace_is_that_of_rlax() {
    let five = || vec![v_tm1(), values(), rewards(), discounts(), rhos()];
    let clipped =
        VTrace { clip_rho_threshold: 1.2, clip_pg_rho_threshold: 1.1, ..VTrace::default() };
    let leaky = VTrace { alpha: 0.7, ..VTrace::default() };
    let errors = |x: &[Tensor], options| vtrace(x[0], x[1], x[2], x[3], x[4], 0.9, options);
    check("vtrace", |x| errors(x, clipped), five);
    check("leaky_vtrace", |x| errors(x, leaky), five);
    let all = |x: &[Tensor], lambda, options| {
        let output = vtrace_td_error_and_advantage(x[0], x[1], x[2], x[3], x[4], lambda, options);
        vec![output.errors, output.pg_advantage, output.q_estimate]
    };
    check_all("vtrace_advantage", |x| all(x, 0.9, clipped), five);
    check_all("leaky_vtrace_advantage", |x| all(x, 1.0, leaky), five);
}

#[test]
fn errors_of_values_are_those_of_rlax() {
    let four = || vec![v_tm1(), rewards(), discounts(), values()];
    check("td_learning", |x| td_learning(x[0], x[1], x[2], x[3]), four);
    check("td_lambda", |x| td_lambda(x[0], x[1], x[2], x[3], 0.8), four);
    let of_actions = || vec![q_tm1(), rewards(), discounts(), q_t()];
    check("sarsa", |x| sarsa(x[0], a_tm1(), x[1], x[2], x[3], a_t()), of_actions);
    check(
        "expected_sarsa",
        |x| expected_sarsa(x[0], a_tm1(), x[1], x[2], x[3], x[4]),
        || vec![q_tm1(), rewards(), discounts(), q_t(), pi()],
    );
    let sarsa_of = |x: &[Tensor]| sarsa_lambda(x[0], a_tm1(), x[1], x[2], x[3], a_t(), 0.8);
    check("sarsa_lambda", sarsa_of, of_actions);
    check("q_learning", |x| q_learning(x[0], a_tm1(), x[1], x[2], x[3]), of_actions);
    check(
        "double_q_learning",
        |x| double_q_learning(x[0], a_tm1(), x[1], x[2], x[3], x[4]),
        || vec![q_tm1(), rewards(), discounts(), q_t(), wave([T, A], 6.0)],
    );
    let persistent = |x: &[Tensor]| persistent_q_learning(x[0], a_tm1(), x[1], x[2], x[3], 0.3);
    check("persistent_q_learning", persistent, of_actions);
    check(
        "qv_learning",
        |x| qv_learning(x[0], a_tm1(), x[1], x[2], x[3]),
        || vec![q_tm1(), rewards(), discounts(), values()],
    );
    check(
        "qv_max",
        |x| qv_max(x[0], x[1], x[2], x[3]),
        || vec![v_tm1(), rewards(), discounts(), q_t()],
    );
    check("q_lambda", |x| q_lambda(x[0], a_tm1(), x[1], x[2], x[3], 0.8), of_actions);
}

#[test]
fn retrace_and_transformed_errors_are_those_of_rlax() {
    let six = || vec![q_tm1(), q_t(), rewards(), discounts(), pi(), mu()];
    check(
        "retrace",
        |x| retrace(x[0], x[1], a_tm1(), a_t(), x[2], x[3], x[4], x[5], 0.9, 1e-8),
        six,
    );
    check(
        "retrace_continuous",
        |x| retrace_continuous(x[0], x[1], x[2], x[3], x[4], x[5], 0.9),
        || {
            let (q_t, log_rhos) = (wave([T - 1], 3.3), wave([T - 1], 1.1));
            vec![v_tm1(), q_t, values(), rewards(), discounts(), log_rhos]
        },
    );
    let tx = TxPair::signed_hyperbolic();
    let of_actions = || vec![q_tm1(), rewards(), discounts(), q_t()];
    let lambda = |x: &[Tensor]| transformed_q_lambda(&tx, x[0], a_tm1(), x[1], x[2], x[3], 0.8);
    check("transformed_q_lambda", lambda, of_actions);
    check(
        "transformed_retrace",
        |x| {
            let (a_tm1, a_t) = (a_tm1(), a_t());
            transformed_retrace(&tx, x[0], x[1], a_tm1, a_t, x[2], x[3], x[4], x[5], 0.9, 1e-8)
        },
        six,
    );
    check(
        "transformed_n_step",
        |x| transformed_n_step_q_learning(&tx, x[0], a_tm1(), x[1], a_t(), x[2], x[3], 3),
        || vec![q_tm1(), q_t(), rewards(), discounts()],
    );
}

#[test]
fn distributional_losses_are_those_of_rlax() {
    let atoms = || linspace(-1.0, 1.0, K, DType::F32);
    let other = || linspace(-1.2, 0.9, K, DType::F32);
    check(
        "categorical_l2_project",
        |x| categorical_l2_project(x[0], x[1], atoms()),
        || vec![0.9 * wave([T, K], 2.0), wave([T, K], 1.7).softmax(-1)],
    );
    check(
        "categorical_td_learning",
        |x| categorical_td_learning(atoms(), x[0], x[1], x[2], other(), x[3]),
        || vec![wave([T, K], 0.2), rewards(), discounts(), wave([T, K], 1.7)],
    );
    let logits = || vec![wave([T, A, K], 0.2), rewards(), discounts(), wave([T, A, K], 1.7)];
    check(
        "categorical_q_learning",
        |x| categorical_q_learning(atoms(), x[0], a_tm1(), x[1], x[2], other(), x[3]),
        logits,
    );
    let double = |x: &[Tensor]| {
        categorical_double_q_learning(atoms(), x[0], a_tm1(), x[1], x[2], other(), x[3], q_t())
    };
    check("categorical_double_q_learning", double, logits);
    for (name, huber) in [("quantile_regression_0.0", 0.0), ("quantile_regression_0.4", 0.4)] {
        let loss = |x: &[Tensor]| quantile_regression_loss(x[0], taus(), x[1], huber);
        check(name, loss, || vec![wave([T, K], 0.2), wave([T, K], 1.7)]);
    }
    check(
        "quantile_q_learning",
        |x| quantile_q_learning(x[0], taus(), a_tm1(), x[1], x[2], x[3], x[4], 0.4),
        || {
            let dist = |phase| wave([T, K, A], phase);
            vec![dist(0.2), rewards(), discounts(), dist(4.0), dist(1.7)]
        },
    );
}

fn taus() -> Tensor {
    ((arange(K, DType::F32) + 0.5) / K as f64).broadcast_to([T, K])
}

fn probs_a() -> Tensor {
    wave([T, A], 2.7).softmax(-1)
}

#[test]
fn quantiles_of_all_actions_are_those_of_rlax() {
    check(
        "quantile_expected_sarsa",
        |x| quantile_expected_sarsa(x[0], taus(), a_tm1(), x[1], x[2], x[3], probs_a(), 0.4),
        || {
            let dist = |phase| wave([T, K, A], phase);
            vec![dist(0.2), rewards(), discounts(), dist(1.7)]
        },
    );
}

fn outputs() -> Tensor {
    (arange(8, DType::I32) % 3).reshape([2, 4])
}

fn popart_state() -> [Tensor; 3] {
    [wave([3], 0.4), wave([3], 1.4).exp(), 2.0 + wave([3], 2.4)]
}

fn state_of(x: &[Tensor]) -> PopArtState<Tensor> {
    PopArtState { shift: x[0], scale: x[1], second_moment: x[2] }
}

#[test]
fn popart_is_that_of_rlax() {
    let with_state = |x: Tensor| [&popart_state()[..], &[x]].concat();
    let batch = move || with_state(wave([2, 4], 0.6));
    check("popart_normalize", |x| state_of(x).normalize(x[3], outputs()), batch);
    check("popart_unnormalize", |x| state_of(x).unnormalize(x[3], outputs()), batch);
    let linear = |x: &[Tensor]| {
        let (normalized, unnormalized) = state_of(x).unnormalize_linear(x[3], outputs());
        vec![normalized, unnormalized]
    };
    check_all("popart_linear", linear, move || with_state(wave([2, 4, 3], 0.6)));
    let updated =
        || art(&state_of(&popart_state()), 3.0 * wave([2, 4], 1.1), outputs(), 0.1, 0.5, 1.5);
    fixture().close("popart_art", numbers(updated), ROUNDING);
    let layer = |x: &[Tensor]| {
        let (w, b) = pop((x[0], x[1]), &state_of(&popart_state()), &updated());
        vec![w, b]
    };
    check_all("popart_pop", layer, || vec![wave([4, 3], 0.2), wave([3], 0.9)]);
    let error = interpret::<(), Tensor>((), |()| {
        PopArtState::init(3).normalize(wave([2, 4], 0.6), wave([2, 4], 0.6))
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("indices must be integers of the shape of the values"), "{error}");
}

#[test]
fn exploration_is_that_of_rlax() {
    let fixture = fixture();
    let key = || Key::constant(42);
    let noisy = numbers(|| add_gaussian_noise(key(), wave([4], 0.3), 0.5));
    fixture.close("gaussian_noise", noisy, ROUNDING);
    let noisy =
        numbers(|| add_ornstein_uhlenbeck_noise(key(), wave([4], 0.3), wave([4], 1.3), 0.2, 0.5).0);
    fixture.close("ornstein_uhlenbeck_noise", noisy, ROUNDING);
    let noisy = numbers(|| add_dirichlet_noise(key(), probs_a(), 0.3, 0.25));
    fixture.close("dirichlet_noise", noisy, 1e-5);
    let found = numbers(|| {
        let found = knn_query(wave([7, 3], 0.2), wave([2, 3], 1.2), 3);
        let indices = found.neighbor_indices.to(DType::F32);
        (found.neighbors, indices, found.neighbor_neg_distances)
    });
    fixture.close("knn", found, ROUNDING);
    let options = EpisodicMemory { max_similarity: 1.2, ..EpisodicMemory::new(2, 0.7) };
    let rewards = numbers(|| {
        let mut memory = IntrinsicRewardState::init(8, 2, 2);
        (0..4)
            .map(|step| {
                let embeddings = 0.3 * wave([3, 2], (step % 3) as f64);
                let (reward, next) =
                    episodic_memory_intrinsic_rewards(embeddings, &options, memory.clone());
                memory = next;
                let [index, count] = [memory.next_memory_index, memory.distance_count];
                let rest = [index.to(DType::F32), memory.distance_sum, count.to(DType::F32)];
                let rest: Vec<Tensor> = rest.iter().map(|x| x.reshape([1])).collect();
                ops::concatenate(&[&[reward], &rest[..]].concat(), 0)
            })
            .collect::<Vec<_>>()
    });
    for (step, reward) in rewards.chunks(6).enumerate() {
        fixture.close(&format!("intrinsic_reward_{step}"), reward, ROUNDING);
    }
}

#[test]
fn losses_of_policies_are_those_of_rlax() {
    let weights = || 1.0 + 0.5 * wave([T], 2.0);
    let logits = || 2.0 * wave([T, A], 0.8);
    let actions = || vec![wave([T], 0.3), wave([T], 1.4)];
    check("dpg_loss", |x| dpg_loss(x[0], x[1], None), actions);
    check("dpg_loss_clipped", |x| dpg_loss(x[0], x[1], Some(0.5)), actions);
    check(
        "policy_gradient_loss",
        |x| policy_gradient_loss(x[0], a_t(), x[1], x[2]),
        || vec![logits(), values(), weights()],
    );
    check("entropy_loss", |x| entropy_loss(x[0], x[1]), || vec![logits(), weights()]);
    let both = || vec![logits(), q_t()];
    check("qpg_loss", |x| qpg_loss(x[0], x[1]), both);
    check("rm_loss", |x| rm_loss(x[0], x[1]), both);
    check("rpg_loss", |x| rpg_loss(x[0], x[1]), both);
    let surrogate = |x: &[Tensor]| clipped_surrogate_pg_loss(x[0], x[1], 0.2);
    check("clipped_surrogate", surrogate, || vec![rhos(), values()]);
}

#[test]
fn mpo_losses_are_those_of_rlax() {
    let penalty = |alpha, epsilon, per_dimension| LagrangePenalty { alpha, epsilon, per_dimension };
    let parts = |(loss, parts): (Tensor, MpoOutputs<Tensor>)| {
        let mut all = vec![loss];
        all.extend(crate::tree::leaves(&parts));
        all
    };
    check_all(
        "mpo",
        |x| {
            let constraints =
                [(x[3], penalty(x[4], 0.1, false)), (x[5], penalty(x[6], 0.05, true))];
            parts(mpo_loss(x[0], x[1], penalty(x[2], 0.2, false), &constraints))
        },
        || {
            let square = |x: Tensor| x.square();
            vec![
                wave([5, T], 0.1),
                wave([5, T], 1.1),
                constant(0.7f32),
                square(wave([T], 2.1)),
                constant(0.4f32),
                square(wave([T, 3], 3.1)),
                square(wave([3], 0.6)),
            ]
        },
    );
    check_all(
        "vmpo",
        |x| {
            let constraints = [(x[3], penalty(x[4], 0.1, false))];
            parts(vmpo_loss(x[0], x[1], penalty(x[2], 0.2, false), &constraints, 0.5))
        },
        || {
            let (log_probs, advantages) = (wave([T], 0.1), wave([T], 1.1));
            let kl = wave([T], 2.1).square();
            vec![log_probs, advantages, constant(0.7f32), kl, constant(0.4f32)]
        },
    );
}

#[test]
fn transformations_of_values_are_those_of_rlax() {
    let x = || vec![3.0 * wave([2, 4], 0.3)];
    let probs = || vec![wave([3, 7], 0.5).softmax(-1)];
    check("signed_logp1", |x| signed_logp1(x[0]), x);
    check("signed_expm1", |x| signed_expm1(x[0]), x);
    check("signed_hyperbolic", |x| signed_hyperbolic(x[0], 1e-3), x);
    check("signed_parabolic", |x| signed_parabolic(x[0], 0.1), x);
    check("power", |x| power(x[0], 0.3), x);
    check("to_2hot", |x| transform_to_2hot(x[0], -2.0, 2.5, 7), x);
    check("from_2hot", |x| transform_from_2hot(x[0], -2.0, 2.5, 7), probs);
    let sinh = TxPair::hyperbolic_sin();
    check("sinh_apply", |x| sinh.apply(x[0]), x);
    check("sinh_apply_inv", |x| sinh.apply_inv(x[0]), x);
    let muzero = TxPair::muzero(-2.0, 2.0, 7, TxPair::signed_hyperbolic());
    check("muzero_apply", |x| muzero.apply(x[0]), x);
    check("muzero_apply_inv", |x| muzero.apply_inv(x[0]), probs);
    let unbiased = TxPair::unbiased(-1.5, 1.5, 7, TxPair::signed_logp1());
    check("unbiased_apply", |x| unbiased.apply(x[0]), || vec![x()[0].index_axis(0, 0)]);
    check("unbiased_apply_inv", |x| unbiased.apply_inv(x[0]), probs);
}

/// Arrays that would broadcast, and so give an error for each pair of steps, are refused.
#[test]
fn arguments_of_different_shapes_are_refused() {
    let column = || wave([T, 1], 0.4);
    let one = || wave([1], 0.4);
    let logits = || wave([T, 2, K], 0.2);
    let atoms = || linspace(-1.0, 1.0, K, DType::F32);
    let cases: [(&str, &dyn Fn() -> Tensor); 15] = [
        ("td_learning", &|| td_learning(column(), rewards(), discounts(), values())),
        ("td_learning", &|| td_learning(v_tm1(), rewards(), one(), values())),
        ("td_lambda", &|| td_lambda(column(), rewards(), discounts(), values(), 0.9)),
        ("sarsa", &|| sarsa(q_tm1(), a_tm1(), column(), discounts(), q_t(), a_t())),
        ("expected_sarsa", &|| {
            let probs = wave([A], 0.0);
            expected_sarsa(q_tm1(), a_tm1(), rewards(), discounts(), q_t(), probs)
        }),
        ("q_learning", &|| q_learning(q_tm1(), a_tm1(), rewards(), one(), q_t())),
        ("qv_max", &|| qv_max(column(), rewards(), discounts(), q_t())),
        ("q_lambda", &|| {
            let (q_tm1, a_tm1) = (q_tm1().expand_dims(0), a_tm1().expand_dims(0));
            q_lambda(q_tm1, a_tm1, rewards(), discounts(), q_t(), 0.9)
        }),
        ("categorical_td_learning", &|| {
            let logits = logits();
            categorical_td_learning(atoms(), logits, rewards(), discounts(), atoms(), logits)
        }),
        ("quantile_regression_loss", &|| {
            quantile_regression_loss(wave([T, K], 0.2), atoms(), wave([T, K], 1.0), 0.0)
        }),
        ("dpg_loss", &|| dpg_loss(values(), column(), None)),
        ("policy_gradient_loss", &|| policy_gradient_loss(q_t(), a_t(), values(), one())),
        ("entropy_loss", &|| entropy_loss(q_t(), one())),
        ("qpg_loss", &|| qpg_loss(q_t(), wave([A], 0.1))),
        ("clipped_surrogate_pg_loss", &|| clipped_surrogate_pg_loss(rhos(), column(), 0.2)),
    ];
    for (name, loss) in cases {
        let result = interpret::<(), Tensor>((), |()| loss());
        let error = result.map(|_| ()).expect_err(name).to_string();
        let says =
            error.contains("must have one shape") || error.contains("must have the shape of");
        assert!(says && error.contains(name), "{name}: {error}");
    }
}

/// Logits of minus infinity are actions that are not allowed, as `Categorical` has them.
#[test]
fn entropy_of_masked_actions_is_finite() {
    let loss = numbers(|| entropy_loss(constant([f32::NEG_INFINITY, 0.0, 0.0]), constant(1.0f32)));
    assert!((loss[0] + std::f64::consts::LN_2).abs() < 1e-6, "{loss:?}");
}

/// Further axes behave as under `vmap`, and numbers at the ends of a support stay exact.
#[test]
fn time_may_be_followed_by_environments() {
    let one = numbers(|| lambda_returns(rewards(), discounts(), values(), 0.7));
    let two = numbers(|| {
        let twice = |x: Tensor| x.expand_dims(-1).broadcast_to([T, 2]);
        lambda_returns(twice(rewards()), twice(discounts()), twice(values()), 0.7).index_axis(1, 1)
    });
    assert_eq!(one, two);
    let unbiased = TxPair::unbiased(-1.0, 1.0, 3, TxPair::identity());
    let ends = numbers(|| unbiased.apply(constant([-9.0f32, -1.0, 1.0])));
    assert_eq!(ends, [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn arguments_that_do_not_fit_end_the_trace() {
    let refused = |f: fn() -> Tensor| {
        let error = interpret::<(), Tensor>((), |()| f()).unwrap_err().to_string();
        assert!(error.contains("src/losses/rl/tests.rs"), "{error}");
        error
    };
    let error = refused(|| lambda_returns(rewards(), discounts(), wave([T + 1], 0.0), 0.5));
    assert!(error.contains("r_t and v_t must have one shape"), "{error}");
    let error = refused(|| {
        truncated_generalized_advantage_estimation(rewards(), discounts(), 0.5, values())
    });
    assert!(error.contains("values must have one step more than rewards"), "{error}");
    let error = refused(|| q_learning(q_tm1(), values(), rewards(), discounts(), q_t()));
    assert!(error.contains("actions must be integers, and are f32[6]"), "{error}");
    let error =
        refused(|| q_learning(q_tm1(), arange(3, DType::I32), rewards(), discounts(), q_t()));
    assert!(
        error.contains("actions must have the shape of values without the last axis"),
        "{error}"
    );
    let error = refused(|| transform_to_2hot(rewards(), 1.0, 1.0, 7));
    assert!(error.contains("needs at least 2 bins from a smaller to a larger value"), "{error}");
    let error = refused(|| n_step_bootstrapped_returns(rewards(), discounts(), values(), 0, 1.0));
    assert!(error.contains("n must be at least 1"), "{error}");
}
