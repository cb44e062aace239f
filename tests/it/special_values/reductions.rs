//! Reductions, cumulative functions and statistics of pairs, losses and norms.

use podracer::optim::{self, GradientTransformation};
use podracer::random::{Key, permutation_of};
use podracer::trace::numpy as np;
use podracer::trace::ops::{IndexMode, constant, ones, ones_like, zeros};
use podracer::{DType, Tensor, losses, vmap};

use super::Function::One;
use super::Row;

/// Functions along the last axis of all pairs of special values, `[n, 2]`.
pub const PAIRS: &[Row] = &[
    ("sum", "jnp.sum(x, 1)", One(|x| x.sum(1))),
    ("prod", "jnp.prod(x, 1)", One(|x| x.prod(1))),
    ("mean", "jnp.mean(x, 1)", One(|x| x.mean(1))),
    ("max", "jnp.max(x, 1)", One(|x| x.max(1))),
    ("min", "jnp.min(x, 1)", One(|x| x.min(1))),
    ("var", "jnp.var(x, 1)", One(|x| x.var(1))),
    ("var_ddof", "jnp.var(x, 1, ddof=1)", One(|x| x.var_ddof(1, 1))),
    ("std", "jnp.std(x, 1)", One(|x| x.std(1))),
    ("all", "jnp.all(x, 1)", One(|x| x.ne(0.0).all(1))),
    ("any", "jnp.any(x, 1)", One(|x| x.ne(0.0).any(1))),
    ("argmax", "jnp.argmax(x, 1)", One(|x| x.argmax(1))),
    ("argmin", "jnp.argmin(x, 1)", One(|x| x.argmin(1))),
    ("sort", "jnp.sort(x, 1)", One(|x| x.sort(1))),
    ("argsort", "jnp.argsort(x, 1)", One(|x| x.argsort(1))),
    ("sort_descending", "jnp.sort(x, 1, descending=True)", One(|x| x.sort_descending(1))),
    ("argsort_descending", "jnp.argsort(x, 1, descending=True)", One(|x| x.argsort_descending(1))),
    ("top_k", "lax.top_k(x, 1)[0]", One(|x| x.top_k(1).0)),
    ("top_k_indices", "lax.top_k(x, 1)[1]", One(|x| x.top_k(1).1)),
    ("logsumexp", "special.logsumexp(x, 1)", One(|x| x.logsumexp(1))),
    ("log_softmax", "nn.log_softmax(x, 1)", One(|x| x.log_softmax(1))),
    ("softmax", "nn.softmax(x, 1)", One(|x| x.softmax(1))),
    ("logmeanexp", "nn.logmeanexp(x, 1)", One(|x| x.logmeanexp(1))),
    ("standardize", "nn.standardize(x, 1)", One(|x| x.standardize(1, 1e-5))),
    ("glu", "nn.glu(x, 1)", One(|x| x.glu(1))),
    ("norm", "jax.vmap(jnp.linalg.norm)(x)", One(|x| vmap(|x: Tensor| x.norm())(x))),
    ("norm_2", "jnp.linalg.norm(x, 2, 1)", One(|x| x.norm_along(2.0, 1))),
    ("norm_1", "jnp.linalg.norm(x, 1, 1)", One(|x| x.norm_along(1.0, 1))),
    ("norm_3", "jnp.linalg.norm(x, 3, 1)", One(|x| x.norm_along(3.0, 1))),
    ("norm_0", "jnp.linalg.norm(x, 0, 1)", One(|x| x.vector_norm(0.0, 1))),
    ("norm_max", "jnp.linalg.norm(x, jnp.inf, 1)", One(|x| x.norm_along(f64::INFINITY, 1))),
    ("norm_min", "jnp.linalg.norm(x, -jnp.inf, 1)", One(|x| x.vector_norm(f64::NEG_INFINITY, 1))),
    ("vector_norm", "jnp.linalg.vector_norm(x, axis=1)", One(|x| x.vector_norm(2.0, 1))),
    ("cumsum", "lax.cumsum(x, 1)", One(|x| x.cumsum(1))),
    ("cumsum_reverse", "lax.cumsum(x, 1, reverse=True)", One(|x| x.cumsum_reverse(1))),
    ("cumprod", "lax.cumprod(x, 1)", One(|x| x.cumprod(1))),
    ("cummax", "lax.cummax(x, 1)", One(|x| x.cummax(1))),
    ("cummin", "lax.cummin(x, 1)", One(|x| x.cummin(1))),
    ("cumlogsumexp", "lax.cumlogsumexp(x, 1)", One(|x| x.cumlogsumexp(1))),
    (
        "cumulative_sum",
        "jnp.cumulative_sum(x, axis=1, include_initial=True)",
        One(|x| x.cumulative_sum(1)),
    ),
    ("diff", "jnp.diff(x, axis=1)", One(|x| x.diff(1))),
    ("nansum", "jnp.nansum(x, 1)", One(|x| x.nansum(1))),
    ("nanmean", "jnp.nanmean(x, 1)", One(|x| x.nanmean(1))),
    ("nanmax", "jnp.nanmax(x, 1)", One(|x| x.nanmax(1))),
    ("nanmin", "jnp.nanmin(x, 1)", One(|x| x.nanmin(1))),
    ("nanprod", "jnp.nanprod(x, 1)", One(|x| x.nanprod(1))),
    ("nancumsum", "jnp.nancumsum(x, 1)", One(|x| x.nancumsum(1))),
    ("nancumprod", "jnp.nancumprod(x, 1)", One(|x| x.nancumprod(1))),
    ("nanvar", "jnp.nanvar(x, 1)", One(|x| x.nanvar(1, 0))),
    ("nanstd", "jnp.nanstd(x, 1)", One(|x| x.nanstd(1, 0))),
    ("nanargmax", "jnp.nanargmax(x, 1)", One(|x| x.nanargmax(1))),
    ("nanargmin", "jnp.nanargmin(x, 1)", One(|x| x.nanargmin(1))),
    ("nanquantile", "jnp.nanquantile(x, 0.25, 1)", One(|x| x.nanquantile(0.25, 1))),
    ("nanmedian", "jnp.nanmedian(x, 1)", One(|x| x.nanmedian(1))),
    ("quantile", "jnp.quantile(x, 0.25, 1)", One(|x| x.quantile(0.25, 1))),
    ("quantile_0", "jnp.quantile(x, 0.0, 1)", One(|x| x.quantile(0.0, 1))),
    ("median", "jnp.median(x, 1)", One(|x| x.median(1))),
    ("percentile", "jnp.percentile(x, 75.0, 1)", One(|x| x.percentile(75.0, 1))),
    ("ptp", "jnp.ptp(x, 1)", One(|x| x.ptp(1))),
    ("average", "jnp.average(x, 1, x[:, ::-1])", One(|x| x.average(x.flip(1), 1))),
    ("count_nonzero", "jnp.count_nonzero(x, 1)", One(|x| x.count_nonzero(1))),
    ("trapezoid", "jnp.trapezoid(x, axis=1)", One(|x| x.trapezoid(1.0, 1))),
    ("unwrap", "jnp.unwrap(x, axis=1)", One(|x| x.unwrap(1))),
    ("vecdot", "jnp.vecdot(x, x[:, ::-1])", One(|x| np::vecdot(x, x.flip(1)))),
    ("outer", "jax.vmap(jnp.outer)(x, x)", One(|x| vmap(|x: Tensor| x.outer(x))(x))),
    ("corrcoef", "jax.vmap(jnp.corrcoef)(x)", One(|x| vmap(|x: Tensor| x.corrcoef())(x))),
    ("cov", "jax.vmap(jnp.cov)(x)", One(|x| vmap(|x: Tensor| x.cov(1))(x))),
    // Losses of rows.
    (
        "cosine_similarity",
        "optax.losses.cosine_similarity(x, jnp.ones_like(x))",
        One(|x| losses::cosine_similarity(x, ones_like(x), 0.0)),
    ),
    (
        "cosine_distance",
        "optax.losses.cosine_distance(x, x[:, ::-1], epsilon=1e-6)",
        One(|x| losses::cosine_distance(x, x.flip(1), 1e-6)),
    ),
    (
        "softmax_cross_entropy",
        "optax.losses.softmax_cross_entropy(x, jnp.full_like(x, 0.5))",
        One(|x| losses::softmax_cross_entropy(x, ones_like(x) * 0.5)),
    ),
    (
        "softmax_cross_entropy_labels",
        "optax.losses.softmax_cross_entropy(jnp.ones_like(x), x)",
        One(|x| losses::softmax_cross_entropy(ones_like(x), x)),
    ),
    (
        "safe_softmax_cross_entropy",
        "optax.losses.safe_softmax_cross_entropy(x, x[:, ::-1])",
        One(|x| losses::safe_softmax_cross_entropy(x, x.flip(1))),
    ),
    (
        "kl_divergence",
        "optax.losses.kl_divergence(x, x[:, ::-1])",
        One(|x| losses::kl_divergence(x, x.flip(1))),
    ),
    (
        "kl_divergence_targets",
        "optax.losses.kl_divergence(jnp.zeros_like(x), x)",
        One(|x| losses::kl_divergence(ones_like(x) * 0.0, x)),
    ),
    (
        "kl_divergence_with_log_targets",
        "optax.losses.kl_divergence_with_log_targets(x, x[:, ::-1])",
        One(|x| losses::kl_divergence_with_log_targets(x, x.flip(1))),
    ),
    (
        "generalized_kl_divergence",
        "optax.losses.generalized_kl_divergence(x, x[:, ::-1])",
        One(|x| losses::generalized_kl_divergence(x, x.flip(1))),
    ),
    (
        "convex_kl_divergence",
        "optax.losses.convex_kl_divergence(x, x[:, ::-1])",
        One(|x| losses::convex_kl_divergence(x, x.flip(1))),
    ),
];

/// No indices.
fn none() -> Tensor {
    zeros([0], DType::I32)
}

fn two_one_two(like: Tensor) -> Tensor {
    constant([2.0f32, 1.0, 2.0]).to(like.dtype())
}

/// Functions along the empty last axis of `[2, 0]`.
pub const EMPTY: &[Row] = &[
    ("empty_sum", "jnp.sum(x, 1)", One(|x| x.sum(1))),
    ("empty_prod", "jnp.prod(x, 1)", One(|x| x.prod(1))),
    ("empty_mean", "jnp.mean(x, 1)", One(|x| x.mean(1))),
    ("empty_max", "lax.reduce_max(x, (1,))", One(|x| x.max(1))),
    ("empty_var", "jnp.var(x, 1)", One(|x| x.var(1))),
    ("empty_std", "jnp.std(x, 1)", One(|x| x.std(1))),
    ("empty_all", "jnp.all(x, 1)", One(|x| x.ne(0.0).all(1))),
    ("empty_any", "jnp.any(x, 1)", One(|x| x.ne(0.0).any(1))),
    ("empty_logsumexp", "special.logsumexp(x, 1)", One(|x| x.logsumexp(1))),
    ("empty_logmeanexp", "nn.logmeanexp(x, 1)", One(|x| x.logmeanexp(1))),
    ("empty_softmax", "nn.softmax(x, 1)", One(|x| x.softmax(1))),
    ("empty_log_softmax", "nn.log_softmax(x, 1)", One(|x| x.log_softmax(1))),
    ("empty_standardize", "nn.standardize(x, 1)", One(|x| x.standardize(1, 1e-5))),
    ("empty_sort", "jnp.sort(x, 1)", One(|x| x.sort(1))),
    ("empty_argsort", "jnp.argsort(x, 1)", One(|x| x.argsort(1))),
    ("empty_top_k", "lax.top_k(x, 0)[0]", One(|x| x.top_k(0).0)),
    ("empty_norm", "jnp.linalg.norm(x, axis=1)", One(|x| x.norm_along(2.0, 1))),
    (
        "empty_norm_max",
        "jnp.linalg.norm(x, jnp.inf, axis=1)",
        One(|x| x.norm_along(f64::INFINITY, 1)),
    ),
    ("empty_cumsum", "lax.cumsum(x, 1)", One(|x| x.cumsum(1))),
    ("empty_cumprod", "lax.cumprod(x, 1)", One(|x| x.cumprod(1))),
    ("empty_cummax", "lax.cummax(x, 1)", One(|x| x.cummax(1))),
    ("empty_cumlogsumexp", "lax.cumlogsumexp(x, 1)", One(|x| x.cumlogsumexp(1))),
    ("empty_diff", "jnp.diff(x, axis=1)", One(|x| x.diff(1))),
    ("empty_nansum", "jnp.nansum(x, 1)", One(|x| x.nansum(1))),
    ("empty_nanmean", "jnp.nanmean(x, 1)", One(|x| x.nanmean(1))),
    ("empty_nanvar", "jnp.nanvar(x, 1)", One(|x| x.nanvar(1, 0))),
    ("empty_count_nonzero", "jnp.count_nonzero(x, 1)", One(|x| x.count_nonzero(1))),
    ("empty_average", "jnp.average(x, 1)", One(|x| x.average(ones_like(x), 1))),
    ("empty_unwrap", "jnp.unwrap(x)", One(|x| x.unwrap(1))),
    ("empty_flip", "jnp.flip(x, 1)", One(|x| x.flip(1))),
    ("empty_roll", "jnp.roll(x, 1, 1)", One(|x| x.roll(1, 1))),
    ("empty_matmul", "x @ x.T", One(|x| x.matmul(x.t()))),
    ("empty_take", "jnp.take(x, jnp.zeros(0, int), 1)", One(|x| x.take(none(), 1))),
    (
        "empty_take_clip",
        "jnp.take(x, jnp.zeros(0, int), 1, mode='clip')",
        One(|x| x.take_mode(none(), 1, IndexMode::Clip)),
    ),
    ("empty_take_rows", "jnp.take(x, jnp.array([1, 5]), 0)", One(|x| x.take(constant([1, 5]), 0))),
    (
        "empty_permutation",
        "jax.random.permutation(jax.random.key(0), x, 1)",
        One(|x| permutation_of(Key::constant(0), x, 1)),
    ),
    (
        "empty_permutation_of_rows",
        "jax.random.permutation(jax.random.key(0), x.T)",
        One(|x| permutation_of(Key::constant(0), x.t(), 0)),
    ),
    (
        "empty_set",
        "x[0].at[jnp.zeros(0, int)].set(1.0)",
        One(|x| x.index_axis(0, 0).at(&[none()]).set(1.0)),
    ),
    (
        "empty_isin",
        "jnp.isin(jnp.ones(2), x[0])",
        One(|x| ones([2], x.dtype()).isin(x.index_axis(0, 0))),
    ),
    (
        "empty_setxor1d",
        "jnp.setxor1d(x[0], jnp.array([2, 1, 2], x.dtype), size=3, fill_value=7)",
        One(|x| np::setxor1d(x.index_axis(0, 0), two_one_two(x), 3, 7.0)),
    ),
    (
        "empty_union1d",
        "jnp.union1d(x[0], jnp.array([2, 1, 2], x.dtype), size=3)",
        One(|x| np::union1d(x.index_axis(0, 0), two_one_two(x), 3)),
    ),
    (
        "empty_setdiff1d",
        "jnp.setdiff1d(x[0], jnp.array([2, 1, 2], x.dtype), size=3, fill_value=7)",
        One(|x| np::setdiff1d(x.index_axis(0, 0), two_one_two(x), 3, 7.0)),
    ),
    (
        "empty_polyval",
        "jnp.polyval(x[0], jnp.ones(2))",
        One(|x| np::polyval(x.index_axis(0, 0), ones([2], x.dtype()))),
    ),
    (
        "empty_searchsorted",
        "jnp.searchsorted(x[0], jnp.ones(2))",
        One(|x| x.index_axis(0, 0).searchsorted(ones([2], x.dtype()), false)),
    ),
    (
        "empty_segment_max",
        "jax.ops.segment_max(x[0], jnp.zeros(0, int), 2)",
        One(|x| np::segment_max(x.index_axis(0, 0), none(), 2)),
    ),
    ("empty_nonzero", "jnp.flatnonzero(x, size=2, fill_value=-1)", One(|x| x.flatnonzero(2, -1))),
    ("empty_cov", "jnp.cov(x[0])", One(|x| x.index_axis(0, 0).cov(1))),
];

/// Reductions of pairs of integers.
pub const INT_PAIRS: &[Row] = &[
    ("int_sum", "jnp.sum(x, 1)", One(|x| x.sum(1))),
    ("int_prod", "jnp.prod(x, 1)", One(|x| x.prod(1))),
    ("int_mean", "jnp.mean(x, 1)", One(|x| x.mean(1))),
    ("int_max", "jnp.max(x, 1)", One(|x| x.max(1))),
    ("int_min", "jnp.min(x, 1)", One(|x| x.min(1))),
    ("int_var", "jnp.var(x, 1)", One(|x| x.var(1))),
    ("int_argmax", "jnp.argmax(x, 1)", One(|x| x.argmax(1))),
    ("int_argmin", "jnp.argmin(x, 1)", One(|x| x.argmin(1))),
    ("int_cumsum", "lax.cumsum(x, 1)", One(|x| x.cumsum(1))),
    ("int_cumprod", "lax.cumprod(x, 1)", One(|x| x.cumprod(1))),
    ("int_cummax", "lax.cummax(x, 1)", One(|x| x.cummax(1))),
    ("int_cummin", "lax.cummin(x, 1)", One(|x| x.cummin(1))),
    ("int_median", "jnp.median(x, 1)", One(|x| x.median(1))),
    ("int_ptp", "jnp.ptp(x, 1)", One(|x| x.ptp(1))),
    ("int_count_nonzero", "jnp.count_nonzero(x, 1)", One(|x| x.count_nonzero(1))),
    ("int_reduce_xor", "lax.reduce_xor(x, (1,))", One(|x| x.reduce_xor(1))),
];

/// One step of a transformation of updates `u` beside parameters, the updates in the other order.
fn step<T: GradientTransformation<Tensor>>(transformation: T, x: Tensor) -> Tensor {
    let update = |u: Tensor| {
        let params = u.flip(0);
        transformation.update(&u, transformation.init(&params), &params).0
    };
    vmap(update)(x)
}

/// First steps of optimizers, of all pairs of special values as updates.
pub const PAIRS_OF_UPDATES: &[Row] = &[
    (
        "clip_by_global_norm",
        "step(optax.clip_by_global_norm(1.0), x)",
        One(|x| step(optim::clip_by_global_norm(1.0), x)),
    ),
    (
        "clip_to_0",
        "step(optax.clip_by_global_norm(0.0), x)",
        One(|x| step(optim::clip_by_global_norm(0.0), x)),
    ),
    ("clip_updates", "step(optax.clip(1.0), x)", One(|x| step(optim::clip(1.0), x))),
    (
        "clip_by_block_rms",
        "step(optax.clip_by_block_rms(1.0), x)",
        One(|x| step(optim::clip_by_block_rms(1.0), x)),
    ),
    (
        "adaptive_grad_clip",
        "step(optax.adaptive_grad_clip(0.1), x)",
        One(|x| step(optim::adaptive_grad_clip(0.1), x)),
    ),
    (
        "normalize_by_update_norm",
        "step(optax.normalize_by_update_norm(), x)",
        One(|x| step(optim::normalize_by_update_norm(1.0, 1e-6), x)),
    ),
    (
        "scale_by_trust_ratio",
        "step(optax.scale_by_trust_ratio(), x)",
        One(|x| step(optim::scale_by_trust_ratio(), x)),
    ),
    (
        "scale_by_param_block_norm",
        "step(optax.scale_by_param_block_norm(), x)",
        One(|x| step(optim::scale_by_param_block_norm(1e-3), x)),
    ),
    (
        "scale_by_param_block_rms",
        "step(optax.scale_by_param_block_rms(), x)",
        One(|x| step(optim::scale_by_param_block_rms(1e-3), x)),
    ),
    ("scale_by_sign", "step(optax.scale_by_sign(), x)", One(|x| step(optim::scale_by_sign(), x))),
    ("centralize", "step(optax.centralize(), x)", One(|x| step(optim::centralize(), x))),
    ("zero_nans", "step(optax.zero_nans(), x)", One(|x| step(optim::zero_nans(), x))),
    ("scale_by_adam", "step(optax.scale_by_adam(), x)", One(|x| step(optim::scale_by_adam(), x))),
    (
        "scale_by_adamax",
        "step(optax.scale_by_adamax(), x)",
        One(|x| step(optim::scale_by_adamax(), x)),
    ),
    (
        "scale_by_belief",
        "step(optax.scale_by_belief(), x)",
        One(|x| step(optim::scale_by_belief(), x)),
    ),
    ("scale_by_yogi", "step(optax.scale_by_yogi(), x)", One(|x| step(optim::scale_by_yogi(), x))),
    (
        "scale_by_radam",
        "step(optax.scale_by_radam(), x)",
        One(|x| step(optim::scale_by_radam(), x)),
    ),
    (
        "scale_by_amsgrad",
        "step(optax.scale_by_amsgrad(), x)",
        One(|x| step(optim::scale_by_amsgrad(), x)),
    ),
    ("scale_by_lion", "step(optax.scale_by_lion(), x)", One(|x| step(optim::scale_by_lion(), x))),
    (
        "scale_by_novograd",
        "step(optax.scale_by_novograd(), x)",
        One(|x| step(optim::scale_by_novograd(), x)),
    ),
    ("scale_by_rms", "step(optax.scale_by_rms(), x)", One(|x| step(optim::scale_by_rms(), x))),
    (
        "scale_by_stddev",
        "step(optax.scale_by_stddev(), x)",
        One(|x| step(optim::scale_by_stddev(), x)),
    ),
    ("scale_by_rss", "step(optax.scale_by_rss(), x)", One(|x| step(optim::scale_by_rss(), x))),
    (
        "scale_by_adadelta",
        "step(optax.scale_by_adadelta(), x)",
        One(|x| step(optim::scale_by_adadelta(), x)),
    ),
    ("scale_by_sm3", "step(optax.scale_by_sm3(), x)", One(|x| step(optim::scale_by_sm3(), x))),
    (
        "scale_by_factored_rms",
        "step(optax.scale_by_factored_rms(), x)",
        One(|x| step(optim::scale_by_factored_rms(), x)),
    ),
];
