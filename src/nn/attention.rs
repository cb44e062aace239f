//! Dot-product attention, at once and in blocks, and masks.
//!
//! Tensors are `[.., length, heads, depth]`, as in Flax and `jax.nn`; masks and biases broadcast to
//! `[.., heads, query length, key length]`.

use std::panic::Location;

use super::linear::expect_rate;
use crate::error::Loc;
use crate::random::{self, Key};
use crate::trace::control::{map, scan};
use crate::trace::numpy::einsum;
use crate::trace::ops::{self, where_};
use crate::trace::remat::checkpoint;
use crate::trace::tensor::{at_line, fail_op, op};
use crate::trace::{DType, Tensor};

/// Options of [`dot_product_attention`], with Flax's names.
#[derive(Debug)]
pub struct AttentionOptions {
    /// Bias added to the scaled products of queries and keys.
    pub bias: Option<Tensor>,
    /// Mask, a bool: true where a query attends to a key.
    pub mask: Option<Tensor>,
    /// Each query attends only to keys of its own and earlier positions: `is_causal` of `jax.nn`.
    pub is_causal: bool,
    /// Probability of a weight to be dropped, with [`dropout_rng`](AttentionOptions::dropout_rng).
    pub dropout_rate: f64,
    /// One dropout mask for all batch elements and heads.
    pub broadcast_dropout: bool,
    /// Key of the dropout mask; `None` is Flax's `deterministic=True`.
    pub dropout_rng: Option<Key<Tensor>>,
}

impl Default for AttentionOptions {
    /// Returns Flax's defaults: no bias, no mask, no dropout.
    fn default() -> AttentionOptions {
        AttentionOptions {
            bias: None,
            mask: None,
            is_causal: false,
            dropout_rate: 0.0,
            broadcast_dropout: true,
            dropout_rng: None,
        }
    }
}

impl AttentionOptions {
    /// Returns the defaults with a mask.
    #[track_caller]
    pub fn masked(mask: Tensor) -> AttentionOptions {
        AttentionOptions { mask: Some(mask), ..AttentionOptions::default() }
    }

    /// Returns the defaults with `is_causal`.
    pub fn causal() -> AttentionOptions {
        AttentionOptions { is_causal: true, ..AttentionOptions::default() }
    }
}

/// Least finite number of a float type: what masked products become.
fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        DType::F64 => f64::MIN,
        // The least bfloat16 is -(2 - 2^-7) 2^127.
        DType::BF16 => -(2.0 - 2f64.powi(-7)) * 2f64.powi(127),
        _ => f32::MIN.into(),
    }
}

#[track_caller]
fn expect_operands(query: Tensor, key: Tensor, value: Option<Tensor>) {
    let (q, k) = (query.ty(), key.ty());
    let v = value.map_or_else(|| k.clone(), |value| value.ty());
    let n = q.rank();
    let fits = n >= 3
        && k.rank() == n
        && v.rank() == n
        && q.dtype.is_float()
        && q.shape[..n - 3] == k.shape[..n - 3]
        && q.shape[..n - 3] == v.shape[..n - 3]
        && q.shape[n - 2..] == k.shape[n - 2..]
        && v.shape[n - 2] == k.shape[n - 2]
        && v.shape[n - 3] == k.shape[n - 3];
    if !fits {
        let problem = format!(
            "takes floats [.., length, heads, depth]: query and key of one batch, heads and depth, \
             key and value of one batch, length and heads; was given query {q}, key {k} and value \
             {v}"
        );
        fail_op("dot_product_attention", problem);
    }
}

/// Refuses masks that are no bools.
#[track_caller]
fn expect_mask(mask: Option<Tensor>) {
    if let Some(mask) = mask.filter(|mask| mask.dtype() != DType::Bool) {
        let problem = format!("the mask is a bool, and {} was given; compare it with 0", mask.ty());
        fail_op("dot_product_attention", problem);
    }
}

/// Returns true where the position of a key is not behind that of a query: `[queries, keys]`, for
/// positions that begin at the given scalars.
#[track_caller]
fn causal(queries: (usize, Option<Tensor>), keys: (usize, Option<Tensor>)) -> Tensor {
    positions(queries, 1).ge(positions(keys, 0))
}

/// Numbers from `start`, 0 if there is none, with a further axis.
#[track_caller]
fn positions((count, start): (usize, Option<Tensor>), axis: isize) -> Tensor {
    let own = ops::arange(count, DType::I32).expand_dims(axis);
    match start {
        Some(start) => own + start,
        None => own,
    }
}

/// Computes the weights of attention, softmax over the keys: flax's
/// `dot_product_attention_weights`. Maps `query: [.., q, heads, depth]` and `key: [.., k, heads,
/// depth]` to `[.., heads, q, k]`.
#[op]
pub fn dot_product_attention_weights(
    query: Tensor,
    key: Tensor,
    options: AttentionOptions,
) -> Tensor {
    expect_operands(query, key, None);
    expect_mask(options.mask);
    expect_rate("dot_product_attention", options.dropout_rate);
    let dtype = query.dtype();
    let scaled = query / (query.dim(-1) as f64).sqrt();
    let mut weights = einsum("...qhd,...khd->...hqk", &[scaled, key]);
    if let Some(bias) = options.bias {
        weights = weights + bias;
    }
    if let Some(mask) = options.mask {
        weights = where_(mask, weights, ops::full_like(weights, least(dtype)));
    }
    if options.is_causal {
        let mask = causal((query.dim(-3), None), (key.dim(-3), None));
        weights = where_(mask, weights, ops::full_like(weights, least(dtype)));
    }
    let weights = weights.softmax(-1);
    let Some(rng) = options.dropout_rng.filter(|_| options.dropout_rate > 0.0) else {
        return weights;
    };
    let keep_prob = 1.0 - options.dropout_rate;
    let shape = weights.shape();
    let (batch, last) = shape.split_at(shape.rank() - 2);
    let shared = [&vec![1; batch.len()], last].concat();
    let keep = match options.broadcast_dropout {
        true => random::bernoulli(rng, keep_prob, shared),
        false => random::bernoulli(rng, keep_prob, &shape),
    };
    weights * (keep.to(dtype) / keep_prob)
}

/// Computes dot-product attention (Vaswani et al. 2017): flax's and `jax.nn`'s
/// `dot_product_attention`. Maps `query: [.., q, heads, depth]`, `key: [.., k, heads, depth]` and
/// `value: [.., k, heads, features]` to `[.., q, heads, features]`.
///
/// ```
/// use podracer::nn::{AttentionOptions, dot_product_attention};
/// use podracer::{Array, DType, Tensor, interpret};
/// let f = interpret(|x: Tensor| dot_product_attention(x, x, x, AttentionOptions::causal()));
/// let y = f.call(Array::zeros([2, 5, 4, 8], DType::F32))?; // batch, length, heads, depth
/// assert_eq!(y.shape().to_vec(), [2, 5, 4, 8]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op]
pub fn dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: AttentionOptions,
) -> Tensor {
    expect_operands(query, key, Some(value));
    let weights = dot_product_attention_weights(query, key, options);
    einsum("...hqk,...khd->...qhd", &[weights, value])
}

/// The block of `x` along `axis` at position `index`; all of an axis of size 1, which broadcasts.
#[track_caller]
fn block_of(x: Tensor, axis: isize, index: Tensor, size: usize) -> Tensor {
    if x.dim(axis) == 1 { x } else { x.dynamic_slice_axis(axis, index * size, size) }
}

/// Splits `axis` into blocks of `size`, padded with zeros, and moves the axis of blocks to the front.
#[track_caller]
fn blocks(x: Tensor, axis: isize, size: usize) -> Tensor {
    let axis = (x.rank() as isize + axis) as usize;
    let count = x.dim(axis as isize).div_ceil(size);
    let padded = padded(x, axis, count * size);
    let mut shape = padded.shape().to_vec();
    shape.splice(axis..=axis, [count, size]);
    padded.reshape(shape).moveaxis(axis as isize, 0)
}

/// Pads `axis` with zeros to `size`.
#[track_caller]
fn padded(x: Tensor, axis: usize, size: usize) -> Tensor {
    let (low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    high[axis] = size.saturating_sub(x.dim(axis as isize)) as i64;
    if high[axis] == 0 {
        return x;
    }
    if x.dtype() == DType::Bool {
        return x.to(DType::I32).pad(&low, &high, 0.0).ne(0);
    }
    x.pad(&low, &high, 0.0)
}

/// Pads the last two axes of a mask or bias to whole blocks, where they do not broadcast.
#[track_caller]
fn whole_blocks(x: Tensor, sizes: [usize; 2]) -> Tensor {
    // Missing leading axes broadcast.
    let x =
        if x.rank() < 2 { x.reshape([&vec![1; 2 - x.rank()], &x.shape()[..]].concat()) } else { x };
    let mut x = x;
    for (i, size) in sizes.into_iter().enumerate() {
        let axis = x.rank() - 2 + i;
        let length = x.dim(axis as isize);
        if length != 1 {
            x = padded(x, axis, length.div_ceil(size) * size);
        }
    }
    x
}

/// Computes [`dot_product_attention`] in blocks of queries and keys (Rabe & Staats 2021), with the
/// same values and gradients. Memory is linear in the length, also for gradients, which compute the
/// weights of a block again. It is slower than [`dot_product_attention`] where that fits into
/// memory. A mask or bias of full size is quadratic itself; use `is_causal` and masks that
/// broadcast.
///
/// `block_sizes` are the numbers of queries and of keys in a block, such as `[256, 256]`; lengths
/// need not be multiples.
///
/// # Errors
/// Ends the trace where the operands do not fit, where a block size is 0, and with dropout.
#[op]
pub fn dot_product_attention_blockwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    options: AttentionOptions,
    block_sizes: [usize; 2],
) -> Tensor {
    let at = Location::caller();
    expect_operands(query, key, Some(value));
    expect_mask(options.mask);
    let lengths = [query.dim(-3), key.dim(-3)];
    if block_sizes.contains(&0) {
        fail_op("dot_product_attention_blockwise", "a block has at least one query and one key");
    }
    if options.dropout_rng.is_some() && options.dropout_rate > 0.0 {
        fail_op("dot_product_attention_blockwise", "has no dropout; use dot_product_attention");
    }
    // Blocks are no longer than the whole.
    let sizes = [0, 1].map(|i| block_sizes[i].min(lengths[i].max(1)));
    let problem = Blockwise {
        bias: options.bias.map(|bias| whole_blocks(bias, sizes)),
        mask: options.mask.map(|mask| whole_blocks(mask, sizes)),
        is_causal: options.is_causal,
        sizes,
        keys: lengths[1],
        at,
    };
    let scaled = query / (query.dim(-1) as f64).sqrt();
    let (queries, keys) = (blocks(scaled, -3, sizes[0]), blocks(key, -3, sizes[1]));
    let values = blocks(value, -3, sizes[1]);
    let indices = ops::arange(queries.dim(0), DType::I32);
    let body = |(index, query): (Tensor, Tensor)| {
        checkpoint(|(index, query)| problem.queries(index, query, keys, values))((index, query))
    };
    let out = map(body, (indices, queries)).moveaxis(0, -4);
    let shape = out.shape();
    let n = shape.rank();
    let merged = [&shape[..n - 4], &[shape[n - 4] * shape[n - 3]], &shape[n - 2..]].concat();
    out.reshape(merged).slice_axis(-3, 0, lengths[0])
}

/// The parts of blockwise attention that all blocks share.
struct Blockwise {
    bias: Option<Tensor>,
    mask: Option<Tensor>,
    is_causal: bool,
    sizes: [usize; 2],
    keys: usize,
    /// Line of the user's code that equations are bound at.
    at: Loc,
}

impl Blockwise {
    /// Computes one block of queries: a scan over the blocks of keys with a running maximum and sum.
    fn queries(&self, index: Tensor, query: Tensor, keys: Tensor, values: Tensor) -> Tensor {
        at_line(self.at, || self.scan_keys(index, query, keys, values))
    }

    fn scan_keys(&self, index: Tensor, query: Tensor, keys: Tensor, values: Tensor) -> Tensor {
        let shape = query.shape();
        let (batch, own) = shape.split_at(shape.rank() - 3);
        let statistics = [batch, &[own[1], own[0]]].concat();
        let outputs = [&shape[..shape.rank() - 1], &[values.dim(-1)]].concat();
        let dtype = query.dtype();
        let start = (
            ops::zeros(outputs, dtype),
            ops::full(&statistics[..], least(dtype), dtype),
            ops::zeros(&statistics[..], dtype),
        );
        let indices = ops::arange(keys.dim(0), DType::I32);
        type Carry = (Tensor, Tensor, Tensor);
        let step = |carry: Carry, (j, key, value): Carry| {
            let body = |(carry, query, key, value, i, j)| {
                at_line(self.at, || self.block(carry, [query, key, value], [i, j]))
            };
            (checkpoint(body)((carry, query, key, value, index, j)), ())
        };
        let ((sums, _, total), ()) = scan(step, start, (indices, keys, values));
        sums / total.swapaxes(-1, -2).expand_dims(-1)
    }

    /// Adds one block of keys to the carry: the weighted sum of values, the greatest product, and the
    /// sum of weights.
    fn block(
        &self,
        (sums, greatest, total): (Tensor, Tensor, Tensor),
        [query, key, value]: [Tensor; 3],
        [i, j]: [Tensor; 2],
    ) -> (Tensor, Tensor, Tensor) {
        let part = |x: Tensor| block_of(block_of(x, -2, i, self.sizes[0]), -1, j, self.sizes[1]);
        let mut products = einsum("...qhd,...khd->...hqk", &[query, key]);
        let masked = ops::full_like(products, least(query.dtype()));
        if let Some(bias) = self.bias {
            products = products + part(bias);
        }
        if let Some(mask) = self.mask {
            products = where_(part(mask), products, masked);
        }
        let first = j * self.sizes[1];
        if self.is_causal {
            let rows = (self.sizes[0], Some(i * self.sizes[0]));
            products = where_(causal(rows, (self.sizes[1], Some(first))), products, masked);
        }
        if !self.keys.is_multiple_of(self.sizes[1]) {
            // Padding weighs nothing, even where all keys are masked.
            let there = (ops::arange(self.sizes[1], DType::I32) + first).lt(self.keys);
            products = where_(there, products, ops::full_like(products, f64::NEG_INFINITY));
        }
        let highest = greatest.maximum(products.max(-1)).stop_gradient();
        let weights = (products - highest.expand_dims(-1)).exp();
        let kept = (greatest - highest).exp();
        let added = einsum("...hqk,...khd->...qhd", &[weights, value]);
        let sums = sums * kept.swapaxes(-1, -2).expand_dims(-1) + added;
        (sums, highest, total * kept + weights.sum(-1))
    }
}

/// Makes a mask from the inputs of queries `[.., q]` and of keys `[.., k]`: flax's
/// `make_attention_mask`. True where both are true or not 0: `[.., 1, q, k]`, for all heads.
#[op]
pub fn make_attention_mask(query_input: Tensor, key_input: Tensor) -> Tensor {
    make_attention_mask_with(query_input, key_input, |query, key| query * key)
}

/// [`make_attention_mask`] by another function than the product, such as `|q, k| q.ge(k)`: flax's
/// `pairwise_fn`. It takes `[.., q, 1]` and `[.., 1, k]`.
#[op]
pub fn make_attention_mask_with(
    query_input: Tensor,
    key_input: Tensor,
    pairwise_fn: impl Fn(Tensor, Tensor) -> Tensor,
) -> Tensor {
    let number = |x: Tensor| if x.dtype() == DType::Bool { x.to(DType::I32) } else { x };
    let mask = pairwise_fn(number(query_input).expand_dims(-1), number(key_input).expand_dims(-2));
    let mask = if mask.dtype() == DType::Bool { mask } else { mask.ne(0) };
    mask.expand_dims(-3)
}

/// Makes a causal mask for self-attention on `x: [.., length]`: flax's `make_causal_mask`,
/// `[.., 1, length, length]`. Only the shape of `x` matters.
#[op]
pub fn make_causal_mask(x: Tensor) -> Tensor {
    let shape = x.shape();
    if shape.rank() == 0 {
        fail_op("make_causal_mask", format!("takes [.., length], and was given {}", x.ty()));
    }
    let (batch, length) = shape.split_at(shape.rank() - 1);
    let mask = causal((length[0], None), (length[0], None));
    mask.broadcast_to([batch, &[1, length[0], length[0]]].concat())
}

/// Combines masks by logical and: flax's `combine_masks`. Returns `None` if all are `None`.
#[op]
pub fn combine_masks(masks: &[Option<Tensor>]) -> Option<Tensor> {
    let mut all: Option<Tensor> = None;
    for &mask in masks.iter().flatten() {
        let mask = if mask.dtype() == DType::Bool { mask } else { mask.ne(0) };
        all = Some(match all {
            Some(before) if before.rank() != mask.rank() => {
                let problem = format!(
                    "masks must have as many axes; was given {} and {}",
                    before.ty(),
                    mask.ty()
                );
                fail_op("combine_masks", problem)
            }
            Some(before) => before & mask,
            None => mask,
        });
    }
    all
}
