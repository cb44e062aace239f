//! The types of control flow.

use super::problem::{Problem, Types, ensure};
use crate::trace::op::{CallbackOp, CondOp, ScanOp, WhileOp};
use crate::trace::program::Program;
use crate::trace::types::{DType, TensorType};

/// Checks that operands `from..` have the types of a Program's inputs.
pub(super) fn takes<'a>(
    what: &str,
    program: &Program,
    given: impl ExactSizeIterator<Item = &'a TensorType>,
) -> Result<(), Problem> {
    ensure!(
        program.inputs.len() == given.len(),
        [],
        "the {what} takes {} inputs, got {}",
        program.inputs.len(),
        given.len()
    );
    for (i, (expected, ty)) in program.input_types().zip(given).enumerate() {
        ensure!(expected == ty, [], "input {i} of the {what} is {expected}, and is given {ty}");
    }
    Ok(())
}

pub(crate) fn infer_callback(op: &CallbackOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    let token = CallbackOp::token_type();
    if !op.token {
        return Ok(op.results.iter().cloned().collect());
    }
    ensure!(inputs.first() == Some(&&token), [0], "takes a token {token} first");
    Ok(std::iter::once(&token).chain(&op.results).cloned().collect())
}

pub(crate) fn infer_scan(scan: &ScanOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    let fixed = scan.num_consts + scan.num_carry;
    ensure!(inputs.len() >= fixed, [], "takes at least {fixed} operands");
    ensure!(
        i32::try_from(scan.length).is_ok(),
        [],
        "has {} iterations, more than {}, the most that its counter of type i32 has",
        scan.length,
        i32::MAX
    );
    let mut slices = Vec::new();
    for (i, ty) in inputs.iter().enumerate().skip(fixed) {
        ensure!(
            ty.rank() > 0 && ty.shape[0] == scan.length,
            [i],
            "stacked input {} must have a first axis of size {}, and is {ty}",
            i - fixed,
            scan.length
        );
        slices.push(TensorType::new(ty.dtype, ty.shape.without_axis(0)));
    }
    let given: Vec<&TensorType> = inputs[..fixed].iter().copied().chain(&slices).collect();
    takes("body", &scan.body, given.into_iter())?;
    let results: Vec<&TensorType> = scan.body.output_types().collect();
    ensure!(
        results.len() >= scan.num_carry,
        [],
        "the body returns fewer results than there are carries"
    );
    let mut types = Types::new();
    for (i, ty) in results.iter().enumerate() {
        if i < scan.num_carry {
            let carried = inputs[scan.num_consts + i];
            ensure!(
                *ty == carried,
                [scan.num_consts + i],
                "carry {i} is {carried} in the input and {ty} in the output"
            );
            types.push((*ty).clone());
        } else {
            types.push(TensorType::new(ty.dtype, ty.shape.with_axis(0, scan.length)));
        }
    }
    Ok(types)
}

pub(crate) fn infer_while(w: &WhileOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    let fixed = w.num_cond_consts + w.num_body_consts;
    ensure!(inputs.len() >= fixed, [], "takes at least {fixed} operands");
    let carry = &inputs[fixed..];
    ensure!(!carry.is_empty(), [], "has no carry, so the condition can never change");
    let with_carry = |consts: &[&TensorType]| -> Vec<TensorType> {
        consts.iter().chain(carry).map(|&ty| ty.clone()).collect()
    };
    takes("condition", &w.cond, with_carry(&inputs[..w.num_cond_consts]).iter())?;
    takes("body", &w.body, with_carry(&inputs[w.num_cond_consts..fixed]).iter())?;
    let mut condition = w.cond.output_types();
    ensure!(
        condition.len() == 1 && condition.next() == Some(&TensorType::scalar(DType::Bool)),
        [],
        "the condition must return one scalar bool"
    );
    ensure!(w.body.outputs.len() == carry.len(), [], "carry input and output differ in number");
    for (i, (ty, carried)) in w.body.output_types().zip(carry).enumerate() {
        ensure!(
            ty == *carried,
            [fixed + i],
            "carry {i} is {carried} in the input and {ty} in the output"
        );
    }
    Ok(carry.iter().map(|&ty| ty.clone()).collect())
}

pub(crate) fn infer_cond(cond: &CondOp, inputs: &[&TensorType]) -> Result<Types, Problem> {
    ensure!(!cond.branches.is_empty(), [], "no branches");
    ensure!(
        !inputs.is_empty() && *inputs[0] == TensorType::scalar(DType::I32),
        [0],
        "the index must be a scalar i32"
    );
    let first = &cond.branches[0];
    for (i, branch) in cond.branches.iter().enumerate() {
        takes(&format!("branch {i}"), branch, inputs[1..].iter().copied())?;
        ensure!(
            branch.outputs.len() == first.outputs.len(),
            [],
            "branch {i} returns {} results, branch 0 returns {}",
            branch.outputs.len(),
            first.outputs.len()
        );
        for (j, (ty, expected)) in branch.output_types().zip(first.output_types()).enumerate() {
            ensure!(
                ty == expected,
                [],
                "result {j} is {ty} in branch {i} and {expected} in branch 0"
            );
        }
    }
    Ok(first.output_types().cloned().collect())
}
