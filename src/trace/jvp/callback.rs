//! Callbacks under derivatives: they run once, with the values. Results of `io_callback` count as
//! constants, and floats of `pure_callback` are an error.

use super::tangent::Tangents;
use crate::error::Loc;
use crate::trace::graph::map_subprograms;
use crate::trace::op::{CallbackKind, CallbackOp, Op};
use crate::trace::program::{Equation, Program};
use crate::trace::tensor::{Tensor, Tensors, at_line, bind, fail_op};

pub(crate) fn jvp_callback(op: &CallbackOp, x: &[Tensor], at: Loc) -> (Tensors, Tangents) {
    let floats = op.results.iter().any(|ty| ty.dtype.is_inexact());
    if matches!(op.kind, CallbackKind::Pure(_)) && floats {
        fail_op(
            op.kind.name(),
            "has no derivative; define one with custom_jvp or custom_vjp, or take the \
             stop_gradient() of its arguments",
        );
    }
    let outputs = bind(Op::Callback(op.clone()), x, at);
    let zeros = Tangents::from_elem(None, outputs.len());
    (outputs, zeros)
}

/// Returns true if an equation is itself a call with an effect.
pub(super) fn is_effect(equation: &Equation) -> bool {
    matches!(&equation.op, Op::Callback(callback) if callback.has_effect())
}

/// The Program of the operation `name` (`checkpoint`, say) for its second run, in a derivative:
/// without debug callbacks, which have run. Ends the trace if there are other calls with an effect,
/// whose results are needed and must not be made again.
pub(super) fn without_effects(name: &str, program: Program) -> Program {
    if !program.has_effect() {
        return program;
    }
    let mut program = program;
    program.equations.retain(|equation| {
        let Op::Callback(callback) = &equation.op else { return true };
        match callback.kind {
            CallbackKind::Pure(_) => true,
            CallbackKind::Debug { .. } => false,
            CallbackKind::Io { .. } => at_line(equation.at, || {
                fail_op(
                    "io_callback",
                    format!(
                        "the derivative of the {name} around it would make the call a second time; \
                         move the callback out of the {name}"
                    ),
                )
            }),
        }
    });
    for equation in &mut program.equations {
        map_subprograms(&mut equation.op, &|body| without_effects(name, body));
    }
    program
}
