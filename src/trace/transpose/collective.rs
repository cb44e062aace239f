//! Transposition of collectives. Values and cotangents of all members together form one vector
//! space; in it the sum is its own transpose, and gathering is that of summing and dividing.

use smallvec::SmallVec;

use super::Parts;
use crate::error::Loc;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op};
use crate::trace::tensor::{Tensor, bind, fail_op};

pub(crate) fn transpose_collective(
    collective: &CollectiveOp,
    cts: &[Option<Tensor>],
    at: Loc,
) -> Parts {
    let kind = match &collective.kind {
        Collective::AllReduce(AllReduceOp::Sum) => Collective::AllReduce(AllReduceOp::Sum),
        Collective::AllGather { at } => Collective::ReduceScatter { at: *at },
        Collective::ReduceScatter { at } => Collective::AllGather { at: *at },
        Collective::AllToAll { split, concat } => {
            Collective::AllToAll { split: *concat, concat: *split }
        }
        Collective::Permute { pairs } => {
            let pairs = pairs.iter().map(|&(source, target)| (target, source)).collect();
            Collective::Permute { pairs }
        }
        Collective::AllReduce(AllReduceOp::Max | AllReduceOp::Min) | Collective::Index => {
            fail_op(collective.kind.name(), "is not linear, and cannot be transposed")
        }
    };
    let given: SmallVec<[Tensor; 4]> = cts.iter().flatten().copied().collect();
    let op = Op::Collective(CollectiveOp { axis: collective.axis, kind });
    let mut parts = bind(op, &given, at).into_iter();
    cts.iter().map(|ct| ct.and_then(|_| parts.next())).collect()
}
