//! Arithmetic, comparisons, and functions applied to each element.

use std::any::TypeId;
use std::ops;
use std::panic::Location;

use crate::error::Loc;
use crate::trace::literal::{Complex, I4, Literal, U4};
use crate::trace::op::{BinaryOp, CompareOp, Op, UnaryOp, unary_ops};
use crate::trace::ops::shape::{broadcast_pair, broadcast_to};
use crate::trace::tensor::{Tensor, bind1, fail_op, function, op};
use crate::trace::types::{DType, TensorType};

/// Operand beside a tensor in arithmetic: another tensor, or a Rust number, which takes the
/// tensor's element type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with a `Tensor`",
    label = "neither a Tensor nor a number of the types below",
    note = "operands are a Tensor, f32, f64, i32, i64, u32, u64, usize, bool, Complex<f32> or \
            Complex<f64>",
    note = "values of the host are constants: `constant([1.0f32, 2.0])`, `constant(vec)`, \
            `constant(array.to_literal()?)`; an Array passed as an argument is a Tensor inside"
)]
pub trait Operand: Copy + 'static {
    /// This operand as a tensor to be combined with one of type `like`.
    fn to_tensor(self, like: &TensorType) -> Tensor;

    /// The value of a Rust integer; `None` of all else.
    fn integer(self) -> Option<i128> {
        None
    }
}

impl Operand for Tensor {
    fn to_tensor(self, _: &TensorType) -> Tensor {
        self
    }
}

macro_rules! float_operands {
    ($($t:ty),*) => {$(
        impl Operand for $t {
            #[track_caller]
            fn to_tensor(self, like: &TensorType) -> Tensor {
                if !like.dtype.is_inexact() {
                    let or_integer = if like.dtype == DType::Bool { "" } else { ", or use an integer" };
                    fail_op("literal", format!(
                        "the float {self} cannot be combined with {like}; convert the tensor with \
                         .to(DType::F32){or_integer}"
                    ));
                }
                filled(like, self as f64)
            }
        }
    )*};
}
float_operands!(f32, f64);

macro_rules! int_operands {
    ($($t:ty),*) => {$(
        impl Operand for $t {
            #[track_caller]
            fn to_tensor(self, like: &TensorType) -> Tensor {
                if like.dtype == DType::Bool {
                    fail_op("literal", format!(
                        "the integer {self} cannot be combined with {like}; convert the tensor with \
                         .to(DType::I32), or use true or false"
                    ));
                }
                int_filled(like, self as i128)
            }

            fn integer(self) -> Option<i128> {
                Some(self as i128)
            }
        }
    )*};
}
int_operands!(i32, i64, u32, u64, usize);

impl Operand for bool {
    #[track_caller]
    fn to_tensor(self, like: &TensorType) -> Tensor {
        if like.dtype != DType::Bool {
            fail_op("literal", format!("{self} cannot be combined with {like}; use a number"));
        }
        filled(like, self as u8 as f64)
    }
}

#[track_caller]
fn filled(like: &TensorType, value: f64) -> Tensor {
    bind1(Op::Constant(Literal::filled(like.clone(), value)), &[], Location::caller())
}

#[track_caller]
fn int_filled(like: &TensorType, value: i128) -> Tensor {
    let shape = &like.shape;
    let literal = match like.dtype {
        DType::I64 => i64::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::U64 => u64::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::I4 => {
            let value = i8::try_from(value).ok().and_then(I4::new);
            value.map(|value| Literal::splat(shape, value))
        }
        DType::U4 => {
            let value = u8::try_from(value).ok().and_then(U4::new);
            value.map(|value| Literal::splat(shape, value))
        }
        DType::I8 => i8::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::I16 => i16::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::I32 => i32::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::U8 => u8::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::U16 => u16::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::U32 => u32::try_from(value).ok().map(|value| Literal::splat(shape, value)),
        DType::Bool
        | DType::F8E4M3FN
        | DType::F8E5M2
        | DType::F16
        | DType::BF16
        | DType::F32
        | DType::F64
        | DType::C64
        | DType::C128 => Some(Literal::filled(like.clone(), value as f64)),
    };
    match literal {
        Some(literal) => bind1(Op::Constant(literal), &[], Location::caller()),
        None => fail_op("literal", format!("{value} is out of range for {}", like.dtype)),
    }
}

/// Both operands at the shape that they broadcast to.
#[track_caller]
fn pair(name: &'static str, lhs: Tensor, rhs: impl Operand) -> (Tensor, Tensor) {
    let _scope = function(name);
    let like = lhs.ty();
    broadcast_pair(name, lhs, rhs.to_tensor(&like))
}

#[track_caller]
pub(super) fn binary(op: BinaryOp, lhs: Tensor, rhs: impl Operand) -> Tensor {
    let (lhs, rhs) = pair(op.name(), lhs, rhs);
    bind1(Op::Binary(op), &[lhs, rhs], Location::caller())
}

#[track_caller]
fn compare(op: CompareOp, lhs: Tensor, rhs: impl Operand) -> Tensor {
    let (lhs, rhs) = pair(op.name(), lhs, rhs);
    bind1(Op::Compare(op), &[lhs, rhs], Location::caller())
}

fn unary(op: UnaryOp, x: Tensor, at: Loc) -> Tensor {
    bind1(Op::Unary(op), &[x], at)
}

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),* $(,)?) => {$(
        impl<R: Operand> ops::$trait<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(BinaryOp::$op, self, rhs)
            }
        }
        // One float type only: with two, `(1.0 - x).exp()` would not know which it starts from.
        operators!(literal $trait $method $op f64 i32);
    )*};
    (literal $trait:ident $method:ident $op:ident $($t:ty)*) => {$(
        impl ops::$trait<Tensor> for $t {
            type Output = Tensor;
            #[op]
            fn $method(self, rhs: Tensor) -> Tensor {
                let like = rhs.ty();
                binary(BinaryOp::$op, self.to_tensor(&like), rhs)
            }
        }
    )*};
}
operators!(Add add Add, Sub sub Sub, Mul mul Mul, Rem rem Rem);

/// True division of floats. Integers are an error: [`Tensor::floor_div`] and [`div`] divide them.
#[track_caller]
fn true_divide(lhs: Tensor, rhs: impl Operand) -> Tensor {
    let rhs = rhs.to_tensor(&lhs.ty());
    let dtype = lhs.dtype();
    if dtype.is_int() && rhs.dtype() == dtype {
        let problem = format!(
            "`/` divides floats, and both sides are {dtype}: round down with .floor_div(rhs), \
             truncate towards zero with trace::ops::div(lhs, rhs), or convert both with \
             .to(DType::F32)"
        );
        fail_op(BinaryOp::Div.name(), problem);
    }
    div(lhs, rhs)
}

/// `lax.div`: quotients of floats; quotients of integers truncated towards zero, where `x / 0` is
/// all ones.
#[op]
pub fn div(lhs: Tensor, rhs: impl Operand) -> Tensor {
    binary(BinaryOp::Div, lhs, rhs)
}

impl<R: Operand> ops::Div<R> for Tensor {
    type Output = Tensor;
    #[op]
    fn div(self, rhs: R) -> Tensor {
        true_divide(self, rhs)
    }
}

macro_rules! literal_div {
    ($($t:ty)*) => {$(
        impl ops::Div<Tensor> for $t {
            type Output = Tensor;
            #[op]
            fn div(self, rhs: Tensor) -> Tensor {
                let like = rhs.ty();
                true_divide(self.to_tensor(&like), rhs)
            }
        }
    )*};
}
literal_div!(f64 i32);

macro_rules! bit_operators {
    ($($trait:ident $method:ident $op:ident),* $(,)?) => {$(
        impl<R: Operand> ops::$trait<R> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, rhs: R) -> Tensor {
                binary(BinaryOp::$op, self, rhs)
            }
        }
    )*};
}
bit_operators!(BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor, Shl shl ShiftLeft);

/// Arithmetic on signed integers, logical on all else.
impl<R: Operand> ops::Shr<R> for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn shr(self, rhs: R) -> Tensor {
        let op = if self.dtype().is_unsigned() {
            BinaryOp::ShiftRightLogical
        } else {
            BinaryOp::ShiftRightArithmetic
        };
        binary(op, self, rhs)
    }
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        unary(UnaryOp::Neg, self, Location::caller())
    }
}

impl ops::Not for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn not(self) -> Tensor {
        unary(UnaryOp::Not, self, Location::caller())
    }
}

/// Defines the method of a row of [`unary_ops`], if it has one.
macro_rules! unary_method {
    ([$(#[$doc:meta])*] $op:ident) => {};
    ([$(#[$doc:meta])*] $op:ident $method:ident) => {
        $(#[$doc])*
        #[op]
        pub fn $method(self) -> Tensor {
            unary(UnaryOp::$op, self, Location::caller())
        }
    };
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $op:ident $name:literal $(fn $method:ident)?: $domain:ident
       [$($fact:ident),*];)*) => {
        impl Tensor {
            $(unary_method!([$(#[$doc])*] $op $($method)?);)*
        }
    };
}
unary_ops!(unary_methods);

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[op]
            pub fn $method(self, rhs: impl Operand) -> Tensor {
                binary(BinaryOp::$op, self, rhs)
            }
        )*}
    };
}
binary_methods!(
    /// The larger of two; NaN wins. Where they are equal each gets half of the derivative.
    maximum Max,
    /// The smaller of two; NaN wins. Where they are equal each gets half of the derivative.
    minimum Min,
    /// The angle of the point (`rhs`, `self`), in radians.
    atan2 Atan2,
    /// Shifts right, filling with zeros.
    shift_right_logical ShiftRightLogical,
);

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $method:ident $op:ident),* $(,)?) => {
        impl Tensor {$(
            $(#[$doc])*
            #[op]
            pub fn $method(self, rhs: impl Operand) -> Tensor {
                compare(CompareOp::$op, self, rhs)
            }
        )*}
    };
}
compare_methods!(
    /// True where elements are equal: `lax.eq`. NaN is not equal to itself.
    eq Eq,
    /// True where elements differ: `lax.ne`.
    ne Ne,
    /// True where elements are less than those of `rhs`.
    lt Lt,
    /// True where elements are at most those of `rhs`.
    le Le,
    /// True where elements are greater than those of `rhs`.
    gt Gt,
    /// True where elements are at least those of `rhs`.
    ge Ge,
);

impl Tensor {
    /// The same values as another element type. Floats become integers by truncation, saturating,
    /// NaN becoming 0; integers wrap; to bool is "not 0".
    #[op]
    pub fn to(self, dtype: DType) -> Tensor {
        if self.dtype() == dtype {
            return self;
        }
        bind1(Op::Convert { dtype }, &[self], Location::caller())
    }

    /// `lax.bitcast_convert_type`: the same bits as another element type. Narrower elements are
    /// the parts of a wider one along a new last axis, the lowest bits first: `f32[2]` is
    /// `u8[2,4]`, and `u32[5,2]` is `f64[5]`.
    #[op]
    pub fn bitcast(self, dtype: DType) -> Tensor {
        bind1(Op::Bitcast { dtype }, &[self], Location::caller())
    }

    /// The same values, without derivative.
    #[op]
    pub fn stop_gradient(self) -> Tensor {
        bind1(Op::StopGradient, &[self], Location::caller())
    }

    /// `x * x`.
    #[op]
    pub fn square(self) -> Tensor {
        self * self
    }

    /// `1 / x`.
    #[op]
    pub fn reciprocal(self) -> Tensor {
        1.0 / self
    }

    /// `self` to the power `rhs`; `0^0` is 1. Powers of integers are those of `jnp.power`: they wrap
    /// around, and have no meaning where `rhs` is negative.
    #[op]
    pub fn pow(self, rhs: impl Operand) -> Tensor {
        let ty = self.ty();
        if !ty.dtype.is_int() {
            return binary(BinaryOp::Pow, self, rhs);
        }
        let rhs = rhs.to_tensor(&TensorType::scalar(ty.dtype));
        let (base, exponent) = broadcast_pair("pow", self, rhs);
        let one = super::ones_like(base);
        let mut product = where_(base.eq(0) & exponent.ne(0), super::zeros_like(base), one);
        let (mut power, mut bits) = (base, exponent);
        // As in JAX: of more bits every power but those of -1, 0 and 1 overflows.
        for _ in 0..6 {
            product = where_((bits & one).ne(0), product * power, product);
            (power, bits) = (power * power, bits >> one);
        }
        product
    }

    /// `x` to an integer power, by repeated multiplication of `x` or `1 / x`; exact derivative at
    /// 0.
    #[op]
    pub fn powi(self, exponent: i32) -> Tensor {
        if exponent == 0 {
            return super::ones_like(self);
        }
        let mut bits = exponent.unsigned_abs();
        let mut power = if exponent < 0 { self.reciprocal() } else { self };
        let mut product: Option<Tensor> = None;
        loop {
            if bits & 1 == 1 {
                product = Some(match product {
                    Some(product) => product * power,
                    None => power,
                });
            }
            bits >>= 1;
            if bits == 0 {
                break;
            }
            power = power * power;
        }
        product.expect("an exponent other than 0 has a bit set")
    }

    /// Limits to `low..=high`: `minimum(maximum(x, low), high)`, as `jnp.clip`; at a bound the
    /// derivative is one half.
    #[op]
    pub fn clip(self, low: impl Operand, high: impl Operand) -> Tensor {
        self.maximum(low).minimum(high)
    }

    /// Limits to `low..=high`, as `lax.clamp`; at a bound the derivative is 0.
    #[op]
    pub fn clamp(self, low: impl Operand, high: impl Operand) -> Tensor {
        let ty = self.ty();
        let low = broadcast_to(low.to_tensor(&ty), &ty.shape);
        let high = broadcast_to(high.to_tensor(&ty), &ty.shape);
        bind1(Op::Clamp, &[low, self, high], Location::caller())
    }

    /// `max(x, 0)`, with derivative 0 at 0, as `jax.nn.relu`.
    #[op]
    pub fn relu(self) -> Tensor {
        let zero = super::zeros_like(self);
        // Of the two possible selects (on `x <= 0` and on `x > 0`), this one propagates NaN.
        where_(self.le(zero), zero, self)
    }

    /// `x` where positive, else `slope * x`; derivative 1 at 0.
    #[op]
    pub fn leaky_relu(self, slope: f64) -> Tensor {
        where_(self.ge(0.0), self, self * slope)
    }

    /// `x` where positive, else `e^x - 1`.
    #[op]
    pub fn elu(self) -> Tensor {
        let positive = self.gt(0.0);
        // The other branch must not overflow where it is not chosen.
        where_(positive, self, where_(positive, super::zeros_like(self), self).expm1())
    }

    /// `x * sigmoid(x)`.
    #[op]
    pub fn silu(self) -> Tensor {
        self * self.sigmoid()
    }

    /// The Gaussian error linear unit, in its tanh form, as `jax.nn.gelu` by default.
    #[op]
    pub fn gelu(self) -> Tensor {
        let inner = (self + self * self * self * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
        self * 0.5 * (inner.tanh() + 1.0)
    }

    /// `log(1 + e^x)`, without overflow.
    #[op]
    pub fn softplus(self) -> Tensor {
        logaddexp(self, super::zeros_like(self))
    }

    /// `-log(1 + e^-x)`, without overflow.
    #[op]
    pub fn log_sigmoid(self) -> Tensor {
        -(-self).softplus()
    }

    /// `jnp.floor_divide`: rounds towards negative infinity, as Python's `//`, and is consistent
    /// with [`Tensor::modulo`]: `1.0 // 0.1` is 9.
    #[op]
    pub fn floor_div(self, rhs: impl Operand) -> Tensor {
        let (lhs, rhs) = pair("floor_div", self, rhs);
        if lhs.dtype().is_float() {
            let remainder = lhs % rhs;
            let multiple = where_(rhs.eq(0), lhs, lhs - remainder);
            let quotient = multiple / rhs;
            let below = remainder.ne(0) & rhs.sign().ne(remainder.sign());
            return where_(below, quotient - 1, quotient).round_half_away();
        }
        let quotient = div(lhs, rhs);
        if lhs.dtype().is_unsigned() {
            return quotient;
        }
        let signs_differ = lhs.sign().ne(rhs.sign());
        let inexact = (lhs % rhs).ne(0);
        where_(signs_differ & inexact, quotient - 1, quotient)
    }

    /// The nearest integer, halves away from zero.
    #[track_caller]
    fn round_half_away(self) -> Tensor {
        let whole = self.trunc();
        where_((self - whole).abs().ge(0.5), whole + self.sign(), whole)
    }

    /// `jnp.remainder`: the remainder with the sign of the divisor, as Python's `%`. Integers by 0
    /// give 0.
    #[op]
    pub fn modulo(self, rhs: impl Operand) -> Tensor {
        let may_be_zero = rhs.integer().is_none_or(|value| value == 0);
        let (lhs, mut rhs) = pair("modulo", self, rhs);
        if lhs.dtype().is_int() && rhs.dtype().is_int() && may_be_zero {
            rhs = where_(rhs.eq(0), super::ones_like(rhs), rhs);
        }
        let remainder = lhs % rhs;
        if lhs.dtype().is_unsigned() {
            return remainder;
        }
        let zero = super::zeros_like(remainder);
        let wrong_sign = remainder.lt(zero).ne(rhs.lt(zero));
        where_(wrong_sign & remainder.ne(zero), remainder + rhs, remainder)
    }

    /// True for each element that is neither infinite nor NaN.
    #[op]
    pub fn is_finite(self) -> Tensor {
        if self.dtype().is_complex() {
            return self.real().is_finite() & self.imag().is_finite();
        }
        unary(UnaryOp::IsFinite, self, Location::caller())
    }

    /// True for each element that is NaN.
    #[op]
    pub fn is_nan(self) -> Tensor {
        self.ne(self)
    }
}

/// Chooses by element: `on_true` where `predicate` holds, else `on_false`. All broadcast.
///
/// A number takes the element type of a tensor on the other side. Two numbers give bool, i32, f32
/// or c64: the first of them that holds both, as `jnp.where` does.
///
/// Both sides are computed. If the derivative of the side not chosen can be infinite or NaN,
/// give that side harmless operands as well.
#[op("where")]
pub fn where_(predicate: Tensor, on_true: impl Operand, on_false: impl Operand) -> Tensor {
    let (on_true, on_false) = match (as_tensor(on_true), as_tensor(on_false)) {
        (Some(t), Some(f)) => (t, f),
        (Some(t), None) => (t, on_false.to_tensor(&t.ty())),
        (None, Some(f)) => (on_true.to_tensor(&f.ty()), f),
        (None, None) => {
            let dtypes = [literal_dtype(on_true), literal_dtype(on_false)];
            let weak = [DType::C64, DType::F32, DType::I32, DType::Bool];
            let dtype = weak.into_iter().find(|dtype| dtypes.contains(dtype));
            let ty = TensorType::new(dtype.expect("one of these"), predicate.shape());
            (on_true.to_tensor(&ty), on_false.to_tensor(&ty))
        }
    };
    let (on_true, on_false) = broadcast_pair("where", on_true, on_false);
    let shape = super::shape::broadcast_shapes("where", &[predicate.shape(), on_true.shape()]);
    let predicate = broadcast_to(predicate, &shape);
    let (on_true, on_false) = (broadcast_to(on_true, &shape), broadcast_to(on_false, &shape));
    bind1(Op::Select, &[predicate, on_true, on_false], Location::caller())
}

/// The tensor itself, if the operand is one.
fn as_tensor<R: Operand>(operand: R) -> Option<Tensor> {
    let any: &dyn std::any::Any = &AnyOperand(operand);
    any.downcast_ref::<AnyOperand<Tensor>>().map(|tensor| tensor.0)
}

struct AnyOperand<R>(R);

/// The element type of a Rust number by itself, as JAX's for a Python number of its kind.
fn literal_dtype<R: Operand>(operand: R) -> DType {
    let is = |kind: TypeId| kind == TypeId::of::<R>();
    if is(TypeId::of::<bool>()) {
        DType::Bool
    } else if operand.integer().is_some() {
        DType::I32
    } else if is(TypeId::of::<Complex<f32>>()) || is(TypeId::of::<Complex<f64>>()) {
        DType::C64
    } else {
        DType::F32
    }
}

/// `log(e^a + e^b)`, without overflow; `-inf` with `-inf` gives `-inf`.
#[op]
pub fn logaddexp(a: Tensor, b: Tensor) -> Tensor {
    log_of_sum(a, b, 1.0)
}

/// `log(exp(a scale) + exp(b scale)) / scale`.
#[track_caller]
pub(crate) fn log_of_sum(a: Tensor, b: Tensor, scale: f64) -> Tensor {
    let (a, b) = broadcast_pair("logaddexp", a, b);
    // Chosen by one comparison, so that either side is smooth up to their boundary, and has the
    // right derivatives there: those of a maximum and of an absolute value would not add up.
    let first = a.gt(b);
    let (high, low) = (where_(first, a, b), where_(first, b, a));
    // Equal infinities differ by NaN; their sum is the answer.
    let infinities = a.eq(b) & a.is_inf();
    let difference = where_(infinities, 0.0, low - high);
    let rest = match scale {
        1.0 => difference.exp().log1p(),
        _ => (difference * scale).exp().log1p() / scale,
    };
    where_(infinities, a + b, high + rest)
}
