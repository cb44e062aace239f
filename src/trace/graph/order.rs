//! Ordered effects: a token that each call with an effect takes from the one before it and passes
//! to the next.
//!
//! A compiler keeps operations in order only if one needs the result of the other. So before a
//! Program is lowered, every call with an effect gets one more operand and one more result, a
//! number; loops carry it, branches pass it through. Then no compiler, and no runtime that runs
//! independent operations side by side, can change the order.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inline_calls;
use crate::trace::literal::Literal;
use crate::trace::op::{CallbackOp, CondOp, Op, RematOp, ScanOp, Structure, WhileOp};
use crate::trace::program::{Equation, Program, Var};
use crate::trace::tensor::{FrameKind, Tensor, Tensors, at_line, bind, bind1, trace_frame};
use crate::trace::types::{DType, TensorType};

/// The Program with its effects in order, if it has any. It computes the same.
pub(crate) fn in_order(program: &Program) -> Option<Program> {
    if !program.has_effect() {
        return None;
    }
    let program = inline_calls(program.clone());
    let at = program.equations.first()?.at;
    let types: Vec<TensorType> = program.input_types().cloned().collect();
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let start = bind1(Op::Constant(Literal::scalar(0u32)), &[], at);
        (thread(&program, args, start).0, ())
    });
    Some(traced.program)
}

/// Adds the equations of `program` to the trace, and passes the token through them. Returns the
/// results, and the token at the end.
fn thread(program: &Program, args: &[Tensor], mut token: Tensor) -> (Vec<Tensor>, Tensor) {
    let mut env: Vec<Option<Tensor>> = vec![None; program.types.len()];
    for (&input, &arg) in program.inputs.iter().zip(args) {
        env[input.index()] = Some(arg);
    }
    let get = |env: &[Option<Tensor>], var: Var| env[var.index()].expect("defined before use");
    for equation in &program.equations {
        let inputs: SmallVec<[Tensor; 4]> =
            equation.inputs.iter().map(|&var| get(&env, var)).collect();
        let outputs = at_line(equation.at, || match equation.op.has_effect() {
            false => bind(equation.op.clone(), &inputs, equation.at),
            true => {
                let mut outputs = with_effect(equation, &inputs, token);
                token = outputs.remove(0);
                outputs
            }
        });
        for (&var, output) in equation.outputs.iter().zip(outputs) {
            env[var.index()] = Some(output);
        }
    }
    (program.outputs.iter().map(|&var| get(&env, var)).collect(), token)
}

/// The equation with the token: its result for that first, then its own.
fn with_effect(equation: &Equation, inputs: &[Tensor], token: Tensor) -> Tensors {
    let at = equation.at;
    let insert = |place: usize| -> Vec<Tensor> {
        let (before, after) = inputs.split_at(place);
        before.iter().chain([&token]).chain(after).copied().collect()
    };
    match equation.op.structure() {
        Structure::Callback(callback) => {
            let op = CallbackOp { token: true, ..callback.clone() };
            bind(Op::Callback(op), &insert(0), at)
        }
        Structure::Scan(scan) => {
            let body = with_token(&scan.body, scan.num_consts, equation);
            let op = ScanOp { body, num_carry: scan.num_carry + 1, ..scan.clone() };
            bind(Op::Scan(op), &insert(scan.num_consts), at)
        }
        Structure::Cond(cond) => {
            let branches = cond.branches.iter().map(|branch| with_token(branch, 0, equation));
            bind(Op::Cond(CondOp { branches: branches.collect() }), &insert(1), at)
        }
        Structure::Remat(remat) => {
            let op = RematOp { body: with_token(&remat.body, 0, equation), ..remat.clone() };
            bind(Op::Remat(op), &insert(0), at)
        }
        Structure::While(w) if w.cond.has_effect() => {
            while_with_condition(w, inputs, token, equation)
        }
        Structure::While(w) => {
            // The condition does not look at the token.
            let mut cond = (*w.cond).clone();
            let unused = cond.add_var(CallbackOp::token_type());
            cond.inputs.insert(w.num_cond_consts, unused);
            let body = with_token(&w.body, w.num_body_consts, equation);
            let op = WhileOp { cond: Arc::new(cond), body, ..w.clone() };
            bind(Op::While(op), &insert(w.num_cond_consts + w.num_body_consts), at)
        }
        Structure::Elementary
        | Structure::Collective(_)
        | Structure::CustomJvp(_)
        | Structure::CustomVjp(_)
        | Structure::CustomLin(_) => {
            unreachable!("{} has no effect, or was written out", equation.op.name())
        }
    }
}

/// `program` with a token as one more input at index `place`, and as its first output.
fn with_token(program: &Program, place: usize, equation: &Equation) -> Arc<Program> {
    let mut types: Vec<TensorType> = program.input_types().cloned().collect();
    types.insert(place, CallbackOp::token_type());
    let (traced, ()) = trace_frame(FrameKind::Body, &types, equation.at, |args| {
        let mut args = args.to_vec();
        let token = args.remove(place);
        let (outputs, token) = thread(program, &args, token);
        (std::iter::once(token).chain(outputs).collect(), ())
    });
    Arc::new(traced.program)
}

/// Rewrites a loop whose condition has effects. A condition returns nothing but a bool, so it can
/// be moved: it is computed before the loop, and at the end of each iteration.
fn while_with_condition(
    w: &WhileOp,
    inputs: &[Tensor],
    token: Tensor,
    equation: &Equation,
) -> Tensors {
    let at = equation.at;
    let (consts, init) = inputs.split_at(w.num_cond_consts + w.num_body_consts);
    let verdict = |consts: &[Tensor], carry: &[Tensor], token: Tensor| {
        let (verdict, token) =
            thread(&w.cond, &[&consts[..w.num_cond_consts], carry].concat(), token);
        [verdict[0], token]
    };
    let start = verdict(consts, init, token);
    let carry_types: Vec<TensorType> = [TensorType::scalar(DType::Bool), CallbackOp::token_type()]
        .into_iter()
        .chain(init.iter().map(|carry| carry.ty()))
        .collect();
    let (cond, ()) = trace_frame(FrameKind::Body, &carry_types, at, |carry| (vec![carry[0]], ()));
    let types: Vec<TensorType> =
        consts.iter().map(|c| c.ty()).chain(carry_types.iter().cloned()).collect();
    let (body, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let (consts, carry) = args.split_at(consts.len());
        let operands = [&consts[w.num_cond_consts..], &carry[2..]].concat();
        let (next, token) = thread(&w.body, &operands, carry[1]);
        let ends = verdict(consts, &next, token);
        (ends.into_iter().chain(next).collect(), ())
    });
    let op = WhileOp {
        cond: Arc::new(cond.program),
        num_cond_consts: 0,
        body: Arc::new(body.program),
        num_body_consts: consts.len(),
    };
    let operands: Vec<Tensor> = consts.iter().chain(&start).chain(init).copied().collect();
    let mut results = bind(Op::While(op), &operands, at);
    // The last verdict is of no use.
    results.remove(0);
    results
}
