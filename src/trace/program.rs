//! Programs: typed, single-assignment lists of equations.

use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::axis::Axis;
use super::op::{CallbackOp, Op, Rule};
use super::types::TensorType;
use crate::error::Loc;

/// A variable of a [`Program`]: an index into [`Program::types`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

impl Var {
    /// The index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The operands or results of an equation.
pub type Vars = SmallVec<[Var; 4]>;

/// `outputs = op(inputs)`, with the user's line that asked for it.
#[derive(Debug, Clone)]
pub struct Equation {
    /// The operation.
    pub op: Op,
    /// Its operands.
    pub inputs: Vars,
    /// What it defines.
    pub outputs: Vars,
    /// The user's line.
    pub at: Loc,
}

// Two equations are the same computation wherever they were written.
impl PartialEq for Equation {
    fn eq(&self, other: &Equation) -> bool {
        self.inputs == other.inputs && self.outputs == other.outputs && self.op == other.op
    }
}

impl Eq for Equation {}

impl Hash for Equation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.op.hash(state);
        self.inputs.hash(state);
        self.outputs.hash(state);
    }
}

/// A typed function: each variable is defined once, by the inputs or by an equation, before it is
/// used. Prints like a jaxpr.
///
/// Two Programs are equal if they have the same equations between the same variables, of the same
/// types. What type a variable has that nothing defines does not matter.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// The parameters.
    pub inputs: Vec<Var>,
    /// What is computed, in order.
    pub equations: Vec<Equation>,
    /// The results.
    pub outputs: Vec<Var>,
    /// The type of each variable.
    pub types: Vec<TensorType>,
}

impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        let defined = || self.inputs.iter().chain(self.equations.iter().flat_map(|e| &e.outputs));
        self.inputs == other.inputs
            && self.equations == other.equations
            && self.outputs == other.outputs
            && defined().all(|var| self.types.get(var.index()) == other.types.get(var.index()))
    }
}

impl Eq for Program {}

impl Hash for Program {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inputs.hash(state);
        self.equations.hash(state);
        self.outputs.hash(state);
        self.inputs.iter().for_each(|var| self.types.get(var.index()).hash(state));
    }
}

impl Program {
    /// The type of a variable.
    pub fn ty(&self, var: Var) -> &TensorType {
        &self.types[var.index()]
    }

    /// The types of the parameters.
    pub fn input_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.inputs.iter().map(|&var| self.ty(var))
    }

    /// The types of the results.
    pub fn output_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.outputs.iter().map(|&var| self.ty(var))
    }

    /// Adds a variable of type `ty`.
    pub fn add_var(&mut self, ty: TensorType) -> Var {
        self.types.push(ty);
        Var(self.types.len() as u32 - 1)
    }

    /// Number of equations, those inside control flow included.
    pub fn size(&self) -> usize {
        self.equations
            .iter()
            .map(|e| 1 + e.op.subprograms().map(Program::size).sum::<usize>())
            .sum()
    }
}

impl Program {
    /// An axis that collectives in here communicate along, if there are any: such a Program is one
    /// member's, and runs under `pmap` only.
    pub fn free_axis(&self) -> Option<Axis> {
        self.equations.iter().find_map(|equation| match &equation.op {
            Op::Collective(collective) => Some(collective.axis),
            op => op.subprograms().find_map(Program::free_axis),
        })
    }
}

impl Program {
    /// The callbacks in here, those inside control flow included, in order.
    pub fn callbacks(&self) -> Vec<&CallbackOp> {
        let mut all = Vec::new();
        self.visit_callbacks(&mut |callback| all.push(callback));
        all
    }

    fn visit_callbacks<'a>(&'a self, f: &mut dyn FnMut(&'a CallbackOp)) {
        for equation in &self.equations {
            if let Op::Callback(callback) = &equation.op {
                f(callback);
            }
            equation.op.subprograms().for_each(|program| program.visit_callbacks(f));
        }
    }

    /// Whether running it does something besides computing its results.
    pub fn has_effect(&self) -> bool {
        self.equations.iter().any(|equation| equation.op.has_effect())
    }
}

impl Op {
    /// Whether running it does something besides computing its results: it is then neither left out
    /// nor merged with another.
    pub fn has_effect(&self) -> bool {
        match self {
            Op::Callback(callback) => callback.has_effect(),
            op => op.subprograms().any(Program::has_effect),
        }
    }

    /// The Programs inside a control-flow operation.
    pub fn subprograms(&self) -> impl Iterator<Item = &Program> {
        let programs: SmallVec<[&Program; 2]> = match self {
            Op::Scan(scan) => SmallVec::from_slice(&[&*scan.body]),
            Op::CustomJvp(custom) => match &custom.jvp {
                Rule::Own(rule) => SmallVec::from_slice(&[&*custom.call, &**rule]),
                Rule::Enclosing(_) => SmallVec::from_slice(&[&*custom.call]),
            },
            Op::CustomVjp(custom) => {
                [&*custom.call, &*custom.fwd, &*custom.bwd].into_iter().collect()
            }
            Op::CustomLin(custom) => SmallVec::from_slice(&[&*custom.bwd]),
            Op::Remat(remat) => SmallVec::from_slice(&[&*remat.body]),
            Op::While(while_op) => SmallVec::from_slice(&[&*while_op.cond, &*while_op.body]),
            Op::Cond(cond) => cond.branches.iter().map(|branch| &**branch).collect(),
            _ => SmallVec::new(),
        };
        programs.into_iter()
    }
}
