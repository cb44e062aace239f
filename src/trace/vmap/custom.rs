//! Functions with derivatives of their own: batching.

use std::sync::Arc;

use super::control::{as_batched, batch_body, batched_types, flags, results, tensors};
use super::varying::{custom_jvp_varying_outputs, custom_vjp_varying_outputs, varying_outputs};
use super::{BatchContext, Batched, Results, batch_program};
use crate::error::Loc;
use crate::trace::control::{captures_first, share_captures_of};
use crate::trace::literal::Literal;
use crate::trace::op::{CustomJvpOp, CustomLinOp, CustomVjpOp, Op, ReduceOp, RematOp, Rule};
use crate::trace::program::Program;
use crate::trace::tensor::{FrameKind, Tensor, Traced, bind, fail_op, trace_frame};
use crate::trace::types::{DType, TensorType};

/// Turns the captures of the batched bodies into constants of all of them.
fn with_captures(bodies: Vec<Traced>) -> (Vec<Arc<Program>>, Vec<Tensor>) {
    let counts: Vec<usize> =
        bodies.iter().map(|body| body.program.inputs.len() - body.captures.len()).collect();
    let (programs, captures) = bodies.into_iter().map(|b| (b.program, b.captures)).unzip();
    let (programs, shared) = share_captures_of(programs, captures, &counts);
    let programs = programs.into_iter().zip(counts);
    (programs.map(|(p, count)| Arc::new(captures_first(p, count))).collect(), shared)
}

pub(crate) fn custom_jvp(
    op: &CustomJvpOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let into = flags(inputs);
    let mapped = custom_jvp_varying_outputs(op, &into, context.axis);
    let rule = match &op.jvp {
        Rule::Own(rule) if !op.is_recursive() => rule,
        Rule::Own(_) | Rule::Enclosing(_) => {
            return recursive_custom_jvp(op, inputs, &mapped, context, at);
        }
    };
    let dual = [&into[..], &into[op.num_consts..]].concat();
    let call = batch_body(&op.call, &into, &mapped, context, at);
    let jvp = batch_body(rule, &dual, &[&mapped[..], &mapped[..]].concat(), context, at);
    let (programs, shared) = with_captures(vec![call, jvp]);
    let [call, jvp] = programs.try_into().expect("two Programs");
    let batched =
        CustomJvpOp { call, jvp: Rule::Own(jvp), num_consts: shared.len() + op.num_consts };
    let operands: Vec<Tensor> = shared.into_iter().chain(tensors(inputs)).collect();
    results(bind(Op::CustomJvp(batched), &operands, at), &mapped)
}

/// A Program of a mask (`bool[size]`) of the examples that are computed for, and of all inputs
/// mapped. It has no captures, and all its results are mapped.
fn for_all(program: &Program, context: BatchContext, at: Loc) -> Arc<Program> {
    let all = vec![true; program.inputs.len()];
    let mut types = vec![TensorType::new(DType::Bool, [context.size])];
    types.extend(batched_types(program.input_types(), &all, context.size));
    let body = |args: &[Tensor]| {
        let context = BatchContext { active: Some(args[0]), ..context };
        let results = batch_program(program, &as_batched(&args[1..], &all), context);
        (results.into_iter().map(|result| result.full(context.size)).collect(), ())
    };
    Arc::new(trace_frame(FrameKind::Body, &types, at, body).0.program)
}

/// A function whose rule calls it, or a function around it. A call inside must be of the same types
/// and constants as the function, so that all of them have all inputs mapped, and the mask of the
/// examples that are computed for.
fn recursive_custom_jvp(
    op: &CustomJvpOp,
    inputs: &[Batched],
    mapped: &[bool],
    context: BatchContext,
    at: Loc,
) -> Results {
    if !mapped.contains(&true) {
        let operands = tensors(inputs);
        return results(bind(Op::CustomJvp(op.clone()), &operands, at), mapped);
    }
    let jvp = match &op.jvp {
        Rule::Own(rule) => {
            Rule::Own(for_all(rule, BatchContext { rules: context.rules + 1, ..context }, at))
        }
        Rule::Enclosing(level) if *level < context.rules => Rule::Enclosing(*level),
        Rule::Enclosing(_) => fail_op(
            "custom_jvp",
            "the rule calls vmap of its own function, which is still being defined; call the \
             function without vmap, or write the derivative out",
        ),
    };
    let call = for_all(&op.call, context, at);
    let batched = CustomJvpOp { call, jvp, num_consts: op.num_consts + 1 };
    let all = || {
        let mask = Literal::filled(TensorType::new(DType::Bool, [context.size]), 1.0);
        bind(Op::Constant(mask), &[], at)[0]
    };
    let mask = context.active.unwrap_or_else(all);
    let operands = inputs.iter().map(|input| input.full(context.size));
    let operands: Vec<Tensor> = std::iter::once(mask).chain(operands).collect();
    bind(Op::CustomJvp(batched), &operands, at).into_iter().map(Batched::mapped).collect()
}

/// The pullback for a batch. The cotangent of an argument that is the same for the whole batch is
/// summed over it.
fn batch_bwd(
    bwd: &Program,
    into: &[bool],
    args: &[bool],
    context: BatchContext,
    at: Loc,
) -> Traced {
    let types = batched_types(bwd.input_types(), into, context.size);
    let body = |inputs: &[Tensor]| {
        let back = batch_program(bwd, &as_batched(inputs, into), context);
        let each = back.iter().zip(args).map(|(ct, &mapped)| match (mapped, ct.mapped) {
            (true, _) => ct.full(context.size),
            (false, true) if ct.tensor.dtype().is_inexact() => {
                ct.tensor.reduce(ReduceOp::Sum, [0].as_slice().into())
            }
            (false, true) => ct.tensor.index_axis(0, 0),
            // It depends on nothing that is mapped, so it is that of all examples together.
            (false, false) => ct.tensor,
        });
        (each.collect(), ())
    };
    trace_frame(FrameKind::Body, &types, at, body).0
}

pub(crate) fn custom_vjp(
    op: &CustomVjpOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let into = flags(inputs);
    let mapped = custom_vjp_varying_outputs(op, &into, context.axis);
    let saved = varying_outputs(&op.fwd, &into, context.axis)[mapped.len()..].to_vec();
    let (consts, args) = into.split_at(op.num_consts);
    let call = batch_body(&op.call, &into, &mapped, context, at);
    let fwd = batch_body(&op.fwd, &into, &[&mapped[..], &saved].concat(), context, at);
    let bwd = batch_bwd(&op.bwd, &[consts, &saved, &mapped].concat(), args, context, at);
    let (programs, shared) = with_captures(vec![call, fwd, bwd]);
    let [call, fwd, bwd] = programs.try_into().expect("three Programs");
    let batched = CustomVjpOp { call, fwd, bwd, num_consts: shared.len() + op.num_consts };
    let operands: Vec<Tensor> = shared.into_iter().chain(tensors(inputs)).collect();
    results(bind(Op::CustomVjp(batched), &operands, at), &mapped)
}

pub(crate) fn custom_lin(
    op: &CustomLinOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let (known, tangents) = inputs.split_at(op.num_known);
    // Every cotangent is mapped, and so is every tangent that comes out.
    let num_cts = op.bwd.inputs.len() - op.num_known;
    let into = [flags(known), vec![true; num_cts]].concat();
    let mut mapped_tangents = flags(tangents).into_iter();
    let args: Vec<bool> = op
        .bwd
        .output_types()
        .map(|ty| !ty.dtype.is_inexact() || mapped_tangents.next().expect("one a float"))
        .collect();
    let bwd = batch_bwd(&op.bwd, &into, &args, context, at);
    let (programs, shared) = with_captures(vec![bwd]);
    let [bwd] = programs.try_into().expect("one Program");
    let batched = CustomLinOp { bwd, num_known: shared.len() + op.num_known };
    let operands: Vec<Tensor> = shared.into_iter().chain(tensors(inputs)).collect();
    bind(Op::CustomLin(batched), &operands, at).into_iter().map(Batched::mapped).collect()
}

pub(crate) fn remat(
    remat: &RematOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let into = flags(inputs);
    let mapped = varying_outputs(&remat.body, &into, context.axis);
    let body = batch_body(&remat.body, &into, &mapped, context, at);
    let (programs, shared) = with_captures(vec![body]);
    let [body] = programs.try_into().expect("one Program");
    let operands: Vec<Tensor> = shared.into_iter().chain(tensors(inputs)).collect();
    let batched = RematOp { body, ..remat.clone() };
    results(bind(Op::Remat(batched), &operands, at), &mapped)
}
