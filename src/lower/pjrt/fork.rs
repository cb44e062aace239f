//! Processes made by `fork`, in which the runtime is unusable.
//!
//! A fork copies one thread only. The threads that compile and run programs are not copied, and
//! their locks stay as they were: a call would wait for ever. In such a process every call that
//! needs them is an error, and handles are left undestroyed. A program that is started with
//! [`std::process::Command`] is not affected.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

/// True in a process that was forked from one with a client.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Makes later forks known. Clients call it when they are created.
pub(super) fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        #[cfg(unix)]
        // SAFETY: the handler is a function without state that may run in a forked child: it stores
        // to an atomic. Without memory for it, forks stay unknown, as before.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}

/// True in a process that was forked from one with a client.
#[inline]
pub(super) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Fails in a forked process. `action` completes "cannot ...".
#[inline]
pub(super) fn ensure_no_fork(action: &str) -> Result<()> {
    if forked() { Err(refusal(action)) } else { Ok(()) }
}

#[cold]
fn refusal(action: &str) -> Error {
    Error::Config(format!(
        "cannot {action}: this process was forked from one that had started the runtime, and a fork \
         copies none of the runtime's threads; fork before the first use of the runtime, or start a \
         program with std::process::Command"
    ))
}
