//! What a Program is thought to cost, and what is chosen by it.

use podracer::lower::cost::{benefits_from_threads, has_divided_products};
use podracer::trace::control::scan;
use podracer::{Array, DType, Tensor, make_program};

#[test]
fn most_of_the_work_decides() {
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    let product = |(x, w): (Tensor, Tensor)| x.matmul(w).tanh();
    let spread = |rows| {
        let arguments = (zeros(&[rows, 64]), zeros(&[64, 64]));
        benefits_from_threads(&make_program(product, &arguments).unwrap())
    };
    assert!(!spread(128));
    assert!(spread(1024));
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
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    let product = |(x, w): (Tensor, Tensor)| x.matmul(w).tanh();
    let alone = |rows| {
        let arguments = (zeros(&[rows, 64]), zeros(&[64, 64]));
        has_divided_products(&make_program(product, &arguments).unwrap())
    };
    assert!(!alone(191));
    assert!(alone(192));
    let looped = |(x, w): (Tensor, Tensor)| scan(|x, w| (x.matmul(w), ()), x, w).0;
    let arguments = (zeros(&[192, 64]), zeros(&[3, 64, 64]));
    assert!(!has_divided_products(&make_program(looped, &arguments).unwrap()));
}
