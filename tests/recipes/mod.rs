//! Random Programs, and what it takes to hold something to many of them.
//!
//! The recipes are the same in every run. `PODRACER_PROPS=10000` tries as many;
//! `PODRACER_PROPS_SEED=7` tries others. Such runs fill the executable cache with what nobody asks
//! for again, unless `PODRACER_CACHE=off`.

pub mod binary;
pub mod cook;
pub mod recipe;
mod steps;
pub mod unary;
pub mod values;

use std::panic::{AssertUnwindSafe, catch_unwind};

use podracer::trace::Var;
use podracer::{Array, Literal, Program};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::cook::{Dish, Info, cook};
use self::recipe::{Recipe, recipe};
use self::values::same;

/// What is wrong, if anything.
pub type Check = Result<(), String>;

/// How many cases are tried.
pub fn cases() -> usize {
    std::env::var("PODRACER_PROPS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

pub fn runner(stream: u8) -> TestRunner {
    let seed: u64 =
        std::env::var("PODRACER_PROPS_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut bytes = [stream; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(Config::default(), rng)
}

/// `check` of the Program of `recipe`; a panic is a fault too.
pub fn checked(recipe: &Recipe, smooth: bool, check: &dyn Fn(&Dish) -> Check) -> Check {
    catch_unwind(AssertUnwindSafe(|| check(&cook(recipe, smooth)))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

/// While it lives, panics of this thread print nothing: those of other tests do.
pub struct Quiet;

thread_local! {
    static QUIET: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Quiet {
    fn here() -> Quiet {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if !QUIET.get() {
                    before(info);
                }
            }));
        });
        QUIET.set(true);
        Quiet
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        QUIET.set(false);
    }
}

/// Makes the recipe smaller as long as it fails, and ends the test with what is left.
pub fn shrunk(
    mut tree: impl ValueTree<Value = Recipe>,
    smooth: bool,
    name: &str,
    mut fault: String,
    check: &dyn Fn(&Dish) -> Check,
) -> String {
    let mut smallest = tree.current();
    let quiet = Quiet::here();
    let mut more = tree.simplify();
    for _ in 0..2000 {
        if !more {
            break;
        }
        more = match checked(&tree.current(), smooth, check) {
            Err(text) => {
                (smallest, fault) = (tree.current(), text);
                tree.simplify()
            }
            Ok(()) => tree.complicate(),
        };
    }
    drop(quiet);
    let dish = cook(&smallest, smooth);
    let inputs: Vec<String> =
        dish.values(1).iter().map(|input| format!("        \"{input:#}\",\n")).collect();
    let text = dish.program.to_text();
    format!(
        "{name}: {fault}\n\nas a regression test:\n    regression(\n        \"{}\",\n        &[\n{}        \
         ],\n    );\n",
        text.replace('\n', "\n         "),
        inputs.concat()
    )
}

/// Results that may differ by rounding.
pub fn near(found: &[Literal], expected: &[Literal], infos: &[Info]) -> Check {
    for (i, ((a, b), info)) in found.iter().zip(expected).zip(infos).enumerate() {
        let scale =
            b.to_f64_vec().iter().filter(|y| y.is_finite()).fold(1.0, |m: f64, y| m.max(y.abs()));
        // Twice: either way to run it may be wrong by as much.
        let tolerance = 2.0 * info.error / scale;
        same(std::slice::from_ref(a), std::slice::from_ref(b), tolerance)
            .map_err(|text| format!("result {i}: {text}\n    allowed  {}", 2.0 * info.error))?;
    }
    Ok(())
}

pub fn arrays(inputs: &[Literal]) -> Vec<Array> {
    inputs.iter().cloned().map(Array::from).collect()
}

/// One Program that does what all of them do.
pub fn joined(programs: &[&Program]) -> Program {
    let mut whole = Program::default();
    for program in programs {
        let offset = whole.types.len() as u32;
        let moved = |var: &Var| Var(var.0 + offset);
        whole.types.extend(program.types.iter().cloned());
        whole.inputs.extend(program.inputs.iter().map(moved));
        whole.outputs.extend(program.outputs.iter().map(moved));
        for equation in &program.equations {
            let mut equation = equation.clone();
            let vars = equation.inputs.iter_mut().chain(&mut equation.outputs);
            vars.for_each(|var| *var = Var(var.0 + offset));
            whole.equations.push(equation);
        }
    }
    whole
}

/// A property that is held to on devices: of a Program, what is known of its results, and its inputs
/// for a seed.
pub type OnDevices<'a> = &'a dyn Fn(&Program, &[Info], &dyn Fn(u64) -> Vec<Literal>) -> Check;

/// Holds `left` Programs to `what`: many as one, since each compilation takes its time; what fails
/// is tried alone and shrunk.
pub fn hold_together(name: &str, stream: u8, mut left: usize, what: OnDevices<'_>) {
    const TOGETHER: usize = 50;
    let mut runner = runner(stream);
    let recipes = recipe();
    while left > 0 {
        let count = left.min(TOGETHER);
        left -= count;
        let trees: Vec<_> =
            (0..count).map(|_| recipes.new_tree(&mut runner).expect("a recipe")).collect();
        let dishes: Vec<Dish> = trees.iter().map(|tree| cook(&tree.current(), false)).collect();
        let inputs = |seed| dishes.iter().flat_map(|dish| dish.values(seed)).collect();
        let programs: Vec<&Program> = dishes.iter().map(|dish| &dish.program).collect();
        let whole = joined(&programs);
        let infos: Vec<Info> = dishes.iter().flat_map(|dish| dish.outputs.clone()).collect();
        let Err(fault) = what(&whole, &infos, &inputs) else { continue };
        let check = |dish: &Dish| what(&dish.program, &dish.outputs, &|seed| dish.values(seed));
        for tree in trees {
            if let Err(fault) = checked(&tree.current(), false, &check) {
                panic!("{}", shrunk(tree, false, name, fault, &check));
            }
        }
        panic!("{name}: together, and not alone: {fault}\n{}", whole.to_text());
    }
}
