//! `cond` and `switch`, nested and transformed.

use podracer::trace::control::{ScanOptions, cond, scan, scan_with, switch};
use podracer::trace::jacobian::hessian;
use podracer::trace::ops::{ones, zeros};
use podracer::{DType, Tensor, grad, vmap};

use super::Function;

type Two = (Tensor, Tensor);
type Branch<'f> = &'f dyn Fn(Tensor) -> Tensor;

const F32: DType = DType::F32;

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("cond_in_cond", |x| {
        let (s, t) = (x[0], x[1]);
        let inner = |y: Tensor| cond(t.gt(0.0), |y: Tensor| y.sin() * t, |y| y.powi(3) * s, y);
        vec![cond(s.gt(0.0), inner, |y| y * s * t, x[2])]
    }),
    ("cond_with_a_constant_branch", |x| {
        let (a, b) = cond(
            x[0].gt(0.0),
            |y: Tensor| (y * x[2], ones([2], F32)),
            |_| (zeros([3], F32), x[2].slice_axis(0, 0, 2) * x[0]),
            x[1],
        );
        vec![a, b]
    }),
    ("cond_with_an_unused_operand", |x| {
        let (on_true, on_false) = (|(a, _): Two| a.square(), |(a, _): Two| a.sin() * x[0]);
        vec![cond(x[0].gt(0.0), on_true, on_false, (x[1], x[2]))]
    }),
    ("cond_of_integers", |x| {
        let (a, b, c) = cond(
            x[0].gt(0.0),
            |(n, y): Two| (n * 2, y * n.to(F32), y.gt(0.0)),
            |(n, y)| (n + 1, y.square(), y.lt(0.0)),
            (x[1], x[2]),
        );
        vec![a, b, c]
    }),
    ("cond_with_unlike_residuals", |x| {
        let on_true = |y: Tensor| y.matmul(x[2]).sin().sum(..);
        let on_false = |y: Tensor| (y.outer(y).cos() * x[0]).sum(..) + y.tanh().prod(..);
        vec![cond(x[0].gt(0.0), on_true, on_false, x[1])]
    }),
    ("cond_of_grad", |x| {
        let on_true = grad(|y: Tensor| y.sin().prod(..));
        let on_false = grad(|y: Tensor| y.powi(3).sum(..) * x[0]);
        vec![cond(x[0].gt(0.0), on_true, on_false, x[1])]
    }),
    ("grad_of_cond", |x| {
        let loss = |y: Tensor| {
            let positive = (y.sum(..) + x[0]).gt(0.0);
            cond(positive, |y: Tensor| y.sin().prod(..), |y| y.powi(3).sum(..), y)
        };
        vec![grad(loss)(x[1])]
    }),
    ("vmap_of_grad_of_cond", |x| {
        let each = |(y, s): Two| {
            let loss = |y: Tensor| {
                cond(s.gt(0.0), |y: Tensor| y.sin().prod(..) * s, |y| y.powi(3).sum(..), y)
            };
            grad(loss)(y)
        };
        vec![vmap(each)((x[1], x[0]))]
    }),
    ("vmap_of_cond_with_one_predicate", |x| {
        let each = |y: Tensor| cond(x[0].gt(0.0), |y: Tensor| y.sin(), |y| y * x[0], y);
        vec![vmap(each)(x[1])]
    }),
    ("hessian_of_cond", |x| {
        let loss = |y: Tensor| {
            let on_false = |y: Tensor| y.exp().prod(..) * x[0];
            cond(x[0].gt(0.0), |y: Tensor| y.sin().prod(..), on_false, y)
        };
        vec![hessian(loss)(x[1])]
    }),
    ("cond_of_scan", |x| {
        let step = |h: Tensor, y: Tensor| ((h * y).sin(), h.sum(..) * x[0]);
        let going = |h: Tensor| scan(step, h, x[2]);
        let (h, ys) = cond(x[0].gt(0.0), going, |h| (h * x[0], x[2].sum(1)), x[1]);
        vec![h, ys]
    }),
    ("switch_of_tuples", |x| {
        let branches: [&dyn Fn(Two) -> Two; 3] =
            [&|(x, y)| (x * y, x), &|(x, y)| (x.sin(), y.square()), &|(x, y)| (y, (-x).exp())];
        let (a, b) = switch(x[0], &branches, (x[1], x[2]));
        vec![a, b]
    }),
    ("switch_outside_its_range", |x| {
        let branches: [Branch; 3] = [&Tensor::sin, &Tensor::cos, &Tensor::tanh];
        vec![switch(x[0], &branches, x[1])]
    }),
    ("switch_of_one", |x| {
        let branches: [Branch; 1] = [&|y| y.sin() * y.sum(..)];
        vec![switch(x[0], &branches, x[1])]
    }),
    ("switch_in_switch", |x| {
        let inner = |y: Tensor| {
            let branches: [Branch; 3] = [&Tensor::sin, &Tensor::cos, &|y| y * y.sum(..)];
            switch(x[1], &branches, y)
        };
        let branches: [Branch; 3] = [&inner, &|y| inner(y.square()), &Tensor::tanh];
        vec![switch(x[0], &branches, x[2])]
    }),
    ("switch_of_loops", |x| {
        let forwards = |h: Tensor, y: Tensor| ((h * y).sin(), h);
        let backwards = |h: Tensor, y: Tensor| ((h * y).cos(), h * 2.0);
        let branches: [&dyn Fn(Tensor) -> Two; 3] = [
            &|h| scan(forwards, h, x[2]),
            &|h| scan_with(backwards, h, x[2], ScanOptions::reversed()),
            &|h| (h.square(), x[2] * h),
        ];
        let (h, ys) = switch(x[0], &branches, x[1]);
        vec![h, ys]
    }),
    ("vmap_of_vmap_of_switch", |x| {
        let (a, b) = (x[2].index_axis(0, 0), x[2].index_axis(0, 1));
        let each = |k: Tensor, y: Tensor| {
            let branches: [Branch; 3] = [&|y| y * a, &Tensor::sin, &|y| y.square() * b];
            switch(k, &branches, y)
        };
        vec![vmap(|k: Tensor| vmap(|y: Tensor| each(k, y))(x[1].ravel()))(x[0])]
    }),
    ("cond_by_a_bool", |x| vec![cond(x[0], |()| x[1] * x[2], |()| x[2].sin(), ())]),
];
