//! Derivatives of functions that bring their own, and of checkpointed functions.

use std::collections::HashSet;
use std::sync::Arc;

use super::callback::{is_effect, without_effects};
use super::control::{spread, tangent_flow, written};
use super::jvp_program;
use super::partial::inline_split;
use super::split::{Split, split};
use super::tangent::{Mode, Tangents, instantiate};
use crate::error::Loc;
use crate::trace::graph::eliminate_dead_code;
use crate::trace::op::{CustomJvpOp, CustomLinOp, CustomVjpOp, Op, RematOp, RematPolicy};
use crate::trace::program::{Program, Var};
use crate::trace::tensor::{FrameKind, Tensor, Tensors, bind, fail_op, inline, trace_frame};
use crate::trace::types::TensorType;

/// A captured tensor that is differentiated would silently get no derivative.
fn consts_are_constant(name: &str, t: &[Option<Tensor>]) {
    if t.iter().any(Option::is_some) {
        fail_op(
            name,
            "the function closes over a tensor that is being differentiated, and its custom rule \
             has no derivative for it; pass that tensor as an argument, or capture its \
             stop_gradient()",
        );
    }
}

/// The tangents of results that are floats; the others have none.
fn of_floats(outputs: &[Tensor], tangents: impl IntoIterator<Item = Tensor>) -> Tangents {
    let each = outputs.iter().zip(tangents);
    each.map(|(output, tangent)| output.dtype().is_inexact().then_some(tangent)).collect()
}

pub(crate) fn jvp_custom_jvp(
    op: &CustomJvpOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
) -> (Tensors, Tangents) {
    let (consts, args) = t.split_at(op.num_consts);
    consts_are_constant("custom_jvp", consts);
    let tangents = args.iter().zip(&x[op.num_consts..]).map(|(&t, &x)| instantiate(t, x));
    let operands: Vec<Tensor> = x.iter().copied().chain(tangents).collect();
    let Some(rule) = op.unrolled() else {
        fail_op(
            "custom_jvp",
            "the rule differentiates its own function, which is still being defined; call the \
             function in the rule, or write the derivative out",
        )
    };
    let mut outputs = match mode {
        Mode::Forward => inline(&rule, &operands),
        Mode::Linearize => {
            let linear = x.iter().map(|_| false).chain(args.iter().map(Option::is_some));
            inline_split(&rule, &operands, &linear.collect::<Vec<bool>>()).0
        }
    };
    let tangents = outputs.split_off(op.call.outputs.len());
    let tangents = of_floats(&outputs, tangents);
    (outputs.into(), tangents)
}

pub(crate) fn jvp_custom_vjp(
    op: &CustomVjpOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let (consts, args) = t.split_at(op.num_consts);
    consts_are_constant("custom_vjp", consts);
    if mode == Mode::Forward {
        forwards();
    }
    let mut outputs = inline(&op.fwd, x);
    let residuals = outputs.split_off(op.call.outputs.len());
    let linear = CustomLinOp { bwd: op.bwd.clone(), num_known: consts.len() + residuals.len() };
    let tangents = args
        .iter()
        .zip(&x[op.num_consts..])
        .filter(|(_, x)| x.dtype().is_inexact())
        .map(|(&t, &x)| instantiate(t, x));
    let operands: Vec<Tensor> =
        x[..op.num_consts].iter().copied().chain(residuals).chain(tangents).collect();
    let moved = bind(Op::CustomLin(linear), &operands, at);
    let floats: Vec<bool> = outputs.iter().map(|output| output.dtype().is_inexact()).collect();
    let tangents = spread(&floats, moved);
    (outputs.into(), tangents)
}

/// Ends the trace: there is no rule for tangents.
pub(crate) fn forwards() -> ! {
    fail_op(
        "custom_vjp",
        "a function with a custom_vjp rule cannot be differentiated in forward mode (jvp, \
         linearize, jacfwd); use custom_jvp instead, or differentiate in reverse mode first",
    )
}

pub(crate) fn jvp_remat(
    remat: &RematOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let active: Vec<bool> = t.iter().map(Option::is_some).collect();
    let results = tangent_flow(&remat.body, &active);
    match mode {
        Mode::Forward => forward_remat(remat, x, t, &active, &results, at),
        Mode::Linearize => linearize_remat(remat, x, t, &active, &results, at),
    }
}

fn forward_remat(
    remat: &RematOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let operands: Vec<Tensor> = x.iter().copied().chain(written(active, x, t)).collect();
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (primals, moving) = args.split_at(x.len());
        let tangents = spread(active, moving.iter().copied());
        let (y, dy) = jvp_program(&remat.body, primals, &tangents, Mode::Forward);
        let moved = written(results, &y, &dy);
        (y.into_iter().chain(moved).collect(), ())
    });
    let dual = RematOp { body: Arc::new(traced.program), ..remat.clone() };
    let outputs = bind(Op::Remat(dual), &operands, at);
    let (values, moved) = outputs.split_at(results.len());
    (values.into(), spread(results, moved.iter().copied()))
}

fn linearize_remat(
    remat: &RematOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let split = split(&remat.body, active, results, at);
    let (values, moved) = bind_split_remat(remat, split, x, written(active, x, t), at);
    (values, spread(results, moved))
}

/// Binds a checkpointed function that is split: over the values `x`, with the values that the policy
/// keeps as extra results, and over the tangents in `moving`, computing the rest again. Returns the
/// results of both.
pub(super) fn bind_split_remat(
    remat: &RematOp,
    split: Split,
    x: &[Tensor],
    moving: Vec<Tensor>,
    at: Loc,
) -> (Tensors, Tensors) {
    let Split { known, linear, num_residuals } = split;
    let num_results = known.outputs.len() - num_residuals;
    let saved = saved(&known, num_results, &remat.policy);

    let mut keeping = known.clone();
    keeping.outputs.truncate(num_results);
    keeping.outputs.extend(&saved);
    let keeping = RematOp { body: Arc::new(eliminate_dead_code(keeping)), ..remat.clone() };
    let outputs = bind(Op::Remat(keeping), x, at);
    let (values, kept) = outputs.split_at(num_results);

    // Residuals from arguments and kept values.
    let mut again = known;
    again.outputs.drain(..num_results);
    let given: HashSet<Var> = saved.iter().copied().collect();
    again.inputs.extend(&saved);
    // The results of their first call are kept.
    again.equations.retain(|equation| !is_effect(equation));
    for equation in &mut again.equations {
        // A value that is kept is not defined a second time.
        for output in &mut equation.outputs {
            if given.contains(output) {
                let ty = again.types[output.index()].clone();
                again.types.push(ty);
                *output = Var(again.types.len() as u32 - 1);
            }
        }
    }
    let again = eliminate_dead_code(without_effects("checkpoint", again));
    let operands: Vec<Tensor> =
        x.iter().chain(kept).copied().chain(moving.iter().copied()).collect();
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (known, tangents) = args.split_at(x.len() + kept.len());
        let residuals = inline(&again, known);
        let inputs: Vec<Tensor> = tangents.iter().copied().chain(residuals).collect();
        (inline(&linear, &inputs), ())
    });
    let body = Arc::new(eliminate_dead_code(traced.program));
    let linear = RematOp { body, barrier: true, ..remat.clone() };
    let moved = bind(Op::Remat(linear), &operands, at);
    (values.into(), moved)
}

/// The values, besides its inputs, of the known part of a derivative that the policy keeps, of
/// those that the rest needs.
fn saved(known: &Program, num_results: usize, policy: &RematPolicy) -> Vec<Var> {
    let named =
        |op: &Op, names: &[&'static str]| matches!(op, Op::Name(name) if names.contains(name));
    let results_of = |keeps: &dyn Fn(&Op) -> bool| -> Vec<Var> {
        let kept = known.equations.iter().filter(|equation| keeps(&equation.op));
        kept.flat_map(|equation| equation.outputs.iter().copied()).collect()
    };
    let mut saved: Vec<Var> = Vec::new();
    let residuals = &known.outputs[num_results..];
    match policy {
        RematPolicy::NothingSaveable => {}
        RematPolicy::EverythingSaveable => saved.extend(residuals),
        RematPolicy::SaveAnythingExceptTheseNames(names) => {
            let forgotten: HashSet<Var> = known
                .equations
                .iter()
                .filter(|equation| named(&equation.op, names))
                .flat_map(|equation| equation.inputs.iter().chain(&equation.outputs).copied())
                .collect();
            saved.extend(residuals.iter().filter(|var| !forgotten.contains(var)));
        }
        RematPolicy::SaveOnlyTheseNames(names) => saved.extend(results_of(&|op| named(op, names))),
        RematPolicy::DotsSaveable => saved.extend(results_of(&|op| op.facts().product)),
        RematPolicy::DotsWithNoBatchDimsSaveable => {
            let unbatched = |op: &Op| matches!(op, Op::Dot(dims) if dims.lhs_batch.is_empty());
            saved.extend(results_of(&unbatched));
        }
    }
    // Effects must not happen again, so their results are kept by every policy.
    let effects = known.equations.iter().filter(|equation| is_effect(equation));
    saved.extend(effects.flat_map(|equation| equation.outputs.iter().copied()));
    let mut seen: HashSet<Var> = known.inputs.iter().copied().collect();
    saved.retain(|var| seen.insert(*var));
    saved
}
