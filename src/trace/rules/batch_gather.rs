//! Windows at computed places: batching. An axis of the operand and one of the indices that both
//! run over the batch are paired; a batch in only one of them is a window or an index axis more.

use crate::trace::op::{Axes, GatherDims, ScatterDims, ScatterKind};
use crate::trace::ops;
use crate::trace::tensor::Tensor;
use crate::trace::types::Shape;
use crate::trace::vmap::{Batched, prefixed, shifted};

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

/// Index vectors of the `addressed` axes, one for each example: `i32[size, addressed]`.
fn index_vectors(starts: &[Batched], addressed: &[usize], size: usize) -> Tensor {
    let starts: Vec<Tensor> = addressed.iter().map(|&axis| starts[axis].full(size)).collect();
    ops::stack(&starts, 1)
}

/// The axes along which a window has room to move; along others its start is clamped to 0.
fn room(shape: &Shape, window: &Shape) -> Axes {
    (0..shape.rank()).filter(|&axis| window[axis] < shape[axis]).collect()
}

pub(crate) fn dynamic_slice(sizes: &Shape, inputs: &[Batched], size: usize) -> Batched {
    let (x, starts) = (inputs[0], &inputs[1..]);
    let addressed = room(&x.lane_type().shape, sizes);
    if addressed.is_empty() {
        return x;
    }
    if starts.iter().all(|start| !start.mapped) {
        let starts: Vec<Tensor> = std::iter::once(ops::constant(0i32))
            .chain(starts.iter().map(|start| start.tensor))
            .collect();
        return Batched::mapped(x.tensor.dynamic_slice(&starts, sizes.with_axis(0, size)));
    }
    // A gather clamps its starts as well.
    let vectors = Batched::mapped(index_vectors(starts, &addressed, size));
    let dims = GatherDims {
        offset_dims: (0..sizes.rank()).collect(),
        start_index_map: addressed,
        slice_sizes: sizes.clone(),
        ..GatherDims::default()
    };
    Batched::mapped(gather(&dims, x, vectors, size))
}

pub(crate) fn dynamic_update_slice(inputs: &[Batched], size: usize) -> Batched {
    let (x, update, starts) = (inputs[0], inputs[1], &inputs[2..]);
    let (shape, window) = (x.lane_type().shape, update.lane_type().shape);
    let addressed = room(&shape, &window);
    if addressed.is_empty() {
        return update;
    }
    if starts.iter().all(|start| !start.mapped) {
        let starts: Vec<Tensor> = std::iter::once(ops::constant(0i32))
            .chain(starts.iter().map(|start| start.tensor))
            .collect();
        let (x, update) = (x.full(size), update.full(size));
        return Batched::mapped(x.dynamic_update_slice(update, &starts));
    }
    // A scatter drops windows that do not fit: bring them inside first.
    let mut clamped = starts.to_vec();
    for &axis in &addressed {
        clamped[axis].tensor = starts[axis].tensor.clamp(0, shape[axis] - window[axis]);
    }
    let vectors = Batched::mapped(index_vectors(&clamped, &addressed, size));
    let dims = ScatterDims {
        kind: ScatterKind::Set,
        update_window_dims: (0..shape.rank()).collect(),
        inserted_window_dims: Axes::new(),
        operand_batching_dims: Axes::new(),
        scatter_indices_batching_dims: Axes::new(),
        scatter_dims_to_operand_dims: addressed,
    };
    Batched::mapped(scatter(&dims, x, vectors, update, size))
}
