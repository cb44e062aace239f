//! Optimizers of f64 parameters against optax with `jax_enable_x64`; `tests/fixtures/optim/wide.py`
//! generates the fixture. And one program for all optimizers.

use super::super::*;
use super::optax::{RATE, STEPS, warmup, waves};
use crate::trace::control::scan;
use crate::trace::testing::{Fixture, numbers};
use crate::trace::{DType, Literal};

type Params = (Tensor, Tensor);

fn wide(shape: &[usize], phase: f64, scale: f32) -> Tensor {
    ops::constant(Literal::new(shape, &waves(shape, phase, scale))).to(DType::F64)
}

#[test]
fn scalars_of_f64_parameters_are_f64() {
    fn trained<O: GradientTransformation<Params>>(optimizer: &O) -> Params {
        let params = (wide(&[7], 5.0, 1.0), wide(&[5, 3], 6.0, 1.0));
        let gradients = (wide(&[STEPS, 7], 1.0, 1.0), wide(&[STEPS, 5, 3], 2.0, 0.125));
        let step = |(params, state): (Params, O::State), grads: Params| {
            (optimizer.step(params, grads, state), ())
        };
        scan(step, (params, optimizer.init(&params)), gradients).0.0
    }
    let fixture = Fixture::new(include_str!("../../../tests/fixtures/optim/wide.json"));
    macro_rules! check {
        ($($name:literal $optimizer:expr,)*) => {$(
            fixture.close($name, numbers(|| trained(&$optimizer)), 1e-13);
        )*};
    }
    let decay = Schedule::Exponential {
        init: RATE,
        steps: 10,
        rate: 0.7,
        begin: 0,
        staircase: false,
        end: None,
    };
    check! {
        "adam" adam(RATE),
        "adam" chain((scale_by_adam(), scale_by_learning_rate(RATE))),
        "adam_schedule" adam(warmup()),
        "adam_schedule" chain((scale_by_adam(), scale_by_learning_rate(warmup()))),
        "radam" radam(RATE),
        "radam" chain((scale_by_radam(), scale(-RATE))),
        "sgd_schedule" Sgd { momentum: 0.9, ..sgd(warmup()) },
        "rmsprop_schedule" rmsprop(decay),
        "injected" inject_hyperparams(|rate: Tensor| adam(rate), Hyperparam::from(0.003)),
        "injected_schedule"
            inject_hyperparams(|rate: Tensor| sgd(rate), Hyperparam::from(warmup())),
        "ema" chain((ema(0.9), scale(-RATE))),
        "amsgrad" amsgrad(linear_schedule(RATE, 1e-3, 30)),
    }
}

/// The same lines, not generic over optimizers, compile for each of them.
#[test]
fn every_optimizer_is_called_alike() {
    macro_rules! alike {
        ($($optimizer:expr,)*) => {$(
            let optimizer = $optimizer;
            let moved = numbers(|| {
                let params = (wide(&[7], 5.0, 1.0), wide(&[5, 3], 6.0, 1.0));
                let state = optimizer.init(&params);
                let (updates, state) = optimizer.update(&params, state, &params);
                let params = apply_updates(params, updates);
                optimizer.step(params, params, state).0
            });
            assert!(moved.iter().all(|x| x.is_finite()), "{}", stringify!($optimizer));
        )*};
    }
    alike! {
        adam(RATE),
        adam(warmup()),
        adamw(RATE),
        radam(RATE),
        radam(warmup()),
        sgd(RATE),
        sgd(warmup()),
        Sgd { momentum: 0.9, ..sgd(RATE) },
        rmsprop(RATE),
        rmsprop(warmup()),
        nadam(RATE),
        adamax(RATE),
        amsgrad(RATE),
        adabelief(RATE),
        yogi(RATE),
        novograd(RATE),
        adan(RATE),
        lion(RATE),
        lamb(RATE),
        lars(RATE),
        adagrad(RATE),
        adadelta(RATE),
        adafactor(RATE),
        sign_sgd(RATE),
        signum(RATE),
        noisy_sgd(RATE),
        optimistic_gradient_descent(RATE),
        rprop(RATE),
        lbfgs(RATE),
        contrib::prodigy(RATE),
        contrib::dadapt_adamw(RATE),
        contrib::mechanize(sgd(RATE)),
        contrib::schedule_free_sgd(RATE, 0, 0.0),
        contrib::sam(sgd(RATE), sgd(RATE)),
        chain((clip_by_global_norm(0.5), adam(RATE))),
        multi_steps(adam(RATE), 2),
        inject_hyperparams(|rate: Tensor| adam(rate), Hyperparam::from(RATE)),
    }
}
