//! Transposition of collectives. Values and cotangents of all members together form one vector
//! space; in it the sum is its own transpose, and gathering is that of summing and dividing.

use smallvec::SmallVec;

use super::Parts;
use crate::error::Loc;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op, ShardingKind, ShardingOp};
use crate::trace::ops::full_like;
use crate::trace::tensor::{Tensor, bind, bind1, fail_op};

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
    let op = Op::Collective(CollectiveOp { kind, ..collective.clone() });
    let mut parts = bind(op, &given, at).into_iter();
    cts.iter().map(|ct| ct.and_then(|_| parts.next())).collect()
}

/// The cotangent of a division. Equal shards of all members are one value, each with its part of
/// the cotangent; so a whole cotangent is divided by their number on its way in, and those parts
/// are summed on the way out.
pub(crate) fn transpose_sharding(sharding: &ShardingOp, ct: Tensor, at: Loc) -> Tensor {
    let with_kind = |kind| Op::Sharding(ShardingOp { kind, ..sharding.clone() });
    let copies = sharding.unmentioned();
    match sharding.kind {
        ShardingKind::Constraint => bind1(with_kind(ShardingKind::Constraint), &[ct], at),
        ShardingKind::FullToShard => {
            let sum = match copies.is_empty() {
                true => ct,
                false => {
                    let kind = Collective::AllReduce(AllReduceOp::Sum);
                    let op = CollectiveOp { axes: copies, groups: None, kind };
                    bind1(Op::Collective(op), &[ct], at)
                }
            };
            bind1(with_kind(ShardingKind::ShardToFull), &[sum], at)
        }
        ShardingKind::ShardToFull => {
            let shard = bind1(with_kind(ShardingKind::FullToShard), &[ct], at);
            let count: usize = copies.iter().map(|axis| axis.size()).product();
            if count == 1 { shard } else { shard / full_like(shard, count as f64) }
        }
    }
}
