//! The type of a convolution.

use super::problem::{Problem, ensure, is_permutation};
use crate::trace::op::ConvDims;
use crate::trace::types::{DType, Shape, TensorType};

/// The size of an axis of `size` elements put `dilation` apart.
pub(crate) fn dilated(size: usize, dilation: usize) -> usize {
    if size == 0 { 0 } else { (size - 1).saturating_mul(dilation).saturating_add(1) }
}

/// Checks the ranks, layouts, strides, padding and dilations.
fn ensure_layouts(dims: &ConvDims, lhs: &TensorType, rhs: &TensorType) -> Result<(), Problem> {
    let rank = dims.lhs_spec.len();
    ensure!(
        rank >= 2 && lhs.rank() == rank && rhs.rank() == rank,
        [0, 1],
        "input and kernel must have {rank} axes, got {lhs} and {rhs}"
    );
    let spatial = rank - 2;
    ensure!(
        is_permutation(&dims.lhs_spec, rank)
            && is_permutation(&dims.rhs_spec, rank)
            && is_permutation(&dims.out_spec, rank),
        [],
        "the layouts {:?}, {:?}, {:?} are not permutations of the axes",
        dims.lhs_spec,
        dims.rhs_spec,
        dims.out_spec
    );
    ensure!(
        dims.strides.len() == spatial
            && dims.padding.len() == spatial
            && dims.lhs_dilation.len() == spatial
            && dims.rhs_dilation.len() == spatial,
        [],
        "strides, padding and dilation must be given for {spatial} spatial axes"
    );
    let positive = dims.strides.iter().chain(&dims.lhs_dilation).chain(&dims.rhs_dilation);
    ensure!(positive.clone().all(|&n| n > 0), [], "strides and dilations must be at least 1");
    Ok(())
}

pub(crate) fn infer(
    dims: &ConvDims,
    lhs: &TensorType,
    rhs: &TensorType,
) -> Result<TensorType, Problem> {
    ensure!(
        lhs.dtype == rhs.dtype,
        [0, 1],
        "element types differ: input {lhs}, kernel {rhs}; convert one with .to(dtype)"
    );
    ensure!(
        lhs.dtype != DType::Bool,
        [0, 1],
        "is not defined for bool; convert it with .to(dtype)"
    );
    ensure!(
        !lhs.dtype.is_complex(),
        [0, 1],
        "is not defined for complex numbers, got {lhs}; convolve .real() and .imag()"
    );
    ensure_layouts(dims, lhs, rhs)?;
    let rank = dims.lhs_spec.len();
    let (batch, features) = (lhs.shape[dims.lhs_spec[0]], lhs.shape[dims.lhs_spec[1]]);
    let (out_features, in_features) = (rhs.shape[dims.rhs_spec[0]], rhs.shape[dims.rhs_spec[1]]);
    let (groups, batch_groups) = (dims.feature_groups, dims.batch_groups);
    ensure!(
        groups > 0 && batch_groups > 0 && (groups == 1 || batch_groups == 1),
        [],
        "{groups} feature groups with {batch_groups} batch groups"
    );
    ensure!(
        Some(features) == in_features.checked_mul(groups),
        [0, 1],
        "input features must agree: input {lhs} axis {} ({features}), kernel {rhs} axis {} \
         ({in_features}) in {groups} group(s)",
        dims.lhs_spec[1],
        dims.rhs_spec[1]
    );
    ensure!(
        out_features.is_multiple_of(groups)
            && out_features.is_multiple_of(batch_groups)
            && batch.is_multiple_of(batch_groups),
        [0, 1],
        "{out_features} output features or a batch of {batch} cannot be split into groups"
    );
    let mut shape = vec![0; rank];
    shape[dims.out_spec[0]] = batch / batch_groups;
    shape[dims.out_spec[1]] = out_features;
    for i in 0..rank - 2 {
        let input = dilated(lhs.shape[dims.lhs_spec[2 + i]], dims.lhs_dilation[i]) as i128;
        let window = dilated(rhs.shape[dims.rhs_spec[2 + i]], dims.rhs_dilation[i]) as i128;
        let (low, high) = dims.padding[i];
        let padded = low as i128 + high as i128 + input;
        ensure!(
            padded >= 0,
            [0],
            "negative padding removes more elements than spatial axis {i} of {lhs} has"
        );
        shape[dims.out_spec[2 + i]] = if padded < window {
            0
        } else {
            ((padded - window) / dims.strides[i] as i128 + 1) as usize
        };
    }
    Ok(TensorType::new(lhs.dtype, Shape::from(shape)))
}
