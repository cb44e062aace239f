//! Queries on a [`Program`].

#![deny(clippy::wildcard_enum_match_arm)]

use smallvec::SmallVec;

use super::axis::{Axis, AxisVec};
use super::op::{CallbackOp, Op, Rule, Structure};
pub use super::op::{Equation, Program, Var, Vars};
use super::types::TensorType;

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
    /// An axis that collectives of this Program communicate along, if there are any: such a Program
    /// is one member's, and runs under `pmap` only.
    pub(crate) fn free_axis(&self) -> Option<Axis> {
        self.equations.iter().find_map(|equation| {
            if let Op::Collective(collective) = &equation.op {
                return collective.axes.first().copied();
            }
            equation.op.subprograms().find_map(Program::free_axis)
        })
    }

    /// The axes of a mesh that values are divided over, of the first one for which `f` is true.
    pub(crate) fn find_mesh(&self, f: &dyn Fn(&AxisVec) -> bool) -> Option<&AxisVec> {
        self.equations.iter().find_map(|equation| {
            if let Op::Sharding(sharding) = &equation.op {
                return Some(&sharding.mesh).filter(|mesh| f(mesh));
            }
            equation.op.subprograms().find_map(|program| program.find_mesh(f))
        })
    }
}

impl Program {
    /// The callbacks of this Program, those inside control flow included, in order.
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

    /// Returns true if running it does something besides computing its results.
    pub fn has_effect(&self) -> bool {
        self.equations.iter().any(|equation| equation.op.has_effect())
    }
}

impl Op {
    /// Returns true if running it does something besides computing its results: it is then neither
    /// left out nor merged with another.
    pub fn has_effect(&self) -> bool {
        match self.structure() {
            Structure::Callback(callback) => callback.has_effect(),
            Structure::Elementary
            | Structure::Collective(_)
            | Structure::CustomJvp(_)
            | Structure::CustomVjp(_)
            | Structure::CustomLin(_)
            | Structure::Remat(_)
            | Structure::Scan(_)
            | Structure::While(_)
            | Structure::Cond(_) => self.subprograms().any(Program::has_effect),
        }
    }

    /// The Programs inside a control-flow operation.
    pub fn subprograms(&self) -> impl Iterator<Item = &Program> {
        let programs: SmallVec<[&Program; 2]> = match self.structure() {
            Structure::Scan(scan) => SmallVec::from_slice(&[&*scan.body]),
            Structure::CustomJvp(custom) => match &custom.jvp {
                Rule::Own(rule) => SmallVec::from_slice(&[&*custom.call, &**rule]),
                Rule::Enclosing(_) => SmallVec::from_slice(&[&*custom.call]),
            },
            Structure::CustomVjp(custom) => {
                [&*custom.call, &*custom.fwd, &*custom.bwd].into_iter().collect()
            }
            Structure::CustomLin(custom) => SmallVec::from_slice(&[&*custom.bwd]),
            Structure::Remat(remat) => SmallVec::from_slice(&[&*remat.body]),
            Structure::While(while_op) => SmallVec::from_slice(&[&*while_op.cond, &*while_op.body]),
            Structure::Cond(cond) => cond.branches.iter().map(|branch| &**branch).collect(),
            Structure::Elementary | Structure::Collective(_) | Structure::Callback(_) => {
                SmallVec::new()
            }
        };
        programs.into_iter()
    }
}
