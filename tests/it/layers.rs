//! Layers of `nn` against Flax: values, and gradients by every float input and parameter, compiled and
//! interpreted, and under `vmap`. The numbers are Flax's (`tests/fixtures/layers/make.py`).

mod attention;
mod convs;
mod models;
mod norms;
mod recurrent;

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
