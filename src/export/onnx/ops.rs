//! Operators for each operation.

#![deny(clippy::wildcard_enum_match_arm)]

use super::proto::AttributeProto;
use super::{Emitter, is_batch};
use crate::error::Result;
use crate::trace::literal::Literal;
use crate::trace::op::{ArgOp, BinaryOp, CompareOp, Op, ReduceOp, UnaryOp};
use crate::trace::program::{Equation, Var};
use crate::trace::types::{DType, Shape};

impl Emitter<'_> {
    pub(super) fn equation(&mut self, equation: &Equation) -> Result<()> {
        let inputs = &equation.inputs;
        match &equation.op {
            Op::Constant(literal) => self.literal(equation, literal),
            Op::Iota { axis, .. } => self.iota(equation, *axis),
            Op::Unary(op) => self.unary(equation, *op),
            Op::Binary(op) => self.binary(equation, *op),
            Op::Compare(op) => self.compare(equation, *op),
            Op::Select => self.elementwise(equation, "Where"),
            Op::Clamp => self.clamp(equation),
            Op::Convert { dtype } => {
                let value = self.value(inputs[0]);
                let name = self.cast(&value.name, *dtype);
                self.define(equation, name, value.shape);
                Ok(())
            }
            Op::Broadcast { shape, axes } => {
                let value = self.value(inputs[0]);
                let mut compact = vec![1; shape.rank()];
                for (&axis, &n) in axes.iter().zip(value.shape.iter()) {
                    compact[axis] = n;
                }
                let compact = Shape::from(compact);
                let name = self.reshaped(&value, &compact)?;
                self.define(equation, name, compact);
                Ok(())
            }
            Op::Reshape { shape } => {
                self.exact(inputs[0])?;
                let name = self.reshaped(&self.value(inputs[0]), shape)?;
                self.define_exact(equation, name);
                Ok(())
            }
            Op::Transpose { permutation } => {
                let value = self.value(inputs[0]);
                let shape: Vec<usize> = permutation.iter().map(|&axis| value.shape[axis]).collect();
                let name = self.transposed(value.name, permutation);
                self.define(equation, name, shape.into());
                Ok(())
            }
            Op::Reverse { axes } => {
                let all: Vec<Range> = axes.iter().map(|&axis| Range::reversed(axis)).collect();
                self.slice(equation, &all)
            }
            Op::Concat { axis } => {
                let parts = inputs.iter().map(|&var| self.exact(var));
                let parts = parts.collect::<Result<Vec<String>>>()?;
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                let axis = AttributeProto::int("axis", *axis as i64);
                let name = self.node("Concat", &parts, vec![axis]);
                self.define_exact(equation, name);
                Ok(())
            }
            Op::Pad { low, high, interior } => {
                if interior.iter().any(|&n| n != 0) {
                    return Err(self.unsupported(equation, "with elements between others"));
                }
                let amounts: Vec<i64> = low.iter().chain(high).copied().collect();
                let (x, amounts) = (self.exact(inputs[0])?, self.vector(&amounts));
                let fill = self.exact(inputs[1])?;
                let name = self.node("Pad", &[&x, &amounts, &fill], vec![]);
                self.define_exact(equation, name);
                Ok(())
            }
            Op::Slice { start, limit, stride } => {
                let ty = self.program.ty(inputs[0]);
                let mut ranges = Vec::new();
                for axis in 0..ty.rank() {
                    let n = ty.shape[axis];
                    if (start[axis], limit[axis], stride[axis]) == (0, n, 1) {
                        continue;
                    }
                    if is_batch(n) {
                        return Err(self.unsupported(equation, "along the batch"));
                    }
                    let (start, limit) = (start[axis] as i64, limit[axis] as i64);
                    ranges.push(Range { axis, start, limit, step: stride[axis] as i64 });
                }
                self.slice(equation, &ranges)
            }
            Op::Dot(dims) => self.dot(equation, dims),
            Op::Conv(dims) => self.conv(equation, dims),
            Op::Reduce { op, axes } => self.reduce(equation, *op, axes),
            Op::ArgReduce { op, axis } => {
                let op = match op {
                    ArgOp::Max => "ArgMax",
                    ArgOp::Min => "ArgMin",
                };
                let x = self.exact(inputs[0])?;
                let axis = AttributeProto::int("axis", *axis as i64);
                let index = self.node(op, &[&x], vec![axis, AttributeProto::int("keepdims", 0)]);
                let name = self.cast(&index, DType::I32);
                self.define_exact(equation, name);
                Ok(())
            }
            Op::StopGradient | Op::Name(_) => {
                let value = self.value(inputs[0]);
                self.define(equation, value.name, value.shape);
                Ok(())
            }
            Op::Bitcast { .. }
            | Op::DynamicSlice { .. }
            | Op::DynamicUpdateSlice
            | Op::Gather(_)
            | Op::Scatter(_)
            | Op::Fft(_)
            | Op::Cholesky
            | Op::TriangularSolve(_)
            | Op::Sort { .. }
            | Op::Threefry
            | Op::Collective(_)
            | Op::Sharding(_)
            | Op::CustomJvp(_)
            | Op::CustomVjp(_)
            | Op::CustomLin(_)
            | Op::Remat(_)
            | Op::Callback(_)
            | Op::Scan(_)
            | Op::While(_)
            | Op::Cond(_) => Err(self.unsupported(equation, "")),
        }
    }
}

/// Elements of an axis from `start` to before `limit` by `step`.
struct Range {
    axis: usize,
    start: i64,
    limit: i64,
    step: i64,
}

impl Range {
    /// Returns all elements of an axis of any size, from the last to the first.
    fn reversed(axis: usize) -> Range {
        Range { axis, start: i64::MAX, limit: i64::MIN, step: -1 }
    }
}

impl Emitter<'_> {
    fn unsupported(&self, equation: &Equation, detail: &str) -> crate::error::Error {
        let name = equation.op.name();
        match detail {
            "" => self.refused(format!("the operation `{name}` has no form there")),
            detail => self.refused(format!("the operation `{name}` has no form there {detail}")),
        }
    }

    fn literal(&mut self, equation: &Equation, literal: &Literal) -> Result<()> {
        let ty = literal.ty();
        if literal.is_splat() {
            let compact = Shape::from(vec![1; ty.rank()]);
            let dims = vec![1; ty.rank()];
            let name = self.constant(dims, ty.dtype, literal.element_bytes(0).to_vec());
            self.define(equation, name, compact);
            return Ok(());
        }
        if ty.shape.iter().any(|&n| is_batch(n)) {
            return Err(self.unsupported(equation, "with an element for each one of the batch"));
        }
        let dims = ty.shape.iter().map(|&n| n as i64).collect();
        let bytes = (*literal.bytes()).as_ref().to_vec();
        let name = self.constant(dims, ty.dtype, bytes);
        self.define_exact(equation, name);
        Ok(())
    }

    fn iota(&mut self, equation: &Equation, axis: usize) -> Result<()> {
        let ty = self.program.ty(equation.outputs[0]).clone();
        if is_batch(ty.shape[axis]) {
            return Err(self.unsupported(equation, "along the batch"));
        }
        let mut compact = vec![1; ty.rank()];
        compact[axis] = ty.shape[axis];
        let dims = compact.iter().map(|&n| n as i64).collect();
        let bytes = (0..ty.shape[axis] as i64).flat_map(i64::to_le_bytes).collect();
        let indices = self.constant(dims, DType::I64, bytes);
        let name = self.cast(&indices, ty.dtype);
        self.define(equation, name, Shape::from(compact));
        Ok(())
    }

    fn slice(&mut self, equation: &Equation, ranges: &[Range]) -> Result<()> {
        let x = self.exact(equation.inputs[0])?;
        let name = if ranges.is_empty() {
            x
        } else {
            let column = |of: fn(&Range) -> i64| ranges.iter().map(of).collect::<Vec<i64>>();
            let starts = self.vector(&column(|range| range.start));
            let ends = self.vector(&column(|range| range.limit));
            let axes = self.vector(&column(|range| range.axis as i64));
            let steps = self.vector(&column(|range| range.step));
            self.node("Slice", &[&x, &starts, &ends, &axes, &steps], vec![])
        };
        self.define_exact(equation, name);
        Ok(())
    }

    /// Returns the names of the operands, and the shape of an elementwise result of them.
    fn operands(&self, vars: &[Var]) -> (Vec<String>, Shape) {
        let values: Vec<_> = vars.iter().map(|&var| self.value(var)).collect();
        let rank = values.iter().map(|value| value.shape.rank()).max().unwrap_or(0);
        // A scalar stands beside tensors in `clamp`.
        let tensors = || values.iter().filter(|value| value.shape.rank() == rank);
        // A size of 0 is less than 1, and wins.
        let one = |axis| {
            let mut sizes = tensors().map(|value| value.shape[axis]);
            sizes.find(|&n| n != 1).unwrap_or(1)
        };
        let shape: Vec<usize> = (0..rank).map(one).collect();
        (values.into_iter().map(|value| value.name).collect(), Shape::from(shape))
    }

    fn elementwise(&mut self, equation: &Equation, op: &str) -> Result<()> {
        let (names, shape) = self.operands(&equation.inputs);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let name = self.node(op, &names, vec![]);
        self.define(equation, name, shape);
        Ok(())
    }

    fn clamp(&mut self, equation: &Equation) -> Result<()> {
        let (names, shape) = self.operands(&equation.inputs);
        let above = self.node("Max", &[&names[1], &names[0]], vec![]);
        let name = self.node("Min", &[&above, &names[2]], vec![]);
        self.define(equation, name, shape);
        Ok(())
    }

    fn unary(&mut self, equation: &Equation, op: UnaryOp) -> Result<()> {
        let dtype = self.program.ty(equation.inputs[0]).dtype;
        let x = self.value(equation.inputs[0]);
        let (operator, operands) = match op {
            UnaryOp::Rsqrt => ("Reciprocal", vec![self.node("Sqrt", &[&x.name], vec![])]),
            UnaryOp::Expm1 => {
                ("Sub", vec![self.node("Exp", &[&x.name], vec![]), self.number(1.0, dtype)])
            }
            UnaryOp::Log1p => {
                let one = self.number(1.0, dtype);
                ("Log", vec![self.node("Add", &[&x.name, &one], vec![])])
            }
            UnaryOp::Erfc => {
                ("Sub", vec![self.number(1.0, dtype), self.node("Erf", &[&x.name], vec![])])
            }
            UnaryOp::IsFinite => {
                let infinite = self.node("IsInf", &[&x.name], vec![]);
                let nan = self.node("IsNaN", &[&x.name], vec![]);
                ("Not", vec![self.node("Or", &[&infinite, &nan], vec![])])
            }
            UnaryOp::Not if dtype != DType::Bool => {
                return Err(self.unsupported(equation, "for integers"));
            }
            UnaryOp::Neg => ("Neg", vec![x.name]),
            UnaryOp::Abs => ("Abs", vec![x.name]),
            UnaryOp::Sign => ("Sign", vec![x.name]),
            UnaryOp::Exp => ("Exp", vec![x.name]),
            UnaryOp::Log => ("Log", vec![x.name]),
            UnaryOp::Sqrt => ("Sqrt", vec![x.name]),
            UnaryOp::Sin => ("Sin", vec![x.name]),
            UnaryOp::Cos => ("Cos", vec![x.name]),
            UnaryOp::Tan => ("Tan", vec![x.name]),
            UnaryOp::Tanh => ("Tanh", vec![x.name]),
            UnaryOp::Asin => ("Asin", vec![x.name]),
            UnaryOp::Acos => ("Acos", vec![x.name]),
            UnaryOp::Sinh => ("Sinh", vec![x.name]),
            UnaryOp::Cosh => ("Cosh", vec![x.name]),
            UnaryOp::Asinh => ("Asinh", vec![x.name]),
            UnaryOp::Acosh => ("Acosh", vec![x.name]),
            UnaryOp::Atanh => ("Atanh", vec![x.name]),
            UnaryOp::Logistic => ("Sigmoid", vec![x.name]),
            UnaryOp::Floor => ("Floor", vec![x.name]),
            UnaryOp::Ceil => ("Ceil", vec![x.name]),
            UnaryOp::Round => ("Round", vec![x.name]),
            UnaryOp::Erf => ("Erf", vec![x.name]),
            UnaryOp::Not => ("Not", vec![x.name]),
            UnaryOp::Real | UnaryOp::Imag | UnaryOp::Conj => {
                return Err(self.unsupported(equation, ""));
            }
            UnaryOp::Cbrt
            | UnaryOp::PopulationCount
            | UnaryOp::Clz
            | UnaryOp::ErfInv
            | UnaryOp::Lgamma
            | UnaryOp::Digamma
            | UnaryOp::BesselI0e
            | UnaryOp::BesselI1e => return Err(self.unsupported(equation, "")),
        };
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let name = self.node(operator, &operands, vec![]);
        self.define(equation, name, x.shape);
        Ok(())
    }

    fn binary(&mut self, equation: &Equation, op: BinaryOp) -> Result<()> {
        let dtype = self.program.ty(equation.inputs[0]).dtype;
        if op == BinaryOp::Rem {
            let (names, shape) = self.operands(&equation.inputs);
            let sign_of_dividend = AttributeProto::int("fmod", 1);
            let name = self.node("Mod", &[&names[0], &names[1]], vec![sign_of_dividend]);
            self.define(equation, name, shape);
            return Ok(());
        }
        let operator = match op {
            BinaryOp::Add => "Add",
            BinaryOp::Sub => "Sub",
            BinaryOp::Mul => "Mul",
            BinaryOp::Div if dtype.is_float() => "Div",
            BinaryOp::Pow => "Pow",
            BinaryOp::Max => "Max",
            BinaryOp::Min => "Min",
            BinaryOp::And if dtype == DType::Bool => "And",
            BinaryOp::Or if dtype == DType::Bool => "Or",
            BinaryOp::Xor if dtype == DType::Bool => "Xor",
            // The quotient by 0 and bits of integers differ or are missing.
            BinaryOp::Div | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
                return Err(self.unsupported(equation, "for integers"));
            }
            BinaryOp::Rem
            | BinaryOp::Complex
            | BinaryOp::Atan2
            | BinaryOp::Polygamma
            | BinaryOp::ShiftLeft
            | BinaryOp::ShiftRightLogical
            | BinaryOp::ShiftRightArithmetic => return Err(self.unsupported(equation, "")),
        };
        self.elementwise(equation, operator)
    }

    fn compare(&mut self, equation: &Equation, op: CompareOp) -> Result<()> {
        let operator = match op {
            CompareOp::Eq | CompareOp::Ne => "Equal",
            CompareOp::Lt => "Less",
            CompareOp::Le => "LessOrEqual",
            CompareOp::Gt => "Greater",
            CompareOp::Ge => "GreaterOrEqual",
        };
        let (names, shape) = self.operands(&equation.inputs);
        let mut name = self.node(operator, &[&names[0], &names[1]], vec![]);
        if op == CompareOp::Ne {
            name = self.node("Not", &[&name], vec![]);
        }
        self.define(equation, name, shape);
        Ok(())
    }

    fn reduce(&mut self, equation: &Equation, op: ReduceOp, axes: &[usize]) -> Result<()> {
        let mut x = self.exact(equation.inputs[0])?;
        if axes.is_empty() {
            self.define_exact(equation, x);
            return Ok(());
        }
        let logical = matches!(op, ReduceOp::And | ReduceOp::Or);
        let dtype = self.program.ty(equation.inputs[0]).dtype;
        if logical && dtype != DType::Bool {
            return Err(self.unsupported(equation, "for integers"));
        }
        let axes: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let mut attributes = vec![AttributeProto::int("keepdims", 0)];
        let mut name = if op == ReduceOp::Sum {
            let axes = self.vector(&axes);
            self.node("ReduceSum", &[&x, &axes], attributes)
        } else {
            let operator = match op {
                ReduceOp::Sum => "ReduceSum",
                ReduceOp::Prod => "ReduceProd",
                ReduceOp::Max | ReduceOp::Or => "ReduceMax",
                ReduceOp::Min | ReduceOp::And => "ReduceMin",
            };
            if logical {
                x = self.cast(&x, DType::I32);
            }
            attributes.push(AttributeProto::ints("axes", axes));
            self.node(operator, &[&x], attributes)
        };
        if logical {
            name = self.cast(&name, DType::Bool);
        }
        self.define_exact(equation, name);
        Ok(())
    }
}
