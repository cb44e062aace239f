//! Gathers, scatters and dynamic slices.

use super::number::{Number, with_number};
use super::shapes::{self, offsets};
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, GatherDims, ScatterDims, ScatterKind};
use crate::trace::types::{Shape, TensorType};

/// Index vectors, and the axes of the operand that they address.
struct Indices<'a> {
    /// All components, one vector after another.
    components: Vec<i64>,
    /// The shape without the axis of components.
    batch: Shape,
    map: &'a [usize],
    operand_batching: &'a [usize],
    indices_batching: &'a [usize],
}

impl<'a> Indices<'a> {
    fn new(
        indices: &Literal,
        map: &'a [usize],
        operand_batching: &'a [usize],
        indices_batching: &'a [usize],
    ) -> Indices<'a> {
        // Exact: 53 bits are more than any axis has elements, and rounding keeps order.
        let components = indices.to_f64_vec().into_iter().map(|x| x as i64).collect();
        let batch = indices.ty().shape.without_axis(indices.ty().rank() - 1);
        Indices { components, batch, map, operand_batching, indices_batching }
    }

    /// The first index of the window of each index vector, in row-major order of the vectors.
    fn starts(&self, operand_rank: usize) -> Vec<Vec<i64>> {
        let strides = self.batch.strides();
        let start = |vector: usize| {
            let mut start = vec![0; operand_rank];
            let components = &self.components[vector * self.map.len()..];
            for (&axis, &component) in self.map.iter().zip(components) {
                start[axis] = component;
            }
            for (&axis, &paired) in self.operand_batching.iter().zip(self.indices_batching) {
                start[axis] = (vector / strides[paired] % self.batch[paired]) as i64;
            }
            start
        };
        (0..self.batch.numel()).map(start).collect()
    }
}

/// The strides of a result or of updates, apart: those of axes outside `window_axes`, and those
/// of axes inside.
fn split_strides(shape: &Shape, window_axes: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let strides = shape.strides();
    let (inside, outside): (Vec<usize>, Vec<usize>) =
        (0..shape.rank()).partition(|axis| window_axes.contains(axis));
    let of = |axes: Vec<usize>| axes.into_iter().map(|axis| strides[axis]).collect();
    (of(outside), of(inside))
}

fn offset(index: impl IntoIterator<Item = usize>, strides: &[usize]) -> usize {
    index.into_iter().zip(strides).map(|(i, stride)| i * stride).sum()
}

pub(super) fn gather(
    dims: &GatherDims,
    operand: &Literal,
    indices: &Literal,
    ty: &TensorType,
) -> Literal {
    let shape = &operand.ty().shape;
    let indices = Indices::new(
        indices,
        &dims.start_index_map,
        &dims.operand_batching_dims,
        &dims.start_indices_batching_dims,
    );
    let vanishes = |axis: usize| {
        dims.collapsed_slice_dims.contains(&axis) || dims.operand_batching_dims.contains(&axis)
    };
    let strides = shape.strides();
    let (batch_strides, window_strides) = split_strides(&ty.shape, &dims.offset_dims);
    // Inside a window, axes of size 1 that vanish add nothing; both lists have one order.
    let from_window = offsets(&dims.slice_sizes, &strides);
    let window: Vec<usize> =
        (0..shape.rank()).filter(|&a| !vanishes(a)).map(|a| dims.slice_sizes[a]).collect();
    let to_window = offsets(&window, &window_strides);
    let to_batch = offsets(&indices.batch, &batch_strides);
    let bytes = operand.bytes();
    shapes::with_bits!(ty, B => shapes::build::<B>(ty.clone(), |out| {
        let x = shapes::bits::<B>(&bytes);
        for (start, to) in indices.starts(shape.rank()).iter().zip(to_batch) {
            let clamped = (0..shape.rank()).map(|axis| {
                let last_start = shape[axis] - dims.slice_sizes[axis];
                start[axis].clamp(0, last_start as i64) as usize
            });
            let from = offset(clamped, &strides);
            for (inside, place) in from_window.iter().zip(&to_window) {
                out[to + place] = x[from + inside];
            }
        }
    }))
}

/// Pairs `(operand element, update element)` that a scatter combines, in the order of the index
/// vectors.
fn update_pairs(
    dims: &ScatterDims,
    shape: &Shape,
    indices: &Literal,
    updates: &Shape,
) -> Vec<(usize, usize)> {
    let indices = Indices::new(
        indices,
        &dims.scatter_dims_to_operand_dims,
        &dims.operand_batching_dims,
        &dims.scatter_indices_batching_dims,
    );
    let lacks = |axis: usize| {
        dims.inserted_window_dims.contains(&axis) || dims.operand_batching_dims.contains(&axis)
    };
    let mut window_sizes = dims.update_window_dims.iter().map(|&axis| updates[axis]);
    let sizes: Vec<usize> = (0..shape.rank())
        .map(|axis| if lacks(axis) { Some(1) } else { window_sizes.next() })
        .map(|size| size.expect("as many window axes as the checker counted"))
        .collect();
    let window: Vec<usize> = (0..shape.rank()).filter(|&a| !lacks(a)).map(|a| sizes[a]).collect();
    let strides = shape.strides();
    let (batch_strides, window_strides) = split_strides(updates, &dims.update_window_dims);
    let to_window = offsets(&sizes, &strides);
    let from_window = offsets(&window, &window_strides);
    let from_batch = offsets(&indices.batch, &batch_strides);
    let mut update_pairs = Vec::with_capacity(updates.numel());
    for (start, from) in indices.starts(shape.rank()).into_iter().zip(from_batch) {
        let fits = (0..shape.rank()).all(|axis| {
            start[axis] >= 0
                && sizes[axis] <= shape[axis]
                && start[axis] <= (shape[axis] - sizes[axis]) as i64
        });
        if fits {
            let to = offset(start.iter().map(|&i| i as usize), &strides);
            let inside = to_window.iter().zip(&from_window);
            update_pairs.extend(inside.map(|(place, inside)| (to + place, from + inside)));
        }
    }
    update_pairs
}

pub(super) fn scatter(
    dims: &ScatterDims,
    operand: &Literal,
    indices: &Literal,
    updates: &Literal,
) -> Literal {
    let ty = operand.ty();
    let update_pairs = update_pairs(dims, &ty.shape, indices, &updates.ty().shape);
    match dims.kind {
        ScatterKind::Set => {
            let (old, new) = (operand.bytes(), updates.bytes());
            shapes::with_bits!(ty, B => shapes::build::<B>(ty.clone(), |out| {
                out.copy_from_slice(shapes::bits::<B>(&old));
                let new = shapes::bits::<B>(&new);
                for (to, from) in update_pairs {
                    out[to] = new[from];
                }
            }))
        }
        ScatterKind::Add | ScatterKind::Mul | ScatterKind::Max | ScatterKind::Min => {
            with_number!(ty.dtype, N => {
                let combine = N::binary(match dims.kind {
                    ScatterKind::Mul => BinaryOp::Mul,
                    ScatterKind::Max => BinaryOp::Max,
                    ScatterKind::Min => BinaryOp::Min,
                    ScatterKind::Set | ScatterKind::Add => BinaryOp::Add,
                });
                let (mut out, new) = (N::lift(operand), N::lift(updates));
                for (to, from) in update_pairs {
                    out[to] = combine(out[to], new[from]);
                }
                N::lower(ty, &out)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::trace::eval::eval_op;
    use crate::trace::op::Op;

    #[test]
    fn gather_clamps_its_indices() {
        let dims = GatherDims {
            offset_dims: smallvec![1],
            start_index_map: smallvec![0],
            slice_sizes: [2].into(),
            ..GatherDims::default()
        };
        let x = Literal::from([10, 11, 12, 13]);
        let windows = eval_op(&Op::Gather(dims), &[x, [[1], [9], [-3]].into()]).remove(0);
        assert_eq!(windows, [[11, 12], [12, 13], [10, 11]].into());
    }

    fn rows(kind: ScatterKind) -> Op {
        Op::Scatter(ScatterDims {
            kind,
            update_window_dims: smallvec![1],
            inserted_window_dims: smallvec![0],
            operand_batching_dims: smallvec![],
            scatter_indices_batching_dims: smallvec![],
            scatter_dims_to_operand_dims: smallvec![0],
        })
    }

    #[test]
    fn scatter_drops_what_does_not_fit() {
        let x = Literal::from([[0f32; 2]; 3]);
        let indices = Literal::from([[2], [3], [-1], [2]]);
        let updates = Literal::from([[1f32, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]);
        let inputs = [x, indices, updates];
        let set = eval_op(&rows(ScatterKind::Set), &inputs).remove(0);
        assert_eq!(set, [[0f32, 0.0], [0.0, 0.0], [7.0, 8.0]].into());
        let sum = eval_op(&rows(ScatterKind::Add), &inputs).remove(0);
        assert_eq!(sum, [[0f32, 0.0], [0.0, 0.0], [8.0, 10.0]].into());
    }

    #[test]
    fn a_scatter_of_no_windows_changes_nothing() {
        let x = Literal::from([[1, 2]]);
        let none = [x.clone(), Literal::new::<i32>([0, 1], &[]), Literal::new::<i32>([0, 2], &[])];
        assert_eq!(eval_op(&rows(ScatterKind::Add), &none), [x]);
    }
}
