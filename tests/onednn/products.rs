//! Products of large matrices in programs with convolutions.

use podracer::trace::ops::conv_general;
use podracer::{Array, DType, Program, Tensor, grad, make_program};

use super::convolutions::{NONE, nhwc, same_within};
use super::{calls, check, run_call, zeros};

/// A product and both of its gradients beside a convolution.
fn product_and_gradients([rows, inner, columns]: [usize; 3]) -> Program {
    let f = |(x, w, image, kernel): (Tensor, Tensor, Tensor, Tensor)| {
        let loss = |(x, w): (Tensor, Tensor)| x.matmul(w).square().sum(..);
        let y = conv_general(image, kernel, nhwc([1, 1], NONE));
        (x.matmul(w), grad(loss)((x, w)), y)
    };
    let arguments = (
        zeros(&[rows, inner]),
        zeros(&[inner, columns]),
        zeros(&[8, 9, 9, 64]),
        zeros(&[3, 3, 64, 64]),
    );
    make_program(f, &arguments).unwrap()
}

#[test]
fn large_products_and_their_gradients_are_calls() {
    // Parts of the rows, of the columns, and unequal parts of both.
    for sizes in [[512, 256, 320], [64, 1568, 512], [33, 1031, 1037], [1037, 33, 1031]] {
        check(&product_and_gradients(sizes), 4);
    }
    check(&product_and_gradients([8, 3136, 512]), 4);
    check(&product_and_gradients([64, 64, 64]), 1);
}

#[test]
fn products_without_convolutions_are_xlas() {
    let f = |(x, w): (Tensor, Tensor)| x.matmul(w);
    check(&make_program(f, &(zeros(&[512, 256]), zeros(&[256, 320]))).unwrap(), 0);
    // Batches of matrices too.
    let f = |(x, w, image, kernel): (Tensor, Tensor, Tensor, Tensor)| {
        (x.matmul(w), conv_general(image, kernel, nhwc([1, 1], NONE)))
    };
    let arguments = (
        zeros(&[2, 256, 256]),
        zeros(&[2, 256, 320]),
        zeros(&[8, 9, 9, 64]),
        zeros(&[3, 3, 64, 64]),
    );
    assert_eq!(calls(&make_program(f, &arguments).unwrap()), 1);
}

/// A call that no lowering writes is an error, whatever its numbers are.
#[test]
fn wrong_products_are_errors() {
    // Loads oneDNN.
    calls(&product_and_gradients([64, 64, 64]));
    let run = |numbers: &str| {
        let operands: [&[usize]; 2] = [&[3, 4], &[4, 5]];
        run_call("matmul.1", &format!("product = array<i64: {numbers}>"), operands, &[3, 5])
    };
    run("3, 4, 5, 0, 0, 0, 2").unwrap();
    for wrong in [
        "3",
        "3, 4, 5, 0, 0, 0, 0",
        "3, 4, 5, 0, 0, 0, 6",
        "3, 4, 5, 2, 0, 0, 1",
        "3, 4, 5, 0, 2, 0, 1",
        "3, 4, 0, 0, 0, 0, 1",
        "3, 4, 6, 0, 0, 0, 1",
        "3, 4, -5, 0, 0, 0, 1",
        "3, 2147483647, 2147483647, 0, 0, 0, 1",
        "3, 4294967296, 5, 0, 0, 0, 1",
    ] {
        let error = run(wrong).expect_err(wrong).to_string();
        assert!(error.contains("podracer.onednn.3.2.matmul.1"), "{error}");
    }
}

/// Tensors of bfloat16 are rounded once, after a sum in f32. oneDNN has kernels of bfloat16 for processors
/// with AVX-512 only; elsewhere XLA computes them.
#[test]
fn bfloat16() {
    let kernels = std::arch::is_x86_feature_detected!("avx512bw");
    let expected = |number: usize| if kernels { number } else { 0 };
    let dims = || nhwc([2, 1], [(1, 0), (0, 2)]);
    // bf16 has 8 bits of mantissa.
    let tolerance = 1.0 / 128.0;
    let layer = |(x, w, b): (Tensor, Tensor, Tensor)| {
        let f = |(x, w, b): (Tensor, Tensor, Tensor)| (conv_general(x, w, dims()) + b).relu();
        let loss = |arguments| f(arguments).to(DType::F32).square().mean(..);
        (f((x, w, b)), grad(loss)((x, w, b)))
    };
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::BF16);
    let arguments = (zeros(&[37, 18, 18, 8]), zeros(&[3, 3, 8, 16]), zeros(&[16]));
    let program = make_program(layer, &arguments).unwrap();
    assert_eq!(calls(&program), expected(3));
    same_within(&program, tolerance);

    let product = |(x, w, image, kernel): (Tensor, Tensor, Tensor, Tensor)| {
        let loss = |(x, w): (Tensor, Tensor)| x.matmul(w).to(DType::F32).square().mean(..);
        (x.matmul(w), grad(loss)((x, w)), conv_general(image, kernel, dims()))
    };
    let arguments =
        (zeros(&[33, 1031]), zeros(&[1031, 1037]), zeros(&[37, 18, 18, 8]), zeros(&[3, 3, 8, 16]));
    let program = make_program(product, &arguments).unwrap();
    assert_eq!(calls(&program), expected(4));
    same_within(&program, tolerance);
}
