//! Derivatives of collectives.

use super::tangent::Tangents;
use crate::error::Loc;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op};
use crate::trace::ops::{ones_like, where_, zeros_like};
use crate::trace::tensor::{Tensor, Tensors, bind, bind1};

/// All collectives but the extremes are linear.
pub(crate) fn jvp_collective(
    collective: &CollectiveOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    at: Loc,
) -> (Tensors, Tangents) {
    let op = Op::Collective(collective.clone());
    let outputs = bind(op.clone(), x, at);
    let moving: Vec<Tensor> = t.iter().flatten().copied().collect();
    let moved: Vec<Tensor> = match &collective.kind {
        Collective::AllReduce(AllReduceOp::Max | AllReduceOp::Min) => {
            let sum = |x: Tensor| {
                let kind = Collective::AllReduce(AllReduceOp::Sum);
                bind1(Op::Collective(CollectiveOp { kind, ..collective.clone() }), &[x], at)
            };
            // Members that have the extreme share the derivative, as elements of a reduction do.
            let values = x.iter().zip(&outputs).zip(t).filter(|(_, t)| t.is_some());
            values
                .zip(&moving)
                .map(|(((&x, &y), _), &t)| {
                    let holds = x.eq(y);
                    let count = sum(where_(holds, ones_like(x), zeros_like(x)));
                    sum(t * where_(holds, ones_like(x) / count, zeros_like(x)))
                })
                .collect()
        }
        Collective::AllReduce(AllReduceOp::Sum)
        | Collective::AllGather { .. }
        | Collective::ReduceScatter { .. }
        | Collective::AllToAll { .. }
        | Collective::Permute { .. } => bind(op, &moving, at).to_vec(),
        Collective::Index => vec![],
    };
    let mut moved = moved.into_iter();
    let tangents = t.iter().map(|t| t.and_then(|_| moved.next())).collect();
    (outputs, tangents)
}
