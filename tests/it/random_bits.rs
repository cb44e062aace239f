//! Few random bits are a call of a native function, in every program; many are not.

use podracer::nn::{Activation, Mlp, init};
use podracer::{Array, Key, Tensor, interpret, jit, random};

/// A policy for `batch` observations: actions, and the key for the next ones.
fn act((net, obs, key): (Mlp<Tensor>, Tensor, Key<Tensor>)) -> (Tensor, Tensor, Key<Tensor>) {
    let (key, draw) = key.split();
    let logits = net.apply(obs);
    (logits, random::categorical(draw, logits, -1), key)
}

fn arguments(batch: usize) -> (Mlp<Array>, Array, Key<Array>) {
    let start = jit(|key: Key<Tensor>| {
        Mlp::init_with(
            key,
            &[4, 64, 64, 2],
            Activation::Tanh,
            init::orthogonal(1.4),
            init::lecun_normal(),
        )
    });
    let net = start.call(Key::new(3)).unwrap();
    let obs: Vec<f32> = (0..batch * 4).map(|i| (i as f32 * 0.7).sin()).collect();
    let obs = Array::new([batch, 4], &obs).unwrap();
    (net, obs, Key::new(7))
}

#[test]
fn few_are_native_calls() {
    let compiled = jit(act);
    let text = compiled.lower(&arguments(4)).unwrap().stablehlo().to_string();
    assert_eq!(text.matches("@podracer.threefry2x32.1(").count(), 2, "{text}");

    let (logits, actions, key) = compiled.call(arguments(4)).unwrap();
    let (expected, chosen, next) = interpret(act).call(arguments(4)).unwrap();
    let logits = logits.to_vec::<f32>().unwrap();
    for (a, b) in logits.iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
    assert_eq!(actions.to_vec::<i32>().unwrap(), chosen.to_vec::<i32>().unwrap());
    let words = |key: Key<Array>| key.into_data().to_vec::<u32>().unwrap();
    assert_eq!(words(key), words(next));
}

#[test]
fn many_are_not() {
    let text = jit(act).lower(&arguments(4096)).unwrap().stablehlo().to_string();
    // Those of the keys are few.
    assert_eq!(text.matches("@podracer.threefry2x32.1(").count(), 1, "{text}");
    assert_eq!(text.matches("call @threefry2x32_8192(").count(), 1, "{text}");
}
