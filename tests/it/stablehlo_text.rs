//! The text of StableHLO modules.

use std::sync::Arc;

use indoc::indoc;
use podracer::lower::{LowerOptions, Platform, stablehlo};
use podracer::trace::op::*;
use podracer::trace::{DType, Literal, Op, Program, TensorType};
use pretty_assertions::assert_eq;
use smallvec::smallvec;

use crate::build::{Build, f32s, i32s, single};

fn text(program: &Program) -> String {
    stablehlo(program, &LowerOptions { locations: false, ..LowerOptions::default() })
}

/// The lines inside `@main`.
fn body(program: &Program) -> String {
    let text = text(program);
    let mut lines: Vec<&str> = text.lines().skip(2).collect();
    let end = lines.iter().position(|line| *line == "  }").expect("a function ends");
    lines.truncate(end);
    lines.iter().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or(line))).collect()
}

/// A linear layer with a bias, a rectifier, and the sum.
fn layer() -> Program {
    let mut b = Build::new();
    let (x, w, bias) = (b.input(f32s([8, 3])), b.input(f32s([3, 2])), b.input(f32s([2])));
    let dims =
        DotDims { lhs_contract: smallvec![1], rhs_contract: smallvec![0], ..DotDims::default() };
    let y = b.op(Op::Dot(dims), &[x, w]);
    let bias = b.op(Op::Broadcast { shape: [8, 2].into(), axes: smallvec![1] }, &[bias]);
    let y = b.op(Op::Binary(BinaryOp::Add), &[y, bias]);
    let zero = b.constant(Literal::splat([8, 2], 0f32));
    let y = b.op(Op::Binary(BinaryOp::Max), &[y, zero]);
    let sum = b.op(Op::Reduce { op: ReduceOp::Sum, axes: smallvec![0, 1] }, &[y]);
    b.finish(&[sum])
}

#[test]
fn a_module_is_written_as_expected() {
    assert_eq!(
        text(&layer()),
        indoc! {r#"
            module @program attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
              func.func public @main(%arg0: tensor<8x3xf32>, %arg1: tensor<3x2xf32>, %arg2: tensor<2xf32>) -> (tensor<f32>) {
                %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x3xf32>, tensor<3x2xf32>) -> tensor<8x2xf32>
                %1 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<2xf32>) -> tensor<8x2xf32>
                %2 = stablehlo.add %0, %1 : tensor<8x2xf32>
                %3 = stablehlo.constant dense<0.0> : tensor<f32>
                %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<8x2xf32>
                %5 = stablehlo.maximum %2, %4 : tensor<8x2xf32>
                %6 = stablehlo.reduce(%5 init: %3) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x2xf32>, tensor<f32>) -> tensor<f32>
                return %6 : tensor<f32>
              }
            }
        "#}
    );
}

#[test]
fn options_become_attributes_of_the_module() {
    let options = LowerOptions {
        name: "train step".into(),
        num_replicas: 4,
        num_partitions: 2,
        aliases: vec![(1, 0)],
        donors: vec![1],
        in_shardings: vec!["{replicated}".into(), "{devices=[2]<=[2]}".into()],
        out_shardings: vec![Some("{devices=[2]<=[2]}".into())],
        locations: false,
        ..LowerOptions::default()
    };
    let mut b = Build::new();
    let (_, x) = (b.input(i32s([])), b.input(f32s([2])));
    let program = b.finish(&[x]);
    assert_eq!(
        stablehlo(&program, &options),
        indoc! {r#"
            module @"train step" attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 4 : i32} {
              func.func public @main(%arg0: tensor<i32> {mhlo.sharding = "{replicated}"}, %arg1: tensor<2xf32> {mhlo.sharding = "{devices=[2]<=[2]}", tf.aliasing_output = 0 : i32, jax.buffer_donor = true}) -> (tensor<2xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) {
                return %arg1 : tensor<2xf32>
              }
            }
        "#}
    );
}

#[test]
fn locations_are_the_users_lines() {
    let mut b = Build::new();
    let x = b.input(f32s([]));
    let line = line!() + 1;
    let y = b.op(Op::Unary(UnaryOp::Exp), &[x]);
    let y = b.op(Op::Unary(UnaryOp::Neg), &[y]);
    let text = stablehlo(&b.finish(&[y]), &LowerOptions::default());
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines[2], "%0 = stablehlo.exponential %arg0 : tensor<f32> loc(#loc0)");
    assert_eq!(lines[3], "%1 = stablehlo.negate %0 : tensor<f32> loc(#loc1)");
    let file = file!().replace('\\', "\\5C");
    assert_eq!(lines[7], format!("#loc0 = loc(\"{file}\":{line}:15)"));
    assert_eq!(lines[8], format!("#loc1 = loc(\"{file}\":{}:15)", line + 1));
}

#[test]
fn constants_are_written_once_and_where_they_are_used() {
    let mut b = Build::new();
    let x = b.input(f32s([3]));
    let _unused = b.constant(7f32);
    let (one, again) =
        (b.constant(Literal::splat([3], 1f32)), b.constant(Literal::splat([3], 1f32)));
    let x = b.op(Op::Binary(BinaryOp::Add), &[x, one]);
    let x = b.op(Op::Binary(BinaryOp::Mul), &[x, again]);
    let few = b.constant([0.5f32, f32::NAN, -0.0]);
    let x = b.op(Op::Binary(BinaryOp::Add), &[x, few]);
    assert_eq!(
        body(&b.finish(&[x])),
        indoc! {r#"
            %0 = stablehlo.constant dense<1.0> : tensor<f32>
            %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<3xf32>
            %2 = stablehlo.add %arg0, %1 : tensor<3xf32>
            %3 = stablehlo.multiply %2, %1 : tensor<3xf32>
            %4 = stablehlo.constant dense<[0.5, 0x7FC00000, -0.0]> : tensor<3xf32>
            %5 = stablehlo.add %3, %4 : tensor<3xf32>
            return %5 : tensor<3xf32>
        "#}
    );
}

#[test]
fn what_changes_nothing_writes_nothing() {
    let mut b = Build::new();
    let x = b.input(f32s([2, 3]));
    let y = b.op(Op::Reshape { shape: [2, 3].into() }, &[x]);
    let y = b.op(Op::Convert { dtype: DType::F32 }, &[y]);
    let y = b.op(Op::Transpose { permutation: smallvec![0, 1] }, &[y]);
    let y = b.op(Op::StopGradient, &[y]);
    let y = b.op(Op::Concat { axis: 0 }, &[y]);
    let y = b.op(Op::Reduce { op: ReduceOp::Max, axes: smallvec![] }, &[y]);
    assert_eq!(body(&b.finish(&[y])), "return %arg0 : tensor<2x3xf32>\n");
}

#[test]
fn argmax_and_sort_are_written_as_regions() {
    let mut b = Build::new();
    let x = b.input(f32s([2, 3]));
    let i = b.op(Op::ArgReduce { op: ArgOp::Max, axis: 1 }, &[x]);
    let sorted = b.op(Op::Sort { axis: 1 }, &[x]);
    assert_eq!(
        body(&b.finish(&[i, sorted])),
        indoc! {r#"
            %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
            %1 = stablehlo.constant dense<0> : tensor<i32>
            %2 = stablehlo.iota dim = 1 : tensor<2x3xi32>
            %3:2 = stablehlo.reduce(%arg0 init: %0), (%2 init: %1) across dimensions = [1] : (tensor<2x3xf32>, tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
             reducer(%arg1: tensor<f32>, %arg3: tensor<f32>) (%arg2: tensor<i32>, %arg4: tensor<i32>) {
              %4 = stablehlo.compare GT, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %5 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %6 = stablehlo.or %4, %5 : tensor<i1>
              %7 = stablehlo.compare EQ, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %8 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
              %9 = stablehlo.and %7, %8 : tensor<i1>
              %10 = stablehlo.or %6, %9 : tensor<i1>
              %11 = stablehlo.select %6, %arg1, %arg3 : tensor<i1>, tensor<f32>
              %12 = stablehlo.select %10, %arg2, %arg4 : tensor<i1>, tensor<i32>
              stablehlo.return %11, %12 : tensor<f32>, tensor<i32>
            }
            %13 = "stablehlo.sort"(%arg0) <{dimension = 1 : i64, is_stable = true}> ({
            ^bb0(%arg5: tensor<f32>, %arg6: tensor<f32>):
              %14 = stablehlo.compare LT, %arg5, %arg6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %15 = stablehlo.compare EQ, %arg5, %arg5, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %16 = stablehlo.compare NE, %arg6, %arg6, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
              %17 = stablehlo.and %15, %16 : tensor<i1>
              %18 = stablehlo.or %14, %17 : tensor<i1>
              stablehlo.return %18 : tensor<i1>
            }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
            return %3#1, %13 : tensor<2xi32>, tensor<2x3xf32>
        "#}
    );
}

#[test]
fn gather_and_scatter_are_written_with_their_dimensions() {
    let mut b = Build::new();
    let (x, i) = (b.input(f32s([4, 3])), b.input(i32s([5, 1])));
    let gather = GatherDims {
        offset_dims: smallvec![1],
        collapsed_slice_dims: smallvec![0],
        start_index_map: smallvec![0],
        slice_sizes: [1, 3].into(),
        ..GatherDims::default()
    };
    let rows = b.op(Op::Gather(gather), &[x, i]);
    let scatter = ScatterDims {
        kind: ScatterKind::Add,
        update_window_dims: smallvec![1],
        inserted_window_dims: smallvec![0],
        operand_batching_dims: smallvec![],
        scatter_indices_batching_dims: smallvec![],
        scatter_dims_to_operand_dims: smallvec![0],
    };
    let y = b.op(Op::Scatter(scatter), &[x, i, rows]);
    assert_eq!(
        body(&b.finish(&[y])),
        indoc! {r#"
            %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], operand_batching_dims = [], start_indices_batching_dims = [], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 3>}> : (tensor<4x3xf32>, tensor<5x1xi32>) -> tensor<5x3xf32>
            %1 = "stablehlo.scatter"(%arg0, %arg1, %0) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], input_batching_dims = [], scatter_indices_batching_dims = [], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
            ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
              %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
              stablehlo.return %2 : tensor<f32>
            }) : (tensor<4x3xf32>, tensor<5x1xi32>, tensor<5x3xf32>) -> tensor<4x3xf32>
            return %1 : tensor<4x3xf32>
        "#}
    );
}

#[test]
fn a_convolution_is_written_with_its_window() {
    let dims = ConvDims {
        lhs_spec: smallvec![0, 3, 1, 2],
        rhs_spec: smallvec![3, 2, 0, 1],
        out_spec: smallvec![0, 3, 1, 2],
        strides: smallvec![4, 4],
        padding: smallvec![(0, 0), (1, 2)],
        lhs_dilation: smallvec![1, 1],
        rhs_dilation: smallvec![1, 1],
        feature_groups: 1,
        batch_groups: 1,
        precision: Precision::Default,
    };
    let program = single(Op::Conv(dims), &[f32s([8, 84, 84, 4]), f32s([8, 8, 4, 32])]);
    assert_eq!(
        body(&program),
        indoc! {r#"
            %0 = stablehlo.convolution(%arg0, %arg1) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [4, 4], pad = [[0, 0], [1, 2]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<8x84x84x4xf32>, tensor<8x8x4x32xf32>) -> tensor<8x20x20x32xf32>
            return %0 : tensor<8x20x20x32xf32>
        "#}
    );
}

fn running_sum() -> Arc<Program> {
    let mut b = Build::new();
    let (k, sum, x) = (b.input(f32s([])), b.input(f32s([])), b.input(f32s([])));
    let x = b.op(Op::Binary(BinaryOp::Mul), &[k, x]);
    let sum = b.op(Op::Binary(BinaryOp::Add), &[sum, x]);
    Arc::new(b.finish(&[sum, sum]))
}

fn scan(length: usize, reverse: bool, unroll: usize) -> Program {
    let body = running_sum();
    let scan = ScanOp { body, num_consts: 1, num_carry: 1, length, reverse, unroll };
    let mut b = Build::new();
    let (k, xs) = (b.input(f32s([])), b.input(f32s([length])));
    let zero = b.constant(0f32);
    let outputs = b.ops(Op::Scan(scan), &[k, zero, xs]);
    b.finish(&outputs)
}

#[test]
fn a_scan_is_a_loop() {
    assert_eq!(
        body(&scan(10, false, 1)),
        indoc! {r#"
            %0 = stablehlo.constant dense<0> : tensor<i32>
            %1 = stablehlo.constant dense<0.0> : tensor<f32>
            %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<10xf32>
            %3:3 = stablehlo.while(%arg2 = %0, %arg3 = %1, %arg4 = %2) : tensor<i32>, tensor<f32>, tensor<10xf32>
            cond {
              %4 = stablehlo.constant dense<10> : tensor<i32>
              %5 = stablehlo.compare LT, %arg2, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %5 : tensor<i1>
            } do {
              %6 = stablehlo.dynamic_slice %arg1, %arg2, sizes = [1] : (tensor<10xf32>, tensor<i32>) -> tensor<1xf32>
              %7 = stablehlo.reshape %6 : (tensor<1xf32>) -> tensor<f32>
              %8 = stablehlo.multiply %arg0, %7 : tensor<f32>
              %9 = stablehlo.add %arg3, %8 : tensor<f32>
              %10 = stablehlo.reshape %9 : (tensor<f32>) -> tensor<1xf32>
              %11 = stablehlo.dynamic_update_slice %arg4, %10, %arg2 : (tensor<10xf32>, tensor<1xf32>, tensor<i32>) -> tensor<10xf32>
              %12 = stablehlo.constant dense<1> : tensor<i32>
              %13 = stablehlo.add %arg2, %12 : tensor<i32>
              stablehlo.return %13, %9, %11 : tensor<i32>, tensor<f32>, tensor<10xf32>
            }
            return %3#1, %3#2 : tensor<f32>, tensor<10xf32>
        "#}
    );
}

#[test]
fn a_scan_of_one_turn_is_no_loop() {
    assert_eq!(
        body(&scan(1, false, 1)),
        indoc! {r#"
            %0 = stablehlo.reshape %arg1 : (tensor<1xf32>) -> tensor<f32>
            %1 = stablehlo.multiply %arg0, %0 : tensor<f32>
            %2 = stablehlo.constant dense<0.0> : tensor<f32>
            %3 = stablehlo.add %2, %1 : tensor<f32>
            %4 = stablehlo.reshape %3 : (tensor<f32>) -> tensor<1xf32>
            return %3, %4 : tensor<f32>, tensor<1xf32>
        "#}
    );
}

#[test]
fn a_scan_unrolled_backwards_leaves_a_rest() {
    assert_eq!(
        body(&scan(5, true, 2)),
        indoc! {r#"
            %0 = stablehlo.constant dense<0> : tensor<i32>
            %1 = stablehlo.constant dense<0.0> : tensor<f32>
            %2 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<5xf32>
            %3:3 = stablehlo.while(%arg2 = %0, %arg3 = %1, %arg4 = %2) : tensor<i32>, tensor<f32>, tensor<5xf32>
            cond {
              %4 = stablehlo.constant dense<4> : tensor<i32>
              %5 = stablehlo.compare LT, %arg2, %4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
              stablehlo.return %5 : tensor<i1>
            } do {
              %6 = stablehlo.constant dense<4> : tensor<i32>
              %7 = stablehlo.subtract %6, %arg2 : tensor<i32>
              %8 = stablehlo.dynamic_slice %arg1, %7, sizes = [1] : (tensor<5xf32>, tensor<i32>) -> tensor<1xf32>
              %9 = stablehlo.reshape %8 : (tensor<1xf32>) -> tensor<f32>
              %10 = stablehlo.multiply %arg0, %9 : tensor<f32>
              %11 = stablehlo.add %arg3, %10 : tensor<f32>
              %12 = stablehlo.reshape %11 : (tensor<f32>) -> tensor<1xf32>
              %13 = stablehlo.dynamic_update_slice %arg4, %12, %7 : (tensor<5xf32>, tensor<1xf32>, tensor<i32>) -> tensor<5xf32>
              %14 = stablehlo.constant dense<3> : tensor<i32>
              %15 = stablehlo.subtract %14, %arg2 : tensor<i32>
              %16 = stablehlo.dynamic_slice %arg1, %15, sizes = [1] : (tensor<5xf32>, tensor<i32>) -> tensor<1xf32>
              %17 = stablehlo.reshape %16 : (tensor<1xf32>) -> tensor<f32>
              %18 = stablehlo.multiply %arg0, %17 : tensor<f32>
              %19 = stablehlo.add %11, %18 : tensor<f32>
              %20 = stablehlo.reshape %19 : (tensor<f32>) -> tensor<1xf32>
              %21 = stablehlo.dynamic_update_slice %13, %20, %15 : (tensor<5xf32>, tensor<1xf32>, tensor<i32>) -> tensor<5xf32>
              %22 = stablehlo.constant dense<2> : tensor<i32>
              %23 = stablehlo.add %arg2, %22 : tensor<i32>
              stablehlo.return %23, %19, %21 : tensor<i32>, tensor<f32>, tensor<5xf32>
            }
            %24 = stablehlo.slice %arg1 [0:1] : (tensor<5xf32>) -> tensor<1xf32>
            %25 = stablehlo.reshape %24 : (tensor<1xf32>) -> tensor<f32>
            %26 = stablehlo.multiply %arg0, %25 : tensor<f32>
            %27 = stablehlo.add %3#1, %26 : tensor<f32>
            %28 = stablehlo.reshape %27 : (tensor<f32>) -> tensor<1xf32>
            %29 = stablehlo.dynamic_update_slice %3#2, %28, %0 : (tensor<5xf32>, tensor<1xf32>, tensor<i32>) -> tensor<5xf32>
            return %27, %29 : tensor<f32>, tensor<5xf32>
        "#}
    );
}

#[test]
fn a_bool_chooses_by_if() {
    let branch = |x: f32| {
        let mut b = Build::new();
        let k = b.constant(x);
        Arc::new(b.finish(&[k]))
    };
    let mut b = Build::new();
    let flag = b.input(TensorType::scalar(DType::Bool));
    let index = b.op(Op::Convert { dtype: DType::I32 }, &[flag]);
    let y = b.op(Op::Cond(CondOp { branches: vec![branch(1.0), branch(2.0)] }), &[index]);
    assert_eq!(
        body(&b.finish(&[y])),
        indoc! {r#"
            %0 = stablehlo.convert %arg0 : (tensor<i1>) -> tensor<i32>
            %1 = "stablehlo.if"(%arg0) ({
              %2 = stablehlo.constant dense<2.0> : tensor<f32>
              stablehlo.return %2 : tensor<f32>
            }, {
              %3 = stablehlo.constant dense<1.0> : tensor<f32>
              stablehlo.return %3 : tensor<f32>
            }) : (tensor<i1>) -> tensor<f32>
            return %1 : tensor<f32>
        "#}
    );
    let branches = vec![branch(1.0), branch(2.0), branch(3.0)];
    assert_eq!(
        body(&single(Op::Cond(CondOp { branches }), &[i32s([])])),
        indoc! {r#"
            %0 = stablehlo.constant dense<0> : tensor<i32>
            %1 = stablehlo.constant dense<2> : tensor<i32>
            %2 = stablehlo.clamp %0, %arg0, %1 : tensor<i32>
            %3 = "stablehlo.case"(%2) ({
              %4 = stablehlo.constant dense<1.0> : tensor<f32>
              stablehlo.return %4 : tensor<f32>
            }, {
              %5 = stablehlo.constant dense<2.0> : tensor<f32>
              stablehlo.return %5 : tensor<f32>
            }, {
              %6 = stablehlo.constant dense<3.0> : tensor<f32>
              stablehlo.return %6 : tensor<f32>
            }) : (tensor<i32>) -> tensor<f32>
            return %3 : tensor<f32>
        "#}
    );
}

#[test]
fn threefry_is_a_function() {
    let mut b = Build::new();
    let x = b.input(TensorType::new(DType::U32, [2]));
    let y = b.ops(Op::Threefry, &[x, x, x, x]);
    let z = b.ops(Op::Threefry, &[y[0], y[1], x, x]);
    let text = text(&b.finish(&z));
    assert_eq!(text.matches("call @threefry2x32_2(").count(), 2);
    assert_eq!(text.matches("func.func private @threefry2x32_2(").count(), 1);
}

/// The text for GPUs.
fn cuda_text(program: &Program) -> String {
    let options = LowerOptions { platform: Platform::Cuda, ..LowerOptions::default() };
    stablehlo(program, &LowerOptions { locations: false, ..options })
}

/// The compiler for GPUs takes `x >= 0` to be true of a NaN that it sees to be an absolute value,
/// whatever the sign of zero.
#[test]
fn comparisons_with_zero_have_two_parts_on_gpus() {
    for (op, opposite, zero_first) in [(CompareOp::Ge, "LT", false), (CompareOp::Le, "GT", true)] {
        let mut b = Build::new();
        let x = b.input(f32s([5]));
        let zero = b.constant(Literal::splat([5], 0f32));
        let operands = if zero_first { [zero, x] } else { [x, zero] };
        let result = b.op(Op::Compare(op), &operands);
        let program = b.finish(&[result]);
        let on_cpu = text(&program);
        assert!(on_cpu.contains("dense<-0.0>") && !on_cpu.contains("stablehlo.and"), "{on_cpu}");
        let text = cuda_text(&program);
        assert!(text.contains(&format!("compare {opposite}")) && text.contains("stablehlo.not"));
        assert!(text.contains("compare EQ, %arg0, %arg0") && text.contains("stablehlo.and"));
        assert!(!text.contains("-0.0"), "{text}");
    }
}

/// cuDNN's sums of integers of 8 bits saturate, and it has none of 16 bits.
#[test]
fn convolutions_of_narrow_integers_are_of_f64_on_gpus() {
    for (dtype, wide) in [(DType::I8, true), (DType::U16, true), (DType::I32, false)] {
        let mut b = Build::new();
        let x = b.input(TensorType::new(dtype, [1, 4, 1]));
        let kernel = b.input(TensorType::new(dtype, [2, 1, 1]));
        let dims = ConvDims {
            strides: smallvec![1],
            padding: smallvec![(0, 0)],
            lhs_dilation: smallvec![1],
            rhs_dilation: smallvec![1],
            lhs_spec: smallvec![0, 2, 1],
            rhs_spec: smallvec![2, 1, 0],
            out_spec: smallvec![0, 2, 1],
            feature_groups: 1,
            batch_groups: 1,
            precision: Precision::Default,
        };
        let y = b.op(Op::Conv(dims), &[x, kernel]);
        let program = b.finish(&[y]);
        let text = cuda_text(&program);
        let line = text.lines().find(|line| line.contains("stablehlo.convolution")).unwrap();
        assert_eq!(line.ends_with("-> tensor<1x3x1xf64>"), wide, "{text}");
        assert_eq!(text.contains("stablehlo.round_nearest_even"), wide, "{text}");
    }
}
