//! Control flow: batching.

use std::sync::Arc;

use super::callback::expect_no_io;
use super::varying::{cond_varying_outputs, scan_varying_outputs, while_varying_outputs};
use super::{BatchContext, Batched, Results, batch_program, choose, guard};
use crate::error::Loc;
use crate::trace::control::{captures_first, share_captures};
use crate::trace::op::{CondOp, Op, ScanOp, WhileOp};
use crate::trace::program::Program;
use crate::trace::tensor::{FrameKind, Tensor, Traced, bind, trace_frame};
use crate::trace::types::TensorType;

pub(super) fn flags(inputs: &[Batched]) -> Vec<bool> {
    inputs.iter().map(|input| input.mapped).collect()
}

pub(super) fn tensors(inputs: &[Batched]) -> Vec<Tensor> {
    inputs.iter().map(|input| input.tensor).collect()
}

/// The values as `mapped` wants them. A value that is mapped already stays so.
fn raised(values: &[Batched], mapped: &[bool], context: BatchContext) -> Vec<Batched> {
    let raise = |(&value, &mapped): (&Batched, &bool)| {
        if mapped { guard::raise(value, context) } else { value }
    };
    values.iter().zip(mapped).map(raise).collect()
}

/// The types of a Program's inputs, with the batch on those that are mapped.
pub(super) fn batched_types<'a>(
    types: impl Iterator<Item = &'a TensorType>,
    mapped: &[bool],
    size: usize,
) -> Vec<TensorType> {
    let batched = |(ty, &mapped): (&TensorType, &bool)| {
        if mapped { TensorType::new(ty.dtype, ty.shape.with_axis(0, size)) } else { ty.clone() }
    };
    types.zip(mapped).map(batched).collect()
}

pub(super) fn as_batched(args: &[Tensor], mapped: &[bool]) -> Vec<Batched> {
    args.iter().zip(mapped).map(|(&tensor, &mapped)| Batched { tensor, mapped }).collect()
}

/// Batches a body; the flags `inputs` and `outputs` mark the values that have the batch axis.
pub(super) fn batch_body(
    program: &Program,
    inputs: &[bool],
    outputs: &[bool],
    context: BatchContext,
    at: Loc,
) -> Traced {
    let types = batched_types(program.input_types(), inputs, context.size);
    let body = |args: &[Tensor]| {
        let results = batch_program(program, &as_batched(args, inputs), context);
        (tensors(&raised(&results, outputs, context)), ())
    };
    trace_frame(FrameKind::Body, &types, at, body).0
}

pub(super) fn results(tensors: impl IntoIterator<Item = Tensor>, mapped: &[bool]) -> Results {
    tensors.into_iter().zip(mapped).map(|(tensor, &mapped)| Batched { tensor, mapped }).collect()
}

pub(crate) fn scan(scan: &ScanOp, inputs: &[Batched], context: BatchContext, at: Loc) -> Results {
    let mapped = scan_varying_outputs(scan, &flags(inputs), context.axis);
    let (consts, rest) = inputs.split_at(scan.num_consts);
    let (init, xs) = rest.split_at(scan.num_carry);
    let init = raised(init, &mapped[..scan.num_carry], context);
    let into = [flags(consts), flags(&init), flags(xs)].concat();
    let body = batch_body(&scan.body, &into, &mapped, context, at);
    // The first axis is that of the iterations, so the batch axis is the second of a stacked
    // tensor.
    let stacked = |x: &Batched| if x.mapped { x.tensor.moveaxis(0, 1) } else { x.tensor };
    let op = ScanOp {
        num_consts: body.captures.len() + scan.num_consts,
        body: Arc::new(captures_first(body.program, into.len())),
        ..scan.clone()
    };
    let operands: Vec<Tensor> = body
        .captures
        .into_iter()
        .chain(tensors(consts))
        .chain(tensors(&init))
        .chain(xs.iter().map(stacked))
        .collect();
    let outputs = bind(Op::Scan(op), &operands, at);
    let unstacked = outputs.iter().enumerate().map(|(i, &output)| {
        if i >= scan.num_carry && mapped[i] { output.moveaxis(1, 0) } else { output }
    });
    results(unstacked, &mapped)
}

pub(crate) fn while_loop(
    op: &WhileOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let context = BatchContext { differentiable: false, ..context };
    let (mapped, differs) = while_varying_outputs(op, &flags(inputs), context.axis);
    let (cond_consts, rest) = inputs.split_at(op.num_cond_consts);
    let (body_consts, init) = rest.split_at(op.num_body_consts);
    let init = raised(init, &mapped, context);
    if differs {
        expect_no_io("while_loop", [&*op.cond, &*op.body]);
        return while_any(op, cond_consts, body_consts, &init, context, at);
    }
    // All examples stop together. The loop does not begin if no example is active, since nothing
    // would use its values.
    let anyone = context.active.map(|active| active.any([0]));
    let cond_flags = [flags(cond_consts), mapped.clone()].concat();
    let types = batched_types(op.cond.input_types(), &cond_flags, context.size);
    let (cond, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let condition = batch_program(&op.cond, &as_batched(args, &cond_flags), context)[0].tensor;
        (vec![anyone.map_or(condition, |anyone| anyone & condition)], ())
    });
    let body_flags = [flags(body_consts), mapped.clone()].concat();
    let body = batch_body(&op.body, &body_flags, &mapped, context, at);
    let batched = WhileOp {
        num_cond_consts: cond.captures.len() + cond_consts.len(),
        cond: Arc::new(captures_first(cond.program, cond_flags.len())),
        num_body_consts: body.captures.len() + body_consts.len(),
        body: Arc::new(captures_first(body.program, body_flags.len())),
    };
    let operands: Vec<Tensor> = cond
        .captures
        .into_iter()
        .chain(tensors(cond_consts))
        .chain(body.captures)
        .chain(tensors(body_consts))
        .chain(tensors(&init))
        .collect();
    results(bind(Op::While(batched), &operands, at), &mapped)
}

/// Batches a loop whose examples stop after different numbers of iterations. It runs while any
/// example is active, and keeps the carry of those that have stopped. The active flags are part of
/// the carry, so that the condition is computed once an iteration.
fn while_any(
    op: &WhileOp,
    cond_consts: &[Batched],
    body_consts: &[Batched],
    init: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let size = context.size;
    let condition = |consts: &[Batched], carry: &[Batched], context: BatchContext| {
        let condition = batch_program(&op.cond, &[consts, carry].concat(), context)[0].full(size);
        context.active.map_or(condition, |active| active & condition)
    };
    let going = condition(cond_consts, init, context);
    let carry_types: Vec<TensorType> =
        std::iter::once(going).chain(tensors(init)).map(Tensor::ty).collect();
    let (any, ()) =
        trace_frame(FrameKind::Body, &carry_types, at, |carry| (vec![carry[0].any([0])], ()));

    let consts = [cond_consts, body_consts].concat();
    let const_flags = flags(&consts);
    let types: Vec<TensorType> = consts.iter().map(|c| c.tensor.ty()).chain(carry_types).collect();
    let (body, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (consts, carry) = args.split_at(const_flags.len());
        let consts = as_batched(consts, &const_flags);
        let (cond_consts, body_consts) = consts.split_at(cond_consts.len());
        let (going, before) = (carry[0], &carry[1..]);
        let context = BatchContext { active: Some(going), ..context };
        let before: Vec<Batched> = before.iter().map(|&tensor| Batched::mapped(tensor)).collect();
        let after = batch_program(&op.body, &[body_consts, &before].concat(), context);
        let kept: Vec<Batched> = after
            .iter()
            .zip(&before)
            .map(|(after, before)| Batched::mapped(choose(going, after.full(size), before.tensor)))
            .collect();
        let going = condition(cond_consts, &kept, context);
        (std::iter::once(going).chain(tensors(&kept)).collect(), ())
    });
    let batched = WhileOp {
        num_cond_consts: 0,
        cond: Arc::new(any.program),
        num_body_consts: body.captures.len() + consts.len(),
        body: Arc::new(captures_first(body.program, types.len())),
    };
    let operands: Vec<Tensor> = body
        .captures
        .into_iter()
        .chain(tensors(&consts))
        .chain(std::iter::once(going))
        .chain(tensors(init))
        .collect();
    bind(Op::While(batched), &operands, at).into_iter().skip(1).map(Batched::mapped).collect()
}

pub(crate) fn cond(cond: &CondOp, inputs: &[Batched], context: BatchContext, at: Loc) -> Results {
    let (index, args) = (inputs[0], &inputs[1..]);
    let mapped = cond_varying_outputs(cond, &flags(inputs), context.axis);
    if index.mapped {
        return choose_branch(cond, index.tensor, args, context);
    }
    let into = flags(args);
    let (programs, captures): (Vec<Program>, Vec<Vec<Tensor>>) = cond
        .branches
        .iter()
        .map(|branch| batch_body(branch, &into, &mapped, context, at))
        .map(|traced| (traced.program, traced.captures))
        .unzip();
    let (branches, shared) = share_captures(programs, captures, args.len());
    let op = CondOp { branches: branches.into_iter().map(Arc::new).collect() };
    let operands: Vec<Tensor> =
        std::iter::once(index.tensor).chain(tensors(args)).chain(shared).collect();
    results(bind(Op::Cond(op), &operands, at), &mapped)
}

/// Computes every branch, and chooses by example.
fn choose_branch(cond: &CondOp, index: Tensor, args: &[Batched], context: BatchContext) -> Results {
    let last = cond.branches.len() - 1;
    expect_no_io("cond", cond.branches.iter().map(|branch| &**branch));
    if last == 0 {
        return batch_program(&cond.branches[0], args, context).into();
    }
    // Flags of the examples that take branch `i`. An index out of range means the first branch or
    // the last.
    let takes = |i: usize| match i {
        0 => index.lt(1),
        _ if i == last => index.ge(i),
        _ => index.eq(i),
    };
    let mut chosen: Vec<Batched> = Vec::new();
    for (i, branch) in cond.branches.iter().enumerate() {
        let here = takes(i);
        let active = context.active.map_or(here, |active| active & here);
        let inside = BatchContext { active: Some(active), ..context };
        let mut outputs = batch_program(branch, &guard::operands(args, inside), inside);
        // The choice guards an operand that is returned as it is.
        for (output, var) in outputs.iter_mut().zip(&branch.outputs) {
            if let Some(i) = branch.inputs.iter().position(|input| input == var) {
                *output = args[i];
            }
        }
        if i == 0 {
            chosen = outputs;
            continue;
        }
        for (before, output) in chosen.iter_mut().zip(outputs) {
            if before.tensor.id() != output.tensor.id() {
                let [output, before_it] = [output, *before].map(|x| guard::raise(x, context));
                *before = Batched::mapped(choose(here, output.tensor, before_it.tensor));
            }
        }
    }
    chosen.into()
}
