//! Small functions written for speed under XLA; the comment of each names the gain.

use crate::trace::ops::{iota, ones, where_, zeros};
use crate::{DType, Key, Tensor, random};

/// Returns the index (i32) of the first maximum along the last axis. Up to 8 elements are compared
/// one by one, which the compiler fuses with neighboring operations.
pub fn argmax(x: Tensor) -> Tensor {
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
pub fn clip_by_norm(grads: Tensor, max_norm: f64) -> Tensor {
    let rows = grads.numel().div_ceil(64);
    let squares = grads.square().pad(&[0], &[(rows * 64 - grads.numel()) as i64], 0.0);
    let sums = ones([rows], DType::F32).matmul(squares.reshape([rows, 64]));
    let norm = sums.sum(..).sqrt();
    where_(norm.lt(max_norm), grads, grads / norm * max_norm)
}

/// Draws uniformly random permutations of `0..size`, `i32[count, size]`, by sorting random words
/// whose lowest bits are the number itself. Sorting one operand is several times faster than
/// sorting pairs.
pub fn permutations(key: Key<Tensor>, count: usize, size: usize) -> Tensor {
    let digits = usize::BITS - (size - 1).leading_zeros();
    let words = random::bits(key, [count, size], DType::U64);
    let numbers = iota([count, size], 1, DType::U64);
    let sorted = (((words >> digits) << digits) | numbers).sort(1);
    (sorted & ((1u64 << digits) - 1)).to(DType::I32)
}
