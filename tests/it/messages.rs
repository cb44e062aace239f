//! The law of messages: an error of a function names the function that the user called, and not an
//! operation or a literal inside of it.

/// Functions by name, each called with a tensor.
macro_rules! calls {
    ($($name:literal => |$x:pat_param| $body:expr,)*) => {
        &[$(($name, |$x: Tensor| { let _ = $body; })),*]
    };
}

mod every;
mod layers;

use podracer::trace::op::{BinaryOp, UnaryOp};
use podracer::trace::ops;
use podracer::{Array, DType, Tensor, make_program};

use crate::recipes::binary::binary;
use crate::recipes::unary::unary;

macro_rules! methods {
    ($($method:ident $(($($argument:expr),*))?),* $(,)?) => {
        &[$((stringify!($method), |x: Tensor| { x.$method($($($argument),*)?); })),*]
    };
}

type Function = (&'static str, fn(Tensor));

/// Compositions; the operations are in `recipes::unary`.
const OF_ELEMENTS: &[Function] = methods![
    atan,
    exp2,
    log2,
    log10,
    trunc,
    is_inf,
    relu,
    elu,
    silu,
    gelu,
    softplus,
    log_sigmoid,
    reciprocal,
    is_nan,
    powi(3),
    leaky_relu(0.5),
    clip(0.5, 1.5),
    clamp(0.5, 1.5),
    maximum(0.5),
    minimum(true),
    lt(0.5),
    ge(true),
    eq(1.5),
    floor_div(0.5),
    modulo(true),
];

const ALONG_AXES: &[Function] = methods![
    sum(7),
    prod(7),
    max(7),
    min(7),
    mean(7),
    var(7),
    std(7),
    all(7),
    any(7),
    argmax(7),
    argmin(7),
    sort(7),
    argsort(7),
    logsumexp(7),
    softmax(7),
    log_softmax(7),
    cumsum(7),
    cumprod(7),
    flip(7),
    median(7),
    quantile(0.5, 7),
    sum([0, 9]),
    mean([0, 9]),
    nansum(7),
    ptp(7),
    index_axis(0, 99),
    split(2, 7),
    squeeze(0),
    expand_dims(9),
    swapaxes(0, 7),
    moveaxis(7, 0),
    roll(1, 7),
    tile(2, 7),
    repeat(2, 7),
    slice_axis(0, 3, 99),
    top_k(99),
];

const REDUCTIONS: &[Function] = methods![
    sum(..),
    prod(..),
    max(..),
    min(..),
    mean(..),
    var(..),
    std(..),
    argmax(0),
    logsumexp(..),
    softmax(-1),
    log_softmax(-1),
    norm,
    cumsum(0),
    cumprod(0),
    cumlogsumexp(0),
    median(0),
    sort(0),
    quantile(0.5, 0),
    nansum(..),
    nanmean(..),
    nanmax(..),
    nanmin(..),
    ptp(..),
    diff(0),
    trace,
];

type FunctionOfTwo = (&'static str, fn(Tensor, Tensor));

/// Functions of two tensors; the operations are in `recipes::binary`.
const OF_TWO: &[FunctionOfTwo] = &[
    ("matmul", |x, y| {
        let _ = x.matmul(y);
    }),
    ("where", |x, y| {
        let _ = ops::where_(x.gt(0), x, y);
    }),
    ("logaddexp", |x, y| {
        let _ = ops::logaddexp(x, y);
    }),
    ("lt", |x, y| {
        let _ = x.lt(y);
    }),
    ("floor_div", |x, y| {
        let _ = x.floor_div(y);
    }),
    ("modulo", |x, y| {
        let _ = x.modulo(y);
    }),
    ("hypot", |x, y| {
        let _ = x.hypot(y);
    }),
    ("average", |x, y| {
        let _ = x.average(y, ..);
    }),
    ("concatenate", |x, y| {
        let _ = ops::concatenate(&[x, y], 0);
    }),
    ("stack", |x, y| {
        let _ = ops::stack(&[x, y], 0);
    }),
];

/// The first line of the error of `f`, if it is one.
fn message(f: impl Fn(Vec<Tensor>), dtypes: &[DType], shapes: &[&[usize]]) -> Option<String> {
    let arrays: Vec<Array> =
        dtypes.iter().zip(shapes).map(|(&dtype, &shape)| Array::zeros(shape, dtype)).collect();
    let traced = make_program(
        |x: Vec<Tensor>| -> Vec<Tensor> {
            f(x);
            vec![]
        },
        &arrays,
    );
    Some(traced.err()?.to_string().lines().next()?.to_string())
}

fn check(name: &str, text: &str, faults: &mut Vec<String>) {
    let words = ["literal", " has no such", "$"];
    if !text.starts_with(&format!("{name}: ")) || words.iter().any(|word| text.contains(word)) {
        faults.push(format!("{name}: {text}"));
    }
}

#[test]
fn errors_name_the_function_that_was_called() {
    let mut faults = Vec::new();
    let mut errors = 0;
    let mut of_one = |name: &str, f: &dyn Fn(Tensor)| {
        for dtype in DType::ALL {
            if let Some(text) = message(|x| f(x[0]), &[dtype], &[&[4, 4]]) {
                errors += 1;
                check(name, &text, &mut faults);
            }
        }
    };
    for row in UnaryOp::ALL.map(unary) {
        of_one(row.name, &|x| {
            (row.f)(x);
        });
    }
    for (name, f) in [OF_ELEMENTS, ALONG_AXES, REDUCTIONS].concat() {
        of_one(name, &f);
    }
    let mut of_two = |name: &str, dtype: DType, f: &dyn Fn(Tensor, Tensor)| {
        // `>>` of unsigned numbers is another operation.
        for (left, right) in [(DType::F32, DType::I32), (DType::I8, DType::F64)] {
            if let Some(text) = message(|x| f(x[0], x[1]), &[left, right], &[&[4, 3], &[3]]) {
                errors += 1;
                check(name, &text, &mut faults);
            }
        }
        if let Some(text) = message(|x| f(x[0], x[1]), &[dtype, dtype], &[&[4, 3], &[5]]) {
            errors += 1;
            check(name, &text, &mut faults);
            // The types are those of the arguments.
            if !text.contains("[4,3]") || !text.contains("[5]") {
                faults.push(format!("{name}: {text}"));
            }
        }
    };
    for op in BinaryOp::ALL {
        let row = binary(op);
        let dtype = if op.domain().contains(DType::F32) { DType::F32 } else { DType::I32 };
        of_two(row.name, dtype, &|x, y| {
            (row.f)(x, y);
        });
    }
    for (name, f) in OF_TWO {
        of_two(name, DType::F32, f);
    }
    assert!(faults.is_empty(), "{} of {errors}:\n{}", faults.len(), faults.join("\n"));
    assert!(errors > 200, "{errors} errors");
}
