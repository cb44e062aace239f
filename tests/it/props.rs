//! Properties of random Programs.
//!
//! A Program is cooked from a recipe (`recipes`), and every property of [`PROPERTIES`] is
//! held to for it on the host; then many Programs are compiled as one, and compared with the
//! interpreter. What fails is shrunk, and printed as a text for [`regression`], inputs included.
//!
//! How many are tried, and which: see `recipes`.

mod piecewise;
mod regressions;

use std::collections::BTreeSet;
use std::rc::Rc;

use podracer::jit::run_program;
use podracer::trace::check::verify;
use podracer::trace::eval::eval;
use podracer::trace::graph::simplify;
use podracer::{Literal, Mode, Program, Tensor, jvp, make_program, vjp, vmap};
use proptest::strategy::{Strategy, ValueTree};

use crate::cases::{Func, Smooth};
use crate::laws::{Enclosing, LANES, branches, lane, leaves, leaves_of, reads_back};
use crate::recipes::cook::{Dish, Info, Kind, cook, epsilon, values};
use crate::recipes::recipe::{Salt, recipe};
use crate::recipes::values::{same, stacked};
use crate::recipes::{Check, arrays, cases, checked, hold_together, near, runner, shrunk};

/// A property: its name, whether it is about smooth Programs, and what holds.
type Property = (&'static str, bool, fn(&Dish) -> Check);

/// What holds for every Program. Another property is another line here.
///
/// Those that need a device are checked apart, since a compilation takes more than all of these.
const PROPERTIES: &[Property] = &[
    ("well-typed", false, well_typed),
    ("its text reads back", false, |dish| reads_back(&dish.program)),
    ("simplified, it gives the same", false, simplified),
    ("vmap is a loop", false, vmap_is_a_loop),
    ("jvp is the difference, and vjp its transpose", true, derivatives),
    ("gradients of a batch are those of its branches", true, gradients_of_branches),
];

/// Holds all cases to the properties.
fn hold(smooth: bool) {
    let mut runner = runner(smooth as u8);
    let recipes = recipe();
    let mut equations = 0;
    for _ in 0..cases() {
        let tree = recipes.new_tree(&mut runner).expect("a recipe");
        let recipe = tree.current();
        for (name, about_smooth, check) in PROPERTIES {
            if *about_smooth && !smooth {
                continue;
            }
            if let Err(fault) = checked(&recipe, smooth, check) {
                panic!("{}", shrunk(tree, smooth, name, fault, check));
            }
        }
        equations += cook(&recipe, smooth).program.size();
    }
    println!("{} Programs, {equations} equations", cases());
}

/// Operations that no step makes, each for a reason: collectives and divisions need an axis, what is left of a
/// custom_vjp has no value, matrices that are far from singular do not come by chance, and the others hold functions of the user's: the laws are held to by
/// those in tests/it/cases.
const NOT_COOKED: &[&str] = &[
    "collective",
    "sharding",
    "custom_lin",
    "cholesky",
    "triangular_solve",
    "name",
    "custom_jvp",
    "custom_vjp",
    "checkpoint",
    "pure_callback",
    "io_callback",
    "debug_callback",
];

#[test]
fn recipes_reach_every_operation() {
    let mut runner = runner(0);
    let recipes = recipe();
    let mut met = BTreeSet::new();
    for _ in 0..2000 {
        let tree = recipes.new_tree(&mut runner).expect("a recipe");
        met.extend(leaves_of(&cook(&tree.current(), false).program));
    }
    let missing: Vec<_> = leaves()
        .into_iter()
        .filter(|leaf| !met.contains(leaf) && !NOT_COOKED.contains(leaf))
        .collect();
    assert!(
        missing.is_empty(),
        "operations that no recipe makes: {missing:?}; let `Cook::step` make them, or name them in \
         NOT_COOKED with the reason"
    );
}

#[test]
fn random_programs_hold_the_laws() {
    hold(false);
}

#[test]
fn random_smooth_programs_hold_the_laws_of_gradients() {
    hold(true);
}

fn run(program: &Program, inputs: &[Literal]) -> Result<Vec<Literal>, String> {
    eval(program, inputs).map_err(|error| error.to_string())
}

fn well_typed(dish: &Dish) -> Check {
    verify(&dish.program)?;
    let outputs = run(&dish.program, &dish.values(1))?;
    for (i, (output, ty)) in outputs.iter().zip(dish.program.output_types()).enumerate() {
        if output.ty() != ty {
            return Err(format!("result {i} is {}, and should be {ty}", output.ty()));
        }
    }
    // The generator's promise, on which every tolerance stands.
    for (i, (output, info)) in outputs.iter().zip(&dish.outputs).enumerate() {
        let slack = info.error
            + 1e-6 * info.size().min(1e6)
            + 2.0 * epsilon(output.ty().dtype) * info.size().min(1e6);
        let inside = |x: &f64| (info.low - slack..=info.high + slack).contains(x);
        let outside = output.to_f64_vec().into_iter().find(|x| !inside(x) && info.size() < 1e5);
        if let Some(x) = outside
            && output.ty().dtype.is_float()
        {
            return Err(format!("result {i} holds {x}, which is outside {info:?}"));
        }
    }
    Ok(())
}

fn simplified(dish: &Dish) -> Check {
    let inputs = dish.values(1);
    let simple = simplify(dish.program.clone());
    verify(&simple)?;
    same(&run(&simple, &inputs)?, &run(&dish.program, &inputs)?, 0.0)
}

/// The Program of a function for inputs like these.
fn traced(f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor>, inputs: &[Literal]) -> Result<Program, String> {
    make_program(f, &arrays(inputs)).map_err(|error| error.to_string())
}

fn vmap_is_a_loop(dish: &Dish) -> Check {
    const LANES: usize = 2;
    let lanes: Vec<Vec<Literal>> = (0..LANES as u64).map(|seed| dish.values(seed + 1)).collect();
    let n = lanes[0].len();
    // All inputs, and a choice of them.
    let mut salt = Salt(dish.program.size() as u64);
    let some: Vec<usize> = (0..n).filter(|_| salt.once_in(2)).collect();
    for at in [(0..n).collect::<Vec<usize>>(), some] {
        if at.is_empty() {
            continue;
        }
        let mut together = lanes[0].clone();
        for &i in &at {
            together[i] = stacked(&lanes.iter().map(|lane| &lane[i]).collect::<Vec<_>>());
        }
        let f = |x: Vec<Tensor>| {
            let inner = |mapped: Vec<Tensor>| {
                let mut x = x.clone();
                at.iter().zip(mapped).for_each(|(&i, tensor)| x[i] = tensor);
                dish.program.apply(&x)
            };
            vmap(inner)(at.iter().map(|&i| x[i]).collect())
        };
        let batched = traced(&f, &together)?;
        verify(&batched)?;
        let found = run(&batched, &together)?;
        let alone: Vec<Vec<Literal>> = (0..LANES)
            .map(|i| run(&dish.program, &lane(&together, &at, i)))
            .collect::<Result<_, _>>()?;
        let expected: Vec<Literal> = (0..found.len())
            .map(|o| stacked(&alone.iter().map(|outputs| &outputs[o]).collect::<Vec<_>>()))
            .collect();
        near(&found, &expected, &dish.outputs).map_err(|text| format!("inputs {at:?}: {text}"))?;
    }
    Ok(())
}

/// Central differences along a direction, for two steps; and the transpose by inner products.
fn derivatives(dish: &Dish) -> Check {
    let program = &dish.program;
    let x = dish.values(1);
    let is_float = |x: &Literal| x.ty().dtype.is_float();
    let at: Vec<usize> = (0..x.len()).filter(|&i| is_float(&x[i])).collect();
    let outputs: Vec<usize> = program
        .output_types()
        .enumerate()
        .filter(|(_, ty)| ty.dtype.is_float())
        .map(|(i, _)| i)
        .collect();
    if at.is_empty() || outputs.is_empty() {
        return Ok(());
    }
    let mut salt = Salt(99);
    let v: Vec<Literal> = at.iter().map(|&i| values(x[i].ty(), Kind::Smooth, &mut salt)).collect();

    let of_floats = |x: &[Tensor], moved: Vec<Tensor>| {
        let mut x = x.to_vec();
        at.iter().zip(moved).for_each(|(&i, tensor)| x[i] = tensor);
        let results = program.apply(&x);
        outputs.iter().map(|&i| results[i]).collect::<Vec<Tensor>>()
    };
    let push = |args: Vec<Tensor>| {
        let (x, v) = args.split_at(program.inputs.len());
        let f = |moved: Vec<Tensor>| of_floats(x, moved);
        let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &f;
        jvp(f, at.iter().map(|&i| x[i]).collect(), v.to_vec()).1
    };
    let args: Vec<Literal> = x.iter().chain(&v).cloned().collect();
    let pushed = traced(&push, &args)?;
    verify(&pushed)?;
    let jv = run(&pushed, &args)?;

    let difference = |h: f64| -> Result<Vec<Vec<f64>>, String> {
        let moved = |h: f64| {
            let mut x = x.clone();
            for (&i, v) in at.iter().zip(&v) {
                let sum: Vec<f64> =
                    x[i].to_f64_vec().iter().zip(v.to_f64_vec()).map(|(x, v)| x + h * v).collect();
                x[i] = Literal::new(&x[i].ty().shape, &sum);
            }
            run(program, &x)
        };
        let (above, below) = (moved(h)?, moved(-h)?);
        let slope = |&i: &usize| {
            let (above, below) = (above[i].to_f64_vec(), below[i].to_f64_vec());
            above.iter().zip(below).map(|(a, b)| (a - b) / (2.0 * h)).collect()
        };
        Ok(outputs.iter().map(slope).collect())
    };
    let (coarse, fine) = (difference(2e-4)?, difference(1e-4)?);
    for (o, jv) in jv.iter().enumerate() {
        for (i, x) in jv.to_f64_vec().into_iter().enumerate() {
            let (coarse, fine) = (coarse[o][i], fine[o][i]);
            // The error of the finer difference is a third of what it differs from the coarser.
            let best = fine + (fine - coarse) / 3.0;
            let allowed = 1e-6 * (1.0 + x.abs()) + (fine - coarse).abs();
            if (x - best).abs() > allowed || x.is_nan() {
                return Err(format!("tangent {o} at {i} is {x}, and the difference {best}"));
            }
        }
    }
    if has_while(program) {
        return Ok(());
    }

    let ct: Vec<Literal> = jv.iter().map(|y| values(y.ty(), Kind::Smooth, &mut salt)).collect();
    let pull = |args: Vec<Tensor>| {
        let (x, ct) = args.split_at(program.inputs.len());
        let f = |moved: Vec<Tensor>| of_floats(x, moved);
        let f: &dyn Fn(Vec<Tensor>) -> Vec<Tensor> = &f;
        let (_, back) = vjp(f, at.iter().map(|&i| x[i]).collect());
        back(ct.to_vec())
    };
    let args: Vec<Literal> = x.iter().chain(&ct).cloned().collect();
    let pulled = traced(&pull, &args)?;
    verify(&pulled)?;
    let back = run(&pulled, &args)?;
    let inner = |a: &[Literal], b: &[Literal]| -> (f64, f64) {
        let products = a.iter().zip(b).flat_map(|(a, b)| {
            a.to_f64_vec().into_iter().zip(b.to_f64_vec()).map(|(a, b)| a * b).collect::<Vec<_>>()
        });
        products.fold((0.0, 1.0), |(sum, size), x| (sum + x, size + x.abs()))
    };
    let ((forwards, size), (backwards, more)) = (inner(&ct, &jv), inner(&back, &v));
    if (forwards - backwards).abs() > 1e-9 * size.max(more) || forwards.is_nan() {
        return Err(format!("<ct, J v> = {forwards}, <J^T ct, v> = {backwards}"));
    }
    Ok(())
}

fn gradients_of_branches(dish: &Dish) -> Check {
    if has_while(&dish.program) {
        return Ok(());
    }
    let lanes: Vec<Vec<Literal>> = (0..LANES as u64).map(|seed| dish.values(seed + 1)).collect();
    let mut salt = Salt(dish.program.size() as u64);
    let at: Vec<usize> = (0..lanes[0].len()).filter(|_| salt.once_in(2)).collect();
    let program = dish.program.clone();
    let f: Func = Rc::new(move |x: &[Tensor]| program.apply(x));
    let smooth = if salt.once_in(4) { Smooth::Twice } else { Smooth::Once };
    let by = Enclosing::ALL[dish.program.size() % Enclosing::ALL.len()];
    branches(&f, by, &lanes, &at, smooth).map(|_| ())
}

/// A loop without a known number of turns has no transpose.
fn has_while(program: &Program) -> bool {
    let inside = |e: &podracer::trace::Equation| e.op.subprograms().any(has_while);
    program.equations.iter().any(|e| e.op.name() == "while" || inside(e))
}

fn on_device(program: &Program, inputs: &[Literal], mode: Mode) -> Result<Vec<Literal>, String> {
    let results = run_program(program, &arrays(inputs), mode).map_err(|e| e.to_string())?;
    results.iter().map(|y| y.to_literal().map_err(|e| e.to_string())).collect()
}

/// That the Program gives the same in `mode` as interpreted.
fn runs_alike(program: &Program, infos: &[Info], inputs: &[Literal], mode: Mode) -> Check {
    near(&on_device(program, inputs, mode)?, &run(program, inputs)?, infos)
}

fn compiled(stream: u8, count: usize) {
    hold_together("compiled", stream, count, &|program, infos, inputs| {
        runs_alike(program, infos, &inputs(1), Mode::Jit)
    });
}

// Two tests, for two threads.

#[test]
fn compiled_random_programs_equal_the_interpreter() {
    compiled(0, cases() / 2);
}

#[test]
fn more_compiled_random_programs_equal_the_interpreter() {
    compiled(2, cases().div_ceil(2));
}

/// Every operation of every type is an executable of its own, so that there are fewer cases.
#[test]
fn programs_operation_by_operation() {
    let mut runner = runner(0);
    let recipes = recipe();
    let check =
        |dish: &Dish| runs_alike(&dish.program, &dish.outputs, &dish.values(1), Mode::Eager);
    for _ in 0..(cases() / 20).clamp(1, 200) {
        let tree = recipes.new_tree(&mut runner).expect("a recipe");
        if let Err(fault) = checked(&tree.current(), false, &check) {
            panic!("{}", shrunk(tree, false, "eager", fault, &check));
        }
    }
}
