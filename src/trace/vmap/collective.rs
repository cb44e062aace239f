//! Collectives: batching. Over the batch's own axis they become operations on that axis; over
//! another they take the batch along.

use smallvec::smallvec;

use super::{BatchContext, Batched, Results};
use crate::error::Loc;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op, ReduceOp};
use crate::trace::ops;
use crate::trace::tensor::{Tensor, bind};
use crate::trace::types::DType;

pub(crate) fn collective(
    collective: &CollectiveOp,
    inputs: &[Batched],
    context: BatchContext,
    at: Loc,
) -> Results {
    if collective.axis == context.axis {
        over_lanes(&collective.kind, inputs, context.size)
    } else {
        beside(collective, inputs, at)
    }
}

/// Along another axis: the same exchange, of batches.
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
    let op = Op::Collective(CollectiveOp { axis: collective.axis, kind });
    let results = bind(op, &operands, at).into_iter().enumerate();
    results.map(|(i, tensor)| Batched { tensor, mapped: mapped(i) }).collect()
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
