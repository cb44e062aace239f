//! Pieces of MLIR text: names of values, types, numbers, symbols, source locations.

use std::collections::HashMap;
use std::fmt::{self, Write};

use half::{bf16, f16};
use num_complex::Complex;

use crate::error::Loc;
use crate::trace::literal::{Element, F8E4M3FN, F8E5M2, I4, Literal, U4, with_element};
use crate::trace::op::Precision;
use crate::trace::types::{DType, TensorType};

/// A value in the text: `%3`, `%3#1` (one of several results) or `%arg3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Value {
    id: u32,
    part: u32,
}

impl Value {
    const WHOLE: u32 = u32::MAX;
    const ARGUMENT: u32 = u32::MAX - 1;

    /// The only result of an operation.
    pub(super) fn result(id: u32) -> Value {
        Value { id, part: Value::WHOLE }
    }

    /// Result `part` of an operation of `count` results.
    pub(super) fn part(id: u32, part: usize, count: usize) -> Value {
        Value { id, part: if count == 1 { Value::WHOLE } else { part as u32 } }
    }

    /// A parameter of a function or of a region.
    pub(super) fn argument(id: u32) -> Value {
        Value { id, part: Value::ARGUMENT }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Value::WHOLE => write!(f, "%{}", self.id),
            Value::ARGUMENT => write!(f, "%arg{}", self.id),
            part => write!(f, "%{}#{part}", self.id),
        }
    }
}

/// A tensor's type: `tensor<8x4xf32>`.
pub(super) struct Ty<'a>(pub(super) &'a TensorType);

impl fmt::Display for Ty<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for dim in self.0.shape.iter() {
            write!(f, "{dim}x")?;
        }
        f.write_str(element(self.0.dtype))?;
        f.write_str(">")
    }
}

/// The type `tensor<8x4xi1>` of a comparison of tensors of the given type.
pub(super) fn predicate(ty: &TensorType) -> TensorType {
    TensorType::new(DType::Bool, &ty.shape)
}

/// StableHLO's name of a precision.
pub(super) fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Default => "DEFAULT",
        Precision::High => "HIGH",
        Precision::Highest => "HIGHEST",
    }
}

/// MLIR's name of an element type.
pub(super) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i1",
        DType::I4 => "i4",
        DType::I8 => "i8",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::U4 => "ui4",
        DType::U8 => "ui8",
        DType::U16 => "ui16",
        DType::U32 => "ui32",
        DType::U64 => "ui64",
        DType::F8E4M3FN => "f8E4M3FN",
        DType::F8E5M2 => "f8E5M2",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::C64 => "complex<f32>",
        DType::C128 => "complex<f64>",
    }
}

/// `a, b, c`.
pub(super) struct List<'a, T>(pub(super) &'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            item.fmt(f)?;
        }
        Ok(())
    }
}

/// `tensor<4xf32>, tensor<i32>`.
pub(super) struct Types<'a>(pub(super) &'a [&'a TensorType]);

impl fmt::Display for Types<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ty) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            Ty(ty).fmt(f)?;
        }
        Ok(())
    }
}

/// Result types after `->`: one type, or several in parentheses.
pub(super) struct Results<'a>(pub(super) &'a [&'a TensorType]);

impl fmt::Display for Results<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [ty] => Ty(ty).fmt(f),
            types => write!(f, "({})", Types(types)),
        }
    }
}

/// `(tensor<4xf32>, tensor<i32>) -> tensor<f32>`.
pub(super) fn signature<'t>(
    inputs: &'t [&'t TensorType],
    outputs: &'t [&'t TensorType],
) -> impl fmt::Display + 't {
    struct Signature<'t>(&'t [&'t TensorType], &'t [&'t TensorType]);
    impl fmt::Display for Signature<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "({}) -> {}", Types(self.0), Results(self.1))
        }
    }
    Signature(inputs, outputs)
}

/// The layouts of row-major operands or results.
pub(super) fn row_major(tys: &[&TensorType]) -> String {
    let layouts: Vec<String> = tys
        .iter()
        .map(|ty| match ty.rank() {
            0 => "dense<> : tensor<0xindex>".to_string(),
            rank => {
                let order: Vec<String> = (0..rank).rev().map(|axis| axis.to_string()).collect();
                format!("dense<[{}]> : tensor<{rank}xindex>", order.join(", "))
            }
        })
        .collect();
    layouts.join(", ")
}

/// `@name`, quoted where the name is not an identifier.
pub(super) struct Symbol<'a>(pub(super) &'a str);

impl fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && self.0.chars().all(|c| c.is_ascii_alphanumeric() || "_$.".contains(c));
        if bare { write!(f, "@{}", self.0) } else { write!(f, "@{}", Quoted(self.0)) }
    }
}

/// A string literal.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for byte in self.0.bytes() {
            match byte {
                b'"' | b'\\' | ..0x20 | 0x7f => write!(f, "\\{byte:02X}")?,
                // MLIR takes the bytes of UTF-8 as they are, but only escapes are sure to survive
                // every printer on the way.
                0x80.. => write!(f, "\\{byte:02X}")?,
                0x20..0x7f => f.write_char(byte as char)?,
            }
        }
        f.write_str("\"")
    }
}

/// The lines of source that a module speaks of. Each is written once, at the module's end.
#[derive(Default)]
pub(super) struct Locations {
    numbers: HashMap<Loc, u32>,
    lines: Vec<Loc>,
    /// Neighboring equations mostly come from one line.
    last: Option<(Loc, u32)>,
}

impl Locations {
    /// The number of `at`, for `loc(#locN)`.
    pub(super) fn number(&mut self, at: Loc) -> u32 {
        if let Some((last, number)) = self.last
            && std::ptr::eq(last, at)
        {
            return number;
        }
        let next = self.lines.len() as u32;
        let number = *self.numbers.entry(at).or_insert(next);
        if number == next {
            self.lines.push(at);
        }
        self.last = Some((at, number));
        number
    }

    /// The definitions of all numbers.
    pub(super) fn define(&self, out: &mut String) {
        for (number, at) in self.lines.iter().enumerate() {
            let (file, line, column) = (Quoted(at.file()), at.line(), at.column());
            let _ = writeln!(out, "#loc{number} = loc({file}:{line}:{column})");
        }
    }
}

/// An element as MLIR reads it back without loss.
pub(super) trait Number: Element {
    /// Writes the element.
    fn write(self, out: &mut String);
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn write(self, out: &mut String) {
                let _ = write!(out, "{self}");
            }
        }
    )*};
}
integers!(bool, i8, i16, i32, i64, u8, u16, u32, u64, I4, U4);

macro_rules! floats {
    ($($t:ty, $digits:literal, $from_f64:expr;)*) => {$(
        impl Number for $t {
            fn write(self, out: &mut String) {
                // MLIR reads a decimal as f64 and rounds that to the type: text that does not
                // survive both steps is written as bits.
                let text = self.is_finite().then(|| decimal(self));
                let exact = text
                    .as_ref()
                    .and_then(|text| text.parse::<f64>().ok())
                    .is_some_and(|x| $from_f64(x).to_bits() == self.to_bits());
                match text {
                    Some(text) if exact => out.push_str(&text),
                    _ => {
                        let _ = write!(out, concat!("0x{:0", $digits, "X}"), self.to_bits());
                    }
                }
            }
        }
    )*};
}

impl<T: Number> Number for Complex<T>
where
    Complex<T>: Element,
{
    fn write(self, out: &mut String) {
        out.push('(');
        self.re.write(out);
        out.push_str(", ");
        self.im.write(out);
        out.push(')');
    }
}

/// The shortest decimal of a finite number, with the decimal point that MLIR requires.
fn decimal<T: Copy + fmt::Display + fmt::LowerExp>(x: T) -> String {
    let plain = x.to_string();
    if plain.len() <= 12 {
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let text = format!("{x:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text,
    }
}

floats! {
    F8E4M3FN, "2", F8E4M3FN::from_f64;
    F8E5M2, "2", F8E5M2::from_f64;
    f16, "4", f16::from_f64;
    bf16, "4", bf16::from_f64;
    f32, "8", |x: f64| x as f32;
    f64, "16", |x: f64| x;
}

/// More elements than this are written as one string of bytes.
const MAX_INLINE_ELEMENTS: usize = 64;

/// The attribute `dense<...>` of a constant.
pub(super) fn dense(out: &mut String, literal: &Literal) {
    with_element!(literal.ty().dtype, T => dense_of::<T>(out, literal));
}

fn dense_of<T: Number>(out: &mut String, literal: &Literal) {
    let ty = literal.ty();
    out.push_str("dense<");
    if ty.numel() == 0 {
        // No element, no text.
    } else if let Some(x) = literal.as_splat::<T>() {
        x.write(out);
    } else if ty.numel() > MAX_INLINE_ELEMENTS && ty.dtype != DType::Bool && !ty.dtype.is_int4() {
        // Bools and integers of 4 bits stay a list: MLIR may pack several into a byte.
        out.push_str("\"0x");
        let bytes = literal.bytes();
        let bytes = (*bytes).as_ref();
        out.reserve(2 * bytes.len() + 16);
        const HEX: &[u8; 16] = b"0123456789ABCDEF";
        for element in bytes.chunks_exact(ty.dtype.size()) {
            let little =
                |i: usize| if cfg!(target_endian = "big") { element.len() - 1 - i } else { i };
            for i in 0..element.len() {
                let byte = element[little(i)];
                out.push(HEX[(byte >> 4) as usize] as char);
                out.push(HEX[(byte & 15) as usize] as char);
            }
        }
        out.push('"');
    } else {
        let literal = literal.clone().dense();
        nested(out, &ty.shape, literal.as_slice::<T>());
    }
    out.push('>');
}

fn nested<T: Number>(out: &mut String, shape: &[usize], elements: &[T]) {
    let Some((&size, inner)) = shape.split_first() else {
        return elements[0].write(out);
    };
    out.push('[');
    for (i, part) in elements.chunks_exact(elements.len() / size).enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        nested(out, inner, part);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(literal: impl Into<Literal>) -> String {
        let mut out = String::new();
        dense(&mut out, &literal.into());
        out
    }

    #[test]
    fn numbers_are_written_without_loss() {
        assert_eq!(text(1.0f32), "dense<1.0>");
        assert_eq!(text(-0.0f32), "dense<-0.0>");
        assert_eq!(text(0.1f32), "dense<0.1>");
        assert_eq!(text(1e-30f32), "dense<1.0e-30>");
        assert_eq!(text(f32::MAX), "dense<3.4028235e38>");
        assert_eq!(text(f32::INFINITY), "dense<0x7F800000>");
        assert_eq!(text(f64::NEG_INFINITY), "dense<0xFFF0000000000000>");
        assert_eq!(text(f32::from_bits(0x7fc0_0001)), "dense<0x7FC00001>");
        assert_eq!(text(half::bf16::from_f32(1.1)), "dense<1.1015625>");
        assert_eq!(text(half::f16::NAN), "dense<0x7E00>");
        assert_eq!(text(u64::MAX), "dense<18446744073709551615>");
        assert_eq!(text(true), "dense<true>");
    }

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            let mut out = String::new();
            f16::from_bits(bits).write(&mut out);
            let back = match out.strip_prefix("0x") {
                Some(hex) => u16::from_str_radix(hex, 16).unwrap(),
                None => f16::from_f64(out.parse().unwrap()).to_bits(),
            };
            assert_eq!(back, bits, "{out}");
        }
    }

    #[test]
    fn arrays_are_dense_attributes() {
        assert_eq!(text([[1, 2], [3, 4]]), "dense<[[1, 2], [3, 4]]>");
        assert_eq!(text(Literal::new([0, 3], &[0f32; 0])), "dense<>");
        assert_eq!(text(Literal::splat([100], 2u8)), "dense<2>");
        let many = text((0..65u16).collect::<Vec<_>>());
        assert!(many.starts_with("dense<\"0x000001000200"), "{many}");
    }

    #[test]
    fn names_are_quoted_where_needed() {
        assert_eq!(Symbol("main").to_string(), "@main");
        assert_eq!(Symbol("ppo update").to_string(), "@\"ppo update\"");
        assert_eq!(Quoted("a\"b\\c\n").to_string(), "\"a\\22b\\5Cc\\0A\"");
    }
}
