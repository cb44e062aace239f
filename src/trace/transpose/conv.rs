//! Transposition of convolutions.

use smallvec::SmallVec;

use crate::trace::check::dilated;
use crate::trace::op::{Axes, ConvDims, Op};
use crate::trace::ops::conv_general;
use crate::trace::tensor::{Tensor, bind1};
use crate::trace::types::TensorType;

/// A layout with batch and feature axes exchanged.
fn swapped(spec: &Axes) -> Axes {
    let mut spec = spec.clone();
    spec.swap(0, 1);
    spec
}

/// Cuts `groups` groups off axis `from` and puts them in front of axis `to`.
pub(crate) fn move_groups(x: Tensor, from: usize, to: usize, groups: usize) -> Tensor {
    let shape = x.shape();
    let mut cut = shape.to_vec();
    cut[from] /= groups;
    cut.insert(from, groups);
    // The group axis is at `from`; move it before `to`, whose position may have shifted.
    let target = if to < from { to } else { to + 1 };
    let mut order: Vec<usize> = (0..cut.len()).filter(|&axis| axis != from).collect();
    let place = order.iter().position(|&axis| axis == target).expect("an axis of x");
    order.insert(place, from);
    let moved = x.reshape(&cut).transpose(&order);
    let mut merged = shape.to_vec();
    merged[from] /= groups;
    merged[to] *= groups;
    moved.reshape(merged)
}

/// The cotangent of the input: the result's cotangent, spread by the strides, convolved with the
/// kernel turned around.
pub(crate) fn transpose_lhs(dims: &ConvDims, lhs: &TensorType, rhs: Tensor, ct: Tensor) -> Tensor {
    let (kernel, out) = (rhs.shape(), ct.shape());
    let groups = dims.feature_groups.max(dims.batch_groups);
    let rhs =
        if groups > 1 { move_groups(rhs, dims.rhs_spec[0], dims.rhs_spec[1], groups) } else { rhs };
    let spatial = dims.strides.len();
    let padding: SmallVec<[(i64, i64); 2]> = (0..spatial)
        .map(|i| {
            let window = dilated(kernel[dims.rhs_spec[2 + i]], dims.rhs_dilation[i]) as i64;
            let input = dilated(lhs.shape[dims.lhs_spec[2 + i]], dims.lhs_dilation[i]) as i64;
            let output = dilated(out[dims.out_spec[2 + i]], dims.strides[i]) as i64;
            let low = window - 1 - dims.padding[i].0;
            (low, input + window - 1 - output - low)
        })
        .collect();
    let turned = Op::Reverse { axes: dims.rhs_spec[2..].into() };
    let turned = bind1(turned, &[rhs], std::panic::Location::caller());
    let product = conv_general(
        ct,
        turned,
        ConvDims {
            lhs_spec: dims.out_spec.clone(),
            rhs_spec: swapped(&dims.rhs_spec),
            out_spec: dims.lhs_spec.clone(),
            strides: dims.lhs_dilation.clone(),
            padding,
            lhs_dilation: dims.strides.clone(),
            rhs_dilation: dims.rhs_dilation.clone(),
            feature_groups: groups,
            batch_groups: 1,
            precision: dims.precision,
        },
    );
    if dims.batch_groups > 1 {
        return move_groups(product, dims.lhs_spec[1], dims.lhs_spec[0], dims.batch_groups);
    }
    product
}

/// The cotangent of the kernel: the input convolved with the result's cotangent, spread by the
/// strides; batch and features exchange their roles.
pub(crate) fn transpose_rhs(dims: &ConvDims, lhs: Tensor, rhs: &TensorType, ct: Tensor) -> Tensor {
    let (image, out) = (lhs.shape(), ct.shape());
    let spatial = dims.strides.len();
    let padding: SmallVec<[(i64, i64); 2]> = (0..spatial)
        .map(|i| {
            let window = dilated(rhs.shape[dims.rhs_spec[2 + i]], dims.rhs_dilation[i]) as i64;
            let input = dilated(image[dims.lhs_spec[2 + i]], dims.lhs_dilation[i]) as i64;
            let output = dilated(out[dims.out_spec[2 + i]], dims.strides[i]) as i64;
            let low = dims.padding[i].0;
            (low, output - input + window - low - 1)
        })
        .collect();
    conv_general(
        lhs,
        ct,
        ConvDims {
            lhs_spec: swapped(&dims.lhs_spec),
            rhs_spec: swapped(&dims.out_spec),
            out_spec: swapped(&dims.rhs_spec),
            strides: dims.rhs_dilation.clone(),
            padding,
            lhs_dilation: dims.lhs_dilation.clone(),
            rhs_dilation: dims.strides.clone(),
            feature_groups: dims.batch_groups,
            batch_groups: dims.feature_groups,
            precision: dims.precision,
        },
    )
}
