//! Callbacks in compiled programs: one kernel calls the functions of all of them.
//!
//! Each call carries the number of its function ([`HostFn::id`]), by which the kernel finds it among
//! those alive. Whoever holds the executable holds its functions; when it goes, and the runs under
//! way have ended, so do they.
//!
//! The numbers stand in the text of the module and so in the executable cache's key. An executable
//! from the cache is called with a number of this process, for which this process lowered the very
//! same text; what the number meant to the process that compiled it does not matter.

use super::pjrt::CALLBACK;
use super::pjrt::custom_call::{Call, Code, Kernel, KernelError, RawOperand, RawResult};
use crate::trace::callback::{HostFn, HostView, HostViewMut};

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
