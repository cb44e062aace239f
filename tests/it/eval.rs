//! The interpreter against JAX: `fixtures/eval/make.py` made the cases.

use std::str::FromStr;

use half::{bf16, f16};
use podracer::trace::eval::eval_op;
use podracer::trace::op::{
    ArgOp, BinaryOp, CompareOp, ConvDims, DotDims, GatherDims, Precision, ReduceOp, ScatterDims,
    ScatterKind, UnaryOp,
};
use podracer::trace::{Element, Op};
use podracer::{DType, Literal, Shape};
use serde_json::Value;

fn dtype(name: &Value) -> DType {
    let named = |dtype: &DType| Some(dtype.name()) == name.as_str();
    DType::ALL.into_iter().find(named).unwrap_or_else(|| panic!("no element type {name}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter()
}

fn sizes<C: FromIterator<usize>>(value: &Value) -> C {
    list(value).map(|x| x.as_u64().expect("a size") as usize).collect()
}

fn amounts<C: FromIterator<i64>>(value: &Value) -> C {
    list(value).map(|x| x.as_i64().expect("an amount")).collect()
}

fn size(value: &Value) -> usize {
    value.as_u64().expect("a size") as usize
}

fn literal(value: &Value) -> Literal {
    fn read<T: Element + FromStr>(value: &Value) -> Literal {
        let words = value["data"].as_str().expect("words").split_whitespace();
        let read = |word: &str| word.parse().ok().unwrap_or_else(|| panic!("{word}"));
        Literal::new(sizes::<Shape>(&value["shape"]), &words.map(read).collect::<Vec<T>>())
    }
    match dtype(&value["dtype"]) {
        DType::Bool => eval_op(&Op::Convert { dtype: DType::Bool }, &[read::<u8>(value)]).remove(0),
        DType::I8 => read::<i8>(value),
        DType::I16 => read::<i16>(value),
        DType::I32 => read::<i32>(value),
        DType::I64 => read::<i64>(value),
        DType::U8 => read::<u8>(value),
        DType::U16 => read::<u16>(value),
        DType::U32 => read::<u32>(value),
        DType::U64 => read::<u64>(value),
        DType::F16 => read::<f16>(value),
        DType::BF16 => read::<bf16>(value),
        DType::F32 => read::<f32>(value),
        DType::F64 => read::<f64>(value),
        DType::C64 | DType::C128 => panic!("the script has no complex numbers"),
        DType::F8E4M3FN | DType::F8E5M2 | DType::I4 | DType::U4 => {
            panic!("the script has no types for storage")
        }
    }
}

/// The operation that a case is about.
fn op(case: &Value) -> Op {
    let p = &case["params"];
    macro_rules! function {
        ($all:expr) => {{
            let wanted = p["function"].as_str().expect("a function");
            let named = |name: &str| name == wanted || name == format!("reduce_{wanted}");
            let found = $all.into_iter().find(|f| named(f.name()));
            found.unwrap_or_else(|| panic!("no function {wanted}"))
        }};
    }
    match case["op"].as_str().expect("an operation") {
        "unary" => Op::Unary(function!(UnaryOp::ALL)),
        "binary" => Op::Binary(function!(BinaryOp::ALL)),
        "compare" => Op::Compare(function!(CompareOp::ALL)),
        "clamp" => Op::Clamp,
        "convert" => Op::Convert { dtype: dtype(&p["dtype"]) },
        "arg_reduce" => {
            let op = if p["function"] == "argmax" { ArgOp::Max } else { ArgOp::Min };
            Op::ArgReduce { op, axis: size(&p["axis"]) }
        }
        "sort" => Op::Sort { axis: size(&p["axis"]) },
        "reduce" => Op::Reduce { op: function!(ReduceOp::ALL), axes: sizes(&p["axes"]) },
        "pad" => Op::Pad {
            low: amounts(&p["low"]),
            high: amounts(&p["high"]),
            interior: sizes(&p["interior"]),
        },
        "dynamic_slice" => Op::DynamicSlice { sizes: sizes(&p["sizes"]) },
        "dynamic_update_slice" => Op::DynamicUpdateSlice,
        "slice" => Op::Slice {
            start: sizes(&p["start"]),
            limit: sizes(&p["limit"]),
            stride: sizes(&p["stride"]),
        },
        "reverse" => Op::Reverse { axes: sizes(&p["axes"]) },
        "transpose" => Op::Transpose { permutation: sizes(&p["permutation"]) },
        "broadcast" => Op::Broadcast { shape: sizes(&p["shape"]), axes: sizes(&p["axes"]) },
        "concat" => Op::Concat { axis: size(&p["axis"]) },
        "dot" => Op::Dot(DotDims {
            lhs_contract: sizes(&p["lhs_contract"]),
            rhs_contract: sizes(&p["rhs_contract"]),
            lhs_batch: sizes(&p["lhs_batch"]),
            rhs_batch: sizes(&p["rhs_batch"]),
            precision: Precision::Default,
        }),
        "conv" => Op::Conv(ConvDims {
            lhs_spec: sizes(&p["lhs_spec"]),
            rhs_spec: sizes(&p["rhs_spec"]),
            out_spec: sizes(&p["out_spec"]),
            strides: sizes(&p["strides"]),
            padding: list(&p["padding"])
                .map(|pair| (pair[0].as_i64().unwrap(), pair[1].as_i64().unwrap()))
                .collect(),
            lhs_dilation: sizes(&p["lhs_dilation"]),
            rhs_dilation: sizes(&p["rhs_dilation"]),
            feature_groups: size(&p["feature_groups"]),
            batch_groups: size(&p["batch_groups"]),
            precision: Precision::Default,
        }),
        "gather" => Op::Gather(GatherDims {
            offset_dims: sizes(&p["offset_dims"]),
            collapsed_slice_dims: sizes(&p["collapsed_slice_dims"]),
            operand_batching_dims: sizes(&p["operand_batching_dims"]),
            start_indices_batching_dims: sizes(&p["start_indices_batching_dims"]),
            start_index_map: sizes(&p["start_index_map"]),
            slice_sizes: sizes(&p["slice_sizes"]),
        }),
        "scatter" => Op::Scatter(ScatterDims {
            kind: if p["kind"] == "add" { ScatterKind::Add } else { ScatterKind::Set },
            update_window_dims: sizes(&p["update_window_dims"]),
            inserted_window_dims: sizes(&p["inserted_window_dims"]),
            operand_batching_dims: sizes(&p["operand_batching_dims"]),
            scatter_indices_batching_dims: sizes(&p["scatter_indices_batching_dims"]),
            scatter_dims_to_operand_dims: sizes(&p["scatter_dims_to_operand_dims"]),
        }),
        other => panic!("no operation {other}"),
    }
}

/// Where two results part: integers must be equal; floats equal (zeros with their signs) or both
/// NaN, or within `tolerance`, relative to the expected number (of which less than 1e-3 counts as
/// 1e-3).
fn difference(expected: &Literal, actual: &Literal, tolerance: f64) -> Option<String> {
    if expected.ty() != actual.ty() {
        return Some(format!("the type is {}, not {}", actual.ty(), expected.ty()));
    }
    if !expected.ty().dtype.is_float() {
        return (expected != actual).then(|| format!("{actual:?}, not {expected:?}"));
    }
    let (expected, actual) = (expected.to_f64_vec(), actual.to_f64_vec());
    let differs = |(e, a): (&f64, &f64)| {
        let near = (a - e).abs() <= tolerance * e.abs().max(1e-3);
        let same = e == a && e.is_sign_negative() == a.is_sign_negative();
        !(same || (e.is_nan() && a.is_nan()) || (tolerance > 0.0 && near))
    };
    let i = expected.iter().zip(&actual).position(differs)?;
    Some(format!("element {i} is {:?}, not {:?}", actual[i], expected[i]))
}

#[test]
fn the_interpreter_agrees_with_jax() {
    let file: Value = serde_json::from_str(include_str!("../fixtures/eval/cases.json")).unwrap();
    let literals: Vec<Literal> = list(&file["literals"]).map(literal).collect();
    let tensors = |places: &Value| -> Vec<Literal> {
        list(places).map(|place| literals[size(place)].clone()).collect()
    };
    let mut faults = Vec::new();
    for (i, case) in list(&file["cases"]).enumerate() {
        let op = op(case);
        let (inputs, expected) = (tensors(&case["inputs"]), tensors(&case["outputs"]));
        let actual = eval_op(&op, &inputs);
        assert_eq!(expected.len(), actual.len());
        for (expected, actual) in expected.iter().zip(&actual) {
            if let Some(fault) =
                difference(expected, actual, case["tolerance"].as_f64().unwrap_or(0.0))
            {
                faults.push(format!("case {i}: {op:?} of {inputs:?}: {fault}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
