//! Transposition of gathers and scatters.

use crate::trace::check::gather_of_scatter;
use crate::trace::jvp::summed;
use crate::trace::op::{GatherDims, ScatterDims, ScatterKind};
use crate::trace::ops;
use crate::trace::tensor::Tensor;
use crate::trace::types::{Shape, TensorType};

/// The largest start of a window, per component of an index vector.
fn largest_starts(operand: &Shape, window: &dyn Fn(usize) -> usize, map: &[usize]) -> Vec<i32> {
    map.iter().map(|&axis| operand[axis] as i32 - window(axis) as i32).collect()
}

/// The scatter that writes where a gather reads.
fn scatter_of_gather(dims: &GatherDims, kind: ScatterKind) -> ScatterDims {
    ScatterDims {
        kind,
        update_window_dims: dims.offset_dims.clone(),
        inserted_window_dims: dims.collapsed_slice_dims.clone(),
        operand_batching_dims: dims.operand_batching_dims.clone(),
        scatter_indices_batching_dims: dims.start_indices_batching_dims.clone(),
        scatter_dims_to_operand_dims: dims.start_index_map.clone(),
    }
}

/// A gather clamps its starts, a scatter drops windows that do not fit: the indices are clamped
/// first.
pub(crate) fn transpose_gather(
    dims: &GatherDims,
    operand: &TensorType,
    indices: Tensor,
    ct: Tensor,
) -> Tensor {
    let window = |axis: usize| dims.slice_sizes[axis];
    let largest = largest_starts(&operand.shape, &window, &dims.start_index_map);
    let clamped = if largest.is_empty() {
        indices
    } else {
        let bound = ops::constant(largest).to(indices.dtype());
        indices.clamp(ops::zeros_like(bound), bound)
    };
    summed(operand.dtype, |within| {
        let zeros = ops::zeros(&operand.shape, within);
        ops::scatter(zeros, clamped, ct.to(within), scatter_of_gather(dims, ScatterKind::Add))
    })
}

/// True if no two windows can meet: each example of a batch has one.
pub(crate) fn writes_once(dims: &ScatterDims, indices: &Shape) -> bool {
    let batching = &dims.scatter_indices_batching_dims;
    (0..indices.rank() - 1).all(|axis| batching.contains(&axis) || indices[axis] <= 1)
}

/// Cotangent of the updates of a scatter that adds, or that writes once: zero where the window was
/// dropped.
pub(crate) fn transpose_scatter_updates(
    dims: &ScatterDims,
    operand: &Shape,
    indices: Tensor,
    updates: &Shape,
    ct: Tensor,
) -> Tensor {
    let read = gather_of_scatter(dims, operand, updates);
    let window = |axis: usize| read.slice_sizes[axis];
    let largest = largest_starts(operand, &window, &read.start_index_map);
    let taken = ops::gather(ct, indices, read);
    if largest.is_empty() {
        return taken;
    }
    let bound = ops::constant(largest).to(indices.dtype());
    let below = if indices.dtype().is_unsigned() {
        indices.le(bound)
    } else {
        indices.ge(0) & indices.le(bound)
    };
    let fits = below.all(-1);
    let batch: Vec<usize> =
        (0..updates.rank()).filter(|axis| !dims.update_window_dims.contains(axis)).collect();
    let mask = fits.broadcast_in_dim(updates, &batch);
    ops::where_(mask, taken, ops::zeros_like(taken))
}
