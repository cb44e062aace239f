//! Loading of plugin files.

use std::collections::HashMap;
use std::ffi::{c_char, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::failure::failure;
use super::ffi::{self, Functions};
use crate::error::{Error, Result};

/// A loaded PJRT plugin. It stays loaded until the process ends: the runtime's threads run its
/// code, and no plugin is made to be unloaded.
pub struct Plugin {
    path: PathBuf,
    version: (i32, i32),
    attributes: Vec<(String, String)>,
    api: *const ffi::ApiHeader,
    functions: Functions,
}

// SAFETY: the table behind `api` is constant for the life of the process, and the C API demands of
// plugins that its functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version;
        write!(f, "Plugin({}, PJRT {major}.{minor})", self.path.display())
    }
}

/// Every plugin of this process, by canonical path.
fn loaded() -> &'static Mutex<HashMap<PathBuf, Arc<Plugin>>> {
    static LOADED: OnceLock<Mutex<HashMap<PathBuf, Arc<Plugin>>>> = OnceLock::new();
    LOADED.get_or_init(Mutex::default)
}

/// The help line of every error about a plugin file.
const HELP: &str = "point PODRACER_PJRT_PLUGIN at a PJRT plugin (a shared library that exports \
                    GetPjrtApi), or unset it and run `podracer fetch`; `podracer doctor` shows \
                    what is found";

fn native(problem: impl Into<String>) -> Error {
    Error::Native { problem: problem.into(), help: HELP.into() }
}

impl Plugin {
    /// Loads the plugin at `path`, or returns the one already loaded from there.
    ///
    /// Fails when the file is missing, is no shared library, exports no `GetPjrtApi`, or speaks a
    /// version of the API that this binding does not.
    pub fn load(path: impl AsRef<Path>) -> Result<Arc<Plugin>> {
        let path = path.as_ref();
        let canonical = path
            .canonicalize()
            .map_err(|source| native(format!("no PJRT plugin at {}: {source}", path.display())))?;
        if canonical.is_dir() {
            return Err(native(format!("{} is a folder, not a PJRT plugin", canonical.display())));
        }
        let mut loaded = loaded().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.get(&canonical) {
            return Ok(plugin.clone());
        }
        let plugin = Arc::new(Plugin::load_new(&canonical)?);
        loaded.insert(canonical, plugin.clone());
        Ok(plugin)
    }

    fn load_new(path: &Path) -> Result<Plugin> {
        let shown = path.display();
        set_log_level();
        // SAFETY: loading runs the library's initializers. That is what the user asks for by
        // naming it, and there is no way to tell a plugin from another library before.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
            native(format!("{shown} cannot be loaded as a shared library: {}", dl_reason(&error)))
        })?;
        type GetPjrtApi = unsafe extern "C" fn() -> *const ffi::ApiHeader;
        let api = {
            // SAFETY: the symbol's type is fixed by the C API for every library that exports it.
            let get = unsafe { library.get::<GetPjrtApi>(b"GetPjrtApi\0") };
            let Ok(get) = get else {
                return Err(native(format!(
                    "{shown} is a shared library but no PJRT plugin: it exports no GetPjrtApi"
                )));
            };
            // SAFETY: GetPjrtApi takes nothing and returns a pointer to constant data.
            unsafe { get() }
        };
        if api.is_null() {
            return Err(native(format!("{shown}: GetPjrtApi returned null")));
        }
        // SAFETY: the header's fields exist in every version of the table since the first.
        let header = unsafe { &*api };
        let entries = table_entries(header.struct_size, (header.major, header.minor), &shown)?;
        // SAFETY: `struct_size` bytes of table follow `api`, of which the entries are all after
        // the header.
        let table =
            unsafe { std::slice::from_raw_parts(api.add(1).cast::<*const c_void>(), entries) };
        let functions = Functions::from_table(table).map_err(|missing| {
            native(format!(
                "{shown} is too old: it speaks PJRT C API {}.{}, which lacks {}",
                header.major,
                header.minor,
                missing.join(", ")
            ))
        })?;
        // From here on its code may be running on threads of its own.
        std::mem::forget(library);
        let mut plugin = Plugin {
            path: path.to_path_buf(),
            version: (header.major, header.minor),
            attributes: Vec::new(),
            api,
            functions,
        };
        let mut args = ffi::PluginInitializeArgs::zeroed();
        // SAFETY: the arguments are complete; this is the first call of this plugin.
        let error = unsafe { (plugin.functions.plugin_initialize)(&mut args) };
        plugin.check(error, || format!("cannot initialize the PJRT plugin {shown}"))?;
        plugin.attributes = plugin.read_attributes()?;
        Ok(plugin)
    }

    /// Keeps for later runs the memory that this plugin frees (`podracer-malloc`). To be called before a
    /// client is made, of a plugin that takes device memory from the C library. With
    /// `PODRACER_MALLOC=default`, without the feature `malloc-hook`, and on systems other than Linux on
    /// x86-64 with glibc, it does nothing.
    pub fn keep_freed_memory(&self) {
        #[cfg(feature = "malloc-hook")]
        if !std::env::var("PODRACER_MALLOC").is_ok_and(|value| value == "default") {
            podracer_malloc::keep_freed_memory(self.api.cast());
        }
    }

    fn read_attributes(&self) -> Result<Vec<(String, String)>> {
        let mut args = ffi::PluginAttributesArgs::zeroed();
        // SAFETY: the arguments are complete.
        let error = unsafe { (self.functions.plugin_attributes)(&mut args) };
        self.check(error, || "cannot read the plugin's attributes".into())?;
        // SAFETY: the plugin owns this array and keeps it for ever.
        let attributes = unsafe { slice(args.attributes, args.num_attributes) };
        // SAFETY: the entries come from the plugin, with kinds that match their values.
        Ok(attributes.iter().map(|value| unsafe { named_value(value) }).collect())
    }

    /// The canonical path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the C API that the plugin speaks: major, minor.
    pub fn api_version(&self) -> (i32, i32) {
        self.version
    }

    /// True if the plugin is XLA of June 2026 or newer, which computes products with YNNPACK.
    pub fn has_ynnpack(&self) -> bool {
        self.version >= (0, 106)
    }

    /// The plugin's attributes as texts: `stablehlo_current_version` is `1.13.3`.
    pub fn attributes(&self) -> &[(String, String)] {
        &self.attributes
    }

    /// One attribute by its name.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The newest StableHLO that the plugin reads, as in `1.13.3`; empty when it does not report
    /// one.
    pub fn stablehlo_version(&self) -> &str {
        self.attribute("stablehlo_current_version").unwrap_or_default()
    }

    /// The function table as the plugin returned it, for extensions of the C API.
    pub fn api(&self) -> *const ffi::ApiHeader {
        self.api
    }

    /// The functions of the plugin.
    #[inline]
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Takes an error object of the plugin, null for none.
    #[inline]
    pub(in crate::lower) fn check(
        &self,
        error: *mut ffi::Error,
        context: impl FnOnce() -> String,
    ) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let (code, message) = self.take_error(error);
        Err(failure(context, code, message))
    }

    /// The code and message of an error object, which is destroyed. It must not be null.
    #[cold]
    pub(super) fn take_error(&self, error: *mut ffi::Error) -> (i32, String) {
        let mut code = ffi::ErrorGetCodeArgs::zeroed();
        code.error = error;
        let mut message = ffi::ErrorMessageArgs::zeroed();
        message.error = error;
        // SAFETY: `error` is live until it is destroyed below, after its message was copied.
        unsafe {
            (self.functions.error_get_code)(&mut code);
            (self.functions.error_message)(&mut message);
        }
        // SAFETY: the message belongs to the error, which is live.
        let mut text = unsafe { text(message.message, message.message_size) };
        // A guess, which names no place in a user's code.
        if let Some(at) = text.find("\n\nSuspected Python Code Location:") {
            text.truncate(text[..at].trim_end().len());
        }
        let mut destroy = ffi::ErrorDestroyArgs::zeroed();
        destroy.error = error;
        // SAFETY: nothing refers to the error any more.
        unsafe { (self.functions.error_destroy)(&mut destroy) };
        (code.code, text)
    }
}

/// Silences XLA's runtime, which logs on the standard error stream from its first line on. Its
/// errors are returned as well, and logged with a stack trace of C++ that means nothing to users. A
/// user's own setting stays unchanged.
fn set_log_level() {
    const LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
    if std::env::var_os(LEVEL).is_none() {
        // SAFETY: the standard library orders this with all Rust code that reads the environment.
        // C code on another thread could read it at this very moment; this happens once, before
        // the first plugin is loaded, so before there are threads of a runtime.
        unsafe { std::env::set_var(LEVEL, "3") };
    }
}

/// Returns the number of entries of the function table that may be read.
fn table_entries(
    struct_size: usize,
    (major, minor): (i32, i32),
    shown: &dyn fmt::Display,
) -> Result<usize> {
    if major != 0 {
        return Err(native(format!(
            "{shown} speaks PJRT C API {major}.{minor}; this build of podracer speaks 0.x"
        )));
    }
    match struct_size.checked_sub(size_of::<ffi::ApiHeader>()) {
        // Far more than any version has: the file exports a symbol of this name by accident.
        Some(bytes) if bytes < 1 << 16 => Ok(bytes / size_of::<*const c_void>()),
        _ => Err(native(format!(
            "{shown} exports GetPjrtApi, but its function table claims {struct_size} bytes"
        ))),
    }
}

/// The loader's own words, which `libloading` keeps in the source.
pub(in crate::lower) fn dl_reason(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// A text of the plugin, copied.
///
/// # Safety
/// `data` must point to `size` readable bytes, or be null.
pub(super) unsafe fn text(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// An array of the plugin; null is empty.
///
/// # Safety
/// `data` must point to `len` readable values that live for `'a`, or be null.
pub(super) unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    if data.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, len) }
}

/// A named value as texts; version triples become `1.13.3`.
///
/// # Safety
/// The value must come from a plugin: its kind matches its union.
unsafe fn named_value(value: &ffi::NamedValue) -> (String, String) {
    // SAFETY: names are always present; each union member is read under its own kind.
    unsafe {
        let name = text(value.name, value.name_size);
        let shown = match value.kind {
            ffi::kind::STRING => text(value.value.string, value.value_size),
            ffi::kind::INT64 => value.value.int64.to_string(),
            ffi::kind::INT64_LIST => {
                let numbers = slice(value.value.int64_list, value.value_size);
                numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(".")
            }
            ffi::kind::FLOAT => value.value.float.to_string(),
            ffi::kind::BOOL => value.value.boolean.to_string(),
            other => format!("(kind {other})"),
        };
        (name, shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_checked_before_the_table_is_read() {
        assert_eq!(table_entries(40 + 118 * 8, (0, 81), &"p").unwrap(), 118);
        let error = table_entries(984, (1, 2), &"p").unwrap_err().to_string();
        assert!(error.starts_with("p speaks PJRT C API 1.2; this build"), "{error}");
        let error = table_entries(usize::MAX, (0, 81), &"p").unwrap_err().to_string();
        assert!(error.contains("claims"), "{error}");
        assert!(table_entries(8, (0, 81), &"p").is_err());
    }

    #[test]
    fn an_old_table_names_what_it_lacks() {
        let entries = [table_entries as *const c_void; 80];
        let Err(missing) = Functions::from_table(&entries) else { panic!("80 entries suffice") };
        assert_eq!(missing.last(), Some(&"executable_get_compiled_memory_stats"));
        assert!(!missing.contains(&"client_compile"));
    }
}
