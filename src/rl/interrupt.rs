//! Ctrl-C and SIGTERM as a flag that training loops read.
//!
//! The first signal asks the loop to stop: it ends, saves its model and closes its event file as at
//! its regular end. The second ends the process at once with status 130. SIGHUP is not handled, so
//! that `nohup` works.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::{Error, Result};
use crate::output;

/// Exit status of an interrupted program: 128 + SIGINT.
pub const EXIT_STATUS: i32 = 130;

fn stop() -> &'static Arc<AtomicBool> {
    static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    STOP.get_or_init(Arc::default)
}

/// Makes a write beyond the size limit of files (`ulimit -f`) an error, as in Python: the signal SIGXFSZ
/// would end the process.
pub fn ignore_file_size_signal() {
    #[cfg(unix)]
    // SAFETY: no handler is installed; the signal is ignored.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Makes Ctrl-C and SIGTERM set the flag. Calling it again changes nothing. Writes beyond the
/// size limit of files become errors.
///
/// # Errors
/// [`Error::Config`] if the system refuses the handlers.
pub fn install() -> Result<()> {
    static INSTALLED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    ignore_file_size_signal();
    let register = |signal| -> std::io::Result<()> {
        // The order matters: when the first signal decides whether to end the process, the flag
        // must still be unset.
        flag::register_conditional_shutdown(signal, EXIT_STATUS, Arc::clone(stop()))?;
        flag::register(signal, Arc::clone(stop()))?;
        Ok(())
    };
    INSTALLED
        .get_or_init(|| {
            register(SIGINT).and_then(|()| register(SIGTERM)).map_err(|e| e.to_string())
        })
        .clone()
        .map_err(|problem| Error::Config(format!("cannot listen for Ctrl-C: {problem}")))
}

/// Returns true if a signal asked to stop. The first call that returns true prints
/// a message.
pub fn requested() -> bool {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let requested = stop().load(Ordering::Relaxed);
    if requested && !REPORTED.swap(true, Ordering::Relaxed) {
        output::stderr_line("stopping; interrupt again to leave at once");
    }
    requested
}
