//! The watch over programs on several devices: a line on standard error when one is late, so that
//! a collective that some device never reaches has a name.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::sharded::{Sharded, WeakSharded};
use crate::output;

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
    told: bool,
}

/// How long a program may run before it is called late. The CPU runtime ends the process when a
/// device has waited 40 seconds at a collective; this is well before that.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often late programs are looked for.
const PERIOD: Duration = Duration::from_millis(500);

impl Watch {
    pub(super) fn new(name: &str) -> Watch {
        let launch = Mutex::default();
        let watched = Arc::new(Watched { name: name.to_string(), launch });
        register(Arc::downgrade(&watched));
        Watch(watched)
    }

    /// Notes a launch by one of its results.
    pub(super) fn launched(&self, result: &Sharded) {
        let mut launch = self.0.launch.lock().unwrap_or_else(PoisonError::into_inner);
        *launch = Some(Launch { at: Instant::now(), result: result.downgrade(), told: false });
    }
}

impl Watched {
    /// Tells of a launch that is late.
    fn look(&self) {
        let mut launch = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = launch.as_mut() else { return };
        if current.told || current.at.elapsed() < PATIENCE {
            return;
        }
        current.told = true;
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

/// Adds to what the watching thread looks at; starts the thread the first time.
fn register(watched: Weak<Watched>) {
    static ALL: OnceLock<Mutex<Vec<Weak<Watched>>>> = OnceLock::new();
    let mut first = false;
    let all = ALL.get_or_init(|| {
        first = true;
        Mutex::default()
    });
    let lock = |all: &'static Mutex<Vec<Weak<Watched>>>| {
        all.lock().unwrap_or_else(PoisonError::into_inner)
    };
    lock(all).push(watched);
    if first {
        let watch = move || {
            loop {
                std::thread::sleep(PERIOD);
                let alive: Vec<Arc<Watched>> = {
                    let mut all = lock(all);
                    all.retain(|watched| watched.strong_count() > 0);
                    all.iter().filter_map(Weak::upgrade).collect()
                };
                alive.iter().for_each(|watched| watched.look());
            }
        };
        // Without the thread nothing but the line is missing.
        let _ = std::thread::Builder::new().name("podracer-watch".into()).spawn(watch);
    }
}
