//! 8-bit floats and 4-bit integers: element types for storage and conversion, without arithmetic.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// A format of 8-bit floats: bits of the mantissa, bias of the exponent, the bits of the largest finite
/// number, and those of the results of overflow and of NaN.
struct Format {
    mantissa: u32,
    bias: i32,
    max: u8,
    overflow: u8,
    nan: u8,
}

const SIGN: u8 = 0x80;

impl Format {
    /// Rounds once, to the nearest number, halves to the even one.
    fn encode(&self, x: f64) -> u8 {
        let sign = if x.is_sign_negative() { SIGN } else { 0 };
        if x.is_nan() {
            return sign | self.nan;
        }
        let magnitude = x.abs();
        // The exponent of the numbers around `magnitude`; subnormal numbers have that of the smallest
        // normal one.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        if exponent > self.bias + 1 {
            return sign | self.overflow;
        }
        let quantum = 2f64.powi(exponent - self.mantissa as i32);
        let quanta = (magnitude / quantum).round_ties_even() as u32;
        // The leading bit of a normal number adds the last 1 to the exponent, and so does a carry.
        let code = (((exponent + self.bias - 1) as u32) << self.mantissa) + quanta;
        sign | if code > self.max.into() { self.overflow } else { code as u8 }
    }

    fn decode(&self, bits: u8) -> f64 {
        let code = bits & !SIGN;
        let size = if code <= self.max {
            let exponent = i32::from(code >> self.mantissa);
            let fraction = f64::from(code & ((1 << self.mantissa) - 1));
            let lead = if exponent == 0 { 0.0 } else { f64::from(1 << self.mantissa) };
            let quantum = exponent.max(1) - self.bias - self.mantissa as i32;
            (lead + fraction) * 2f64.powi(quantum)
        } else if code == self.overflow && self.overflow != self.nan {
            f64::INFINITY
        } else {
            f64::NAN
        };
        if bits & SIGN != 0 { -size } else { size }
    }
}

macro_rules! float8 {
    ($(#[$doc:meta])* $name:ident, $format:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            const FORMAT: Format = $format;

            /// The largest finite number.
            pub const MAX: $name = $name(Self::FORMAT.max);
            /// Not a number.
            pub const NAN: $name = $name(Self::FORMAT.nan);

            /// Creates a float from its bits.
            pub const fn from_bits(bits: u8) -> $name {
                $name(bits)
            }

            /// Returns the bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Rounds to the nearest value, ties to even.
            pub fn from_f64(x: f64) -> $name {
                $name(Self::FORMAT.encode(x))
            }

            /// Rounds to the nearest value, ties to even.
            pub fn from_f32(x: f32) -> $name {
                $name::from_f64(x.into())
            }

            /// The value, exactly.
            pub fn to_f64(self) -> f64 {
                Self::FORMAT.decode(self.0)
            }

            /// The value, exactly.
            pub fn to_f32(self) -> f32 {
                self.to_f64() as f32
            }

            /// Returns true if this is NaN.
            pub fn is_nan(self) -> bool {
                self.to_f64().is_nan()
            }

            /// Returns true if this is neither infinite nor NaN.
            pub fn is_finite(self) -> bool {
                self.to_f64().is_finite()
            }
        }

        /// As of other floats: NaN differs from itself, and -0 equals 0.
        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.to_f64() == other.to_f64()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<std::cmp::Ordering> {
                self.to_f64().partial_cmp(&other.to_f64())
            }
        }

        impl From<$name> for f32 {
            fn from(x: $name) -> f32 {
                x.to_f32()
            }
        }

        impl From<$name> for f64 {
            fn from(x: $name) -> f64 {
                x.to_f64()
            }
        }

        forward_fmt!($name, to_f64, Debug Display LowerExp);
    };
}

/// Formats as the number that `$method` returns.
macro_rules! forward_fmt {
    ($name:ident, $method:ident, $($trait:ident)*) => {$(
        impl fmt::$trait for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::$trait::fmt(&self.$method(), f)
            }
        }
    )*};
}

float8!(
    /// A float of 8 bits, 4 of the exponent and 3 of the mantissa, up to 448. There are no
    /// infinities: what is too large becomes NaN.
    F8E4M3FN,
    Format { mantissa: 3, bias: 7, max: 0x7e, overflow: 0x7f, nan: 0x7f }
);
float8!(
    /// A float of 8 bits, 5 of the exponent and 2 of the mantissa, up to 57344. What is too large
    /// becomes infinite.
    F8E5M2,
    Format { mantissa: 2, bias: 15, max: 0x7b, overflow: 0x7c, nan: 0x7e }
);

macro_rules! int4 {
    ($(#[$doc:meta])* $name:ident, $byte:ident, $min:literal, $max:literal, $($wide:ident)*) => {
        $(#[$doc])*
        ///
        /// The upper four bits of the byte that holds it are not read.
        #[derive(Clone, Copy, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name($byte);

        impl $name {
            /// The smallest number.
            pub const MIN: $name = $name($min);
            /// The largest number.
            pub const MAX: $name = $name($max);

            /// Returns `x` if it is in range.
            pub const fn new(x: $byte) -> Option<$name> {
                match x {
                    $min..=$max => Some($name(x)),
                    _ => None,
                }
            }

            /// Keeps the lowest four bits of `x`.
            pub const fn wrapping(x: i64) -> $name {
                $name($name(x as $byte).get())
            }

            /// Rounds toward zero and saturates, as `as` does; NaN becomes 0.
            pub fn saturating(x: f64) -> $name {
                $name((x as $byte).clamp($min, $max))
            }

            /// The value.
            pub const fn get(self) -> $byte {
                // The right shift repeats the sign, where there is one.
                (self.0 << 4) >> 4
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.get() == other.get()
            }
        }

        impl Eq for $name {}

        $(impl From<$name> for $wide {
            fn from(x: $name) -> $wide {
                x.get().into()
            }
        })*

        forward_fmt!($name, get, Debug Display);
    };
}

int4!(
    /// An integer of 4 bits, -8 to 7.
    I4, i8, -8, 7, i8 i16 i32 i64 i128 f32 f64
);
int4!(
    /// An unsigned integer of 4 bits, 0 to 15.
    U4, u8, 0, 15, u8 u16 u32 u64 i16 i32 i64 i128 f32 f64
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_survive_and_are_the_nearest() {
        for bits in 0..=u8::MAX {
            let (x, y) = (F8E4M3FN::from_bits(bits), F8E5M2::from_bits(bits));
            let nan =
                [F8E4M3FN::from_f64(x.to_f64()).is_nan(), F8E5M2::from_f64(y.to_f64()).is_nan()];
            assert_eq!(nan, [x.is_nan(), y.is_nan()]);
            assert!(x.is_nan() || F8E4M3FN::from_f64(x.to_f64()).to_bits() == bits);
            assert!(y.is_nan() || F8E5M2::from_f64(y.to_f64()).to_bits() == bits);
        }
        let near = |x: f64| (F8E4M3FN::from_f64(x).to_f64(), F8E5M2::from_f64(x).to_f64());
        assert_eq!(near(1.0625), (1.0, 1.0));
        assert_eq!(near(1.1875), (1.25, 1.25));
        assert_eq!(near(464.0), (448.0, 448.0));
        assert_eq!(near(61439.0).1, 57344.0);
        assert_eq!(near(61440.0).1, f64::INFINITY);
        // One rounding only: the nearest f32 is halfway, whose even neighbor is 448.
        assert_eq!(near(431.999_999_999_999_94), (416.0, 448.0));
        assert!(near(465.0).0.is_nan() && near(f64::NEG_INFINITY).0.is_nan());
    }

    #[test]
    fn integers_wrap_and_saturate() {
        assert_eq!([-9, -8, 7, 8, 300].map(|x| I4::wrapping(x).get()), [7, -8, 7, -8, -4]);
        assert_eq!([-9, 15, 16, 300].map(|x| U4::wrapping(x).get()), [7, 15, 0, 12]);
        assert_eq!([-9.5, -1.5, 7.5, f64::NAN].map(|x| I4::saturating(x).get()), [-8, -1, 7, 0]);
        assert_eq!([-9.5, 15.9, 16.0].map(|x| U4::saturating(x).get()), [0, 15, 15]);
        assert_eq!((I4::new(8), U4::new(16)), (None, None));
        assert_eq!(bytemuck::cast::<u8, I4>(0x0f), I4::wrapping(-1));
    }
}
