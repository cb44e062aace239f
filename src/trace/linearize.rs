//! [`linearize`]: a function's value and its derivative as a function of tangents.

use std::panic::Location;

use super::control::types_of;
use super::jvp::{check_tangents, expect_inexact, forwards, linearize_program};
use super::op::Op;
use super::ops::zeros_like;
use super::program::Program;
use super::tensor::{Tensor, at_line, inline, trace_tree};
use crate::error::Loc;
use crate::tree::{self, Path, Tree};

/// `jax.linearize`: the value of `f` at `primals`, and its derivative there as a function of
/// tangents. The values that the derivative needs are computed once.
#[track_caller]
pub fn linearize<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl FnOnce(A) -> B,
    primals: A,
) -> (B, impl Fn(A) -> B) {
    let at = Location::caller();
    at_line(at, || {
        primals
            .visit_leaves(&Path::ROOT, &mut |path, x| expect_inexact("linearize", path, x.dtype()));
    });
    let (traced, template) = trace_tree::<A, B>("linearize", at, &types_of(&primals), f);
    let mut values = tree::leaves(&primals);
    let num_args = values.len();
    values.extend(&traced.captures);
    let active: Vec<bool> = (0..values.len()).map(|i| i < num_args).collect();
    let (outputs, linear) = linearize_program(&traced.program, &values, &active, at);
    if let Some(at) = custom_lin(&linear.program) {
        at_line(at, || forwards());
    }
    let value: B = tree::replace(&template, outputs.iter().copied());
    let pushforward = move |tangents: A| {
        check_tangents("linearize", &primals, &tangents, at);
        let operands: Vec<Tensor> =
            tree::leaves(&tangents).into_iter().chain(linear.residuals.iter().copied()).collect();
        let mut moved = inline(&linear.program, &operands).into_iter();
        let written: Vec<Tensor> = outputs
            .iter()
            .zip(&linear.nonzero)
            .map(|(y, nonzero)| {
                nonzero.then(|| moved.next()).flatten().unwrap_or_else(|| zeros_like(*y))
            })
            .collect();
        tree::replace(&template, written)
    };
    (value, pushforward)
}

/// The line of a function with a pullback alone, if there is one in a linear Program.
fn custom_lin(program: &Program) -> Option<Loc> {
    program.equations.iter().find_map(|equation| match &equation.op {
        Op::CustomLin(_) => Some(equation.at),
        op => op.subprograms().find_map(custom_lin),
    })
}
