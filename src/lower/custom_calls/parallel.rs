//! Parts of a call on the runtime's own threads.

use std::ffi::c_void;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::super::pjrt::calls::Running;
use super::abi::{Api, ErrorDestroyArgs, NumThreadsArgs, PoolApi, ScheduleArgs};
use super::panic_text;
use crate::lower::custom_calls::call::Call;

/// Task that computes the part of a number.
type Task<'a> = dyn Fn(usize) -> Result<(), String> + Sync + 'a;

/// Parts to compute, shared by the calling thread and its helpers.
struct Job {
    /// The number of the next part that nobody computes yet.
    next: AtomicUsize,
    count: usize,
    /// Alive until all parts are finished; a helper that comes later finds no part left, and does
    /// not touch it.
    task: *const Task<'static>,
    /// Number of finished parts.
    finished: AtomicUsize,
    error: Mutex<Option<String>>,
    all_finished: Condvar,
}

/// Time for which the calling thread polls for the last parts before it sleeps. Waking a thread
/// costs about 50 us, and a part of a small convolution takes no longer than that.
const MAX_POLL_TIME: Duration = Duration::from_micros(200);

// SAFETY: the task may be called by several threads at once.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Computes parts until none is left.
    fn work(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.count {
                return;
            }
            // SAFETY: this part is not finished, so `Call::parallel` has not returned.
            let task = unsafe { &*self.task };
            let result = catch_unwind(AssertUnwindSafe(|| task(part))).unwrap_or_else(|payload| {
                let text = format!("panicked: {}", panic_text(&*payload));
                // The payload of a panic may itself panic when it is dropped.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
                Err(text)
            });
            if let Err(error) = result {
                self.error().get_or_insert(error);
            }
            if self.finished.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
                // A thread that sleeps read the number under the lock.
                drop(self.error());
                self.all_finished.notify_all();
            }
        }
    }

    /// Waits until all parts are finished; takes the first error.
    fn wait(&self) -> Option<String> {
        let running = || self.finished.load(Ordering::Acquire) < self.count;
        let start = Instant::now();
        while running() && start.elapsed() < MAX_POLL_TIME {
            for _ in 0..64 {
                spin_loop();
            }
            // The thread that computes the last part may need this one's core.
            thread::yield_now();
        }
        let mut error = self.error();
        while running() {
            error = self.all_finished.wait(error).unwrap_or_else(PoisonError::into_inner);
        }
        error.take()
    }

    fn error(&self) -> MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entry of a helper: `data` is a count of the job's.
unsafe extern "C" fn help(data: *mut c_void) {
    // SAFETY: the pointer was made by `Arc::into_raw`, for this call alone.
    let job = unsafe { Arc::from_raw(data.cast_const().cast::<Job>()) };
    let _running = Running::new();
    job.work();
}

impl Call<'_> {
    /// Computes the parts `0..count`: on this thread, and on threads of the runtime's that have
    /// nothing else to do. Returns when all are computed. The order of the parts is not defined.
    ///
    /// This thread computes the parts that no other has begun, so it never waits for a thread that
    /// is busy otherwise.
    ///
    /// # Errors
    /// The error or the panic of a part, whichever was first; all other parts are computed.
    pub fn parallel(
        &self,
        count: usize,
        task: &(dyn Fn(usize) -> Result<(), String> + Sync),
    ) -> Result<(), String> {
        let task: *const Task<'_> = task;
        let job = Arc::new(Job {
            next: AtomicUsize::new(0),
            count,
            // SAFETY: only the lifetime changes; the task is called before this function returns.
            task: unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) },
            finished: AtomicUsize::new(0),
            error: Mutex::default(),
            all_finished: Condvar::new(),
        });
        let helpers = self.pool_size().min(count).saturating_sub(1);
        for _ in 0..helpers {
            if !self.schedule(&job) {
                break;
            }
        }
        job.work();
        job.wait().map_or(Ok(()), Err)
    }

    /// The runtime's function table, if it reaches as far as its pool of threads.
    fn pool_api(&self) -> Option<&PoolApi> {
        // SAFETY: the table is alive during the call, and read only as far as it reaches.
        unsafe {
            let reaches = (*self.frame.api).struct_size >= size_of::<PoolApi>();
            reaches.then(|| &*self.frame.api.cast::<PoolApi>())
        }
    }

    /// Number of the runtime's threads; 0 if it has no pool for this call.
    fn pool_size(&self) -> usize {
        let Some(api) = self.pool_api() else { return 0 };
        let Some(num_threads) = api.num_threads else { return 0 };
        let mut threads = 0;
        let mut args = NumThreadsArgs {
            struct_size: size_of::<NumThreadsArgs>(),
            extension_start: std::ptr::null(),
            context: self.frame.context,
            num_threads: &mut threads,
        };
        // SAFETY: the arguments are complete, and of the call being executed.
        let error = unsafe { num_threads(&mut args) };
        match destroyed(&api.base, error) {
            true => 0,
            false => usize::try_from(threads).unwrap_or(0),
        }
    }

    /// Schedules a helper. Returns false if the runtime refuses it.
    fn schedule(&self, job: &Arc<Job>) -> bool {
        let Some(api) = self.pool_api() else { return false };
        let Some(schedule) = api.schedule else { return false };
        let data = Arc::into_raw(job.clone());
        let mut args = ScheduleArgs {
            struct_size: size_of::<ScheduleArgs>(),
            extension_start: std::ptr::null(),
            context: self.frame.context,
            task: help,
            data: data.cast_mut().cast(),
        };
        // SAFETY: the arguments are complete, and of the call being executed.
        let error = unsafe { schedule(&mut args) };
        let refused = destroyed(&api.base, error);
        if refused {
            // SAFETY: the task was not taken, so the pointer is still this function's.
            drop(unsafe { Arc::from_raw(data) });
        }
        !refused
    }
}

/// Destroys an error of the runtime; returns true if there was one.
fn destroyed(api: &Api, error: *mut c_void) -> bool {
    if error.is_null() {
        return false;
    }
    if let Some(destroy) = api.error_destroy {
        let mut args = ErrorDestroyArgs {
            struct_size: size_of::<ErrorDestroyArgs>(),
            extension_start: std::ptr::null(),
            error,
        };
        // SAFETY: the error is one that the runtime just made.
        unsafe { destroy(&mut args) };
    }
    true
}
