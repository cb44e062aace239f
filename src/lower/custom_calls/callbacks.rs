//! Callbacks in compiled programs: one kernel calls the functions of all of them.
//!
//! Each call knows the number of its function ([`HostFn::id`]), by which the kernel finds it among
//! those alive. The owner of the executable holds its functions; they are dropped when it is
//! dropped and its running programs have ended.
//!
//! The numbers are an argument of the compiled program, its last, and not in its text: so programs
//! that differ in nothing but their functions are one entry of the executable cache, be it of two
//! runs of one process or of two processes.

use super::{Kernel, KernelError};
use crate::lower::custom_calls::call::{Call, RawOperand, RawResult};
use crate::lower::pjrt::{CALLBACK, Code};
use crate::trace::callback::{HostFn, HostView, HostViewMut};
use crate::trace::program::Program;

/// The numbers of the functions that `program` calls, each once: the last argument of the compiled
/// program, `i64[n]`, if there are any.
pub fn callback_ids(program: &Program) -> Vec<i64> {
    let mut numbers = Vec::new();
    for callback in program.callbacks() {
        let number = callback.f.id() as i64;
        if !numbers.contains(&number) {
            numbers.push(number);
        }
    }
    numbers
}

/// Calls a function. The first operand is the list of [`callback_ids`]; the function's number is at
/// `index`. With `token`, the operand after it is passed to the first result.
pub struct Callback;

impl Kernel for Callback {
    const TARGET: &'static str = CALLBACK;

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let numbers = call.operand::<i64>(0)?.data;
        let index: i64 = call.attribute("index")?;
        let Some(&id) = numbers.get(index as usize) else {
            return Err(
                format!("{} numbers of functions, and none at {index}", numbers.len()).into()
            );
        };
        let skipped = usize::from(call.attribute::<bool>("token")?);
        if skipped > 0 {
            let token = call.operand::<u32>(1)?.data;
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
            (1 + skipped..call.num_operands()).map(operand).collect::<Result<Vec<_>, String>>()?;
        let mut results = Vec::with_capacity(call.num_results() - skipped);
        for i in skipped..call.num_results() {
            let RawResult { ty, bytes } = call.raw_result(i)?;
            results.push(HostViewMut { ty, bytes });
        }
        f.call(&operands, &mut results).map_err(|error| error.to_string().into())
    }
}
