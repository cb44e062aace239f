//! Reductions of rows, which have forms of their own on CPU: all lengths, and every place of what
//! is no ordinary number.

use podracer::trace::op::ReduceOp;
use podracer::{Array, DType, Literal, Tensor, interpret, jit};

use crate::recipes::values::same;

/// Elements that look random, and all differ in size.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 97.0 - 51.0).collect()
}

/// What the three reductions over `axes` give, compiled and interpreted.
fn both(x: Array, axes: &'static [isize]) -> [Vec<Literal>; 2] {
    let all = move |x: Tensor| {
        [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min].map(|op| match op {
            ReduceOp::Sum => x.sum(axes),
            ReduceOp::Max => x.max(axes),
            _ => x.min(axes),
        })
    };
    let literals = |found: [Array; 3]| found.iter().map(|y| y.to_literal().unwrap()).collect();
    [literals(jit(all).call(x.clone()).unwrap()), literals(interpret(all).call(x).unwrap())]
}

#[track_caller]
fn agree(x: Array, axes: &'static [isize]) {
    let label = format!("{} {axes:?}", x.ty());
    let [compiled, interpreted] = both(x, axes);
    // Sums in another order; maxima and minima exactly.
    for (at, tolerance) in [(0..1, 2e-5), (1..3, 0.0)] {
        if let Err(difference) = same(&compiled[at.clone()], &interpreted[at], tolerance) {
            panic!("{label}: {difference}");
        }
    }
}

#[test]
fn rows_of_all_lengths() {
    for length in [1, 2, 7, 8, 9, 15, 16, 17, 31, 100, 101, 511, 512, 513, 528, 1000, 4097] {
        for count in [1, 7, 8, 33] {
            agree(Array::new([count, length], &numbers(count * length)).unwrap(), &[-1]);
        }
    }
}

#[test]
fn several_axes_and_other_types() {
    let x = || Array::new([9, 5, 24], &numbers(9 * 5 * 24)).unwrap();
    agree(x(), &[-1]);
    agree(x(), &[-2, -1]);
    agree(x(), &[0, 1, 2]);
    // Not the last ones.
    agree(x(), &[0]);
    agree(x(), &[0, 2]);
    for dtype in [DType::F64, DType::I32, DType::U8] {
        let as_other = interpret(move |x: Tensor| x.to(dtype));
        agree(as_other.call(x()).unwrap(), &[-1]);
    }
    agree(Array::zeros([8, 0], DType::F32), &[-1]);
    agree(Array::zeros([0, 32], DType::F32), &[-1]);
}

#[test]
fn what_is_no_number_counts_wherever_it_stands() {
    for length in [21, 600] {
        let rows = 3 * length;
        let mut x = numbers(rows * length);
        for place in 0..length {
            for (kind, odd) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate()
            {
                x[(3 * place + kind) * length + place] = odd;
            }
        }
        agree(Array::new([rows, length], &x).unwrap(), &[-1]);
    }
}
