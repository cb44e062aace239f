//! Search for the operation that made a NaN.
//!
//! In the interpreted and eager modes, every result is checked when it is computed. A compiled
//! function is run on the host once more when a result of it has a NaN. Callbacks with effects are
//! not called again for that: the compiled run records their results, which are used again in the
//! same order.

#![deny(clippy::wildcard_enum_match_arm)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use half::{bf16, f16};
use num_complex::Complex;

use crate::error::{Error, Loc, Result};
use crate::trace::eval::{control, eval_op};
use crate::trace::graph::map_subprograms;
use crate::trace::literal::{F8E4M3FN, F8E5M2, Literal};
use crate::trace::op::{CallbackKind, CallbackOp, Op, Structure};
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::DType;

/// The first element that is a NaN.
fn first_nan(value: &Literal) -> Option<usize> {
    fn find<T: bytemuck::Pod>(bytes: &[u8], is_nan: fn(T) -> bool) -> Option<usize> {
        bytemuck::cast_slice::<u8, T>(bytes).iter().position(|&x| is_nan(x))
    }
    let bytes = value.bytes();
    let bytes: &[u8] = (*bytes).as_ref();
    match value.ty().dtype {
        DType::F8E4M3FN => find(bytes, F8E4M3FN::is_nan),
        DType::F8E5M2 => find(bytes, F8E5M2::is_nan),
        DType::F16 => find(bytes, f16::is_nan),
        DType::BF16 => find(bytes, bf16::is_nan),
        DType::F32 => find(bytes, f32::is_nan),
        DType::F64 => find(bytes, f64::is_nan),
        DType::C64 => find(bytes, |z: Complex<f32>| z.re.is_nan() || z.im.is_nan()),
        DType::C128 => find(bytes, |z: Complex<f64>| z.re.is_nan() || z.im.is_nan()),
        DType::Bool
        | DType::I4
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U4
        | DType::U8
        | DType::U16
        | DType::U32
        | DType::U64 => None,
    }
}

/// Returns true if a value contains a NaN.
pub(super) fn has_nan(value: &Literal) -> bool {
    first_nan(value).is_some()
}

/// A loop that is running.
struct Step {
    op: &'static str,
    number: usize,
    at: Loc,
}

/// Looks for the first operation that makes a NaN of operands that have none.
pub(super) struct Check<'a> {
    /// The function's name.
    name: &'a str,
    /// The loops that are running, outermost first.
    iterations: RefCell<Vec<Step>>,
}

impl<'a> Check<'a> {
    pub(super) fn new(name: &'a str) -> Check<'a> {
        Check { name, iterations: RefCell::default() }
    }

    /// Fails if an argument has a NaN.
    pub(super) fn arguments(&self, inputs: &[Literal]) -> Result<()> {
        match inputs.iter().position(has_nan) {
            None => Ok(()),
            Some(i) => Err(Error::Nan(format!(
                "{}: argument {i} ({}) holds a NaN; it was not made here",
                self.name,
                inputs[i].ty()
            ))),
        }
    }

    /// Fails if an equation has made a NaN. Constants are meant (fill values, masks), and so are the
    /// bits of integers, which rows of packed values hold as floats.
    pub(super) fn results(
        &self,
        equation: &Equation,
        operands: &[Literal],
        results: &[Literal],
    ) -> Result<()> {
        let Some((result, first)) = results.iter().find_map(|r| Some((r, first_nan(r)?))) else {
            return Ok(());
        };
        let meant = matches!(equation.op, Op::Constant(_) | Op::Bitcast { .. });
        if meant || operands.iter().any(has_nan) {
            return Ok(());
        }
        let mut iterations = String::new();
        for step in self.iterations.borrow().iter().rev() {
            iterations.push_str(&format!(", in step {} of {} ({})", step.number, step.op, step.at));
        }
        let ty = result.ty();
        let mut place = String::new();
        if ty.rank() > 0 {
            let mut index = vec![0; ty.rank()];
            let mut rest = first;
            for (axis, size) in ty.shape.iter().enumerate().rev() {
                index[axis] = rest % size;
                rest /= size;
            }
            place = format!(" at {index:?}");
        }
        let operands = match operands {
            [] => "it has no operands".to_string(),
            operands => {
                let each: Vec<String> = operands.iter().map(summarize).collect();
                format!("its operands have none: {}", each.join(", "))
            }
        };
        Err(Error::Nan(format!(
            "{}: {} makes the first NaN, in {ty}{place}\n  --> {}{iterations}\n  {operands}",
            self.name,
            equation.op.name(),
            equation.at,
        )))
    }

    /// Runs `f` as iteration `number` of the loop `equation`.
    pub(super) fn step<R>(&self, equation: &Equation, number: usize, f: impl FnOnce() -> R) -> R {
        let step = Step { op: equation.op.name(), number, at: equation.at };
        self.iterations.borrow_mut().push(step);
        let result = f();
        self.iterations.borrow_mut().pop();
        result
    }

    /// Runs a Program on the host. Functions with effects are called, or return the recorded
    /// results.
    ///
    /// # Errors
    /// Returns an error at the first operation that makes a NaN, and errors of callbacks.
    pub(super) fn run(
        &self,
        program: &Program,
        inputs: &[Literal],
        recorded: Option<Record>,
    ) -> Result<Vec<Literal>> {
        self.arguments(inputs)?;
        let host = Host { check: self, recorded: recorded.map(RefCell::new) };
        host.program(program, inputs.to_vec())
    }
}

/// An operand's type and range, so that a division by 0 or a logarithm of one is plain to see.
fn summarize(value: &Literal) -> String {
    let elements = value.to_f64_vec();
    let (low, high) = elements
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &x| (low.min(x), high.max(x)));
    if elements.is_empty() {
        return format!("{} (empty)", value.ty());
    }
    format!("{} from {low} to {high}", value.ty())
}

/// Results of callbacks with effects, in call order.
pub(super) type Record = VecDeque<Vec<Literal>>;

/// A run on the host.
struct Host<'a> {
    check: &'a Check<'a>,
    recorded: Option<RefCell<Record>>,
}

impl Host<'_> {
    fn program(&self, program: &Program, inputs: Vec<Literal>) -> Result<Vec<Literal>> {
        let mut values: Vec<Option<Literal>> = vec![None; program.types.len()];
        for (&var, input) in program.inputs.iter().zip(inputs) {
            values[var.index()] = Some(input);
        }
        let get =
            |values: &[Option<Literal>], var: Var| values[var.index()].clone().expect("defined");
        for equation in &program.equations {
            let operands: Vec<Literal> = equation.inputs.iter().map(|&v| get(&values, v)).collect();
            let results = self.equation(equation, &operands)?;
            for (&var, result) in equation.outputs.iter().zip(results) {
                values[var.index()] = Some(result);
            }
        }
        Ok(program.outputs.iter().map(|&var| get(&values, var)).collect())
    }

    fn equation(&self, equation: &Equation, operands: &[Literal]) -> Result<Vec<Literal>> {
        let step = |program: &Program, number: usize, inputs: Vec<Literal>| {
            self.check.step(equation, number, || self.program(program, inputs))
        };
        let results = match equation.op.structure() {
            Structure::Scan(scan) => return control::scan(scan, operands, step),
            Structure::While(while_op) => return control::while_loop(while_op, operands, step),
            Structure::Cond(cond) => {
                return control::cond(cond, operands, |branch, _, inputs| {
                    self.program(branch, inputs)
                });
            }
            Structure::CustomJvp(custom) => return self.program(&custom.call, operands.to_vec()),
            Structure::CustomVjp(custom) => return self.program(&custom.call, operands.to_vec()),
            Structure::Remat(remat) => return self.program(&remat.body, operands.to_vec()),
            Structure::Callback(callback) => self.call(callback, operands)?,
            Structure::Elementary | Structure::Collective(_) | Structure::CustomLin(_) => {
                eval_op(&equation.op, operands)
            }
        };
        self.check.results(equation, operands, &results)?;
        Ok(results)
    }

    fn call(&self, callback: &CallbackOp, operands: &[Literal]) -> Result<Vec<Literal>> {
        let recorded = match (&self.recorded, callback.kind) {
            (Some(_), CallbackKind::Debug { .. }) => return Ok(vec![]),
            (Some(recorded), CallbackKind::Io { .. }) => recorded,
            (None, _) | (_, CallbackKind::Pure(_)) => return callback.run(operands),
        };
        let results = recorded.borrow_mut().pop_front().unwrap_or_default();
        if results.iter().map(Literal::ty).eq(&callback.results) {
            return Ok(results);
        }
        Err(Error::Nan(format!(
            "{}: there is a NaN in the results. Looking for the operation that made it, the host \
             took another way than the compiled program, and came to a call of io_callback that the \
             program had not made\n  --> {}",
            self.check.name,
            callback.f.at()
        )))
    }
}

/// A log of the results of a compiled program's callbacks with effects.
#[derive(Default)]
pub(super) struct Recorder {
    log: Arc<Mutex<Record>>,
    /// Held during a run, so that runs do not write into each other's log.
    running: Mutex<()>,
}

impl Recorder {
    /// The Program with functions that write a log, and the log; `None` if it has no effects.
    pub(super) fn of(program: Program) -> (Program, Option<Recorder>) {
        if !program.has_effect() {
            return (program, None);
        }
        let recorder = Recorder::default();
        (recording(program, &recorder.log), Some(recorder))
    }

    /// Begins a run, with an empty log.
    pub(super) fn begin(&self) -> MutexGuard<'_, ()> {
        let guard = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.take();
        guard
    }

    /// Returns the results logged since the run began, and empties the log.
    pub(super) fn take(&self) -> Record {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn recording(mut program: Program, log: &Arc<Mutex<Record>>) -> Program {
    for equation in &mut program.equations {
        map_subprograms(&mut equation.op, &|body| recording(body, log));
        if let Op::Callback(callback) = &mut equation.op
            && let CallbackKind::Io { .. } = callback.kind
        {
            let log = log.clone();
            callback.f = callback.f.then(move |results| {
                let results = results.iter().map(|result| result.to_literal()).collect();
                log.lock().unwrap_or_else(PoisonError::into_inner).push_back(results);
            });
        }
    }
    program
}
