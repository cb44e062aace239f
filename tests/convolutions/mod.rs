//! Convolutions with their gradients, compared with the interpreter.

use half::bf16;
use podracer::jit::run_program;
use podracer::trace::op::{ConvDims, Precision};
use podracer::trace::ops::conv_general;
use podracer::{Array, DType, Literal, Mode, Program, Tensor, TensorType, grad, make_program};
use smallvec::smallvec;

/// Numbers that no formula favors, the same in every run.
pub fn numbers(ty: &TensorType, seed: u64) -> Literal {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    };
    let values: Vec<f64> = (0..ty.numel()).map(|_| next()).collect();
    match ty.dtype {
        DType::F64 => Literal::new(ty.shape.clone(), &values),
        DType::I32 => {
            let values: Vec<i32> = values.iter().map(|x| (x * 8.0) as i32).collect();
            Literal::new(ty.shape.clone(), &values)
        }
        DType::BF16 => {
            let values: Vec<bf16> = values.iter().map(|&x| bf16::from_f64(x)).collect();
            Literal::new(ty.shape.clone(), &values)
        }
        _ => {
            let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            Literal::new(ty.shape.clone(), &values)
        }
    }
}

/// Runs a Program compiled and by the interpreter, and compares with this tolerance, relative to the
/// largest element.
#[track_caller]
pub fn same_within(program: &Program, tolerance: f64) {
    let inputs: Vec<Array> = (program.input_types().enumerate())
        .map(|(i, ty)| Array::from(numbers(ty, 11 + i as u64)))
        .collect();
    let compiled = run_program(program, &inputs, Mode::Jit).unwrap();
    let expected = run_program(program, &inputs, Mode::Interpret).unwrap();
    for (compiled, expected) in compiled.iter().zip(&expected) {
        let (got, expected) = (compiled.to_literal().unwrap(), expected.to_literal().unwrap());
        assert_eq!(got.ty(), expected.ty());
        let (got, expected) = (got.to_f64_vec(), expected.to_f64_vec());
        let largest = expected.iter().fold(1e-6f64, |a, x| a.max(x.abs()));
        for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
            let near = (g - e).abs() <= tolerance * largest;
            assert!(near, "element {i}: {g}, not {e}, of\n{program}");
        }
    }
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Images by a kernel, both channels last.
pub fn nhwc(strides: [usize; 2], padding: [(i64, i64); 2]) -> ConvDims {
    ConvDims {
        lhs_spec: smallvec![0, 3, 1, 2],
        rhs_spec: smallvec![3, 2, 0, 1],
        out_spec: smallvec![0, 3, 1, 2],
        strides: strides.iter().copied().collect(),
        padding: padding.iter().copied().collect(),
        lhs_dilation: smallvec![1, 1],
        rhs_dilation: smallvec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    }
}

/// A convolution in f32 and both of its gradients, as one Program.
#[track_caller]
pub fn with_gradients(dims: ConvDims, image: &[usize], kernel: &[usize]) -> Program {
    with_gradients_in(DType::F32, dims, image, kernel)
}

/// A convolution and both of its gradients, as one Program.
#[track_caller]
pub fn with_gradients_in(
    dtype: DType,
    dims: ConvDims,
    image: &[usize],
    kernel: &[usize],
) -> Program {
    let f = move |(x, w): (Tensor, Tensor)| {
        let loss = |(x, w): (Tensor, Tensor)| {
            let y = conv_general(x, w, dims.clone());
            (y * y * y).sum(..)
        };
        (conv_general(x, w, dims.clone()), grad(loss)((x, w)))
    };
    let zeros = |shape: &[usize]| Array::zeros(shape, dtype);
    make_program(f, &(zeros(image), zeros(kernel))).unwrap()
}

/// A convolution alone, as a Program.
pub fn alone(dims: ConvDims, [image, kernel]: [&[usize]; 2], dtype: DType) -> Program {
    let f = move |(x, w): (Tensor, Tensor)| conv_general(x, w, dims.clone());
    make_program(f, &(Array::zeros(image, dtype), Array::zeros(kernel, dtype))).unwrap()
}

/// No padding.
pub const NONE: [(i64, i64); 2] = [(0, 0), (0, 0)];
