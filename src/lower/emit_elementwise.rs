//! Operations on one element at a time.

#![deny(clippy::wildcard_enum_match_arm)]

use super::emitter::Emitter;
use super::mlir::{Ty, Value, predicate};
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, CompareOp, UnaryOp};
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    pub(super) fn unary(&mut self, op: UnaryOp, x: Value, ty: &TensorType) -> Value {
        let name = match op {
            UnaryOp::Neg => "stablehlo.negate",
            UnaryOp::Abs if ty.dtype.is_unsigned() => return x,
            // The compiler takes the absolute value of `x * x` to be `x * x`, which integers that
            // wrap are not.
            UnaryOp::Abs if ty.dtype.is_int() => {
                let negated = self.unary(UnaryOp::Neg, x, ty);
                return self.binary(BinaryOp::Max, x, negated, ty);
            }
            UnaryOp::Abs => "stablehlo.abs",
            // StableHLO has no sign of unsigned integers.
            UnaryOp::Sign if ty.dtype.is_unsigned() => {
                let nonzero = self.nonzero(x, ty);
                return self.convert(nonzero, &predicate(ty), ty.dtype);
            }
            UnaryOp::Sign => "stablehlo.sign",
            UnaryOp::Exp => "stablehlo.exponential",
            UnaryOp::Expm1 => "stablehlo.exponential_minus_one",
            UnaryOp::Log => "stablehlo.log",
            UnaryOp::Log1p => "stablehlo.log_plus_one",
            UnaryOp::Sqrt => "stablehlo.sqrt",
            UnaryOp::Rsqrt => "stablehlo.rsqrt",
            UnaryOp::Sin => "stablehlo.sine",
            UnaryOp::Cos => "stablehlo.cosine",
            UnaryOp::Tan => "stablehlo.tan",
            UnaryOp::Tanh => "stablehlo.tanh",
            UnaryOp::Logistic => "stablehlo.logistic",
            UnaryOp::Floor => "stablehlo.floor",
            UnaryOp::Ceil => "stablehlo.ceil",
            UnaryOp::Round => "stablehlo.round_nearest_even",
            // The plugins know CHLO and hold XLA's own polynomials for these two.
            UnaryOp::Erf => return self.op(format_args!("chlo.erf {x} : {0} -> {0}", Ty(ty))),
            UnaryOp::ErfInv => {
                return self.op(format_args!("chlo.erf_inv {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::Asin
            | UnaryOp::Acos
            | UnaryOp::Sinh
            | UnaryOp::Cosh
            | UnaryOp::Asinh
            | UnaryOp::Acosh
            | UnaryOp::Atanh => {
                let (name, ty) = (op.name(), Ty(ty));
                return self.op(format_args!("chlo.{name} {x} : {ty} -> {ty}"));
            }
            UnaryOp::Cbrt => "stablehlo.cbrt",
            // Written out by the plugin's own decompositions (Lanczos, with reflection).
            UnaryOp::Erfc => return self.op(format_args!("chlo.erfc {x} : {0} -> {0}", Ty(ty))),
            UnaryOp::Lgamma => {
                return self.op(format_args!("chlo.lgamma {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::Digamma => {
                return self.op(format_args!("chlo.digamma {x} : {0} -> {0}", Ty(ty)));
            }
            UnaryOp::IsFinite => {
                let result = predicate(ty);
                let (from, to) = (Ty(ty), Ty(&result));
                return self.op(format_args!("stablehlo.is_finite {x} : ({from}) -> {to}"));
            }
            UnaryOp::Not => "stablehlo.not",
        };
        self.op(format_args!("{name} {x} : {}", Ty(ty)))
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let name = match op {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "subtract",
            BinaryOp::Mul => "multiply",
            // Integers by zero: see `division`.
            BinaryOp::Div => "divide",
            BinaryOp::Rem => "remainder",
            BinaryOp::Pow => "power",
            BinaryOp::Max => "maximum",
            BinaryOp::Min => "minimum",
            BinaryOp::Atan2 => "atan2",
            BinaryOp::Polygamma => {
                let ty = Ty(ty);
                return self.op(format_args!("chlo.polygamma {a}, {b} : {ty}, {ty} -> {ty}"));
            }
            BinaryOp::And => "and",
            BinaryOp::Or => "or",
            BinaryOp::Xor => "xor",
            BinaryOp::ShiftLeft => "shift_left",
            BinaryOp::ShiftRightLogical => "shift_right_logical",
            BinaryOp::ShiftRightArithmetic => "shift_right_arithmetic",
        };
        self.op(format_args!("stablehlo.{name} {a}, {b} : {}", Ty(ty)))
    }

    /// A quotient or remainder of integers whose divisor may be zero: the result is then all ones,
    /// or the dividend.
    ///
    /// The compiler's code gives the same results when it divides at run time. But if it knows both
    /// operands, it divides while it compiles, and a zero then ends the process by a signal.
    pub(super) fn division(&mut self, op: BinaryOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
        let one = self.constant(&Literal::filled(ty.clone(), 1.0));
        let by_zero = self.compare(CompareOp::Eq, b, zero, ty);
        let predicate_ty = predicate(ty);
        let divisor = self.select(by_zero, one, b, &predicate_ty, ty);
        let result = self.binary(op, a, divisor, ty);
        let instead = if op == BinaryOp::Div { self.unary(UnaryOp::Not, zero, ty) } else { a };
        self.select(by_zero, instead, result, &predicate_ty, ty)
    }

    pub(super) fn compare(&mut self, op: CompareOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let direction = match op {
            CompareOp::Eq => "EQ",
            CompareOp::Ne => "NE",
            CompareOp::Lt => "LT",
            CompareOp::Le => "LE",
            CompareOp::Gt => "GT",
            CompareOp::Ge => "GE",
        };
        let kind = if ty.dtype.is_float() {
            "FLOAT"
        } else if ty.dtype.is_unsigned() || ty.dtype == DType::Bool {
            "UNSIGNED"
        } else {
            "SIGNED"
        };
        let result = predicate(ty);
        let (from, to) = (Ty(ty), Ty(&result));
        self.op(format_args!(
            "stablehlo.compare {direction}, {a}, {b}, {kind} : ({from}, {from}) -> {to}"
        ))
    }

    pub(super) fn select(
        &mut self,
        predicate: Value,
        on_true: Value,
        on_false: Value,
        predicate_ty: &TensorType,
        ty: &TensorType,
    ) -> Value {
        self.op(format_args!(
            "stablehlo.select {predicate}, {on_true}, {on_false} : {}, {}",
            Ty(predicate_ty),
            Ty(ty)
        ))
    }

    /// `x != 0`: NaN is not zero.
    fn nonzero(&mut self, x: Value, ty: &TensorType) -> Value {
        let zero = self.constant(&Literal::filled(ty.clone(), 0.0));
        self.compare(CompareOp::Ne, x, zero, ty)
    }

    pub(super) fn convert(&mut self, x: Value, from: &TensorType, dtype: DType) -> Value {
        if from.dtype == dtype {
            return x;
        }
        if dtype == DType::Bool {
            return self.nonzero(x, from);
        }
        let to = TensorType::new(dtype, &from.shape);
        // Floats to integers: XLA truncates and saturates, and NaN becomes 0, as we promise.
        let result = self.op(format_args!("stablehlo.convert {x} : ({}) -> {}", Ty(from), Ty(&to)));
        if from.dtype == DType::Bool && dtype == DType::I32 && from.rank() == 0 {
            self.predicates.insert(result, x);
        }
        result
    }

    pub(super) fn bitcast(&mut self, x: Value, from: &TensorType, to: &TensorType) -> Value {
        if from.dtype == to.dtype {
            return x;
        }
        if from.dtype == DType::Bool {
            // To StableHLO a bool is one bit; to us it is a byte that is 0 or 1.
            return self.convert(x, from, to.dtype);
        }
        let x = if from.rank() == to.rank() {
            x
        } else {
            // Two bitcasts to other widths, one after the other: the compiler makes them one, with
            // the shape that the two came to, and refuses its own work.
            self.op(format_args!("stablehlo.optimization_barrier {x} : {}", Ty(from)))
        };
        self.op(format_args!("stablehlo.bitcast_convert {x} : ({}) -> {}", Ty(from), Ty(to)))
    }
}
