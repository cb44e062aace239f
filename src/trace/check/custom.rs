//! The types of functions with derivatives of their own.

use super::control::takes;
use super::problem::{Problem, Types, ensure};
use crate::trace::op::{CustomJvpOp, CustomLinOp, CustomVjpOp, RematOp, Rule};
use crate::trace::program::Program;
use crate::trace::types::TensorType;

/// Checks that `program` gives the types `expected`.
fn gives<'a>(
    what: &str,
    program: &Program,
    expected: impl Iterator<Item = &'a TensorType>,
) -> Result<(), Problem> {
    let expected: Vec<&TensorType> = expected.collect();
    let given: Vec<&TensorType> = program.output_types().collect();
    ensure!(
        given.len() == expected.len(),
        [],
        "the {what} returns {} results, and must return {}",
        given.len(),
        expected.len()
    );
    for (i, (given, expected)) in given.iter().zip(&expected).enumerate() {
        ensure!(given == expected, [], "result {i} of the {what} is {given}, not {expected}");
    }
    Ok(())
}

fn copied<'a>(inputs: &'a [&TensorType]) -> impl ExactSizeIterator<Item = &'a TensorType> {
    inputs.iter().copied()
}

pub(crate) fn infer_custom_jvp(op: &CustomJvpOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    ensure!(inputs.len() >= op.num_consts, [], "takes at least {} operands", op.num_consts);
    takes("function", &op.call, copied(inputs))?;
    let dual: Vec<&TensorType> = inputs.iter().chain(&inputs[op.num_consts..]).copied().collect();
    // One that is written around it is compared by `verify_rule`.
    if let Rule::Own(rule) = &op.jvp {
        takes("jvp", rule, copied(&dual))?;
        gives("jvp", rule, op.call.output_types().chain(op.call.output_types()))?;
    }
    Ok(op.call.output_types().cloned().collect())
}

/// Checks that the rule of a custom_jvp, if it belongs to an enclosing function, exists and fits.
/// `around` are the functions in whose rules the operation is nested, the innermost last.
pub(super) fn verify_rule(op: &CustomJvpOp, around: &[&CustomJvpOp]) -> Result<(), String> {
    let Rule::Enclosing(level) = op.jvp else { return Ok(()) };
    let Some(function) = around.iter().rev().nth(level) else {
        return Err(format!(
            "enclosing={level}, and it stands in the derivatives of {} functions",
            around.len()
        ));
    };
    let fits = function.num_consts == op.num_consts
        && function.call.input_types().eq(op.call.input_types())
        && function.call.output_types().eq(op.call.output_types());
    if fits {
        return Ok(());
    }
    Err(format!("enclosing={level} is a function of other types, or with other constants"))
}

pub(crate) fn infer_custom_vjp(op: &CustomVjpOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    ensure!(inputs.len() >= op.num_consts, [], "takes at least {} operands", op.num_consts);
    takes("function", &op.call, copied(inputs))?;
    takes("fwd", &op.fwd, copied(inputs))?;
    let outputs: Vec<&TensorType> = op.call.output_types().collect();
    let saved: Vec<&TensorType> = op.fwd.output_types().collect();
    ensure!(saved.starts_with(&outputs), [], "fwd must give the results first, then residuals");
    let (consts, args) = inputs.split_at(op.num_consts);
    let known = consts.iter().chain(&saved[outputs.len()..]).chain(&outputs).copied();
    takes("bwd", &op.bwd, copied(&known.collect::<Vec<_>>()))?;
    gives("bwd", &op.bwd, args.iter().copied())?;
    Ok(outputs.into_iter().cloned().collect())
}

pub(crate) fn infer_custom_lin(op: &CustomLinOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    ensure!(inputs.len() >= op.num_known, [], "takes at least {} operands", op.num_known);
    let (known, tangents) = inputs.split_at(op.num_known);
    let types: Vec<&TensorType> = op.bwd.input_types().collect();
    ensure!(types.starts_with(known), [], "the operands are not those of bwd");
    let floats = op.bwd.output_types().filter(|ty| ty.dtype.is_inexact());
    ensure!(floats.eq(tangents.iter().copied()), [], "the tangents are not those of bwd's results");
    let results = types[op.num_known..].iter().filter(|ty| ty.dtype.is_inexact());
    Ok(results.map(|ty| (*ty).clone()).collect())
}

pub(crate) fn infer_remat(remat: &RematOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    takes("function", &remat.body, copied(inputs))?;
    Ok(remat.body.output_types().cloned().collect())
}
