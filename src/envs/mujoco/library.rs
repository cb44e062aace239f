//! The C library `libmujoco`, loaded at run time.
//!
//! All `unsafe` code of this family is here, in `model` and in `data`. Everything that the API
//! supports goes through the API; other struct fields are read by offsets, which are valid for one
//! file only: its checksum is compared before it is loaded.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::native::{Lock, Settings};

/// MuJoCo version whose struct layouts `model` and `data` describe.
const VERSION: &str = "3.3.7";
/// Native part that contains the simulator.
pub(super) const SIMULATOR: &str = "mujoco";
/// Native part that contains the models of the robots.
pub(super) const MODELS: &str = "gymnasium-mujoco";

type SpecPtr = *mut c_void;
pub(super) type ModelPtr = *mut c_void;
pub(super) type DataPtr = *mut c_void;

/// Functions of the library, which stays loaded until the process ends.
pub(super) struct Library {
    pub(super) load_xml:
        unsafe extern "C-unwind" fn(*const c_char, *const c_void, *mut c_char, c_int) -> ModelPtr,
    pub(super) parse_xml:
        unsafe extern "C-unwind" fn(*const c_char, *const c_void, *mut c_char, c_int) -> SpecPtr,
    pub(super) compile: unsafe extern "C-unwind" fn(SpecPtr, *const c_void) -> ModelPtr,
    pub(super) spec_error: unsafe extern "C-unwind" fn(SpecPtr) -> *const c_char,
    pub(super) delete_spec: unsafe extern "C-unwind" fn(SpecPtr),
    pub(super) delete_model: unsafe extern "C-unwind" fn(ModelPtr),
    pub(super) make_data: unsafe extern "C-unwind" fn(ModelPtr) -> DataPtr,
    pub(super) delete_data: unsafe extern "C-unwind" fn(DataPtr),
    pub(super) reset_data: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    pub(super) forward: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    pub(super) step: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    pub(super) rne_post_constraint: unsafe extern "C-unwind" fn(ModelPtr, DataPtr),
    pub(super) state_size: unsafe extern "C-unwind" fn(ModelPtr, c_uint) -> c_int,
    pub(super) get_state: unsafe extern "C-unwind" fn(ModelPtr, DataPtr, *mut f64, c_uint),
    pub(super) set_state: unsafe extern "C-unwind" fn(ModelPtr, DataPtr, *const f64, c_uint),
    pub(super) name_to_id: unsafe extern "C-unwind" fn(ModelPtr, c_int, *const c_char) -> c_int,
    pub(super) id_to_name: unsafe extern "C-unwind" fn(ModelPtr, c_int, c_int) -> *const c_char,
    /// Folder with the models.
    pub(super) models: PathBuf,
}

fn native(problem: String) -> Error {
    let help = "run `podracer fetch mujoco`, which installs it again; a package of yours that is \
                found first is installed again by your pip";
    Error::Native { problem, help: help.into() }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded data is valid at every step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    /// Returns the library of this process; located, fetched if needed, and loaded at first use.
    pub(super) fn get(settings: &Settings) -> Result<&'static Library> {
        static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut loaded = lock(&LOADED);
        if let Some(library) = *loaded {
            return Ok(library);
        }
        let (path, models) = locate(settings)?;
        // Threads may be inside the library at any time, so it is never unloaded.
        let library = &*Box::leak(Box::new(Library::load(&path, models)?));
        *loaded = Some(library);
        Ok(library)
    }

    fn load(path: &Path, models: PathBuf) -> Result<Library> {
        let shown = path.display();
        // SAFETY: loading runs the library's initializers; the file is the pinned one, by its
        // checksum.
        let library = unsafe { libloading::Library::new(path) }
            .map_err(|error| native(format!("{shown} cannot be loaded: {error}")))?;
        let missing = |error| native(format!("{shown} is no MuJoCo library: {error}"));
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type is the one that the header of this version declares.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(missing)?
            };
        }
        let version: unsafe extern "C-unwind" fn() -> *const c_char = symbol!("mj_versionString");
        // SAFETY: it takes nothing and returns a constant text.
        let version = unsafe { CStr::from_ptr(version()) };
        if version.to_bytes() != VERSION.as_bytes() {
            return Err(native(format!("{shown} is MuJoCo {version:?}, expected {VERSION}")));
        }
        type Handler = extern "C-unwind" fn(*const c_char);
        let on_error: *mut Option<Handler> = symbol!("mju_user_error");
        let on_warning: *mut Option<Handler> = symbol!("mju_user_warning");
        // SAFETY: these are variables of the library, read by it alone, and nothing of it is
        // running yet. Without handlers an error would exit the process.
        unsafe {
            *on_error = Some(unwind);
            *on_warning = Some(ignore);
        }
        let functions = Library {
            load_xml: symbol!("mj_loadXML"),
            parse_xml: symbol!("mj_parseXMLString"),
            compile: symbol!("mj_compile"),
            spec_error: symbol!("mjs_getError"),
            delete_spec: symbol!("mj_deleteSpec"),
            delete_model: symbol!("mj_deleteModel"),
            make_data: symbol!("mj_makeData"),
            delete_data: symbol!("mj_deleteData"),
            reset_data: symbol!("mj_resetData"),
            forward: symbol!("mj_forward"),
            step: symbol!("mj_step"),
            rne_post_constraint: symbol!("mj_rnePostConstraint"),
            state_size: symbol!("mj_stateSize"),
            get_state: symbol!("mj_getState"),
            set_state: symbol!("mj_setState"),
            name_to_id: symbol!("mj_name2id"),
            id_to_name: symbol!("mj_id2name"),
            models,
        };
        std::mem::forget(library);
        Ok(functions)
    }
}

/// Size of the library's messages about a model.
const MESSAGE_SIZE: usize = 1000;

impl Library {
    /// Compiles the model in a file.
    pub(super) fn compile_file(&self, path: &Path) -> Result<NonNull<c_void>> {
        let shown = path.display();
        std::fs::metadata(path)
            .map_err(|error| Error::Env(format!("the model {shown} cannot be read: {error}")))?;
        let name = path.to_str().and_then(|path| CString::new(path).ok());
        let name = name.ok_or_else(|| Error::Env(format!("the path {shown} is not UTF-8")))?;
        let mut message = [0u8; MESSAGE_SIZE];
        let ptr = caught(|| {
            let (text, size) = (message.as_mut_ptr().cast(), MESSAGE_SIZE as c_int);
            // SAFETY: a path, no virtual files, and a buffer with its size.
            Ok(unsafe { (self.load_xml)(name.as_ptr(), std::ptr::null(), text, size) })
        })?;
        NonNull::new(ptr).ok_or_else(|| refused(&shown.to_string(), &message))
    }

    /// Compiles the model in a text.
    pub(super) fn compile_text(&self, text: &str) -> Result<NonNull<c_void>> {
        let name = "the model's text";
        let text = CString::new(text)
            .map_err(|_| Error::Env(format!("{name} has a zero byte, which XML does not allow")))?;
        let mut message = [0u8; MESSAGE_SIZE];
        let ptr = caught(|| {
            let (buffer, size) = (message.as_mut_ptr().cast(), MESSAGE_SIZE as c_int);
            // SAFETY: a text, no virtual files, and a buffer with its size.
            Ok(unsafe { (self.parse_xml)(text.as_ptr(), std::ptr::null(), buffer, size) })
        })?;
        let spec =
            Spec { library: self, ptr: NonNull::new(ptr).ok_or_else(|| refused(name, &message))? };
        // SAFETY: a whole specification, and no virtual files.
        let ptr = caught(|| Ok(unsafe { (self.compile)(spec.ptr.as_ptr(), std::ptr::null()) }))?;
        NonNull::new(ptr).ok_or_else(|| {
            // SAFETY: the library returns a text that lives as long as the specification.
            let error = unsafe { CStr::from_ptr((self.spec_error)(spec.ptr.as_ptr())) };
            Error::Env(format!("{name}: {}", error.to_string_lossy()))
        })
    }
}

/// Returns the error of a model that the library refuses with a message, which ends with a zero.
fn refused(name: &str, message: &[u8]) -> Error {
    let message = CStr::from_bytes_until_nul(message).unwrap_or_default().to_string_lossy();
    Error::Env(format!("{name}: {message}"))
}

/// One `mjSpec`: a model before it is compiled.
struct Spec<'a> {
    library: &'a Library,
    ptr: NonNull<c_void>,
}

impl Drop for Spec<'_> {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { (self.library.delete_spec)(self.ptr.as_ptr()) }
    }
}

/// Returns the library's file, whose checksum is the pinned one, and the folder of the models.
fn locate(settings: &Settings) -> Result<(PathBuf, PathBuf)> {
    let part = Lock::get().part(SIMULATOR)?;
    let member = part.wheel()?.member("library").expect("the lock file has it");
    let path = settings.locate(part)?.root.join(&member.path);
    let part = Lock::get().part(MODELS)?;
    let member = part.wheel()?.member("model").expect("the lock file has it");
    let model = settings.locate(part)?.root.join(&member.path);
    let folder = model.parent().expect("a file is in a folder");
    Ok((path, folder.to_path_buf()))
}

/// Handler of fatal errors of the library. It must not return to the point of the error; so it
/// unwinds, through C frames that have unwind tables and nothing to clean up, to
/// `MjModel::simulate`.
extern "C-unwind" fn unwind(message: *const c_char) {
    // SAFETY: the library passes a text.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    resume_unwind(Box::new(Fatal(message)));
}

/// Handler of warnings, which are counted in `mjData`, where `MjData::check` reads them.
extern "C-unwind" fn ignore(_message: *const c_char) {}

struct Fatal(String);

/// Runs `work`, which calls the library; converts a fatal error of the library to an error.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety: the caller drops what was being changed.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(
        |payload: Box<dyn Any + Send>| match payload.downcast::<Fatal>() {
            Ok(fatal) => Err(Error::Env(format!("MuJoCo: {}", fatal.0))),
            Err(panic) => resume_unwind(panic),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_damaged_parts_say_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let settings = Settings {
            home: home.path().into(),
            python_packages: false,
            fetch: false,
            ..Settings::from_env().unwrap()
        };
        let error = locate(&settings).unwrap_err().to_string();
        assert!(error.contains("mujoco (MuJoCo's physics library) is not installed"), "{error}");
        assert!(error.contains("pip install --no-deps mujoco==3.3.7"), "{error}");

        // A file of the right size with other bytes.
        let part = Lock::get().part(SIMULATOR).unwrap();
        let wheel = part.wheel().unwrap();
        let member = wheel.member("library").unwrap();
        let path = settings.install_dir(part, wheel).join(&member.path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(&path).unwrap().set_len(member.bytes).unwrap();
        let error = locate(&settings).unwrap_err().to_string();
        assert!(error.contains("is damaged: its sha256 is"), "{error}");
        assert!(error.contains("podracer fetch mujoco"), "{error}");
    }
}
