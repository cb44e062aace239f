//! Transposition of functions that bring their own pullback, and of checkpointed functions.

use std::sync::Arc;

use super::control::of_linear_operands;
use super::{Input, Operand, Parts, transpose_program, written};
use crate::error::Loc;
use crate::trace::op::{CustomLinOp, Op, RematOp};
use crate::trace::tensor::{FrameKind, Tensor, bind, inline, trace_frame};
use crate::trace::types::TensorType;

pub(crate) fn transpose_custom_lin(
    op: &CustomLinOp,
    x: &[Operand<'_>],
    cts: &[Option<Tensor>],
) -> Parts {
    let (known, tangents) = x.split_at(op.num_known);
    let mut given = cts.iter().copied();
    let cts = op.bwd.input_types().skip(op.num_known).map(|ty| {
        let ct = if ty.dtype.is_inexact() { given.next().flatten() } else { None };
        written(ct, ty)
    });
    let operands: Vec<Tensor> =
        known.iter().map(|operand| operand.known("custom_vjp")).chain(cts).collect();
    let results = inline(&op.bwd, &operands);
    let floats = results.into_iter().filter(|result| result.dtype().is_inexact());
    let back = tangents.iter().zip(floats);
    known
        .iter()
        .map(|_| None)
        .chain(back.map(|(operand, ct)| operand.value.is_none().then_some(ct)))
        .collect()
}

/// Takes known operands and cotangents; the residuals of the linear function are computed again
/// inside.
pub(crate) fn transpose_remat(
    remat: &RematOp,
    x: &[Operand<'_>],
    cts: &[Option<Tensor>],
    at: Loc,
) -> Parts {
    let known: Vec<Tensor> = x.iter().filter_map(|operand| operand.value).collect();
    let moving: Vec<Tensor> = cts.iter().flatten().copied().collect();
    let operands: Vec<Tensor> = known.iter().chain(&moving).copied().collect();
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (values, moving) = args.split_at(known.len());
        let (mut values, mut moving) = (values.iter().copied(), moving.iter().copied());
        let roles: Vec<Input> = x
            .iter()
            .map(|operand| match operand.value {
                Some(_) => Input::Known(values.next().expect("one value an operand")),
                None => Input::Linear,
            })
            .collect();
        let out: Vec<Option<Tensor>> =
            cts.iter().map(|ct| ct.and_then(|_| moving.next())).collect();
        let back = transpose_program(&remat.body, &roles, &out);
        let linear = back.into_iter().zip(x).filter(|(_, operand)| operand.value.is_none());
        (linear.map(|(ct, operand)| written(ct, operand.ty)).collect(), ())
    });
    let transposed = RematOp { body: Arc::new(traced.program), ..remat.clone() };
    let results = bind(Op::Remat(transposed), &operands, at);
    of_linear_operands(x, results.to_vec()).collect()
}
