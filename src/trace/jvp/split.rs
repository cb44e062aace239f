//! The split of a derivative into the part that is known now and the part that is linear in the
//! tangents.
//!
//! `jvp_program` is traced with a linear frame on top. An equation with a tangent among its
//! operands falls into that frame; every other one falls to the frame below it. The linear part
//! captures the values of the known part that it needs: these are the *residuals*. So the split
//! needs no pass of its own, except in control flow, where it is made in the bodies.

use super::jvp_program;
use super::tangent::{Mode, instantiate};
use crate::error::Loc;
use crate::trace::op::Op;
use crate::trace::program::Program;
use crate::trace::tensor::{FrameKind, Tensor, Tensors, bind, trace_frame};
use crate::trace::types::TensorType;

/// A function linear in its first inputs.
pub(crate) struct Linear {
    /// Takes the tangents of the inputs that have one, then the residuals. Gives a tangent for
    /// each result that has one.
    pub program: Program,
    /// Values of the trace in which the function was linearized.
    pub residuals: Vec<Tensor>,
    /// One flag per result: true if it has a tangent.
    pub nonzero: Vec<bool>,
}

/// Runs `program` on `primals` in the current trace, and gives its derivative as a linear
/// function of the tangents of the inputs that `active` marks.
pub(crate) fn linearize_program(
    program: &Program,
    primals: &[Tensor],
    active: &[bool],
    at: Loc,
) -> (Vec<Tensor>, Linear) {
    let types: Vec<TensorType> =
        primals.iter().zip(active).filter(|(_, active)| **active).map(|(x, _)| x.ty()).collect();
    let (traced, (outputs, nonzero)) = trace_frame(FrameKind::Linear, &types, at, |args| {
        let mut args = args.iter().copied();
        let tangents: Vec<Option<Tensor>> =
            active.iter().map(|&active| if active { args.next() } else { None }).collect();
        let (outputs, tangents) = jvp_program(program, primals, &tangents, Mode::Linearize);
        let nonzero: Vec<bool> = tangents.iter().map(Option::is_some).collect();
        (tangents.into_iter().flatten().collect(), (outputs, nonzero))
    });
    let linear = Linear { program: traced.program, residuals: traced.captures, nonzero };
    (outputs, linear)
}

/// The same split on a Program itself, for the bodies of control flow.
pub(crate) struct Split {
    /// Takes the inputs; gives the results, then the residuals.
    pub known: Program,
    /// Takes the tangents of the active inputs, then the residuals; returns the tangents of the
    /// results marked `wanted`, written out.
    pub linear: Program,
    /// Number of residuals.
    pub num_residuals: usize,
}

/// Splits the derivative of `program` along the inputs that `active` marks.
pub(crate) fn split(program: &Program, active: &[bool], wanted: &[bool], at: Loc) -> Split {
    let types: Vec<TensorType> = program.input_types().cloned().collect();
    let tangent_types: Vec<TensorType> =
        types.iter().zip(active).filter(|(_, a)| **a).map(|(ty, _)| ty.clone()).collect();
    split_frames(&types, &tangent_types, at, |primals, args| {
        let mut args = args.iter().copied();
        let tangents: Vec<Option<Tensor>> =
            active.iter().map(|&active| if active { args.next() } else { None }).collect();
        let (outputs, tangents) = jvp_program(program, primals, &tangents, Mode::Linearize);
        let written = tangents
            .into_iter()
            .zip(&outputs)
            .zip(wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|((tangent, y), _)| instantiate(tangent, *y))
            .collect();
        (written, outputs)
    })
}

/// Binds the part of an operation over values, if something comes of it.
pub(super) fn bind_known(op: Op, num_outputs: usize, x: &[Tensor], at: Loc) -> Tensors {
    if num_outputs == 0 && !op.has_effect() { Tensors::new() } else { bind(op, x, at) }
}

/// Traces `f` over values of the first types and tangents of the second, a linear frame on top.
/// `f` returns the results for the linear part, then those for the known part.
pub(super) fn split_frames(
    known_types: &[TensorType],
    linear_types: &[TensorType],
    at: Loc,
    f: impl FnOnce(&[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> Split {
    let (traced, (linear, num_residuals)) =
        trace_frame(FrameKind::Body, known_types, at, |known| {
            let (linear, outputs) =
                trace_frame(FrameKind::Linear, linear_types, at, |args| f(known, args));
            let num_residuals = linear.captures.len();
            let results = outputs.into_iter().chain(linear.captures).collect();
            (results, (linear.program, num_residuals))
        });
    debug_assert!(traced.captures.is_empty(), "a Program is closed");
    Split { known: traced.program, linear, num_residuals }
}
