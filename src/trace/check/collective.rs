//! The types of collectives.

use smallvec::smallvec;

use super::problem::{Problem, Types, ensure};
use crate::trace::op::{Collective, CollectiveOp, ShardingKind, ShardingOp};
use crate::trace::types::{DType, TensorType};

/// Checks that `axis` of `ty` has one slice for each of `size` members.
fn divides(ty: &TensorType, axis: usize, size: usize) -> Result<(), Problem> {
    ensure!(axis < ty.rank(), [0], "axis {axis} is out of bounds for {ty}");
    ensure!(
        ty.shape[axis] == size,
        [0],
        "axis {axis} of {ty} has size {}, and must have the size of the mapped axis, {size}",
        ty.shape[axis]
    );
    Ok(())
}

/// Checks that every member is in one of the groups, and that these are of one size.
fn check_groups(collective: &CollectiveOp) -> Result<(), Problem> {
    let Some(groups) = &collective.groups else { return Ok(()) };
    let members = collective.num_members();
    let size = collective.size();
    let mut all: Vec<usize> = groups.concat();
    all.sort_unstable();
    ensure!(
        all.iter().copied().eq(0..members),
        [],
        "axis_index_groups {groups:?} must name each of the {members} members once"
    );
    ensure!(
        groups.iter().all(|group| group.len() == size),
        [],
        "axis_index_groups {groups:?} must be of one size"
    );
    ensure!(
        !matches!(collective.kind, Collective::Permute { .. } | Collective::Index),
        [],
        "takes no axis_index_groups"
    );
    Ok(())
}

/// The type of a value on its way into or out of its shards.
pub(crate) fn infer_sharding(sharding: &ShardingOp, x: &TensorType) -> Result<Types, Problem> {
    let (axes, rank) = (sharding.spec.len(), x.rank());
    ensure!(axes == rank, [0], "a spec of {axes} dimensions for {x}");
    if sharding.kind == ShardingKind::ShardToFull {
        return Ok(smallvec![sharding.whole_type(x)]);
    }
    let shard = sharding.shard_type(x).map_err(|problem| Problem::of(&[0], problem))?;
    let constraint = sharding.kind == ShardingKind::Constraint;
    Ok(smallvec![if constraint { x.clone() } else { shard }])
}

pub(crate) fn infer_collective(
    collective: &CollectiveOp,
    inputs: &[&TensorType],
) -> Result<Types, Problem> {
    check_groups(collective)?;
    let size = collective.size();
    let arity = match &collective.kind {
        Collective::AllReduce(_) => inputs.len(),
        Collective::Index => 0,
        Collective::AllGather { .. }
        | Collective::ReduceScatter { .. }
        | Collective::AllToAll { .. }
        | Collective::Permute { .. } => 1,
    };
    ensure!(inputs.len() == arity, [], "takes {arity} operand(s), got {}", inputs.len());
    match &collective.kind {
        Collective::AllReduce(_) => {
            for (i, ty) in inputs.iter().enumerate() {
                ensure!(
                    ty.dtype != DType::Bool,
                    [i],
                    "is not defined for {ty}; convert it with .to(dtype) first"
                );
            }
            Ok(inputs.iter().map(|ty| (*ty).clone()).collect())
        }
        Collective::AllGather { at } => {
            let ty = inputs[0];
            ensure!(*at <= ty.rank(), [0], "axis {at} is out of bounds for a new axis of {ty}");
            Ok(smallvec![TensorType::new(ty.dtype, ty.shape.with_axis(*at, size))])
        }
        Collective::ReduceScatter { at } => {
            let ty = inputs[0];
            ensure!(
                ty.dtype != DType::Bool,
                [0],
                "is not defined for {ty}; convert it with .to(dtype) first"
            );
            divides(ty, *at, size)?;
            Ok(smallvec![TensorType::new(ty.dtype, ty.shape.without_axis(*at))])
        }
        Collective::AllToAll { split, concat } => {
            let ty = inputs[0];
            divides(ty, *split, size)?;
            ensure!(*concat < ty.rank(), [0], "a new axis {concat} has no place in the slices");
            let shape = ty.shape.without_axis(*split).with_axis(*concat, size);
            Ok(smallvec![TensorType::new(ty.dtype, shape)])
        }
        Collective::Permute { pairs } => {
            for (i, &(source, target)) in pairs.iter().enumerate() {
                ensure!(
                    source < size && target < size,
                    [],
                    "the pair ({source}, {target}) names a member that the axis does not have; it \
                     has {size}"
                );
                let earlier = &pairs[..i];
                ensure!(
                    earlier.iter().all(|&(s, t)| s != source && t != target),
                    [],
                    "a source or target stands twice: ({source}, {target})"
                );
            }
            Ok(smallvec![inputs[0].clone()])
        }
        Collective::Index => Ok(smallvec![TensorType::scalar(DType::I32)]),
    }
}
