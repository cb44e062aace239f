//! Fifty steps of each transformation and optimizer against optax, within a `scan`;
//! `tests/fixtures/optim/make.py` generates the fixtures.

use super::super::*;
use crate::trace::control::scan;
use crate::trace::testing::{Fixture, interpret, numbers};
use crate::trace::{DType, Literal, Shape};
use crate::{Array, jit, vmap};

pub(super) const STEPS: usize = 50;
pub(super) const ROUNDING: f64 = 1e-6;

/// A vector, a matrix, a scalar and a kernel of three axes.
pub(super) type Params = (Tensor, Tensor, Tensor, Tensor);

pub(super) fn fixture() -> Fixture {
    Fixture::new(include_str!("../../../tests/fixtures/optim/optim.json"))
}

pub(super) fn waves(shape: &[usize], phase: f64, scale: f32) -> Vec<f32> {
    let count: usize = shape.iter().product();
    (0..count).map(|i| scale * (0.7 * i as f64 + phase).sin() as f32).collect()
}

pub(super) fn params() -> Params {
    let wave =
        |shape: &[usize], phase| ops::constant(Literal::new(shape, &waves(shape, phase, 1.0)));
    (wave(&[7], 5.0), wave(&[5, 3], 6.0), wave(&[], 7.0), wave(&[2, 3, 4], 8.0))
}

/// Gradients of all steps. `broken` puts NaN into the first leaf and an infinity into the second.
pub(super) fn gradients(broken: [bool; 2]) -> Params {
    let stacked = |shape: &[usize], phase, scale: f32, changes: &[(usize, f32)]| {
        let mut shape = shape.to_vec();
        shape.insert(0, STEPS);
        let mut values = waves(&shape, phase, scale);
        for (index, value) in changes {
            values[*index] = *value;
        }
        ops::constant(Literal::new(Shape::from(shape), &values))
    };
    let nans: Vec<_> = [3, 7, 8, 9, 10].map(|step| (step * 7 + 2, f32::NAN)).into();
    let infinite = [(20 * 15 + 4 * 3 + 1, f32::INFINITY)];
    (
        stacked(&[7], 1.0, 1.0, if broken[0] { &nans } else { &[] }),
        stacked(&[5, 3], 2.0, 0.125, if broken[1] { &infinite } else { &[] }),
        stacked(&[], 3.0, 4.0, &[]),
        stacked(&[2, 3, 4], 4.0, 1.0, &[]),
    )
}

/// Returns the parameters after all steps from `params()`.
fn trained<O: GradientTransformation<Params>>(optimizer: &O, gradients: Params) -> Params {
    let step = |(params, state): (Params, O::State), grads: Params| {
        (optimizer.step(params, grads, state), ())
    };
    let params = params();
    scan(step, (params, optimizer.init(&params)), gradients).0.0
}

pub(super) fn check_with<O: GradientTransformation<Params>>(
    name: &str,
    optimizer: O,
    broken: [bool; 2],
) {
    let ours = numbers(|| trained(&optimizer, gradients(broken)));
    fixture().close(name, ours, ROUNDING);
    steps_of_f64_have_no_f32(name, &optimizer);
}

/// Scalars beside f64 parameters, such as bias corrections and schedules, are f64.
fn steps_of_f64_have_no_f32<O: GradientTransformation<Params>>(name: &str, optimizer: &O) {
    let wide =
        |shape: &[usize]| Array::from(Literal::filled(TensorType::new(DType::F64, shape), 0.5));
    let params = (wide(&[7]), wide(&[5, 3]), wide(&[]), wide(&[2, 3, 4]));
    let steps = |params: Params| {
        let (params, state) = optimizer.step(params, params, optimizer.init(&params));
        optimizer.step(params, params, state).0
    };
    let text = crate::make_program(steps, &params).unwrap().to_string();
    assert!(!text.contains("f32"), "{name}: {text}");
}

pub(super) fn check<O: GradientTransformation<Params>>(name: &str, optimizer: O) {
    check_with(name, optimizer, [false, false]);
}

pub(super) const RATE: f64 = 1e-2;

pub(super) fn warmup() -> Schedule {
    warmup_cosine_decay_schedule(0.0, RATE, 10, 40, 1e-3)
}

#[test]
fn chains_are_those_of_optax() {
    check("chain", chain((clip_by_global_norm(0.5), scale_by_adam(), scale(-RATE))));
    check("adam", chain((scale_by_adam(), scale_by_learning_rate(RATE))));
    let nested = chain((chain((identity(), scale_by_adam())), scale(-1.0), scale(RATE)));
    check("adam", nested);
}

#[test]
fn optimizers_of_the_family_of_adam_are_those_of_optax() {
    check("adam", adam(RATE));
    check("adamw", adamw(RATE));
    check("nadam", nadam(RATE));
    check("nadamw", Nadamw { weight_decay: 0.1, ..nadamw(RATE) });
    check("adamax", adamax(RATE));
    check("adamaxw", Adamaxw { weight_decay: 0.1, ..adamaxw(RATE) });
    check("amsgrad", amsgrad(RATE));
    let uncorrected = ScaleByAmsgrad {
        bias_correction_mu: false,
        bias_correction_nu: false,
        ..scale_by_amsgrad()
    };
    check("amsgrad_uncorrected", chain((uncorrected, scale_by_learning_rate(RATE))));
    check("adabelief", adabelief(RATE));
    check("adabelief_nesterov", Adabelief { nesterov: true, ..adabelief(RATE) });
    check("yogi", yogi(RATE));
    check("radam", radam(RATE));
    check("radam", chain((scale_by_radam(), scale(-RATE))));
    let nesterov = ScaleByRAdam { nesterov: true, eps_root: 1e-6, ..scale_by_radam() };
    check("radam_nesterov", chain((nesterov, scale(-RATE))));
    check("novograd", Novograd { weight_decay: 0.1, ..novograd(RATE) });
    check("adan", Adan { weight_decay: 0.1, ..adan(RATE) });
}

#[test]
fn other_optimizers_are_those_of_optax() {
    check("lion", Lion { weight_decay: 0.1, ..lion(RATE) });
    check("lamb", Lamb { weight_decay: 0.1, ..lamb(RATE) });
    let lars = Lars { trust_coefficient: 0.1, ..lars(RATE) };
    check("lars", Lars { weight_decay: 0.1, ..lars });
    check("lars_nesterov", Lars { nesterov: true, ..lars });
    check("adagrad", adagrad(RATE));
    check("adadelta", Adadelta { weight_decay: 0.1, ..adadelta(1.0) });
    check("sign_sgd", sign_sgd(RATE));
    check("signum", signum(RATE));
    check("noisy_sgd", NoisySgd { seed: 3, ..noisy_sgd(RATE) });
    let optimistic = optimistic_gradient_descent(RATE);
    let optimistic = OptimisticGradientDescent { alpha: 0.9, beta: 0.7, ..optimistic };
    check("optimistic_gradient_descent", optimistic);
    check("optimistic_adam", optimistic_adam_v2(RATE));
    check("rprop", rprop(RATE));
    check("fromage", fromage(RATE, 1e-6));
    check("sgd", sgd(RATE));
    check("sgd_momentum", Sgd { momentum: 0.9, nesterov: true, ..sgd(RATE) });
    let momentum = Trace { nesterov: true, ..trace(0.9) };
    check("sgd_momentum", chain((momentum, scale_by_learning_rate(RATE))));
}

#[test]
fn optimizers_of_the_family_of_rmsprop_are_those_of_optax() {
    check("rmsprop", rmsprop(RATE));
    check("rmsprop", chain((scale_by_rms(), scale(-RATE))));
    let corrected =
        ScaleByRms { bias_correction: true, eps_in_sqrt: false, eps: 1e-3, ..scale_by_rms() };
    check("rmsprop_corrected", chain((corrected, scale(-RATE))));
    let centered = ScaleByStddev { eps: 1e-3, ..scale_by_stddev() };
    let momentum = Trace { nesterov: true, ..trace(0.9) };
    check("rmsprop_centered", chain((centered, scale(-RATE), momentum)));
    let corrected =
        ScaleByStddev { bias_correction: true, eps: 1e-2, initial_scale: 0.5, ..scale_by_stddev() };
    check("stddev_corrected", chain((corrected, scale(-RATE))));
}

#[test]
fn adafactor_is_that_of_optax() {
    let defaults = adafactor(RATE);
    check("adafactor", defaults.clone());
    let factored_from = |min_dim_size_to_factor| ScaleByFactoredRms {
        min_dim_size_to_factor,
        ..scale_by_factored_rms()
    };
    let factored = Adafactor {
        factored_rms: factored_from(2),
        momentum: Some(0.9),
        weight_decay_rate: Some(1e-2),
        ..defaults.clone()
    };
    check("adafactor_factored", factored);
    let relative = Adafactor {
        learning_rate: None,
        factored_rms: factored_from(3),
        clipping_threshold: None,
        multiply_by_parameter_scale: false,
        ..defaults
    };
    check("adafactor_relative", relative);
}

#[test]
fn learning_rates_can_depend_on_the_count() {
    check("adam_schedule", adam(warmup()));
    check("adam_schedule", chain((scale_by_adam(), scale_by_learning_rate(warmup()))));
    check("sgd_schedule", Sgd { momentum: 0.9, ..sgd(warmup()) });
    check("rmsprop_schedule", rmsprop(warmup()));
    check("lion_schedule", lion(warmup()));
    let decay = |count: Tensor| -RATE / (1.0 + count.to(DType::F64));
    check("schedule_function", chain((scale_by_adam(), scale_by_schedule(decay))));
    let rate = |count: Tensor| RATE / (1.0 + count.to(DType::F64));
    check("schedule_function", chain((scale_by_adam(), scale_by_learning_rate(rate))));
    let injected = chain((
        inject_hyperparams(|max_delta: Tensor| clip(max_delta), Hyperparam::from(0.3)),
        inject_hyperparams(|learning_rate: Tensor| sgd(learning_rate), Hyperparam::from(warmup())),
    ));
    check("injected", injected);
}

#[test]
fn clips_and_scales_are_those_of_optax() {
    let sgd = scale(-RATE);
    check("clip", chain((clip(0.3), sgd)));
    check("clip_by_block_rms", chain((clip_by_block_rms(0.5), sgd)));
    check("adaptive_grad_clip", chain((adaptive_grad_clip(0.1), sgd)));
    check("trace", chain((trace(0.9), sgd)));
    check("ema", chain((ema(0.9), sgd)));
    check("ema_biased", chain((Ema { debias: false, ..ema(0.9) }, sgd)));
    check("centralize", chain((centralize(), sgd)));
    check("normalize_by_update_norm", chain((normalize_by_update_norm(2.0, 1e-6), sgd)));
    check("scale_by_param_block_norm", chain((scale_by_param_block_norm(1e-3), sgd)));
    check("scale_by_param_block_rms", chain((scale_by_param_block_rms(1e-3), sgd)));
    let ratio = ScaleByTrustRatio { min_norm: 1.5, trust_coefficient: 0.5, eps: 0.1 };
    check("trust_ratio", chain((ratio, sgd)));
    check("keep_params_nonnegative", chain((scale(-0.1), keep_params_nonnegative())));
    let doubled = stateless(|grads: &Params, _: &Params| {
        let doubled = tree::leaves(grads).into_iter().map(|g| g * 2.0);
        tree::replace(grads, doubled.collect::<Vec<_>>())
    });
    check("adam", chain((doubled, scale(0.5), adam(RATE))));
}

#[test]
fn wrappers_are_those_of_optax() {
    let sgd = scale(-RATE);
    check("apply_every", chain((apply_every(4), sgd)));
    check("multi_steps", multi_steps(adam(RATE), 4));
    let momentum = Sgd { momentum: 0.9, ..super::super::sgd(RATE) };
    let sums = MultiSteps { use_grad_mean: false, ..multi_steps(momentum, 7) };
    check("multi_steps_sum", sums);
    check_with("zero_nans", chain((zero_nans(), clip(2.0), sgd)), [true, true]);
    check_with("apply_if_finite", apply_if_finite(adam(RATE), 10), [true, true]);
    let limited = apply_if_finite(chain((zero_nans(), adam(RATE))), 2);
    check_with("apply_if_finite_limit", limited, [true, false]);
    let matrices = |_: &str, ty: &TensorType| ty.rank() > 1;
    check("masked", chain((scale_by_adam(), masked(add_decayed_weights(0.1), matrices), sgd)));
    check("masked_state", chain((masked(trace(0.9), matrices), sgd)));
    let labels = |path: &str, _: &TensorType| match path {
        "$[1]" => 1,
        "$[2]" => 2,
        _ => 0,
    };
    check("multi_transform", multi_transform((adam(RATE), momentum, set_to_zero()), labels));
}

#[test]
fn lookahead_is_that_of_optax() {
    let optimizer = lookahead(adam(RATE), 5, 0.5);
    let ours = numbers(|| {
        let start = LookaheadParams { fast: params(), slow: params() };
        let state = optimizer.init(&start);
        let step = |(params, state), grads: Params| {
            let (updates, state) = optimizer.update(&grads, state, &params);
            ((apply_updates(params, updates), state), ())
        };
        scan(step, (start, state), gradients([false, false])).0.0
    });
    fixture().close("lookahead", ours, ROUNDING);
}

pub(super) fn objective(params: Params) -> Tensor {
    let wave = |shape: &[usize], phase| {
        ops::constant(Literal::new(shape, &waves(shape, phase, 1.0))).to(DType::F64)
    };
    let part = |p: Tensor, phase: f64, scale: f64| {
        scale * crate::losses::log_cosh(3.0 * p, wave(&p.shape(), phase)).sum(..)
    };
    let (a, b, c, d) = params;
    part(a, 2.0, 1.0) + part(b, 3.0, 0.125) + part(c, 4.0, 4.0) + part(d, 5.0, 1.0)
}

#[test]
fn lbfgs_is_that_of_optax() {
    fn minimized<O: GradientTransformation<Params>>(
        optimizer: O,
        steps: usize,
        search: Option<BacktrackingLinesearch>,
    ) -> (Params, Tensor) {
        let (a, b, c, d) = params();
        let wide = |leaf: Tensor| leaf.to(DType::F64);
        let mut params = (wide(a), wide(b), wide(c), wide(d));
        let mut state = optimizer.init(&params);
        let mut search_state = search.map(|search| search.init(&params));
        for _ in 0..steps {
            let (value, grads) = crate::value_and_grad(objective)(params);
            let (mut updates, next) = optimizer.update(&grads, state, &params);
            if let (Some(search), Some(old)) = (search, search_state.take()) {
                let found = search.update(&updates, old, &params, value, &grads, objective);
                updates = found.0;
                search_state = Some(found.1);
            }
            params = apply_updates(params, updates);
            state = next;
        }
        (params, objective(params))
    }
    let fixture = fixture();
    let check = |name: &str, (ours, value): (Vec<f64>, f64)| {
        fixture.close(name, ours, ROUNDING);
        fixture.close(&format!("{name}_value"), [value], ROUNDING);
    };
    let split = |mut values: Vec<f64>| {
        let value = values.pop().unwrap();
        (values, value)
    };
    let memory = ScaleByLbfgs { memory_size: 3, ..scale_by_lbfgs() };
    let ours = numbers(|| minimized(chain((memory, scale(-0.3))), 6, None));
    check("lbfgs", split(ours));
    let unscaled = ScaleByLbfgs { scale_init_precond: false, ..scale_by_lbfgs() };
    let ours = numbers(|| minimized(chain((unscaled, scale(-0.1))), 4, None));
    check("lbfgs_unscaled", split(ours));
    let ours = numbers(|| minimized(lbfgs(1.0), 6, Some(backtracking_linesearch(15))));
    check("lbfgs_backtracking", split(ours));
    let search = BacktrackingLinesearch {
        slope_rtol: 0.3,
        decrease_factor: 0.5,
        max_learning_rate: 4.0,
        ..backtracking_linesearch(20)
    };
    let ours = numbers(|| minimized(sgd(1.0), 10, Some(search)));
    check("sgd_backtracking", split(ours));
}

#[test]
fn all_schedules_are_those_of_optax() {
    let fixture = fixture();
    let counts = [0, 1, 4, 5, 9, 10, 11, 19, 20, 25, 39, 40, 60, 85, 100, 1000];
    let points = [(10, 2.0), (40, 0.3), (100, 0.0)];
    let polynomial = Schedule::Polynomial { init: 2.0, end: 0.5, power: 1.7, steps: 30, begin: 5 };
    let exponential = |rate, begin, staircase, end| Schedule::Exponential {
        init: 2.0,
        steps: 10,
        rate,
        begin,
        staircase,
        end,
    };
    let cycle = |init, peak, warmup_steps, decay_steps, end| CosineCycle {
        init,
        peak,
        warmup_steps,
        decay_steps,
        end,
    };
    let parts = vec![
        constant_schedule(1.0),
        linear_schedule(1.0, 3.0, 10),
        exponential_decay(3.0, 10, 0.5),
    ];
    for (name, schedule) in [
        ("constant", constant_schedule(0.3)),
        ("linear", linear_schedule(2.5, 0.1, 10)),
        ("linear", polynomial_schedule(2.5, 0.1, 1.0, 10)),
        ("polynomial", polynomial),
        ("cosine", cosine_decay_schedule(2.0, 40, 0.2)),
        ("cosine_exponent", Schedule::Cosine { init: 2.0, steps: 40, alpha: 0.2, exponent: 1.5 }),
        ("exponential", exponential_decay(2.0, 10, 0.7)),
        ("exponential_staircase", exponential(0.7, 5, true, Some(0.9))),
        ("exponential_growth", exponential(1.2, 0, false, Some(5.0))),
        ("piecewise_constant", piecewise_constant_schedule(2.0, &[(20, 3.0), (10, 0.5)])),
        ("piecewise_linear", piecewise_interpolate_schedule(Interpolation::Linear, 2.0, &points)),
        ("piecewise_cosine", piecewise_interpolate_schedule(Interpolation::Cosine, 2.0, &points)),
        ("linear_onecycle", linear_onecycle_schedule(100, 2.0)),
        ("cosine_onecycle", cosine_onecycle_schedule(100, 2.0)),
        ("warmup_constant", warmup_constant_schedule(0.1, 2.0, 10)),
        ("warmup_cosine", warmup_cosine_decay_schedule(0.1, 2.0, 10, 60, 0.3)),
        ("warmup_exponential", warmup_exponential_decay_schedule(0.1, 2.0, 10, 5, 0.9)),
        ("sgdr", sgdr_schedule(&[cycle(0.1, 2.0, 5, 20, 0.2), cycle(0.2, 1.0, 10, 40, 0.0)])),
        ("joined", join_schedules(parts, vec![5, 25])),
    ] {
        let name = format!("schedule_{name}");
        fixture.close(&name, numbers(|| schedule.at(ops::constant(counts))), ROUNDING);
        let host: Vec<f64> = counts.iter().map(|&count| schedule.value(count as u64)).collect();
        fixture.close(&name, host, ROUNDING);
    }
}

/// States pass through `jit` and `vmap`: two runs of different learning rates at once.
#[test]
fn states_pass_through_vmap_and_jit() {
    let optimizer = |rate: Tensor| {
        let inner =
            chain((clip_by_global_norm(0.5), scale_by_adam(), scale_by_learning_rate(rate)));
        apply_if_finite(multi_steps(inner, 2), 3)
    };
    let run = |rates: Tensor| {
        vmap(|rate: Tensor| {
            let optimizer = optimizer(rate);
            let mut params = ops::constant([1.0f32, -2.0]);
            let mut state = optimizer.init(&params);
            for _ in 0..4 {
                (params, state) = optimizer.step(params, params, state);
            }
            (params, state.inner_state.gradient_step)
        })(rates)
    };
    let (params, steps) = jit(run).call(Array::from([0.1f32, 0.0])).unwrap();
    let params = params.to_vec::<f32>().unwrap();
    assert_eq!(steps.to_vec::<i32>().unwrap(), [2, 2]);
    assert!((params[0] - 0.8).abs() < 1e-3 && (params[1] + 1.8).abs() < 1e-3, "{params:?}");
    assert_eq!(params[2..], [1.0, -2.0]);
}

/// A traced hyperparameter combines with leaves of other float types.
#[test]
fn traced_norms_clip_leaves_of_every_float_type() {
    for dtype in [DType::BF16, DType::F32, DType::F64] {
        let clipped = numbers(|| {
            let grads = ops::constant([3.0f32, 4.0]).to(dtype);
            clip_by_global_norm(ops::constant(2.5f32)).apply(grads).to(DType::F32)
        });
        assert!((clipped[0] - 1.5).abs() < 0.01 && (clipped[1] - 2.0).abs() < 0.01, "{clipped:?}");
    }
}

/// Transformations without leaves, as of a mask that selects none.
#[test]
fn trees_without_leaves_are_transformed() {
    let none = |_: &str, _: &TensorType| false;
    let optimizer = chain((
        masked(clip_by_global_norm(0.5), none),
        masked(add_noise(0.1, 0.5, 0), none),
        masked(adam(1.0), none),
        masked(lbfgs(1.0), none),
        masked(multi_steps(adafactor(1.0), 2), none),
        masked(apply_if_finite(novograd(1.0), 2), none),
        masked(normalize_by_update_norm(1.0, 1e-6), none),
    ));
    let updates = numbers(|| {
        let params = params();
        optimizer.update(&params, optimizer.init(&params), &params).0
    });
    assert_eq!(updates, numbers(params));
}

/// Gradients and parameters of 0 give finite updates where optax's are finite.
#[test]
fn zero_gradients_give_finite_updates() {
    fn first<O: GradientTransformation<Params>>(name: &str, optimizer: O) {
        let updates = numbers(|| {
            let params =
                tree::replace(&params(), tree::leaves(&params()).into_iter().map(ops::zeros_like));
            let mut state = optimizer.init(&params);
            let mut updates = params;
            for _ in 0..3 {
                (updates, state) = optimizer.update(&params, state, &params);
            }
            updates
        });
        assert!(updates.iter().all(|update| update.is_finite()), "{name}: {updates:?}");
    }
    first("adam", adam(1.0));
    first("nadam", nadam(1.0));
    first("adamax", adamax(1.0));
    first("amsgrad", amsgrad(1.0));
    first("adabelief", adabelief(1.0));
    first("yogi", yogi(1.0));
    first("radam", radam(1.0));
    first("novograd", novograd(1.0));
    first("adan", adan(1.0));
    first("lion", lion(1.0));
    first("lamb", lamb(1.0));
    first("lars", lars(1.0));
    first("adagrad", adagrad(1.0));
    first("adadelta", adadelta(1.0));
    first("rmsprop", rmsprop(1.0));
    first("centered", chain((scale_by_stddev(), scale(-1.0))));
    first("rprop", rprop(1.0));
    first("fromage", fromage(1.0, 1e-6));
    first("adafactor", adafactor(1.0));
    first("lbfgs", lbfgs(1.0));
    first("adaptive_grad_clip", adaptive_grad_clip(0.1));
    first("clip_by_global_norm", clip_by_global_norm(1.0));
    first("clip_by_block_rms", clip_by_block_rms(1.0));
    first("normalize_by_update_norm", normalize_by_update_norm(1.0, 1e-6));
    first("scale_by_trust_ratio", scale_by_trust_ratio());
}

pub(super) fn refused(f: impl Fn() -> Params) -> String {
    let error = interpret::<(), Params>((), |()| f()).unwrap_err().to_string();
    assert!(error.contains("src/optim/tests/"), "{error}");
    error
}

#[test]
fn wrong_arguments_end_the_trace() {
    fn first<O: GradientTransformation<Params>>(optimizer: O) -> Params {
        let (params, grads) = (params(), params());
        optimizer.update(&grads, optimizer.init(&params), &params).0
    }
    let error = refused(|| first(multi_transform((identity(), scale(2.0)), |path, _| path.len())));
    assert!(error.contains("the label of $[0] is 4"), "{error}");
    let error = refused(|| first(multi_steps(identity(), 0)));
    assert!(error.contains("every_k must be from 1 to"), "{error}");
    let error = refused(|| first(scale(ops::constant([1.0f32, 2.0]))));
    assert!(error.contains("must be a float scalar, and is f32[2]"), "{error}");
    let schedule = join_schedules(vec![constant_schedule(1.0)], vec![2, 3]);
    let error = refused(|| first(lion(schedule.clone())));
    assert!(error.contains("got 1 schedules and 2 boundaries"), "{error}");
    let schedule = warmup_cosine_decay_schedule(0.0, 1.0, 10, 10, 0.0);
    assert!(schedule.value(20).is_nan());
    let error = refused(|| first(lion(schedule.clone())));
    assert!(error.contains("decay_steps must exceed warmup_steps"), "{error}");
    let error = refused(|| periodic_update(&params(), &params(), ops::constant(3i32), 0));
    assert!(error.contains("periodic_update: period must be from 1 to"), "{error}");
    let error = refused(|| clip_by_global_norm(ops::constant([1.0f32, 2.0])).apply(params()));
    assert!(error.contains("max_norm: must be a float scalar, and is f32[2]"), "{error}");
    let schedule = piecewise_constant_schedule(1.0, &[(3, -1.0)]);
    let error = refused(|| first(lion(schedule.clone())));
    assert!(error.contains("scales must not be negative; that at 3 is -1"), "{error}");
    let error = refused(|| {
        let (params, grads) = (params(), gradients([false, false]));
        adaptive_grad_clip(0.1).update(&grads, (), &params).0
    });
    assert!(error.contains("params[0] is f32[7]") || error.contains("params and"), "{error}");
}
