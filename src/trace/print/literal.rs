//! Printed form of a [`Literal`]: its type, then its elements. `f32[3] [1, 2.5, -0]`, and
//! `f32[3] 2` if all are equal.
//!
//! Numbers are the shortest decimals that read back as the same bits. `{:#}` leaves nothing out:
//! many elements become the digits of their bits, `f32[100] 0x3f800000...`.

use std::fmt::{self, Display, LowerExp, Write};

use bytemuck::pod_read_unaligned as read;
use half::{bf16, f16};
use num_complex::Complex;

use super::super::literal::{F8E4M3FN, F8E5M2, I4, Literal, U4};
use super::super::types::DType;

/// Elements shown to people.
const MAX_SHOWN_ELEMENTS: usize = 32;

impl Literal {
    /// Element `i` as text that reads back as the same bits.
    pub(crate) fn element_text(&self, i: usize) -> String {
        let bytes = self.element_bytes(i);
        macro_rules! narrow_float {
            ($t:ty, $digits:literal) => {{
                let x = read::<$t>(bytes);
                let (nan, bits) = (<$t>::from_f64(f64::NAN).to_bits(), x.to_bits());
                let near = |y: f64| <$t>::from_f64(y).to_bits() == bits;
                float(shortest(x.to_f64(), near), bits.into(), nan.into(), $digits)
            }};
        }
        match self.ty().dtype {
            DType::Bool => (bytes[0] != 0).to_string(),
            DType::I4 => read::<I4>(bytes).to_string(),
            DType::I8 => read::<i8>(bytes).to_string(),
            DType::I16 => read::<i16>(bytes).to_string(),
            DType::I32 => read::<i32>(bytes).to_string(),
            DType::I64 => read::<i64>(bytes).to_string(),
            DType::U4 => read::<U4>(bytes).to_string(),
            DType::U8 => read::<u8>(bytes).to_string(),
            DType::U16 => read::<u16>(bytes).to_string(),
            DType::U32 => read::<u32>(bytes).to_string(),
            DType::U64 => read::<u64>(bytes).to_string(),
            DType::F8E4M3FN => narrow_float!(F8E4M3FN, 2),
            DType::F8E5M2 => narrow_float!(F8E5M2, 2),
            DType::F16 => narrow_float!(f16, 4),
            DType::BF16 => narrow_float!(bf16, 4),
            DType::F32 => float32(read(bytes)),
            DType::F64 => float64(read(bytes)),
            DType::C64 => {
                let z = read::<Complex<f32>>(bytes);
                complex(float32(z.re), float32(z.im))
            }
            DType::C128 => {
                let z = read::<Complex<f64>>(bytes);
                complex(float64(z.re), float64(z.im))
            }
        }
    }

    /// The bits of element `i` as digits.
    fn element_digits(&self, i: usize) -> String {
        let mut bytes = self.element_bytes(i).to_vec();
        if cfg!(target_endian = "little") {
            bytes.reverse();
        }
        bytes.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        })
    }
}

/// The number with the fewest decimal digits that is `near`.
fn shortest(x: f64, near: impl Fn(f64) -> bool) -> f64 {
    (0..8)
        .map(|digits| format!("{x:.digits$e}").parse::<f64>().unwrap_or(x))
        .find(|&y| near(y))
        .unwrap_or(x)
}

fn float<F: Display + LowerExp + Copy + Into<f64>>(
    x: F,
    bits: u64,
    nan: u64,
    digits: usize,
) -> String {
    let size = x.into().abs();
    match size {
        _ if size.is_nan() && bits != nan => format!("NaN(0x{bits:0digits$x})"),
        _ if size.is_finite() && size != 0.0 && !(1e-5..1e16).contains(&size) => format!("{x:e}"),
        _ => x.to_string(),
    }
}

fn float32(x: f32) -> String {
    float(x, x.to_bits().into(), f32::NAN.to_bits().into(), 8)
}

fn float64(x: f64) -> String {
    float(x, x.to_bits(), f64::NAN.to_bits(), 16)
}

/// A complex number as in Python, `1+2j`.
fn complex(re: String, im: String) -> String {
    let sign = if im.starts_with('-') { "" } else { "+" };
    format!("{re}{sign}{im}j")
}

impl Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.ty())?;
        if self.is_splat() {
            return f.write_str(&self.element_text(0));
        }
        let count = self.ty().numel();
        if f.alternate() && count > 2 * MAX_SHOWN_ELEMENTS {
            f.write_str("0x")?;
            return (0..count).try_for_each(|i| f.write_str(&self.element_digits(i)));
        }
        let shown = if f.alternate() { count } else { count.min(MAX_SHOWN_ELEMENTS) };
        let elements: Vec<String> = (0..shown).map(|i| self.element_text(i)).collect();
        write!(f, "[{}]{}", elements.join(", "), if shown < count { "..." } else { "" })
    }
}
