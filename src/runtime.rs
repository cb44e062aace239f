//! The device runtime of a process: one PJRT client, started at its first use.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::{Error, Result};
use crate::lower::callbacks::Callback;
use crate::lower::native;
use crate::lower::native_calls::{Bits, Dense};
use crate::lower::pjrt::custom_call::register;
use crate::lower::pjrt::{Client, Plugin};
use crate::lower::stablehlo::{LowerOptions, Platform};

/// What the runtime is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// How many devices the CPU platform shows; each runs programs of its own.
    pub cpu_devices: usize,
}

impl Default for RuntimeOptions {
    fn default() -> RuntimeOptions {
        RuntimeOptions { cpu_devices: 1 }
    }
}

/// The running client and what is known of it.
#[derive(Debug)]
pub struct Runtime {
    /// The client.
    pub client: Client,
    /// Its kind of device.
    pub platform: Platform,
    /// Whether compiled programs can call our native functions.
    native_calls: bool,
    options: RuntimeOptions,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static START: Mutex<()> = Mutex::new(());

impl Runtime {
    /// How Programs are lowered for this runtime.
    pub fn lower_options(&self) -> LowerOptions {
        LowerOptions {
            platform: self.platform,
            native_calls: self.native_calls,
            ..LowerOptions::default()
        }
    }

    /// Fails unless there is a device of this number.
    pub(crate) fn expect_device(&self, device: usize) -> Result<()> {
        let there = self.client.devices().len();
        if device < there {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "device {device} does not exist: the runtime has {there} device(s), numbered from 0. On \
             CPU start it with more: Runtime::start(RuntimeOptions {{ cpu_devices: {} }}), or the \
             flag --num-devices {} of an example",
            device + 1,
            device + 1
        )))
    }

    /// Whether compiled programs can call functions of this process.
    pub(crate) fn has_callbacks(&self) -> bool {
        self.native_calls
    }

    /// The process's runtime, started with the default options if it is not running yet. The
    /// first time on a machine this fetches the XLA plugin.
    ///
    /// # Errors
    /// [`Error::Native`] if the plugin cannot be had or loaded, [`Error::Pjrt`] if its client does
    /// not start.
    pub fn get() -> Result<&'static Runtime> {
        match RUNTIME.get() {
            Some(runtime) => Ok(runtime),
            None => Runtime::start(RuntimeOptions::default()),
        }
    }

    /// Starts the process's runtime with these options.
    ///
    /// # Errors
    /// As [`Runtime::get`]; and if it is running already with other options.
    pub fn start(options: RuntimeOptions) -> Result<&'static Runtime> {
        let running = Runtime::running_or_started(options.clone())?;
        if running.options != options {
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
    pub fn running_or_started(options: RuntimeOptions) -> Result<&'static Runtime> {
        let _one_at_a_time = START.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = RUNTIME.get() {
            return Ok(running);
        }
        if options.cpu_devices == 0 {
            return Err(Error::Config("cpu_devices is 0; the runtime needs at least 1".into()));
        }
        let plugin = Plugin::load(native::locate_cpu_plugin()?)?;
        plugin.keep_freed_memory();
        let native_calls = register::<Dense>(&plugin)?
            && register::<Bits>(&plugin)?
            && register::<Callback>(&plugin)?;
        let client = Client::cpu(plugin, options.cpu_devices)?;
        let platform = Platform::Cpu;
        Ok(RUNTIME.get_or_init(|| Runtime { client, platform, native_calls, options }))
    }
}
