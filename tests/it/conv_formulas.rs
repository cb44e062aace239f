//! The formulas of convolutions on CPU give what the interpreter gives.

use podracer::lower::conv::{ConvFormula, conv_formula};
use podracer::lower::{LowerOptions, stablehlo};
use podracer::trace::control::scan;
use podracer::trace::op::{ConvDims, Precision, ReduceOp};
use podracer::trace::ops::{ConvOptions, Padding, conv2d};
use podracer::{Array, DType, Program, Tensor, TensorType, grad, make_program};
use smallvec::smallvec;

use crate::build::single;
use crate::convolutions::{NONE, alone, f32s, nhwc, same_within, with_gradients};
use podracer::trace::Op;

#[track_caller]
fn same(program: &Program) {
    same_within(program, 2e-5);
}

#[test]
fn strides_sizes_and_padding() {
    let cases = [
        ([5, 20, 20, 3], [4, 4, 3, 8], [2, 2], NONE),
        ([3, 23, 22, 3], [8, 8, 3, 4], [4, 4], NONE),
        ([40, 21, 19, 4], [3, 5, 4, 8], [2, 3], [(1, 2), (0, 1)]),
        ([33, 9, 9, 4], [3, 3, 4, 6], [1, 1], [(1, 1), (1, 1)]),
        ([2, 12, 12, 3], [1, 1, 3, 4], [3, 3], NONE),
        ([3, 17, 18, 2], [3, 2, 2, 5], [1, 1], [(2, 0), (1, 3)]),
        ([3, 17, 18, 2], [3, 2, 2, 5], [1, 4], [(2, 0), (1, 3)]),
        ([3, 17, 18, 2], [3, 2, 2, 5], [2, 1], [(-1, 0), (1, -2)]),
        ([3, 17, 18, 2], [5, 4, 2, 5], [3, 2], [(-2, -3), (-1, 4)]),
        // Padding beyond the kernel, and a kernel shorter than the stride.
        ([2, 7, 8, 2], [2, 3, 2, 3], [4, 5], [(5, 6), (7, 3)]),
        // A long sum for the gradient of the kernel.
        ([600, 5, 5, 1], [2, 2, 1, 2], [1, 1], NONE),
        // One window in all.
        ([50, 6, 6, 2], [6, 6, 2, 3], [2, 2], NONE),
    ];
    for (image, kernel, strides, padding) in cases {
        same(&with_gradients(nhwc(strides, padding), &image, &kernel));
    }
}

#[test]
fn dilated_convolutions_equal_the_interpreter() {
    for (strides, dilation, padding) in
        [([1, 1], [2, 3], NONE), ([2, 2], [2, 1], [(2, 0), (1, 3)]), ([2, 1], [1, 2], NONE)]
    {
        let dims =
            ConvDims { rhs_dilation: dilation.iter().copied().collect(), ..nhwc(strides, padding) };
        same(&with_gradients(dims, &[35, 17, 18, 2], &[3, 2, 2, 5]));
    }
    // A transposed convolution written by hand, its input dilated, with cuts.
    for padding in [[(2, 2), (1, 0)], [(-1, 2), (0, -3)], [(-3, -2), (6, 5)]] {
        let mut dims = nhwc([1, 1], padding);
        dims.lhs_dilation = smallvec![2, 3];
        same(&with_gradients(dims.clone(), &[4, 5, 6, 3], &[3, 4, 3, 2]));
        dims.strides = smallvec![2, 1];
        same(&with_gradients(dims.clone(), &[4, 5, 6, 3], &[3, 4, 3, 2]));
        dims.rhs_dilation = smallvec![1, 2];
        same(&with_gradients(dims, &[4, 5, 6, 3], &[3, 3, 3, 2]));
    }
}

#[test]
fn convolutions_of_other_layouts_equal_the_interpreter() {
    let mut dims = nhwc([2, 1], [(1, 0), (0, 2)]);
    dims.lhs_spec = smallvec![0, 1, 2, 3];
    dims.rhs_spec = smallvec![0, 1, 2, 3];
    dims.out_spec = smallvec![0, 1, 2, 3];
    same(&with_gradients(dims.clone(), &[34, 3, 11, 10], &[5, 3, 4, 3]));
    dims.lhs_spec = smallvec![3, 0, 2, 1];
    dims.rhs_spec = smallvec![1, 3, 2, 0];
    dims.out_spec = smallvec![2, 3, 1, 0];
    same(&with_gradients(dims, &[3, 10, 11, 34], &[3, 5, 4, 3]));
}

#[test]
fn grouped_convolutions_equal_the_interpreter() {
    for (groups, strides) in [(2, [1, 1]), (2, [2, 3]), (6, [2, 2])] {
        let dims = ConvDims { feature_groups: groups, ..nhwc(strides, [(1, 0), (0, 2)]) };
        same(&with_gradients(dims, &[3, 9, 8, 6], &[3, 3, 6 / groups, 12]));
    }
    let dims = ConvDims { batch_groups: 3, ..nhwc([2, 1], [(1, 0), (0, -1)]) };
    same(&with_gradients(dims, &[6, 9, 8, 4], &[3, 3, 4, 6]));
}

#[test]
fn one_and_three_spatial_axes() {
    let line = ConvDims {
        lhs_spec: smallvec![0, 2, 1],
        rhs_spec: smallvec![2, 1, 0],
        out_spec: smallvec![0, 2, 1],
        strides: smallvec![3],
        padding: smallvec![(2, -1)],
        lhs_dilation: smallvec![1],
        rhs_dilation: smallvec![1],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    };
    same(&with_gradients(line, &[37, 19, 3], &[4, 3, 5]));
    let volume = ConvDims {
        lhs_spec: smallvec![0, 1, 2, 3, 4],
        rhs_spec: smallvec![0, 1, 2, 3, 4],
        out_spec: smallvec![0, 1, 2, 3, 4],
        strides: smallvec![2, 1, 3],
        padding: smallvec![(1, 0), (0, 0), (2, 2)],
        lhs_dilation: smallvec![1; 3],
        rhs_dilation: smallvec![1; 3],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    };
    same(&with_gradients(volume, &[33, 2, 6, 5, 7], &[3, 2, 3, 2, 4]));
}

#[test]
fn other_element_types_and_no_elements() {
    for dtype in [DType::F64, DType::I32] {
        let dims = nhwc([2, 2], [(1, 1), (0, -1)]);
        same(&alone(dims, [&[2, 6, 6, 3], &[3, 3, 3, 4]], dtype));
    }
    same(&alone(nhwc([2, 2], NONE), [&[0, 6, 6, 3], &[3, 3, 3, 4]], DType::F32));
}

/// In control flow, which is where the compiler leaves other forms as they are.
#[test]
fn convolutions_in_a_scan_equal_the_interpreter() {
    let step = |x: Tensor, w: Tensor| {
        let options = ConvOptions { stride: 2, padding: Padding::Same };
        let loss = |w: Tensor| conv2d(x, w, &options).square().mean(..);
        w - 0.1 * grad(loss)(w)
    };
    let f = move |(xs, w): (Tensor, Tensor)| scan(|w, x| (step(x, w), x.sum(..)), w, xs);
    let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
    let program = make_program(f, &(zeros(&[3, 40, 9, 9, 2]), zeros(&[3, 3, 2, 4]))).unwrap();
    same(&program);
    let text = stablehlo(&program, &LowerOptions::default());
    for line in text.lines().filter(|line| line.contains("stablehlo.convolution")) {
        assert!(line.contains("[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"), "{line}");
    }
    // The forward convolution is of no use.
    assert_eq!(text.matches("stablehlo.convolution").count(), 2);
}

/// Long sums over several leading axes go in two steps.
#[test]
fn reductions_over_batch_and_space() {
    let barriers = |program: &Program| {
        let text = stablehlo(program, &LowerOptions::default());
        text.matches("stablehlo.optimization_barrier").count()
    };
    let reduce = |op, axes: &[usize], ty: TensorType| {
        single(Op::Reduce { op, axes: axes.iter().copied().collect() }, &[ty])
    };
    let long = f32s(&[33, 30, 40, 8]);
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        let program = reduce(op, &[0, 1, 2], long.clone());
        assert_eq!(barriers(&program), 1);
        same(&program);
        let program = reduce(op, &[0, 1], long.clone());
        assert_eq!(barriers(&program), 1);
        same(&program);
    }
    for (axes, ty) in [
        (&[0, 1, 2, 3][..], long.clone()),
        (&[0], long.clone()),
        (&[1, 2], long),
        (&[0, 1, 2], f32s(&[33, 3, 4, 8])),
    ] {
        let program = reduce(ReduceOp::Sum, axes, ty);
        assert_eq!(barriers(&program), 0);
        same(&program);
    }
}

#[test]
fn the_formulas_of_the_nature_network() {
    let layers = [([84, 84, 4], [8, 8, 4, 32], 4), ([20, 20, 32], [4, 4, 32, 64], 2)];
    for (image, kernel, stride) in layers {
        let image = [256, image[0], image[1], image[2]];
        let dims = nhwc([stride; 2], NONE);
        let program = with_gradients(dims, &image, &kernel);
        let mut formulas = vec![];
        for equation in &program.equations {
            if let Op::Conv(dims) = &equation.op {
                let ty = |i: usize| program.ty(equation.inputs[i]);
                formulas.push(conv_formula(dims, ty(0), ty(1)));
            }
        }
        formulas.sort_by_key(|formula| format!("{formula:?}"));
        formulas.dedup();
        assert_eq!(formulas, [ConvFormula::Canonical, ConvFormula::DepthToSpace]);
    }
}
