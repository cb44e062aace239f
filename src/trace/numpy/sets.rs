//! Sets of the elements of vectors, and sums by segment.

use std::panic::Location;

use crate::trace::literal::Literal;
use crate::trace::op::ReduceOp;
use crate::trace::ops::{
    IndexMode, axis_of, concatenate, full, full_like, sort_by, where_, wide, zeros,
};
use crate::trace::tensor::{Tensor, at_line, fail_op, op};
use crate::trace::types::{DType, TensorType};

/// Results of [`unique_all`].
#[derive(Debug, Clone, Copy)]
pub struct Unique {
    /// The first `size` unique elements, ascending; then the least one again.
    pub values: Tensor,
    /// Position (i32) of the first occurrence of each.
    pub indices: Tensor,
    /// Index (i32) of the unique element of each element, in the shape of the tensor.
    pub inverse: Tensor,
    /// Number (i32) of occurrences of each, 0 after the last one.
    pub counts: Tensor,
}

/// `jnp.unique_all` with `size`: unique elements of `x` in row-major order, ascending. Every NaN is
/// unique; [`Tensor::unique`] takes them for equal. Where there are fewer than `size`, the least one
/// fills; where there are more, the greatest ones are left out.
#[op]
pub fn unique_all(x: Tensor, size: usize) -> Unique {
    unique_of(x, size, |after, before| after.ne(before))
}

/// The unique elements, where `differ` compares neighbors in sorted order.
#[track_caller]
fn unique_of(x: Tensor, size: usize, differ: impl Fn(Tensor, Tensor) -> Tensor) -> Unique {
    let count = x.numel();
    if count == 0 {
        fail_op("unique_all", format!("takes at least one element; was given {}", x.ty()));
    }
    at_line(Location::caller(), || {
        let (flat, shape) = (x.ravel(), x.shape());
        let order = flat.argsort(0);
        let sorted = flat.take_mode(order, 0, IndexMode::Clip);
        let first = first_of_runs(sorted, differ);
        let starts = first.nonzero(size, 0)[0];
        let ranks = first.to(DType::I32).cumsum(0) - 1;
        let inverse = zeros([count], DType::I32).at(&[order]).set(ranks).reshape(shape);
        // The run after the last one begins at the end; so do those that fill.
        let ends = first.nonzero(size + 1, count as i32)[0];
        let counts = ends.diff(0);
        Unique {
            values: sorted.take_mode(starts, 0, IndexMode::Clip),
            indices: order.take_mode(starts, 0, IndexMode::Clip),
            inverse,
            counts,
        }
    })
}

/// Compares elements, NaN being equal to NaN.
#[track_caller]
fn differ(x: Tensor, y: Tensor) -> Tensor {
    if x.dtype().is_float() { x.ne(y) & !(x.is_nan() & y.is_nan()) } else { x.ne(y) }
}

/// True for the first element of a sorted vector, and for each that differs from the one before.
#[track_caller]
fn first_of_runs(sorted: Tensor, differ: impl Fn(Tensor, Tensor) -> Tensor) -> Tensor {
    let count = sorted.numel();
    if count == 0 {
        return zeros([0], DType::Bool);
    }
    let (after, before) = (sorted.slice_axis(0, 1, count), sorted.slice_axis(0, 0, count - 1));
    concatenate(&[full([1], 1.0, DType::Bool), differ(after, before)], 0)
}

/// `jnp.union1d` with `size`: the elements of either vector, ascending, as [`Tensor::unique`].
#[op]
pub fn union1d(x: Tensor, y: Tensor, size: usize) -> Tensor {
    concatenate(&[x.ravel(), y.ravel()], 0).unique(size)
}

/// The first `size` unique elements of `x` for which `holds` is true, ascending, then `fill`.
#[track_caller]
fn unique_where(x: Tensor, holds: impl Fn(Tensor) -> Tensor, size: usize, fill: f64) -> Tensor {
    let sorted = x.ravel().sort(0);
    sorted.extract(first_of_runs(sorted, differ) & holds(sorted), size, fill)
}

/// `jnp.intersect1d` with `size` and `fill_value`: the elements of both vectors, ascending, each once.
#[op(at_line)]
pub fn intersect1d(x: Tensor, y: Tensor, size: usize, fill: f64) -> Tensor {
    unique_where(x, |x| x.isin(y), size, fill)
}

/// `jnp.setdiff1d` with `size` and `fill_value`: the elements of `x` that are not in `y`, ascending,
/// each once.
#[op(at_line)]
pub fn setdiff1d(x: Tensor, y: Tensor, size: usize, fill: f64) -> Tensor {
    unique_where(x, |x| !x.isin(y), size, fill)
}

/// `jnp.setxor1d` with `size` and `fill_value`: the elements of exactly one of the vectors, ascending,
/// each once. NaN of one vector is not equal to NaN of the other.
#[op(at_line)]
pub fn setxor1d(x: Tensor, y: Tensor, size: usize, fill: f64) -> Tensor {
    let alone = |x: Tensor, y: Tensor| {
        let sorted = x.ravel().sort(0);
        (sorted, first_of_runs(sorted, differ) & !sorted.isin(y))
    };
    let ((x, in_x), (y, in_y)) = (alone(x, y), alone(y, x));
    let flags = concatenate(&[in_x, in_y], 0);
    let (sorted, flags) = sort_by(concatenate(&[x, y], 0), &[flags], 0);
    sorted.extract(flags[0], size, fill)
}

/// The result of `write` into `num_segments` rows of neutral elements of `op`.
#[track_caller]
fn segments(op: ReduceOp, x: Tensor, ids: Tensor, num_segments: usize, neutral: f64) -> Tensor {
    if ids.rank() != 1 || x.rank() == 0 || x.dim(0) != ids.numel() {
        let problem = format!("takes one id a row, and was given {} for {}", ids.ty(), x.ty());
        fail_op("segment", problem);
    }
    let ids = wide("segment", ids);
    // Rows whose id is negative are left out, as in JAX, and not counted from the end.
    let ids = where_(ids.lt(0), full_like(ids, num_segments as f64), ids);
    let shape = x.shape().without_axis(0).with_axis(0, num_segments);
    let literal = Literal::saturated(TensorType::scalar(x.dtype()), neutral);
    let start = crate::trace::ops::constant(literal).broadcast_to(shape).at(&[ids]);
    match op {
        ReduceOp::Sum => start.add(x),
        ReduceOp::Prod => start.multiply(x),
        ReduceOp::Max => start.max(x),
        _ => start.min(x),
    }
}

/// `jax.ops.segment_sum`: the sums of the rows of `x` with the same id, `0..num_segments`; rows with
/// another id are left out.
///
/// ```
/// use podracer::trace::numpy::segment_sum;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(x, ids): (Tensor, Tensor)| segment_sum(x, ids, 2));
/// let sums = f.call((Array::from([1.0f32, 2.0, 4.0]), Array::from([0i32, 1, 0])))?;
/// assert_eq!(sums.to_vec::<f32>()?, [5.0, 2.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn segment_sum(x: Tensor, ids: Tensor, num_segments: usize) -> Tensor {
    segments(ReduceOp::Sum, x, ids, num_segments, 0.0)
}

/// `jax.ops.segment_prod`: products by segment, as [`segment_sum`]; 1 of none.
#[op(at_line)]
pub fn segment_prod(x: Tensor, ids: Tensor, num_segments: usize) -> Tensor {
    segments(ReduceOp::Prod, x, ids, num_segments, 1.0)
}

/// `jax.ops.segment_max`: greatest elements by segment, as [`segment_sum`]; the least value of the
/// type of none.
#[op(at_line)]
pub fn segment_max(x: Tensor, ids: Tensor, num_segments: usize) -> Tensor {
    let least = f64::NEG_INFINITY;
    segments(ReduceOp::Max, x, ids, num_segments, least)
}

/// `jax.ops.segment_min`: least elements by segment, as [`segment_sum`]; the greatest value of the
/// type of none.
#[op(at_line)]
pub fn segment_min(x: Tensor, ids: Tensor, num_segments: usize) -> Tensor {
    segments(ReduceOp::Min, x, ids, num_segments, f64::INFINITY)
}

impl Tensor {
    /// `jnp.unique` with `size`: the unique elements, ascending, NaN once; see [`unique_all`], which has
    /// positions and counts as well.
    #[op]
    pub fn unique(self, size: usize) -> Tensor {
        unique_of(self, size, differ).values
    }

    /// `lax.reduce_xor` over `axis`, which vanishes: bitwise on integers, logical on bools.
    #[op(at_line)]
    pub fn reduce_xor(self, axis: isize) -> Tensor {
        if self.dtype().is_float() {
            fail_op("reduce_xor", format!("takes integers or bools; was given {}", self.ty()));
        }
        let rank = self.rank();
        let place = axis_of("reduce_xor", axis, rank);
        let mut x = self;
        loop {
            let size = x.dim(axis);
            if size <= 1 {
                break;
            }
            let half = size.div_ceil(2);
            let (low, mut high) = (vec![0; rank], vec![0; rank]);
            high[place] = (2 * half - size) as i64;
            let even = x.pad(&low, &high, 0.0);
            x = even.slice_axis(axis, 0, half) ^ even.slice_axis(axis, half, 2 * half);
        }
        match x.dim(axis) {
            0 => zeros(self.shape().without_axis(place), self.dtype()),
            _ => x.squeeze(axis),
        }
    }
}
