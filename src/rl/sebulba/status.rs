//! Status of the threads of a run, for monitoring: each thread writes its own, in atomics.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use strum::{IntoStaticStr, VariantArray};

/// Activity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[repr(u8)]
pub enum Activity {
    /// It has not done anything yet.
    #[strum(serialize = "starts")]
    Starts,
    /// The actor waits for parameters.
    #[strum(serialize = "waits: parameters")]
    WaitsForParameters,
    /// The actor steps the policy and the environments.
    #[strum(serialize = "plays")]
    Plays,
    /// The actor transfers its rollout to the learner devices.
    #[strum(serialize = "sends")]
    Sends,
    /// The actor waits until the learner has taken the previous rollout.
    #[strum(serialize = "waits: learner")]
    WaitsForLearner,
    /// The learner waits for rollouts.
    #[strum(serialize = "waits: rollouts")]
    WaitsForRollouts,
    /// The learner computes the values that are computed once per rollout.
    #[strum(serialize = "prepares")]
    Prepares,
    /// The learner takes gradient steps.
    #[strum(serialize = "learns")]
    Learns,
    /// The learner sends parameters to the actors.
    #[strum(serialize = "gives parameters")]
    GivesParameters,
    /// The learner writes events and checkpoints.
    #[strum(serialize = "logs")]
    Logs,
    /// The thread has ended.
    #[strum(serialize = "has ended")]
    Ended,
}

impl Activity {
    /// Returns the description that is displayed.
    pub fn words(self) -> &'static str {
        self.into()
    }

    /// Returns true if the activity counts as work of the thread.
    pub(crate) fn is_work(self) -> bool {
        match self {
            Activity::Plays | Activity::Sends => true,
            Activity::Prepares | Activity::Learns | Activity::GivesParameters => true,
            Activity::WaitsForParameters
            | Activity::WaitsForLearner
            | Activity::WaitsForRollouts => false,
            Activity::Starts | Activity::Logs | Activity::Ended => false,
        }
    }

    /// Returns true if the thread waits for another thread.
    pub(crate) fn is_wait(self) -> bool {
        matches!(
            self,
            Activity::WaitsForParameters | Activity::WaitsForLearner | Activity::WaitsForRollouts
        )
    }
}

/// Status of one thread in a [`RunStatus`]. Only that thread writes its activity; both ends of its
/// queues count what passes through them.
#[derive(Debug)]
pub struct ThreadStatus {
    began: Instant,
    doing: AtomicU8,
    /// Nanoseconds from `began` to the start of the current activity.
    since: AtomicU64,
    work: AtomicU64,
    wait: AtomicU64,
    number: AtomicU64,
    version: AtomicU64,
    done: AtomicU64,
    done_at: AtomicU64,
    given: AtomicU64,
    taken: AtomicU64,
    fetched: AtomicU64,
}

/// Copy of a [`ThreadStatus`] at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadSnapshot {
    /// Current activity.
    pub doing: Activity,
    /// Time since the current activity began.
    pub lasts: Duration,
    /// Total time that the thread has worked.
    pub work: Duration,
    /// Total time that the thread has waited for others.
    pub wait: Duration,
    /// Current or last rollout or update, counted from 1.
    pub number: u64,
    /// Version of the parameters that the actor acts with or the learner has made.
    pub version: u64,
    /// Number of rollouts handed over, or of updates made.
    pub done: u64,
    /// Time of the last of them, since the start of the run.
    pub done_at: Duration,
    /// Number of parameter sets queued for this actor.
    pub params: u64,
    /// Number of rollouts of this actor queued for the learner.
    pub rollouts: u64,
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl ThreadStatus {
    fn new(began: Instant) -> ThreadStatus {
        let zero = || AtomicU64::new(0);
        ThreadStatus {
            began,
            doing: AtomicU8::new(Activity::Starts as u8),
            since: AtomicU64::new(nanos(began.elapsed())),
            work: zero(),
            wait: zero(),
            number: zero(),
            version: zero(),
            done: zero(),
            done_at: zero(),
            given: zero(),
            taken: zero(),
            fetched: zero(),
        }
    }

    fn doing(&self) -> Activity {
        Activity::VARIANTS[usize::from(self.doing.load(Relaxed))]
    }

    /// Records that the thread begins another activity.
    pub fn enter(&self, doing: Activity) {
        let now = nanos(self.began.elapsed());
        let spent = now - self.since.swap(now, Relaxed);
        let before = self.doing();
        self.doing.store(doing as u8, Relaxed);
        if before.is_work() {
            self.work.fetch_add(spent, Relaxed);
        } else if before.is_wait() {
            self.wait.fetch_add(spent, Relaxed);
        }
    }

    /// Records that a rollout or update of this number and parameter version has begun.
    pub fn begins(&self, number: u64, version: u64) {
        self.number.store(number, Relaxed);
        self.version.store(version, Relaxed);
    }

    /// Records that the rollout was handed over, or the update made.
    pub fn ends(&self) {
        self.done_at.store(nanos(self.began.elapsed()), Relaxed);
        self.done.fetch_add(1, Relaxed);
    }

    /// Records that the learner has put parameters into this actor's queue.
    pub fn params_given(&self) {
        self.given.fetch_add(1, Relaxed);
    }

    /// Records that the actor has taken parameters from its queue.
    pub fn params_taken(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// Records that the learner has taken a rollout of this actor.
    pub fn rollout_taken(&self) {
        self.fetched.fetch_add(1, Relaxed);
    }

    /// Returns the current status.
    pub fn seen(&self) -> ThreadSnapshot {
        let doing = self.doing();
        let now = nanos(self.began.elapsed());
        let lasts = now.saturating_sub(self.since.load(Relaxed));
        let under_way = |is: bool| if is { lasts } else { 0 };
        let (done, given) = (self.done.load(Relaxed), self.given.load(Relaxed));
        ThreadSnapshot {
            doing,
            lasts: Duration::from_nanos(lasts),
            work: Duration::from_nanos(self.work.load(Relaxed) + under_way(doing.is_work())),
            wait: Duration::from_nanos(self.wait.load(Relaxed) + under_way(doing.is_wait())),
            number: self.number.load(Relaxed),
            version: self.version.load(Relaxed),
            done,
            done_at: Duration::from_nanos(self.done_at.load(Relaxed)),
            // The two ends count separately: one may be ahead of the other.
            params: given.saturating_sub(self.taken.load(Relaxed)),
            rollouts: done.saturating_sub(self.fetched.load(Relaxed)),
        }
    }
}

/// Status of all threads of a run.
#[derive(Debug)]
pub struct RunStatus {
    began: Instant,
    /// Status of the learner.
    pub learner: ThreadStatus,
    /// Status of each actor, by index.
    pub actors: Vec<ThreadStatus>,
}

/// Copy of a [`RunStatus`] at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// Time since the start of the run.
    pub at: Duration,
    /// Status of the learner.
    pub learner: ThreadSnapshot,
    /// Status of each actor, by index.
    pub actors: Vec<ThreadSnapshot>,
}

impl RunStatus {
    /// Creates the status for `actors` actors; the run's clock starts now.
    pub fn new(actors: usize) -> RunStatus {
        let began = Instant::now();
        let actors = (0..actors).map(|_| ThreadStatus::new(began)).collect();
        RunStatus { began, learner: ThreadStatus::new(began), actors }
    }

    /// Returns the current status of all threads.
    pub fn snapshot(&self) -> Snapshot {
        let actors = self.actors.iter().map(ThreadStatus::seen).collect();
        Snapshot { at: self.began.elapsed(), learner: self.learner.seen(), actors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_by_what_was_done() {
        let status = RunStatus::new(1);
        let actor = &status.actors[0];
        let sleep = || std::thread::sleep(Duration::from_millis(5));
        actor.enter(Activity::WaitsForParameters);
        sleep();
        actor.enter(Activity::Plays);
        actor.begins(1, 1);
        sleep();
        actor.enter(Activity::Sends);
        sleep();
        let seen = actor.seen();
        assert_eq!((seen.doing, seen.number, seen.version, seen.done), (Activity::Sends, 1, 1, 0));
        assert!(seen.wait >= Duration::from_millis(5) && seen.lasts >= Duration::from_millis(5));
        assert!(seen.work >= Duration::from_millis(10));
        let now = status.snapshot().at;
        assert!(seen.work + seen.wait <= now);
        actor.enter(Activity::Ended);
        let ended = actor.seen();
        assert!(ended.work >= seen.work && ended.wait == seen.wait);
        assert!(Activity::VARIANTS.iter().enumerate().all(|(i, doing)| *doing as usize == i));
        assert!(Activity::VARIANTS.iter().all(|doing| !(doing.is_work() && doing.is_wait())));
    }

    #[test]
    fn queues_are_what_was_given_less_what_was_taken() {
        let status = RunStatus::new(2);
        let actor = &status.actors[1];
        let fill = || (actor.seen().params, actor.seen().rollouts);
        assert_eq!(fill(), (0, 0));
        actor.params_given();
        assert_eq!(fill(), (1, 0));
        actor.params_taken();
        actor.ends();
        assert_eq!(fill(), (0, 1));
        assert!(actor.seen().done_at > Duration::ZERO);
        // The receiving end counts first.
        actor.rollout_taken();
        actor.rollout_taken();
        assert_eq!(fill(), (0, 0));
        assert_eq!(status.snapshot().actors[0].done, 0);
    }
}
