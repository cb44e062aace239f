//! Random bits, as a function that compiled programs call.

use super::{Kernel, KernelError};
use crate::lower::custom_calls::call::Call;
use crate::trace::eval::threefry2x32;

/// Threefry-2x32 over four tensors of u32 of one shape; two results.
pub struct Bits;

impl Kernel for Bits {
    const TARGET: &'static str = "podracer.threefry2x32.1";

    fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
        let (k0, k1) = (call.operand::<u32>(0)?, call.operand::<u32>(1)?);
        let (c0, c1) = (call.operand::<u32>(2)?, call.operand::<u32>(3)?);
        let (first, second) = (call.result::<u32>(0)?, call.result::<u32>(1)?);
        let keys = k0.data.iter().zip(k1.data);
        let counters = c0.data.iter().zip(c1.data);
        let results = first.iter_mut().zip(second.iter_mut());
        for ((key, counter), result) in keys.zip(counters).zip(results) {
            let [a, b] = threefry2x32([*key.0, *key.1], [*counter.0, *counter.1]);
            (*result.0, *result.1) = (a, b);
        }
        Ok(())
    }
}
