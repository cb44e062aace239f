//! Values divided over a mesh of several axes: `device_put`, `shard_map`, and functions that the
//! compiler divides.

use std::collections::BTreeMap;

use podracer::trace::ops::arange;
use podracer::{
    Array, Mesh, NamedSharding, P, PartitionSpec, Program, ScanOptions, Sharded, Tensor,
    all_gather, all_gather_tiled, all_to_all, all_to_all_tiled, axis_index, axis_index_groups,
    axis_size, device_get, device_put, fori_loop, grad, interpret, jit, make_mesh, make_program,
    pmax, pmean, pmin, ppermute, psum, psum_scatter, psum_scatter_tiled, scan_with, shard_map,
    sharded_jit, vmap, with_sharding_constraint,
};

use super::{count, devices, error};

/// Four rows of two devices.
fn mesh() -> Mesh {
    devices(8);
    make_mesh(&[4, 2], &["x", "y"]).unwrap()
}

fn numbers(x: &Sharded) -> Vec<f32> {
    device_get(x).unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn a_value_is_divided_and_read_back() {
    let mesh = mesh();
    let x = count(&[8, 4]);
    let put = |spec: PartitionSpec| device_put(&x, NamedSharding::new(&mesh, spec)).unwrap();
    let shard = |x: &Sharded, i: usize| x.shards()[i].to_vec::<f32>().unwrap();
    let both = put(P(("x", "y")));
    assert_eq!(both.shape().to_string(), "[2,2]");
    assert_eq!(both.global_ty().to_string(), "f32[8,4]");
    assert_eq!(shard(&both, 0), [0.0, 1.0, 4.0, 5.0]);
    assert_eq!(shard(&both, 1), [2.0, 3.0, 6.0, 7.0]);
    assert_eq!(shard(&both, 7), [26.0, 27.0, 30.0, 31.0]);
    // One dimension by two axes, in either order.
    assert_eq!(shard(&put(P((("x", "y"), None))), 3), [12.0, 13.0, 14.0, 15.0]);
    assert_eq!(shard(&put(P((("y", "x"), None))), 3), [20.0, 21.0, 22.0, 23.0]);
    assert!(put(P(())).is_replicated() && !both.is_replicated());
    for spec in [P(()), P("x"), P((None, "y")), P(("y", "x")), P((["y", "x"],))] {
        assert_eq!(numbers(&put(spec.clone())), x.to_vec::<f32>().unwrap(), "{spec}");
    }
    let tree = (x.clone(), vec![count(&[2]), Array::from(1.0f32)]);
    let (a, b) = device_put(&tree, (&mesh, (P("x"), (P("y"), P(()))))).unwrap();
    assert_eq!((a.shape()[0], b[0].shape()[0], b[1].shape().rank()), (2, 1, 0));
}

#[test]
fn wrong_divisions() {
    let mesh = mesh();
    let line = line!() + 2;
    let put =
        |shape: &[usize], spec: PartitionSpec| error(device_put(&count(shape), (&mesh, spec)));
    let text = put(&[6, 4], P("x"));
    let start = format!("device_put at {}:{line}:", file!());
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("argument: dimension 0 of f32[6,4]"), "{text}");
    assert!(text.contains("has size 6, which mesh axis `x` of size 4 does not divide"), "{text}");
    assert!(put(&[8], P("z")).contains("the mesh has no axis `z`; it has `x`, `y`"));
    assert!(put(&[8], P((None, "x"))).contains("2 dimensions, and the value 1"));
    let text = error(make_mesh(&[4, 4], &["x", "y"]));
    assert!(text.contains("takes 16 devices, and there are 8"), "{text}");
    let text = error(Mesh::new(&[0, 1, 2], &[2, 2], &["x", "y"]));
    assert!(text.contains("another number of devices than the 3 given"), "{text}");
}

/// `f` on shards of `x`: compiled for the mesh, for one device, and interpreted, all equal.
fn shards(
    x: &Array,
    in_spec: PartitionSpec,
    out_spec: PartitionSpec,
    f: fn(Tensor) -> Tensor,
) -> Vec<f32> {
    let mesh = mesh();
    let map = |x: Tensor| shard_map(f, &mesh, in_spec.clone(), out_spec.clone())(x);
    let expected = interpret(map).call(x.clone()).unwrap().to_vec::<f32>().unwrap();
    let put = device_put(x, (&mesh, in_spec.clone())).unwrap();
    let y = sharded_jit(map).call(put).unwrap();
    assert_eq!(numbers(&y), expected);
    let one = jit(map).call(x.clone()).unwrap();
    assert_eq!(one.to_vec::<f32>().unwrap(), expected);
    expected
}

#[test]
fn collectives_along_one_axis_and_along_both() {
    let x = count(&[8]);
    let all = || P((("x", "y"),));
    assert_eq!(shards(&x, all(), P("y"), |x| psum(x, "x")), [12.0, 16.0]);
    assert_eq!(shards(&x, all(), P("x"), |x| psum(x, "y")), [1.0, 5.0, 9.0, 13.0]);
    assert_eq!(shards(&x, all(), P(()), |x| psum(x, ("x", "y"))), [28.0]);
    assert_eq!(shards(&x, all(), P(()), |x| pmax(pmean(x, "y"), "x")), [6.5]);
    let order = |x: Tensor| (axis_index(("y", "x")) * 10).to(x.dtype()) + x;
    let expected = [0.0, 41.0, 12.0, 53.0, 24.0, 65.0, 36.0, 77.0];
    assert_eq!(shards(&x, all(), all(), order), expected);
    let gathered = |x: Tensor| all_gather_tiled(x, ("y", "x"), 0);
    assert_eq!(shards(&x, all(), P(()), gathered), [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    let rows = |x: Tensor| all_gather(x, "x", 0).sum(1);
    assert_eq!(shards(&x, all(), P("y"), rows), [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    // Around the ring of all eight, and of each row of two.
    let ring = |x: Tensor| {
        let n = axis_size(("x", "y"));
        ppermute(x, ("x", "y"), &(0..n).map(|i| (i, (i + 1) % n)).collect::<Vec<_>>())
    };
    assert_eq!(shards(&x, all(), all(), ring), [7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let swap = |x: Tensor| ppermute(x, "y", &[(0, 1), (1, 0)]);
    assert_eq!(shards(&x, all(), all(), swap), [1.0, 0.0, 3.0, 2.0, 5.0, 4.0, 7.0, 6.0]);
    let scattered = |x: Tensor| psum_scatter_tiled(x, ("x", "y"), 0);
    let y = shards(&count(&[8]), P(()), all(), scattered);
    assert_eq!(y, [0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]);
    let exchanged = |x: Tensor| all_to_all(x, "x", 1, 0);
    let y = shards(&count(&[4, 4]), P("x"), P((None, "x")), exchanged);
    assert_eq!(y, (0..16).map(|i| i as f32).collect::<Vec<f32>>());
    let pairs = |x: Tensor| psum(x, axis_index_groups("x", &[[0, 2], [1, 3]]));
    assert_eq!(shards(&x, all(), all(), pairs), [4.0, 6.0, 8.0, 10.0, 4.0, 6.0, 8.0, 10.0]);
}

type Function = Box<dyn Fn(Tensor, Tensor) -> Tensor>;

/// The functions of `tests/fixtures/sharding/make.py`, stated once more.
fn functions(mesh: &Mesh) -> Vec<(&'static str, Function)> {
    type Two = (Tensor, Tensor);
    let mesh = mesh.clone();
    let two = {
        let mesh = mesh.clone();
        move |f: fn(Two) -> Tensor, ins: [PartitionSpec; 2], out: PartitionSpec| {
            let mesh = mesh.clone();
            move |x: Tensor, w: Tensor| {
                let [a, b] = ins.clone();
                shard_map(f, &mesh, (a, b), out.clone())((x, w))
            }
        }
    };
    let one = {
        let mesh = mesh.clone();
        move |f: fn(Tensor) -> Tensor, spec: PartitionSpec| {
            let mesh = mesh.clone();
            move |x: Tensor| shard_map(f, &mesh, spec.clone(), spec.clone())(x)
        }
    };
    let exchanged = one(
        |a| {
            let swapped = all_to_all(a, "y", 1, 1);
            swapped.sin() * ppermute(a, "x", &[(0, 1), (1, 2), (2, 3), (3, 0)])
        },
        P(("x", "y")),
    );
    let ring: [(usize, usize); 8] = std::array::from_fn(|i| (i, (i + 1) % 8));
    let looped = move |x: Tensor| {
        let body = move |a: Tensor| {
            fori_loop(0, 4, |_, c: Tensor| ppermute(c.sin() * 1.1, ("x", "y"), &ring) + a, a)
        };
        shard_map(body, &mesh, P((("x", "y"), None)), P((("x", "y"), None)))(x)
    };
    let batched = one(|a| psum(a.sin(), "x") * a, P("x"));
    let gather = |(a, b): Two| all_gather_tiled(a, "x", 0).sin().matmul(b);
    let scatter = |(a, b): Two| psum_scatter_tiled(a.matmul(b).sin(), "x", 0);
    let rows = |(a, b): Two| {
        let scale = axis_index("y").to(a.dtype()) + 1.0;
        vmap(|row: Tensor| row.matmul(b).tanh() * scale)(a)
    };
    let inside = |(a, b): Two| grad(|b: Tensor| psum(a.matmul(b).tanh().sum(..), "x"))(b);
    let product = |(a, b): Two| psum(a.matmul(b), "y").tanh();
    let mean = |(a, b): Two| pmean(a.matmul(b).sin().square().sum(..), ("x", "y"));
    vec![
        ("product", Box::new(two(product, [P(("x", "y")), P(("y", None))], P(("x", None))))),
        ("gathered", Box::new(two(gather, [P("x"), P((None, "y"))], P((None, "y"))))),
        ("scattered", Box::new(two(scatter, [P((None, "x")), P("x")], P("x")))),
        ("exchanged", Box::new(move |x, w| exchanged(x).matmul(w))),
        ("looped", Box::new(move |x, w| looped(x).matmul(w))),
        ("rows", Box::new(two(rows, [P("x"), P(())], P(("x", "y"))))),
        ("mean", Box::new(two(mean, [P("x"), P((None, "y"))], P(())))),
        (
            "batched",
            Box::new(move |x, w| vmap(|row: Tensor| batched(row))(x.t()).matmul(x.matmul(w))),
        ),
        ("inside", Box::new(two(inside, [P("x"), P(())], P("x")))),
    ]
}

/// sin(0.7 i + phase), as `common.py` has it.
fn wave(shape: &[usize], phase: f64) -> Array {
    let numbers = 0..shape.iter().product::<usize>();
    let values: Vec<f32> = numbers.map(|i| (0.7 * i as f64 + phase).sin() as f32).collect();
    Array::new(shape, &values).unwrap()
}

#[test]
fn values_and_gradients_are_those_of_jax() {
    let mesh = mesh();
    let text = std::fs::read_to_string("tests/fixtures/sharding/shard_map.json").unwrap();
    let expected: BTreeMap<String, Vec<f32>> = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> = functions(&mesh).iter().map(|(name, _)| *name).collect();
    assert_eq!(names.len(), expected.len());
    let all = |(x, w): (Tensor, Tensor)| -> Vec<(Tensor, (Tensor, Tensor))> {
        let each = functions(&mesh).into_iter().map(|(_, f)| {
            let loss = |(x, w): (Tensor, Tensor)| {
                let y = f(x, w);
                let numbers = arange(y.numel(), y.dtype()) * 0.7 + 0.3;
                (y * numbers.sin().reshape(y.shape())).sum(..)
            };
            (f(x, w), grad(loss)((x, w)))
        });
        each.collect()
    };
    let args = (wave(&[8, 4], 0.1), wave(&[4, 6], 0.5));
    let check = |how: &str, results: Vec<(Array, (Array, Array))>| {
        for (name, (y, (x, w))) in names.iter().zip(results) {
            let found: Vec<f32> =
                [y, x, w].iter().flat_map(|array| array.to_vec::<f32>().unwrap()).collect();
            let expected = &expected[*name];
            assert_eq!(found.len(), expected.len(), "{how} {name}");
            for (i, (a, b)) in found.iter().zip(expected).enumerate() {
                assert!((a - b).abs() < 2e-5 * b.abs().max(1.0), "{how} {name} {i}: {a} {b}");
            }
        }
    };
    check("one device", interpret(all).call(args.clone()).unwrap());
    let put = device_put(&args, (&mesh, P(()))).unwrap();
    check("mesh", device_get(&sharded_jit(all).call(put).unwrap()).unwrap());
}

#[test]
fn gradients_of_loops_around_and_in_a_shard_map() {
    let mesh = mesh();
    let specs = || (P(("x", "y")), P((None, "y")));
    // Each step multiplies by constants that the shards and the whole value share.
    let map = |(x, w): (Tensor, Tensor)| {
        let inner = |c: Tensor, (): ()| ((psum(c * w.mean(..), "y") * 0.1).tanh() + 0.5, ());
        let (y, ()) = scan_with(inner, x, (), ScanOptions::length(3));
        y * 0.1
    };
    let divided = shard_map(map, &mesh, specs(), P(("x", "y")));
    let loss = |(x, w): (Tensor, Tensor)| {
        let outer = |c: Tensor, (): ()| ((divided((c * 0.1 + 0.5, w)) + 0.5).tanh() * 0.1, ());
        let (y, ()) = scan_with(outer, x, (), ScanOptions::length(4));
        y.square().sum(..) * 0.1
    };
    let args = (wave(&[8, 4], 0.0), wave(&[3, 4], 1.0));
    let expected = interpret(grad(loss)).call(args.clone()).unwrap();
    let put = device_put(&args, (&mesh, specs())).unwrap();
    let found = sharded_jit(grad(loss)).call(put).unwrap();
    for (a, b) in [(&found.0, &expected.0), (&found.1, &expected.1)] {
        for (x, y) in numbers(a).iter().zip(b.to_vec::<f32>().unwrap()) {
            assert!((x - y).abs() <= 1e-6 * y.abs().max(1e-2), "{x} instead of {y}");
        }
    }
}

#[test]
fn errors_in_the_trace_have_the_line() {
    let mesh = mesh();
    let fails = |f: fn(&Mesh, Tensor) -> Tensor| {
        let f = |x: Tensor| f(&mesh, x);
        error(interpret(f).call(count(&[6])))
    };
    let line = line!() + 1;
    let text = fails(|mesh, x| shard_map(|x: Tensor| x, mesh, P("x"), P("x"))(x));
    assert!(text.contains("shard_map: dimension 0 of f32[6] has size 6"), "{text}");
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");
    let text = fails(|mesh, x| shard_map(|x: Tensor| x, mesh, P("z"), P("x"))(x));
    assert!(text.contains("in_specs: argument: P(z): the mesh has no axis `z`"), "{text}");
    let text = fails(|mesh, x| shard_map(|x: Tensor| psum(x, "z"), mesh, P("y"), P("y"))(x));
    assert!(text.contains("psum: there is no axis `z` here: in scope are `x`, `y`"), "{text}");
    let text = fails(|mesh, x| shard_map(|x: Tensor| x, mesh, P("y"), P(()))(x));
    assert!(text.contains("the spec of result does not mention axis `y`"), "{text}");
    let text = fails(|mesh, x| {
        shard_map(|(x, y): (Tensor, Tensor)| x + y, mesh, (P("y"), P("y"), P("y")), P("y"))((x, x))
    });
    assert!(text.contains("in_specs: 3 specs are given for 2 values"), "{text}");
    let text = fails(|mesh, x| with_sharding_constraint(x, NamedSharding::new(mesh, P("x"))));
    assert!(text.contains("with_sharding_constraint: dimension 0 of f32[6] has size 6"), "{text}");
}

#[test]
fn the_compiler_divides_a_function_of_whole_values() {
    let mesh = mesh();
    let f = |(x, w): (Tensor, Tensor)| {
        let h =
            with_sharding_constraint(x.matmul(w).tanh(), NamedSharding::new(&mesh, P(("x", "y"))));
        (h, h.matmul(w.t()).sum([0]))
    };
    let args = (count(&[8, 4]), wave(&[4, 6], 0.5));
    let expected = jit(f).call(args.clone()).unwrap();
    let put = device_put(&args, (&mesh, (P("x"), P((None, "y"))))).unwrap();
    let divided = jit(f)
        .in_shardings((&mesh, (P("x"), P((None, "y")))))
        .out_shardings((&mesh, (P(("x", "y")), P("x"))));
    let text = divided.optimized_hlo_text(&put).unwrap();
    // One device has 2 rows of 3 columns, and the compiler adds the sum over the rows.
    assert!(text.contains("f32[2,3]") && text.contains("all-reduce"), "{text}");
    assert!(!text.contains("f32[8,6]"), "{text}");
    let (h, sums) = divided.call(put.clone()).unwrap();
    assert_eq!((h.shape().to_string(), sums.shape().to_string()), ("[2,3]".into(), "[1]".into()));
    for (found, expected) in [(numbers(&h), expected.0), (numbers(&sums), expected.1)] {
        for (a, b) in found.iter().zip(expected.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-4 * b.abs().max(1.0), "{a} {b}");
        }
    }
    // Without out_shardings the constraint decides, and the other result is a copy.
    let (h, sums) = sharded_jit(f).call(put.clone()).unwrap();
    assert_eq!(h.sharding(), Some(&NamedSharding::new(&mesh, P(("x", "y")))));
    assert!(sums.is_replicated());
    let line = line!() + 1;
    let text = error(divided.call(device_put(&args, (&mesh, P(()))).unwrap()));
    assert!(text.contains("takes it divided by P(x, None) on Mesh(x:4, y:2"), "{text}");
    assert!(text.contains(&format!("(called at {}:{line}:", file!())), "{text}");
    let other = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["x", "y"]).unwrap();
    let line = line!() + 1;
    let text = error(sharded_jit(f).call(device_put(&args, (&other, P(()))).unwrap()));
    assert!(text.contains("is for a mesh of x:4, y:2, and the argument is on Mesh(x:2"), "{text}");
    assert!(text.contains(&format!("(called at {}:{line}:", file!())), "{text}");
}

/// Collectives within groups, as `tests/fixtures/sharding/groups.py` has them.
fn grouped(name: &str, x: Tensor) -> Tensor {
    let [four, two] = [
        axis_index_groups("i", &[[5, 0, 3, 6], [1, 7, 2, 4]]),
        axis_index_groups("i", &[[6, 1], [0, 3], [7, 4], [2, 5]]),
    ];
    match name {
        "psum" => psum(x.sin(), four) * x,
        "psum_of_pairs" => psum(x.sin(), two) * x,
        "pmean" => pmean(x.sin(), four) * x,
        "pmax" => x.stop_gradient() + pmax(x.stop_gradient(), four),
        "pmin" => x.stop_gradient() + pmin(x.stop_gradient(), two),
        "all_gather" => {
            (all_gather(x.sin(), four, 0) * arange(4, x.dtype()).reshape([4, 1, 1])).sum(0)
        }
        "all_gather_in_the_middle" => all_gather(x.sin(), two, 1).prod(1),
        "all_gather_tiled" => all_gather_tiled(x.sin(), four, 1).cumsum(1).slice_axis(1, 3, 11),
        "psum_scatter" => psum_scatter(x.sin().reshape([4, 4]), four, 0),
        "psum_scatter_tiled" => psum_scatter_tiled(x.sin(), two, 1),
        "all_to_all" => all_to_all(x.sin().reshape([4, 4]), four, 0, 0),
        "all_to_all_tiled" => all_to_all_tiled(x.sin(), four, 1, 0),
        "all_to_all_of_pairs" => all_to_all(x.sin(), two, 0, 0),
        other => panic!("no function {other}"),
    }
}

#[test]
fn collectives_within_groups_are_those_of_jax() {
    devices(8);
    let mesh = make_mesh(&[8], &["i"]).unwrap();
    let text = include_str!("../fixtures/sharding/groups.json");
    let cases: BTreeMap<String, Vec<f32>> = serde_json::from_str(text).unwrap();
    let x: Vec<f32> = (0..128).map(|i| (0.7 * f64::from(i) + 0.3).sin() as f32).collect();
    let x = device_put(&Array::new([16, 8], &x).unwrap(), (&mesh, P("i"))).unwrap();
    let names: Vec<&String> = cases.keys().filter(|name| !name.ends_with("_grad")).collect();
    assert_eq!(names.len(), 13);
    let close = |what: &str, ours: Vec<f32>, theirs: &[f32]| {
        assert_eq!(ours.len(), theirs.len(), "{what}");
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{what}: {a} and {b}");
        }
    };
    for name in names {
        let mapped = |x: Tensor| {
            let y = shard_map(|x: Tensor| grouped(name, x).ravel(), &mesh, P("i"), P("i"))(x);
            (y * (0.3 * arange(y.numel(), y.dtype())).sin()).sum(..)
        };
        let values =
            |x: Tensor| shard_map(|x: Tensor| grouped(name, x).ravel(), &mesh, P("i"), P("i"))(x);
        close(name, numbers(&sharded_jit(values).call(x.clone()).unwrap()), &cases[name]);
        let gradient = numbers(&sharded_jit(grad(mapped)).call(x.clone()).unwrap());
        close(&format!("{name}_grad"), gradient, &cases[&format!("{name}_grad")]);
    }
}

#[test]
fn programs_are_printed_and_read() {
    let mesh = mesh();
    let f = |x: Tensor| {
        let body = |x: Tensor| {
            let y = psum(x, axis_index_groups(("x", "y"), &[[0, 1, 2, 3], [4, 5, 6, 7]]));
            y + axis_index("y").to(y.dtype())
        };
        let y = shard_map(body, &mesh, P((("y", "x"), None)), P(("x", "y")))(x);
        with_sharding_constraint(y, NamedSharding::new(&mesh, P((None, "y"))))
    };
    let program = make_program(f, &count(&[8, 3])).unwrap();
    let text = program.to_string();
    for part in [
        "f32[1,3] = full_to_shard[mesh=(x:4,y:2) spec=((1,0),())]",
        "psum[axes=(x:4,y:2) groups=((0,1,2,3),(4,5,6,7))]",
        "axis_index[axis=y:2]",
        "f32[4,6] = shard_to_full[mesh=(x:4,y:2) spec=((0),(1))]",
        "f32[4,6] = sharding_constraint[mesh=(x:4,y:2) spec=((),(1))]",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(Program::parse(&text).unwrap(), program);
    assert_eq!(Program::parse(&program.to_text()).unwrap(), program);
}
