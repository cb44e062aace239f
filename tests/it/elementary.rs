//! Elementwise functions against JAX at the edges: values and the first two derivatives at zeros,
//! denormals, infinities, NaN and the ends of each range, in every float type, compiled and
//! interpreted. The numbers are JAX's own (`tests/fixtures/jax/elementary.py`).

mod differences;
mod functions;

use std::collections::{BTreeMap, BTreeSet};

use podracer::trace::op::{BinaryOp, CompareOp, UnaryOp};
use podracer::{Array, DType, Literal, Mode, Result, Tensor, interpret, jit, jvp, vjp};

use self::differences::{DIFFERENCES, Point, Which};
use self::functions::{ELSEWHERE, Function, binary, unary};
use crate::fixture::{Kinds, read};

const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// Allowed error of a result: a part of its size, and an absolute part, which is more for second
/// derivatives of narrow floats: they are sums of products that cancel.
fn tolerance(dtype: DType, which: Which) -> (f64, f64) {
    let second = which == Which::Second;
    match dtype {
        DType::F16 => (8e-3, if second { 8e-3 } else { 1e-3 }),
        DType::BF16 => (6e-2, if second { 6e-2 } else { 8e-3 }),
        DType::F32 => (2e-5, 1e-6),
        _ => (1e-10, 1e-14),
    }
}

/// The smallest normal number; compiled code flushes what is smaller to zero.
fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-14),
        DType::BF16 | DType::F32 => f32::MIN_POSITIVE.into(),
        _ => f64::MIN_POSITIVE,
    }
}

/// True if `found` is what JAX gives: NaN for NaN, the same infinity, a zero of the same sign
/// (but for tangents), or a number within the tolerance.
fn agrees(found: f64, expected: f64, dtype: DType, which: Which) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    if found == 0.0 && expected == 0.0 {
        // The recorded derivatives are by reverse mode: sums of cotangents, whose zeros are positive
        // where those of tangents need not be.
        let same_sign = found.is_sign_negative() == expected.is_sign_negative();
        return same_sign || which == Which::Tangent;
    }
    let (relative, absolute) = tolerance(dtype, which);
    found == expected || (found - expected).abs() <= relative * expected.abs() + absolute
}

/// The derivative of `f` by operand `at`: a cotangent of ones pulled back.
fn pulled(f: &dyn Fn(Vec<Tensor>) -> Tensor, at: usize, x: Vec<Tensor>) -> Tensor {
    let (y, pull) = vjp(f, x);
    pull(podracer::trace::ops::ones_like(y))[at]
}

/// The value of `f`; if it is a float its derivatives, those of its derivatives, and its tangents
/// along each operand, which are the derivatives again.
fn derivatives(f: Function, x: &[Tensor]) -> Vec<Tensor> {
    let f = move |x: Vec<Tensor>| f.call(&x);
    let f: &dyn Fn(Vec<Tensor>) -> Tensor = &f;
    let x = x.to_vec();
    let value = f(x.clone());
    if !value.dtype().is_float() {
        return vec![value];
    }
    let n = x.len();
    let first = (0..n).map(|at| pulled(f, at, x.clone()));
    let second = (0..n).flat_map(|i| (i..n).map(move |j| (i, j))).map(|(i, j)| {
        let first = move |x: Vec<Tensor>| pulled(f, i, x);
        pulled(&first, j, x.clone())
    });
    let tangents = (0..n).map(|at| {
        let of_one = |moved: Tensor| {
            let mut x = x.clone();
            x[at] = moved;
            f(x)
        };
        jvp(of_one, x[at], podracer::trace::ops::ones_like(x[at])).1
    });
    [value].into_iter().chain(first).chain(second).chain(tangents).collect()
}

/// Names of the results of [`derivatives`], for `n` operands.
fn results(n: usize) -> Vec<(Which, usize)> {
    let many = |which: Which, n: usize| (0..n).map(move |i| (which, i));
    let second = many(Which::Second, n * (n + 1) / 2);
    many(Which::Value, 1)
        .chain(many(Which::First, n))
        .chain(second)
        .chain(many(Which::Tangent, n))
        .collect()
}

fn expected(kinds: &Kinds, n: usize) -> Vec<((Which, usize), Vec<f64>)> {
    let numbers = |kind: &str, i: usize| kinds.get(kind).map(|all| all[i].to_f64_vec());
    results(n)
        .into_iter()
        .filter_map(|(which, i)| {
            let kind = match which {
                Which::Value => "value",
                Which::First | Which::Tangent => "d",
                Which::Second => "dd",
            };
            Some(((which, i), numbers(kind, i)?))
        })
        .collect()
}

/// Runs `functions` in one Program: a compilation costs more than what is in it.
fn run(functions: &[(&str, Function)], x: &[Literal], mode: Mode) -> Result<Vec<Vec<Literal>>> {
    let together = |x: Vec<Tensor>| -> Vec<Vec<Tensor>> {
        functions.iter().map(|(_, f)| derivatives(*f, &x)).collect()
    };
    let together: &dyn Fn(Vec<Tensor>) -> Vec<Vec<Tensor>> = &together;
    let x: Vec<Array> = x.iter().cloned().map(Array::from).collect();
    let found = match mode {
        Mode::Interpret => interpret(together).call(x)?,
        _ => jit(together).call(x)?,
    };
    let literals = |results: Vec<Array>| -> Result<Vec<Literal>> {
        results.iter().map(Array::to_literal).collect()
    };
    found.into_iter().map(literals).collect()
}

/// Compares functions of one number of operands, of one type; gives what differs, and which of the
/// listed differences were met.
fn compare(
    all: &BTreeMap<String, Kinds>,
    functions: &[(&'static str, Function)],
    group: &str,
    dtype: DType,
    mode: Mode,
) -> (Vec<String>, BTreeSet<usize>) {
    let x = &all[&format!("{group}.{dtype}")]["in"];
    let points: Vec<Vec<f64>> = x.iter().map(Literal::to_f64_vec).collect();
    let (mut faults, mut met) = (Vec::new(), BTreeSet::new());
    for chunk in functions.chunks(24) {
        let found = run(chunk, x, mode).unwrap_or_else(|error| panic!("{dtype}, {mode}: {error}"));
        for ((name, _), found) in chunk.iter().zip(found) {
            let expected = expected(&all[&format!("{name}.{dtype}")], x.len());
            assert_eq!(found.len(), expected.len(), "{name}.{dtype}: results");
            for (((which, index), expected), found) in expected.iter().zip(&found) {
                assert_eq!(
                    found.ty().dtype.is_float(),
                    found.ty().dtype == dtype,
                    "{name}.{dtype}"
                );
                for (i, (&expected, found)) in expected.iter().zip(found.to_f64_vec()).enumerate() {
                    if agrees(found, expected, dtype, *which) {
                        continue;
                    }
                    let x = points.iter().map(|x| x[i]).collect();
                    let point = Point { name, dtype, mode, which: *which, x, found, expected };
                    let listed: Vec<usize> =
                        (0..DIFFERENCES.len()).filter(|&i| DIFFERENCES[i].covers(&point)).collect();
                    met.extend(&listed);
                    if listed.is_empty() {
                        faults.push(format!(
                            "{name}.{dtype}, {mode}, {which:?} {index} at {:?}: {found} instead \
                             of {expected}",
                            point.x
                        ));
                    }
                }
            }
        }
    }
    (faults, met)
}

#[test]
fn values_and_derivatives_at_the_edges_are_those_of_jax() {
    let all = read("tests/fixtures/jax/elementary.safetensors");
    let only = std::env::var("JAX_CASE").unwrap_or_default();
    let chosen = |functions: &[(&'static str, Function)]| -> Vec<(&'static str, Function)> {
        functions.iter().filter(|(name, _)| name.contains(&only)).copied().collect()
    };
    let (mut faults, mut met) = (Vec::new(), BTreeSet::new());
    for mode in [Mode::Interpret, Mode::Jit] {
        for dtype in DTYPES {
            for (group, functions) in [("unary", chosen(&unary())), ("binary", chosen(&binary()))] {
                let (more, listed) = compare(&all, &functions, group, dtype, mode);
                faults.extend(more);
                met.extend(listed);
            }
        }
    }
    if let Ok(path) = std::env::var("JAX_FAULTS") {
        std::fs::write(path, faults.join("\n")).unwrap();
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults[..faults.len().min(100)].join("\n")
    );
    let unmet = (0..DIFFERENCES.len()).filter(|i| !met.contains(i)).map(|i| DIFFERENCES[i].line);
    let unmet: Vec<&str> = unmet.filter(|line| !line.contains("some processors")).collect();
    assert!(unmet.is_empty() || !only.is_empty(), "differences that are none any more: {unmet:#?}");
}

#[test]
fn the_page_lists_every_difference() {
    let page = std::fs::read_to_string("docs/jax-parity.md").unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for difference in DIFFERENCES {
        let line = format!("- {}", difference.line);
        assert!(page.contains(&line), "docs/jax-parity.md lacks: {line}");
    }
}

/// Names of public elementwise functions: the operations, and the functions and methods of the
/// files that hold elementwise functions only.
fn public_functions() -> BTreeSet<String> {
    let operations = UnaryOp::ALL.map(UnaryOp::name).into_iter();
    let operations = operations.chain(BinaryOp::ALL.map(BinaryOp::name));
    let mut names: BTreeSet<String> = operations.map(String::from).collect();
    let files = ["ops/elementwise", "ops/special", "numpy/elementary", "numpy/special"];
    for file in files {
        let text = std::fs::read_to_string(format!("src/trace/{file}.rs")).unwrap();
        let after = |line: &str| {
            let rest = line.trim().strip_prefix("pub fn ")?;
            Some(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_string())
        };
        // The macros' name stands for the methods of the operations, `$method`.
        names.extend(text.lines().filter_map(after).filter(|name| !name.is_empty()));
        // Rows of the macros that define methods: `eq Eq,`.
        let row = |line: &str| {
            let (method, op) = line.trim().strip_suffix(',')?.split_once(' ')?;
            let is_row =
                op.starts_with(char::is_uppercase) && op.chars().all(char::is_alphanumeric);
            (is_row && method.chars().all(|c| c.is_lowercase() || c.is_numeric() || c == '_'))
                .then(|| method.to_string())
        };
        names.extend(text.lines().filter_map(row));
    }
    names
}

/// A new elementwise function fails this test until it has a case.
#[test]
fn every_elementwise_function_has_a_case() {
    let names = public_functions();
    // The reader of the source finds functions of every sort.
    for known in ["sin", "eq", "maximum", "powi", "hypot", "logaddexp", "where_", "betaln", "not"] {
        assert!(names.contains(known), "{known} is not among {names:?}");
    }
    assert_eq!(CompareOp::ALL.len(), 6);
    // Operations and methods that have another name than their case.
    let renamed = |name: &str| match name {
        "logistic" => "sigmoid".to_string(),
        "eq" => "equal".into(),
        "ne" => "not_equal".into(),
        "max" => "maximum".into(),
        "min" => "minimum".into(),
        "where_" => "where".into(),
        other => other.into(),
    };
    let cases: Vec<&str> = unary().into_iter().chain(binary()).map(|(name, _)| name).collect();
    let stated = |name: &str| {
        cases.iter().any(|case| {
            *case == name
                || case.split('_').next() == Some(name) && case.starts_with(&format!("{name}_"))
        })
    };
    // Operations on integers, bool or complex numbers alone need none.
    let of_one = UnaryOp::ALL.map(|op| (op.name(), op.domain()));
    let of_two = BinaryOp::ALL.map(|op| (op.name(), op.domain()));
    let operations: Vec<_> = of_one.into_iter().chain(of_two).collect();
    let takes_no_floats = |name: &str| {
        let own = operations.iter().find(|(operation, _)| *operation == name);
        own.is_some_and(|(_, domain)| !domain.contains(DType::F32))
    };
    let missing: Vec<String> = names
        .iter()
        .map(|name| renamed(name))
        .filter(|name| !stated(name) && !ELSEWHERE.contains(&name.as_str()))
        .filter(|name| !takes_no_floats(name))
        .collect();
    assert!(
        missing.is_empty(),
        "functions without a case: {missing:?}; state operations in tests/recipes/unary.rs and \
         binary.rs, and others in tests/fixtures/jax/elementary.py and tests/it/elementary/functions.rs"
    );
    let all = read("tests/fixtures/jax/elementary.safetensors");
    let recorded: BTreeSet<&str> = all
        .keys()
        .filter_map(|key| key.strip_suffix(".f32"))
        .filter(|key| !["unary", "binary"].contains(key))
        .collect();
    assert_eq!(cases.into_iter().collect::<BTreeSet<_>>(), recorded, "stated here, and recorded");
}

/// Enough elements for the compiler's vector functions, also of numbers that it converts to f32 first.
#[test]
fn long_vectors_are_those_of_the_interpreter() {
    let x: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.5) / 100.0).collect();
    let functions = unary();
    for from in [DType::F16, DType::F32, DType::F64] {
        let wide = if from == DType::F64 { DType::F64 } else { DType::F32 };
        let all = |x: Tensor| -> Vec<Tensor> {
            let x = x.to(from);
            functions.iter().map(|(_, f)| f.call(&[x.to(wide)]).to(DType::F64)).collect()
        };
        let [found, expected] =
            [jit(all).call(Array::from(&x[..])), interpret(all).call(Array::from(&x[..]))];
        for ((name, _), (found, expected)) in
            functions.iter().zip(found.unwrap().iter().zip(expected.unwrap()))
        {
            let [found, expected] = [found, &expected].map(|y| y.to_vec::<f64>().unwrap());
            for (i, (a, b)) in found.into_iter().zip(expected).enumerate() {
                let close = (a - b).abs() <= 2e-4 * b.abs().max(1.0) || a == b;
                assert!(close || a.is_nan() && b.is_nan(), "{name} of {} {from}: {a}, {b}", x[i]);
            }
        }
    }
}
