//! The device runtime of a process: one PJRT client, started at its first use.

mod gpu_memory;

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::lower::conv;
use crate::lower::custom_calls::bits::Bits;
use crate::lower::custom_calls::callbacks::Callback;
use crate::lower::custom_calls::onednn::{self, Convolution, Matmul};
use crate::lower::custom_calls::{register, register_for};
use crate::lower::pjrt::{Client, CreateOption, KeyValues, Plugin};
use crate::lower::stablehlo::{ConvLibrary, LowerOptions, Platform};
use crate::native::Settings;
use crate::output;
use crate::trace::program::Program;

/// Options that the runtime starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// The kind of device; `None` for the one that `PODRACER_PLATFORM` names (`cpu` or `cuda`), or
    /// the CPU.
    pub platform: Option<Platform>,
    /// Number of devices of the CPU platform; each runs programs of its own. On GPUs, all devices
    /// present are used.
    pub cpu_devices: usize,
    /// The library that computes convolutions on CPU; `None` for the one that `PODRACER_CONV` names
    /// (`auto`, `xla` or `onednn`), or [`ConvLibrary::Auto`].
    pub conv: Option<ConvLibrary>,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions::with_cpu_devices(1)
    }
}

impl RuntimeOptions {
    /// Options with this number of devices, if the platform is the CPU.
    pub fn with_cpu_devices(cpu_devices: usize) -> RuntimeOptions {
        RuntimeOptions { platform: None, cpu_devices, conv: None }
    }

    /// Returns true if devices of this kind can work together with those of other processes: GPUs,
    /// by NCCL.
    pub fn joins_processes(&self) -> bool {
        self.uses_gpus()
    }

    /// Returns true if the chosen platform is not the CPU.
    pub(crate) fn uses_gpus(&self) -> bool {
        let resolved = self.clone().resolved();
        resolved.is_ok_and(|options| !options.platform.is_some_and(Platform::is_host))
    }

    /// Returns the options with the platform chosen.
    fn resolved(self) -> Result<RuntimeOptions> {
        let platform = match self.platform {
            Some(platform) => platform,
            None => Platform::from_env()?,
        };
        let conv = match self.conv {
            Some(conv) => conv,
            None => conv_named(std::env::var_os("PODRACER_CONV").as_deref())?,
        };
        Ok(RuntimeOptions { platform: Some(platform), conv: Some(conv), ..self })
    }
}

/// The platform of the running runtime; before its start, the one that it will have.
#[cfg(feature = "rl")]
pub(crate) fn running_platform() -> Platform {
    match RUNTIME.get() {
        Some(runtime) => runtime.platform,
        None => Platform::from_env().unwrap_or_default(),
    }
}

/// The library of convolutions that the user names.
fn conv_named(name: Option<&OsStr>) -> Result<ConvLibrary> {
    match name.unwrap_or_default().to_str() {
        Some("" | "auto") => Ok(ConvLibrary::Auto),
        Some("xla") => Ok(ConvLibrary::Xla),
        Some("onednn") => Ok(ConvLibrary::OneDnn),
        _ => Err(Error::Config(format!(
            "PODRACER_CONV is `{}`; expected auto, xla or onednn",
            name.unwrap_or_default().to_string_lossy()
        ))),
    }
}

/// This process among several whose devices work together: XLA's collectives go over all of them.
///
/// Only GPUs can: their plugin joins the processes by NCCL. CPU devices end at their process.
#[derive(Clone)]
pub struct Distributed {
    /// Number of this process, from 0.
    pub process_id: usize,
    /// Number of processes.
    pub num_processes: usize,
    /// Store by which the processes' clients find each other.
    pub store: Arc<dyn KeyValues>,
}

/// The running client and its properties.
#[derive(Debug)]
pub struct Runtime {
    /// The client.
    pub client: Client,
    /// Its kind of device.
    pub platform: Platform,
    /// True if compiled programs can call our native functions.
    native_calls: bool,
    /// True if compiled programs can call the user's functions.
    callbacks: bool,
    /// True if oneDNN computes convolutions; decided when the first one is compiled.
    onednn: OnceLock<bool>,
    options: RuntimeOptions,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());

impl Runtime {
    /// Returns the options with which this Program is lowered for this runtime.
    pub fn lower_options(&self, program: &Program) -> LowerOptions {
        LowerOptions {
            platform: self.platform,
            native_calls: self.native_calls,
            conv_threads: if conv::suits_onednn(program) && self.has_onednn() {
                cores()
            } else {
                0
            },
            ..LowerOptions::default()
        }
    }

    /// Returns true if oneDNN computes convolutions. The first call loads it if the choice is
    /// [`ConvLibrary::Auto`].
    fn has_onednn(&self) -> bool {
        *self.onednn.get_or_init(|| match load_onednn(self.client.plugin()) {
            Ok(there) => there,
            Err(error) => {
                output::stderr_line(format_args!(
                    "podracer: warning: XLA computes convolutions, which takes longer, because oneDNN \
                     cannot be loaded (PODRACER_CONV=xla chooses XLA without this warning): {error}"
                ));
                false
            }
        })
    }

    /// Fails unless there is a device of this number.
    pub(crate) fn ensure_device(&self, device: usize) -> Result<()> {
        let there = self.client.devices().len();
        if device < there {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "device {device} does not exist: the runtime has {there} device(s), numbered from 0. On \
             CPU start it with more: Runtime::start(RuntimeOptions::with_cpu_devices({})), or the \
             flag --num-devices {}",
            device + 1,
            device + 1
        )))
    }

    /// The id of a device, by its number.
    pub(crate) fn id_of(&self, device: usize) -> Result<i64> {
        self.ensure_device(device)?;
        Ok(self.client.devices()[device].id)
    }

    /// Returns the number of processes whose devices work together; see [`Runtime::start_distributed`].
    pub(crate) fn process_count(&self) -> usize {
        self.client.ids_by_process().len().max(1)
    }

    /// Returns true if compiled programs can call functions of this process.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.callbacks
    }

    /// The process's runtime, started with the default options if it is not running yet. The
    /// first time on a machine this fetches the XLA plugin.
    ///
    /// # Errors
    /// [`Error::Native`] if the plugin cannot be found, fetched or loaded, or the client of GPUs does
    /// not start; [`Error::Pjrt`] if the client of the CPU does not; [`Error::Config`] if an
    /// environment variable is invalid.
    pub fn get() -> Result<&'static Runtime> {
        match RUNTIME.get() {
            Some(runtime) => Ok(runtime),
            None => Runtime::running_or_started(RuntimeOptions::default()),
        }
    }

    /// Starts the process's runtime with these options.
    ///
    /// # Errors
    /// As [`Runtime::get`]; and if it is running already with other options.
    pub fn start(options: RuntimeOptions) -> Result<&'static Runtime> {
        let options = options.resolved()?;
        let running = Runtime::running_or_started(options.clone())?;
        // The other options are those of a CPU.
        let fits = match running.platform.is_host() {
            true => running.options == options,
            false => options.platform == Some(running.platform),
        };
        if !fits {
            return Err(Error::Config(format!(
                "the runtime is already running with {:?} and cannot be started with {options:?}; \
                 call Runtime::start before anything is put on a device or compiled",
                running.options
            )));
        }
        Ok(running)
    }

    /// The process's runtime: the one that is running, whatever its options, or one with these.
    ///
    /// # Errors
    /// As [`Runtime::get`].
    pub(crate) fn running_or_started(options: RuntimeOptions) -> Result<&'static Runtime> {
        let _one_at_a_time = START.lock().unwrap_or_else(PoisonError::into_inner);
        match RUNTIME.get() {
            Some(running) => Ok(running),
            None => Runtime::launch(options.resolved()?, None),
        }
    }

    /// Starts the runtime of a process whose devices work together with those of others. Returns
    /// when all processes have made this call.
    ///
    /// # Errors
    /// As [`Runtime::get`]; if it is running already; and on CPU, whose devices end at the process.
    pub fn start_distributed(
        options: RuntimeOptions,
        distributed: Distributed,
    ) -> Result<&'static Runtime> {
        let options = options.resolved()?;
        if options.platform.is_some_and(Platform::is_host) {
            return Err(Error::Config(
                "CPU devices cannot join those of other processes: they work together within one process; \
                 several processes add their gradients by MPI or through process 0"
                    .into(),
            ));
        }
        let _one_at_a_time = START.lock().unwrap_or_else(PoisonError::into_inner);
        if RUNTIME.get().is_some() {
            return Err(Error::Config(
                "the runtime is already running and cannot join other processes any more; call \
                 Runtime::start_distributed before anything is put on a device or compiled"
                    .into(),
            ));
        }
        Runtime::launch(options, Some(distributed))
    }

    /// Starts the client of the chosen platform, with resolved options. Callers hold `START`.
    fn launch(
        options: RuntimeOptions,
        distributed: Option<Distributed>,
    ) -> Result<&'static Runtime> {
        let platform = options.platform.unwrap_or_default();
        let started = match platform {
            Platform::Cpu => cpu(options),
            Platform::Cuda => gpu(platform, options, distributed),
            Platform::Rocm | Platform::Tpu => Err(platform.no_runtime()),
        }?;
        Ok(RUNTIME.get_or_init(|| started))
    }
}

/// Returns the number of threads that this process can run in parallel.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn load_plugin(platform: Platform) -> Result<Arc<Plugin>> {
    Plugin::load(platform.locate_plugin(&Settings::from_env()?)?)
}

/// Makes oneDNN's convolutions and products callable by compiled programs. Returns false if the plugin
/// calls no functions of this process.
fn load_onednn(plugin: &Plugin) -> Result<bool> {
    onednn::load()?;
    Ok(register::<Convolution>(plugin)? && register::<Matmul>(plugin)?)
}

/// Starts the client of this machine's cores.
fn cpu(options: RuntimeOptions) -> Result<Runtime> {
    let devices = options.cpu_devices;
    if devices == 0 {
        return Err(Error::Config("cpu_devices is 0; the runtime needs at least 1".into()));
    }
    let platform = Platform::Cpu;
    let plugin = load_plugin(platform)?;
    plugin.keep_freed_memory();
    let native_calls = register::<Bits>(&plugin)? && register::<Callback>(&plugin)?;
    let onednn = match options.conv.unwrap_or_default() {
        ConvLibrary::Auto if onednn::is_published() => OnceLock::new(),
        ConvLibrary::Auto | ConvLibrary::Xla => OnceLock::from(false),
        ConvLibrary::OneDnn => OnceLock::from(load_onednn(&plugin)?),
    };
    let client = Client::cpu(plugin, devices)?;
    Ok(Runtime { client, platform, native_calls, callbacks: native_calls, onednn, options })
}

/// Starts the client of this machine's GPUs.
fn gpu(
    platform: Platform,
    options: RuntimeOptions,
    distributed: Option<Distributed>,
) -> Result<Runtime> {
    let plugin = load_plugin(platform)?;
    let callbacks = match platform.facts().kernels {
        Some(kernels) => register_for::<Callback>(&plugin, kernels)?,
        None => false,
    };
    let mut client_options = gpu_memory::client_options(|name| std::env::var(name).ok())?;
    let client = match distributed {
        None => Client::new(plugin, &client_options),
        Some(Distributed { process_id, num_processes, store }) => {
            client_options.push(("node_id", CreateOption::Int(process_id as i64)));
            client_options.push(("num_nodes", CreateOption::Int(num_processes as i64)));
            Client::distributed(plugin, &client_options, Some(store))
        }
    };
    let startup_error = |error: Error| {
        Error::Native {
        problem: error.to_string(),
        help:
            "`nvidia-smi` shows the GPUs and the driver, and CUDA_VISIBLE_DEVICES limits which GPUs \
               are visible; unset PODRACER_PLATFORM to run on the CPU"
                .into(),
    }
    };
    let client = client.map_err(startup_error)?;
    // Our native functions are made for a CPU's caches.
    let (native_calls, onednn) = (false, OnceLock::from(false));
    Ok(Runtime { client, platform, native_calls, callbacks, onednn, options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_a_cpu_end_at_their_process() {
        struct Nothing;
        impl KeyValues for Nothing {
            fn get(&self, _: &str, _: std::time::Duration) -> Result<Option<Vec<u8>>> {
                Ok(None)
            }

            fn put(&self, _: &str, _: &[u8]) -> Result<()> {
                Ok(())
            }
        }
        let one = RuntimeOptions::default();
        let options = RuntimeOptions { platform: Some(Platform::Cpu), ..one.clone() };
        assert!(!options.joins_processes());
        let distributed = Distributed { process_id: 0, num_processes: 2, store: Arc::new(Nothing) };
        let error = Runtime::start_distributed(options, distributed).unwrap_err().to_string();
        assert!(error.contains("work together within one process"), "{error}");
        let tpu = RuntimeOptions { platform: Some(Platform::Tpu), ..one };
        let error = Runtime::launch(tpu, None).unwrap_err().to_string();
        assert!(error.contains("there is no runtime for tpu: choose cpu or cuda"), "{error}");
    }

    #[test]
    fn libraries_of_convolutions_have_names() {
        let named = |name: &str| conv_named(Some(OsStr::new(name)));
        assert_eq!(conv_named(None).unwrap(), ConvLibrary::Auto);
        assert_eq!(named("").unwrap(), ConvLibrary::Auto);
        assert_eq!(named("auto").unwrap(), ConvLibrary::Auto);
        assert_eq!(named("xla").unwrap(), ConvLibrary::Xla);
        assert_eq!(named("onednn").unwrap(), ConvLibrary::OneDnn);
        let error = named("mkl").unwrap_err().to_string();
        assert!(error.contains("PODRACER_CONV is `mkl`; expected auto, xla or onednn"), "{error}");
    }
}
