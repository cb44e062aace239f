//! The host interpreter: the meaning of a [`Program`], and the oracle of every test.
//!
//! It is slow and obvious on purpose. Two decisions run through all of it:
//!
//! * Arithmetic on floats of every width is done in `f64`, and rounded once when the operation is
//!   finished. For `+ - * /` and `sqrt` that is exactly what narrower arithmetic gives; for the
//!   other functions, and for sums and products of many elements, it is closer to the truth than
//!   any device is. The one exception is `erf_inv`, which is XLA's `f32` polynomial, because
//!   random numbers must be equal bit for bit.
//! * Moving elements about needs only their size, so the operations on shapes work on bits.

#![deny(clippy::wildcard_enum_match_arm)]

mod control;
mod dot;
mod elementwise;
mod gather;
mod number;
mod reduce;
mod shapes;
mod special;

use smallvec::SmallVec;

use super::check;
use super::literal::Literal;
use super::op::Op;
use super::program::{Program, Var};
use super::types::TensorType;
use crate::error::{Error, Result};

/// Runs a Program on the host.
///
/// # Errors
/// If the inputs are not of the types that the Program takes.
pub fn eval(program: &Program, inputs: &[Literal]) -> Result<Vec<Literal>> {
    if inputs.len() != program.inputs.len() {
        return Err(Error::Argument(format!(
            "the Program takes {} inputs, and was given {}",
            program.inputs.len(),
            inputs.len()
        )));
    }
    for (i, (expected, input)) in program.input_types().zip(inputs).enumerate() {
        if expected != input.ty() {
            return Err(Error::Argument(format!(
                "input {i} of the Program is {expected}, and was given {}",
                input.ty()
            )));
        }
    }
    Ok(run(program, inputs.to_vec()))
}

/// Runs a Program whose inputs are known to be of its types.
fn run(program: &Program, inputs: Vec<Literal>) -> Vec<Literal> {
    // Values are let go after their last use: a training step makes gigabytes of them.
    let mut last_use = vec![usize::MAX; program.types.len()];
    for (i, equation) in program.equations.iter().enumerate() {
        for var in &equation.inputs {
            last_use[var.index()] = i;
        }
    }
    for var in &program.outputs {
        last_use[var.index()] = usize::MAX;
    }
    let mut values: Vec<Option<Literal>> = vec![None; program.types.len()];
    let get = |values: &[Option<Literal>], var: Var| -> Literal {
        values[var.index()].clone().expect("variables are defined before they are used")
    };
    for (&var, input) in program.inputs.iter().zip(inputs) {
        values[var.index()] = Some(input);
    }
    for (i, equation) in program.equations.iter().enumerate() {
        let operands: Vec<Literal> = equation.inputs.iter().map(|&var| get(&values, var)).collect();
        let results = eval_op(&equation.op, &operands);
        for (&var, result) in equation.outputs.iter().zip(results) {
            values[var.index()] = Some(result);
        }
        for var in &equation.inputs {
            if last_use[var.index()] == i {
                values[var.index()] = None;
            }
        }
    }
    program.outputs.iter().map(|&var| get(&values, var)).collect()
}

/// Runs one operation on the host.
///
/// # Panics
/// If the operands do not fit the operation ([`check::infer`] tells).
pub fn eval_op(op: &Op, inputs: &[Literal]) -> Vec<Literal> {
    let operand_types: SmallVec<[&TensorType; 4]> = inputs.iter().map(Literal::ty).collect();
    let types = match check::infer(op, &operand_types) {
        Ok(types) => types,
        Err(problem) => panic!("{}: {}", op.name(), problem.text),
    };
    let one = |f: fn(&Literal, &TensorType) -> Literal| vec![f(&inputs[0], &types[0])];
    let results = match op {
        Op::Constant(literal) => vec![literal.clone()],
        Op::Iota { ty, axis } => vec![elementwise::iota(ty, *axis)],
        Op::Unary(op) => vec![elementwise::unary(*op, &inputs[0])],
        Op::Binary(op) => vec![elementwise::binary(*op, &inputs[0], &inputs[1])],
        Op::Compare(op) => vec![elementwise::compare(*op, &inputs[0], &inputs[1])],
        Op::Select => vec![elementwise::select(&inputs[0], &inputs[1], &inputs[2])],
        Op::Clamp => vec![elementwise::clamp(&inputs[0], &inputs[1], &inputs[2])],
        Op::Convert { .. } => one(elementwise::convert),
        // The bytes stay; only the type they are read as changes.
        Op::Bitcast { .. } | Op::Reshape { .. } => {
            vec![Literal::from_shared(types[0].clone(), inputs[0].bytes())]
        }
        Op::Broadcast { shape, axes } => vec![shapes::broadcast(&inputs[0], shape, axes)],
        Op::Transpose { permutation } => vec![shapes::transpose(&inputs[0], permutation)],
        Op::Reverse { axes } => vec![shapes::reverse(&inputs[0], axes)],
        Op::Concat { axis } => vec![shapes::concat(inputs, *axis, &types[0])],
        Op::Pad { low, interior, .. } => {
            vec![shapes::pad(&inputs[0], &inputs[1], low, interior, &types[0])]
        }
        Op::Slice { start, stride, .. } => {
            vec![shapes::slice(&inputs[0], start, stride, &types[0])]
        }
        Op::DynamicSlice { sizes } => {
            vec![shapes::dynamic_slice(&inputs[0], &inputs[1..], sizes)]
        }
        Op::DynamicUpdateSlice => {
            vec![shapes::dynamic_update_slice(&inputs[0], &inputs[1], &inputs[2..])]
        }
        Op::Gather(dims) => vec![gather::gather(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Scatter(dims) => vec![gather::scatter(dims, &inputs[0], &inputs[1], &inputs[2])],
        Op::Dot(dims) => vec![dot::dot(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Conv(dims) => vec![dot::conv(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Reduce { op, axes } => vec![reduce::reduce(*op, &inputs[0], axes, &types[0])],
        Op::ArgReduce { op, axis } => {
            vec![reduce::arg_reduce(*op, &inputs[0], *axis, &types[0])]
        }
        Op::Sort { axis } => reduce::sort(inputs, *axis),
        Op::Threefry => elementwise::threefry(inputs),
        Op::StopGradient => vec![inputs[0].clone()],
        Op::Scan(scan) => control::scan(scan, inputs),
        Op::While(while_op) => control::while_loop(while_op, inputs),
        Op::Cond(cond) => control::cond(cond, inputs),
    };
    debug_assert!(results.iter().map(Literal::ty).eq(&types), "{}: {results:?}", op.name());
    results
}
