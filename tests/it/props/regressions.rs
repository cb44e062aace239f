//! What random Programs found, small.

use podracer::{Array, DType, Literal, Mode, Program, Tensor, grad, interpret, jit};

use super::{on_device, run};
use crate::recipes::values::same;

/// Holds a Program to: interpreted = compiled = operation by operation.
#[track_caller]
fn regression(text: &str, inputs: &[&str]) {
    let program = Program::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let inputs: Vec<Literal> =
        inputs.iter().map(|text| Literal::parse(text).unwrap_or_else(|e| panic!("{e}"))).collect();
    let expected = run(&program, &inputs).unwrap();
    for mode in [Mode::Jit, Mode::Eager] {
        let found = on_device(&program, &inputs, mode).unwrap();
        same(&found, &expected, 1e-5).unwrap_or_else(|difference| panic!("{mode}: {difference}"));
    }
}

/// The compiler divides constants itself, and a zero among them ended the process.
#[test]
fn constant_integers_divided_by_zero() {
    for (dtype, least) in [("i8", "-128"), ("i32", "-2147483648"), ("u8", "0"), ("u64", "0")] {
        let last = if least == "0" { "255" } else { "-1" };
        let a = format!("{dtype}[4] [{least}, {least}, 5, 5]");
        let b = format!("{dtype}[4] [{last}, 0, 0, {last}]");
        for op in ["div", "rem"] {
            regression(
                &format!(
                    "{{ lambda. let
                         a:{dtype}[4] = constant[{a}]
                         b:{dtype}[4] = constant[{b}]
                         c:{dtype}[4] = {op} a b
                       in (c) }}"
                ),
                &[],
            );
            let text = format!("{{ lambda a:{dtype}[4] b:{dtype}[4]. let c:{dtype}[4] = {op} a b");
            regression(&format!("{text}\n in (c) }}"), &[&a, &b]);
        }
    }
}

/// Loops that give nothing: they have no first result to ask about.
#[test]
fn loops_without_results() {
    let text = "{ lambda a:f64[1]. let
             = scan[length=1 consts=0 carry=0 reverse] a
               body: { lambda a:f64[]. let
                   c:f64[] = neg a
                   d:f64[] = mul a 2
                   = scan[length=2 consts=1 carry=0] c
                     body: { lambda a:f64[]. let
                         b:f64[] = neg a
                       in () }
                 in (d) }
             b:f64[1] = mul a a
           in (b) }";
    // The loop inside gives nothing; the one around gives a stack.
    let text = text.replacen("             = scan", "             e:f64[1] = scan", 1);
    let text = text.replace("mul a a", "mul a e");
    regression(&text, &["f64[1] [1.5]"]);
    let program = Program::parse(&text).unwrap();
    let slope = interpret(grad(|x: Tensor| program.apply(&[x])[0].sum(..)));
    assert_eq!(slope.call(Array::from([1.5f64])).unwrap().to_vec::<f64>().unwrap(), [6.0]);
    regression(
        "{ lambda. let
             = scan[length=2 consts=0 carry=0]
               body: { lambda. let
                 in () }
           in () }",
        &[],
    );
}

/// The compiler's simplifier of scatters breaks those whose index vectors are empty.
#[test]
fn scatters_without_indices() {
    for op in ["scatter", "scatter_add"] {
        let updates = if op == "scatter" { "f32[1,1]" } else { "f32[2,2]" };
        let shape = &updates[3..];
        regression(
            &format!(
                "{{ lambda a:f32[] b:{updates} c:i32{}. let
                     d:f32[] = {op}[window=() inserted=() batching=()/() map=()] a c b
                   in (d) }}",
                shape.replace(']', ",0]"),
            ),
            &[
                "f32[] 1",
                &format!("{updates} 2.5"),
                &format!("i32{} []", shape.replace(']', ",0]")),
            ],
        );
    }
    regression(
        "{ lambda a:f32[2,3] b:f32[2,3] c:i32[2,0]. let
             d:f32[2,3] = scatter_add[window=(1) inserted=() batching=(0)/(0) map=()] a c b
           in (d) }",
        &["f32[2,3] [1, 2, 3, 4, 5, 6]", "f32[2,3] [1, 1, 1, 2, 2, 2]", "i32[2,0] []"],
    );
}

/// A tangent is taken along the sorted axis, and there may be nothing to take.
#[test]
fn derivatives_of_sorted_nothing() {
    let text = "{ lambda a:f64[0] b:f64[2,0]. let
             c:f64[0] = sort[axis=0] a
             d:f64[2,0] = sort[axis=0] b
           in (c, d) }";
    regression(text, &["f64[0] []", "f64[2,0] []"]);
    let program = Program::parse(text).unwrap();
    let slope = interpret(|x: (Tensor, Tensor)| {
        grad(|(a, b): (Tensor, Tensor)| {
            let sorted = program.apply(&[a, b]);
            sorted[0].sum(..) + sorted[1].sum(..)
        })(x)
    });
    let (a, b) = (Array::zeros([0], DType::F64), Array::zeros([2, 0], DType::F64));
    let (a, b) = slope.call((a, b)).unwrap();
    assert_eq!((a.shape()[..].to_vec(), b.shape()[..].to_vec()), (vec![0], vec![2, 0]));
}

/// Sums of integers wrap, also where the compiler could fold them.
#[test]
fn convolutions_and_products_of_constant_integers() {
    for dtype in ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"] {
        let big = match dtype {
            "i8" | "u8" => "8, 96, 48, 82",
            "i16" | "u16" => "8, 9600, 4800, 8200",
            "i32" | "u32" => "8, 1720461542, 2101544936, 1024629289",
            _ => "8, 8620461542000000000, 9101544936000000000, 7024629289000000000",
        };
        let text = format!(
            "{{ lambda. let
                 f:{dtype}[1,2,2] = constant[{dtype}[1,2,2] [{big}]]
                 i:{dtype}[1,2,3] = constant[{dtype}[1,2,3] [4, 6, 4, 3, 3, 2]]
                 j:{dtype}[1,1,4] = conv[lhs=(0,2,1) rhs=(0,1,2) out=(1,0,2) strides=(1) padding=(2:2)] f i
               in (j) }}"
        );
        regression(&text, &[]);
        let conv = "conv[lhs=(1,0,2) rhs=(1,0,2) out=(2,0,1) strides=(2) padding=(0:1)] f f";
        let dot = "dot[contract=(2)/(2) batch=(0)/(0)] f f";
        for (op, shape) in [(conv, "2,1,2"), (dot, "1,2,2")] {
            regression(
                &format!(
                    "{{ lambda. let
                         f:{dtype}[1,2,2] = constant[{dtype}[1,2,2] [{big}]]
                         i:{dtype}[{shape}] = {op}
                       in (i) }}"
                ),
                &[],
            );
        }
    }
    regression(
        "{ lambda. let
             f:i32[1,2,2] = constant[i32[1,2,2] [-380686992, 1720461542, 2101544936, -1024629289]]
             i:i32[2,1,2] = conv[lhs=(1,0,2) rhs=(1,0,2) out=(2,0,1) strides=(2) padding=(0:1)] f f
           in (i) }",
        &[],
    );
}

/// The compiler merges neighbors, and then their shapes do not fit.
#[test]
fn bitcasts_to_one_width_after_another() {
    regression(
        "{ lambda a:f16[4,4]. let
             b:u64[4] = bitcast[dtype=u64] a
             c:f32[4,2] = bitcast[dtype=f32] b
           in (c) }",
        &["f16[4,4] [0.5, 0.375, -2, 1.625, 0.25, 0.875, -2, -1.625, -2, -0.375, 0.25, 0, 0.875, \
           -1.875, -0.75, 2]"],
    );
    regression(
        "{ lambda a:f64[1]. let
             b:i16[1,4] = bitcast[dtype=i16] a
             c:u8[1,4,2] = bitcast[dtype=u8] b
             d:u8[1,8] = bitcast[dtype=u8] a
           in (c, d) }",
        &["f64[1] [-2]"],
    );
}

/// Bounds in the wrong order: the upper one counts, whatever follows.
#[test]
fn a_lower_bound_above_the_upper_one() {
    regression(
        "{ lambda a:i8[1]. let
             b:i8[1] = constant[i8[1] [-3]]
             c:i8[1] = and a b
             d:i8[1] = clamp c a b
             e:i8[1] = max d c
           in (d, e) }",
        &["i8[1] [6]"],
    );
}

/// A square that wraps may be negative.
#[test]
fn absolute_values_of_squares_of_integers() {
    for op in ["dot[contract=()/()] a a", "mul a a"] {
        regression(
            &format!(
                "{{ lambda a:i32[]. let
                     b:i32[] = {op}
                     c:i32[] = abs b
                   in (c) }}"
            ),
            &["i32[] 65000"],
        );
    }
    regression("{ lambda a:i8[3]. let b:i8[3] = abs a\n in (b) }", &["i8[3] [-128, -3, 5]"]);
}

/// NaN is not at least zero, though an absolute value is never below it: derivatives of nested
/// absolute values came out with another sign.
#[test]
fn comparisons_of_nan_that_is_never_below_zero() {
    for dtype in ["f16", "bf16", "f32", "f64"] {
        for nonnegative in ["abs a", "mul a a", "exp a", "dot[contract=()/() batch=(0)/(0)] a a"] {
            let text = format!(
                "{{ lambda a:{dtype}[5]. let
                     b:{dtype}[5] = {nonnegative}
                     z:{dtype}[5] = constant[{dtype}[5] 0]
                     c:bool[5] = ge b z
                     d:bool[5] = le z b
                     e:bool[5] = lt b z
                     f:bool[5] = gt z b
                     g:bool[5] = le b z
                     h:bool[5] = ge z b
                   in (c, d, e, f, g, h) }}"
            );
            regression(&text, &[&format!("{dtype}[5] [NaN, 0, -0, -1, 2]")]);
        }
    }
    let slope = |x: Tensor| grad(|x: Tensor| x.abs().abs().sum(..))(x);
    let x = || Array::from([f32::NAN, 0.0, -0.0, -1.0, 2.0]);
    let found = jit(slope).call(x()).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(found, interpret(slope).call(x()).unwrap().to_vec::<f32>().unwrap());
    assert_eq!(found, [1.0, 1.0, 1.0, -1.0, 1.0]);
}

/// The compiler folded the zeros above a negative constant to -32, as if it had 64 bits.
#[test]
fn bits_of_negative_constants() {
    for dtype in ["i8", "i16", "i32", "i64"] {
        let text = format!(
            "{{ lambda a:{dtype}[4]. let
                 b:{dtype}[4] = constant[{dtype}[4] [-1, -128, 0, 100]]
                 c:{dtype}[4] = clz b
                 d:{dtype}[4] = population_count b
                 e:{dtype}[4] = clz a
                 f:{dtype}[4] = population_count a
               in (c, d, e, f) }}"
        );
        regression(&text, &[&format!("{dtype}[4] [-1, -128, 0, 100]")]);
    }
}
