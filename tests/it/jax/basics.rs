//! Elementwise functions at the points where conventions count, reductions, order, shapes, indices.

use podracer::trace::control::scan;
use podracer::trace::ops::{concatenate, logaddexp, matmul, one_hot, ones, sort_by, stack, where_};
use podracer::{DType, Tensor};

use super::Function;

/// `x[start:limit:stride]` along the first axis of a matrix, and all of the second.
fn rows(x: Tensor, start: usize, limit: usize, stride: usize) -> Tensor {
    x.strided_slice(&[start, 0], &[limit, x.dim(1)], &[stride, 1])
}

/// See `make.py`.
pub const FUNCTIONS: &[Function] = &[
    ("relu", |x| vec![x[0].relu(), x[0].leaky_relu(0.01)]),
    ("gelu", |x| vec![x[0].gelu()]),
    ("silu", |x| vec![x[0].silu(), x[0].sigmoid(), x[0].log_sigmoid()]),
    ("elu", |x| vec![x[0].elu()]),
    ("softplus", |x| vec![x[0].softplus()]),
    ("clip_at_bounds", |x| vec![x[0].clip(-1.0, 1.0)]),
    ("clamp_at_bounds", |x| vec![x[0].clamp(-1.0, 1.0)]),
    ("abs_and_sign", |x| vec![x[0].abs(), x[0].sign()]),
    ("maximum_ties", |x| vec![x[0].maximum(x[1]), x[0].minimum(x[1])]),
    ("reduce_ties", |x| vec![x[0].max(-1), x[0].min(-1), x[0].max(..), x[0].min(0)]),
    ("prod_zeros", |x| vec![x[0].prod(-1), x[0].prod(0), x[0].prod(..)]),
    ("powers", |x| {
        let (x, y) = (x[0], x[1]);
        let two = podracer::trace::ops::full_like(y, 2.0);
        vec![x.powi(2), x.powi(3), x.powi(-1), x.pow(0.5), x.pow(y), two.pow(y)]
    }),
    ("powers_at_zero", |x| vec![x[0].powi(2), x[0].pow(2.0), x[0].pow(3.0)]),
    ("sqrt_at_zero", |x| vec![x[0].sqrt()]),
    ("norm", |x| vec![x[0].norm()]),
    ("norm_at_zero", |x| vec![x[0].norm()]),
    ("atan2", |x| vec![x[0].atan2(x[1])]),
    ("erf_and_inverse", |x| vec![(x[0] * 3.0).erf(), x[0].erf_inv()]),
    ("logaddexp", |x| vec![logaddexp(x[0], x[1])]),
    ("logs", |x| {
        let x = x[0];
        vec![x.log1p(), x.expm1(), (x + 1.0).log(), (-x).exp(), (x + 1.0).rsqrt()]
    }),
    ("trigonometry", |x| vec![x[0].sin(), x[0].cos(), x[0].tan(), x[0].tanh()]),
    ("rounding", |x| vec![x[0].round() + x[0], x[0].floor() * x[0], x[0].ceil() * x[0]]),
    ("remainders", |x| vec![x[0] % x[1], x[0].modulo(x[1]), x[0].floor_div(x[1])]),
    ("double_where", |x| {
        let positive = x[0].gt(0.0);
        vec![where_(positive, where_(positive, x[0], 1.0).sqrt(), 0.0)]
    }),
    ("single_where", |x| vec![where_(x[0].gt(0.0), x[0].sqrt(), 0.0)]),
    ("straight_through", |x| vec![x[0] + (x[0].round() - x[0]).stop_gradient()]),
    // Reductions and order.
    ("variance", |x| vec![x[0].var(-1), x[0].std(0), x[0].var(..), x[0].mean(-1)]),
    ("normalized", |x| vec![(x[0] - x[0].mean(..)) / (x[0].std(..) + 1e-8)]),
    ("cumulative_sum", |x| vec![x[0].cumsum(0), x[0].cumsum(1)]),
    ("cumulative_product", |x| {
        let step = |c: Tensor, x: Tensor| (c * x, c * x);
        vec![scan(step, ones([4], DType::F32), x[0]).1]
    }),
    ("sort", |x| vec![x[0].sort(-1), x[0].sort(0)]),
    ("sort_ties", |x| {
        let (keys, others) = sort_by(x[0], &[x[1]], 0);
        vec![keys, others[0]]
    }),
    ("argsort_gather", |x| {
        let order = x[0].argsort(-1);
        vec![x[0].square().take_along_axis(order, -1), order]
    }),
    ("arg_extremes", |x| vec![x[0].argmax(-1), x[0].argmin(0), x[0].max(-1) - x[0].min(-1)]),
    // Shapes.
    ("pad", |x| vec![x[0].pad(&[1, 2], &[0, 1], 0.5).square()]),
    ("lax_pad", |x| vec![x[0].pad_with(&[-1, 1], &[2, -1], &[1, 0], x[1])]),
    ("concat_and_stack", |x| {
        let (x, y) = (x[0], x[1]);
        let third = x * y.slice_axis(1, 0, 1);
        vec![concatenate(&[x, y, third], 1), stack(&[x, x.square()], 1)]
    }),
    ("slices", |x| {
        let x = x[0];
        vec![
            x.strided_slice(&[1, 0], &[4, 6], &[1, 2]),
            x.index_axis(0, -1),
            x.index_axis(1, 2),
            rows(x.flip(0), 0, 4, 2),
        ]
    }),
    ("roll_and_flip", |x| vec![x[0].roll(2, 1) * x[0], x[0].roll(-1, 0), x[0].flip(1) * x[0]]),
    ("tile_and_repeat", |x| vec![x[0].tile(2, 1), x[0].repeat(2, 0)]),
    ("axes_moved", |x| {
        let x = x[0];
        vec![
            x.transpose(&[2, 0, 1]),
            x.swapaxes(0, 1).square(),
            x.moveaxis(0, -1),
            x.reshape([6, 4]),
        ]
    }),
    ("triangle", |x| vec![x[0].tril(0), x[0].tril(-1), x[0].tril(1)]),
    // Indices.
    ("take", |x| vec![x[0].take(x[1], 0).square(), x[0].take(x[1], 0)]),
    ("take_outside", |x| {
        let clip = podracer::trace::ops::IndexMode::Clip;
        vec![x[0].take(x[1], 0), x[0].take_mode(x[1], 0, clip)]
    }),
    ("take_along_axis", |x| vec![x[0].take_along_axis(x[1], 1).square()]),
    ("one_hot", |x| {
        let hot = one_hot(x[0], 3, DType::F32);
        vec![hot, hot.matmul(x[1])]
    }),
    ("dynamic_slice", |x| {
        vec![x[0].dynamic_slice(&[x[1], x[2]], [2, 3]).square(), x[0].dynamic_index(0, x[1])]
    }),
    ("dynamic_update_slice", |x| {
        vec![x[0].dynamic_update_slice(x[1], &[x[2], x[3].maximum(0)]).square()]
    }),
    ("scatter_add", |x| vec![x[0].at(&[x[1]]).add(x[2].square())]),
    ("scatter_set", |x| vec![x[0].at(&[x[1]]).set(x[2].square()) * x[0]]),
    ("scatter_elements", |x| {
        let at = x[0].at(&[x[1], x[2]]);
        vec![at.clone().add(x[3]), at.set(3.0)]
    }),
    // Products.
    ("matmul_broadcast", |x| vec![matmul(x[0], x[1]), matmul(x[0], x[2]), matmul(x[2], x[1])]),
    ("einsums", |x| {
        let product = matmul(x[0], x[1]);
        vec![product, product.sum(0), x[2].outer(x[3])]
    }),
];
