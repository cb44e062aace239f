//! Calls of native functions: our own, and callbacks.

use super::emitter::{Emitter, Values};
use super::mlir::{List, Results, Types, Value, row_major};
use crate::lower::custom_calls::Kernel;
use crate::lower::custom_calls::bits::Bits;
use crate::lower::custom_calls::callbacks::Callback;
use crate::trace::op::CallbackOp;
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    /// Random bits as a call; two results.
    pub(super) fn bits(&mut self, x: &[Value], ty: &TensorType) -> Values {
        let (operands, both) = ([ty; 4], [ty; 2]);
        let results = self.begin(2);
        self.write(format_args!(
            "stablehlo.custom_call @{}({}) {{api_version = 4 : i32, operand_layouts = [{}], \
             result_layouts = [{}]}} : ({}) -> ({})",
            Bits::TARGET,
            List(x),
            row_major(&operands),
            row_major(&both),
            Types(&operands),
            Types(&both)
        ));
        self.end();
        results
    }

    /// A callback as a call of the kernel.
    pub(super) fn callback(
        &mut self,
        op: &CallbackOp,
        x: &[Value],
        tys: &[&TensorType],
        results: &[&TensorType],
    ) -> Values {
        let (numbers, argument) = self.functions.as_ref().expect("the Program has callbacks");
        let id = op.f.id() as i64;
        let index = numbers.iter().position(|&number| number == id).expect("of this Program");
        let numbers = TensorType::new(DType::I64, [numbers.len()]);
        let x: Values = [argument].into_iter().chain(x).copied().collect();
        let tys: Vec<&TensorType> = [&numbers].into_iter().chain(tys.iter().copied()).collect();
        let values = self.begin(results.len());
        let (token, effect) = (op.token, op.has_effect());
        self.write(format_args!(
            "stablehlo.custom_call @{}({}) {{api_version = 4 : i32, has_side_effect = {effect}, \
             backend_config = {{index = {index} : i64, token = {token}}}, operand_layouts = [{}], \
             result_layouts = [{}]}} : ({}) -> {}",
            Callback::TARGET,
            List(&x),
            row_major(&tys),
            row_major(results),
            Types(&tys),
            Results(results)
        ));
        self.end();
        values
    }
}
