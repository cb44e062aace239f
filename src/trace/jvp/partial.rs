//! Partial evaluation of custom_jvp rules.
//!
//! A rule may compute values and tangents together, in one loop or one branch. In a linear frame the
//! whole loop would fall into the linear part, which then would not be linear. So an operation with
//! Programs inside is split in two, like the operation itself when it is differentiated: one over
//! the values, below the frame, and one over the tangents, in it.

use std::sync::Arc;

use super::callback::without_effects;
use super::control::{
    bind_split_cond, bind_split_scan, count, either, scan_flow, select, while_flow,
};
use super::remat::bind_split_remat;
use super::split::{Split, split_frames};
use crate::error::Loc;
use crate::trace::graph::eliminate_dead_code;
use crate::trace::op::{Op, ScanOp, Structure, WhileOp};
use crate::trace::program::{Equation, Program};
use crate::trace::tensor::{Tensor, Tensors, at_line, bind};
use crate::trace::types::TensorType;

/// One flag per result: true if it depends on an input that `linear` marks.
fn linear_flow(program: &Program, linear: &[bool]) -> Vec<bool> {
    let mut flags = vec![false; program.types.len()];
    for (&input, &linear) in program.inputs.iter().zip(linear) {
        flags[input.index()] = linear;
    }
    for equation in &program.equations {
        let inputs: Vec<bool> = equation.inputs.iter().map(|var| flags[var.index()]).collect();
        for (&output, linear) in equation.outputs.iter().zip(equation_flow(equation, &inputs)) {
            flags[output.index()] = linear;
        }
    }
    program.outputs.iter().map(|var| flags[var.index()]).collect()
}

fn equation_flow(equation: &Equation, inputs: &[bool]) -> Vec<bool> {
    let num_outputs = equation.outputs.len();
    if !inputs.contains(&true) {
        return vec![false; num_outputs];
    }
    match equation.op.structure() {
        Structure::CustomJvp(custom) => linear_flow(&custom.call, inputs),
        Structure::CustomVjp(custom) => linear_flow(&custom.call, inputs),
        Structure::Remat(remat) => linear_flow(&remat.body, inputs),
        Structure::Scan(scan) => scan_flow(scan, inputs, &linear_flow),
        Structure::While(w) => {
            let carry = while_flow(w, inputs, &linear_flow);
            let test = linear_flow(&w.cond, &[&inputs[..w.num_cond_consts], &carry].concat());
            if test[0] { vec![true; num_outputs] } else { carry }
        }
        Structure::Cond(_) if inputs[0] => vec![true; num_outputs],
        Structure::Cond(cond) => {
            let branches = cond.branches.iter().map(|branch| linear_flow(branch, &inputs[1..]));
            branches.reduce(either).expect("a cond has branches")
        }
        // Each operand has a result of its own.
        Structure::Collective(_) => inputs.to_vec(),
        Structure::Elementary | Structure::Callback(_) | Structure::CustomLin(_) => {
            vec![true; num_outputs]
        }
    }
}

/// Adds the equations of `program` to the trace, on top of which is a linear frame; `linear` marks
/// the arguments that belong to that frame. Returns the results, and flags of those that belong to
/// it.
pub(super) fn inline_split(
    program: &Program,
    args: &[Tensor],
    linear: &[bool],
) -> (Vec<Tensor>, Vec<bool>) {
    let mut env: Vec<Option<(Tensor, bool)>> = vec![None; program.types.len()];
    for ((&input, &arg), &linear) in program.inputs.iter().zip(args).zip(linear) {
        env[input.index()] = Some((arg, linear));
    }
    for equation in &program.equations {
        let operands = equation.inputs.iter().map(|var| env[var.index()].expect("defined"));
        let (inputs, linear): (Vec<Tensor>, Vec<bool>) = operands.unzip();
        let flags = equation_flow(equation, &linear);
        let outputs = at_line(equation.at, || bind_parts(equation, &inputs, &linear, &flags));
        for ((&var, output), flag) in equation.outputs.iter().zip(outputs).zip(flags) {
            env[var.index()] = Some((output, flag));
        }
    }
    program.outputs.iter().map(|var| env[var.index()].expect("defined")).unzip()
}

/// Binds an equation in two parts, if it has operands of both kinds and can be split.
fn bind_parts(equation: &Equation, x: &[Tensor], linear: &[bool], results: &[bool]) -> Tensors {
    let (op, at) = (&equation.op, equation.at);
    if !linear.contains(&true) {
        return bind(op.clone(), x, at);
    }
    let (known, moving) = apart(x, linear);
    let (values, moved) = match op.structure() {
        // The derivatives of these do not matter any more: this is one already.
        Structure::CustomJvp(custom) => return inline_split(&custom.call, x, linear).0.into(),
        Structure::CustomVjp(custom) => return inline_split(&custom.call, x, linear).0.into(),
        Structure::Scan(scan) => scan_parts(scan, x, linear, results, at),
        Structure::While(w) if results.contains(&false) => {
            return while_parts(w, x, linear, results, at);
        }
        Structure::Cond(cond) if !linear[0] => {
            let split = |branch: &Arc<Program>| split_linear(branch, &linear[1..], results, at);
            let splits: Vec<Split> = cond.branches.iter().map(split).collect();
            let num_values = results.len() - count(results);
            bind_split_cond(&splits, &known, moving, num_values, at)
        }
        Structure::Remat(remat) => {
            let split = split_linear(&remat.body, linear, results, at);
            bind_split_remat(remat, split, &known, || moving, at)
        }
        Structure::Collective(_) if linear.contains(&false) => {
            (bind(op.clone(), &known, at), bind(op.clone(), &moving, at))
        }
        Structure::While(_)
        | Structure::Cond(_)
        | Structure::Collective(_)
        | Structure::Callback(_)
        | Structure::CustomLin(_)
        | Structure::Elementary => return bind(op.clone(), x, at),
    };
    together(results, values, moved)
}

/// The operands without and with a mark.
fn apart(x: &[Tensor], marks: &[bool]) -> (Vec<Tensor>, Vec<Tensor>) {
    let unmarked: Vec<bool> = marks.iter().map(|mark| !mark).collect();
    (select(x, &unmarked), select(x, marks))
}

/// One list of the tensors without and with a mark.
fn together(
    marks: &[bool],
    unmarked: impl IntoIterator<Item = Tensor>,
    marked: impl IntoIterator<Item = Tensor>,
) -> Tensors {
    let (mut unmarked, mut marked) = (unmarked.into_iter(), marked.into_iter());
    let next = |&mark: &bool| if mark { marked.next() } else { unmarked.next() };
    marks.iter().map_while(next).collect()
}

/// Splits `program` along the inputs that `linear` marks; `results` marks the results of the linear
/// part.
fn split_linear(program: &Program, linear: &[bool], results: &[bool], at: Loc) -> Split {
    let types: Vec<TensorType> = program.input_types().cloned().collect();
    let known: Vec<bool> = linear.iter().map(|linear| !linear).collect();
    split_frames(&select(&types, &known), &select(&types, linear), at, |known, moving| {
        let args = together(linear, known.iter().copied(), moving.iter().copied());
        let (values, moved) = apart(&inline_split(program, &args, linear).0, results);
        (moved, values)
    })
}

fn scan_parts(
    scan: &ScanOp,
    x: &[Tensor],
    linear: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tensors) {
    let carried = scan.num_consts..scan.num_consts + scan.num_carry;
    // A carry that becomes linear is so from the start.
    let mut linear = linear.to_vec();
    linear[carried.clone()].copy_from_slice(&results[..scan.num_carry]);
    let split = split_linear(&scan.body, &linear, results, at);
    let groups = [0..carried.start, carried.clone(), carried.end..x.len()];
    let [consts, carry, inputs] = groups.map(|range| apart(&x[range.clone()], &linear[range]));
    let values = ScanOp { num_consts: consts.0.len(), num_carry: carry.0.len(), ..scan.clone() };
    let known = [consts.0, carry.0, inputs.0].concat();
    bind_split_scan(&values, split, &known, || [consts.1, carry.1, inputs.1], at)
}

/// A loop over the values, and one over everything in the linear frame: no residuals can be saved.
fn while_parts(w: &WhileOp, x: &[Tensor], linear: &[bool], results: &[bool], at: Loc) -> Tensors {
    let known = |program: &Program, linear: &[bool], results: &[bool]| {
        let mut known = split_linear(program, linear, results, at).known;
        known.outputs.truncate(results.len() - count(results));
        Arc::new(eliminate_dead_code(known))
    };
    let (cond_consts, rest) = linear.split_at(w.num_cond_consts);
    let body_consts = &rest[..w.num_body_consts];
    let values = WhileOp {
        cond: known(&w.cond, &[cond_consts, results].concat(), &[false]),
        num_cond_consts: w.num_cond_consts - count(cond_consts),
        body: known(&w.body, &[body_consts, results].concat(), results),
        num_body_consts: w.num_body_consts - count(body_consts),
    };
    let marks = [cond_consts, body_consts, results].concat();
    let values = bind(Op::While(values), &apart(x, &marks).0, at);
    let again = |body: &Program| Arc::new(without_effects("while_loop", body.clone()));
    let whole = WhileOp { cond: again(&w.cond), body: again(&w.body), ..w.clone() };
    let moved = select(&bind(Op::While(whole), x, at), results);
    together(results, values, moved)
}
