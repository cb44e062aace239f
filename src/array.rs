//! [`Array`]: a tensor's value, on the host or on a device.

use std::fmt;
use std::sync::Arc;

use ndarray::ArrayD;

use crate::error::{Error, Result};
use crate::lower::pjrt::Buffer;
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::literal::{AlignedBytes, Element, Literal, with_element};
use crate::trace::types::{DType, Shape, TensorType};
use crate::tree::{self, Leaf, Path, Tree};

/// A tensor's value: data on a device, or on the host before its transfer. Cheap to clone, `Send` and
/// `Sync`; it has no arithmetic, which is for [`Tensor`](crate::Tensor)s, inside a trace. `Array::from`
/// takes scalars, Rust's arrays and arrays of `ndarray`; [`to_ndarray`](Array::to_ndarray) is the way back.
///
/// An array given to a compiled function by value, of which no clone exists, is donated: its
/// memory is used again for the results.
#[derive(Clone)]
pub struct Array(Repr);

#[derive(Clone)]
enum Repr {
    Host(Literal),
    Device(Arc<Buffer>),
}

impl Leaf for Array {}

impl Array {
    /// An array of the given shape from its elements in row-major order.
    ///
    /// # Errors
    /// If the number of elements is not that of the shape.
    pub fn new<T: Element>(shape: impl Into<Shape>, elements: &[T]) -> Result<Array> {
        let shape = shape.into();
        if shape.numel() != elements.len() {
            return Err(Error::Argument(format!(
                "shape {shape} takes {} elements, and {} were given",
                shape.numel(),
                elements.len()
            )));
        }
        Ok(Array(Repr::Host(Literal::new(shape, elements))))
    }

    /// Zeros.
    pub fn zeros(shape: impl Into<Shape>, dtype: DType) -> Array {
        Array(Repr::Host(Literal::filled(TensorType::new(dtype, shape), 0.0)))
    }

    pub(crate) fn from_buffer(buffer: Buffer) -> Array {
        Array(Repr::Device(Arc::new(buffer)))
    }

    /// The type: element type and shape.
    pub fn ty(&self) -> &TensorType {
        match &self.0 {
            Repr::Host(literal) => literal.ty(),
            Repr::Device(buffer) => buffer.ty(),
        }
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.ty().numel()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The buffer, if the array is on a device.
    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        match &self.0 {
            Repr::Host(_) => None,
            Repr::Device(buffer) => Some(buffer),
        }
    }

    /// The literal, if the array is on the host.
    pub(crate) fn literal(&self) -> Option<&Literal> {
        match &self.0 {
            Repr::Host(literal) => Some(literal),
            Repr::Device(_) => None,
        }
    }

    /// Returns true if no other clone of this device array exists.
    pub(crate) fn is_unique(&self) -> bool {
        match &self.0 {
            Repr::Host(_) => true,
            Repr::Device(buffer) => Arc::strong_count(buffer) == 1,
        }
    }

    /// Returns the array on a device (the first, if it is on the host).
    ///
    /// # Errors
    /// Returns an error if the runtime does not start or the device is out of memory.
    pub fn to_device(&self) -> Result<Array> {
        match &self.0 {
            Repr::Device(_) => Ok(self.clone()),
            Repr::Host(literal) => Ok(Array::from_buffer(upload(literal)?)),
        }
    }

    /// Returns the array on the device with this number. If it is on another device the host is not
    /// touched, and between devices of a CPU large arrays share their memory.
    ///
    /// # Errors
    /// Returns an error if the runtime does not start, there is no such device, or the device is
    /// out of memory.
    pub fn to(&self, device: usize) -> Result<Array> {
        match &self.0 {
            Repr::Host(literal) => Ok(Array::from_buffer(upload_to(literal, device)?)),
            Repr::Device(buffer) if buffer.device()? == device => Ok(self.clone()),
            Repr::Device(buffer) => Ok(Array::from_buffer(buffer.on_device(device)?)),
        }
    }

    /// Waits until the value is computed.
    ///
    /// # Errors
    /// Returns the error of the computation.
    pub fn wait(&self) -> Result<()> {
        match &self.0 {
            Repr::Host(_) => Ok(()),
            Repr::Device(buffer) => {
                let _span = timeline::span("wait");
                buffer.wait()
            }
        }
    }

    /// The value on the host; waits for it.
    ///
    /// # Errors
    /// Returns the error of the computation, or an error if the array was donated.
    pub fn to_literal(&self) -> Result<Literal> {
        match &self.0 {
            Repr::Host(literal) => Ok(literal.clone()),
            Repr::Device(buffer) => {
                let _span = timeline::span("to the host");
                let mut bytes = AlignedBytes::zeroed(buffer.ty().bytes());
                buffer.copy_to_host(bytes.as_mut())?;
                if !buffer.ty().dtype.has_valid(bytes.as_ref()) {
                    let text = "a value of bools has bytes other than 0 and 1";
                    return Err(Error::Argument(text.into()));
                }
                Ok(Literal::from_bytes(buffer.ty().clone(), bytes))
            }
        }
    }

    /// Copies the value's bytes, in row-major order, to `into`; waits for it.
    ///
    /// # Errors
    /// If the elements have another type or number, or as [`Array::to_literal`].
    pub fn copy_to<T: Element + bytemuck::Pod>(&self, into: &mut [T]) -> Result<()> {
        let ty = self.ty();
        if T::DTYPE != ty.dtype || into.len() != ty.numel() {
            return Err(Error::Argument(format!(
                "the value is {ty}, and was to be copied to {} elements of {}",
                into.len(),
                T::DTYPE
            )));
        }
        match &self.0 {
            Repr::Host(literal) => into.copy_from_slice(&literal.to_vec::<T>()?),
            Repr::Device(buffer) => {
                let _span = timeline::span("to the host");
                buffer.copy_to_host(bytemuck::cast_slice_mut(into))?;
            }
        }
        Ok(())
    }

    /// The elements in row-major order; waits for them.
    ///
    /// # Errors
    /// If `T` is not the element type, or as [`Array::to_literal`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.to_literal()?.to_vec()
    }

    /// A copy as an `ndarray` array; waits for it.
    ///
    /// # Errors
    /// As [`Array::to_vec`].
    pub fn to_ndarray<T: Element>(&self) -> Result<ArrayD<T>> {
        self.to_literal()?.to_ndarray()
    }

    /// The one element; waits for it.
    ///
    /// # Errors
    /// If there is not exactly one, or as [`Array::to_vec`].
    pub fn item<T: Element>(&self) -> Result<T> {
        match *self.to_vec::<T>()? {
            [element] => Ok(element),
            _ => Err(Error::Argument(format!("the value is {}, and not one element", self.ty()))),
        }
    }
}

/// Uploads a host value to the first device; it is used in place if the platform can.
pub(crate) fn upload(literal: &Literal) -> Result<Buffer> {
    upload_to(literal, 0)
}

/// Uploads a host value to a device; it is used in place if the platform can.
pub(crate) fn upload_to(literal: &Literal, device: usize) -> Result<Buffer> {
    let _span = timeline::span("to the device");
    literal.ensure_allocatable()?;
    let client = &Runtime::get()?.client;
    // Small values are copied at once; a shared one costs an event.
    if literal.ty().bytes() <= 4096 {
        return client.buffer_from_host((*literal.bytes()).as_ref(), literal.ty(), device);
    }
    client.buffer_from_shared(literal.bytes(), literal.ty(), device)
}

/// A tree with every leaf on a device.
///
/// # Errors
/// As [`Array::to_device`].
pub fn to_device<M: Tree<Array>>(tree: M) -> Result<M> {
    let mut leaves = Vec::new();
    let mut failed = None;
    tree.visit_leaves(&Path::ROOT, &mut |_, leaf| match leaf.to_device() {
        Ok(leaf) => leaves.push(leaf),
        Err(error) => failed = Some(error),
    });
    match failed {
        None => Ok(tree::replace(&tree, leaves)),
        Some(error) => Err(error),
    }
}

impl<L: Into<Literal>> From<L> for Array {
    fn from(value: L) -> Array {
        Array(Repr::Host(value.into()))
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Host(literal) => write!(f, "Array(host, {literal:?})"),
            Repr::Device(buffer) => write!(f, "Array(device, {})", buffer.ty()),
        }
    }
}

/// Formats the elements, in brackets by axis; waits for them. The middle of long axes is left out,
/// and a precision, as in `{:.3}`, applies to each element. If the value is not available, since
/// its computation failed or it was donated, the error is shown.
///
/// ```
/// use podracer::{Array, Tensor, jit};
/// # fn main() -> podracer::Result<()> {
/// let half = jit(|x: Tensor| x / 2.0).call(Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?)?;
/// assert_eq!(format!("{half:.2}"), "[[0.50, 1.00],\n [1.50, 2.00]]");
/// # Ok(())
/// # }
/// ```
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_element!(self.dtype(), T => match self.to_ndarray::<T>() {
            // The precision of a word would be its length.
            Ok(elements) if self.dtype() == DType::Bool => write!(f, "{elements}"),
            Ok(elements) => fmt::Display::fmt(&elements, f),
            Err(error) => write!(f, "<{error}>"),
        })
    }
}
