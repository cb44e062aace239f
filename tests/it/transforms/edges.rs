//! Edge cases of transformations. Expected values are derivatives written out by hand, as JAX
//! documents them; compiled and interpreted functions must agree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use podracer::trace::control::{
    ScanOptions, cond, fori_loop, map, scan, scan_with, switch, while_loop,
};
use podracer::trace::ops::{arange, ones_like, stack};
use podracer::trace::transpose::Loss;
use podracer::trace::{LeafAxes, VmapOptions, vmap_with};
use podracer::{
    Array, Complex, DType, Error, Tensor, Tree, checkpoint, custom_jvp, custom_vjp, grad,
    interpret, jit, jvp, linearize, make_program, psum, value_and_grad, vjp, vmap, vmap_axis,
    where_,
};

type Two = (Tensor, Tensor);

/// The result of a scalar function, interpreted and compiled.
fn at(x: f32, f: impl Fn(Tensor) -> Tensor + Copy) -> Vec<f32> {
    let interpreted = interpret(f).call(Array::from(x)).unwrap().to_vec::<f32>().unwrap();
    let compiled = jit(f).call(Array::from(x)).unwrap().to_vec::<f32>().unwrap();
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * a.abs().max(1.0);
    assert!(interpreted.iter().zip(&compiled).all(close), "{interpreted:?} {compiled:?}");
    interpreted
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
    let equal = found.len() == expected.len() && found.iter().zip(expected).all(close);
    assert!(equal, "{found:?} instead of {expected:?}");
}

fn refused(f: impl Fn(Tensor) -> Tensor) -> String {
    match make_program(f, &Array::from([1.0f32, 2.0])) {
        Err(Error::Trace(error)) => error.problem.clone(),
        other => panic!("{other:?}"),
    }
}

/// The square of a chain of values each used twice, of `length` steps. The derivative needs nothing
/// of the chain but its end.
fn doubled(x: Tensor, length: usize) -> Tensor {
    (0..length).fold(x, |x, _| (x + 1.0) * 0.25 + x * 0.5).square()
}

#[test]
fn values_used_twice_take_no_exponential_time() {
    const LENGTH: usize = 48;
    type Named = (&'static str, fn(Tensor) -> Tensor);
    let loops: [Named; 8] = [
        ("plain", |x| doubled(x, LENGTH)),
        ("scan", |x| scan(|c, _: Tensor| (doubled(c, LENGTH), c), x, x.broadcast_to([3])).0),
        ("stacked", |x| scan(|c, x| (c, doubled(x, LENGTH)), x, x.broadcast_to([3])).1.sum(..)),
        ("fori_loop", |x| fori_loop(0, 3, |_, x| doubled(x, LENGTH).sin(), x)),
        ("cond", |x| {
            let args = (x, x + 1.0);
            let more = |(x, y): Two| doubled(x, LENGTH) * doubled(y, LENGTH);
            cond(x.gt(0.0), more, |(x, _)| x, args)
        }),
        ("checkpoint", |x| checkpoint(|x: Tensor| doubled(x, LENGTH))(x)),
        ("nested", |x| {
            let inner = |x| fori_loop(0, 2, |_, x| doubled(x, LENGTH), x);
            fori_loop(0, 2, |_, x| checkpoint(inner)(x), x)
        }),
        ("custom_jvp", |x| {
            let f = |x: Tensor| doubled(x, LENGTH);
            custom_jvp(f, move |x, t| jvp(f, x, t))(x)
        }),
    ];
    let transformed: [(&str, &dyn Fn(Named, Tensor) -> Tensor); 6] = [
        ("jvp", &|(_, f), x| jvp(f, x, x).1),
        ("grad", &|(_, f), x| grad(f)(x)),
        ("linearize", &|(_, f), x| linearize(f, x).1(x)),
        ("vmap", &|(_, f), x| vmap(f)(x.broadcast_to([2])).sum(..)),
        ("grad of grad", &|(_, f), x| grad(grad(f))(x)),
        ("vmap of grad", &|(_, f), x| vmap(grad(f))(x.broadcast_to([2])).sum(..)),
    ];
    for function in loops {
        for (name, transform) in transformed {
            let start = Instant::now();
            let lowered = jit(|x: Tensor| transform(function, x)).lower(&Array::from(0.1f32));
            lowered.unwrap();
            let passed = start.elapsed();
            assert!(passed < Duration::from_secs(20), "{name} of {}: {passed:?}", function.0);
        }
    }
}
