//! Threads that step environments.
//!
//! A job carries the environment itself, so no two threads can touch one; it also carries the
//! right to write its row of the batch. Who runs which job never changes a result.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::error::{Error, Result};
use crate::timeline;

use super::buffer::RowWriter;
use super::slot::{Slot, Task, guard};

/// One environment to be stepped, and where to.
pub(super) struct Job {
    pub(super) slot: Box<Slot>,
    pub(super) row: usize,
    pub(super) writer: RowWriter,
    pub(super) task: Task,
    pub(super) inbox: Arc<Inbox>,
}

/// An environment that came back, its row, and what went wrong if something did.
pub(super) struct Returned {
    pub(super) slot: Box<Slot>,
    pub(super) row: usize,
    pub(super) failure: Option<String>,
}

/// Where the environments of one batch come back to.
#[derive(Default)]
pub(super) struct Inbox {
    returned: Mutex<(Vec<Returned>, usize)>,
    ready: Condvar,
}

impl Inbox {
    /// Waits until `count` environments are back, and takes them.
    fn wait(&self, count: usize) -> Vec<Returned> {
        let mut guard = lock(&self.returned);
        guard.1 = count;
        while guard.0.len() < count {
            guard = self.ready.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut guard.0)
    }

    fn put(&self, returned: Returned) {
        let mut guard = lock(&self.returned);
        guard.0.push(returned);
        if guard.0.len() == guard.1 {
            self.ready.notify_one();
        }
    }
}

/// A lock, whatever became of the thread that held it: what we guard is valid at every step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    work: Condvar,
}

/// The threads of one pool. Dropping them waits for the jobs that have begun and no others.
pub(super) struct Workers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    /// Whether the caller runs jobs itself while it waits.
    caller_helps: bool,
}

impl Workers {
    /// Starts `count` threads, named after the environment.
    pub(super) fn start(id: &str, count: usize, caller_helps: bool) -> Result<Workers> {
        let queue = Arc::new(Queue::default());
        let mut workers = Workers { queue: queue.clone(), threads: Vec::new(), caller_helps };
        for k in 0..count {
            let queue = queue.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{id}-{k}"))
                .spawn(move || work(&queue, count))
                .map_err(|e| Error::Env(format!("{id}: cannot start thread {k}: {e}")))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// How many threads step environments, the caller included if it helps.
    pub(super) fn num_threads(&self) -> usize {
        self.threads.len() + usize::from(self.caller_helps)
    }

    /// Queues `jobs`.
    pub(super) fn submit(&self, jobs: impl Iterator<Item = Job>) {
        let mut guard = lock(&self.queue.jobs);
        let before = guard.0.len();
        guard.0.extend(jobs);
        let added = guard.0.len() - before;
        drop(guard);
        if added >= self.threads.len() {
            self.queue.work.notify_all();
        } else {
            (0..added).for_each(|_| self.queue.work.notify_one());
        }
    }

    /// Waits for the `count` environments of one batch, in the order of their rows.
    pub(super) fn collect(&self, inbox: &Inbox, count: usize) -> Vec<Returned> {
        if self.caller_helps {
            loop {
                let jobs = take(&mut lock(&self.queue.jobs).0, self.num_threads());
                if jobs.is_empty() {
                    break;
                }
                jobs.into_iter().for_each(run);
            }
        }
        let mut returned = inbox.wait(count);
        returned.sort_unstable_by_key(|returned| returned.row);
        returned
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut guard = lock(&self.queue.jobs);
        guard.1 = true;
        let unbegun = std::mem::take(&mut guard.0);
        drop(guard);
        drop(unbegun);
        self.queue.work.notify_all();
        for thread in self.threads.drain(..) {
            // A worker cannot panic outside an environment, where panics are caught; if it did,
            // there would be nothing left to do about it here.
            let _ = thread.join();
        }
    }
}

/// Some jobs from the front: enough to make the lock worth it, few enough to share them out.
fn take(jobs: &mut VecDeque<Job>, threads: usize) -> Vec<Job> {
    let share = jobs.len().div_ceil(4 * threads.max(1));
    jobs.drain(..share).collect()
}

fn work(queue: &Queue, threads: usize) {
    loop {
        let mut guard = lock(&queue.jobs);
        let jobs = loop {
            if guard.1 {
                return;
            }
            let jobs = take(&mut guard.0, threads);
            if !jobs.is_empty() {
                break jobs;
            }
            guard = queue.work.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        drop(guard);
        let _span = timeline::span("envs");
        jobs.into_iter().for_each(run);
    }
}

fn run(job: Job) {
    let Job { mut slot, row, mut writer, task, inbox } = job;
    let (obs, final_obs) = writer.slices();
    let failure = guard(|| slot.run(task, obs, final_obs)).err();
    // The inbox's reader takes the memory back, so the right to write it must be gone by then.
    drop(writer);
    inbox.put(Returned { slot, row, failure });
}
