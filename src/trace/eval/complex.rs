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
        UnaryOp::Exp => |z| turned(z.re.exp(), z.re.exp(), z.im),
        UnaryOp::Expm1 => expm1,
        UnaryOp::Log => log,
        UnaryOp::Log1p => log1p,
        UnaryOp::Sqrt => sqrt,
        UnaryOp::Rsqrt => rsqrt,
        // Of 0 and an infinite part as JAX's: a part that is 0.
        UnaryOp::Sin => |z| {
            let re = if z.re == 0.0 { 0.0 } else { z.re.sin() * z.im.cosh() };
            Complex::new(re, z.re.cos() * z.im.sinh())
        },
        UnaryOp::Cos => |z| {
            let im = if z.re == 0.0 { 0.0 } else { -z.re.sin() * z.im.sinh() };
            Complex::new(z.re.cos() * z.im.cosh(), im)
        },
        // tan z = -i tanh(i z).
        UnaryOp::Tan => |z| {
            let turned = tanh(Complex::new(-z.im, z.re));
            Complex::new(turned.im, -turned.re)
        },
        UnaryOp::Tanh => tanh,
        // At infinities XLA's directions, which the polar forms do not know.
        UnaryOp::Asin => |z| match infinite(z) {
            true => Complex::new(z.re.atan2(z.im.abs()), signed(f64::INFINITY, z.im)),
            false => z.asin(),
        },
        UnaryOp::Acos => |z| match infinite(z) {
            true => Complex::new(z.im.abs().atan2(z.re), -signed(f64::INFINITY, z.im)),
            false => z.acos(),
        },
        UnaryOp::Sinh => |z| turned(z.re.sinh(), z.re.cosh(), z.im),
        UnaryOp::Cosh => |z| turned(z.re.cosh(), z.re.sinh(), z.im),
        UnaryOp::Asinh => |z| match infinite(z) {
            true => Complex::new(signed(f64::INFINITY, z.re), z.im.atan2(z.re.abs())),
            false => z.asinh(),
        },
        UnaryOp::Acosh => |z| match infinite(z) {
            true => Complex::new(f64::INFINITY, signed(z.im.abs().atan2(z.re), z.im)),
            false => z.acosh(),
        },
        UnaryOp::Atanh => atanh,
        UnaryOp::Logistic => |z| {
            quotient(Complex64::ONE, Complex64::ONE + turned((-z.re).exp(), (-z.re).exp(), -z.im))
        },
        _ => panic!("{} is not a function of complex numbers", op.name()),
    }
}

/// The function from complex to real numbers, if `op` is one.
#[allow(clippy::wildcard_enum_match_arm)] // The others give complex numbers.
pub(super) fn part(op: UnaryOp) -> Option<fn(Complex64) -> f64> {
    match op {
        UnaryOp::Real => Some(|z| z.re),
        UnaryOp::Imag => Some(|z| z.im),
        UnaryOp::Abs => Some(abs),
        _ => None,
    }
}

fn infinite(z: Complex64) -> bool {
    z.re.is_infinite() || z.im.is_infinite()
}

/// `size`, negative where `sign` is below 0.
fn signed(size: f64, sign: f64) -> f64 {
    if sign < 0.0 { -size } else { size }
}

fn atanh(z: Complex64) -> Complex64 {
    if z.is_finite() {
        return z.atanh();
    }
    let zero = if z.re >= 0.0 { 0.0 } else { -0.0 };
    let quarter = std::f64::consts::FRAC_PI_2;
    let re = if infinite(z) { zero } else { f64::NAN };
    Complex::new(re, if z.im >= 0.0 { quarter } else { -quarter })
}

/// The absolute value, NaN of NaN parts also beside infinities, as XLA's.
fn abs(z: Complex64) -> f64 {
    if z.is_nan() { f64::NAN } else { z.norm() }
}

/// The principal logarithm.
fn log(z: Complex64) -> Complex64 {
    Complex::new(abs(z).ln(), z.arg())
}

/// `real cos(angle) + i imag sin(angle)`, real at angle 0.
fn turned(real: f64, imag: f64, angle: f64) -> Complex64 {
    let imag = if angle == 0.0 && !imag.is_finite() { 0.0 } else { imag * angle.sin() };
    Complex::new(real * angle.cos(), imag)
}

/// `x / y` by Smith's method, which does not overflow where the quotient is finite; at zeros and
/// infinities that of C99, Annex G.
pub(super) fn quotient(x: Complex64, y: Complex64) -> Complex64 {
    if y == Complex64::ZERO {
        let size = f64::INFINITY.copysign(y.re);
        return Complex::new(size * x.re, size * x.im);
    }
    let found = if y.re.abs() >= y.im.abs() {
        let ratio = y.im / y.re;
        let size = y.re + y.im * ratio;
        Complex::new((x.re + x.im * ratio) / size, (x.im - x.re * ratio) / size)
    } else {
        let ratio = y.re / y.im;
        let size = y.re * ratio + y.im;
        Complex::new((x.re * ratio + x.im) / size, (x.im * ratio - x.re) / size)
    };
    if !found.re.is_nan() || !found.im.is_nan() {
        return found;
    }
    // 1 for an infinite part, 0 for a finite one.
    let direction = |z: Complex64| {
        let part = |x: f64| f64::from(u8::from(x.is_infinite())).copysign(x);
        Complex::new(part(z.re), part(z.im))
    };
    let scaled = |size: f64, x: Complex64, y: Complex64| {
        let real = x.re * y.re + x.im * y.im;
        Complex::new(size * real, size * (x.im * y.re - x.re * y.im))
    };
    if infinite(x) && y.is_finite() {
        scaled(f64::INFINITY, direction(x), y)
    } else if infinite(y) && x.is_finite() {
        scaled(0.0, x, direction(y))
    } else {
        found
    }
}

/// `x^y`, the principal value, by the formula of XLA: a part of it that is NaN makes both parts NaN.
/// `x^0` and `1^y` are 1; real powers of infinity and 0 have no direction.
pub(super) fn power(x: Complex64, y: Complex64) -> Complex64 {
    if y == Complex64::ZERO || x == Complex64::ONE {
        return Complex64::ONE;
    }
    let endless = x == Complex64::new(f64::INFINITY, 0.0);
    if y.im == 0.0 && (endless || x == Complex64::ZERO && y.re > 0.0) {
        return Complex64::new(x.re.abs().powf(y.re), 0.0);
    }
    let (size, angle) = (abs(x), x.arg());
    let phase = y.re * angle + y.im * size.ln();
    let size = size.powf(y.re) * (-y.im * angle).exp();
    Complex64::new(size * phase.cos(), size * phase.sin())
}

/// `e^z - 1`, exact near 0.
fn expm1(z: Complex64) -> Complex64 {
    let cos = z.im.cos();
    let half = (z.im / 2.0).sin();
    let imag = turned(0.0, z.re.exp(), z.im).im;
    Complex::new(z.re.exp_m1() * cos - 2.0 * half * half, imag)
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
    if z.re.is_nan() && z.im == 0.0 {
        return Complex::new(f64::NAN, 0.0);
    }
    z.tanh()
}

/// The inverse of the principal root.
fn rsqrt(z: Complex64) -> Complex64 {
    if infinite(z) && z.is_nan() {
        let re = if z.re.is_infinite() { 0f64.copysign(z.re) } else { 0.0 };
        return Complex::new(re, -signed(0.0, z.im));
    }
    let conjugated = z.re < 0.0 && z.im == 0.0 && z.im.is_sign_negative();
    quotient(Complex64::ONE, if conjugated { sqrt(z).conj() } else { sqrt(z) })
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
        // The root of a real number is of the upper half plane, whatever the sign of its zero.
        _ if z.im == 0.0 && z.re < 0.0 => Complex::new(0.0, (-z.re).sqrt()),
        _ => z.sqrt(),
    }
}
