//! The law of `vmap`: its results equal those of a loop. Each case is checked for every choice of
//! mapped inputs, and again with a second `vmap` around the first.

use std::panic::Location;

use super::*;
use crate::trace::check;
use crate::trace::control;
use crate::trace::eval::eval;
use crate::trace::literal::AlignedBytes;
use crate::trace::op::FftKind;
use crate::trace::op::{BinaryOp, CompareOp, ConvDims, DotDims, Precision, ReduceOp, UnaryOp};
use crate::trace::op::{GatherDims, ScatterDims, ScatterKind};
use crate::trace::ops::{IndexMode, concatenate, conv_general, dot_general, gather, scatter};
use crate::trace::ops::{arange, constant, fft, sort_by, where_};
use crate::trace::tensor::{FrameKind, catch, trace_frame};
use crate::trace::types::Shape;

mod composition;
mod control_flow;
mod front_door;
mod windows;

/// An input of a case: its type, and the range of its values.
#[derive(Clone)]
struct Input {
    ty: TensorType,
    from: f64,
    to: f64,
}

fn input(dtype: DType, shape: impl Into<Shape>, from: f64, to: f64) -> Input {
    Input { ty: TensorType::new(dtype, shape), from, to }
}

fn floats(shape: impl Into<Shape>) -> Input {
    input(DType::F32, shape, -2.0, 2.0)
}

fn ints(shape: impl Into<Shape>, from: i32, to: i32) -> Input {
    input(DType::I32, shape, from as f64, to as f64 + 0.999)
}

fn bools(shape: impl Into<Shape>) -> Input {
    input(DType::Bool, shape, 0.0, 1.999)
}

fn words(shape: impl Into<Shape>) -> Input {
    input(DType::U32, shape, 0.0, 4e9)
}

type Function = Box<dyn Fn(&[Tensor]) -> Vec<Tensor>>;

/// A function and its inputs.
struct Case {
    name: &'static str,
    inputs: Vec<Input>,
    f: Function,
}

fn case(
    name: &'static str,
    inputs: impl Into<Vec<Input>>,
    f: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
) -> Case {
    Case { name, inputs: inputs.into(), f: Box::new(f) }
}

fn trace(types: &[TensorType], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Program {
    let traced =
        catch(|| trace_frame(FrameKind::Body, types, Location::caller(), |args| (f(args), ())).0);
    let program = traced.unwrap_or_else(|error| panic!("{error}")).program;
    check::verify(&program).unwrap_or_else(|fault| panic!("{fault}\n{program}"));
    program
}

impl Case {
    fn program(&self) -> Program {
        let types: Vec<TensorType> = self.inputs.iter().map(|input| input.ty.clone()).collect();
        trace(&types, &self.f)
    }

    fn hold(&self) {
        let program = self.program();
        for mask in masks(self.inputs.len()) {
            let (batched, inputs) = hold(self.name, &program, &self.inputs, &mask, 3);
            let all = vec![true; mask.len()];
            let first: Vec<bool> = (0..mask.len()).map(|i| i == 0).collect();
            let last: Vec<bool> = (0..mask.len()).map(|i| i + 1 == mask.len()).collect();
            for outer in [all, first, last] {
                hold(self.name, &batched, &inputs, &outer, 2);
            }
        }
    }
}

/// Every choice of mapped inputs, but none.
fn masks(inputs: usize) -> impl Iterator<Item = Vec<bool>> {
    (1..1usize << inputs).map(move |mask| (0..inputs).map(|i| mask >> i & 1 == 1).collect())
}

/// Checks the law for one choice of mapped inputs. Returns the batched Program and its inputs.
fn hold(
    name: &str,
    program: &Program,
    inputs: &[Input],
    mapped: &[bool],
    size: usize,
) -> (Program, Vec<Input>) {
    let full = |(input, &mapped): (&Input, &bool)| {
        let mut input = input.clone();
        if mapped {
            input.ty.shape = input.ty.shape.with_axis(0, size);
        }
        input
    };
    let inputs: Vec<Input> = inputs.iter().zip(mapped).map(full).collect();
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty.clone()).collect();
    let batched = trace(&types, |args| {
        let args: Vec<Batched> =
            args.iter().zip(mapped).map(|(&tensor, &mapped)| Batched { tensor, mapped }).collect();
        vmap_program(program, &args, Axis::new("batch", size))
            .iter()
            .map(|output| output.full(size))
            .collect()
    });
    let values: Vec<Literal> =
        inputs.iter().enumerate().map(|(i, input)| random(input, i as u64)).collect();
    let outputs = eval(&batched, &values).unwrap();
    for lane in 0..size {
        let slices: Vec<Literal> = values
            .iter()
            .zip(mapped)
            .map(|(value, &mapped)| if mapped { slice(value, lane) } else { value.clone() })
            .collect();
        let expected = eval(program, &slices).unwrap();
        for (i, (output, expected)) in outputs.iter().zip(&expected).enumerate() {
            let output = slice(output, lane);
            assert!(
                close(&output, expected),
                "{name}, {mapped:?} mapped: result {i} of example {lane} is {output:?}, and a \
                 loop gives {expected:?}\n{program}\n{batched}"
            );
        }
    }
    (batched, inputs)
}

/// Values spread over the input's range by a linear congruential generator.
fn random(input: &Input, seed: u64) -> Literal {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(12345);
    let mut values = Vec::with_capacity(input.ty.numel());
    for _ in 0..input.ty.numel() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        values.push(input.from + (input.to - input.from) * unit);
    }
    let shape = &input.ty.shape;
    let floor = values.iter().map(|v| v.floor());
    let dtype = input.ty.dtype;
    match dtype {
        DType::F32 => Literal::new(shape, &values.iter().map(|&v| v as f32).collect::<Vec<f32>>()),
        DType::I32 => Literal::new(shape, &floor.map(|v| v as i32).collect::<Vec<i32>>()),
        DType::U32 => Literal::new(shape, &floor.map(|v| v as u32).collect::<Vec<u32>>()),
        DType::Bool => Literal::new(shape, &floor.map(|v| v != 0.0).collect::<Vec<bool>>()),
        DType::I8
        | DType::I16
        | DType::I64
        | DType::U8
        | DType::U16
        | DType::U64
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::C64
        | DType::C128
        | DType::F8E4M3FN
        | DType::F8E5M2
        | DType::I4
        | DType::U4 => {
            panic!("no values of type {dtype}")
        }
    }
}

fn slice(value: &Literal, lane: usize) -> Literal {
    let ty = TensorType::new(value.ty().dtype, value.ty().shape.without_axis(0));
    let bytes = value.clone().dense().bytes();
    let bytes = &(*bytes).as_ref()[lane * ty.bytes()..][..ty.bytes()];
    let copy = AlignedBytes::copy_of(bytes);
    Literal::from_bytes(ty, copy)
}

fn close(a: &Literal, b: &Literal) -> bool {
    let near = |(a, b): (&f64, &f64)| {
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * (1.0 + b.abs())
    };
    a.ty() == b.ty() && a.to_f64_vec().iter().zip(&b.to_f64_vec()).all(near)
}

fn hold_all(cases: Vec<Case>) {
    for case in cases {
        case.hold();
    }
}

fn bound(op: Op, inputs: &[Tensor]) -> Vec<Tensor> {
    bind(op, inputs, Location::caller()).to_vec()
}

fn elementwise() -> Vec<Case> {
    let mut cases = vec![
        case("select", [bools([4]), floats([4]), floats([4])], |x| vec![where_(x[0], x[1], x[2])]),
        case("clamp", [floats([4]), floats([4]), floats([4])], |x| bound(Op::Clamp, x)),
        case("convert", [floats([2, 3])], |x| vec![x[0].to(DType::I32), x[0].to(DType::Bool)]),
        case("bitcast", [floats([3])], |x| vec![x[0].bitcast(DType::U32)]),
        case("stop_gradient", [floats([3])], |x| vec![x[0].stop_gradient()]),
        case("threefry", [words([]), words([]), words([]), words([])], |x| bound(Op::Threefry, x)),
        case("constants", [floats([4])], |x| vec![x[0] + arange(4, DType::F32) * 2.0]),
        case("unmapped result", [floats([4]), floats([2])], |x| vec![x[0], x[1] * 2.0]),
    ];
    for op in UnaryOp::ALL {
        let fits = |dtype: &DType| op.domain().contains(*dtype);
        let dtype = [DType::F32, DType::C64, DType::I32].into_iter().find(fits).unwrap();
        let of_dtype = move |x: &[Tensor]| bound(Op::Unary(op), &[x[0].to(dtype)]);
        cases.push(case(op.name(), [floats([2, 2])], of_dtype));
    }
    cases.push(case("fft", [floats([2, 4])], |x| vec![fft(x[0], FftKind::Rfft, &[2, 4])]));
    for op in BinaryOp::ALL {
        let of: fn([usize; 1]) -> Input = match op.domain().contains(DType::F32) {
            true => |shape| floats(shape),
            false => |shape| ints(shape, 0, 40),
        };
        cases.push(case(op.name(), [of([4]), of([4])], move |x| bound(Op::Binary(op), x)));
    }
    for op in CompareOp::ALL {
        let inputs = [ints([6], 0, 2), ints([6], 0, 2)];
        cases.push(case(op.name(), inputs, move |x| bound(Op::Compare(op), x)));
    }
    cases
}

fn shapes() -> Vec<Case> {
    vec![
        case("broadcast", [floats([3, 1])], |x| vec![x[0].broadcast_in_dim([2, 3, 4], &[1, 2])]),
        case("broadcast a scalar", [floats([])], |x| vec![x[0].broadcast_to([2, 3])]),
        case("reshape", [floats([2, 6])], |x| vec![x[0].reshape([3, 4]), x[0].ravel()]),
        case("transpose", [floats([2, 3, 4])], |x| vec![x[0].transpose(&[2, 0, 1])]),
        case("reverse", [floats([2, 3])], |x| vec![x[0].flip(1)]),
        case("concat", [floats([2, 3]), floats([2, 1]), floats([2, 2])], |x| {
            vec![concatenate(x, 1)]
        }),
        case("slice", [floats([4, 6])], |x| vec![x[0].strided_slice(&[1, 0], &[4, 5], &[1, 2])]),
        case("pad", [floats([2, 3]), floats([])], |x| {
            vec![x[0].pad_with(&[1, -1], &[0, 2], &[2, 1], x[1])]
        }),
        case("pad a scalar", [floats([]), floats([])], |x| {
            vec![x[0].pad_with(&[], &[], &[], x[1])]
        }),
    ]
}

fn reductions() -> Vec<Case> {
    let mut cases = vec![
        case("argmax", [ints([4, 5], 0, 3)], |x| vec![x[0].argmax(1), x[0].argmin(0)]),
        case("sort", [floats([3, 4])], |x| vec![x[0].sort(0), x[0].sort(1)]),
        case("sort_by", [ints([5], 0, 2), floats([5]), ints([5], 0, 9)], |x| {
            let (key, others) = sort_by(x[0], &x[1..], 0);
            [vec![key], others].concat()
        }),
        case("cumsum", [floats([2, 5])], |x| vec![x[0].cumsum(1)]),
    ];
    for op in ReduceOp::ALL {
        let input = match op {
            ReduceOp::And | ReduceOp::Or => bools([2, 3, 2]),
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => floats([2, 3, 2]),
        };
        cases.push(case(op.name(), [input], move |x| {
            vec![x[0].reduce(op, Axes::from_slice(&[2, 0])), x[0].reduce(op, (0..3).collect())]
        }));
    }
    cases
}

fn dot_case(
    name: &'static str,
    shapes: (&[usize], &[usize]),
    contract: (&[usize], &[usize]),
    batch: (&[usize], &[usize]),
) -> Case {
    let dims = DotDims {
        lhs_contract: contract.0.into(),
        rhs_contract: contract.1.into(),
        lhs_batch: batch.0.into(),
        rhs_batch: batch.1.into(),
        precision: Precision::Default,
    };
    case(name, [floats(shapes.0), floats(shapes.1)], move |x| {
        vec![dot_general(x[0], x[1], dims.clone())]
    })
}

fn products() -> Vec<Case> {
    vec![
        dot_case("matrix by matrix", (&[2, 3], &[3, 4]), (&[1], &[0]), (&[], &[])),
        dot_case("matrix by vector", (&[2, 3], &[3]), (&[1], &[0]), (&[], &[])),
        dot_case("vector by matrix", (&[3], &[3, 4]), (&[0], &[0]), (&[], &[])),
        dot_case("inner", (&[3], &[3]), (&[0], &[0]), (&[], &[])),
        dot_case("outer", (&[2], &[3]), (&[], &[]), (&[], &[])),
        dot_case("paired", (&[5, 2, 3], &[3, 5, 4]), (&[2], &[0]), (&[0], &[1])),
        dot_case("paired vectors", (&[3, 5], &[5, 3]), (&[0], &[1]), (&[1], &[0])),
        dot_case(
            "two of each",
            (&[2, 3, 4, 5, 2], &[5, 2, 2, 3]),
            (&[3, 0], &[0, 2]),
            (&[1, 4], &[3, 1]),
        ),
    ]
}

fn conv_case(
    name: &'static str,
    lhs: [usize; 4],
    rhs: [usize; 4],
    groups: (usize, usize),
    specs: [[usize; 4]; 3],
) -> Case {
    let dims = ConvDims {
        lhs_spec: specs[0][..].into(),
        rhs_spec: specs[1][..].into(),
        out_spec: specs[2][..].into(),
        strides: Axes::from_slice(&[2, 1]),
        padding: smallvec![(1, 0), (0, 1)],
        lhs_dilation: Axes::from_slice(&[1, 2]),
        rhs_dilation: Axes::from_slice(&[1, 1]),
        feature_groups: groups.0,
        batch_groups: groups.1,
        precision: Precision::Default,
    };
    case(name, [floats(lhs), floats(rhs)], move |x| vec![conv_general(x[0], x[1], dims.clone())])
}

fn convolutions() -> Vec<Case> {
    // NCHW and OIHW; then NHWC and HWIO.
    let first = [[0, 1, 2, 3]; 3];
    let last = [[0, 3, 1, 2], [3, 2, 0, 1], [0, 3, 1, 2]];
    vec![
        conv_case("conv", [2, 3, 4, 5], [4, 3, 2, 2], (1, 1), first),
        conv_case("conv, features last", [2, 4, 5, 3], [2, 2, 3, 4], (1, 1), last),
        conv_case("conv in groups", [2, 4, 4, 3], [6, 2, 2, 2], (2, 1), first),
        conv_case("conv in groups, features last", [2, 4, 3, 4], [2, 2, 2, 6], (2, 1), last),
        conv_case("conv in batch groups", [4, 3, 4, 3], [6, 3, 2, 2], (1, 2), first),
        conv_case("conv in batch groups, last", [4, 4, 3, 3], [2, 2, 3, 6], (1, 2), last),
    ]
}

#[test]
fn elementwise_operations_are_a_loop() {
    hold_all(elementwise());
}

#[test]
fn shapes_are_a_loop() {
    hold_all(shapes());
}

#[test]
fn reductions_are_a_loop() {
    hold_all(reductions());
}

#[test]
fn products_are_a_loop() {
    hold_all(products());
}

#[test]
fn convolutions_are_a_loop() {
    hold_all(convolutions());
}
