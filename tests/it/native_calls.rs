//! Small programs are written with calls of native functions, and compute the same.

use podracer::nn::{Activation, Mlp, init};
use podracer::{Array, DType, Key, Tensor, interpret, jit, random};

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
fn a_small_policy_calls_native_functions() {
    let compiled = jit(act);
    let text = compiled.lower(&arguments(4)).unwrap().stablehlo().to_string();
    assert_eq!(text.matches("@podracer.dense.1(").count(), 3, "{text}");
    assert_eq!(text.matches("@podracer.threefry2x32.1(").count(), 2, "{text}");
    assert!(!text.contains("dot_general"), "{text}");

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
fn layers_of_large_programs_and_loops_do_not() {
    let text = jit(act).lower(&arguments(4096)).unwrap().stablehlo().to_string();
    assert!(text.contains("dot_general") && !text.contains("@podracer.dense"), "{text}");
    // But few random bits, here for the keys, are native calls in every program; many are not.
    assert_eq!(text.matches("@podracer.threefry2x32.1(").count(), 1, "{text}");
    assert_eq!(text.matches("call @threefry2x32_8192(").count(), 1, "{text}");
    let looped = jit(|(x, w): (Tensor, Tensor)| {
        podracer::trace::control::fori_loop(0, 3, |_, x: Tensor| x.matmul(w), x)
    });
    let square = || Array::zeros([4, 4], DType::F32);
    let text = looped.lower(&(square(), square())).unwrap().stablehlo().to_string();
    assert!(text.contains("dot_general") && !text.contains("@podracer."), "{text}");
}

#[test]
fn a_product_that_is_used_twice_is_no_layer() {
    let f = |(x, w, b): (Tensor, Tensor, Tensor)| {
        let product = x.matmul(w);
        (product + b, product * 2.0)
    };
    let ones = |shape: &[usize]| {
        let n = shape.iter().product();
        Array::new(shape, &vec![1.5f32; n]).unwrap()
    };
    let args = || (ones(&[2, 3]), ones(&[3, 5]), ones(&[5]));
    let (sum, double) = jit(f).call(args()).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [8.25f32; 10]);
    assert_eq!(double.to_vec::<f32>().unwrap(), [13.5f32; 10]);
}
