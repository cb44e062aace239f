//! Functions of complex numbers.

use num_complex::{Complex, Complex64};

use crate::trace::op::UnaryOp;

/// The function of a complex number.
///
/// # Panics
/// If `op` takes no complex numbers, or gives real numbers.
#[allow(clippy::wildcard_enum_match_arm)] // Excluded by the domain of the operation.
pub(super) fn unary(op: UnaryOp) -> fn(Complex64) -> Complex64 {
    match op {
        UnaryOp::Neg => |z| -z,
        UnaryOp::Conj => |z| z.conj(),
        UnaryOp::Sign => |z| if z == Complex64::ZERO { z } else { z / z.norm() },
        UnaryOp::Exp => Complex64::exp,
        UnaryOp::Expm1 => expm1,
        UnaryOp::Log => Complex64::ln,
        UnaryOp::Log1p => log1p,
        UnaryOp::Sqrt => sqrt,
        UnaryOp::Rsqrt => |z| quotient(Complex64::ONE, sqrt(z)),
        UnaryOp::Sin => Complex64::sin,
        UnaryOp::Cos => Complex64::cos,
        // tan z = -i tanh(i z).
        UnaryOp::Tan => |z| {
            let turned = tanh(Complex::new(-z.im, z.re));
            Complex::new(turned.im, -turned.re)
        },
        UnaryOp::Tanh => tanh,
        UnaryOp::Asin => Complex64::asin,
        UnaryOp::Acos => Complex64::acos,
        UnaryOp::Sinh => Complex64::sinh,
        UnaryOp::Cosh => Complex64::cosh,
        UnaryOp::Asinh => Complex64::asinh,
        UnaryOp::Acosh => Complex64::acosh,
        UnaryOp::Atanh => Complex64::atanh,
        UnaryOp::Logistic => |z| quotient(Complex64::ONE, Complex64::ONE + (-z).exp()),
        _ => panic!("{} is not a function of complex numbers", op.name()),
    }
}

/// The function from complex to real numbers, if `op` is one.
#[allow(clippy::wildcard_enum_match_arm)] // The others give complex numbers.
pub(super) fn part(op: UnaryOp) -> Option<fn(Complex64) -> f64> {
    match op {
        UnaryOp::Real => Some(|z| z.re),
        UnaryOp::Imag => Some(|z| z.im),
        UnaryOp::Abs => Some(Complex64::norm),
        _ => None,
    }
}

/// `x / y` by Smith's method, which does not overflow where the quotient is finite.
pub(super) fn quotient(x: Complex64, y: Complex64) -> Complex64 {
    if y.re.abs() >= y.im.abs() {
        let ratio = if y.re == 0.0 { 0.0 } else { y.im / y.re };
        let size = y.re + y.im * ratio;
        Complex::new((x.re + x.im * ratio) / size, (x.im - x.re * ratio) / size)
    } else {
        let ratio = y.re / y.im;
        let size = y.re * ratio + y.im;
        Complex::new((x.re * ratio + x.im) / size, (x.im * ratio - x.re) / size)
    }
}

/// `x^y`, the principal value; `0^0` is 1.
pub(super) fn power(x: Complex64, y: Complex64) -> Complex64 {
    if y == Complex64::ZERO {
        return Complex64::ONE;
    }
    if x == Complex64::ZERO && y.re > 0.0 {
        return Complex64::ZERO;
    }
    (y * x.ln()).exp()
}

/// `e^z - 1`, exact near 0.
fn expm1(z: Complex64) -> Complex64 {
    let (sin, cos) = z.im.sin_cos();
    let half = (z.im / 2.0).sin();
    Complex::new(z.re.exp_m1() * cos - 2.0 * half * half, z.re.exp() * sin)
}

/// `log(1 + z)`, exact near 0.
fn log1p(z: Complex64) -> Complex64 {
    let size = ((2.0 + z.re) * z.re + z.im * z.im).ln_1p() / 2.0;
    Complex::new(size, z.im.atan2(1.0 + z.re))
}

fn tanh(z: Complex64) -> Complex64 {
    // Beyond that 1 - |tanh z| is less than the spacing of f64.
    if z.re.abs() > 20.0 {
        return Complex::new(z.re.signum(), 0.0);
    }
    z.tanh()
}

/// The principal root; of infinities, whose angle the polar form does not know, as XLA's.
fn sqrt(z: Complex64) -> Complex64 {
    if z.is_nan() {
        return Complex::new(f64::NAN, f64::NAN);
    }
    match (z.re.is_infinite(), z.im.is_infinite()) {
        (_, true) => Complex::new(f64::INFINITY, z.im),
        (true, _) if z.re > 0.0 => Complex::new(z.re, 0f64.copysign(z.im)),
        (true, _) => Complex::new(0.0, f64::INFINITY.copysign(z.im)),
        _ => z.sqrt(),
    }
}
