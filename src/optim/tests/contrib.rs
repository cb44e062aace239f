//! Optimizers of `optax.contrib`, the zoom line search and microbatches against optax;
//! `tests/fixtures/optim/contrib.py` generates the fixture.

use super::super::contrib::*;
use super::super::*;
use super::optax::{RATE, ROUNDING, STEPS};
use crate::trace::DType;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::testing::{Fixture, interpret, numbers, wave};
use crate::value_and_grad;

/// A wide and a tall matrix, a vector, a scalar and a kernel of three axes.
type Params = (Tensor, Tensor, Tensor, Tensor, Tensor);

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../../tests/fixtures/optim/contrib.json"))
}

const SHAPES: [&[usize]; 5] = [&[3, 6], &[6, 2], &[5], &[], &[2, 2, 3]];
const SCALES: [f64; 5] = [1.0, 0.125, 1.0, 4.0, 0.5];

/// A tree of the leaves that `f` makes of the number of the leaf and its shape.
fn leaves(f: impl Fn(usize, &[usize]) -> Tensor) -> Params {
    let [a, b, c, d, e] = std::array::from_fn(|i| f(i, SHAPES[i]));
    (a, b, c, d, e)
}

fn params() -> Params {
    leaves(|i, shape| wave(shape, 4.0 + i as f64))
}

fn targets() -> Params {
    leaves(|i, shape| wave(shape, 2.0 + i as f64))
}

fn waves() -> Params {
    leaves(|i, shape| wave([&[STEPS], shape].concat(), 1.0 + i as f64) * SCALES[i])
}

/// Gradients of a convex function with a wave added.
fn descent(params: &Params, added: &Params) -> Params {
    let (p, t, g) = (tree::leaves(params), tree::leaves(&targets()), tree::leaves(added));
    let leaves = p.iter().zip(&t).zip(&g).map(|((p, t), g)| (*p - *t).tanh() + 0.1 * *g);
    tree::replace(params, leaves.collect::<Vec<_>>())
}

/// Returns parameters and state after all steps.
fn trained<O: GradientTransformation<Params>>(optimizer: &O) -> (Params, O::State) {
    let step = |(params, state): (Params, O::State), added: Params| {
        let grads = descent(&params, &added);
        (optimizer.step(params, grads, state), ())
    };
    let params = params();
    scan(step, (params, optimizer.init(&params)), waves()).0
}

fn check<O: GradientTransformation<Params>>(name: &str, optimizer: O) {
    fixture().close(name, numbers(|| trained(&optimizer).0), ROUNDING);
}

/// Tolerance where small differences from the start are divided by scales that begin at 1e-6.
const DIVIDED: f64 = 2e-5;

fn cosine() -> Schedule {
    warmup_cosine_decay_schedule(0.0, RATE, 10, 40, 1e-3)
}

#[test]
fn estimated_step_sizes_are_those_of_optax() {
    check("prodigy", prodigy(1.0));
    let options = Prodigy {
        betas: (0.8, 0.95),
        beta3: Some(0.9),
        eps: 1e-6,
        estim_lr0: 1e-3,
        estim_lr_coef: 2.0,
        weight_decay: 0.1,
        safeguard_warmup: true,
        ..prodigy(cosine())
    };
    check("prodigy_options", options);
    check("dadapt_adamw", dadapt_adamw(1.0));
    let options = DadaptAdamw {
        betas: (0.8, 0.95),
        eps: 1e-6,
        estim_lr0: 1e-3,
        weight_decay: 0.1,
        ..dadapt_adamw(0.5)
    };
    check("dadapt_adamw_options", options);
    check("cocob", cocob(1.0, 0.0));
    let options = ScaleByCocob { alpha: 10.0, eps: 1e-4 };
    check("cocob_options", chain((add_decayed_weights(0.1), options)));
    let mechanic = mechanize(sgd(0.1));
    fixture().close("mechanize", numbers(|| trained(&mechanic).0), DIVIDED);
    let options = Mechanic {
        weight_decay: 0.1,
        eps: 1e-6,
        s_init: 1e-3,
        num_betas: 3,
        ..mechanize(adam(RATE))
    };
    fixture().close("mechanize_options", numbers(|| trained(&options).0), DIVIDED);
}

#[test]
fn schedule_free_is_that_of_optax() {
    // The average is a difference of two points, divided by 0.9.
    let check = |name: &str, optimizer: &dyn Fn() -> Params| {
        fixture().close(name, numbers(optimizer), 2.0 * ROUNDING);
    };
    check("schedule_free_sgd", &|| trained(&schedule_free_sgd(0.1, 0, 0.0)).0);
    let optimizer = schedule_free_sgd(0.1, 5, 0.1);
    check("schedule_free_sgd_eval", &|| {
        let (params, state) = trained(&optimizer);
        schedule_free_eval_params(&state, &params)
    });
    check("schedule_free_adamw", &|| trained(&schedule_free_adamw(RATE, 5, 0.1)).0);
    let base = Adam { b1: 0.0, ..Adam::default() }.with_learning_rate(cosine());
    let options = ScheduleFree { b1: 0.8, weight_lr_power: 1.0, ..schedule_free(base, cosine()) };
    check("schedule_free", &|| trained(&options).0);
}

#[test]
fn sharpness_aware_minimization_is_that_of_optax() {
    check("normalize", chain((normalize(), sgd(RATE))));
    let ascent = chain((normalize(), sgd(0.05)));
    check("sam", sam(adam(RATE), ascent));
    let momentum = Sgd { momentum: 0.9, ..sgd(RATE) };
    let options = Sam { sync_period: 3, reset_state: false, ..sam(momentum, adam(0.05)) };
    check("sam_options", options);
    let optimizer = Sam { sync_period: 3, ..sam(adam(RATE), ascent) };
    let ours = numbers(|| {
        let start = params();
        let zeros = zeros_like(&start);
        let step = |(params, state): (Params, _), ()| {
            let grads = descent(&params, &zeros);
            let (updates, state) =
                optimizer.update_with(&grads, state, &params, |p, _| descent(&p, &zeros));
            ((apply_updates(params, updates), state), ())
        };
        let carry = (start, optimizer.init(&start));
        scan_with(step, carry, (), ScanOptions::length(STEPS)).0.0
    });
    fixture().close("sam_opaque", ours, ROUNDING);
    let error = interpret::<(), Params>((), |()| {
        let optimizer = Sam { sync_period: 0, ..sam(sgd(0.1), sgd(0.1)) };
        optimizer.update(&params(), optimizer.init(&params()), &params()).0
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sync_period must be from 1"), "{error}");
}

#[test]
fn muon_is_that_of_optax() {
    check("muon", muon(RATE));
    let options = Muon {
        scale_by_muon: ScaleByMuon {
            ns_coeffs: [2.0, -1.5, 0.5],
            ns_steps: 3,
            beta: 0.9,
            nesterov: false,
            ..scale_by_muon()
        },
        weight_decay: 0.1,
        consistent_rms: Some(0.2),
        adam_b1: 0.8,
        adam_b2: 0.9,
        adam_eps_root: 1e-6,
        adam_weight_decay: 0.2,
        ..muon(RATE)
    };
    check("muon_options", options);
    let adaptive = ScaleByMuon { adaptive: true, ..scale_by_muon() };
    check("muon_adaptive", Muon { scale_by_muon: adaptive, ..muon(cosine()) });
    let error = interpret::<(), Tensor>((), |()| {
        let vector = wave([3], 0.0);
        scale_by_muon().update(&vector, scale_by_muon().init(&vector), &vector).0
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("takes matrices, and a leaf is f32[3]"), "{error}");
}

#[test]
fn plateaus_are_those_of_optax() {
    const VALUES: [f32; 18] = [
        5.0, 4.0, 4.0, 4.0, 4.1, 3.9, 3.89, 3.88, 3.8799, 3.8798, 3.8797, 3.0, 3.1, 3.2, 3.3, 3.4,
        3.5, 3.6,
    ];
    let scales = |plateau: ReduceOnPlateau| {
        numbers(|| {
            let one = ops::ones([], DType::F32);
            let step = |state, value| {
                let (scale, state) = plateau.update(&one, state, value);
                (state, scale)
            };
            scan(step, plateau.init(&one), ops::constant(VALUES)).1
        })
    };
    let plateau = ReduceOnPlateau { patience: 2, factor: 0.5, ..reduce_on_plateau() };
    fixture().close("plateau", scales(plateau), ROUNDING);
    let options = ReduceOnPlateau {
        rtol: 0.0,
        atol: 0.05,
        cooldown: 2,
        accumulation_size: 2,
        min_scale: 0.3,
        ..plateau
    };
    fixture().close("plateau_options", scales(options), ROUNDING);
    for wrong in
        [ReduceOnPlateau { factor: 1.0, ..plateau }, ReduceOnPlateau { rtol: 0.0, ..plateau }]
    {
        let error = interpret::<(), Tensor>((), |()| wrong.init(&params()).scale);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("reduce_on_plateau") && error.contains("must be"), "{error}");
    }
}

fn loss(w: Tensor, (x, y): (Tensor, Tensor)) -> Tensor {
    (x.matmul(w) - y).square().sum(..)
}

fn data() -> (Tensor, Tensor) {
    (wave([12, 5], 0.3), wave([12], 0.8))
}

#[test]
fn microbatches_are_those_of_optax() {
    for (name, accumulator) in [
        ("sum", Accumulator::Sum),
        ("mean", Accumulator::Mean),
        ("running_mean", Accumulator::RunningMean),
    ] {
        for size in [3, 4] {
            let ours = numbers(|| {
                let w = params().2;
                let f = move |batch: (Tensor, Tensor)| value_and_grad(|w| loss(w, batch))(w);
                microbatch(f, size, accumulator)(data())
            });
            fixture().close(&format!("microbatch_{name}_{size}"), ours, ROUNDING);
        }
    }
    let ours = numbers(|| {
        let f = |(x, y): (Tensor, Tensor)| (x * y.expand_dims(1), y + x.sum(..));
        microbatch(f, 3, Accumulator::Concat)(data())
    });
    fixture().close("microbatch_concat", ours, ROUNDING);
}

#[test]
fn microbatches_that_do_not_divide_end_the_trace() {
    let refused = |f: fn() -> Tensor| {
        let error = interpret::<(), Tensor>((), |()| f()).unwrap_err().to_string();
        assert!(error.contains("src/optim/tests/contrib.rs"), "{error}");
        error
    };
    let error = refused(|| microbatch(|x: Tensor| x.sum(..), 5, Accumulator::Sum)(wave([12], 0.0)));
    assert!(
        error.contains("a multiple of 5 examples, at least 1; there is 12 examples"),
        "{error}"
    );
    let error = refused(|| microbatch(|x: Tensor| x.sum(..), 0, Accumulator::Sum)(wave([12], 0.0)));
    assert!(error.contains("a multiple of 0 examples"), "{error}");
    let error = refused(|| {
        let both = |(x, y): (Tensor, Tensor)| x.sum(..) + y.sum(..);
        microbatch(both, 2, Accumulator::Sum)((wave([12], 0.0), wave([10], 0.0)))
    });
    assert!(error.contains("first axes must be equal, and are in f32[12] and f32[10]"), "{error}");
    let error = refused(|| {
        microbatch(|x: Tensor| x.sum(..), 2, Accumulator::Mean)(ops::arange(4, DType::I32))
    });
    assert!(error.contains("means are of floats, and a result is i32[]"), "{error}");
    let error =
        refused(|| microbatch(|x: Tensor| x.sum(..), 2, Accumulator::Concat)(wave([4], 0.0)));
    assert!(error.contains("must have an axis of examples"), "{error}");
}

fn wide(tree: &Params) -> Params {
    let leaves = tree::leaves(tree).into_iter().map(|leaf| leaf.to(DType::F64));
    tree::replace(tree, leaves.collect::<Vec<_>>())
}

fn objective(params: Params) -> Tensor {
    let parts = tree::leaves(&params).into_iter().zip(tree::leaves(&wide(&targets())));
    let parts = parts.zip(SCALES);
    parts.fold(ops::zeros([], DType::F64), |sum, ((p, t), scale)| {
        sum + scale * crate::losses::log_cosh(3.0 * p, t).sum(..)
    })
}

fn rosenbrock(params: Params) -> Tensor {
    let flat: Vec<Tensor> = tree::leaves(&params).into_iter().map(|leaf| leaf.ravel()).collect();
    let x = ops::concatenate(&flat, 0);
    let n = x.dim(0);
    let (first, next) = (x.slice_axis(0, 0, n - 1), x.slice_axis(0, 1, n));
    (10.0 * (next - first.square()).square() + (1.0 - first).square()).sum(..)
}

#[test]
fn the_zoom_line_search_is_that_of_optax() {
    fn minimized<O: GradientTransformation<Params>>(
        optimizer: &O,
        search: ZoomLinesearch,
        steps: usize,
        f: fn(Params) -> Tensor,
    ) -> (Params, Tensor) {
        let mut params = wide(&params());
        let (mut state, mut searched) = (optimizer.init(&params), search.init(&params));
        let mut rest = vec![];
        for _ in 0..steps {
            let (value, grads) = searched.value_and_grad(f, &params);
            let (updates, next) = optimizer.update(&grads, state, &params);
            let (updates, found) = search.update(&updates, searched, &params, value, &grads, f);
            params = apply_updates(params, updates);
            rest.push(found.num_linesearch_steps.to(DType::F64));
            (state, searched) = (next, found);
        }
        rest.insert(0, f(params));
        (params, ops::stack(&rest, 0))
    }
    fn check<O: GradientTransformation<Params>>(
        name: &str,
        optimizer: O,
        search: ZoomLinesearch,
        steps: usize,
        f: fn(Params) -> Tensor,
    ) {
        let mut ours = numbers(|| minimized(&optimizer, search, steps, f));
        let rest = ours.split_off(ours.len() - steps - 1);
        fixture().close(name, ours, ROUNDING);
        fixture().close(&format!("{name}_rest"), rest, ROUNDING);
    }
    let one = InitialGuess::One;
    let default = ZoomLinesearch { initial_guess_strategy: one, ..zoom_linesearch(20) };
    check("lbfgs_zoom", lbfgs(1.0), default, 6, objective);
    let memory = ScaleByLbfgs { memory_size: 4, ..scale_by_lbfgs() };
    let lbfgs = chain((memory, scale(-1.0)));
    check("lbfgs_zoom_rosenbrock", lbfgs, default, 12, rosenbrock);
    let search = ZoomLinesearch {
        curv_rtol: 0.1,
        approx_dec_rtol: None,
        initial_guess_strategy: InitialGuess::One,
        increase_factor: 3.0,
        ..zoom_linesearch(30)
    };
    check("sgd_zoom", sgd(1.0), search, 6, rosenbrock);
    let search =
        ZoomLinesearch { max_learning_rate: Some(5.0), slope_rtol: 0.3, ..zoom_linesearch(4) };
    check("sgd_zoom_limit", sgd(0.001), search, 6, rosenbrock);
}
