//! The function of every [`UnaryOp`] on floats, and the functions that the standard library lacks or
//! has for a smaller range: erf, its inverse, asinh, acosh, atanh, and threefry.

// Coefficients as they were published.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)]

use std::f64::consts::{LN_2, PI};

use super::gamma;
use crate::trace::op::UnaryOp;
use crate::trace::types::DType;

/// The function of a float, for elements of type `dtype`.
///
/// # Panics
/// If `op` takes no floats, or gives bool.
pub(super) fn unary(op: UnaryOp, dtype: DType) -> fn(f64) -> f64 {
    match op {
        UnaryOp::Neg => |x| -x,
        UnaryOp::Abs => f64::abs,
        // Not `signum`: zeros keep their sign and are not one.
        UnaryOp::Sign => |x| if x == 0.0 || x.is_nan() { x } else { x.signum() },
        UnaryOp::Exp => f64::exp,
        UnaryOp::Expm1 => f64::exp_m1,
        UnaryOp::Log => f64::ln,
        UnaryOp::Log1p => f64::ln_1p,
        UnaryOp::Sqrt => f64::sqrt,
        UnaryOp::Rsqrt => |x| 1.0 / x.sqrt(),
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tan => f64::tan,
        UnaryOp::Tanh => f64::tanh,
        UnaryOp::Asin => f64::asin,
        UnaryOp::Acos => f64::acos,
        UnaryOp::Sinh => f64::sinh,
        UnaryOp::Cosh => f64::cosh,
        UnaryOp::Asinh => asinh,
        UnaryOp::Acosh => acosh,
        UnaryOp::Atanh => atanh,
        UnaryOp::Cbrt => f64::cbrt,
        UnaryOp::Logistic => |x| 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Floor => f64::floor,
        UnaryOp::Ceil => f64::ceil,
        UnaryOp::Round => f64::round_ties_even,
        UnaryOp::Erf => erf,
        UnaryOp::Erfc => erfc,
        UnaryOp::Lgamma => gamma::lgamma,
        UnaryOp::Digamma => gamma::digamma,
        UnaryOp::ErfInv if dtype == DType::F64 => erf_inv,
        UnaryOp::ErfInv => |x| erf_inv_f32(x as f32) as f64,
        UnaryOp::BesselI0e => |x| bessel_ie(0, x),
        UnaryOp::BesselI1e => |x| bessel_ie(1, x),
        UnaryOp::IsFinite
        | UnaryOp::Not
        | UnaryOp::PopulationCount
        | UnaryOp::Clz
        | UnaryOp::Real
        | UnaryOp::Imag
        | UnaryOp::Conj => {
            panic!("{} is not a function from floats to floats", op.name())
        }
    }
}

/// The error function, to a few units in the last place of `f64`.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    if size.is_nan() {
        x
    } else if size < 2.0 {
        // Kummer's series: every term has the sign of x, so nothing cancels.
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        2.0 / PI.sqrt() * (-x * x).exp() * sum
    } else {
        (1.0 - erfc_tail(size)).copysign(x)
    }
}

/// `1 - erf(x)`, exact also where that is small.
fn erfc(x: f64) -> f64 {
    if x < 2.0 { 1.0 - erf(x) } else { erfc_tail(x) }
}

/// `1 - erf(x)` for `x >= 2`, by Laplace's continued fraction, from the far end.
fn erfc_tail(x: f64) -> f64 {
    let fraction = (1..=60).rev().fold(x, |tail, n| x + n as f64 / 2.0 / tail);
    (-x * x).exp() / PI.sqrt() / fraction
}

/// The modified Bessel function of the first kind of order 0 or 1, times `e^-|x|`.
fn bessel_ie(order: i32, x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 30.0 {
        // The power series: every term is positive, so nothing cancels.
        let (mut term, mut sum, mut k) = ((size / 2.0).powi(order), 0.0, 1.0);
        while term > 1e-18 * sum {
            sum += term;
            term *= size * size / 4.0 / (k * (k + order as f64));
            k += 1.0;
        }
        (-size).exp() * sum
    } else {
        // Hankel's asymptotic series, whose terms shrink up to about the one of number `2 |x|`.
        let square = 4.0 * (order * order) as f64;
        let (mut term, mut sum, mut k) = (1.0f64, 0.0, 1.0f64);
        while term.abs() > 1e-18 {
            sum += term;
            term *= ((2.0 * k - 1.0).powi(2) - square) / (8.0 * k * size);
            k += 1.0;
        }
        // Two roots: the product overflows at the largest number.
        sum / ((2.0 * PI).sqrt() * size.sqrt())
    };
    if order == 1 { value.copysign(x) } else { value }
}

/// The inverse hyperbolic sine; the standard library's overflows above half of the largest number.
fn asinh(x: f64) -> f64 {
    if x.abs() > 1e300 && x.is_finite() {
        return (x.abs().ln() + LN_2).copysign(x);
    }
    x.asinh()
}

/// The inverse hyperbolic cosine; the standard library's overflows as well.
fn acosh(x: f64) -> f64 {
    if x > 1e300 && x.is_finite() { x.ln() + LN_2 } else { x.acosh() }
}

/// The inverse hyperbolic tangent; the standard library's loses digits near -1.
fn atanh(x: f64) -> f64 {
    x.abs().atanh().copysign(x)
}

/// The polynomial with the given coefficients, the highest power first.
fn horner<T: Copy + std::ops::Mul<Output = T> + std::ops::Add<Output = T>>(
    coefficients: &[T],
    x: T,
) -> T {
    coefficients[1..].iter().fold(coefficients[0], |sum, &c| c + sum * x)
}

/// The inverse of the error function, as XLA computes it: M. Giles, "Approximating the erfinv
/// function", single precision. JAX's normal numbers come from it, so it is followed in `f32`;
/// where a device fuses products and sums it may differ in the last place or two.
fn erf_inv_f32(x: f32) -> f32 {
    if x.abs() == 1.0 {
        return x * f32::INFINITY;
    }
    // log1p in f64, rounded, is the correctly rounded f32 one.
    let w = -((-(x * x)) as f64).ln_1p() as f32;
    let polynomial = if w < 5.0 {
        const NEAR: [f32; 9] = [
            2.81022636e-08,
            3.43273939e-07,
            -3.5233877e-06,
            -4.39150654e-06,
            0.00021858087,
            -0.00125372503,
            -0.00417768164,
            0.246640727,
            1.50140941,
        ];
        horner(&NEAR, w - 2.5)
    } else {
        const FAR: [f32; 9] = [
            -0.000200214257,
            0.000100950558,
            0.00134934322,
            -0.00367342844,
            0.00573950773,
            -0.0076224613,
            0.00943887047,
            1.00167406,
            2.83297682,
        ];
        horner(&FAR, w.sqrt() - 3.0)
    };
    polynomial * x
}

/// The inverse of the error function in `f64`: the same author's double precision.
fn erf_inv(x: f64) -> f64 {
    if x.abs() == 1.0 {
        return x * f64::INFINITY;
    }
    let w = -(-(x * x)).ln_1p();
    let polynomial = if w < 6.25 {
        const NEAR: [f64; 23] = [
            -3.6444120640178196996e-21,
            -1.685059138182016589e-19,
            1.2858480715256400167e-18,
            1.115787767802518096e-17,
            -1.333171662854620906e-16,
            2.0972767875968561637e-17,
            6.6376381343583238325e-15,
            -4.0545662729752068639e-14,
            -8.1519341976054721522e-14,
            2.6335093153082322977e-12,
            -1.2975133253453532498e-11,
            -5.4154120542946279317e-11,
            1.051212273321532285e-09,
            -4.1126339803469836976e-09,
            -2.9070369957882005086e-08,
            4.2347877827932403518e-07,
            -1.3654692000834678645e-06,
            -1.3882523362786468719e-05,
            0.0001867342080340571352,
            -0.00074070253416626697512,
            -0.0060336708714301490533,
            0.24015818242558961693,
            1.6536545626831027356,
        ];
        horner(&NEAR, w - 3.125)
    } else if w < 16.0 {
        const MIDDLE: [f64; 19] = [
            2.2137376921775787049e-09,
            9.0756561938885390979e-08,
            -2.7517406297064545428e-07,
            1.8239629214389227755e-08,
            1.5027403968909827627e-06,
            -4.013867526981545969e-06,
            2.9234449089955446044e-06,
            1.2475304481671778723e-05,
            -4.7318229009055733981e-05,
            6.8284851459573175448e-05,
            2.4031110387097893999e-05,
            -0.0003550375203628474796,
            0.00095328937973738049703,
            -0.0016882755560235047313,
            0.0024914420961078508066,
            -0.0037512085075692412107,
            0.005370914553590063617,
            1.0052589676941592334,
            3.0838856104922207635,
        ];
        horner(&MIDDLE, w.sqrt() - 3.25)
    } else {
        const FAR: [f64; 17] = [
            -2.7109920616438573243e-11,
            -2.5556418169965252055e-10,
            1.5076572693500548083e-09,
            -3.7894654401267369937e-09,
            7.6157012080783393804e-09,
            -1.4960026627149240478e-08,
            2.9147953450901080826e-08,
            -6.7711997758452339498e-08,
            2.2900482228026654717e-07,
            -9.9298272942317002539e-07,
            4.5260625972231537039e-06,
            -1.9681778105531670567e-05,
            7.5995277030017761139e-05,
            -0.00021503011930044477347,
            -0.00013871931833623122026,
            1.0103004648645343977,
            4.8499064014085844221,
        ];
        horner(&FAR, w.sqrt() - 5.0)
    };
    polynomial * x
}

/// Threefry-2x32 with 20 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
#[inline]
pub(crate) fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    const EVEN: [u32; 4] = [13, 15, 26, 6];
    const ODD: [u32; 4] = [17, 29, 16, 24];
    let [k0, k1] = key;
    let k2 = k0 ^ k1 ^ 0x1BD1_1BDA;
    let x = [counter[0].wrapping_add(k0), counter[1].wrapping_add(k1)];
    let x = four_rounds(x, EVEN, [k1, k2.wrapping_add(1)]);
    let x = four_rounds(x, ODD, [k2, k0.wrapping_add(2)]);
    let x = four_rounds(x, EVEN, [k0, k1.wrapping_add(3)]);
    let x = four_rounds(x, ODD, [k1, k2.wrapping_add(4)]);
    four_rounds(x, EVEN, [k2, k0.wrapping_add(5)])
}

/// Four rounds of Threefry, and the addition of a key.
#[inline(always)]
fn four_rounds(x: [u32; 2], rotations: [u32; 4], key: [u32; 2]) -> [u32; 2] {
    let round = |[x0, x1]: [u32; 2], rotation| {
        let sum = x0.wrapping_add(x1);
        [sum, x1.rotate_left(rotation) ^ sum]
    };
    let x = round(round(x, rotations[0]), rotations[1]);
    let [x0, x1] = round(round(x, rotations[2]), rotations[3]);
    [x0.wrapping_add(key[0]), x1.wrapping_add(key[1])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threefry_known_answers() {
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([!0, !0], [!0, !0]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(
            threefry([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]),
            [0xc492_3a9c, 0x483d_f7a0]
        );
    }

    #[test]
    fn erf_known_values() {
        // C's erf.
        for (x, y) in [
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (1.9, 0.9927904292352575),
            (2.1, 0.997020533343667),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - y).abs() < 5e-16, "erf({x}) = {}, not {y}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(7.0), 1.0);
        assert_eq!(erf(f64::NEG_INFINITY), -1.0);
        assert_eq!(erf(-0.0).to_bits(), (-0.0f64).to_bits());
        assert!(erf(f64::NAN).is_nan());
        assert_eq!(erf(1e-300), 1e-300 * 2.0 / PI.sqrt());
    }

    #[test]
    fn erf_inv_inverts() {
        for i in -999..=999 {
            let x = i as f64 / 1000.0;
            assert!((erf(erf_inv(x)) - x).abs() < 1e-15, "{x}");
            let narrow = erf_inv_f32(x as f32);
            assert!((erf(narrow as f64) - x).abs() < 2e-7, "{x}");
        }
        // Into the tails, where the other two polynomials are.
        for exponent in 3..=15 {
            let tail = 10f64.powi(-exponent);
            let y = erf_inv(1.0 - tail);
            let error = erfc_tail(y.max(2.0)) / (1.0 - (1.0 - tail)) - 1.0;
            // Squaring x loses the last bits of 1 - x.
            let lost = 4e-16 / tail;
            assert!(y < 2.0 || error.abs() < 1e-12 + lost, "{tail}: {y}, {error}");
        }
        assert_eq!(erf_inv(1.0), f64::INFINITY);
        assert_eq!(erf_inv_f32(-1.0), f32::NEG_INFINITY);
        assert!(erf_inv_f32(1.5).is_nan() && erf_inv(f64::NAN).is_nan());
        assert_eq!(erf_inv_f32(-0.0).to_bits(), (-0.0f32).to_bits());
    }
}
