//! Elementwise operations, and the sources of elements.

use podracer::random::{self, Key};
use podracer::trace::numpy::betaln;
use podracer::trace::op::{BinaryOp, CompareOp, Fact, UnaryOp};
use podracer::trace::ops::{constant, full, iota, logaddexp, where_};
use podracer::{DType, Literal, Tensor};

use super::{Case, In, case, cases_of, distinct, floats, int, ints, within, x};
use crate::recipes::binary::binary;
use crate::recipes::unary::{Inputs, Row, unary};

const ALL_FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::BF16, DType::F16];
const INTS: [DType; 8] =
    [DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U16, DType::U32, DType::U64];

/// Numbers at which functions have something special.
const SPECIAL: [f64; 16] = [
    f64::NAN,
    f64::INFINITY,
    f64::NEG_INFINITY,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    1e-30,
    30.0,
    -30.0,
    100.0,
];

fn compare(op: CompareOp) -> fn(Tensor, Tensor) -> Tensor {
    match op {
        CompareOp::Eq => |a, b| a.eq(b),
        CompareOp::Ne => |a, b| a.ne(b),
        CompareOp::Lt => |a, b| a.lt(b),
        CompareOp::Le => |a, b| a.le(b),
        CompareOp::Gt => |a, b| a.gt(b),
        CompareOp::Ge => |a, b| a.ge(b),
    }
}

/// Every pair of the numbers, as two arrays.
fn pairs<T: Copy>(values: &[T]) -> (Vec<T>, Vec<T>) {
    values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).unzip()
}

fn special_pair() -> [In; 2] {
    special_pair_of(&SPECIAL)
}

fn special_pair_of(numbers: &[f64]) -> [In; 2] {
    let (a, b) = pairs(numbers);
    [In::Floats(vec![a.len()], a), In::Floats(vec![b.len()], b)]
}

/// The corners of an integer type.
fn corners(dtype: DType) -> Vec<i64> {
    let bits = dtype.size() as u32 * 8;
    if dtype.is_unsigned() {
        let largest = if bits == 64 { -1i64 } else { (1i64 << bits) - 1 };
        return vec![0, 1, 2, 3, 7, 8, largest, largest - 1, 31, 32, 63, 64];
    }
    let smallest = i64::MIN >> (64 - bits);
    vec![0, 1, -1, 2, -3, 7, 8, smallest, !smallest, smallest + 1, 31, 32, 63, 64]
}

fn corner_pair(dtype: DType) -> [In; 2] {
    let (a, b) = pairs(&corners(dtype));
    let n = [a.len()];
    [In::Value(ints(dtype, &n.into(), &a)), In::Value(ints(dtype, &n.into(), &b))]
}

/// Six inputs of a row.
fn sample(inputs: Inputs) -> In {
    match inputs {
        Inputs::Any => x(&[2, 3]),
        Inputs::Distinct => distinct(&[2, 3]),
        Inputs::Within(low, high) => within(&[2, 3], low, high),
        Inputs::Order => In::Value(Literal::new([2, 3], &[0, 1, 2, 3, 4, 1])),
    }
}

fn unary_cases(cases: &mut Vec<Case>) {
    for op in UnaryOp::ALL {
        let Row { f, inputs, .. } = unary(op);
        let name = op.name();
        let range = sample(inputs);
        if op.domain().contains(DType::F64) {
            let case = case(name, &[range], move |x| f(x[0])).dtypes(&ALL_FLOATS);
            // A polynomial in f32 is what XLA's own erf_inv and erf of narrow types are.
            cases.push(if op.is(Fact::Predicate) { case.flat() } else { case.loose(8.0) });
            let special = In::Floats(vec![SPECIAL.len()], SPECIAL.to_vec());
            cases.push(
                super::case(format!("{name}/special"), &[special], move |x| f(x[0]))
                    .flat()
                    .dtypes(&ALL_FLOATS)
                    .loose(8.0),
            );
        }
        if op.domain().contains(DType::I32) {
            for dtype in INTS {
                let values = corners(dtype);
                let value = In::Value(ints(dtype, &[values.len()].into(), &values));
                cases.push(case(format!("{name}/{dtype}"), &[value], move |x| f(x[0])).flat());
            }
        }
    }
    cases.push(case("not", &[In::Bool(vec![4])], |x| !x[0]).flat());
}

fn binary_cases(cases: &mut Vec<Case>) {
    for op in BinaryOp::ALL {
        let (name, row) = (op.name(), binary(op));
        let f = row.f;
        let takes = |dtype: DType| op.domain().contains(dtype);
        if takes(DType::F64) {
            let case = case(name, &row.inputs.map(sample), move |x| f(x[0], x[1]));
            let dtypes: Vec<DType> = ALL_FLOATS.into_iter().filter(|&dtype| takes(dtype)).collect();
            cases.push(case.dtypes(&dtypes).loose(row.loose));
            let pair = match row.inputs[0] {
                // The factorial of an order of 100 overflows f32 where it is compiled, as in JAX.
                Inputs::Order => special_pair_of(&SPECIAL[..SPECIAL.len() - 1]),
                _ => special_pair(),
            };
            cases.push(
                super::case(format!("{name}/special"), &pair, move |x| f(x[0], x[1]))
                    .flat()
                    .loose(row.loose),
            );
        }
        if takes(DType::Bool) {
            let args = [In::Bool(vec![6]), In::Bool(vec![6])];
            cases.push(case(name, &args, move |x| f(x[0], x[1])).flat());
        }
        for dtype in INTS.into_iter().filter(|&dtype| takes(dtype)) {
            // The method shifts unsigned numbers logically.
            if op == BinaryOp::ShiftRightArithmetic && dtype.is_unsigned() {
                continue;
            }
            let args = corner_pair(dtype);
            cases.push(case(format!("{name}/{dtype}"), &args, move |x| f(x[0], x[1])).flat());
        }
    }
    let order = In::Value(Literal::new([6], &[0, 1, 2, 3, 4, 1]));
    let poles = In::Floats(vec![6], vec![0.0, -1.0, -2.0, 1.5, f64::NAN, -0.5]);
    let polygamma = binary(BinaryOp::Polygamma).f;
    cases.push(
        case("polygamma/poles", &[order, poles], move |x| polygamma(x[0], x[1])).flat().loose(32.0),
    );
    let base = In::Floats(vec![4], vec![0.5, 2.0, -1.5, -0.5]);
    let exponent = In::Value(Literal::new([4], &[2, 3, 2, 1]));
    cases.push(case("pow/negative base", &[base, exponent], |x| x[0].pow(x[1].to(x[0].dtype()))));
    cases.push(case("max/of three", &[x(&[4]), x(&[4]), x(&[4])], |x| {
        x[0].maximum(x[1]).maximum(x[2])
    }));
    cases.push(case("div/broadcast", &[x(&[2, 3]), within(&[3], 0.5, 2.0)], |x| x[0] / x[1]));
}

fn compare_cases(cases: &mut Vec<Case>) {
    for op in CompareOp::ALL {
        let (name, f) = (op.name(), compare(op));
        cases.push(case(name, &special_pair(), move |x| f(x[0], x[1])).flat().dtypes(&ALL_FLOATS));
        for dtype in [DType::I8, DType::I32, DType::U8, DType::U32, DType::U64] {
            let args = corner_pair(dtype);
            cases.push(case(format!("{name}/{dtype}"), &args, move |x| f(x[0], x[1])).flat());
        }
        let (a, b) = pairs(&[false, true]);
        let args = [In::Value(Literal::new([4], &a)), In::Value(Literal::new([4], &b))];
        cases.push(case(format!("{name}/bool"), &args, move |x| f(x[0], x[1])).flat());
    }
}

fn other_cases(cases: &mut Vec<Case>) {
    cases.push(case("select", &[In::Bool(vec![2, 3]), x(&[2, 3]), x(&[2, 3])], |x| {
        where_(x[0], x[1], x[2]) * x[1]
    }));
    cases.push(
        case("select/i32", &[In::Bool(vec![5]), int(&[5], -9, 9), int(&[5], -9, 9)], |x| {
            where_(x[0], x[1], x[2])
        })
        .flat(),
    );
    cases.push(case("select/one side", &[In::Bool(vec![5]), x(&[5])], |x| {
        where_(x[0], x[1], 1.0).sin()
    }));
    let bounds = [within(&[9], -1.2, -0.7), distinct(&[9]), within(&[9], 0.7, 1.2)];
    cases.push(case("clamp", &bounds, |x| x[1].clamp(x[0], x[2])).dtypes(&ALL_FLOATS));
    // Low above high: the high bound wins.
    let crossed = [within(&[9], 0.7, 1.2), distinct(&[9]), within(&[9], -1.2, -0.7)];
    cases.push(case("clamp/crossed", &crossed, |x| x[1].clamp(x[0], x[2])).flat());
    let special = In::Floats(vec![SPECIAL.len()], SPECIAL.to_vec());
    cases.push(case("clamp/special", &[special], |x| x[0].clamp(-1.0, 2.0)).flat());
    cases.push(case("clamp/i32", &[int(&[9], -9, 9)], |x| x[0].clamp(-3, 4)).flat());
    let nan = In::Floats(vec![3], vec![f64::NAN, 1.0, 2.0]);
    cases.push(case("clamp/nan bound", &[nan, x(&[3])], |x| x[1].clamp(x[0], x[1] + 1.0)).flat());

    for to in DType::ALL {
        let values = [0.0, -0.0, 1.0, -1.0, 2.5, -5.0, 300.0, 1e10, -1e10, 1e30, 0.3];
        let special = [values.as_slice(), &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]].concat();
        let args = [In::Floats(vec![special.len()], special)];
        cases.push(
            case(format!("convert/float to {to}"), &args, move |x| {
                // Keeps the operation there when the types are equal.
                x[0].to(DType::Bool).to(to).to(DType::F32) + x[0].to(to).to(DType::F32)
            })
            .flat(),
        );
        for from in INTS {
            let values = corners(from);
            let args = [In::Value(ints(from, &[values.len()].into(), &values))];
            cases.push(
                cases_of(format!("convert/{from} to {to}"), &args, move |x| {
                    vec![x[0].to(DType::Bool).to(to), x[0].to(to)]
                })
                .flat(),
            );
        }
    }
    cases.push(
        case("convert/there and back", &[x(&[3])], |x| {
            x[0].to(DType::F32).to(DType::F64) * x[0].to(DType::F64)
        })
        .flat(),
    );
    cases.push(
        case("bitcast", &[x(&[4])], |x| {
            let to = if x[0].dtype() == DType::F64 { DType::I64 } else { DType::U32 };
            x[0].bitcast(to)
        })
        .flat(),
    );
    cases.push(
        case("bitcast/u32 to f32", &[In::Int(DType::U32, vec![4], 0, 1 << 30)], |x| {
            x[0].bitcast(DType::F32)
        })
        .flat(),
    );
    cases.push(
        case("bitcast/i16 to bf16", &[In::Int(DType::I16, vec![4], 0, 9000)], |x| {
            x[0].bitcast(DType::BF16)
        })
        .flat(),
    );
    let bits = [DType::U8, DType::I16, DType::BF16, DType::U32, DType::F32, DType::F64];
    for (from, to) in bits.iter().flat_map(|a| bits.iter().map(move |b| (*a, *b))) {
        let parts = to.size() / from.size();
        let shape = if parts > 1 { vec![2, parts] } else { vec![2, 3] };
        // Small enough for no float type to see a NaN.
        let arg = In::Int(DType::U8, shape, 0, 60);
        cases.push(
            cases_of(format!("bitcast/{from} to {to}"), &[arg], move |x| {
                let y = x[0].to(from).bitcast(to);
                vec![y, y.bitcast(from), x[0].index_axis(0, 0).to(from).bitcast(to)]
            })
            .flat(),
        );
    }
    cases.push(case("stop_gradient", &[x(&[3])], |x| {
        x[0] * x[0].stop_gradient().stop_gradient().lt(0.0).to(x[0].dtype())
    }));
    cases.push(case("constant", &[x(&[2, 3])], |x| {
        let table = floats(x[0].dtype(), &[2, 3].into(), &[1.0, -2.0, 0.25, 1e-3, 7.0, -0.0]);
        x[0] * constant(table) + full([3], 0.5, x[0].dtype())
    }));
    for dtype in DType::ALL {
        cases.push(
            cases_of(format!("constant/{dtype}"), &[int(&[2], 0, 1)], move |x| {
                let dense = x[0].to(dtype);
                let values = [1.0, 0.0, 1.0, 1.0];
                let literal = match dtype {
                    DType::Bool => Literal::new([4], &[true, false, true, true]),
                    _ if dtype.is_float() => floats(dtype, &[4].into(), &values),
                    _ if dtype.is_complex() => {
                        floats(dtype, &[4].into(), &[values, values].concat())
                    }
                    _ => ints(dtype, &[4].into(), &corners(dtype)[..4]),
                };
                vec![dense, constant(literal), full([2, 2], 1.0, dtype), full([], 0.0, dtype)]
            })
            .flat(),
        );
        if dtype != DType::Bool && !dtype.is_narrow() {
            cases.push(
                cases_of(format!("iota/{dtype}"), &[int(&[], 0, 1)], move |x| {
                    vec![x[0], iota([2, 3], 0, dtype), iota([2, 3], 1, dtype), iota([0], 0, dtype)]
                })
                .flat(),
            );
        }
    }
    let literals = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, 5e-324, f64::MAX, -0.0];
    cases.push(
        case("constant/special", &[x(&[7])], move |x| {
            let table = floats(x[0].dtype(), &[7].into(), &literals);
            constant(table) + x[0] * 0.0
        })
        .flat(),
    );
    cases.push(case("iota", &[x(&[3, 2])], |x| x[0] * iota([3, 2], 0, x[0].dtype())));
    let key = In::Int(DType::U32, vec![2], 0, u32::MAX as i64);
    cases.push(
        case("threefry2x32", &[key], |x| random::bits(Key::from_data(x[0]), [2, 3], DType::U32))
            .flat(),
    );

    // Compositions with a form of their own.
    cases.push(case("select/logaddexp", &[x(&[4]), x(&[4])], |x| logaddexp(x[0], x[1])));
    let (a, b) = (within(&[5], 0.5, 3.0), within(&[5], 3.5, 12.0));
    cases.push(case("lgamma/betaln", &[a, b], |x| betaln(x[0], x[1])).loose(32.0));
    let tie = In::Floats(vec![3], vec![0.0, 1.0, -2.0]);
    cases.push(case("select/logaddexp of equals", &[tie], |x| logaddexp(x[0], x[0].sin())));
    let zero = In::Floats(vec![2], vec![0.0, -0.0]);
    cases.push(case("select/softplus at 0", &[zero], |x| x[0].softplus()));
    cases.push(case("select/softplus", &[x(&[4])], |x| x[0].softplus()));
    cases.push(case("select/elu", &[distinct(&[6])], |x| x[0].elu()));
    cases.push(case("tanh/gelu", &[x(&[6])], |x| x[0].gelu()).loose(8.0));
    cases.push(case("logistic/silu", &[x(&[6])], |x| x[0].silu()));
    for exponent in [-3, -1, 0, 1, 2, 5] {
        let name = format!("mul/powi {exponent}");
        let name = if exponent == 0 { "constant/powi 0".into() } else { name };
        let name = if exponent == -1 { "div/powi -1".into() } else { name };
        let name = if exponent == 1 { "add/powi 1".into() } else { name };
        cases.push(case(name, &[within(&[4], 0.5, 1.5)], move |x| x[0].powi(exponent) + 1.0));
    }
    for dtype in INTS {
        let pair = corner_pair(dtype);
        cases.push(
            cases_of(format!("rem/python {dtype}"), &pair, |x| {
                // Without the divisor 0, whose remainder no language agrees on.
                let b = where_(x[1].eq(0), x[1] + 1, x[1]);
                vec![x[0].floor_div(b), x[0].modulo(b)]
            })
            .flat(),
        );
    }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    unary_cases(&mut cases);
    binary_cases(&mut cases);
    compare_cases(&mut cases);
    other_cases(&mut cases);
    cases
}
