//! What a Program costs, roughly: enough for choices at compile time.

use crate::trace::op::{Op, UnaryOp};
use crate::trace::program::{Equation, Program};

/// The arithmetic operations of the most expensive single operation of a Program, also inside of
/// control flow: what could be gained by spreading one operation over several cores.
pub fn largest_operation(program: &Program) -> usize {
    let one = |equation: &Equation| match equation.op.subprograms().map(largest_operation).max() {
        Some(inside) => inside,
        None => operations(program, equation),
    };
    program.equations.iter().map(one).max().unwrap_or(0)
}

pub(super) fn operations(program: &Program, equation: &Equation) -> usize {
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
        // Twenty rounds of adding, rotating and mixing.
        Op::Threefry => 100 * out,
        // Functions of an element, sums of many: some operations for each.
        _ => {
            let most = equation.inputs.iter().map(|&var| elements(var)).max().unwrap_or(0);
            8 * out.max(most)
        }
    }
}

/// About what XLA's cost model counts for a Program, its products left out: one operation for
/// each element of each result of arithmetic; loops and branches once.
pub fn inline_operations(program: &Program) -> usize {
    let elements = |var| program.ty(var).numel();
    let one = |equation: &Equation| -> usize {
        let out: usize = equation.outputs.iter().map(|&var| elements(var)).sum();
        let inside: usize = equation.op.subprograms().map(inline_operations).sum();
        let own = match &equation.op {
            // Counted apart, as transcendental.
            Op::Unary(
                UnaryOp::Exp
                | UnaryOp::Expm1
                | UnaryOp::Log
                | UnaryOp::Log1p
                | UnaryOp::Sqrt
                | UnaryOp::Rsqrt
                | UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tan
                | UnaryOp::Tanh
                | UnaryOp::Logistic,
            ) => 0,
            Op::Dot(_) | Op::Constant(_) | Op::Iota { .. } | Op::Broadcast { .. } => 0,
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Reverse { .. } => 0,
            Op::Concat { .. } | Op::Pad { .. } | Op::Slice { .. } => 0,
            Op::DynamicSlice { .. } | Op::DynamicUpdateSlice | Op::Gather(_) => 0,
            Op::Bitcast { .. } | Op::StopGradient => 0,
            Op::Reduce { .. } => elements(equation.inputs[0]),
            Op::ArgReduce { .. } => 9 * elements(equation.inputs[0]),
            // A native function, if the Program runs inline.
            Op::Threefry => 0,
            _ => out,
        };
        own + inside
    };
    program.equations.iter().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::control::scan;
    use crate::{Array, DType, Tensor, make_program};

    #[test]
    fn the_largest_operation_counts() {
        let zeros = |shape: &[usize]| Array::zeros(shape, DType::F32);
        let product = |(x, w): (Tensor, Tensor)| x.matmul(w).tanh();
        let program = make_program(product, &(zeros(&[32, 64]), zeros(&[64, 64]))).unwrap();
        assert_eq!(largest_operation(&program), 2 * 32 * 64 * 64);
        // A loop is as large as the largest operation inside.
        let looped = |(x, w): (Tensor, Tensor)| scan(|x, w| (x.matmul(w), x), x, w).0;
        let program = make_program(looped, &(zeros(&[32, 64]), zeros(&[9, 64, 64]))).unwrap();
        assert_eq!(largest_operation(&program), 2 * 32 * 64 * 64);
    }
}
