//! Batching of gathers, scatters and dynamic slices. An axis of the operand and one of the indices
//! that both run over the batch are paired; a batch in only one of them is one more window or index
//! axis.

use super::{Batched, prefixed, shifted};
use crate::trace::op::{Axes, GatherDims, ScatterDims, ScatterKind};
use crate::trace::ops;
use crate::trace::tensor::Tensor;
use crate::trace::types::Shape;

pub(crate) fn gather(dims: &GatherDims, x: Batched, indices: Batched, size: usize) -> Tensor {
    let mut dims = dims.clone();
    dims.offset_dims = shifted(&dims.offset_dims);
    if x.mapped {
        dims.collapsed_slice_dims = shifted(&dims.collapsed_slice_dims);
        dims.operand_batching_dims = shifted(&dims.operand_batching_dims);
        dims.start_index_map = shifted(&dims.start_index_map);
    }
    if indices.mapped {
        dims.start_indices_batching_dims = shifted(&dims.start_indices_batching_dims);
    }
    match (x.mapped, indices.mapped) {
        (true, true) => {
            dims.operand_batching_dims = prefixed(0, &dims.operand_batching_dims);
            dims.start_indices_batching_dims = prefixed(0, &dims.start_indices_batching_dims);
            dims.slice_sizes = dims.slice_sizes.with_axis(0, 1);
        }
        // The same windows of every example: windows that are larger by the batch.
        (true, false) => {
            dims.offset_dims = prefixed(0, &dims.offset_dims);
            dims.slice_sizes = dims.slice_sizes.with_axis(0, size);
        }
        // More windows of the one operand.
        (false, _) => {}
    }
    ops::gather(x.tensor, indices.tensor, dims)
}

pub(crate) fn scatter(
    dims: &ScatterDims,
    x: Batched,
    indices: Batched,
    updates: Batched,
    size: usize,
) -> Tensor {
    let mut batched = ScatterDims {
        kind: dims.kind,
        update_window_dims: shifted(&dims.update_window_dims),
        inserted_window_dims: shifted(&dims.inserted_window_dims),
        operand_batching_dims: shifted(&dims.operand_batching_dims),
        scatter_indices_batching_dims: dims.scatter_indices_batching_dims.clone(),
        scatter_dims_to_operand_dims: shifted(&dims.scatter_dims_to_operand_dims),
    };
    if indices.mapped {
        batched.operand_batching_dims = prefixed(0, &batched.operand_batching_dims);
        batched.scatter_indices_batching_dims =
            prefixed(0, &shifted(&batched.scatter_indices_batching_dims));
    } else {
        batched.update_window_dims = prefixed(0, &batched.update_window_dims);
    }
    ops::scatter(x.full(size), indices.tensor, updates.full(size), batched)
}

/// The axes along which a window can move; along others its start is clamped to 0.
fn movable(shape: &Shape, window: &Shape) -> Axes {
    (0..shape.rank()).filter(|&axis| window[axis] < shape[axis]).collect()
}

/// Starts of the examples' windows.
enum Starts {
    /// All examples have the same: one start per axis, the batch axis included.
    Same(Vec<Tensor>),
    /// Each example has its own: index vectors of the axes along which a window can move,
    /// `i32[size, axes]`.
    Mapped(Batched),
}

/// The starts of windows. Along an axis where the window cannot move the start does not matter,
/// mapped or not.
fn starts(given: &[Batched], movable: &[usize], size: usize) -> Starts {
    if movable.iter().all(|&axis| !given[axis].mapped) {
        let zero = ops::constant(0i32);
        let same = |start: &Batched| if start.mapped { zero } else { start.tensor };
        return Starts::Same(std::iter::once(zero).chain(given.iter().map(same)).collect());
    }
    let vectors: Vec<Tensor> = movable.iter().map(|&axis| given[axis].full(size)).collect();
    Starts::Mapped(Batched::mapped(ops::stack(&vectors, 1)))
}

pub(crate) fn dynamic_slice(sizes: &Shape, inputs: &[Batched], size: usize) -> Batched {
    let (x, given) = (inputs[0], &inputs[1..]);
    let shape = x.example_type().shape;
    let movable = movable(&shape, sizes);
    if movable.is_empty() {
        return x;
    }
    match starts(given, &movable, size) {
        Starts::Same(starts) if x.mapped => {
            Batched::mapped(x.tensor.dynamic_slice_clamped(&starts, sizes.with_axis(0, size)))
        }
        Starts::Same(starts) => Batched::same(x.tensor.dynamic_slice_clamped(&starts[1..], sizes)),
        // A gather clamps as well.
        Starts::Mapped(vectors) => {
            let dims = GatherDims {
                offset_dims: (0..sizes.rank()).collect(),
                start_index_map: movable,
                slice_sizes: sizes.clone(),
                ..GatherDims::default()
            };
            Batched::mapped(gather(&dims, x, vectors, size))
        }
    }
}

pub(crate) fn dynamic_update_slice(inputs: &[Batched], size: usize) -> Batched {
    let (x, update, given) = (inputs[0], inputs[1], &inputs[2..]);
    let (shape, window) = (x.example_type().shape, update.example_type().shape);
    let movable = movable(&shape, &window);
    if movable.is_empty() {
        return update;
    }
    match starts(given, &movable, size) {
        Starts::Same(starts) if x.mapped || update.mapped => {
            let (x, update) = (x.full(size), update.full(size));
            Batched::mapped(x.dynamic_update_slice_clamped(update, &starts))
        }
        Starts::Same(starts) => {
            Batched::same(x.tensor.dynamic_update_slice_clamped(update.tensor, &starts[1..]))
        }
        // But a scatter drops windows that do not fit.
        Starts::Mapped(vectors) => {
            let last: Vec<i32> =
                movable.iter().map(|&axis| (shape[axis] - window[axis]) as i32).collect();
            let vectors = Batched::mapped(vectors.tensor.clamp(0, ops::constant(last)));
            let dims = ScatterDims {
                kind: ScatterKind::Set,
                update_window_dims: (0..shape.rank()).collect(),
                inserted_window_dims: Axes::new(),
                operand_batching_dims: Axes::new(),
                scatter_indices_batching_dims: Axes::new(),
                scatter_dims_to_operand_dims: movable,
            };
            Batched::mapped(scatter(&dims, x, vectors, update, size))
        }
    }
}
