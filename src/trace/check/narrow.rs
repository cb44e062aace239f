//! Operations on 8-bit floats and 4-bit integers, which have no arithmetic.

use super::problem::{Problem, ensure};
use crate::trace::op::{Collective, CollectiveOp, Op, ScatterKind};
use crate::trace::types::TensorType;

/// Refuses 8-bit floats and 4-bit integers where an operation computes with them.
pub(super) fn ensure_no_arithmetic(op: &Op, inputs: &[&TensorType]) -> Result<(), Problem> {
    let allowed = match op {
        // They move elements, convert them, or have Programs inside that are checked themselves.
        Op::Constant(_)
        | Op::Convert { .. }
        | Op::Bitcast { .. }
        | Op::Select
        | Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::Slice { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Sharding(_)
        | Op::StopGradient
        | Op::Name(_)
        | Op::CustomJvp(_)
        | Op::CustomVjp(_)
        | Op::CustomLin(_)
        | Op::Remat(_)
        | Op::Scan(_)
        | Op::While(_)
        | Op::Cond(_) => true,
        Op::Gather(_) => return ensure_not_narrow(1, inputs),
        Op::Scatter(dims) if dims.kind == ScatterKind::Set => return ensure_not_narrow(1, inputs),
        Op::Collective(collective) => !reduces(collective),
        Op::Callback(callback) => return ensure_bytes(inputs, &callback.results),
        Op::Iota { ty, .. } => {
            ensure!(!ty.dtype.is_narrow(), [], "{}", no_arithmetic(ty));
            true
        }
        Op::Scatter(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Clamp
        | Op::Dot(_)
        | Op::Conv(_)
        | Op::Fft(_)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Sort { .. }
        | Op::Threefry => false,
    };
    if allowed { Ok(()) } else { (0..inputs.len()).try_for_each(|i| ensure_not_narrow(i, inputs)) }
}

fn reduces(collective: &CollectiveOp) -> bool {
    match collective.kind {
        Collective::AllReduce(_) | Collective::ReduceScatter { .. } => true,
        Collective::AllGather { .. }
        | Collective::AllToAll { .. }
        | Collective::Permute { .. }
        | Collective::Index => false,
    }
}

fn no_arithmetic(ty: &TensorType) -> String {
    format!(
        "is not defined for {ty}: {} is for storage; convert from or to another type with .to(dtype)",
        ty.dtype
    )
}

/// Refuses operand `i` if it has 8-bit floats or 4-bit integers.
fn ensure_not_narrow(i: usize, inputs: &[&TensorType]) -> Result<(), Problem> {
    if let Some(ty) = inputs.get(i) {
        ensure!(!ty.dtype.is_narrow(), [i], "{}", no_arithmetic(ty));
    }
    Ok(())
}

/// Refuses integers of 4 bits, of which a device keeps two in a byte, for functions on the host.
fn ensure_bytes(inputs: &[&TensorType], results: &[TensorType]) -> Result<(), Problem> {
    for (i, ty) in inputs.iter().enumerate() {
        ensure!(
            !ty.dtype.is_int4(),
            [i],
            "takes no 4-bit integers, got {ty}; convert it with .to(dtype) first"
        );
    }
    for ty in results {
        ensure!(
            !ty.dtype.is_int4(),
            [],
            "cannot return 4-bit integers, got {ty}; convert the result with \
             .to(dtype)"
        );
    }
    Ok(())
}
