//! Values on the host: constants inside Programs, the interpreter's values, and data transferred to
//! and from a device.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytemuck::checked::CheckedCastError;
use bytemuck::{CheckedBitPattern, NoUninit, Pod, Zeroable};
use half::{bf16, f16};
use ndarray::{ArrayD, ArrayView, Dimension, IxDyn};
/// A complex number, the element of [`DType::C64`] and [`DType::C128`].
pub use num_complex::Complex;

pub use super::narrow::{F8E4M3FN, F8E5M2, I4, U4};
use super::types::{DType, Shape, TensorType};
use crate::error::{Error, Result};
use crate::tree::Leaf;

/// A Rust type that can be an element of a tensor.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of tensors",
    note = "element types are bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, \
            Complex<f32>, Complex<f64>, F8E4M3FN, F8E5M2, I4 and U4"
)]
pub trait Element: NoUninit + CheckedBitPattern + PartialEq + fmt::Debug + Send + Sync {
    /// The element type of this Rust type.
    const DTYPE: DType;

    /// Bytes as elements. Each byte of `bool` is checked; other types have no invalid values, and no
    /// element of theirs is looked at, which takes long in debug builds.
    ///
    /// # Errors
    /// If the bytes are not aligned, not whole elements, or no `bool`.
    #[doc(hidden)]
    fn cast_slice(bytes: &[u8]) -> std::result::Result<&[Self], CheckedCastError>;
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn cast_slice(bytes: &[u8]) -> std::result::Result<&[bool], CheckedCastError> {
        bytemuck::checked::try_cast_slice(bytes)
    }
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            fn cast_slice(bytes: &[u8]) -> std::result::Result<&[$rust], CheckedCastError> {
                Ok(bytemuck::try_cast_slice(bytes)?)
            }
        })*
    };
}
elements!(
    i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32,
    u64 => U64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, Complex<f32> => C64,
    Complex<f64> => C128, F8E4M3FN => F8E4M3FN, F8E5M2 => F8E5M2, I4 => I4, U4 => U4,
);

/// Runs `$body` with the type alias `$T` bound to the Rust type of `$dtype`.
#[macro_export]
#[doc(hidden)]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::trace::types::DType::Bool => {
                type $T = bool;
                $body
            }
            $crate::trace::types::DType::I4 => {
                type $T = $crate::trace::literal::I4;
                $body
            }
            $crate::trace::types::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::trace::types::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::trace::types::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::trace::types::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::trace::types::DType::U4 => {
                type $T = $crate::trace::literal::U4;
                $body
            }
            $crate::trace::types::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::trace::types::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::trace::types::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::trace::types::DType::U64 => {
                type $T = u64;
                $body
            }
            $crate::trace::types::DType::F8E4M3FN => {
                type $T = $crate::trace::literal::F8E4M3FN;
                $body
            }
            $crate::trace::types::DType::F8E5M2 => {
                type $T = $crate::trace::literal::F8E5M2;
                $body
            }
            $crate::trace::types::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::trace::types::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::trace::types::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::trace::types::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::trace::types::DType::C64 => {
                type $T = $crate::trace::literal::Complex<f32>;
                $body
            }
            $crate::trace::types::DType::C128 => {
                type $T = $crate::trace::literal::Complex<f64>;
                $body
            }
        }
    };
}
#[doc(hidden)]
pub use with_element;

/// 64 bytes at an address that is a multiple of 64: the alignment that a runtime needs to read host
/// memory in place, without a copy.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that start at a multiple of 64.
#[derive(Clone)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> AlignedBytes {
        AlignedBytes { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> AlignedBytes {
        let mut aligned = AlignedBytes::zeroed(bytes.len());
        aligned.as_mut().copy_from_slice(bytes);
        aligned
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

#[derive(Clone)]
enum Data {
    /// One element that is repeated.
    Splat([u8; 16]),
    Dense(Arc<AlignedBytes>),
}

/// A tensor's value on the host. Cheap to clone.
#[derive(Clone)]
pub struct Literal {
    ty: TensorType,
    data: Data,
}

impl Leaf for Literal {}

/// The elements of a dense literal's bytes.
fn elements_of<T: Element>(bytes: &[u8]) -> &[T] {
    T::cast_slice(bytes).expect("aligned elements of the literal's type")
}

impl Literal {
    /// A literal from its elements in row-major order.
    ///
    /// # Panics
    /// If the number of elements is not that of the shape.
    pub fn new<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Literal {
        let ty = TensorType::new(T::DTYPE, shape);
        assert_eq!(ty.numel(), elements.len(), "elements for a literal of type {ty}");
        Literal::from_bytes(ty, AlignedBytes::copy_of(bytemuck::cast_slice(elements)))
    }

    /// A literal whose elements are all `element`.
    pub fn splat<T: Element>(shape: impl Into<Shape>, element: T) -> Literal {
        let mut bytes = [0; 16];
        bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
        Literal { ty: TensorType::new(T::DTYPE, shape), data: Data::Splat(bytes) }
    }

    /// A literal of type `ty` whose elements are all `value`, converted to its element type.
    /// Integers wrap, floats round.
    pub fn filled(ty: TensorType, value: f64) -> Literal {
        let shape = ty.shape;
        match ty.dtype {
            DType::Bool => Literal::splat(shape, value != 0.0),
            DType::I4 => Literal::splat(shape, I4::wrapping(value as i64)),
            DType::I8 => Literal::splat(shape, value as i64 as i8),
            DType::I16 => Literal::splat(shape, value as i64 as i16),
            DType::I32 => Literal::splat(shape, value as i64 as i32),
            DType::I64 => Literal::splat(shape, value as i64),
            DType::U4 => Literal::splat(shape, U4::wrapping(value as i64)),
            DType::U8 => Literal::splat(shape, value as i64 as u8),
            DType::U16 => Literal::splat(shape, value as i64 as u16),
            DType::U32 => Literal::splat(shape, value as i64 as u32),
            DType::U64 => Literal::splat(shape, value as u64),
            DType::F8E4M3FN => Literal::splat(shape, F8E4M3FN::from_f64(value)),
            DType::F8E5M2 => Literal::splat(shape, F8E5M2::from_f64(value)),
            DType::F16 => Literal::splat(shape, f16::from_f64(value)),
            DType::BF16 => Literal::splat(shape, bf16::from_f64(value)),
            DType::F32 => Literal::splat(shape, value as f32),
            DType::F64 => Literal::splat(shape, value),
            DType::C64 => Literal::splat(shape, Complex::new(value as f32, 0.0)),
            DType::C128 => Literal::splat(shape, Complex::new(value, 0.0)),
        }
    }

    /// As [`Literal::filled`], but a value that an integer type cannot hold becomes its least or
    /// greatest element.
    pub(crate) fn saturated(ty: TensorType, value: f64) -> Literal {
        let limit = |low: f64, high: f64| value.clamp(low, high);
        let value = match ty.dtype {
            DType::I4 => limit(I4::MIN.into(), I4::MAX.into()),
            DType::I8 => limit(i8::MIN as f64, i8::MAX as f64),
            DType::I16 => limit(i16::MIN as f64, i16::MAX as f64),
            DType::I32 => limit(i32::MIN as f64, i32::MAX as f64),
            DType::U4 => limit(0.0, U4::MAX.into()),
            DType::U8 => limit(0.0, u8::MAX as f64),
            DType::U16 => limit(0.0, u16::MAX as f64),
            DType::U32 => limit(0.0, u32::MAX as f64),
            // Conversions of 64 bits saturate by themselves.
            DType::U64 | DType::I64 => value,
            DType::Bool | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => value,
            DType::F8E4M3FN | DType::F8E5M2 | DType::C64 | DType::C128 => value,
        };
        Literal::filled(ty, value)
    }

    /// A scalar.
    pub fn scalar<T: Element>(element: T) -> Literal {
        Literal::splat(Shape::scalar(), element)
    }

    /// A literal from the bytes of its elements in row-major order, in this machine's order.
    ///
    /// # Panics
    /// If the number of bytes is not that of the type.
    pub fn from_bytes(ty: TensorType, mut bytes: AlignedBytes) -> Literal {
        assert_eq!(ty.bytes(), bytes.len, "bytes for a literal of type {ty}");
        // Equal literals have equal bytes, also where a runtime leaves other bits beside the four.
        let data = bytes.as_mut().iter_mut();
        match ty.dtype {
            DType::I4 => data.for_each(|byte| *byte = I4::wrapping((*byte).into()).get() as u8),
            DType::U4 => data.for_each(|byte| *byte = U4::wrapping((*byte).into()).get()),
            _ => {}
        }
        Literal { ty, data: Data::Dense(Arc::new(bytes)) }
    }

    /// A literal that shares `bytes`.
    pub(crate) fn from_shared(ty: TensorType, bytes: Arc<AlignedBytes>) -> Literal {
        assert_eq!(ty.bytes(), bytes.len, "bytes for a literal of type {ty}");
        Literal { ty, data: Data::Dense(bytes) }
    }

    /// The type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Returns true if the literal was made from one element that is repeated.
    pub fn is_splat(&self) -> bool {
        matches!(self.data, Data::Splat(_))
    }

    /// The bytes of element `i` in row-major order.
    pub(crate) fn element_bytes(&self, i: usize) -> &[u8] {
        let size = self.ty.dtype.size();
        match &self.data {
            Data::Splat(bytes) => &bytes[..size],
            Data::Dense(bytes) => &(**bytes).as_ref()[i * size..][..size],
        }
    }

    /// The repeated element, if the literal was made from one.
    pub fn as_splat<T: Element>(&self) -> Option<T> {
        match &self.data {
            Data::Splat(bytes) if T::DTYPE == self.ty.dtype => {
                Some(bytemuck::checked::pod_read_unaligned(&bytes[..size_of::<T>()]))
            }
            _ => None,
        }
    }

    /// The same element in another shape, if the literal was made as a splat.
    pub(crate) fn resplat(&self, ty: &TensorType) -> Option<Literal> {
        with_element!(self.ty().dtype, T => {
            self.as_splat::<T>().map(|element| Literal::splat(&ty.shape, element))
        })
    }

    /// The one element as a number, if the literal was made as a splat of a real number.
    pub(crate) fn splat_value(&self) -> Option<f64> {
        match &self.data {
            Data::Dense(_) => None,
            Data::Splat(_) => Some(match self.ty.dtype {
                DType::Bool => self.as_splat::<bool>()? as u8 as f64,
                DType::I4 => self.as_splat::<I4>()?.into(),
                DType::I8 => self.as_splat::<i8>()? as f64,
                DType::I16 => self.as_splat::<i16>()? as f64,
                DType::I32 => self.as_splat::<i32>()? as f64,
                DType::I64 => self.as_splat::<i64>()? as f64,
                DType::U4 => self.as_splat::<U4>()?.into(),
                DType::U8 => self.as_splat::<u8>()? as f64,
                DType::U16 => self.as_splat::<u16>()? as f64,
                DType::U32 => self.as_splat::<u32>()? as f64,
                DType::U64 => self.as_splat::<u64>()? as f64,
                DType::F8E4M3FN => self.as_splat::<F8E4M3FN>()?.to_f64(),
                DType::F8E5M2 => self.as_splat::<F8E5M2>()?.to_f64(),
                DType::F16 => self.as_splat::<f16>()?.to_f64(),
                DType::BF16 => self.as_splat::<bf16>()?.to_f64(),
                DType::F32 => self.as_splat::<f32>()? as f64,
                DType::F64 => self.as_splat::<f64>()?,
                DType::C64 => real(self.as_splat::<Complex<f32>>()?)?.into(),
                DType::C128 => real(self.as_splat::<Complex<f64>>()?)?,
            }),
        }
    }

    /// The bytes of all elements in row-major order; a splat is written out.
    pub fn bytes(&self) -> Arc<AlignedBytes> {
        match &self.data {
            Data::Dense(bytes) => bytes.clone(),
            Data::Splat(element) => {
                let mut bytes = AlignedBytes::zeroed(self.ty.bytes());
                let size = self.ty.dtype.size();
                for chunk in bytes.as_mut().chunks_exact_mut(size) {
                    chunk.copy_from_slice(&element[..size]);
                }
                Arc::new(bytes)
            }
        }
    }

    /// Refuses a splat of more elements than can be written out on this machine.
    pub(crate) fn ensure_allocatable(&self) -> Result<()> {
        match &self.data {
            Data::Dense(_) => Ok(()),
            Data::Splat(_) => self.ty.ensure_allocatable(),
        }
    }

    /// The literal with its elements written out, so that [`Literal::as_slice`] works.
    pub fn dense(self) -> Literal {
        match self.data {
            Data::Dense(_) => self,
            Data::Splat(_) => Literal { data: Data::Dense(self.bytes()), ty: self.ty },
        }
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// If `T` is not the element type, or the literal is a splat that was not written out
    /// ([`Literal::dense`]).
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.ty.dtype, "elements of a literal of type {}", self.ty);
        match &self.data {
            Data::Dense(bytes) => elements_of((**bytes).as_ref()),
            Data::Splat(_) => panic!("a splat has no slice; call dense() first"),
        }
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// If `T` is not the element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.ensure_dtype(T::DTYPE)?;
        self.ensure_allocatable()?;
        if let Some(element) = self.as_splat::<T>() {
            return Ok(vec![element; self.ty.numel()]);
        }
        Ok(elements_of((*self.bytes()).as_ref()).to_vec())
    }

    /// A copy as an `ndarray` array.
    ///
    /// # Errors
    /// If `T` is not the element type.
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        let elements = self.to_vec()?;
        Ok(ArrayD::from_shape_vec(IxDyn(&self.ty.shape), elements)
            .expect("a literal has as many elements as its shape says"))
    }

    /// A copy of an `ndarray` array, of any memory order.
    pub fn from_ndarray<T: Element, D: Dimension>(array: ArrayView<'_, T, D>) -> Literal {
        match array.as_slice() {
            Some(elements) => Literal::new(array.shape(), elements),
            None => Literal::new(array.shape(), &array.iter().copied().collect::<Vec<T>>()),
        }
    }

    fn ensure_dtype(&self, dtype: DType) -> Result<()> {
        if dtype == self.ty.dtype {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "the value is {}, and was asked for as {dtype}; ask for {}",
            self.ty, self.ty.dtype
        )))
    }

    /// The elements as `f64`, in row-major order, whatever their type: of complex numbers the real
    /// and the imaginary part of each in turn. For tests and messages.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        let dense = self.clone().dense();
        match self.ty.dtype {
            DType::Bool => dense.as_slice::<bool>().iter().map(|&x| x as u8 as f64).collect(),
            DType::I4 => dense.as_slice::<I4>().iter().map(|&x| x.into()).collect(),
            DType::I8 => dense.as_slice::<i8>().iter().map(|&x| x as f64).collect(),
            DType::I16 => dense.as_slice::<i16>().iter().map(|&x| x as f64).collect(),
            DType::I32 => dense.as_slice::<i32>().iter().map(|&x| x as f64).collect(),
            DType::I64 => dense.as_slice::<i64>().iter().map(|&x| x as f64).collect(),
            DType::U4 => dense.as_slice::<U4>().iter().map(|&x| x.into()).collect(),
            DType::U8 => dense.as_slice::<u8>().iter().map(|&x| x as f64).collect(),
            DType::U16 => dense.as_slice::<u16>().iter().map(|&x| x as f64).collect(),
            DType::U32 => dense.as_slice::<u32>().iter().map(|&x| x as f64).collect(),
            DType::U64 => dense.as_slice::<u64>().iter().map(|&x| x as f64).collect(),
            DType::F8E4M3FN => dense.as_slice::<F8E4M3FN>().iter().map(|x| x.to_f64()).collect(),
            DType::F8E5M2 => dense.as_slice::<F8E5M2>().iter().map(|x| x.to_f64()).collect(),
            DType::F16 => dense.as_slice::<f16>().iter().map(|x| x.to_f64()).collect(),
            DType::BF16 => dense.as_slice::<bf16>().iter().map(|x| x.to_f64()).collect(),
            DType::F32 => dense.as_slice::<f32>().iter().map(|&x| x as f64).collect(),
            DType::F64 => dense.as_slice::<f64>().to_vec(),
            DType::C64 => {
                let parts = |z: &Complex<f32>| [z.re.into(), z.im.into()];
                dense.as_slice::<Complex<f32>>().iter().flat_map(parts).collect()
            }
            DType::C128 => {
                dense.as_slice::<Complex<f64>>().iter().flat_map(|z| [z.re, z.im]).collect()
            }
        }
    }
}

/// The number, if its imaginary part is +0.
fn real<F: Pod + Zeroable>(z: Complex<F>) -> Option<F> {
    let is_zero = bytemuck::bytes_of(&z.im).iter().all(|&byte| byte == 0);
    is_zero.then_some(z.re)
}

impl PartialEq for Literal {
    fn eq(&self, other: &Literal) -> bool {
        self.ty == other.ty
            && match (&self.data, &other.data) {
                (Data::Splat(a), Data::Splat(b)) => a == b,
                (Data::Dense(a), Data::Dense(b)) => {
                    Arc::ptr_eq(a, b) || (**a).as_ref() == (**b).as_ref()
                }
                _ => (*self.bytes()).as_ref() == (*other.bytes()).as_ref(),
            }
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ty.hash(state);
        // A splat equals its written-out form, so both must hash alike: by the first elements.
        let size = self.ty.dtype.size();
        match &self.data {
            Data::Splat(bytes) if self.ty.numel() > 0 => state.write(&bytes[..size]),
            Data::Splat(_) => {}
            Data::Dense(bytes) => state.write(&(**bytes).as_ref()[..size.min(self.ty.bytes())]),
        }
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.ty)?;
        if let Some(value) = self.splat_value() {
            return write!(f, "{value}");
        }
        let values = self.to_f64_vec();
        f.debug_list().entries(values.iter().take(32)).finish()?;
        if values.len() > 32 { f.write_str("...") } else { Ok(()) }
    }
}

macro_rules! literal_from {
    ($($t:ty),*) => {$(
        impl From<$t> for Literal {
            fn from(x: $t) -> Literal { Literal::scalar(x) }
        }
        impl From<Vec<$t>> for Literal {
            fn from(x: Vec<$t>) -> Literal { Literal::new([x.len()], &x) }
        }
        impl From<&[$t]> for Literal {
            fn from(x: &[$t]) -> Literal { Literal::new([x.len()], x) }
        }
        impl<const N: usize> From<[$t; N]> for Literal {
            fn from(x: [$t; N]) -> Literal { Literal::new([N], &x) }
        }
        impl<const N: usize, const M: usize> From<[[$t; M]; N]> for Literal {
            fn from(x: [[$t; M]; N]) -> Literal { Literal::new([N, M], x.as_flattened()) }
        }
    )*};
}
literal_from!(bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64);
literal_from!(Complex<f32>, Complex<f64>, F8E4M3FN, F8E5M2, I4, U4);

impl<T: Element, D: Dimension> From<ndarray::Array<T, D>> for Literal {
    fn from(array: ndarray::Array<T, D>) -> Literal {
        Literal::from_ndarray(array.view())
    }
}
