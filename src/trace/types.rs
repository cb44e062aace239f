//! Element types, shapes, and the types of tensors: `f32[8,4]`.

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use smallvec::SmallVec;
use strum::{EnumCount, IntoStaticStr, VariantArray};

use crate::error::Error;

/// The type of a tensor's elements.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, EnumCount, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs)] // The names say it all.
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
    /// Complex numbers of two `f32`.
    C64,
    /// Complex numbers of two `f64`.
    C128,
    /// Floats of 8 bits, 4 of the exponent and 3 of the mantissa, without infinities.
    #[strum(serialize = "f8_e4m3fn")]
    F8E4M3FN,
    /// Floats of 8 bits, 5 of the exponent and 2 of the mantissa.
    #[strum(serialize = "f8_e5m2")]
    F8E5M2,
    /// Integers of 4 bits, one a byte on the host.
    I4,
    /// Unsigned integers of 4 bits, one a byte on the host.
    U4,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; DType::COUNT] = *DType::VARIANTS.first_chunk().expect("all of them");

    /// The short name: `f32`, `u8`, `bool`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns true if the bytes are elements of this type: any are, but of bools only 0 and 1.
    #[inline]
    pub(crate) fn has_valid(self, bytes: &[u8]) -> bool {
        self != DType::Bool || bytes.iter().all(|&byte| byte <= 1)
    }

    /// Bytes of one element. A bool and an integer of 4 bits take one byte.
    #[inline]
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::I4 | DType::I8 | DType::U4 | DType::U8 => 1,
            DType::F8E4M3FN | DType::F8E5M2 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// Returns true if this is a floating-point type of real numbers.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64) || self.is_float8()
    }

    /// Returns true if this is a floating-point type of 8 bits.
    pub fn is_float8(self) -> bool {
        matches!(self, DType::F8E4M3FN | DType::F8E5M2)
    }

    /// Returns true if this is an integer type of 4 bits.
    pub fn is_int4(self) -> bool {
        matches!(self, DType::I4 | DType::U4)
    }

    /// Returns true if this is a type for storage, without arithmetic: floats of 8 bits and integers
    /// of 4.
    pub fn is_narrow(self) -> bool {
        self.is_float8() || self.is_int4()
    }

    /// Returns true if this is a type of complex numbers.
    pub fn is_complex(self) -> bool {
        matches!(self, DType::C64 | DType::C128)
    }

    /// Returns true if this is a type of floats or of complex numbers, `jnp.inexact`: the only ones
    /// with gradients.
    pub fn is_inexact(self) -> bool {
        self.is_float() || self.is_complex()
    }

    /// Returns true if this is an integer type (bool is not).
    pub fn is_int(self) -> bool {
        !self.is_inexact() && self != DType::Bool
    }

    /// The type of the real and imaginary parts of complex numbers; other types as they are.
    pub fn real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// The complex numbers whose parts can hold numbers of this type: `c128` for `f64` and integers
    /// of 64 bits, otherwise `c64`.
    pub fn complex(self) -> DType {
        match self {
            DType::F64 | DType::I64 | DType::U64 | DType::C128 => DType::C128,
            _ => DType::C64,
        }
    }

    /// The unsigned integer type of the same number of bytes, at most eight.
    pub(crate) fn unsigned(self) -> DType {
        match self.size() {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        }
    }

    /// Returns true if this is an unsigned integer type.
    pub fn is_unsigned(self) -> bool {
        matches!(self, DType::U4 | DType::U8 | DType::U16 | DType::U32 | DType::U64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The sizes of a tensor's axes, outermost first. A scalar has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; `usize::MAX` where that is too large a number to be counted.
    #[inline]
    pub fn numel(&self) -> usize {
        self.0.iter().fold(1, |count, &size| count.saturating_mul(size))
    }

    /// This shape with `size` inserted before position `axis`.
    pub fn with_axis(&self, axis: usize, size: usize) -> Shape {
        let mut dims = self.0.clone();
        dims.insert(axis, size);
        Shape(dims)
    }

    /// This shape without `axis`.
    pub fn without_axis(&self, axis: usize) -> Shape {
        let mut dims = self.0.clone();
        dims.remove(axis);
        Shape(dims)
    }

    /// This shape without the `axes` listed.
    pub(crate) fn without_axes(&self, axes: &[usize]) -> Shape {
        self.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &d)| d).collect()
    }

    /// Row-major strides, in elements.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides = SmallVec::from_elem(1, self.rank());
        for i in (1..self.rank()).rev() {
            strides[i - 1] = usize::saturating_mul(strides[i], self.0[i]);
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl FromIterator<usize> for Shape {
    #[inline]
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.into())
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Shape {
        Shape(dims.as_slice().into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(SmallVec::from_vec(dims))
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(SmallVec::from_slice(&dims))
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Shape {
        Shape(SmallVec::from_slice(dims))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// The type of a tensor: element type and shape. Prints as `f32[8,4]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes of the axes.
    pub shape: Shape,
}

impl TensorType {
    /// A tensor type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// A scalar of `dtype`.
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType { dtype, shape: Shape::scalar() }
    }

    /// Element type, as [`Tensor::dtype`](crate::Tensor::dtype) and [`Array::dtype`](crate::Array::dtype).
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes, as [`Tensor::shape`](crate::Tensor::shape) and
    /// [`Array::shape`](crate::Array::shape).
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Bytes of the data; `usize::MAX` where that is too large a number to be counted.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.numel().saturating_mul(self.dtype.size())
    }

    /// Refuses a type whose sizes no machine can address: the product of all sizes but those of 0,
    /// because strides along the other axes are computed also for an array without elements.
    pub(crate) fn ensure_addressable(&self) -> Result<(), String> {
        let bytes = self
            .shape
            .iter()
            .try_fold(self.dtype.size(), |bytes, &size| bytes.checked_mul(size.max(1)));
        match bytes.is_some_and(|bytes| bytes <= isize::MAX as usize) {
            true => Ok(()),
            false => Err(format!("{self} is too large: it takes more than 2^63 bytes")),
        }
    }

    /// Refuses a type whose data cannot fit into the memory of this machine.
    ///
    /// # Errors
    /// [`Error::Argument`] with both sizes.
    pub(crate) fn ensure_allocatable(&self) -> Result<(), Error> {
        let (bytes, memory) = (self.bytes(), physical_memory());
        if bytes <= memory {
            return Ok(());
        }
        let bytes = match bytes {
            usize::MAX => "more than 2^63 bytes".to_string(),
            bytes => format!("{:.1} GiB", bytes as f64 / GIB),
        };
        Err(Error::Argument(format!(
            "{self} takes {bytes}, and this machine has {:.1} GiB of memory",
            memory as f64 / GIB
        )))
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// Bytes of memory of this machine, or fewer if this process is limited to them (`ulimit -v`).
pub(crate) fn physical_memory() -> usize {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        // SAFETY: the call fills in the struct, or leaves it as it is.
        unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
        let limit = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
        // SAFETY: `sysconf` takes any name and touches no memory of ours.
        let [pages, size] =
            unsafe { [libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)] };
        match (usize::try_from(pages), usize::try_from(size)) {
            (Ok(pages), Ok(size)) if pages > 0 && size > 0 => pages.saturating_mul(size).min(limit),
            _ => limit.min(isize::MAX as usize),
        }
    })
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_element_types_are_those_of_printed_programs() {
        let names = DType::ALL.map(DType::name).join(" ");
        let wide = "bool i8 i16 i32 i64 u8 u16 u32 u64 f16 bf16 f32 f64 c64 c128";
        assert_eq!(names, format!("{wide} f8_e4m3fn f8_e5m2 i4 u4"));
    }
}
