//! Reductions and sorting: operations along axes.

use smallvec::SmallVec;

use super::number::{Number, with_number};
use super::shapes;
use crate::trace::literal::Literal;
use crate::trace::op::{ArgOp, BinaryOp, ReduceOp};
use crate::trace::types::TensorType;

/// The operand with `axes` moved behind the others, and how many elements they hold together.
fn axes_last(x: &Literal, axes: &[usize]) -> (Literal, usize) {
    let kept = (0..x.ty().rank()).filter(|axis| !axes.contains(axis));
    let permutation: SmallVec<[usize; 4]> = kept.chain(axes.iter().copied()).collect();
    let lane = axes.iter().map(|&axis| x.ty().shape[axis]).product();
    (shapes::transpose(x, &permutation), lane)
}

pub(super) fn reduce(op: ReduceOp, x: &Literal, axes: &[usize], ty: &TensorType) -> Literal {
    let combine = match op {
        ReduceOp::Sum => BinaryOp::Add,
        ReduceOp::Prod => BinaryOp::Mul,
        ReduceOp::Max => BinaryOp::Max,
        ReduceOp::Min => BinaryOp::Min,
        ReduceOp::And => BinaryOp::And,
        ReduceOp::Or => BinaryOp::Or,
    };
    // In the tensor's own order, so that sums of floats are the obvious ones.
    let mut axes: SmallVec<[usize; 4]> = axes.into();
    axes.sort_unstable();
    let (x, lane) = axes_last(x, &axes);
    with_number!(ty.dtype, N => {
        let f = N::binary(combine);
        let numbers = N::lift(&x);
        let results: Vec<N> = (0..ty.numel())
            .map(|i| numbers[i * lane..][..lane].iter().fold(N::identity(op), |a, &b| f(a, b)))
            .collect();
        N::lower(ty, &results)
    })
}

pub(super) fn arg_reduce(op: ArgOp, x: &Literal, axis: usize, ty: &TensorType) -> Literal {
    let (x, lane) = axes_last(x, &[axis]);
    // NaN alone has no order with itself.
    fn is_nan<N: Number>(x: N) -> bool {
        x.partial_cmp(&x).is_none()
    }
    let indices: Vec<i32> = with_number!(x.ty().dtype, N => {
        let first_extreme = |lane: &[N]| {
            let mut best = 0;
            for (i, &x) in lane.iter().enumerate() {
                let more = match op {
                    ArgOp::Max => x > lane[best],
                    ArgOp::Min => x < lane[best],
                };
                if !is_nan(lane[best]) && (more || is_nan(x)) {
                    best = i;
                }
            }
            best as i32
        };
        N::lift(&x).chunks_exact(lane).map(first_extreme).collect()
    });
    Literal::new(&ty.shape, &indices)
}

pub(super) fn sort(inputs: &[Literal], axis: usize) -> Vec<Literal> {
    let (key, lane) = axes_last(&inputs[0], &[axis]);
    if key.ty().numel() == 0 {
        return inputs.to_vec();
    }
    // Where in its lane each sorted element comes from.
    let order: Vec<Vec<usize>> = with_number!(key.ty().dtype, N => {
        let sorted_lane = |lane: &[N]| {
            let mut order: Vec<usize> = (0..lane.len()).collect();
            order.sort_by(|&i, &j| lane[i].order(lane[j]));
            order
        };
        N::lift(&key).chunks_exact(lane).map(sorted_lane).collect()
    });
    // The axis stands last in `key`; this puts the last axis back.
    let last = key.ty().rank() - 1;
    let back: SmallVec<[usize; 4]> = (0..axis).chain([last]).chain(axis..last).collect();
    let sorted = |input: &Literal| {
        let (x, _) = axes_last(input, &[axis]);
        let (ty, bytes) = (x.ty(), x.bytes());
        let sorted = shapes::with_bits!(ty, B => shapes::build::<B>(ty.clone(), |to| {
            let lanes = shapes::bits::<B>(&bytes).chunks_exact(lane);
            for ((to, from), order) in to.chunks_exact_mut(lane).zip(lanes).zip(&order) {
                for (to, &i) in to.iter_mut().zip(order) {
                    *to = from[i];
                }
            }
        }));
        shapes::transpose(&sorted, &back)
    };
    inputs.iter().map(sorted).collect()
}
