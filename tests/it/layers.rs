//! Layers of `nn` against Flax: values, and gradients by every float input and parameter, compiled and
//! interpreted, and under `vmap`. The numbers are Flax's (`tests/fixtures/layers/make.py`).

mod attention;
mod convs;
mod models;
mod norms;
mod recurrent;

use podracer::nn::{LayerNorm, RMSNorm};
use podracer::{Array, DType, Tensor, jit, tree};

use crate::names::Suite;

fn suite() -> Suite {
    let functions = [
        norms::FUNCTIONS,
        attention::FUNCTIONS,
        convs::FUNCTIONS,
        recurrent::FUNCTIONS,
        models::FUNCTIONS,
    ];
    Suite { functions: functions.concat(), fixture: "tests/fixtures/layers/layers.safetensors" }
}

#[test]
fn layers_are_those_of_the_fixture() {
    suite().is_complete();
}

#[test]
fn interpreted_layers_and_gradients_are_those_of_flax() {
    suite().agrees(false);
}

#[test]
fn compiled_layers_and_gradients_are_those_of_flax() {
    suite().agrees(true);
}

#[test]
fn vmap_is_the_layer_of_each_example() {
    suite().batches();
}

/// The mean, 259, is no number of bf16, which has only even ones from 256 to 512.
#[test]
fn norms_of_bf16_inputs_and_parameters_compute_in_f32() {
    let f = jit(|x: Tensor| {
        let x = x.to(DType::BF16);
        let norms = (LayerNorm::init(4), RMSNorm::init(4));
        let narrow = tree::map(norms.clone(), |param: Tensor| param.to(DType::BF16));
        [norms, narrow].map(|(layer, rms)| (layer.apply(x), rms.apply(x)))
    });
    let results = f.call(Array::from([256.0f32, 258.0, 260.0, 262.0])).unwrap();
    for (layer, rms) in results {
        assert_eq!((layer.dtype(), rms.dtype()), (DType::BF16, DType::BF16));
        let [layer, rms] = [layer, rms].map(|y| y.to_literal().unwrap().to_f64_vec());
        for (y, expected) in layer.iter().zip([-1.3416, -0.4472, 0.4472, 1.3416]) {
            assert!((y - expected).abs() < 0.005, "{layer:?}");
        }
        assert!(rms.iter().all(|y| (y - 1.0).abs() < 0.02), "{rms:?}");
    }
}
