//! Standard output and standard error of programs whose work must not depend on them.
//!
//! `println!` and `eprintln!` panic when their stream is full or closed, and a panic inside a
//! callback of the runtime aborts the process. Everything that this crate prints goes through this
//! module: diagnostics that cannot be written are dropped, results that cannot be written are an
//! error.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};

/// Takes a progress bar off the terminal while the given function writes.
pub(crate) type Suspend = dyn Fn(&dyn Fn()) + Send + Sync;

/// The progress bar on the terminal.
static PROGRESS_BAR: Mutex<Option<Arc<Suspend>>> = Mutex::new(None);

/// Names the progress bar around which lines are printed.
#[cfg(feature = "rl")]
pub(crate) fn set_progress_bar(bar: Arc<Suspend>) {
    *PROGRESS_BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

fn around_progress_bar(write: &dyn Fn()) {
    // The lock is released before writing: a writer may print a line of its own.
    let bar = PROGRESS_BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(suspend) => suspend(write),
        None => write(),
    }
}

/// Writes a line to standard error, above a progress bar if there is one. Failures are ignored:
/// there is no other channel to report them on.
pub fn stderr_line(line: impl Display) {
    let line = format!("{line}\n");
    around_progress_bar(&|| drop(io::stderr().lock().write_all(line.as_bytes())));
}

/// Writes a line of diagnostics to standard output. Failures are ignored.
pub(crate) fn stdout_line(line: impl Display) {
    let line = format!("{line}\n");
    around_progress_bar(&|| {
        let mut out = io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    });
}

/// Writes a result to standard output. A reader that has closed its end, as `head` does, is no
/// error.
///
/// # Errors
/// [`Error::Io`] if standard output cannot be written, as on a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::io("cannot write", "standard output")(error))
        }
        _ => Ok(()),
    }
}
