//! Eigenvalues, singular values and what is made of them; products and reductions of `jax.lax`.

use podracer::Tensor;
use podracer::trace::numpy::{self, MatrixNorm};
use podracer::trace::ops::constant;

use super::Function;

/// Absolute vectors, values, and the product of both bases.
fn reduced(a: Tensor) -> Vec<Tensor> {
    let (u, s, vt) = numpy::svd(a, false);
    vec![u.abs(), s, vt.abs(), u.matmul(vt)]
}

pub const FUNCTIONS: &[Function] = &[
    ("eigh", |x| {
        let (w, v) = numpy::eigh(x[0]);
        vec![w, v.abs(), numpy::eigvalsh(x[0].matmul(x[0]))]
    }),
    ("eigh_batch", |x| {
        let (w, v) = numpy::eigh(x[0]);
        vec![w, v.square()]
    }),
    ("svd", |x| {
        let (u, s, vt) = numpy::svd(x[0], true);
        vec![u.abs(), s, vt.abs(), (u * s).matmul(vt)]
    }),
    ("svd_tall", |x| reduced(x[0])),
    ("svd_wide", |x| reduced(x[0])),
    ("svd_full", |x| {
        let (u, s, _) = numpy::svd(x[0], true);
        let (first, rest) = (u.slice_axis(1, 0, 3), u.slice_axis(1, 3, 5));
        vec![first.abs(), s, u.t().matmul(u), rest.matmul(rest.t())]
    }),
    ("svd_rank_1", |x| {
        let (u, s, vt) = numpy::svd(x[0], false);
        let first = s.slice_axis(0, 0, 1);
        vec![first, u.t().matmul(u), vt.matmul(vt.t()), (u * s).matmul(vt)]
    }),
    ("svdvals", |x| vec![numpy::svdvals(x[0]), numpy::svdvals(x[1])]),
    ("pinv", |x| {
        vec![numpy::pinv(x[0], None), numpy::pinv(x[1], None), numpy::pinv(x[2], Some(0.3))]
    }),
    ("pinv_rank_1", |x| vec![numpy::pinv(x[0], None)]),
    ("matrix_rank", |x| {
        let of = |a| numpy::matrix_rank(a, None);
        vec![of(x[0]), of(x[1]), of(x[1] * 0.0), numpy::matrix_rank(x[0], Some(2.5))]
    }),
    ("lstsq", |x| {
        let (solution, residuals, rank, s) = numpy::lstsq(x[0], x[1], None);
        vec![solution, residuals, rank, s]
    }),
    ("lstsq_wide", |x| {
        let (solution, _, rank, _) = numpy::lstsq(x[0], x[1], None);
        vec![solution, rank]
    }),
    ("lstsq_rank_1", |x| {
        let (solution, residuals, rank, _) = numpy::lstsq(x[0], x[1], None);
        vec![solution, residuals, rank]
    }),
    ("matrix_norms", |x| {
        let orders = [
            MatrixNorm::Spectral,
            MatrixNorm::LeastSingular,
            MatrixNorm::Nuclear,
            MatrixNorm::LeastColumn,
            MatrixNorm::LeastRow,
        ];
        orders.map(|order| numpy::matrix_norm(x[0], order)).to_vec()
    }),
    ("cond", |x| {
        vec![
            numpy::cond(x[0], MatrixNorm::Spectral),
            numpy::cond(x[0], MatrixNorm::LeastSingular),
            numpy::cond(x[1], MatrixNorm::One),
            numpy::cond(x[1], MatrixNorm::Frobenius),
        ]
    }),
    ("polyfit", |x| vec![numpy::polyfit(x[0], x[1], 2), numpy::polyfit(x[0], x[2], 1)]),
    ("ragged_dot", |x| vec![numpy::ragged_dot(x[0], x[1], x[2])]),
    ("reduce", |x| {
        let (zero, one) = (constant(0.0f32), constant(1.0f32));
        vec![
            numpy::reduce(x[0], zero, |a, b| a + b + a * b, &[0, 2]),
            numpy::reduce(x[0], one, |a, b| a * b, &[1]),
        ]
    }),
    ("mulhi", |x| vec![numpy::mulhi(x[0], x[0].flip(0)), numpy::mulhi(x[1], x[1].flip(0))]),
    ("spacing", |x| vec![x[0].spacing()]),
];
