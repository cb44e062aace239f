//! Loops: `scan`, `fori_loop`, `map`, `while_loop`, nested and transformed.

use podracer::trace::control::{
    ScanOptions, cond, fori_loop, map, scan, scan_with, switch, while_loop,
};
use podracer::trace::jacobian::hessian;
use podracer::trace::ops::{arange, constant, eye, ones, stack, where_, zeros, zeros_like};
use podracer::{DType, Tensor, grad, jvp, linearize, value_and_grad, vjp, vmap};

use super::Function;

type Two = (Tensor, Tensor);
type Three = (Tensor, Tensor, Tensor);

const F32: DType = DType::F32;

pub fn cell(h: Tensor, x: Tensor, w: Tensor) -> Two {
    let h = (h.matmul(w) + x).tanh();
    (h, h.sum(..))
}

fn zero() -> Tensor {
    constant(0.0f32)
}

fn one() -> Tensor {
    constant(1.0f32)
}

fn pair((a, b): Two) -> Vec<Tensor> {
    vec![a, b]
}

/// See `make.py`.
pub const SCANS: &[Function] = &[
    ("grad_of_scan", |x| {
        let loss = |(h, xs, w): Three| {
            let (h, ys) = scan(|h, x| cell(h, x, w), h, xs);
            h.square().sum(..) + ys.powi(3).sum(..)
        };
        let (a, b, c) = grad(loss)((x[0], x[1], x[2]));
        vec![a, b, c]
    }),
    ("scan_of_grad", |x| {
        let step = |w: Tensor, y: Tensor| {
            let loss = |w: Tensor| w.matmul(y).tanh().square() + 0.1 * w.square().sum(..);
            let (value, g) = value_and_grad(loss)(w);
            (w - 0.2 * g, value)
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("grad_of_vmap_of_scan_of_grad", |x| {
        let train = |w: Tensor| {
            let step =
                |w: Tensor, y: Tensor| (w - 0.2 * grad(|w: Tensor| w.matmul(y).cos())(w), ());
            scan(step, w, x[1]).0
        };
        vec![grad(|ws: Tensor| vmap(train)(ws).square().sum(..))(x[0])]
    }),
    ("grad_of_nested_scan", |x| {
        let loss = |(h, xs): Two| {
            let inner = |h: Tensor, x: Tensor| ((h * x + h.sum(..)).sin(), h.prod(..));
            let outer = |h: Tensor, rows: Tensor| {
                let (h, ys) = scan(inner, h, rows);
                (h * 0.5, ys.sum(..))
            };
            let (h, ys) = scan(outer, h, xs);
            h.sum(..) + ys.square().sum(..)
        };
        pair(grad(loss)((x[0], x[1])))
    }),
    ("scan_reversed", |x| {
        pair(scan_with(|h, y| cell(h, y, x[2]), x[0], x[1], ScanOptions::reversed()))
    }),
    ("scan_unrolled", |x| {
        let options = ScanOptions { unroll: 2, ..ScanOptions::default() };
        pair(scan_with(|h, y| cell(h, y, x[2]), x[0], x[1], options))
    }),
    ("scan_reversed_and_unrolled", |x| {
        let options = ScanOptions { unroll: 3, ..ScanOptions::reversed() };
        pair(scan_with(|h, y| cell(h, y, x[2]), x[0], x[1], options))
    }),
    ("scan_both_ways", |x| {
        let inner = |h: Tensor, x: Tensor| ((h + x).sin(), h * x);
        let outer = |h: Tensor, rows: Tensor| scan_with(inner, h, rows, ScanOptions::reversed());
        pair(scan(outer, x[0], x[1]))
    }),
    ("scan_without_inputs", |x| {
        let step = |x: Tensor, ()| (x.sin() + x.sum(..), x);
        pair(scan_with(step, x[0], (), ScanOptions::length(4)))
    }),
    ("scan_of_nothing", |x| pair(scan(|h: Tensor, x: Tensor| (h * x, h + x), x[0], x[1]))),
    ("scan_of_one_turn", |x| pair(scan(|h: Tensor, x: Tensor| (h * x, h.sin() + x), x[0], x[1]))),
    ("scan_with_a_counter", |x| {
        let step = |(n, h): Two, x: Tensor| {
            let h = (h * x).sin() * n.to(F32);
            ((n + 1, h), (n * 2, h))
        };
        let ((n, h), (ns, hs)) = scan(step, (x[2], x[0]), x[1]);
        vec![n, h, ns, hs]
    }),
    ("scan_that_shifts", |x| {
        let step = |(a, b, c): Three, y: Tensor| ((x[0] * y, a.sin(), b.sin()), c * 2.0);
        let ((a, b, c), ys) = scan(step, (zero(), one(), zero()), x[1]);
        vec![a, b, c, ys]
    }),
    ("scan_with_a_constant_carry", |x| {
        let step = |(h, w): Two, x: Tensor| (((h * w).sin() * x, w), (w * x, ones([2], F32)));
        let ((h, w), (ys, ones)) = scan(step, (x[0], x[2]), x[1]);
        vec![h, w, ys, ones]
    }),
    ("scan_of_cond", |x| {
        let step = |h: Tensor, (x, s): Two| {
            let h = cond(s.gt(0.0), |h: Tensor| h.sin() * x, |h| h * s + x.square(), h);
            (h, h.sum(..))
        };
        pair(scan(step, x[0], (x[1], x[2])))
    }),
    ("scan_of_switch", |x| {
        let step = |h: Tensor, (k, x): Two| {
            let branches: [&dyn Fn(Tensor) -> Tensor; 3] =
                [&|h| h.sin() * x, &|h| h + x, &|h| h * 0.5];
            (switch(k, &branches, h), h.prod(..))
        };
        pair(scan(step, x[1], (x[0], x[2])))
    }),
    ("scan_of_int_while", |x| {
        let step = |h: Tensor, (n, x): Two| {
            let going = |(n, _): Two| n.gt(0);
            let body = |(n, y): Two| (n - 1, y * 2);
            let power = while_loop(going, body, (n, constant(1i32))).1;
            ((h + x * power.to(F32) * 0.3).sin(), power)
        };
        pair(scan(step, one(), (x[0], x[1])))
    }),
    ("scan_of_vmap", |x| {
        let step = |hs: Tensor, x: Tensor| {
            let hs = vmap(|h: Tensor| (h * x).sin() + h.sum(..))(hs);
            (hs, hs.sum(0))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("vmap_of_scan", |x| {
        let step = |h: Tensor, x: Tensor| ((h * x).sin(), h.sum(..));
        pair(vmap(|(h, xs): Two| scan(step, h, xs))((x[0], x[1])))
    }),
    ("vmap_reaches_the_carry_late", |x| {
        let each = |w: Tensor| {
            let step = |(a, b): Two, x: Tensor| ((w * x, a.sin() + b), b);
            scan(step, (zero(), one()), x[1])
        };
        let ((a, b), ys) = vmap(each)(x[0]);
        vec![a, b, ys]
    }),
    ("hessian_of_scan", |x| {
        let loss = |h: Tensor| {
            let step = |h: Tensor, x: Tensor| ((h * x).sin() + h.flip(0), h.prod(..));
            let (h, ys) = scan(step, h, x[1]);
            h.sum(..) + ys.sum(..)
        };
        vec![hessian(loss)(x[0])]
    }),
    ("jacobian_of_scan", |x| {
        let last = |h: Tensor| scan(|h: Tensor, x: Tensor| ((h * x).sin(), ()), h, x[1]).0;
        let (y, pull) = vjp(last, x[0]);
        vec![y, vmap(pull)(eye(2, F32))]
    }),
    ("scan_of_jvp", |x| {
        let step = |h: Tensor, x: Tensor| {
            let (y, t) = jvp(|h: Tensor| h.sin() * h.sum(..), h, x);
            (y * 0.5 + t, t.sum(..))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("scan_of_vjp", |x| {
        let step = |h: Tensor, x: Tensor| {
            let (y, pull) = vjp(|h: Tensor| h.sin() * h.sum(..), h);
            (pull(x) * 0.5, y.sum(..))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("scan_of_linearize", |x| {
        let step = |h: Tensor, x: Tensor| {
            let (y, push) = linearize(|h: Tensor| h.tanh() * h.sum(..), h);
            (y * 0.3 + push(x), push(y).sum(..))
        };
        pair(scan(step, x[0], x[1]))
    }),
    ("scan_that_indexes", |x| {
        let step = |(at, h): Two, ()| ((at + 2, h.sin() + x[1].dynamic_index(0, at.modulo(5))), at);
        let ((at, h), ats) = scan_with(step, (x[2], x[0]), (), ScanOptions::length(4));
        vec![at, h, ats]
    }),
    ("scan_that_updates", |x| {
        let step = |(at, table): Two, x: Tensor| {
            let row = table.dynamic_index(0, at);
            let table = table.dynamic_update_index(0, at, row.sin() * x);
            ((at + 1, table * 1.1), row.sum(..))
        };
        let ((_, table), ys) = scan(step, (constant(0i32), x[0]), x[1]);
        vec![table, ys]
    }),
    ("truncated_backpropagation", |x| {
        let loss = |w: Tensor| {
            let step = |h: Tensor, x: Tensor| {
                let h = (h.stop_gradient().matmul(w) + x).tanh();
                (h, h.prod(..))
            };
            scan(step, x[0], x[1]).1.sum(..)
        };
        vec![grad(loss)(x[2])]
    }),
    ("advantages", |x| {
        let going = 1.0 - x[2];
        let step = |(advantage, after): Two, (reward, value, going): Three| {
            let delta = reward + 0.9 * after * going - value;
            let advantage = delta + 0.9 * 0.8 * going * advantage;
            ((advantage, value), advantage)
        };
        let xs = (x[0], x[1], going);
        let found = scan_with(step, (zero(), x[3]), xs, ScanOptions::reversed()).1;
        vec![found, found + x[1]]
    }),
    ("lstm_gradients", |x| {
        let loss = |(wh, wx): Two| {
            let step = |(c, h): Two, y: Tensor| {
                let gates = (y.matmul(wx) + h.matmul(wh)).split(4, 0);
                let c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh();
                ((c, gates[3].sigmoid() * c.tanh()), h.sum(..))
            };
            let start = (x[0].sum(..).broadcast_to([3]), zeros([3], F32));
            let ((_, h), ys) = scan(step, start, x[1].t());
            h.square().sum(..) + ys.sum(..)
        };
        pair(grad(loss)((x[2], x[3])))
    }),
    ("runge_kutta", |x| {
        let slope = |y: Tensor| stack(&[y.index_axis(0, 1), -y.index_axis(0, 0).sin()], 0);
        let step = |_, y: Tensor| {
            let a = slope(y);
            let b = slope(y + 0.1 * a);
            let c = slope(y + 0.1 * b);
            let d = slope(y + 0.2 * c);
            y + (0.2 / 6.0) * (a + 2.0 * b + 2.0 * c + d)
        };
        vec![fori_loop(0, 4, step, x[0])]
    }),
    ("fori_of_a_tuple", |x| {
        let step = |k: Tensor, (x, y): Two| (y.sin() * (k + 1).to(F32), x + y * 0.5);
        pair(fori_loop(0, 3, step, (x[0], x[1])))
    }),
    ("fori_of_fori", |x| {
        let inner = |j: Tensor, x: Tensor| x.sin() + j.to(F32) * x;
        let outer = |k: Tensor, x: Tensor| fori_loop(0, 3, inner, x * (k + 1).to(F32));
        vec![fori_loop(0, 2, outer, x[0])]
    }),
    ("map_of_grad", |x| vec![map(grad(|y: Tensor| y.matmul(x[1]).tanh().square()), x[0])]),
    ("map_of_map", |x| vec![map(|row: Tensor| map(|x: Tensor| x.sin() * x.sum(..), row), x[0])]),
    ("vmap_of_fori", |x| {
        let each = |(x, w): Two| fori_loop(0, 3, |_, h: Tensor| (h * w).sin() + x, ones([3], F32));
        vec![vmap(each)((x[0], x[1]))]
    }),
    ("value_iteration", |x| {
        let each =
            |(r, d): Two| fori_loop(0, 4, |_, v: Tensor| r + d * v.flip(0).tanh(), zeros([2], F32));
        vec![vmap(each)((x[0], x[1]))]
    }),
    ("scan_of_matrices", |x| {
        let step = |a: Tensor, ()| {
            let a = a.matmul(x[0]).tanh();
            (a, a.matmul(x[1]))
        };
        pair(scan_with(step, eye(3, F32), (), ScanOptions::length(3)))
    }),
    ("scan_with_two_stacks", |x| {
        let step = |h: Tensor, (x, k): Two| ((h + x * k).sin(), (h * k, (x, k)));
        let (h, (hs, (xs, ks))) = scan(step, x[0], (x[1], arange(4, F32)));
        vec![h, hs, xs, ks]
    }),
];

/// Turns `(n - 1, f(x))` while `n` is positive; gives the last `x`.
pub fn countdown(n: Tensor, x: Tensor, f: impl Fn(Tensor, Tensor) -> Tensor) -> Two {
    while_loop(|(n, _): Two| n.gt(0), |(n, x): Two| (n - 1, f(n, x)), (n, x))
}

/// Turns `(k + 1, f(k, x))` while `k` is below `n`.
fn count_up(n: Tensor, x: Tensor, f: impl Fn(Tensor, Tensor) -> Tensor) -> Two {
    while_loop(|(k, _): Two| k.lt(n), |(k, x): Two| (k + 1, f(k, x)), (constant(0i32), x))
}

/// See `make.py`.
pub const WHILES: &[Function] = &[
    ("newton", |x| {
        let step = |(y, n): Two| (0.5 * (y + x[0] / y), n + 1);
        pair(while_loop(|(_, n): Two| n.lt(5), step, (x[0], constant(0i32))))
    }),
    ("while_with_trip_counts", |x| pair(countdown(x[0], x[1], |_, x| x.sin() * 1.5 + x))),
    ("while_that_may_not_run", |x| pair(countdown(x[0], x[1], |_, x| x.square()))),
    ("while_with_a_mapped_condition", |x| {
        let step = |(a, b): Two| (a * 1.3 + 0.5, b.sin() + a);
        pair(while_loop(|(a, _): Two| a.lt(x[0]), step, (one(), x[1])))
    }),
    ("while_with_a_mapped_constant", |x| {
        pair(countdown(x[1], ones([2], F32), |_, y| (y + x[0]).sin() * 1.2))
    }),
    ("while_in_while", |x| {
        let step = |k: Tensor, y: Tensor| count_up(x[1] + k, y, |_, z| z.sin() + y).1 * 0.5;
        pair(countdown(x[0], x[2], step))
    }),
    ("while_of_scan", |x| {
        let step = |_, y: Tensor| {
            let (y, ys) = scan(|h: Tensor, x: Tensor| (h.sin() * x, h.sum(..)), y, x[2]);
            y + ys.sum(..)
        };
        pair(countdown(x[0], x[1], step))
    }),
    ("scan_of_while", |x| {
        let step =
            |h: Tensor, (n, x): Two| (countdown(n, h + x, |_, y| (y * x).sin() + 0.5).1, h.sum(..));
        pair(scan(step, ones([2], F32), (x[0], x[1])))
    }),
    ("cond_of_while", |x| {
        let going = |y: Tensor| countdown(x[1], y, |_, y| y.sin() * x[0]).1;
        vec![cond(x[0].gt(0.45), going, |y| y * x[0], x[2])]
    }),
    ("while_of_cond", |x| {
        let step =
            |k: Tensor, y: Tensor| cond((k % 2).eq(0), |y: Tensor| y.sin(), |y| y * k.to(F32), y);
        pair(countdown(x[0], x[1], step))
    }),
    ("vmap_of_while", |x| {
        let each = |(n, y): Two| count_up(n, y, |k, y| y.sin() + k.to(F32));
        pair(vmap(each)((x[0], x[1])))
    }),
    ("vmap_of_while_of_grad", |x| {
        let each =
            |(n, y): Two| count_up(n, y, |_, y| y - 0.1 * grad(|y: Tensor| y.cos().prod(..))(y)).1;
        vec![vmap(each)((x[0], x[1]))]
    }),
    ("collatz", |x| {
        let each = |n: Tensor| {
            let step =
                |(n, count): Two| (where_((n % 2).eq(0), n.floor_div(2), 3 * n + 1), count + 1);
            while_loop(|(n, _): Two| n.ne(1), step, (n, constant(0i32))).1
        };
        vec![vmap(each)(x[0].maximum(1))]
    }),
    ("while_to_a_fixed_point", |x| {
        let step = |(y, _): Two| (x[1].matmul(y).tanh() + x[0], y);
        let going = |(y, before): Two| (y - before).abs().max(..).gt(1e-2);
        vec![while_loop(going, step, (x[0], zeros_like(x[0]))).0]
    }),
];
