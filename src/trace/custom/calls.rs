//! Tracing of custom_jvp rules that call their own function, as those of JAX may.
//!
//! A rule is traced together with its function, so that a rule that calls it would be traced
//! without end. A call with the source location, argument structure, Program and captured tensors of
//! an enclosing function is taken for a call of that function, and refers to it
//! ([`Rule::Enclosing`]). Its rule is traced once more to check this. If the rule is another one, the
//! enclosing rule is traced again, without such references.
//!
//! The rule of a closure that captures Rust values, say a counter, can also differ in a later call
//! inside of that rule. Its calls are therefore compared [`MAX_COMPARED_CALLS`] deep.

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
    /// Number of rules around that are traced only to be compared.
    static COMPARED_DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Number of rules that were traced to be compared, since the outermost function was called.
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Depth to which calls inside of each other are compared, if the closures capture values.
/// Derivatives up to this order are right even if each rule differs from the one around it, unless
/// [`MAX_DEEP_COMPARISONS`] is reached first.
const MAX_COMPARED_CALLS: usize = 8;

/// Number of comparisons after which calls are compared to depth 1 only, since a rule with two
/// calls needs twice as many for each level.
const MAX_DEEP_COMPARISONS: usize = 256;

/// Source location and form of a call of custom_jvp.
#[derive(Clone, Copy)]
pub(super) struct CallSite {
    /// Line of the user.
    pub at: Loc,
    /// Structure of the arguments.
    pub structure: u64,
    /// Number of leaves of the arguments.
    pub num_args: usize,
    /// True if the closures hold values.
    pub captures: bool,
}

/// Restores the earlier state, also when the trace ends with an error.
struct Before {
    keep: usize,
    above: Vec<Active>,
    compared_depth: usize,
}

impl Before {
    /// Truncates the stack of functions to `keep`.
    fn new(keep: usize) -> Before {
        let above = ACTIVE.with_borrow_mut(|active| active.split_off(keep));
        Before { keep, above, compared_depth: COMPARED_DEPTH.get() }
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        ACTIVE.with_borrow_mut(|active| {
            active.truncate(self.keep);
            active.append(&mut self.above);
        });
        COMPARED_DEPTH.set(self.compared_depth);
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
    site: CallSite,
    call: Traced,
    rule: &dyn Fn() -> Traced,
) -> (CustomJvpOp, Vec<Tensor>) {
    let CallSite { at, structure, num_args, .. } = site;
    if ACTIVE.with_borrow(Vec::is_empty) {
        COMPARED.set(0);
    }
    let this = |other: &Active| {
        !other.distinct
            && (other.at, other.structure) == (at, structure)
            && other.call == call.program
            && same_tensors(&other.captures, &call.captures)
    };
    if let Some(found) = ACTIVE.with_borrow(|active| active.iter().rposition(this)) {
        return refer_to(found, site, call, rule);
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
    const MAX_ATTEMPTS: usize = 8;
    for _ in 0..MAX_ATTEMPTS {
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
    site: CallSite,
    call: Traced,
    rule: &dyn Fn() -> Traced,
) -> (CustomJvpOp, Vec<Tensor>) {
    let level = ACTIVE.with_borrow(|active| active.len() - 1 - found);
    let depth = COMPARED_DEPTH.get();
    let deep = site.captures && COMPARED.get() < MAX_DEEP_COMPARISONS;
    if depth < if deep { MAX_COMPARED_CALLS } else { 1 } {
        // Stands in for that function.
        let before = Before::new(found);
        let copy = Active { again: vec![], ..before.above[0].clone() };
        ACTIVE.with_borrow_mut(|active| active.push(copy));
        COMPARED_DEPTH.set(depth + 1);
        COMPARED.set(COMPARED.get() + 1);
        let traced = rule();
        let deeper = ACTIVE.with_borrow_mut(|active| std::mem::take(&mut active[found].again));
        drop(before);
        ACTIVE.with_borrow_mut(|active| {
            active[found].again.push(traced);
            active[found].again.extend(deeper);
        });
    }
    let consts = ACTIVE.with_borrow_mut(|active| {
        active[found].called = true;
        active[found].consts.clone()
    });
    // The function's own constants come first among them.
    let own = call.captures.len();
    let mut program = captures_first(call.program, site.num_args);
    for (i, tensor) in consts.iter().enumerate().skip(own) {
        let var = program.add_var(tensor.ty());
        program.inputs.insert(i, var);
    }
    let jvp = Rule::Enclosing(level);
    (CustomJvpOp { call: Arc::new(program), jvp, num_consts: consts.len() }, consts)
}
