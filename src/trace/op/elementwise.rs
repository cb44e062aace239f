//! The elementwise functions, comparisons and combining operations of reductions: one row each.
//!
//! A row holds the constant facts of an operation. The type checker, the transformations, the
//! parser and the tests ask the row, so that none of them lists variants. A fact that a row leaves
//! out costs speed or ends in an error that names the operation; no result becomes wrong.

use crate::trace::types::DType;

/// Element types that an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Floats.
    Floats,
    /// Floats and complex numbers.
    Inexact,
    /// Floats and integers.
    Reals,
    /// Floats, complex numbers and integers.
    Numbers,
    /// Complex numbers.
    Complex,
    /// The parts of complex numbers, f32 and f64.
    Parts,
    /// Bool and integers.
    Bits,
    /// Integers.
    Integers,
}

impl Domain {
    /// Returns true if the domain includes `dtype`. Types for storage have no arithmetic.
    pub fn contains(self, dtype: DType) -> bool {
        if dtype.is_narrow() {
            return false;
        }
        match self {
            Domain::Floats => dtype.is_float(),
            Domain::Inexact => dtype.is_inexact(),
            Domain::Reals => dtype != DType::Bool && !dtype.is_complex(),
            Domain::Numbers => dtype != DType::Bool,
            Domain::Complex => dtype.is_complex(),
            Domain::Parts => matches!(dtype, DType::F32 | DType::F64),
            Domain::Bits => !dtype.is_inexact(),
            Domain::Integers => dtype.is_int(),
        }
    }
}

/// A fact about an elementwise operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// `f(a x + b y)` is `a f(x) + b f(y)`, so that the operation is its own transpose.
    Linear,
    /// The derivative is 0 wherever there is one: no tangent passes.
    Flat,
    /// Arithmetic that costs next to nothing beside reading its operands.
    Cheap,
    /// The result is bool.
    Predicate,
    /// The result of a complex number is a real number.
    Real,
}

/// Operands in which an operation of two operands is linear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linearity {
    /// Both at once: `lhs + rhs`.
    Sum,
    /// Both at once: `lhs - rhs`.
    Difference,
    /// Either one, while the other is fixed.
    Product,
    /// The first one, while the second is fixed.
    Quotient,
    /// Both at once: real and imaginary part of the result.
    Parts,
    /// None.
    Nonlinear,
}

/// Applies the macro `$with` to the rows of [`UnaryOp`]. A row is the doc comment of the operation
/// and its method, the variant, the printed name, the method of `Tensor` (unless an operator of Rust
/// stands for it), the domain, and the facts.
macro_rules! unary_ops {
    ($with:ident) => {
        $with! {
            /// `-x`.
            Neg "neg": Numbers [Linear, Cheap];
            /// The absolute value, of complex numbers a float. Its derivative at 0 is 1, of complex
            /// numbers 0, as in JAX.
            Abs "abs" fn abs: Numbers [Real, Cheap];
            /// -1, 0 or 1 by the sign; NaN stays NaN. Of a complex number `x / |x|`.
            Sign "sign" fn sign: Numbers [Flat, Cheap];
            /// `e^x`.
            Exp "exp" fn exp: Inexact [];
            /// `e^x - 1`, exact near 0.
            Expm1 "expm1" fn expm1: Inexact [];
            /// The natural logarithm.
            Log "log" fn log: Inexact [];
            /// `log(1 + x)`, exact near 0.
            Log1p "log1p" fn log1p: Inexact [];
            /// The square root.
            Sqrt "sqrt" fn sqrt: Inexact [];
            /// `1 / sqrt(x)`.
            Rsqrt "rsqrt" fn rsqrt: Inexact [];
            /// The sine.
            Sin "sin" fn sin: Inexact [];
            /// The cosine.
            Cos "cos" fn cos: Inexact [];
            /// The tangent.
            Tan "tan" fn tan: Inexact [];
            /// The hyperbolic tangent.
            Tanh "tanh" fn tanh: Inexact [];
            /// Arc sine, of -1 to 1.
            Asin "asin" fn asin: Inexact [];
            /// Arc cosine, of -1 to 1.
            Acos "acos" fn acos: Inexact [];
            /// Hyperbolic sine.
            Sinh "sinh" fn sinh: Inexact [];
            /// Hyperbolic cosine.
            Cosh "cosh" fn cosh: Inexact [];
            /// Inverse hyperbolic sine.
            Asinh "asinh" fn asinh: Inexact [];
            /// Inverse hyperbolic cosine, of 1 and more.
            Acosh "acosh" fn acosh: Inexact [];
            /// Inverse hyperbolic tangent, of -1 to 1.
            Atanh "atanh" fn atanh: Inexact [];
            /// The cube root.
            Cbrt "cbrt" fn cbrt: Floats [];
            /// The logistic function, `1 / (1 + exp(-x))`.
            Logistic "logistic" fn sigmoid: Inexact [];
            /// The largest integer not above x.
            Floor "floor" fn floor: Floats [Flat];
            /// The smallest integer not below x.
            Ceil "ceil" fn ceil: Floats [Flat];
            /// The nearest integer, halves to the even one.
            Round "round" fn round: Floats [Flat];
            /// The error function.
            Erf "erf" fn erf: Floats [];
            /// `1 - erf(x)`, exact also where that is small.
            Erfc "erfc" fn erfc: Floats [];
            /// The inverse of the error function; infinite at -1 and 1.
            ErfInv "erf_inv" fn erf_inv: Floats [];
            /// The logarithm of the absolute value of the gamma function:
            /// `jax.scipy.special.gammaln`. Its derivative is the digamma function.
            Lgamma "lgamma" fn lgamma: Floats [];
            /// The derivative of `lgamma`; its own is
            /// [`polygamma`](crate::trace::ops::polygamma) of order 1.
            Digamma "digamma" fn digamma: Floats [];
            /// The modified Bessel function of the first kind of order 0, times `e^-|x|`:
            /// `jax.scipy.special.i0e`.
            BesselI0e "bessel_i0e" fn bessel_i0e: Floats [];
            /// The modified Bessel function of the first kind of order 1, times `e^-|x|`:
            /// `jax.scipy.special.i1e`.
            BesselI1e "bessel_i1e" fn bessel_i1e: Floats [];
            /// True for each element that is neither infinite nor NaN.
            IsFinite "is_finite": Floats [Predicate, Flat, Cheap];
            /// Logical on bool, bitwise on integers.
            Not "not": Bits [Flat, Cheap];
            /// `lax.population_count`: the number of bits that are set.
            PopulationCount "population_count" fn population_count: Integers [Flat];
            /// `lax.clz`: the number of zeros above the highest bit that is set.
            Clz "clz" fn clz: Integers [Flat];
            /// The real part.
            Real "real": Complex [Real, Cheap];
            /// The imaginary part.
            Imag "imag": Complex [Real, Cheap];
            /// The complex conjugate.
            Conj "conj": Complex [Linear, Cheap];
        }
    };
}
pub(crate) use unary_ops;

macro_rules! define_unary {
    ($($(#[$doc:meta])* $op:ident $name:literal $(fn $method:ident)?: $domain:ident
       [$($fact:ident),*];)*) => {
        /// Elementwise operations of one operand.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum UnaryOp {
            $($(#[$doc])* $op),*
        }

        impl UnaryOp {
            /// Every one of them.
            pub const ALL: [UnaryOp; [$($name),*].len()] = [$(UnaryOp::$op),*];

            /// The name, as printed in Programs and messages.
            pub fn name(self) -> &'static str {
                match self { $(UnaryOp::$op => $name),* }
            }

            /// Element types that it takes.
            pub fn domain(self) -> Domain {
                match self { $(UnaryOp::$op => Domain::$domain),* }
            }

            fn facts(self) -> &'static [Fact] {
                match self { $(UnaryOp::$op => &[$(Fact::$fact),*]),* }
            }

            /// Returns true if `fact` is in its row.
            pub fn is(self, fact: Fact) -> bool {
                self.facts().contains(&fact)
            }

            /// Element type of the result for operands of type `dtype`.
            pub fn result(self, dtype: DType) -> DType {
                match dtype {
                    _ if self.is(Fact::Predicate) => DType::Bool,
                    _ if self.is(Fact::Real) => dtype.real(),
                    _ => dtype,
                }
            }
        }
    };
}
unary_ops!(define_unary);

macro_rules! define_binary {
    ($($(#[$doc:meta])* $op:ident $name:literal: $domain:ident $linearity:ident
       [$($fact:ident),*];)*) => {
        /// Elementwise operations of two operands of one type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum BinaryOp {
            $($(#[$doc])* $op),*
        }

        impl BinaryOp {
            /// Every one of them.
            pub const ALL: [BinaryOp; [$($name),*].len()] = [$(BinaryOp::$op),*];

            /// The name, as printed in Programs and messages.
            pub fn name(self) -> &'static str {
                match self { $(BinaryOp::$op => $name),* }
            }

            /// Element types that it takes.
            pub fn domain(self) -> Domain {
                match self { $(BinaryOp::$op => Domain::$domain),* }
            }

            /// Operands in which it is linear.
            pub fn linearity(self) -> Linearity {
                match self { $(BinaryOp::$op => Linearity::$linearity),* }
            }

            fn facts(self) -> &'static [Fact] {
                match self { $(BinaryOp::$op => &[$(Fact::$fact),*]),* }
            }

            /// Element type of the result for operands of type `dtype`.
            pub fn result(self, dtype: DType) -> DType {
                if self.linearity() == Linearity::Parts { dtype.complex() } else { dtype }
            }

            /// Returns true if `fact` is in its row.
            pub fn is(self, fact: Fact) -> bool {
                self.facts().contains(&fact)
            }
        }
    };
}

define_binary! {
    /// The sum.
    Add "add": Numbers Sum [Cheap];
    /// The difference.
    Sub "sub": Numbers Difference [Cheap];
    /// The product.
    Mul "mul": Numbers Product [Cheap];
    /// Integers: towards zero; `x / 0` is all ones.
    Div "div": Numbers Quotient [Cheap];
    /// The sign of the dividend.
    Rem "rem": Reals Nonlinear [];
    /// A power; `0^0` is 1.
    Pow "pow": Inexact Nonlinear [];
    /// NaN wins.
    Max "max": Reals Nonlinear [Cheap];
    /// NaN wins.
    Min "min": Reals Nonlinear [Cheap];
    /// The angle of the point (`rhs`, `lhs`).
    Atan2 "atan2": Floats Nonlinear [];
    /// The derivative of order `lhs`, a whole number from 0, of [`UnaryOp::Digamma`] at `rhs`.
    Polygamma "polygamma": Floats Nonlinear [];
    /// Logical on bool, bitwise on integers.
    And "and": Bits Nonlinear [Cheap];
    /// Logical on bool, bitwise on integers.
    Or "or": Bits Nonlinear [Cheap];
    /// Logical on bool, bitwise on integers.
    Xor "xor": Bits Nonlinear [Cheap];
    /// Gives 0 when the amount is not less than the width.
    ShiftLeft "shift_left": Integers Nonlinear [];
    /// Gives 0 when the amount is not less than the width.
    ShiftRightLogical "shift_right_logical": Integers Nonlinear [];
    /// Gives the sign in every bit when the amount is not less than the width.
    ShiftRightArithmetic "shift_right_arithmetic": Integers Nonlinear [];
    /// The complex number of a real and an imaginary part.
    Complex "complex": Parts Parts [Cheap];
}

/// Defines an enum whose rows are a variant and its printed name.
macro_rules! named {
    ($(#[$of:meta])* $enum:ident { $($(#[$doc:meta])* $op:ident $name:literal;)* }) => {
        $(#[$of])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $enum {
            $($(#[$doc])* $op),*
        }

        impl $enum {
            /// Every one of them.
            pub const ALL: [$enum; [$($name),*].len()] = [$($enum::$op),*];

            /// The name, as printed in Programs and messages.
            pub fn name(self) -> &'static str {
                match self { $($enum::$op => $name),* }
            }
        }
    };
}

named! {
    /// Comparisons. Every comparison with NaN is false, but `Ne`.
    CompareOp {
        /// `lhs == rhs`.
        Eq "eq";
        /// `lhs != rhs`.
        Ne "ne";
        /// `lhs < rhs`.
        Lt "lt";
        /// `lhs <= rhs`.
        Le "le";
        /// `lhs > rhs`.
        Gt "gt";
        /// `lhs >= rhs`.
        Ge "ge";
    }
}

named! {
    /// Operation by which a reduction combines elements.
    ReduceOp {
        /// The sum.
        Sum "reduce_sum";
        /// The product.
        Prod "reduce_prod";
        /// NaN wins.
        Max "reduce_max";
        /// NaN wins.
        Min "reduce_min";
        /// All, on bool; bitwise on integers.
        And "reduce_and";
        /// Any, on bool; bitwise on integers.
        Or "reduce_or";
    }
}

impl ReduceOp {
    /// Element types that it takes.
    pub fn domain(self) -> Domain {
        match self {
            ReduceOp::Sum | ReduceOp::Prod => Domain::Numbers,
            ReduceOp::Max | ReduceOp::Min => Domain::Reals,
            ReduceOp::And | ReduceOp::Or => Domain::Bits,
        }
    }
}

named! {
    /// Extreme whose index is taken.
    ArgOp {
        /// The greatest.
        Max "argmax";
        /// The least.
        Min "argmin";
    }
}
