//! Random piecewise linear functions: their values and gradients are sums of few powers of two,
//! which every float type holds, so that compiled and interpreted must give the same number, whatever
//! the compiler makes of comparisons with NaN, infinities and zeros of either sign.

use podracer::trace::ops::{ones_like, where_};
use podracer::{Array, DType, Literal, Mode, Program, Tensor, interpret, jvp, make_program, vjp};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::{Check, on_device, run};
use crate::recipes::cook::epsilon;
use crate::recipes::values::{floats, same};
use crate::recipes::{cases, joined, runner};

/// A function: its element type, and steps, each of which is an operation and two operands.
#[derive(Debug, Clone)]
struct Recipe {
    dtype: u8,
    steps: Vec<(u8, u8, u8)>,
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let step = (any::<u8>(), any::<u8>(), any::<u8>());
    (any::<u8>(), vec(step, 1..7)).prop_map(|(dtype, steps)| Recipe { dtype, steps })
}

const STEPS: u8 = 24;

/// One step: `a` and `b` are results of earlier steps.
fn step(op: u8, a: Tensor, b: Tensor) -> Tensor {
    match op % STEPS {
        0 | 1 => a.abs(),
        2 => a.abs().abs(),
        3 => -a,
        4 => a.sign(),
        5 => a.relu(),
        6 => a.leaky_relu(0.5),
        7 => a.maximum(b),
        8 => a.minimum(b),
        9 => a.clip(-1.0, 0.5),
        10 => a.clamp(-0.5, 1.0),
        11 => where_(a.ge(b), a, b),
        12 => where_(a.ge(0.0), b, -a),
        13 => where_(a.lt(0.0), -a, a),
        14 => where_(a.eq(b), a * 0.5, b),
        15 => where_(a.is_nan(), b, a),
        16 => where_(a.ne(a.abs()), a, b),
        17 => where_(a.abs().le(0.0), b, a),
        18 => a + b,
        19 => a - b,
        20 => a * 0.5,
        21 => a.stop_gradient() + b,
        22 => where_(ones_like(a).le(a.abs()), a, b),
        _ => where_(a.floor().gt(b.ceil()), a, b),
    }
}

/// The value of the function of two operands, its gradients, and a tangent of the first gradient.
fn derivatives(steps: &[(u8, u8, u8)], x: Vec<Tensor>) -> Vec<Tensor> {
    let f = |x: Vec<Tensor>| {
        let mut all = x;
        for &(op, a, b) in steps {
            // Late results first, so that functions become deep.
            let at = |choice: u8| all[all.len() - 1 - choice as usize % all.len()];
            let next = step(op, at(a % 3), at(b));
            all.push(next);
        }
        *all.last().expect("a step at least")
    };
    let f: &dyn Fn(Vec<Tensor>) -> Tensor = &f;
    let gradient = |x: Vec<Tensor>| {
        let (y, pull) = vjp(f, x);
        pull(ones_like(y))
    };
    let gradient: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &gradient;
    let along = x.iter().map(|&x| ones_like(x)).collect();
    let (first, second) = jvp(gradient, x.clone(), along);
    [vec![f(x)], first, second].concat()
}

fn inputs(dtype: DType) -> Vec<Literal> {
    let edges = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0];
    let (a, b): (Vec<f64>, Vec<f64>) =
        edges.iter().flat_map(|&a| edges.iter().map(move |&b| (a, b))).unzip();
    [a, b].map(|x| floats(dtype, &[x.len()].into(), &x)).to_vec()
}

fn program(recipe: &Recipe) -> (Program, Vec<Literal>) {
    let dtype = [DType::F32, DType::BF16, DType::F16, DType::F64][recipe.dtype as usize % 4];
    let inputs = inputs(dtype);
    let f = |x: Vec<Tensor>| derivatives(&recipe.steps, x);
    let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &f;
    let arrays: Vec<Array> = inputs.iter().cloned().map(Array::from).collect();
    (make_program(f, &arrays).expect("well-typed"), inputs)
}

fn alike(program: &Program, inputs: &[Literal]) -> Check {
    let (found, expected) = (on_device(program, inputs, Mode::Jit)?, run(program, inputs)?);
    for (found, expected) in found.iter().zip(&expected) {
        // Narrow sums of some of the steps may round.
        let dtype = found.ty().dtype;
        let narrow = matches!(dtype, DType::F16 | DType::BF16);
        let tolerance = if narrow { 4.0 * epsilon(dtype) } else { 0.0 };
        same(std::slice::from_ref(found), std::slice::from_ref(expected), tolerance)?;
    }
    Ok(())
}

/// The fault of the smallest recipe that is left when steps are taken away one by one.
fn smallest(mut recipe: Recipe, mut fault: String) -> String {
    let mut at = 0;
    while at < recipe.steps.len() && recipe.steps.len() > 1 {
        let mut fewer = recipe.clone();
        fewer.steps.remove(at);
        let (program, inputs) = program(&fewer);
        match alike(&program, &inputs) {
            Err(text) => (recipe, fault, at) = (fewer, text, 0),
            Ok(()) => at += 1,
        }
    }
    format!("{recipe:?}: {fault}\n{}", program(&recipe).0.to_text())
}

#[test]
fn of_piecewise_linear_functions() {
    const TOGETHER: usize = 50;
    let (mut runner, recipes) = (runner(7), recipe());
    let mut left = cases();
    while left > 0 {
        let count = left.min(TOGETHER);
        left -= count;
        let chosen: Vec<Recipe> = (0..count)
            .map(|_| recipes.new_tree(&mut runner).expect("a recipe").current())
            .collect();
        let made: Vec<(Program, Vec<Literal>)> = chosen.iter().map(program).collect();
        let whole = joined(&made.iter().map(|(program, _)| program).collect::<Vec<_>>());
        let inputs = made.iter().flat_map(|(_, inputs)| inputs.clone()).collect::<Vec<_>>();
        let Err(fault) = alike(&whole, &inputs) else { continue };
        for (recipe, (program, inputs)) in chosen.iter().zip(&made) {
            if let Err(fault) = alike(program, inputs) {
                panic!("{}", smallest(recipe.clone(), fault));
            }
        }
        panic!("together, and not alone: {fault}\n{}", whole.to_text());
    }
}

/// Gradients are not all zero: the functions reach their operands.
#[test]
fn piecewise_linear_functions_have_gradients() {
    let steps = [(2, 0, 0), (11, 0, 1), (7, 0, 2)];
    let f = |x: Vec<Tensor>| derivatives(&steps, x);
    let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &f;
    let x = inputs(DType::F32).into_iter().map(Array::from).collect::<Vec<_>>();
    let found = interpret(f).call(x).unwrap();
    let gradient = [&found[1], &found[2]].map(|x| x.to_vec::<f32>().unwrap()).concat();
    assert!(gradient.iter().any(|&x| x > 0.0) && gradient.iter().any(|&x| x < 0.0), "{gradient:?}");
}
