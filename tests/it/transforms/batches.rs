//! `vmap` along other axes, nested, of single operations, and of whole trainings.

use podracer::trace::control::fori_loop;
use podracer::trace::jacobian::hessian;
use podracer::trace::ops::{Padding, arange, concatenate, one_hot, ones};
use podracer::trace::{LeafAxes, VmapOptions, vmap_with};
use podracer::{DType, Tensor, grad, jvp, vjp, vmap};

use super::Function;
use super::derivatives::conv;

type Two = (Tensor, Tensor);
type Three = (Tensor, Tensor, Tensor);

const F32: DType = DType::F32;

fn axes(in_axes: isize, out_axes: isize) -> VmapOptions {
    let (in_axes, out_axes) = (LeafAxes::All(in_axes), LeafAxes::All(out_axes));
    VmapOptions { in_axes, out_axes, ..VmapOptions::default() }
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("vmap_of_columns", |x| {
        vec![vmap_with(axes(1, 0), |y: Tensor| (y * x[1]).sin().sum(..))(x[0])]
    }),
    ("vmap_to_the_last_axis", |x| {
        vec![vmap_with(axes(0, -1), |y: Tensor| y.sin() * y.sum(..))(x[0])]
    }),
    ("vmap_of_the_middle_axis", |x| {
        vec![vmap_with(axes(-2, 1), |y: Tensor| y.cumsum(0) * y)(x[0])]
    }),
    ("vmap_of_vmap", |x| vec![vmap(|a: Tensor| vmap(|b: Tensor| (a * b).sin())(x[1]))(x[0])]),
    ("vmap_of_a_form", |x| {
        let form = |a: Tensor, b: Tensor| a.matmul(x[2]).matmul(b);
        vec![vmap(|a: Tensor| vmap(|b: Tensor| form(a, b))(x[1]))(x[0])]
    }),
    ("vmap_of_matmul", |x| {
        let first = |i: usize| x[i].index_axis(0, 0);
        vec![
            vmap(|(a, b): Two| a.matmul(b))((x[0], x[1])),
            vmap(|a: Tensor| a.matmul(first(1)))(x[0]),
            vmap(|b: Tensor| first(0).matmul(b))(x[1]),
        ]
    }),
    ("vmap_of_conv", |x| {
        let each = |(y, w): Two| conv(y.expand_dims(0), w, 1, Padding::Same).squeeze(0);
        let kernels = |w: Tensor| conv(x[0], w, 2, Padding::Valid);
        vec![vmap(each)((x[0], x[1])), vmap(kernels)(x[1])]
    }),
    ("vmap_of_index", |x| vec![vmap(|(y, k): Two| y.square().dynamic_index(0, k))((x[0], x[1]))]),
    ("vmap_of_update", |x| {
        let each = |(x, y, k): Three| x.dynamic_update_slice(y.square(), &[k]);
        vec![vmap(each)((x[0], x[1], x[2]))]
    }),
    ("vmap_of_take", |x| {
        let take = |(y, k): Two| y.square().take_mode(k, 0, podracer::trace::ops::IndexMode::Clip);
        let first = |i: usize| x[i].index_axis(0, 0);
        vec![
            vmap(take)((x[0], x[1])),
            vmap(|k: Tensor| take((first(0), k)))(x[1]),
            vmap(|y: Tensor| take((y, first(1))))(x[0]),
        ]
    }),
    ("vmap_of_scatter", |x| {
        let add = |(x, k, y): Three| x.at(&[k]).add(y.square());
        let first = |i: usize| x[i].index_axis(0, 0);
        vec![
            vmap(add)((x[0], x[1], x[2])),
            vmap(|k: Tensor| add((first(0), k, first(2))))(x[1]),
            vmap(|y: Tensor| add((first(0), first(1), y)))(x[2]),
        ]
    }),
    ("vmap_of_sort", |x| {
        let each = |y: Tensor| (y.sort(0).square(), y.argsort(0), y.argmax(0));
        let (a, b, c) = vmap(each)(x[0]);
        vec![a, b, c]
    }),
    ("vmap_of_reductions", |x| {
        let each = |y: Tensor| {
            let product = y * x[1];
            let all = y.gt(x[1]).all(..);
            (y.max(..) * x[1].min(..), product.prod(..), all, product.softmax(-1))
        };
        let (a, b, c, d) = vmap(each)(x[0]);
        vec![a, b, c, d]
    }),
    ("vmap_of_shapes", |x| {
        let each = |y: Tensor| {
            let parts = [y, ones([2], F32), y.slice_axis(0, 1, 3) * 2.0];
            let y = concatenate(&parts, 0).reshape([2, 4]);
            (y.pad(&[0, 1], &[1, 0], 0.0).t().flip(0), y.roll(1, 1), y.tril(0))
        };
        let (a, b, c) = vmap(each)(x[0]);
        vec![a, b, c]
    }),
    ("vmap_of_one_hot", |x| vec![vmap(|k: Tensor| one_hot(k, 3, F32).matmul(x[1]))(x[0])]),
    ("vmap_of_jvp", |x| {
        let each = |y: Tensor| jvp(|y: Tensor| y.sin() * y.sum(..), y, x[1]);
        let (y, t) = vmap(each)(x[0]);
        vec![y, t]
    }),
    ("vmap_of_vjp", |x| {
        let (y, pull) = vjp(|y: Tensor| y.sin() * y.sum(..), x[0]);
        vec![y, vmap(pull)(x[1])]
    }),
    ("vmap_of_hessian", |x| vec![vmap(hessian(|y: Tensor| (y.sin() * y.sum(..)).prod(..)))(x[0])]),
    ("ensemble", |x| {
        let loss = |w: Tensor| (x[1].matmul(w).tanh() - x[2]).square().mean(..);
        let train = |w: Tensor| fori_loop(0, 3, |_, w: Tensor| w - 0.3 * grad(loss)(w), w);
        let trained = vmap(train)(x[0]);
        vec![trained, vmap(loss)(trained)]
    }),
    ("gradients_per_example", |x| {
        let each = |y: Tensor| {
            let loss = |(w, b): Two| (y.matmul(w).tanh() + b).logsumexp(..);
            grad(loss)((x[1], x[2]))
        };
        let (w, b) = vmap(each)(x[0]);
        let norms = (w.square().sum([1, 2]) + b.square().sum(1)).sqrt();
        vec![w, b, norms]
    }),
    ("vmap_of_what_is_the_same", |x| {
        let (a, b) = vmap(|k: Tensor| (x[0].sin(), x[0] * k))(arange(3, F32));
        vec![a, b]
    }),
];
