//! Places of shards in a whole value.

use std::ops::Range;

use crate::trace::axis::Axis;
use crate::trace::op::ShardingOp;
use crate::trace::types::TensorType;

/// The number of the device at `position` of the mesh along one of its axes.
pub(super) fn place(op: &ShardingOp, axis: Axis, position: usize) -> usize {
    let after = op.mesh.iter().rev().take_while(|&&other| other != axis);
    let stride: usize = after.map(|axis| axis.size()).product();
    position / stride % axis.size()
}

/// Shows `f` the bytes of each row of a device's shard: in the whole value and in the shard.
pub(super) fn blocks(
    op: &ShardingOp,
    whole: &TensorType,
    part: &TensorType,
    position: usize,
    mut f: impl FnMut(Range<usize>, Range<usize>),
) {
    if part.numel() == 0 {
        return;
    }
    let element = part.bytes() / part.numel();
    let rank = part.rank();
    let starts: Vec<usize> = (0..rank)
        .map(|dim| {
            let index =
                |index: usize, axis: &Axis| index * axis.size() + place(op, *axis, position);
            op.spec[dim].iter().fold(0, index) * part.shape[dim]
        })
        .collect();
    let row = part.shape.last().copied().unwrap_or(1);
    for i in 0..part.numel() / row {
        // The indices of row i, from the last but one dimension to the first.
        let (mut rest, mut offset, mut stride) = (i, 0, 1);
        for dim in (0..rank).rev() {
            let index = if dim + 1 == rank { 0 } else { rest % part.shape[dim] };
            if dim + 1 != rank {
                rest /= part.shape[dim];
            }
            offset += (starts[dim] + index) * stride;
            stride *= whole.shape[dim];
        }
        let bytes = row * element;
        f(offset * element..offset * element + bytes, i * bytes..(i + 1) * bytes);
    }
}
