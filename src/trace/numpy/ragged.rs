//! Products of groups of rows, and reductions by any function.

use crate::trace::numpy::einsum;
use crate::trace::ops::{arange, axis_of, where_, zeros_like};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::DType;

/// `lax.ragged_dot`: the rows of `lhs: [m, k]`, in consecutive groups of the sizes `group_sizes: [g]`,
/// integers, times the matrices of their groups, `rhs: [g, k, n]`. Rows after the last group give zeros.
///
/// The rows are multiplied with all matrices, of which one counts: it takes `g` times the arithmetic
/// operations of a product of two matrices.
///
/// # Errors
/// Ends the trace if shapes or types do not fit.
///
/// ```
/// use podracer::trace::numpy::ragged_dot;
/// use podracer::trace::ops::constant;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|x: Tensor| {
///     let weights = constant([10.0f32, 100.0]).reshape([2, 1, 1]);
///     ragged_dot(x, weights, constant([2i32, 1]))
/// });
/// let y = f.call(Array::from([[1.0f32], [2.0], [3.0], [4.0]]))?;
/// assert_eq!(y.to_vec::<f32>()?, [10.0, 20.0, 300.0, 0.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn ragged_dot(lhs: Tensor, rhs: Tensor, group_sizes: Tensor) -> Tensor {
    let (left, right, sizes) = (lhs.ty(), rhs.ty(), group_sizes.ty());
    let fits = left.rank() == 2
        && right.rank() == 3
        && sizes.rank() == 1
        && left.shape[1] == right.shape[1]
        && right.shape[0] == sizes.shape[0]
        && left.dtype == right.dtype
        && sizes.dtype.is_int();
    if !fits {
        let problem = "takes lhs [m, k], rhs [g, k, n] of its type and integers group_sizes [g]";
        fail_op("ragged_dot", format!("{problem}, and was given {left}, {right} and {sizes}"));
    }
    let ends = group_sizes.cumsum(0).expand_dims(0);
    let starts = ends - group_sizes.expand_dims(0);
    let rows = arange(left.shape[0], sizes.dtype).expand_dims(1);
    let member = (rows.ge(starts) & rows.lt(ends)).t().expand_dims(2);
    // Selected, not multiplied: rows of other groups may be infinite or NaN.
    let of_groups = where_(member, lhs.expand_dims(0), 0.0);
    einsum("gmk,gkn->mn", &[of_groups, rhs])
}

/// `lax.reduce`: combines the elements along `axes` by `computation`, an associative and commutative
/// function of two tensors, elementwise, with `init`, a scalar that leaves elements unchanged. It is
/// applied to halves, a logarithm of the number of elements times. Sums and their like are faster by
/// [`Tensor::sum`] and its relatives.
///
/// # Errors
/// Ends the trace if `init` is not a scalar of the type of `x`, or if `axes` are not axes of `x`.
///
/// ```
/// use podracer::trace::numpy::reduce;
/// use podracer::trace::ops::constant;
/// use podracer::{Array, Tensor, interpret};
/// let larger = |a: Tensor, b: Tensor| a.maximum(b);
/// let f = interpret(move |x: Tensor| reduce(x, constant(f32::NEG_INFINITY), larger, &[1]));
/// let y = f.call(Array::from([[1.0f32, 5.0, 2.0], [0.0, -1.0, -2.0]]))?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 0.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn reduce(
    x: Tensor,
    init: Tensor,
    computation: impl Fn(Tensor, Tensor) -> Tensor,
    axes: &[isize],
) -> Tensor {
    if init.rank() != 0 || init.dtype() != x.dtype() {
        let problem = format!("init must be a scalar {}, and is {}", x.dtype(), init.ty());
        fail_op("reduce", problem);
    }
    let mut axes: Vec<usize> = axes.iter().map(|&axis| axis_of("reduce", axis, x.rank())).collect();
    axes.sort_unstable();
    axes.dedup();
    let others: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
    let kept: Vec<usize> = others.iter().map(|&axis| x.shape()[axis]).collect();
    let order: Vec<usize> = axes.iter().chain(&others).copied().collect();
    let count: usize = axes.iter().map(|&axis| x.shape()[axis]).product();
    let mut rest = x.transpose(&order).reshape([&[count], &kept[..]].concat());
    let mut result = init.broadcast_to(&kept[..]);
    while rest.dim(0) > 0 {
        let half = rest.dim(0) / 2;
        if rest.dim(0) % 2 == 1 {
            result = computation(result, rest.index_axis(0, -1));
        }
        let (first, second) = (rest.slice_axis(0, 0, half), rest.slice_axis(0, half, 2 * half));
        if half == 0 {
            break;
        }
        rest = computation(first, second);
    }
    result
}

/// [`mulhi`] of 64 bits, by four products of halves.
fn mulhi_of_64_bits(x: Tensor, y: Tensor) -> Tensor {
    let dtype = x.dtype();
    let halves = |x: Tensor| {
        let x = x.to(DType::U64);
        (x >> 32, x & u32::MAX)
    };
    let ((x1, x0), (y1, y0)) = (halves(x), halves(y));
    let middle = x1 * y0 + ((x0 * y0) >> 32);
    let lower = x0 * y1 + (middle & u32::MAX);
    let product = (x1 * y1 + (middle >> 32) + (lower >> 32)).to(dtype);
    if dtype.is_unsigned() {
        return product;
    }
    // A negative factor was taken for one that is 2^64 greater.
    let excess = |x: Tensor, y: Tensor| where_(x.lt(0), y, zeros_like(y));
    product - excess(x, y) - excess(y, x)
}

/// `lax.mulhi`: the upper half of the products of integers, which have twice their size.
///
/// # Errors
/// Ends the trace at other types.
#[op(at_line)]
pub fn mulhi(x: Tensor, y: Tensor) -> Tensor {
    let dtype = x.dtype();
    let bits = 8 * dtype.size();
    if !dtype.is_int() || dtype.is_int4() || y.dtype() != dtype {
        let problem = format!("takes integers of one type, and was given {}", x.ty());
        fail_op("mulhi", format!("{problem} and {}", y.ty()));
    }
    if bits == 64 {
        return mulhi_of_64_bits(x, y);
    }
    let wide = if dtype.is_unsigned() { DType::U64 } else { DType::I64 };
    ((x.to(wide) * y.to(wide)) >> bits as i32).to(dtype)
}
