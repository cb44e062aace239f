//! Joining, cutting and mirroring: NumPy's `hstack` and its relatives.

use crate::trace::ops::{axis_of, concatenate, ensure_parts, zeros};
use crate::trace::tensor::{Tensor, fail_op, op};
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
#[op(at_line)]
pub fn hstack(tensors: &[Tensor]) -> Tensor {
    ensure_some("hstack", tensors);
    let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_1d()).collect();
    concatenate(&raised, if raised[0].rank() == 1 { 0 } else { 1 })
}

/// `jnp.vstack`: joins along the first axis; vectors are rows.
#[op(at_line)]
pub fn vstack(tensors: &[Tensor]) -> Tensor {
    ensure_some("vstack", tensors);
    let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_2d()).collect();
    concatenate(&raised, 0)
}

/// `jnp.dstack`: joins along the third axis, of tensors raised by [`Tensor::atleast_3d`].
#[op(at_line)]
pub fn dstack(tensors: &[Tensor]) -> Tensor {
    ensure_some("dstack", tensors);
    let raised: Vec<Tensor> = tensors.iter().map(|x| x.atleast_3d()).collect();
    concatenate(&raised, 2)
}

/// `jnp.column_stack`: joins along the second axis; vectors are columns.
#[op(at_line)]
pub fn column_stack(tensors: &[Tensor]) -> Tensor {
    ensure_some("column_stack", tensors);
    let column = |x: &Tensor| match x.rank() {
        0 | 1 => x.reshape([x.numel(), 1]),
        _ => *x,
    };
    let columns: Vec<Tensor> = tensors.iter().map(column).collect();
    concatenate(&columns, 1)
}

/// `jnp.block` of a list of rows of blocks: the blocks of a row are joined along the last axis, and
/// the rows along the last but one.
#[op(at_line)]
pub fn block(rows: &[&[Tensor]]) -> Tensor {
    let mut joined = Vec::with_capacity(rows.len());
    for row in rows {
        let raised: Vec<Tensor> = row.iter().map(|x| x.atleast_2d()).collect();
        joined.push(concatenate(&raised, -1));
    }
    concatenate(&joined, -2)
}

/// `jnp.broadcast_arrays`: the tensors at the shape that all of them broadcast to.
#[op(at_line)]
pub fn broadcast_arrays(tensors: &[Tensor]) -> Vec<Tensor> {
    let shapes: Vec<Shape> = tensors.iter().map(|x| x.shape()).collect();
    let full = crate::trace::ops::broadcast_shapes("broadcast_arrays", &shapes);
    tensors.iter().map(|x| x.broadcast_to(&full)).collect()
}

impl Tensor {
    /// `jnp.atleast_1d`: a scalar becomes a vector of one element.
    #[op]
    pub fn atleast_1d(self) -> Tensor {
        if self.rank() == 0 { self.reshape([1]) } else { self }
    }

    /// `jnp.atleast_2d`: a vector becomes a matrix of one row.
    #[op]
    pub fn atleast_2d(self) -> Tensor {
        if self.rank() < 2 { self.reshape([1, self.numel()]) } else { self }
    }

    /// `jnp.atleast_3d`: a vector of `n` elements becomes `[1, n, 1]`, a matrix gets a last axis of
    /// size 1.
    #[op]
    pub fn atleast_3d(self) -> Tensor {
        match self.rank() {
            0 | 1 => self.reshape([1, self.numel(), 1]),
            2 => self.expand_dims(2),
            _ => self,
        }
    }

    /// `jnp.append` along `axis`; `ravel` both for `axis=None`.
    #[op]
    pub fn append(self, values: Tensor, axis: isize) -> Tensor {
        concatenate(&[self, values], axis)
    }

    /// `jnp.split` at indices: parts along `axis` that end before each of `indices`, in ascending
    /// order, and the rest.
    #[op]
    pub fn split_at(self, indices: &[usize], axis: isize) -> Vec<Tensor> {
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
    #[op]
    pub fn hsplit(self, parts: usize) -> Vec<Tensor> {
        self.split(parts, if self.rank() == 1 { 0 } else { 1 })
    }

    /// `jnp.vsplit`: equal parts along the first axis.
    #[op]
    pub fn vsplit(self, parts: usize) -> Vec<Tensor> {
        self.split(parts, 0)
    }

    /// `jnp.dsplit`: equal parts along the third axis.
    #[op]
    pub fn dsplit(self, parts: usize) -> Vec<Tensor> {
        self.split(parts, 2)
    }

    /// `jnp.unstack`: the slices along `axis`, each without that axis.
    #[op]
    pub fn unstack(self, axis: isize) -> Vec<Tensor> {
        let size = self.dim(axis);
        ensure_parts("unstack", size);
        let mut slices = Vec::with_capacity(size);
        for i in 0..size {
            slices.push(self.index_axis(axis, i as isize));
        }
        slices
    }

    /// `jnp.fliplr`: the second axis in opposite order.
    #[op]
    pub fn fliplr(self) -> Tensor {
        self.flip(1)
    }

    /// `jnp.flipud`: the first axis in opposite order.
    #[op]
    pub fn flipud(self) -> Tensor {
        self.flip(0)
    }

    /// `jnp.rollaxis`: moves `axis` to before the axis that is now at `start`.
    #[op]
    pub fn rollaxis(self, axis: isize, start: isize) -> Tensor {
        let rank = self.rank();
        let axis = axis_of("rollaxis", axis, rank);
        let start = axis_of("rollaxis", start, rank + 1);
        let to = if axis < start { start - 1 } else { start };
        self.moveaxis(axis as isize, to as isize)
    }

    /// `jnp.matrix_transpose`: exchanges the last two axes.
    #[op]
    pub fn matrix_transpose(self) -> Tensor {
        self.swapaxes(-1, -2)
    }

    /// `jnp.insert` of one position: `values` before position `index` along `axis`. They have the
    /// shape of this tensor but along `axis`.
    #[op]
    pub fn insert(self, index: usize, values: Tensor, axis: isize) -> Tensor {
        let size = self.dim(axis);
        if index > size {
            fail_op("insert", format!("position {index} is out of bounds for {}", self.ty()));
        }
        let (before, after) = (self.slice_axis(axis, 0, index), self.slice_axis(axis, index, size));
        concatenate(&[before, values, after], axis)
    }

    /// `jnp.delete`: this tensor without the slices at `indices` along `axis`.
    #[op]
    pub fn delete(self, indices: &[usize], axis: isize) -> Tensor {
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
    #[op]
    pub fn resize(self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let (count, wanted) = (self.numel(), shape.numel());
        if count == 0 {
            return zeros(shape, self.dtype());
        }
        let flat = self.ravel().tile(wanted.div_ceil(count).max(1), 0);
        flat.slice_axis(0, 0, wanted).reshape(shape)
    }
}
