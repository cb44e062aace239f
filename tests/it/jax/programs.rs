//! Control flow and nested transformations.

use podracer::trace::control::{cond, fori_loop, scan, switch, while_loop};
use podracer::trace::ops::{constant, eye};
use podracer::{DType, Tensor, grad, jvp, vmap};

use super::Function;

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("cond", |x| vec![cond(x[1].gt(0.0), |y: Tensor| y.sin() * x[1], |y| y.square(), x[0])]),
    ("vmap_of_cond", |x| {
        let one = |(x, y): (Tensor, Tensor)| cond(x.gt(0.0), |y| y * x, |y| y * y, y);
        vec![vmap(one)((x[0], x[1]))]
    }),
    ("vmap_of_switch", |x| {
        let branches: [&dyn Fn(Tensor) -> Tensor; 3] =
            [&Tensor::sin, &Tensor::square, &|x| x * 3.0];
        vec![vmap(|(i, x): (Tensor, Tensor)| switch(i, &branches, x))((x[0], x[1]))]
    }),
    ("vmap_of_while", |x| {
        let one = |n: Tensor| {
            let going = |(n, _): (Tensor, Tensor)| n.gt(0);
            while_loop(going, |(n, y)| (n - 1, y * 2 + 1), (n, constant(1i32))).1
        };
        vec![vmap(one)(x[0])]
    }),
    ("fori", |x| vec![fori_loop(0, 4, |i, x: Tensor| x.sin() * (i + 1).to(DType::F32), x[0])]),
    ("power_iteration", |x| {
        let step = |_, v: Tensor| {
            let v = x[0].matmul(v);
            v / v.norm()
        };
        let v = fori_loop(0, 3, step, x[1]);
        vec![v.matmul(x[0]).matmul(v)]
    }),
    ("scan_of_scan", |x| {
        let inner = |h: Tensor, x: Tensor| ((h * x + h.sum(..)).tanh(), h.sum(..));
        let (h, ys) = scan(|h: Tensor, row: Tensor| scan(inner, h, row), x[0], x[1]);
        vec![h, ys]
    }),
    ("hessian", |x| {
        let f = |x: Tensor| (x.sin() * x.sum(..)).prod(..);
        let column = |v: Tensor| jvp(grad(f), x[0], v).1;
        vec![vmap(column)(eye(3, DType::F32))]
    }),
    ("hessian_vector", |x| {
        let g = grad(|x: Tensor| (x * x.sum(..)).tanh().sum(..));
        vec![jvp(g, x[0], x[1]).1]
    }),
    ("vmap_of_grad", |x| vec![vmap(grad(|row: Tensor| row.matmul(x[1]).tanh().square()))(x[0])]),
    ("grad_of_vmap", |x| {
        let total = |w: Tensor| vmap(|row: Tensor| row.matmul(w).tanh())(x[0]).sum(..);
        vec![grad(total)(x[1])]
    }),
];
