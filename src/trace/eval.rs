//! The host interpreter: the meaning of a [`Program`], and the oracle of every test.
//!
//! It is slow and obvious on purpose. Two decisions run through all of it:
//!
//! * Arithmetic on floats of every width is done in `f64`, and rounded once when the operation is
//!   finished. For `+ - * /` and `sqrt` that is exactly what narrower arithmetic gives; for the
//!   other functions, and for sums and products of many elements, it is closer to the truth than
//!   any device is. The one exception is `erf_inv`, which is XLA's `f32` polynomial, because
//!   random numbers must be equal bit for bit.
//! * Moving elements about needs only their size, so the operations on shapes work on bits.

#![deny(clippy::wildcard_enum_match_arm)]

mod complex;
pub(crate) mod control;
mod dot;
mod elementwise;
mod fft;
mod gamma;
mod gather;
mod linalg;
mod number;
mod reduce;
mod shapes;
mod special;

use std::convert::Infallible;

use smallvec::SmallVec;

pub(crate) use self::special::threefry as threefry2x32;

use super::callback::Failed;
use super::check;
use super::literal::Literal;
use super::op::{Op, ShardingKind};
use super::program::{Program, Var};
use super::types::{TensorType, physical_memory};
use crate::error::{Error, Result};

/// Runs a Program on the host.
///
/// # Errors
/// If the inputs are not of the types that the Program takes; or if a callback fails.
pub fn eval(program: &Program, inputs: &[Literal]) -> Result<Vec<Literal>> {
    if inputs.len() != program.inputs.len() {
        return Err(Error::Argument(format!(
            "the Program takes {} inputs, and was given {}",
            program.inputs.len(),
            inputs.len()
        )));
    }
    for (i, (expected, input)) in program.input_types().zip(inputs).enumerate() {
        if expected != input.ty() {
            return Err(Error::Argument(format!(
                "input {i} of the Program is {expected}, and was given {}",
                input.ty()
            )));
        }
    }
    if let Some(axis) = program.free_axis() {
        return Err(Error::Argument(format!(
            "the Program communicates along axis `{}`, and is run on its own; run it with pmap",
            axis.name()
        )));
    }
    ensure_allocatable(program)?;
    if program.callbacks().is_empty() {
        return Ok(run(program, inputs.to_vec()));
    }
    catch_failed(|| run(program, inputs.to_vec()))
}

/// Refuses a Program whose values do not fit into memory, one alone or those that are alive at the
/// same time: to allocate them would end the process.
fn ensure_allocatable(program: &Program) -> Result<()> {
    ensure_each_allocatable(program)?;
    let (bytes, memory) = (peak(program), physical_memory() as u64);
    if bytes <= memory {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    Err(Error::Argument(format!(
        "the values that the Program keeps at the same time take {:.1} GiB, and this machine has \
         {:.1} GiB of memory",
        gib(bytes),
        gib(memory)
    )))
}

fn ensure_each_allocatable(program: &Program) -> Result<()> {
    for ty in program.output_types() {
        ty.ensure_allocatable()?;
    }
    for equation in &program.equations {
        // A constant of one repeated element is written out where it is used.
        for &var in &equation.outputs {
            program.ty(var).ensure_allocatable()?;
        }
        for body in equation.op.subprograms() {
            ensure_each_allocatable(body)?;
        }
    }
    Ok(())
}

/// The most bytes that [`run`] keeps at the same time. A lower bound: operations have scratch memory
/// of their own.
fn peak(program: &Program) -> u64 {
    // The Program has its constants, and another shape of the same elements is no copy.
    let shares = |op: &Op| matches!(op, Op::Constant(_) | Op::Reshape { .. });
    let bytes = |var: Var| program.ty(var).bytes() as u64;
    let last_use = last_uses(program);
    let mut kept = vec![0; program.types.len()];
    for &var in &program.inputs {
        kept[var.index()] = bytes(var);
    }
    let mut now: u64 = kept.iter().fold(0, |sum, &bytes| sum.saturating_add(bytes));
    let mut most = now;
    for (i, equation) in program.equations.iter().enumerate() {
        for &var in equation.outputs.iter().filter(|_| !shares(&equation.op)) {
            kept[var.index()] = bytes(var);
            now = now.saturating_add(bytes(var));
        }
        let inside = equation.op.subprograms().map(|body| {
            let given: u64 = body.input_types().map(|ty| ty.bytes() as u64).sum();
            peak(body).saturating_sub(given)
        });
        most = most.max(now.saturating_add(inside.max().unwrap_or(0)));
        for &var in equation.inputs.iter().filter(|var| last_use[var.index()] == i) {
            now = now.saturating_sub(std::mem::take(&mut kept[var.index()]));
        }
    }
    most
}

/// For each variable, the last equation that uses it; none for results.
fn last_uses(program: &Program) -> Vec<usize> {
    let mut last_use = vec![usize::MAX; program.types.len()];
    for (i, equation) in program.equations.iter().enumerate() {
        for var in &equation.inputs {
            last_use[var.index()] = i;
        }
    }
    for var in &program.outputs {
        last_use[var.index()] = usize::MAX;
    }
    last_use
}

/// Runs `f`, in which a callback may fail.
pub(crate) fn catch_failed<R>(f: impl FnOnce() -> R) -> Result<R> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).map_err(|payload| {
        match payload.downcast::<Failed>() {
            Ok(failed) => failed.0,
            Err(other) => std::panic::resume_unwind(other),
        }
    })
}

/// Runs a Program whose inputs are known to be of its types.
fn run(program: &Program, inputs: Vec<Literal>) -> Vec<Literal> {
    // Values are let go after their last use: a training step makes gigabytes of them.
    let last_use = last_uses(program);
    let mut values: Vec<Option<Literal>> = vec![None; program.types.len()];
    let get = |values: &[Option<Literal>], var: Var| -> Literal {
        values[var.index()].clone().expect("variables are defined before they are used")
    };
    for (&var, input) in program.inputs.iter().zip(inputs) {
        values[var.index()] = Some(input);
    }
    for (i, equation) in program.equations.iter().enumerate() {
        let operands: Vec<Literal> = equation.inputs.iter().map(|&var| get(&values, var)).collect();
        let results = eval_op(&equation.op, &operands);
        for (&var, result) in equation.outputs.iter().zip(results) {
            values[var.index()] = Some(result);
        }
        for var in &equation.inputs {
            if last_use[var.index()] == i {
                values[var.index()] = None;
            }
        }
    }
    program.outputs.iter().map(|&var| get(&values, var)).collect()
}

fn run_iteration(
    program: &Program,
    _: usize,
    inputs: Vec<Literal>,
) -> Result<Vec<Literal>, Infallible> {
    Ok(run(program, inputs))
}

fn always<T>(result: Result<T, Infallible>) -> T {
    let Ok(value) = result;
    value
}

/// Runs one operation on the host.
///
/// # Panics
/// If the operands do not fit the operation ([`check::infer`] checks this), or if a callback fails.
pub fn eval_op(op: &Op, inputs: &[Literal]) -> Vec<Literal> {
    let operand_types: SmallVec<[&TensorType; 4]> = inputs.iter().map(Literal::ty).collect();
    let types = match check::infer(op, &operand_types) {
        Ok(types) => types,
        Err(problem) => panic!("{}: {}", op.name(), problem.text),
    };
    let one = |f: fn(&Literal, &TensorType) -> Literal| vec![f(&inputs[0], &types[0])];
    let results = match op {
        Op::Constant(literal) => vec![literal.clone()],
        Op::Iota { ty, axis } => vec![elementwise::iota(ty, *axis)],
        Op::Unary(op) => vec![elementwise::unary(*op, &inputs[0])],
        Op::Binary(op) => vec![elementwise::binary(*op, &inputs[0], &inputs[1])],
        Op::Compare(op) => vec![elementwise::compare(*op, &inputs[0], &inputs[1])],
        Op::Select => vec![elementwise::select(&inputs[0], &inputs[1], &inputs[2])],
        Op::Clamp => vec![elementwise::clamp(&inputs[0], &inputs[1], &inputs[2])],
        Op::Convert { .. } => one(elementwise::convert),
        // The bytes stay; only the type they are read as changes.
        Op::Bitcast { .. } | Op::Reshape { .. } => {
            vec![Literal::from_shared(types[0].clone(), inputs[0].bytes())]
        }
        Op::Broadcast { shape, axes } => vec![shapes::broadcast(&inputs[0], shape, axes)],
        Op::Transpose { permutation } => vec![shapes::transpose(&inputs[0], permutation)],
        Op::Reverse { axes } => vec![shapes::reverse(&inputs[0], axes)],
        Op::Concat { axis } => vec![shapes::concat(inputs, *axis, &types[0])],
        Op::Pad { low, interior, .. } => {
            vec![shapes::pad(&inputs[0], &inputs[1], low, interior, &types[0])]
        }
        Op::Slice { start, stride, .. } => {
            vec![shapes::slice(&inputs[0], start, stride, &types[0])]
        }
        Op::DynamicSlice { sizes } => {
            vec![shapes::dynamic_slice(&inputs[0], &inputs[1..], sizes)]
        }
        Op::DynamicUpdateSlice => {
            vec![shapes::dynamic_update_slice(&inputs[0], &inputs[1], &inputs[2..])]
        }
        Op::Gather(dims) => vec![gather::gather(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Scatter(dims) => vec![gather::scatter(dims, &inputs[0], &inputs[1], &inputs[2])],
        Op::Dot(dims) => vec![dot::dot(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Conv(dims) => vec![dot::conv(dims, &inputs[0], &inputs[1], &types[0])],
        Op::Fft(op) => vec![fft::fft(op, &inputs[0], &types[0])],
        Op::Cholesky => one(linalg::cholesky),
        Op::TriangularSolve(op) => vec![linalg::triangular_solve(op, &inputs[0], &inputs[1])],
        Op::Reduce { op, axes } => vec![reduce::reduce(*op, &inputs[0], axes, &types[0])],
        Op::ArgReduce { op, axis } => {
            vec![reduce::arg_reduce(*op, &inputs[0], *axis, &types[0])]
        }
        Op::Sort { axis } => reduce::sort(inputs, *axis),
        Op::Threefry => elementwise::threefry(inputs),
        Op::Collective(collective) => panic!(
            "{} along axis `{}`: the interpreter runs one member; map the axis first",
            collective.kind.name(),
            collective.axes[0].name()
        ),
        Op::Sharding(op) if op.kind != ShardingKind::Constraint => {
            panic!("{}: the interpreter runs whole values; map the axes first", op.name())
        }
        Op::Sharding(_) | Op::StopGradient | Op::Name(_) => vec![inputs[0].clone()],
        Op::CustomJvp(custom) => run(&custom.call, inputs.to_vec()),
        Op::CustomVjp(custom) => run(&custom.call, inputs.to_vec()),
        Op::CustomLin(_) => panic!("custom_lin has no value: only its transpose is known"),
        Op::Remat(remat) => run(&remat.body, inputs.to_vec()),
        // There is no way back but this: `eval` takes it.
        Op::Callback(op) => op
            .run(inputs)
            .unwrap_or_else(|error| std::panic::resume_unwind(Box::new(Failed(error)))),
        Op::Scan(scan) => always(control::scan(scan, inputs, run_iteration)),
        Op::While(while_op) => always(control::while_loop(while_op, inputs, run_iteration)),
        Op::Cond(cond) => always(control::cond(cond, inputs, run_iteration)),
    };
    debug_assert!(results.iter().map(Literal::ty).eq(&types), "{}: {results:?}", op.name());
    results
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::sync::Arc;

    use super::*;
    use crate::trace::op::{BinaryOp, CompareOp, CondOp, ScanOp, WhileOp};
    use crate::trace::program::Equation;
    use crate::trace::types::DType;

    /// A Program over scalars i32. Each line is an operation with the variables it takes; inputs
    /// come first, and each line defines the next variable.
    fn program(inputs: usize, lines: &[(Op, &[u32])], outputs: &[u32]) -> Arc<Program> {
        let mut program = Program::default();
        for _ in 0..inputs {
            let var = program.add_var(TensorType::scalar(DType::I32));
            program.inputs.push(var);
        }
        for (op, operands) in lines {
            let operands: SmallVec<[Var; 4]> = operands.iter().map(|&i| Var(i)).collect();
            let types: Vec<&TensorType> = operands.iter().map(|&var| program.ty(var)).collect();
            let types = check::infer(op, &types).expect("a program without faults");
            let outputs = types.into_iter().map(|ty| program.add_var(ty)).collect();
            let at = Location::caller();
            program.equations.push(Equation { op: op.clone(), inputs: operands, outputs, at });
        }
        program.outputs = outputs.iter().map(|&i| Var(i)).collect();
        check::verify(&program).expect("a program without faults");
        Arc::new(program)
    }

    const ADD: Op = Op::Binary(BinaryOp::Add);
    const MUL: Op = Op::Binary(BinaryOp::Mul);

    #[test]
    fn equations_and_repeated_results_are_evaluated() {
        // (x + y) * x, x + y, and an input twice.
        let p = program(2, &[(ADD, &[0, 1]), (MUL, &[2, 0])], &[3, 2, 0, 0]);
        let results = eval(&p, &[3.into(), 4.into()]).unwrap();
        assert_eq!(results, [21.into(), 7.into(), 3.into(), 3.into()]);
    }

    #[test]
    fn inputs_must_fit() {
        let p = program(2, &[], &[0]);
        let text = |inputs: &[Literal]| eval(&p, inputs).unwrap_err().to_string();
        assert_eq!(text(&[3.into()]), "the Program takes 2 inputs, and was given 1");
        let mixed = text(&[3.into(), [1.0f32].into()]);
        assert_eq!(mixed, "input 1 of the Program is i32[], and was given f32[1]");
    }

    fn sums(length: usize, reverse: bool) -> Op {
        // carry' = constant * carry + x; the output is carry'.
        let body = program(3, &[(MUL, &[0, 1]), (ADD, &[3, 2])], &[4, 4]);
        Op::Scan(ScanOp { body, num_consts: 1, num_carry: 1, length, reverse, unroll: 1 })
    }

    #[test]
    fn scans_run_forwards_and_in_reverse() {
        let inputs = [10.into(), 0.into(), [1, 2, 3].into()];
        assert_eq!(eval_op(&sums(3, false), &inputs), [123.into(), [1, 12, 123].into()]);
        assert_eq!(eval_op(&sums(3, true), &inputs), [321.into(), [321, 32, 3].into()]);
        let none = [10.into(), 7.into(), Literal::new::<i32>([0], &[])];
        assert_eq!(eval_op(&sums(0, false), &none), [7.into(), none[2].clone()]);
    }

    #[test]
    fn while_loops_run_until_their_condition_is_false() {
        // While carry < 100: carry * 3.
        let cond = program(2, &[(Op::Compare(CompareOp::Lt), &[1, 0])], &[2]);
        let body = program(2, &[(MUL, &[0, 1])], &[2]);
        let op = Op::While(WhileOp { cond, num_cond_consts: 1, body, num_body_consts: 1 });
        assert_eq!(eval_op(&op, &[100.into(), 3.into(), 1.into()]), [243.into()]);
        assert_eq!(eval_op(&op, &[0.into(), 3.into(), 1.into()]), [1.into()]);
    }

    #[test]
    fn branch_indices_are_clamped() {
        let branches = vec![program(1, &[], &[0]), program(1, &[(ADD, &[0, 0])], &[1])];
        let op = Op::Cond(CondOp { branches });
        let choose = |index: i32| eval_op(&op, &[index.into(), 21.into()]).remove(0);
        assert_eq!([-4, 0, 1, 9].map(choose), [21, 21, 42, 42].map(Literal::from));
    }

    #[test]
    #[should_panic(expected = "add: shapes differ")]
    fn one_operation_must_be_typed() {
        eval_op(&ADD, &[1.into(), [1, 2].into()]);
    }
}
