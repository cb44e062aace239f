//! Multi-head attention layers.

use super::attention::{AttentionOptions, combine_masks, dot_product_attention};
use crate::nn::init::Init;
use crate::nn::layers::LayerNorm;
use crate::nn::linear::DenseGeneral;
use crate::random::Key;
use crate::trace::ops;
use crate::trace::tensor::{fail_op, op};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Multi-head attention (Vaswani et al. 2017): flax's `MultiHeadDotProductAttention`.
#[derive(Debug, Clone, Tree)]
pub struct MultiHeadDotProductAttention<T> {
    /// Projection of queries, kernel `[inputs, heads, depth]`.
    pub query: DenseGeneral<T>,
    /// Projection of keys, kernel `[inputs, heads, depth]`.
    pub key: DenseGeneral<T>,
    /// Projection of values, kernel `[inputs, heads, depth]`.
    pub value: DenseGeneral<T>,
    /// Output projection, kernel `[heads, depth, outputs]`.
    pub out: DenseGeneral<T>,
    /// Layer normalization of queries and keys over the depth: flax's `normalize_qk`, whose norms
    /// have no bias.
    pub normalize_qk: Option<[LayerNorm<T>; 2]>,
    /// Probability of a weight to be dropped in training.
    pub dropout_rate: f64,
    /// One dropout mask for all batch elements and heads.
    pub broadcast_dropout: bool,
}

/// Flax's other name for [`MultiHeadDotProductAttention`].
pub type MultiHeadAttention<T> = MultiHeadDotProductAttention<T>;

/// Keys and values of earlier steps of autoregressive decoding: flax's collection `cache`.
#[derive(Debug, Clone, Tree)]
pub struct AttentionCache<T> {
    /// Keys, `[.., max_length, heads, depth]`.
    pub cached_key: T,
    /// Values, `[.., max_length, heads, depth]`.
    pub cached_value: T,
    /// Number of steps so far, `i32`.
    pub cache_index: T,
}

impl MultiHeadDotProductAttention<Tensor> {
    /// Initializes a layer in f32 for queries, keys and values of `features`, which is a multiple of
    /// `num_heads`, with kernels sampled from `kernel`, zero biases and no dropout.
    #[op("MultiHeadDotProductAttention::init")]
    pub fn init(
        key: Key<Tensor>,
        num_heads: usize,
        features: usize,
        kernel: Init,
    ) -> MultiHeadDotProductAttention<Tensor> {
        let inputs = [features; 3];
        MultiHeadDotProductAttention::init_with(key, num_heads, inputs, [features; 2], kernel)
    }

    /// Initializes a layer for `inputs` of queries, keys and values, with flax's `qkv_features` and
    /// `out_features`.
    #[op("MultiHeadDotProductAttention::init_with")]
    pub fn init_with(
        key: Key<Tensor>,
        num_heads: usize,
        inputs: [usize; 3],
        [qkv_features, out_features]: [usize; 2],
        kernel: Init,
    ) -> MultiHeadDotProductAttention<Tensor> {
        if num_heads == 0 || !qkv_features.is_multiple_of(num_heads) {
            let problem = format!(
                "the number of heads must divide the features of queries; was given {num_heads} \
                 heads and {qkv_features} features"
            );
            fail_op("MultiHeadDotProductAttention", problem);
        }
        let heads = [num_heads, qkv_features / num_heads];
        let [q, k, v, o] = key.split_n();
        MultiHeadDotProductAttention {
            query: DenseGeneral::init(q, &[inputs[0]], &heads, kernel),
            key: DenseGeneral::init(k, &[inputs[1]], &heads, kernel),
            value: DenseGeneral::init(v, &[inputs[2]], &heads, kernel),
            out: DenseGeneral::init(o, &heads, &[out_features], kernel),
            normalize_qk: None,
            dropout_rate: 0.0,
            broadcast_dropout: true,
        }
    }

    /// Attends from `inputs_q: [.., q, inputs]` to `inputs_k` and `inputs_v: [.., k, inputs]`, and
    /// returns `[.., q, outputs]`. The mask is a bool that broadcasts to `[.., heads, q, k]`. A key
    /// switches dropout on; `None` is flax's `deterministic=True`.
    #[op("MultiHeadDotProductAttention::apply")]
    pub fn apply(
        &self,
        inputs_q: Tensor,
        inputs_k: Tensor,
        inputs_v: Tensor,
        mask: Option<Tensor>,
        dropout_rng: Option<Key<Tensor>>,
    ) -> Tensor {
        let options = AttentionOptions {
            mask,
            dropout_rate: self.dropout_rate,
            broadcast_dropout: self.broadcast_dropout,
            dropout_rng,
            ..AttentionOptions::default()
        };
        let [query, key, value] = self.project(inputs_q, inputs_k, inputs_v);
        self.out.apply(dot_product_attention(query, key, value, options))
    }

    /// Like [`apply`](MultiHeadDotProductAttention::apply), with another function of queries, keys
    /// and values `[.., length, heads, depth]`, such as
    /// [`dot_product_attention_blockwise`](super::dot_product_attention_blockwise): flax's
    /// `attention_fn`.
    #[op("MultiHeadDotProductAttention::apply_with")]
    pub fn apply_with(
        &self,
        inputs_q: Tensor,
        inputs_k: Tensor,
        inputs_v: Tensor,
        attention_fn: impl FnOnce(Tensor, Tensor, Tensor) -> Tensor,
    ) -> Tensor {
        let [query, key, value] = self.project(inputs_q, inputs_k, inputs_v);
        self.out.apply(attention_fn(query, key, value))
    }

    #[track_caller]
    fn project(&self, q: Tensor, k: Tensor, v: Tensor) -> [Tensor; 3] {
        let (query, key) = (self.query.apply(q), self.key.apply(k));
        let value = self.value.apply(v);
        match &self.normalize_qk {
            Some([query_ln, key_ln]) => [query_ln.apply(query), key_ln.apply(key), value],
            None => [query, key, value],
        }
    }

    /// Returns the cache before the first step, for `batch` axes and at most `max_length` steps:
    /// flax's `decode=True`.
    #[op("MultiHeadDotProductAttention::init_cache")]
    pub fn init_cache(&self, batch: &[usize], max_length: usize) -> AttentionCache<Tensor> {
        let kernel = self.key.kernel;
        let shape = [batch, &[max_length, kernel.dim(-2), kernel.dim(-1)]].concat();
        let zeros = ops::zeros(shape, kernel.dtype());
        AttentionCache { cached_key: zeros, cached_value: zeros, cache_index: ops::constant(0i32) }
    }

    /// Takes one step of self-attention on `inputs: [.., 1, features]`, with the keys and values of
    /// the steps before, and returns `[.., 1, outputs]` and the next cache.
    #[op("MultiHeadDotProductAttention::decode")]
    pub fn decode(
        &self,
        inputs: Tensor,
        cache: AttentionCache<Tensor>,
        mask: Option<Tensor>,
    ) -> (Tensor, AttentionCache<Tensor>) {
        let [query, key, value] = self.project(inputs, inputs, inputs);
        let AttentionCache { cached_key, cached_value, cache_index } = cache;
        let (rank, place) = (cached_key.rank(), cached_key.rank().saturating_sub(3));
        if rank != key.rank() || rank < 3 || key.dim(place as isize) != 1 {
            let problem = format!(
                "takes one step [.., 1, features] of the batch of the cache; was given {}, and the \
                 cache is {}",
                inputs.ty(),
                cached_key.ty()
            );
            fail_op("MultiHeadDotProductAttention", problem);
        }
        let axis = place as isize;
        let max_length = cached_key.dim(axis);
        let update = |cached: Tensor, new: Tensor| {
            cached.dynamic_update_index(axis, cache_index, new.squeeze(axis))
        };
        let (key, value) = (update(cached_key, key), update(cached_value, value));
        let seen = ops::arange(max_length, DType::I32).le(cache_index);
        let seen = seen.broadcast_to([&vec![1; place + 2], &[max_length][..]].concat());
        let mask = combine_masks(&[mask, Some(seen)]);
        let options = AttentionOptions { mask, ..AttentionOptions::default() };
        let y = self.out.apply(dot_product_attention(query, key, value, options));
        let cache_index = cache_index + 1;
        (y, AttentionCache { cached_key: key, cached_value: value, cache_index })
    }
}

/// Multi-head attention of a sequence to itself: flax's `SelfAttention`.
#[derive(Debug, Clone, Tree)]
pub struct SelfAttention<T> {
    /// Attention whose queries, keys and values are made from the same inputs.
    pub attention: MultiHeadDotProductAttention<T>,
}

impl SelfAttention<Tensor> {
    /// Initializes a layer as [`MultiHeadDotProductAttention::init`] does.
    #[op("SelfAttention::init")]
    pub fn init(
        key: Key<Tensor>,
        num_heads: usize,
        features: usize,
        kernel: Init,
    ) -> SelfAttention<Tensor> {
        let attention = MultiHeadDotProductAttention::init(key, num_heads, features, kernel);
        SelfAttention { attention }
    }

    /// Maps `x: [.., length, features]` to the same shape; the arguments are those of
    /// [`MultiHeadDotProductAttention::apply`].
    #[op("SelfAttention::apply")]
    pub fn apply(
        &self,
        x: Tensor,
        mask: Option<Tensor>,
        dropout_rng: Option<Key<Tensor>>,
    ) -> Tensor {
        self.attention.apply(x, x, x, mask, dropout_rng)
    }
}
