//! The data-flow view of a Program, by `petgraph`: dead code, common subexpressions, liveness, and
//! pictures.

#![deny(clippy::wildcard_enum_match_arm)]

mod order;
mod rewrite;

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, Reversed};
use smallvec::SmallVec;

pub(crate) use self::order::in_order;
use super::op::{Op, Rule, Structure, StructureMut};
use super::print::{labels, op_params};
use super::program::{Equation, Program, Var, Vars};

/// A node of the data-flow graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Node {
    /// The input at this position.
    Input(usize),
    /// The equation at this position.
    Equation(usize),
    /// The result at this position.
    Output(usize),
}

/// The data-flow graph: an edge goes from the definition of a variable to each use of it.
pub(crate) fn data_flow(program: &Program) -> DiGraph<Node, Var> {
    let uses: usize = program.equations.iter().map(|e| e.inputs.len()).sum();
    let mut graph = DiGraph::with_capacity(program.equations.len() + program.inputs.len(), uses);
    let mut made_by: Vec<Option<NodeIndex>> = vec![None; program.types.len()];
    for (i, var) in program.inputs.iter().enumerate() {
        made_by[var.index()] = Some(graph.add_node(Node::Input(i)));
    }
    let link = |graph: &mut DiGraph<Node, Var>, made_by: &[Option<NodeIndex>], var: Var, to| {
        let from = made_by[var.index()].expect("a verified Program defines before use");
        graph.add_edge(from, to, var);
    };
    for (i, equation) in program.equations.iter().enumerate() {
        let node = graph.add_node(Node::Equation(i));
        for &input in &equation.inputs {
            link(&mut graph, &made_by, input, node);
        }
        for &output in &equation.outputs {
            made_by[output.index()] = Some(node);
        }
    }
    for (i, &var) in program.outputs.iter().enumerate() {
        let node = graph.add_node(Node::Output(i));
        link(&mut graph, &made_by, var, node);
    }
    graph
}

/// Removes equations on which no result depends, in bodies of control flow as well. Equations with
/// an effect stay, and so do the equations that they depend on.
pub fn eliminate_dead_code(mut program: Program) -> Program {
    let graph = data_flow(&program);
    let mut live = vec![false; program.equations.len()];
    let against = Reversed(&graph);
    let mut search = Dfs::empty(against);
    search.stack.extend(graph.node_indices().filter(|n| match graph[*n] {
        Node::Output(_) => true,
        Node::Equation(i) => program.equations[i].op.has_effect(),
        Node::Input(_) => false,
    }));
    while let Some(node) = search.next(against) {
        if let Node::Equation(i) = graph[node] {
            live[i] = true;
        }
    }
    let mut live = live.into_iter();
    program.equations.retain(|_| live.next().expect("one flag an equation"));
    for equation in &mut program.equations {
        map_subprograms(&mut equation.op, &eliminate_dead_code);
    }
    program
}

/// Replaces the Programs inside a control-flow operation.
pub(crate) fn map_subprograms(op: &mut Op, f: &dyn Fn(Program) -> Program) {
    let apply = |sub: &mut Arc<Program>| {
        // A body that is not shared is not copied.
        let body = Arc::unwrap_or_clone(std::mem::take(sub));
        *sub = Arc::new(f(body));
    };
    match op.structure_mut() {
        StructureMut::Scan(scan) => apply(&mut scan.body),
        StructureMut::CustomJvp(custom) => {
            apply(&mut custom.call);
            if let Rule::Own(rule) = &mut custom.jvp {
                apply(rule);
            }
        }
        StructureMut::CustomVjp(custom) => {
            apply(&mut custom.call);
            apply(&mut custom.fwd);
            apply(&mut custom.bwd);
        }
        StructureMut::CustomLin(custom) => apply(&mut custom.bwd),
        StructureMut::Remat(remat) => apply(&mut remat.body),
        StructureMut::While(w) => {
            apply(&mut w.cond);
            apply(&mut w.body);
        }
        StructureMut::Cond(cond) => cond.branches.iter_mut().for_each(apply),
        StructureMut::Elementary | StructureMut::Collective(_) | StructureMut::Callback(_) => {}
    }
}

/// Merges equations that compute the same value, and drops `stop_gradient` and names, which have no
/// further use when a Program is complete, and selections between equal values.
pub(crate) fn eliminate_common_subexpressions(mut program: Program) -> Program {
    let mut same: Vec<Var> = (0..program.types.len() as u32).map(Var).collect();
    // Indices into `kept`, by hash: operations are large, and copies of them slow.
    let mut seen: HashMap<u64, SmallVec<[u32; 1]>> = HashMap::new();
    let hasher = RandomState::new();
    let mut kept: Vec<Equation> = Vec::with_capacity(program.equations.len());
    for mut equation in std::mem::take(&mut program.equations) {
        for input in &mut equation.inputs {
            *input = same[input.index()];
        }
        if matches!(equation.op, Op::StopGradient | Op::Name(_)) {
            same[equation.outputs[0].index()] = equation.inputs[0];
            continue;
        }
        // What guarded a derivative by a `stop_gradient` on one side.
        if matches!(equation.op, Op::Select) && equation.inputs[1] == equation.inputs[2] {
            same[equation.outputs[0].index()] = equation.inputs[1];
            continue;
        }
        map_subprograms(&mut equation.op, &eliminate_common_subexpressions);
        if equation.op.has_effect() {
            kept.push(equation);
            continue;
        }
        let places = seen.entry(hasher.hash_one((&equation.op, &equation.inputs))).or_default();
        let first = places.iter().map(|&place| &kept[place as usize]);
        let mut first = first.filter(|e| e.op == equation.op && e.inputs == equation.inputs);
        match first.next() {
            Some(first) => {
                for (&output, &there) in equation.outputs.iter().zip(&first.outputs) {
                    same[output.index()] = there;
                }
            }
            None => {
                places.push(kept.len() as u32);
                kept.push(equation);
            }
        }
    }
    program.equations = kept;
    for output in &mut program.outputs {
        *output = same[output.index()];
    }
    program
}

/// Inlines functions with derivatives of their own: when a Program is complete they are functions
/// like others. Only the values that a checkpointed function recomputes stay apart.
pub(crate) fn inline_calls(program: Program) -> Program {
    let holds = |program: &Program| program.equations.iter().any(|e| is_call(&e.op));
    if !holds(&program) && !program.equations.iter().any(|e| e.op.subprograms().next().is_some()) {
        return program;
    }
    let Program { inputs, equations, outputs, types } = program;
    let mut whole = Program { inputs, equations: vec![], outputs, types };
    let mut same: Vec<Var> = (0..whole.types.len() as u32).map(Var).collect();
    for mut equation in equations {
        for input in &mut equation.inputs {
            *input = same[input.index()];
        }
        map_subprograms(&mut equation.op, &inline_calls);
        let Some(body) = body_of(&equation.op) else {
            whole.equations.push(equation);
            continue;
        };
        // The body's variables behind those of the whole; its inputs are the operands.
        let base = whole.types.len() as u32;
        whole.types.extend(body.types.iter().cloned());
        let mut here: Vec<Var> = (0..body.types.len() as u32).map(|i| Var(base + i)).collect();
        same.extend(&here);
        for (input, operand) in body.inputs.iter().zip(&equation.inputs) {
            here[input.index()] = *operand;
        }
        for inner in &body.equations {
            let mut inner = inner.clone();
            for var in inner.inputs.iter_mut().chain(&mut inner.outputs) {
                *var = here[var.index()];
            }
            whole.equations.push(inner);
        }
        for (output, result) in equation.outputs.iter().zip(&body.outputs) {
            same[output.index()] = here[result.index()];
        }
    }
    for output in &mut whole.outputs {
        *output = same[output.index()];
    }
    whole
}

fn is_call(op: &Op) -> bool {
    body_of(op).is_some()
}

/// The Program that replaces a call.
fn body_of(op: &Op) -> Option<Arc<Program>> {
    match op.structure() {
        Structure::CustomJvp(custom) => Some(custom.call.clone()),
        Structure::CustomVjp(custom) => Some(custom.call.clone()),
        Structure::Remat(remat) if !remat.barrier => Some(remat.body.clone()),
        Structure::Elementary
        | Structure::Collective(_)
        | Structure::Callback(_)
        | Structure::CustomLin(_)
        | Structure::Remat(_)
        | Structure::Scan(_)
        | Structure::While(_)
        | Structure::Cond(_) => None,
    }
}

/// Simplifies a Program; every Program is simplified before it is lowered.
pub fn simplify(program: Program) -> Program {
    eliminate_common_subexpressions(eliminate_dead_code(rewrite::rewrite(inline_calls(program))))
}

/// For each equation, the bytes of the values alive while it runs: its operands, its results, and
/// everything defined before and used after.
pub fn live_bytes(program: &Program) -> Vec<usize> {
    let mut last_use = vec![0; program.types.len()];
    for (i, equation) in program.equations.iter().enumerate() {
        equation.inputs.iter().for_each(|v| last_use[v.index()] = i);
    }
    let end = program.equations.len();
    program.outputs.iter().for_each(|v| last_use[v.index()] = end);
    let bytes = |var: &Var| program.ty(*var).bytes();
    let mut alive: usize = program.inputs.iter().map(bytes).sum();
    let mut result = Vec::with_capacity(end);
    for (i, equation) in program.equations.iter().enumerate() {
        alive += equation.outputs.iter().map(bytes).sum::<usize>();
        result.push(alive);
        let mut ended: Vars = equation.inputs.iter().chain(&equation.outputs).copied().collect();
        ended.sort();
        ended.dedup();
        alive -= ended.iter().filter(|v| last_use[v.index()] <= i).map(bytes).sum::<usize>();
    }
    result
}

/// The data-flow graph in Graphviz's DOT language. Bodies of control flow are drawn as clusters, and an
/// operation's parameters are its tooltip.
pub fn dot(program: &Program) -> String {
    let mut text = String::from(
        "digraph program {\n  rankdir=TB;\n  node [shape=box, fontname=monospace, fontsize=10];\n",
    );
    write_dot(&mut text, program, "p");
    text.push_str("}\n");
    text
}

fn write_dot(text: &mut String, program: &Program, prefix: &str) {
    let graph = data_flow(program);
    for node in graph.node_indices() {
        let filled = |color: &str| format!(", style=filled, fillcolor=\"{color}\"");
        let (label, style) = match graph[node] {
            Node::Input(i) => (format!("in {i}"), filled("#dbe9f6")),
            Node::Equation(i) => {
                let op = &program.equations[i].op;
                let mut params = String::new();
                let _ = op_params(&mut params, op);
                let params = params.replace('\\', "\\\\").replace('"', "\\\"");
                (op.name().to_string(), format!(", tooltip=\"{}{params}\"", op.name()))
            }
            Node::Output(i) => (format!("out {i}"), filled("#fde8cf")),
        };
        let id = node.index();
        let _ = writeln!(text, "  {prefix}_{id} [label=\"{label}\"{style}];");
        if let Node::Equation(i) = graph[node] {
            let op = &program.equations[i].op;
            for (j, (sub, part)) in op.subprograms().zip(labels(op)).enumerate() {
                let inner = format!("{prefix}_{id}_{j}");
                let name = op.name();
                let _ = writeln!(text, "  subgraph cluster_{inner} {{\n  label=\"{name} {part}\";");
                write_dot(text, sub, &inner);
                text.push_str("  }\n");
            }
        }
    }
    for edge in graph.edge_indices() {
        let (from, to) = graph.edge_endpoints(edge).expect("an edge has ends");
        let ty = program.ty(graph[edge]);
        let (from, to) = (from.index(), to.index());
        let _ = writeln!(text, "  {prefix}_{from} -> {prefix}_{to} [label=\"{ty}\", fontsize=8];");
    }
}
