//! Calls from programs on GPUs: their tensors are in the device's memory.
//!
//! The operands are copied to the host, the kernel runs there, and its results are copied back, in
//! the order of the stream on which the program runs. JAX does the same for its callbacks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::{ptr, slice};

use super::KernelError;
use super::abi::{Frame, List, RawBuffer, StreamArgs};
use super::call::byte_len;
use crate::lower::pjrt::dl_reason;
use crate::trace::literal::AlignedBytes;

/// A stream of a device: its operations happen in order.
type Stream = *mut c_void;
type Verdict<T> = Result<T, String>;

/// Copies of bytes from a device to the host and back.
pub(super) trait Copies {
    /// Begins to copy from the device.
    ///
    /// # Safety
    /// `from` must be memory of the device, of as many bytes; `into` must stay until
    /// [`wait`](Copies::wait) returns.
    unsafe fn to_host(&self, into: &mut [u8], from: *const c_void, stream: Stream) -> Verdict<()>;

    /// Begins to copy to the device.
    ///
    /// # Safety
    /// As [`Copies::to_host`], the other way around.
    unsafe fn to_device(&self, into: *mut c_void, from: &[u8], stream: Stream) -> Verdict<()>;

    /// Waits for all that was begun.
    ///
    /// # Safety
    /// The stream must be alive.
    unsafe fn wait(&self, stream: Stream) -> Verdict<()>;
}

/// NVIDIA's driver, which is there where there is a GPU.
pub(super) struct Cuda {
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize, Stream) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize, Stream) -> c_int,
    wait: unsafe extern "C" fn(Stream) -> c_int,
    name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

impl Cuda {
    /// The driver; loaded once.
    ///
    /// # Errors
    /// If it is not there, in the loader's words.
    pub fn get() -> Verdict<&'static Cuda> {
        static DRIVER: OnceLock<Verdict<Cuda>> = OnceLock::new();
        DRIVER.get_or_init(Cuda::load).as_ref().map_err(String::clone)
    }

    fn load() -> Verdict<Cuda> {
        let load_error = |error: libloading::Error| {
            format!("NVIDIA's driver cannot be used: {}", dl_reason(&error))
        };
        // SAFETY: the driver's initializers run wherever a program uses a GPU; the functions have
        // these signatures in all versions of this ABI, which their names say.
        unsafe {
            let library = libloading::Library::new("libcuda.so.1").map_err(load_error)?;
            let driver = Cuda {
                to_host: *library.get(b"cuMemcpyDtoHAsync_v2\0").map_err(load_error)?,
                to_device: *library.get(b"cuMemcpyHtoDAsync_v2\0").map_err(load_error)?,
                wait: *library.get(b"cuStreamSynchronize\0").map_err(load_error)?,
                name: *library.get(b"cuGetErrorName\0").map_err(load_error)?,
            };
            // It stays for good, like the plugin that uses it too.
            std::mem::forget(library);
            Ok(driver)
        }
    }

    fn check(&self, code: c_int, what: &str) -> Verdict<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the name, if the driver has one, is a constant of its own.
        let known = unsafe { (self.name)(code, &mut name) == 0 && !name.is_null() };
        let name = match known {
            // SAFETY: as above.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
            false => format!("error {code}"),
        };
        Err(format!("{what}: {name}"))
    }
}

impl Copies for Cuda {
    unsafe fn to_host(&self, into: &mut [u8], from: *const c_void, stream: Stream) -> Verdict<()> {
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.to_host)(into.as_mut_ptr().cast(), from as u64, into.len(), stream) };
        self.check(code, "cannot copy an operand from the GPU")
    }

    unsafe fn to_device(&self, into: *mut c_void, from: &[u8], stream: Stream) -> Verdict<()> {
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.to_device)(into as u64, from.as_ptr().cast(), from.len(), stream) };
        self.check(code, "cannot copy a result to the GPU")
    }

    unsafe fn wait(&self, stream: Stream) -> Verdict<()> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.wait)(stream) };
        self.check(code, "the GPU's work before or around a call failed")
    }
}

/// Tensors of a call, as the runtime lists them, and their bytes on the host.
struct Staging {
    /// Owner of the memory, which is read and written through the pointers in `buffers` alone: a
    /// borrow of it would end their right to it.
    _bytes: Vec<AlignedBytes>,
    buffers: Vec<RawBuffer>,
    items: Vec<*const RawBuffer>,
    types: *const i32,
}

impl Staging {
    /// # Safety
    /// `list` must be one of a live frame.
    unsafe fn of(list: &List) -> Staging {
        let count = list.size.max(0) as usize;
        let (mut bytes, mut buffers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for i in 0..count {
            // SAFETY: the list has as many items as it says, each a live buffer.
            let buffer = unsafe { &**list.items.add(i) };
            let mut there = AlignedBytes::zeroed(byte_len(buffer));
            let data = there.as_mut().as_mut_ptr().cast();
            buffers.push(RawBuffer {
                struct_size: buffer.struct_size,
                extension_start: ptr::null(),
                dtype: buffer.dtype,
                data,
                rank: buffer.rank,
                dims: buffer.dims,
            });
            bytes.push(there);
        }
        let items = buffers.iter().map(ptr::from_ref).collect();
        Staging { _bytes: bytes, buffers, items, types: list.types }
    }

    /// The start and length of each tensor on the host.
    fn memory(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        self.buffers.iter().map(|buffer| (buffer.data.cast(), byte_len(buffer)))
    }

    fn list(&self) -> List {
        List {
            struct_size: size_of::<List>(),
            extension_start: ptr::null(),
            size: self.buffers.len() as i64,
            types: self.types,
            items: self.items.as_ptr(),
        }
    }
}

/// Runs `kernel` on a copy of the frame whose tensors are on the host.
///
/// # Safety
/// `frame` must be that of a call being executed, on the device that `copies` is for.
pub(super) unsafe fn call_on_host(
    frame: *const Frame,
    copies: &dyn Copies,
    kernel: impl FnOnce(*const Frame) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    // SAFETY: the caller's promise; every pointer comes from the frame, and what is on the host
    // stays until the stream was waited for.
    unsafe {
        let stream = stream_of(frame)?;
        let (args, rets) = (&(*frame).args, &(*frame).rets);
        let (operands, results) = (Staging::of(args), Staging::of(rets));
        let mut begun = Ok(());
        for (i, (start, len)) in operands.memory().enumerate() {
            if len > 0 && begun.is_ok() {
                let into = slice::from_raw_parts_mut(start, len);
                begun = copies.to_host(into, (**args.items.add(i)).data, stream);
            }
        }
        copies.wait(stream)?;
        begun?;
        let host = Frame {
            struct_size: size_of::<Frame>(),
            extension_start: ptr::null(),
            api: (*frame).api,
            context: (*frame).context,
            stage: (*frame).stage,
            args: operands.list(),
            rets: results.list(),
            attributes: ptr::read(&raw const (*frame).attributes),
        };
        kernel(&host)?;
        let mut begun = Ok(());
        for (i, (start, len)) in results.memory().enumerate() {
            if len > 0 && begun.is_ok() {
                let from = slice::from_raw_parts(start, len);
                begun = copies.to_device((**rets.items.add(i)).data, from, stream);
            }
        }
        copies.wait(stream)?;
        Ok(begun?)
    }
}

/// The stream on which the program runs.
///
/// # Safety
/// As [`call_on_host`].
unsafe fn stream_of(frame: *const Frame) -> Verdict<Stream> {
    // SAFETY: the runtime's table is alive; the function is read only where the table reaches as
    // far, and fills in the arguments.
    unsafe {
        let api = (*frame).api;
        let reaches = (*api).struct_size >= size_of::<super::abi::Api>();
        let Some(get) = (*api).stream_get.filter(|_| reaches) else {
            return Err("the runtime tells no stream for this call".into());
        };
        let mut args = StreamArgs {
            struct_size: size_of::<StreamArgs>(),
            extension_start: ptr::null(),
            context: (*frame).context,
            stream: ptr::null_mut(),
        };
        let error = get(&mut args);
        if error.is_null() {
            return Ok(args.stream);
        }
        // Its text adds nothing; the caller reports which call failed.
        if let Some(destroy) = (*api).error_destroy {
            let mut args = super::abi::ErrorDestroyArgs {
                struct_size: size_of::<super::abi::ErrorDestroyArgs>(),
                extension_start: ptr::null(),
                error,
            };
            destroy(&mut args);
        }
        Err("the runtime has no stream for this call".into())
    }
}
