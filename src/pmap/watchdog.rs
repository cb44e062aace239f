//! The watch over programs on several devices: a line on standard error when one is late, so that
//! a collective that some device never reaches has a name.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::sharded::{Sharded, WeakSharded};
use crate::output;
use crate::watch;

/// Watches the launches of one executable.
pub(super) struct Watch(Arc<Watched>);

struct Watched {
    name: String,
    /// The last launch: if it is done, so are those before it.
    launch: Mutex<Option<Launch>>,
}

struct Launch {
    at: Instant,
    /// A result of it, ready when its device is done. Weak, so that it can be donated.
    result: WeakSharded,
    reported: bool,
}

/// Time that a program may run before it is called late. The CPU runtime ends the process when a
/// device has waited 40 seconds at a collective; this is well before that.
const REPORT_AFTER: Duration = Duration::from_secs(10);

impl Watch {
    pub(super) fn new(name: &str) -> Watch {
        let launch = Mutex::default();
        let watched = Arc::new(Watched { name: name.to_string(), launch });
        let weak: Weak<Watched> = Arc::downgrade(&watched);
        watch::watch(weak);
        Watch(watched)
    }

    /// Notes a launch by one of its results.
    pub(super) fn launched(&self, result: &Sharded) {
        let mut launch = self.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
        *launch = Some(Launch { at: Instant::now(), result: result.downgrade(), reported: false });
    }
}

impl watch::Watched for Watched {
    fn look(&self) {
        let mut launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = launch.as_mut() else { return };
        if current.reported || current.at.elapsed() < REPORT_AFTER {
            return;
        }
        current.reported = true;
        let late = current.result.unfinished();
        if !late.is_empty() {
            output::stderr_line(format_args!(
                "podracer: pmap program `{}` has not finished {:.1} s after its launch on device(s) \
                 {late:?}: it is slow, or a device waits at a collective for another that does not \
                 come",
                self.name,
                current.at.elapsed().as_secs_f64()
            ));
        }
    }
}
