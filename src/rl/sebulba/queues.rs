//! Queues between the actors and the learner: each holds one item, and all are closed together.
//!
//! Each actor has a parameter queue from the learner and a rollout queue to it. Each queue holds at
//! most one item, so the order of events does not depend on the speed of the threads. When a thread
//! fails or the run is over, all waits of all threads end at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Queues of a run: `P` is the type of parameters, `R` that of rollouts.
pub struct ActorLearnerQueues<P, R> {
    state: Mutex<State<P, R>>,
    changed: Condvar,
}

struct State<P, R> {
    params: Vec<Option<P>>,
    rollouts: Vec<Option<R>>,
    /// True once the learner needs no more rollouts.
    closed: bool,
    /// First error that ended the run.
    failed: Option<Error>,
}

/// A rollout of every actor, and the time that the learner waited for each.
type Taken<R> = (Vec<R>, Vec<Duration>);

/// Interval at which a waiting thread checks for a stop request.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Number of items in the [`ActorLearnerQueues`]: Cleanba's `stats/params_queue_size` and `rollout_queue_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Number of parameter sets that no actor has taken yet.
    pub params: usize,
    /// Number of rollouts that the learner has not taken yet.
    pub rollouts: usize,
}

impl<P, R> ActorLearnerQueues<P, R> {
    /// Creates empty queues for `actors` actors.
    pub fn new(actors: usize) -> ActorLearnerQueues<P, R> {
        let state = State {
            params: (0..actors).map(|_| None).collect(),
            rollouts: (0..actors).map(|_| None).collect(),
            closed: false,
            failed: None,
        };
        ActorLearnerQueues { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Locks the state, even if a thread panicked while it held the lock: no invariant spans two
    /// statements.
    fn lock(&self) -> MutexGuard<'_, State<P, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` returns a value; returns `None` if the run is over or has failed.
    fn wait<T>(&self, ready: impl FnMut(&mut State<P, R>) -> Option<T>) -> (Option<T>, Duration) {
        self.wait_unless(&|| false, ready)
    }

    /// Like [`wait`](ActorLearnerQueues::wait), but also returns `None` soon after `stopped` returns true.
    fn wait_unless<T>(
        &self,
        stopped: &dyn Fn() -> bool,
        mut ready: impl FnMut(&mut State<P, R>) -> Option<T>,
    ) -> (Option<T>, Duration) {
        let began = Instant::now();
        let mut state = self.lock();
        loop {
            if state.closed || state.failed.is_some() {
                return (None, began.elapsed());
            }
            if let Some(found) = ready(&mut state) {
                drop(state);
                self.changed.notify_all();
                return (Some(found), began.elapsed());
            }
            if stopped() {
                return (None, began.elapsed());
            }
            let woken = self.changed.wait_timeout(state, POLL_INTERVAL);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the next parameters of an actor. Returns them and the time waited; `None` if the run
    /// is over.
    pub fn take_params(&self, actor: usize) -> (Option<P>, Duration) {
        self.wait(|state| state.params[actor].take())
    }

    /// Puts an actor's rollout into its queue once the learner has taken the previous one. Returns
    /// false if the run is over, and the time waited.
    pub fn put_rollout(&self, actor: usize, rollout: R) -> (bool, Duration) {
        let mut rollout = Some(rollout);
        let (put, waited) = self.wait(|state| {
            if state.rollouts[actor].is_some() {
                return None;
            }
            state.rollouts[actor] = rollout.take();
            Some(())
        });
        (put.is_some(), waited)
    }

    /// Puts parameters into an actor's queue once the actor has taken the previous ones.
    ///
    /// # Errors
    /// Returns the error of an actor.
    pub fn put_params(&self, actor: usize, params: P) -> Result<()> {
        let mut params = Some(params);
        let put = self.wait(|state| {
            if state.params[actor].is_some() {
                return None;
            }
            state.params[actor] = params.take();
            Some(())
        });
        put.0.ok_or_else(|| self.cause())
    }

    /// Takes one rollout of every actor, in their order. Returns them and the time waited for each;
    /// `None` soon after `stopped` returns true, even in the middle of a rollout.
    ///
    /// # Errors
    /// Returns the error of any actor at once.
    pub fn take_rollouts(&self, stopped: &dyn Fn() -> bool) -> Result<Option<Taken<R>>> {
        let actors = self.lock().rollouts.len();
        let (mut all, mut waits) = (Vec::with_capacity(actors), Vec::with_capacity(actors));
        for actor in 0..actors {
            let ready = |state: &mut State<P, R>| state.rollouts[actor].take();
            let (rollout, waited) = self.wait_unless(stopped, ready);
            match rollout {
                Some(rollout) => all.push(rollout),
                None if !self.is_over() => return Ok(None),
                None => return Err(self.cause()),
            }
            waits.push(waited);
        }
        Ok(Some((all, waits)))
    }

    /// Returns the number of items in the queues.
    pub fn waiting(&self) -> Waiting {
        let state = self.lock();
        Waiting {
            params: state.params.iter().flatten().count(),
            rollouts: state.rollouts.iter().flatten().count(),
        }
    }

    /// Ends the run and all waits of all threads.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Ends all waits of all threads with this error, unless an earlier one is recorded.
    pub fn fail(&self, cause: Error) {
        self.lock().failed.get_or_insert(cause);
        self.changed.notify_all();
    }

    /// Returns true if the run is over or has failed.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.closed || state.failed.is_some()
    }

    /// Takes the error that ended the run and closes the queues: one caller gets the error, all
    /// others only that the run is over.
    fn cause(&self) -> Error {
        let mut state = self.lock();
        state.closed = true;
        let over = || Error::Argument("the queues of this run are closed".into());
        state.failed.take().unwrap_or_else(over)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn rollouts_come_in_the_order_of_the_actors() {
        let queues: ActorLearnerQueues<u32, (usize, u32)> = ActorLearnerQueues::new(3);
        let total: u32 = thread::scope(|scope| {
            for actor in 0..3 {
                let queues = &queues;
                scope.spawn(move || {
                    while let (Some(params), _) = queues.take_params(actor) {
                        // The last actor is the first to be ready.
                        thread::sleep(Duration::from_millis(5 * (3 - actor as u64)));
                        queues.put_rollout(actor, (actor, params));
                    }
                });
            }
            let mut total = 0;
            for version in 0..4 {
                (0..3).for_each(|actor| queues.put_params(actor, version).unwrap());
                let (rollouts, waits) = queues.take_rollouts(&|| false).unwrap().unwrap();
                assert_eq!(rollouts, [(0, version), (1, version), (2, version)]);
                assert_eq!(waits.len(), 3);
                total += version;
            }
            assert_eq!(queues.waiting(), Waiting { params: 0, rollouts: 0 });
            queues.close();
            total
        });
        assert_eq!(total, 6);
        assert!(queues.is_over());
    }

    #[test]
    fn one_failure_ends_all_waits() {
        let queues: ActorLearnerQueues<u32, u32> = ActorLearnerQueues::new(2);
        let error = thread::scope(|scope| {
            // Waits for parameters that never come.
            let waiting = scope.spawn(|| queues.take_params(0).0);
            // Its queue is full.
            assert!(queues.put_rollout(1, 7).0);
            let full = scope.spawn(|| queues.put_rollout(1, 8).0);
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                queues.fail(Error::Env("actor 1 fell over".into()));
                queues.fail(Error::Env("later".into()));
            });
            // The learner waits for actor 0, which has not failed.
            assert!(queues.take_rollouts(&|| true).unwrap().is_none());
            let error = queues.take_rollouts(&|| false).unwrap_err();
            assert_eq!(waiting.join().unwrap(), None);
            assert!(!full.join().unwrap());
            error
        });
        assert!(error.to_string().contains("actor 1 fell over"), "{error}");
        assert!(queues.put_params(0, 1).is_err());
    }
}
