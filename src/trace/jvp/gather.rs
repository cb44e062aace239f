//! The derivative of a scatter that replaces.

use super::tangent::add_tangents;
use crate::error::Loc;
use crate::trace::check::gather_of_scatter;
use crate::trace::op::{Op, ScatterDims, ScatterKind};
use crate::trace::ops;
use crate::trace::tensor::{Tensor, bind1};
use crate::trace::types::DType;

/// Of several updates for one place, one stays: only its tangent counts. Which one stayed is found
/// by scattering the updates' numbers the same way.
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
        let t = ops::where_(winner.equal(numbers), t, ops::zeros_like(t));
        let add = ScatterDims { kind: ScatterKind::Add, ..dims.clone() };
        ops::scatter(ops::zeros_like(operand), indices, t, add)
    });
    add_tangents(kept, written)
}
