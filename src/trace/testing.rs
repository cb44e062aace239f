//! Tests run a closure as a Program on the host.

use std::panic::Location;

use super::eval::eval;
use super::literal::Literal;
use super::tensor::{FrameKind, catch, trace_frame};
use super::{Tensor, TensorType};
use crate::Result;
use crate::tree::{self, Path, Tree};

/// Traces `f` and interprets its Program on `args`.
#[track_caller]
pub(crate) fn interpret<A: Tree<Tensor>, B: Tree<Tensor>>(
    args: A::With<Literal>,
    f: impl FnOnce(A) -> B,
) -> Result<B::With<Literal>> {
    let at = Location::caller();
    let mut inputs: Vec<Literal> = Vec::new();
    args.visit_leaves(&Path::ROOT, &mut |_, literal| inputs.push(literal.clone()));
    let types: Vec<TensorType> = inputs.iter().map(|literal| literal.ty().clone()).collect();
    let (traced, result) = catch(|| {
        trace_frame(FrameKind::Body, &types, at, |tensors| {
            let mut tensors = tensors.iter().copied();
            let tree: A = args
                .map_leaves(&Path::ROOT, &mut |_, _| tensors.next().expect("one tensor a leaf"));
            let result = f(tree);
            (tree::leaves(&result), result)
        })
    })?;
    Ok(tree::rebuild(&result, eval(&traced.program, &inputs)?))
}
