//! The types of gathers and scatters.

use super::problem::{Problem, ensure};
use crate::trace::op::{GatherDims, ScatterDims, ScatterKind};
use crate::trace::types::{DType, Shape, TensorType};

fn sorted_below(axes: &[usize], rank: usize) -> bool {
    axes.windows(2).all(|pair| pair[0] < pair[1]) && axes.iter().all(|&axis| axis < rank)
}

/// Checks common to gather and scatter: indices address distinct axes, and paired axes agree.
fn check_indices(
    operand: &TensorType,
    indices: &TensorType,
    operand_batching: &[usize],
    indices_batching: &[usize],
    map: &[usize],
    vanishing: &[usize],
) -> Result<(), Problem> {
    ensure!(
        matches!(indices.dtype, DType::I32 | DType::I64 | DType::U32) && indices.rank() > 0,
        [1],
        "indices must be integers with index vectors along their last axis, and are {indices}"
    );
    let components = indices.shape[indices.rank() - 1];
    let distinct = map.iter().enumerate().all(|(i, axis)| !map[..i].contains(axis));
    ensure!(
        components == map.len() && distinct && map.iter().all(|&axis| axis < operand.rank()),
        [0, 1],
        "index vectors of {components} components address axes {map:?} of {operand}"
    );
    ensure!(
        operand_batching.len() == indices_batching.len(),
        [],
        "{operand_batching:?} and {indices_batching:?} do not pair up"
    );
    for (&o, &i) in operand_batching.iter().zip(indices_batching) {
        ensure!(
            o < operand.rank() && i + 1 < indices.rank() && operand.shape[o] == indices.shape[i],
            [0, 1],
            "axis {o} of {operand} cannot be paired with axis {i} of the indices {indices}"
        );
        ensure!(!map.contains(&o), [], "axis {o} is both paired and addressed");
        ensure!(!vanishing.contains(&o), [], "axis {o} is both paired and left out");
    }
    Ok(())
}

pub(crate) fn infer_gather(
    dims: &GatherDims,
    operand: &TensorType,
    indices: &TensorType,
) -> Result<TensorType, Problem> {
    let GatherDims { operand_batching_dims, start_indices_batching_dims, .. } = dims;
    check_indices(
        operand,
        indices,
        operand_batching_dims,
        start_indices_batching_dims,
        &dims.start_index_map,
        &dims.collapsed_slice_dims,
    )?;
    let (sizes, rank) = (&dims.slice_sizes, operand.rank());
    ensure!(
        sizes.rank() == rank && sizes.iter().zip(operand.shape.iter()).all(|(s, d)| s <= d),
        [0],
        "slice sizes {sizes} do not fit into {operand}"
    );
    let collapsed = &dims.collapsed_slice_dims;
    ensure!(
        sorted_below(collapsed, rank) && sorted_below(operand_batching_dims, rank),
        [0],
        "collapsed axes {collapsed:?} or paired axes {operand_batching_dims:?} are not increasing \
         axes of {operand}"
    );
    let vanish = |axis: &usize| collapsed.contains(axis) || operand_batching_dims.contains(axis);
    for axis in (0..rank).filter(vanish) {
        ensure!(
            sizes[axis] == 1,
            [0],
            "axis {axis} vanishes, and its window size is {}",
            sizes[axis]
        );
    }
    let mut window = (0..rank).filter(|axis| !vanish(axis)).map(|axis| sizes[axis]);
    let batch_rank = indices.rank() - 1;
    let window_rank = window.clone().count();
    let out_rank = batch_rank + window_rank;
    ensure!(
        sorted_below(&dims.offset_dims, out_rank) && dims.offset_dims.len() == window_rank,
        [0],
        "offset axes {:?} for windows of {window_rank} axes",
        dims.offset_dims
    );
    let mut batch = indices.shape[..batch_rank].iter().copied();
    let shape: Shape = (0..out_rank)
        .map(|axis| if dims.offset_dims.contains(&axis) { window.next() } else { batch.next() })
        .map(|size| size.expect("as many axes as counted"))
        .collect();
    Ok(TensorType::new(operand.dtype, shape))
}

pub(crate) fn infer_scatter(
    dims: &ScatterDims,
    operand: &TensorType,
    indices: &TensorType,
    updates: &TensorType,
) -> Result<TensorType, Problem> {
    check_indices(
        operand,
        indices,
        &dims.operand_batching_dims,
        &dims.scatter_indices_batching_dims,
        &dims.scatter_dims_to_operand_dims,
        &dims.inserted_window_dims,
    )?;
    ensure!(
        operand.dtype == updates.dtype,
        [0, 2],
        "updates {updates} of another element type than {operand}; convert them with .to(dtype)"
    );
    ensure!(
        dims.kind == ScatterKind::Set || operand.dtype != DType::Bool,
        [0],
        "is not defined for bool; convert it with .to(dtype)"
    );
    ensure!(
        !matches!(dims.kind, ScatterKind::Max | ScatterKind::Min) || !operand.dtype.is_complex(),
        [0],
        "complex numbers have no order, got {operand}"
    );
    let rank = operand.rank();
    let (inserted, batching) = (&dims.inserted_window_dims, &dims.operand_batching_dims);
    ensure!(
        sorted_below(inserted, rank) && sorted_below(batching, rank),
        [0],
        "inserted axes {inserted:?} or paired axes {batching:?} are not increasing axes of {operand}"
    );
    let mut window = (0..rank).filter(|axis| !inserted.contains(axis) && !batching.contains(axis));
    let mut batch = indices.shape[..indices.rank() - 1].iter();
    ensure!(
        sorted_below(&dims.update_window_dims, updates.rank())
            && dims.update_window_dims.len() == window.clone().count()
            && updates.rank() == dims.update_window_dims.len() + batch.len(),
        [1, 2],
        "updates {updates} do not match indices {indices} and window axes {:?}",
        dims.update_window_dims
    );
    for axis in 0..updates.rank() {
        let size = updates.shape[axis];
        if dims.update_window_dims.contains(&axis) {
            let to = window.next().expect("as many window axes as counted");
            ensure!(
                size <= operand.shape[to],
                [0, 2],
                "axis {axis} of updates {updates} does not fit into axis {to} of {operand}"
            );
        } else {
            let &expected = batch.next().expect("as many batch axes as counted");
            ensure!(
                size == expected,
                [1, 2],
                "axis {axis} of updates {updates} must have size {expected}, as indices {indices}"
            );
        }
    }
    Ok(operand.clone())
}

/// The sizes of a scatter's window, per axis of the operand.
fn scatter_window(dims: &ScatterDims, operand: &Shape, updates: &Shape) -> Shape {
    let mut window = dims.update_window_dims.iter().map(|&axis| updates[axis]);
    (0..operand.rank())
        .map(|axis| {
            let single = dims.inserted_window_dims.contains(&axis)
                || dims.operand_batching_dims.contains(&axis);
            if single { 1 } else { window.next().expect("a window axis of the updates") }
        })
        .collect()
}

/// The gather that reads the elements that a scatter writes.
pub(crate) fn gather_of_scatter(
    dims: &ScatterDims,
    operand: &Shape,
    updates: &Shape,
) -> GatherDims {
    GatherDims {
        offset_dims: dims.update_window_dims.clone(),
        collapsed_slice_dims: dims.inserted_window_dims.clone(),
        operand_batching_dims: dims.operand_batching_dims.clone(),
        start_indices_batching_dims: dims.scatter_indices_batching_dims.clone(),
        start_index_map: dims.scatter_dims_to_operand_dims.clone(),
        slice_sizes: scatter_window(dims, operand, updates),
    }
}
