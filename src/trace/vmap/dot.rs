//! General products: batching.

use super::{Batched, prefixed, shifted};
use crate::trace::check::free_axes;
use crate::trace::op::DotDims;
use crate::trace::ops::dot_general;
use crate::trace::tensor::Tensor;

pub(crate) fn dot(dims: &DotDims, lhs: Batched, rhs: Batched) -> Tensor {
    let mut batched = dims.clone();
    if lhs.mapped {
        batched.lhs_contract = shifted(&dims.lhs_contract);
        batched.lhs_batch = shifted(&dims.lhs_batch);
    }
    if rhs.mapped {
        batched.rhs_contract = shifted(&dims.rhs_contract);
        batched.rhs_batch = shifted(&dims.rhs_batch);
    }
    if lhs.mapped && rhs.mapped {
        batched.lhs_batch = prefixed(0, &batched.lhs_batch);
        batched.rhs_batch = prefixed(0, &batched.rhs_batch);
        return dot_general(lhs.tensor, rhs.tensor, batched);
    }
    // The batch is the first free axis of the operand that has it. It comes after the paired axes,
    // and on the right after the free axes of the left as well.
    let pairs = dims.lhs_batch.len();
    if lhs.mapped {
        return dot_general(lhs.tensor, rhs.tensor, batched).moveaxis(pairs as isize, 0);
    }
    if free_axes(rhs.rank(), &dims.rhs_contract, &dims.rhs_batch).is_empty() {
        // `W x` for a batch of vectors is `x W^T`: with the operands exchanged the batch comes
        // before the free axes of the other.
        let exchanged = DotDims {
            lhs_contract: batched.rhs_contract,
            rhs_contract: batched.lhs_contract,
            lhs_batch: batched.rhs_batch,
            rhs_batch: batched.lhs_batch,
            precision: batched.precision,
        };
        return dot_general(rhs.tensor, lhs.tensor, exchanged).moveaxis(pairs as isize, 0);
    }
    let before = pairs + free_axes(lhs.rank(), &dims.lhs_contract, &dims.lhs_batch).len();
    dot_general(lhs.tensor, rhs.tensor, batched).moveaxis(before as isize, 0)
}
