//! Compiled programs: running them, and reading their properties.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use smallvec::SmallVec;

use super::buffer::dtype_of;
use super::calls::ensure_no_call;
use super::ffi;
use super::fork::{ensure_no_fork, forked};
use super::in_flight::InFlight;
use super::plugin::{slice, text};
use crate::error::{Error, Result};
use crate::lower::pjrt::buffer::{Buffer, Event};
use crate::lower::pjrt::client::Client;
use crate::trace::types::TensorType;

/// Handles of one device's arguments or results; programs with more take the heap.
type Handles = SmallVec<[*mut ffi::Buffer; 64]>;

/// A compiled program, loaded on its devices.
pub struct Executable {
    loaded: *mut ffi::LoadedExecutable,
    raw: *mut ffi::Executable,
    client: Client,
    outputs: Vec<TensorType>,
    devices: Vec<usize>,
    /// Consecutive executions that had ended when the call that launched them returned.
    inline_runs: AtomicU8,
}

/// Number of such executions after which a program counts as one that the runtime computes inside of
/// the call, as it does with cheap programs whose arguments are ready.
const INLINE_RUNS: u8 = 8;

// SAFETY: executables are internally synchronized, by the rules of the C API.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({} outputs, devices {:?})", self.outputs.len(), self.devices)
    }
}

/// Bytes that a program takes on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Machine code.
    pub generated_code: i64,
    /// All arguments.
    pub arguments: i64,
    /// All results.
    pub outputs: i64,
    /// Results that live in the memory of donated arguments.
    pub aliased: i64,
    /// Scratch memory while it runs.
    pub temporary: i64,
    /// The most at any time, if the plugin reports it (0 otherwise).
    pub peak: i64,
}

impl Executable {
    /// Takes over a handle.
    pub(super) fn from_raw(client: Client, loaded: *mut ffi::LoadedExecutable) -> Result<Self> {
        // The drop destroys whatever is not null, so an error below leaks nothing.
        let mut this = Executable {
            loaded,
            raw: ptr::null_mut(),
            client,
            outputs: Vec::new(),
            devices: Vec::new(),
            inline_runs: AtomicU8::new(0),
        };
        let mut args = ffi::LoadedExecutableGetExecutableArgs::zeroed();
        args.loaded_executable = loaded;
        // SAFETY: the executable is live.
        let error = unsafe { (this.functions().loaded_executable_get_executable)(&mut args) };
        this.check(error, "cannot inspect an executable")?;
        this.raw = args.executable;
        this.outputs = this.read_outputs()?;
        this.devices = this.read_devices()?;
        Ok(this)
    }

    #[inline]
    fn functions(&self) -> &ffi::Functions {
        self.client.functions()
    }

    #[inline]
    fn check(&self, error: *mut ffi::Error, context: &str) -> Result<()> {
        self.client.plugin().check(error, || context.to_string())
    }

    fn read_outputs(&self) -> Result<Vec<TensorType>> {
        let count = self.size(self.functions().executable_num_outputs)?;
        let mut types = ffi::ExecutableOutputElementTypesArgs::zeroed();
        types.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_output_element_types)(&mut types) };
        self.check(error, "cannot read the types of an executable's outputs")?;
        let mut shapes = ffi::ExecutableOutputDimensionsArgs::zeroed();
        shapes.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_output_dimensions)(&mut shapes) };
        self.check(error, "cannot read the shapes of an executable's outputs")?;
        // SAFETY: the arrays belong to the executable, which is live; they have one entry per
        // output, and the dims are those of all outputs one after another.
        let (types, ranks, mut dims) = unsafe {
            let types = slice(types.output_types, types.num_output_types);
            let ranks = slice(shapes.dim_sizes, shapes.num_outputs);
            (types, ranks, slice(shapes.dims, ranks.iter().sum()))
        };
        if types.len() != count || ranks.len() != count {
            return Err(Error::Pjrt {
                context: "cannot read an executable's outputs".into(),
                code: 13,
                message: format!(
                    "it has {count} outputs, but {} types and {} shapes",
                    types.len(),
                    ranks.len()
                ),
            });
        }
        let mut outputs = Vec::with_capacity(count);
        for (&element, &rank) in types.iter().zip(ranks) {
            let (shape, rest) = dims.split_at(rank);
            dims = rest;
            let dtype = dtype_of(element).ok_or_else(|| {
                let output = outputs.len();
                Error::Argument(format!(
                    "output {output} has PJRT element type {element}, which has no DType"
                ))
            })?;
            let shape = shape.iter().map(|&d| d as usize).collect::<crate::trace::types::Shape>();
            outputs.push(TensorType { dtype, shape });
        }
        Ok(outputs)
    }

    fn read_devices(&self) -> Result<Vec<usize>> {
        let mut args = ffi::LoadedExecutableAddressableDevicesArgs::zeroed();
        args.executable = self.loaded;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().loaded_executable_addressable_devices)(&mut args) };
        self.check(error, "cannot list the devices of an executable")?;
        // SAFETY: the array belongs to the executable, which is live.
        let devices = unsafe { slice(args.devices, args.num_devices) };
        Ok(devices.iter().filter_map(|&raw| self.client.device_index(raw)).collect())
    }

    /// The C handle. It lives as long as this.
    pub fn raw(&self) -> *mut ffi::LoadedExecutable {
        self.loaded
    }

    /// The client that it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The types of the results, on each device.
    pub fn outputs(&self) -> &[TensorType] {
        &self.outputs
    }

    /// The indices of the devices that it runs on; empty for a portable executable.
    pub fn devices(&self) -> &[usize] {
        &self.devices
    }

    /// Runs a one-device program: launches it and appends its results to `outputs`, which become
    /// ready later.
    ///
    /// Arguments that the program declares as donated are deleted by this, except those whose
    /// positions are in `non_donatable`. Types and shapes of arguments are the caller's to check:
    /// the runtime checks their number and byte sizes only. An error of the running program itself
    /// shows when its results are waited for.
    #[inline]
    pub fn execute<'a>(
        &self,
        args: impl IntoIterator<Item = &'a Buffer>,
        non_donatable: &[i64],
        outputs: &mut Vec<Buffer>,
    ) -> Result<()> {
        self.needs_no_device()?;
        let args = self.handles(args)?;
        self.launch(&args, non_donatable, ptr::null_mut(), false, outputs).map(drop)
    }

    #[inline]
    fn needs_no_device(&self) -> Result<()> {
        if !self.devices.is_empty() {
            return Ok(());
        }
        Err(Error::Argument(
            "a portable program belongs to no device: run it with execute_on and a device".into(),
        ))
    }

    /// As [`Executable::execute`], on the device with this index: for portable executables, whose
    /// arguments are all there.
    pub fn execute_on<'a>(
        &self,
        device: usize,
        args: impl IntoIterator<Item = &'a Buffer>,
        non_donatable: &[i64],
        outputs: &mut Vec<Buffer>,
    ) -> Result<()> {
        let device = self.client.raw_device(device)?;
        let args = self.handles(args)?;
        self.launch(&args, non_donatable, device, false, outputs).map(drop)
    }

    /// As [`Executable::execute`], with the event of its completion: for programs without results,
    /// or to wait for everything at once.
    pub fn execute_with_event<'a>(
        &self,
        args: impl IntoIterator<Item = &'a Buffer>,
        non_donatable: &[i64],
        outputs: &mut Vec<Buffer>,
    ) -> Result<Event> {
        self.needs_no_device()?;
        let args = self.handles(args)?;
        let event = self.launch(&args, non_donatable, ptr::null_mut(), true, outputs)?;
        Ok(event.expect("asked for"))
    }

    /// The arguments' handles. A buffer of another client is another plugin's object, or one of
    /// another device list: the runtime would take it for its own.
    #[inline]
    fn handles<'a>(&self, args: impl IntoIterator<Item = &'a Buffer>) -> Result<Handles> {
        let mut foreign = false;
        let handle = |buffer: &'a Buffer| {
            foreign |= !buffer.client().same(&self.client);
            buffer.raw()
        };
        let handles = args.into_iter().map(handle).collect();
        match foreign {
            false => Ok(handles),
            true => Err(Error::Argument(
                "an argument is a buffer of another client than the program's; copy it through the \
                 host"
                    .into(),
            )),
        }
    }

    fn launch(
        &self,
        args: &[*mut ffi::Buffer],
        non_donatable: &[i64],
        device: *mut ffi::Device,
        wants_event: bool,
        outputs: &mut Vec<Buffer>,
    ) -> Result<Option<Event>> {
        ensure_no_fork("launch a compiled program")?;
        ensure_no_call("launch a compiled program")?;
        let mut handles: Handles = SmallVec::from_elem(ptr::null_mut(), self.outputs.len());
        let argument_list = args.as_ptr();
        let output_list = handles.as_mut_ptr();
        let mut options = execute_options(non_donatable);
        let mut call = ffi::LoadedExecutableExecuteArgs::zeroed();
        call.executable = self.loaded;
        call.options = &mut options;
        call.argument_lists = &argument_list;
        call.num_devices = 1;
        call.num_args = args.len();
        call.output_lists = &output_list;
        call.execute_device = device;
        let in_flight = InFlight::begin();
        // An event costs a third of a microsecond. Without other work in flight the arguments are
        // ready, so a program that runs inside of the call needs none.
        let runs_inline = self.inline_runs.load(Ordering::Relaxed) >= INLINE_RUNS;
        let mut event = ptr::null_mut();
        if wants_event || !runs_inline || !in_flight.is_alone() {
            call.device_complete_events = &mut event;
        }
        // SAFETY: the lists have the lengths promised and outlive the call; the argument handles
        // are borrowed from live buffers by every caller.
        let error = unsafe { (self.functions().loaded_executable_execute)(&mut call) };
        self.check(error, "cannot launch a program")?;
        self.adopt(&handles, outputs);
        if event.is_null() {
            return Ok(None);
        }
        // SAFETY: on success a live event that is ours.
        let event = unsafe { Event::from_raw(event, self.client.clone()) };
        if event.is_ready()? {
            if !runs_inline {
                self.inline_runs.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.inline_runs.store(0, Ordering::Relaxed);
            in_flight.until(&event)?;
        }
        Ok(Some(event))
    }

    #[inline]
    fn adopt(&self, handles: &[*mut ffi::Buffer], outputs: &mut Vec<Buffer>) {
        outputs.extend(handles.iter().zip(&self.outputs).map(|(&raw, ty)| {
            // SAFETY: after a successful launch every handle is a live buffer that is ours.
            unsafe { Buffer::from_raw(raw, self.client.clone(), ty.clone()) }
        }));
    }

    /// Runs a program on all of its devices at once: `args[d]` are the arguments on the device
    /// [`devices`](Executable::devices)`()[d]`, and the results come in the same order.
    pub fn execute_sharded(
        &self,
        args: &[Vec<&Buffer>],
        non_donatable: &[i64],
        outputs: &mut [Vec<Buffer>],
    ) -> Result<()> {
        self.launch_sharded(args, non_donatable, outputs).map(drop)
    }

    /// As [`Executable::execute_sharded`], with the event of each device's completion.
    pub(crate) fn execute_sharded_with_events(
        &self,
        args: &[Vec<&Buffer>],
        non_donatable: &[i64],
        outputs: &mut [Vec<Buffer>],
    ) -> Result<Vec<Event>> {
        self.launch_sharded(args, non_donatable, outputs).map(SmallVec::into_vec)
    }

    fn launch_sharded(
        &self,
        args: &[Vec<&Buffer>],
        non_donatable: &[i64],
        outputs: &mut [Vec<Buffer>],
    ) -> Result<SmallVec<[Event; 8]>> {
        ensure_no_fork("launch a compiled program")?;
        ensure_no_call("launch a compiled program")?;
        let num_devices = self.devices.len();
        if args.len() != num_devices || outputs.len() != num_devices {
            return Err(Error::Argument(format!(
                "the program runs on {num_devices} devices, got arguments for {} and room for the \
                 results of {}",
                args.len(),
                outputs.len()
            )));
        }
        let num_args = args.first().map_or(0, Vec::len);
        if let Some(d) = args.iter().position(|list| list.len() != num_args) {
            return Err(Error::Argument(format!(
                "device 0 got {num_args} arguments, device {d} got {}",
                args[d].len()
            )));
        }
        let num_outputs = self.outputs.len();
        let arguments = self.handles(args.iter().flatten().copied())?;
        let mut handles: Handles = SmallVec::from_elem(ptr::null_mut(), num_devices * num_outputs);
        // SAFETY: both arrays have one row per device, so every offset is in bounds.
        let (argument_lists, output_lists) = unsafe {
            let rows = 0..num_devices;
            let arguments: SmallVec<[*const *mut ffi::Buffer; 8]> =
                rows.clone().map(|d| arguments.as_ptr().add(d * num_args)).collect();
            let first = handles.as_mut_ptr();
            let outputs: SmallVec<[*mut *mut ffi::Buffer; 8]> =
                rows.map(|d| first.add(d * num_outputs)).collect();
            (arguments, outputs)
        };
        let mut options = execute_options(non_donatable);
        let mut call = ffi::LoadedExecutableExecuteArgs::zeroed();
        call.executable = self.loaded;
        call.options = &mut options;
        call.argument_lists = argument_lists.as_ptr();
        call.num_devices = num_devices;
        call.num_args = num_args;
        call.output_lists = output_lists.as_ptr();
        // One entry a device.
        let mut events: SmallVec<[*mut ffi::Event; 8]> =
            SmallVec::from_elem(ptr::null_mut(), num_devices);
        call.device_complete_events = events.as_mut_ptr();
        let in_flight: SmallVec<[InFlight; 8]> =
            (0..num_devices).map(|_| InFlight::begin()).collect();
        // SAFETY: as in `launch`.
        let error = unsafe { (self.functions().loaded_executable_execute)(&mut call) };
        self.check(error, "cannot launch a program on several devices")?;
        for (d, outputs) in outputs.iter_mut().enumerate() {
            self.adopt(&handles[d * num_outputs..(d + 1) * num_outputs], outputs);
        }
        // SAFETY: on success live events that are ours.
        let adopt = |raw| unsafe { Event::from_raw(raw, self.client.clone()) };
        let events: SmallVec<[Event; 8]> = events.into_iter().map(adopt).collect();
        for (in_flight, event) in in_flight.into_iter().zip(&events) {
            if !event.is_ready()? {
                in_flight.until(event)?;
            }
        }
        Ok(events)
    }

    /// The machine code and all that belongs to it, for [`Client::deserialize`].
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = ffi::ExecutableSerializeArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_serialize)(&mut args) };
        self.check(error, "cannot serialize an executable")?;
        // SAFETY: the bytes are backed by `serialized_executable` until it is deleted below.
        let bytes = unsafe {
            slice(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size).to_vec()
        };
        if let Some(delete) = args.serialized_executable_deleter {
            // SAFETY: the deleter belongs to this object, and the bytes were copied.
            unsafe { delete(args.serialized_executable) };
        }
        Ok(bytes)
    }

    /// The name of the module.
    pub fn name(&self) -> Result<String> {
        self.text(self.functions().executable_name)
    }

    /// A fingerprint of the compiled program.
    pub fn fingerprint(&self) -> Result<Vec<u8>> {
        let mut args = ffi::ExecutableTextArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_fingerprint)(&mut args) };
        self.check(error, "cannot read the fingerprint of an executable")?;
        // SAFETY: the bytes belong to the executable, which is live.
        Ok(unsafe { slice(args.text.cast::<u8>(), args.text_size).to_vec() })
    }

    /// Number of replicas and of partitions.
    pub fn replicas_and_partitions(&self) -> Result<(usize, usize)> {
        let functions = self.functions();
        let replicas = self.size(functions.executable_num_replicas)?;
        Ok((replicas, self.size(functions.executable_num_partitions)?))
    }

    /// The compiler's estimates: `flops`, `bytes accessed` and others.
    pub fn cost_analysis(&self) -> Result<Vec<(String, f64)>> {
        let mut args = ffi::ExecutableGetCostAnalysisArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_get_cost_analysis)(&mut args) };
        self.check(error, "cannot analyse the cost of an executable")?;
        // SAFETY: the array belongs to the executable, which is live, with kinds that match.
        unsafe {
            let properties = slice(args.properties, args.num_properties);
            let number = |value: &ffi::NamedValue| match value.kind {
                ffi::kind::FLOAT => Some(f64::from(value.value.float)),
                ffi::kind::INT64 => Some(value.value.int64 as f64),
                _ => None,
            };
            Ok(properties
                .iter()
                .filter_map(|value| Some((text(value.name, value.name_size), number(value)?)))
                .collect())
        }
    }

    /// The memory that it takes.
    pub fn memory_stats(&self) -> Result<MemoryStats> {
        let mut args = ffi::ExecutableGetCompiledMemoryStatsArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { (self.functions().executable_get_compiled_memory_stats)(&mut args) };
        self.check(error, "cannot analyse the memory of an executable")?;
        Ok(MemoryStats {
            generated_code: args.generated_code_size_in_bytes,
            arguments: args.argument_size_in_bytes,
            outputs: args.output_size_in_bytes,
            aliased: args.alias_size_in_bytes,
            temporary: args.temp_size_in_bytes,
            peak: args.peak_memory_in_bytes,
        })
    }

    /// The program after the compiler's optimizations, and its format: in practice
    /// `hlo_with_config`, a protocol buffer message.
    pub fn optimized_program(&self) -> Result<(String, Vec<u8>)> {
        let mut program = ffi::Program::zeroed();
        // Without code the first call returns the size.
        self.read_optimized(&mut program)?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        self.read_optimized(&mut program)?;
        // SAFETY: the format is a constant of the plugin.
        let format = unsafe { text(program.format, program.format_size) };
        Ok((format, code))
    }

    fn read_optimized(&self, program: &mut ffi::Program) -> Result<()> {
        let mut args = ffi::ExecutableOptimizedProgramArgs::zeroed();
        args.executable = self.raw;
        args.program = program;
        // SAFETY: the executable and the program are live; the code is null or has the size that
        // the plugin asked for.
        let error = unsafe { (self.functions().executable_optimized_program)(&mut args) };
        self.check(error, "cannot read the optimized program")
    }

    fn size(&self, call: ffi::Call<ffi::ExecutableSizeArgs>) -> Result<usize> {
        let mut args = ffi::ExecutableSizeArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { call(&mut args) };
        self.check(error, "cannot inspect an executable")?;
        Ok(args.size)
    }

    fn text(&self, call: ffi::Call<ffi::ExecutableTextArgs>) -> Result<String> {
        let mut args = ffi::ExecutableTextArgs::zeroed();
        args.executable = self.raw;
        // SAFETY: the executable is live.
        let error = unsafe { call(&mut args) };
        self.check(error, "cannot inspect an executable")?;
        // SAFETY: the text belongs to the executable, which is live.
        Ok(unsafe { text(args.text, args.text_size) })
    }
}

#[inline]
fn execute_options(non_donatable: &[i64]) -> ffi::ExecuteOptions {
    let mut options = ffi::ExecuteOptions::zeroed();
    options.non_donatable_input_indices = non_donatable.as_ptr();
    options.num_non_donatable_input_indices = non_donatable.len();
    options
}

impl Drop for Executable {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let functions = self.client.functions();
        let mut error = ptr::null_mut();
        if !self.raw.is_null() {
            let mut args = ffi::ExecutableDestroyArgs::zeroed();
            args.executable = self.raw;
            // SAFETY: the handle is ours, and nothing uses it after this.
            error = unsafe { (functions.executable_destroy)(&mut args) };
        }
        let mut args = ffi::LoadedExecutableDestroyArgs::zeroed();
        args.executable = self.loaded;
        // SAFETY: as above. Runs in flight hold what they need by themselves.
        let second = unsafe { (functions.loaded_executable_destroy)(&mut args) };
        for error in [error, second] {
            if !error.is_null() {
                self.client.plugin().take_error(error);
            }
        }
    }
}
