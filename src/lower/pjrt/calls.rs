//! Calls of native functions by compiled programs, counted on the threads that run them: inside of one,
//! nothing may wait for the runtime. The functions themselves are in
//! [`custom_calls`](crate::lower::custom_calls).

use std::cell::Cell;

use crate::error::{Error, Result};

thread_local! {
    /// Number of kernels that are running on this thread.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Counts a kernel as running on this thread.
pub(crate) struct Running;

impl Running {
    pub(crate) fn new() -> Running {
        RUNNING.set(RUNNING.get() + 1);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Returns true if a compiled program is calling a native function on this thread. The call may
/// hold a thread that the runtime needs to progress, so every operation that waits for the runtime
/// is refused.
pub fn in_call() -> bool {
    RUNNING.get() > 0
}

/// An error if a compiled program is calling a native function on this thread.
pub(crate) fn ensure_no_call(action: &str) -> Result<()> {
    if !in_call() {
        return Ok(());
    }
    Err(Error::Callback(format!(
        "a function called by a compiled program tried to {action}; it holds a thread that the \
         runtime may need for that, and could wait forever. Compute in plain Rust or with \
         `interpret` there, or return what is needed and go on outside"
    )))
}
