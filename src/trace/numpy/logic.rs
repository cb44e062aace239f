//! Comparisons within a tolerance, signs, neighbors, and elementwise functions of numbers.

use std::f64::consts::{LN_2, PI};

use super::incomplete::in_f32;
use crate::trace::control::while_loop;
use crate::trace::ops::{
    Operand, broadcast_pair, constant, div, full_like, ones_like, where_, zeros_like,
};
use crate::trace::remat::optimization_barrier;
use crate::trace::tensor::{Tensor, fail_op, op};
use crate::trace::types::{DType, Shape};

/// Tolerance of [`Tensor::isclose`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Closeness {
    /// Part of the absolute value of the second number.
    pub rtol: f64,
    /// Absolute part.
    pub atol: f64,
    /// True if NaN is close to NaN.
    pub equal_nan: bool,
}

impl Default for Closeness {
    fn default() -> Closeness {
        Closeness { rtol: 1e-5, atol: 1e-8, equal_nan: false }
    }
}

/// `jnp.array_equal`: true (a scalar) if both tensors have one shape and equal elements.
#[op]
pub fn array_equal(x: Tensor, y: Tensor) -> Tensor {
    if x.shape() != y.shape() { constant(false) } else { x.eq(y).all(..) }
}

/// `jnp.array_equiv`: true (a scalar) if the tensors broadcast to one shape and are equal there.
#[op]
pub fn array_equiv(x: Tensor, y: Tensor) -> Tensor {
    let (left, right) = (x.shape(), y.shape());
    let fits = |(&a, &b): (&usize, &usize)| a == b || a == 1 || b == 1;
    let pairs = |l: &Shape, r: &Shape| l.iter().rev().zip(r.iter().rev()).all(fits);
    if pairs(&left, &right) { x.eq(y).all(..) } else { constant(false) }
}

/// `jnp.logaddexp2`: `log2(2^a + 2^b)`, without overflow.
#[op]
pub fn logaddexp2(a: Tensor, b: Tensor) -> Tensor {
    crate::trace::ops::log_of_sum(a, b, LN_2)
}

#[track_caller]
fn ensure_integers(op: &str, x: Tensor) {
    if !x.dtype().is_int() {
        fail_op(op, format!("takes integers, and was given {}", x.ty()));
    }
}

#[track_caller]
fn ensure_floats(op: &str, x: Tensor) {
    if !x.dtype().is_float() {
        fail_op(op, format!("takes floats, and was given {}", x.ty()));
    }
}

impl Tensor {
    /// `jnp.isclose`: true where `|x - y|` is at most `atol + rtol |y|`, and at equal infinities.
    ///
    /// ```
    /// use podracer::trace::numpy::Closeness;
    /// use podracer::{Array, Tensor, interpret};
    /// let f = interpret(|(x, y): (Tensor, Tensor)| x.isclose(y, Closeness::default()));
    /// let close = f.call((Array::from([1.0f32, 2.0]), Array::from([1.000001f32, 2.1])))?;
    /// assert_eq!(close.to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), podracer::Error>(())
    /// ```
    #[op(at_line)]
    pub fn isclose(self, y: Tensor, tolerance: Closeness) -> Tensor {
        let Closeness { rtol, atol, equal_nan } = tolerance;
        let (x, y) = broadcast_pair("isclose", self.to_inexact(), y.to_inexact());
        let near = (x - y).abs().le(y.abs() * rtol + atol);
        let close = (near & x.is_finite() & y.is_finite()) | x.eq(y);
        if equal_nan { close | (x.is_nan() & y.is_nan()) } else { close }
    }

    /// `jnp.allclose`: true (a scalar) if all elements are close: [`Tensor::isclose`].
    #[op]
    pub fn allclose(self, y: Tensor, tolerance: Closeness) -> Tensor {
        self.isclose(y, tolerance).all(..)
    }

    /// `jnp.nan_to_num`: `nan` for NaN, the largest number of the type for infinity and the least for
    /// its negative.
    #[op]
    pub fn nan_to_num(self, nan: f64) -> Tensor {
        let largest = match self.dtype() {
            DType::F16 => 65504.0,
            DType::BF16 => f64::from(half::bf16::MAX),
            DType::F32 => f64::from(f32::MAX),
            DType::F64 => f64::MAX,
            _ => return self,
        };
        let x = where_(self.is_nan(), full_like(self, nan), self);
        let x = where_(x.eq(f64::INFINITY), full_like(x, largest), x);
        where_(x.eq(f64::NEG_INFINITY), full_like(x, -largest), x)
    }

    /// `jnp.isposinf`: true for each element that is positive infinity.
    #[op]
    pub fn is_posinf(self) -> Tensor {
        self.eq(f64::INFINITY)
    }

    /// `jnp.isneginf`: true for each element that is negative infinity.
    #[op]
    pub fn is_neginf(self) -> Tensor {
        self.eq(f64::NEG_INFINITY)
    }

    /// `jnp.signbit`: true where the sign bit is set, also of negative zero and NaN.
    #[op]
    pub fn signbit(self) -> Tensor {
        let dtype = self.dtype();
        if !dtype.is_float() {
            return self.lt(zeros_like(self));
        }
        let bits = self.bitcast(dtype.unsigned());
        (bits >> (8 * dtype.size() - 1)).ne(0)
    }

    /// `jnp.copysign`: the absolute value of `self` with the sign of `y`.
    #[op]
    pub fn copysign(self, y: Tensor) -> Tensor {
        ensure_floats("copysign", self);
        let (x, y) = broadcast_pair("copysign", self, y);
        let x = x.abs();
        where_(y.signbit(), -x, x)
    }

    /// `jnp.nextafter`: the next representable number towards `y`.
    #[op(at_line)]
    pub fn nextafter(self, y: Tensor) -> Tensor {
        ensure_floats("nextafter", self);
        let (x, y) = broadcast_pair("nextafter", self, y);
        let unsigned = x.dtype().unsigned();
        let (bits, sign_of_y) = (x.bitcast(unsigned), y.bitcast(unsigned));
        let sign = full_like(bits, 2f64.powi(8 * unsigned.size() as i32 - 1));
        // Bits of one sign are ordered as the absolute values are.
        let away = x.lt(y).eq((bits & sign).eq(0));
        let next = where_(away, bits + 1, bits - 1);
        let least = (sign_of_y & sign) | ones_like(bits);
        let next = where_((bits & !sign).eq(0), least, next).bitcast(x.dtype());
        let next = where_(x.eq(y), y, next);
        where_(x.is_nan() | y.is_nan(), full_like(x, f64::NAN), next).stop_gradient()
    }

    /// `jnp.spacing`: the distance to the next number away from zero, with the sign of the tensor. NaN at
    /// infinities and NaN.
    #[op(at_line)]
    pub fn spacing(self) -> Tensor {
        ensure_floats("spacing", self);
        let infinity = full_like(self, f64::INFINITY).copysign(self);
        let distance = (self.nextafter(infinity) - self).stop_gradient();
        // Denormal numbers count as zero in compiled code.
        let unsigned = self.dtype().unsigned();
        let least = ones_like(self.bitcast(unsigned)).bitcast(self.dtype()).copysign(self);
        where_(distance.eq(0.0), least, distance)
    }

    /// `jnp.fmax`: the larger of two, or the one that is not NaN.
    #[op(at_line)]
    pub fn fmax(self, y: Tensor) -> Tensor {
        let (x, y) = broadcast_pair("fmax", self, y);
        where_(x.gt(y) | y.ne(y), x, y)
    }

    /// `jnp.fmin`: the smaller of two, or the one that is not NaN.
    #[op(at_line)]
    pub fn fmin(self, y: Tensor) -> Tensor {
        let (x, y) = broadcast_pair("fmin", self, y);
        where_(x.lt(y) | y.ne(y), x, y)
    }

    /// `jnp.divmod`: [`Tensor::floor_div`] and [`Tensor::modulo`].
    #[op]
    pub fn divmod(self, y: impl Operand) -> (Tensor, Tensor) {
        (self.floor_div(y), self.modulo(y))
    }

    /// `jnp.modf`: the fraction, with the sign of the number, and the part before the point. The
    /// fraction of infinity is NaN, as in JAX.
    #[op]
    pub fn modf(self) -> (Tensor, Tensor) {
        let whole = self.trunc();
        (self - whole, whole)
    }

    /// `jnp.frexp`: the mantissa, from 0.5 to below 1 in absolute value, and the exponent (i32) of 2
    /// by which it is multiplied. Zeros, infinities and NaN stay, with exponent 0.
    #[op(at_line)]
    pub fn frexp(self) -> (Tensor, Tensor) {
        in_f32("frexp", [self], |[x]| mantissa_and_exponent(x))
    }

    /// `jnp.ldexp`: `x * 2^exponent`, for integer exponents.
    #[op(at_line)]
    pub fn ldexp(self, exponent: Tensor) -> Tensor {
        ensure_integers("ldexp", exponent);
        ensure_floats("ldexp", self);
        in_f32("ldexp", [self], |[x]| times_power_of_two(x, exponent.to(DType::I32)))
    }

    /// `jnp.heaviside`: 0 of negative numbers, 1 of positive ones, `at_zero` of zeros.
    #[op(at_line)]
    pub fn heaviside(self, at_zero: impl Operand) -> Tensor {
        ensure_floats("heaviside", self);
        let (x, at_zero) = broadcast_pair("heaviside", self, at_zero.to_tensor(&self.ty()));
        let one = where_(x.lt(0.0), zeros_like(x), ones_like(x));
        let value = where_(x.eq(0.0), at_zero, one);
        where_(x.is_nan(), x, value)
    }

    /// `jnp.sinc`: `sin(pi x) / (pi x)`, 1 at 0, with its derivatives there up to the fourth.
    #[op]
    pub fn sinc(self) -> Tensor {
        let x = self.to_inexact() * PI;
        let zero = x.eq(0.0);
        let safe = where_(zero, ones_like(x), x);
        let square = x.square();
        let series = 1.0 - square / 6.0 + square.square() / 120.0;
        where_(zero, series, safe.sin() / safe)
    }

    /// `jnp.deg2rad`, `radians`: degrees as radians.
    #[op]
    pub fn deg2rad(self) -> Tensor {
        self * (PI / 180.0)
    }

    /// `jnp.rad2deg`, `degrees`: radians as degrees.
    #[op]
    pub fn rad2deg(self) -> Tensor {
        self * (180.0 / PI)
    }

    /// `jnp.gcd`: the greatest common divisor of integers.
    #[op(at_line)]
    pub fn gcd(self, y: Tensor) -> Tensor {
        ensure_integers("gcd", self);
        let (x, y) = broadcast_pair("gcd", self, y);
        let size = |x: Tensor| if x.dtype().is_unsigned() { x } else { x.abs() };
        let step = |(a, b): (Tensor, Tensor)| {
            let done = b.eq(0);
            let divisor = where_(done, ones_like(b), b);
            (where_(done, a, b), where_(done, b, a % divisor))
        };
        let start = (size(x), size(y));
        // The least integer has no absolute value; what it leaves may be negative.
        size(while_loop(|(_, b): (Tensor, Tensor)| b.ne(0).any(..), step, start).0)
    }

    /// `jnp.lcm`: the least common multiple of integers; 0 if one is 0.
    #[op(at_line)]
    pub fn lcm(self, y: Tensor) -> Tensor {
        let divisor = self.gcd(y);
        let (x, y) = broadcast_pair("lcm", self, y);
        let safe = where_(divisor.eq(0), ones_like(divisor), divisor);
        let [x, y] = [x, y].map(|x| if x.dtype().is_unsigned() { x } else { x.abs() });
        crate::trace::ops::div(x, safe) * y
    }
}

/// [`Tensor::frexp`] of f32 or f64.
fn mantissa_and_exponent(x: Tensor) -> (Tensor, Tensor) {
    let (mantissa, bias) = mantissa_and_bias(x.dtype());
    let unsigned = x.dtype().unsigned();
    // Denormal numbers are made normal first.
    let tiny = x.abs().lt(2f64.powi(1 - bias));
    let normal = where_(tiny, x * 2f64.powi(mantissa + 1), x);
    let bits = normal.stop_gradient().bitcast(unsigned);
    let exponent = ((bits >> mantissa) & (2 * bias + 1)).to(DType::I32) - (bias - 1);
    let exponent = where_(tiny, exponent - (mantissa + 1), exponent);
    let plain = x.ne(0.0) & x.is_finite();
    let exponent = where_(plain, exponent, zeros_like(exponent));
    (where_(plain, times_power_of_two(x, -exponent), x), exponent)
}

/// Bits of the mantissa, and the bias of the exponent, of f32 or f64.
fn mantissa_and_bias(dtype: DType) -> (i32, i32) {
    if dtype == DType::F64 { (52, 1023) } else { (23, 127) }
}

/// [`Tensor::ldexp`] of f32 or f64.
fn times_power_of_two(x: Tensor, exponent: Tensor) -> Tensor {
    let (mantissa, bias) = mantissa_and_bias(x.dtype());
    // A larger power takes every finite number to 0 or infinity, as this one does. It has three factors,
    // each of them a normal number: the product of an infinity and 0 would be NaN.
    let limit = 2 * bias + mantissa + 2;
    let exponent = exponent.clip(-limit, limit);
    let third = div(exponent, constant(3));
    let rest = exponent - third * 2;
    // Kept apart: the product of known powers may be too small for a normal number.
    let power = |exponent| power_of_two(exponent, x.dtype());
    let first = optimization_barrier(x * power(third));
    optimization_barrier(first * power(third)) * power(rest)
}

/// 2 to the power of integers, exactly, where that is a normal number of f32 or f64.
fn power_of_two(exponent: Tensor, dtype: DType) -> Tensor {
    let (mantissa, bias) = mantissa_and_bias(dtype);
    ((exponent + bias).to(dtype.unsigned()) << mantissa).bitcast(dtype)
}
