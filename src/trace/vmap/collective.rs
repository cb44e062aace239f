//! Collectives: batching. Over the batch's own axis they become operations on that axis; over
//! another they take the batch along.

use smallvec::smallvec;

use super::{BatchContext, Batched, Results};
use crate::error::Loc;
use crate::trace::axis::AxisVec;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op, ReduceOp};
use crate::trace::ops;
use crate::trace::tensor::{Tensor, bind, bind1};
use crate::trace::types::{DType, Shape};

pub(crate) fn collective(
    collective: &CollectiveOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    if !collective.is_along(context.axis) {
        return beside(collective, inputs, at);
    }
    match collective.axes.len() {
        1 => over_groups(collective, inputs, context.size),
        _ => over_one_of(collective, inputs, context, at),
    }
}

/// Along other axes: the same exchange, of batches.
fn beside(collective: &CollectiveOp, inputs: &[Batched], at: Loc) -> Results {
    let mapped = |i: usize| inputs.get(i).is_some_and(|input| input.mapped);
    let shift = usize::from(mapped(0));
    let kind = match &collective.kind {
        Collective::AllGather { at } => Collective::AllGather { at: at + shift },
        Collective::ReduceScatter { at } => Collective::ReduceScatter { at: at + shift },
        Collective::AllToAll { split, concat } => {
            Collective::AllToAll { split: split + shift, concat: concat + shift }
        }
        Collective::AllReduce(_) | Collective::Permute { .. } | Collective::Index => {
            collective.kind.clone()
        }
    };
    let operands: Vec<Tensor> = inputs.iter().map(|input| input.tensor).collect();
    let op = Op::Collective(CollectiveOp { kind, ..collective.clone() });
    let results = bind(op, &operands, at).into_iter().enumerate();
    results.map(|(i, tensor)| Batched { tensor, mapped: mapped(i) }).collect()
}

/// Along several axes, one of which becomes the batch: the values of all members are gathered,
/// exchanged as a batch, and each member of the other axes takes its own results.
fn over_one_of(
    collective: &CollectiveOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    let (axes, axis) = (&collective.axes, context.axis);
    let others: AxisVec = axes.iter().copied().filter(|&other| other != axis).collect();
    let along = |kind| CollectiveOp { axes: others.clone(), groups: None, kind };
    if let (Collective::AllReduce(op), None) = (&collective.kind, &collective.groups) {
        let kind = Collective::AllReduce(*op);
        let own = over_lanes(&kind, inputs, context.size);
        let own: Vec<Tensor> = own.iter().map(|result| result.tensor).collect();
        let all = bind(Op::Collective(along(kind)), &own, at);
        return all.into_iter().map(Batched::same).collect();
    }
    let position = axes.iter().position(|&other| other == axis).expect("it is along the axis");
    let before: usize = axes[..position].iter().map(|axis| axis.size()).product();
    let after: usize = axes[position + 1..].iter().map(|axis| axis.size()).product();
    let size = context.size;
    let gathered: Vec<Batched> = inputs
        .iter()
        .map(|input| {
            let gather = Op::Collective(along(Collective::AllGather { at: 0 }));
            // Members of the other axes, then the batch, then the value.
            let all = bind1(gather, &[input.full(size)], at);
            let lane = input.example_type().shape;
            let parts = [before, after, size].into_iter().chain(lane.iter().copied());
            let parts = all.reshape(Shape::from_iter(parts)).moveaxis(2, 1);
            Batched::mapped(parts.reshape(lane.with_axis(0, before * size * after)))
        })
        .collect();
    let own = bind1(Op::Collective(along(Collective::Index)), &[], at);
    let members = size * before * after;
    over_groups(collective, &gathered, members)
        .into_iter()
        .map(|result| match result.mapped {
            false => result,
            true => {
                let shape = result.tensor.shape().without_axis(0);
                let parts = [before, size, after].into_iter().chain(shape.iter().copied());
                let parts = result.tensor.reshape(Shape::from_iter(parts)).moveaxis(1, 0);
                let rows = shape.with_axis(0, before * after).with_axis(0, size);
                Batched::mapped(parts.reshape(rows).take(own, 1))
            }
        })
        .collect()
}

/// Over a batch of members, group by group.
fn over_groups(collective: &CollectiveOp, inputs: &[Batched], members: usize) -> Results {
    let Some(groups) = &collective.groups else {
        return over_lanes(&collective.kind, inputs, members);
    };
    let size = collective.size();
    let sums = matches!(collective.kind, Collective::AllReduce(_) | Collective::AllGather { .. });
    if sums && inputs.iter().all(|input| !input.mapped) {
        return over_lanes(&collective.kind, inputs, size);
    }
    let order: Vec<usize> = groups.concat();
    let mut back = vec![0; members];
    order.iter().enumerate().for_each(|(i, &member)| back[member] = i);
    let indices = |order: &[usize]| {
        ops::constant(order.iter().map(|&member| member as i32).collect::<Vec<i32>>())
    };
    // Each group's members, as a batch of their own.
    let sorted: Vec<Tensor> =
        inputs.iter().map(|input| input.full(members).take(indices(&order), 0)).collect();
    let rows = |i: usize| {
        let of = |x: &Tensor| x.slice_axis(0, i * size, (i + 1) * size);
        sorted.iter().map(|x| Batched::mapped(of(x))).collect::<Vec<Batched>>()
    };
    let groups: Vec<Results> =
        (0..groups.len()).map(|i| over_lanes(&collective.kind, &rows(i), size)).collect();
    (0..groups[0].len())
        .map(|result| {
            let parts: Vec<Tensor> =
                groups.iter().map(|results| results[result].full(size)).collect();
            let all = ops::concatenate(&parts, 0);
            Batched::mapped(all.take(indices(&back), 0))
        })
        .collect()
}

fn over_lanes(kind: &Collective, inputs: &[Batched], size: usize) -> Results {
    let mapped = |tensor: Tensor| -> Results { smallvec![Batched::mapped(tensor)] };
    match kind {
        Collective::AllReduce(op) => inputs
            .iter()
            .map(|input| {
                let x = input.tensor;
                Batched::same(match (op, input.mapped) {
                    (AllReduceOp::Sum, true) => x.reduce(ReduceOp::Sum, smallvec![0]),
                    (AllReduceOp::Max, true) => x.reduce(ReduceOp::Max, smallvec![0]),
                    (AllReduceOp::Min, true) => x.reduce(ReduceOp::Min, smallvec![0]),
                    (AllReduceOp::Sum, false) => x * ops::full_like(x, size as f64),
                    (AllReduceOp::Max | AllReduceOp::Min, false) => x,
                })
            })
            .collect(),
        Collective::AllGather { at } => {
            smallvec![Batched::same(inputs[0].full(size).moveaxis(0, *at as isize))]
        }
        Collective::ReduceScatter { at } => {
            let x = inputs[0];
            let sum = if x.mapped {
                x.tensor.reduce(ReduceOp::Sum, smallvec![0])
            } else {
                x.tensor * ops::full_like(x.tensor, size as f64)
            };
            mapped(sum.moveaxis(*at as isize, 0))
        }
        Collective::AllToAll { split, concat } => {
            // Axes: sender, ..., receiver, ... become receiver, ..., sender, ...
            let x = inputs[0].full(size).moveaxis(*split as isize + 1, 0);
            mapped(x.moveaxis(1, *concat as isize + 1))
        }
        Collective::Permute { pairs } => {
            let x = inputs[0].full(size);
            let mut rows = vec![None; size];
            for &(source, target) in pairs {
                rows[target] = Some(source);
            }
            let from: Vec<i32> = rows.iter().map(|row| row.unwrap_or(0) as i32).collect();
            let rows: Vec<bool> = rows.iter().map(Option::is_some).collect();
            let moved = x.take(ops::constant(from), 0);
            if rows.iter().all(|&row| row) {
                return mapped(moved);
            }
            mapped(super::choose(ops::constant(rows), moved, ops::zeros_like(moved)))
        }
        Collective::Index => mapped(ops::iota([size], 0, DType::I32)),
    }
}
