//! Rough cost of a Program: enough for choices at compile time.

#![deny(clippy::wildcard_enum_match_arm)]

use crate::trace::op::Op;
use crate::trace::program::{Equation, Program};

/// Returns true if a Program gains by spreading single operations over several cores: most of its
/// arithmetic is in operations that are worth waking a thread for.
pub fn benefits_from_threads(program: &Program) -> bool {
    let Work { small, large } = work(program);
    large > small
}

/// Rows from which on XLA divides a product between threads, whatever `xla_cpu_multi_thread_eigen` says.
const MIN_DIVIDED_ROWS: usize = 192;

/// Returns true if a Program has, outside of loops and branches, a product of so many rows that XLA divides
/// it between threads.
pub fn has_divided_products(program: &Program) -> bool {
    program.equations.iter().any(|equation| {
        if let Op::Dot(dims) = &equation.op {
            let lhs = program.ty(equation.inputs[0]);
            let inner = dims.lhs_contract.iter().chain(&dims.lhs_batch);
            let inner: usize = inner.map(|&axis| lhs.shape[axis]).product();
            return lhs.numel() >= MIN_DIVIDED_ROWS * inner;
        }
        let is_control_flow = matches!(equation.op, Op::Scan(_) | Op::While(_) | Op::Cond(_));
        !is_control_flow && equation.op.subprograms().any(has_divided_products)
    })
}

/// Returns the arithmetic operations of one run of a Program; of a `while_loop`, those of one iteration.
pub fn total_operations(program: &Program) -> f64 {
    let Work { small, large } = work(program);
    small + large
}

/// Returns true if the compiler can compute an operation element by element inside of the operation
/// that uses it, so that its result is never in memory.
pub fn is_fused(op: &Op) -> bool {
    match op {
        Op::Constant(literal) => literal.is_splat(),
        Op::Iota { .. } | Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select => true,
        Op::Clamp | Op::Convert { .. } | Op::Bitcast { .. } | Op::Broadcast { .. } => true,
        Op::Reshape { .. } | Op::Transpose { .. } | Op::Reverse { .. } | Op::Pad { .. } => true,
        Op::Slice { .. } | Op::DynamicSlice { .. } | Op::Gather(_) | Op::Threefry => true,
        Op::Reduce { .. } | Op::Sharding(_) | Op::StopGradient | Op::Name(_) => true,
        // Their bodies become part of the program.
        Op::CustomJvp(_) | Op::CustomVjp(_) | Op::CustomLin(_) | Op::Remat(_) => true,
        Op::Concat { .. } | Op::DynamicUpdateSlice | Op::Scatter(_) | Op::Dot(_) => false,
        Op::Conv(_) | Op::Fft(_) | Op::Cholesky | Op::TriangularSolve(_) => false,
        Op::ArgReduce { .. } | Op::Sort { .. } | Op::Collective(_) | Op::Callback(_) => false,
        Op::Scan(_) | Op::While(_) | Op::Cond(_) => false,
    }
}

/// Operations of more arithmetic than this are worth waking a thread for, which takes as long as a
/// core needs for a few hundred thousand of these.
const MIN_PARALLEL_COST: usize = 1 << 21;

/// Arithmetic operations of a Program, by the size of the operation that they are part of.
#[derive(Default)]
struct Work {
    small: f64,
    large: f64,
}

/// Returns the work of one run: all iterations of a `scan`; one iteration of a `while_loop`, whose
/// number of iterations is unknown.
fn work(program: &Program) -> Work {
    let mut sum = Work::default();
    for equation in &program.equations {
        let mut inside = equation.op.subprograms().peekable();
        if inside.peek().is_none() {
            let own = operations(program, equation);
            let class = if own > MIN_PARALLEL_COST { &mut sum.large } else { &mut sum.small };
            *class += own as f64;
            continue;
        }
        let iterations = if let Op::Scan(scan) = &equation.op { scan.length as f64 } else { 1.0 };
        for Work { small, large } in inside.map(work) {
            sum.small += iterations * small;
            sum.large += iterations * large;
        }
    }
    sum
}

fn operations(program: &Program, equation: &Equation) -> usize {
    let elements = |var| program.ty(var).numel();
    let out: usize = equation.outputs.iter().map(|&var| elements(var)).sum();
    match &equation.op {
        Op::Dot(dims) => {
            let lhs = program.ty(equation.inputs[0]);
            let terms: usize = dims.lhs_contract.iter().map(|&axis| lhs.shape[axis]).product();
            2 * out * terms
        }
        Op::Conv(dims) => {
            let kernel = program.ty(equation.inputs[1]);
            2 * out * kernel.numel() / kernel.shape[dims.rhs_spec[0]].max(1)
        }
        // Five operations for each element and halving, by Cooley and Tukey.
        Op::Fft(fft) => {
            let count: usize = fft.lengths.iter().product();
            5 * out * count.max(2).ilog2() as usize
        }
        // Twenty rounds of adding, rotating and mixing.
        Op::Threefry => 100 * out,
        // Functions of an element, sums of many: some operations for each.
        Op::Constant(_)
        | Op::Iota { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert { .. }
        | Op::Bitcast { .. }
        | Op::Broadcast { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Reverse { .. }
        | Op::Concat { .. }
        | Op::Pad { .. }
        | Op::Slice { .. }
        | Op::DynamicSlice { .. }
        | Op::DynamicUpdateSlice
        | Op::Gather(_)
        | Op::Scatter(_)
        | Op::Cholesky
        | Op::TriangularSolve(_)
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Sort { .. }
        | Op::Collective(_)
        | Op::Sharding(_)
        | Op::StopGradient
        | Op::Name(_)
        | Op::CustomJvp(_)
        | Op::CustomVjp(_)
        | Op::CustomLin(_)
        | Op::Remat(_)
        | Op::Callback(_)
        | Op::Scan(_)
        | Op::While(_)
        | Op::Cond(_) => {
            let most = equation.inputs.iter().map(|&var| elements(var)).max().unwrap_or(0);
            8 * out.max(most)
        }
    }
}
