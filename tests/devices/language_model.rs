//! The model and the training step of `examples/transformer.rs` beside JAX's and optax's: parameters,
//! losses and gradients, with dropout, and five data-parallel steps on two devices. The numbers are JAX's
//! (`tests/fixtures/transformer/make.py`).

use std::collections::BTreeMap;

use clap::Parser;
use podracer::optim::Optimizer;
use podracer::{
    Array, Key, Literal, P, Tensor, Tree, device_get, device_put, jit, make_mesh, shard_map,
    sharded_jit, tree, value_and_grad,
};

use super::devices;
use super::fixture::{Kinds, compare, read};

#[allow(dead_code)] // The example's `main` is not called.
#[path = "../../examples/transformer.rs"]
mod transformer;

use transformer::{Args, TrainState, Transformer, init_state, loss, optimizer, train_step};

fn args(flags: &str) -> Args {
    let sizes = "transformer --steps 20 --batch-size 4 --length 8 --layers 2 --features 8 \
                 --dropout 0.1 --learning-rate 3e-3";
    Args::parse_from(sizes.split_whitespace().chain(flags.split_whitespace()))
}

fn fixture() -> BTreeMap<String, Kinds> {
    read("tests/fixtures/transformer/transformer.safetensors")
}

fn literals<M: Tree<Array>>(tree: &M) -> Vec<Literal> {
    tree::leaves(tree).iter().map(|leaf: &Array| leaf.to_literal().unwrap()).collect()
}

/// Each array of a computation in bf16 within 2 % of its largest element, or 0.001 of small ones.
fn near_in_bf16(found: &[Literal], expected: &[Literal]) -> Result<(), String> {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
        let largest = expected.iter().fold(0.05f64, |largest, x| largest.max(x.abs()));
        let difference =
            found.iter().zip(&expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        if found.len() != expected.len() || difference > 0.02 * largest {
            return Err(format!(
                "array {i} differs by {difference}, its largest element is {largest}"
            ));
        }
    }
    Ok(())
}

fn arrays(literals: &[Literal]) -> Vec<Array> {
    literals.iter().map(|literal| Array::from(literal.clone())).collect()
}

/// The model of the flags with the fixture's parameters.
fn model(args: &Args, init: &Kinds) -> Transformer<Array> {
    let model = jit(|key| Transformer::init(key, args)).call(Key::new(0)).unwrap();
    tree::replace(&model, arrays(&init["model"]))
}

#[test]
fn the_transformer_starts_with_the_parameters_of_jax() {
    devices(1);
    let state = jit(|key| init_state(key, &args(""))).call(Key::new(3)).unwrap();
    let init = &fixture()["init"];
    compare(&literals(&state.model), &init["model"]).unwrap();
    compare(&literals(&state.key), &init["key"]).unwrap();
}

#[test]
fn losses_and_gradients_of_the_transformer_are_those_of_jax() {
    devices(1);
    let fixture = fixture();
    let init = &fixture["init"];
    let [tokens, key] = ["tokens", "key"].map(|name| arrays(&init[name])[0].clone());
    for (name, flags) in [("f32", ""), ("remat", "--remat"), ("bf16", "--bf16")] {
        let expected = &fixture[name];
        let model = model(&args(flags), init);
        let f = jit(|(model, tokens, key): (Transformer<Tensor>, Tensor, Tensor)| {
            let loss_fn =
                |model: Transformer<Tensor>| loss(&model, tokens, Some(Key::from_data(key)));
            (loss(&model, tokens, None), value_and_grad(loss_fn)(model.clone()))
        });
        let (value, gradient) = f.call((model, tokens.clone(), key.clone())).unwrap();
        let agree = if name == "bf16" { near_in_bf16 } else { compare };
        agree(&literals(&value), &expected["loss"]).unwrap_or_else(|e| panic!("{name}: {e}"));
        agree(&literals(&gradient), &expected["gradient"])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn data_parallel_steps_of_the_transformer_are_those_of_jax() {
    devices(2);
    let (args, fixture) = (args(""), fixture());
    let (init, expected) = (&fixture["init"], &fixture["steps"]);
    let model = model(&args, init);
    let opt_state = jit(|model: Transformer<Tensor>| optimizer(&args).init(&model));
    let opt_state = opt_state.call(model.clone()).unwrap();
    let key = Key::from_data(arrays(&init["key"])[0].clone());
    let state = TrainState { model, opt_state, key };

    let mesh = make_mesh(&[2], &["data"]).unwrap();
    let specs = (P(()), P("data"));
    let step = |(state, tokens)| train_step(state, tokens, &args);
    let step = sharded_jit(shard_map(step, &mesh, specs.clone(), P(())));
    let tokens = arrays(&init["tokens"])[0].clone();
    let (mut state, tokens) = device_put(&(state, tokens), (&mesh, specs)).unwrap();
    let mut losses = Vec::new();
    for _ in 0..5 {
        let loss;
        (state, loss) = step.call((state, tokens.clone())).unwrap();
        losses.push(device_get(&loss).unwrap());
    }
    compare(&literals(&losses), &expected["losses"]).unwrap();
    let model = device_get(&state.model).unwrap();
    // The gradient by the bias of keys is 0 but for rounding, which Adam scales to the size of all others.
    let is_key_bias: Vec<bool> =
        tree::paths(&model).iter().map(|path| path.contains("key.bias")).collect();
    let kept = |leaves: &[Literal]| -> Vec<Literal> {
        let kept = leaves.iter().zip(&is_key_bias).filter(|(_, is_key_bias)| !**is_key_bias);
        kept.map(|(leaf, _)| leaf.clone()).collect()
    };
    compare(&kept(&literals(&model)), &kept(&expected["model"])).unwrap();
}
