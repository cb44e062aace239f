//! Windows, scatters, running results, order, products by name, and functions made of others.

use podracer::Tensor;
use podracer::associative_scan;
use podracer::trace::numpy::{WindowOptions, einsum, lexsort, qr, tensordot};
use podracer::trace::op::ReduceOp;
use podracer::trace::ops::constant;

use super::Function;

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("pools", |x| {
        let window = WindowOptions::new(&[1, 2, 3, 1]);
        let at = |strides: [usize; 4], padding: [(i64, i64); 4]| {
            window.clone().strides(&strides).padding(&padding)
        };
        let (none, rows, columns) = ((0, 0), (0, 1), (0, 1));
        vec![
            x[0].reduce_window(ReduceOp::Max, &at([1, 1, 2, 1], [none; 4])),
            x[0].reduce_window(ReduceOp::Min, &at([1, 2, 2, 1], [none, rows, columns, none])),
            x[0].reduce_window(ReduceOp::Sum, &at([1, 2, 1, 1], [none, rows, (1, 1), none])),
        ]
    }),
    ("pool_ties", |x| vec![x[0].reduce_window(ReduceOp::Max, &WindowOptions::new(&[2, 2]))]),
    ("dilated_windows", |x| {
        let mut window = WindowOptions::new(&[2, 2]).strides(&[1, 2]);
        window.window_dilation = [2, 3].as_slice().into();
        vec![x[0].reduce_window(ReduceOp::Sum, &window)]
    }),
    ("scatter_extremes", |x| vec![x[0].at(&[x[1]]).max(x[2]), x[0].at(&[x[1]]).min(x[2])]),
    ("scatter_max_ties", |x| vec![x[0].at(&[x[1]]).max(x[2])]),
    ("scatter_multiply", |x| vec![x[0].at(&[x[1]]).multiply(constant([2.0f32, 3.0, 5.0]))]),
    ("cumulatives", |x| {
        let x = x[0];
        vec![
            x.cumsum(1),
            x.cumsum_reverse(1),
            x.cumprod(0),
            x.cumprod_reverse(1),
            x.cumlogsumexp(1),
        ]
    }),
    ("cumulative_extremes", |x| vec![x[0].cummax(1), x[0].cummin(0)]),
    ("associative", |x| {
        let run = |reverse| {
            let compose = |(a, b): (Tensor, Tensor), (c, d): (Tensor, Tensor)| (a * c, c * b + d);
            associative_scan(compose, (x[0], x[1]), 0, reverse).1
        };
        vec![run(false), run(true)]
    }),
    ("descending", |x| vec![x[0].sort_descending(1), x[0].argsort_descending(1)]),
    ("descending_ties", |x| vec![x[0].argsort_descending(0)]),
    ("largest", |x| {
        let (values, indices) = x[0].top_k(3);
        vec![values, indices]
    }),
    ("largest_ties", |x| {
        let (values, indices) = x[0].top_k(4);
        vec![values, indices]
    }),
    ("searches", |x| vec![x[0].searchsorted(x[1], false), x[0].searchsorted(x[1], true)]),
    ("membership", |x| vec![x[0].isin(x[1])]),
    ("places", |x| [x[0].nonzero(2, -1), x[0].nonzero(5, -1)].concat()),
    ("counts", |x| vec![x[0].bincount(6)]),
    ("by_two_keys", |x| vec![lexsort(&[x[0], x[1]], 0)]),
    ("quantiles", |x| vec![x[0].median(1), x[0].quantile(0.3, 0)]),
    ("einsum_formulas", |x| {
        let [a, b, c, d] = [x[0], x[1], x[2], x[3]];
        vec![
            einsum("ij,jk->ik", &[a, b]),
            einsum("ij,jk,k", &[a, b, c]),
            einsum("bij->bji", &[d]),
            einsum("...ij,jk->...ik", &[d, b]),
            einsum("bij,ij->b", &[d, a]),
            einsum("ij->", &[a]),
        ]
    }),
    ("einsum_diagonals", |x| {
        let [a, b, c] = [x[0], x[1], x[2]];
        vec![
            einsum("ii", &[a]),
            einsum("ii->i", &[a]),
            einsum("...i,...i->...", &[b, c]),
            einsum("ij,ij->j", &[a, a]),
        ]
    }),
    ("products", |x| {
        let [a, b, c] = [x[0], x[1], x[2]];
        vec![
            tensordot(a.t(), b.index_axis(0, 0), 1),
            a.inner(c),
            a.vdot(a * 2.0),
            tensordot(a.t(), b, 2),
        ]
    }),
    ("crosses", |x| vec![x[0].cross(x[1])]),
    ("diagonals", |x| {
        let a = x[0];
        vec![a.diagonal(), a.trace(), x[1].diag(), a.triu(0), a.triu(1), a.tril(-1)]
    }),
    ("norms", |x| {
        let a = x[0];
        vec![
            a.norm_along(1.0, 1),
            a.norm_along(2.0, 0),
            a.norm_along(f64::INFINITY, 1),
            a.norm_along(3.0, 1),
        ]
    }),
    ("qrs", |x| {
        let (q, r) = qr(x[0]);
        vec![q, r]
    }),
    ("inverse_functions", |x| {
        let x = x[0];
        vec![x.asin(), x.acos(), (x * 4.0).atan(), (x * 4.0).asinh(), (x + 2.5).acosh(), x.atanh()]
    }),
    ("hyperbolic", |x| vec![x[0].sinh(), x[0].cosh()]),
    ("bases", |x| {
        let x = x[0];
        vec![x.cbrt(), x.exp2(), x.log2(), x.log10(), x.hypot(x * 2.0)]
    }),
    ("truncated", |x| vec![x[0].trunc()]),
    ("without_nan", |x| {
        let x = x[0];
        vec![x.nansum(1), x.nanmean([0]), x.nanmax(..), x.nanmin(1), x.count_nonzero(1)]
    }),
    ("statistics", |x| vec![x[0].average(x[1], [0]), x[0].ptp([1]), x[0].diff(1)]),
    ("turns", |x| {
        let x = x[0];
        let mut all: Vec<Tensor> = [1, 2, 3].map(|k| x.rot90(k, 0, 1)).to_vec();
        all.extend(x.array_split(3, 1));
        all
    }),
];
