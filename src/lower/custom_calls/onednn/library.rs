//! oneDNN's C API, as far as it is called, and safe handles of its objects.
//!
//! The signatures are those of version 3.2, which the lock file pins.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use crate::error::{Error, Result};
use crate::trace::types::DType;

/// The version that the signatures are of.
const VERSION: (c_int, c_int) = (3, 2);

/// The most axes of a tensor.
const MAX_AXES: usize = 12;

/// Sizes or strides, one an axis.
type Dims = [i64; MAX_AXES];
type Raw = *mut c_void;
type Status = c_int;
type Destroy = unsafe extern "C" fn(Raw) -> Status;

const CPU: c_int = 1;
const BF16: c_int = 2;
const F32: c_int = 3;
const ANY_FORMAT: c_int = 1;
const VECTOR_FORMAT: c_int = 2;
/// Formats with the channels last, by the number of spatial axes.
const CHANNELS_LAST: [c_int; 3] = [15, 22, 33];
const FORWARD_TRAINING: c_int = 64;
const DIRECT: c_int = 1;
const SCRATCHPAD_OF_USER: c_int = 1;
const DEFAULT_STREAM: u32 = 1;
const QUERY_IMPLEMENTATION: c_int = 8;
const QUERY_SCRATCHPAD: c_int = 136;

/// Roles of a primitive's tensors.
pub(super) mod role {
    pub const SOURCE: i32 = 1;
    pub const DESTINATION: i32 = 17;
    pub const WEIGHTS: i32 = 33;
    pub const BIAS: i32 = 41;
    pub const SCRATCHPAD: i32 = 80;
    pub const SOURCE_GRADIENT: i32 = 129;
    pub const DESTINATION_GRADIENT: i32 = 145;
    pub const WEIGHTS_GRADIENT: i32 = 161;
}

/// The descriptor of the weights that a primitive prefers.
pub(super) const QUERY_WEIGHTS: c_int = 131;
/// The descriptor of the weights' gradient that a primitive prefers.
pub(super) const QUERY_WEIGHTS_GRADIENT: c_int = 132;

#[repr(C)]
struct Version {
    major: c_int,
    minor: c_int,
    patch: c_int,
    hash: *const c_char,
    cpu_runtime: u32,
    gpu_runtime: u32,
}

#[repr(C)]
struct Argument {
    role: c_int,
    memory: Raw,
}

macro_rules! functions {
    ($($name:ident $symbol:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of the library.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn of(library: &libloading::Library) -> std::result::Result<Functions, libloading::Error> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the type is the one that the header of this version declares.
                        *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?
                    },)*
                })
            }
        }
    };
}

functions! {
    version "dnnl_version" () -> *const Version;
    get_threads "omp_get_max_threads" () -> c_int;
    set_threads "omp_set_num_threads" (c_int);
    engine_create "dnnl_engine_create" (*mut Raw, c_int, usize) -> Status;
    stream_create "dnnl_stream_create" (*mut Raw, Raw, u32) -> Status;
    stream_destroy "dnnl_stream_destroy" (Raw) -> Status;
    stream_wait "dnnl_stream_wait" (Raw) -> Status;
    desc_with_tag "dnnl_memory_desc_create_with_tag"
        (*mut Raw, c_int, *const i64, c_int, c_int) -> Status;
    desc_with_strides "dnnl_memory_desc_create_with_strides"
        (*mut Raw, c_int, *const i64, c_int, *const i64) -> Status;
    desc_clone "dnnl_memory_desc_clone" (*mut Raw, Raw) -> Status;
    desc_destroy "dnnl_memory_desc_destroy" (Raw) -> Status;
    desc_size "dnnl_memory_desc_get_size" (Raw) -> usize;
    memory_create "dnnl_memory_create" (*mut Raw, Raw, Raw, Raw) -> Status;
    memory_destroy "dnnl_memory_destroy" (Raw) -> Status;
    attr_create "dnnl_primitive_attr_create" (*mut Raw) -> Status;
    attr_destroy "dnnl_primitive_attr_destroy" (Raw) -> Status;
    attr_scratchpad "dnnl_primitive_attr_set_scratchpad_mode" (Raw, c_int) -> Status;
    attr_post_ops "dnnl_primitive_attr_set_post_ops" (Raw, Raw) -> Status;
    post_ops_create "dnnl_post_ops_create" (*mut Raw) -> Status;
    post_ops_destroy "dnnl_post_ops_destroy" (Raw) -> Status;
    append_sum "dnnl_post_ops_append_sum" (Raw, f32, i32, c_int) -> Status;
    conv_forward "dnnl_convolution_forward_primitive_desc_create"
        (*mut Raw, Raw, c_int, c_int, Raw, Raw, Raw, Raw,
         *const i64, *const i64, *const i64, *const i64, Raw) -> Status;
    conv_backward_data "dnnl_convolution_backward_data_primitive_desc_create"
        (*mut Raw, Raw, c_int, Raw, Raw, Raw,
         *const i64, *const i64, *const i64, *const i64, Raw, Raw) -> Status;
    conv_backward_weights "dnnl_convolution_backward_weights_primitive_desc_create"
        (*mut Raw, Raw, c_int, Raw, Raw, Raw, Raw,
         *const i64, *const i64, *const i64, *const i64, Raw, Raw) -> Status;
    matmul "dnnl_matmul_primitive_desc_create"
        (*mut Raw, Raw, Raw, Raw, Raw, Raw, Raw) -> Status;
    reorder "dnnl_reorder_primitive_desc_create" (*mut Raw, Raw, Raw, Raw, Raw, Raw) -> Status;
    pd_query "dnnl_primitive_desc_query" (Raw, c_int, c_int, *mut c_void) -> Status;
    pd_query_md "dnnl_primitive_desc_query_md" (Raw, c_int, c_int) -> Raw;
    pd_destroy "dnnl_primitive_desc_destroy" (Raw) -> Status;
    primitive_create "dnnl_primitive_create" (*mut Raw, Raw) -> Status;
    primitive_destroy "dnnl_primitive_destroy" (Raw) -> Status;
    primitive_execute "dnnl_primitive_execute" (Raw, Raw, c_int, *const Argument) -> Status;
}

/// The loaded library, with an engine for this machine's processor. It is never unloaded.
pub(super) struct Library {
    functions: Functions,
    engine: Raw,
}

// SAFETY: the functions may be called from any thread, and an engine is shared by threads.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// Guard of a thread on which the library starts no others.
pub(super) struct OneThread<'a> {
    functions: &'a Functions,
    before: c_int,
}

impl Drop for OneThread<'_> {
    fn drop(&mut self) {
        // SAFETY: sets a variable of this thread to a value that it had.
        unsafe { (self.functions.set_threads)(self.before) };
    }
}

/// An object of the library, destroyed when it is dropped.
pub(super) struct Handle {
    raw: Raw,
    destroy: Destroy,
}

// SAFETY: descriptors and primitives do not change after they are made, and the library lets
// threads share them; a stream or memory object is used by the thread that made it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the object is alive and this handle's own.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// The windows of a convolution, one entry a spatial axis. Distances between neighbors are from 1.
pub(super) struct Windows<'a> {
    pub strides: &'a [i64],
    pub dilations: &'a [i64],
    pub low: &'a [i64],
    pub high: &'a [i64],
}

/// Sizes as the library takes them.
fn dims(sizes: &[i64]) -> Dims {
    let mut dims = [0; MAX_AXES];
    dims[..sizes.len()].copy_from_slice(sizes);
    dims
}

/// An element type as the library takes it.
fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => F32,
        DType::BF16 => BF16,
        other => unreachable!("no problem has elements of {other}"),
    }
}

fn check(status: Status, action: &str) -> Result<(), String> {
    let name = match status {
        0 => return Ok(()),
        1 => "out of memory",
        2 => "invalid arguments",
        3 => "not implemented",
        4 => "no further implementation",
        5 => "runtime error",
        6 => "not required",
        _ => "unknown error",
    };
    Err(format!("oneDNN cannot {action}: {name}"))
}

impl Library {
    /// Loads the library at `path`, whose checksum was checked.
    pub fn load(path: &Path) -> Result<Library> {
        let native = |problem: String| Error::Native {
            problem,
            help: "it needs the GNU OpenMP runtime libgomp.so.1 (package libgomp1); or set \
                   PODRACER_CONV=xla to leave convolutions to XLA"
                .into(),
        };
        let shown = path.display();
        // SAFETY: loading runs the library's initializers; the file is the pinned one, by its
        // checksum.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| native(format!("{shown} cannot be loaded: {error}")))?;
        let functions = Functions::of(&library)
            .map_err(|error| native(format!("{shown} is no oneDNN library: {error}")))?;
        // SAFETY: it takes nothing and returns a constant.
        let version = unsafe { &*(functions.version)() };
        if (version.major, version.minor) != VERSION {
            let (major, minor) = (version.major, version.minor);
            return Err(native(format!("{shown} is oneDNN {major}.{minor}, expected 3.2")));
        }
        let mut engine = ptr::null_mut();
        // SAFETY: the result is written to a live pointer.
        check(unsafe { (functions.engine_create)(&mut engine, CPU, 0) }, "start")
            .map_err(|problem| native(format!("{shown}: {problem}")))?;
        // Programs call it until the process ends.
        std::mem::forget(library);
        Ok(Library { functions, engine })
    }

    /// Makes the library compute on the calling thread alone while the guard lives. It is a setting
    /// of the thread, which holds one when it makes a primitive or runs it.
    pub fn one_thread(&self) -> OneThread<'_> {
        let f = &self.functions;
        // SAFETY: the functions return, and set, a variable of this thread.
        let before = unsafe {
            let before = (f.get_threads)();
            (f.set_threads)(1);
            before
        };
        OneThread { functions: f, before }
    }

    fn handle(
        &self,
        action: &str,
        destroy: Destroy,
        create: impl FnOnce(*mut Raw) -> Status,
    ) -> Result<Handle, String> {
        let mut raw = ptr::null_mut();
        check(create(&mut raw), action)?;
        Ok(Handle { raw, destroy })
    }

    fn described(&self, dtype: DType, sizes: &[i64], format: c_int) -> Result<Handle, String> {
        let (f, axes) = (&self.functions, sizes.len() as c_int);
        self.handle("describe a tensor", f.desc_destroy, |raw| {
            // SAFETY: there are as many sizes as axes; the result is written to a live pointer.
            unsafe { (f.desc_with_tag)(raw, axes, dims(sizes).as_ptr(), data_type(dtype), format) }
        })
    }

    /// The descriptor of images: batch, channels, then spatial sizes; in memory channels are last.
    pub fn images(&self, dtype: DType, sizes: &[i64]) -> Result<Handle, String> {
        self.described(dtype, sizes, CHANNELS_LAST[sizes.len() - 3])
    }

    /// The descriptor of weights in the format that a primitive chooses.
    pub fn any_weights(&self, dtype: DType, sizes: &[i64]) -> Result<Handle, String> {
        self.described(dtype, sizes, ANY_FORMAT)
    }

    /// The descriptor of a vector.
    pub fn vector(&self, dtype: DType, size: i64) -> Result<Handle, String> {
        self.described(dtype, &[size], VECTOR_FORMAT)
    }

    /// The descriptor of a tensor with these strides, in elements.
    pub fn strided(&self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<Handle, String> {
        let (f, axes) = (&self.functions, sizes.len() as c_int);
        self.handle("describe a tensor", f.desc_destroy, |raw| {
            let (sizes, strides) = (dims(sizes), dims(strides));
            // SAFETY: there are as many sizes and strides as axes; the result is written to a live
            // pointer.
            unsafe {
                let ty = data_type(dtype);
                (f.desc_with_strides)(raw, axes, sizes.as_ptr(), ty, strides.as_ptr())
            }
        })
    }

    /// The bytes of a tensor so described.
    pub fn bytes(&self, desc: &Handle) -> usize {
        // SAFETY: the descriptor is alive.
        unsafe { (self.functions.desc_size)(desc.raw) }
    }

    /// Attributes of a primitive: its scratchpad is the caller's; `add` adds to the result in memory
    /// instead of replacing it.
    fn attributes(&self, add: bool) -> Result<Handle, String> {
        let f = &self.functions;
        const ACTION: &str = "set attributes";
        // SAFETY: the objects are alive, and results are written to live pointers.
        unsafe {
            let attr = self.handle(ACTION, f.attr_destroy, |raw| (f.attr_create)(raw))?;
            check((f.attr_scratchpad)(attr.raw, SCRATCHPAD_OF_USER), ACTION)?;
            if add {
                let create = |raw| (f.post_ops_create)(raw);
                let post = self.handle(ACTION, f.post_ops_destroy, create)?;
                check((f.append_sum)(post.raw, 1.0, 0, 0), ACTION)?;
                // The attributes copy them.
                check((f.attr_post_ops)(attr.raw, post.raw), ACTION)?;
            }
            Ok(attr)
        }
    }

    /// The descriptor of a forward convolution.
    pub fn forward(
        &self,
        [source, weights, destination]: [&Handle; 3],
        bias: Option<&Handle>,
        windows: &Windows<'_>,
    ) -> Result<Handle, String> {
        let f = &self.functions;
        let attr = self.attributes(false)?;
        let [strides, dilations, low, high] = windows.arguments();
        let bias = bias.map_or(ptr::null_mut(), |bias| bias.raw);
        self.handle("describe a convolution", f.pd_destroy, |raw| {
            // SAFETY: descriptors and attributes are alive and copied; each array has an entry for
            // each spatial axis; the result is written to a live pointer.
            unsafe {
                (f.conv_forward)(
                    raw,
                    self.engine,
                    FORWARD_TRAINING,
                    DIRECT,
                    source.raw,
                    weights.raw,
                    bias,
                    destination.raw,
                    strides.as_ptr(),
                    dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    attr.raw,
                )
            }
        })
    }

    /// The descriptor of the gradient with respect to the source.
    pub fn backward_data(
        &self,
        [source, weights, destination]: [&Handle; 3],
        windows: &Windows<'_>,
        forward: &Handle,
    ) -> Result<Handle, String> {
        let f = &self.functions;
        let attr = self.attributes(false)?;
        let [strides, dilations, low, high] = windows.arguments();
        self.handle("describe a convolution's gradient", f.pd_destroy, |raw| {
            // SAFETY: as in `forward`.
            unsafe {
                (f.conv_backward_data)(
                    raw,
                    self.engine,
                    DIRECT,
                    source.raw,
                    weights.raw,
                    destination.raw,
                    strides.as_ptr(),
                    dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    forward.raw,
                    attr.raw,
                )
            }
        })
    }

    /// The descriptor of the gradient with respect to the weights.
    pub fn backward_weights(
        &self,
        [source, weights, destination]: [&Handle; 3],
        windows: &Windows<'_>,
        forward: &Handle,
    ) -> Result<Handle, String> {
        let f = &self.functions;
        let attr = self.attributes(false)?;
        let [strides, dilations, low, high] = windows.arguments();
        self.handle("describe a convolution's gradient", f.pd_destroy, |raw| {
            // SAFETY: as in `forward`.
            unsafe {
                (f.conv_backward_weights)(
                    raw,
                    self.engine,
                    DIRECT,
                    source.raw,
                    weights.raw,
                    ptr::null_mut(),
                    destination.raw,
                    strides.as_ptr(),
                    dilations.as_ptr(),
                    low.as_ptr(),
                    high.as_ptr(),
                    forward.raw,
                    attr.raw,
                )
            }
        })
    }

    /// The descriptor of a product of matrices, or of several; with `add` it adds to the result in
    /// memory.
    pub fn matmul(&self, [lhs, rhs, result]: [&Handle; 3], add: bool) -> Result<Handle, String> {
        let (f, no_bias) = (&self.functions, ptr::null_mut());
        let attr = self.attributes(add)?;
        self.handle("describe a product", f.pd_destroy, |raw| {
            // SAFETY: descriptors and attributes are alive and copied; the result is written to a
            // live pointer.
            unsafe { (f.matmul)(raw, self.engine, lhs.raw, rhs.raw, no_bias, result.raw, attr.raw) }
        })
    }

    /// The descriptor of a change of format; with `add` it adds to the result in memory.
    pub fn reorder(&self, from: &Handle, to: &Handle, add: bool) -> Result<Handle, String> {
        let f = &self.functions;
        let attr = self.attributes(add)?;
        let engine = self.engine;
        self.handle("describe a change of format", f.pd_destroy, |raw| {
            // SAFETY: descriptors and attributes are alive and copied; the result is written to a
            // live pointer.
            unsafe { (f.reorder)(raw, from.raw, engine, to.raw, engine, attr.raw) }
        })
    }

    /// The descriptor that a primitive has of one of its tensors.
    pub fn preferred(&self, primitive: &Handle, query: c_int) -> Result<Handle, String> {
        let f = &self.functions;
        // SAFETY: the descriptor is alive; the result belongs to it, and is null if there is none.
        let own = unsafe { (f.pd_query_md)(primitive.raw, query, 0) };
        // SAFETY: as above; a null pointer is refused.
        self.handle("describe a tensor", f.desc_destroy, |raw| unsafe { (f.desc_clone)(raw, own) })
    }

    /// The name of the implementation that the library chose.
    pub fn implementation(&self, primitive: &Handle) -> Result<String, String> {
        let mut name: *const c_char = ptr::null();
        // SAFETY: the query writes the address of a text, which lives as long as the descriptor.
        unsafe {
            let result = (&raw mut name).cast();
            check(
                (self.functions.pd_query)(primitive.raw, QUERY_IMPLEMENTATION, 0, result),
                "name its implementation",
            )?;
            Ok(CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }

    /// The primitive so described.
    pub fn primitive(&'static self, description: Handle) -> Result<Primitive, String> {
        let f = &self.functions;
        let scratchpad = self.preferred(&description, QUERY_SCRATCHPAD)?;
        let handle = self.handle("make a primitive", f.primitive_destroy, |raw| {
            // SAFETY: the description is alive; the result is written to a live pointer.
            unsafe { (f.primitive_create)(raw, description.raw) }
        })?;
        let scratchpad_bytes = self.bytes(&scratchpad);
        Ok(Primitive { library: self, handle, scratchpad, scratchpad_bytes })
    }
}

impl Windows<'_> {
    fn arguments(&self) -> [Dims; 4] {
        // The library counts the elements between neighbors.
        let between: Vec<i64> = self.dilations.iter().map(|dilation| dilation - 1).collect();
        [dims(self.strides), dims(&between), dims(self.low), dims(self.high)]
    }
}

/// A computation that is ready to run.
pub(super) struct Primitive {
    library: &'static Library,
    handle: Handle,
    scratchpad: Handle,
    scratchpad_bytes: usize,
}

/// A tensor of a run: its role, its descriptor and its memory.
pub(super) struct Tensor<'a> {
    pub role: i32,
    pub desc: &'a Handle,
    pub memory: *mut c_void,
}

impl Primitive {
    /// The bytes of working memory that a run needs.
    pub fn scratchpad_bytes(&self) -> usize {
        self.scratchpad_bytes
    }

    /// Computes on the calling thread.
    ///
    /// # Safety
    /// Each tensor's memory must have the bytes that its descriptor says and that the primitive
    /// expects in that role, and `scratchpad` its bytes. Results are not accessed elsewhere during
    /// the run.
    pub unsafe fn run(
        &self,
        tensors: &[Tensor<'_>],
        scratchpad: *mut c_void,
    ) -> Result<(), String> {
        let f = &self.library.functions;
        let _guard = self.library.one_thread();
        // SAFETY: objects are alive, and the caller vouches for the memory.
        unsafe {
            let start = |raw| (f.stream_create)(raw, self.library.engine, DEFAULT_STREAM);
            let stream = self.library.handle("start a stream", f.stream_destroy, start)?;
            let working =
                Tensor { role: role::SCRATCHPAD, desc: &self.scratchpad, memory: scratchpad };
            let mut memories = Vec::with_capacity(tensors.len() + 1);
            for tensor in tensors.iter().chain([&working]) {
                let memory = self.library.handle("use memory", f.memory_destroy, |raw| {
                    (f.memory_create)(raw, tensor.desc.raw, self.library.engine, tensor.memory)
                })?;
                memories.push((tensor.role, memory));
            }
            let arguments: Vec<Argument> = memories
                .iter()
                .map(|(role, memory)| Argument { role: *role, memory: memory.raw })
                .collect();
            let (count, start) = (arguments.len() as c_int, arguments.as_ptr());
            check((f.primitive_execute)(self.handle.raw, stream.raw, count, start), "compute")?;
            check((f.stream_wait)(stream.raw), "compute")
        }
    }
}
