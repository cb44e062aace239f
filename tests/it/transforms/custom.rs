//! Functions with derivatives of their own. Some of these are not the true ones: that shows which
//! rule is used.

use podracer::trace::control::{ScanOptions, cond, fori_loop, scan, scan_with, switch};
use podracer::trace::ops::{constant, ones, ones_like, zeros, zeros_like};
use podracer::{DType, Tensor, checkpoint, custom_jvp, custom_vjp, grad, jvp, vjp, vmap};

use super::Function;
use super::loops::countdown;

type Two = (Tensor, Tensor);
type Three = (Tensor, Tensor, Tensor);

const F32: DType = DType::F32;

fn log1p_exp(x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| (x.exp().log1p(), t * (1.0 - 1.0 / (1.0 + x.exp())));
    custom_jvp(|x: Tensor| x.exp().log1p(), rule)(x)
}

fn odd(x: Tensor, y: Tensor) -> Tensor {
    let rule = |(x, y): Two, (s, t): Two| (x.sin() * y, 3.0 * x * s + y * x * t);
    custom_jvp(|(x, y): Two| x.sin() * y, rule)((x, y))
}

fn grown(x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| {
        let y = grown(x);
        (y, 0.75 * y * t)
    };
    custom_jvp(|x: Tensor| (0.5 * x).exp(), rule)(x)
}

fn half_sinh(x: Tensor) -> Tensor {
    let f = |x: Tensor| (x.exp() - (-x).exp()) * 0.5;
    custom_jvp(f, |x: Tensor, t: Tensor| (half_sinh(x), 0.5 * half_cosh(x) * t))(x)
}

fn half_cosh(x: Tensor) -> Tensor {
    let f = |x: Tensor| (x.exp() + (-x).exp()) * 0.5;
    custom_jvp(f, |x: Tensor, t: Tensor| (half_cosh(x), 0.25 * half_sinh(x) * t))(x)
}

fn tied(x: Tensor, y: Tensor) -> Two {
    let rule = |(x, y): Two, (s, t): Two| {
        let ((a, b), (c, _)) = (tied(x, y), tied(y, x + 1.0));
        ((a, b), (b * s + c * t, a * t))
    };
    custom_jvp(|(x, y): Two| (x.sin() * y, y.cos()), rule)((x, y))
}

/// With a tensor that function and rule capture.
fn looped(c: Tensor, x: Tensor) -> Tensor {
    let rule = |x: Tensor, t: Tensor| {
        let step = |t: Tensor, (): ()| (t * looped(c, x + c) * 0.7, ());
        (looped(c, x), scan_with(step, t, (), ScanOptions::length(2)).0)
    };
    custom_jvp(|x: Tensor| x.sin() * c, rule)(x)
}

/// Each of them another function.
fn power(n: usize, x: Tensor) -> Tensor {
    let f = |x: Tensor| (0..n).fold(ones_like(x), |y, _| y * x);
    let rule = |x: Tensor, t: Tensor| match n {
        0 => (power(0, x), 0.0 * t),
        n => (power(n, x), (n as f64 + 0.5) * power(n - 1, x) * t),
    };
    custom_jvp(f, rule)(x)
}

fn clip_gradient(x: Tensor, limit: Tensor) -> Tensor {
    let bwd = |limit: Tensor, ct: Tensor| (ct.clip(-limit, limit), constant(0.0f32));
    custom_vjp(|(x, _): Two| x, |(x, limit): Two| (x, limit), bwd)((x, limit))
}

fn reverse_gradient(x: Tensor) -> Tensor {
    custom_vjp(|x: Tensor| x, |x: Tensor| (x, ()), |(), ct: Tensor| -ct)(x)
}

fn plain((x, y): Two) -> Two {
    (x.sin() * y.sum(..), x.sum(..) * y)
}

fn strange(x: Tensor, y: Tensor) -> Two {
    let fwd = |(x, y): Two| (plain((x, y)), (x.cos(), y, x.square()));
    let bwd = |(cos, y, square): Three, (a, b): Two| {
        let by_x = a * cos * 2.0 + (b * y).sum(..) * square;
        (by_x, b * 3.0 + (a * square).sum(..) * y)
    };
    custom_vjp(plain, fwd, bwd)((x, y))
}

fn pair((a, b): Two) -> Vec<Tensor> {
    vec![a, b]
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("custom_jvp_softplus", |x| vec![log1p_exp(x[0]) * x[0]]),
    ("custom_jvp_of_two", |x| vec![odd(x[0], x[1])]),
    ("custom_jvp_with_one_tangent", |x| {
        let by_x = grad(|y: Tensor| odd(y, x[1]).sum(..))(x[0]);
        vec![by_x, grad(|y: Tensor| odd(x[0], y).sum(..))(x[1])]
    }),
    ("custom_jvp_of_a_custom_jvp", |x| {
        let rule = |y: Tensor, t: Tensor| jvp(|y: Tensor| odd(y, y.square()), y, t);
        vec![custom_jvp(|y: Tensor| odd(y, y * 2.0), rule)(x[0]) * x[1]]
    }),
    ("custom_jvp_of_several_results", |x| {
        type Results = (Tensor, (Tensor, Tensor));
        let f = |(y, w): Two| -> Results { (y.matmul(w), (y.sum(..), constant(3i32))) };
        let rule = |(y, w): Two, (dy, dw): Two| {
            let product = dy.matmul(w) * 2.0 + y.matmul(dw);
            (f((y, w)), (product, ((dy * y).sum(..), constant(0i32))))
        };
        let (a, (b, c)) = custom_jvp(f, rule)((x[0], x[1]));
        vec![a, b, c]
    }),
    ("custom_jvp_with_an_integer", |x| {
        let f = |(y, n): Two| y.square() * n.to(F32);
        let rule = |(y, n): Two, (t, _): Two| (f((y, n)), t * n.to(F32) * 5.0 * y);
        vec![custom_jvp(f, rule)((x[0], x[1]))]
    }),
    ("custom_jvp_in_scan", |x| {
        pair(scan(|h, y| (odd(h, y) * 0.3, log1p_exp(h).sum(..)), x[0], x[1]))
    }),
    ("custom_jvp_in_while", |x| pair(countdown(x[2], x[0], |_, y| odd(y, x[1]) * 0.3))),
    ("custom_jvp_in_cond", |x| {
        vec![cond(x[0].gt(0.0), |y| odd(y, x[2]), |y| odd(x[2], y) * x[0], x[1])]
    }),
    ("custom_jvp_in_vmap", |x| {
        let slope = grad(|y: Tensor| odd(y, x[1]).prod(..));
        vec![vmap(|y: Tensor| odd(y, x[1]))(x[0]), vmap(slope)(x[0])]
    }),
    ("custom_jvp_whose_rule_loops", |x| {
        let y = constant([0.5f32, -1.0, 2.0]);
        let f = |x: Tensor| x.sin() * y;
        let rule = |x: Tensor, t: Tensor| {
            let t = fori_loop(0, 3, |_, d: Tensor| d * x.cos() * 0.9, t);
            (f(x), t * y)
        };
        vec![custom_jvp(f, rule)(x[0])]
    }),
    ("custom_jvp_straight_through", |x| {
        let g = custom_jvp(Tensor::round, |y: Tensor, t: Tensor| (y.round(), t));
        vec![g(x[0] * 3.0) * x[0]]
    }),
    ("custom_vjp_clips", |x| vec![clip_gradient(x[0] * x[0], x[1]) * 2.0]),
    ("custom_vjp_reverses", |x| vec![(reverse_gradient(x[0].matmul(x[1]).tanh()) * 2.0).sin()]),
    ("custom_vjp_of_two", |x| pair(strange(x[0], x[1]))),
    ("custom_vjp_with_one_cotangent", |x| vec![strange(x[0], x[1]).1 * 2.0]),
    ("custom_vjp_by_one_argument", |x| {
        let by_x = grad(|y: Tensor| strange(y, x[1]).0.prod(..))(x[0]);
        vec![by_x, grad(|y: Tensor| strange(x[0], y).1.prod(..))(x[1])]
    }),
    ("custom_vjp_in_scan", |x| {
        let step = |h: Tensor, y: Tensor| {
            let (a, b) = strange(h * y, x[2]);
            (a * 0.3, b.sum(..))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("custom_vjp_in_scan_reversed", |x| {
        let step = |h: Tensor, y: Tensor| {
            let (a, b) = strange(h, y);
            (a * 0.3 + b.sum(..), h)
        };
        pair(scan_with(step, x[0], x[1], ScanOptions::reversed()))
    }),
    ("custom_vjp_in_cond", |x| {
        let on_false = |y: Tensor| strange(y * x[0], x[2].square());
        pair(cond(x[0].gt(0.0), |y: Tensor| strange(y, x[2]), on_false, x[1]))
    }),
    ("custom_vjp_in_switch", |x| {
        let branches: [&dyn Fn(Tensor) -> Tensor; 3] =
            [&|y| y.sum(..), &|y| strange(y, x[2]).0.sum(..), &|y| strange(y, x[2]).1.sum(..)];
        vec![switch(x[0], &branches, x[1])]
    }),
    ("custom_vjp_in_vmap", |x| pair(vmap(|y: Tensor| strange(y, x[1]))(x[0]))),
    ("vmap_of_grad_of_custom_vjp", |x| {
        vec![vmap(grad(|y: Tensor| strange(y, x[1]).0.prod(..)))(x[0])]
    }),
    ("custom_vjp_with_an_integer", |x| {
        let f = |(y, n): Two| y.square() * n.to(F32);
        let fwd = |(y, n): Two| (f((y, n)), (y, n));
        let bwd = |(y, n): Two, ct: Tensor| (ct * y * (n + 1).to(F32), zeros_like(n));
        vec![custom_vjp(f, fwd, bwd)((x[0], x[1]))]
    }),
    ("custom_vjp_of_a_custom_vjp", |x| {
        let f = |(x, y): Two| strange(x, y).0.square();
        let fwd = |(x, y): Two| (plain((x, y)).0.square(), (x, y));
        let bwd = |kept: Two, ct: Tensor| vjp(|(x, y): Two| strange(x, y).0, kept).1(ct * 2.0);
        vec![custom_vjp(f, fwd, bwd)((x[0], x[1]))]
    }),
    ("implicit_fixed_point", |x| {
        let step = |(a, b): Two, z: Tensor| (a.matmul(z) + b).tanh();
        let iterate = |ab: Two| fori_loop(0, 20, |_, z: Tensor| step(ab, z), zeros([2], F32));
        let fwd = |ab: Two| {
            let z = iterate(ab);
            (z, (ab, z))
        };
        let bwd = |(ab, z): (Two, Tensor), ct: Tensor| {
            let (_, pull) = vjp(|z: Tensor| step(ab, z), z);
            let w = fori_loop(0, 20, |_, w: Tensor| ct + pull(w), ct);
            vjp(|ab: Two| step(ab, z), ab).1(w)
        };
        vec![custom_vjp(iterate, fwd, bwd)((x[0], x[1]))]
    }),
    ("custom_vjp_in_checkpoint", |x| {
        vec![checkpoint(|y: Tensor| strange(y.sin(), x[1]).0.tanh())(x[0])]
    }),
    ("custom_vjp_and_custom_jvp", |x| {
        let first = odd(strange(x[0], x[1]).0, x[0]);
        vec![first, strange(odd(x[0], x[0]), x[1]).1]
    }),
    ("own_rule", |x| vec![grown(x[0]) * x[0]]),
    ("own_rule_third_order", |x| {
        fn d<G: Fn(Tensor) -> Tensor>(g: G) -> impl Fn(Tensor) -> Tensor {
            move |x: Tensor| jvp(&g, x, ones([], F32)).1
        }
        let third = grad(grad(grad(grown)))(x[0]);
        vec![third, d(d(d(grown)))(x[0]), d(grad(d(half_sinh)))(x[0])]
    }),
    ("own_rules_of_a_pair", |x| vec![half_sinh(x[0]) * x[0], half_cosh(x[0].index_axis(0, 0))]),
    ("own_rule_of_two", |x| pair(tied(x[0], x[1].broadcast_to([3])))),
    ("own_rule_in_scan", |x| {
        let step = |h: Tensor, x: Tensor| {
            let (a, b) = tied(h, x);
            (grown(a) * 0.3, half_cosh(b).sum(..))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("own_rule_in_while", |x| vec![countdown(x[1], x[0], |_, y| grown(y) * 0.5).1]),
    ("own_rule_in_cond", |x| vec![cond(x[0].gt(0.0), |y| grown(y) * x[0], half_sinh, x[1])]),
    ("own_rule_in_vmap", |x| {
        let slope = grad(|y: Tensor| grown(y * x[1]).prod(..));
        vec![vmap(|y: Tensor| tied(y * x[1], x[1]).0)(x[0]), vmap(slope)(x[0])]
    }),
    ("own_rule_that_loops", |x| vec![looped(constant([0.5f32, -1.0, 2.0]), x[0])]),
    ("own_rules_of_powers", |x| vec![power(3, x[0])]),
];
