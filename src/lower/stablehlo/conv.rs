//! Convolutions.

use super::emitter::Emitter;
use super::mlir::{List, Ty, Value, precision, signature};
use crate::trace::op::ConvDims;
use crate::trace::types::TensorType;

impl Emitter<'_> {
    pub(super) fn conv(
        &mut self,
        dims: &ConvDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        let lhs = if result.dtype.is_int() {
            // Folded by the compiler, sums of integers saturate at the type's limits; at run time
            // they wrap. The compiler does not fold an operand behind a barrier.
            self.op(format_args!("stablehlo.optimization_barrier {} : {}", x[0], Ty(tys[0])))
        } else {
            x[0]
        };
        let padding: Vec<String> =
            dims.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        let reverse = vec![false; dims.strides.len()];
        let precision = precision(dims.precision);
        self.op(format_args!(
            "stablehlo.convolution({}, {}) dim_numbers = [{}]x[{}]->[{}], window = {{stride = \
             [{}], pad = [{}], lhs_dilate = [{}], rhs_dilate = [{}], reverse = [{}]}} \
             {{batch_group_count = {} : i64, feature_group_count = {} : i64, precision_config = \
             [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]}} : {}",
            lhs,
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
}

/// `b, 0, 1, f` of an operand whose axes are listed as batch, features, spatial ones.
fn layout(spec: &[usize], letters: [&str; 2]) -> String {
    let mut names = vec![String::new(); spec.len()];
    for (i, &axis) in spec.iter().enumerate() {
        names[axis] = if i < 2 { letters[i].into() } else { (i - 2).to_string() };
    }
    names.join(", ")
}
