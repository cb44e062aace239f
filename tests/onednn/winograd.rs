//! Convolutions by Winograd's minimal filtering.

use podracer::jit::run_program;
use podracer::trace::op::{ConvDims, Precision};
use podracer::trace::ops::{ConvOptions, Padding, conv_general, conv2d};
use podracer::{Array, DType, Mode, Program, Tensor, eval_shape, grad, jit, make_program, vjp};
use smallvec::smallvec;

use crate::convolutions::{
    NONE, f32s, nhwc, numbers, same_within, with_gradients, with_gradients_in,
};
use crate::{run_call, runtime, text, zeros};

/// The number of convolutions of a Program that Winograd's algorithm computes.
fn winograd_calls(program: &Program) -> usize {
    runtime();
    let text = text(program);
    let calls = text.split("problem = array<i64: ").skip(1);
    calls.filter(|numbers| numbers.split(", ").nth(2) == Some("1")).count()
}

/// Forms with the number of their three convolutions (itself and its gradients) that it computes.
#[test]
fn kernels_of_two_and_three_strides() {
    let same = [(1, 1), (1, 1)];
    let cases = [
        // The Nature network.
        (3, [8, 84, 84, 4], [8, 8, 4, 32], [4, 4], NONE),
        (3, [13, 20, 20, 32], [4, 4, 32, 64], [2, 2], NONE),
        (3, [8, 9, 9, 64], [3, 3, 64, 64], [1, 1], NONE),
        // Tiles that reach over the ends, in one axis or both, and images in unequal blocks.
        (3, [37, 8, 11, 16], [3, 3, 16, 32], [1, 1], same),
        (3, [5, 21, 10, 16], [3, 3, 16, 16], [1, 1], [(2, 0), (0, 1)]),
        (3, [9, 12, 15, 32], [2, 2, 32, 16], [1, 1], [(1, 0), (0, 1)]),
        (3, [17, 22, 25, 16], [6, 6, 16, 16], [3, 3], NONE),
        (3, [6, 22, 17, 16], [6, 6, 16, 48], [2, 2], NONE),
        // All padding, so that the gradient of the input has none.
        (3, [10, 7, 9, 16], [3, 3, 16, 32], [1, 1], [(2, 2), (2, 2)]),
        // Rows and columns that no window reaches.
        (3, [9, 23, 22, 16], [4, 4, 16, 32], [2, 2], NONE),
        // Unequal windows or strides, channels that are no whole vectors, padding with strides.
        (0, [8, 16, 16, 16], [3, 2, 16, 16], [1, 1], NONE),
        (0, [8, 16, 16, 16], [4, 4, 16, 16], [2, 1], NONE),
        (0, [8, 16, 16, 12], [3, 3, 12, 16], [1, 1], NONE),
        (0, [8, 16, 16, 16], [3, 3, 16, 24], [1, 1], NONE),
        (0, [8, 16, 16, 16], [4, 4, 16, 16], [2, 2], same),
        (0, [8, 16, 16, 16], [5, 5, 16, 16], [1, 1], NONE),
    ];
    for (expected, image, kernel, strides, padding) in cases {
        let program = with_gradients(nhwc(strides, padding), &image, &kernel);
        assert_eq!(winograd_calls(&program), expected, "{image:?} {kernel:?} {padding:?}");
        same_within(&program, 1e-5);
    }
}

#[test]
fn other_layouts_of_images_and_kernels() {
    let mut dims = nhwc([1, 1], [(1, 1), (1, 1)]);
    dims.lhs_spec = smallvec![0, 1, 2, 3];
    dims.rhs_spec = smallvec![0, 1, 2, 3];
    dims.out_spec = smallvec![0, 1, 2, 3];
    let program = with_gradients(dims.clone(), &[10, 16, 9, 8], &[32, 16, 3, 3]);
    assert_eq!(winograd_calls(&program), 3);
    same_within(&program, 1e-5);
    dims.lhs_spec = smallvec![3, 0, 2, 1];
    dims.rhs_spec = smallvec![1, 3, 2, 0];
    dims.out_spec = smallvec![2, 3, 1, 0];
    let program = with_gradients(dims, &[16, 9, 8, 10], &[3, 32, 3, 16]);
    assert_eq!(winograd_calls(&program), 3);
    same_within(&program, 1e-5);
}

#[test]
fn highest_precision_is_direct() {
    let highest = ConvDims { precision: Precision::Highest, ..nhwc([1, 1], NONE) };
    let program = with_gradients(highest, &[8, 9, 9, 64], &[3, 3, 64, 64]);
    assert_eq!(winograd_calls(&program), 0);
    same_within(&program, 1e-5);
}

/// Large images and kernels would need much memory for their transforms.
#[test]
fn large_tensors_are_computed_directly() {
    let program = with_gradients(nhwc([1, 1], NONE), &[2, 130, 130, 64], &[3, 3, 64, 16]);
    assert_eq!(winograd_calls(&program), 0);
    let program = with_gradients(nhwc([1, 1], NONE), &[8, 9, 9, 272], &[3, 3, 272, 256]);
    assert_eq!(winograd_calls(&program), 0);
}

#[test]
fn few_tiles_are_computed_directly() {
    let program = with_gradients(nhwc([1, 1], NONE), &[3, 9, 9, 64], &[3, 3, 64, 64]);
    assert_eq!(winograd_calls(&program), 0);
}

/// The transforms add, subtract and halve, which is exact for small integers.
#[test]
fn convolutions_of_integers_are_exact() {
    let cases = [
        ([8, 20, 20, 32], [4, 4, 32, 64], [2, 2], NONE),
        ([8, 9, 11, 64], [3, 3, 64, 64], [1, 1], [(1, 1), (1, 1)]),
    ];
    for (image, kernel, strides, padding) in cases {
        let conv = |(x, w): (Tensor, Tensor)| conv_general(x, w, nhwc(strides, padding));
        let output = eval_shape(conv, &(zeros(&image), zeros(&kernel))).unwrap();
        let program = make_program(
            |(x, w, gradient): (Tensor, Tensor, Tensor)| {
                let (y, gradients) = vjp(conv, (x, w));
                (y, gradients(gradient))
            },
            &(zeros(&image), zeros(&kernel), Array::zeros(output.shape, output.dtype)),
        );
        let program = program.unwrap();
        assert_eq!(winograd_calls(&program), 3);
        let inputs: Vec<Array> = (program.input_types().enumerate())
            .map(|(i, ty)| {
                let values = Array::from(numbers(ty, 5 + i as u64)).to_vec::<f32>().unwrap();
                let integers: Vec<f32> = values.iter().map(|x| (x * 4.0).round()).collect();
                Array::new(ty.shape.clone(), &integers).unwrap()
            })
            .collect();
        let run = |mode| run_program(&program, &inputs, mode).unwrap();
        for (got, expected) in run(Mode::Jit).iter().zip(&run(Mode::Interpret)) {
            let (got, expected) = (got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
            assert!(got == expected);
        }
    }
}

/// Errors against f64, relative to the largest element, are no larger than those of direct convolutions.
#[test]
fn rounding_errors_are_small() {
    let cases = [
        ([32, 84, 84, 4], [8, 8, 4, 32], [4, 4]),
        ([32, 20, 20, 32], [4, 4, 32, 64], [2, 2]),
        ([32, 9, 9, 64], [3, 3, 64, 64], [1, 1]),
    ];
    for (image, kernel, strides) in cases {
        let inputs = [(&image, 3), (&kernel, 4)]
            .map(|(shape, seed)| Array::from(numbers(&f32s(shape), seed)).to_vec::<f32>().unwrap());
        let run = |dtype: DType, precision| {
            let program = with_gradients_in(
                dtype,
                ConvDims { precision, ..nhwc(strides, NONE) },
                &image,
                &kernel,
            );
            let inputs: Vec<Array> = [&image, &kernel]
                .into_iter()
                .zip(&inputs)
                .map(|(shape, values)| match dtype {
                    DType::F64 => {
                        let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
                        Array::new(*shape, &values).unwrap()
                    }
                    _ => Array::new(*shape, values).unwrap(),
                })
                .collect();
            let outputs = run_program(&program, &inputs, Mode::Jit).unwrap();
            outputs.iter().map(|y| y.to_literal().unwrap().to_f64_vec()).collect::<Vec<_>>()
        };
        let exact = run(DType::F64, Precision::Default);
        let error = |precision| -> Vec<f64> {
            run(DType::F32, precision)
                .iter()
                .zip(&exact)
                .map(|(got, exact)| {
                    let largest = exact.iter().fold(0f64, |a, x| a.max(x.abs()));
                    let pairs = got.iter().zip(exact);
                    pairs.map(|(a, b)| (a - b).abs()).fold(0f64, f64::max) / largest
                })
                .collect()
        };
        let (winograd, direct) = (error(Precision::Default), error(Precision::Highest));
        for (winograd, direct) in winograd.iter().zip(&direct) {
            println!("{kernel:?}: {winograd:.1e}, direct {direct:.1e}");
            assert!(*winograd < 1.5 * direct, "{winograd} {direct}");
        }
    }
}

/// Layers with bias and ReLU, without padding, with some, and with all.
#[test]
fn layers() {
    for (stride, size, padding) in [
        (1, 3, Padding::Valid),
        (1, 3, Padding::Same),
        (1, 3, Padding::Explicit(vec![(2, 2), (2, 2)])),
        (2, 4, Padding::Valid),
    ] {
        let options = ConvOptions { stride, padding };
        let layer = move |(x, w, b): (Tensor, Tensor, Tensor)| (conv2d(x, w, &options) + b).relu();
        let program = make_program(
            move |arguments: (Tensor, Tensor, Tensor)| {
                let loss = |arguments| layer(arguments).square().sum(..);
                (layer(arguments), grad(loss)(arguments))
            },
            &(zeros(&[17, 14, 12, 16]), zeros(&[size, size, 16, 32]), zeros(&[32])),
        );
        let program = program.unwrap();
        assert_eq!(winograd_calls(&program), 3, "{}", text(&program));
        same_within(&program, 1e-5);
    }
}

/// The calls take the bytes of the images: in a layer, in one without a bias, and for the gradient of
/// the kernel.
#[test]
fn images_of_bytes() {
    let scales: [fn(Tensor) -> Tensor; 4] = [|x| x / 255.0, |x| x * 0.5, |x| 0.25 * x, |x| x];
    for (i, scale) in scales.into_iter().enumerate() {
        let f = move |(x, w, b): (Tensor, Tensor, Tensor)| {
            let options = ConvOptions { stride: 4, padding: Padding::Valid };
            let x = scale(x.transpose(&[0, 2, 3, 1]).to(DType::F32));
            let layer = |(w, b)| (conv2d(x, w, &options) + b).relu();
            let gradient = grad(|(w, b)| layer((w, b)).square().mean(..))((w, b));
            (layer((w, b)), conv2d(x, -w, &options), gradient)
        };
        let image = Array::zeros([13, 4, 40, 36], DType::U8);
        let program = make_program(f, &(image, zeros(&[8, 8, 4, 32]), zeros(&[32]))).unwrap();
        assert_eq!(winograd_calls(&program), 3, "{}", text(&program));
        let of_bytes = text(&program);
        let of_bytes = of_bytes.lines().filter(|line| {
            line.contains("@podracer.onednn") && line.contains(": (tensor<13x40x36x4xui8>")
        });
        assert_eq!(of_bytes.count(), 3, "{}", text(&program));
        let inputs: Vec<Array> = (program.input_types().enumerate())
            .map(|(input, ty)| match ty.dtype {
                DType::U8 => {
                    let bytes: Vec<u8> = (0..ty.numel()).map(|k| (k * 7919 % 256) as u8).collect();
                    Array::new(ty.shape.clone(), &bytes).unwrap()
                }
                _ => Array::from(numbers(ty, (3 * i + input) as u64)),
            })
            .collect();
        let run = |mode| run_program(&program, &inputs, mode).unwrap();
        for (got, expected) in run(Mode::Jit).iter().zip(&run(Mode::Interpret)) {
            let (got, expected) = (got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
            let largest = expected.iter().fold(0f32, |a, x| a.max(x.abs()));
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * largest;
            assert!(got.iter().zip(&expected).all(near));
        }
    }
}

/// Other numbers than those of bytes are converted before the call.
#[test]
fn images_of_other_integers_are_converted() {
    let f = |(x, w): (Tensor, Tensor)| {
        conv2d(x.to(DType::F32) / 255.0, w, &ConvOptions { stride: 1, padding: Padding::Valid })
    };
    for dtype in [DType::I32, DType::U16, DType::I8] {
        let image = Array::zeros([13, 9, 9, 16], dtype);
        let program = make_program(f, &(image, zeros(&[3, 3, 16, 32]))).unwrap();
        assert_eq!(winograd_calls(&program), 1);
        assert!(text(&program).contains("@podracer.onednn.3.2.conv.3(%"));
        assert!(text(&program).contains(": (tensor<13x9x9x16xf32>, tensor<3x3x16x32xf32>)"));
    }
}

/// With a bias such a layer has more tiles than without: too many for Winograd's algorithm.
#[test]
fn a_large_layer_with_full_padding() {
    let options = ConvOptions { stride: 1, padding: Padding::Explicit(vec![(2, 2), (2, 2)]) };
    let layer = move |(x, w, b): (Tensor, Tensor, Tensor)| conv2d(x, w, &options) + b;
    let arguments = (zeros(&[2, 89, 89, 16]), zeros(&[3, 3, 16, 16]), zeros(&[16]));
    same_within(&make_program(layer, &arguments).unwrap(), 1e-5);
}

/// A convolution with its gradients: a layer for the tests of runs.
fn values_and_gradients((x, w): (Tensor, Tensor)) -> (Tensor, (Tensor, Tensor)) {
    let conv = |(x, w)| conv2d(x, w, &ConvOptions { stride: 1, padding: Padding::Same });
    (conv((x, w)), grad(|arguments| conv(arguments).square().mean(..))((x, w)))
}

fn filled(shape: &[usize], seed: u64) -> Array {
    Array::from(numbers(&f32s(shape), seed))
}

/// Every run gives the same bits, also when several threads run at once.
#[test]
fn runs_repeat_bit_for_bit() {
    let arguments = || (filled(&[67, 15, 14, 16], 3), filled(&[3, 3, 16, 32], 4));
    let program = make_program(values_and_gradients, &arguments()).unwrap();
    assert_eq!(winograd_calls(&program), 3);
    let compiled = jit(values_and_gradients);
    let run = || {
        let (y, (dx, dw)) = compiled.call(arguments()).unwrap();
        [y, dx, dw].map(|array| {
            let values = array.to_vec::<f32>().unwrap();
            values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        })
    };
    let first = run();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert!(run() == first);
                }
            });
        }
    });
}

/// All outputs whose window has the value are NaN or infinite; others are NaN only within a tile, which
/// ends at most one pixel further with outputs of 2 by 2.
#[test]
fn nan_stays_near() {
    for value in [f32::NAN, f32::INFINITY] {
        let mut image = filled(&[9, 15, 14, 16], 3).to_vec::<f32>().unwrap();
        let at = |image: usize, y: usize, x: usize| (image * 15 + y) * 14 + x;
        image[at(5, 7, 6) * 16 + 3] = value;
        let image = Array::new([9, 15, 14, 16], &image).unwrap();
        let compiled = jit(values_and_gradients);
        let (y, _) = compiled.call((image, filled(&[3, 3, 16, 32], 4))).unwrap();
        let y = y.to_vec::<f32>().unwrap();
        for (pixel, features) in y.chunks(32).enumerate() {
            let (row, column) = (pixel / 14 % 15, pixel % 14);
            let distance = row.abs_diff(7).max(column.abs_diff(6));
            let same_image = pixel / (15 * 14) == 5;
            if same_image && distance <= 1 {
                assert!(features.iter().all(|x| !x.is_finite()), "{row} {column}");
            } else if !same_image || distance > 2 {
                assert!(features.iter().all(|x| x.is_finite()), "{row} {column}");
            }
        }
    }
}

#[test]
fn wrong_calls_are_errors() {
    let run = |numbers: &str| {
        let operands: [&[usize]; 2] = [&[4, 10, 10, 16], &[3, 3, 16, 16]];
        run_call("conv.3", &format!("problem = array<i64: {numbers}>"), operands, &[4, 8, 8, 16])
    };
    let axis = "10, 3, 8, 1, 1, 0, 0";
    let right = format!("0, 0, 1, 0, 0, 1, 4, 1, 16, 16, 2, {axis}, {axis}, 2304, 1, 16, 768, 256");
    run(&right).unwrap();
    for wrong in [
        // Another algorithm, elements and groups that it does not support, and an output that is too small.
        &right.replacen("0, 0, 1, 0, 0, 1, 4", "0, 0, 2, 0, 0, 1, 4", 1),
        &right.replacen("0, 0, 1, 0, 0, 1, 4", "0, 0, 1, 1, 0, 1, 4", 1),
        &right.replacen("1, 16, 16, 2", "2, 8, 8, 2", 1),
        // An output that reaches beyond the padding.
        &right.replace("10, 3, 8", "10, 3, 12"),
        // Bytes that are not there, and bytes of a direct convolution.
        &right.replacen("0, 0, 1, 0, 0, 1, 4", "0, 0, 1, 0, 1065353216, 1, 4", 1),
        &right.replacen("0, 0, 1, 0, 0, 1, 4", "0, 0, 0, 0, 1065353216, 1, 4", 1),
        &right.replace("10, 3, 8", "10, 3, 7"),
    ] {
        let error = run(wrong).expect_err(wrong).to_string();
        assert!(error.contains("podracer.onednn.3.2.conv.3"), "{error}");
    }
}
