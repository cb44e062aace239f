//! `pmap` on one device: the same results, places and errors as on several.

use podracer::trace::control::cond;
use podracer::{
    Array, Axis, Mode, Sharded, Tensor, all_gather, axis_index, pmap, pmap_with_mode, pmean,
    ppermute, psum, replicate, shard, unreplicate, unshard,
};

use super::{count, devices, error};

type Three = (Tensor, Tensor, Tensor);

fn values(x: &Sharded) -> Vec<f32> {
    x.stack().unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn collectives_and_the_index() {
    devices(8);
    let f = |axis: Axis, x: Tensor| -> Three {
        let index = axis_index(axis).to(x.dtype());
        let next: Vec<(usize, usize)> =
            (0..axis.size()).map(|i| (i, (i + 1) % axis.size())).collect();
        (
            psum(x, axis) + all_gather(x, axis, 0).sum([0]),
            pmean(x, axis) + index,
            ppermute(x, axis, &next),
        )
    };
    for mode in [Mode::Jit, Mode::Eager, Mode::Interpret] {
        let f = pmap_with_mode(mode, "i", f);
        for (devices, sums, means, moved) in [
            (vec![3], vec![0.0, 2.0], vec![0.0, 1.0], vec![0.0, 1.0]),
            (vec![3, 5], vec![2.0, 2.0], vec![0.5, 1.5], vec![1.0, 0.0]),
        ] {
            let (a, b, c) = f.call(shard(&count(&[2]), &devices).unwrap()).unwrap();
            assert_eq!(
                (values(&a), values(&b), values(&c)),
                (sums, means, moved),
                "{mode} {devices:?}"
            );
            assert_eq!([a.devices(), b.devices(), c.devices()], [&devices; 3], "{mode}");
            // Only the sum is known to be the same everywhere.
            let same = [&a, &b, &c].map(Sharded::is_replicated);
            assert_eq!(same, [true, false, false], "{mode} {devices:?}");
        }
    }
}

#[test]
fn blocks_and_copies() {
    for n in [1, 2] {
        let devices = devices(n);
        let x = shard(&count(&[2]), &devices).unwrap();
        assert!(!x.is_replicated());
        let text = error(unreplicate(&x));
        assert!(text.starts_with("unreplicate: $ may differ between devices"), "{n}: {text}");
        assert_eq!(unshard(&x).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0]);
        assert!(replicate(&count(&[2]), &devices).unwrap().is_replicated());
    }
}

#[test]
fn a_collective_that_some_would_never_reach() {
    for n in [1, 2] {
        let devices = devices(n);
        let f = |axis, x: Tensor| cond(x.sum(..).gt(0.0), |x| psum(x, axis), |x| x, x);
        for mode in [Mode::Jit, Mode::Eager, Mode::Interpret] {
            let f = pmap_with_mode(mode, "i", f);
            let text = error(f.call(shard(&count(&[2]), &devices).unwrap()));
            assert!(
                text.contains("psum: inside a cond whose predicate differs"),
                "{n} {mode}: {text}"
            );
        }
    }
}

#[test]
fn an_argument_given_by_value_is_donated() {
    for n in [1, 2] {
        let devices = devices(n);
        let double = pmap("i", |_, x: Tensor| x * 2.0);
        let x = shard(&count(&[4]), &devices).unwrap();
        let part = x.shards()[0].clone();
        let y = double.call(x).unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap()[0], 0.0);
        assert_eq!(values(&double.call(y.clone()).unwrap()), [0.0, 4.0, 8.0, 12.0]);
        assert_eq!(values(&y), [0.0, 2.0, 4.0, 6.0]);
        // One signature: results are where arguments are.
        assert_eq!(double.stats().traces, 1, "{n}");
    }
}

#[test]
fn a_function_without_arguments_runs_on_the_chosen_devices() {
    devices(8);
    for mode in [Mode::Jit, Mode::Eager, Mode::Interpret] {
        for chosen in [&[2][..], &[4, 6]] {
            let f = pmap_with_mode(mode, "i", |axis, ()| axis_index(axis)).on(chosen);
            let index = f.call(()).unwrap();
            assert_eq!(index.devices(), chosen, "{mode}");
            let index = index.stack().unwrap().to_vec::<i32>().unwrap();
            assert_eq!(index, (0..chosen.len() as i32).collect::<Vec<i32>>(), "{mode}");
        }
    }
}

#[test]
fn a_scalar_of_each_device_has_no_axis_to_divide() {
    for n in [1, 2] {
        let text = error(shard(&Array::from(1.0f32), &devices(n)));
        assert_eq!(text, "shard: $ is f32[] and has no axis to divide; replicate it instead");
    }
}
