//! One thread that monitors work in progress, to report on standard error work that takes too long.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// Work that may take too long.
pub(crate) trait Watched: Send + Sync {
    /// Reports work that is late. Called every half second from one thread; must not block.
    fn look(&self);
}

type All = Mutex<Vec<Weak<dyn Watched>>>;

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(500);

fn lock(all: &All) -> std::sync::MutexGuard<'_, Vec<Weak<dyn Watched>>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds `watched` to the thread's list, for as long as it lives. Starts the thread the first time.
pub(crate) fn watch(watched: Weak<dyn Watched>) {
    static ALL: OnceLock<All> = OnceLock::new();
    let mut first = false;
    let all = ALL.get_or_init(|| {
        first = true;
        All::default()
    });
    lock(all).push(watched);
    if first {
        let looks = move || {
            loop {
                std::thread::sleep(PERIOD);
                let alive: Vec<Arc<dyn Watched>> = {
                    let mut all = lock(all);
                    all.retain(|watched| watched.strong_count() > 0);
                    all.iter().filter_map(Weak::upgrade).collect()
                };
                alive.iter().for_each(|watched| watched.look());
            }
        };
        // Without the thread nothing but the reports is missing.
        let _ = std::thread::Builder::new().name("podracer-watch".into()).spawn(looks);
    }
}
