//! The numbers that the interpreter computes with: bool, the eight integers, `f64` for every float,
//! and pairs of `f64` for complex numbers. Types for storage have no arithmetic.

use std::cmp::Ordering;

use half::{bf16, f16};
use ndarray::ArrayView2;
use num_complex::{Complex, Complex64};

use super::{complex, gamma, special};
use crate::trace::literal::{Element, Literal};
use crate::trace::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::trace::types::{DType, TensorType};

/// Runs `$body` with the type alias `$T` bound to the type that computes for `$dtype`.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use $crate::trace::types::DType;
        macro_rules! run {
            ($rust:ty) => {{
                type $T = $rust;
                $body
            }};
        }
        match $dtype {
            DType::Bool => run!(bool),
            DType::I8 => run!(i8),
            DType::I16 => run!(i16),
            DType::I32 => run!(i32),
            DType::I64 => run!(i64),
            DType::U8 => run!(u8),
            DType::U16 => run!(u16),
            DType::U32 => run!(u32),
            DType::U64 => run!(u64),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => run!(f64),
            DType::C64 | DType::C128 => run!(num_complex::Complex64),
            DType::I4 | DType::U4 | DType::F8E4M3FN | DType::F8E5M2 => {
                unreachable!("{} has no arithmetic", $dtype)
            }
        }
    }};
}
pub(super) use with_number;

/// Panics for a combination that the type checker rules out.
fn unsupported(name: &str, of: &str) -> ! {
    panic!("{name} is not defined on {of}")
}

/// A type that the interpreter computes with.
pub(super) trait Number: Copy + PartialEq + 'static {
    /// Nought; on bool false.
    const ZERO: Self;

    /// The elements of a literal whose type computes as this one.
    fn lift(literal: &Literal) -> Vec<Self>;
    /// A literal of the given type, rounded to it.
    fn lower(ty: &TensorType, numbers: &[Self]) -> Literal;

    /// The function of one operand, for elements of type `dtype`.
    fn unary(op: UnaryOp, dtype: DType) -> fn(Self) -> Self;
    /// The function of two operands. On bool, `Add` is or and `Mul` is and, as in StableHLO.
    fn binary(op: BinaryOp) -> fn(Self, Self) -> Self;
    /// Neutral element of a reduction.
    fn identity(op: ReduceOp) -> Self;
    /// The order, of complex numbers between equal ones alone; `None` of NaN.
    fn compare(&self, other: &Self) -> Option<Ordering>;
    /// The sort order: NaN last, -0 equal to +0.
    fn order(self, other: Self) -> Ordering;

    /// The product of `a`, of `rows` rows, and `b`, of `columns` columns; both in row-major order,
    /// with `inner` between them.
    fn matmul(rows: usize, inner: usize, columns: usize, a: &[Self], b: &[Self]) -> Vec<Self> {
        let (add, mul) = (Self::binary(BinaryOp::Add), Self::binary(BinaryOp::Mul));
        let mut product = vec![Self::ZERO; rows * columns];
        for i in 0..rows {
            for k in 0..inner {
                let x = a[i * inner + k];
                for j in 0..columns {
                    let sum = &mut product[i * columns + j];
                    *sum = add(*sum, mul(x, b[k * columns + j]));
                }
            }
        }
        product
    }
}

fn lift_same<T: Element>(literal: &Literal) -> Vec<T> {
    literal.to_vec().expect("dispatched on the element type")
}

// What the domain of an operation excludes needs no arm. An arm that is missed is found by the test
// `every_function_on_every_type_that_has_it`.
#[allow(clippy::wildcard_enum_match_arm)]
impl Number for bool {
    const ZERO: bool = false;

    fn lift(literal: &Literal) -> Vec<bool> {
        lift_same(literal)
    }

    fn lower(ty: &TensorType, numbers: &[bool]) -> Literal {
        Literal::new(&ty.shape, numbers)
    }

    fn unary(op: UnaryOp, _: DType) -> fn(bool) -> bool {
        match op {
            UnaryOp::Not => |x| !x,
            _ => unsupported(op.name(), "bool"),
        }
    }

    fn binary(op: BinaryOp) -> fn(bool, bool) -> bool {
        match op {
            BinaryOp::Add | BinaryOp::Or => |x, y| x | y,
            BinaryOp::Mul | BinaryOp::And => |x, y| x & y,
            BinaryOp::Xor => |x, y| x ^ y,
            _ => unsupported(op.name(), "bool"),
        }
    }

    fn identity(op: ReduceOp) -> bool {
        match op {
            ReduceOp::And => true,
            ReduceOp::Or => false,
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => {
                unsupported(op.name(), "bool")
            }
        }
    }

    fn compare(&self, other: &bool) -> Option<Ordering> {
        self.partial_cmp(other)
    }

    fn order(self, other: bool) -> Ordering {
        self.cmp(&other)
    }
}

/// Implements [`Number`] for the integer `$int`, whose bits read with and without a sign are
/// `$signed` and `$unsigned`.
macro_rules! integer {
    ($int:ident, $signed:ident, $unsigned:ident, $abs:expr, $sign:expr) => {
        #[allow(clippy::wildcard_enum_match_arm)] // As for bool.
        impl Number for $int {
            const ZERO: $int = 0;

            fn lift(literal: &Literal) -> Vec<$int> {
                lift_same(literal)
            }

            fn lower(ty: &TensorType, numbers: &[$int]) -> Literal {
                Literal::new(&ty.shape, numbers)
            }

            fn unary(op: UnaryOp, _: DType) -> fn($int) -> $int {
                match op {
                    UnaryOp::Neg => $int::wrapping_neg,
                    UnaryOp::Abs => $abs,
                    UnaryOp::Sign => $sign,
                    UnaryOp::Not => |x| !x,
                    UnaryOp::PopulationCount => |x| x.count_ones() as $int,
                    UnaryOp::Clz => |x| x.leading_zeros() as $int,
                    _ => unsupported(op.name(), stringify!($int)),
                }
            }

            fn binary(op: BinaryOp) -> fn($int, $int) -> $int {
                match op {
                    BinaryOp::Add => $int::wrapping_add,
                    BinaryOp::Sub => $int::wrapping_sub,
                    BinaryOp::Mul => $int::wrapping_mul,
                    BinaryOp::Div => |x, y| if y == 0 { !0 } else { x.wrapping_div(y) },
                    BinaryOp::Rem => |x, y| if y == 0 { x } else { x.wrapping_rem(y) },
                    BinaryOp::Max => Ord::max,
                    BinaryOp::Min => Ord::min,
                    BinaryOp::And => |x, y| x & y,
                    BinaryOp::Or => |x, y| x | y,
                    BinaryOp::Xor => |x, y| x ^ y,
                    // The amount is read without a sign, so a negative one is a large one.
                    BinaryOp::ShiftLeft => |x, y| match y as $unsigned as u64 {
                        amount if amount < $int::BITS as u64 => x << amount,
                        _ => 0,
                    },
                    BinaryOp::ShiftRightLogical => |x, y| match y as $unsigned as u64 {
                        amount if amount < $int::BITS as u64 => (x as $unsigned >> amount) as $int,
                        _ => 0,
                    },
                    BinaryOp::ShiftRightArithmetic => |x, y| {
                        let amount = (y as $unsigned as u64).min($int::BITS as u64 - 1);
                        (x as $signed >> amount) as $int
                    },
                    _ => unsupported(op.name(), stringify!($int)),
                }
            }

            fn identity(op: ReduceOp) -> $int {
                match op {
                    ReduceOp::Sum | ReduceOp::Or => 0,
                    ReduceOp::Prod => 1,
                    ReduceOp::Max => $int::MIN,
                    ReduceOp::Min => $int::MAX,
                    ReduceOp::And => !0,
                }
            }

            fn compare(&self, other: &$int) -> Option<Ordering> {
                self.partial_cmp(other)
            }

            fn order(self, other: $int) -> Ordering {
                self.cmp(&other)
            }
        }
    };
}

integer!(i8, i8, u8, i8::wrapping_abs, i8::signum);
integer!(i16, i16, u16, i16::wrapping_abs, i16::signum);
integer!(i32, i32, u32, i32::wrapping_abs, i32::signum);
integer!(i64, i64, u64, i64::wrapping_abs, i64::signum);
integer!(u8, i8, u8, |x| x, |x| x.min(1));
integer!(u16, i16, u16, |x| x, |x| x.min(1));
integer!(u32, i32, u32, |x| x, |x| x.min(1));
integer!(u64, i64, u64, |x| x, |x| x.min(1));

impl Number for f64 {
    const ZERO: f64 = 0.0;

    fn lift(literal: &Literal) -> Vec<f64> {
        literal.to_f64_vec()
    }

    fn lower(ty: &TensorType, numbers: &[f64]) -> Literal {
        fn rounded<T: Element>(ty: &TensorType, numbers: &[f64], round: fn(f64) -> T) -> Literal {
            let elements: Vec<T> = numbers.iter().map(|&x| round(x)).collect();
            Literal::new(&ty.shape, &elements)
        }
        match ty.dtype {
            DType::F16 => rounded(ty, numbers, f16::from_f64),
            DType::BF16 => rounded(ty, numbers, bf16::from_f64),
            DType::F32 => rounded(ty, numbers, |x| x as f32),
            DType::F64 => Literal::new(&ty.shape, numbers),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U16
            | DType::U32
            | DType::U64
            | DType::C64
            | DType::C128
            | DType::I4
            | DType::U4
            | DType::F8E4M3FN
            | DType::F8E5M2 => unreachable!("{ty} does not compute as f64"),
        }
    }

    fn unary(op: UnaryOp, dtype: DType) -> fn(f64) -> f64 {
        special::unary(op, dtype)
    }

    fn binary(op: BinaryOp) -> fn(f64, f64) -> f64 {
        match op {
            BinaryOp::Add => |x, y| x + y,
            BinaryOp::Sub => |x, y| x - y,
            BinaryOp::Mul => |x, y| x * y,
            BinaryOp::Div => |x, y| x / y,
            BinaryOp::Rem => |x, y| x % y,
            BinaryOp::Pow => f64::powf,
            BinaryOp::Max => maximum,
            BinaryOp::Min => |x, y| -maximum(-x, -y),
            BinaryOp::Atan2 => f64::atan2,
            BinaryOp::Polygamma => gamma::polygamma,
            BinaryOp::Complex
            | BinaryOp::And
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::ShiftLeft
            | BinaryOp::ShiftRightLogical
            | BinaryOp::ShiftRightArithmetic => unsupported(op.name(), "floats"),
        }
    }

    fn identity(op: ReduceOp) -> f64 {
        match op {
            ReduceOp::Sum => 0.0,
            ReduceOp::Prod => 1.0,
            ReduceOp::Max => f64::NEG_INFINITY,
            ReduceOp::Min => f64::INFINITY,
            ReduceOp::And | ReduceOp::Or => unsupported(op.name(), "floats"),
        }
    }

    fn compare(&self, other: &f64) -> Option<Ordering> {
        self.partial_cmp(other)
    }

    fn order(self, other: f64) -> Ordering {
        match (self.is_nan(), other.is_nan()) {
            (false, false) => self.partial_cmp(&other).expect("neither is NaN"),
            (left, right) => left.cmp(&right),
        }
    }

    fn matmul(rows: usize, inner: usize, columns: usize, a: &[f64], b: &[f64]) -> Vec<f64> {
        let a = ArrayView2::from_shape((rows, inner), a).expect("rows * inner elements");
        let b = ArrayView2::from_shape((inner, columns), b).expect("inner * columns elements");
        // The product's memory order is ndarray's choice; ours is row-major.
        a.dot(&b).as_standard_layout().iter().copied().collect()
    }
}

#[allow(clippy::wildcard_enum_match_arm)] // As for bool.
impl Number for Complex64 {
    const ZERO: Complex64 = Complex64::ZERO;

    fn lift(literal: &Literal) -> Vec<Complex64> {
        literal.to_f64_vec().chunks_exact(2).map(|z| Complex::new(z[0], z[1])).collect()
    }

    fn lower(ty: &TensorType, numbers: &[Complex64]) -> Literal {
        if ty.dtype == DType::C128 {
            return Literal::new(&ty.shape, numbers);
        }
        let rounded: Vec<Complex<f32>> =
            numbers.iter().map(|z| Complex::new(z.re as f32, z.im as f32)).collect();
        Literal::new(&ty.shape, &rounded)
    }

    fn unary(op: UnaryOp, _: DType) -> fn(Complex64) -> Complex64 {
        complex::unary(op)
    }

    fn binary(op: BinaryOp) -> fn(Complex64, Complex64) -> Complex64 {
        match op {
            BinaryOp::Add => |x, y| x + y,
            BinaryOp::Sub => |x, y| x - y,
            BinaryOp::Mul => |x, y| x * y,
            BinaryOp::Div => complex::quotient,
            BinaryOp::Pow => complex::power,
            _ => unsupported(op.name(), "complex numbers"),
        }
    }

    fn identity(op: ReduceOp) -> Complex64 {
        match op {
            ReduceOp::Sum => Complex64::ZERO,
            ReduceOp::Prod => Complex64::ONE,
            ReduceOp::Max | ReduceOp::Min | ReduceOp::And | ReduceOp::Or => {
                unsupported(op.name(), "complex numbers")
            }
        }
    }

    fn compare(&self, other: &Complex64) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }

    fn order(self, _: Complex64) -> Ordering {
        unsupported("sort", "complex numbers")
    }
}

/// IEEE 754's `maximum`: NaN wins, and +0 is more than -0.
fn maximum(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if x > y || (x == y && x.is_sign_positive()) {
        x
    } else {
        y
    }
}
