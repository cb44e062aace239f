//! Functions that communicate along a named axis, for `vmap_axis` and for `pmap`.

use podracer::trace::control::{ScanOptions, cond, scan, scan_with, while_loop};
use podracer::trace::ops::{arange, constant, ones, zeros};
use podracer::trace::{LeafAxes, VmapOptions, vmap_with};
use podracer::{
    Axis, DType, Tensor, all_gather, all_gather_tiled, all_to_all, axis_index, checkpoint,
    custom_vjp, grad, pmax, pmean, pmin, ppermute, psum, psum_scatter, psum_scatter_tiled,
    value_and_grad, vmap, vmap_axis,
};

use super::orders::Orders;
use crate::fixture::Kinds;

/// A function of `collectives.py`, stated once more: what one member does.
pub type AxisFunction = (&'static str, fn(Axis, &[Tensor]) -> Vec<Tensor>);

/// Checks inside of the mapped function, and the kinds of the fixture that they are held to.
pub const INSIDE: [(&str, &str); 8] = [
    ("values", "out"),
    ("jvp", "tan"),
    ("linearize", "tan"),
    ("vjp", "grad"),
    ("jvp of vjp", "fr"),
    ("linearize of vjp", "fr"),
    ("vjp of vjp", "rr"),
    ("jvp of jvp", "tt"),
];

/// The checks of [`INSIDE`] that the fixture asks for, by one member.
pub fn inside(
    f: fn(Axis, &[Tensor]) -> Vec<Tensor>,
    kinds: &Kinds,
    axis: Axis,
    [x, cts, v]: [&[Tensor]; 3],
) -> Vec<Vec<Tensor>> {
    let member = |x: &[Tensor]| f(axis, x);
    let orders = Orders(&member);
    let found = |check: &str| match check {
        "values" => f(axis, x),
        "jvp" => orders.tan(x, v),
        "linearize" => orders.push(x, v),
        "vjp" => orders.grad(x, cts),
        "jvp of vjp" => orders.fr(x, cts, v),
        "linearize of vjp" => orders.push_fr(x, cts, v),
        "vjp of vjp" => orders.rr(x, cts, v),
        "jvp of jvp" => orders.tt(x, v),
        other => panic!("no check {other}"),
    };
    let asked = INSIDE.iter().filter(|(_, kind)| kinds.contains_key(*kind));
    asked.map(|(check, _)| found(check)).collect()
}

type Two = (Tensor, Tensor);

const F32: DType = DType::F32;
const N: usize = 8;

fn ring() -> Vec<(usize, usize)> {
    (0..N).map(|k| (k, (k + 1) % N)).collect()
}

fn columns() -> VmapOptions {
    VmapOptions { in_axes: LeafAxes::All(1), ..VmapOptions::default() }
}

fn pair((a, b): Two) -> Vec<Tensor> {
    vec![a, b]
}

/// See `collectives.py`.
pub const FUNCTIONS: &[AxisFunction] = &[
    ("sum_of_products", |i, x| vec![psum(x[0].sin() * x[0], i) * x[0]]),
    ("mean_of_sines", |i, x| vec![(pmean(x[0].sin(), i) * x[0]).tanh()]),
    ("extremes_without_derivative", |i, x| {
        let fixed = x[0].stop_gradient();
        vec![(x[0] - pmax(fixed, i)).sin(), x[0] * pmin(fixed, i)]
    }),
    ("softmax_over_members", |i, x| {
        let e = (x[0] - pmax(x[0].stop_gradient(), i).stop_gradient()).exp();
        vec![e / psum(e, i)]
    }),
    ("gathered", |i, x| {
        vec![(all_gather(x[0].sin(), i, 0) * arange(8, F32).expand_dims(1)).sum(0) * x[0]]
    }),
    ("gathered_in_the_middle", |i, x| vec![all_gather(x[0].sin(), i, 1).prod(1) + x[0]]),
    ("gathered_in_blocks", |i, x| {
        vec![all_gather_tiled(x[0], i, 1).square().cumsum(1) * x[0].sum(..)]
    }),
    ("scattered", |i, x| vec![psum_scatter(x[0].sin() * x[0], i, 0).sin()]),
    ("scattered_along_the_last", |i, x| {
        vec![psum_scatter(x[0].square(), i, 1) * x[0].index_axis(1, 0)]
    }),
    ("scattered_in_blocks", |i, x| {
        vec![psum_scatter_tiled(x[0].sin(), i, 0).sin() * x[0].slice_axis(0, 0, 2)]
    }),
    ("exchanged", |i, x| vec![all_to_all(x[0].sin(), i, 0, 0) * x[0]]),
    ("exchanged_to_the_last", |i, x| vec![all_to_all(x[0].square(), i, 0, 1).sin() * x[0].t()]),
    ("around_the_ring", |i, x| vec![ppermute(x[0].sin(), i, &ring()) * x[0]]),
    ("to_some", |i, x| {
        vec![ppermute(x[0].sin(), i, &[(0, 3), (5, 1), (2, 2)]) * x[0] + x[0].square()]
    }),
    ("by_number", |i, x| {
        let k = axis_index(i);
        let y = x[0] * k.to(F32);
        vec![y.sin() + psum(y, i), k * 2]
    }),
    ("sum_of_a_tree", |i, x| {
        let (a, (b, c)) = psum((x[0].square(), (x[1].sin(), x[2])), i);
        vec![a * x[0], b, c]
    }),
    ("sum_of_the_same", |i, x| {
        let two = psum(constant(2.0f32), i);
        vec![psum(ones([3], F32), i) * x[0], two + x[0].sin()]
    }),
    ("sum_of_sums", |i, x| vec![(psum(psum(x[0], i).square() * x[0], i) * 0.01).sin()]),
    ("normalized_over_members", |i, x| {
        let mean = pmean(x[0].mean(0), i);
        let var = pmean((x[0] - mean).square().mean(0), i);
        vec![(x[0] - mean) * (var + 1e-2).rsqrt() * x[1]]
    }),
    ("scan_of_means", |i, x| {
        let step = |h: Tensor, k: Tensor| {
            let h = (h + pmean(h * x[0], i)).sin() * k;
            (h, h.sum(..))
        };
        pair(scan(step, x[0], arange(3, F32) + 1.0))
    }),
    ("scan_around_the_ring", |i, x| {
        let step = |(part, total): Two, ()| {
            let total = total + (part * x[1]).sin();
            ((ppermute(part, i, &ring()), total), part.sum(..))
        };
        let start = (x[0], zeros([3], F32));
        let ((part, total), sums) = scan_with(step, start, (), ScanOptions::length(3));
        vec![part, total, sums]
    }),
    ("cond_that_all_share", |i, x| {
        let positive = psum(x[0].sum(..), i).gt(0.0);
        let on_true = |x: Tensor| psum(x.sin(), i) * x;
        vec![cond(positive, on_true, |x: Tensor| pmean(x.square(), i) + x, x[0])]
    }),
    ("while_that_all_share", |i, x| {
        let most = pmax(x[1], i);
        let step = |(k, y): Two| (k + 1, y.sin() + pmean(y, i));
        pair(while_loop(|(k, _): Two| k.lt(most), step, (constant(0i32), x[0])))
    }),
    ("mean_gradient", |i, x| {
        let loss = |w: Tensor| (x[0].matmul(w).tanh() - x[1]).square().mean(..);
        let (value, g) = pmean(value_and_grad(loss)(x[2]), i);
        vec![value, x[2] - 0.1 * g]
    }),
    ("gradient_through_the_sum", |i, x| {
        let loss = |w: Tensor| (psum(w.matmul(x[0]), i) * 0.3).tanh().square() + w.square().sum(..);
        vec![grad(loss)(x[1])]
    }),
    ("local_steps", |i, x| {
        let step = |w: Tensor, y: Tensor| {
            let w = w - 0.2 * grad(|w: Tensor| y.matmul(w).cos())(w);
            (pmean(w, i), w.sum(..))
        };
        pair(scan(step, x[1], x[0]))
    }),
    ("clipped_by_the_global_norm", |i, x| {
        let norm = psum(x[0].square().sum(..), i).sqrt();
        vec![x[0] * (2.0 / norm).minimum(1.0) * x[1], norm]
    }),
    ("sum_computed_again", |i, x| {
        let g = checkpoint(|(y, w): Two| psum(y.matmul(w).tanh(), i).sin() * y);
        vec![g((g((x[0], x[1])), x[1]))]
    }),
    ("tensor_parallel_layer", |i, x| {
        let copied = custom_vjp(|y: Tensor| y, |y| (y, ()), |(), ct| psum(ct, i));
        let reduced = custom_vjp(|y: Tensor| psum(y, i), |y| (psum(y, i), ()), |(), ct| ct);
        vec![reduced(copied(x[0]).matmul(x[1]).tanh().matmul(x[2]))]
    }),
    ("batch_inside", |i, x| {
        let each = |row: Tensor| psum(row.sin(), i) * row + all_gather(row, i, 0).sum(0);
        vec![vmap(each)(x[0])]
    }),
    ("batch_of_exchanges_inside", |i, x| {
        let each = |column: Tensor| ppermute(column.sin(), i, &ring()) * column;
        let options = VmapOptions { out_axes: LeafAxes::All(1), ..columns() };
        vec![vmap_with(options, each)(x[0])]
    }),
    ("batch_of_scatters_inside", |i, x| {
        let each = |column: Tensor| psum_scatter(column.sin(), i, 0) * column.sum(..);
        vec![vmap_with(columns(), each)(x[0])]
    }),
    ("two_axes", |i, x| {
        let each = |j: Axis, row: Tensor| psum(psum(row.sin(), j) * row, i) * row;
        vec![vmap_axis("j", each)(x[0])]
    }),
];
