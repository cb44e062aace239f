//! Executions in flight, and the end of a process.
//!
//! `exit` destroys the statics of the plugin, which its threads use while they compile and compute:
//! a process that ended meanwhile would crash. So a thread that launched executions waits for them
//! when it ends, and the main thread waits for those of all threads. Both happen in the destructor
//! of a thread-local value, which runs before the exit handlers of the process.
//!
//! An execution that does not end, because a function that it calls does not return, holds up the end
//! for [`MAX_WAIT`] at most.
//!
//! Two cases are not covered: `exit` is called on a thread other than the main thread, or the main
//! thread never used the plugin, while another thread computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::calls::in_call;
use super::fork::forked;
use crate::error::Result;
use crate::lower::pjrt::buffer::Event;
use crate::output;

/// Interval at which an ending thread reads its count.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// Longest time that an ending thread waits.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Compilations and executions in flight, of all threads.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// True once the main thread is ending and waits for all compilations and executions.
static ENDING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OWN: Own = Own::new();
}

/// Executions that a thread has launched. Its drop waits for them.
struct Own {
    in_flight: Arc<AtomicUsize>,
    is_main: bool,
}

impl Own {
    fn new() -> Own {
        Own { in_flight: Arc::default(), is_main: is_main_thread() }
    }
}

/// Returns true on the thread whose end ends the process. Another one can have the name "main".
fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: both functions only read numbers of this process.
    return unsafe { libc::gettid() == libc::getpid() };
    #[cfg(target_os = "macos")]
    // SAFETY: the function only reads a property of this thread.
    return unsafe { libc::pthread_main_np() } != 0;
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    return std::thread::current().name() == Some("main");
}

impl Drop for Own {
    fn drop(&mut self) {
        // A forked process has no threads of the runtime. A native function that a program calls
        // would wait here for the execution that waits for it.
        if forked() || in_call() {
            return;
        }
        let count = if self.is_main {
            ENDING.store(true, Ordering::SeqCst);
            &ALL
        } else {
            &*self.in_flight
        };
        let start = Instant::now();
        while count.load(Ordering::SeqCst) > 0 {
            if start.elapsed() > MAX_WAIT {
                let seconds = MAX_WAIT.as_secs();
                output::stderr_line(format_args!(
                    "podracer: warning: a compiled program is still running {seconds} s after the \
                     end of the thread that launched it; its results are lost"
                ));
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// A compilation or an execution in flight, counted until this is dropped.
pub(super) struct InFlight {
    launched_by: Option<Arc<AtomicUsize>>,
}

impl InFlight {
    /// Counts a compilation or an execution. Once the main thread is ending, this parks every other
    /// thread for ever, because the process ends.
    #[inline]
    pub(super) fn begin() -> InFlight {
        // On the main thread, this makes the value whose drop waits.
        let is_main = OWN.try_with(|own| own.is_main).unwrap_or(true);
        ALL.fetch_add(1, Ordering::SeqCst);
        let this = InFlight { launched_by: None };
        if ENDING.load(Ordering::SeqCst) && !is_main {
            drop(this);
            loop {
                std::thread::park();
            }
        }
        this
    }

    /// Returns true if nothing else is in flight.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        ALL.load(Ordering::SeqCst) == 1
    }

    /// Keeps this in flight until `event` is ready.
    pub(super) fn until(mut self, event: &Event) -> Result<()> {
        let own = OWN.try_with(|own| own.in_flight.clone()).ok();
        if let Some(own) = &own {
            own.fetch_add(1, Ordering::SeqCst);
        }
        self.launched_by = own;
        event.on_ready(move |_| drop(self))
    }
}

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        ALL.fetch_sub(1, Ordering::SeqCst);
        if let Some(own) = &self.launched_by {
            own.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
