//! Convolutions: batching. A convolution has no axis to spare for the batch, so it is merged into
//! an axis there is: the batch of the input, or the output features of the kernel.

use super::Batched;
use crate::trace::op::ConvDims;
use crate::trace::ops::conv_general;
use crate::trace::tensor::Tensor;
use crate::trace::types::Shape;

pub(crate) fn conv(dims: &ConvDims, lhs: Batched, rhs: Batched, size: usize) -> Tensor {
    let mut dims = dims.clone();
    let (lhs_batch, lhs_features) = (dims.lhs_spec[0], dims.lhs_spec[1]);
    let out_features = dims.rhs_spec[0];
    let (result_batch, result_features) = (dims.out_spec[0], dims.out_spec[1]);
    let groups = dims.feature_groups.max(dims.batch_groups);
    match (lhs.mapped, rhs.mapped) {
        (true, true) => {
            // A group for each example (times the groups there are).
            let into = if dims.batch_groups > 1 { lhs_batch } else { lhs_features };
            if dims.batch_groups > 1 {
                dims.batch_groups *= size;
            } else {
                dims.feature_groups *= size;
            }
            let (lhs, rhs) = (merge(lhs.tensor, into, 1), merge(rhs.tensor, out_features, 1));
            unmerge(conv_general(lhs, rhs, dims), result_features, 1, size)
        }
        (true, false) => {
            let lhs = merge(lhs.tensor, lhs_batch, dims.batch_groups);
            unmerge(conv_general(lhs, rhs.tensor, dims), result_batch, 1, size)
        }
        (false, true) => {
            let rhs = merge(rhs.tensor, out_features, groups);
            unmerge(conv_general(lhs.tensor, rhs, dims), result_features, groups, size)
        }
        (false, false) => conv_general(lhs.tensor, rhs.tensor, dims),
    }
}

/// Merges the first axis of `x` into the one that is `axis` without it. The elements of that axis
/// are in `groups`; groups stay outermost: the merged axis runs over group, batch, element.
fn merge(x: Tensor, axis: usize, groups: usize) -> Tensor {
    let shape = x.shape();
    let (size, elements) = (shape[0], shape[axis + 1]);
    let merged = shape.without_axis(axis + 1).without_axis(0).with_axis(axis, size * elements);
    let grouped = split(x, axis + 1, groups);
    grouped.moveaxis(0, axis as isize + 1).reshape(merged)
}

/// The inverse of [`merge`]: takes a batch of `size` out of `axis`, and puts it first.
fn unmerge(x: Tensor, axis: usize, groups: usize, size: usize) -> Tensor {
    let shape = x.shape();
    let elements = shape[axis] / size.max(1);
    let lane = shape.without_axis(axis).with_axis(axis, elements);
    let grouped = split(split(x, axis, groups), axis + 1, size);
    grouped.moveaxis(axis as isize + 1, 0).reshape(lane.with_axis(0, size))
}

/// Cuts `axis` into an axis of `parts` and one of the elements of a part.
fn split(x: Tensor, axis: usize, parts: usize) -> Tensor {
    let shape = x.shape();
    let elements = shape[axis] / parts.max(1);
    let shape: Shape = shape.without_axis(axis).with_axis(axis, elements).with_axis(axis, parts);
    x.reshape(shape)
}
