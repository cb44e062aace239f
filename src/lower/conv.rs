//! Convolutions. How one is best written depends on the platform and on where it stands, so the
//! choice is made in one place, [`conv_formula`].

use super::mlir::{List, Value};
use super::stablehlo::{Emitter, Platform, signature};
use crate::trace::op::ConvDims;
use crate::trace::types::TensorType;

/// The ways to write a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConvFormula {
    /// `stablehlo.convolution`: the compiler's own.
    Plain,
}

/// The way to write a convolution of `lhs` by the kernel `rhs`.
pub(super) fn conv_formula(
    dims: &ConvDims,
    lhs: &TensorType,
    rhs: &TensorType,
    platform: Platform,
    inside_loop: bool,
) -> ConvFormula {
    let _ = (dims, lhs, rhs, inside_loop);
    match platform {
        Platform::Cpu | Platform::Cuda | Platform::Rocm | Platform::Tpu => ConvFormula::Plain,
    }
}

/// Writes a convolution: operands `lhs`, `rhs`.
pub(super) fn emit_conv(
    emitter: &mut Emitter<'_>,
    dims: &ConvDims,
    x: &[Value],
    tys: &[&TensorType],
    result: &TensorType,
) -> Value {
    let platform = emitter.options.platform;
    match conv_formula(dims, tys[0], tys[1], platform, emitter.loops > 0) {
        ConvFormula::Plain => plain(emitter, dims, x, tys, result),
    }
}

fn plain(
    emitter: &mut Emitter<'_>,
    dims: &ConvDims,
    x: &[Value],
    tys: &[&TensorType],
    result: &TensorType,
) -> Value {
    let padding: Vec<String> =
        dims.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
    let reverse = vec![false; dims.strides.len()];
    emitter.op(format_args!(
        "stablehlo.convolution({}, {}) dim_numbers = [{}]x[{}]->[{}], window = {{stride = [{}], \
         pad = [{}], lhs_dilate = [{}], rhs_dilate = [{}], reverse = [{}]}} {{batch_group_count = \
         {} : i64, feature_group_count = {} : i64, precision_config = [#stablehlo<precision \
         DEFAULT>, #stablehlo<precision DEFAULT>]}} : {}",
        x[0],
        x[1],
        layout(&dims.lhs_spec, ["b", "f"]),
        layout(&dims.rhs_spec, ["o", "i"]),
        layout(&dims.out_spec, ["b", "f"]),
        List(&dims.strides),
        List(&padding),
        List(&dims.lhs_dilation),
        List(&dims.rhs_dilation),
        List(&reverse),
        dims.batch_groups,
        dims.feature_groups,
        signature(tys, &[result])
    ))
}

/// `b, 0, 1, f` of an operand whose axes are listed as batch, features, spatial ones.
fn layout(spec: &[usize], letters: [&str; 2]) -> String {
    let mut names = vec![String::new(); spec.len()];
    for (i, &axis) in spec.iter().enumerate() {
        names[axis] = if i < 2 { letters[i].into() } else { (i - 2).to_string() };
    }
    names.join(", ")
}
