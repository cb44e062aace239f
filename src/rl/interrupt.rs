//! Ctrl-C and SIGTERM as a flag that training loops read.
//!
//! The first signal asks the loop to stop: it ends, saves its model and closes its event file as at
//! its regular end. The second ends the process at once with status 130. SIGHUP is not handled, so
//! that `nohup` works. After training, the program handles signals as before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::{SIGINT, SIGTERM, SIGXFSZ, c_int, sigaction};

use crate::error::{Error, Result};
use crate::output;

/// Exit status of an interrupted program: 128 + SIGINT.
pub const EXIT_STATUS: i32 = 130;

/// True after the first signal.
static STOP: AtomicBool = AtomicBool::new(false);
/// True after the message about it.
static REPORTED: AtomicBool = AtomicBool::new(false);
/// True in a program that only trains.
static UNTIL_EXIT: AtomicBool = AtomicBool::new(false);
static HANDLERS: Mutex<Handlers> = Mutex::new(Handlers { users: 0, before: Vec::new() });

struct Handlers {
    /// Number of [`Interruptible`] values.
    users: usize,
    /// Signals with the actions of the program itself.
    before: Vec<(c_int, sigaction)>,
}

/// While a value exists, Ctrl-C and SIGTERM set the flag of [`requested`], and writes beyond the size
/// limit of files are errors. When the last one is dropped, the flag is cleared and the signals have
/// their former actions again, except after [`handle_until_exit`].
#[derive(Debug)]
#[must_use]
pub struct Interruptible(());

extern "C" fn stop(_signal: c_int) {
    if STOP.swap(true, Ordering::Relaxed) {
        // SAFETY: `_exit` may be called in a signal handler.
        unsafe { libc::_exit(EXIT_STATUS) }
    }
}

fn handlers() -> MutexGuard<'static, Handlers> {
    HANDLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the action of a signal and returns the former one.
fn replace(signal: c_int, handler: libc::sighandler_t) -> io::Result<sigaction> {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: all zeros are a `sigaction`, with an empty mask. `stop` and `SIG_IGN` are handlers of the
    // signals for which they are given.
    unsafe {
        let mut action: sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_RESTART;
        match libc::sigaction(signal, &action, before.as_mut_ptr()) {
            0 => Ok(before.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Makes a write beyond the size limit of files (`ulimit -f`) an error, as in Python: the signal SIGXFSZ
/// would end the process.
pub fn ignore_file_size_signal() {
    // A refusal changes nothing.
    let _ = replace(SIGXFSZ, libc::SIG_IGN);
}

/// Leaves the handlers in place after training, for a program that ends then: of several processes, one
/// may be signaled while it waits for the others.
pub fn handle_until_exit() {
    UNTIL_EXIT.store(true, Ordering::Relaxed);
}

impl Interruptible {
    /// Handles the signals until the value is dropped.
    ///
    /// # Errors
    /// [`Error::Config`] if the system refuses the handlers.
    pub fn start() -> Result<Interruptible> {
        let mut handlers = handlers();
        handlers.users += 1;
        let interruptible = Interruptible(());
        if handlers.users > 1 || !handlers.before.is_empty() {
            return Ok(interruptible);
        }
        let stop = stop as extern "C" fn(c_int) as libc::sighandler_t;
        for (signal, handler) in [(SIGINT, stop), (SIGTERM, stop), (SIGXFSZ, libc::SIG_IGN)] {
            match replace(signal, handler) {
                Ok(before) => handlers.before.push((signal, before)),
                Err(error) => {
                    drop(handlers);
                    return Err(Error::Config(format!("cannot listen for Ctrl-C: {error}")));
                }
            }
        }
        Ok(interruptible)
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        let mut handlers = handlers();
        handlers.users -= 1;
        if handlers.users == 0 && !UNTIL_EXIT.load(Ordering::Relaxed) {
            for (signal, before) in handlers.before.drain(..) {
                // SAFETY: `before` is the action that the system returned for this signal.
                unsafe { libc::sigaction(signal, &before, ptr::null_mut()) };
            }
            STOP.store(false, Ordering::Relaxed);
            REPORTED.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns true if a signal asked to stop. The first call that returns true prints
/// a message.
pub fn requested() -> bool {
    let requested = STOP.load(Ordering::Relaxed);
    if requested && !REPORTED.swap(true, Ordering::Relaxed) {
        output::stderr_line("stopping; interrupt again to leave at once");
    }
    requested
}
