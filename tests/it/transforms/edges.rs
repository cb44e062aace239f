//! Edge cases of transformations. Expected values are derivatives written out by hand, as JAX
//! documents them; compiled and interpreted functions must agree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use podracer::trace::control::{
    ScanOptions, cond, fori_loop, map, scan, scan_with, switch, while_loop,
};
use podracer::trace::ops::{arange, constant, ones_like, stack, zeros_like};
use podracer::trace::transpose::Loss;
use podracer::trace::{LeafAxes, VmapOptions, vmap_with};
use podracer::{
    Array, Complex, DType, Error, Tensor, Tree, associative_scan, checkpoint, custom_jvp,
    custom_vjp, grad, interpret, jit, jvp, linearize, make_program, psum, value_and_grad, vjp,
    vmap, vmap_axis, where_,
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
    type Transform<'a> = (&'static str, &'a dyn Fn(Named, Tensor) -> Tensor);
    let transformed: [Transform<'_>; 6] = [
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

/// A name, and the rule.
type Rule = (&'static str, fn(Tensor, Tensor) -> Two);

/// Rules that compute values and tangents together, each of x^4 as `(x^2)^2`. The tangent of the
/// rule is 8 x^3, twice the true one, so that it shows which rule is used.
const RULES: [Rule; 9] = [
    ("scan", |x, t| {
        let ((y, t), ()) = scan_with(
            |(x, t): Two, (): ()| ((x * x, 2.0 * x * t), ()),
            (x, 2.0 * t),
            (),
            ScanOptions::length(2),
        );
        (y, t)
    }),
    ("stacked", |x, t| {
        let ((), (y, t)) = scan(
            |(), (x, t): Two| ((), (x.powi(4), 8.0 * x.powi(3) * t)),
            (),
            (x.broadcast_to([3]), t.broadcast_to([3])),
        );
        (y.mean(..), t.mean(..))
    }),
    ("cond", |x, t| {
        let square = |(x, t): Two| (x.powi(4), 8.0 * x.powi(3) * t);
        cond(x.gt(0.0), square, |(x, t)| (x * 0.0, t), (x, t))
    }),
    ("switch", |x, t| {
        let first = |(x, t): Two| (x.powi(4), 8.0 * x.powi(3) * t);
        let index = x.lt(0.0).to(DType::I32);
        switch(index, &[&first, &|(x, t): Two| (x, t * x)], (x, t))
    }),
    ("jvp of a loop", |x, t| {
        let f = |x: Tensor| fori_loop(0, 2, |_, x: Tensor| x * x, x);
        jvp(f, x, 2.0 * t)
    }),
    ("jvp of checkpoint", |x, t| {
        jvp(|x: Tensor| checkpoint(|x: Tensor| x.square().square())(x), x, 2.0 * t)
    }),
    ("jvp of nested loops", |x, t| {
        let inner = |x: Tensor| fori_loop(0, 1, |_, x: Tensor| x * x, x);
        let outer = |i: Tensor, x: Tensor| cond(i.ge(0), inner, |x| x, x);
        jvp(|x: Tensor| fori_loop(0, 2, outer, x), x, 2.0 * t)
    }),
    ("another custom_jvp", |x, t| {
        let square = custom_jvp(
            |(x, t): Two| (x * x, 2.0 * x * t),
            |(x, t): Two, (dx, dt): Two| {
                ((x * x, 2.0 * x * t), (2.0 * x * dx, 2.0 * (dx * t + x * dt)))
            },
        );
        square(square((x, 2.0 * t)))
    }),
    ("custom_vjp", |x, t| {
        let square = custom_vjp(
            |(x, t): Two| (x * x, 2.0 * x * t),
            |(x, t): Two| ((x * x, 2.0 * x * t), x),
            |x: Tensor, (ct, _): Two| (2.0 * x * ct, ct * 0.0),
        );
        square(square((x, 2.0 * t)))
    }),
];

#[test]
fn rules_may_pass_values_and_tangents_together() {
    for (name, rule) in RULES {
        let f = move |x: Tensor| custom_jvp(|x: Tensor| x.powi(4), rule)(x);
        // At 1.5: x^4 = 5.0625, and 8 x^3 = 27.
        assert_close(&at(1.5, |x| jvp(f, x, one(x)).1), &[27.0]);
        assert_close(&at(1.5, |x| grad(f)(x)), &[27.0]);
        assert_close(&at(1.5, |x| value_and_grad(f)(x).0), &[5.0625]);
        assert_close(&at(1.5, |x| linearize(f, x).1(one(x))), &[27.0]);
        // The value is used in further arithmetic: d/dx (x^4)^2 = 2 x^4 8 x^3.
        assert_close(&at(1.5, |x| grad(|x: Tensor| f(x).square())(x)), &[2.0 * 5.0625 * 27.0]);
        // 8 at 1 and 64 at 2.
        let batch = move |x: Tensor| vmap(grad(f))(x + arange(2, DType::F32));
        assert_close(&at(1.0, batch), &[8.0, 64.0]);
        // In a loop: (x^4)^4, whose derivative is 8 (x^4)^3 8 x^3; at 1.1, 64 * 1.1^15.
        assert_close(
            &at(1.1, |x| grad(|x: Tensor| fori_loop(0, 2, |_, x| f(x), x))(x)),
            &[64.0 * 1.1f32.powi(15)],
        );
        if !["custom_vjp"].contains(&name) {
            // The derivative of 8 x^3 is 24 x^2.
            assert_close(&at(1.5, |x| grad(grad(f))(x)), &[54.0]);
            assert_close(&at(1.5, |x| jvp(grad(f), x, one(x)).1), &[54.0]);
        }
    }
}

#[test]
fn a_while_loop_over_values_and_tangents_in_a_rule() {
    let rule = |x: Tensor, t: Tensor| {
        let body = |(i, x, t): (Tensor, Tensor, Tensor)| (i + 1.0, x * x, 2.0 * x * t);
        let (_, y, t) = while_loop(|(i, _, _)| i.lt(2.0), body, (x * 0.0, x, 2.0 * t));
        (y, t)
    };
    let f = |x: Tensor| custom_jvp(|x: Tensor| x.powi(4), rule)(x);
    assert_close(&at(1.5, |x| jvp(f, x, one(x)).1), &[27.0]);
    assert_close(&at(1.5, |x| linearize(f, x).1(one(x))), &[27.0]);
    // As in JAX, only a loop of known length is differentiated backwards.
    let problem = refused(|x| grad(|x: Tensor| f(x.sum(..)))(x));
    assert!(problem.contains("reverse-mode differentiation does not work"), "{problem}");
    // A rule that is not linear in its tangents is still refused.
    let twice = |x: Tensor, t: Tensor| {
        let body = |_, (x, t): Two| (x * x, t * t);
        fori_loop(0, 2, body, (x, t))
    };
    let f = |x: Tensor| custom_jvp(|x: Tensor| x.powi(4), twice)(x);
    let problem = refused(|x| grad(|x: Tensor| f(x.sum(..)))(x));
    assert!(problem.contains("must be linear in its tangents"), "{problem}");
}

#[test]
fn a_rule_may_sum_values_and_tangents_together_along_an_axis() {
    let f = |x: Tensor| {
        vmap_axis("i", |axis, x: Tensor| {
            let rule = move |x: Tensor, t: Tensor| psum((x.square(), 2.0 * x * t), axis);
            custom_jvp(move |x: Tensor| psum(x.square(), axis), rule)(x)
        })(x.broadcast_to([3]))
    };
    // The sum of 3 x^2 three times: 18 x.
    assert_close(&at(2.0, |x| grad(|x: Tensor| f(x).sum(..))(x)), &[36.0]);
    assert_close(&at(2.0, |x| jvp(f, x, one(x)).1.sum(..)), &[36.0]);
}

#[derive(Tree)]
struct Losses<T> {
    entropy: T,
    total: T,
}

impl Loss for Losses<Tensor> {
    fn loss(&self) -> Tensor {
        self.total
    }
}

#[derive(Tree)]
struct Parts<T> {
    policy: T,
    value: T,
}

impl Loss for Parts<Tensor> {
    fn loss(&self) -> Tensor {
        self.policy + 0.5 * self.value
    }
}

#[test]
fn the_loss_may_be_any_part_of_the_result() {
    let f = |x: Tensor| {
        let losses = |x: Tensor| Losses { entropy: 7.0 * x, total: x.powi(3) };
        let (losses, slope) = value_and_grad(losses)(x);
        stack(&[losses.entropy, losses.total, slope], 0)
    };
    // By x^3 and not by 7 x.
    assert_close(&at(2.0, f), &[14.0, 8.0, 12.0]);
    let f = |x: Tensor| {
        let parts = |x: Tensor| Parts { policy: 3.0 * x, value: x * x };
        let (parts, slope) = value_and_grad(parts)(x);
        stack(&[parts.policy, parts.value, slope], 0)
    };
    assert_close(&at(2.0, f), &[6.0, 4.0, 5.0]);
}

/// The derivatives of `lax.clamp` by low, x and high.
fn slopes_of_clamp(low: f32, x: f32, high: f32) -> Vec<f32> {
    let f = |(low, x, high): (Tensor, Tensor, Tensor)| x.clamp(low, high);
    let slopes = |args: (Tensor, Tensor, Tensor)| {
        let (low, x, high) = grad(f)(args);
        let one = args.0 * 0.0 + 1.0;
        let zero = args.0 * 0.0;
        let along = |i| [0, 1, 2].map(|j| if i == j { one } else { zero });
        let forwards = [0, 1, 2].map(along).map(|[a, b, c]| jvp(f, args, (a, b, c)).1);
        (stack(&[low, x, high], 0), stack(&forwards, 0))
    };
    let args = || [low, x, high].map(Array::from).into();
    let (back, forth) = interpret(slopes).call(args()).unwrap();
    let (compiled, _) = jit(slopes).call(args()).unwrap();
    let [back, forth, compiled] = [back, forth, compiled].map(|x| x.to_vec::<f32>().unwrap());
    assert_eq!((&back, &back), (&forth, &compiled));
    back
}

/// lax.clamp's rules: `x` where low < x < high; `low` where low > x and low < high; `high` where
/// high < x. All comparisons are strict, so that nothing has a slope at a tie.
#[test]
fn clamp_has_the_derivatives_of_jax_by_its_bounds() {
    assert_eq!(slopes_of_clamp(0.0, 0.5, 1.0), [0.0, 1.0, 0.0]);
    assert_eq!(slopes_of_clamp(0.0, -1.0, 1.0), [1.0, 0.0, 0.0]);
    assert_eq!(slopes_of_clamp(0.0, 2.0, 1.0), [0.0, 0.0, 1.0]);
    assert_eq!(slopes_of_clamp(0.0, 0.0, 1.0), [0.0, 0.0, 0.0]);
    assert_eq!(slopes_of_clamp(0.0, 1.0, 1.0), [0.0, 0.0, 0.0]);
    // The bounds are equal.
    assert_eq!(slopes_of_clamp(1.0, 0.0, 1.0), [0.0, 0.0, 0.0]);
    assert_eq!(slopes_of_clamp(1.0, 2.0, 1.0), [0.0, 0.0, 1.0]);
    // The lower bound is above the upper one, which wins; `x` below, between and above both.
    assert_eq!(slopes_of_clamp(1.0, -1.0, 0.0), [0.0, 0.0, 0.0]);
    assert_eq!(slopes_of_clamp(1.0, 0.5, 0.0), [0.0, 0.0, 1.0]);
    assert_eq!(slopes_of_clamp(1.0, 2.0, 0.0), [0.0, 0.0, 1.0]);
}

/// jnp.clip is `minimum(maximum(x, low), high)`, whose slopes are halves at a tie.
#[test]
fn clip_has_the_derivatives_of_jax_by_its_bounds() {
    let f = |(low, x, high): (Tensor, Tensor, Tensor)| x.clip(low, high);
    let slopes = |low: f32, x: f32, high: f32| {
        let args = [low, x, high].map(Array::from).into();
        let (low, x, high) = interpret(grad(f)).call(args).unwrap();
        [low, x, high].map(|x| x.item::<f32>().unwrap())
    };
    assert_eq!(slopes(0.0, 0.5, 1.0), [0.0, 1.0, 0.0]);
    assert_eq!(slopes(0.0, 0.0, 1.0), [0.5, 0.5, 0.0]);
    assert_eq!(slopes(0.0, 1.0, 1.0), [0.0, 0.5, 0.5]);
    assert_eq!(slopes(1.0, 0.5, 0.0), [0.0, 0.0, 1.0]);
}

#[test]
fn choices_without_a_tensor_have_the_type_of_jax() {
    type Case = (&'static str, fn(Tensor) -> Tensor);
    // The types of jnp.where(x > 1.5, 1, 0), jnp.where(x > 1.5, 1, 0.5), ..
    let cases: [Case; 7] = [
        ("i32[2]", |x| where_(x.gt(1.5), 1, 0)),
        ("i32[2]", |x| where_(x.gt(1.5), 1i64, 0usize)),
        ("f32[2]", |x| where_(x.gt(1.5), 1, 0.5)),
        ("f32[2]", |x| where_(x.gt(1.5), 1f64, 0f32)),
        ("bool[2]", |x| where_(x.gt(1.5), true, false)),
        ("c64[2]", |x| where_(x.gt(1.5), Complex::new(0.0f32, 1.0), 1.0)),
        ("bf16[2]", |x| where_(x.gt(1.5), 1, x.to(DType::BF16))),
    ];
    for (expected, f) in cases {
        let program = make_program(f, &Array::from([1.0f32, 2.0])).unwrap();
        assert_eq!(program.output_types().next().unwrap().to_string(), expected);
    }
    let f = |x: Tensor| where_(x.gt(1.5), 7, -1);
    let chosen = interpret(f).call(Array::from([1.0f32, 2.0])).unwrap();
    assert_eq!(chosen.to_vec::<i32>().unwrap(), [-1, 7]);
    // Where JAX would promote, a conversion must be written.
    let whole = |x: Tensor| where_(x.gt(1.5), x.to(DType::I32), 0.5);
    assert!(refused(whole).contains("the float 0.5 cannot be combined with i32[2]"));
    let other = |x: Tensor| where_(x.gt(1.5), x.to(DType::I32), x);
    assert!(refused(other).contains("i32[2]"), "{}", refused(other));
}

#[test]
fn gradients_flow_through_captured_tensors() {
    type Case = (&'static str, fn(Tensor) -> Tensor, f32);
    // The derivative by x at 2, of x^2 in most cases.
    let cases: [Case; 15] = [
        ("grad", |x| grad(|y: Tensor| x * x * y)(one(x)), 4.0),
        ("value_and_grad", |x| value_and_grad(|y: Tensor| x * x * y)(one(x)).0, 4.0),
        ("jvp", |x| jvp(|y: Tensor| x * x * y, one(x), one(x)).1, 4.0),
        ("linearize", |x| linearize(|y: Tensor| x * x * y, one(x)).1(one(x)), 4.0),
        ("vjp", |x| vjp(|y: Tensor| x * x * y, one(x)).1(one(x)), 4.0),
        (
            "pushforward in a loop",
            |x| {
                let (_, push) = linearize(|y: Tensor| x * x * y, one(x));
                fori_loop(0, 2, |_, t| push(t), one(x))
            },
            32.0,
        ),
        (
            "pullback of a batch",
            |x| {
                let (_, pull) = vjp(|y: Tensor| x * x * y, one(x));
                vmap(|ct: Tensor| pull(ct))(one(x).broadcast_to([2])).sum(..)
            },
            8.0,
        ),
        ("vmap", |x| vmap(|y: Tensor| x * x * y)(one(x).broadcast_to([2])).sum(..), 8.0),
        ("scan", |x| scan(|c, _: Tensor| (c * x, ()), one(x), one(x).broadcast_to([2])).0, 4.0),
        ("fori_loop", |x| fori_loop(0, 2, |_, c: Tensor| c * x, one(x)), 4.0),
        ("cond", |x| cond(x.gt(0.0), |c: Tensor| c * x * x, |c| c, one(x)), 4.0),
        (
            "switch",
            |x| {
                let index = x.to(DType::I32);
                switch(index, &[&|c: Tensor| c, &|c| c * x * x], one(x))
            },
            4.0,
        ),
        ("checkpoint", |x| checkpoint(|c: Tensor| c * x * x)(one(x)), 4.0),
        ("map", |x| map(|c: Tensor| c * x * x, one(x).broadcast_to([2])).sum(..), 8.0),
        (
            "nested",
            |x| {
                let inner =
                    |y: Tensor| checkpoint(|z: Tensor| fori_loop(0, 2, |_, c| c * x, z * y))(y);
                vmap(grad(inner))(one(x).broadcast_to([2])).sum(..)
            },
            16.0,
        ),
    ];
    for (name, f, expected) in cases {
        let backwards = at(2.0, move |x| grad(f)(x));
        let forwards = at(2.0, move |x| jvp(f, x, one(x)).1);
        let batched = at(2.0, move |x| vmap(grad(f))(x.broadcast_to([1])));
        let all = [backwards, forwards, batched].concat();
        assert!(all.iter().all(|slope| (slope - expected).abs() < 1e-4), "{name}: {all:?}");
    }
    let through = |x: Tensor| {
        let body = |(i, c): Two| (i + 1.0, c * x);
        while_loop(|(i, _)| i.lt(x), body, (x * 0.0, one(x))).1
    };
    assert_close(&at(2.0, |x| jvp(through, x, one(x)).1), &[4.0]);
}

fn one(x: Tensor) -> Tensor {
    ones_like(x)
}

#[test]
fn rules_capture_constants_alone() {
    // d/dy (c y^2) = 2 c y, with c captured from a batch or a loop that is not differentiated.
    let scaled = |c: Tensor, y: Tensor| {
        let rule = move |y: Tensor, t: Tensor| (c * y * y, 2.0 * c * y * t);
        custom_jvp(move |y: Tensor| c * y * y, rule)(y)
    };
    let pulled = |c: Tensor, y: Tensor| {
        let fwd = move |y: Tensor| (c * y * y, y);
        custom_vjp(move |y: Tensor| c * y * y, fwd, move |y, ct: Tensor| 2.0 * c * y * ct)(y)
    };
    let functions: [&dyn Fn(Tensor, Tensor) -> Tensor; 2] = [&scaled, &pulled];
    for f in functions {
        let slopes = |x: Tensor| vmap(|c: Tensor| grad(|y| f(c, y))(x))(arange(3, DType::F32));
        let found = interpret(slopes).call(Array::from(2.0f32)).unwrap();
        assert_eq!(found.to_vec::<f32>().unwrap(), [0.0, 4.0, 8.0]);
        let slopes =
            |x: Tensor| grad(|y: Tensor| fori_loop(0, 2, |i, y| f(i.to(DType::F32), y), y))(x);
        let found = interpret(slopes).call(Array::from(2.0f32)).unwrap();
        assert_eq!(found.item::<f32>().unwrap(), 0.0);
        // Of the captured tensor itself the rule says nothing: an error, as in JAX.
        let problem = refused(|x| grad(|c: Tensor| f(c, x.sum(..)))(x.sum(..)));
        assert!(problem.contains("closes over a tensor that is being differentiated"), "{problem}");
        let stopped = |x: Tensor| grad(|c: Tensor| f(c.stop_gradient(), c))(x);
        let found = interpret(stopped).call(Array::from(2.0f32)).unwrap();
        assert_eq!(found.item::<f32>().unwrap(), 8.0);
    }
}

#[derive(Tree, Clone)]
struct Layer<T> {
    w: T,
    b: Option<T>,
    width: usize,
}

fn axes_error(in_axes: impl Into<LeafAxes>, out_axes: impl Into<LeafAxes>) -> String {
    let options = VmapOptions::default().in_axes(in_axes).out_axes(out_axes);
    refused(move |x: Tensor| {
        let layer = Layer { w: x, b: None, width: 2 };
        let map = BTreeMap::from([("u".to_string(), x), ("v".to_string(), x)]);
        let f = |(layer, (a, b), map): (Layer<Tensor>, Two, BTreeMap<String, Tensor>)| {
            (layer.w + a, vec![b, map["u"] + map["v"]])
        };
        vmap_with(options.clone(), f)((layer, (x, x), map)).0
    })
}

#[test]
fn trees_of_axes_have_the_structure_of_the_argument() {
    let named = |pairs: &[(&'static str, LeafAxes)]| LeafAxes::Named(pairs.to_vec());
    let all = LeafAxes::All(0);
    let layer = |names: &[&'static str]| {
        named(&names.iter().map(|name| (*name, LeafAxes::All(0))).collect::<Vec<_>>())
    };
    let refused = |in_axes: LeafAxes, path: &str| {
        let problem = axes_error(in_axes, 0);
        assert!(problem.starts_with("in_axes: ") && problem.contains(path), "{problem}");
    };
    refused((0, 0).into(), "2 axes are given for argument, which has 3 parts");
    refused((0, 0, 0, 0).into(), "4 axes are given for argument, which has 3 parts");
    refused((0, (0, 0, 0), 0).into(), "3 axes are given for argument[1], which has 2 parts");
    refused((0, vec![0], 0).into(), "1 axes are given for argument[1], which has 2 parts");
    refused((0, ((0, 0), 0), 0).into(), "argument[1][0], which is one tensor");
    let three = |first: LeafAxes, third: LeafAxes| LeafAxes::Each(vec![first, all.clone(), third]);
    refused(three(layer(&["w"]), all.clone()), "no axis is given for `b` of argument[0]");
    refused(three(layer(&["w", "b", "c"]), all.clone()), "`c`, which argument[0] does not have");
    refused(three(layer(&["w", "b", "width"]), all.clone()), "`width`, which argument[0]");
    refused(three(all.clone(), layer(&["u"])), "no axis is given for `v` of argument[2]");
    refused(three(all.clone(), layer(&["u", "v", "w"])), "`w`, which argument[2] does not have");
    refused(three((0, 0).into(), all.clone()), "argument[0], whose parts have names");
    refused(
        LeafAxes::Each(vec![all.clone(), layer(&["a"]), all.clone()]),
        "argument[1], whose parts",
    );
    let problem = axes_error(0, (0, (0, 0, 0)));
    assert!(problem.contains("out_axes: 3 axes are given for output[1], which has 2"), "{problem}");
    // An empty option needs no axis below it, and any is right.
    let whole = three(layer(&["w", "b"]), layer(&["u", "v"]));
    let options = VmapOptions::default().in_axes(whole).out_axes((0, vec![0]));
    let f = move |x: Tensor| {
        let layer = Layer { w: x, b: None, width: 2 };
        let map = BTreeMap::from([("u".to_string(), x), ("v".to_string(), x)]);
        let f = |(layer, (a, b), map): (Layer<Tensor>, Two, BTreeMap<String, Tensor>)| {
            (layer.w * a, vec![b + map["v"]])
        };
        let (y, z) = vmap_with(options.clone(), f)((layer, (x, x), map));
        y + z[0]
    };
    let found = interpret(f).call(Array::from([1.0f32, 3.0])).unwrap();
    assert_eq!(found.to_vec::<f32>().unwrap(), [3.0, 15.0]);
    let empty = VmapOptions::default().in_axes((0, vec![0, 0]));
    let f = move |x: Tensor| {
        vmap_with(empty.clone(), |(x, rest): (Tensor, Vec<Tensor>)| x * rest.len() as f32)((
            x,
            vec![],
        ))
    };
    let Err(Error::Trace(error)) = make_program(f, &Array::from([1.0f32])) else { panic!() };
    assert!(error.problem.contains("argument[1], which has 0 parts"), "{}", error.problem);
}

#[test]
fn a_long_loop_over_indices_takes_no_memory_for_them() {
    let f = |x: Tensor| fori_loop(5, 100_000_005, |i, x: Tensor| x * 0.5 + i.to(DType::F32), x);
    let x = Array::from(0.5f32);
    for analysis in [
        jit(f).lower(&x).unwrap().compile().unwrap(),
        jit(|x| jvp(f, x, one(x))).lower(&x).unwrap().compile().unwrap(),
        jit(|x: Tensor| vmap(f)(x.broadcast_to([4]))).lower(&x).unwrap().compile().unwrap(),
    ] {
        let bytes = analysis.memory_stats().unwrap().temporary;
        assert!(bytes < 100_000, "{bytes} bytes");
    }
    // The index is that of the iteration, whatever the order and the unrolling.
    for (reverse, unroll) in [(false, 1), (true, 1), (false, 3), (true, 3), (true, 20)] {
        let options = ScanOptions { length: None, reverse, unroll };
        let f = |x: Tensor| {
            let step = |c: Tensor, i: Tensor| (c * 1.5 + i.to(DType::F32), c * i.to(DType::F32));
            let (c, ys) = scan_with(step, x, arange(10, DType::I32), options);
            (c, ys, grad(|x: Tensor| scan_with(step, x, arange(10, DType::I32), options).0)(x))
        };
        let (a, b) = (interpret(f).call(x.clone()).unwrap(), jit(f).call(x.clone()).unwrap());
        let values = |x: &Array| x.to_vec::<f32>().unwrap();
        for (found, expected) in [(&b.0, &a.0), (&b.1, &a.1), (&b.2, &a.2)] {
            assert_close(&values(found), &values(expected));
        }
    }
}

/// A family of functions with one value, `sin(x)`, of which each is the derivative of the one after it.
fn family(index: usize, x: Tensor) -> Tensor {
    let rule = move |x: Tensor, t: Tensor| {
        let slope = if index == 0 { x } else { family(index - 1, x) };
        (x.sin(), t * slope)
    };
    custom_jvp(|x: Tensor| x.sin(), rule)(x)
}

/// Only the innermost rule differs from the others.
#[test]
fn rules_that_depend_on_a_counter_are_not_taken_for_recursion() {
    let third = |x: Tensor| grad(grad(grad(|x| family(2, x))))(x);
    assert_close(&at(0.5, third), &[0.5]);
    let second = |x: Tensor| grad(grad(|x| family(2, x)))(x);
    assert_close(&at(0.5, second), &[0.5f32.sin()]);
    let fifth = |x: Tensor| grad(grad(grad(grad(grad(|x| family(4, x))))))(x);
    assert_close(&at(0.5, fifth), &[0.5]);
}

/// The rule of each function calls the next one.
fn chain(length: usize, x: Tensor) -> Tensor {
    let f = move |x: Tensor| x * length as f64;
    let rule = move |x: Tensor, t: Tensor| {
        let y = x * length as f64;
        (y, if length == 0 { t } else { t * chain(length - 1, x) })
    };
    custom_jvp(f, rule)(x)
}

fn nested_loops(depth: usize, x: Tensor) -> Tensor {
    match depth {
        0 => x + 1.0,
        _ => fori_loop(0, 1, |_, x| nested_loops(depth - 1, x), x),
    }
}

#[test]
fn nested_rules_and_loops_take_no_exponential_time() {
    let start = Instant::now();
    assert_close(&at(2.0, |x| grad(|x| chain(24, x))(x)), &[23.0 * 2.0]);
    let f = interpret(vmap(|x: Tensor| nested_loops(24, x)));
    assert_eq!(f.call(Array::from([1.0f32, 2.0])).unwrap().to_vec::<f32>().unwrap(), [2.0, 3.0]);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn rules_that_are_not_linear_are_errors() {
    let select = |x: Tensor| {
        let rule = |x: Tensor, t: Tensor| (x.relu(), where_(t.gt(0.0), t, zeros_like(t)));
        custom_jvp(Tensor::relu, rule)(x).sum(..)
    };
    let problem = refused(grad(select));
    assert!(problem.contains("a custom_jvp rule must be linear in its tangents"), "{problem}");
    let set = |x: Tensor| {
        // Two windows, which may meet.
        let rule = |x: Tensor, t: Tensor| (x, zeros_like(x).at(&[arange(2, DType::I32)]).set(t));
        custom_jvp(|x: Tensor| x, rule)(x).sum(..)
    };
    let problem = refused(grad(set));
    assert!(problem.contains("add the tangents with at(..).add"), "{problem}");
}

#[test]
fn a_gradient_outside_a_trace_is_an_error() {
    let run = || grad(|(): ()| constant(1.0f32))(());
    let message = |payload: Box<dyn std::any::Any + Send>| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a message")).to_string(),
    };
    let text = message(std::panic::catch_unwind(run).map(|_| ()).unwrap_err());
    assert!(text.contains("outside a trace"), "{text}");
}

#[test]
fn combinations_of_other_types_are_errors() {
    let fewer = |x: Tensor| {
        let combine = |a: Vec<Tensor>, b: Vec<Tensor>| vec![a[0] * b[0]];
        associative_scan(combine, vec![x, x], 0, false)[0]
    };
    let problem = refused(fewer);
    assert!(problem.contains("combine changes the structure"), "{problem}");
    let wider = |x: Tensor| {
        let combine = |a: Tensor, b: Tensor| (a * b).to(DType::F64);
        associative_scan(combine, x, 0, false)
    };
    let problem = refused(wider);
    assert!(problem.contains("combine's result must be f32[1], and is f64[1]"), "{problem}");
}

#[test]
fn power_of_a_tiny_base_is_flat_at_exponent_0() {
    for x in [0.0, 1e-39, -1e-39, 1e-20] {
        assert_eq!(at(x, |x| grad(|x: Tensor| x.pow(zeros_like(x)))(x)), [0.0], "{x}");
    }
    // The derivative of that by the exponent is 1 / x.
    let mixed = |x: Tensor| grad(|b: Tensor| grad(|x: Tensor| x.pow(b))(x))(x * 0.0);
    assert_close(&at(0.5, mixed), &[2.0]);
}
