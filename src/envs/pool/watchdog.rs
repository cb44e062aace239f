//! Watchdog of environments: prints a line on standard error for a step or reset that does not
//! return.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::{output, watch};

/// Time in one step or reset after which an environment is reported.
const REPORT_AFTER: Duration = Duration::from_secs(30);

/// Number of times that a step or reset of one environment began or returned: odd during a call.
#[derive(Default)]
pub(super) struct Calls(AtomicU32);

impl Calls {
    /// Counts the beginning or the return of a call. Only one thread at a time calls an
    /// environment, so no addition is lost.
    #[inline]
    pub(super) fn advance(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }
}

/// Watchdog of the environments of one pool.
pub(super) struct Watch {
    id: String,
    envs: Vec<Arc<Calls>>,
    seen: Mutex<Vec<Seen>>,
}

/// Last observed count of one environment's [`Calls`].
#[derive(Clone)]
struct Seen {
    count: u32,
    since: Instant,
    reported: bool,
}

impl Watch {
    /// Watches environments of the kind `id` until the result is dropped.
    pub(super) fn new(id: &str, envs: Vec<Arc<Calls>>) -> Arc<Watch> {
        let seen = vec![Seen { count: 0, since: Instant::now(), reported: false }; envs.len()];
        let this = Arc::new(Watch { id: id.to_string(), envs, seen: Mutex::new(seen) });
        let weak: Weak<Watch> = Arc::downgrade(&this);
        watch::watch(weak);
        this
    }

    /// Returns the environments that are late at the time `now` and were not reported for the same
    /// call.
    fn late(&self, now: Instant) -> Vec<usize> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut late = Vec::new();
        for (i, (seen, calls)) in seen.iter_mut().zip(&self.envs).enumerate() {
            let count = calls.0.load(Ordering::Relaxed);
            if count != seen.count || count.is_multiple_of(2) {
                *seen = Seen { count, since: now, reported: false };
            } else if !seen.reported && now.duration_since(seen.since) >= REPORT_AFTER {
                seen.reported = true;
                late.push(i);
            }
        }
        late
    }
}

impl watch::Watched for Watch {
    fn look(&self) {
        let late = self.late(Instant::now());
        if !late.is_empty() {
            output::stderr_line(format_args!(
                "podracer: env {late:?} of {}: one step or reset has taken {} s and not returned, and \
                 the batch waits for it",
                self.id,
                REPORT_AFTER.as_secs()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_return_is_reported_once() {
        let envs: Vec<Arc<Calls>> = (0..3).map(|_| Arc::default()).collect();
        let watch = Watch::new("Slow-v0", envs.clone());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        envs[1].advance();
        assert!(watch.late(at(0)).is_empty());
        // This environment is in a call at each check, but each time in a different call.
        for seconds in 1..30 {
            envs[2].advance();
            assert!(watch.late(at(seconds)).is_empty(), "{seconds}");
            envs[2].advance();
        }
        assert_eq!(watch.late(at(30)), [1]);
        assert!(watch.late(at(90)).is_empty());
        envs[1].advance();
        assert!(watch.late(at(91)).is_empty());
        // A new call of the same environment is timed from its own start.
        envs[1].advance();
        assert!(watch.late(at(92)).is_empty());
        assert_eq!(watch.late(at(122)), [1]);
    }
}
