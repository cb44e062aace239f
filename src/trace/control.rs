//! Control flow over traced values: `scan`, `while_loop`, `fori_loop`, `cond`, `switch`, `map`.
//!
//! The closures are traced once. They may use any tensor of the traces around them; such a tensor
//! is a constant of the loop, not carried.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use super::op::{CondOp, Op, ScanOp, WhileOp};
use super::program::{Program, Var};
use super::tensor::{Tensor, Traced, at_line, bind, fail_op, op, trace_tree};
use super::types::{DType, TensorType};
use crate::error::Loc;
use crate::tree::{self, Path, Tree};

/// Options of a [`scan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanOptions {
    /// Number of iterations; needed when there are no stacked inputs.
    pub length: Option<usize>,
    /// From the last input to the first; outputs keep the inputs' order.
    pub reverse: bool,
    /// Number of iterations unrolled into one iteration of the compiled loop. At least 1.
    pub unroll: usize,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions { length: None, reverse: false, unroll: 1 }
    }
}

impl ScanOptions {
    /// A scan of `length` iterations without stacked inputs.
    pub fn length(length: usize) -> ScanOptions {
        ScanOptions { length: Some(length), ..ScanOptions::default() }
    }

    /// From the last input to the first.
    pub fn reversed() -> ScanOptions {
        ScanOptions { reverse: true, ..ScanOptions::default() }
    }
}

/// The types of a tree of tensors.
pub(crate) fn types_of<A: Tree<Tensor>>(tree: &A) -> A::With<TensorType> {
    tree.map_leaves_ref(&Path::ROOT, &mut |_, tensor| tensor.ty())
}

/// `lax.scan`: folds `body` over the first axis of the tensors in `xs`. `body` takes the carry and
/// one slice, and returns the next carry and an output; the scan returns the last carry and the
/// outputs stacked.
///
/// The carry keeps its structure and types from iteration to iteration.
#[track_caller]
pub fn scan<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    body: impl Fn(C, X) -> (C, Y),
    init: C,
    xs: X,
) -> (C, Y) {
    scan_with(body, init, xs, ScanOptions::default())
}

/// [`scan`] with [`ScanOptions`]: `length`, `reverse` and `unroll` of `lax.scan`.
#[track_caller]
pub fn scan_with<C: Tree<Tensor>, X: Tree<Tensor>, Y: Tree<Tensor>>(
    body: impl Fn(C, X) -> (C, Y),
    init: C,
    xs: X,
    options: ScanOptions,
) -> (C, Y) {
    let at = Location::caller();
    let length = scan_length(&options, &xs);
    let slice_type = |path: &Path<'_>, x: &Tensor| {
        let ty = x.ty();
        if ty.rank() == 0 || ty.shape[0] != length {
            let path = tree::path_of("xs", path);
            let problem = format!(
                "the first axis of every xs must have the length of the scan, {length}; {path} is \
                 {ty}"
            );
            fail_op("scan", problem);
        }
        TensorType::new(ty.dtype, ty.shape.without_axis(0))
    };
    let slices = at_line(at, || xs.map_leaves_ref(&Path::ROOT, &mut { slice_type }));
    let carried = types_of(&init);
    let (traced, (carry, y)) =
        trace_tree::<(C, X), (C, Y)>("scan", at, &(carried, slices), |(c, x)| body(c, x));
    same_carry("scan", &init, &carry, &traced.program);
    let num_carry = tree::count(&init);
    let args: Vec<Tensor> = tree::leaves(&init).into_iter().chain(tree::leaves(&xs)).collect();
    let num_consts = traced.captures.len();
    let body = captures_first(traced.program, args.len());
    let operands: Vec<Tensor> = traced.captures.into_iter().chain(args).collect();
    let op = ScanOp {
        body: Arc::new(body),
        num_consts,
        num_carry,
        length,
        reverse: options.reverse,
        unroll: options.unroll.max(1),
    };
    let results = bind(Op::Scan(op), &operands, at);
    let (last, stacked) = results.split_at(num_carry);
    (tree::replace(&carry, last.iter().copied()), tree::replace(&y, stacked.iter().copied()))
}

#[track_caller]
fn scan_length<X: Tree<Tensor>>(options: &ScanOptions, xs: &X) -> usize {
    let first = tree::leaves(xs).first().map(|x| x.ty());
    match (options.length, first) {
        (Some(length), _) => length,
        (None, Some(ty)) if ty.rank() > 0 => ty.shape[0],
        (None, Some(ty)) => {
            fail_op("scan", format!("xs holds a scalar {ty}, which has no first axis to scan over"))
        }
        (None, None) => {
            fail_op("scan", "there are no xs; give the number of iterations, ScanOptions::length")
        }
    }
}

/// Inputs `args, captures` reordered to `captures, args`.
pub(crate) fn captures_first(mut program: Program, num_args: usize) -> Program {
    program.inputs.rotate_left(num_args);
    program
}

/// Checks that a loop's body returns the carry with the structure and types of its input, and
/// reports the first difference.
#[track_caller]
fn same_carry<C: Tree<Tensor>>(op: &str, init: &C, carry: &C, program: &Program) {
    let difference = tree::structure_difference::<Tensor, Tensor, C, C>(
        init,
        carry,
        "carry",
        ["the input", "the output"],
    );
    if let Some(difference) = difference {
        fail_op(op, format!("carry input and output must have one structure: {difference}"));
    }
    let outputs = program.output_types();
    for ((path, before), after) in tree::paths(init).iter().zip(tree::leaves(init)).zip(outputs) {
        let before = before.ty();
        if before != *after {
            let path = tree::path_of("carry", path);
            let problem = format!(
                "carry input and output must have equal types: {path} is {before} in the input \
                 and {after} in the output"
            );
            fail_op(op, problem);
        }
    }
}

/// `lax.while_loop`: applies `body` while `cond` gives true (a scalar bool). Can be differentiated
/// forwards only.
#[track_caller]
pub fn while_loop<C: Tree<Tensor>>(
    cond: impl Fn(C) -> Tensor,
    body: impl Fn(C) -> C,
    init: C,
) -> C {
    let at = Location::caller();
    let types = types_of(&init);
    let (condition, test) = trace_tree::<C, Tensor>("while_loop", at, &types, cond);
    let _ = test;
    let result: Vec<TensorType> = condition.program.output_types().cloned().collect();
    if result[0] != TensorType::scalar(DType::Bool) {
        fail_op(
            "while_loop",
            format!("cond_fun must return a scalar bool, and returns {}", result[0]),
        );
    }
    let (body_trace, carry) = trace_tree::<C, C>("while_loop", at, &types, body);
    same_carry("while_loop", &init, &carry, &body_trace.program);
    let carried = tree::leaves(&init);
    let op = WhileOp {
        num_cond_consts: condition.captures.len(),
        cond: Arc::new(captures_first(condition.program, carried.len())),
        num_body_consts: body_trace.captures.len(),
        body: Arc::new(captures_first(body_trace.program, carried.len())),
    };
    let operands: Vec<Tensor> =
        condition.captures.into_iter().chain(body_trace.captures).chain(carried).collect();
    let results = bind(Op::While(op), &operands, at);
    tree::replace(&carry, results.iter().copied())
}

/// `lax.fori_loop` with bounds known at trace time: `carry = body(i, carry)` for `i`, an `i32[]`,
/// from `lower` to `upper - 1`; `init` if `upper` is not above `lower`. A scan, so it can be
/// differentiated both ways.
///
/// # Errors
/// Ends the trace if `upper` does not fit `i32`, or if `body` changes the types of the carry.
#[op]
pub fn fori_loop<C: Tree<Tensor>>(
    lower: usize,
    upper: usize,
    body: impl Fn(Tensor, C) -> C,
    init: C,
) -> C {
    let length = upper.saturating_sub(lower);
    if i32::try_from(upper).is_err() {
        fail_op("fori_loop", format!("the upper bound {upper} is above {}", i32::MAX));
    }
    let ty = TensorType::new(DType::I32, [length]);
    // The compiled loop takes its own counter instead of these.
    let at = Location::caller();
    let indices = bind(Op::Iota { ty, axis: 0 }, &[], at)[0];
    let step = |carry, i: Tensor| {
        let i = if lower > 0 { at_line(at, || i + lower as i32) } else { i };
        (body(i, carry), ())
    };
    scan_with(step, init, indices, ScanOptions::length(length)).0
}

/// `lax.map`: applies `f` to each slice along the first axis, one after another.
#[op]
pub fn map<X: Tree<Tensor>, Y: Tree<Tensor>>(f: impl Fn(X) -> Y, xs: X) -> Y {
    scan_with(|(), x| ((), f(x)), (), xs, ScanOptions::default()).1
}

/// `lax.cond`: `on_true(args)` if the scalar bool holds, else `on_false(args)`. Under `vmap` with a
/// mapped predicate both are computed.
#[track_caller]
pub fn cond<A: Tree<Tensor> + Clone, B: Tree<Tensor>>(
    predicate: Tensor,
    on_true: impl Fn(A) -> B,
    on_false: impl Fn(A) -> B,
    args: A,
) -> B {
    let ty = predicate.ty();
    if ty != TensorType::scalar(DType::Bool) {
        fail_op("cond", format!("the predicate must be a scalar bool, and is {ty}"));
    }
    let at = Location::caller();
    let branches =
        [trace_branch("cond", at, &args, &on_false), trace_branch("cond", at, &args, &on_true)];
    bind_branches("cond", predicate.to(DType::I32), branches.into(), args, at)
}

/// `lax.switch`: applies the branch that the integer scalar `index` names, clamped to the range.
#[track_caller]
pub fn switch<A: Tree<Tensor> + Clone, B: Tree<Tensor>>(
    index: Tensor,
    branches: &[&dyn Fn(A) -> B],
    args: A,
) -> B {
    let at = Location::caller();
    let ty = index.ty();
    if ty.rank() != 0 || !ty.dtype.is_int() {
        fail_op("switch", format!("the index must be an integer scalar, and is {ty}"));
    }
    let index = at_line(at, || index.to_i32_index());
    if branches.is_empty() {
        fail_op("switch", "no branches were given");
    }
    let traced = branches.iter().map(|branch| trace_branch("switch", at, &args, branch)).collect();
    bind_branches("switch", index, traced, args, at)
}

fn trace_branch<A: Tree<Tensor>, B: Tree<Tensor>>(
    name: &'static str,
    at: Loc,
    args: &A,
    branch: impl Fn(A) -> B,
) -> (Traced, B) {
    trace_tree::<A, B>(name, at, &types_of(args), branch)
}

/// The name of a branch in messages: that of the closure of `cond`, or the index.
fn branch_name(name: &str, i: usize) -> String {
    match (name, i) {
        ("cond", 0) => "on_false".into(),
        ("cond", _) => "on_true".into(),
        _ => format!("branch {i}"),
    }
}

fn bind_branches<A: Tree<Tensor>, B: Tree<Tensor>>(
    name: &'static str,
    index: Tensor,
    traced: Vec<(Traced, B)>,
    args: A,
    at: Loc,
) -> B {
    let args = tree::leaves(&args);
    for (i, (_, result)) in traced.iter().enumerate() {
        let (first, other) = (branch_name(name, 0), branch_name(name, i));
        let difference = tree::structure_difference::<Tensor, Tensor, B, B>(
            &traced[0].1,
            result,
            "output",
            [&first, &other],
        );
        if let Some(difference) = difference {
            let problem = format!("branch outputs must have one structure: {difference}");
            at_line(at, || fail_op(name, problem));
        }
        let types = traced[0].0.program.output_types().zip(traced[i].0.program.output_types());
        for (path, (expected, ty)) in tree::paths(result).iter().zip(types) {
            if ty != expected {
                let path = tree::path_of("output", path);
                let problem = format!(
                    "branch outputs must have equal types: {path} is {expected} in {first} and \
                     {ty} in {other}"
                );
                at_line(at, || fail_op(name, problem));
            }
        }
    }
    let mut results = Vec::new();
    let (programs, captures): (Vec<Program>, Vec<Vec<Tensor>>) = traced
        .into_iter()
        .map(|(traced, result)| {
            results.push(result);
            (traced.program, traced.captures)
        })
        .unzip();
    let (branches, shared) = share_captures(programs, captures, args.len());
    let operands: Vec<Tensor> = [index].into_iter().chain(args).chain(shared).collect();
    let op = Op::Cond(CondOp { branches: branches.into_iter().map(Arc::new).collect() });
    let outputs = bind(op, &operands, at);
    tree::replace(&results[0], outputs.iter().copied())
}

/// Gives every branch the captures of all: returns one list of tensors, and branches whose inputs
/// are the arguments and then that list.
pub(crate) fn share_captures(
    programs: Vec<Program>,
    captures: Vec<Vec<Tensor>>,
    num_args: usize,
) -> (Vec<Program>, Vec<Tensor>) {
    let counts = vec![num_args; programs.len()];
    share_captures_of(programs, captures, &counts)
}

/// [`share_captures`] for Programs of different numbers of arguments.
pub(crate) fn share_captures_of(
    programs: Vec<Program>,
    captures: Vec<Vec<Tensor>>,
    num_args: &[usize],
) -> (Vec<Program>, Vec<Tensor>) {
    let mut shared: Vec<Tensor> = Vec::new();
    let mut position: HashMap<(u32, Var), usize> = HashMap::new();
    for &tensor in captures.iter().flatten() {
        position.entry(tensor.id()).or_insert_with(|| {
            shared.push(tensor);
            shared.len() - 1
        });
    }
    let programs = programs
        .into_iter()
        .zip(&captures)
        .zip(num_args)
        .map(|((mut program, captures), &num_args)| {
            let captured = program.inputs.split_off(num_args);
            let mut inputs: Vec<Option<Var>> = vec![None; shared.len()];
            for (&tensor, var) in captures.iter().zip(captured) {
                inputs[position[&tensor.id()]] = Some(var);
            }
            for (tensor, input) in shared.iter().zip(inputs) {
                let var = input.unwrap_or_else(|| program.add_var(tensor.ty()));
                program.inputs.push(var);
            }
            program
        })
        .collect();
    (programs, shared)
}
