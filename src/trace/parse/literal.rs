//! Reading elements and literals.

use half::{bf16, f16};
use num_complex::Complex;

use super::super::literal::{AlignedBytes, Element, F8E4M3FN, F8E5M2, I4, Literal, U4};
use super::super::types::{DType, Shape, TensorType};
use super::reader::Reader;
use crate::error::Result;

impl<'t> Reader<'t> {
    /// A literal as it prints, type first.
    pub(super) fn literal(&mut self) -> Result<Literal> {
        let ty = self.tensor_type()?;
        self.skip_blanks();
        if self.peek() == Some('[') {
            let start = self.at;
            let scalar = || TensorType::scalar(ty.dtype);
            let elements = self.list("[", "]", |reader| {
                let element = reader.element(scalar())?;
                Ok(element.element_bytes(0).to_vec())
            })?;
            if self.eat("...") {
                let help = "elements are left out here; print the Program with `to_text()`, or \
                            the literal with `{:#}`";
                return Err(self.fault(self.at - 3, help));
            }
            return self.dense(start, ty, elements.len(), &elements.concat());
        }
        if self.rest_is_digits() {
            let start = self.at;
            self.eat("0x");
            let digits = self.word();
            let width = 2 * ty.dtype.size();
            let bytes = digits.as_bytes().chunks(width).map(|digits| self.bits(digits));
            let bytes: Option<Vec<Vec<u8>>> = bytes.collect();
            let Some(bytes) = bytes else {
                return Err(self.fault(start, &format!("{width} digits an element are needed")));
            };
            return self.dense(start, ty, bytes.len(), &bytes.concat());
        }
        self.element(ty)
    }

    fn rest_is_digits(&self) -> bool {
        self.text[self.at..].starts_with("0x")
    }

    /// The bytes of an element from the digits of its bits.
    fn bits(&self, digits: &[u8]) -> Option<Vec<u8>> {
        let pairs = digits.chunks(2).map(|pair| {
            let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
            u8::from_str_radix(text, 16).ok()
        });
        let mut bytes: Vec<u8> = pairs.collect::<Option<_>>()?;
        if cfg!(target_endian = "little") {
            bytes.reverse();
        }
        Some(bytes)
    }

    fn dense(&self, start: usize, ty: TensorType, count: usize, bytes: &[u8]) -> Result<Literal> {
        if count != ty.numel() || bytes.len() != ty.bytes() {
            let text = format!("{count} element(s) for {ty}, which has {}", ty.numel());
            return Err(self.fault(start, &text));
        }
        if !ty.dtype.has_valid(bytes) {
            return Err(self.fault(start, "the bits of a bool are 00 or 01"));
        }
        Ok(Literal::from_bytes(ty, AlignedBytes::copy_of(bytes)))
    }

    /// The element at offset `start`.
    pub(super) fn element_at(&self, start: usize, ty: TensorType) -> Result<Literal> {
        let mut reader = self.part(start, self.text.len());
        let literal = reader.element(ty)?;
        match reader.peek() {
            None => Ok(literal),
            Some(c) if c.is_whitespace() => Ok(literal),
            Some(_) => Err(reader.expected("a space")),
        }
    }

    /// One element, as a literal of type `ty` that is filled with it.
    pub(super) fn element(&mut self, ty: TensorType) -> Result<Literal> {
        let start = self.at;
        self.skip_number();
        let text = &self.text[start..self.at];
        let (dtype, shape) = (ty.dtype, ty.shape);
        splat(dtype, shape, text).ok_or_else(|| {
            let example = match dtype {
                DType::Bool => "`true` or `false`",
                _ if dtype.is_float() => "a number, `inf`, `-inf` or `NaN`",
                _ if dtype.is_complex() => "a complex number such as `1-2j`",
                _ => "an integer in its range",
            };
            let found = if text.is_empty() { "nothing" } else { text };
            self.fault(start, &format!("{dtype} wants {example}, found `{found}`"))
        })
    }
}

/// The texts of the real and the imaginary part of `1-2j`.
fn parts(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_suffix('j')?;
    // A sign that neither begins the text nor belongs to an exponent.
    let signs = text.char_indices().skip(1).filter(|(_, c)| "+-".contains(*c));
    let (at, sign) = signs.filter(|(i, _)| !text[..*i].ends_with('e')).last()?;
    let (re, im) = text.split_at(at);
    Some((re, if sign == '+' { &im[1..] } else { im }))
}

/// The complex number `1-2j` whose parts are elements of type `T`.
fn complex<T: Element>(dtype: DType, text: &str) -> Option<Complex<T>> {
    let (re, im) = parts(text)?;
    let part = |text| splat(dtype, Shape::scalar(), text)?.as_splat::<T>();
    Some(Complex::new(part(re)?, part(im)?))
}

fn splat(dtype: DType, shape: Shape, text: &str) -> Option<Literal> {
    // `f64::from_str` knows more words for these than are printed.
    let known = |word: &str| match word.trim_start_matches('-') {
        "inf" | "NaN" => true,
        number => number.starts_with(|c: char| c.is_ascii_digit()),
    };
    let float = |text: &str| text.parse::<f64>().ok().filter(|_| known(text));
    let bits = text.strip_prefix("NaN(0x").and_then(|rest| rest.strip_suffix(')'));
    let bits = |width: u32| {
        bits.and_then(|bits| u64::from_str_radix(bits, 16).ok()).filter(|b| b >> (width - 1) <= 1)
    };
    macro_rules! integer {
        ($t:ty) => {
            text.parse::<$t>().ok().map(|x| Literal::splat(shape, x))
        };
    }
    macro_rules! float {
        ($t:ty, $bits:ty, $width:expr, $read:expr) => {{
            let from_bits = bits($width).map(|b| <$t>::from_bits(b as $bits));
            let x = from_bits.filter(|x| x.is_nan()).or_else(|| $read(text));
            x.map(|x: $t| Literal::splat(shape, x))
        }};
    }
    match dtype {
        DType::Bool => integer!(bool),
        DType::I4 => Some(Literal::splat(shape, text.parse().ok().and_then(I4::new)?)),
        DType::I8 => integer!(i8),
        DType::I16 => integer!(i16),
        DType::I32 => integer!(i32),
        DType::I64 => integer!(i64),
        DType::U4 => Some(Literal::splat(shape, text.parse().ok().and_then(U4::new)?)),
        DType::U8 => integer!(u8),
        DType::U16 => integer!(u16),
        DType::U32 => integer!(u32),
        DType::U64 => integer!(u64),
        DType::F8E4M3FN => float!(F8E4M3FN, u8, 8, |text| float(text).map(F8E4M3FN::from_f64)),
        DType::F8E5M2 => float!(F8E5M2, u8, 8, |text| float(text).map(F8E5M2::from_f64)),
        DType::F16 => float!(f16, u16, 16, |text| float(text).map(f16::from_f64)),
        DType::BF16 => float!(bf16, u16, 16, |text| float(text).map(bf16::from_f64)),
        DType::F32 => {
            float!(f32, u32, 32, |text: &str| text.parse::<f32>().ok().filter(|_| known(text)))
        }
        DType::F64 => float!(f64, u64, 64, float),
        DType::C64 => Some(Literal::splat(shape, complex::<f32>(DType::F32, text)?)),
        DType::C128 => Some(Literal::splat(shape, complex::<f64>(DType::F64, text)?)),
    }
}
