//! Exchange between the clients of several processes while they start: a store of keys and values
//! that the plugin reads and writes by callbacks.
//!
//! The GPU plugin gets the devices of all processes this way, and the data with which NCCL finds
//! the others. A plugin waits inside of a `get`, on any of its threads.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::failure::Code;
use super::ffi;
use super::plugin::slice;
use crate::error::Result;

/// A store of keys and values that all processes of a run share. Each key is written once.
pub trait KeyValues: Send + Sync {
    /// Returns the value of a key, as soon as a process has put it; `None` after `timeout`, which
    /// may be zero.
    ///
    /// # Errors
    /// Returns the reason why no value will arrive any more, such as another process's end.
    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>>;

    /// Gives a key its value.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    fn put(&self, key: &str, value: &[u8]) -> Result<()>;
}

/// The store in the form that a plugin takes. It must live as long as the client.
pub(super) struct Callbacks(Arc<dyn KeyValues>);

impl Callbacks {
    pub(super) fn new(store: Arc<dyn KeyValues>) -> Box<Callbacks> {
        Box::new(Callbacks(store))
    }

    /// Writes the callbacks into the arguments of a client's creation.
    pub(super) fn install(&self, args: &mut ffi::ClientCreateArgs) {
        let this = ptr::from_ref(self).cast_mut().cast::<c_void>();
        args.kv_get_callback = Some(get);
        args.kv_get_user_arg = this;
        args.kv_try_get_callback = Some(try_get);
        args.kv_try_get_user_arg = this;
        args.kv_put_callback = Some(put);
        args.kv_put_user_arg = this;
    }
}

/// `PJRT_KeyValueGetCallback`.
unsafe extern "C" fn get(args: *mut ffi::KeyValueGetArgs) -> *mut ffi::Error {
    // SAFETY: the plugin passes complete arguments that outlive the call, with the user argument
    // of `install`; its key is readable, and its way to make errors is a function. Its struct is
    // shorter than ours, so there must be no reference to the whole.
    unsafe {
        let timeout = Duration::from_millis((*args).timeout_in_ms.max(0) as u64);
        let (key, size) = ((*args).key, (*args).key_size);
        let found = look((*args).user_arg, key, size, timeout, Code::DeadlineExceeded);
        answer(found, (*args).callback_error, |value, size| {
            ((*args).value, (*args).value_size) = (value, size);
            (*args).value_deleter_callback = Some(delete);
        })
    }
}

/// `PJRT_KeyValueTryGetCallback`.
unsafe extern "C" fn try_get(args: *mut ffi::KeyValueTryGetArgs) -> *mut ffi::Error {
    // SAFETY: as in `get`.
    unsafe {
        let (key, size) = ((*args).key, (*args).key_size);
        let found = look((*args).user_arg, key, size, Duration::ZERO, Code::NotFound);
        answer(found, (*args).callback_error, |value, size| {
            ((*args).value, (*args).value_size) = (value, size);
            (*args).value_deleter_callback = Some(delete);
        })
    }
}

/// `PJRT_KeyValuePutCallback`.
unsafe extern "C" fn put(args: *mut ffi::KeyValuePutArgs) -> *mut ffi::Error {
    // SAFETY: as in `get`; the value is readable, too.
    unsafe {
        let value = slice((*args).value.cast::<u8>(), (*args).value_size);
        let done = with_store((*args).user_arg, (*args).key, (*args).key_size, |store, key| {
            store.put(key, value).map_err(|error| (Code::Unavailable, error.to_string()))
        });
        match done {
            Ok(()) => ptr::null_mut(),
            Err((code, message)) => failure((*args).callback_error, code, &message),
        }
    }
}

/// Number of bytes before a value that a plugin is given: the length, with which the value is
/// freed.
const HEAD: usize = size_of::<usize>();

/// Frees a value that a plugin was given.
unsafe extern "C" fn delete(value: *mut c_char) {
    if value.is_null() {
        return;
    }
    // SAFETY: `answer` made the value: a boxed slice whose first bytes are its length, of which the
    // plugin was given what comes after them.
    unsafe {
        let start = value.cast::<u8>().sub(HEAD);
        let mut length = [0; HEAD];
        ptr::copy_nonoverlapping(start, length.as_mut_ptr(), HEAD);
        let whole = ptr::slice_from_raw_parts_mut(start, usize::from_ne_bytes(length));
        drop(Box::from_raw(whole));
    }
}

type Verdict<T> = std::result::Result<T, (Code, String)>;

/// Calls the store; its panics are errors, since no panic may pass through the plugin's frames.
///
/// # Safety
/// `user_arg` must come from [`Callbacks::install`], and the key be readable.
unsafe fn with_store<T>(
    user_arg: *mut c_void,
    key: *const c_char,
    key_size: usize,
    call: impl FnOnce(&dyn KeyValues, &str) -> Verdict<T>,
) -> Verdict<T> {
    // SAFETY: the caller's promise.
    let (store, key) =
        unsafe { (&*user_arg.cast::<Callbacks>(), slice(key.cast::<u8>(), key_size)) };
    let key = String::from_utf8_lossy(key);
    catch_unwind(AssertUnwindSafe(|| call(&*store.0, &key)))
        .unwrap_or_else(|_| Err((Code::Internal, format!("the store panicked at key {key}"))))
}

/// # Safety
/// As [`with_store`].
unsafe fn look(
    user_arg: *mut c_void,
    key: *const c_char,
    key_size: usize,
    timeout: Duration,
    missing: Code,
) -> Verdict<Vec<u8>> {
    let find = |store: &dyn KeyValues, key: &str| match store.get(key, timeout) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => {
            let waited = timeout.as_secs_f32();
            Err((missing, format!("no process has put key {key} within {waited} s")))
        }
        Err(error) => Err((Code::Unavailable, error.to_string())),
    };
    // SAFETY: the caller's promise.
    unsafe { with_store(user_arg, key, key_size, find) }
}

/// Hands out a copy of the value, which [`delete`] frees, or an error.
///
/// # Safety
/// As [`failure`].
unsafe fn answer(
    found: Verdict<Vec<u8>>,
    make_error: *mut ffi::MakeError,
    hand_out: impl FnOnce(*mut c_char, usize),
) -> *mut ffi::Error {
    match found {
        Ok(value) => {
            let mut whole = (HEAD + value.len()).to_ne_bytes().to_vec();
            whole.extend_from_slice(&value);
            let start = Box::into_raw(whole.into_boxed_slice()).cast::<u8>();
            // SAFETY: the allocation has HEAD bytes before the value.
            hand_out(unsafe { start.add(HEAD) }.cast(), value.len());
            ptr::null_mut()
        }
        // SAFETY: the caller's promise.
        Err((code, message)) => unsafe { failure(make_error, code, &message) },
    }
}

/// An error object of the plugin's own kind, which takes it.
///
/// # Safety
/// `make_error` must point to the plugin's function.
unsafe fn failure(make_error: *mut ffi::MakeError, code: Code, message: &str) -> *mut ffi::Error {
    // SAFETY: the caller's promise; the message outlives the call, in which it is copied.
    unsafe { (*make_error)(code as c_int, message.as_ptr().cast(), message.len()) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;

    #[derive(Default)]
    struct Store(Mutex<HashMap<String, Vec<u8>>>);

    impl KeyValues for Store {
        fn get(&self, key: &str, _: Duration) -> Result<Option<Vec<u8>>> {
            match key {
                "gone" => Err(Error::Config("process 1 of 2 is gone".into())),
                "bug" => panic!("a store with a bug"),
                key => Ok(self.0.lock().unwrap().get(key).cloned()),
            }
        }

        fn put(&self, key: &str, value: &[u8]) -> Result<()> {
            self.0.lock().unwrap().insert(key.into(), value.into());
            Ok(())
        }
    }

    /// A plugin's error object: here its code and message.
    unsafe extern "C" fn make_error(
        code: c_int,
        message: *const c_char,
        size: usize,
    ) -> *mut ffi::Error {
        // SAFETY: the message is readable during the call.
        let message = unsafe { slice(message.cast::<u8>(), size) };
        let message = String::from_utf8(message.to_vec()).unwrap();
        Box::into_raw(Box::new((code, message))).cast()
    }

    fn taken(error: *mut ffi::Error) -> Option<(c_int, String)> {
        // SAFETY: errors here are those of `make_error`.
        (!error.is_null()).then(|| *unsafe { Box::from_raw(error.cast::<(c_int, String)>()) })
    }

    /// Keys and values the way a plugin reads and writes them.
    struct PluginSide(ffi::ClientCreateArgs);

    impl PluginSide {
        fn put(&self, key: &str, value: &[u8]) -> Option<(c_int, String)> {
            let mut make: ffi::MakeError = make_error;
            let mut args = ffi::KeyValuePutArgs::zeroed();
            (args.key, args.key_size) = (key.as_ptr().cast(), key.len());
            (args.value, args.value_size) = (value.as_ptr().cast(), value.len());
            (args.callback_error, args.user_arg) = (&mut make, self.0.kv_put_user_arg);
            // SAFETY: the arguments are complete.
            taken(unsafe { self.0.kv_put_callback.unwrap()(&mut args) })
        }

        fn get(&self, key: &str, millis: c_int) -> std::result::Result<Vec<u8>, (c_int, String)> {
            let mut make: ffi::MakeError = make_error;
            let mut args = ffi::KeyValueGetArgs::zeroed();
            (args.key, args.key_size) = (key.as_ptr().cast(), key.len());
            args.timeout_in_ms = millis;
            (args.callback_error, args.user_arg) = (&mut make, self.0.kv_get_user_arg);
            // SAFETY: the arguments are complete.
            let error = taken(unsafe { self.0.kv_get_callback.unwrap()(&mut args) });
            PluginSide::copied(error, args.value, args.value_size, args.value_deleter_callback)
        }

        fn try_get(&self, key: &str) -> std::result::Result<Vec<u8>, (c_int, String)> {
            let mut make: ffi::MakeError = make_error;
            let mut args = ffi::KeyValueTryGetArgs::zeroed();
            (args.key, args.key_size) = (key.as_ptr().cast(), key.len());
            (args.callback_error, args.user_arg) = (&mut make, self.0.kv_try_get_user_arg);
            // SAFETY: the arguments are complete.
            let error = taken(unsafe { self.0.kv_try_get_callback.unwrap()(&mut args) });
            PluginSide::copied(error, args.value, args.value_size, args.value_deleter_callback)
        }

        fn copied(
            error: Option<(c_int, String)>,
            value: *mut c_char,
            size: usize,
            deleter: Option<ffi::ValueDeleter>,
        ) -> std::result::Result<Vec<u8>, (c_int, String)> {
            if let Some(error) = error {
                assert!(value.is_null(), "an error has no value");
                return Err(error);
            }
            // SAFETY: the value is readable until it is deleted.
            unsafe {
                let copy = slice(value.cast::<u8>(), size).to_vec();
                deleter.expect("a value has a deleter")(value);
                Ok(copy)
            }
        }
    }

    #[test]
    fn a_plugin_reads_what_another_one_put() {
        let callbacks = Callbacks::new(Arc::new(Store::default()));
        let mut args = ffi::ClientCreateArgs::zeroed();
        callbacks.install(&mut args);
        let plugin = PluginSide(args);
        assert_eq!(plugin.put("local_topology/cuda/0", b"one \0 device"), None);
        assert_eq!(plugin.put("empty", b""), None);
        assert_eq!(plugin.get("local_topology/cuda/0", 1000).unwrap(), b"one \0 device");
        assert_eq!(plugin.try_get("local_topology/cuda/0").unwrap(), b"one \0 device");
        assert_eq!(plugin.get("empty", 0).unwrap(), b"");
    }

    #[test]
    fn what_is_not_there_is_told_by_its_code() {
        let callbacks = Callbacks::new(Arc::new(Store::default()));
        let mut args = ffi::ClientCreateArgs::zeroed();
        callbacks.install(&mut args);
        let plugin = PluginSide(args);
        let (code, message) = plugin.try_get("later").unwrap_err();
        assert_eq!(code, Code::NotFound as c_int);
        assert!(message.contains("no process has put key later"), "{message}");
        let (code, message) = plugin.get("later", 1500).unwrap_err();
        assert_eq!(code, Code::DeadlineExceeded as c_int);
        assert!(message.ends_with("within 1.5 s"), "{message}");
        let (code, message) = plugin.get("gone", 1000).unwrap_err();
        assert_eq!(code, Code::Unavailable as c_int);
        assert!(message.contains("process 1 of 2 is gone"), "{message}");
        let (code, message) = plugin.get("bug", 1000).unwrap_err();
        assert_eq!(code, Code::Internal as c_int);
        assert!(message.contains("panicked at key bug"), "{message}");
    }
}
