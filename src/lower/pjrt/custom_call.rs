//! Native functions that compiled programs call: XLA's typed foreign-function interface.
//!
//! A program names a target (`stablehlo.custom_call @name(..) {api_version = 4 : i32}`); here a Rust
//! function is registered under that name. Registration is for the whole process and for good.
//!
//! The structs are those of XLA's FFI C API 0.2; none is copied, all are read in place.

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::ffi;
use super::plugin::Plugin;
use crate::error::Result;

/// The number of the FFI extension in a plugin's list.
const FFI_EXTENSION: i32 = 5;
/// The stage in which a call computes; before it, a handler is only looked at.
const EXECUTE: i32 = 3;

/// A type of elements that kernels take, by XLA's number for it.
pub trait KernelElement: bytemuck::Pod {
    /// The number.
    const NUMBER: i32;
}

impl KernelElement for f32 {
    const NUMBER: i32 = 11;
}

impl KernelElement for u32 {
    const NUMBER: i32 = 8;
}

/// An entry of a plugin's list of extensions.
#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: i32,
    next: *const Extension,
}

#[repr(C)]
struct FfiExtension {
    base: Extension,
    register_type: *const c_void,
    add_user_data: *const c_void,
    register_handler: Option<unsafe extern "C" fn(*mut RegisterArgs) -> *mut ffi::Error>,
}

#[repr(C)]
struct RegisterArgs {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: u32,
}

#[repr(C)]
struct List {
    struct_size: usize,
    extension_start: *const c_void,
    size: i64,
    types: *const i32,
    items: *const *const RawBuffer,
}

#[repr(C)]
struct RawBuffer {
    struct_size: usize,
    extension_start: *const c_void,
    dtype: i32,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

/// What a handler is called with.
#[repr(C)]
struct Frame {
    struct_size: usize,
    extension_start: *const MetadataExtension,
    api: *const Api,
    context: *const c_void,
    stage: i32,
    args: List,
    rets: List,
}

/// Stands in a frame when the runtime only asks what a handler was made for.
#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version_struct_size: usize,
    version_extension_start: *const c_void,
    major: i32,
    minor: i32,
    traits: u32,
}

/// The start of the runtime's own function table: as far as the function that makes errors.
#[repr(C)]
struct Api {
    struct_size: usize,
    extension_start: *const c_void,
    version: [usize; 3],
    internal: *const c_void,
    error_create: Option<unsafe extern "C" fn(*mut ErrorArgs) -> *mut c_void>,
}

#[repr(C)]
struct ErrorArgs {
    struct_size: usize,
    extension_start: *const c_void,
    message: *const c_char,
    code: i32,
}

/// The operands and results of one call.
pub struct Call<'a> {
    frame: *const Frame,
    lifetime: PhantomData<&'a ()>,
}

/// A tensor in a call.
pub struct Operand<'a, T> {
    /// The sizes of the axes.
    pub dims: &'a [i64],
    /// The elements, row-major.
    pub data: &'a [T],
}

impl<'a> Call<'a> {
    fn lists(&self) -> (&'a List, &'a List) {
        // SAFETY: the runtime hands over a frame that outlives the call.
        unsafe { (&(*self.frame).args, &(*self.frame).rets) }
    }

    /// Number of operands.
    pub fn num_operands(&self) -> usize {
        self.lists().0.size as usize
    }

    /// Operand `i`, if it is a tensor of `T`.
    pub fn operand<T: KernelElement>(&self, i: usize) -> Option<Operand<'a, T>> {
        let buffer = buffer_at::<T>(self.lists().0, i)?;
        // SAFETY: the runtime keeps an operand's dims and elements alive and unwritten during the
        // call, and they are as many as the dims say.
        let data = unsafe { elements(buffer.data.cast::<T>(), count(buffer)) };
        Some(Operand { dims: dims(buffer), data })
    }

    /// Result `i`, if it is a tensor of `T`: where its elements go. Ask for each result once.
    pub fn result<T: KernelElement>(&mut self, i: usize) -> Option<&'a mut [T]> {
        let buffer = buffer_at::<T>(self.lists().1, i)?;
        let count = count(buffer);
        let data: &mut [T] = if count == 0 {
            &mut []
        } else {
            // SAFETY: the runtime hands a result's memory to this call alone; it does not overlap
            // operands, for the text declares no aliases.
            unsafe { std::slice::from_raw_parts_mut(buffer.data.cast(), count) }
        };
        Some(data)
    }
}

fn buffer_at<T: KernelElement>(list: &List, i: usize) -> Option<&RawBuffer> {
    if i >= list.size as usize {
        return None;
    }
    // SAFETY: the list has as many items as it says, each a live buffer.
    let buffer = unsafe { &**list.items.add(i) };
    (buffer.dtype == T::NUMBER).then_some(buffer)
}

fn dims(buffer: &RawBuffer) -> &[i64] {
    if buffer.rank == 0 {
        return &[];
    }
    // SAFETY: a buffer has as many dims as its rank says.
    unsafe { std::slice::from_raw_parts(buffer.dims, buffer.rank as usize) }
}

fn count(buffer: &RawBuffer) -> usize {
    dims(buffer).iter().map(|&size| size as usize).product()
}

/// # Safety
/// `data` must point to `count` elements that live and stay unwritten for `'a`.
unsafe fn elements<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, count) }
}

/// A function that compiled programs call by name.
pub trait Kernel {
    /// The name in programs. It is part of the executable cache's key: change it when the meaning
    /// changes.
    const TARGET: &'static str;

    /// Computes the results. The error's text becomes that of the program's run.
    fn run(call: &mut Call<'_>) -> Result<(), String>;
}

/// The C function behind a kernel.
extern "C" fn trampoline<K: Kernel>(frame: *mut Frame) -> *mut c_void {
    // SAFETY: the runtime hands over a live frame; when it asks for metadata only, the extension
    // is there and nothing else may be read.
    unsafe {
        let extension = (*frame).extension_start;
        if !extension.is_null() && (*extension).base.kind == 1 {
            let metadata = (*extension).metadata;
            ((*metadata).major, (*metadata).minor, (*metadata).traits) = (0, 2, 0);
            return std::ptr::null_mut();
        }
        if (*frame).stage != EXECUTE {
            return std::ptr::null_mut();
        }
    }
    let mut call = Call { frame, lifetime: PhantomData };
    // A panic must not run into the runtime's own frames.
    let outcome = catch_unwind(AssertUnwindSafe(|| K::run(&mut call)))
        .unwrap_or_else(|_| Err("a panic".to_string()));
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(problem) => {
            let message = format!("{}: {problem}\0", K::TARGET);
            let mut args = ErrorArgs {
                struct_size: size_of::<ErrorArgs>(),
                extension_start: std::ptr::null(),
                message: message.as_ptr().cast(),
                code: 13,
            };
            // SAFETY: the table is the runtime's own and holds this function; the message is
            // copied during the call and ends with a zero.
            unsafe {
                match (*(*frame).api).error_create {
                    Some(create) => create(&mut args),
                    None => std::ptr::null_mut(),
                }
            }
        }
    }
}

/// Makes a kernel known to a plugin. Gives false if the plugin has no foreign-function interface;
/// then no program may name the kernel.
///
/// # Errors
/// What the plugin says.
pub fn register<K: Kernel>(plugin: &Plugin) -> Result<bool> {
    // SAFETY: the table and its list of extensions live as long as the plugin, which is never
    // unloaded; the extension numbered so has this layout in every plugin since API 0.80.
    let found = unsafe {
        let mut next = (*plugin.api()).extension_start.cast::<Extension>().cast_const();
        while !next.is_null() && (*next).kind != FFI_EXTENSION {
            next = (*next).next;
        }
        next.cast::<FfiExtension>().as_ref()
    };
    let Some(extension) = found else { return Ok(false) };
    // Before this API the arguments had another layout, told apart by nothing else.
    let enough =
        plugin.api_version() >= (0, 81) && extension.base.struct_size >= size_of::<FfiExtension>();
    let Some(register) = extension.register_handler.filter(|_| enough) else { return Ok(false) };
    let mut args = RegisterArgs {
        struct_size: size_of::<RegisterArgs>(),
        target_name: K::TARGET.as_ptr().cast(),
        target_name_size: K::TARGET.len(),
        handler: trampoline::<K> as *mut c_void,
        platform_name: "Host".as_ptr().cast(),
        platform_name_size: 4,
        traits: 0,
    };
    // SAFETY: the names outlive the call; the handler is a function of the signature expected.
    let error = unsafe { register(&mut args) };
    plugin.check(error, || format!("cannot register {}", K::TARGET))?;
    Ok(true)
}
