//! Reductions, windows at computed indices, quotients and remainders against JAX, for every element
//! type: values, result types and gradients, compiled and interpreted. The numbers are JAX's own
//! (`tests/fixtures/jax/reductions.py`).

use std::collections::{BTreeMap, BTreeSet};

use half::f16;
use podracer::trace::ops::{self, IndexMode, constant, stack};
use podracer::{
    Array, DType, Literal, Result, Tensor, eager, interpret, jit, jvp, make_program, vjp, vmap,
};

use super::differences::{DIFFERENCES, FLOATS, INTEGERS, NUMBERS, Point};
use crate::chunks::unpack;
use crate::fixture::{Kinds, read};
use crate::quickly;

/// A function of the script, stated once more.
type Function = (&'static str, fn(&[Tensor]) -> Vec<Tensor>);

macro_rules! over {
    (three $method:ident) => {
        |x| vec![x[0].$method(..), x[0].$method(0), x[1].$method(1), x[2].$method(1)]
    };
    (two $method:ident) => {
        |x| vec![x[0].$method(..), x[0].$method(0), x[1].$method(1)]
    };
    (along $method:ident) => {
        |x| vec![x[0].$method(0), x[0].$method(1), x[1].$method(1)]
    };
    (flat $method:ident) => {
        |x| vec![x[0].$method(1), x[0].$method(0)]
    };
    (both $($method:ident)*) => {
        |x| vec![$(x[0].$method(0), x[0].$method([0, 1])),*]
    };
}

fn squares(x: Tensor) -> Tensor {
    if x.dtype() == DType::Bool { x } else { x * x }
}

const REDUCTIONS: &[Function] = &[
    ("sum", over!(three sum)),
    ("prod", over!(three prod)),
    ("mean", over!(three mean)),
    ("var", over!(three var)),
    ("std", over!(three std)),
    ("ddof", |x| {
        let var = [1, 2, 4, 5].map(|ddof| x[0].var_ddof(1, ddof));
        let std = [1, 2, 4, 5].map(|ddof| x[0].std_ddof(1, ddof));
        [var, std].concat()
    }),
    ("max", over!(two max)),
    ("min", over!(two min)),
    ("all", over!(three all)),
    ("any", over!(three any)),
    ("argmax", |x| vec![x[0].argmax(0), x[1].argmax(1)]),
    ("argmin", |x| vec![x[0].argmin(0), x[1].argmin(1)]),
    ("nansum", over!(three nansum)),
    ("nanmean", over!(three nanmean)),
    ("nanmax", over!(two nanmax)),
    ("nanmin", over!(two nanmin)),
    ("count_nonzero", |x| vec![x[0].count_nonzero(..), x[1].count_nonzero(1)]),
    ("average", |x| vec![x[0].average(squares(x[0]), 1), x[1].average(x[1], 1)]),
    ("norm", |x| vec![x[0].norm(), x[1].norm()]),
    ("norm_along", |x| [1.0, 2.0, 3.0, f64::INFINITY].map(|p| x[0].norm_along(p, 1)).to_vec()),
    ("logsumexp", over!(three logsumexp)),
    (
        "keepdims",
        over!(both sum_keepdims prod_keepdims max_keepdims min_keepdims all_keepdims any_keepdims
            mean_keepdims var_keepdims std_keepdims logsumexp_keepdims),
    ),
    ("cumsum", over!(along cumsum)),
    ("cumprod", over!(along cumprod)),
    ("sort", over!(along sort)),
    ("argsort", |x| vec![x[0].argsort(0), x[1].argsort(1)]),
    ("median", |x| vec![x[0].median(0), x[1].median(1), x[0].quantile(0.25, 1)]),
    ("diagonal", |x| {
        let mut diagonals = vec![x[0].diagonal()];
        diagonals.extend([-9, -2, -1, 1, 3, 4].map(|offset| x[1].diagonal_of(offset, 0, 1)));
        let cube = x[0].reshape([2, 3, 2]);
        diagonals.extend([cube.diagonal_of(0, 0, 1), cube.diagonal_of(1, 2, 1)]);
        diagonals
    }),
    ("trace", |x| {
        let cube = x[0].reshape([2, 3, 2]);
        vec![x[0].trace(), x[0].trace_of(-1, 0, 1), cube.trace_of(1, 2, 1)]
    }),
    ("ptp", over!(two ptp)),
    ("softmax", over!(along softmax)),
    ("log_softmax", over!(along log_softmax)),
    ("cumsum_reverse", |x| vec![x[0].cumsum_reverse(1), x[0].cumsum_reverse(0)]),
    ("cumprod_reverse", |x| vec![x[0].cumprod_reverse(1), x[0].cumprod_reverse(0)]),
    ("cummax", over!(along cummax)),
    ("cummin", over!(along cummin)),
    ("cummax_reverse", over!(along cummax_reverse)),
    ("cummin_reverse", over!(along cummin_reverse)),
    ("diff", over!(flat diff)),
    ("vdot", |x| vec![x[0].vdot(x[0])]),
    ("searchsorted", |x| {
        let mut places = Vec::new();
        for sorted in [x[0], x[1]] {
            for values in [x[0], x[1]] {
                for right in [false, true] {
                    places.push(sorted.ravel().sort(0).searchsorted(values, right));
                }
            }
        }
        places
    }),
    ("cumlogsumexp", over!(along cumlogsumexp)),
    ("cumlogsumexp_reverse", over!(along cumlogsumexp_reverse)),
    ("reduce_bits", |x| {
        vec![x[0].reduce_and(0), x[1].reduce_or(1), x[2].reduce_and(1), x[2].reduce_or(1)]
    }),
    ("bincount", |x| vec![x[0].bincount(9), x[1].bincount(3)]),
    ("large", |x| {
        let dtype = x[0].dtype();
        let k = ((ops::arange(150_000, DType::I32) * 37) % 101).reshape([1500, 100]);
        let x = match dtype {
            DType::Bool => k.gt(50),
            _ if dtype.is_float() => (k.to(DType::F32) / 128.0).to(dtype),
            _ => k.to(dtype),
        };
        let means = [x.mean(..), x.mean(0), x.var(..), x.std(..), x.average(x, ..)];
        [&[x.sum(..), x.sum(0)], &means[..], &[x.nansum(..), x.count_nonzero(..)]].concat()
    }),
];

/// One function of a tensor, an update and an index: for each index, batched over the indices, and
/// batched over pairs.
fn each_index(f: fn(Tensor, Tensor, Tensor) -> Tensor, x: &[Tensor]) -> Vec<Tensor> {
    let (x, u, indices) = (x[0], x[1], x[2]);
    let count = indices.dim(0);
    let pairs: Vec<Tensor> = (0..count as i32).map(|i| x + i).collect();
    let alone: Vec<Tensor> =
        (0..count as isize).map(|k| f(x, u, indices.index_axis(0, k))).collect();
    vec![
        stack(&alone, 0),
        vmap(move |i: Tensor| f(x, u, i))(indices),
        vmap(move |(x, i): (Tensor, Tensor)| f(x, u, i))((stack(&pairs, 0), indices)),
    ]
}

macro_rules! indexing {
    ($($name:literal => $f:expr,)*) => {
        &[$(($name, |x| each_index($f, x))),*]
    };
}

fn part(x: Tensor, rows: usize) -> Tensor {
    x.slice_axis(0, 0, rows)
}

fn next(i: Tensor) -> Tensor {
    stack(&[i, i + 1], 0)
}

const INDEXING: &[Function] = indexing! {
    "dynamic_slice" => |x, _, i| x.dynamic_slice(&[i, i], [2, 2]),
    "dynamic_slice_whole" => |x, _, i| x.dynamic_slice(&[i, i], [5, 2]),
    "dynamic_slice_in_dim" => |x, _, i| x.dynamic_slice_axis(1, i, 2),
    "dynamic_index" => |x, _, i| x.dynamic_index(0, i),
    "dynamic_update_slice" => |x, u, i| {
        x.dynamic_update_slice(part(u, 2).slice_axis(1, 0, 3), &[i, i])
    },
    "dynamic_update_index" => |x, u, i| x.dynamic_update_index(0, i, u.index_axis(0, 0)),
    "at_get" => |x, _, i| x.at(&[next(i)]).get(),
    "at_get_two" => |x, _, i| x.at(&[next(i), stack(&[i + 1, ops::zeros_like(i)], 0)]).get(),
    "at_set" => |x, u, i| x.at(&[i.expand_dims(0)]).set(part(u, 1)),
    "at_add" => |x, u, i| x.at(&[next(i)]).add(part(u, 2)),
    "at_multiply" => |x, u, i| x.at(&[i.expand_dims(0)]).multiply(part(u, 1).stop_gradient()),
    "at_max" => |x, u, i| x.at(&[i.expand_dims(0)]).max(part(u, 1)),
    "take" => |x, _, i| x.take(next(i), 0),
    "take_clip" => |x, _, i| x.take_mode(next(i), 1, IndexMode::Clip),
    "take_along_axis" => |x, _, i| x.take_along_axis(i.broadcast_to([5, 1]), 1),
};

const DIVISION: &[Function] = &[
    ("floor_div", |x| vec![x[0].floor_div(x[1])]),
    ("modulo", |x| vec![x[0].modulo(x[1])]),
    ("rem", |x| vec![x[0] % x[1]]),
    ("div", |x| vec![ops::div(x[0], x[1])]),
];

/// Functions without gradients in the files.
const VALUES_ONLY: [&str; 4] = ["large", "modulo", "rem", "div"];

/// Halves from -1 to 1, as the script's.
fn cotangent(k: usize, y: Tensor) -> Tensor {
    if !y.dtype().is_float() {
        return ops::zeros_like(y);
    }
    let halves: Vec<f32> =
        (0..y.numel()).map(|i| ((i * 7 + k * 3) % 5) as f32 / 2.0 - 1.0).collect();
    constant(Literal::new(y.shape(), &halves[..])).to(y.dtype())
}

/// The results of `f`, and what cotangents pull back to each float input if there is a float result.
fn evaluate((name, f): Function, x: &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) {
    if VALUES_ONLY.contains(&name) {
        return (f(x), vec![]);
    }
    let at: Vec<usize> = (0..x.len()).filter(|&i| x[i].dtype().is_float()).collect();
    let of_floats = |floats: Vec<Tensor>| {
        let mut x = x.to_vec();
        for (&i, float) in at.iter().zip(floats) {
            x[i] = float;
        }
        f(&x)
    };
    let of_floats: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &of_floats;
    let (results, pull) = vjp(of_floats, at.iter().map(|&i| x[i]).collect());
    if !results.iter().any(|y| y.dtype().is_float()) {
        return (results, vec![]);
    }
    let cts = results.iter().enumerate().map(|(k, &y)| cotangent(k, y)).collect();
    (results, pull(cts))
}

/// The tolerance of an element: some units in the last place of numbers of at least `floor`.
fn tolerance(name: &str, dtype: DType) -> f64 {
    // A logarithm in every step, each rounded to the narrow type.
    let many_roundings = if name.starts_with("cumlogsumexp") { 2.0 } else { 1.0 };
    many_roundings
        * match dtype {
            DType::F16 => 2e-3,
            DType::BF16 => 1.6e-2,
            DType::F32 => 1e-5,
            DType::F64 => 1e-10,
            _ => 0.0,
        }
}

/// A law: the functions of a file, for some element types of their inputs.
struct Law {
    file: &'static str,
    functions: &'static [Function],
    /// Numbers below it agree to as much as it does.
    floor: f64,
    dtypes: &'static [DType],
    /// Element types that also run eagerly.
    eagerly: &'static [DType],
}

/// What a law finds.
#[derive(Default)]
struct Findings {
    faults: Vec<String>,
    /// The listed differences that were met.
    met: BTreeSet<usize>,
}

impl Findings {
    /// Compares an array with JAX's, element by element; `point` is that of the first one.
    fn compare(
        &mut self,
        how: &str,
        found: &Literal,
        expected: &Literal,
        point: Point<'_>,
        law: &Law,
    ) {
        let what = match (point.result, point.gradient) {
            (Some(i), _) => format!("result {i}"),
            (_, Some(i)) => format!("gradient of input {i}"),
            (None, None) => unreachable!("an array is a result or a gradient"),
        };
        let case = format!("{} of {}, {how}, {what}", point.name, point.dtype);
        if found.ty() != expected.ty() {
            self.faults.push(format!("{case}: {} instead of {}", found.ty(), expected.ty()));
            return;
        }
        if found == expected {
            return;
        }
        let tolerance = tolerance(point.name, found.ty().dtype);
        let near = |x: f64, y: f64| {
            x == y
                || (x.is_nan() && y.is_nan())
                || (x - y).abs() <= tolerance * y.abs().max(law.floor)
        };
        let (x, y) = (found.to_f64_vec(), expected.to_f64_vec());
        let different: Vec<usize> = (0..x.len()).filter(|&i| !near(x[i], y[i])).collect();
        let mut listed = true;
        for &i in &different {
            let point = Point { element: i, found: x[i], expected: y[i], ..point };
            let covering = (0..DIFFERENCES.len()).find(|&i| DIFFERENCES[i].covers(&point));
            self.met.extend(covering);
            listed &= covering.is_some();
        }
        let exact = !found.ty().dtype.is_float();
        if !listed || (exact && different.is_empty()) {
            self.faults.push(format!("{case}:\n    {found:?}\n    {expected:?}"));
        }
    }
}

type Cases = Vec<(Function, Vec<Literal>)>;

/// Runs the cases of one element type in one Program.
fn run(
    cases: &Cases,
    inputs: &[Literal],
    how: &str,
    law: &Law,
    findings: &mut Findings,
) -> Result<()> {
    type Evaluated = Vec<(Vec<Tensor>, Vec<Tensor>)>;
    let together = |x: Vec<Tensor>| -> Evaluated {
        cases.iter().map(|(function, _)| evaluate(*function, &x)).collect()
    };
    let together: &dyn Fn(Vec<Tensor>) -> Evaluated = &together;
    let elements: Vec<Vec<f64>> = inputs.iter().map(Literal::to_f64_vec).collect();
    let inputs: Vec<Array> = inputs.iter().cloned().map(Array::from).collect();
    let floats: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
    let dtype = inputs[0].dtype();
    let results = match how {
        "compiled" => quickly(jit(together)).call(inputs)?,
        "eager" => eager(together).call(inputs)?,
        _ => interpret(together).call(inputs)?,
    };
    for (((name, _), expected), (results, gradients)) in cases.iter().zip(results) {
        let count = results.len();
        let found: Vec<Array> = results.into_iter().chain(gradients).collect();
        if found.len() != expected.len() {
            let problem = format!("{name}: {} arrays, not {}", found.len(), expected.len());
            findings.faults.push(problem);
        }
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let point = Point {
                name,
                dtype,
                inputs: &elements,
                result: (i < count).then_some(i),
                gradient: i.checked_sub(count).map(|i| floats[i]),
                element: 0,
                found: 0.0,
                expected: 0.0,
            };
            findings.compare(how, &found.to_literal()?, expected, point, law);
        }
    }
    Ok(())
}

/// Compares every case of a file.
fn agree(law: &Law) -> Findings {
    let fixtures: BTreeMap<String, Kinds> =
        read(&format!("tests/fixtures/jax/{}.safetensors", law.file));
    let recorded: BTreeSet<&str> =
        fixtures.keys().filter_map(|key| key.split('.').next()).collect();
    let stated: BTreeSet<&str> =
        law.functions.iter().map(|(name, _)| *name).chain(["inputs"]).collect();
    assert_eq!(stated, recorded, "functions stated here, and functions in the fixture");
    let mut findings = Findings::default();
    let mut met_dtypes = Vec::new();
    for (key, kinds) in &fixtures {
        let Some(("inputs", dtype)) = key.split_once('.') else { continue };
        let inputs = &kinds["in"];
        if !law.dtypes.contains(&inputs[0].ty().dtype) {
            continue;
        }
        met_dtypes.push(inputs[0].ty().dtype);
        let cases: Cases = law
            .functions
            .iter()
            .filter_map(|&(name, f)| {
                let kinds = fixtures.get(&format!("{name}.{dtype}"))?;
                Some(((name, f), unpack(&kinds["results"][0])))
            })
            .collect();
        assert!(cases.len() >= 4, "{dtype}");
        let eager = law.eagerly.contains(&inputs[0].ty().dtype).then_some("eager");
        for how in ["interpreted", "compiled"].into_iter().chain(eager) {
            if run(&cases, inputs, how, law, &mut findings).is_ok() {
                continue;
            }
            for case in &cases {
                if let Err(error) = run(&vec![case.clone()], inputs, how, law, &mut findings) {
                    let problem = format!("{} of {dtype}, {how}: {error}", case.0.0);
                    findings.faults.push(problem);
                }
            }
        }
    }
    assert_eq!(met_dtypes.len(), law.dtypes.len(), "{met_dtypes:?}");
    let faults = &findings.faults;
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    findings
}

fn reductions(dtypes: &'static [DType], eagerly: &'static [DType]) {
    let law = Law { file: "reductions", functions: REDUCTIONS, floor: 1.0, dtypes, eagerly };
    let met = agree(&law).met;
    let unmet: Vec<&str> = DIFFERENCES
        .iter()
        .enumerate()
        .filter(|(i, difference)| {
            !met.contains(i) && difference.dtypes.iter().any(|d| dtypes.contains(d))
        })
        .map(|(_, difference)| difference.line)
        .collect();
    assert!(unmet.is_empty(), "differences that are none any more: {unmet:#?}");
}

#[test]
fn reductions_of_floats_are_those_of_jax() {
    reductions(FLOATS, &[]);
}

#[test]
fn reductions_of_integers_are_those_of_jax() {
    reductions(INTEGERS, &[DType::U8]);
}

#[test]
fn the_page_lists_every_difference_of_reductions() {
    let page = std::fs::read_to_string("docs/jax-parity.md").unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for difference in DIFFERENCES {
        let line = format!("- {}", difference.line);
        assert!(page.contains(&line), "docs/jax-parity.md lacks: {line}");
    }
}

#[test]
fn windows_at_negative_and_outside_indices_are_those_of_jax() {
    agree(&Law {
        file: "indexing",
        functions: INDEXING,
        floor: 1.0,
        dtypes: &[DType::I32, DType::F32],
        eagerly: &[],
    });
}

#[test]
fn quotients_and_remainders_are_those_of_jax() {
    agree(&Law {
        file: "division",
        functions: DIVISION,
        // Compiled code rounds numbers below the normal ones to 0.
        floor: 1e-30,
        dtypes: NUMBERS,
        eagerly: &[DType::F32],
    });
}

/// The differences that `docs/jax-parity.md` names beside those of [`DIFFERENCES`].
#[test]
fn differences_beside_the_fixtures() {
    let nanmean = |x: Tensor| x.nanmean(..);
    let x = Array::new([9000], &[f16::from_f32(15.0); 9000][..]).unwrap();
    for mean in [interpret(nanmean).call(x.clone()), jit(nanmean).call(x)] {
        assert_eq!(mean.unwrap().item::<f16>().unwrap().to_f32(), 15.0);
    }
    let extremes = |x: Tensor| (x.max(1), x.min(1));
    let (max, min) = jit(extremes).call(Array::zeros([1, 0], DType::F32)).unwrap();
    assert_eq!(max.to_vec::<f32>().unwrap(), [f32::NEG_INFINITY]);
    assert_eq!(min.to_vec::<f32>().unwrap(), [f32::INFINITY]);
    let (max, min) = jit(extremes).call(Array::zeros([1, 0], DType::I32)).unwrap();
    assert_eq!(max.to_vec::<i32>().unwrap(), [i32::MIN]);
    assert_eq!(min.to_vec::<i32>().unwrap(), [i32::MAX]);
    let outside =
        |x: Tensor| jvp(|x: Tensor| x.at(&[constant([7i32])]).get(), x, ops::ones_like(x));
    let (value, tangent) = jit(outside).call(Array::from([0.0f32, 1.0, 2.0])).unwrap();
    assert_eq!(value.to_vec::<f32>().unwrap(), [2.0]);
    assert_eq!(tangent.to_vec::<f32>().unwrap(), [0.0]);
}

/// Number of equations of `f` of the arguments, but for constants.
fn equations(f: fn((Tensor, Tensor)) -> Tensor, dtype: DType) -> usize {
    let arguments = (Array::zeros([4, 4], dtype), Array::from(1i32));
    let text = make_program(f, &arguments).unwrap().to_string();
    let lines = text.lines().filter(|line| line.contains(" = "));
    lines.filter(|line| !line.contains("constant")).count()
}

#[test]
fn what_needs_no_care_costs_no_equation() {
    for dtype in [DType::F32, DType::I32] {
        assert_eq!(equations(|(x, _)| x.sum(0), dtype), 1);
        assert_eq!(equations(|(x, _)| x.dynamic_slice(&[0, 2], [1, 2]), dtype), 1);
        assert_eq!(equations(|(x, _)| x.dynamic_slice(&[-1, -2], [1, 2]), dtype), 1);
        assert_eq!(equations(|(x, i)| x.dynamic_slice(&[i, i], [4, 4]), dtype), 1);
    }
    assert_eq!(equations(|(x, _)| x.mean(0), DType::F32), 2);
    assert_eq!(equations(|(x, _)| x.sum(0), DType::BF16), 3);
    assert_eq!(equations(|(x, _)| x % 3, DType::I32), 1);
}
