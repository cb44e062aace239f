//! `checkpoint` with every policy, nested and transformed.

use podracer::trace::control::{ScanOptions, cond, scan, scan_with};
use podracer::{
    RematPolicy, Tensor, checkpoint, checkpoint_name, checkpoint_with, custom_jvp, grad, vmap,
};

use super::Function;
use super::loops::{cell, countdown};

type Two = (Tensor, Tensor);
type Three = (Tensor, Tensor, Tensor);

fn layers((x, w1, w2): Three) -> Tensor {
    let h = checkpoint_name(x.matmul(w1).sin(), "hidden");
    checkpoint_name(h.matmul(w2), "out").tanh() * h.sin().sum(..)
}

fn layers_with(policy: RematPolicy, x: &[Tensor]) -> Vec<Tensor> {
    vec![checkpoint_with(policy, layers)((x[0], x[1], x[2]))]
}

fn pair((a, b): Two) -> Vec<Tensor> {
    vec![a, b]
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("remat_nothing", |x| vec![checkpoint(layers)((x[0], x[1], x[2]))]),
    ("remat_everything", |x| layers_with(RematPolicy::EverythingSaveable, x)),
    ("remat_dots", |x| layers_with(RematPolicy::DotsSaveable, x)),
    ("remat_dots_without_batch", |x| layers_with(RematPolicy::DotsWithNoBatchDimsSaveable, x)),
    ("remat_names", |x| layers_with(RematPolicy::SaveOnlyTheseNames(vec!["hidden"]), x)),
    ("remat_all_but_names", |x| {
        layers_with(RematPolicy::SaveAnythingExceptTheseNames(vec!["hidden", "out"]), x)
    }),
    ("remat_batched_dots", |x| {
        let f = |(y, z): Two| vmap(|(y, z): Two| y.matmul(z))((y, z)).sin().matmul(x[2]);
        vec![checkpoint_with(RematPolicy::DotsWithNoBatchDimsSaveable, f)((x[0], x[1])).tanh()]
    }),
    ("scan_of_remat", |x| {
        let step = |h, y| checkpoint(|(h, y): Two| cell(h, y, x[2]))((h, y));
        pair(scan(step, x[0], x[1]))
    }),
    ("scan_of_remat_dots", |x| {
        let f = |(h, y): Two| cell(h, y, x[2]);
        let step = |h, y| checkpoint_with(RematPolicy::DotsSaveable, f)((h, y));
        pair(scan_with(step, x[0], x[1], ScanOptions::reversed()))
    }),
    ("remat_of_scan", |x| {
        let f = |(h, xs, w): Three| scan(|h, x| cell(h, x, w), h, xs);
        pair(checkpoint(f)((x[0], x[1], x[2])))
    }),
    ("remat_names_of_scan", |x| {
        let step = |h: Tensor, y: Tensor| {
            let h = checkpoint_name((h.matmul(x[2]) + y).tanh(), "h");
            (h, h.sin().sum(..))
        };
        let f = |(h, xs): Two| scan(step, h, xs);
        pair(checkpoint_with(RematPolicy::SaveOnlyTheseNames(vec!["h"]), f)((x[0], x[1])))
    }),
    ("remat_of_remat", |x| {
        let inner = checkpoint(|y: Tensor| y.sin().sin());
        vec![checkpoint(|y: Tensor| inner(y).cos() * inner(y * 2.0))(x[0])]
    }),
    ("remat_of_cond", |x| {
        let f = |(s, y): Two| cond(s.gt(0.0), |y: Tensor| y.sin().sin(), |y| y.powi(3) * s, y);
        vec![checkpoint(f)((x[0], x[1])).cos()]
    }),
    ("cond_of_remat", |x| {
        let on_true = checkpoint(|y: Tensor| y.sin().sin() * x[0]);
        vec![cond(x[0].gt(0.0), on_true, Tensor::square, x[1])]
    }),
    ("vmap_of_remat", |x| vec![vmap(checkpoint(|y: Tensor| y.matmul(x[1]).tanh().sin()))(x[0])]),
    ("remat_of_vmap", |x| {
        let each = |y: Tensor| y.matmul(x[1]).tanh().sin().prod(..);
        vec![checkpoint(|xs: Tensor| vmap(each)(xs))(x[0])]
    }),
    ("remat_of_grad", |x| vec![checkpoint(grad(|y: Tensor| y.matmul(x[1]).tanh().prod(..)))(x[0])]),
    ("grad_of_remat", |x| {
        let g = checkpoint(|(y, w): Two| y.matmul(w).sin().tanh());
        pair(grad(|(y, w): Two| g((g((y, w)), w)).prod(..))((x[0], x[1])))
    }),
    ("remat_of_while", |x| {
        vec![checkpoint(|y: Tensor| countdown(x[1], y, |_, y| y.sin() * 1.1).1)(x[0])]
    }),
    ("remat_of_custom_jvp", |x| {
        let rule = |(x, y): Two, (s, t): Two| (x.sin() * y, 3.0 * x * s + y * x * t);
        let odd = custom_jvp(|(x, y): Two| x.sin() * y, rule);
        vec![checkpoint(|(x, y): Two| odd((x.sin(), y)).tanh())((x[0], x[1]))]
    }),
];
