//! Wrappers, measurements, functions of trees and linear algebra against optax.

use super::super::*;
use super::optax::{
    Params, RATE, ROUNDING, check, check_with, fixture, gradients, objective, params, refused,
};
use crate::distributions::DiagNormal;
use crate::trace::DType;
use crate::trace::testing::{numbers, wave};
use crate::{Key, grad, value_and_grad};

fn matrices(_: &str, ty: &TensorType) -> bool {
    ty.rank() > 1
}

fn vectors(_: &str, ty: &TensorType) -> bool {
    ty.rank() > 0
}

#[test]
fn conditions_and_masks_are_those_of_optax() {
    let sgd = scale(-RATE);
    let sometimes = conditionally_transform(scale_by_adam(), |step: Tensor| (step % 3).ne(1));
    check("conditionally_transform", chain((sometimes, sgd)));
    check("conditionally_mask", conditionally_mask(adam(RATE), |step: Tensor| step.lt(20)));
    check("freeze", chain((freeze(matrices), adam(RATE))));
    check("selective_transform", selective_transform(adam(RATE), matrices));
    let error = refused(|| {
        let optimizer = conditionally_mask(identity(), |step: Tensor| step);
        let params = params();
        optimizer.update(&params, optimizer.init(&params), &params).0
    });
    assert!(error.contains("the condition must be a bool scalar, and is i32[]"), "{error}");
}

/// Derivative, with respect to a factor of the state, of all that an update of NaN gives.
fn derivative_of_a_rejected_update<O: Optimizer<Tensor>>(optimizer: O) -> f64 {
    let derivative = numbers(|| {
        let (p, g) = (ops::constant(vec![1.0f64, 2.0]), ops::constant(vec![f64::NAN, 1.0]));
        let f = |factor: Tensor| {
            let scaled = |x: Tensor| if x.dtype() == DType::F64 { x * factor + factor } else { x };
            let state = optimizer.init(&p);
            let leaves: Vec<Tensor> =
                tree::leaves::<Tensor, _>(&state).into_iter().map(scaled).collect();
            let (updates, state) = optimizer.update(&g, tree::replace(&state, leaves), &p);
            let sum = |total: Tensor, x: Tensor| match x.dtype() {
                DType::F64 => total + x.sum(..),
                _ => total,
            };
            tree::leaves(&state).into_iter().fold(updates.sum(..), sum)
        };
        vec![grad(f)(ops::constant(1.0f64))]
    });
    derivative[0]
}

#[test]
fn rejected_updates_have_finite_derivatives() {
    let found = [
        derivative_of_a_rejected_update(apply_if_finite(adam(RATE), 3)),
        derivative_of_a_rejected_update(conditionally_transform(adam(RATE), |n| n.gt(0))),
        derivative_of_a_rejected_update(conditionally_mask(adam(RATE), |n| n.gt(0))),
    ];
    // Both moments, of two elements each, are as before.
    assert_eq!(found, [4.0; 3]);
    let skipping = multi_steps(adam(RATE), 1).should_skip_update(skip_not_finite);
    // And so are the accumulated gradients.
    assert_eq!(derivative_of_a_rejected_update(skipping), 6.0);
}

#[test]
fn names_and_layouts_are_those_of_optax() {
    check("named_chain", named_chain((("clip", clip(0.3)), ("adam", adam(RATE)))));
    check("flatten", flatten(chain((clip_by_block_rms(0.5), adam(RATE)))));
    let decayed = stateless_with_tree_map(|g, p| g + 0.1 * p * p);
    check("stateless_with_tree_map", chain((decayed, scale(-RATE))));
    let error = refused(|| {
        let optimizer = named_chain((("a", identity()), ("b", identity()), ("a", identity())));
        let params = params();
        optimizer.update(&params, optimizer.init(&params), &params).0
    });
    assert!(error.contains("named_chain: names must differ, and \"a\" is there twice"), "{error}");
}

#[test]
fn optimizers_without_a_schedule_are_those_of_optax() {
    check("optimistic_adam_v1", optimistic_adam(RATE, Some(0.5)));
    let distance = chain((scale_by_distance_over_gradients(), scale(-1.0)));
    check("scale_by_distance_over_gradients", masked(distance, vectors));
    check("sm3", masked(sm3(0.1), vectors));
    let decay = ScaleBySm3 { b1: 0.5, b2: 0.9, eps: 1e-4 };
    check("sm3_decay", masked(chain((decay, scale(-RATE))), vectors));
    let scalar = numbers(|| {
        let g = ops::constant(3.0f32);
        sm3(1.0).update(&g, sm3(1.0).init(&g), &g).0
    });
    assert!((scalar[0] + 0.1).abs() < 1e-6, "{scalar:?}");
}

#[test]
fn skipped_updates_are_those_of_optax() {
    let finite = multi_steps(adam(RATE), 4).should_skip_update(skip_not_finite::<Params>);
    check_with("skip_not_finite", finite, [true, true]);
    let small = |grads: &Params| skip_large_updates(grads, 24.0);
    check("skip_large_updates", multi_steps(adam(RATE), 3).should_skip_update(small));
}

#[test]
fn measurements_are_those_of_optax() {
    let largest = |grads: &Params| grads.0.max(..);
    let optimizer = chain((
        snapshot("norm", global_norm::<Params>),
        monitor((
            ("max", largest),
            ("ema", measure_with_ema(global_norm::<Params>, 0.9, true)),
            ("biased", measure_with_ema(global_norm::<Params>, 0.5, false)),
        )),
    ));
    let values = numbers(|| {
        let params = params();
        let mut state = optimizer.init(&params);
        let first = state.0.measurements["norm"];
        for k in 0..5 {
            state = optimizer.update(&gradient(k), state, &params).1;
        }
        let measured = |name: &str| state.1.measurements[name];
        let all = [measured("max"), measured("ema"), measured("biased")];
        (first, state.0.measurements["norm"], all)
    });
    fixture().close("snapshot_first", &values[..1], ROUNDING);
    fixture().close("monitor", &values[1..], ROUNDING);
}

/// The gradients of one step.
fn gradient(step: isize) -> Params {
    let all = gradients([false, false]);
    tree::replace(&all, tree::leaves(&all).into_iter().map(|g| g.index_axis(0, step)))
}

#[test]
fn functions_of_trees_are_those_of_optax() {
    let fixture = fixture();
    let pair = || (gradient(0), gradient(1));
    let moments = || {
        let (a, b) = pair();
        [1, 2, 3].map(|order| update_moment(&a, &b, 0.9, order))
    };
    fixture.close("update_moment", numbers(moments), ROUNDING);
    let infinity = || update_infinity_moment(&pair().0, &pair().1, 0.9, 1e-3);
    fixture.close("update_infinity_moment", numbers(infinity), ROUNDING);
    let corrected = || bias_correction(&gradient(0), 0.9, ops::constant(3i32));
    fixture.close("bias_correction", numbers(corrected), ROUNDING);
    let scaled = || grad(|p: Params| global_norm(&scale_gradient(p, 0.3)).square())(gradient(0));
    fixture.close("scale_gradient", numbers(scaled), ROUNDING);
    let norms = || {
        let first = gradient(0);
        tree::replace(&first, tree::leaves(&first).into_iter().map(unitwise_norm))
    };
    fixture.close("unitwise_norm", numbers(norms), ROUNDING);
    let clipped = || {
        let full = |x: f64| ops::full([4], x, DType::F32);
        [0.4, 2.0].map(|norm| unitwise_clip(full(norm), full(0.5), wave([4], 1.0), 1e-6))
    };
    fixture.close("unitwise_clip", numbers(clipped), ROUNDING);
}

#[test]
fn clips_of_examples_are_those_of_optax() {
    let fixture = fixture();
    let examples = || {
        let all = gradients([false, false]);
        tree::replace(&all, tree::leaves(&all).into_iter().map(|g| g.slice_axis(0, 0, 6)))
    };
    let global = || per_example_global_norm_clip(&examples(), 3.5);
    fixture.close("per_example_global_norm_clip", numbers(global), ROUNDING);
    // optax returns a pair for each leaf.
    let uniform = || per_example_layer_norm_clip(&examples(), 3.5, true);
    fixture.close("per_example_layer_norm_clip", numbers(uniform), ROUNDING);
    let by_size = || per_example_layer_norm_clip(&examples(), 3.5, false);
    fixture.close("per_example_layer_norm_clip_sizes", numbers(by_size), ROUNDING);
    let error = refused(|| per_example_global_norm_clip(&params(), 1.0).0);
    assert!(error.contains("the examples along axis 0 of every leaf"), "{error}");
}

#[test]
fn linear_algebra_is_that_of_optax() {
    let fixture = fixture();
    let symmetric = || {
        let square = wave([5, 5], 0.4) + ops::eye(5, DType::F32);
        square.matmul(square.t())
    };
    let largest = numbers(|| power_iteration(symmetric(), 100, 1e-6));
    fixture.close("power_iteration", largest, 1e-5);
    for p in [1, 2, 4, 8] {
        let root = numbers(|| matrix_inverse_pth_root(symmetric(), p).0);
        fixture.close(&format!("matrix_inverse_pth_root_{p}"), root, 1e-4);
    }
    let solutions = || {
        let a = wave([6, 4], 0.2);
        (nnls(a, wave([6], 1.0), 30), nnls(a, wave([6, 3], 1.0), 20))
    };
    fixture.close("nnls", numbers(solutions), 1e-5);
    let normal = || {
        let normal = DiagNormal::new(wave([3], 0.3), wave([3], 0.5).exp());
        (normal.log_prob(wave([3], 1.5)), normal.sample(Key::constant(42)))
    };
    fixture.close("multi_normal", numbers(normal), ROUNDING);
}

#[test]
fn polyak_step_sizes_are_those_of_optax() {
    let trained = |steps: usize, update: &dyn Fn(&Params, Tensor) -> Params| {
        numbers(|| {
            let (a, b, c, d) = params();
            let wide = |leaf: Tensor| leaf.to(DType::F64);
            let mut params = (wide(a), wide(b), wide(c), wide(d));
            for _ in 0..steps {
                let (value, grads) = value_and_grad(objective)(params);
                params = apply_updates(params, update(&grads, value));
            }
            params
        })
    };
    let fixture = fixture();
    let ours = trained(8, &|grads, value| polyak_sgd(0.05).update(grads, value));
    fixture.close("polyak_sgd", ours, ROUNDING);
    let polyak = ScaleByPolyak {
        f_min: 20.0,
        max_learning_rate: 0.5,
        eps: 0.1,
        variant: PolyakVariant::SpsPlus,
    };
    let plus = PolyakSgd { scaling: 0.3, polyak };
    let ours = trained(8, &|grads, value| plus.update(grads, value));
    fixture.close("polyak_sgd_plus", ours, ROUNDING);
    let polyak = ScaleByPolyak { f_min: 30.0, max_learning_rate: 0.5, ..scale_by_polyak() };
    let ours = trained(6, &|grads, value| {
        let negative = tree::replace(grads, tree::leaves(grads).into_iter().map(|g| -g));
        polyak.update(&negative, value)
    });
    fixture.close("scale_by_polyak", ours, ROUNDING);
}
