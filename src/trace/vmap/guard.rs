//! Derivatives in a branch that only some examples take. The branch is computed for all of them, so
//! the others have cotangents of zero there, and zero times an infinite derivative is NaN.
//!
//! An operand of the branch is therefore `where(active, x, stop_gradient(x))`, as in JAX, which
//! drops what flows back to the others. An operand that all examples share, such as a weight, has
//! one derivative, the sum over the examples. A batch axis for it would turn the product with a
//! weight into a product for each example, so it is guarded twice: as a whole, in case no example
//! takes the branch, and where it meets a value that has the batch axis.
//!
//! These selections vanish with `stop_gradient` when the Program is complete.

use super::{BatchContext, Batched, Results, batch, choose};
use crate::error::Loc;
use crate::trace::op::{Op, Structure};
use crate::trace::ops::{where_, zeros_like};
use crate::trace::tensor::Tensor;

impl BatchContext {
    /// Mask of the examples that derivatives flow back to, if not all.
    pub(super) fn guard(&self) -> Option<Tensor> {
        self.active.filter(|_| self.differentiable)
    }
}

/// `x`, a batch, with derivatives that flow back to the `active` examples only.
fn guarded(active: Tensor, x: Tensor) -> Tensor {
    choose(active, x, x.stop_gradient())
}

/// The operands of a branch.
pub(super) fn operands(args: &[Batched], context: BatchContext) -> Vec<Batched> {
    let Some(active) = context.guard() else { return args.to_vec() };
    let inexact = |x: &Batched| x.tensor.dtype().is_inexact();
    let any = args.iter().any(|x| inexact(x) && !x.mapped).then(|| active.any([0]));
    let operand = |&x: &Batched| match (inexact(&x), any) {
        (true, _) if x.mapped => Batched::mapped(guarded(active, x.tensor)),
        (true, Some(any)) => Batched::same(where_(any, x.tensor, x.tensor.stop_gradient())),
        _ => x,
    };
    args.iter().map(operand).collect()
}

/// `x` with the batch axis.
pub(super) fn raise(x: Batched, context: BatchContext) -> Batched {
    let full = x.full(context.size);
    Batched::mapped(match context.guard() {
        Some(active) if !x.mapped && full.dtype().is_inexact() => guarded(active, full),
        _ => full,
    })
}

/// [`batch`] of an equation in a branch that only the `active` examples take. `flows` marks the
/// inputs that derivatives flow back to.
pub(super) fn batch_guarded(
    op: &Op,
    inputs: &[Batched],
    flows: &[bool],
    active: Tensor,
    context: BatchContext,
    at: Loc,
) -> Results {
    let shared = |(x, &flows): (&Batched, &bool)| flows && !x.mapped;
    let meets = inputs.iter().any(|x| x.mapped) && inputs.iter().zip(flows).any(shared);
    let has_body = match op.structure() {
        Structure::Scan(_) | Structure::While(_) | Structure::Cond(_) | Structure::Remat(_) => true,
        Structure::Collective(_) | Structure::Callback(_) => true,
        Structure::Elementary
        | Structure::CustomJvp(_)
        | Structure::CustomVjp(_)
        | Structure::CustomLin(_) => false,
    };
    // The equations of a body are guarded one by one.
    if !meets || has_body {
        return batch(op, inputs, context, at);
    }
    // Linear in the shared operand, with a derivative that is the other operand or constant: zeros
    // for the other examples keep that finite.
    if matches!(op, Op::Dot(_) | Op::Conv(_) | Op::Gather(_) | Op::DynamicSlice { .. }) {
        let zeroed = |&x: &Batched| match x.mapped && x.tensor.dtype().is_inexact() {
            true => Batched::mapped(choose(active, x.tensor, zeros_like(x.tensor))),
            false => x,
        };
        let inputs: Vec<Batched> = inputs.iter().map(zeroed).collect();
        let results = batch(op, &inputs, context, at).into_iter();
        let result = |y: Batched| match y.mapped {
            true => Batched::mapped(guarded(active, y.tensor)),
            false => y,
        };
        return results.map(result).collect();
    }
    let raised = |(&x, &flows): (&Batched, &bool)| if flows { raise(x, context) } else { x };
    let inputs: Vec<Batched> = inputs.iter().zip(flows).map(raised).collect();
    batch(op, &inputs, context, at)
}
