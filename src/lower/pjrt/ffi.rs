//! The PJRT C API as this binding needs it: argument structs, the function table, and how to load
//! both from a plugin.
//!
//! Every `*Args` struct is declared at its newest known layout plus [`PADDING`] zero words, and
//! reports that padded size. A plugin refuses a struct that is smaller than its own but accepts a
//! larger one, and zero means "absent" for every field that was ever added, so one declaration
//! serves plugins older and newer than this file. Structs passed as C arrays
//! ([`NamedValue`]) or embedded by value ([`MemoryLayout`]) have their exact size, for their stride
//! is the plugin's.

use std::ffi::{c_char, c_int, c_void};

/// Zero words at the end of every argument struct, for fields that newer plugins know.
pub const PADDING: usize = 8;

/// Declares opaque types of the C API.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => { $(
        #[doc = concat!("Opaque: `PJRT_", stringify!($name), "`.")]
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )* };
}

opaque!(
    Error,
    Event,
    Client,
    Device,
    DeviceDescription,
    Memory,
    Executable,
    LoadedExecutable,
    Buffer,
    ExecuteContext,
    SerializedExecutable,
    ExtensionBase,
);

/// Declares argument structs: `struct_size` and `extension_start` first, padding last.
macro_rules! args {
    ($($name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        #[doc = concat!("Arguments: `PJRT_", stringify!($name), "`.")]
        #[repr(C)]
        #[allow(missing_docs)] // The fields are the C API's own.
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut ExtensionBase,
            $(pub $field: $type,)*
            pub padding: [usize; PADDING],
        }

        impl $name {
            /// All fields absent, except the size.
            #[inline]
            pub fn zeroed() -> $name {
                // SAFETY: every field is an integer, a bool, a raw pointer, an `Option` of a
                // function pointer, or an array of those: all zeros is a value of each.
                let mut args: $name = unsafe { std::mem::zeroed() };
                args.struct_size = size_of::<$name>();
                args
            }
        }
    )* };
}

/// Callback of `PJRT_Event_OnReady`.
pub type OnReady = unsafe extern "C" fn(error: *mut Error, user_arg: *mut c_void);

/// Frees the memory behind a serialized executable.
pub type SerializedDeleter = unsafe extern "C" fn(*mut SerializedExecutable);

/// Makes an error object of the plugin: its code, its message and how long that is.
pub type MakeError =
    unsafe extern "C" fn(code: c_int, message: *const c_char, message_size: usize) -> *mut Error;

/// Frees a value of the store of keys and values.
pub type ValueDeleter = unsafe extern "C" fn(value: *mut c_char);

args! {
    ErrorDestroyArgs { error: *mut Error }
    ErrorMessageArgs { error: *const Error, message: *const c_char, message_size: usize }
    ErrorGetCodeArgs { error: *const Error, code: c_int }

    PluginInitializeArgs {}
    PluginAttributesArgs { attributes: *const NamedValue, num_attributes: usize }

    EventDestroyArgs { event: *mut Event }
    EventIsReadyArgs { event: *mut Event, is_ready: bool }
    EventAwaitArgs { event: *mut Event }
    EventOnReadyArgs { event: *mut Event, callback: Option<OnReady>, user_arg: *mut c_void }

    ClientCreateArgs {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: Option<Call<KeyValueGetArgs>>,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<Call<KeyValuePutArgs>>,
        kv_put_user_arg: *mut c_void,
        client: *mut Client,
        kv_try_get_callback: Option<Call<KeyValueTryGetArgs>>,
        kv_try_get_user_arg: *mut c_void,
    }
    KeyValueGetArgs {
        key: *const c_char,
        key_size: usize,
        timeout_in_ms: c_int,
        callback_error: *mut MakeError,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<ValueDeleter>,
    }
    KeyValueTryGetArgs {
        key: *const c_char,
        key_size: usize,
        callback_error: *mut MakeError,
        user_arg: *mut c_void,
        value: *mut c_char,
        value_size: usize,
        value_deleter_callback: Option<ValueDeleter>,
    }
    KeyValuePutArgs {
        key: *const c_char,
        key_size: usize,
        value: *const c_char,
        value_size: usize,
        callback_error: *mut MakeError,
        user_arg: *mut c_void,
    }
    ClientDestroyArgs { client: *mut Client }
    ClientPlatformNameArgs { client: *mut Client, name: *const c_char, name_size: usize }
    ClientPlatformVersionArgs { client: *mut Client, version: *const c_char, version_size: usize }
    ClientProcessIndexArgs { client: *mut Client, process_index: c_int }
    ClientDevicesArgs {
        client: *mut Client,
        devices: *const *mut Device,
        num_devices: usize,
    }
    Program { code: *mut c_char, code_size: usize, format: *const c_char, format_size: usize }
    ClientCompileArgs {
        client: *mut Client,
        program: *const Program,
        compile_options: *const c_char,
        compile_options_size: usize,
        executable: *mut LoadedExecutable,
    }
    ClientBufferFromHostBufferArgs {
        client: *mut Client,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        host_buffer_semantics: c_int,
        device: *mut Device,
        memory: *mut Memory,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut Event,
        buffer: *mut Buffer,
    }

    DeviceGetDescriptionArgs { device: *mut Device, description: *mut DeviceDescription }
    DeviceDescriptionIdArgs { description: *mut DeviceDescription, id: c_int }
    DeviceDescriptionProcessIndexArgs {
        description: *mut DeviceDescription,
        process_index: c_int,
    }
    DeviceDescriptionTextArgs {
        description: *mut DeviceDescription,
        text: *const c_char,
        text_size: usize,
    }

    ExecutableDestroyArgs { executable: *mut Executable }
    LoadedExecutableDestroyArgs { executable: *mut LoadedExecutable }
    LoadedExecutableGetExecutableArgs {
        loaded_executable: *mut LoadedExecutable,
        executable: *mut Executable,
    }
    LoadedExecutableAddressableDevicesArgs {
        executable: *mut LoadedExecutable,
        devices: *const *mut Device,
        num_devices: usize,
    }
    ExecutableSizeArgs { executable: *mut Executable, size: usize }
    ExecutableTextArgs { executable: *mut Executable, text: *const c_char, text_size: usize }
    ExecutableOptimizedProgramArgs { executable: *mut Executable, program: *mut Program }
    ExecutableGetCostAnalysisArgs {
        executable: *mut Executable,
        num_properties: usize,
        properties: *const NamedValue,
    }
    ExecutableGetCompiledMemoryStatsArgs {
        executable: *mut Executable,
        generated_code_size_in_bytes: i64,
        argument_size_in_bytes: i64,
        output_size_in_bytes: i64,
        alias_size_in_bytes: i64,
        temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64,
        host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64,
        host_alias_size_in_bytes: i64,
        host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64,
        total_size_in_bytes: i64,
    }
    ExecutableOutputElementTypesArgs {
        executable: *mut Executable,
        output_types: *const c_int,
        num_output_types: usize,
    }
    ExecutableOutputDimensionsArgs {
        executable: *mut Executable,
        num_outputs: usize,
        dims: *const i64,
        dim_sizes: *const usize,
    }
    ExecutableSerializeArgs {
        executable: *const Executable,
        serialized_bytes: *const c_char,
        serialized_bytes_size: usize,
        serialized_executable: *mut SerializedExecutable,
        serialized_executable_deleter: Option<SerializedDeleter>,
    }
    ExecutableDeserializeAndLoadArgs {
        client: *mut Client,
        serialized_executable: *const c_char,
        serialized_executable_size: usize,
        loaded_executable: *mut LoadedExecutable,
        overridden_compile_options: *const c_char,
        overridden_compile_options_size: usize,
    }
    ExecuteOptions {
        send_callbacks: *mut c_void,
        recv_callbacks: *mut c_void,
        num_send_ops: usize,
        num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64,
        num_non_donatable_input_indices: usize,
        context: *mut ExecuteContext,
        call_location: *const c_char,
        num_tasks: usize,
        task_ids: *mut c_int,
        incarnation_ids: *mut i64,
        multi_slice_config: *mut c_void,
    }
    LoadedExecutableExecuteArgs {
        executable: *mut LoadedExecutable,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut Buffer,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut Buffer,
        device_complete_events: *mut *mut Event,
        execute_device: *mut Device,
    }

    BufferArgs { buffer: *mut Buffer }
    BufferOnDeviceSizeArgs { buffer: *mut Buffer, size: usize }
    BufferDeviceArgs { buffer: *mut Buffer, device: *mut Device }
    BufferIsDeletedArgs { buffer: *mut Buffer, is_deleted: bool }
    BufferCopyToDeviceArgs {
        buffer: *mut Buffer,
        dst_device: *mut Device,
        dst_buffer: *mut Buffer,
    }
    BufferToHostBufferArgs {
        src: *mut Buffer,
        host_layout: *mut MemoryLayout,
        dst: *mut c_void,
        dst_size: usize,
        event: *mut Event,
    }
    BufferReadyEventArgs { buffer: *mut Buffer, event: *mut Event }
    BufferUnsafePointerArgs { buffer: *mut Buffer, pointer: usize }
}

/// A named option or attribute: an element of C arrays, so exactly as large as in C.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // The fields are the C API's own.
pub struct NamedValue {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub name: *const c_char,
    pub name_size: usize,
    pub kind: c_int,
    pub value: NamedValueUnion,
    pub value_size: usize,
}

/// The value of a [`NamedValue`]; `kind` selects the variant.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs)] // The fields are the C API's own.
pub union NamedValueUnion {
    pub string: *const c_char,
    pub int64: i64,
    pub int64_list: *const i64,
    pub float: f32,
    pub boolean: bool,
}

/// The kinds of [`NamedValue`].
#[allow(missing_docs)]
pub mod kind {
    use std::ffi::c_int;
    pub const STRING: c_int = 0;
    pub const INT64: c_int = 1;
    pub const INT64_LIST: c_int = 2;
    pub const FLOAT: c_int = 3;
    pub const BOOL: c_int = 4;
}

/// A memory layout by axis order; the C struct is a union of which this is the larger member.
#[repr(C)]
#[allow(missing_docs)] // The fields are the C API's own.
pub struct MemoryLayout {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub tiled_struct_size: usize,
    pub tiled_extension_start: *mut ExtensionBase,
    pub minor_to_major: *const i64,
    pub minor_to_major_size: usize,
    pub tile_dims: *const i64,
    pub tile_dim_sizes: *const usize,
    pub num_tiles: usize,
    pub kind: c_int,
}

const _: () = assert!(size_of::<NamedValue>() == 56);
const _: () = assert!(size_of::<MemoryLayout>() == 80);

/// A function of the table that returns an error or null.
pub type Call<A> = unsafe extern "C" fn(*mut A) -> *mut Error;

/// A function of the table that cannot fail.
pub type VoidCall<A> = unsafe extern "C" fn(*mut A);

/// The first words of the function table: everything that may be read before its size is known.
#[repr(C)]
#[allow(missing_docs)] // The fields are the C API's own.
pub struct ApiHeader {
    pub struct_size: usize,
    pub extension_start: *mut ExtensionBase,
    pub version_struct_size: usize,
    pub version_extension_start: *mut ExtensionBase,
    pub major: c_int,
    pub minor: c_int,
}

/// Declares the function table: every entry in the order of the C header. `name: type` entries are
/// kept in [`Functions`]; `_` entries are only counted.
macro_rules! function_table {
    (@keep $table:ident $index:ident $missing:ident $name:ident, $type:ty) => {
        let $name: Option<$type> = match $table.get($index) {
            // SAFETY: the entry at this position of the table is null or a function with this
            // signature, by the C header; a nullable function pointer is an `Option`.
            Some(&entry) => unsafe { std::mem::transmute::<*const c_void, Option<$type>>(entry) },
            None => None,
        };
        if $name.is_none() { $missing.push(stringify!($name)); }
        $index += 1;
    };
    ($($name:ident: $type:ty, skip $skip:literal;)*) => {
        /// The functions of a plugin that this binding calls.
        #[allow(missing_docs)] // The names are the C API's own.
        pub struct Functions { $(pub $name: $type,)* }

        impl Functions {
            /// Reads the functions from the table's entries; the names of those it lacks otherwise.
            pub fn from_table(table: &[*const c_void]) -> Result<Functions, Vec<&'static str>> {
                let mut index = 0;
                let mut missing = Vec::new();
                $(
                    function_table!(@keep table index missing $name, $type);
                    index += $skip;
                )*
                let _ = index;
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Functions { $($name,)* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

// `skip` counts the entries of the C table between one function and the next that are not used.
function_table! {
    error_destroy: VoidCall<ErrorDestroyArgs>, skip 0;
    error_message: VoidCall<ErrorMessageArgs>, skip 0;
    error_get_code: Call<ErrorGetCodeArgs>, skip 0;
    plugin_initialize: Call<PluginInitializeArgs>, skip 0;
    plugin_attributes: Call<PluginAttributesArgs>, skip 0;
    event_destroy: Call<EventDestroyArgs>, skip 0;
    event_is_ready: Call<EventIsReadyArgs>, skip 1; // Event_Error
    event_await: Call<EventAwaitArgs>, skip 0;
    event_on_ready: Call<EventOnReadyArgs>, skip 0;
    client_create: Call<ClientCreateArgs>, skip 0;
    client_destroy: Call<ClientDestroyArgs>, skip 0;
    client_platform_name: Call<ClientPlatformNameArgs>, skip 0;
    client_process_index: Call<ClientProcessIndexArgs>, skip 0;
    client_platform_version: Call<ClientPlatformVersionArgs>, skip 0;
    client_devices: Call<ClientDevicesArgs>, skip 0;
    // LookupDevice, LookupAddressableDevice, AddressableMemories
    client_addressable_devices: Call<ClientDevicesArgs>, skip 3;
    client_compile: Call<ClientCompileArgs>, skip 1; // DefaultDeviceAssignment
    client_buffer_from_host_buffer: Call<ClientBufferFromHostBufferArgs>, skip 0;
    device_description_id: Call<DeviceDescriptionIdArgs>, skip 0;
    // Attributes
    device_description_process_index: Call<DeviceDescriptionProcessIndexArgs>, skip 1;
    device_description_kind: Call<DeviceDescriptionTextArgs>, skip 0;
    // ToString
    device_description_debug_string: Call<DeviceDescriptionTextArgs>, skip 1;
    // Device: IsAddressable, LocalHardwareId, AddressableMemories, DefaultMemory, MemoryStats;
    // Memory: Id, Kind, DebugString, ToString, AddressableByDevices
    device_get_description: Call<DeviceGetDescriptionArgs>, skip 10;
    executable_destroy: Call<ExecutableDestroyArgs>, skip 0;
    executable_name: Call<ExecutableTextArgs>, skip 0;
    executable_num_replicas: Call<ExecutableSizeArgs>, skip 0;
    executable_num_partitions: Call<ExecutableSizeArgs>, skip 0;
    executable_num_outputs: Call<ExecutableSizeArgs>, skip 1; // SizeOfGeneratedCodeInBytes
    executable_get_cost_analysis: Call<ExecutableGetCostAnalysisArgs>, skip 1; // OutputMemoryKinds
    executable_optimized_program: Call<ExecutableOptimizedProgramArgs>, skip 0;
    executable_serialize: Call<ExecutableSerializeArgs>, skip 0;
    loaded_executable_destroy: Call<LoadedExecutableDestroyArgs>, skip 0;
    loaded_executable_get_executable: Call<LoadedExecutableGetExecutableArgs>, skip 0;
    // Delete, IsDeleted
    loaded_executable_addressable_devices: Call<LoadedExecutableAddressableDevicesArgs>, skip 2;
    loaded_executable_execute: Call<LoadedExecutableExecuteArgs>, skip 0;
    // LoadedExecutable_Fingerprint
    executable_deserialize_and_load: Call<ExecutableDeserializeAndLoadArgs>, skip 1;
    // ElementType, Dimensions, UnpaddedDimensions, DynamicDimensionIndices, GetMemoryLayout
    buffer_destroy: Call<BufferArgs>, skip 5;
    buffer_on_device_size: Call<BufferOnDeviceSizeArgs>, skip 0;
    buffer_device: Call<BufferDeviceArgs>, skip 1; // Memory
    buffer_delete: Call<BufferArgs>, skip 0;
    buffer_is_deleted: Call<BufferIsDeletedArgs>, skip 0;
    buffer_copy_to_device: Call<BufferCopyToDeviceArgs>, skip 0;
    buffer_to_host_buffer: Call<BufferToHostBufferArgs>, skip 1; // IsOnCpu
    buffer_ready_event: Call<BufferReadyEventArgs>, skip 0;
    buffer_unsafe_pointer: Call<BufferUnsafePointerArgs>, skip 0;
    buffer_increase_external_reference_count: Call<BufferArgs>, skip 0;
    // OpaqueDeviceMemoryDataPointer; CopyToDeviceStream: 5; TopologyDescription: 7; Compile
    buffer_decrease_external_reference_count: Call<BufferArgs>, skip 14;
    executable_output_element_types: Call<ExecutableOutputElementTypesArgs>, skip 0;
    // Buffer_CopyToMemory, Client_CreateViewOfDeviceBuffer
    executable_output_dimensions: Call<ExecutableOutputDimensionsArgs>, skip 2;
    executable_fingerprint: Call<ExecutableTextArgs>, skip 1; // Client_TopologyDescription
    executable_get_compiled_memory_stats: Call<ExecutableGetCompiledMemoryStatsArgs>, skip 0;
}
