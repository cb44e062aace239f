//! Threads that step environments.
//!
//! A job carries the environment itself, so no two threads can access one; it also carries
//! exclusive write access to its row of the batch. Jobs and results pass through lock-free queues.
//! Results do not depend on which thread runs which job.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use crate::envs::pool::buffer::RowWriter;
use crate::envs::pool::cores;
use crate::envs::pool::slot::{Slot, Task, guard};
use crate::error::{Error, Result};
use crate::timeline;

/// Job: one environment to be stepped, and the row to write.
pub(super) struct Job {
    pub(super) slot: Box<Slot>,
    pub(super) row: usize,
    pub(super) writer: RowWriter,
    pub(super) task: Task,
    pub(super) inbox: Arc<Inbox>,
}

/// Result of a job: the environment, its row, and the failure if there was one.
pub(super) struct Returned {
    pub(super) slot: Box<Slot>,
    pub(super) row: usize,
    pub(super) failure: Option<String>,
}

/// Time that a thread polls for work before it sleeps, in nanoseconds.
///
/// Waking a thread costs some 50 us, so a thread that soon has work again should keep polling,
/// while one that has none for longer would take a core from the learner. Each thread adapts the
/// time to its recent waits.
struct SpinLimit(AtomicU32);

impl SpinLimit {
    const SHORTEST: u32 = 2_000;
    const LONGEST: u32 = 100_000;

    fn new() -> SpinLimit {
        SpinLimit(AtomicU32::new(Self::SHORTEST))
    }

    /// Adapts the polling time after a wait that was longer than it.
    fn learn(&self, waited: Duration) {
        let now = self.0.load(Ordering::Relaxed);
        // The time waited includes the cost of waking up.
        let worth = waited.as_nanos() <= u128::from(Self::LONGEST) * 2;
        let next = if worth { now * 4 } else { now / 2 };
        self.0.store(next.clamp(Self::SHORTEST, Self::LONGEST), Ordering::Relaxed);
    }
}

/// Lets threads sleep until a condition holds.
///
/// The thread that makes it hold calls `notify` afterwards, which costs a fence and a load if no
/// thread sleeps.
#[derive(Default)]
struct Signal {
    sleepers: AtomicUsize,
    mutex: Mutex<()>,
    condvar: Condvar,
}

impl Signal {
    fn wait(&self, spin_limit: &SpinLimit, holds: impl Fn() -> bool) {
        if holds() {
            return;
        }
        let (began, limit) = (Instant::now(), spin_limit.0.load(Ordering::Relaxed));
        while began.elapsed().as_nanos() < u128::from(limit) {
            for _ in 0..8 {
                std::hint::spin_loop();
            }
            if holds() {
                return;
            }
        }
        let mut guard = lock(&self.mutex);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Paired with the fence of `notify`: either this thread sees that the condition holds, or
        // the notifier sees that this thread sleeps.
        fence(Ordering::SeqCst);
        while !holds() {
            guard = self.condvar.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(guard);
        spin_limit.learn(began.elapsed());
    }

    fn notify(&self, all: bool) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        // A sleeper is counted under the lock: after this lock and unlock, it either waits on the
        // condition variable or has checked the condition.
        drop(lock(&self.mutex));
        if all { self.condvar.notify_all() } else { self.condvar.notify_one() }
    }
}

/// Locks the mutex even if it is poisoned: it guards no data.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Queue of the finished jobs of one batch.
pub(super) struct Inbox {
    returned: ArrayQueue<Returned>,
    back: AtomicUsize,
    wanted: AtomicUsize,
    ready: Signal,
}

impl Inbox {
    /// Makes an inbox for a batch of `rows`.
    pub(super) fn new(rows: usize) -> Inbox {
        Inbox {
            returned: ArrayQueue::new(rows),
            back: AtomicUsize::new(0),
            wanted: AtomicUsize::new(usize::MAX),
            ready: Signal::default(),
        }
    }

    /// Waits until `count` environments are back, and takes them.
    fn wait(&self, spin_limit: &SpinLimit, count: usize) -> Vec<Returned> {
        self.wanted.store(count, Ordering::SeqCst);
        self.ready.wait(spin_limit, || self.back.load(Ordering::SeqCst) >= count);
        std::iter::from_fn(|| self.returned.pop()).take(count).collect()
    }

    fn put(&self, returned: Returned) {
        let full = self.returned.push(returned).is_err();
        debug_assert!(!full, "a batch has as many environments as rows");
        // Only the last result wakes the reader. Sequential consistency: the reader either sets
        // `wanted` before this loads it, or sees this result counted.
        let back = self.back.fetch_add(1, Ordering::SeqCst) + 1;
        if back >= self.wanted.load(Ordering::SeqCst) {
            self.ready.notify(false);
        }
    }
}

struct Queue {
    jobs: ArrayQueue<Job>,
    closing: AtomicBool,
    work: Signal,
    spin_limit: SpinLimit,
}

/// Worker threads of one pool. Dropping them waits only for the jobs that have started.
pub(super) struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// True if the caller runs jobs itself while it waits.
    caller_helps: bool,
    /// Polling time of the caller when it waits for the last environments of a batch.
    spin_limit: SpinLimit,
    /// Cores available to the threads if they avoid the caller's core; else empty.
    cores: Vec<usize>,
    /// Core that the threads avoid now.
    kept_off: AtomicUsize,
}

/// Configuration of the threads of a pool.
pub(super) struct Team {
    /// Number of threads, without the caller.
    pub(super) count: usize,
    /// True if the caller runs jobs itself while it waits.
    pub(super) caller_helps: bool,
    /// Maximum number of jobs queued at once.
    pub(super) most_jobs: usize,
    /// Core of the first thread; each further thread is on the next core. `None`: any core.
    pub(super) first_core: Option<usize>,
}

impl Workers {
    /// Starts the threads, named after the environment.
    pub(super) fn start(id: &str, team: &Team) -> Result<Workers> {
        let queue = Arc::new(Queue {
            jobs: ArrayQueue::new(team.most_jobs),
            closing: AtomicBool::new(false),
            work: Signal::default(),
            spin_limit: SpinLimit::new(),
        });
        let allowed = cores::allowed();
        let keep_off = team.caller_helps && team.first_core.is_none() && team.count < allowed.len();
        let mut workers = Workers {
            queue: queue.clone(),
            threads: Vec::new(),
            caller_helps: team.caller_helps,
            spin_limit: SpinLimit::new(),
            cores: if keep_off { allowed.clone() } else { Vec::new() },
            kept_off: AtomicUsize::new(usize::MAX),
        };
        for k in 0..team.count {
            let queue = queue.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{id}-{k}"))
                .spawn(move || work(&queue))
                .map_err(|e| Error::Env(format!("{id}: cannot start thread {k}: {e}")))?;
            if let (Some(first), false) = (team.first_core, allowed.is_empty()) {
                cores::keep(&thread, std::iter::once(allowed[(first + k) % allowed.len()]));
            }
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Returns the number of threads that step environments, including the caller if it helps.
    pub(super) fn num_threads(&self) -> usize {
        self.threads.len() + usize::from(self.caller_helps)
    }

    /// Keeps the threads off the caller's core. On machines whose cores share no cache, the system
    /// wakes a thread on the core that it ran on last or on the waker's core; once these are the
    /// same, the thread waits for milliseconds behind a caller that steps environments itself,
    /// while other cores idle.
    fn keep_off(&self) {
        if self.cores.is_empty() {
            return;
        }
        let Some(here) = cores::current() else { return };
        if self.kept_off.swap(here, Ordering::Relaxed) != here {
            for thread in &self.threads {
                cores::keep(thread, self.cores.iter().copied().filter(|&core| core != here));
            }
        }
    }

    /// Queues `jobs`.
    pub(super) fn submit(&self, jobs: impl Iterator<Item = Job>) {
        self.keep_off();
        let mut added = 0;
        for job in jobs {
            let full = self.queue.jobs.push(job).is_err();
            debug_assert!(!full, "an environment is queued once");
            added += 1;
        }
        if added >= self.threads.len() {
            self.queue.work.notify(true);
        } else {
            (0..added).for_each(|_| self.queue.work.notify(false));
        }
    }

    /// Waits for the `count` environments of one batch and returns them in the order of their rows.
    pub(super) fn collect(&self, inbox: &Inbox, count: usize) -> Vec<Returned> {
        if self.caller_helps {
            while let Some(job) = self.queue.jobs.pop() {
                run(job);
            }
        }
        let mut returned = inbox.wait(&self.spin_limit, count);
        returned.sort_unstable_by_key(|returned| returned.row);
        returned
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.closing.store(true, Ordering::SeqCst);
        while self.queue.jobs.pop().is_some() {}
        self.queue.work.notify(true);
        for thread in self.threads.drain(..) {
            // A worker cannot panic outside an environment, whose panics are caught; if it did,
            // nothing could be done about it here.
            let _ = thread.join();
        }
    }
}

fn work(queue: &Queue) {
    let closing = || queue.closing.load(Ordering::SeqCst);
    loop {
        queue.work.wait(&queue.spin_limit, || closing() || !queue.jobs.is_empty());
        if closing() {
            return;
        }
        let _span = timeline::span("envs");
        while let Some(job) = queue.jobs.pop() {
            run(job);
        }
    }
}

fn run(job: Job) {
    let Job { mut slot, row, mut writer, task, inbox } = job;
    let (obs, final_obs) = writer.slices();
    let failure = guard(|| slot.run(task, obs, final_obs)).err();
    // The inbox's reader reclaims the memory, so the writer must be dropped before.
    drop(writer);
    inbox.put(Returned { slot, row, failure });
}
