//! Analysis of the values that differ between the members of an axis: for a batch, the mapped
//! values.

use crate::trace::axis::Axis;
use crate::trace::op::{
    Collective, CollectiveOp, CondOp, CustomJvpOp, CustomVjpOp, Op, Rule, ScanOp, ShardingKind,
    ShardingOp, Structure, WhileOp,
};
use crate::trace::program::{Equation, Program};
use crate::trace::tensor::{at_line, fail_op};

/// Returns true if the operation contains a `while`: the only operation that may never end.
pub(crate) fn holds_while(op: &Op) -> bool {
    let inside = |program: &Program| program.equations.iter().any(|e| holds_while(&e.op));
    matches!(op, Op::While(_)) || op.subprograms().any(inside)
}

/// Returns true if the operation contains a collective along `axis`, or a division over it.
pub(crate) fn holds_collective(op: &Op, axis: Axis) -> bool {
    let inside =
        |program: &Program| program.equations.iter().any(|e| holds_collective(&e.op, axis));
    matches!(op, Op::Collective(collective) if collective.is_along(axis))
        || matches!(op, Op::Sharding(sharding) if sharding.mesh.contains(&axis))
        || op.subprograms().any(inside)
}

/// Returns one flag per output of `program`: true if it differs between the members of `axis`,
/// given the flags of the inputs. For a batch: true if it is mapped.
///
/// Ends the trace if some members may wait for others at a collective.
pub(crate) fn varying_outputs(program: &Program, inputs: &[bool], axis: Axis) -> Vec<bool> {
    let mut mapped = vec![false; program.types.len()];
    for (var, &input) in program.inputs.iter().zip(inputs) {
        mapped[var.index()] = input;
    }
    for equation in &program.equations {
        let inputs: Vec<bool> = equation.inputs.iter().map(|var| mapped[var.index()]).collect();
        let outputs = match equation.op.structure() {
            Structure::Scan(scan) => scan_varying_outputs(scan, &inputs, axis),
            Structure::While(while_op) => while_varying_outputs(while_op, &inputs, axis).0,
            Structure::Cond(cond) => cond_varying_outputs(cond, &inputs, axis),
            Structure::CustomJvp(op) => custom_jvp_varying_outputs(op, &inputs, axis),
            Structure::CustomVjp(op) => custom_vjp_varying_outputs(op, &inputs, axis),
            Structure::Remat(remat) => varying_outputs(&remat.body, &inputs, axis),
            Structure::Collective(op) => collective_varying_outputs(op, &inputs, axis),
            // Members of a `pmap` may get different results, whatever they ask with.
            Structure::Callback(op) => {
                vec![op.has_effect() || inputs.contains(&true); equation.outputs.len()]
            }
            Structure::Elementary | Structure::CustomLin(_) => {
                if let Op::Sharding(sharding) = &equation.op {
                    vec![sharding_varying_output(sharding, inputs[0], axis)]
                } else {
                    vec![inputs.contains(&true); equation.outputs.len()]
                }
            }
        };
        for (var, output) in equation.outputs.iter().zip(outputs) {
            mapped[var.index()] = output;
        }
    }
    program.outputs.iter().map(|var| mapped[var.index()]).collect()
}

/// Returns the mapped flags of a loop's carries at the fixed point, and those of the results of one
/// iteration there. `step` maps the flags of the carries to those of the results: the carries, then
/// others.
///
/// The last step gives the results, because each step runs the steps of all loops inside.
fn fixpoint(mut carry: Vec<bool>, step: impl Fn(&[bool]) -> Vec<bool>) -> (Vec<bool>, Vec<bool>) {
    loop {
        let results = step(&carry);
        let next: Vec<bool> = carry.iter().zip(&results).map(|(&a, &b)| a || b).collect();
        if next == carry {
            return (carry, results);
        }
        carry = next;
    }
}

/// Returns the mapped flags of a scan's results.
pub(super) fn scan_varying_outputs(scan: &ScanOp, inputs: &[bool], axis: Axis) -> Vec<bool> {
    let (consts, rest) = inputs.split_at(scan.num_consts);
    let (init, xs) = rest.split_at(scan.num_carry);
    let step = |carry: &[bool]| varying_outputs(&scan.body, &[consts, carry, xs].concat(), axis);
    let (carry, outputs) = fixpoint(init.to_vec(), step);
    [&carry, &outputs[scan.num_carry..]].concat()
}

/// Returns the mapped flags of a while loop's results, and true if its condition is mapped.
pub(super) fn while_varying_outputs(
    while_op: &WhileOp,
    inputs: &[bool],
    axis: Axis,
) -> (Vec<bool>, bool) {
    let (cond_consts, rest) = inputs.split_at(while_op.num_cond_consts);
    let (body_consts, init) = rest.split_at(while_op.num_body_consts);
    let step =
        |carry: &[bool]| varying_outputs(&while_op.body, &[body_consts, carry].concat(), axis);
    let (carry, _) = fixpoint(init.to_vec(), step);
    let condition = varying_outputs(&while_op.cond, &[cond_consts, &carry].concat(), axis)[0];
    if condition {
        all_take_part("while_loop", &[&while_op.cond, &while_op.body], axis);
    }
    // Examples that stop at different iterations keep different carries, whatever the body does.
    if condition { (vec![true; carry.len()], true) } else { (carry, false) }
}

/// Returns the mapped flags of a cond's results.
pub(super) fn cond_varying_outputs(cond: &CondOp, inputs: &[bool], axis: Axis) -> Vec<bool> {
    if inputs[0] {
        let branches: Vec<&Program> = cond.branches.iter().map(|branch| &**branch).collect();
        all_take_part("cond", &branches, axis);
    }
    let mut outputs = vec![inputs[0]; cond.branches[0].outputs.len()];
    for branch in &cond.branches {
        for (output, there) in outputs.iter_mut().zip(varying_outputs(branch, &inputs[1..], axis)) {
            *output |= there;
        }
    }
    outputs
}

fn either(a: &[bool], b: &[bool]) -> Vec<bool> {
    a.iter().zip(b).map(|(a, b)| a | b).collect()
}

/// Returns the mapped flags of the results.
pub(super) fn custom_jvp_varying_outputs(
    op: &CustomJvpOp,
    inputs: &[bool],
    axis: Axis,
) -> Vec<bool> {
    let jvp = match &op.jvp {
        Rule::Own(rule) if !op.is_recursive() => rule,
        // It calls itself for all examples or for none: see `custom::recursive_custom_jvp`.
        Rule::Own(_) | Rule::Enclosing(_) => {
            let any = inputs.contains(&true) || holds_collective(&Op::CustomJvp(op.clone()), axis);
            return vec![any; op.call.outputs.len()];
        }
    };
    let call = varying_outputs(&op.call, inputs, axis);
    let dual = [inputs, &inputs[op.num_consts..]].concat();
    let rule = varying_outputs(jvp, &dual, axis);
    // A tangent is mapped as its result is.
    let (values, tangents) = rule.split_at(call.len());
    either(&call, &either(values, tangents))
}

pub(super) fn custom_vjp_varying_outputs(
    op: &CustomVjpOp,
    inputs: &[bool],
    axis: Axis,
) -> Vec<bool> {
    either(&varying_outputs(&op.call, inputs, axis), &varying_outputs(&op.fwd, inputs, axis))
}

/// Returns one flag per result of a collective: true if it differs between the members of `axis`,
/// given the flags of the operands.
fn collective_varying_outputs(collective: &CollectiveOp, inputs: &[bool], axis: Axis) -> Vec<bool> {
    if !collective.is_along(axis) {
        return match collective.kind {
            Collective::Index => vec![false],
            Collective::AllReduce(_)
            | Collective::AllGather { .. }
            | Collective::ReduceScatter { .. }
            | Collective::AllToAll { .. }
            | Collective::Permute { .. } => inputs.to_vec(),
        };
    }
    // Groups may have different results: if their members differ, along this axis or another.
    let several = collective.axes.len() > 1;
    let between = |&input: &bool| collective.groups.is_some() && (input || several);
    match &collective.kind {
        Collective::AllReduce(_) | Collective::AllGather { .. } => {
            inputs.iter().map(between).collect()
        }
        Collective::ReduceScatter { .. }
        | Collective::AllToAll { .. }
        | Collective::Permute { .. }
        | Collective::Index => vec![true],
    }
}

/// Returns true if the result of a division differs between the members of `axis`.
fn sharding_varying_output(sharding: &ShardingOp, input: bool, axis: Axis) -> bool {
    if !sharding.mesh.contains(&axis) {
        return input;
    }
    match sharding.kind {
        ShardingKind::Constraint => input,
        ShardingKind::FullToShard => input || sharding.dimension_of(axis).is_some(),
        ShardingKind::ShardToFull => false,
    }
}

/// Ends the trace if a branch or loop that some members of `axis` may not take holds a collective
/// along it: the others would wait for them.
fn all_take_part(what: &str, programs: &[&Program], axis: Axis) {
    if let Some((equation, name)) = programs.iter().find_map(|program| find(program, axis)) {
        let problem = format!(
            "inside a {what} whose predicate differs between the members of axis `{}`, some \
             members would wait for ever for the others. Make the predicate the same for all \
             (psum, pmax or pmin of it along the axis), or move the collective out of the {what}",
            axis.name()
        );
        at_line(equation.at, || fail_op(name, problem));
    }
}

fn find(program: &Program, axis: Axis) -> Option<(&Equation, &'static str)> {
    program.equations.iter().find_map(|equation| {
        if let Op::Collective(collective) = &equation.op
            && collective.is_along(axis)
        {
            return Some((equation, collective.kind.name()));
        }
        equation.op.subprograms().find_map(|program| find(program, axis))
    })
}
