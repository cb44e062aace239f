//! Sums in numpy's order: another order would differ in the last bits.

use std::ops::{Add, Mul};

/// Returns `np.sum(np.square(values))` for up to 128 numbers: eight partial sums, then the rest.
pub(super) fn sum_of_squares<T>(values: &[T]) -> T
where
    T: Copy + Default + Add<Output = T> + Mul<Output = T>,
{
    sum(values.len(), |i| values[i] * values[i])
}

/// Returns `np.sum` of `value(0)`, ..., `value(len - 1)`, for `len` up to 128.
pub(super) fn sum<T: Copy + Default + Add<Output = T>>(
    len: usize,
    value: impl Fn(usize) -> T,
) -> T {
    debug_assert!(len <= 128, "numpy halves longer arrays");
    if len < 8 {
        return (0..len).fold(T::default(), |sum, i| sum + value(i));
    }
    let mut parts: [T; 8] = std::array::from_fn(&value);
    let whole = len - len % 8;
    for block in (8..whole).step_by(8) {
        for (k, part) in parts.iter_mut().enumerate() {
            *part = *part + value(block + k);
        }
    }
    let [a, b, c, d, e, f, g, h] = parts;
    let total = ((a + b) + (c + d)) + ((e + f) + (g + h));
    (whole..len).fold(total, |sum, i| sum + value(i))
}

/// Returns `np.linalg.norm` of a few numbers: numpy's BLAS adds up their squares with fused
/// operations.
pub(super) fn norm(values: &[f64]) -> f64 {
    values.iter().fold(0.0f64, |sum, x| x.mul_add(*x, sum)).sqrt()
}
