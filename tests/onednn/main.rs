//! Convolutions by oneDNN equal the interpreter's. The tests are a binary of their own, because a
//! process has one runtime, which chooses the library of convolutions when it starts.

#[path = "../convolutions/mod.rs"]
mod convolutions;
mod part;
mod products;
mod winograd;

use convolutions::{NONE, alone, f32s, nhwc, numbers, same_within, with_gradients};
use podracer::lower::pjrt::CompileOptions;
use podracer::lower::stablehlo::ConvLibrary;
use podracer::lower::{LowerOptions, stablehlo};
use podracer::runtime::{Runtime, RuntimeOptions};
use podracer::trace::control::scan;
use podracer::trace::op::{ConvDims, Precision};
use podracer::trace::ops::{ConvOptions, Padding, conv_general, conv2d};
use podracer::{
    Array, DType, Program, Tensor, grad, interpret, jit, make_program, pmap, replicate, shard,
    unshard, vmap,
};
use smallvec::smallvec;

/// Starts the runtime with oneDNN and two devices.
fn runtime() -> &'static Runtime {
    let options = RuntimeOptions { conv: Some(ConvLibrary::OneDnn), ..RuntimeOptions::default() };
    Runtime::start(RuntimeOptions { cpu_devices: 2, ..options }).expect("the runtime starts")
}

/// The number of calls of oneDNN in a Program's text.
fn calls(program: &Program) -> usize {
    stablehlo(program, &runtime().lower_options(program)).matches("@podracer.onednn.").count()
}

/// Compares a Program with the interpreter; it must have this number of calls.
#[track_caller]
fn check(program: &Program, expected: usize) {
    assert_eq!(
        calls(program),
        expected,
        "{}",
        stablehlo(program, &runtime().lower_options(program))
    );
    same_within(program, 1e-5);
}

#[test]
fn a_convolution_and_both_gradients_are_calls() {
    let cases = [
        ([8, 84, 84, 4], [8, 8, 4, 32], [4, 4], NONE),
        ([8, 20, 20, 32], [4, 4, 32, 64], [2, 2], NONE),
        ([8, 9, 9, 64], [3, 3, 64, 64], [1, 1], NONE),
        // Unequal parts of the batch, and windows that leave out the last rows.
        ([37, 21, 19, 4], [3, 5, 4, 8], [2, 3], [(1, 2), (0, 1)]),
        ([13, 23, 22, 3], [3, 3, 3, 16], [3, 2], [(1, 0), (2, 2)]),
        ([3, 17, 18, 16], [3, 2, 16, 5], [1, 1], [(2, 0), (1, 3)]),
        ([1, 30, 30, 8], [5, 5, 8, 16], [1, 1], [(2, 2), (2, 2)]),
    ];
    for (image, kernel, strides, padding) in cases {
        let program = with_gradients(nhwc(strides, padding), &image, &kernel);
        assert_eq!(calls(&program), 3, "{image:?} {kernel:?}");
        same_within(&program, 1e-5);
    }
}

#[test]
fn dilation() {
    for (strides, dilation, padding) in
        [([1, 1], [2, 3], NONE), ([2, 2], [2, 1], [(2, 0), (1, 3)]), ([2, 1], [1, 2], NONE)]
    {
        let dims =
            ConvDims { rhs_dilation: dilation.iter().copied().collect(), ..nhwc(strides, padding) };
        check(&with_gradients(dims, &[9, 25, 26, 8], &[3, 3, 8, 16]), 3);
    }
}

/// A transposed convolution as a user writes it.
#[test]
fn an_input_with_distances_is_a_gradient() {
    for padding in [[(2, 2), (1, 0)], [(0, 2), (0, 1)]] {
        let mut dims = nhwc([1, 1], padding);
        dims.lhs_dilation = smallvec![2, 3];
        check(&alone(dims, [&[6, 12, 13, 16], &[3, 3, 16, 8]], DType::F32), 1);
    }
}

#[test]
fn groups_and_depthwise() {
    for (groups, strides) in [(2, [1, 1]), (4, [2, 2])] {
        let dims = ConvDims { feature_groups: groups, ..nhwc(strides, [(1, 1), (1, 1)]) };
        check(&with_gradients(dims, &[16, 18, 18, 32], &[3, 3, 32 / groups, 64]), 3);
    }
    let depthwise = ConvDims { feature_groups: 32, ..nhwc([1, 1], [(1, 1), (1, 1)]) };
    check(&with_gradients(depthwise, &[16, 20, 20, 32], &[3, 3, 1, 32]), 3);
}

/// Dimensions of a convolution over these spatial axes, channels last.
fn channels_last(strides: &[usize], padding: &[(i64, i64)]) -> ConvDims {
    let n = strides.len();
    let images = || [0, n + 1].into_iter().chain(1..=n).collect();
    ConvDims {
        lhs_spec: images(),
        rhs_spec: [n + 1, n].into_iter().chain(0..n).collect(),
        out_spec: images(),
        strides: strides.iter().copied().collect(),
        padding: padding.iter().copied().collect(),
        lhs_dilation: smallvec![1; n],
        rhs_dilation: smallvec![1; n],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    }
}

#[test]
fn one_and_three_spatial_axes() {
    let line = channels_last(&[2], &[(2, 1)]);
    check(&with_gradients(line, &[37, 99, 16], &[4, 16, 32]), 3);
    let volume = channels_last(&[2, 1, 2], &[(1, 0), (0, 0), (2, 2)]);
    check(&with_gradients(volume, &[5, 8, 7, 9, 8], &[3, 2, 3, 8, 16]), 3);
}

#[test]
fn other_layouts() {
    let mut dims = nhwc([2, 1], [(1, 0), (0, 2)]);
    dims.lhs_spec = smallvec![0, 1, 2, 3];
    dims.rhs_spec = smallvec![0, 1, 2, 3];
    dims.out_spec = smallvec![0, 1, 2, 3];
    check(&with_gradients(dims.clone(), &[34, 8, 15, 16], &[16, 8, 4, 3]), 3);
    dims.lhs_spec = smallvec![3, 0, 2, 1];
    dims.rhs_spec = smallvec![1, 3, 2, 0];
    dims.out_spec = smallvec![2, 3, 1, 0];
    check(&with_gradients(dims, &[8, 16, 15, 34], &[3, 16, 4, 8]), 3);
}

/// The cases that oneDNN lacks, or that are too small, remain the compiler's.
#[test]
fn others_are_xlas() {
    // Cuts at both ends.
    let cut = nhwc([2, 1], [(-1, 0), (1, -2)]);
    same_within(&with_gradients(cut, &[13, 17, 18, 8], &[3, 3, 8, 16]), 1e-5);
    let batch_groups = ConvDims { batch_groups: 3, ..nhwc([2, 1], [(1, 0), (0, 1)]) };
    same_within(&with_gradients(batch_groups, &[12, 19, 18, 8], &[3, 3, 8, 18]), 1e-5);
    let both = ConvDims { lhs_dilation: smallvec![2, 1], ..nhwc([2, 1], [(1, 1), (1, 1)]) };
    check(&alone(both, [&[6, 12, 13, 16], &[3, 3, 16, 8]], DType::F32), 0);
    // Too small, and of another element type.
    check(&alone(nhwc([1, 1], NONE), [&[1, 5, 5, 2], &[3, 3, 2, 4]], DType::F32), 0);
    check(&alone(nhwc([1, 1], NONE), [&[8, 16, 16, 8], &[3, 3, 8, 16]], DType::F64), 0);
}

fn zeros(shape: &[usize]) -> Array {
    Array::zeros(shape, DType::F32)
}

/// The gradient of a convolution with respect to its kernel.
fn kernel_gradient(x: Tensor, w: Tensor) -> Tensor {
    let options = ConvOptions { stride: 2, padding: Padding::Same };
    grad(|w: Tensor| conv2d(x, w, &options).square().sum(..))(w)
}

#[test]
fn vmap_of_images_and_of_both() {
    let options = ConvOptions { stride: 1, padding: Padding::Valid };
    let images = move |(x, w): (Tensor, Tensor)| vmap(|x: Tensor| conv2d(x, w, &options))(x);
    let program = make_program(images, &(zeros(&[3, 4, 16, 16, 8]), zeros(&[3, 3, 8, 16])));
    check(&program.unwrap(), 1);
    let options = ConvOptions { stride: 1, padding: Padding::Valid };
    let both = move |(x, w): (Tensor, Tensor)| {
        let y = vmap(|(x, w): (Tensor, Tensor)| conv2d(x, w, &options))((x, w));
        (y, vmap(|(x, w)| kernel_gradient(x, w))((x, w)))
    };
    let arguments = (zeros(&[3, 16, 16, 16, 8]), zeros(&[3, 3, 3, 8, 16]));
    let program = make_program(both, &arguments).unwrap();
    assert!(calls(&program) >= 2);
    same_within(&program, 1e-5);
}

#[test]
fn the_gradient_of_a_gradient() {
    let twice = |(x, w): (Tensor, Tensor)| {
        let first = move |(x, w): (Tensor, Tensor)| kernel_gradient(x, w).square().sum(..);
        grad(first)((x, w))
    };
    let program = make_program(twice, &(zeros(&[8, 16, 16, 8]), zeros(&[3, 3, 8, 16]))).unwrap();
    assert!(calls(&program) >= 5, "{}", calls(&program));
    same_within(&program, 1e-5);
}

#[test]
fn scan_has_calls_in_its_body() {
    let f = |(xs, w): (Tensor, Tensor)| {
        scan(|w, x: Tensor| (w - 1e-3 * kernel_gradient(x, w), x.sum(..)), w, xs)
    };
    let program = make_program(f, &(zeros(&[3, 40, 15, 15, 4]), zeros(&[3, 3, 4, 16]))).unwrap();
    check(&program, 2);
}

/// A layer of a network: kernel, bias, ReLU.
fn layer((x, w, b): (Tensor, Tensor, Tensor)) -> Tensor {
    (conv2d(x, w, &ConvOptions { stride: 2, padding: Padding::Same }) + b).relu()
}

/// The text of a Program, without its source locations.
fn text(program: &Program) -> String {
    stablehlo(program, &LowerOptions { locations: false, ..runtime().lower_options(program) })
}

#[test]
fn a_layer_is_one_call() {
    let arguments = || (zeros(&[40, 15, 15, 4]), zeros(&[3, 3, 4, 16]), zeros(&[16]));
    let program = make_program(layer, &arguments()).unwrap();
    check(&program, 1);
    assert!(!text(&program).contains("stablehlo.select"), "{}", text(&program));
    // Without the rectifier.
    let linear = |(x, w, b): (Tensor, Tensor, Tensor)| {
        conv2d(x, w, &ConvOptions { stride: 1, padding: Padding::Same }) + b
    };
    let program = make_program(linear, &arguments()).unwrap();
    check(&program, 1);
    assert!(!text(&program).contains("stablehlo.add"), "{}", text(&program));
    // The derivative takes the sign of the layer's result for that of the sum.
    let program = make_program(
        |arguments: (Tensor, Tensor, Tensor)| {
            let loss = |arguments| layer(arguments).square().sum(..);
            (layer(arguments), grad(loss)(arguments))
        },
        &arguments(),
    );
    let program = program.unwrap();
    check(&program, 3);
    assert_eq!(text(&program).matches("stablehlo.select").count(), 1, "{}", text(&program));
    // In a loop.
    let looped = |(xs, w, b): (Tensor, Tensor, Tensor)| {
        scan(|b, x: Tensor| (b + layer((x, w, b)).mean(&[0, 1, 2][..]), x.sum(..)), b, xs)
    };
    let arguments = (zeros(&[3, 40, 15, 15, 4]), zeros(&[3, 3, 4, 16]), zeros(&[16]));
    check(&make_program(looped, &arguments).unwrap(), 1);
}

/// Other uses of the sum, and other additions, stay as they are.
#[test]
fn sums_that_are_no_layer() {
    let options = || ConvOptions { stride: 1, padding: Padding::Same };
    let arguments = || (zeros(&[8, 16, 16, 4]), zeros(&[3, 3, 4, 16]), zeros(&[16]));
    let twice = |(x, w, b): (Tensor, Tensor, Tensor)| {
        let y = conv2d(x, w, &options());
        ((y + b).relu(), y)
    };
    check(&make_program(twice, &arguments()).unwrap(), 1);
    let sum_too = |(x, w, b): (Tensor, Tensor, Tensor)| {
        let y = conv2d(x, w, &options()) + b;
        (y.relu(), y)
    };
    check(&make_program(sum_too, &arguments()).unwrap(), 1);
    // A vector over the columns, which are as many as the features.
    let columns = |(x, w, b): (Tensor, Tensor, Tensor)| {
        (conv2d(x, w, &options()) + b.reshape([16, 1])).relu()
    };
    check(&make_program(columns, &arguments()).unwrap(), 1);
    let itself = |(x, w, _): (Tensor, Tensor, Tensor)| {
        let y = conv2d(x, w, &options());
        (y + y).relu()
    };
    check(&make_program(itself, &arguments()).unwrap(), 1);
}

/// The rectifier and its derivative keep values that are no numbers. (A kernel's gradient can have
/// more of them than the interpreter's: a product with the zeros of the padding is none either.)
#[test]
fn nan_passes_a_layer() {
    runtime();
    let all = |arguments: (Tensor, Tensor, Tensor)| {
        (layer(arguments), grad(|arguments| layer(arguments).square().sum(..))(arguments))
    };
    let mut image = filled(&[40, 15, 15, 4], 8).to_vec::<f32>().unwrap();
    (image[5], image[20_000]) = (f32::NAN, f32::INFINITY);
    let arguments = || {
        let image = Array::new([40, 15, 15, 4], &image).unwrap();
        (image, filled(&[3, 3, 4, 16], 9), filled(&[16], 10))
    };
    let (y, (dx, _, _)) = jit(all).call(arguments()).unwrap();
    let (expected, (expected_dx, _, _)) = interpret(all).call(arguments()).unwrap();
    let nans = |array: Array| -> Vec<bool> {
        array.to_vec::<f32>().unwrap().iter().map(|x| x.is_nan()).collect()
    };
    for (got, expected) in [(y, expected), (dx, expected_dx)] {
        let (got, expected) = (nans(got), nans(expected));
        assert!(got == expected && got.contains(&true) && got.contains(&false));
    }
}

fn filled(shape: &[usize], seed: u64) -> Array {
    Array::from(numbers(&f32s(shape), seed))
}

#[test]
fn pmap_computes_what_one_device_does() {
    runtime();
    let arguments = (filled(&[40, 15, 15, 4], 1), filled(&[3, 3, 4, 16], 2));
    let one = jit(|(x, w): (Tensor, Tensor)| kernel_gradient(x, w));
    let half = |from: usize| {
        let all = arguments.0.to_vec::<f32>().unwrap();
        let part = &all[from * 20 * 15 * 15 * 4..][..20 * 15 * 15 * 4];
        Array::new([20, 15, 15, 4], part).unwrap()
    };
    let expected: Vec<Vec<f32>> = (0..2)
        .map(|i| one.call((half(i), arguments.1.clone())).unwrap().to_vec::<f32>().unwrap())
        .collect();
    let both = pmap("data", |_, (x, w): (Tensor, Tensor)| kernel_gradient(x, w).expand_dims(0));
    let devices = [0, 1];
    let x = shard(&arguments.0, &devices).unwrap();
    let w = replicate(&arguments.1, &devices).unwrap();
    for _ in 0..5 {
        let got = unshard(&both.call((x.clone(), w.clone())).unwrap()).unwrap();
        let got = got.to_vec::<f32>().unwrap();
        let all: Vec<f32> = expected.concat();
        let largest = all.iter().fold(0f32, |a, x| a.max(x.abs()));
        assert_eq!(got.len(), all.len());
        for (g, e) in got.iter().zip(&all) {
            assert!((g - e).abs() <= 1e-5 * largest, "{g} {e}");
        }
    }
}

#[test]
fn every_run_gives_the_same_bits() {
    runtime();
    let f = jit(|(x, w): (Tensor, Tensor)| {
        let dims = nhwc([2, 2], [(1, 1), (1, 1)]);
        let loss = |(x, w): (Tensor, Tensor)| conv_general(x, w, dims.clone()).square().sum(..);
        (conv_general(x, w, dims.clone()), grad(loss)((x, w)))
    });
    let run = || {
        let arguments = (filled(&[100, 40, 40, 16], 3), filled(&[3, 3, 16, 32], 4));
        let (y, (dx, dw)) = f.call(arguments).unwrap();
        [y, dx, dw].map(|array| {
            let bits: Vec<u32> =
                array.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
            bits
        })
    };
    let first = run();
    for _ in 0..5 {
        assert!(run() == first);
    }
}

/// Threads that run the same and other convolutions at once share primitives and memory.
#[test]
fn threads_run_convolutions_at_once() {
    runtime();
    let f = jit(|(x, w): (Tensor, Tensor)| kernel_gradient(x, w));
    let g = jit(|(x, w): (Tensor, Tensor)| {
        conv2d(x, w, &ConvOptions { stride: 1, padding: Padding::Valid })
    });
    let arguments = || (filled(&[64, 15, 15, 8], 5), filled(&[3, 3, 8, 16], 6));
    let expected = f.call(arguments()).unwrap().to_vec::<f32>().unwrap();
    let other = g.call(arguments()).unwrap().to_vec::<f32>().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert!(f.call(arguments()).unwrap().to_vec::<f32>().unwrap() == expected);
                    assert!(g.call(arguments()).unwrap().to_vec::<f32>().unwrap() == other);
                }
            });
        }
    });
}

#[test]
fn exported_functions_have_no_calls() {
    runtime();
    let f = jit(|(x, w): (Tensor, Tensor)| kernel_gradient(x, w));
    let arguments = || (zeros(&[40, 15, 15, 4]), zeros(&[3, 3, 4, 16]));
    let compiled = f.lower(&arguments()).unwrap().stablehlo().to_string();
    assert!(compiled.contains("@podracer.onednn."), "{compiled}");
    let bytes = f.export(&arguments()).unwrap().to_bytes();
    assert!(bytes.len() > 100);
    assert!(!bytes.windows(15).any(|window| window == b"podracer.onednn"));
}

/// Runs a program that calls a function of oneDNN with an attribute, on two tensors of zeros.
fn run_call(
    name: &str,
    attribute: &str,
    operands: [&[usize]; 2],
    result: &[usize],
) -> podracer::Result<()> {
    let client = &runtime().client;
    let tensor = |shape: &[usize]| {
        let sizes: String = shape.iter().map(|size| format!("{size}x")).collect();
        format!("tensor<{sizes}f32>")
    };
    let ([x, w], y) = (operands.map(tensor), tensor(result));
    let text = format!(
        "module @call {{
           func.func public @main(%x: {x}, %w: {w}) -> {y} {{
             %y = stablehlo.custom_call @podracer.onednn.3.2.{name}(%x, %w)
               {{api_version = 4 : i32, backend_config = {{{attribute}}}}} : ({x}, {w}) -> {y}
             return %y : {y}
           }}
         }}"
    );
    let program = client.compile(&text, &CompileOptions::default())?;
    let put = |shape: &[usize]| {
        let ty = f32s(shape);
        client.buffer_from_host(&vec![0; ty.bytes()], &ty, 0)
    };
    let mut results = Vec::new();
    program.execute([&put(operands[0])?, &put(operands[1])?], &[], &mut results)?;
    results[0].copy_to_host(&mut vec![0; f32s(result).bytes()])
}

/// A call that no lowering writes is an error, whatever its numbers are.
#[test]
fn wrong_calls_are_errors() {
    let run = |numbers: &str| {
        let operands: [&[usize]; 2] = [&[4, 8, 8, 2], &[3, 3, 2, 4]];
        run_call("conv.3", &format!("problem = array<i64: {numbers}>"), operands, &[4, 6, 6, 4])
    };
    let axis = "8, 3, 6, 1, 1, 0, 0";
    let right = format!("0, 0, 0, 0, 0, 1, 4, 1, 2, 4, 2, {axis}, {axis}, 72, 1, 4, 24, 8");
    run(&right).unwrap();
    for wrong in [
        "0",
        // Another kind, a bias that is not there, a gradient with a bias, more parts than images, no
        // channels, another batch.
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "3, 0, 0, 0, 0, 1, 4", 1),
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "0, 1, 0, 0, 0, 1, 4", 1),
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "1, 1, 0, 0, 0, 1, 4", 1),
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "0, 0, 0, 0, 0, 5, 4", 1),
        &right.replacen("1, 2, 4, 2", "1, 0, 4, 2", 1),
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "0, 0, 0, 0, 0, 1, 5", 1),
        // Elements of another type than the tensors', and of none.
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "0, 0, 0, 1, 0, 1, 4", 1),
        &right.replacen("0, 0, 0, 0, 0, 1, 4", "0, 0, 0, 2, 0, 1, 4", 1),
        // Weights beyond their memory, and negative distances.
        &right.replace("24, 8", "2400, 8"),
        &right.replace("24, 8", "-24, 8"),
        &right.replace("24, 8", "24"),
        // Windows that do not fit.
        &right.replacen("8, 3, 6, 1, 1, 0, 0", "8, 3, 6, 1, 3, 0, 0", 1),
        &right.replacen("8, 3, 6, 1, 1, 0, 0", "8, 3, 6, 0, 1, 0, 0", 1),
        &right.replacen("4, 1, 2, 4", "4, 1, 2147483647, 2147483647", 1),
    ] {
        let error = run(wrong).expect_err(wrong).to_string();
        assert!(error.contains("podracer.onednn.3.2.conv.3"), "{error}");
    }
}

/// Without the calls the compiler's own formulas compute the same.
#[test]
fn xla_computes_the_same() {
    let client = &runtime().client;
    let program = with_gradients(nhwc([2, 2], [(1, 1), (1, 1)]), &[20, 17, 17, 8], &[3, 3, 8, 16]);
    let run = |options: &LowerOptions| {
        let text = stablehlo(&program, options);
        let compiled = client.compile(&text, &CompileOptions::default()).unwrap();
        let inputs: Vec<_> = (program.input_types().enumerate())
            .map(|(i, ty)| {
                let values = numbers(ty, 7 + i as u64);
                client.buffer_from_host((*values.bytes()).as_ref(), ty, 0).unwrap()
            })
            .collect();
        let mut results = Vec::new();
        compiled.execute(&inputs, &[], &mut results).unwrap();
        let values = results.iter().zip(program.output_types()).map(|(result, ty)| {
            let mut values = vec![0f32; ty.numel()];
            result.copy_to_host(bytemuck::cast_slice_mut(&mut values)).unwrap();
            values
        });
        values.collect::<Vec<_>>()
    };
    let ours = run(&runtime().lower_options(&program));
    let theirs = run(&LowerOptions::default());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        let largest = theirs.iter().fold(0f32, |a, x| a.max(x.abs()));
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() <= 1e-5 * largest, "{a} {b}");
        }
    }
}
