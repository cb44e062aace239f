//! Programs written by hand.

use std::panic::Location;

use podracer::trace::check::{infer, verify};
use podracer::trace::{DType, Equation, Literal, Op, Program, TensorType, Var};

/// A Program in the making.
#[derive(Default)]
pub struct Build {
    program: Program,
}

impl Build {
    pub fn new() -> Build {
        Build::default()
    }

    pub fn input(&mut self, ty: TensorType) -> Var {
        let var = self.program.add_var(ty);
        self.program.inputs.push(var);
        var
    }

    /// An equation of any number of results.
    #[track_caller]
    pub fn ops(&mut self, op: Op, inputs: &[Var]) -> Vec<Var> {
        let types: Vec<&TensorType> = inputs.iter().map(|&var| self.program.ty(var)).collect();
        let inferred = infer(&op, &types).unwrap_or_else(|problem| panic!("{}", problem.text));
        let outputs: Vec<Var> = inferred.into_iter().map(|ty| self.program.add_var(ty)).collect();
        self.program.equations.push(Equation {
            op,
            inputs: inputs.iter().copied().collect(),
            outputs: outputs.iter().copied().collect(),
            at: Location::caller(),
        });
        outputs
    }

    /// An equation of one result.
    #[track_caller]
    pub fn op(&mut self, op: Op, inputs: &[Var]) -> Var {
        self.ops(op, inputs)[0]
    }

    #[track_caller]
    pub fn constant(&mut self, literal: impl Into<Literal>) -> Var {
        self.op(Op::Constant(literal.into()), &[])
    }

    #[track_caller]
    pub fn finish(mut self, outputs: &[Var]) -> Program {
        self.program.outputs = outputs.to_vec();
        if let Err(fault) = verify(&self.program) {
            panic!("{fault}\n{}", self.program);
        }
        self.program
    }
}

/// A Program of one operation over inputs of the given types.
#[track_caller]
pub fn single(op: Op, types: &[TensorType]) -> Program {
    let mut b = Build::new();
    let inputs: Vec<Var> = types.iter().map(|ty| b.input(ty.clone())).collect();
    let outputs = b.ops(op, &inputs);
    b.finish(&outputs)
}

pub fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

pub fn i32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::I32, shape)
}
