//! What the front doors share and is not generic: running executables on leaves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use smallvec::SmallVec;

use crate::array::{Array, upload};
use crate::error::Result;
use crate::lower::cache::{CacheOutcome, compile_cached};
use crate::lower::pjrt::{Buffer, CompileOptions, Executable, OptionValue};
use crate::lower::stablehlo::{LowerOptions, compile_flags, stablehlo};
use crate::runtime::Runtime;
use crate::trace::op::Op;
use crate::trace::program::{Equation, Program, Var};
use crate::trace::types::TensorType;

/// An executable and what is needed to run it on leaves.
pub(super) struct Compiled {
    pub(super) executable: Executable,
    pub(super) outcome: CacheOutcome,
    types: Vec<TensorType>,
    /// Inputs whose memory results may take.
    donated: Vec<usize>,
}

/// For each input of a type that a result has too, the result that may take its memory.
pub(super) fn aliases(program: &Program) -> Vec<(usize, usize)> {
    let mut free: Vec<bool> = vec![true; program.inputs.len()];
    let mut aliases = Vec::new();
    for (output, ty) in program.output_types().enumerate() {
        let mut inputs = program.input_types().enumerate();
        if let Some((input, _)) = inputs.find(|(i, input)| free[*i] && *input == ty) {
            free[input] = false;
            aliases.push((input, output));
        }
    }
    aliases
}

fn compile(text: &str) -> Result<(Executable, CacheOutcome)> {
    let runtime = Runtime::get()?;
    let flags = compile_flags(runtime.platform).iter();
    let options = CompileOptions {
        env_option_overrides: flags
            .map(|&(name, value)| (name.to_string(), OptionValue::Bool(value)))
            .collect(),
        ..CompileOptions::default()
    };
    compile_cached(&runtime.client, text, &options)
}

impl Compiled {
    pub(super) fn new(
        program: Program,
        text: &str,
        aliases: Vec<(usize, usize)>,
    ) -> Result<Compiled> {
        let (executable, outcome) = compile(text)?;
        let types = program.input_types().cloned().collect();
        let mut donated: Vec<usize> = aliases.into_iter().map(|(input, _)| input).collect();
        donated.sort_unstable();
        Ok(Compiled { executable, outcome, types, donated })
    }

    /// Whether it was compiled for leaves of these types.
    #[inline]
    pub(super) fn takes(&self, leaves: &[&Array]) -> bool {
        self.types.len() == leaves.len()
            && self.types.iter().zip(leaves).all(|(ty, leaf)| ty == leaf.ty())
    }

    /// Launches it. Leaves of which another clone exists keep their memory.
    pub(super) fn run(&self, leaves: &[&Array], keep: bool) -> Result<Vec<Array>> {
        let mut uploads: SmallVec<[Buffer; 4]> = SmallVec::new();
        for leaf in leaves {
            if let Some(literal) = leaf.literal() {
                uploads.push(upload(literal)?);
            }
        }
        let mut kept: SmallVec<[i64; 16]> = SmallVec::new();
        for &input in &self.donated {
            if keep || !leaves[input].is_unique() {
                kept.push(input as i64);
            }
        }
        let mut uploads = uploads.iter();
        let args = leaves.iter().map(|leaf| {
            leaf.buffer().unwrap_or_else(|| uploads.next().expect("one upload a host leaf"))
        });
        let mut outputs = Vec::with_capacity(self.executable.outputs().len());
        self.executable.execute(args, &kept, &mut outputs)?;
        Ok(outputs.into_iter().map(Array::from_buffer).collect())
    }
}

/// Executables of single operations, by operation and operand types.
pub(super) struct EagerOps {
    executables: Mutex<HashMap<(Op, Vec<TensorType>), Arc<Executable>>>,
}

impl EagerOps {
    /// Those of this process.
    pub(super) fn global() -> &'static EagerOps {
        static OPS: OnceLock<EagerOps> = OnceLock::new();
        OPS.get_or_init(|| EagerOps { executables: Mutex::default() })
    }

    /// Runs a Program equation by equation.
    pub(super) fn run(&self, program: &Program, leaves: &[&Array]) -> Result<Vec<Array>> {
        let mut last_use = vec![usize::MAX; program.types.len()];
        for (i, equation) in program.equations.iter().enumerate() {
            equation.inputs.iter().for_each(|var| last_use[var.index()] = i);
        }
        program.outputs.iter().for_each(|var| last_use[var.index()] = usize::MAX);
        let mut values: Vec<Option<Array>> = vec![None; program.types.len()];
        for (&input, &leaf) in program.inputs.iter().zip(leaves) {
            values[input.index()] = Some(leaf.to_device()?);
        }
        for (i, equation) in program.equations.iter().enumerate() {
            let results = {
                let operands: SmallVec<[&Array; 8]> = equation
                    .inputs
                    .iter()
                    .map(|var| values[var.index()].as_ref().expect("defined before use"))
                    .collect();
                self.equation(program, equation, &operands)?
            };
            for (&output, result) in equation.outputs.iter().zip(results) {
                values[output.index()] = Some(result);
            }
            for var in &equation.inputs {
                if last_use[var.index()] == i {
                    values[var.index()] = None;
                }
            }
        }
        let value = |var: &Var| values[var.index()].clone().expect("defined before use");
        Ok(program.outputs.iter().map(value).collect())
    }

    fn equation(
        &self,
        program: &Program,
        equation: &Equation,
        operands: &[&Array],
    ) -> Result<Vec<Array>> {
        match &equation.op {
            Op::Constant(literal) => return Ok(vec![Array::from(literal.clone()).to_device()?]),
            Op::StopGradient => return Ok(vec![operands[0].clone()]),
            _ => {}
        }
        let executable = self.executable(program, equation)?;
        let buffers = operands.iter().map(|operand| operand.buffer().expect("put on the device"));
        let mut outputs = Vec::with_capacity(equation.outputs.len());
        executable.execute(buffers, &[], &mut outputs)?;
        Ok(outputs.into_iter().map(Array::from_buffer).collect())
    }

    fn executable(&self, program: &Program, equation: &Equation) -> Result<Arc<Executable>> {
        let types: Vec<TensorType> =
            equation.inputs.iter().map(|var| program.ty(*var).clone()).collect();
        let key = (equation.op.clone(), types);
        let lock = || self.executables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(executable) = lock().get(&key) {
            return Ok(executable.clone());
        }
        let text = single_equation(&key.0, &key.1, program, equation)?;
        let executable = Arc::new(compile(&text)?.0);
        lock().insert(key, executable.clone());
        Ok(executable)
    }
}

/// The text of a Program of one equation.
fn single_equation(
    op: &Op,
    types: &[TensorType],
    program: &Program,
    equation: &Equation,
) -> Result<String> {
    let mut single = Program::default();
    let inputs: Vec<Var> = types.iter().map(|ty| single.add_var(ty.clone())).collect();
    let outputs: Vec<Var> =
        equation.outputs.iter().map(|var| single.add_var(program.ty(*var).clone())).collect();
    single.equations.push(Equation {
        op: op.clone(),
        inputs: inputs.iter().copied().collect(),
        outputs: outputs.iter().copied().collect(),
        at: equation.at,
    });
    (single.inputs, single.outputs) = (inputs, outputs);
    let options = LowerOptions {
        name: op.name().into(),
        platform: Runtime::get()?.platform,
        locations: false,
        ..LowerOptions::default()
    };
    Ok(stablehlo(&single, &options))
}
