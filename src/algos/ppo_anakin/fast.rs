//! Small functions written for speed under XLA; the comment of each names the gain.

use crate::trace::control::scan;
use crate::trace::ops::{concatenate, iota, ones, where_, zeros};
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, TensorType, random};

/// Returns the index (i32) of the first maximum along the last axis. Up to 8 elements are compared
/// one by one, which the compiler fuses with neighbouring operations.
pub(super) fn argmax(x: Tensor) -> Tensor {
    let classes = x.dim(-1);
    if classes > 8 {
        return x.argmax(-1);
    }
    let mut largest = x.index_axis(-1, 0);
    let mut index = zeros(largest.shape(), DType::I32);
    for class in 1..classes {
        let other = x.index_axis(-1, class as isize);
        index = where_(other.gt(largest), class as i32, index);
        largest = largest.maximum(other);
    }
    index
}

/// Computes `optax.clip_by_global_norm` of a vector. The sum of squares is computed as a product
/// with ones.
pub(super) fn clip_by_norm(grads: Tensor, max_norm: f64) -> Tensor {
    let rows = grads.numel().div_ceil(64);
    let squares = grads.square().pad(&[0], &[(rows * 64 - grads.numel()) as i64], 0.0);
    let sums = ones([rows], DType::F32).matmul(squares.reshape([rows, 64]));
    let norm = sums.sum(..).sqrt();
    where_(norm.lt(max_norm), grads, grads / norm * max_norm)
}

/// Draws uniformly random permutations of `0..size`, `i32[count, size]`, by sorting random words
/// whose lowest bits are the number itself. Sorting one operand is several times faster than
/// sorting pairs.
pub(super) fn permutations(key: Key<Tensor>, count: usize, size: usize) -> Tensor {
    let digits = usize::BITS - (size - 1).leading_zeros();
    let words = random::bits(key, [count, size], DType::U64);
    let numbers = iota([count, size], 1, DType::U64);
    let sorted = (((words >> digits) << digits) | numbers).sort(1);
    (sorted & ((1u64 << digits) - 1)).to(DType::I32)
}

/// Several tensors `[N, ..]` packed as the rows of one, `f32[rows, N]`: a loop that carries and
/// stacks one packed tensor compiles to a few operations instead of a few per tensor.
struct PackedRows {
    types: Vec<TensorType>,
}

impl PackedRows {
    fn of(tensors: &[Tensor]) -> PackedRows {
        PackedRows { types: tensors.iter().map(|x| x.ty()).collect() }
    }

    /// Returns the number of rows.
    fn count(&self) -> usize {
        self.types.iter().map(|ty| ty.numel() / ty.shape[0]).sum()
    }

    fn pack(&self, tensors: &[Tensor]) -> Tensor {
        let mut rows = Vec::new();
        for (x, ty) in tensors.iter().zip(&self.types) {
            let columns = ty.numel() / ty.shape[0];
            rows.push(x.to(DType::F32).reshape([ty.shape[0], columns]).t());
        }
        concatenate(&rows, 0)
    }

    /// Unpacks `f32[.., rows, N]` into tensors `[.., N, ..]`.
    fn unpack(&self, packed: Tensor) -> Vec<Tensor> {
        let lead = packed.shape()[..packed.rank() - 2].to_vec();
        let mut from = 0;
        let mut tensors = Vec::new();
        for ty in &self.types {
            let columns = ty.numel() / ty.shape[0];
            let rows = packed.slice_axis(-2, from, from + columns).swapaxes(-2, -1);
            from += columns;
            tensors.push(rows.reshape([&lead[..], &ty.shape[..]].concat()).to(ty.dtype));
        }
        tensors
    }
}

/// Runs [`scan`] with a carry and outputs that are packed in one tensor, as [`PackedRows`] does. All
/// leaves of the carry are `[N, ..]`; `output_types` are those of the outputs of one step. Returns
/// the last carry, the first leaf of the carry before each step, `[T, N, ..]`, and the outputs of all
/// steps.
pub(super) fn scan_packed<C, X>(
    step: impl Fn(C, X) -> (C, Vec<Tensor>),
    init: C,
    xs: X,
    output_types: Vec<TensorType>,
) -> (C, Tensor, Vec<Tensor>)
where
    C: Tree<Tensor, With<Tensor> = C>,
    X: Tree<Tensor, With<Tensor> = X>,
{
    let carry = PackedRows::of(&tree::leaves(&init));
    let outputs = PackedRows { types: output_types };
    let unpack_carry = |rows: Tensor| -> C { tree::replace(&init, carry.unpack(rows)) };
    let packed_step = |rows: Tensor, x: X| {
        let (next, now) = step(unpack_carry(rows), x);
        let rows = concatenate(&[carry.pack(&tree::leaves(&next)), outputs.pack(&now)], 0);
        (rows, rows)
    };
    let num_envs = carry.types[0].shape[0];
    let no_outputs = zeros([outputs.count(), num_envs], DType::F32);
    let first = concatenate(&[carry.pack(&tree::leaves(&init)), no_outputs], 0);
    let (last, rows) = scan(packed_step, first, xs);
    let stacked = outputs.unpack(rows.slice_axis(1, carry.count(), rows.dim(1)));
    let before = concatenate(&[first.expand_dims(0), rows.slice_axis(0, 0, rows.dim(0) - 1)], 0);
    let first_leaf = PackedRows { types: carry.types[..1].to_vec() }.unpack(before)[0];
    (unpack_carry(last), first_leaf, stacked)
}
