//! Operations written as ONNX and run by ONNX Runtime give what the interpreter gives; the others are
//! refused by name.

use std::process::Command;

use podracer::export::onnx::onnx;
use podracer::jit::run_program;
use podracer::trace::graph::simplify;
use podracer::trace::ops::{ConvOptions, Padding, arange, concatenate, conv2d, full_like, where_};
use podracer::{Array, DType, Literal, Mode, Tensor, make_program};
use serde_json::{Value, json};

use super::peers;

/// Result of one operation, by its name.
type Named = (&'static str, Tensor);

fn elementwise(x: Tensor, y: Tensor) -> Vec<Named> {
    let inside = x.tanh() * 0.9;
    let positive = x.square() + 0.5;
    vec![
        ("add", x + y),
        ("sub", x - y),
        ("mul", x * y),
        ("div", x / positive),
        ("rem", x % positive),
        ("pow", positive.pow(y)),
        ("maximum", x.maximum(y)),
        ("minimum", x.minimum(y)),
        ("neg", -x),
        ("abs", x.abs()),
        ("sign", x.sign()),
        ("exp", x.exp()),
        ("expm1", x.expm1()),
        ("log", positive.log()),
        ("log1p", positive.log1p()),
        ("sqrt", positive.sqrt()),
        ("rsqrt", positive.rsqrt()),
        ("sin", x.sin()),
        ("cos", x.cos()),
        ("tan", inside.tan()),
        ("tanh", x.tanh()),
        ("asin", inside.asin()),
        ("acos", inside.acos()),
        ("sinh", x.sinh()),
        ("cosh", x.cosh()),
        ("asinh", x.asinh()),
        ("acosh", (positive + 1.0).acosh()),
        ("atanh", inside.atanh()),
        ("sigmoid", x.sigmoid()),
        ("floor", x.floor()),
        ("ceil", x.ceil()),
        ("round", (x * 2.0).round()),
        ("erf", x.erf()),
        ("erfc", x.erfc()),
        ("is_finite", (x / 0.0).is_finite()),
        ("eq", x.floor().eq(y.floor())),
        ("ne", x.floor().ne(y.floor())),
        ("lt", x.lt(y)),
        ("le", x.le(y)),
        ("gt", x.gt(y)),
        ("ge", x.ge(y)),
        ("and", x.gt(0.0) & y.gt(0.0)),
        ("or", x.gt(0.0) | y.gt(0.0)),
        ("xor", x.gt(0.0) ^ y.gt(0.0)),
        ("not", !x.gt(0.0)),
        ("where", where_(x.gt(y), x, full_like(x, 2.0))),
        ("clip", x.clip(-0.5, 0.5)),
        ("clamp", x.clamp(-0.25, 0.25)),
        ("convert", (x * 3.0).to(DType::I32)),
    ]
}

/// `x` is `f32[2,3,4]`.
fn shapes_and_reductions(x: Tensor) -> Vec<Named> {
    let column = x.sum(-1);
    vec![
        ("reshape", x.reshape([4, 6])),
        ("transpose", x.transpose(&[2, 0, 1])),
        ("flip", x.flip(1)),
        ("concatenate", concatenate(&[x, x.flip(2)], 1)),
        ("pad", x.pad(&[0, 1, 2], &[1, 0, 3], 0.5)),
        ("slice", x.strided_slice(&[0, 1, 0], &[2, 3, 4], &[1, 1, 2])),
        ("index", x.index_axis(1, -1)),
        ("broadcast", column.expand_dims(-1).broadcast_to([2, 3, 5])),
        ("broadcast_of_constant", concatenate(&[full_like(x, 3.0), x], 0)),
        ("arange", arange(4, DType::F32) + x),
        ("sum", column),
        ("sum_of_all", x.sum(..)),
        ("prod", x.prod(0)),
        ("max", x.max(1)),
        ("min", x.min(&[0, 2][..])),
        ("any", x.gt(1.0).any(1)),
        ("all", x.lt(1.5).all(2)),
        ("mean", x.mean(1)),
        ("var", x.var(2)),
        ("argmax", x.argmax(2)),
        ("argmin", x.argmin(0)),
        ("softmax", x.softmax(-1)),
        ("log_softmax", x.log_softmax(1)),
        ("relu", x.relu()),
        ("elu", x.elu()),
        ("silu", x.silu()),
        ("gelu", x.gelu()),
    ]
}

/// `x` is `f32[2,3,4]`, `images` `f32[2,6,5,4]` and `kernel` `f32[3,2,4,6]`.
fn products(x: Tensor, images: Tensor, kernel: Tensor) -> Vec<Named> {
    let conv = |stride, padding| conv2d(images, kernel, &ConvOptions { stride, padding });
    let matrix = x.reshape([6, 4]);
    vec![
        ("matmul", matrix.matmul(matrix.t())),
        ("matmul_batched", x.matmul(x.transpose(&[0, 2, 1]))),
        ("matmul_of_rows", x.matmul(x.index_axis(0, 0).t())),
        ("matvec", x.matmul(x.index_axis(0, 0).index_axis(0, 1))),
        ("conv_valid", conv(1, Padding::Valid)),
        ("conv_same", conv(2, Padding::Same)),
    ]
}

fn floats(shape: &[usize], phase: f64) -> Array {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> =
        (0..count).map(|i| (1.9 * (0.7 * i as f64 + phase).sin()) as f32).collect();
    Array::from(Literal::new(shape, &values))
}

fn value(array: &Array) -> Value {
    let literal = array.to_literal().unwrap();
    let ty = literal.ty().clone();
    // JSON has no number for these.
    let data: Vec<f64> = literal.to_f64_vec();
    assert!(data.iter().all(|x| x.is_finite()), "{ty}");
    json!({"dtype": ty.dtype.name(), "shape": ty.shape.to_vec(), "data": data})
}

#[test]
fn operations_agree_with_onnx_runtime() {
    let Some(python) = peers::python("PODRACER_PEER_PYTHON") else { return };
    let inputs = vec![
        floats(&[2, 3, 4], 0.3),
        floats(&[2, 3, 4], 1.1),
        floats(&[2, 6, 5, 4], 0.2),
        floats(&[3, 2, 4, 6], 0.9),
    ];
    let all = |args: &[Tensor]| -> Vec<Named> {
        let mut all = elementwise(args[0], args[1]);
        all.extend(shapes_and_reductions(args[0]));
        all.extend(products(args[0], args[2], args[3]));
        all
    };
    let names = std::cell::RefCell::new(Vec::new());
    let f = |args: Vec<Tensor>| -> Vec<Tensor> {
        let (given, results): (Vec<_>, Vec<_>) = all(&args).into_iter().unzip();
        *names.borrow_mut() = given;
        results
    };
    let program = simplify(make_program(f, &inputs).unwrap());
    let names = names.into_inner();
    let bytes = onnx(&program, "functions", &["x", "y", "images", "kernel"], &names, &[]).unwrap();
    let results = run_program(&program, &inputs, Mode::Interpret).unwrap();

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("functions.onnx"), bytes).unwrap();
    let values = json!({
        "in": inputs.iter().map(value).collect::<Vec<_>>(),
        "out": results.iter().map(value).collect::<Vec<_>>(),
    });
    std::fs::write(folder.path().join("values.json"), values.to_string()).unwrap();
    let status =
        Command::new(python).arg("tests/interop/onnx.py").arg(folder.path()).status().unwrap();
    assert!(status.success());
}

#[test]
fn operations_that_onnx_does_not_have_are_refused_by_name_and_line() {
    let x = floats(&[2, 3], 0.0);
    let refusal = |f: fn(Tensor) -> Tensor| {
        let program = simplify(make_program(f, &x).unwrap());
        onnx(&program, "function", &["x"], &["y"], &[]).unwrap_err().to_string()
    };
    let error = refusal(|x| x.sort(0));
    assert!(error.contains("function cannot be written as ONNX: the operation `sort`"), "{error}");
    assert!(error.contains("tests/interop/onnx.rs:"), "{error}");
    let error = refusal(|x| x.bitcast(DType::I32));
    assert!(error.contains("the operation `bitcast`"), "{error}");
    let error = refusal(|x| x.lgamma());
    assert!(error.contains("the operation `lgamma`"), "{error}");
    let error = refusal(|x| x.to(DType::I32) & x.to(DType::I32));
    assert!(error.contains("the operation `and` has no form there for integers"), "{error}");
}

#[test]
fn a_name_is_needed_for_each_input_and_output() {
    let program = make_program(|x: Tensor| x * 2.0, &floats(&[2], 0.0)).unwrap();
    let error = onnx(&program, "twice", &[], &["y"], &[]).unwrap_err().to_string();
    assert!(error.contains("1 inputs and 1 outputs, and 0 and 1 names were given"), "{error}");
}
