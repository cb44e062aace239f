//! Division over a mesh: batching. Over an axis of the mesh the shards become the rows of a batch;
//! over another axis every value of the batch is divided alike.

use std::mem;

use super::{BatchContext, Batched};
use crate::error::Loc;
use crate::trace::axis::{Axis, AxisVec};
use crate::trace::op::{Op, ShardingKind, ShardingOp};
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, bind1, fail_op};
use crate::trace::types::Shape;

pub(crate) fn sharding(
    sharding: &ShardingOp,
    x: Batched,
    context: BatchContext,
    at: Loc,
) -> Batched {
    if !sharding.mesh.contains(&context.axis) {
        let mut sharding = sharding.clone();
        if x.mapped {
            sharding.spec.insert(0, AxisVec::new());
        }
        return Batched { tensor: bind1(Op::Sharding(sharding), &[x.tensor], at), ..x };
    }
    match sharding.kind {
        ShardingKind::Constraint if x.mapped => Batched::mapped(x.tensor),
        ShardingKind::Constraint => Batched::same(x.tensor),
        ShardingKind::FullToShard => into_shards(sharding, x, context.axis, at),
        ShardingKind::ShardToFull => out_of_shards(sharding, x, context, at),
    }
}

/// The sizes of the axes before and after `axis` among those that divide a dimension.
fn around(axes: &[Axis], position: usize) -> (usize, usize) {
    let count = |axes: &[Axis]| axes.iter().map(|axis| axis.size()).product();
    (count(&axes[..position]), count(&axes[position + 1..]))
}

/// Binds what is left of the division without `axis`.
fn without(mut rest: ShardingOp, axis: Axis, x: Tensor, at: Loc) -> Tensor {
    rest.mesh.retain(|other| *other != axis);
    rest.spec.iter_mut().for_each(|axes| axes.retain(|other| *other != axis));
    if rest.mesh.is_empty() { x } else { bind1(Op::Sharding(rest), &[x], at) }
}

/// The shape with the sizes `parts` in the place of dimension `dim`.
fn replaced(shape: &Shape, dim: usize, parts: &[usize]) -> Shape {
    let (before, after) = (&shape[..dim], &shape[dim + 1..]);
    before.iter().chain(parts).chain(after).copied().collect()
}

fn into_shards(sharding: &ShardingOp, x: Batched, axis: Axis, at: Loc) -> Batched {
    if x.mapped {
        fail_op("shard_map", format!("its argument differs along axis `{}`", axis.name()));
    }
    let Some((dim, position)) = sharding.dimension_of(axis) else {
        return Batched::same(without(sharding.clone(), axis, x.tensor, at));
    };
    let shape = x.tensor.shape();
    let (before, _) = around(&sharding.spec[dim], position);
    let (size, part) = (axis.size(), shape[dim] / axis.size());
    // Major to minor: the axes before it, itself, the axes after it and the shard.
    let parts = x.tensor.reshape(replaced(&shape, dim, &[before, size, part / before]));
    let rows = parts.moveaxis(dim as isize + 1, 0);
    let rows = rows.reshape(replaced(&shape, dim, &[part]).with_axis(0, size));
    let mut rest = sharding.clone();
    rest.spec.insert(0, AxisVec::new());
    Batched::mapped(without(rest, axis, rows, at))
}

fn out_of_shards(sharding: &ShardingOp, x: Batched, context: BatchContext, at: Loc) -> Batched {
    let axis = context.axis;
    let Some((dim, position)) = sharding.dimension_of(axis) else {
        let one = if x.mapped { x.tensor.index_axis(0, 0) } else { x.tensor };
        return Batched::same(without(sharding.clone(), axis, one, at));
    };
    let (size, (before, _)) = (context.size, around(&sharding.spec[dim], position));
    let rows = x.full(size).moveaxis(0, dim as isize);
    let mut rest = sharding.clone();
    let axes = mem::take(&mut rest.spec[dim]);
    rest.spec.insert(dim + 1, axes);
    let whole = without(rest, axis, rows, at);
    let shape = whole.shape();
    let part = shape[dim + 1] / before;
    let parts = whole.reshape(replaced(&shape, dim + 1, &[before, part]));
    let parts = parts.moveaxis(dim as isize, dim as isize + 1);
    let whole = replaced(&shape.without_axis(dim), dim, &[before * size * part]);
    Batched::same(parts.reshape(whole))
}

/// The Program for one device: the members of a mesh are a batch, and no value is divided.
pub(crate) fn on_one_device(mut program: Program, at: Loc) -> Program {
    while let Some(&axis) = program.find_mesh(&|_| true).and_then(|mesh| mesh.first()) {
        let same = vec![false; program.inputs.len()];
        program = super::over_members(&program, &same, axis, at).0;
    }
    program
}
