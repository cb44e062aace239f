//! Attention, at once and in blocks, and its layers.

use podracer::nn::{
    AttentionOptions, DenseGeneral, LayerNorm, MultiHeadAttention, MultiHeadDotProductAttention,
    SelfAttention, combine_masks, dot_product_attention, dot_product_attention_blockwise,
    dot_product_attention_weights, make_attention_mask, make_attention_mask_with, make_causal_mask,
};
use podracer::trace::ops::{concatenate, zeros_like};
use podracer::{Array, DType, Key, Result, Tensor, grad, jit};

use crate::names::Function;

fn options(bias: Tensor, mask: Tensor) -> AttentionOptions {
    AttentionOptions { bias: Some(bias), ..AttentionOptions::masked(mask) }
}

/// The layer whose parameters are `x`: kernel and bias of queries, keys, values and outputs.
fn multi_head(x: &[Tensor]) -> MultiHeadDotProductAttention<Tensor> {
    let dense = |i: usize, axis: &[isize]| DenseGeneral {
        kernel: x[i],
        bias: Some(x[i + 1]),
        axis: axis.to_vec(),
        batch_dims: 0,
    };
    MultiHeadAttention {
        query: dense(0, &[-1]),
        key: dense(2, &[-1]),
        value: dense(4, &[-1]),
        out: dense(6, &[-2, -1]),
        normalize_qk: None,
        dropout_rate: 0.0,
        broadcast_dropout: true,
    }
}

pub const FUNCTIONS: &[Function] = &[
    ("attention", |x| {
        let [q, k, v] = [x[0], x[1], x[2]];
        vec![
            dot_product_attention(q, k, v, options(x[3], x[4])),
            dot_product_attention_weights(q, k, options(x[3], x[4])),
        ]
    }),
    ("attention_blockwise", |x| {
        let [q, k, v] = [x[0], x[1], x[2]];
        vec![
            dot_product_attention_blockwise(q, k, v, options(x[3], x[4]), [2, 3]),
            dot_product_attention_blockwise(q, k, v, AttentionOptions::masked(x[5]), [3, 8]),
        ]
    }),
    ("attention_dropout", |x| {
        let dropped = |broadcast_dropout: bool| {
            let dropout_rng = Some(Key::from_data(x[3]));
            let options = AttentionOptions {
                dropout_rate: 0.4,
                broadcast_dropout,
                dropout_rng,
                ..AttentionOptions::default()
            };
            dot_product_attention(x[0], x[1], x[2], options)
        };
        vec![dropped(true), dropped(false)]
    }),
    ("attention_causal", |x| {
        let whole = dot_product_attention(x[0], x[1], x[1], AttentionOptions::causal());
        let blocks =
            dot_product_attention_blockwise(x[0], x[1], x[1], AttentionOptions::causal(), [3, 2]);
        // Half of each, so that both have a gradient.
        vec![(whole + blocks) / 2.0]
    }),
    ("attention_masks", |x| {
        let causal = make_causal_mask(x[1]);
        let pairs = make_attention_mask(x[0].gt(0.0), x[1].gt(0.0));
        let ordered = make_attention_mask_with(x[0], x[1], |q, k| q.ge(k));
        let all = combine_masks(&[Some(causal), Some(pairs), None, Some(ordered)]);
        vec![causal, pairs, ordered, all.expect("three masks")]
    }),
    ("multi_head", |x| {
        let norm = |scale: Tensor| LayerNorm { scale, bias: zeros_like(scale), eps: 1e-6 };
        let normalize_qk = Some([norm(x[11]), norm(x[12])]);
        let layer = MultiHeadDotProductAttention { normalize_qk, ..multi_head(&x[3..11]) };
        vec![layer.apply(x[0], x[1], x[1], Some(x[2]), None)]
    }),
    ("self_attention", |x| {
        // The gradient by the bias of keys is 0 but for rounding.
        let mut x = x.to_vec();
        x[5] = x[5].stop_gradient();
        let attention = MultiHeadAttention {
            dropout_rate: 0.25,
            broadcast_dropout: false,
            ..multi_head(&x[2..])
        };
        let layer = SelfAttention { attention };
        let mask = Some(make_causal_mask(x[0].index_axis(-1, 0)));
        let key = Some(Key::from_data(x[1]));
        vec![layer.apply(x[0], mask, key), layer.apply(x[0], mask, None)]
    }),
    ("decode", |x| {
        let layer = multi_head(&x[1..]);
        let mut cache = layer.init_cache(&[2], 3);
        let mut outputs = Vec::new();
        for t in 0..3 {
            let (y, next) = layer.decode(x[0].slice_axis(1, t, t + 1), cache, None);
            outputs.push(y);
            cache = next;
        }
        vec![concatenate(&outputs, 1), cache.cached_key, cache.cache_index]
    }),
];

/// Bytes of temporary memory of the compiled gradient of attention over `length` positions.
fn temporary_memory(length: usize, blockwise: bool) -> Result<i64> {
    let loss = move |x: Tensor| {
        let options = AttentionOptions::causal();
        let y = match blockwise {
            true => dot_product_attention_blockwise(x, x, x, options, [64, 64]),
            false => dot_product_attention(x, x, x, options),
        };
        y.square().sum(..)
    };
    let x = Array::zeros([1, length, 1, 8], DType::F32);
    let stats = jit(grad(loss)).lower(&x)?.compile()?.memory_stats()?;
    Ok(stats.temporary)
}

#[test]
fn memory_of_blockwise_gradients_is_linear_in_the_length() -> Result<()> {
    let [short, long] = [temporary_memory(512, true)?, temporary_memory(2048, true)?];
    let whole = temporary_memory(2048, false)?;
    // Four times the length: four times the memory, and not sixteen times.
    assert!(long < 6 * short, "{short} {long}");
    assert!(long * 8 < whole, "{long} {whole}");
    Ok(())
}
