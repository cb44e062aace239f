//! Reductions and sorting: operations along axes.

use std::cmp::Ordering;

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
        x.compare(&x).is_none()
    }
    let indices: Vec<i32> = with_number!(x.ty().dtype, N => {
        let first_extreme = |lane: &[N]| {
            let mut best = 0;
            for (i, &x) in lane.iter().enumerate() {
                let more = match op {
                    ArgOp::Max => x.compare(&lane[best]) == Some(Ordering::Greater),
                    ArgOp::Min => x.compare(&lane[best]) == Some(Ordering::Less),
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
    // Original index in its lane of each sorted element.
    let order: Vec<Vec<usize>> = with_number!(key.ty().dtype, N => {
        let sorted_lane = |lane: &[N]| {
            let mut order: Vec<usize> = (0..lane.len()).collect();
            order.sort_by(|&i, &j| lane[i].order(lane[j]));
            order
        };
        N::lift(&key).chunks_exact(lane).map(sorted_lane).collect()
    });
    // The axis is last in `key`; this moves it back.
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

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::trace::check::infer;
    use crate::trace::eval::eval_op;
    use crate::trace::op::Op;
    use crate::trace::types::DType;

    fn run(op: ReduceOp, x: impl Into<Literal>, axes: &[usize]) -> Literal {
        eval_op(&Op::Reduce { op, axes: axes.into() }, &[x.into()]).remove(0)
    }

    #[test]
    fn reductions_drop_their_axes() {
        let x = [[1, 2, 3], [4, 5, 6]];
        assert_eq!(run(ReduceOp::Sum, x, &[0]), [5, 7, 9].into());
        assert_eq!(run(ReduceOp::Prod, x, &[1]), [6, 120].into());
        assert_eq!(run(ReduceOp::Max, x, &[1, 0]), 6.into());
        assert_eq!(run(ReduceOp::Sum, x, &[]), x.into());
        assert_eq!(run(ReduceOp::And, [true, false], &[0]), false.into());
        assert_eq!(run(ReduceOp::Or, [[0b01u8, 0b10]], &[1]), [0b11u8].into());
        let nan = run(ReduceOp::Min, [1.0, f32::NAN, -1.0], &[0]);
        assert!(nan.to_f64_vec()[0].is_nan());
    }

    #[test]
    fn every_reduction_of_every_type_that_has_it() {
        for dtype in DType::ALL {
            let x = Literal::filled(TensorType::new(dtype, [2, 3]), 1.0);
            for op in ReduceOp::ALL {
                let op = Op::Reduce { op, axes: [0].into_iter().collect() };
                if infer(&op, &[x.ty()]).is_ok() {
                    assert_eq!(eval_op(&op, from_ref(&x))[0].ty().shape, [3].into());
                }
            }
            if dtype.is_complex() || dtype.is_narrow() {
                continue;
            }
            let sorted = eval_op(&Op::Sort { axis: 1 }, from_ref(&x));
            assert_eq!(&sorted, from_ref(&x));
            if dtype != DType::Bool {
                let first = eval_op(&Op::ArgReduce { op: ArgOp::Min, axis: 1 }, &[x]);
                assert_eq!(first, [[0, 0].into()]);
            }
        }
    }

    #[test]
    fn empty_reductions_give_the_identity() {
        let empty = || Literal::new::<f32>([2, 0], &[]);
        assert_eq!(run(ReduceOp::Sum, empty(), &[1]), [0f32; 2].into());
        assert_eq!(run(ReduceOp::Max, empty(), &[1]), [f32::NEG_INFINITY; 2].into());
        assert_eq!(run(ReduceOp::Sum, empty(), &[0]), Literal::new::<f32>([0], &[]));
        assert_eq!(run(ReduceOp::Min, Literal::new::<i8>([0], &[]), &[0]), i8::MAX.into());
    }

    #[test]
    fn sums_lose_nothing_on_the_way() {
        // In f32 arithmetic the ones would vanish beside 2^24.
        let x = [16_777_216f32, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(run(ReduceOp::Sum, x, &[0]), 16_777_220f32.into());
    }

    #[test]
    fn arg_reductions_take_the_first_and_nan() {
        let arg = |op, x: [f32; 4]| {
            let result = eval_op(&Op::ArgReduce { op, axis: 0 }, &[x.into()]).remove(0);
            result.to_vec::<i32>().unwrap()[0]
        };
        assert_eq!(arg(ArgOp::Max, [1.0, 3.0, 3.0, 2.0]), 1);
        assert_eq!(arg(ArgOp::Min, [1.0, 0.0, -0.0, 2.0]), 1);
        assert_eq!(arg(ArgOp::Max, [1.0, f32::NAN, 9.0, f32::NAN]), 1);
        assert_eq!(arg(ArgOp::Min, [f32::NEG_INFINITY, 1.0, f32::NAN, 0.0]), 2);
        assert_eq!(arg(ArgOp::Max, [f32::NEG_INFINITY; 4]), 0);
        let rows = eval_op(&Op::ArgReduce { op: ArgOp::Max, axis: 0 }, &[[[1, 5], [2, 4]].into()]);
        assert_eq!(rows, [[1, 0].into()]);
    }

    #[test]
    fn sorting_is_stable_and_total() {
        let nan = f32::NAN;
        let keys = Literal::from([nan, 0.0, -1.0, -0.0, f32::INFINITY, -nan, 0.0]);
        let sorted = sort(&[keys, [0, 1, 2, 3, 4, 5, 6].into()], 0);
        assert_eq!(sorted[1], [2, 1, 3, 6, 4, 0, 5].into());
        let columns = sort(&[[[3, 1], [1, 2], [2, 0]].into()], 0);
        assert_eq!(columns, [[[1, 0], [2, 1], [3, 2]].into()]);
        let empty = Literal::new::<i32>([2, 0], &[]);
        assert_eq!(sort(from_ref(&empty), 1), [empty]);
    }
}
