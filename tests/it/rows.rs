//! Reductions of rows, which have forms of their own on CPU: all lengths, and every place of what
//! is no ordinary number.

use podracer::trace::ops;
use podracer::{Array, DType, Literal, Tensor, interpret, jit};

use crate::quickly;
use crate::recipes::values::same;

/// Elements that look random, and all differ in size.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + 13) % 10_007) as f32 / 97.0 - 51.0).collect()
}

fn table(count: usize, length: usize, elements: &[f32]) -> Array {
    Array::new([count, length], elements).unwrap()
}

/// Reductions over `axes`, and where along the last axis the best elements stand: compiled as one
/// Program, and interpreted.
#[track_caller]
fn agree(arrays: &[Array], axes: &'static [isize]) {
    let reductions =
        move |x: Tensor| [x.sum(axes), x.max(axes), x.min(axes), x.argmax(-1), x.argmin(-1)];
    let all = move |x: Vec<Tensor>| x.into_iter().map(reductions).collect::<Vec<_>>();
    let compiled = quickly(jit(all)).call(arrays.to_vec()).unwrap();
    let interpreted = interpret(all).call(arrays.to_vec()).unwrap();
    for ((x, compiled), interpreted) in arrays.iter().zip(compiled).zip(interpreted) {
        let [found, expected]: [Vec<Literal>; 2] = [compiled, interpreted]
            .map(|results| results.iter().map(|y| y.to_literal().unwrap()).collect());
        // Sums in another order; all else exactly.
        for (at, tolerance) in [(0..1, 2e-5), (1..5, 0.0)] {
            if let Err(difference) = same(&found[at.clone()], &expected[at], tolerance) {
                panic!("{} {axes:?}: {difference}", x.ty());
            }
        }
    }
}

#[test]
fn rows_of_all_lengths() {
    for lengths in [
        &[1, 2, 7, 8, 9, 15, 16, 17, 31, 100, 101][..],
        // The last one of them has no divisors.
        &[511, 512, 513, 528, 1000, 1024, 4096, 10_007],
    ] {
        let mut arrays = Vec::new();
        for &length in lengths {
            for count in [1, 3, 8, 33] {
                let x = numbers(count * length);
                arrays.push(table(count, length, &x));
                // Many equal ones: the first counts.
                let few: Vec<f32> = x.iter().map(|x| (x / 20.0).round()).collect();
                arrays.push(table(count, length, &few));
            }
        }
        agree(&arrays, &[-1]);
    }
    agree(&[table(1, 65_536, &numbers(65_536))], &[-1]);
}

#[test]
fn several_axes_and_other_types() {
    let x = || Array::new([9, 5, 24], &numbers(9 * 5 * 24)).unwrap();
    agree(&[x()], &[-2, -1]);
    agree(&[x()], &[0, 1, 2]);
    // Not the last ones.
    agree(&[x()], &[0]);
    agree(&[x()], &[0, 2]);
    let others = [DType::F64, DType::I32, DType::U8].map(|dtype| {
        let as_other = interpret(move |x: Tensor| x.to(dtype));
        as_other.call(x()).unwrap()
    });
    agree(&others, &[-1]);
    agree(&[Array::zeros([0, 32], DType::F32)], &[-1]);
    let empty = jit(|x: Tensor| x.sum(-1)).call(Array::zeros([8, 0], DType::F32)).unwrap();
    assert_eq!(empty.to_vec::<f32>().unwrap(), [0.0; 8]);
}

#[test]
fn what_is_no_number_counts_wherever_it_stands() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let arrays = [21, 600].map(|length| {
        let rows = 3 * length;
        let mut x = numbers(rows * length);
        for place in 0..length {
            for (kind, odd) in odd.into_iter().enumerate() {
                x[(3 * place + kind) * length + place] = odd;
            }
        }
        table(rows, length, &x)
    });
    agree(&arrays, &[-1]);
}

/// YNNPACK, which newer plugins have for large Programs, loses NaNs.
#[test]
fn nan_is_the_best_element_of_a_large_tensor() {
    let extremes = |x: Tensor| {
        let row = ops::arange(x.dim(0), DType::I32) % 3;
        let lowest = ops::full([3, x.dim(1)], -60.0, DType::F32);
        let reduced = [x.max(0), x.max(1), x.max(..), x.min(0), x.min(1), x.min(..)];
        let others = [x.cummax(0), x.cummin(1), lowest.at(&[row]).max(x)];
        reduced.into_iter().chain(others).collect::<Vec<_>>()
    };
    let (count, length) = (1024, 600);
    let mut elements = numbers(count * length);
    for place in (0..count * length).step_by(7001) {
        elements[place] = f32::NAN;
    }
    let x = table(count, length, &elements);
    let [found, expected] = [jit(extremes).call(x.clone()), interpret(extremes).call(x)]
        .map(|ys| ys.unwrap().iter().map(|y| y.to_literal().unwrap()).collect::<Vec<_>>());
    if let Err(difference) = same(&found, &expected, 0.0) {
        panic!("{difference}");
    }
}
