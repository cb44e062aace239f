//! Special values as a law: functions at zeros, denormals, huge numbers, infinities, NaN and empty axes
//! are JAX's, values and first derivatives, compiled and interpreted. The tables name a function, an
//! expression of JAX, and ours; `tests/fixtures/special/make.py` reads the tables and writes JAX's
//! numbers. The fixture has `f32`, `i32` and `c64`; the last test asks a live JAX for every type.

mod arrays;
mod differences;
mod elementwise;
mod reductions;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use podracer::trace::ops::{complex, constant, ones_like};
use podracer::{Array, DType, Literal, Mode, Result, Tensor, grad, interpret, jit, vjp};

use self::differences::{DIFFERENCES, Difference, OF_OTHER_TYPES, Point};
use crate::chunks::in_chunks;
use crate::fixture::{Kinds, read};

/// A function of one, two or three operands.
#[derive(Clone, Copy)]
pub enum Function {
    One(fn(Tensor) -> Tensor),
    Two(fn(Tensor, Tensor) -> Tensor),
    Three(fn(Tensor, Tensor, Tensor) -> Tensor),
}

impl Function {
    fn call(self, x: &[Tensor]) -> Tensor {
        match self {
            Function::One(f) => f(x[0]),
            Function::Two(f) => f(x[0], x[1]),
            Function::Three(f) => f(x[0], x[1], x[2]),
        }
    }
}

fn listed() -> impl Iterator<Item = &'static Difference> {
    DIFFERENCES.iter().chain(OF_OTHER_TYPES)
}

/// A name, the expression of JAX, and the function.
pub type Row = (&'static str, &'static str, Function);

const TABLES: &[(&str, &[Row])] = &[
    ("UNARY", elementwise::UNARY),
    ("VECTOR", elementwise::VECTOR),
    ("BINARY", elementwise::BINARY),
    ("TERNARY", elementwise::TERNARY),
    ("TRIPLES_OF_VALUES", elementwise::TRIPLES_OF_VALUES),
    ("COMPLEX_UNARY", elementwise::COMPLEX_UNARY),
    ("COMPLEX_BINARY", elementwise::COMPLEX_BINARY),
    ("INT_UNARY", elementwise::INT_UNARY),
    ("INT_BINARY", elementwise::INT_BINARY),
    ("PAIRS", reductions::PAIRS),
    ("PAIRS_OF_UPDATES", reductions::PAIRS_OF_UPDATES),
    ("INT_PAIRS", reductions::INT_PAIRS),
    ("EMPTY", reductions::EMPTY),
    ("ARRAY_PAIRS", arrays::ARRAY_PAIRS),
    ("ARRAY_VECTOR", arrays::ARRAY_VECTOR),
];

/// The value of `f`, and if it and the table have derivatives cotangents of ones pulled back to each
/// operand.
fn derivatives(f: Function, x: &[Tensor], table: &str) -> Vec<Tensor> {
    let g = move |x: Vec<Tensor>| f.call(&x);
    let g: &dyn Fn(Vec<Tensor>) -> Tensor = &g;
    let value = f.call(x);
    if table.contains("_OF_") || !value.dtype().is_inexact() || !x[0].dtype().is_float() {
        return vec![value];
    }
    let (value, pull) = vjp(g, x.to_vec());
    let pulled = pull(ones_like(value));
    [value].into_iter().chain(pulled).collect()
}

/// Complex numbers of their parts along the last axis, as the script writes them.
fn operand(parts: Tensor, dtype: DType) -> Tensor {
    if !dtype.is_complex() {
        return parts;
    }
    complex(parts.index_axis(-1, 0), parts.index_axis(-1, 1))
}

/// The parts of complex numbers.
fn parts(x: Tensor) -> Tensor {
    if !x.dtype().is_complex() {
        return x;
    }
    podracer::trace::ops::stack(&[x.real(), x.imag()], -1)
}

/// The smallest normal number.
fn smallest_normal(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-14),
        DType::F64 | DType::C128 => f64::MIN_POSITIVE,
        _ => f32::MIN_POSITIVE.into(),
    }
}

/// Allowed error, a part of the number.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 8e-3,
        DType::BF16 => 3e-2,
        DType::F64 | DType::C128 => 1e-10,
        _ => 2e-5,
    }
}

/// Spacing of numbers around 1.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-10),
        DType::BF16 => 2f64.powi(-7),
        DType::F64 | DType::C128 => f64::EPSILON,
        _ => f32::EPSILON.into(),
    }
}

/// True if `found` is `expected`: NaN, an infinity, a zero of the same sign (of a derivative: any
/// zero), or a number nearby. What numbers around 1 leave when they cancel is as good as 0; a smaller
/// number is not.
fn agrees(found: f64, expected: f64, dtype: DType, which: usize) -> bool {
    if found.is_nan() || expected.is_nan() {
        return found.is_nan() && expected.is_nan();
    }
    if found == 0.0 && expected == 0.0 {
        return which > 0 || found.is_sign_negative() == expected.is_sign_negative();
    }
    let (error, part) = ((found - expected).abs(), tolerance(dtype));
    let large = found.abs().max(expected.abs()) > epsilon(dtype) * 1e-4;
    let units = if dtype == DType::BF16 { 2.0 } else { 4.0 };
    let rounding = error <= units * epsilon(dtype) && large;
    found == expected || error <= part * expected.abs() || rounding
}

/// The operands of element `i` of a result: those of the same place, or of the same row.
fn operands_of(x: &[Literal], i: usize, count: usize) -> Vec<f64> {
    x.iter()
        .flat_map(|x| {
            let all = x.to_f64_vec();
            let rows = x.ty().shape.first().copied().unwrap_or(1).max(1);
            let width = all.len() / rows;
            let per_row = (count / rows).max(1);
            let row = (i / per_row).min(rows - 1);
            all[row * width..(row + 1) * width].to_vec()
        })
        .collect()
}

struct Law {
    all: BTreeMap<String, Kinds>,
    faults: Vec<String>,
    met: BTreeSet<usize>,
    /// Numbers that were compared.
    count: usize,
}

impl Law {
    fn types(&self, table: &str) -> Vec<DType> {
        let recorded = |dtype: &DType| self.all.contains_key(&format!("{table}.{dtype}"));
        DType::ALL.into_iter().filter(recorded).collect()
    }

    /// Runs rows of a table in one Program: a compilation costs more than what is in it.
    fn run(
        &self,
        table: &str,
        rows: &[Row],
        x: &[Literal],
        dtype: DType,
        mode: Mode,
    ) -> Result<Vec<Vec<Literal>>> {
        let together = |x: Vec<Tensor>| -> Vec<Vec<Tensor>> {
            let x: Vec<Tensor> = x.into_iter().map(|x| operand(x, dtype)).collect();
            let each =
                |(_, _, f): &Row| derivatives(*f, &x, table).into_iter().map(parts).collect();
            rows.iter().map(each).collect()
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

    fn compare(&mut self, row: &Row, x: &[Literal], found: &[Literal], dtype: DType, mode: Mode) {
        let name = row.0;
        let recorded = &self.all[&format!("{name}.{dtype}")];
        let derivatives = recorded.get("d").into_iter().flatten();
        let expected: Vec<&Literal> = recorded["value"].iter().chain(derivatives).collect();
        if found.len() != expected.len() {
            let (found, expected) = (found.len(), expected.len());
            self.faults.push(format!("{name}.{dtype}: {found} results instead of {expected}"));
            return;
        }
        for (which, (found, expected)) in found.iter().zip(expected).enumerate() {
            if found.ty().shape != expected.ty().shape
                || found.ty().dtype.is_float() != expected.ty().dtype.is_float()
            {
                self.faults.push(format!(
                    "{name}.{dtype}: {} instead of {}",
                    found.ty(),
                    expected.ty()
                ));
                continue;
            }
            let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
            let count = found.len();
            self.count += count;
            for (i, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
                if agrees(found, expected, dtype, which) {
                    continue;
                }
                let x = operands_of(x, i, count);
                let point = Point { name, dtype, mode, which, x, found, expected };
                match listed().position(|difference| difference.covers(&point)) {
                    Some(listed) => {
                        self.met.insert(listed);
                    }
                    None => self.faults.push(format!("{point}")),
                }
            }
        }
    }

    fn check(&mut self) {
        let only = std::env::var("JAX_CASE").unwrap_or_default();
        for (table, rows) in TABLES {
            for dtype in self.types(table) {
                let x = self.all[&format!("{table}.{dtype}")]["in"].clone();
                let recorded = |row: &&Row| {
                    row.0.contains(&only) && self.all.contains_key(&format!("{}.{dtype}", row.0))
                };
                let rows: Vec<Row> = rows.iter().filter(recorded).copied().collect();
                for mode in [Mode::Interpret, Mode::Jit] {
                    let done = RefCell::new(Vec::new());
                    let faults = in_chunks(
                        &rows,
                        24,
                        |row| row.0,
                        |chunk, _| {
                            let found = self.run(table, chunk, &x, dtype, mode)?;
                            done.borrow_mut().extend(chunk.iter().copied().zip(found));
                            Ok(())
                        },
                    );
                    let named = |fault: &String| format!("{dtype}, {mode}: {fault}");
                    self.faults.extend(faults.iter().map(named));
                    for (row, found) in done.into_inner() {
                        self.compare(&row, &x, &found, dtype, mode);
                    }
                }
            }
        }
    }
}

/// Compares all that the files have; each of the first `listed_count` listed differences is met by some point.
fn check(files: impl IntoIterator<Item = String>, listed_count: usize) {
    let mut law = Law { all: BTreeMap::new(), faults: Vec::new(), met: BTreeSet::new(), count: 0 };
    for file in files {
        law.all = read(&file);
        law.check();
    }
    let Law { faults, met, count, .. } = law;
    println!("{count} numbers compared, {} faults", faults.len());
    if let Ok(path) = std::env::var("JAX_FAULTS") {
        std::fs::write(path, faults.join("\n")).unwrap();
    }
    let shown = faults[..faults.len().min(100)].join("\n");
    assert!(faults.is_empty(), "{} faults:\n{shown}", faults.len());
    let expected = listed().take(listed_count).enumerate();
    let unmet: Vec<&str> =
        expected.filter(|(i, _)| !met.contains(i)).map(|(_, listed)| listed.line).collect();
    let part = ["JAX_CASE", "JAX_TYPES"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(unmet.is_empty() || part, "differences that are none any more: {unmet:#?}");
}

#[test]
fn special_values_are_those_of_jax() {
    check(["tests/fixtures/special/special.safetensors".to_string()], DIFFERENCES.len());
}

/// `PODRACER_PEER_PYTHON=python cargo test --test it special_values -- --ignored`; with
/// `JAX_TYPES="f64 c128"` of these types, with `JAX_CASE=norm` of functions with such names.
#[test]
#[ignore = "minutes; needs a Python with jax and optax"]
fn special_values_of_every_type_are_those_of_jax() {
    let python = std::env::var_os("PODRACER_PEER_PYTHON")
        .expect("PODRACER_PEER_PYTHON names a Python with jax and optax");
    let folder = tempfile::tempdir().unwrap();
    let every = "f32 f64 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 c64 c128";
    let types = std::env::var("JAX_TYPES").unwrap_or(every.into());
    // Each type is compared before the next is asked for.
    let record = |dtype: &str| {
        let file = folder.path().join(dtype);
        let mut command = std::process::Command::new(&python);
        command.args(["tests/fixtures/special/make.py", "all"]).arg(&file).env("JAX_TYPES", dtype);
        assert!(command.status().unwrap().success());
        file.to_str().unwrap().to_string()
    };
    check(types.split_whitespace().map(record), listed().count());
}

/// NumPy's numbers: JAX's loop does not end there.
#[test]
fn divisors_of_the_least_integer_are_those_of_numpy() {
    let divisors = |(x, y): (Tensor, Tensor)| x.gcd(y);
    let least = Array::from([i32::MIN; 4]);
    let found = jit(divisors).call((least, Array::from([i32::MAX, 6, 3, -1]))).unwrap();
    assert_eq!(found.to_vec::<i32>().unwrap(), [1, 2, 1, 1]);
}

#[test]
fn derivatives_of_scattered_maxima_pass_nan_elsewhere() {
    let greatest = |x: Tensor| x.at(&[constant([0])]).max(constant([2.0f32]));
    let slopes = |x: Tensor| grad(|x: Tensor| greatest(x).sum(..))(x);
    for (x, expected) in [([1.0, f32::NAN], [0.0, 1.0]), ([3.0, f32::NAN], [1.0, 1.0])] {
        assert_eq!(jit(slopes).call(Array::from(x)).unwrap().to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn the_page_lists_every_difference() {
    let page = std::fs::read_to_string("docs/jax-parity.md").unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for difference in listed() {
        let line = format!("- {}", difference.line);
        assert!(page.contains(&line), "docs/jax-parity.md lacks: {line}");
    }
}

/// Functions without a row, by what holds them.
const WITHOUT_A_ROW: &[(&str, &[&str])] = &[
    (
        "moves, repeats or counts elements, and computes nothing with them",
        &[
            "append",
            "array_split",
            "atleast_1d",
            "atleast_2d",
            "atleast_3d",
            "block",
            "broadcast_arrays",
            "column_stack",
            "delete",
            "diag",
            "diagflat",
            "diagonal",
            "diagonal_of",
            "dsplit",
            "dstack",
            "fftshift",
            "fill_diagonal",
            "fliplr",
            "flipud",
            "hsplit",
            "hstack",
            "ifftshift",
            "insert",
            "ix_",
            "matrix_transpose",
            "meshgrid",
            "place",
            "put",
            "put_along_axis",
            "resize",
            "rollaxis",
            "rot90",
            "split_at",
            "unstack",
            "vsplit",
            "vstack",
        ],
    ),
    (
        "takes sizes or indices",
        &[
            "bartlett",
            "bernoulli",
            "blackman",
            "diag_indices",
            "diag_indices_from",
            "fftfreq",
            "geomspace",
            "hamming",
            "hanning",
            "indices",
            "kaiser",
            "logspace",
            "padding",
            "ravel_multi_index",
            "rfftfreq",
            "strides",
            "tri",
            "tril_indices",
            "tril_indices_from",
            "triu_indices",
            "triu_indices_from",
            "unravel_index",
        ],
    ),
    ("calls a function of its caller", &["apply_along_axis", "apply_over_axes", "fromfunction"]),
    (
        "decomposes matrices: tests/it/linalg.rs, which holds them to NaN of NaN and infinities",
        &[
            "cho_solve",
            "cond",
            "det",
            "eig",
            "eigh",
            "eigvals",
            "eigvalsh",
            "inv",
            "lstsq",
            "lu",
            "matrix_rank",
            "orthonormal_columns",
            "pinv",
            "polyfit",
            "qr",
            "roots",
            "slogdet",
            "solve",
            "svd",
            "svdvals",
            "tensorinv",
            "tensorsolve",
        ],
    ),
];

/// A new function of arrays fails this test until it has a row, or a reason to have none.
#[test]
fn every_function_has_a_row_or_a_reason() {
    let text = |path: &str| std::fs::read_to_string(path).unwrap();
    let tables =
        ["special_values/elementwise", "special_values/reductions", "special_values/arrays"];
    let rows: String = tables.map(|name| text(&format!("tests/it/{name}.rs"))).concat()
        + &text("tests/it/elementary/functions.rs");
    // Names of ours that a row calls: those of JAX stand in texts, the odd parts between quotes.
    let code: String = rows.split('"').step_by(2).collect();
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let called = code.split(|c: char| !is_letter(c) && c != '.' && c != ':');
    let words: BTreeSet<&str> =
        called.filter_map(|path| Some(path.rsplit_once(['.', ':'])?.1)).collect();
    let mut names = BTreeSet::new();
    let files = std::fs::read_dir("src/trace/numpy").unwrap();
    let files = files.map(|file| file.unwrap().path().to_str().unwrap().to_string());
    for file in files.chain(["src/trace/ops/reduce.rs".to_string()]) {
        for line in text(&file).lines() {
            let Some(rest) = line.trim().strip_prefix("pub fn ") else { continue };
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
            names.extend((!name.is_empty()).then(|| name.to_string()));
        }
    }
    assert!(names.contains("nanmean") && names.contains("std_ddof") && names.contains("wofz"));
    let excepted: BTreeSet<&str> =
        WITHOUT_A_ROW.iter().flat_map(|(_, names)| *names).copied().collect();
    let names = names.iter().map(String::as_str);
    let missing: Vec<&str> =
        names.clone().filter(|name| !words.contains(name) && !excepted.contains(name)).collect();
    assert!(
        missing.is_empty(),
        "add rows to tests/it/special_values, or a reason here: {missing:?}"
    );
    let known: BTreeSet<&str> = names.collect();
    let idle: Vec<&&str> =
        excepted.iter().filter(|name| words.contains(*name) || !known.contains(*name)).collect();
    assert!(idle.is_empty(), "have rows, or are no functions: {idle:?}");
}

#[test]
fn every_row_is_recorded() {
    let all = read("tests/fixtures/special/special.safetensors");
    let recorded = |name: &str| all.keys().any(|key| key.split('.').next() == Some(name));
    let rows = TABLES.iter().flat_map(|(_, rows)| rows.iter());
    let missing: Vec<&str> = rows.map(|row| row.0).filter(|name| !recorded(name)).collect();
    assert!(missing.is_empty(), "run tests/fixtures/special/make.py: {missing:?}");
}
