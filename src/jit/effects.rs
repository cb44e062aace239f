//! Runs of programs with callbacks: the functions they keep alive while they run, their order, and
//! waiting for them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::lower::custom_calls::callbacks;
use crate::lower::pjrt::calls::ensure_no_call;
use crate::lower::pjrt::{Buffer, Event};
use crate::runtime::Runtime;
use crate::trace::callback::HostFn;
use crate::trace::program::Program;
use crate::trace::types::{DType, TensorType};

/// The callbacks of a compiled program.
pub(crate) struct Effects {
    /// Alive as long as this, or as a run that may call them.
    functions: Arc<Vec<HostFn>>,
    /// Their numbers, as the compiled program takes them.
    numbers: Vec<i64>,
    /// True if runs happen one after another.
    ordered: bool,
}

/// The runs in progress.
#[derive(Default)]
struct UnderWay {
    count: usize,
    /// First error since the last barrier.
    failed: Option<Error>,
}

static UNDER_WAY: Mutex<UnderWay> = Mutex::new(UnderWay { count: 0, failed: None });
static ENDED: Condvar = Condvar::new();
/// The last ordered run: an event for each of its devices.
static LAST_ORDERED: Mutex<Vec<Event>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Effects {
    /// The callbacks of a Program, if it has any.
    ///
    /// # Errors
    /// If the platform's programs cannot call functions of this process.
    pub(crate) fn of(program: &Program) -> Result<Option<Effects>> {
        let calls = program.callbacks();
        if calls.is_empty() {
            return Ok(None);
        }
        let runtime = Runtime::get()?;
        if !runtime.has_callbacks() {
            return Err(Error::Callback(format!(
                "{}: compiled programs cannot call functions of this process with this plugin, \
                 which has no foreign-function interface that is known here; run it with eager or \
                 interpret\n  --> {}",
                calls[0].kind.name(),
                calls[0].f.at()
            )));
        }
        let ordered = calls.iter().any(|call| call.is_ordered());
        let numbers = callbacks::callback_ids(program);
        let functions = Arc::new(calls.into_iter().map(|call| call.f.clone()).collect());
        Ok(Some(Effects { functions, numbers, ordered }))
    }

    /// Returns the last argument of a compiled program, the numbers of its callbacks, on one of the
    /// runtime's devices.
    pub(crate) fn numbers(&self, device: usize) -> Result<Buffer> {
        let numbers = &self.numbers;
        let ty = TensorType::new(DType::I64, [numbers.len()]);
        let client = &Runtime::get()?.client;
        client.buffer_from_host(bytemuck::cast_slice(numbers), &ty, device)
    }

    /// Waits, if `program` has ordered callbacks, until the ordered run before it has ended: for
    /// runs that call on the calling thread.
    pub(crate) fn wait_for_order(program: &Program) -> Result<()> {
        if program.callbacks().iter().any(|call| call.is_ordered()) {
            ensure_no_call("wait for the ordered callbacks before its own")?;
            for event in lock(&LAST_ORDERED).drain(..) {
                // Readers of that run's results get its error.
                let _ = event.wait();
            }
        }
        Ok(())
    }

    /// Launches a run: `launch` gives an event for each device. Its functions live until the run
    /// has ended. If calls are ordered, waits until the ordered run before it has ended.
    pub(crate) fn launch(&self, launch: impl FnOnce() -> Result<Vec<Event>>) -> Result<()> {
        ensure_no_call("launch a compiled program")?;
        let last = self.ordered.then(|| {
            let mut last = lock(&LAST_ORDERED);
            for event in last.drain(..) {
                // Readers of that run's results get its error.
                let _ = event.wait();
            }
            last
        });
        let events = launch()?;
        lock(&UNDER_WAY).count += events.len();
        for event in &events {
            let functions = self.functions.clone();
            let registered = event.on_ready(move |outcome| {
                drop(functions);
                end(outcome);
            });
            if let Err(error) = registered {
                // Without a word from the runtime nothing is known but by waiting.
                end(event.wait().and(Err(error)));
            }
        }
        if let Some(mut last) = last {
            *last = events;
        }
        Ok(())
    }
}

/// A device's part of a run has ended.
fn end(outcome: Result<()>) {
    let mut under_way = lock(&UNDER_WAY);
    under_way.count -= 1;
    if let Err(error) = outcome {
        under_way.failed.get_or_insert(error);
    }
    ENDED.notify_all();
}

/// `jax.effects_barrier`: waits until all runs of compiled functions with callbacks have ended. A
/// process should do that before it ends, or the last lines of
/// [`debug_print`](crate::debug_print()) may be missing.
///
/// # Errors
/// Returns the first error of such a run since the last barrier, even if its results have been
/// read, but not if the call itself returned it; and an error if it is called from a callback.
pub fn effects_barrier() -> Result<()> {
    ensure_no_call("wait for all callbacks")?;
    let mut under_way = lock(&UNDER_WAY);
    while under_way.count > 0 {
        under_way = ENDED.wait(under_way).unwrap_or_else(PoisonError::into_inner);
    }
    under_way.failed.take().map_or(Ok(()), Err)
}
