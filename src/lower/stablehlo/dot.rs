//! Products of matrices.

use super::emitter::Emitter;
use super::mlir::{List, Value, precision, row_major, signature};
use crate::lower::custom_calls::Kernel;
use crate::lower::custom_calls::onednn::{Matmul, product_by_onednn};
use crate::trace::op::DotDims;
use crate::trace::types::TensorType;

impl Emitter<'_> {
    pub(super) fn dot(
        &mut self,
        dims: &DotDims,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        if let Some(product) = product_by_onednn(dims, tys[0], tys[1], self.options.conv_threads) {
            return self.op(format_args!(
                "stablehlo.custom_call @{}({}, {}) {{api_version = 4 : i32, backend_config = \
                 {{product = array<i64: {}>}}, operand_layouts = [{}], result_layouts = [{}]}} : {}",
                Matmul::TARGET,
                x[0],
                x[1],
                List(&product.encode()),
                row_major(tys),
                row_major(&[result]),
                signature(tys, &[result])
            ));
        }
        let precision = precision(dims.precision);
        let id = self.begin(1)[0];
        self.write(format_args!("stablehlo.dot_general {}, {}, ", x[0], x[1]));
        if !dims.lhs_batch.is_empty() {
            let (lhs, rhs) = (List(&dims.lhs_batch), List(&dims.rhs_batch));
            self.write(format_args!("batching_dims = [{lhs}] x [{rhs}], "));
        }
        self.write(format_args!(
            "contracting_dims = [{}] x [{}], precision = [{precision}, {precision}] : {}",
            List(&dims.lhs_contract),
            List(&dims.rhs_contract),
            signature(tys, &[result])
        ));
        self.end();
        id
    }
}
