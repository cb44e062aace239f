//! Tracing of custom_jvp rules that call their own function, as those of JAX may.
//!
//! A rule is traced together with its function, so that a rule that calls it would be traced
//! without end. A call is a call of an enclosing function if it is at the same source location, has
//! the same types and the same Program, and if its rule, traced once more here, is the same too. It
//! then refers to that function ([`Rule::Enclosing`]).

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::close;
use crate::error::Loc;
use crate::trace::control::captures_first;
use crate::trace::op::{CustomJvpOp, Rule};
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, Traced, fail_op};

/// A function whose rule is being traced.
#[derive(Clone)]
struct Active {
    at: Loc,
    structure: u64,
    call: Program,
    captures: Vec<Tensor>,
    /// Captures of the function and the rule, as far as they are known yet.
    consts: Vec<Tensor>,
    /// Traced rules of the recursive calls; each must prove equal to this function's.
    again: Vec<Traced>,
    /// True if the function was called from inside its rule.
    called: bool,
    /// True if calls inside that look like it have other rules.
    distinct: bool,
}

thread_local! {
    /// From the outermost to the innermost.
    static ACTIVE: RefCell<Vec<Active>> = const { RefCell::new(Vec::new()) };
    /// True while a rule is traced only to be compared.
    static COMPARING: Cell<bool> = const { Cell::new(false) };
}

/// Restores the earlier state, also when the trace ends with an error.
struct Before {
    keep: usize,
    above: Vec<Active>,
    comparing: bool,
}

impl Before {
    /// Takes off all from the `keep`-th on.
    fn new(keep: usize) -> Before {
        let above = ACTIVE.with_borrow_mut(|active| active.split_off(keep));
        Before { keep, above, comparing: COMPARING.get() }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        ACTIVE.with_borrow_mut(|active| {
            active.truncate(self.keep);
            active.append(&mut self.above);
        });
        COMPARING.set(self.comparing);
    }
}

/// Traces the rule of a function, which then is the innermost one.
fn trace_inside(function: &mut Active, rule: &dyn Fn() -> Traced) -> Traced {
    let depth = ACTIVE.with_borrow(Vec::len);
    let _before = Before::new(depth);
    ACTIVE.with_borrow_mut(|active| active.push(function.clone()));
    let traced = rule();
    *function = ACTIVE.with_borrow_mut(|active| active.swap_remove(depth));
    traced
}

fn same_tensors(a: &[Tensor], b: &[Tensor]) -> bool {
    a.iter().map(|x| x.id()).eq(b.iter().map(|x| x.id()))
}

/// The operation of a function with a rule, and the constants that it takes.
pub(super) fn operation(
    at: Loc,
    structure: u64,
    call: Traced,
    num_args: usize,
    rule: &dyn Fn() -> Traced,
) -> (CustomJvpOp, Vec<Tensor>) {
    let this = |other: &Active| {
        !other.distinct
            && (other.at, other.structure) == (at, structure)
            && other.call == call.program
            && same_tensors(&other.captures, &call.captures)
    };
    if let Some(found) = ACTIVE.with_borrow(|active| active.iter().rposition(this)) {
        return refer_to(found, call, num_args, rule);
    }
    let mut function = Active {
        at,
        structure,
        call: call.program.clone(),
        captures: call.captures.clone(),
        consts: call.captures.clone(),
        again: vec![],
        called: false,
        distinct: false,
    };
    // Constants that only the rule takes are known when it is traced.
    const TURNS: usize = 8;
    for _ in 0..TURNS {
        function.again.clear();
        function.called = false;
        let traced = trace_inside(&mut function, rule);
        let other = |again: &Traced| {
            again.program != traced.program || !same_tensors(&again.captures, &traced.captures)
        };
        if function.again.iter().any(other) {
            function.distinct = true;
            continue;
        }
        let (programs, consts) = close(vec![(call.clone(), num_args), (traced, 2 * num_args)]);
        if function.called && !same_tensors(&consts, &function.consts) {
            function.consts = consts;
            continue;
        }
        let [call, jvp] = programs.try_into().expect("two Programs");
        let op = CustomJvpOp { call, jvp: Rule::Own(jvp), num_consts: consts.len() };
        return (op, consts);
    }
    fail_op(
        "custom_jvp",
        "its rule calls the function itself and captures other tensors each time; pass them as \
         arguments",
    )
}

/// A call of the `found`-th function around.
fn refer_to(
    found: usize,
    call: Traced,
    num_args: usize,
    rule: &dyn Fn() -> Traced,
) -> (CustomJvpOp, Vec<Tensor>) {
    let level = ACTIVE.with_borrow(|active| active.len() - 1 - found);
    if !COMPARING.get() {
        // Stands in for that function.
        let before = Before::new(found);
        let copy = Active { again: vec![], ..before.above[0].clone() };
        ACTIVE.with_borrow_mut(|active| active.push(copy));
        COMPARING.set(true);
        let traced = rule();
        drop(before);
        ACTIVE.with_borrow_mut(|active| active[found].again.push(traced));
    }
    let consts = ACTIVE.with_borrow_mut(|active| {
        active[found].called = true;
        active[found].consts.clone()
    });
    // The function's own constants come first among them.
    let own = call.captures.len();
    let mut program = captures_first(call.program, num_args);
    for (i, tensor) in consts.iter().enumerate().skip(own) {
        let var = program.add_var(tensor.ty());
        program.inputs.insert(i, var);
    }
    let jvp = Rule::Enclosing(level);
    (CustomJvpOp { call: Arc::new(program), jvp, num_consts: consts.len() }, consts)
}
