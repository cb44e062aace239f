//! Joining, cutting and mirroring: NumPy's `hstack` and its relatives.

use std::panic::Location;

use crate::trace::ops::{axis_of, concatenate, ensure_parts, zeros};
use crate::trace::tensor::{Tensor, at_line, fail_op, function};
use crate::trace::types::Shape;

/// Refuses a list without tensors.
#[track_caller]
fn ensure_some(op: &str, tensors: &[Tensor]) {
    if tensors.is_empty() {
        fail_op(op, "no tensors were given");
    }
}

/// `jnp.hstack`: joins along the second axis, vectors along their only one. Scalars count as
/// vectors of one element.
///
/// ```
/// use podracer::trace::numpy::hstack;
/// use podracer::{Array, Tensor, interpret};
/// let f = interpret(|(x, y): (Tensor, Tensor)| hstack(&[x, y]));
/// let z = f.call((Array::from([1.0f32, 2.0]), Array::from([3.0f32])))?;
/// assert_eq!(z.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn hstack(tensors: &[Tensor]) -> Tensor {
    let _scope = function("hstack");
    ensure_some("hstack", tensors);
    at_line(Location::caller(), || {
        let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_1d()).collect();
        concatenate(&raised, if raised[0].rank() == 1 { 0 } else { 1 })
    })
}

/// `jnp.vstack`: joins along the first axis; vectors are rows.
#[track_caller]
pub fn vstack(tensors: &[Tensor]) -> Tensor {
    let _scope = function("vstack");
    ensure_some("vstack", tensors);
    at_line(Location::caller(), || {
        let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_2d()).collect();
        concatenate(&raised, 0)
    })
}

/// `jnp.dstack`: joins along the third axis, of tensors raised by [`Tensor::atleast_3d`].
#[track_caller]
pub fn dstack(tensors: &[Tensor]) -> Tensor {
    let _scope = function("dstack");
    ensure_some("dstack", tensors);
    at_line(Location::caller(), || {
        let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_3d()).collect();
        concatenate(&raised, 2)
    })
}

/// `jnp.column_stack`: joins along the second axis; vectors are columns.
#[track_caller]
pub fn column_stack(tensors: &[Tensor]) -> Tensor {
    let _scope = function("column_stack");
    ensure_some("column_stack", tensors);
    at_line(Location::caller(), || {
        let column = |x: &Tensor| match x.rank() {
            0 | 1 => x.reshape([x.numel(), 1]),
            _ => *x,
        };
        let columns: Vec<Tensor> = tensors.iter().map(column).collect();
        concatenate(&columns, 1)
    })
}

/// `jnp.block` of a list of rows of blocks: the blocks of a row are joined along the last axis, and
/// the rows along the last but one.
#[track_caller]
pub fn block(rows: &[&[Tensor]]) -> Tensor {
    let _scope = function("block");
    at_line(Location::caller(), || {
        let mut joined = Vec::with_capacity(rows.len());
        for row in rows {
            let raised: Vec<Tensor> = row.iter().map(|x| x.atleast_2d()).collect();
            joined.push(concatenate(&raised, -1));
        }
        concatenate(&joined, -2)
    })
}

/// `jnp.broadcast_arrays`: the tensors at the shape that all of them broadcast to.
#[track_caller]
pub fn broadcast_arrays(tensors: &[Tensor]) -> Vec<Tensor> {
    let _scope = function("broadcast_arrays");
    at_line(Location::caller(), || {
        let shapes: Vec<Shape> = tensors.iter().map(|x| x.shape()).collect();
        let full = crate::trace::ops::broadcast_shapes("broadcast_arrays", &shapes);
        tensors.iter().map(|x| x.broadcast_to(&full)).collect()
    })
}

impl Tensor {
    /// `jnp.atleast_1d`: a scalar becomes a vector of one element.
    #[track_caller]
    pub fn atleast_1d(self) -> Tensor {
        let _scope = function("atleast_1d");
        if self.rank() == 0 { self.reshape([1]) } else { self }
    }

    /// `jnp.atleast_2d`: a vector becomes a matrix of one row.
    #[track_caller]
    pub fn atleast_2d(self) -> Tensor {
        let _scope = function("atleast_2d");
        if self.rank() < 2 { self.reshape([1, self.numel()]) } else { self }
    }

    /// `jnp.atleast_3d`: a vector of `n` elements becomes `[1, n, 1]`, a matrix gets a last axis of
    /// size 1.
    #[track_caller]
    pub fn atleast_3d(self) -> Tensor {
        let _scope = function("atleast_3d");
        match self.rank() {
            0 | 1 => self.reshape([1, self.numel(), 1]),
            2 => self.expand_dims(2),
            _ => self,
        }
    }

    /// `jnp.append` along `axis`; `ravel` both for `axis=None`.
    #[track_caller]
    pub fn append(self, values: Tensor, axis: isize) -> Tensor {
        let _scope = function("append");
        concatenate(&[self, values], axis)
    }

    /// `jnp.split` at indices: parts along `axis` that end before each of `indices`, in ascending
    /// order, and the rest.
    #[track_caller]
    pub fn split_at(self, indices: &[usize], axis: isize) -> Vec<Tensor> {
        let _scope = function("split_at");
        let size = self.dim(axis);
        ensure_parts("split_at", indices.len() + 1);
        if !indices.is_sorted() {
            fail_op("split_at", format!("takes ascending indices, and was given {indices:?}"));
        }
        let mut parts = Vec::with_capacity(indices.len() + 1);
        let mut start = 0;
        for &end in indices.iter().chain([&size]) {
            let end = end.min(size);
            parts.push(self.slice_axis(axis, start, end));
            start = end;
        }
        parts
    }

    /// `jnp.hsplit`: equal parts along the second axis, of vectors along their only one.
    #[track_caller]
    pub fn hsplit(self, parts: usize) -> Vec<Tensor> {
        let _scope = function("hsplit");
        self.split(parts, if self.rank() == 1 { 0 } else { 1 })
    }

    /// `jnp.vsplit`: equal parts along the first axis.
    #[track_caller]
    pub fn vsplit(self, parts: usize) -> Vec<Tensor> {
        let _scope = function("vsplit");
        self.split(parts, 0)
    }

    /// `jnp.dsplit`: equal parts along the third axis.
    #[track_caller]
    pub fn dsplit(self, parts: usize) -> Vec<Tensor> {
        let _scope = function("dsplit");
        self.split(parts, 2)
    }

    /// `jnp.unstack`: the slices along `axis`, each without that axis.
    #[track_caller]
    pub fn unstack(self, axis: isize) -> Vec<Tensor> {
        let _scope = function("unstack");
        let size = self.dim(axis);
        ensure_parts("unstack", size);
        let mut slices = Vec::with_capacity(size);
        for i in 0..size {
            slices.push(self.index_axis(axis, i as isize));
        }
        slices
    }

    /// `jnp.fliplr`: the second axis in opposite order.
    #[track_caller]
    pub fn fliplr(self) -> Tensor {
        let _scope = function("fliplr");
        self.flip(1)
    }

    /// `jnp.flipud`: the first axis in opposite order.
    #[track_caller]
    pub fn flipud(self) -> Tensor {
        let _scope = function("flipud");
        self.flip(0)
    }

    /// `jnp.rollaxis`: moves `axis` to before the axis that is now at `start`.
    #[track_caller]
    pub fn rollaxis(self, axis: isize, start: isize) -> Tensor {
        let _scope = function("rollaxis");
        let rank = self.rank();
        let axis = axis_of("rollaxis", axis, rank);
        let start = axis_of("rollaxis", start, rank + 1);
        let to = if axis < start { start - 1 } else { start };
        self.moveaxis(axis as isize, to as isize)
    }

    /// `jnp.matrix_transpose`: exchanges the last two axes.
    #[track_caller]
    pub fn matrix_transpose(self) -> Tensor {
        let _scope = function("matrix_transpose");
        self.swapaxes(-1, -2)
    }

    /// `jnp.insert` of one position: `values` before position `index` along `axis`. They have the
    /// shape of this tensor but along `axis`.
    #[track_caller]
    pub fn insert(self, index: usize, values: Tensor, axis: isize) -> Tensor {
        let _scope = function("insert");
        let size = self.dim(axis);
        if index > size {
            fail_op("insert", format!("position {index} is out of bounds for {}", self.ty()));
        }
        let (before, after) = (self.slice_axis(axis, 0, index), self.slice_axis(axis, index, size));
        concatenate(&[before, values, after], axis)
    }

    /// `jnp.delete`: this tensor without the slices at `indices` along `axis`.
    #[track_caller]
    pub fn delete(self, indices: &[usize], axis: isize) -> Tensor {
        let _scope = function("delete");
        let size = self.dim(axis);
        if let Some(index) = indices.iter().find(|&&index| index >= size) {
            fail_op("delete", format!("position {index} is out of bounds for {}", self.ty()));
        }
        let mut parts = Vec::new();
        let mut start = 0;
        for i in 0..=size {
            if i == size || indices.contains(&i) {
                if start < i {
                    parts.push(self.slice_axis(axis, start, i));
                }
                start = i + 1;
            }
        }
        if parts.is_empty() { self.slice_axis(axis, 0, 0) } else { concatenate(&parts, axis) }
    }

    /// `jnp.resize`: the elements in row-major order under `shape`, repeated from the first as often
    /// as needed; zeros where there are none.
    #[track_caller]
    pub fn resize(self, shape: impl Into<Shape>) -> Tensor {
        let _scope = function("resize");
        let shape = shape.into();
        let (count, wanted) = (self.numel(), shape.numel());
        if count == 0 {
            return zeros(shape, self.dtype());
        }
        let flat = self.ravel().tile(wanted.div_ceil(count).max(1), 0);
        flat.slice_axis(0, 0, wanted).reshape(shape)
    }
}
