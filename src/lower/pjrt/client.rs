//! Clients: a platform with its devices.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use super::ffi;
use super::fork::{ensure_no_fork, forked};
use super::key_value::{Callbacks, KeyValues};
use super::options::CreateOption;
use super::plugin::{slice, text};
use crate::error::{Error, Result};
use crate::lower::pjrt::plugin::Plugin;

/// A connection to the devices of one platform. Cheap to clone; the last clone to go, after every
/// buffer and executable of it, closes it.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    plugin: Arc<Plugin>,
    raw: *mut ffi::Client,
    platform: String,
    platform_version: String,
    devices: Vec<Device>,
    process: usize,
    /// The ids of all processes' devices, process by process.
    ids: Vec<Vec<i64>>,
    /// Dropped after the client, whose threads may call it.
    _callbacks: Option<Box<Callbacks>>,
}

/// A device of a client.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its position among the client's devices, which is how this library names devices.
    pub index: usize,
    /// Its id for device assignments.
    pub id: i64,
    /// Kind of the device, as in `cpu` or the name of a GPU.
    pub kind: String,
    /// Text that the runtime prints for the device.
    pub debug: String,
    raw: *mut ffi::Device,
}

// SAFETY: the client is internally synchronized, by the rules of the C API; devices are constant
// data of the client; the callbacks are a store for all threads.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}
// SAFETY: as above; the pointer is only used together with a live client.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({}, {} devices)", self.inner.platform, self.inner.devices.len())
    }
}

impl Client {
    /// Connects to the devices behind `plugin`. The options that exist depend on the plugin; the
    /// CPU plugin ignores names that it does not know, the CUDA plugin refuses them.
    pub fn new(plugin: Arc<Plugin>, options: &[(&str, CreateOption)]) -> Result<Client> {
        Client::distributed(plugin, options, None)
    }

    /// [`Client::new`] in one of several processes that work together, which find each other by
    /// `store`; `options` give the index of this process and their number (`node_id` and
    /// `num_nodes` of the GPU plugin). Returns when all processes have made this call.
    pub fn distributed(
        plugin: Arc<Plugin>,
        options: &[(&str, CreateOption)],
        store: Option<Arc<dyn KeyValues>>,
    ) -> Result<Client> {
        ensure_no_fork("create a client")?;
        super::fork::watch();
        let callbacks = store.map(Callbacks::new);
        let options: Vec<ffi::NamedValue> =
            options.iter().map(|(name, value)| named_value(name, value)).collect();
        let mut args = ffi::ClientCreateArgs::zeroed();
        args.create_options = options.as_ptr();
        args.num_options = options.len();
        if let Some(callbacks) = &callbacks {
            callbacks.install(&mut args);
        }
        // SAFETY: the option array and the texts and lists in it outlive the call; the callbacks
        // outlive the client.
        let error = unsafe { (plugin.functions().client_create)(&mut args) };
        plugin.check(error, || format!("cannot create a client of {}", plugin.path().display()))?;
        // From here on the drop of `inner` destroys the client.
        let mut inner = Inner {
            raw: args.client,
            platform: String::new(),
            platform_version: String::new(),
            devices: Vec::new(),
            process: 0,
            ids: Vec::new(),
            plugin,
            _callbacks: callbacks,
        };
        inner.describe()?;
        Ok(Client { inner: Arc::new(inner) })
    }

    /// A client of the CPU plugin with `device_count` devices, all of this machine's cores behind
    /// them. The count is always explicit, since the plugin's own default is four.
    ///
    /// Programs run in the calling thread. The plugin of 2025 does so for small ones only, whatever it
    /// is asked for; with a newer one, a policy of 32 observations takes half of the time, because no
    /// other thread has to wake up (decision 0024).
    pub fn cpu(plugin: Arc<Plugin>, device_count: usize) -> Result<Client> {
        if device_count == 0 {
            return Err(Error::Config("a CPU client needs at least one device, got 0".into()));
        }
        let count = CreateOption::Int(device_count as i64);
        let options = [("cpu_device_count", count), ("asynchronous", CreateOption::Bool(false))];
        let client = Client::new(plugin, &options)?;
        if client.devices().len() != device_count {
            return Err(Error::Config(format!(
                "asked for {device_count} CPU devices, got {} {} devices: is {} a CPU plugin?",
                client.devices().len(),
                client.platform_name(),
                client.plugin().path().display()
            )));
        }
        Ok(client)
    }

    /// Returns true if the devices' memory is the host's.
    #[inline]
    pub(super) fn is_cpu(&self) -> bool {
        self.inner.platform == "cpu"
    }

    /// The platform: `cpu`, `cuda`.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform
    }

    /// The platform's version, in its own words.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    /// The devices that this process may use.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// Index of this process among those that work together.
    pub fn process_index(&self) -> usize {
        self.inner.process
    }

    /// The ids of all devices, process by process; those of one process in ascending order.
    pub(crate) fn ids_by_process(&self) -> &[Vec<i64>] {
        &self.inner.ids
    }

    /// The plugin behind this client.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.inner.plugin
    }

    /// Returns true if both are the same client.
    pub fn same(&self, other: &Client) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    #[inline]
    pub(super) fn raw(&self) -> *mut ffi::Client {
        self.inner.raw
    }

    #[inline]
    pub(super) fn functions(&self) -> &ffi::Functions {
        self.inner.plugin.functions()
    }

    /// The C handle of a device.
    pub(super) fn raw_device(&self, index: usize) -> Result<*mut ffi::Device> {
        self.inner.devices.get(index).map(|device| device.raw).ok_or_else(|| {
            Error::Argument(format!(
                "device {index} does not exist: the {} client has {} devices",
                self.inner.platform,
                self.inner.devices.len()
            ))
        })
    }

    /// The position of a device among the client's, by its C handle.
    pub(super) fn device_index(&self, raw: *mut ffi::Device) -> Option<usize> {
        self.inner.devices.iter().position(|device| ptr::eq(device.raw, raw))
    }
}

impl Inner {
    fn describe(&mut self) -> Result<()> {
        let functions = self.plugin.functions();
        let mut name = ffi::ClientPlatformNameArgs::zeroed();
        name.client = self.raw;
        // SAFETY: the client is live.
        let error = unsafe { (functions.client_platform_name)(&mut name) };
        self.plugin.check(error, || "cannot read the platform's name".into())?;
        // SAFETY: the text belongs to the client, which is live.
        self.platform = unsafe { text(name.name, name.name_size) };

        let mut version = ffi::ClientPlatformVersionArgs::zeroed();
        version.client = self.raw;
        // SAFETY: the client is live.
        let error = unsafe { (functions.client_platform_version)(&mut version) };
        self.plugin.check(error, || "cannot read the platform's version".into())?;
        // SAFETY: the text belongs to the client, which is live.
        self.platform_version = unsafe { text(version.version, version.version_size) };

        let mut process = ffi::ClientProcessIndexArgs::zeroed();
        process.client = self.raw;
        // SAFETY: the client is live.
        let error = unsafe { (functions.client_process_index)(&mut process) };
        self.plugin.check(error, || "cannot read the number of the process".into())?;
        self.process = usize::try_from(process.process_index).unwrap_or(0);

        let ours = self.list(functions.client_addressable_devices)?;
        self.devices = ours
            .into_iter()
            .enumerate()
            .map(|(index, raw)| self.describe_device(index, raw))
            .collect::<Result<_>>()?;
        for raw in self.list(functions.client_devices)? {
            let (process, id) = self.place(raw)?;
            let count = self.ids.len().max(process + 1);
            self.ids.resize(count, Vec::new());
            self.ids[process].push(id);
        }
        self.ids.iter_mut().for_each(|ids| ids.sort_unstable());
        Ok(())
    }

    /// The devices that a function of the table lists.
    fn list(&self, call: ffi::Call<ffi::ClientDevicesArgs>) -> Result<Vec<*mut ffi::Device>> {
        let mut devices = ffi::ClientDevicesArgs::zeroed();
        devices.client = self.raw;
        // SAFETY: the client is live.
        let error = unsafe { call(&mut devices) };
        self.plugin.check(error, || "cannot list the devices".into())?;
        // SAFETY: the array belongs to the client, which is live.
        Ok(unsafe { slice(devices.devices, devices.num_devices) }.to_vec())
    }

    /// The process that has this device, and the device's id.
    fn place(&self, raw: *mut ffi::Device) -> Result<(usize, i64)> {
        let description = self.description(raw)?;
        let context = || "cannot tell whose a device is".to_string();
        let mut process = ffi::DeviceDescriptionProcessIndexArgs::zeroed();
        process.description = description;
        let functions = self.plugin.functions();
        // SAFETY: the description comes from a device of this client.
        let error = unsafe { (functions.device_description_process_index)(&mut process) };
        self.plugin.check(error, context)?;
        let mut id = ffi::DeviceDescriptionIdArgs::zeroed();
        id.description = description;
        // SAFETY: as above.
        let error = unsafe { (functions.device_description_id)(&mut id) };
        self.plugin.check(error, context)?;
        Ok((usize::try_from(process.process_index).unwrap_or(0), i64::from(id.id)))
    }

    fn description(&self, raw: *mut ffi::Device) -> Result<*mut ffi::DeviceDescription> {
        let mut description = ffi::DeviceGetDescriptionArgs::zeroed();
        description.device = raw;
        // SAFETY: the device comes from this client.
        let error = unsafe { (self.plugin.functions().device_get_description)(&mut description) };
        self.plugin.check(error, || "cannot describe a device".into())?;
        Ok(description.description)
    }

    fn describe_device(&self, index: usize, raw: *mut ffi::Device) -> Result<Device> {
        let context = || format!("cannot describe device {index}");
        let functions = self.plugin.functions();
        let description = self.description(raw)?;
        let (_, id) = self.place(raw)?;
        let read = |call: ffi::Call<ffi::DeviceDescriptionTextArgs>| {
            let mut args = ffi::DeviceDescriptionTextArgs::zeroed();
            args.description = description;
            // SAFETY: as above.
            self.plugin.check(unsafe { call(&mut args) }, context)?;
            // SAFETY: the text belongs to the description, which lives as long as the client.
            Ok::<String, Error>(unsafe { text(args.text, args.text_size) })
        };
        Ok(Device {
            index,
            id,
            kind: read(functions.device_description_kind)?,
            debug: read(functions.device_description_debug_string)?,
            raw,
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let mut args = ffi::ClientDestroyArgs::zeroed();
        args.client = self.raw;
        // SAFETY: buffers, executables and events hold the client, so this is the last use of it.
        let error = unsafe { (self.plugin.functions().client_destroy)(&mut args) };
        if !error.is_null() {
            self.plugin.take_error(error);
        }
    }
}

/// A create option as the C API takes it. It borrows from its arguments.
fn named_value(name: &str, option: &CreateOption) -> ffi::NamedValue {
    let (kind, value, value_size) = match option {
        CreateOption::String(text) => {
            (ffi::kind::STRING, ffi::NamedValueUnion { string: text.as_ptr().cast() }, text.len())
        }
        CreateOption::Int(int64) => (ffi::kind::INT64, ffi::NamedValueUnion { int64: *int64 }, 1),
        CreateOption::IntList(list) => {
            (ffi::kind::INT64_LIST, ffi::NamedValueUnion { int64_list: list.as_ptr() }, list.len())
        }
        CreateOption::Float(float) => (ffi::kind::FLOAT, ffi::NamedValueUnion { float: *float }, 1),
        CreateOption::Bool(boolean) => {
            (ffi::kind::BOOL, ffi::NamedValueUnion { boolean: *boolean }, 1)
        }
    };
    ffi::NamedValue {
        struct_size: size_of::<ffi::NamedValue>(),
        extension_start: ptr::null_mut(),
        name: name.as_ptr().cast(),
        name_size: name.len(),
        kind,
        value,
        value_size,
    }
}
