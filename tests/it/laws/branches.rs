//! The law of branches: `grad(vmap(f))` is `vmap(grad(f))`, where the examples of a batch take
//! different branches of `f`. All branches are computed for all examples, and what an example does
//! not take must not reach its gradient, nor those of values that the examples share.
//!
//! The branches are one function. Each divides what is mapped by 1 for the examples that take it
//! and by 0 for the others, so that their values and derivatives in it are infinite or NaN
//! everywhere. The last branch, which no example takes, divides by 0 also what is shared.

use std::rc::Rc;

use podracer::trace::eval::eval;
use podracer::trace::ops::stack;
use podracer::{Literal, Shape, Tensor, switch, vmap};

use super::{LANES, Noise, floats_of, is_float, program, vjp_of, with};
use crate::cases::Func;
use crate::recipes::values::{same, stacked};

/// Branches that the examples take.
const TAKEN: [i32; LANES] = [0, 1, 0];

fn divided(x: &[Tensor], at: &[usize], by: Tensor) -> Vec<Tensor> {
    let mut x = x.to_vec();
    for &i in at {
        if x[i].dtype().is_inexact() {
            x[i] = x[i] / by.to(x[i].dtype());
        }
    }
    x
}

/// `f` in every branch; the operands at `at` are mapped, the others captured.
fn branched(f: &Func, x: &[Tensor], at: &[usize], taken: Tensor) -> Vec<Tensor> {
    type Operands = (Tensor, Vec<Tensor>);
    let branch =
        |i: i32| move |(taken, moved): Operands| f(&divided(&with(x, at, &moved), at, taken.eq(i)));
    let all: Vec<usize> = (0..x.len()).collect();
    let nowhere =
        |(taken, moved): Operands| f(&divided(&with(x, at, &moved), &all, taken.ne(taken)));
    let moved = at.iter().map(|&i| x[i]).collect();
    switch(taken, &[&branch(0), &branch(1), &nowhere], (taken, moved))
}

/// The float results for all examples. The last input is the branches that they take.
fn batch_of(f: &Func, at: &[usize], batched: bool) -> Func {
    let (f, at) = (f.clone(), at.to_vec());
    Rc::new(move |args: &[Tensor]| {
        let (&taken, x) = args.split_last().expect("the branches");
        let moved: Vec<Tensor> = at.iter().map(|&i| x[i]).collect();
        if batched {
            let one = |(taken, moved): (Tensor, Vec<Tensor>)| {
                floats_of(branched(&f, &with(x, &at, &moved), &at, taken))
            };
            return vmap(one)((taken, moved));
        }
        let lane = |i: isize| {
            let moved: Vec<Tensor> = moved.iter().map(|x| x.index_axis(0, i)).collect();
            floats_of(f(&with(x, &at, &moved)))
        };
        let lanes: Vec<Vec<Tensor>> = (0..LANES as isize).map(lane).collect();
        let result = |i: usize| stack(&lanes.iter().map(|y| y[i]).collect::<Vec<_>>(), 0);
        (0..lanes[0].len()).map(result).collect()
    })
}

/// Holds `f` to the law, with its inputs at `at` mapped, for as many derivatives as `orders`.
/// Returns the gradients of the batch with their arguments.
pub fn branches(
    f: &Func,
    lanes: &[Vec<Literal>],
    at: &[usize],
    orders: u8,
) -> Result<Vec<(Func, Vec<Literal>)>, String> {
    let mut args = lanes[0].clone();
    for &i in at {
        args[i] = stacked(&lanes.iter().map(|lane| &lane[i]).collect::<Vec<_>>());
    }
    args.push(Literal::new(Shape::from([LANES]), &TAKEN));
    let floats: Vec<usize> = (0..args.len()).filter(|&i| is_float(&args[i])).collect();
    let run = |f: &Func, args: &[Literal]| {
        program(f, args).and_then(|program| eval(&program, args)).map_err(|e| e.to_string())
    };
    let [mut together, mut alone] = [true, false].map(|batched| batch_of(f, at, batched));
    let mut noise = Noise(17);
    let mut cotangents = run(&alone, &args)?;
    let mut gradients = Vec::new();
    for order in 1..=orders {
        [together, alone] = [together, alone].map(|f| vjp_of(&f, args.len(), &floats));
        args.extend(cotangents.iter().map(|y| noise.like(y)));
        let (found, expected) = (run(&together, &args)?, run(&alone, &args)?);
        same(&found, &expected, 1e-9).map_err(|text| format!("order {order}, {at:?}: {text}"))?;
        gradients.push((together.clone(), args.clone()));
        cotangents = expected;
    }
    Ok(gradients)
}
