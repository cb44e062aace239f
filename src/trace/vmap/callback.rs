//! Callbacks: batching.

use std::sync::Arc;

use super::{BatchContext, Batched, Results};
use crate::error::Loc;
use crate::trace::op::{CallbackKind, CallbackOp, Op, ScanOp, VmapMethod};
use crate::trace::program::Program;
use crate::trace::tensor::{FrameKind, Tensor, bind, fail_op, trace_frame};
use crate::trace::types::TensorType;

pub(crate) fn callback(
    op: &CallbackOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let (method, ordered) = match op.kind {
        CallbackKind::Pure(method) => (method, false),
        // Members of a pmap each make their own call.
        CallbackKind::Io { .. } if context.members => (VmapMethod::Sequential, false),
        CallbackKind::Io { ordered, vmap } => (vmap, ordered),
        CallbackKind::Debug { .. } => (VmapMethod::Sequential, false),
    };
    match method {
        VmapMethod::ExpandDims => {
            let raise = |input: &Batched| match input.mapped {
                true => input.tensor,
                false => input.tensor.reshape(input.tensor.shape().with_axis(0, 1)),
            };
            at_once(op, inputs.iter().map(raise).collect(), context, at)
        }
        VmapMethod::BroadcastAll => {
            at_once(op, inputs.iter().map(|input| input.full(context.size)).collect(), context, at)
        }
        VmapMethod::Sequential if ordered => fail_op(
            op.kind.name(),
            "an ordered callback cannot be batched: vmap computes all batch elements together, in \
             no order. Make it unordered, or loop outside of the compiled function",
        ),
        VmapMethod::Sequential => one_by_one(op, inputs, context, at),
    }
}

/// One call for all examples.
fn at_once(op: &CallbackOp, operands: Vec<Tensor>, context: BatchContext, at: Loc) -> Results {
    let batched = |ty: &TensorType| TensorType::new(ty.dtype, ty.shape.with_axis(0, context.size));
    let op = CallbackOp { results: op.results.iter().map(batched).collect(), ..op.clone() };
    bind(Op::Callback(op), &operands, at).into_iter().map(Batched::mapped).collect()
}

/// A call for each example, in a loop.
fn one_by_one(op: &CallbackOp, inputs: &[Batched], context: BatchContext, at: Loc) -> Results {
    let (mapped, same): (Vec<&Batched>, Vec<&Batched>) =
        inputs.iter().partition(|input| input.mapped);
    let types: Vec<TensorType> =
        same.iter().chain(&mapped).map(|input| input.example_type()).collect();
    let (body, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (mut same, mut mapped) = (args[..same.len()].iter(), args[same.len()..].iter());
        let operand = |input: &Batched| {
            let next = if input.mapped { mapped.next() } else { same.next() };
            *next.expect("an argument each")
        };
        let operands: Vec<Tensor> = inputs.iter().map(operand).collect();
        (bind(Op::Callback(op.clone()), &operands, at).to_vec(), ())
    });
    let scan = ScanOp {
        body: Arc::new(body.program),
        num_consts: same.len(),
        num_carry: 0,
        length: context.size,
        reverse: false,
        unroll: 1,
    };
    let operands: Vec<Tensor> = same.iter().chain(&mapped).map(|input| input.tensor).collect();
    bind(Op::Scan(scan), &operands, at).into_iter().map(Batched::mapped).collect()
}

/// Ends the trace if there is an io callback in code that only some examples execute: all of them
/// would make the call.
pub(super) fn expect_no_io<'a>(name: &str, programs: impl IntoIterator<Item = &'a Program>) {
    for program in programs {
        let calls = program.callbacks();
        if calls.iter().any(|call| matches!(call.kind, CallbackKind::Io { .. })) {
            fail_op(
                "io_callback",
                format!(
                    "a {name} under vmap whose condition differs between batch elements computes \
                     all branches for all of them, and would make the call for elements that do \
                     not take it; move the callback out of the {name}"
                ),
            );
        }
    }
}
