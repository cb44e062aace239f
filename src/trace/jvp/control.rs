//! Derivatives of control flow: loops and branches over values and tangents.

use std::sync::Arc;

use super::callback::without_effects;
use super::jvp_program;
use super::residuals::thin_out;
use super::split::{Split, bind_known, split};
use super::tangent::{Mode, Tangents, instantiate};
use crate::error::Loc;
use crate::trace::op::{CondOp, Op, ScanOp, Structure, TangentFlow, WhileOp};
use crate::trace::ops::zeros;
use crate::trace::program::{Equation, Program, Var};
use crate::trace::tensor::{FrameKind, Tensor, Tensors, bind, inline, trace_frame};
use crate::trace::types::TensorType;

/// Returns one flag per result: true if it can have a tangent, given the flags of the inputs.
pub(crate) fn tangent_flow(program: &Program, active: &[bool]) -> Vec<bool> {
    let flows = variables_flow(program, active);
    program.outputs.iter().map(|v| flows[v.index()]).collect()
}

/// Returns one flag per variable: true if it can have a tangent, whatever inputs have one.
pub(crate) fn derivative_flow(program: &Program) -> Vec<bool> {
    let inputs: Vec<bool> = program.input_types().map(|ty| ty.dtype.is_inexact()).collect();
    variables_flow(program, &inputs)
}

fn variables_flow(program: &Program, active: &[bool]) -> Vec<bool> {
    let mut flows = vec![false; program.types.len()];
    for (&input, &active) in program.inputs.iter().zip(active) {
        flows[input.index()] = active;
    }
    for equation in &program.equations {
        let inputs: Vec<bool> = equation.inputs.iter().map(|v| flows[v.index()]).collect();
        let through =
            if inputs.contains(&true) { equation_flow(equation, &inputs) } else { vec![] };
        for (&output, through) in equation.outputs.iter().zip(through) {
            flows[output.index()] = through && program.ty(output).dtype.is_inexact();
        }
    }
    flows
}

fn equation_flow(equation: &Equation, inputs: &[bool]) -> Vec<bool> {
    match equation.op.structure() {
        Structure::Remat(remat) => tangent_flow(&remat.body, inputs),
        Structure::Scan(scan) => scan_flow(scan, inputs, &tangent_flow),
        Structure::While(w) => while_flow(w, inputs, &tangent_flow),
        Structure::Cond(cond) => {
            let branches = cond.branches.iter().map(|branch| tangent_flow(branch, &inputs[1..]));
            branches.reduce(either).expect("a cond has branches")
        }
        Structure::Elementary
        | Structure::Collective(_)
        | Structure::Callback(_)
        | Structure::CustomJvp(_)
        | Structure::CustomVjp(_)
        | Structure::CustomLin(_) => match equation.op.facts().tangents {
            TangentFlow::Blocked => vec![false; equation.outputs.len()],
            TangentFlow::OwnResult => inputs.to_vec(),
            TangentFlow::AllResults => vec![true; equation.outputs.len()],
        },
    }
}

pub(super) fn either(a: Vec<bool>, b: Vec<bool>) -> Vec<bool> {
    a.into_iter().zip(b).map(|(a, b)| a || b).collect()
}

/// Maps flags of a Program's inputs to flags of its results.
pub(super) type Flow<'a> = &'a dyn Fn(&Program, &[bool]) -> Vec<bool>;

pub(super) fn scan_flow(scan: &ScanOp, inputs: &[bool], flow: Flow<'_>) -> Vec<bool> {
    carry_flow(&scan.body, inputs, scan.num_consts, scan.num_carry, flow)
}

pub(super) fn while_flow(w: &WhileOp, inputs: &[bool], flow: Flow<'_>) -> Vec<bool> {
    let inputs = &inputs[w.num_cond_consts..];
    carry_flow(&w.body, inputs, w.num_body_consts, w.body.outputs.len(), flow)
}

/// Returns the flow through a loop: the fixed point of the carry's flow.
fn carry_flow(
    body: &Program,
    inputs: &[bool],
    num_consts: usize,
    num_carry: usize,
    flow: Flow<'_>,
) -> Vec<bool> {
    let mut inputs = inputs.to_vec();
    loop {
        let outputs = flow(body, &inputs);
        let carry = num_consts..num_consts + num_carry;
        let next = either(inputs[carry.clone()].to_vec(), outputs[..num_carry].to_vec());
        if next == inputs[carry.clone()] {
            return next.into_iter().chain(outputs[num_carry..].iter().copied()).collect();
        }
        inputs[carry].copy_from_slice(&next);
    }
}

/// Selects the marked items.
pub(super) fn select<T: Clone>(items: &[T], marks: &[bool]) -> Vec<T> {
    items.iter().zip(marks).filter(|(_, mark)| **mark).map(|(item, _)| item.clone()).collect()
}

pub(super) fn count(marks: &[bool]) -> usize {
    marks.iter().filter(|mark| **mark).count()
}

/// Places the tangents at the selected results; the others have none.
pub(super) fn fill_none(marks: &[bool], tangents: impl IntoIterator<Item = Tensor>) -> Tangents {
    let mut tangents = tangents.into_iter();
    marks.iter().map(|mark| if *mark { tangents.next() } else { None }).collect()
}

/// Selects the tangents of the marked operands; a missing one is instantiated as zeros.
pub(super) fn instantiate_selected(
    marks: &[bool],
    x: &[Tensor],
    t: &[Option<Tensor>],
) -> Vec<Tensor> {
    marks
        .iter()
        .zip(x.iter().zip(t))
        .filter(|(mark, _)| **mark)
        .map(|(_, (x, t))| instantiate(*t, *x))
        .collect()
}

pub(crate) fn jvp_scan(
    scan: &ScanOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let (num_consts, num_carry) = (scan.num_consts, scan.num_carry);
    let mut active: Vec<bool> = t.iter().map(Option::is_some).collect();
    let results = scan_flow(scan, &active, &tangent_flow);
    active[num_consts..num_consts + num_carry].copy_from_slice(&results[..num_carry]);
    match mode {
        Mode::Forward => forward_scan(scan, x, t, &active, &results, at),
        Mode::Linearize => linearize_scan(scan, x, t, &active, &results, at),
    }
}

/// Differentiates a scan in forward mode: one loop over values and tangents.
fn forward_scan(
    scan: &ScanOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let (num_consts, num_carry) = (scan.num_consts, scan.num_carry);
    let bounds = [0, num_consts, num_consts + num_carry, x.len()];
    let body_types: Vec<TensorType> = scan.body.input_types().cloned().collect();
    // Each group of inputs, followed by the tangents of its active members.
    let mut types = Vec::new();
    let mut operands = Vec::new();
    for group in bounds.windows(2) {
        let range = group[0]..group[1];
        types.extend_from_slice(&body_types[range.clone()]);
        types.extend(select(&body_types[range.clone()], &active[range.clone()]));
        operands.extend_from_slice(&x[range.clone()]);
        operands.extend(instantiate_selected(&active[range.clone()], &x[range.clone()], &t[range]));
    }
    let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let mut args = args.iter().copied();
        let (mut primals, mut tangents) = (Vec::new(), Vec::new());
        for group in bounds.windows(2) {
            primals.extend(args.by_ref().take(group[1] - group[0]));
            let group_active = &active[group[0]..group[1]];
            let group_tangents: Vec<Tensor> = args.by_ref().take(count(group_active)).collect();
            tangents.extend(fill_none(group_active, group_tangents));
        }
        let (y, dy) = jvp_program(&scan.body, &primals, &tangents, Mode::Forward);
        let dual = |range: std::ops::Range<usize>| {
            let tangents = instantiate_selected(
                &results[range.clone()],
                &y[range.clone()],
                &dy[range.clone()],
            );
            y[range].iter().copied().chain(tangents).collect::<Vec<Tensor>>()
        };
        let mut outputs = dual(0..num_carry);
        outputs.extend(dual(num_carry..y.len()));
        (outputs, ())
    });
    let tangent_consts = count(&active[..num_consts]);
    let tangent_carry = count(&results[..num_carry]);
    let dual = ScanOp {
        body: Arc::new(traced.program),
        num_consts: num_consts + tangent_consts,
        num_carry: num_carry + tangent_carry,
        ..scan.clone()
    };
    let outputs = bind(Op::Scan(dual), &operands, at);
    let (carry, stacked) = outputs.split_at(num_carry + tangent_carry);
    let num_stacked = results.len() - num_carry;
    let values = carry[..num_carry].iter().chain(&stacked[..num_stacked]).copied().collect();
    let tangents = carry[num_carry..].iter().chain(&stacked[num_stacked..]).copied();
    (values, fill_none(results, tangents))
}

/// Linearizes a scan: a loop over the values saves residuals, and a linear loop maps the tangents.
fn linearize_scan(
    scan: &ScanOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let split = split(&scan.body, active, results, at);
    let carried = scan.num_consts..scan.num_consts + scan.num_carry;
    let groups = [0..carried.start, carried.clone(), carried.end..x.len()];
    let tangents = || {
        groups
            .map(|range| instantiate_selected(&active[range.clone()], &x[range.clone()], &t[range]))
    };
    let (outputs, out_tangents) = bind_split_scan(scan, split, x, tangents, at);
    (outputs, fill_none(results, out_tangents))
}

/// Binds a scan whose body is split: a loop over the values `x` that saves residuals, and a linear
/// loop over the tangents that `tangents` returns (of constants, carry and scanned inputs). `scan`
/// counts the constants and carries of the values. Returns the results of both loops.
pub(super) fn bind_split_scan(
    scan: &ScanOp,
    split: Split,
    x: &[Tensor],
    tangents: impl FnOnce() -> [Vec<Tensor>; 3],
    at: Loc,
) -> (Tensors, Tensors) {
    let (num_consts, num_carry) = (scan.num_consts, scan.num_carry);
    let Split { mut known, linear, num_residuals } = split;
    let num_results = known.outputs.len() - num_residuals;
    let free = free_vars(&known, num_results, num_consts, num_carry);
    let (provided, linear) = thin_out(&known, &linear, num_residuals, &free, at);
    let num_residuals = provided.len();
    known.outputs.truncate(num_results);
    known.outputs.extend(provided);
    let residuals = classify(&known, num_results, num_consts, num_carry);

    // The loop over values, with the residuals that change between iterations as outputs.
    let mut body = known.clone();
    body.outputs = known.outputs[..num_results].to_vec();
    for (residual, var) in residuals.iter().zip(&known.outputs[num_results..]) {
        if *residual == Residual::Stacked {
            body.outputs.push(*var);
        }
    }
    let body = crate::trace::graph::eliminate_dead_code(body);
    let num_outputs = body.outputs.len();
    let known_scan = ScanOp { body: Arc::new(body), ..scan.clone() };
    let outputs = bind_known(Op::Scan(known_scan), num_outputs, x, at);

    // The source of each residual of the linear loop.
    let invariant = invariant_values(&known, num_results, &residuals, &x[..num_consts]);
    let (mut invariant, mut stacked) = (invariant.into_iter(), outputs[num_results..].iter());
    let mut const_inputs: Vec<(Var, Tensor)> = Vec::new();
    let mut stacked_inputs: Vec<(Var, Tensor)> = Vec::new();
    let num_tangents = linear.inputs.len() - num_residuals;
    for (residual, &var) in residuals.iter().zip(&linear.inputs[num_tangents..]) {
        match residual {
            Residual::Invariant => {
                const_inputs.push((var, invariant.next().expect("one value a residual")));
            }
            Residual::Input(i) => stacked_inputs.push((var, x[*i])),
            Residual::Output(i) => stacked_inputs.push((var, outputs[*i])),
            Residual::Stacked => {
                stacked_inputs.push((var, *stacked.next().expect("one output a residual")));
            }
        }
    }

    let [tangent_consts, tangent_carry, tangent_inputs] = tangents();
    let tangents = &linear.inputs[..num_tangents];
    let (const_tangents, rest) = tangents.split_at(tangent_consts.len());
    let (carry_tangents, input_tangents) = rest.split_at(tangent_carry.len());
    let inputs: Vec<Var> = const_inputs
        .iter()
        .map(|(var, _)| *var)
        .chain(const_tangents.iter().copied())
        .chain(carry_tangents.iter().copied())
        .chain(stacked_inputs.iter().map(|(var, _)| *var))
        .chain(input_tangents.iter().copied())
        .collect();
    let linear_scan = ScanOp {
        num_consts: const_inputs.len() + tangent_consts.len(),
        num_carry: tangent_carry.len(),
        body: Arc::new(Program { inputs, ..linear.clone() }),
        ..scan.clone()
    };
    let operands: Vec<Tensor> = const_inputs
        .iter()
        .map(|(_, tensor)| *tensor)
        .chain(tangent_consts)
        .chain(tangent_carry)
        .chain(stacked_inputs.iter().map(|(_, tensor)| *tensor))
        .chain(tangent_inputs)
        .collect();
    let out_tangents = bind(Op::Scan(linear_scan), &operands, at);
    (outputs[..num_results].into(), out_tangents)
}

/// Source of a loop's residual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Residual {
    /// The same in every iteration: computed once, outside.
    Invariant,
    /// A scanned input, by operand: stacked already.
    Input(usize),
    /// A stacked output, by result: saved already.
    Output(usize),
    /// Different in every iteration: saved.
    Stacked,
}

fn invariant_vars(known: &Program, num_consts: usize) -> Vec<bool> {
    let mut invariant = vec![false; known.types.len()];
    for input in &known.inputs[..num_consts] {
        invariant[input.index()] = true;
    }
    for equation in &known.equations {
        // An equation with an effect belongs to each iteration.
        let all = !equation.op.has_effect() && equation.inputs.iter().all(|v| invariant[v.index()]);
        equation.outputs.iter().for_each(|v| invariant[v.index()] = all);
    }
    invariant
}

/// Flags of the values that a linear loop gets at no cost: loop invariants, and tensors that are
/// stacked already. Constants of one value are not marked: they are rebuilt where they are used.
fn free_vars(
    known: &Program,
    num_results: usize,
    num_consts: usize,
    num_carry: usize,
) -> Vec<bool> {
    let mut free = invariant_vars(known, num_consts);
    for equation in &known.equations {
        if let Op::Constant(literal) = &equation.op
            && literal.is_splat()
        {
            free[equation.outputs[0].index()] = false;
        }
    }
    let stacks =
        known.inputs[num_consts + num_carry..].iter().chain(&known.outputs[num_carry..num_results]);
    stacks.for_each(|var| free[var.index()] = true);
    free
}

fn classify(
    known: &Program,
    num_results: usize,
    num_consts: usize,
    num_carry: usize,
) -> Vec<Residual> {
    let invariant = invariant_vars(known, num_consts);
    known.outputs[num_results..]
        .iter()
        .map(|var| {
            if invariant[var.index()] {
                return Residual::Invariant;
            }
            if let Some(i) = known.inputs.iter().position(|input| input == var)
                && i >= num_consts + num_carry
            {
                return Residual::Input(i);
            }
            let stacked = &known.outputs[num_carry..num_results];
            match stacked.iter().position(|output| output == var) {
                Some(i) => Residual::Output(num_carry + i),
                None => Residual::Stacked,
            }
        })
        .collect()
}

/// Computes the invariant residuals in the current trace.
fn invariant_values(
    known: &Program,
    num_results: usize,
    residuals: &[Residual],
    consts: &[Tensor],
) -> Vec<Tensor> {
    let outputs: Vec<Var> = residuals
        .iter()
        .zip(&known.outputs[num_results..])
        .filter(|(residual, _)| **residual == Residual::Invariant)
        .map(|(_, var)| *var)
        .collect();
    if outputs.is_empty() {
        return vec![];
    }
    let mut once = known.clone();
    once.outputs = outputs;
    once.inputs.truncate(consts.len());
    let invariant = invariant_vars(known, consts.len());
    // An equation without results is no part of any value.
    let kept = |var: &Var| invariant[var.index()];
    once.equations.retain(|equation| equation.outputs.first().is_some_and(kept));
    inline(&crate::trace::graph::eliminate_dead_code(once), consts)
}

pub(crate) fn jvp_while(
    w: &WhileOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let first_carry = w.num_cond_consts + w.num_body_consts;
    let num_carry = x.len() - first_carry;
    let active: Vec<bool> = t.iter().map(Option::is_some).collect();
    let carry = while_flow(w, &active, &tangent_flow);
    if !carry.contains(&true) {
        let outputs = bind(Op::While(w.clone()), x, at);
        return (outputs, Tangents::from_elem(None, num_carry));
    }
    let consts = w.num_cond_consts..first_carry;
    let body_types: Vec<TensorType> = w.body.input_types().cloned().collect();
    let (const_types, carry_types) = body_types.split_at(w.num_body_consts);
    let active_consts = &active[consts.clone()];
    let types: Vec<TensorType> = const_types
        .iter()
        .cloned()
        .chain(select(const_types, active_consts))
        .chain(carry_types.iter().cloned())
        .chain(select(carry_types, &carry))
        .collect();
    let (body, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
        let mut args = args.iter().copied();
        let mut take = |n: usize| args.by_ref().take(n).collect::<Vec<Tensor>>();
        let mut primals = take(const_types.len());
        let mut tangents = fill_none(active_consts, take(count(active_consts)));
        primals.extend(take(num_carry));
        tangents.extend(fill_none(&carry, take(count(&carry))));
        let (y, dy) = jvp_program(&w.body, &primals, &tangents, Mode::Forward);
        let out_tangents = instantiate_selected(&carry, &y, &dy);
        (y.into_iter().chain(out_tangents).collect(), ())
    });
    // The condition takes the values only; its inputs for tangents are unused.
    let mut cond = (*w.cond).clone();
    for ty in select(carry_types, &carry) {
        let unused = cond.add_var(ty);
        cond.inputs.push(unused);
    }
    let dual = WhileOp {
        cond: Arc::new(cond),
        num_cond_consts: w.num_cond_consts,
        body: Arc::new(body.program),
        num_body_consts: w.num_body_consts + count(active_consts),
    };
    let operands: Vec<Tensor> = x[..consts.end]
        .iter()
        .copied()
        .chain(instantiate_selected(active_consts, &x[consts.clone()], &t[consts.clone()]))
        .chain(x[first_carry..].iter().copied())
        .chain(instantiate_selected(&carry, &x[first_carry..], &t[first_carry..]))
        .collect();
    let (moved, outputs): (Tensors, Tensors) = match mode {
        Mode::Forward => {
            let moved = bind(Op::While(dual), &operands, at);
            let outputs = moved[..num_carry].into();
            (moved, outputs)
        }
        // The loop over values and tangents is in the linear frame; the values get a second loop.
        Mode::Linearize => {
            let again = |body: &Program| Arc::new(without_effects("while_loop", body.clone()));
            let dual = WhileOp { cond: again(&dual.cond), body: again(&dual.body), ..dual };
            (bind(Op::While(dual), &operands, at), bind(Op::While(w.clone()), x, at))
        }
    };
    (outputs, fill_none(&carry, moved[num_carry..].iter().copied()))
}

pub(crate) fn jvp_cond(
    cond: &CondOp,
    x: &[Tensor],
    t: &[Option<Tensor>],
    mode: Mode,
    at: Loc,
) -> (Tensors, Tangents) {
    let active: Vec<bool> = t[1..].iter().map(Option::is_some).collect();
    let results = cond
        .branches
        .iter()
        .map(|branch| tangent_flow(branch, &active))
        .reduce(either)
        .expect("a cond has branches");
    let moving = instantiate_selected(&active, &x[1..], &t[1..]);
    match mode {
        Mode::Forward => forward_cond(cond, x, moving, &active, &results, at),
        Mode::Linearize => linearize_cond(cond, x, moving, &active, &results, at),
    }
}

fn forward_cond(
    cond: &CondOp,
    x: &[Tensor],
    moving: Vec<Tensor>,
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let types: Vec<TensorType> = x[1..].iter().chain(&moving).map(|operand| operand.ty()).collect();
    let branches = cond
        .branches
        .iter()
        .map(|branch| {
            let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
                let (primals, moving) = args.split_at(active.len());
                let tangents = fill_none(active, moving.iter().copied());
                let (y, dy) = jvp_program(branch, primals, &tangents, Mode::Forward);
                let moved = instantiate_selected(results, &y, &dy);
                (y.into_iter().chain(moved).collect(), ())
            });
            Arc::new(traced.program)
        })
        .collect();
    let operands: Vec<Tensor> = x.iter().copied().chain(moving).collect();
    let outputs = bind(Op::Cond(CondOp { branches }), &operands, at);
    let (values, moved) = outputs.split_at(results.len());
    (values.into(), fill_none(results, moved.iter().copied()))
}

fn linearize_cond(
    cond: &CondOp,
    x: &[Tensor],
    moving: Vec<Tensor>,
    active: &[bool],
    results: &[bool],
    at: Loc,
) -> (Tensors, Tangents) {
    let splits: Vec<Split> =
        cond.branches.iter().map(|branch| split(branch, active, results, at)).collect();
    let (values, moved) = bind_split_cond(&splits, x, moving, results.len(), at);
    (values, fill_none(results, moved))
}

/// Binds a choice between split branches: one over the index and the values in `x`, and a linear one
/// over the tangents in `moving`. Returns the results of both; the first has `num_results`.
///
/// Each branch saves residuals of its own. Branches share slots for residuals of one type; a branch
/// fills the slots that it does not use with zeros.
pub(super) fn bind_split_cond(
    splits: &[Split],
    x: &[Tensor],
    moving: Vec<Tensor>,
    num_results: usize,
    at: Loc,
) -> (Tensors, Tensors) {
    let mut places: Vec<TensorType> = Vec::new();
    let mut taken: Vec<Vec<usize>> = Vec::new();
    for split in splits {
        let mut mine: Vec<usize> = Vec::new();
        for var in &split.known.outputs[num_results..] {
            let ty = split.known.ty(*var);
            let free = (0..places.len()).find(|i| places[*i] == *ty && !mine.contains(i));
            mine.push(free.unwrap_or_else(|| {
                places.push(ty.clone());
                places.len() - 1
            }));
        }
        taken.push(mine);
    }
    let operand_types: Vec<TensorType> = x[1..].iter().map(|operand| operand.ty()).collect();
    let known = splits.iter().zip(&taken).map(|(split, mine)| {
        let (traced, ()) = trace_frame(FrameKind::Body, &operand_types, at, |args| {
            let outputs = inline(&split.known, args);
            let (values, residuals) = outputs.split_at(num_results);
            let fill = places.iter().enumerate().map(|(i, ty)| {
                match mine.iter().position(|place| *place == i) {
                    Some(residual) => residuals[residual],
                    None => zeros(&ty.shape, ty.dtype),
                }
            });
            (values.iter().copied().chain(fill).collect(), ())
        });
        Arc::new(traced.program)
    });
    let known = CondOp { branches: known.collect() };
    let outputs = bind_known(Op::Cond(known), num_results + places.len(), x, at);
    let (values, residuals) = outputs.split_at(num_results);

    let types: Vec<TensorType> =
        residuals.iter().chain(&moving).map(|operand| operand.ty()).collect();
    let linear = splits.iter().zip(&taken).map(|(split, mine)| {
        let (traced, ()) = trace_frame(FrameKind::Body, &types, at, |args| {
            let (residuals, moving) = args.split_at(places.len());
            let mine = mine.iter().map(|place| residuals[*place]);
            let operands: Vec<Tensor> = moving.iter().copied().chain(mine).collect();
            (inline(&split.linear, &operands), ())
        });
        Arc::new(traced.program)
    });
    let linear = CondOp { branches: linear.collect() };
    let operands: Vec<Tensor> =
        [x[0]].into_iter().chain(residuals.iter().copied()).chain(moving).collect();
    let moved = bind(Op::Cond(linear), &operands, at);
    (values.into(), moved)
}
