//! Notices that XLA compiles a named function, for progress displays. Executables loaded from the
//! cache give none.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

type Listener = dyn Fn(&str) + Send + Sync;

static LISTENER: Mutex<Option<Arc<Listener>>> = Mutex::new(None);

thread_local! {
    /// The function that this thread compiles.
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Calls `listener` with the name of each function whose compilation starts. It replaces the
/// previous listener.
pub fn set_listener(listener: impl Fn(&str) + Send + Sync + 'static) {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(listener));
}

/// Removes the listener.
pub fn clear_listener() {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Runs `compile`, which compiles the function of this name.
pub(crate) fn named<T>(name: &str, compile: impl FnOnce() -> T) -> T {
    NAME.replace(name.to_string());
    let compiled = compile();
    NAME.take();
    compiled
}

/// Tells the listener that XLA starts to compile. Functions without a name, such as the single
/// operations of eager mode, are left out.
pub(super) fn started() {
    let name = NAME.with_borrow(String::clone);
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(listener) = listener.filter(|_| !name.is_empty()) {
        listener(&name);
    }
}
