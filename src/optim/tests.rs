//! Tests of optimizers against optax; `tests/fixtures/nn/make.py` generates the fixtures.

mod contrib;
mod optax;
mod wide;
mod wrappers;

use super::*;
use crate::trace::DType;
use crate::trace::testing::{Fixture, interpret, numbers, wave};

type Params = (Tensor, Tensor);

const ROUNDING: f64 = 1e-6;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../tests/fixtures/nn/nn.json"))
}

fn params() -> Params {
    (wave([3], 5.0), wave([2, 2], 6.0))
}

fn grads_at(step: usize) -> Params {
    let phase = 0.3 * step as f64;
    (wave([3], phase), wave([2, 2], 2.0 + phase))
}

/// Returns the parameters after some steps from `params()`.
fn after<S>(
    steps: usize,
    init: impl FnOnce(&Params) -> S,
    step: impl Fn(Params, Params, S) -> (Params, S),
) -> Vec<f64> {
    numbers(|| {
        let mut params = params();
        let mut state = init(&params);
        for i in 0..steps {
            (params, state) = step(params, grads_at(i), state);
        }
        params
    })
}

macro_rules! run {
    ($fixture:ident, $name:literal, $steps:literal, $optimizer:expr) => {
        run!($fixture, $name, $steps, $optimizer, ROUNDING);
    };
    ($fixture:ident, $name:literal, $steps:literal, $optimizer:expr, $tolerance:expr) => {
        let optimizer = $optimizer;
        let ours = after($steps, |p| optimizer.init(p), |p, g, s| optimizer.step(p, g, s));
        $fixture.close($name, ours, $tolerance);
    };
}

#[test]
fn steps_are_those_of_optax() {
    let fixture = fixture();
    let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false };
    run!(fixture, "sgd", 5, Sgd { momentum: 0.0, ..sgd });
    run!(fixture, "sgd_momentum", 5, sgd);
    run!(fixture, "sgd_nesterov", 5, Sgd { nesterov: true, ..sgd });
    let adam = Adam { learning_rate: 1e-2, ..Adam::default() };
    run!(fixture, "adam", 5, Adam { learning_rate: 2.5e-2, eps: 1e-5, ..adam });
    run!(fixture, "adam_root", 5, Adam { eps_root: 1e-3, ..adam });
    run!(fixture, "adamw", 5, Adam { weight_decay: 0.1, ..adam });
    // The length of the average is a difference of two numbers near 2000, rounded to f32.
    run!(fixture, "radam", 8, RAdam { learning_rate: 1e-2, ..RAdam::default() }, 1e-5);
    let rmsprop = RmsProp { learning_rate: 1e-2, ..RmsProp::default() };
    run!(fixture, "rmsprop", 5, rmsprop);
    let torch = RmsProp { decay: 0.99, eps: 0.01, eps_in_sqrt: false, ..rmsprop };
    run!(fixture, "rmsprop_torch", 5, torch);
    let momentum = RmsProp { momentum: 0.9, initial_scale: 1.0, ..rmsprop };
    run!(fixture, "rmsprop_momentum", 5, momentum);
}

#[test]
fn the_learning_rate_can_be_traced() {
    let schedule = Schedule::Linear { init: 0.1, end: 0.01, steps: 3 };
    let adam = Adam::default();
    let ours = after(
        5,
        |params| adam.init(params),
        |params, grads, state: AdamState<Tensor, Params>| {
            adam.with_learning_rate(schedule.at(state.count)).step(params, grads, state)
        },
    );
    fixture().close("adam_linear", ours, ROUNDING);
}

#[test]
fn the_first_step_of_adam_is_the_learning_rate() {
    let updates = numbers(|| {
        let (params, grads) = (wave([2], 0.0), ops::constant([3.0f32, 4.0]));
        let adam = Adam { learning_rate: 2.5e-4, eps: 1e-5, ..Adam::default() };
        adam.update(&clip_by_global_norm(0.5).apply(grads), adam.init(&params), &params).0
    });
    assert!(updates.iter().all(|u| (u + 0.00024999).abs() < 1e-8), "{updates:?}");
}

#[test]
fn norms_and_clips_are_those_of_optax_and_torch() {
    let fixture = fixture();
    fixture.close("global_norm", numbers(|| global_norm(&grads_at(0))), ROUNDING);
    fixture.close("clip", numbers(|| clip_by_global_norm(0.5).apply(grads_at(0))), ROUNDING);
    let unchanged = numbers(|| clip_by_global_norm(50.0).apply(grads_at(0)));
    fixture.same("clip_unchanged", unchanged);
    let adam = Adam { learning_rate: 1e-2, eps: 1e-5, ..Adam::default() };
    let ours = after(
        5,
        |params| adam.init(params),
        |params, grads, state| adam.step(params, clip_by_global_norm(0.5).apply(grads), state),
    );
    fixture.close("adam_clipped", ours, ROUNDING);
    // PyTorch's formula: the factor is 0.5 / (5 + 1e-6).
    let clipped = numbers(|| clip_grad_norm(ops::constant([3.0f32, 4.0]), 0.5));
    assert!((clipped[0] - 1.5 / 5.000001).abs() < 3e-8, "{clipped:?}");
    assert_eq!(numbers(|| clip_grad_norm(ops::constant([3.0f32, 4.0]), 6.0)), [3.0, 4.0]);
    assert_eq!(numbers(|| clip_by_global_norm(0.5).apply(ops::zeros([2], DType::F32))), [0.0, 0.0]);
}

#[test]
fn schedules_are_those_of_optax() {
    let fixture = fixture();
    let counts = [0, 1, 5, 10, 25];
    for (name, schedule) in [
        ("linear", Schedule::Linear { init: 2.5e-4, end: 1e-5, steps: 10 }),
        ("cosine", Schedule::Cosine { init: 0.1, steps: 10, alpha: 0.2, exponent: 1.0 }),
    ] {
        let traced = numbers(|| schedule.at(ops::constant(counts)));
        fixture.close(name, traced, 1e-8);
        let host: Vec<f64> = counts.iter().map(|&count| schedule.value(count as u64)).collect();
        fixture.close(name, host, 1e-8);
    }
    assert_eq!(numbers(|| Schedule::Constant(0.5).at(ops::constant(7i32))), [0.5]);
    let mixed = numbers(|| incremental_update(&grads_at(0), &grads_at(1), 0.005));
    fixture.close("incremental", mixed, ROUNDING);
    for (steps, expected) in [(0, 0), (499, 1), (500, 0), (501, 1)] {
        let periodic = || periodic_update(&grads_at(0), &grads_at(1), ops::constant(steps), 500);
        assert_eq!(numbers(periodic), numbers(|| grads_at(expected)), "after {steps}");
    }
}

#[test]
fn trees_that_do_not_go_together_end_the_trace() {
    let refused = |grads: fn() -> Vec<Tensor>| {
        let error = interpret((), |()| {
            let params = vec![ops::ones([2], DType::F32); 2];
            let adam = Adam::default();
            let state = adam.init(&params);
            adam.step(params, grads(), state)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.contains("src/optim/tests.rs"), "{error}");
        error
    };
    let error = refused(|| vec![ops::ones([2], DType::F32)]);
    assert!(error.contains("leaf [1] is in params and not in grads"), "{error}");
    let error = refused(|| vec![ops::ones([2], DType::F32), ops::ones([1], DType::F32)]);
    assert!(
        error.contains(
            "adam: params and grads must have equal types: params[1] is f32[2], grads[1] is f32[1]"
        ),
        "{error}"
    );
}
