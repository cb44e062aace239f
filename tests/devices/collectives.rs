//! Collectives: on devices, in a named `vmap`, and by hand.

use podracer::trace::ops::full_like;
use podracer::{
    Array, Axis, DType, Mode, P, Tensor, all_gather, all_gather_tiled, all_to_all,
    all_to_all_tiled, axis_index, device_get, device_put, interpret, jit, jvp, make_mesh,
    pmap_with_mode, pmax, pmean, pmin, ppermute, psum, psum_scatter, psum_scatter_tiled, shard,
    shard_map, sharded_jit, tree, value_and_grad, vjp, vmap_axis,
};

use super::{count, devices};

const MODES: [Mode; 3] = [Mode::Jit, Mode::Eager, Mode::Interpret];

/// `f` on each row of `x`, over devices and over a batch: in every mode the same.
fn rows(n: usize, x: &Array, f: fn(Axis, Tensor) -> Tensor) -> Vec<f32> {
    let devices = devices(n);
    let over_batch = jit(move |x: Tensor| vmap_axis("i", f)(x)).call(x.clone()).unwrap();
    let expected = over_batch.to_vec::<f32>().unwrap();
    // One row each: without the axis of size 1 that the shards have.
    let row = move |axis, x: Tensor| f(axis, x.squeeze(0));
    for mode in MODES {
        let x = shard(x, &devices).unwrap();
        let y = pmap_with_mode(mode, "i", row).call(x).unwrap().stack().unwrap();
        assert_eq!(y.shape(), over_batch.shape(), "{mode}");
        assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{mode}");
    }
    expected
}

#[test]
fn sums_and_extremes_are_over_all_members() {
    let x = count(&[4, 2]);
    assert_eq!(rows(4, &x, |i, x| psum(x, i)), [12.0, 16.0].repeat(4));
    assert_eq!(rows(4, &x, |i, x| pmean(x, i)), [3.0, 4.0].repeat(4));
    assert_eq!(rows(4, &x, |i, x| pmax(x, i)), [6.0, 7.0].repeat(4));
    assert_eq!(rows(4, &x, |i, x| pmin(x, i)), [0.0, 1.0].repeat(4));
    // What does not differ counts once for each member.
    assert_eq!(rows(4, &x, |i, x| psum(full_like(x, 2.0), i)), [8.0; 8]);
}

#[test]
fn a_tree_in_one_exchange() {
    let devices = devices(3);
    let f = |axis, x: Tensor| {
        let ints = axis_index(axis);
        let (x, (y, ints)) = psum((x, (x.sum(..), ints)), axis);
        (x, y, ints)
    };
    let x = shard(&count(&[3, 2]), &devices).unwrap();
    let (x, y, ints) = podracer::pmap("i", f).call(x).unwrap();
    for shard in x.shards() {
        assert_eq!(shard.to_vec::<f32>().unwrap(), [6.0, 9.0]);
    }
    assert_eq!(y.stack().unwrap().to_vec::<f32>().unwrap(), [15.0; 3]);
    assert_eq!(ints.stack().unwrap().to_vec::<i32>().unwrap(), [3; 3]);
    assert!(x.is_replicated() && y.is_replicated() && ints.is_replicated());
}

type Nested<T> = (T, (Vec<T>, T));

/// Four members of each leaf, of several element types and shapes.
fn nested() -> Nested<Array> {
    let leaf = |shape: &[usize], dtype: DType| {
        interpret(move |x: Tensor| x.to(dtype)).call(count(shape)).unwrap()
    };
    let floats = vec![leaf(&[4, 4], DType::F64), leaf(&[4, 4, 3], DType::F32)];
    (leaf(&[4, 4, 2], DType::F32), (floats, leaf(&[4, 4], DType::BF16)))
}

type OfTree = fn(Nested<Tensor>) -> Nested<Tensor>;
type OfLeaf = fn(Tensor) -> Tensor;

/// Collectives of a tree, and the same of one leaf.
const OF_TREES: &[(&str, OfTree, OfLeaf)] = &[
    ("psum", |x| psum(x, "i"), |x| psum(x, "i")),
    ("pmean", |x| pmean(x, "i"), |x| pmean(x, "i")),
    ("pmax", |x| pmax(x, "i"), |x| pmax(x, "i")),
    ("pmin", |x| pmin(x, "i"), |x| pmin(x, "i")),
    ("all_gather", |x| all_gather(x, "i", 0), |x| all_gather(x, "i", 0)),
    ("all_gather_tiled", |x| all_gather_tiled(x, "i", -1), |x| all_gather_tiled(x, "i", -1)),
    ("psum_scatter", |x| psum_scatter(x, "i", 0), |x| psum_scatter(x, "i", 0)),
    ("psum_scatter_tiled", |x| psum_scatter_tiled(x, "i", 0), |x| psum_scatter_tiled(x, "i", 0)),
    ("all_to_all", |x| all_to_all(x, "i", 0, 0), |x| all_to_all(x, "i", 0, 0)),
    ("all_to_all_tiled", |x| all_to_all_tiled(x, "i", 0, -1), |x| all_to_all_tiled(x, "i", 0, -1)),
    ("ppermute", |x| ppermute(x, "i", RING), |x| ppermute(x, "i", RING)),
    // What does not differ has its members too.
    (
        "integers and what all have",
        |x| {
            let same = tree::map(x.clone(), |x| full_like(x, 3.0).to(DType::I32));
            tree::map(psum((x, same), "i"), |x: Tensor| x.to(DType::F32)).0
        },
        |x| psum(x, "i").to(DType::F32),
    ),
];

const RING: &[(usize, usize)] = &[(0, 1), (1, 2), (2, 3), (3, 0)];

#[test]
fn trees_are_exchanged_leaf_by_leaf() {
    let devices = devices(4);
    let mesh = make_mesh(&[4], &["i"]).unwrap();
    let x = nested();
    // Of all leaves, those of the first member first.
    let numbers = |x: &Nested<Array>| -> Vec<(DType, Vec<f64>)> {
        let leaves = tree::leaves(x);
        leaves.iter().map(|x| (x.dtype(), x.to_literal().unwrap().to_f64_vec())).collect()
    };
    for (name, of_tree, of_leaf) in OF_TREES {
        let alone = |x: Tensor| vmap_axis("i", |_, x: Tensor| of_leaf(x))(x);
        let expected = numbers(&tree::map(x.clone(), |x| interpret(alone).call(x).unwrap()));

        let batch = |x: Nested<Tensor>| vmap_axis("i", |_, x: Nested<Tensor>| of_tree(x))(x);
        assert_eq!(numbers(&interpret(batch).call(x.clone()).unwrap()), expected, "{name}");
        assert_eq!(numbers(&jit(batch).call(x.clone()).unwrap()), expected, "{name} in vmap");

        // One row each: with an axis of size 1.
        let of_row = |x: Nested<Tensor>| {
            let y = of_tree(tree::map(x, |x: Tensor| x.squeeze(0)));
            tree::map(y, |y: Tensor| y.expand_dims(0))
        };
        let divided = shard_map(of_row, &mesh, P("i"), P("i"));
        let put = device_put(&x, (&mesh, P("i"))).unwrap();
        let found = device_get(&sharded_jit(&divided).call(put).unwrap()).unwrap();
        assert_eq!(numbers(&found), expected, "{name} in shard_map");
        assert_eq!(
            numbers(&jit(&divided).call(x.clone()).unwrap()),
            expected,
            "{name}, one device"
        );

        for mode in MODES {
            let x = tree::map(x.clone(), |x: Array| shard(&x, &devices).unwrap());
            let row = |_: Axis, x| tree::map(of_row(x), |y: Tensor| y.squeeze(0));
            let y = pmap_with_mode(mode, "i", row).call(x).unwrap();
            let y = tree::map(y, |y: podracer::Sharded| y.stack().unwrap());
            assert_eq!(numbers(&y), expected, "{name} in pmap, {mode}");
        }
    }
}

#[test]
fn gathered_rows_are_in_the_order_of_members() {
    let x = count(&[4, 2]);
    let number = |i, x: Tensor| full_like(x, 10.0) * axis_index(i).to(x.dtype());
    assert_eq!(rows(4, &x, number), [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 30.0, 30.0]);
    let all = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    assert_eq!(rows(4, &x, |i, x| all_gather(x, i, 0)), all.repeat(4));
    assert_eq!(rows(4, &x, |i, x| all_gather_tiled(x, i, 0)), all.repeat(4));
    let columns = [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0];
    assert_eq!(rows(4, &x, |i, x| all_gather(x, i, -1)), columns.repeat(4));
}

#[test]
fn scattered_sums_are_divided_over_members() {
    // Member m has [8m, 8m+1, ...]; the sum of the first elements is 0 + 8 = 8, and so on.
    let x = count(&[2, 4, 2]);
    let blocks = |i, x: Tensor| psum_scatter_tiled(x, i, 0);
    assert_eq!(rows(2, &x, blocks), [8.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0]);
    let x = count(&[2, 3, 2]);
    let columns = |i, x: Tensor| psum_scatter(x, i, 1);
    assert_eq!(rows(2, &x, columns), [6.0, 10.0, 14.0, 8.0, 12.0, 16.0]);
}

#[test]
fn exchanged_slices_change_places() {
    let x = count(&[2, 3, 2]);
    // Slices along the last axis change places; the new axis of senders stands first, then last.
    let first = |i, x: Tensor| all_to_all(x, i, 1, 0);
    assert_eq!(rows(2, &x, first), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
    let last = |i, x: Tensor| all_to_all(x, i, 1, 1);
    assert_eq!(rows(2, &x, last), [0.0, 6.0, 2.0, 8.0, 4.0, 10.0, 1.0, 7.0, 3.0, 9.0, 5.0, 11.0]);
    let x = count(&[2, 2, 3]);
    let later = |i, x: Tensor| all_to_all(x, i, 0, 1);
    assert_eq!(rows(2, &x, later), [0.0, 6.0, 1.0, 7.0, 2.0, 8.0, 3.0, 9.0, 4.0, 10.0, 5.0, 11.0]);
    let ring = |i, x: Tensor| ppermute(x, i, &[(0, 1), (1, 2), (2, 0)]);
    assert_eq!(rows(3, &count(&[3]), ring), [2.0, 0.0, 1.0]);
    let some = |i, x: Tensor| ppermute(x, i, &[(1, 0)]);
    assert_eq!(rows(3, &count(&[3]), some), [1.0, 0.0, 0.0]);
}

#[test]
fn gradients_go_through() {
    // Each member's derivative of the sum over all members: the transposed exchange.
    let x = count(&[4, 2]);
    let sum = |i, x: Tensor| {
        let (y, pull) = vjp(|x: Tensor| psum(x * x, i), x);
        pull(full_like(y, 1.0))
    };
    // psum of the cotangents, 4, times 2x.
    assert_eq!(rows(4, &x, sum), [0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]);
    let gathered = |i, x: Tensor| {
        let (_, pull) = vjp(|x: Tensor| all_gather(x, i, 0), x);
        let weights = count_like(axis_index(i));
        pull(weights)
    };
    // Member m weighs row r with 8m + 2r, 8m + 2r + 1; summed over members, row r comes back to r.
    assert_eq!(rows(4, &x, gathered), [48.0, 52.0, 56.0, 60.0, 64.0, 68.0, 72.0, 76.0]);
    let moved = |i, x: Tensor| {
        let (_, pull) = vjp(|x: Tensor| ppermute(x, i, &[(0, 1), (1, 2), (2, 3), (3, 0)]), x);
        pull(x)
    };
    // Backwards around the ring.
    assert_eq!(rows(4, &x, moved), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 0.0, 1.0]);
    let extreme = |i, x: Tensor| {
        let (_, pull) = vjp(|x: Tensor| pmax(x.min(..), i), x);
        pull(axis_index(i).to(podracer::DType::F32))
    };
    assert_eq!(rows(4, &x, extreme), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 0.0]);
}

/// `[4, 2]`, counting from 8 times `m`.
fn count_like(m: Tensor) -> Tensor {
    let numbers = podracer::trace::ops::arange(8, podracer::DType::F32).reshape([4, 2]);
    numbers + 8.0 * m.to(podracer::DType::F32)
}

/// The rules of the collectives, used inside of the mapped function, against those of the sums and
/// transpositions that they become outside of it.
#[test]
fn derivatives_inside_are_those_outside() {
    devices(1);
    type Along = fn(Axis, Tensor) -> Tensor;
    let functions: [(&str, Along); 7] = [
        ("psum", |i, x| psum(x * x, i) * x),
        ("pmax", |i, x| pmax(x.sin(), i) * x),
        ("pmin", |i, x| pmin(x.sin(), i) + x),
        ("all_gather", |i, x| (all_gather(x.sin(), i, 1).sum([1]) * x).sin()),
        ("psum_scatter", |i, x| psum_scatter(x.sin() * x, i, 0)),
        ("all_to_all", |i, x| all_to_all(x.sin(), i, 0, 1) * x.transpose(&[1, 0])),
        ("ppermute", |i, x| ppermute(x.sin(), i, &[(0, 2), (2, 1)]) * x),
    ];
    let numbers = |seed: usize| -> Array {
        let value = |i: usize| (((i * 37 + seed * 11) % 101) as f32) / 25.0 - 2.0;
        Array::new([3, 3, 2], &(0..18).map(value).collect::<Vec<f32>>()).unwrap()
    };
    for (name, f) in functions {
        // Along v and back along ct, once and a second time.
        type Two = (Tensor, Tensor);
        let inside = interpret(move |(x, v): Two| {
            vmap_axis("i", move |i, (x, v): Two| {
                let forward = |x: Tensor| jvp(|x: Tensor| f(i, x), x, v).1;
                let back = |x: Tensor| {
                    let (y, pull) = vjp(|x: Tensor| f(i, x), x);
                    pull(y.cos())
                };
                (forward(x), back(x), jvp(back, x, v).1)
            })((x, v))
        });
        let outside = interpret(move |(x, v): Two| {
            let all = vmap_axis("i", f);
            let forward = |x: Tensor| jvp(&all, x, v).1;
            let back = |x: Tensor| {
                let (y, pull) = vjp(&all, x);
                pull(y.cos())
            };
            (forward(x), back(x), jvp(back, x, v).1)
        });
        let args = || (numbers(1), numbers(2));
        let (a, b) = (inside.call(args()).unwrap(), outside.call(args()).unwrap());
        for (a, b) in [(a.0, b.0), (a.1, b.1), (a.2, b.2)] {
            let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
            assert!(a.iter().any(|a| *a != 0.0), "{name}");
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{name}: {a} {b}");
            }
        }
    }
}

#[test]
fn a_mean_of_gradients_is_the_gradient_of_the_mean() {
    let devices = devices(8);
    let loss = |w: Tensor, x: Tensor| ((x * w).tanh() - 0.3).powi(2).mean(..);
    let x = count(&[16]).to_vec::<f32>().unwrap().iter().map(|x| x / 8.0 - 1.0).collect::<Vec<_>>();
    let x = Array::from(x);
    let whole = jit(move |(w, x): (Tensor, Tensor)| value_and_grad(|w: Tensor| loss(w, x))(w));
    let (value, grad) = whole.call((Array::from(0.7f32), x.clone())).unwrap();
    let parts = podracer::pmap("batch", move |axis, (w, x): (Tensor, Tensor)| {
        pmean(value_and_grad(|w: Tensor| loss(w, x))(w), axis)
    });
    let args = (
        podracer::replicate(&Array::from(0.7f32), &devices).unwrap(),
        shard(&x, &devices).unwrap(),
    );
    let (mean_value, mean_grad) = podracer::unreplicate(&parts.call(args).unwrap()).unwrap();
    let near = |a: &Array, b: &Array| {
        let (a, b) = (a.item::<f32>().unwrap(), b.item::<f32>().unwrap());
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    };
    near(&value, &mean_value);
    near(&grad, &mean_grad);
}

#[test]
fn another_batch_goes_along() {
    // A vmap inside of a pmap: the exchange of whole batches.
    let x = count(&[2, 3, 2]);
    let inner = |i: Axis, x: Tensor| {
        podracer::vmap(move |row: Tensor| psum(row, i) + all_gather(row, i, 0).sum([0]))(x)
    };
    assert_eq!(rows(2, &x, inner), [12.0, 16.0, 20.0, 24.0, 28.0, 32.0].repeat(2));
    let scattered =
        |i: Axis, x: Tensor| podracer::vmap(move |row: Tensor| psum_scatter(row, i, 0))(x);
    assert_eq!(rows(2, &x, scattered), [6.0, 10.0, 14.0, 8.0, 12.0, 16.0]);
}
