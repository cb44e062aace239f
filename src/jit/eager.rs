//! Execution of Programs operation by operation, each operation an executable of its own.
//!
//! Control flow runs on the host, iteration by iteration, so that every operation inside is one
//! launch too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use super::compiled::compile;
use super::nan::Check;
use crate::array::Array;
use crate::error::Result;
use crate::lower::dump::lowered;
use crate::lower::pjrt::Executable;
use crate::lower::stablehlo::LowerOptions;
use crate::runtime::Runtime;
use crate::trace::literal::Literal;
use crate::trace::op::{CondOp, Op, ScanOp, WhileOp};
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::{Shape, TensorType};

/// An operation, the types of its operands, and the device that it runs on.
type Launch = (Op, Vec<TensorType>, usize);

/// Operations that stay compiled; beyond it the less recently used half is dropped.
const CAPACITY: usize = 4096;

/// Executables of single operations.
#[derive(Default)]
pub(super) struct EagerOps {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Each with the number of its latest use.
    executables: HashMap<Launch, (Arc<Executable>, u64)>,
    uses: u64,
}

impl EagerOps {
    /// Returns the operations of this process.
    pub(super) fn global() -> &'static EagerOps {
        static OPS: OnceLock<EagerOps> = OnceLock::new();
        OPS.get_or_init(EagerOps::default)
    }

    /// Runs a Program equation by equation on a device, and checks each one's results if asked to.
    pub(super) fn run(
        &self,
        program: &Program,
        leaves: &[&Array],
        device: usize,
        check: Option<&Check<'_>>,
    ) -> Result<Vec<Array>> {
        Runtime::get()?.ensure_device(device)?;
        let run = EagerRun { ops: self, device, check };
        let inputs = leaves.iter().map(|&leaf| match leaf.literal() {
            Some(_) => run.put(leaf.clone()),
            None => Ok(leaf.clone()),
        });
        let inputs = inputs.collect::<Result<Vec<Array>>>()?;
        run.equations(program, inputs)
    }
}

/// One run.
struct EagerRun<'a> {
    ops: &'a EagerOps,
    device: usize,
    check: Option<&'a Check<'a>>,
}

impl EagerRun<'_> {
    /// Puts a host value on the device.
    fn put(&self, value: impl Into<Array>) -> Result<Array> {
        value.into().to(self.device)
    }

    /// Runs `f` as iteration `number` of the loop `equation`.
    fn step<R>(&self, equation: &Equation, number: usize, f: impl FnOnce() -> R) -> R {
        match self.check {
            None => f(),
            Some(check) => check.step(equation, number, f),
        }
    }

    fn equations(&self, program: &Program, inputs: Vec<Array>) -> Result<Vec<Array>> {
        let mut last_use = vec![usize::MAX; program.types.len()];
        for (i, equation) in program.equations.iter().enumerate() {
            equation.inputs.iter().for_each(|var| last_use[var.index()] = i);
        }
        program.outputs.iter().for_each(|var| last_use[var.index()] = usize::MAX);
        let mut values: Vec<Option<Array>> = vec![None; program.types.len()];
        for (&var, input) in program.inputs.iter().zip(inputs) {
            values[var.index()] = Some(input);
        }
        for (i, equation) in program.equations.iter().enumerate() {
            let operands: SmallVec<[Array; 8]> = equation
                .inputs
                .iter()
                .map(|var| values[var.index()].clone().expect("defined before use"))
                .collect();
            // A value that is used here for the last time may give its memory up.
            for var in &equation.inputs {
                if last_use[var.index()] == i {
                    values[var.index()] = None;
                }
            }
            let results = self.equation(equation, &operands)?;
            for (&output, result) in equation.outputs.iter().zip(results) {
                values[output.index()] = Some(result);
            }
        }
        let value = |var: &Var| values[var.index()].clone().expect("defined before use");
        Ok(program.outputs.iter().map(value).collect())
    }

    fn equation(&self, equation: &Equation, operands: &[Array]) -> Result<Vec<Array>> {
        let results = match &equation.op {
            Op::Constant(literal) => return Ok(vec![self.put(literal.clone())?]),
            Op::StopGradient | Op::Name(_) => return Ok(vec![operands[0].clone()]),
            Op::CustomJvp(custom) => return self.equations(&custom.call, operands.to_vec()),
            Op::CustomVjp(custom) => return self.equations(&custom.call, operands.to_vec()),
            Op::Remat(remat) => return self.equations(&remat.body, operands.to_vec()),
            Op::Scan(scan) => return self.scan(equation, scan, operands),
            Op::While(while_op) => return self.while_loop(equation, while_op, operands),
            Op::Cond(cond) => return self.cond(cond, operands),
            Op::Callback(callback) => {
                let operands: Result<Vec<Literal>> =
                    operands.iter().map(Array::to_literal).collect();
                let results = callback.run(&operands?)?.into_iter();
                results.map(|result| self.put(result)).collect::<Result<_>>()?
            }
            op => self.launch(op, operands)?,
        };
        if let Some(check) = self.check
            && results.iter().any(|result| result.dtype().is_inexact())
        {
            let literals = |arrays: &[Array]| -> Result<Vec<Literal>> {
                arrays.iter().map(Array::to_literal).collect()
            };
            check.results(equation, &literals(operands)?, &literals(&results)?)?;
        }
        Ok(results)
    }

    fn scan(&self, equation: &Equation, scan: &ScanOp, operands: &[Array]) -> Result<Vec<Array>> {
        let fixed = scan.num_consts + scan.num_carry;
        let (consts, stacks) = (&operands[..scan.num_consts], &operands[fixed..]);
        let mut carry = operands[scan.num_consts..fixed].to_vec();
        let mut iterations: Vec<Vec<Array>> = Vec::with_capacity(scan.length);
        let zero = self.put(0i32)?;
        for step in 0..scan.length {
            let index = if scan.reverse { scan.length - 1 - step } else { step };
            let index = self.put(index as i32)?;
            let mut inputs: Vec<Array> = consts.iter().chain(&carry).cloned().collect();
            for stack in stacks {
                let sizes: Shape =
                    [1].into_iter().chain(stack.shape()[1..].iter().copied()).collect();
                let mut slice = vec![stack.clone(), index.clone()];
                slice.extend(stack.shape()[1..].iter().map(|_| zero.clone()));
                let slice = self.launch(&Op::DynamicSlice { sizes }, &slice)?;
                let shape = stack.shape().without_axis(0);
                inputs.extend(self.launch(&Op::Reshape { shape }, &slice)?);
            }
            let mut results = self.step(equation, step, || self.equations(&scan.body, inputs))?;
            iterations.push(results.split_off(scan.num_carry));
            carry = results;
        }
        if scan.reverse {
            iterations.reverse();
        }
        for (i, ty) in scan.body.output_types().enumerate().skip(scan.num_carry) {
            let mut rows = Vec::with_capacity(scan.length);
            for step in &iterations {
                let shape = ty.shape.with_axis(0, 1);
                let row = [step[i - scan.num_carry].clone()];
                rows.extend(self.launch(&Op::Reshape { shape }, &row)?);
            }
            if rows.is_empty() {
                let empty = TensorType::new(ty.dtype, ty.shape.with_axis(0, 0));
                rows.push(self.put(Literal::filled(empty, 0.0))?);
            }
            carry.extend(self.launch(&Op::Concat { axis: 0 }, &rows)?);
        }
        Ok(carry)
    }

    fn while_loop(
        &self,
        equation: &Equation,
        w: &WhileOp,
        operands: &[Array],
    ) -> Result<Vec<Array>> {
        let consts = w.num_cond_consts + w.num_body_consts;
        let mut carry = operands[consts..].to_vec();
        for step in 0.. {
            let inputs = |consts: &[Array], carry: &[Array]| {
                consts.iter().chain(carry).cloned().collect::<Vec<Array>>()
            };
            let before = inputs(&operands[..w.num_cond_consts], &carry);
            let test = self.step(equation, step, || self.equations(&w.cond, before))?;
            if !test[0].item::<bool>()? {
                break;
            }
            let before = inputs(&operands[w.num_cond_consts..consts], &carry);
            carry = self.step(equation, step, || self.equations(&w.body, before))?;
        }
        Ok(carry)
    }

    fn cond(&self, cond: &CondOp, operands: &[Array]) -> Result<Vec<Array>> {
        let last = cond.branches.len() as i32 - 1;
        let index = operands[0].item::<i32>()?.clamp(0, last);
        self.equations(&cond.branches[index as usize], operands[1..].to_vec())
    }

    /// Runs one operation.
    fn launch(&self, op: &Op, operands: &[Array]) -> Result<Vec<Array>> {
        let executable = self.ops.executable(op, operands, self.device)?;
        let buffers = operands.iter().map(|operand| operand.buffer().expect("put on the device"));
        let mut outputs = Vec::with_capacity(executable.outputs().len());
        executable.execute(buffers, &[], &mut outputs)?;
        Ok(outputs.into_iter().map(Array::from_buffer).collect())
    }
}

impl EagerOps {
    fn executable(&self, op: &Op, operands: &[Array], device: usize) -> Result<Arc<Executable>> {
        let types = operands.iter().map(|operand| operand.ty().clone()).collect();
        let key = (op.clone(), types, device);
        let lock = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = lock().find(&key) {
            return Ok(executable);
        }
        let program = single(&key.0, &key.1);
        let options = LowerOptions {
            name: op.name().into(),
            locations: false,
            ..Runtime::get()?.lower_options(&program)
        };
        let text = lowered(&program, &options);
        let executable = Arc::new(compile(&program, &text, device, &vec![])?.0);
        let dropped = lock().insert(key, executable.clone(), CAPACITY);
        // Outside the lock: destroying an executable takes time.
        drop(dropped);
        Ok(executable)
    }
}

impl Kept {
    fn find(&mut self, key: &Launch) -> Option<Arc<Executable>> {
        self.uses += 1;
        let (executable, used) = self.executables.get_mut(key)?;
        *used = self.uses;
        Some(executable.clone())
    }

    /// Adds an executable and returns those that go for it: the older half when there are too many,
    /// so that one search pays for many of them.
    fn insert(
        &mut self,
        key: Launch,
        executable: Arc<Executable>,
        capacity: usize,
    ) -> Vec<Arc<Executable>> {
        self.uses += 1;
        let mut dropped = Vec::new();
        if self.executables.len() >= capacity {
            let mut uses: Vec<u64> = self.executables.values().map(|(_, used)| *used).collect();
            uses.sort_unstable();
            let middle = uses[uses.len() / 2];
            self.executables.retain(|_, (executable, used)| {
                let keep = *used > middle;
                if !keep {
                    dropped.push(executable.clone());
                }
                keep
            });
        }
        self.executables.insert(key, (executable, self.uses));
        dropped
    }
}

/// A Program of one equation.
fn single(op: &Op, types: &[TensorType]) -> Program {
    let refs: SmallVec<[&TensorType; 8]> = types.iter().collect();
    let results = crate::trace::check::infer(op, &refs).expect("checked when it was traced");
    let mut single = Program::default();
    let inputs: Vec<Var> = types.iter().map(|ty| single.add_var(ty.clone())).collect();
    let outputs: Vec<Var> = results.into_iter().map(|ty| single.add_var(ty)).collect();
    single.equations.push(Equation {
        op: op.clone(),
        inputs: inputs.iter().copied().collect(),
        outputs: outputs.iter().copied().collect(),
        at: std::panic::Location::caller(),
    });
    (single.inputs, single.outputs) = (inputs, outputs);
    single
}
