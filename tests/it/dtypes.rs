//! Every dtype through every way to run a function: interpreted, operation by operation, compiled.
//! Integers wrap and compare bit for bit, floats agree within their rounding.

use podracer::jit::run_program;
use podracer::trace::control::{cond, scan, while_loop};
use podracer::trace::numpy::einsum;
use podracer::trace::ops::{
    arange, concatenate, constant, div, eye, full_like, iota, ones_like, stack, where_, zeros,
    zeros_like,
};
use podracer::{Array, DType, Literal, Mode, Program, Shape, Tensor, jit, make_program};

use crate::recipes::cook::epsilon;
use crate::recipes::values::{floats, ints, same};

/// What a function is given: `a` and `b` (`[3,4]`) in a small range, `b` without zeros; `wide`
/// (`[3,4]`), for integers over all of their range; `flags` (`bool[3,4]`); `at` (`i32[5]`), places
/// along an axis of size 4 and beside it.
struct Given {
    a: Tensor,
    b: Tensor,
    wide: Tensor,
    flags: Tensor,
    at: Tensor,
}

type Family = (&'static str, fn(&Given) -> Vec<Tensor>);

/// For every dtype.
const ANY: &[Family] = &[
    ("compare", |g| {
        let (a, b) = (g.a, g.b);
        if a.dtype().is_complex() {
            return vec![a.eq(b), a.ne(b), g.wide.ne(g.b)];
        }
        vec![a.eq(b), a.ne(b), a.lt(b), a.le(b), a.gt(b), a.ge(b), g.wide.lt(g.b)]
    }),
    ("select", |g| {
        let rows = g.flags.any([1]);
        vec![where_(g.flags, g.a, g.wide), cond(rows.any([0]), |x| x, |_| g.wide, g.a)]
    }),
    ("convert", |g| {
        let all = DType::ALL.into_iter();
        all.flat_map(|dtype| [g.a.to(dtype), g.wide.to(dtype), g.a.to(dtype).to(g.a.dtype())])
            .collect()
    }),
    ("shape", |g| {
        let (a, b) = (g.a, g.b);
        let parts = a.split(2, 1);
        vec![
            a.transpose(&[1, 0]),
            a.reshape([2, 6]),
            a.flip(1),
            concatenate(&[a, b, a], 0),
            stack(&[a, b], 1),
            parts[1],
            a.expand_dims(1).broadcast_to([3, 2, 4]),
            a.slice_axis(1, 1, 3),
            a.strided_slice(&[0, 0], &[3, 4], &[2, 3]),
            a.pad_with(&[1, 0], &[0, 2], &[0, 1], b.index_axis(0, 0).index_axis(0, 0)),
            a.roll(1, 1),
            a.tile(2, 0),
            a.repeat(2, 1),
        ]
    }),
    ("index", |g| {
        let (a, b) = (g.a, g.b);
        let start = g.at.index_axis(0, 1);
        let row = b.index_axis(0, 0).expand_dims(0);
        vec![
            a.take(g.at, 1),
            a.at(&[g.at]).get(),
            a.at(&[g.at]).set(b.index_axis(0, 2)),
            a.dynamic_slice(&[start, start], [2, 2]),
            a.dynamic_update_slice(row, &[start, start]),
            a.dynamic_index(1, start),
        ]
    }),
    ("sort", |g| {
        let (a, wide) = (g.a, g.wide);
        if a.dtype().is_complex() {
            return vec![a.sort_complex(), wide.sort_complex()];
        }
        vec![a.sort(1), wide.sort(0), a.argsort(1), wide.argsort(1)]
    }),
    ("constants", |g| {
        let dtype = g.a.dtype();
        vec![
            zeros([2, 3], dtype),
            ones_like(g.a),
            full_like(g.a, 1.0),
            zeros_like(g.b),
            eye(3, dtype),
        ]
    }),
    ("loops", |g| {
        let step = |carry: Tensor, x: Tensor| (where_(x.eq(carry), carry, x), carry);
        let (last, all) = scan(step, g.a.index_axis(0, 0), g.b);
        let (_, kept) = while_loop(
            |(n, _): (Tensor, Tensor)| n.lt(3),
            |(n, x)| (n + 1, x.roll(1, 0)),
            (constant(0i32), g.a),
        );
        vec![last, all, kept]
    }),
    ("bits", |g| {
        // An unsigned type of the same width, and back.
        let wide = match g.wide.dtype().size() {
            _ if g.wide.dtype() == DType::Bool => return vec![],
            _ if g.wide.dtype().is_complex() || g.wide.dtype().is_int4() => return vec![],
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        };
        vec![g.wide.bitcast(wide), g.a.bitcast(wide).bitcast(g.a.dtype())]
    }),
];

/// For numbers.
const NUMBERS: &[Family] = &[
    ("arithmetic", |g| {
        let (a, b, wide) = (g.a, g.b, g.wide);
        vec![
            a + b,
            a - b,
            a * b,
            div(a, b),
            a % b,
            wide + wide,
            wide * wide,
            wide - b,
            div(wide, b),
            wide % b,
            a.floor_div(b),
            a.modulo(b),
            a.maximum(b),
            wide.minimum(b),
            a.clamp(b, b + b),
            a.square(),
            wide.powi(3),
            -a,
            -wide,
            wide.abs(),
            a.sign(),
            wide.sign(),
            a * 2 + 1,
        ]
    }),
    ("reductions", |g| {
        let (a, b, wide) = (g.a, g.b, g.wide);
        vec![
            a.sum([1]),
            a.sum(..),
            wide.sum([0]),
            b.prod([1]),
            wide.max(..),
            wide.min([0]),
            a.max([1]),
            a.argmax(1),
            wide.argmin(0),
            a.any([0]),
            a.all([1]),
        ]
    }),
    ("running", |g| {
        let (a, b, wide) = (g.a, g.b, g.wide);
        vec![
            a.cumsum(1),
            wide.cumsum(0),
            b.cumprod(1),
            a.cumsum_reverse(0),
            wide.cummax(1),
            a.cummin(0),
            scan(|sum: Tensor, x: Tensor| (sum + x, sum), zeros_like(a.index_axis(0, 0)), a).1,
        ]
    }),
    ("products", |g| {
        let (a, b, wide) = (g.a, g.b, g.wide);
        vec![
            a.matmul(b.t()),
            a.t().matmul(wide.sign()),
            einsum("ij,ij->i", &[a, b]),
            a.outer(b.index_axis(0, 0)),
        ]
    }),
    ("scatter", |g| {
        let (a, b) = (g.a, g.b);
        let updates = b.index_axis(0, 0);
        let at = |x: Tensor| x.at(&[g.at]);
        vec![at(a).add(updates), at(a).multiply(updates), at(a).min(updates), at(a).max(updates)]
    }),
    ("counting", |g| {
        let dtype = g.a.dtype();
        vec![iota([2, 3], 1, dtype), arange(5, dtype), iota([3, 4], 0, dtype) * g.b]
    }),
    ("many", |g| vec![g.a.top_k(2).0, g.a.diff(1), g.a.trace(), g.wide.sort_descending(1)]),
];

/// For bools and integers.
const DISCRETE: &[Family] = &[("logic", |g| {
    let (a, b, wide) = (g.a, g.b, g.wide);
    vec![a & b, a | b, a ^ wide, !wide, wide.reduce_and([1]), wide.reduce_or(..), a.all([0])]
})];

/// For integers.
const INTEGERS: &[Family] = &[("shifts", |g| {
    let few = g.b & ones_like(g.b);
    vec![g.wide << few, g.wide >> few, g.wide.shift_right_logical(few)]
})];

/// For floats.
const FLOATS: &[Family] = &[
    ("functions", |g| {
        let (a, b) = (g.a, g.b);
        let positive = a.abs() + 0.5;
        vec![
            a.exp(),
            a.expm1(),
            positive.log(),
            positive.log1p(),
            positive.sqrt(),
            positive.rsqrt(),
            a.sin(),
            a.cos(),
            a.tanh(),
            a.sigmoid(),
            a.floor(),
            a.ceil(),
            a.round(),
            a.erf(),
            g.wide.is_finite(),
            positive.pow(b),
            a.atan2(b),
            a.mean([1]),
            a.softmax(1),
        ]
    }),
    ("to integers", |g| {
        // Also what no integer is: it saturates, and NaN becomes 0.
        let all = DType::ALL.into_iter().filter(|dtype| dtype.is_int());
        all.flat_map(|dtype| [(g.wide * 1e4).to(dtype), (g.a / 0.0).to(dtype)]).collect()
    }),
];

const COMPLEX: &[Family] = &[("complex", |g| {
    let (a, b) = (g.a, g.b);
    let sums = [a.sum([1]), a.prod([0]), a.mean([0]), a.cumsum(1), a.matmul(b.transpose(&[1, 0]))];
    let elements = [a + b, a - b, a * b, a / (b + 9.0), -a, a.exp(), a.sin(), a.conj(), a.sqrt()];
    let parts = [a.real(), a.imag(), a.abs(), a.is_finite()];
    [&sums[..], &elements, &parts].concat()
})];

/// Values of a dtype for [`Given`].
fn given(dtype: DType) -> Vec<Literal> {
    let shape = Shape::from([3, 4]);
    let numbers = |signed: [i64; 12]| -> Literal {
        if dtype == DType::Bool {
            Literal::new(&shape, &signed.map(|x| x % 2 != 0))
        } else if dtype.is_float() {
            floats(dtype, &shape, &signed.map(|x| x as f64 / 4.0))
        } else if dtype.is_complex() {
            let parts = signed.map(|x| [x as f64 / 4.0, (2 - x) as f64 / 8.0]);
            floats(dtype, &shape, parts.as_flattened())
        } else {
            let sign = |x: i64| if dtype.is_unsigned() { x.abs() } else { x };
            ints(dtype, &shape, &signed.map(sign))
        }
    };
    let a = numbers([3, -1, 0, 2, 7, 5, -4, 2, 1, 0, 6, -3]);
    let b = numbers([1, 2, -3, 2, 5, -1, 4, 3, 1, 7, 2, -2]);
    let wide = if dtype.is_int() {
        let ends = [i64::MIN, i64::MAX, -1, 0, 1 << 31, -(1 << 31), 127, -128, 255, 1 << 15];
        let mut all = [0x5a5a_5a5a_5a5a_5a5a; 12];
        all[..10].copy_from_slice(&ends);
        // The least of every signed type, and the greatest of every type, are among them, wrapped.
        ints(dtype, &shape, &all)
    } else {
        numbers([30, -9, 0, 21, -77, 50, -40, 23, 12, 1, 65, -31])
    };
    let flags: Vec<bool> = (0..12).map(|i| i % 5 < 2).collect();
    vec![a, b, wide, Literal::new([3, 4], &flags), Literal::new([5], &[0i32, 2, 1, -1, 7])]
}

fn families(dtype: DType) -> Vec<Family> {
    let mut all = ANY.to_vec();
    if dtype.is_narrow() {
        // Without arithmetic, and so without comparisons.
        all.retain(|(name, _)| !["compare", "sort", "loops"].contains(name));
        return all;
    }
    if dtype.is_complex() {
        all.extend(COMPLEX);
        return all;
    }
    if dtype != DType::Bool {
        all.extend(NUMBERS);
    }
    if dtype.is_float() {
        all.extend(FLOATS);
    } else {
        all.extend(DISCRETE);
    }
    if dtype.is_int() {
        all.extend(INTEGERS);
    }
    all
}

/// The functions of some families in one Program, and how many results each has.
fn program(families: &[Family], inputs: &[Array]) -> podracer::Result<(Program, Vec<usize>)> {
    let counts = std::cell::RefCell::default();
    let together = |x: Vec<Tensor>| -> Vec<Tensor> {
        let given = Given { a: x[0], b: x[1], wide: x[2], flags: x[3], at: x[4] };
        let each: Vec<Vec<Tensor>> = families.iter().map(|(_, f)| f(&given)).collect();
        *counts.borrow_mut() = each.iter().map(Vec::len).collect();
        each.concat()
    };
    let together: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &together;
    let program = make_program(together, &inputs.to_vec())?;
    Ok((program, counts.into_inner()))
}

fn exact(found: &Literal, expected: &Literal) -> Result<(), String> {
    if (*found.bytes()).as_ref() == (*expected.bytes()).as_ref() {
        return Ok(());
    }
    Err(format!("\n    found    {found:#}\n    expected {expected:#}"))
}

/// Returns the differences between the interpreter's results of a dtype's functions and those of `mode`.
fn faults_of(dtype: DType, mode: Mode) -> Vec<String> {
    let inputs: Vec<Array> = given(dtype).into_iter().map(Array::from).collect();
    let mut faults = Vec::new();
    // A family that cannot be typed must not hide the others.
    let (mut families, mut typed) = (families(dtype), Vec::new());
    families.retain(|&family| match program(&[family], &inputs) {
        Ok((_, counts)) => {
            typed.extend(counts);
            true
        }
        Err(error) => {
            faults.push(format!("{dtype}, {}: {error}", family.0));
            false
        }
    });
    let (program, _) = program(&families, &inputs).expect("typed one by one");
    let run = |mode: Mode| -> podracer::Result<Vec<Literal>> {
        run_program(&program, &inputs, mode)?.iter().map(Array::to_literal).collect()
    };
    let expected = run(Mode::Interpret).expect("the interpreter runs it");
    let found = match run(mode) {
        Ok(found) => found,
        Err(error) => {
            faults.push(format!("{dtype}, {mode}: {error}"));
            return faults;
        }
    };
    let names =
        families.iter().zip(&typed).flat_map(|((name, _), &n)| (0..n).map(move |i| (name, i)));
    for (((name, i), found), expected) in names.zip(&found).zip(&expected) {
        let of = found.ty().dtype;
        let outcome = if found.ty() != expected.ty() || of.is_inexact() {
            // Sums of four and a function's own error.
            let tolerance = 8.0 * epsilon(of);
            same(std::slice::from_ref(found), std::slice::from_ref(expected), tolerance)
        } else {
            exact(found, expected)
        };
        if let Err(difference) = outcome {
            faults.push(format!("{dtype}, {mode}, {name} {i}: {difference}"));
        }
    }
    faults
}

/// Compares the results of a mode with the interpreter's, for each dtype.
fn agree(dtypes: impl IntoIterator<Item = DType>, mode: Mode) {
    let faults: Vec<String> = dtypes.into_iter().flat_map(|dtype| faults_of(dtype, mode)).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_dtype_is_compiled() {
    agree(DType::ALL, Mode::Jit);
}

/// XLA compiles each operation anew for each dtype, so this test has one dtype of each kind.
#[test]
fn a_dtype_of_each_kind_runs_eagerly() {
    use DType::{BF16, Bool, C64, F8E4M3FN, F32, I4, I32, U8};
    agree([Bool, I32, U8, I4, F32, BF16, F8E4M3FN, C64], Mode::Eager);
}

#[test]
#[ignore = "minutes of compilation"]
fn every_dtype_runs_eagerly() {
    agree(DType::ALL, Mode::Eager);
}

#[test]
fn arrays_show_their_elements() {
    let shown = |array: Array| format!("{array:.2}");
    assert_eq!(shown(Array::from(1.5f32)), "1.50");
    assert_eq!(shown(Array::from([[1i32, -2], [3, 4]])), "[[1, -2],\n [3, 4]]");
    assert_eq!(shown(Array::from([true, false])), "[true, false]");
    assert_eq!(shown(Array::from([half::f16::from_f32(0.5)])), "[0.50]");
    assert_eq!(shown(Array::zeros([0], DType::U8)), "[]");
    assert_eq!(shown(Array::zeros([1000], DType::F32)).matches("0.00").count(), 10);
    let twice = jit(|x: Tensor| x * 2.0);
    let x = Array::from([0.5f32, 1.0]).to_device().unwrap();
    assert_eq!(shown(twice.call(x.clone()).unwrap()), "[1.00, 2.00]");
}
