//! One call of a native function: its operands, results and attributes.

use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::{Pod, checked};
use smallvec::SmallVec;

use super::abi::{self, ArrayAttribute, Frame, List, RawBuffer, ScalarAttribute, Text};
use crate::trace::literal::Element;
use crate::trace::types::{DType, Shape, TensorType};

/// The operands, results and attributes of one call.
pub struct Call<'a> {
    pub(super) frame: &'a Frame,
    /// Results that were lent: each is lent once, for it is lent for writing.
    lent: Spans,
    /// Operands that were lent: no result may be written there.
    borrowed: RefCell<Spans>,
    lifetime: PhantomData<&'a mut u8>,
}

/// The numbers and the memory of operands or results. Few calls have more than sixteen: a step of
/// environments has thirteen results.
type Spans = SmallVec<[(usize, Span); 16]>;

/// The addresses of a buffer's bytes. One without bytes may have any address, and overlaps none.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    #[inline]
    fn of(buffer: &RawBuffer) -> Span {
        match byte_len(buffer) {
            0 => Span { start: 0, end: 0 },
            len => Span { start: buffer.data as usize, end: buffer.data as usize + len },
        }
    }

    /// The number of one of the others that shares some of its bytes.
    #[inline]
    fn over(self, others: &Spans) -> Option<usize> {
        let shares = |other: &Span| self.start < other.end && other.start < self.end;
        others.iter().find(|(_, other)| shares(other)).map(|&(number, _)| number)
    }
}

/// A tensor in a call.
#[derive(Debug)]
pub struct Operand<'a, T> {
    /// The sizes of the axes.
    pub dims: &'a [i64],
    /// The elements, row-major.
    pub data: &'a [T],
}

/// A tensor in a call, of any element type.
#[derive(Debug)]
pub struct RawOperand<'a> {
    /// Element type and shape.
    pub ty: TensorType,
    /// The bytes of the elements, row-major.
    pub bytes: &'a [u8],
}

/// A result in a call, of any element type.
#[derive(Debug)]
pub struct RawResult<'a> {
    /// Element type and shape.
    pub ty: TensorType,
    /// Memory for the bytes of the elements, row-major.
    pub bytes: &'a mut [u8],
}

/// A number that an attribute holds: `7 : i64`, `0.5 : f32`, `true`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Value<'a> {
    Scalar(DType, &'a [u8]),
    Array(DType, &'a [u8]),
    Text(&'a str),
}

impl<'a> Call<'a> {
    /// # Safety
    /// `frame` must be that of a call being executed, alive and unchanged for `'a`.
    pub(super) unsafe fn new(frame: *const Frame) -> Call<'a> {
        // SAFETY: the caller's promise.
        let frame = unsafe { &*frame };
        let (lent, borrowed) = (Spans::new(), RefCell::new(Spans::new()));
        Call { frame, lent, borrowed, lifetime: PhantomData }
    }

    /// Number of operands.
    pub fn num_operands(&self) -> usize {
        self.frame.args.size.max(0) as usize
    }

    /// Number of results.
    pub fn num_results(&self) -> usize {
        self.frame.rets.size.max(0) as usize
    }

    /// The type of operand `i`.
    ///
    /// # Errors
    /// If there is none, or its elements have no [`DType`].
    pub fn operand_type(&self, i: usize) -> Result<TensorType, String> {
        type_of(at(&self.frame.args, "operand", i)?)
    }

    /// The type of result `i`.
    ///
    /// # Errors
    /// If there is none, or its elements have no [`DType`].
    pub fn result_type(&self, i: usize) -> Result<TensorType, String> {
        type_of(at(&self.frame.rets, "result", i)?)
    }

    /// Operand `i`, a tensor of `T`.
    ///
    /// # Errors
    /// If there is none, its elements are of another type, or a result was written in its memory.
    pub fn operand<T: Element>(&self, i: usize) -> Result<Operand<'a, T>, String> {
        let (span, operand) = self.typed_operand(i)?;
        self.borrow(i, span);
        Ok(operand)
    }

    /// Notes that operand `i` is lent.
    #[inline]
    fn borrow(&self, i: usize, span: Span) {
        let mut borrowed = self.borrowed.borrow_mut();
        if !borrowed.iter().any(|&(number, _)| number == i) {
            borrowed.push((i, span));
        }
    }

    /// A copy of operand `i`, a tensor of `T`, and the sizes of its axes. Unlike [`Call::operand`]
    /// it leaves a result that has the operand's memory free to be written.
    ///
    /// # Errors
    /// As [`Call::operand`].
    pub fn operand_to_vec<T: Element>(&self, i: usize) -> Result<(&'a [i64], Vec<T>), String> {
        let (_, Operand { dims, data }) = self.typed_operand::<T>(i)?;
        Ok((dims, data.to_vec()))
    }

    fn typed_operand<T: Element>(&self, i: usize) -> Result<(Span, Operand<'a, T>), String> {
        let (span, buffer) = self.unwritten_operand(i)?;
        let buffer = typed::<T>(buffer, "operand", i)?;
        let data = T::cast_slice(operand_bytes(buffer)?)
            .map_err(|fault| format!("operand {i} cannot be read as {}: {fault}", T::DTYPE))?;
        Ok((span, Operand { dims: dims(buffer), data }))
    }

    /// Operand `i` and its memory, if no result was lent there.
    #[inline]
    fn unwritten_operand(&self, i: usize) -> Result<(Span, &'a RawBuffer), String> {
        let buffer = at(&self.frame.args, "operand", i)?;
        let span = Span::of(buffer);
        match span.over(&self.lent) {
            Some(j) => Err(format!("operand {i} has the memory of result {j}, asked for before")),
            None => Ok((span, buffer)),
        }
    }

    /// Fails if a result has bytes that are no elements of its type: of bools, others than 0 and 1.
    /// Programs and safe code take them for bools.
    pub(super) fn check_elements(self) -> Result<(), String> {
        for i in 0..self.num_results() {
            let buffer = at(&self.frame.rets, "result", i)?;
            if abi::dtype_of(buffer.dtype) != Some(DType::Bool) {
                continue;
            }
            // SAFETY: the runtime keeps a result's elements alive during the call, and they are as
            // many as the dims say; the kernel has ended, and with it what was lent.
            let bytes = unsafe { slice(buffer.data.cast(), byte_len(buffer)) };
            if !DType::Bool.has_valid(bytes) {
                return Err(format!("result {i} has bytes other than 0 and 1 as bools"));
            }
        }
        Ok(())
    }

    /// Operand `i`, whatever its element type.
    ///
    /// # Errors
    /// If there is none, or its elements have no [`DType`].
    pub fn raw_operand(&self, i: usize) -> Result<RawOperand<'a>, String> {
        let (span, buffer) = self.unwritten_operand(i)?;
        let operand = RawOperand { ty: type_of(buffer)?, bytes: operand_bytes(buffer)? };
        self.borrow(i, span);
        Ok(operand)
    }

    /// Returns the memory for the elements of result `i`, a tensor of `T`. Each result can be asked
    /// for once.
    ///
    /// `bool` is no such `T`, for memory not written yet may hold no bool: see [`Call::write`].
    ///
    /// # Errors
    /// If there is none, if its elements are of another type, or if it was asked for before.
    pub fn result<T: Element + Pod>(&mut self, i: usize) -> Result<&'a mut [T], String> {
        typed::<T>(at(&self.frame.rets, "result", i)?, "result", i)?;
        let bytes = self.lend(i)?;
        bytemuck::try_cast_slice_mut(bytes)
            .map_err(|fault| format!("result {i} cannot be written as {}: {fault}", T::DTYPE))
    }

    /// Writes result `i`.
    ///
    /// # Errors
    /// As [`Call::result`]; and if the elements are not as many as it has.
    pub fn write<T: Element>(&mut self, i: usize, elements: &[T]) -> Result<(), String> {
        let buffer = typed::<T>(at(&self.frame.rets, "result", i)?, "result", i)?;
        let bytes = self.lend(i)?;
        if size_of_val(elements) != bytes.len() {
            let (ty, given) = (type_of(buffer)?, elements.len());
            return Err(format!("result {i} is {ty}, and {given} elements were given for it"));
        }
        bytes.copy_from_slice(bytemuck::cast_slice(elements));
        Ok(())
    }

    /// Result `i`, whatever its element type. Each result can be asked for once.
    ///
    /// # Errors
    /// If there is none, if its elements have no [`DType`], or if it was asked for before, or an
    /// operand or another result in the same memory was.
    pub fn raw_result(&mut self, i: usize) -> Result<RawResult<'a>, String> {
        let ty = self.result_type(i)?;
        Ok(RawResult { ty, bytes: self.lend(i)? })
    }

    /// The memory of result `i`, which is lent once.
    fn lend(&mut self, i: usize) -> Result<&'a mut [u8], String> {
        let buffer = at(&self.frame.rets, "result", i)?;
        if self.lent.iter().any(|&(number, _)| number == i) {
            return Err(format!("result {i} was asked for twice"));
        }
        let span = Span::of(buffer);
        if let Some(j) = span.over(&self.lent) {
            return Err(format!(
                "result {i} has the memory of result {j}, which was asked for: leave out \
                 output_operand_aliases of one of them"
            ));
        }
        self.lent.push((i, span));
        if let Some(j) = span.over(&self.borrowed.borrow()) {
            return Err(format!(
                "result {i} has the memory of operand {j}, which was asked for: leave out \
                 output_operand_aliases, or copy the operand (Call::operand_to_vec)"
            ));
        }
        Ok(match byte_len(buffer) {
            // Aligned as all elements want it.
            0 => bytemuck::cast_slice_mut::<u64, u8>(&mut []),
            // SAFETY: the runtime hands a result's memory, of the bytes of its type, to this call
            // alone; of the operands and results that were lent it overlaps none, as was seen above,
            // and those that it overlaps are not lent any more; and it is lent once.
            len => unsafe { std::slice::from_raw_parts_mut(buffer.data.cast(), len) },
        })
    }

    /// The number under `name` in the call's `backend_config`: `{name = 7 : i64}` for `i64`,
    /// `{name = 0.5 : f32}` for `f32`, `{name = true}` for `bool`.
    ///
    /// # Errors
    /// If there is none, or it is something else.
    pub fn attribute<T: Element>(&self, name: &str) -> Result<T, String> {
        match self.value(name)? {
            Value::Scalar(dtype, bytes) if dtype == T::DTYPE => {
                checked::try_pod_read_unaligned(bytes)
                    .map_err(|fault| format!("attribute `{name}`: {fault}"))
            }
            other => Err(other.mismatch(name, &format!("one {}", T::DTYPE))),
        }
    }

    /// The text under `name`: `{name = "text"}`.
    ///
    /// # Errors
    /// If there is none, or it is something else.
    pub fn text(&self, name: &str) -> Result<&'a str, String> {
        match self.value(name)? {
            Value::Text(text) => Ok(text),
            other => Err(other.mismatch(name, "a text")),
        }
    }

    /// The numbers under `name`: `{name = array<i64: 1, 2, 3>}` for `i64`.
    ///
    /// # Errors
    /// If there are none, or it is something else.
    pub fn array<T: Element>(&self, name: &str) -> Result<Vec<T>, String> {
        match self.value(name)? {
            Value::Array(dtype, bytes) if dtype == T::DTYPE => bytes
                .chunks_exact(size_of::<T>())
                .map(|bytes| {
                    checked::try_pod_read_unaligned(bytes)
                        .map_err(|fault| format!("attribute `{name}`: {fault}"))
                })
                .collect(),
            other => Err(other.mismatch(name, &format!("an array of {}", T::DTYPE))),
        }
    }

    fn value(&self, name: &str) -> Result<Value<'a>, String> {
        let list = &self.frame.attributes;
        for i in 0..list.size.max(0) as usize {
            // SAFETY: the list has as many names, kinds and values as it says, all alive during
            // the call.
            let (here, kind, value) =
                unsafe { (text(*list.names.add(i)), *list.kinds.add(i), *list.values.add(i)) };
            if here == name.as_bytes() {
                // SAFETY: a value is what its kind says.
                return unsafe { read(kind, value) }
                    .ok_or_else(|| format!("attribute `{name}` is of a kind that is not read"));
            }
        }
        Err(format!("there is no attribute `{name}`"))
    }
}

impl Value<'_> {
    fn mismatch(self, name: &str, expected: &str) -> String {
        let found = match self {
            Value::Scalar(dtype, _) => format!("one {dtype}"),
            Value::Array(dtype, _) => format!("an array of {dtype}"),
            Value::Text(_) => "a text".to_string(),
        };
        format!("attribute `{name}` is {found}, and was asked for as {expected}")
    }
}

/// # Safety
/// `value` must point to what `kind` says, alive for `'a`.
unsafe fn read<'a>(kind: i32, value: *const c_void) -> Option<Value<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            abi::SCALAR => {
                let scalar = &*value.cast::<ScalarAttribute>();
                let dtype = abi::dtype_of(scalar.dtype)?;
                Some(Value::Scalar(dtype, slice(scalar.value.cast(), dtype.size())))
            }
            abi::ARRAY => {
                let array = &*value.cast::<ArrayAttribute>();
                let dtype = abi::dtype_of(array.dtype)?;
                Some(Value::Array(dtype, slice(array.data.cast(), array.len * dtype.size())))
            }
            abi::STRING => std::str::from_utf8(text(value.cast())).ok().map(Value::Text),
            _ => None,
        }
    }
}

/// # Safety
/// `text` must be alive for `'a`.
unsafe fn text<'a>(text: *const Text) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { slice((*text).start, (*text).len) }
}

/// # Safety
/// `start` must point to `len` bytes that live and stay unwritten for `'a`.
#[inline]
unsafe fn slice<'a>(start: *const u8, len: usize) -> &'a [u8] {
    if len == 0 {
        // Aligned as all elements want it.
        return bytemuck::cast_slice::<u64, u8>(&[]);
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(start, len) }
}

#[inline]
fn at<'a>(list: &'a List, what: &str, i: usize) -> Result<&'a RawBuffer, String> {
    if i >= list.size.max(0) as usize {
        return Err(format!("there is no {what} {i}: the call has {}", list.size));
    }
    // SAFETY: the list has as many items as it says, each a live buffer.
    Ok(unsafe { &**list.items.add(i) })
}

#[inline]
fn typed<'a, T: Element>(
    buffer: &'a RawBuffer,
    what: &str,
    i: usize,
) -> Result<&'a RawBuffer, String> {
    if abi::dtype_of(buffer.dtype) == Some(T::DTYPE) {
        return Ok(buffer);
    }
    Err(format!("{what} {i} is {}, and was asked for as {}", type_of(buffer)?, T::DTYPE))
}

#[inline]
fn type_of(buffer: &RawBuffer) -> Result<TensorType, String> {
    let dtype = abi::dtype_of(buffer.dtype).ok_or_else(|| {
        format!("XLA's element type number {} has no element type here", buffer.dtype)
    })?;
    let shape: Shape = dims(buffer).iter().map(|&size| size as usize).collect();
    Ok(TensorType::new(dtype, shape))
}

#[inline]
fn dims(buffer: &RawBuffer) -> &[i64] {
    if buffer.rank == 0 {
        return &[];
    }
    // SAFETY: a buffer has as many dims as its rank says.
    unsafe { std::slice::from_raw_parts(buffer.dims, buffer.rank as usize) }
}

/// Number of bytes of a buffer's elements; 0 if they have no [`DType`].
#[inline]
pub(super) fn byte_len(buffer: &RawBuffer) -> usize {
    let size = abi::dtype_of(buffer.dtype).map_or(0, DType::size);
    size * dims(buffer).iter().map(|&size| size as usize).product::<usize>()
}

#[inline]
fn operand_bytes(buffer: &RawBuffer) -> Result<&[u8], String> {
    // SAFETY: the runtime keeps an operand's elements alive and unwritten during the call, and
    // they are as many as the dims say.
    Ok(unsafe { slice(buffer.data.cast(), byte_len(buffer)) })
}
