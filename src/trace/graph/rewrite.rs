//! Small rewrites for Programs that derivatives and batching produce.
//!
//! * A broadcast or reshape of a splat is a splat: constants stay constants under `vmap`.
//! * A sum of tensors padded with zeros to cover an axis is a concatenation: the derivative of
//!   slices has this form, an LSTM's gates for example.

use std::collections::HashMap;

use super::map_subprograms;
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, Op};
use crate::trace::program::{Equation, Program, Var, Vars};

/// The rewrites, in bodies of control flow as well. Equations that become unused are left for
/// dead-code elimination.
pub(super) fn rewrite(mut program: Program) -> Program {
    for equation in &mut program.equations {
        map_subprograms(&mut equation.op, &rewrite);
    }
    splats(&mut program);
    pads(&mut program);
    program
}

fn splats(program: &mut Program) {
    let mut values: HashMap<Var, Literal> = HashMap::new();
    for equation in &mut program.equations {
        if let Op::Constant(literal) = &equation.op
            && literal.is_splat()
        {
            values.insert(equation.outputs[0], literal.clone());
        } else if let Op::Broadcast { .. } | Op::Reshape { .. } = &equation.op {
            let Some(literal) = values.get(&equation.inputs[0]) else { continue };
            let ty = &program.types[equation.outputs[0].index()];
            let Some(literal) = literal.resplat(ty) else { continue };
            values.insert(equation.outputs[0], literal.clone());
            equation.op = Op::Constant(literal);
            equation.inputs.clear();
        }
    }
}

/// A tensor with zeros put before and after it along one axis.
struct Padded {
    axis: usize,
    from: usize,
    to: usize,
    inner: Var,
}

fn pads(program: &mut Program) {
    if !program.equations.iter().any(|equation| matches!(equation.op, Op::Pad { .. })) {
        return;
    }
    let mut uses = vec![0; program.types.len()];
    let mut made_by: Vec<Option<usize>> = vec![None; program.types.len()];
    for (i, equation) in program.equations.iter().enumerate() {
        equation.inputs.iter().for_each(|var| uses[var.index()] += 1);
        equation.outputs.iter().for_each(|var| made_by[var.index()] = Some(i));
    }
    program.outputs.iter().for_each(|var| uses[var.index()] += 1);
    let mut found: Vec<(usize, usize, Vars)> = Vec::new();
    for (i, equation) in program.equations.iter().enumerate() {
        let Some(parts) = sum_of_pads(program, &made_by, &uses, equation) else { continue };
        found.push((i, parts.0, parts.1));
    }
    for (i, axis, inputs) in found {
        let equation = &mut program.equations[i];
        equation.op = Op::Concat { axis };
        equation.inputs = inputs;
    }
}

/// The parts of a sum that together cover an axis exactly, in order.
fn sum_of_pads(
    program: &Program,
    made_by: &[Option<usize>],
    uses: &[usize],
    sum: &Equation,
) -> Option<(usize, Vars)> {
    let is_sum = |equation: &Equation| equation.op == Op::Binary(BinaryOp::Add);
    if !is_sum(sum) {
        return None;
    }
    let mut parts: Vec<Padded> = Vec::new();
    let mut open: Vec<Var> = sum.inputs.to_vec();
    while let Some(var) = open.pop() {
        let equation = &program.equations[made_by[var.index()]?];
        if is_sum(equation) && uses[var.index()] == 1 {
            open.extend(&equation.inputs);
        } else {
            parts.push(padded(program, made_by, equation)?);
        }
    }
    let axis = parts[0].axis;
    parts.sort_by_key(|part| part.from);
    let mut at = 0;
    for part in &parts {
        if part.axis != axis || part.from != at {
            return None;
        }
        at = part.to;
    }
    let whole = program.ty(sum.outputs[0]).shape[axis] == at;
    whole.then(|| (axis, parts.into_iter().map(|part| part.inner).collect()))
}

fn padded(program: &Program, made_by: &[Option<usize>], equation: &Equation) -> Option<Padded> {
    let Op::Pad { low, high, interior } = &equation.op else { return None };
    let zero = &program.equations[made_by[equation.inputs[1].index()]?];
    let is_zero = matches!(&zero.op, Op::Constant(literal) if literal.splat_value() == Some(0.0));
    let widens = |&axis: &usize| low[axis] != 0 || high[axis] != 0;
    let mut axes = (0..low.len()).filter(widens);
    let axis = axes.next()?;
    let fits = axes.next().is_none()
        && low[axis] >= 0
        && high[axis] >= 0
        && interior.iter().all(|&i| i == 0);
    if !is_zero || !fits {
        return None;
    }
    let inner = equation.inputs[0];
    let from = low[axis] as usize;
    Some(Padded { axis, from, to: from + program.ty(inner).shape[axis], inner })
}
