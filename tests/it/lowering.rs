//! Every family of operations, compiled and run: the text is accepted, and the values are right.

mod control;

use podracer::trace::op::*;
use podracer::trace::{DType, Element, Literal, Op, Program, Shape, TensorType};
use podracer::{Array, Tensor, interpret, jit};
use smallvec::smallvec;
use std::sync::Arc;

use crate::build::{Build, f32s, i32s, single};
use crate::recipes::binary::{Row, binary};
use crate::recipes::unary::{Inputs, unary};
use crate::run;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn same(got: &[f64], expected: &[f64], tolerance: f64) -> bool {
    got.len() == expected.len()
        && got.iter().zip(expected).all(|(&g, &e)| {
            (g.is_nan() && e.is_nan()) || g == e || (g - e).abs() <= tolerance * e.abs().max(1e-3)
        })
}

/// Runs a Program and compares its outputs.
#[track_caller]
fn check(program: &Program, inputs: &[Literal], expected: &[&[f64]]) {
    check_near(program, inputs, expected, 0.0);
}

#[track_caller]
fn check_near(program: &Program, inputs: &[Literal], expected: &[&[f64]], tolerance: f64) {
    let got = run(program, inputs);
    assert_eq!(got.len(), expected.len());
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let values = got.to_f64_vec();
        assert!(
            same(&values, expected, tolerance),
            "output {i}: got {values:?}, expected {expected:?} of\n{program}"
        );
    }
}

/// Runs one operation and compares its outputs.
#[track_caller]
fn check_op(op: Op, inputs: &[Literal], expected: &[&[f64]]) {
    let types: Vec<TensorType> = inputs.iter().map(|x| x.ty().clone()).collect();
    check(&single(op, &types), inputs, expected);
}

/// `values` as elements of type `dtype`.
fn literal(dtype: DType, shape: impl Into<Shape>, values: &[f64]) -> Literal {
    fn of<T: Element>(shape: Shape, values: &[f64]) -> Literal {
        let one = |&x: &f64| {
            Literal::filled(TensorType::scalar(T::DTYPE), x).as_splat::<T>().expect("of this type")
        };
        let elements: Vec<T> = values.iter().map(one).collect();
        Literal::new(shape, &elements)
    }
    let shape = shape.into();
    podracer::with_element!(dtype, T => of::<T>(shape, values))
}

fn floats() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|dtype| dtype.is_float() && !dtype.is_narrow())
}

fn numbers() -> impl Iterator<Item = DType> {
    let counts = |dtype: DType| dtype != DType::Bool && !dtype.is_complex() && !dtype.is_narrow();
    DType::ALL.into_iter().filter(move |&dtype| counts(dtype))
}

#[test]
fn compiled_unary_functions_have_their_values() {
    let x = [-1.5, -0.5, 0.0, 0.25, 0.75];
    for dtype in floats() {
        let tolerance = match dtype {
            DType::BF16 => 2e-2,
            DType::F16 => 2e-3,
            DType::F32 => 1e-5,
            _ => 1e-11,
        };
        let ops: Vec<_> =
            UnaryOp::ALL.into_iter().filter_map(|op| Some((op, unary(op).value?))).collect();
        let mut b = Build::new();
        let input = b.input(TensorType::new(dtype, [5]));
        let outputs: Vec<_> = ops.iter().map(|&(op, _)| b.op(Op::Unary(op), &[input])).collect();
        let got = run(&b.finish(&outputs), &[literal(dtype, [5], &x)]);
        for (&(op, value), got) in ops.iter().zip(got) {
            let expected: Vec<f64> = x.iter().map(|&x| value(x)).collect();
            let got = got.to_f64_vec();
            assert!(same(&got, &expected, tolerance), "{op:?} {dtype}: {got:?}, not {expected:?}");
        }
    }
}

/// Pairs of operands at which a row has its value: floats, or integers whose result every integer
/// type holds.
fn pairs(row: &Row, floats: bool) -> (Vec<f64>, Vec<f64>) {
    let [x, y] = match floats {
        true => row.inputs.map(|inputs| match inputs {
            Inputs::Any | Inputs::Distinct => vec![-1.5, -0.5, 0.25, 0.75, 1.75],
            Inputs::Within(low, high) => {
                (0..4).map(|i| low + (high - low) * (f64::from(i) + 0.5) / 4.0).collect()
            }
            Inputs::Order => vec![0.0, 1.0, 2.0, 3.0, 4.0],
        }),
        false => [vec![0.0, 1.0, 2.0, 5.0, 12.0], vec![0.0, 1.0, 2.0, 3.0]],
    };
    x.iter().flat_map(|&a| y.iter().map(move |&b| (a, b))).unzip()
}

#[test]
fn compiled_binary_functions_have_their_values() {
    // The parts of complex numbers are tested by `it::complex`.
    for op in BinaryOp::ALL.into_iter().filter(|&op| op != BinaryOp::Complex) {
        let row = binary(op);
        let floats = op.domain().contains(DType::F64);
        let taken = |dtype: &DType| op.domain().contains(*dtype);
        let dtypes: Vec<DType> = match floats {
            true => vec![DType::F32, DType::F64],
            false => DType::ALL.into_iter().filter(taken).collect(),
        };
        for dtype in dtypes {
            let (x, y) = match dtype {
                DType::Bool => (vec![0.0, 0.0, 1.0, 1.0], vec![0.0, 1.0, 0.0, 1.0]),
                _ => pairs(&row, floats),
            };
            let ty = TensorType::new(dtype, [x.len()]);
            let mut b = Build::new();
            let operands = [b.input(ty.clone()), b.input(ty)];
            let output = b.op(Op::Binary(op), &operands);
            let inputs = [&x, &y].map(|numbers| literal(dtype, [x.len()], numbers));
            let got = run(&b.finish(&[output]), &inputs)[0].to_f64_vec();
            let tolerance = if dtype == DType::F32 { 2e-5 } else { 1e-10 };
            for ((&x, &y), got) in x.iter().zip(&y).zip(got) {
                let expected = (row.value)(x, y);
                let agree = same(&[got], &[expected], tolerance);
                assert!(agree, "{op:?} {dtype} of {x}, {y}: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn erf_and_its_inverse() {
    let inputs = [Literal::from([0.0f32, 0.5, -1.0])];
    let erf = single(Op::Unary(UnaryOp::Erf), &[f32s([3])]);
    check_near(&erf, &inputs, &[&[0.0, 0.5204998778, -0.8427007929]], 1e-6);
    let inverse = single(Op::Unary(UnaryOp::ErfInv), &[f32s([3])]);
    check_near(&inverse, &inputs, &[&[0.0, 0.4769362762, -INF]], 1e-6);
}

#[test]
fn round_goes_to_even() {
    let x = Literal::from([0.5f32, 1.5, 2.5, -0.5, -1.5, f32::NAN]);
    check_op(Op::Unary(UnaryOp::Round), &[x], &[&[0.0, 2.0, 2.0, 0.0, -2.0, NAN]]);
}

#[test]
fn integers_have_signs_and_bits() {
    let signed = || Literal::from([-3i32, 0, 7, i32::MIN]);
    check_op(Op::Unary(UnaryOp::Abs), &[signed()], &[&[3.0, 0.0, 7.0, -2147483648.0]]);
    check_op(Op::Unary(UnaryOp::Sign), &[signed()], &[&[-1.0, 0.0, 1.0, -1.0]]);
    let unsigned = || Literal::from([0u8, 1, 200]);
    check_op(Op::Unary(UnaryOp::Abs), &[unsigned()], &[&[0.0, 1.0, 200.0]]);
    check_op(Op::Unary(UnaryOp::Sign), &[unsigned()], &[&[0.0, 1.0, 1.0]]);
    check_op(Op::Unary(UnaryOp::Neg), &[unsigned()], &[&[0.0, 255.0, 56.0]]);
    check_op(Op::Unary(UnaryOp::Not), &[unsigned()], &[&[255.0, 254.0, 55.0]]);
    check_op(Op::Unary(UnaryOp::Not), &[Literal::from([true, false])], &[&[0.0, 1.0]]);
}

#[test]
fn arithmetic_of_every_type() {
    for dtype in numbers() {
        let ty = TensorType::new(dtype, [3]);
        let mut b = Build::new();
        let (x, y) = (b.input(ty.clone()), b.input(ty));
        let ops = [
            BinaryOp::Add,
            BinaryOp::Sub,
            BinaryOp::Mul,
            BinaryOp::Div,
            BinaryOp::Rem,
            BinaryOp::Max,
            BinaryOp::Min,
        ];
        let mut outputs: Vec<_> = ops.iter().map(|&op| b.op(Op::Binary(op), &[x, y])).collect();
        outputs.push(b.op(Op::Compare(CompareOp::Lt), &[x, y]));
        let program = b.finish(&outputs);
        let inputs = [literal(dtype, [3], &[7.0, 8.0, 2.0]), literal(dtype, [3], &[2.0, 4.0, 2.0])];
        let quotient = if dtype.is_float() { 3.5 } else { 3.0 };
        check(
            &program,
            &inputs,
            &[
                &[9.0, 12.0, 4.0],
                &[5.0, 4.0, 0.0],
                &[14.0, 32.0, 4.0],
                &[quotient, 2.0, 1.0],
                &[1.0, 0.0, 0.0],
                &[7.0, 8.0, 2.0],
                &[2.0, 4.0, 2.0],
                &[0.0, 0.0, 0.0],
            ],
        );
    }
}

#[test]
fn integer_division_by_zero_and_overflow() {
    let (x, y) = ([7i32, -7, i32::MIN, -7], [0i32, 0, -1, 2]);
    let inputs = [Literal::from(x), Literal::from(y)];
    check_op(Op::Binary(BinaryOp::Div), &inputs, &[&[-1.0, -1.0, -2147483648.0, -3.0]]);
    check_op(Op::Binary(BinaryOp::Rem), &inputs, &[&[7.0, -7.0, 0.0, -1.0]]);
    let inputs = [Literal::from([7u8, 255]), Literal::from([0u8, 0])];
    check_op(Op::Binary(BinaryOp::Div), &inputs, &[&[255.0, 255.0]]);
    check_op(Op::Binary(BinaryOp::Rem), &inputs, &[&[7.0, 255.0]]);
}

#[test]
fn functions_of_two_floats() {
    let inputs = [Literal::from([0.0f32, 2.0, -8.0]), Literal::from([0.0f32, 0.5, 3.0])];
    let types = [f32s([3]), f32s([3])];
    let pow = single(Op::Binary(BinaryOp::Pow), &types);
    check_near(&pow, &inputs, &[&[1.0, std::f64::consts::SQRT_2, -512.0]], 1e-6);
    let atan2 = single(Op::Binary(BinaryOp::Atan2), &types);
    check_near(&atan2, &inputs, &[&[0.0, 1.3258177, -1.2120257]], 1e-6);
    check_op(
        Op::Binary(BinaryOp::Rem),
        &[Literal::from([5.5f32, -5.5]), Literal::from([2.0f32, 2.0])],
        &[&[1.5, -1.5]],
    );
}

#[test]
fn extremes_keep_nan() {
    let nan = f32::NAN;
    let inputs = [Literal::from([nan, 1.0, 2.0]), Literal::from([1.0, nan, 3.0])];
    check_op(Op::Binary(BinaryOp::Max), &inputs, &[&[NAN, NAN, 3.0]]);
    check_op(Op::Binary(BinaryOp::Min), &inputs, &[&[NAN, NAN, 2.0]]);
    let x = || Literal::from([[1.0, nan, 3.0], [nan, 1.0, 2.0], [1.0, 2.0, 3.0]]);
    let reduce = |op, axis| Op::Reduce { op, axes: smallvec![axis] };
    check_op(reduce(ReduceOp::Max, 1), &[x()], &[&[NAN, NAN, 3.0]]);
    check_op(reduce(ReduceOp::Min, 0), &[x()], &[&[NAN, NAN, 2.0]]);
    let (low, high) = (Literal::splat([3], 0.0f32), Literal::splat([3], 2.0f32));
    check_op(Op::Clamp, &[low, Literal::from([nan, -1.0, 5.0]), high], &[&[NAN, 0.0, 2.0]]);
}

#[test]
fn shifts_beyond_the_width() {
    let inputs = [Literal::from([7i32, -7, -9, -9]), Literal::from([1i32, 31, 32, 40])];
    check_op(Op::Binary(BinaryOp::ShiftLeft), &inputs, &[&[14.0, -2147483648.0, 0.0, 0.0]]);
    check_op(Op::Binary(BinaryOp::ShiftRightLogical), &inputs, &[&[3.0, 1.0, 0.0, 0.0]]);
    check_op(Op::Binary(BinaryOp::ShiftRightArithmetic), &inputs, &[&[3.0, -1.0, -1.0, -1.0]]);
}

#[test]
fn compiled_logic_has_its_values() {
    let inputs = [Literal::from([true, true, false]), Literal::from([true, false, false])];
    check_op(Op::Binary(BinaryOp::And), &inputs, &[&[1.0, 0.0, 0.0]]);
    check_op(Op::Binary(BinaryOp::Or), &inputs, &[&[1.0, 1.0, 0.0]]);
    check_op(Op::Binary(BinaryOp::Xor), &inputs, &[&[0.0, 1.0, 0.0]]);
    check_op(Op::Compare(CompareOp::Gt), &inputs, &[&[0.0, 1.0, 0.0]]);
    let inputs = [Literal::from([12u16, 255]), Literal::from([10u16, 1])];
    check_op(Op::Binary(BinaryOp::Xor), &inputs, &[&[6.0, 254.0]]);
}

#[test]
fn compiled_comparisons_with_nan_are_false_but_ne() {
    let inputs = [Literal::from([f32::NAN, 1.0, 2.0]), Literal::from([f32::NAN, 1.0, 1.0])];
    let expected: [[f64; 3]; 6] = [
        [0.0, 1.0, 0.0],
        [1.0, 0.0, 1.0],
        [0.0, 0.0, 0.0],
        [0.0, 1.0, 0.0],
        [0.0, 0.0, 1.0],
        [0.0, 1.0, 1.0],
    ];
    for (op, expected) in CompareOp::ALL.into_iter().zip(expected) {
        check_op(Op::Compare(op), &inputs, &[&expected]);
    }
    let large = [Literal::from([u32::MAX]), Literal::from([1u32])];
    check_op(Op::Compare(CompareOp::Gt), &large, &[&[1.0]]);
}

#[test]
fn select_takes_each_element() {
    let predicate = Literal::from([true, false]);
    let inputs = [predicate, Literal::from([1i64, 2]), Literal::from([3i64, 4])];
    check_op(Op::Select, &inputs, &[&[1.0, 4.0]]);
}

#[test]
fn floats_to_integers_truncate_and_saturate() {
    let x = [0.0, 1.9, -1.9, 300.0, -300.0, 3e9, -3e9, 1e20, -1e20, INF, -INF, NAN];
    for from in [DType::F32, DType::F64, DType::BF16] {
        for to in DType::ALL.into_iter().filter(|dtype| dtype.is_int()) {
            let bits = if to.is_int4() { 4 } else { 8 * to.size() as i32 };
            let (low, high) = if to.is_unsigned() {
                (0.0, 2f64.powi(bits) - 1.0)
            } else {
                (-(2f64.powi(bits - 1)), 2f64.powi(bits - 1) - 1.0)
            };
            let input = literal(from, [12], &x);
            let expected: Vec<f64> = input
                .to_f64_vec()
                .iter()
                .map(|&x| if x.is_nan() { 0.0 } else { x.trunc().clamp(low, high) })
                .collect();
            check_op(Op::Convert { dtype: to }, &[input], &[&expected]);
        }
    }
}

#[test]
fn conversions_to_and_from_bool() {
    let to_bool = Op::Convert { dtype: DType::Bool };
    let x = Literal::from([0.0f32, -0.0, 0.5, f32::NAN]);
    check_op(to_bool.clone(), &[x], &[&[0.0, 0.0, 1.0, 1.0]]);
    check_op(to_bool, &[Literal::from([0i32, 2, -256])], &[&[0.0, 1.0, 1.0]]);
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_complex()) {
        let x = Literal::from([true, false]);
        check_op(Op::Convert { dtype }, &[x], &[&[1.0, 0.0]]);
    }
    check_op(Op::Convert { dtype: DType::U8 }, &[Literal::from([-1i32, 257])], &[&[255.0, 1.0]]);
}

#[test]
fn compiled_bitcasts_keep_the_bits() {
    let bits = Literal::from([0x3f80_0000u32, 0x7fc0_0000]);
    check_op(Op::Bitcast { dtype: DType::F32 }, &[bits], &[&[1.0, NAN]]);
    check_op(Op::Bitcast { dtype: DType::I64 }, &[Literal::from([-0.0f64])], &[&[i64::MIN as f64]]);
    check_op(Op::Bitcast { dtype: DType::U8 }, &[Literal::from([true, false])], &[&[1.0, 0.0]]);
}

#[test]
fn constants_of_every_type() {
    let values = [0.0, 1.0, 0.1, 100.0, 3.0];
    let mut b = Build::new();
    let mut outputs = Vec::new();
    let mut expected: Vec<Vec<f64>> = Vec::new();
    let mut constants = Vec::new();
    for dtype in DType::ALL {
        constants.push(literal(dtype, [5], &values));
        constants.push(literal(dtype, [0, 3], &[]));
        let many: Vec<f64> = (0..100).map(|i| (i % 7) as f64 * 0.3).collect();
        constants.push(literal(dtype, [20, 5], &many));
        constants.push(Literal::filled(TensorType::new(dtype, [2, 2]), 1.0));
    }
    constants.push(Literal::from([f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE, f32::MAX]));
    constants.push(Literal::from([f64::NAN, f64::NEG_INFINITY, 5e-324, f64::MAX]));
    constants.push(Literal::from([u64::MAX, 1]));
    constants.push(Literal::from([i64::MIN, i64::MAX]));
    for constant in &constants {
        outputs.push(b.constant(constant.clone()));
        expected.push(constant.to_f64_vec());
    }
    let got = run(&b.finish(&outputs), &[]);
    for (constant, got) in constants.iter().zip(got) {
        assert_eq!((*constant.bytes()).as_ref(), (*got.bytes()).as_ref(), "{constant:?}, {got:?}");
    }
}

#[test]
fn iota_counts() {
    for dtype in numbers() {
        let op = Op::Iota { ty: TensorType::new(dtype, [2, 3]), axis: 1 };
        check_op(op, &[], &[&[0.0, 1.0, 2.0, 0.0, 1.0, 2.0]]);
    }
}

#[test]
fn compiled_shape_operations_move_elements() {
    let x = || Literal::from([[1i32, 2, 3], [4, 5, 6]]);
    let op = Op::Broadcast { shape: [2, 2].into(), axes: smallvec![1] };
    check_op(op, &[Literal::from([1i32, 2])], &[&[1.0, 2.0, 1.0, 2.0]]);
    let op = Op::Broadcast { shape: [2, 2].into(), axes: smallvec![0, 1] };
    check_op(op, &[Literal::from([[1i32], [2]])], &[&[1.0, 1.0, 2.0, 2.0]]);
    let op = Op::Reshape { shape: [3, 2].into() };
    check_op(op, &[x()], &[&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    let op = Op::Transpose { permutation: smallvec![1, 0] };
    check_op(op, &[x()], &[&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]);
    let op = Op::Reverse { axes: smallvec![1] };
    check_op(op, &[x()], &[&[3.0, 2.0, 1.0, 6.0, 5.0, 4.0]]);
    let op = Op::Concat { axis: 1 };
    check_op(
        op,
        &[x(), Literal::from([[7i32], [8]])],
        &[&[1.0, 2.0, 3.0, 7.0, 4.0, 5.0, 6.0, 8.0]],
    );
    let pad = Op::Pad { low: smallvec![0, 1], high: smallvec![-1, 0], interior: smallvec![0, 1] };
    check_op(pad, &[x(), Literal::scalar(9i32)], &[&[9.0, 1.0, 9.0, 2.0, 9.0, 3.0]]);
    let slice =
        Op::Slice { start: smallvec![1, 0], limit: smallvec![2, 3], stride: smallvec![1, 2] };
    check_op(slice, &[x()], &[&[4.0, 6.0]]);
}

#[test]
fn windows_at_computed_starts() {
    let x = || Literal::from([[1i32, 2, 3], [4, 5, 6]]);
    let start = Literal::scalar;
    let op = Op::DynamicSlice { sizes: [1, 2].into() };
    check_op(op.clone(), &[x(), start(1), start(0)], &[&[4.0, 5.0]]);
    check_op(op, &[x(), start(-5), start(9)], &[&[2.0, 3.0]]);
    let update = Literal::from([[7i32, 8]]);
    let op = Op::DynamicUpdateSlice;
    check_op(op, &[x(), update, start(9), start(9)], &[&[1.0, 2.0, 3.0, 4.0, 7.0, 8.0]]);
    check_op(Op::DynamicSlice { sizes: Shape::scalar() }, &[Literal::scalar(3i32)], &[&[3.0]]);
    check_op(Op::DynamicUpdateSlice, &[Literal::scalar(3i32), Literal::scalar(4i32)], &[&[4.0]]);
}

#[test]
fn compiled_gathers_clamp_indices() {
    let x = || Literal::from([[1f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
    // Rows; indices outside are clamped.
    let rows = GatherDims {
        offset_dims: smallvec![1],
        collapsed_slice_dims: smallvec![0],
        start_index_map: smallvec![0],
        slice_sizes: [1, 3].into(),
        ..GatherDims::default()
    };
    let indices = Literal::from([[1i32], [-3], [7]]);
    let expected = [4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    check_op(Op::Gather(rows), &[x(), indices], &[&expected]);
    // One element of each row.
    let paired = GatherDims {
        operand_batching_dims: smallvec![0],
        start_indices_batching_dims: smallvec![0],
        collapsed_slice_dims: smallvec![1],
        start_index_map: smallvec![1],
        slice_sizes: [1, 1].into(),
        ..GatherDims::default()
    };
    for indices in [Literal::from([[2i32], [0]]), Literal::from([[2u32], [0]])] {
        check_op(Op::Gather(paired.clone()), &[x(), indices], &[&[3.0, 4.0]]);
    }
    // A scalar operand has windows without axes.
    let scalar = GatherDims { slice_sizes: Shape::scalar(), ..GatherDims::default() };
    let indices = Literal::new([2, 0], &[0i32; 0]);
    check_op(Op::Gather(scalar), &[Literal::scalar(5f32), indices], &[&[5.0, 5.0]]);
}

#[test]
fn compiled_scatters_combine_or_drop_windows() {
    let dims = |kind| ScatterDims {
        kind,
        update_window_dims: smallvec![1],
        inserted_window_dims: smallvec![0],
        operand_batching_dims: smallvec![],
        scatter_indices_batching_dims: smallvec![],
        scatter_dims_to_operand_dims: smallvec![0],
    };
    let x = || Literal::from([[1f32, 2.0], [3.0, 4.0]]);
    let updates = || Literal::from([[10f32, 20.0], [30.0, 40.0], [50.0, 60.0]]);
    // The last one is outside, and is dropped.
    let indices = || Literal::from([[1i32], [1], [2]]);
    let add = Op::Scatter(dims(ScatterKind::Add));
    check_op(add, &[x(), indices(), updates()], &[&[1.0, 2.0, 43.0, 64.0]]);
    let set = Op::Scatter(dims(ScatterKind::Set));
    let indices = Literal::from([[1i32], [0], [2]]);
    check_op(set, &[x(), indices, updates()], &[&[30.0, 40.0, 10.0, 20.0]]);
    let paired = ScatterDims {
        kind: ScatterKind::Set,
        update_window_dims: smallvec![],
        inserted_window_dims: smallvec![1],
        operand_batching_dims: smallvec![0],
        scatter_indices_batching_dims: smallvec![0],
        scatter_dims_to_operand_dims: smallvec![1],
    };
    let indices = Literal::from([[1i32], [-1]]);
    let updates = Literal::from([9f32, 8.0]);
    check_op(Op::Scatter(paired), &[x(), indices, updates], &[&[1.0, 9.0, 3.0, 4.0]]);
}

#[test]
fn compiled_dots_contract_and_batch() {
    let x = || Literal::from([[1f32, 2.0], [3.0, 4.0]]);
    let matmul =
        DotDims { lhs_contract: smallvec![1], rhs_contract: smallvec![0], ..DotDims::default() };
    check_op(Op::Dot(matmul), &[x(), x()], &[&[7.0, 10.0, 15.0, 22.0]]);
    let batched = DotDims {
        lhs_contract: smallvec![1],
        rhs_contract: smallvec![1],
        lhs_batch: smallvec![0],
        rhs_batch: smallvec![0],
        precision: Precision::Default,
    };
    check_op(Op::Dot(batched), &[x(), x()], &[&[5.0, 25.0]]);
    let outer = Op::Dot(DotDims::default());
    let (a, b) = (Literal::from([1i32, 2]), Literal::from([3i32, 4]));
    check_op(outer, &[a, b], &[&[3.0, 4.0, 6.0, 8.0]]);
}

fn conv_dims() -> ConvDims {
    ConvDims {
        lhs_spec: smallvec![0, 3, 1, 2],
        rhs_spec: smallvec![3, 2, 0, 1],
        out_spec: smallvec![0, 3, 1, 2],
        strides: smallvec![1, 1],
        padding: smallvec![(0, 0), (0, 0)],
        lhs_dilation: smallvec![1, 1],
        rhs_dilation: smallvec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    }
}

#[test]
fn compiled_convolutions_stride_dilate_and_pad() {
    let x: Vec<f32> = (1..=9).map(|i| i as f32).collect();
    let image = || Literal::new([1, 3, 3, 1], &x);
    let kernel = || Literal::new([2, 2, 1, 1], &[1f32, 2.0, 3.0, 4.0]);
    check_op(Op::Conv(conv_dims()), &[image(), kernel()], &[&[37.0, 47.0, 67.0, 77.0]]);
    let strided =
        ConvDims { strides: smallvec![2, 2], padding: smallvec![(1, 0), (1, 0)], ..conv_dims() };
    check_op(Op::Conv(strided), &[image(), kernel()], &[&[4.0, 18.0, 36.0, 77.0]]);
    let cut = ConvDims {
        padding: smallvec![(-1, 0), (0, -1)],
        rhs_dilation: smallvec![1, 1],
        ..conv_dims()
    };
    check_op(Op::Conv(cut), &[image(), kernel()], &[&[67.0]]);
    // Depthwise, on one spatial axis, features first.
    let depthwise = ConvDims {
        lhs_spec: smallvec![0, 1, 2],
        rhs_spec: smallvec![0, 1, 2],
        out_spec: smallvec![0, 1, 2],
        strides: smallvec![1],
        padding: smallvec![(0, 0)],
        lhs_dilation: smallvec![1],
        rhs_dilation: smallvec![1],
        feature_groups: 2,
        batch_groups: 1,
        precision: Precision::Default,
    };
    let image = Literal::new([1, 2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let kernel = Literal::new([2, 1, 2], &[1f32, 1.0, 2.0, 0.0]);
    check_op(Op::Conv(depthwise), &[image, kernel], &[&[3.0, 5.0, 8.0, 10.0]]);
}

#[test]
fn reductions_of_every_type() {
    for dtype in numbers() {
        let reduce = |op| Op::Reduce { op, axes: smallvec![1] };
        let x = || literal(dtype, [2, 3], &[1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        check_op(reduce(ReduceOp::Sum), &[x()], &[&[6.0, 7.0]]);
        check_op(reduce(ReduceOp::Prod), &[x()], &[&[6.0, 8.0]]);
        check_op(reduce(ReduceOp::Max), &[x()], &[&[3.0, 4.0]]);
        check_op(reduce(ReduceOp::Min), &[x()], &[&[1.0, 1.0]]);
        if dtype.is_int() {
            check_op(reduce(ReduceOp::And), &[x()], &[&[0.0, 0.0]]);
            check_op(reduce(ReduceOp::Or), &[x()], &[&[3.0, 7.0]]);
        }
        let all = Op::Reduce { op: ReduceOp::Sum, axes: smallvec![0, 1] };
        check_op(all, &[x()], &[&[13.0]]);
        let none = Op::Reduce { op: ReduceOp::Sum, axes: smallvec![] };
        check_op(none, &[x()], &[&[1.0, 2.0, 3.0, 4.0, 1.0, 2.0]]);
    }
    let x = || Literal::from([[true, false], [true, true]]);
    check_op(Op::Reduce { op: ReduceOp::And, axes: smallvec![1] }, &[x()], &[&[0.0, 1.0]]);
    check_op(Op::Reduce { op: ReduceOp::Or, axes: smallvec![1] }, &[x()], &[&[1.0, 1.0]]);
}

#[test]
fn reductions_of_nothing() {
    let empty = |dtype| Literal::filled(TensorType::new(dtype, [0]), 0.0);
    let reduce = |op| Op::Reduce { op, axes: smallvec![0] };
    check_op(reduce(ReduceOp::Max), &[empty(DType::F32)], &[&[-INF]]);
    check_op(reduce(ReduceOp::Min), &[empty(DType::I8)], &[&[127.0]]);
    check_op(reduce(ReduceOp::And), &[empty(DType::U16)], &[&[65535.0]]);
    check_op(reduce(ReduceOp::And), &[empty(DType::I16)], &[&[-1.0]]);
    check_op(reduce(ReduceOp::And), &[empty(DType::Bool)], &[&[1.0]]);
    check_op(reduce(ReduceOp::Prod), &[empty(DType::F16)], &[&[1.0]]);
}

#[test]
fn arg_reductions_take_the_first() {
    let arg = |op, axis| Op::ArgReduce { op, axis };
    for dtype in numbers() {
        let x = || literal(dtype, [2, 4], &[1.0, 3.0, 3.0, 1.0, 5.0, 2.0, 2.0, 5.0]);
        check_op(arg(ArgOp::Max, 1), &[x()], &[&[1.0, 0.0]]);
        check_op(arg(ArgOp::Min, 1), &[x()], &[&[0.0, 1.0]]);
        check_op(arg(ArgOp::Max, 0), &[x()], &[&[1.0, 0.0, 0.0, 1.0]]);
    }
    let nan = f32::NAN;
    let x = || Literal::from([[1.0, nan, 9.0, nan], [-f32::INFINITY; 4], [f32::INFINITY; 4]]);
    check_op(arg(ArgOp::Max, 1), &[x()], &[&[1.0, 0.0, 0.0]]);
    check_op(arg(ArgOp::Min, 1), &[x()], &[&[1.0, 0.0, 0.0]]);
}

#[test]
fn sorts_are_stable() {
    let sort = || Op::Sort { axis: 0 };
    let nan = f32::NAN;
    let keys = Literal::from([3.0, -nan, -0.0, 0.0, nan, -f32::INFINITY, f32::INFINITY, 0.0, -0.0]);
    let order = Literal::from([0i32, 1, 2, 3, 4, 5, 6, 7, 8]);
    check_op(
        sort(),
        &[keys, order],
        &[
            &[-INF, 0.0, 0.0, 0.0, 0.0, 3.0, INF, NAN, NAN],
            &[5.0, 2.0, 3.0, 7.0, 8.0, 0.0, 6.0, 1.0, 4.0],
        ],
    );
    for dtype in numbers() {
        check_op(sort(), &[literal(dtype, [4], &[3.0, 1.0, 2.0, 1.0])], &[&[1.0, 1.0, 2.0, 3.0]]);
    }
    check_op(sort(), &[Literal::from([u32::MAX, 0, 5])], &[&[0.0, 5.0, u32::MAX as f64]]);
    check_op(sort(), &[Literal::from([true, false, true])], &[&[0.0, 1.0, 1.0]]);
    let rows = Literal::from([[3i32, 1], [2, 4]]);
    check_op(Op::Sort { axis: 1 }, &[rows], &[&[1.0, 3.0, 2.0, 4.0]]);
}

#[test]
fn threefry_known_answers() {
    let input = |words: [u32; 3]| Literal::from(words);
    let program = single(Op::Threefry, &vec![TensorType::new(DType::U32, [3]); 4]);
    let inputs = [
        input([0, u32::MAX, 0x1319_8a2e]),
        input([0, u32::MAX, 0x0370_7344]),
        input([0, u32::MAX, 0x243f_6a88]),
        input([0, u32::MAX, 0x85a3_08d3]),
    ];
    let got = run(&program, &inputs);
    assert_eq!(got[0].to_vec::<u32>().unwrap(), [0x6b20_0159, 0x1cb9_96fc, 0xc492_3a9c]);
    assert_eq!(got[1].to_vec::<u32>().unwrap(), [0x99ba_4efe, 0xbb00_2be7, 0x483d_f7a0]);
    // Many elements are written otherwise.
    let many = single(Op::Threefry, &vec![TensorType::new(DType::U32, [3000]); 4]);
    let inputs = [0x1319_8a2eu32, 0x0370_7344, 0x243f_6a88, 0x85a3_08d3]
        .map(|word| Literal::splat([3000], word));
    let got = run(&many, &inputs);
    assert!(got[0].to_vec::<u32>().unwrap().iter().all(|&word| word == 0xc492_3a9c));
    assert!(got[1].to_vec::<u32>().unwrap().iter().all(|&word| word == 0x483d_f7a0));
    let scalar = single(Op::Threefry, &vec![TensorType::scalar(DType::U32); 4]);
    let got = run(&scalar, &vec![Literal::scalar(0u32); 4]);
    assert_eq!(got[0].to_vec::<u32>().unwrap(), [0x6b20_0159]);
}

#[test]
fn outputs_may_be_inputs_constants_and_repeated() {
    let mut b = Build::new();
    let x = b.input(f32s([2]));
    let stopped = b.op(Op::StopGradient, &[x]);
    let k = b.constant(3i32);
    let program = b.finish(&[x, stopped, k, k]);
    let x = Literal::from([1f32, 2.0]);
    check(&program, &[x], &[&[1.0, 2.0], &[1.0, 2.0], &[3.0], &[3.0]]);
}

#[test]
fn compiler_options_are_checked_by_the_compiler() {
    let next = || jit(|x: Tensor| x + 1.0);
    let one = || Array::from(1.0f32);
    let unknown = next().compiler_option("xla_no_such_flag", true).call(one());
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("xla_no_such_flag"), "{unknown}");
    let mistyped = next().compiler_option("xla_backend_optimization_level", "high").call(one());
    let mistyped = mistyped.unwrap_err().to_string();
    assert!(mistyped.contains("xla_backend_optimization_level"), "{mistyped}");
    // The last word counts.
    let mended = next()
        .compiler_option("xla_backend_optimization_level", "high")
        .compiler_option("xla_backend_optimization_level", 1);
    assert_eq!(mended.call(one()).unwrap().item::<f32>().unwrap(), 2.0);
    // Other modes have no compiler to tell.
    let interpreted = interpret(|x: Tensor| x + 1.0).compiler_option("xla_no_such_flag", true);
    assert_eq!(interpreted.call(one()).unwrap().item::<f32>().unwrap(), 2.0);
}
