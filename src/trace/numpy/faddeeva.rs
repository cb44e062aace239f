//! The Faddeeva function.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use num_complex::Complex;

use crate::trace::custom::custom_jvp;
use crate::trace::ops::{full_like, is_wide_inexact, where_};
use crate::trace::tensor::{Tensor, fail_op, op};

const I: Complex<f64> = Complex::new(0.0, 1.0);

/// `L` of Weideman (1994, "Computation of the complex error function"), for 32 coefficients:
/// `sqrt(32 / sqrt(2))`.
const L: f64 = 4.756_828_460_010_884;

/// Weideman's coefficients, highest power first.
const COEFFICIENTS: [f64; 32] = [
    -1.303_442_606_790_910_5e-12,
    3.741_183_837_373_847e-12,
    8.030_427_700_497_756e-12,
    -2.154_359_355_749_088e-11,
    -5.544_244_996_323_793e-11,
    1.165_824_698_850_374e-10,
    4.153_744_112_199_976_6e-10,
    -5.231_020_211_492_061e-10,
    -3.208_015_133_972_132_3e-9,
    8.124_886_421_653_591e-10,
    2.379_755_653_001_402_5e-8,
    2.293_043_843_891_544_5e-8,
    -1.481_307_892_913_764_2e-7,
    -4.184_076_375_051_205_3e-7,
    4.255_833_139_713_844_6e-7,
    4.401_531_731_283_225e-6,
    6.821_031_944_357_515e-6,
    -2.140_961_920_199_999_8e-5,
    -0.000_130_754_492_545_794_2,
    -0.000_245_329_802_700_382_37,
    0.000_392_591_360_701_097_05,
    0.004_519_541_105_349_309,
    0.019_006_155_784_845_5,
    0.057_304_403_529_837_28,
    0.140_607_162_268_937_55,
    0.295_444_510_715_087_4,
    0.546_013_972_063_933_8,
    0.901_925_489_364_800_1,
    1.345_544_169_234_545,
    1.825_669_629_632_481_5,
    2.263_537_299_900_267_6,
    2.572_253_408_124_569_6,
];

/// The function in the upper half plane.
fn upper_half(z: Tensor) -> Tensor {
    let iz = z * I;
    let below = -iz + L;
    let ratio = (iz + L) / below;
    // Horner's rule.
    let [first, rest @ ..] = COEFFICIENTS;
    let polynomial = rest.iter().fold(full_like(z, first), |sum, &c| sum * ratio + c);
    (polynomial * 2.0 / below + 1.0 / PI.sqrt()) / below
}

/// The function in the whole plane, by `w(z) = 2 e^(-z^2) - w(-z)`.
fn value(z: Tensor) -> Tensor {
    let is_upper = z.imag().ge(0.0);
    let of_upper = upper_half(where_(is_upper, z, -z));
    where_(is_upper, of_upper, (-(z * z)).exp() * 2.0 - of_upper)
}

/// [`value`] with its derivative, `2 i / sqrt(pi) - 2 z w(z)`.
fn of_complex(z: Tensor) -> Tensor {
    let rule = |z: Tensor, t: Tensor| {
        let w = of_complex(z);
        (w, t * (z * w * -2.0 + I * FRAC_2_SQRT_PI))
    };
    custom_jvp(value, rule)(z)
}

/// `jax.scipy.special.wofz`: the Faddeeva function `exp(-z^2) erfc(-i z)` of f32, f64, c64 or c128; the
/// result is complex. To about 13 digits, by Weideman's rational approximation, as JAX.
///
/// ```
/// use podracer::trace::numpy::wofz;
/// use podracer::{Array, Complex, Tensor, interpret};
/// let at_zero = interpret(|z: Tensor| wofz(z)).call(Array::from(0.0f32))?;
/// assert!((at_zero.item::<Complex<f32>>()? - 1.0).norm() < 1e-6);
/// # Ok::<(), podracer::Error>(())
/// ```
#[op(at_line)]
pub fn wofz(z: Tensor) -> Tensor {
    if !is_wide_inexact(z.dtype()) {
        fail_op("wofz", format!("takes f32, f64, c64 or c128, and was given {}", z.ty()));
    }
    of_complex(z.to(z.dtype().complex()))
}
