//! Native functions that compiled programs call: XLA's typed foreign-function interface.
//!
//! A program names a target, and here a Rust function is registered under that name: a [`Kernel`].
//! It gets a [`Call`] with the operands, the results to write, and the attributes, all checked for
//! their types; it returns an error with a code, and may panic: both become the error of the run.
//!
//! Registration is for the whole process and permanent. A closure of the user's is therefore no
//! kernel of its own: all of them are called through one, which knows them by a number (see
//! [`callbacks`]). Traced code calls them with
//! [`pure_callback`](crate::pure_callback()) and its relatives; a kernel is for text written
//! directly or by the lowering.
//!
//! A kernel runs on the thread that launched the program, if the program is small, and otherwise
//! on one of the runtime's own. There it must not wait for the runtime: launching a program and
//! waiting for an array that is not there yet are errors inside ([`in_call`](super::pjrt::in_call)).
//!
//! ```
//! use podracer::Array;
//! use podracer::lower::custom_calls::{Call, Kernel, KernelError, register};
//! use podracer::lower::pjrt::{Buffer, Code, CompileOptions};
//! use podracer::runtime::Runtime;
//! # use podracer::{DType, TensorType};
//!
//! /// `a x + y`.
//! struct Axpy;
//!
//! impl Kernel for Axpy {
//!     const TARGET: &'static str = "example.axpy.1";
//!
//!     fn run(call: &mut Call<'_>) -> Result<(), KernelError> {
//!         let (x, y) = (call.operand::<f32>(0)?, call.operand::<f32>(1)?);
//!         let a: f32 = call.attribute("a")?;
//!         if x.dims != y.dims {
//!             let text = format!("shapes differ: {:?} and {:?}", x.dims, y.dims);
//!             return Err(KernelError::new(Code::InvalidArgument, text));
//!         }
//!         for ((sum, x), y) in call.result::<f32>(0)?.iter_mut().zip(x.data).zip(y.data) {
//!             *sum = a * x + y;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> podracer::Result<()> {
//! let client = &Runtime::get()?.client;
//! register::<Axpy>(client.plugin())?;
//! let program = client.compile(
//!     "module @axpy {
//!        func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>) -> tensor<3xf32> {
//!          %sum = stablehlo.custom_call @example.axpy.1(%x, %y)
//!            {api_version = 4 : i32, backend_config = {a = 2.0 : f32}}
//!            : (tensor<3xf32>, tensor<3xf32>) -> tensor<3xf32>
//!          return %sum : tensor<3xf32>
//!        }
//!      }",
//!     &CompileOptions::default(),
//! )?;
//! let ty = TensorType::new(DType::F32, [3]);
//! let put = |x: [f32; 3]| client.buffer_from_host(bytemuck::bytes_of(&x), &ty, 0);
//! let (x, y) = (put([1.0, 2.0, 3.0])?, put([10.0, 20.0, 30.0])?);
//! let mut results = Vec::new();
//! program.execute([&x, &y], &[], &mut results)?;
//! let mut sum = [0.0f32; 3];
//! results[0].copy_to_host(bytemuck::bytes_of_mut(&mut sum))?;
//! assert_eq!(sum, [12.0, 24.0, 36.0]);
//! # Ok(())
//! # }
//! ```

mod abi;
pub(crate) mod bits;
mod call;
pub mod callbacks;
pub(crate) mod lapack;
pub(crate) mod onednn;
mod parallel;
mod staged;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use self::abi::{ErrorArgs, Extension, FfiExtension, Frame, RegisterArgs};
pub use self::call::{Call, Operand, RawOperand, RawResult};
use self::staged::{Cuda, call_on_host};
use super::pjrt::calls::Running;
use super::pjrt::{Code, Plugin};
use crate::error::Result;

/// Error of a kernel that failed. A text alone is an [`Code::Internal`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelError {
    /// The kind.
    pub code: Code,
    /// Description of the error.
    pub message: String,
}

impl KernelError {
    /// An error of this kind.
    pub fn new(code: Code, message: impl Into<String>) -> KernelError {
        KernelError { code, message: message.into() }
    }
}

impl From<String> for KernelError {
    fn from(message: String) -> KernelError {
        KernelError::new(Code::Internal, message)
    }
}

impl From<&str> for KernelError {
    fn from(message: &str) -> KernelError {
        message.to_string().into()
    }
}

/// A function that compiled programs call by name.
pub trait Kernel {
    /// The name in programs. It is part of the executable cache's key: change it when the meaning
    /// changes.
    const TARGET: &'static str;

    /// Computes the results.
    ///
    /// # Errors
    /// The error becomes that of the program's run, and so does a panic. It is an error, too, if a
    /// result of bools has other bytes than 0 and 1 afterwards.
    fn run(call: &mut Call<'_>) -> Result<(), KernelError>;
}

/// Returns the message of a panic.
fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Location of the programs that call a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelPlatform {
    /// The host's processor: kernels read and write the programs' own memory.
    Host,
    /// NVIDIA's GPUs: the data that a kernel reads and writes is copied from the device and back,
    /// while the device waits.
    Cuda,
}

/// The C function behind a kernel, for programs on the host.
extern "C" fn on_host<K: Kernel>(frame: *mut Frame) -> *mut c_void {
    // SAFETY: the runtime keeps the frame of a call until this returns.
    trampoline::<K>(frame, || run_checked::<K>(unsafe { Call::new(frame) }))
}

/// The C function behind a kernel, for programs on NVIDIA's GPUs.
extern "C" fn on_cuda<K: Kernel>(frame: *mut Frame) -> *mut c_void {
    trampoline::<K>(frame, || {
        let copies = Cuda::get()?;
        // SAFETY: as above, and the copy of the frame lives until the kernel returns.
        unsafe { call_on_host(frame, copies, |frame| run_checked::<K>(Call::new(frame))) }
    })
}

/// Runs a kernel, and checks what it left in its results.
fn run_checked<K: Kernel>(mut call: Call<'_>) -> std::result::Result<(), KernelError> {
    K::run(&mut call)?;
    Ok(call.check_elements()?)
}

/// Body of the C functions behind the kernels: calls `run` if there is something to compute.
fn trampoline<K: Kernel>(
    frame: *mut Frame,
    run: impl FnOnce() -> std::result::Result<(), KernelError>,
) -> *mut c_void {
    // SAFETY: the runtime hands over a live frame; when it asks for metadata only, the extension
    // is there and nothing else may be read.
    unsafe {
        let extension = (*frame).extension_start;
        if !extension.is_null() && (*extension).base.kind == abi::METADATA_EXTENSION {
            let metadata = (*extension).metadata;
            ((*metadata).major, (*metadata).minor, (*metadata).traits) = (0, 2, 0);
            return std::ptr::null_mut();
        }
        if (*frame).stage != abi::EXECUTE {
            return std::ptr::null_mut();
        }
    }
    // A panic must not run into the runtime's own frames.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let _running = Running::new();
        run()
    }));
    let error = match outcome {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error,
        Err(payload) => {
            let text = format!("panicked: {}", panic_text(&*payload));
            // The payload of a panic may itself panic when it is dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            KernelError::new(Code::Internal, text)
        }
    };
    // The runtime reads up to the first zero.
    let message = format!("{}: {}\0", K::TARGET, error.message.replace('\0', "\\0"));
    let mut args = ErrorArgs {
        struct_size: size_of::<ErrorArgs>(),
        extension_start: std::ptr::null(),
        message: message.as_ptr().cast(),
        code: error.code as i32,
    };
    // SAFETY: the table is the runtime's own and holds this function; the message is copied during
    // the call and ends with a zero.
    unsafe {
        match (*(*frame).api).error_create {
            Some(create) => create(&mut args),
            None => std::ptr::null_mut(),
        }
    }
}

/// Makes a kernel known to a plugin, for programs on the host. Returns false if the plugin has no
/// foreign-function interface; then no program may name the kernel.
///
/// # Errors
/// Returns errors from the plugin, for example that another function has this name.
pub fn register<K: Kernel>(plugin: &Plugin) -> Result<bool> {
    register_for::<K>(plugin, KernelPlatform::Host)
}

/// [`register`], for programs that run on `platform`.
///
/// # Errors
/// As [`register`].
pub fn register_for<K: Kernel>(plugin: &Plugin, platform: KernelPlatform) -> Result<bool> {
    let (name, handler) = match platform {
        KernelPlatform::Host => ("Host", on_host::<K> as *mut c_void),
        KernelPlatform::Cuda => ("CUDA", on_cuda::<K> as *mut c_void),
    };
    // SAFETY: the table and its list of extensions live as long as the plugin, which is never
    // unloaded; the extension numbered so has this layout in every plugin since API 0.80.
    let found = unsafe {
        let mut next = (*plugin.api()).extension_start.cast::<Extension>().cast_const();
        while !next.is_null() && (*next).kind != abi::FFI_EXTENSION {
            next = (*next).next;
        }
        next.cast::<FfiExtension>().as_ref()
    };
    let Some(extension) = found else { return Ok(false) };
    // Before this API the arguments had another layout, and nothing else distinguishes the two.
    let enough =
        plugin.api_version() >= (0, 81) && extension.base.struct_size >= size_of::<FfiExtension>();
    let Some(register) = extension.register_handler.filter(|_| enough) else { return Ok(false) };
    let mut args = RegisterArgs {
        struct_size: size_of::<RegisterArgs>(),
        target_name: K::TARGET.as_ptr().cast(),
        target_name_size: K::TARGET.len(),
        handler,
        platform_name: name.as_ptr().cast(),
        platform_name_size: name.len(),
        traits: 0,
    };
    // SAFETY: the names outlive the call; the handler is a function of the signature expected.
    let error = unsafe { register(&mut args) };
    plugin.check(error, || format!("cannot register {}", K::TARGET))?;
    Ok(true)
}
