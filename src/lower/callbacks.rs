//! Callbacks in compiled programs: one kernel calls the functions of all of them.
//!
//! Each call carries the number of its function ([`HostFn::id`]), by which the kernel finds it among
//! those alive. Whoever holds the executable holds its functions; when it goes, and the runs under
//! way have ended, so do they.
//!
//! The numbers stand in the text of the module and so in the executable cache's key. An executable
//! from the cache is called with a number of this process, for which this process lowered the very
//! same text; what the number meant to the process that compiled it does not matter.

use super::mlir::{List, Results, Types, Value};
use super::native_calls::row_major;
use super::pjrt::custom_call::{CALLBACK, Call, Code, Kernel, KernelError, RawOperand, RawResult};
use super::stablehlo::{Emitter, Values};
use crate::trace::callback::{HostFn, HostView, HostViewMut};
use crate::trace::op::CallbackOp;
use crate::trace::types::TensorType;

/// Calls the function with the number `id`. With `token`, the first operand is handed to the first
/// result.
pub struct Callback;

impl Kernel for Callback {
    const TARGET: &'static str = CALLBACK;

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let id: i64 = call.attribute("id")?;
        let skipped = usize::from(call.attribute::<bool>("token")?);
        if skipped > 0 {
            let token = call.operand::<u32>(0)?.data;
            call.write(0, token)?;
        }
        let Some(f) = HostFn::with_id(id as u64) else {
            let text = format!("the function {id} is no longer there");
            return Err(KernelError::new(Code::NotFound, text));
        };
        let operand = |i| -> Result<HostView<'_>, String> {
            let RawOperand { ty, bytes } = call.raw_operand(i)?;
            Ok(HostView { ty, bytes })
        };
        let operands =
            (skipped..call.num_operands()).map(operand).collect::<Result<Vec<_>, String>>()?;
        let mut results = Vec::with_capacity(call.num_results() - skipped);
        for i in skipped..call.num_results() {
            let RawResult { ty, bytes } = call.raw_result(i)?;
            results.push(HostViewMut { ty, bytes });
        }
        f.call(&operands, &mut results).map_err(|error| error.to_string().into())
    }
}

impl Emitter<'_> {
    /// A callback as a call of the kernel.
    pub(super) fn callback(
        &mut self,
        op: &CallbackOp,
        x: &[Value],
        tys: &[&TensorType],
        results: &[&TensorType],
    ) -> Values {
        let values = self.begin(results.len());
        let (id, token, effect) = (op.f.id(), op.token, op.has_effect());
        self.write(format_args!(
            "stablehlo.custom_call @{}({}) {{api_version = 4 : i32, has_side_effect = {effect}, \
             backend_config = {{id = {id} : i64, token = {token}}}, operand_layouts = [{}], \
             result_layouts = [{}]}} : ({}) -> {}",
            Callback::TARGET,
            List(x),
            row_major(tys),
            row_major(results),
            Types(tys),
            Results(results)
        ));
        self.end();
        values
    }
}
