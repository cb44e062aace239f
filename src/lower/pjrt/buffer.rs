//! Data on devices, and the events of its transfers.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use smallvec::SmallVec;

use super::calls::{ensure_no_call, in_call};
use super::ffi;
use super::fork::{ensure_no_fork, forked};
use crate::error::{Error, Result};
use crate::lower::pjrt::client::Client;
use crate::trace::literal::AlignedBytes;
use crate::trace::types::{DType, TensorType};

/// Uses that the runtime may make of the host memory that a buffer is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSemantics {
    /// Reads it during the call only: a copy is made before the call returns.
    OnlyDuringCall = 0,
    /// Reads it until the transfer is complete.
    UntilTransferCompletes = 1,
    /// May use it as the buffer's memory, without writing, as long as the buffer lives. On CPU
    /// that happens when the memory is aligned to 64 bytes; otherwise it is copied.
    ImmutableZeroCopy = 2,
    /// As before, and may write there: the buffer can be donated.
    MutableZeroCopy = 3,
}

/// The number of an element type in the C API.
pub(super) fn element_type(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => 2,
        DType::I16 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
        DType::C64 => 14,
        DType::C128 => 15,
        DType::F8E5M2 => 16,
        DType::F8E4M3FN => 17,
        DType::I4 => 21,
        DType::U4 => 22,
    }
}

/// The element type with a number of the C API, where we have it.
pub(super) fn dtype_of(element: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| element_type(*dtype) == element)
}

/// Bytes from which on devices of a CPU share data rather than copy it.
const MIN_SHARED_BYTES: usize = 1 << 16;

/// Data on one device. Dropping it frees the memory once no running program uses it.
pub struct Buffer {
    raw: *mut ffi::Buffer,
    client: Client,
    ty: TensorType,
}

// SAFETY: the C API's buffers are internally synchronized.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} on {})", self.ty, self.client.platform_name())
    }
}

impl Client {
    /// Copies host data, row-major, to a device. The data is free again when this returns.
    pub fn buffer_from_host(&self, data: &[u8], ty: &TensorType, device: usize) -> Result<Buffer> {
        check_len(data.len(), ty)?;
        // SAFETY: the runtime reads `data` during the call only.
        unsafe {
            self.buffer_from_raw(data.as_ptr(), ty, device, HostSemantics::OnlyDuringCall, None)
        }
    }

    /// A buffer that, where the platform can, uses `data` in place.
    pub fn buffer_from_shared(
        &self,
        data: Arc<AlignedBytes>,
        ty: &TensorType,
        device: usize,
    ) -> Result<Buffer> {
        let bytes: &[u8] = (*data).as_ref();
        check_len(bytes.len(), ty)?;
        let start = bytes.as_ptr();
        // SAFETY: `data` is kept until the runtime is done with it, and nobody can write to it
        // meanwhile because it is shared and has no interior mutability.
        unsafe {
            let semantics = HostSemantics::ImmutableZeroCopy;
            self.buffer_from_raw(start, ty, device, semantics, Some(data))
        }
    }

    /// A buffer from host memory at `data`, row-major, with the semantics chosen.
    ///
    /// `keep_alive` is dropped when the runtime is done with the memory, on whatever thread that
    /// happens; under zero copy that is when the buffer and every program that reads it are gone.
    ///
    /// # Safety
    /// `data` must point to `ty.bytes()` readable bytes, which must stay valid and unwritten for
    /// as long as `semantics` says (and be writable for [`HostSemantics::MutableZeroCopy`]).
    pub unsafe fn buffer_from_raw(
        &self,
        data: *const u8,
        ty: &TensorType,
        device: usize,
        semantics: HostSemantics,
        keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Buffer> {
        ensure_no_fork("copy an array to a device")?;
        let dims: SmallVec<[i64; 8]> = ty.shape.iter().map(|&d| d as i64).collect();
        let mut args = ffi::ClientBufferFromHostBufferArgs::zeroed();
        args.client = self.raw();
        args.data = data.cast();
        args.element_type = element_type(ty.dtype);
        args.dims = dims.as_ptr();
        args.num_dims = dims.len();
        args.host_buffer_semantics = semantics as i32;
        args.device = self.raw_device(device)?;
        // SAFETY: the dims outlive the call; the data is the caller's promise.
        let error = unsafe { (self.functions().client_buffer_from_host_buffer)(&mut args) };
        self.plugin().check(error, || format!("cannot copy {ty} to device {device}"))?;
        // SAFETY: on success both are live handles that are ours.
        let (buffer, done) = unsafe {
            let buffer = Buffer::from_raw(args.buffer, self.clone(), ty.clone());
            (buffer, Event::from_raw(args.done_with_host_buffer, self.clone()))
        };
        // A copy made during the call has nothing left to wait for.
        if semantics != HostSemantics::OnlyDuringCall
            && let Some(owner) = keep_alive
        {
            let kept = owner.clone();
            if let Err(error) = done.on_ready(move |_| drop(owner)) {
                // No callback will report when the runtime is done with the memory, so it is never
                // freed.
                std::mem::forget(kept);
                return Err(error);
            }
        }
        Ok(buffer)
    }
}

fn check_len(bytes: usize, ty: &TensorType) -> Result<()> {
    if bytes == ty.bytes() {
        return Ok(());
    }
    Err(Error::Argument(format!("{ty} takes {} bytes, got {bytes}", ty.bytes())))
}

impl Buffer {
    /// Takes over a handle.
    ///
    /// # Safety
    /// `raw` must be a live buffer of `client` that nobody else destroys, of type `ty`.
    #[inline]
    pub(super) unsafe fn from_raw(raw: *mut ffi::Buffer, client: Client, ty: TensorType) -> Buffer {
        Buffer { raw, client, ty }
    }

    /// The C handle. It lives as long as this.
    #[inline]
    pub fn raw(&self) -> *mut ffi::Buffer {
        self.raw
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The type of the data, as given or as the executable declared it.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The index of the device that holds it.
    pub fn device(&self) -> Result<usize> {
        let mut args = ffi::BufferDeviceArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_device)(&mut args) };
        self.check(error, "cannot ask for the device of")?;
        self.client.device_index(args.device).ok_or_else(|| Error::Pjrt {
            context: format!("cannot find the device of {self:?}"),
            code: 5,
            message: "it is not one of this process".into(),
        })
    }

    /// Bytes that it takes on the device.
    pub fn on_device_size(&self) -> Result<usize> {
        let mut args = ffi::BufferOnDeviceSizeArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_on_device_size)(&mut args) };
        self.check(error, "cannot ask for the size of")?;
        Ok(args.size)
    }

    /// Returns true if the data is gone: donated to a program, or deleted.
    pub fn is_deleted(&self) -> bool {
        let mut args = ffi::BufferIsDeletedArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_is_deleted)(&mut args) };
        if !error.is_null() {
            self.client.plugin().take_error(error);
            return true;
        }
        args.is_deleted
    }

    /// Frees the data now; the handle stays. Programs already launched still run.
    pub fn delete(&self) -> Result<()> {
        let mut args = ffi::BufferArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_delete)(&mut args) };
        self.check(error, "cannot delete")
    }

    /// The event of the data being there, or of the program that makes it having failed.
    #[inline]
    pub(crate) fn ready_event(&self) -> Result<Event> {
        let mut args = ffi::BufferReadyEventArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_ready_event)(&mut args) };
        self.check(error, "cannot wait for")?;
        // SAFETY: on success a live event that is ours.
        Ok(unsafe { Event::from_raw(args.event, self.client.clone()) })
    }

    /// Returns true if the data is available, without waiting. An error counts as available.
    pub fn is_ready(&self) -> Result<bool> {
        self.ready_event()?.is_ready()
    }

    /// Waits until the data is there (`block_until_ready`). Fails with the message of the program
    /// that was to make it.
    #[inline]
    pub fn wait(&self) -> Result<()> {
        self.ready_event()?.wait()
    }

    /// Waits and copies the data, row-major, to `into`, which must have its size.
    pub fn copy_to_host(&self, into: &mut [u8]) -> Result<()> {
        check_len(into.len(), &self.ty)?;
        // In memory, two integers of 4 bits share a byte.
        if self.client.is_cpu() && !self.ty.dtype.is_int4() {
            return self.read_in_place(into);
        }
        // The wait below would be refused, and return while `into` is still written.
        ensure_no_call("copy an array from its device")?;
        // SAFETY: `into` is borrowed until the event is awaited, on the next line.
        let done = unsafe { self.start_copy(into.as_mut_ptr(), into.len()) }?;
        done.wait()
    }

    /// A copy straight from the memory of a CPU device, where data is row-major. The runtime's own
    /// copy goes through one of its threads, which costs 25 to 50 microseconds for any size.
    fn read_in_place(&self, into: &mut [u8]) -> Result<()> {
        self.wait()?;
        let held = Held::new(self)?;
        let from = held.0.unsafe_pointer()?;
        if !into.is_empty() {
            // SAFETY: the buffer is ready and held; it has the bytes of its type, which `into`
            // has too, and `into` is the caller's alone.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        }
        Ok(())
    }

    /// Starts a copy to the host and returns at once.
    pub fn copy_to_host_async(&self) -> Result<HostCopy> {
        let mut bytes = AlignedBytes::zeroed(self.ty.bytes());
        let into: &mut [u8] = bytes.as_mut();
        // SAFETY: the memory is on the heap, owned by the `HostCopy`, which waits before it frees.
        let done = unsafe { self.start_copy(into.as_mut_ptr(), into.len()) }?;
        Ok(HostCopy { bytes: Some(bytes), done })
    }

    /// # Safety
    /// `into` must be writable for `len` bytes and left alone until the event is ready.
    unsafe fn start_copy(&self, into: *mut u8, len: usize) -> Result<Event> {
        ensure_no_fork("copy an array from its device")?;
        // Row-major is requested explicitly: without it a device's own layout could come through.
        let minor_to_major: SmallVec<[i64; 8]> = (0..self.ty.rank() as i64).rev().collect();
        let mut layout = ffi::MemoryLayout {
            struct_size: size_of::<ffi::MemoryLayout>(),
            extension_start: ptr::null_mut(),
            tiled_struct_size: 56,
            tiled_extension_start: ptr::null_mut(),
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            tile_dims: ptr::null(),
            tile_dim_sizes: ptr::null(),
            num_tiles: 0,
            kind: 0,
        };
        let mut args = ffi::BufferToHostBufferArgs::zeroed();
        args.src = self.raw;
        args.host_layout = &mut layout;
        args.dst = into.cast();
        args.dst_size = len;
        // SAFETY: the layout outlives the call; the memory is the caller's promise.
        let error = unsafe { (self.client.functions().buffer_to_host_buffer)(&mut args) };
        self.check(error, "cannot copy to the host")?;
        // SAFETY: on success a live event that is ours.
        Ok(unsafe { Event::from_raw(args.event, self.client.clone()) })
    }

    /// The address of the data. On CPU it may be read once the buffer is ready, as long as the
    /// buffer lives and is not donated.
    pub fn unsafe_pointer(&self) -> Result<*const u8> {
        let mut args = ffi::BufferUnsafePointerArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the buffer is live.
        let error = unsafe { (self.client.functions().buffer_unsafe_pointer)(&mut args) };
        self.check(error, "cannot take the address of")?;
        Ok(args.pointer as *const u8)
    }

    /// The data on another device of the same client, for as long as it is not written to: on a
    /// CPU, whose devices have one memory, large data that is there already stays where it is and
    /// keeps this buffer; else it is copied.
    pub fn on_device(self: &Arc<Buffer>, device: usize) -> Result<Buffer> {
        // Two integers of 4 bits share a byte there, so they are not host data.
        let large = self.ty.bytes() >= MIN_SHARED_BYTES && !self.ty.dtype.is_int4();
        if !(large && self.client.is_cpu() && self.is_ready()?) {
            return self.copy_to_device(device);
        }
        // A failed computation returns its error here.
        self.wait()?;
        let held = Arc::new(Held::new(self.clone())?);
        let start = self.unsafe_pointer()?;
        // SAFETY: the data is there and as long as its type says. The new buffer keeps it held, so
        // it stays where it is and no program takes it by donation.
        unsafe {
            let semantics = HostSemantics::ImmutableZeroCopy;
            self.client.buffer_from_raw(start, &self.ty, device, semantics, Some(held))
        }
    }

    /// A copy on another device of the same client.
    pub fn copy_to_device(&self, device: usize) -> Result<Buffer> {
        ensure_no_fork("copy an array to another device")?;
        let mut args = ffi::BufferCopyToDeviceArgs::zeroed();
        args.buffer = self.raw;
        args.dst_device = self.client.raw_device(device)?;
        // SAFETY: the buffer and the device are live and of the same client.
        let error = unsafe { (self.client.functions().buffer_copy_to_device)(&mut args) };
        self.check(error, "cannot copy to another device")?;
        // SAFETY: on success a live buffer that is ours.
        Ok(unsafe { Buffer::from_raw(args.dst_buffer, self.client.clone(), self.ty.clone()) })
    }

    #[inline]
    fn check(&self, error: *mut ffi::Error, doing: &str) -> Result<()> {
        self.client.plugin().check(error, || format!("{doing} a buffer of type {}", self.ty))
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let mut args = ffi::BufferArgs::zeroed();
        args.buffer = self.raw;
        // SAFETY: the handle is ours, and nothing uses it after this. The runtime keeps the memory
        // for programs in flight by itself.
        let error = unsafe { (self.client.functions().buffer_destroy)(&mut args) };
        if !error.is_null() {
            self.client.plugin().take_error(error);
        }
    }
}

/// A copy to the host in progress. Dropping it waits.
pub struct HostCopy {
    bytes: Option<AlignedBytes>,
    done: Event,
}

impl HostCopy {
    /// Returns true if [`HostCopy::wait`] would return at once.
    pub fn is_ready(&self) -> Result<bool> {
        self.done.is_ready()
    }

    /// Waits for the data.
    pub fn wait(mut self) -> Result<AlignedBytes> {
        self.done.wait()?;
        Ok(self.bytes.take().expect("taken only here, and this consumes"))
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        let Some(bytes) = self.bytes.take() else { return };
        if (in_call() || forked()) && !self.done.is_ready().unwrap_or(false) {
            // Nothing may wait here, and the runtime may still write there: the memory stays.
            std::mem::forget(bytes);
            return;
        }
        // An error means that the copy has failed, and so is over.
        let _ = self.done.wait();
    }
}

/// A buffer whose memory stays where it is: until this is dropped no program takes it by donation.
struct Held<B: std::ops::Deref<Target = Buffer>>(B);

impl<B: std::ops::Deref<Target = Buffer>> Held<B> {
    fn new(buffer: B) -> Result<Held<B>> {
        let mut args = ffi::BufferArgs::zeroed();
        args.buffer = buffer.raw;
        let increase = buffer.client.functions().buffer_increase_external_reference_count;
        // SAFETY: the buffer is live.
        let error = unsafe { increase(&mut args) };
        buffer.check(error, "cannot hold")?;
        Ok(Held(buffer))
    }
}

impl<B: std::ops::Deref<Target = Buffer>> Drop for Held<B> {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let mut args = ffi::BufferArgs::zeroed();
        args.buffer = self.0.raw;
        let decrease = self.0.client.functions().buffer_decrease_external_reference_count;
        // SAFETY: the buffer is live and was held by `new`.
        let error = unsafe { decrease(&mut args) };
        if !error.is_null() {
            self.0.client.plugin().take_error(error);
        }
    }
}

/// Something that will have happened.
pub struct Event {
    raw: *mut ffi::Event,
    client: Client,
}

// SAFETY: the C API's events are internally synchronized.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// # Safety
    /// `raw` must be a live event of `client` that nobody else destroys.
    #[inline]
    pub(super) unsafe fn from_raw(raw: *mut ffi::Event, client: Client) -> Event {
        Event { raw, client }
    }

    /// Waits. Fails with the message of the failed operation.
    #[inline]
    pub fn wait(&self) -> Result<()> {
        if forked() && !self.is_ready()? {
            ensure_no_fork("wait for an array that is not there yet")?;
        }
        if in_call() && !self.is_ready()? {
            ensure_no_call("wait for an array that is not there yet")?;
        }
        let mut args = ffi::EventAwaitArgs::zeroed();
        args.event = self.raw;
        // SAFETY: the event is live.
        let error = unsafe { (self.client.functions().event_await)(&mut args) };
        self.client.plugin().check(error, || "execution failed".into())
    }

    /// Returns true if the event has happened, without waiting.
    #[inline]
    pub fn is_ready(&self) -> Result<bool> {
        let mut args = ffi::EventIsReadyArgs::zeroed();
        args.event = self.raw;
        // SAFETY: the event is live.
        let error = unsafe { (self.client.functions().event_is_ready)(&mut args) };
        self.client.plugin().check(error, || "cannot ask an event".into())?;
        Ok(args.is_ready)
    }

    /// Calls `f` when it has happened: now, or later on a thread of the runtime. `f` must not
    /// block.
    pub(crate) fn on_ready(&self, f: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        struct Pending {
            plugin: Arc<super::plugin::Plugin>,
            f: Box<dyn FnOnce(Result<()>) + Send>,
        }
        unsafe extern "C" fn call(error: *mut ffi::Error, user_arg: *mut c_void) {
            // SAFETY: the pointer is the box made below, and the runtime calls back once.
            let pending = unsafe { Box::from_raw(user_arg.cast::<Pending>()) };
            // The error is ours to destroy, by the header's word.
            let result = pending.plugin.check(error, || "execution failed".into());
            // A panic must not unwind into C.
            let _ = catch_unwind(AssertUnwindSafe(|| (pending.f)(result)));
        }
        let plugin = self.client.plugin().clone();
        let pending = Box::into_raw(Box::new(Pending { plugin, f: Box::new(f) }));
        let mut args = ffi::EventOnReadyArgs::zeroed();
        args.event = self.raw;
        args.callback = Some(call);
        args.user_arg = pending.cast();
        // SAFETY: the event is live, and the callback owns what it is given.
        let error = unsafe { (self.client.functions().event_on_ready)(&mut args) };
        if !error.is_null() {
            // SAFETY: a failed registration never calls back.
            drop(unsafe { Box::from_raw(pending) });
        }
        self.client.plugin().check(error, || "cannot register a callback".into())
    }
}

impl Drop for Event {
    #[inline]
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let mut args = ffi::EventDestroyArgs::zeroed();
        args.event = self.raw;
        // SAFETY: the handle is ours, and nothing uses it after this.
        let error = unsafe { (self.client.functions().event_destroy)(&mut args) };
        if !error.is_null() {
            self.client.plugin().take_error(error);
        }
    }
}
