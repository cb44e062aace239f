//! Arrays on several devices of a CPU, which share the memory of large ones.

use podracer::{Array, Tensor, jit, replicate};

use super::{count, devices};

const LARGE: [usize; 2] = [1024, 512];

/// What an array of [`count`] has after `f` of each element.
fn holds(x: &Array, f: impl Fn(f32) -> f32) -> bool {
    let values = x.to_vec::<f32>().unwrap();
    values.iter().enumerate().all(|(i, &x)| x == f(i as f32))
}

/// Whoever of two is given to a program by value, the other one stays as it was.
#[test]
fn donating_one_leaves_the_other_alone() {
    devices(2);
    for shape in [&LARGE[..], &[3]] {
        for device in [0, 1] {
            let double = jit(|x: Tensor| x * 2.0).on(device);
            let first = jit(|x: Tensor| x + 0.0).on(0).call(count(shape)).unwrap();
            first.wait().unwrap();
            let second = first.to(1).unwrap();
            let (given, left) = if device == 0 { (first, second) } else { (second, first) };
            let doubled = double.call(given).unwrap();
            assert!(holds(&left, |x| x), "{shape:?}, the one on device {device} given");
            assert!(holds(&doubled, |x| 2.0 * x));
            // Alone now, it may be donated; the memory is used again for what comes then.
            let other = jit(|x: Tensor| x + 1.0).on(1 - device);
            let mut x = other.call(left).unwrap();
            for _ in 0..5 {
                x = other.call(x).unwrap();
            }
            assert!(holds(&x, |x| x + 6.0) && holds(&doubled, |x| 2.0 * x));
        }
    }
}

/// Data that a program has not made yet is waited for.
#[test]
fn what_is_not_there_yet_comes() {
    devices(2);
    let slow = jit(|x: Tensor| (0..20).fold(x, |x, _| (x * x).sqrt())).on(0);
    for _ in 0..20 {
        let there = slow.call(count(&LARGE)).unwrap().to(1).unwrap();
        let there = jit(|x: Tensor| x + 1.0).on(1).call(there).unwrap();
        let far = there.to_vec::<f32>().unwrap().into_iter().enumerate();
        let far = far.map(|(i, x)| (x / (i as f32 + 1.0) - 1.0).abs()).fold(0.0, f32::max);
        assert!(far < 1e-5, "{far}");
    }
}

/// Replicas share memory until a program writes to theirs.
#[test]
fn replicas_are_updated_apart() {
    let devices = devices(4);
    let step = podracer::pmap("devices", |axis, x: Tensor| {
        x + podracer::axis_index(axis).to(podracer::DType::F32)
    });
    let x = jit(|x: Tensor| x + 0.0).call(count(&LARGE)).unwrap();
    x.wait().unwrap();
    let mut y = replicate(&x, &devices).unwrap();
    for _ in 0..3 {
        y = step.call(y).unwrap();
    }
    for (k, shard) in y.shards().iter().enumerate() {
        assert!(holds(shard, |x| x + 3.0 * k as f32), "device {k}");
    }
    assert!(holds(&x, |x| x));
}
