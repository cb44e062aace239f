//! The structs of XLA's FFI C API 0.2, as far as they are read.

use std::ffi::{c_char, c_void};

use crate::lower::pjrt::ffi;
use crate::trace::types::DType;

/// The number of the FFI extension in a plugin's list.
pub(super) const FFI_EXTENSION: i32 = 5;
/// The number of the extension with which a runtime queries the metadata of a handler.
pub(super) const METADATA_EXTENSION: i32 = 1;
/// The stage in which a call computes; before it, a handler is only inspected.
pub(super) const EXECUTE: i32 = 3;

/// An entry of a plugin's list of extensions.
#[repr(C)]
pub(super) struct Extension {
    pub struct_size: usize,
    pub kind: i32,
    pub next: *const Extension,
}

#[repr(C)]
pub(super) struct FfiExtension {
    pub base: Extension,
    pub register_type: *const c_void,
    pub add_user_data: *const c_void,
    pub register_handler: Option<unsafe extern "C" fn(*mut RegisterArgs) -> *mut ffi::Error>,
}

#[repr(C)]
pub(super) struct RegisterArgs {
    pub struct_size: usize,
    pub target_name: *const c_char,
    pub target_name_size: usize,
    pub handler: *mut c_void,
    pub platform_name: *const c_char,
    pub platform_name_size: usize,
    pub traits: u32,
}

#[repr(C)]
pub(super) struct List {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub size: i64,
    pub types: *const i32,
    pub items: *const *const RawBuffer,
}

#[repr(C)]
pub(super) struct RawBuffer {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub dtype: i32,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// Attributes, sorted by name.
#[repr(C)]
pub(super) struct Attributes {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub size: i64,
    pub kinds: *const i32,
    pub names: *const *const Text,
    pub values: *const *const c_void,
}

/// Bytes that are not a C string: their length is given.
#[repr(C)]
pub(super) struct Text {
    pub start: *const u8,
    pub len: usize,
}

/// One number.
#[repr(C)]
pub(super) struct ScalarAttribute {
    pub dtype: i32,
    pub value: *const c_void,
}

/// Several numbers.
#[repr(C)]
pub(super) struct ArrayAttribute {
    pub dtype: i32,
    pub len: usize,
    pub data: *const c_void,
}

pub(super) const ARRAY: i32 = 1;
pub(super) const SCALAR: i32 = 3;
pub(super) const STRING: i32 = 4;

/// Argument of a handler.
#[repr(C)]
pub(super) struct Frame {
    pub struct_size: usize,
    pub extension_start: *const MetadataExtension,
    pub api: *const Api,
    pub context: *const c_void,
    pub stage: i32,
    pub args: List,
    pub rets: List,
    pub attributes: Attributes,
}

/// Extension in a frame with which the runtime only queries the metadata of a handler.
#[repr(C)]
pub(super) struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

#[repr(C)]
pub(super) struct Metadata {
    pub struct_size: usize,
    pub version_struct_size: usize,
    pub version_extension_start: *const c_void,
    pub major: i32,
    pub minor: i32,
    pub traits: u32,
}

/// The start of the runtime's own function table, up to the function that returns the stream.
#[repr(C)]
pub(super) struct Api {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub version: [usize; 3],
    pub internal: *const c_void,
    pub error_create: Option<unsafe extern "C" fn(*mut ErrorArgs) -> *mut c_void>,
    pub error_get_message: *const c_void,
    pub error_destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
    pub handler_register: *const c_void,
    pub stream_get: Option<unsafe extern "C" fn(*mut StreamArgs) -> *mut c_void>,
}

/// The runtime's function table as far as its pool of threads.
#[repr(C)]
pub(super) struct PoolApi {
    pub base: Api,
    /// Types, state and memory of a device.
    pub others: [*const c_void; 6],
    pub schedule: Option<unsafe extern "C" fn(*mut ScheduleArgs) -> *mut c_void>,
    pub num_threads: Option<unsafe extern "C" fn(*mut NumThreadsArgs) -> *mut c_void>,
}

/// Arguments of a task for the pool of threads.
#[repr(C)]
pub(super) struct ScheduleArgs {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub context: *const c_void,
    pub task: unsafe extern "C" fn(*mut c_void),
    pub data: *mut c_void,
}

/// Arguments of the query for the number of threads.
#[repr(C)]
pub(super) struct NumThreadsArgs {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub context: *const c_void,
    pub num_threads: *mut i64,
}

#[repr(C)]
pub(super) struct ErrorDestroyArgs {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub error: *mut c_void,
}

/// Arguments of the query for the stream of a call on a GPU.
#[repr(C)]
pub(super) struct StreamArgs {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub context: *const c_void,
    pub stream: *mut c_void,
}

#[repr(C)]
pub(super) struct ErrorArgs {
    pub struct_size: usize,
    pub extension_start: *const c_void,
    pub message: *const c_char,
    pub code: i32,
}

/// The element type that XLA numbers so (`PrimitiveType`).
#[inline]
pub(super) fn dtype_of(number: i32) -> Option<DType> {
    Some(match number {
        1 => DType::Bool,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        15 => DType::C64,
        16 => DType::BF16,
        18 => DType::C128,
        19 => DType::F8E5M2,
        20 => DType::F8E4M3FN,
        _ => return None,
    })
}
