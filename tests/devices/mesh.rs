//! One function divided over devices by the compiler.

use podracer::{
    Array, DType, Sharded, Tensor, grad, jit, replicate, shard, sharded_jit, unreplicate, unshard,
};

use super::{count, devices, error};

fn loss(w: Tensor, x: Tensor) -> Tensor {
    (x.matmul(w).tanh() - 0.3).square().mean(..)
}

#[test]
fn the_same_as_on_one_device() {
    for n in [1, 2, 4, 8] {
        let devices = devices(n);
        let step = |(w, x): (Tensor, Tensor)| {
            let g = grad(|w: Tensor| loss(w, x))(w);
            (w - g * 0.1, x.matmul(w), x.sum([0]))
        };
        let w = Array::new([3, 2], &[0.1f32, -0.2, 0.3, 0.0, 0.5, -0.4]).unwrap();
        let x = jit(|x: Tensor| x / 24.0 - 0.5).call(count(&[8, 3])).unwrap();
        let expected = jit(step).call((w.clone(), x.clone())).unwrap();
        let args = (replicate(&w, &devices).unwrap(), shard(&x, &devices).unwrap());
        let (w, y, sums) = sharded_jit(step).named("step").call(args).unwrap();
        // The batch stays divided, the parameters are copies.
        assert!(w.is_replicated() && sums.is_replicated(), "{n}");
        assert_eq!(y.is_replicated(), n == 1);
        let near = |a: Array, b: &Array| {
            let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            assert_eq!(a.len(), b.len());
            for (a, b) in a.iter().zip(&b) {
                assert!((a - b).abs() < 1e-6, "{n}: {a} {b}");
            }
        };
        near(unreplicate(&w).unwrap(), &expected.0);
        near(unshard(&y).unwrap(), &expected.1);
        near(unreplicate(&sums).unwrap(), &expected.2);
    }
}

#[test]
fn sharded_state_is_an_argument_again() {
    let devices = devices(4);
    let step = sharded_jit(|(w, x): (Tensor, Tensor)| (w * 0.5 + x.mean(..), x));
    let mut w = replicate(&Array::from(0.0f32), &devices).unwrap();
    let mut x = shard(&count(&[8]), &devices).unwrap();
    for _ in 0..10 {
        (w, x) = step.call((w, x)).unwrap();
    }
    let w = unreplicate(&w).unwrap().item::<f32>().unwrap();
    assert!((w - 7.0).abs() < 1e-2, "{w}");
    assert_eq!(unshard(&x).unwrap().to_vec::<f32>().unwrap()[7], 7.0);
}

#[test]
fn kept_arguments_keep_their_values() {
    let devices = devices(4);
    // The result may be divided or not: then no memory fits.
    let f = sharded_jit(|(w, x): (Tensor, Tensor)| (w + x, x.sum(..) + x, x * 2.0));
    let w = replicate(&count(&[8]), &devices).unwrap();
    let x = shard(&count(&[8]), &devices).unwrap();
    let (a, b, c) = f.call((w.clone(), x.clone())).unwrap();
    let whole = |y: &Sharded| match y.is_replicated() {
        true => unreplicate(y).unwrap().to_vec::<f32>().unwrap(),
        false => unshard(y).unwrap().to_vec::<f32>().unwrap(),
    };
    let numbers: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let of = |f: fn(f32) -> f32| numbers.iter().map(|&x| f(x)).collect::<Vec<f32>>();
    let expected = (of(|x| x + x), of(|x| x + 28.0), of(|x| x * 2.0));
    assert_eq!((whole(&a), whole(&b), whole(&c)), expected);
    assert_eq!((whole(&w), whole(&x)), (numbers.clone(), numbers.clone()));
    let (a, b, c) = f.call((w, x)).unwrap();
    assert_eq!((whole(&a), whole(&b), whole(&c)), expected);
}

#[test]
fn a_second_signature_is_explained() {
    let devices = devices(4);
    let f = sharded_jit(|x: Tensor| x + 1.0).named("f").assert_max_traces(2);
    let first = line!() + 1;
    f.call(shard(&count(&[8]), &devices).unwrap()).unwrap();
    f.call(replicate(&count(&[2]), &devices).unwrap()).unwrap();
    let (file, second) = (file!(), first + 1);
    let text = format!(
        "f: signature 2, at the call in {file}:{second}:7, differs from that of the call in \
         {file}:{first}:7:\n  $: divided over devices [0, 1, 2, 3] before, copies on devices \
         [0, 1, 2, 3] now"
    );
    assert_eq!(f.explain().iter().map(ToString::to_string).collect::<Vec<_>>(), [text]);
    let text = error(f.call(shard(&count(&[16]), &devices).unwrap()));
    assert!(text.starts_with("more than 2 traces, which assert_max_traces(2) does not"), "{text}");
    assert!(text.ends_with("\n  $: f32[2] before, f32[4] now (axis 0)"), "{text}");
}

#[test]
fn values_that_cannot_be_divided() {
    let devices = devices(2);
    let parts = [Array::from(1.0f32), Array::from(2.0f32)];
    let scalars = Sharded::from_shards(&parts, &devices).unwrap();
    let text = error(sharded_jit(|x: Tensor| x + 1.0).call(scalars));
    assert!(text.starts_with("a value of f32[] on each device is neither divided"), "{text}");
    let text = error(sharded_jit(|(): ()| podracer::trace::ops::zeros([2], DType::F32)).call(()));
    assert_eq!(text, "program: the argument has no leaves, so no devices");
    let two = (shard(&count(&[2]), &[0, 1]).unwrap(), shard(&count(&[2]), &[2, 3]).unwrap());
    let text = error(sharded_jit(|(a, b): (Tensor, Tensor)| a + b).named("sum").call(two));
    assert!(text.starts_with("sum: $[1] is on devices [2, 3]"), "{text}");
}
