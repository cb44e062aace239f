//! Index grids, choices by condition, and writes at computed places.

use crate::trace::literal::Literal;
use crate::trace::ops::{
    AxisList, IndexMode, Operand, arange, axis_of, broadcast_shapes, constant, full, iota, where_,
    wide, zeros, zeros_like,
};
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, Shape, TensorType};

/// Order of the axes of [`meshgrid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Indexing {
    /// The first vector along the second axis, the second along the first: NumPy's default.
    #[default]
    Xy,
    /// Each vector along its own axis.
    Ij,
}

/// `jnp.meshgrid`: each vector along its axis of a grid, repeated along the others.
#[op(at_line)]
pub fn meshgrid(vectors: &[Tensor], indexing: Indexing) -> Vec<Tensor> {
    if let Some(other) = vectors.iter().map(|x| x.ty()).find(|ty| ty.rank() > 1) {
        fail_op("meshgrid", format!("takes vectors, and was given {other}"));
    }
    let mut shape: Vec<usize> = vectors.iter().map(|x| x.numel()).collect();
    let swapped = indexing == Indexing::Xy && vectors.len() > 1;
    if swapped {
        shape.swap(0, 1);
    }
    let mut grids = Vec::with_capacity(vectors.len());
    for (i, x) in vectors.iter().enumerate() {
        let axis = if swapped && i < 2 { 1 - i } else { i };
        grids.push(x.ravel().broadcast_in_dim(&shape[..], &[axis]));
    }
    grids
}

/// `jnp.indices`: the index along each axis of a grid of shape `shape`, along a new first axis.
#[op]
pub fn indices(shape: impl Into<Shape>, dtype: DType) -> Tensor {
    let shape = shape.into();
    let mut grids = Vec::with_capacity(shape.rank());
    for axis in 0..shape.rank() {
        grids.push(iota(&shape, axis as isize, dtype));
    }
    match grids.is_empty() {
        true => zeros([0], dtype),
        false => crate::trace::ops::stack(&grids, 0),
    }
}

/// `jnp.ix_`: vectors as index tensors of an open grid: vector `i` lies along axis `i`, the other
/// axes have size 1.
#[op(at_line)]
pub fn ix_(vectors: &[Tensor]) -> Vec<Tensor> {
    let mut grids = Vec::with_capacity(vectors.len());
    for (axis, x) in vectors.iter().enumerate() {
        if x.rank() != 1 || x.dtype() == DType::Bool {
            fail_op("ix_", format!("takes vectors of integers, and was given {}", x.ty()));
        }
        let mut shape = vec![1; vectors.len()];
        shape[axis] = x.numel();
        grids.push(x.reshape(shape));
    }
    grids
}

/// The rows and columns, as i32, of the elements of a matrix that `holds` selects.
#[track_caller]
fn positions(rows: usize, columns: usize, holds: impl Fn(i64, i64) -> bool) -> [Tensor; 2] {
    let (mut row, mut column) = (Vec::new(), Vec::new());
    for i in 0..rows {
        for j in 0..columns {
            if holds(i as i64, j as i64) {
                row.push(i as i32);
                column.push(j as i32);
            }
        }
    }
    [row, column].map(|list| constant(Literal::new([list.len()], &list)))
}

/// `jnp.tril_indices(n, k, m)`: rows and columns (i32) of the lower triangle of a matrix of `n` rows
/// and `m` columns, up to diagonal `k`.
#[op]
pub fn tril_indices(n: usize, k: i32, m: usize) -> [Tensor; 2] {
    positions(n, m, |i, j| j <= i + k as i64)
}

/// `jnp.triu_indices(n, k, m)`: rows and columns (i32) of the upper triangle of a matrix of `n` rows
/// and `m` columns, from diagonal `k` on.
#[op]
pub fn triu_indices(n: usize, k: i32, m: usize) -> [Tensor; 2] {
    positions(n, m, |i, j| j >= i + k as i64)
}

/// `jnp.diag_indices`: the indices (i32) of the main diagonal of a tensor with `ndim` axes of `n`
/// elements.
#[op]
pub fn diag_indices(n: usize, ndim: usize) -> Vec<Tensor> {
    vec![arange(n, DType::I32); ndim]
}

/// `jnp.unravel_index`: the index along each axis of `shape` of positions in row-major order.
/// Negative positions count from the end; then positions are clamped.
#[op(at_line)]
pub fn unravel_index(positions: Tensor, shape: impl Into<Shape>) -> Vec<Tensor> {
    let shape = shape.into();
    let count = shape.numel();
    let flat = wide("unravel_index", positions);
    let flat = match flat.dtype().is_unsigned() {
        true => flat,
        false => where_(flat.lt(0), flat + count, flat).maximum(0),
    };
    let mut rest = flat.minimum(count.saturating_sub(1));
    let mut indices = Vec::with_capacity(shape.rank());
    for &size in shape.iter().rev() {
        indices.push(rest.modulo(size));
        rest = rest.floor_div(size.max(1));
    }
    indices.reverse();
    indices
}

/// `jnp.ravel_multi_index` with `mode="clip"`: the position in row-major order of `indices` along
/// the axes of `shape`, each clamped to its axis.
#[op(at_line)]
pub fn ravel_multi_index(indices: &[Tensor], shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    if indices.len() != shape.rank() || indices.is_empty() {
        let problem = format!("{} index tensors for the shape {shape}", indices.len());
        fail_op("ravel_multi_index", problem);
    }
    let mut position: Option<Tensor> = None;
    for (index, &size) in indices.iter().zip(shape.iter()) {
        let index = wide("ravel_multi_index", *index).clip(0, size.saturating_sub(1));
        position = Some(position.map_or(index, |before| before * size + index));
    }
    position.expect("at least one axis")
}

/// `jnp.select`: for each element the choice of the first condition that holds, or `default`. All
/// broadcast.
#[op(at_line)]
pub fn select(conditions: &[Tensor], choices: &[Tensor], default: impl Operand) -> Tensor {
    if conditions.len() != choices.len() || choices.is_empty() {
        let problem = format!(
            "takes as many conditions as choices, at least one; was given {} and {}",
            conditions.len(),
            choices.len()
        );
        fail_op("select", problem);
    }
    let default = default.to_tensor(&choices[0].ty());
    let pairs = conditions.iter().zip(choices).rev();
    pairs.fold(default, |rest, (&condition, &choice)| where_(condition, choice, rest))
}

/// `jnp.choose` with `mode="clip"`: for each element of `indices` the element of that choice;
/// indices are clamped. All broadcast.
#[op(at_line)]
pub fn choose(indices: Tensor, choices: &[Tensor]) -> Tensor {
    let Some((first, rest)) = choices.split_first() else {
        fail_op("choose", "there are no choices")
    };
    let index = wide("choose", indices);
    let shapes: Vec<Shape> = choices.iter().chain([&index]).map(|x| x.shape()).collect();
    let full = broadcast_shapes("choose", &shapes);
    let pairs = rest.iter().enumerate();
    let chosen = pairs.fold(*first, |below, (i, &choice)| where_(index.gt(i), choice, below));
    chosen.broadcast_to(&full)
}

/// Function of a tensor, as [`piecewise`] takes it.
pub type Piece<'a> = &'a dyn Fn(Tensor) -> Tensor;

/// `jnp.piecewise`: the function of the last condition that holds, for each element of `x`; where
/// none holds, the function after those of the conditions, or 0.
#[op(at_line)]
pub fn piecewise(x: Tensor, conditions: &[Tensor], functions: &[Piece<'_>]) -> Tensor {
    let (given, wanted) = (functions.len(), conditions.len());
    if given != wanted && given != wanted + 1 {
        let problem = format!("takes {wanted} or {} functions, was given {given}", wanted + 1);
        fail_op("piecewise", problem);
    }
    // A function whose value is not chosen at an element passes no derivative there: what it has
    // may be NaN.
    let of = |f: Piece<'_>, chosen: Tensor| f(where_(chosen, x, x.stop_gradient()));
    let none = constant(false);
    let later = |i: usize| conditions[i..].iter().fold(none, |any, &condition| any | condition);
    let rest = functions.get(wanted).map_or_else(|| zeros_like(x), |f| of(f, !later(0)));
    let pieces = conditions.iter().zip(functions).enumerate();
    pieces.fold(rest, |rest, (i, (&condition, f))| {
        where_(condition, of(f, condition & !later(i + 1)), rest)
    })
}

/// `jnp.tri`: a matrix of ones at and below diagonal `k`, and zeros.
#[op]
pub fn tri(n: usize, m: usize, k: i32, dtype: DType) -> Tensor {
    let (row, column) = (iota([n, m], 0, DType::I32), iota([n, m], 1, DType::I32));
    (row + k).ge(column).to(dtype)
}

/// `jnp.fromfunction`: `f` of the indices (`dtype`) of each element of a tensor of shape `shape`.
#[op]
pub fn fromfunction(
    f: impl FnOnce(&[Tensor]) -> Tensor,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Tensor {
    let shape = shape.into();
    let mut grids = Vec::with_capacity(shape.rank());
    for axis in 0..shape.rank() {
        grids.push(iota(&shape, axis as isize, dtype));
    }
    f(&grids)
}

impl Tensor {
    /// `jnp.tril_indices_from`: [`tril_indices`] of this matrix.
    #[op]
    pub fn tril_indices_from(self, k: i32) -> [Tensor; 2] {
        let [n, m] = self.matrix_sizes("tril_indices_from");
        tril_indices(n, k, m)
    }

    /// `jnp.triu_indices_from`: [`triu_indices`] of this matrix.
    #[op]
    pub fn triu_indices_from(self, k: i32) -> [Tensor; 2] {
        let [n, m] = self.matrix_sizes("triu_indices_from");
        triu_indices(n, k, m)
    }

    /// Number of rows and columns of a matrix.
    #[track_caller]
    fn matrix_sizes(self, op: &str) -> [usize; 2] {
        match self.shape()[..] {
            [n, m] => [n, m],
            _ => fail_op(op, format!("takes a matrix, and was given {}", self.ty())),
        }
    }

    /// `jnp.diag_indices_from`: [`diag_indices`] of this tensor, whose axes have one size.
    #[op]
    pub fn diag_indices_from(self) -> Vec<Tensor> {
        let shape = self.shape();
        if shape.rank() < 2 || shape.iter().any(|&size| size != shape[0]) {
            let problem = format!("takes at least two axes of one size; was given {}", self.ty());
            fail_op("diag_indices_from", problem);
        }
        diag_indices(shape[0], shape.rank())
    }

    /// `jnp.put_along_axis`: this tensor with `values` at `indices` along `axis`, the inverse
    /// of [`Tensor::take_along_axis`]. `values` broadcast to the shape of `indices`; an index outside
    /// is dropped.
    #[op(at_line)]
    pub fn put_along_axis(self, indices: Tensor, values: impl Operand, axis: isize) -> Tensor {
        let (ty, places) = (self.ty(), indices.ty());
        let axis = axis_of("put_along_axis", axis, ty.rank());
        let agree = places.rank() == ty.rank()
            && (0..ty.rank()).all(|a| a == axis || places.shape[a] == ty.shape[a]);
        if !agree {
            let problem = format!("indices {places} must agree with {ty} but along axis {axis}");
            fail_op("put_along_axis", problem);
        }
        let mut at = Vec::with_capacity(ty.rank());
        for a in 0..ty.rank() {
            at.push(match a == axis {
                true => wide("put_along_axis", indices),
                false => iota(&places.shape, a as isize, DType::I32),
            });
        }
        let same = at[axis].dtype();
        let at: Vec<Tensor> = at.into_iter().map(|index| index.to(same)).collect();
        let values = values.to_tensor(&TensorType::new(ty.dtype, &places.shape));
        self.at(&at).set(values.broadcast_to(&places.shape))
    }

    /// `jnp.put` with `inplace=False`: this tensor with `values`, repeated as often as needed, at
    /// positions in row-major order. Negative positions count from the end; a position outside is
    /// dropped.
    #[op(at_line)]
    pub fn put(self, positions: Tensor, values: Tensor) -> Tensor {
        let flat = positions.ravel();
        let values = values.ravel().resize([flat.numel()]);
        self.ravel().at(&[flat]).set(values).reshape(self.shape())
    }

    /// `jnp.place` with `inplace=False`: this tensor with `values` in order where `mask` holds, from
    /// the first again when all are used.
    #[op(at_line)]
    pub fn place(self, mask: Tensor, values: Tensor) -> Tensor {
        let count = values.numel();
        if count == 0 || mask.shape() != self.shape() {
            let problem = format!(
                "takes a mask of shape {} and at least one value; was given {} and {}",
                self.shape(),
                mask.ty(),
                values.ty()
            );
            fail_op("place", problem);
        }
        let flat = mask.ravel();
        let order = flat.to(DType::I32).cumsum(0) - 1;
        let chosen = values.ravel().take_mode(order.modulo(count), 0, IndexMode::Clip);
        where_(flat, chosen, self.ravel()).reshape(self.shape())
    }

    /// `jnp.flatnonzero` with `size`: positions (i32) in row-major order of the first `size` elements
    /// that are not zero; where there are fewer, `fill`.
    #[op]
    pub fn flatnonzero(self, size: usize, fill: i32) -> Tensor {
        self.ravel().nonzero(size, fill)[0]
    }

    /// `jnp.argwhere` with `size`: the indices (i32) of the first `size` elements that are not zero,
    /// one row each; where there are fewer, `fill`.
    #[op]
    pub fn argwhere(self, size: usize, fill: i32) -> Tensor {
        let indices = self.nonzero(size, fill);
        match indices.is_empty() {
            true => zeros([size, 0], DType::I32),
            false => crate::trace::ops::stack(&indices, 1),
        }
    }

    /// `jnp.compress` with `size`: the first `size` slices along `axis` for which `condition`, a
    /// vector, holds; where there are fewer, slices of `fill`.
    #[op(at_line)]
    pub fn compress(self, condition: Tensor, axis: isize, size: usize, fill: f64) -> Tensor {
        let length = self.dim(axis);
        if condition.rank() != 1 || condition.numel() > length {
            let problem = format!(
                "takes a vector of at most {length} conditions, and was given {}",
                condition.ty()
            );
            fail_op("compress", problem);
        }
        let place = axis_of("compress", axis, self.rank());
        if length == 0 {
            let shape = self.shape().without_axis(place).with_axis(place, size);
            return full(shape, fill, self.dtype());
        }
        let at = condition.nonzero(size, length as i32)[0];
        let taken = self.take_mode(at, axis, IndexMode::Clip);
        let mut shape = vec![1; self.rank()];
        shape[place] = size;
        let there = at.lt(length).reshape(shape).broadcast_to(taken.shape());
        where_(there, taken, crate::trace::ops::full_like(taken, fill))
    }

    /// `jnp.extract` with `size`: the first `size` elements, in row-major order, at which `condition`
    /// is not zero; where there are fewer, `fill`.
    #[op]
    pub fn extract(self, condition: Tensor, size: usize, fill: f64) -> Tensor {
        self.ravel().compress(condition.ravel(), 0, size, fill)
    }

    /// `jnp.fill_diagonal` with `inplace=False`: this tensor, of at least two axes of one size (a
    /// matrix of any sizes), with `value` on its main diagonal.
    #[op(at_line)]
    pub fn fill_diagonal(self, value: impl Operand) -> Tensor {
        let shape = self.shape();
        let square = shape.rank() == 2 || shape.iter().all(|&size| size == shape[0]);
        if shape.rank() < 2 || !square {
            let problem = format!("takes a matrix or axes of one size; was given {}", self.ty());
            fail_op("fill_diagonal", problem);
        }
        let size = shape.iter().copied().min().unwrap_or(0);
        self.at(&diag_indices(size, shape.rank())).set(value)
    }

    /// `jnp.diagflat`: the matrix with the elements on diagonal `k`, and zeros.
    #[op]
    pub fn diagflat(self, k: i32) -> Tensor {
        let skip = k.unsigned_abs() as usize;
        let (row, column) = if k < 0 { (skip, 0) } else { (0, skip) };
        let at = |n: usize| n as i64;
        self.ravel().diag().pad(&[at(row), at(column)], &[at(skip - row), at(skip - column)], 0.0)
    }

    /// `jnp.vander`: the powers of a vector from `n - 1` down to 0 as columns.
    #[op]
    pub fn vander(self, n: usize) -> Tensor {
        if self.rank() != 1 {
            fail_op("vander", format!("takes a vector, and was given {}", self.ty()));
        }
        let mut columns = Vec::with_capacity(n);
        for power in (0..n).rev() {
            columns.push(self.powi(power as i32));
        }
        match columns.is_empty() {
            true => zeros([self.numel(), 0], self.dtype()),
            false => crate::trace::ops::stack(&columns, 1),
        }
    }

    /// `jnp.apply_along_axis`: `f` of each vector along `axis`; the axes of its result replace that
    /// axis.
    #[op]
    pub fn apply_along_axis(self, axis: isize, f: impl Fn(Tensor) -> Tensor) -> Tensor {
        let shape = self.shape();
        let axis = axis_of("apply_along_axis", axis, shape.rank());
        let size = shape[axis];
        let outer = shape.without_axis(axis);
        let lines = self.moveaxis(axis as isize, -1).reshape([outer.numel(), size]);
        let results = crate::trace::vmap::vmap(f)(lines);
        let inner = results.shape();
        let full: Vec<usize> = outer.iter().chain(&inner[1..]).copied().collect();
        // The axes of the result of `f` move to where `axis` was.
        let (before, added) = (outer.rank(), inner.rank() - 1);
        let order = (0..axis).chain(before..before + added).chain(axis..before);
        results.reshape(full).transpose(&order.collect::<Vec<usize>>())
    }

    /// `jnp.apply_over_axes`: `f(x, axis)` for one axis after the other; an axis that `f` removes stays
    /// with size 1.
    #[op]
    pub fn apply_over_axes(
        self,
        axes: impl AxisList,
        f: impl Fn(Tensor, isize) -> Tensor,
    ) -> Tensor {
        let rank = self.rank();
        let mut x = self;
        for axis in axes.axes("apply_over_axes", rank) {
            let y = f(x, axis as isize);
            x = if y.rank() < rank { y.expand_dims(axis as isize) } else { y };
        }
        x
    }
}
