//! Derivatives of functions that bring their own.

use super::control::fill_none;
use super::partial::inline_split;
use super::tangent::{Mode, Tangents, instantiate};
use crate::error::Loc;
use crate::trace::op::{CustomJvpOp, CustomLinOp, CustomVjpOp, Op};
use crate::trace::tensor::{Tensor, Tensors, bind, fail_op, inline};

/// A captured tensor that is differentiated would silently get no derivative.
fn consts_are_constant(name: &str, t: &[Option<Tensor>]) {
    if t.iter().any(Option::is_some) {
        fail_op(
            name,
            "the function closes over a tensor that is being differentiated, and its custom rule \
             has no derivative for it; pass that tensor as an argument, or capture its \
             stop_gradient()",
        );
    }
}

/// The tangents of results that are floats; the others have none.
fn of_floats(outputs: &[Tensor], tangents: impl IntoIterator<Item = Tensor>) -> Tangents {
    let each = outputs.iter().zip(tangents);
    each.map(|(output, tangent)| output.dtype().is_inexact().then_some(tangent)).collect()
}

pub(crate) fn jvp_custom_jvp(
    op: &CustomJvpOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
) -> (Tensors, Tangents) {
    let (consts, args) = t.split_at(op.num_consts);
    consts_are_constant("custom_jvp", consts);
    let tangents = args.iter().zip(&x[op.num_consts..]).map(|(&t, &x)| instantiate(t, x));
    let operands: Vec<Tensor> = x.iter().copied().chain(tangents).collect();
    let Some(rule) = op.unrolled() else {
        fail_op(
            "custom_jvp",
            "the rule differentiates its own function, which is still being defined; call the \
             function in the rule, or write the derivative out",
        )
    };
    let mut outputs = match mode {
        Mode::Forward => inline(&rule, &operands),
        Mode::Linearize => {
            let linear = x.iter().map(|_| false).chain(args.iter().map(Option::is_some));
            inline_split(&rule, &operands, &linear.collect::<Vec<bool>>()).0
        }
    };
    let tangents = outputs.split_off(op.call.outputs.len());
    let tangents = of_floats(&outputs, tangents);
    (outputs.into(), tangents)
}

pub(crate) fn jvp_custom_vjp(
    op: &CustomVjpOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let (consts, args) = t.split_at(op.num_consts);
    consts_are_constant("custom_vjp", consts);
    if mode == Mode::Forward {
        forwards();
    }
    let mut outputs = inline(&op.fwd, x);
    let residuals = outputs.split_off(op.call.outputs.len());
    let linear = CustomLinOp { bwd: op.bwd.clone(), num_known: consts.len() + residuals.len() };
    let tangents = args
        .iter()
        .zip(&x[op.num_consts..])
        .filter(|(_, x)| x.dtype().is_inexact())
        .map(|(&t, &x)| instantiate(t, x));
    let operands: Vec<Tensor> =
        x[..op.num_consts].iter().copied().chain(residuals).chain(tangents).collect();
    let moved = bind(Op::CustomLin(linear), &operands, at);
    let floats: Vec<bool> = outputs.iter().map(|output| output.dtype().is_inexact()).collect();
    let tangents = fill_none(&floats, moved);
    (outputs.into(), tangents)
}

/// Ends the trace: there is no rule for tangents.
pub(crate) fn forwards() -> ! {
    fail_op(
        "custom_vjp",
        "a function with a custom_vjp rule cannot be differentiated in forward mode (jvp, \
         linearize, jacfwd); use custom_jvp instead, or differentiate in reverse mode first",
    )
}
