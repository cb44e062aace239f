//! Derivatives of checkpointed functions.

use std::collections::HashSet;
use std::sync::Arc;

use super::callback::{is_effect, without_effects};
use super::control::{fill_none, instantiate_selected, tangent_flow};
use super::jvp_program;
use super::split::{Split, bind_known, split};
use super::tangent::{Mode, Tangents};
use crate::error::Loc;
use crate::trace::graph::eliminate_dead_code;
use crate::trace::op::{Op, RematOp, RematPolicy};
use crate::trace::program::{Program, Var};
use crate::trace::tensor::{FrameKind, Tensor, Tensors, bind, inline, trace_frame};
use crate::trace::types::TensorType;

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
    let operands: Vec<Tensor> =
        x.iter().copied().chain(instantiate_selected(active, x, t)).collect();
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (primals, args) = args.split_at(x.len());
        let tangents = fill_none(active, args.iter().copied());
        let (y, dy) = jvp_program(&remat.body, primals, &tangents, Mode::Forward);
        let out_tangents = instantiate_selected(results, &y, &dy);
        (y.into_iter().chain(out_tangents).collect(), ())
    });
    let dual = RematOp { body: Arc::new(traced.program), ..remat.clone() };
    let outputs = bind(Op::Remat(dual), &operands, at);
    let (values, out_tangents) = outputs.split_at(results.len());
    (values.into(), fill_none(results, out_tangents.iter().copied()))
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
    let (values, out_tangents) =
        bind_split_remat(remat, split, x, || instantiate_selected(active, x, t), at);
    (values, fill_none(results, out_tangents))
}

/// Binds a checkpointed function that is split: over the values `x`, with the values that the policy
/// keeps as extra results, and over the tangents that `tangents` gives, computing the rest again.
/// Returns the results of both.
pub(super) fn bind_split_remat(
    remat: &RematOp,
    split: Split,
    x: &[Tensor],
    tangents: impl FnOnce() -> Vec<Tensor>,
    at: Loc,
) -> (Tensors, Tensors) {
    let Split { known, linear, num_residuals } = split;
    let num_results = known.outputs.len() - num_residuals;
    let saved = saved(&known, num_results, &remat.policy);

    let mut keeping = known.clone();
    keeping.outputs.truncate(num_results);
    keeping.outputs.extend(&saved);
    let keeping = RematOp { body: Arc::new(eliminate_dead_code(keeping)), ..remat.clone() };
    let num_outputs = num_results + saved.len();
    let outputs = bind_known(Op::Remat(keeping), num_outputs, x, at);
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
    let tangents = tangents();
    let operands: Vec<Tensor> =
        x.iter().chain(kept).copied().chain(tangents.iter().copied()).collect();
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (known, tangents) = args.split_at(x.len() + kept.len());
        let residuals = inline(&again, known);
        let inputs: Vec<Tensor> = tangents.iter().copied().chain(residuals).collect();
        (inline(&linear, &inputs), ())
    });
    let (body, operands) = without_unused_inputs(eliminate_dead_code(traced.program), &operands);
    let linear = RematOp { body: Arc::new(body), barrier: true, ..remat.clone() };
    let out_tangents = bind(Op::Remat(linear), &operands, at);
    (values.into(), out_tangents)
}

/// The body and operands of a computation without the operands that it does not use, which would
/// otherwise stay in memory until then.
fn without_unused_inputs(mut body: Program, operands: &[Tensor]) -> (Program, Vec<Tensor>) {
    let inputs = body.equations.iter().flat_map(|equation| &equation.inputs);
    let used: HashSet<Var> = inputs.chain(&body.outputs).copied().collect();
    let kept = body.inputs.iter().zip(operands).filter(|(var, _)| used.contains(var));
    let (inputs, operands) = kept.map(|(&var, &operand)| (var, operand)).unzip();
    body.inputs = inputs;
    (body, operands)
}

/// The values of the known part of a derivative that the policy keeps, besides its inputs.
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
