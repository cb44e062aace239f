//! Derivatives of scatters that replace, multiply, or take the extreme.

use super::tangent::{add_tangents, summed};
use crate::error::Loc;
use crate::trace::check::gather_of_scatter;
use crate::trace::op::{Op, ScatterDims, ScatterKind};
use crate::trace::ops;
use crate::trace::tensor::{Tensor, bind1, fail_op};
use crate::trace::types::DType;

/// Tangent of a scatter that overwrites. If several updates go to one index, one of them stays:
/// only its tangent counts. A scatter of the updates' numbers with the same indices finds the one
/// that stayed.
pub(crate) fn jvp_scatter_set(
    dims: &ScatterDims,
    [operand, indices, updates]: [Tensor; 3],
    [operand_t, updates_t]: [Option<Tensor>; 2],
    at: Loc,
) -> Option<Tensor> {
    let kept = operand_t.map(|t| {
        let erased = ops::zeros_like(updates);
        bind1(Op::Scatter(dims.clone()), &[t, indices, erased], at)
    });
    let written = updates_t.map(|t| {
        let (shape, places) = (updates.shape(), operand.shape());
        let numbers = ops::arange(shape.numel(), DType::I32).reshape(&shape);
        let nobody = ops::full(&places, -1.0, DType::I32);
        let winners = bind1(Op::Scatter(dims.clone()), &[nobody, indices, numbers], at);
        let winner = ops::gather(winners, indices, gather_of_scatter(dims, &places, &shape));
        let t = ops::where_(winner.eq(numbers), t, ops::zeros_like(t));
        let add = ScatterDims { kind: ScatterKind::Add, ..dims.clone() };
        summed(t.dtype(), |within| {
            ops::scatter(ops::zeros(&places, within), indices, t.to(within), add)
        })
    });
    add_tangents(kept, written)
}

/// Tangent of a multiplying scatter: linear in the operand. The updates may collide at an index,
/// and then have no derivative of this form.
pub(crate) fn jvp_scatter_mul(
    dims: &ScatterDims,
    [_, indices, updates]: [Tensor; 3],
    [operand_t, updates_t]: [Option<Tensor>; 2],
    at: Loc,
) -> Option<Tensor> {
    if updates_t.is_some() {
        fail_op(
            "scatter_mul",
            "has no derivative for the factors, of which several may meet at one place; where none \
             do, use at(..).set(at(..).get() * factors)",
        );
    }
    operand_t.map(|t| bind1(Op::Scatter(dims.clone()), &[t, indices, updates], at))
}

/// Tangent of a scatter that takes a maximum or minimum. All values that attain the extreme at an
/// index, the operand's too, share the derivative there. NaN among updates has none, as in JAX.
pub(crate) fn jvp_scatter_extreme(
    dims: &ScatterDims,
    [operand, indices, updates]: [Tensor; 3],
    y: Tensor,
    [operand_t, updates_t]: [Option<Tensor>; 2],
) -> Option<Tensor> {
    let one_where = |holds: Tensor, like: Tensor| {
        ops::where_(holds, ops::ones_like(like), ops::zeros_like(like))
    };
    let back = gather_of_scatter(dims, &operand.shape(), &updates.shape());
    let add = ScatterDims { kind: ScatterKind::Add, ..dims.clone() };
    let operand_holds = one_where(operand.eq(y) | operand.ne(operand), operand);
    let update_holds = one_where(updates.eq(ops::gather(y, indices, back.clone())), updates);
    let count = ops::scatter(operand_holds, indices, update_holds, add.clone()).maximum(1.0);
    let kept = operand_t.map(|t| t * (operand_holds / count));
    let written = updates_t.map(|t| {
        let shares = t * (update_holds / ops::gather(count, indices, back));
        ops::scatter(ops::zeros_like(operand), indices, shares, add)
    });
    add_tangents(kept, written)
}
