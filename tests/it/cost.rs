//! What a Program is thought to cost, and what is chosen by it.

use podracer::lower::cost::{benefits_from_threads, has_divided_products};
use podracer::trace::control::scan;
use podracer::{Array, DType, Program, Tensor, make_program};

fn zeros(shape: &[usize]) -> Array {
    Array::zeros(shape, DType::F32)
}

/// A layer of a network on this many rows.
fn layer(rows: usize) -> Program {
    let product = |(x, w): (Tensor, Tensor)| x.matmul(w).tanh();
    make_program(product, &(zeros(&[rows, 64]), zeros(&[64, 64]))).unwrap()
}

#[test]
fn most_of_the_work_decides() {
    assert!(!benefits_from_threads(&layer(128)));
    assert!(benefits_from_threads(&layer(1024)));
    // One large product beside a loop of small ones.
    let beside = |steps| {
        let f = |(x, large, w): (Tensor, Tensor, Tensor)| {
            (scan(|x, w| (x.matmul(w), x), x, w).0, large.matmul(w.index_axis(0, 0)))
        };
        let arguments = (zeros(&[32, 64]), zeros(&[1024, 64]), zeros(&[steps, 64, 64]));
        benefits_from_threads(&make_program(f, &arguments).unwrap())
    };
    assert!(beside(9));
    assert!(!beside(90));
}

#[test]
fn products_of_many_rows_are_divided_outside_of_loops() {
    assert!(!has_divided_products(&layer(191)));
    assert!(has_divided_products(&layer(192)));
    let looped = |(x, w): (Tensor, Tensor)| scan(|x, w| (x.matmul(w), ()), x, w).0;
    let arguments = (zeros(&[192, 64]), zeros(&[3, 64, 64]));
    assert!(!has_divided_products(&make_program(looped, &arguments).unwrap()));
}
