//! The precision of products: kept by every transformation, written for the compiler, and taken
//! from the scope around.

use podracer::lower::{LowerOptions, stablehlo};
use podracer::trace::numpy::einsum;
use podracer::trace::op::Precision;
use podracer::trace::ops::{ConvOptions, conv2d, default_matmul_precision};
use podracer::{Array, Program, Tensor, grad, hessian, jit, jvp, make_program, vmap};

fn matrix() -> Array {
    Array::from([[1.0f32, 2.0], [3.0, 4.0]])
}

fn program(f: impl Fn(Tensor) -> Tensor) -> Program {
    make_program(f, &matrix()).unwrap()
}

/// How many products the Program's text has, and how many of them are of this precision.
fn count(program: &Program, precision: Precision) -> (usize, usize) {
    let text = program.to_string();
    let lines = text.lines().filter(|line| line.contains("= dot[") || line.contains("= conv["));
    let wanted = format!("precision={}]", precision.name());
    let all: Vec<bool> = lines.map(|line| line.contains(&wanted)).collect();
    (all.len(), all.iter().filter(|here| **here).count())
}

fn all_are(program: &Program, precision: Precision, at_least: usize) {
    let (all, some) = count(program, precision);
    assert!(
        all >= at_least && all == some,
        "{all} products, {some} of them {precision:?}\n{program}"
    );
}

#[test]
fn transformations_keep_the_precision() {
    let highest = |x: Tensor| x.matmul_with(x.sin(), Precision::Highest);
    all_are(&program(highest), Precision::Highest, 1);
    all_are(&program(grad(move |x: Tensor| highest(x).sum(..))), Precision::Highest, 2);
    all_are(&program(move |x| jvp(highest, x, x).1), Precision::Highest, 2);
    all_are(&program(hessian(move |x: Tensor| highest(x).sum(..))), Precision::Highest, 4);
    // Mapped on either side, and on both.
    all_are(
        &program(move |x| {
            vmap(move |row: Tensor| highest(x).matmul_with(row, Precision::Highest))(x)
        }),
        Precision::Highest,
        2,
    );
    all_are(
        &program(move |x| vmap(move |row: Tensor| row.matmul_with(x, Precision::Highest))(x)),
        Precision::Highest,
        1,
    );
    all_are(
        &program(vmap(|row: Tensor| row.matmul_with(row, Precision::Highest))),
        Precision::Highest,
        1,
    );
}

/// A convolution of the argument by itself, and its sum.
fn convolve(x: Tensor) -> Tensor {
    let image = x.reshape([1, 2, 2, 1]);
    conv2d(image, x.slice_axis(0, 0, 1).reshape([1, 2, 1, 1]), &ConvOptions::default()).sum(..)
}

#[test]
fn scopes_nest_and_end() {
    let high = |x: Tensor| {
        let f = |x: Tensor| einsum("ij,jk->ik", &[x, x]).sum(..) + convolve(x);
        default_matmul_precision(Precision::High, || {
            let inner = default_matmul_precision(Precision::Highest, || x.matmul(x));
            // One's own counts more than the scope's.
            let own = x.matmul_with(x, Precision::Highest);
            inner + own + grad(f)(x)
        }) + x.matmul(x)
    };
    let program = program(high);
    let (all, highest) = count(&program, Precision::Highest);
    let (_, high) = count(&program, Precision::High);
    assert_eq!((highest, all - highest - high), (2, 1), "{program}");
    assert!(high >= 4, "{program}");
}

#[test]
fn a_scope_ends_with_an_error() {
    let failing =
        |x: Tensor| default_matmul_precision(Precision::High, || x.matmul(x.reshape([4, 1])));
    make_program(failing, &matrix()).unwrap_err();
    assert_eq!(count(&program(|x| x.matmul(x)), Precision::High), (1, 0));
}

#[test]
fn the_compiler_is_reported() {
    let text = |precision: Precision| {
        let f =
            |x: Tensor| default_matmul_precision(precision, || x.matmul(x).sum(..) + convolve(x));
        stablehlo(&program(f), &LowerOptions::default())
    };
    for (precision, name) in [
        (Precision::Default, "DEFAULT"),
        (Precision::High, "HIGH"),
        (Precision::Highest, "HIGHEST"),
    ] {
        let text = text(precision);
        assert!(text.contains(&format!("precision = [{name}, {name}]")), "{text}");
        let config = format!("[#stablehlo<precision {name}>, #stablehlo<precision {name}>]");
        assert!(text.contains(&config), "{text}");
    }
}

#[test]
fn compiled_functions_know_their_scope() {
    let f = jit(|x: Tensor| x.matmul(x));
    let call = || f.call(matrix()).unwrap().to_vec::<f32>().unwrap();
    for _ in 0..2 {
        assert_eq!(call(), [7.0, 10.0, 15.0, 22.0]);
        assert_eq!(default_matmul_precision(Precision::Highest, call), [7.0, 10.0, 15.0, 22.0]);
    }
    assert_eq!(f.stats().traces, 2);
    assert!(f.explain()[0].to_string().contains("the default precision around the call"));
}
