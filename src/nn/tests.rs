//! Tests of initializers and layers against JAX and flax; `tests/fixtures/nn/make.py` generates the
//! fixtures.

use super::*;
use crate::random::{self, Key};
use crate::spaces::ObsKind;
use crate::trace::numpy;
use crate::trace::ops::{self, ConvOptions, Padding};
use crate::trace::testing::{Fixture, interpret, numbers, wave};
use crate::trace::transpose::grad;
use crate::trace::{DType, Literal, Shape, Tensor};
use crate::tree;

fn fixture() -> Fixture {
    Fixture::new(include_str!("../../tests/fixtures/nn/nn.json"))
}

fn drawn(init: Init, shape: &[usize]) -> Vec<f64> {
    numbers(|| init.draw(Key::constant(42), shape, DType::F32))
}

#[test]
fn initializers_are_those_of_jax() {
    let fixture = fixture();
    let orthogonal = |gain, shape: &[usize]| drawn(init::orthogonal(gain), shape);
    fixture.close("orthogonal_tall", orthogonal(2f64.sqrt(), &[3, 2]), 2e-6);
    fixture.close("orthogonal_wide", orthogonal(0.5, &[3, 7]), 2e-6);
    fixture.close("orthogonal_large", orthogonal(1.0, &[40, 36]), 2e-5);
    fixture.close("orthogonal_conv", orthogonal(1.0, &[2, 2, 3, 5]), 2e-6);
    for (name, init) in [
        ("lecun_normal", init::lecun_normal()),
        ("lecun_uniform", init::lecun_uniform()),
        ("he_normal", init::he_normal()),
        ("he_uniform", init::he_uniform()),
        ("glorot_normal", init::glorot_normal()),
        ("glorot_uniform", init::glorot_uniform()),
    ] {
        fixture.close(name, drawn(init, &[6, 5]), 3e-7);
        fixture.close(&format!("{name}_conv"), drawn(init, &[3, 2, 4, 2]), 3e-7);
    }
    fixture.close("kaiming_normal", drawn(init::kaiming_normal(), &[6, 5]), 3e-7);
}

#[test]
fn many_columns_are_made_orthonormal_in_blocks() {
    // A first block of 22 and four of 32. Q is the matrix with orthonormal columns for which Q^T a
    // is upper triangular with a positive diagonal.
    let (m, n) = (160, 150);
    let values = numbers(|| {
        let a = random::normal(Key::constant(3), [m, n], DType::F64);
        let q = numpy::orthonormal_columns(a);
        ops::concatenate(&[q.t().matmul(q), q.t().matmul(a)], 0)
    });
    let (gram, r) = values.split_at(n * n);
    for i in 0..n {
        for j in 0..n {
            let one = if i == j { 1.0 } else { 0.0 };
            let (gram, r) = (gram[i * n + j], r[i * n + j]);
            assert!((gram - one).abs() < 1e-12, "Q^T Q [{i},{j}] is {gram}");
            assert!(if i == j { r > 0.0 } else { i < j || r.abs() < 1e-11 }, "R [{i},{j}] is {r}");
        }
    }
}

#[test]
fn the_bound_of_torch_is_one_over_the_root_of_fan_in() {
    for (init, bound) in [
        (init::torch_default(), 1.0 / 48f64.sqrt()),
        (init::kaiming_uniform(5f64.sqrt()), 1.0 / 48f64.sqrt()),
        (init::kaiming_uniform(0.0), (6.0 / 48f64).sqrt()),
    ] {
        let values = drawn(init, &[4, 4, 3, 50]);
        let largest = values.iter().fold(0f64, |m, x| m.max(x.abs()));
        assert!(largest <= bound * 1.000001 && largest > 0.99 * bound, "{largest} {bound}");
    }
    let biases = interpret((), |()| Dense::init_torch(Key::constant(1), 16, 400)).unwrap();
    let largest = biases.b.unwrap().to_f64_vec().into_iter().fold(0f64, |m, x| m.max(x.abs()));
    assert!(largest <= 0.25 && largest > 0.24, "{largest}");
}

#[test]
fn layers_are_those_of_flax() {
    let fixture = fixture();
    let x = || wave([2, 3], 0.1);
    let dense = numbers(|| Dense { w: wave([3, 4], 0.2), b: Some(wave([4], 0.3)) }.apply(x()));
    fixture.close("dense", dense, 1e-6);
    for (name, padding) in [("valid", Padding::Valid), ("same", Padding::Same)] {
        let conv = numbers(|| {
            let options = ConvOptions { stride: 2, padding: padding.clone() };
            let conv = Conv2d { w: wave([3, 2, 3, 4], 0.5), b: Some(wave([4], 0.6)), options };
            conv.apply(wave([2, 5, 6, 3], 0.4))
        });
        fixture.close(&format!("conv_{name}"), conv, 2e-6);
        let pool = numbers(|| max_pool(wave([2, 5, 6, 3], 0.4), [3, 3], [2, 2], &padding));
        fixture.same(&format!("pool_{name}"), pool);
    }
    let norm = numbers(|| {
        let norm = LayerNorm { scale: wave([3], 0.7), bias: wave([3], 0.8), eps: 1e-6 };
        norm.apply(x())
    });
    fixture.close("layer_norm", norm, 2e-6);
}

#[test]
fn recurrent_cells_are_those_of_flax() {
    let fixture = fixture();
    let x = || wave([2, 3], 0.1);
    let lstm = numbers(|| {
        let cell =
            LstmCell { w_i: wave([3, 16], 1.1), w_h: wave([4, 16], 1.2), b: wave([16], 1.3) };
        cell.apply(x(), (wave([2, 4], 1.0), wave([2, 4], 0.9)))
    });
    fixture.close("lstm", lstm, 1e-6);
    let gru = numbers(|| {
        let (w_i, w_h) = (wave([3, 12], 1.4), wave([4, 12], 1.5));
        let cell = GruCell { w_i, w_h, b: wave([12], 1.6), b_n: wave([4], 1.7) };
        cell.apply(x(), wave([2, 4], 0.9))
    });
    fixture.close("gru", gru, 1e-6);
}

#[test]
fn layers_start_with_the_sizes_asked_for() {
    let cells = interpret((), |()| {
        let [a, b, c, d] = Key::constant(0).split_n();
        let sizes = [3, 8, 8, 2];
        let (hidden, head) = (init::orthogonal(1.0), init::constant(0.01));
        let mlp = Mlp::init_with(a, &sizes, Activation::Tanh, hidden, head);
        let y = mlp.apply(wave([5, 3], 0.0));
        let lstm = LstmCell::init(b, 3, 4);
        let state = lstm.apply(wave([5, 3], 0.0), lstm.start(5));
        let gru = GruCell::init(c, 3, 4);
        let h = gru.apply(wave([5, 3], 0.0), gru.start(5));
        let conv = Conv2d::init(d, [3, 3, 1, 2], ConvOptions::default(), init::lecun_normal());
        (mlp, y, state, h, conv)
    })
    .unwrap();
    assert_eq!(cells.1.ty().to_string(), "f32[5,2]");
    assert_eq!(cells.2.0.ty().to_string(), "f32[5,4]");
    assert_eq!(cells.3.ty().to_string(), "f32[5,4]");
    let expected = ["$[0].layers[0].w", "$[0].layers[0].b", "$[0].layers[1].w"];
    assert_eq!(tree::paths(&cells)[..3], expected);
}

#[test]
fn misuse_ends_the_trace_at_the_callers_line() {
    let refused = |f: fn() -> Tensor| {
        let error = interpret((), |()| f()).unwrap_err().to_string();
        assert!(error.contains("src/nn/tests.rs"), "{error}");
        error
    };
    let error = refused(|| init::orthogonal(1.0).draw(Key::constant(0), [3], DType::F32));
    assert!(error.contains("a kernel has at least two axes, and the shape is [3]"), "{error}");
    let error = refused(|| {
        let shape = Shape::from([2, 10, 4]);
        Encoder::init(Key::constant(0), ObsKind::Board, &shape, init::zeros()).convs[0].w
    });
    assert!(error.contains("a board needs at least 3 rows and columns, got [2,10,4]"), "{error}");
    let error = refused(|| {
        let shape = Shape::from([4, 84]);
        Encoder::init(Key::constant(0), ObsKind::Image, &shape, init::zeros()).convs[0].w
    });
    assert!(error.contains("observations of shape [4,84] are not images u8[channels"), "{error}");
    let error = refused(|| {
        let (keys, shape) = (vec![Key::constant(0)], Shape::from([3]));
        let kernel = init::zeros();
        Encoder::init_with_keys(keys, ObsKind::Vector, &shape, kernel).dense[0].w
    });
    assert!(error.contains("takes a key for each of 2 layers, got 1"), "{error}");
    let error = refused(|| max_pool(ops::ones([2, 3], DType::F32), [2, 2], [2, 2], &Padding::Same));
    assert!(error.contains("max_pool: takes float images"), "{error}");
    let error = refused(|| {
        let dense = Dense::init(Key::constant(0), 3, 2, init::zeros());
        dense.apply(ops::ones([5, 4], DType::F32))
    });
    assert!(error.contains("Dense::apply: "), "{error}");
}

/// The last state and the outputs of a cell over `[T, 2, 3]`, by `unroll` and step by step, and the
/// gradients of a sum of the outputs by the parameters, the inputs and the state.
fn unrolled(kind: RnnKind, steps: usize, starts: Option<&[bool]>) -> [Vec<f64>; 2] {
    let starts = || starts.map(|starts| ops::constant(starts).reshape([steps, 2]));
    type Parts = (RecurrentCell<Tensor>, Tensor, RecurrentState<Tensor>);
    let parallel = |(cell, x, state): Parts| cell.unroll(cell.project(x), starts(), state);
    let one_by_one = |(cell, x, mut state): Parts| {
        let mut outputs = Vec::new();
        for t in 0..steps as isize {
            if let Some(starts) = starts() {
                state = reset_carry(starts.index_axis(0, t), state);
            }
            let (next, output) = cell.advance(cell.project(x.index_axis(0, t)), state);
            state = next;
            outputs.push(output);
        }
        ops::stack(&outputs, 0)
    };
    let evaluate = |f: &dyn Fn(Parts) -> Tensor| {
        let evaluated = interpret((), |()| {
            let cell = RecurrentCell::init(kind, Key::constant(1), 3, 4);
            let mut at = 0.0;
            let state = tree::map(cell.start(2), |h: Tensor| {
                at += 1.0;
                wave(h.shape(), at)
            });
            let weights = wave([steps, 2, 4], 0.5);
            let loss = |parts: Parts| (f(parts) * weights).sum(..);
            let parts = (cell, wave([steps, 2, 3], 0.1), state);
            (f(parts.clone()), grad(loss)(parts))
        });
        let leaves: Vec<Literal> = tree::leaves(&evaluated.unwrap());
        leaves.iter().flat_map(Literal::to_f64_vec).collect::<Vec<f64>>()
    };
    [evaluate(&parallel), evaluate(&one_by_one)]
}

#[test]
fn unrolled_cells_are_their_steps_with_their_gradients() {
    for kind in [RnnKind::Lstm, RnnKind::Gru, RnnKind::MinGru, RnnKind::Lru] {
        for steps in [1, 2, 7, 8] {
            // Episodes start at the first step, within, and at the last step.
            let starts: Vec<bool> = (0..2 * steps).map(|i| i % 5 == 0 || i == 7).collect();
            for starts in [None, Some(&starts[..])] {
                let [parallel, one_by_one] = unrolled(kind, steps, starts);
                assert_eq!(parallel.len(), one_by_one.len());
                for (a, b) in parallel.iter().zip(&one_by_one) {
                    let close = (a - b).abs() <= 2e-5 * b.abs().max(1.0);
                    assert!(close, "{kind} over {steps} steps, {starts:?}: {a}, {b}");
                }
            }
        }
    }
}

#[test]
fn the_eigenvalues_of_an_lru_are_in_their_ring() {
    let options = LruOptions { r_min: 0.4, r_max: 0.9, max_phase: 0.5 };
    let lru = interpret((), |()| Lru::init_with(Key::constant(2), 3, 200, 5, options)).unwrap();
    let [nu, theta, gamma] = [&lru.nu_log, &lru.theta_log, &lru.gamma_log].map(|x| x.to_f64_vec());
    for ((nu, theta), gamma) in nu.into_iter().zip(theta).zip(gamma) {
        let radius = (-nu.exp()).exp();
        assert!((0.4..0.9).contains(&radius), "{radius}");
        assert!((0.0..0.5).contains(&theta.exp()), "{theta}");
        assert!((gamma.exp() - (1.0 - radius * radius).sqrt()).abs() < 1e-5, "{gamma}");
    }
    assert_eq!(lru.c.ty().to_string(), "f32[400,5]");
}

#[test]
fn cells_over_sequences_run_the_new_cells() {
    let (outputs, same) = interpret((), |()| {
        let [a, b] = Key::constant(0).split_n();
        let (gru, lru) = (MinGru::init(a, 3, 4), Lru::init(b, 3, 4));
        let x = wave([2, 5, 3], 0.3);
        let inputs = x.swapaxes(0, 1);
        let parallel = [
            gru.scan(gru.project(inputs), None, gru.start(2)).1,
            lru.scan(lru.project(inputs), None, lru.start(2)).1,
        ];
        let looped = [RNN::new(gru).apply(x, None, None).1, RNN::new(lru).apply(x, None, None).1];
        (looped, parallel.map(|y| y.swapaxes(0, 1)))
    })
    .unwrap();
    for (a, b) in outputs.iter().zip(&same) {
        let far = a.to_f64_vec().into_iter().zip(b.to_f64_vec()).any(|(a, b)| (a - b).abs() > 1e-5);
        assert!(!far, "{a:?} {b:?}");
    }
}
