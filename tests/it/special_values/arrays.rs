//! Functions of arrays: products, matrices, selections, sets, filters and transforms.

use podracer::trace::numpy::{self as np, ConvolveMode, MatrixNorm, WindowOptions};
use podracer::trace::op::ReduceOp;
use podracer::trace::ops::{concatenate, constant, full_like, ones_like, stack, zeros_like};
use podracer::{DType, Tensor, losses, vmap};

use super::Function::One;
use super::Row;

/// The pairs `[n, 2]` as symmetric matrices `[n, 2, 2]`.
fn matrices(x: Tensor) -> Tensor {
    stack(&[x, x.flip(1)], 1)
}

/// A function of one row, of each row.
fn rows(x: Tensor, f: fn(Tensor) -> Tensor) -> Tensor {
    vmap(f)(x)
}

fn ones_behind(x: Tensor) -> Tensor {
    concatenate(&[x, ones_like(x.slice_axis(1, 0, 1))], 1)
}

/// A label for each row: its second class.
fn second_class(x: Tensor) -> Tensor {
    ones_like(x.index_axis(1, 0)).to(DType::I32)
}

fn whole(values: &[i32]) -> Tensor {
    constant(podracer::Literal::from(values))
}

/// Functions of rows that are all pairs of special values, `[n, 2]`.
pub const ARRAY_PAIRS: &[Row] = &[
    ("std_ddof", "jnp.std(x, 1, ddof=1)", One(|x| x.std_ddof(1, 1))),
    ("cumprod_reverse", "lax.cumprod(x, 1, reverse=True)", One(|x| x.cumprod_reverse(1))),
    ("cummax_reverse", "lax.cummax(x, 1, reverse=True)", One(|x| x.cummax_reverse(1))),
    ("cummin_reverse", "lax.cummin(x, 1, reverse=True)", One(|x| x.cummin_reverse(1))),
    (
        "cumlogsumexp_reverse",
        "lax.cumlogsumexp(x, 1, reverse=True)",
        One(|x| x.cumlogsumexp_reverse(1)),
    ),
    (
        "cumulative_prod",
        "jnp.cumulative_prod(x, axis=1, include_initial=True)",
        One(|x| x.cumulative_prod(1)),
    ),
    ("nanpercentile", "jnp.nanpercentile(x, 75.0, 1)", One(|x| x.nanpercentile(75.0, 1))),
    ("partition", "jnp.partition(x, 1, 1)", One(|x| x.partition(1, 1))),
    ("argpartition", "jnp.argpartition(x, 1, 1)", One(|x| x.argpartition(1, 1))),
    ("lexsort", "jnp.lexsort((x, x[:, ::-1]), 1)", One(|x| np::lexsort(&[x, x.flip(1)], 1))),
    // Sums of products.
    ("matmul", "matrices(x) @ matrices(x)", One(|x| matrices(x).matmul(matrices(x)))),
    (
        "einsum",
        "jnp.einsum('ij,ij->i', x, x[:, ::-1])",
        One(|x| np::einsum("ij,ij->i", &[x, x.flip(1)])),
    ),
    (
        "tensordot",
        "jax.vmap(lambda x: jnp.tensordot(x, x, 1))(x)",
        One(|x| rows(x, |x| np::tensordot(x, x, 1))),
    ),
    ("inner", "jax.vmap(lambda x: jnp.inner(x, x))(x)", One(|x| rows(x, |x| x.inner(x)))),
    (
        "vdot",
        "jax.vmap(lambda x: jnp.vdot(x, x[::-1]))(x)",
        One(|x| rows(x, |x| x.vdot(x.flip(0)))),
    ),
    (
        "cross",
        "jnp.cross(ones_behind(x), ones_behind(x)[:, ::-1])",
        One(|x| ones_behind(x).cross(ones_behind(x).flip(1))),
    ),
    ("kron", "jax.vmap(lambda x: jnp.kron(x, x))(x)", One(|x| rows(x, |x| np::kron(x, x)))),
    ("matvec", "jnp.matvec(matrices(x), x)", One(|x| np::matvec(matrices(x), x))),
    ("vecmat", "jnp.vecmat(x, matrices(x))", One(|x| np::vecmat(x, matrices(x)))),
    (
        "multi_dot",
        "jax.vmap(lambda m: jnp.linalg.multi_dot([m, m, m]))(matrices(x))",
        One(|x| rows(matrices(x), |m| np::multi_dot(&[m, m, m]))),
    ),
    (
        "matrix_power",
        "jnp.linalg.matrix_power(matrices(x), 3)",
        One(|x| np::matrix_power(matrices(x), 3)),
    ),
    ("trace", "jax.vmap(jnp.trace)(matrices(x))", One(|x| rows(matrices(x), |m| m.trace()))),
    ("trace_of", "jnp.trace(matrices(x), 0, 1, 2)", One(|x| matrices(x).trace_of(0, 1, 2))),
    (
        "ragged_dot",
        "lax.ragged_dot(x, jnp.ones((2, 2, 1), x.dtype), jnp.array([3, 4]))",
        One(|x| {
            let weights = ones_like(x.slice_axis(0, 0, 2)).reshape([2, 2, 1]);
            np::ragged_dot(x, weights, constant([3, 4]))
        }),
    ),
    (
        "correlate",
        "jax.vmap(lambda x: jnp.correlate(x, x, 'full'))(x)",
        One(|x| rows(x, |x| np::correlate(x, x, ConvolveMode::Full))),
    ),
    // Matrices.
    (
        "matrix_norm",
        "jnp.linalg.matrix_norm(matrices(x))",
        One(|x| np::matrix_norm(matrices(x), MatrixNorm::Frobenius)),
    ),
    (
        "matrix_norm_1",
        "jnp.linalg.matrix_norm(matrices(x), ord=1)",
        One(|x| np::matrix_norm(matrices(x), MatrixNorm::One)),
    ),
    (
        "matrix_norm_least",
        "jnp.linalg.matrix_norm(matrices(x), ord=-jnp.inf)",
        One(|x| np::matrix_norm(matrices(x), MatrixNorm::LeastRow)),
    ),
    ("tril", "jnp.tril(matrices(x))", One(|x| matrices(x).tril(0))),
    ("triu", "jnp.triu(matrices(x), 1)", One(|x| matrices(x).triu(1))),
    // Polynomials.
    (
        "polyadd",
        "jax.vmap(lambda x: jnp.polyadd(x, x[:1]))(x)",
        One(|x| rows(x, |x| np::polyadd(x, x.slice_axis(0, 0, 1)))),
    ),
    (
        "polysub",
        "jax.vmap(lambda x: jnp.polysub(x, x[:1]))(x)",
        One(|x| rows(x, |x| np::polysub(x, x.slice_axis(0, 0, 1)))),
    ),
    (
        "polymul",
        "jax.vmap(lambda x: jnp.polymul(x, x))(x)",
        One(|x| rows(x, |x| np::polymul(x, x))),
    ),
    (
        "polydiv",
        "jax.vmap(lambda x: jnp.polydiv(x, x[:1])[0])(x)",
        One(|x| rows(x, |x| np::polydiv(x, x.slice_axis(0, 0, 1)).0)),
    ),
    ("polyder", "jax.vmap(jnp.polyder)(x)", One(|x| rows(x, |x| np::polyder(x, 1)))),
    ("polyint", "jax.vmap(jnp.polyint)(x)", One(|x| rows(x, |x| np::polyint(x, 1)))),
    ("poly", "jax.vmap(jnp.poly)(x)", One(|x| rows(x, np::poly))),
    // Selections.
    (
        "select",
        "jnp.select([x > 0, x < 0], [x * x, -x], x[:, ::-1])",
        One(|x| np::select(&[x.gt(0.0), x.lt(0.0)], &[x * x, -x], x.flip(1))),
    ),
    (
        "choose",
        "jnp.choose((x > 0).astype(int), [x * x, x[:, ::-1]], mode='clip')",
        One(|x| np::choose(x.gt(0.0).to(DType::I32), &[x * x, x.flip(1)])),
    ),
    (
        "piecewise",
        "jnp.piecewise(x, [x < 0, x > 0], [lambda x: x * x, jnp.sqrt, 1.0])",
        One(|x| {
            let conditions = [x.lt(0.0), x.gt(0.0)];
            let square = |x: Tensor| x * x;
            np::piecewise(x, &conditions, &[&square, &|x: Tensor| x.sqrt(), &|x| ones_like(x)])
        }),
    ),
    // Windows, reductions by functions, segments.
    (
        "reduce_window",
        "lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 1), 'VALID')",
        One(|x| x.reduce_window(ReduceOp::Sum, &WindowOptions::new(&[1, 2]))),
    ),
    (
        "reduce_window_max",
        "lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), 'VALID')",
        One(|x| x.reduce_window(ReduceOp::Max, &WindowOptions::new(&[1, 2]))),
    ),
    (
        "reduce",
        "lax.reduce(x, jnp.zeros((), x.dtype), lax.add, (1,))",
        One(|x| np::reduce(x, constant(0.0f32).to(x.dtype()), |a, b| a + b, &[1])),
    ),
    (
        "segment_sum",
        "jax.vmap(lambda x: jax.ops.segment_sum(x, jnp.array([1, 1]), 2))(x)",
        One(|x| rows(x, |x| np::segment_sum(x, whole(&[1, 1]), 2))),
    ),
    (
        "segment_prod",
        "jax.vmap(lambda x: jax.ops.segment_prod(x, jnp.array([1, 1]), 2))(lax.stop_gradient(x))",
        One(|x| rows(x, |x| np::segment_prod(x.stop_gradient(), whole(&[1, 1]), 2))),
    ),
    (
        "segment_max",
        "jax.vmap(lambda x: jax.ops.segment_max(x, jnp.array([1, 1]), 2))(x)",
        One(|x| rows(x, |x| np::segment_max(x, whole(&[1, 1]), 2))),
    ),
    (
        "segment_min",
        "jax.vmap(lambda x: jax.ops.segment_min(x, jnp.array([1, 1]), 2))(x)",
        One(|x| rows(x, |x| np::segment_min(x, whole(&[1, 1]), 2))),
    ),
    // Fourier transforms.
    ("fft", "jnp.fft.fft(x, axis=1)", One(|x| np::fft(x, None, 1, np::FftNorm::default()))),
    ("rfft", "jnp.fft.rfft(x, axis=1)", One(|x| np::rfft(x, None, 1, np::FftNorm::default()))),
    ("ihfft", "jnp.fft.ihfft(x, axis=1)", One(|x| np::ihfft(x, None, 1, np::FftNorm::default()))),
    ("hfft", "jnp.fft.hfft(x, axis=1)", One(|x| np::hfft(x, None, 1, np::FftNorm::default()))),
    // Losses of rows.
    (
        "cross_entropy_with_labels",
        "optax.losses.softmax_cross_entropy_with_integer_labels(x, jnp.ones(len(x), int))",
        One(|x| losses::softmax_cross_entropy_with_integer_labels(x, second_class(x))),
    ),
    (
        "multiclass_hinge_loss",
        "jax.vmap(lambda x: optax.losses.multiclass_hinge_loss(x, jnp.int32(1)))(x)",
        One(|x| rows(x, |x| losses::multiclass_hinge_loss(x, constant(1)))),
    ),
    (
        "multiclass_perceptron_loss",
        "jax.vmap(lambda x: optax.losses.multiclass_perceptron_loss(x, jnp.int32(1)))(x)",
        One(|x| rows(x, |x| losses::multiclass_perceptron_loss(x, constant(1)))),
    ),
    (
        "multiclass_sparsemax_loss",
        "optax.losses.multiclass_sparsemax_loss(x, jnp.ones(len(x), int))",
        One(|x| losses::multiclass_sparsemax_loss(x, second_class(x))),
    ),
    (
        "poly_loss_cross_entropy",
        "optax.losses.poly_loss_cross_entropy(x, jnp.full_like(x, 0.5), epsilon=2.0)",
        One(|x| losses::poly_loss_cross_entropy(x, full_like(x, 0.5), 2.0)),
    ),
    (
        "smooth_labels",
        "optax.losses.smooth_labels(x, 0.25)",
        One(|x| losses::smooth_labels(x, 0.25)),
    ),
    (
        "binary_dice_loss",
        "optax.losses.binary_dice_loss(x, jnp.ones_like(x))",
        One(|x| losses::binary_dice_loss(x, ones_like(x), 1.0, true)),
    ),
    (
        "triplet_margin_loss",
        "optax.losses.triplet_margin_loss(x, x[:, ::-1], jnp.zeros_like(x))",
        One(|x| losses::triplet_margin_loss(x, x.flip(1), zeros_like(x), 2, 1.0, 1e-6)),
    ),
];

/// Functions of the vector as a whole, without denormal numbers.
pub const ARRAY_VECTOR: &[Row] = &[
    (
        "union1d",
        "jnp.union1d(x, jnp.array([0.5, 3, jnp.nan], x.dtype), size=16)",
        One(|x| np::union1d(x, some(x), 16)),
    ),
    (
        "intersect1d",
        "jnp.intersect1d(x, jnp.array([0.5, 3, jnp.nan], x.dtype), size=3, fill_value=7)",
        One(|x| np::intersect1d(x, some(x), 3, 7.0)),
    ),
    (
        "setdiff1d",
        "jnp.setdiff1d(x, jnp.array([0.5, 3, jnp.nan], x.dtype), size=16, fill_value=7)",
        One(|x| np::setdiff1d(x, some(x), 16, 7.0)),
    ),
    (
        "setxor1d",
        "jnp.setxor1d(x, jnp.array([0.5, 3, jnp.nan], x.dtype), size=16, fill_value=7)",
        One(|x| np::setxor1d(x, some(x), 16, 7.0)),
    ),
    ("unique_all", "jnp.unique_all(x, size=17).values", One(|x| np::unique_all(x, 17).values)),
    ("unique_counts", "jnp.unique_all(x, size=17).counts", One(|x| np::unique_all(x, 17).counts)),
    (
        "unique_inverse",
        "jnp.unique_all(x, size=17).inverse_indices",
        One(|x| np::unique_all(x, 17).inverse),
    ),
    (
        "histogram_bin_edges",
        "jnp.histogram_bin_edges(x, 3, (-1, 1))",
        One(|x| np::histogram_bin_edges(x, 3, Some((-1.0, 1.0)))),
    ),
    (
        "histogram2d",
        "jnp.histogram2d(x, x[::-1], [jnp.array([-1, 0, 1], x.dtype)] * 2, weights=jnp.ones_like(x))[0]",
        One(|x| {
            let edges = [constant([-1.0f32, 0.0, 1.0]).to(x.dtype()); 2];
            np::histogram2d(x, x.flip(0), edges, ones_like(x))
        }),
    ),
    (
        "histogramdd",
        "jnp.histogramdd(x[:, None], [jnp.array([-1, 0, 1], x.dtype)], weights=jnp.ones_like(x))[0]",
        One(|x| {
            let edges = [constant([-1.0f32, 0.0, 1.0]).to(x.dtype())];
            np::histogramdd(x.expand_dims(1), &edges, ones_like(x))
        }),
    ),
    ("nonzero", "jnp.nonzero(x, size=20, fill_value=-1)[0]", One(|x| x.nonzero(20, -1)[0])),
    ("argwhere", "jnp.argwhere(x, size=20, fill_value=-1)", One(|x| x.argwhere(20, -1))),
    (
        "compress",
        "jnp.compress(x > 0, x, 0, size=10, fill_value=7)",
        One(|x| x.compress(x.gt(0.0), 0, 10, 7.0)),
    ),
    (
        "extract",
        "jnp.extract(x > 0, x, size=10, fill_value=7)",
        One(|x| x.extract(x.gt(0.0), 10, 7.0)),
    ),
];

fn some(like: Tensor) -> Tensor {
    constant([0.5f32, 3.0, f32::NAN]).to(like.dtype())
}
