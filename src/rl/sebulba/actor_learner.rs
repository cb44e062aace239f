//! Actor-learner loop: the schedule of parameter versions, and its measurements.

use std::time::Duration;

use super::checkpoint::ActorSnapshot;
use super::layout::{Layout, World};
use super::queues::ActorLearnerQueues;
use super::stats::{RolloutTimes, Stats};
use super::status::{Activity, RunStatus, ThreadStatus};
use super::threads;
use crate::error::{Error, Result};
use crate::rl::interrupt;
use crate::rl::run::episodes::EpisodeRecord;
use crate::timeline;

/// Number of updates that the acting policy is behind the learner in steady state, whatever the
/// speed of the threads. It is fixed because each queue holds one item, and because the second
/// rollout is made with the parameters of the first, so that the learner has a rollout to train on.
pub const LAG: u64 = 1;

/// Returns the version of the parameters with which rollout `rollout` of a run is made; both are
/// counted from 1.
///
/// Version 1 is the initial parameters; update `k` makes version `k + 1`.
pub fn version_of(rollout: u64, concurrency: bool) -> u64 {
    if concurrency { rollout.saturating_sub(LAG).max(1) } else { rollout }
}

/// Returns true if an actor takes new parameters before this rollout; `first` is the first rollout
/// since the run was started or resumed.
fn takes_params(rollout: u64, first: u64, concurrency: bool) -> bool {
    rollout == first || version_of(rollout, concurrency) != version_of(rollout - 1, concurrency)
}

/// One rollout of one actor.
pub struct ActorRollout<D> {
    /// The rollout's share for each learner device, on that device.
    pub parts: Vec<D>,
    /// Episodes that ended.
    pub episodes: Vec<EpisodeRecord>,
    /// Time of stepping, and time of the transfer to the learner devices.
    pub times: (Duration, Duration),
    /// Processor time of the whole process during stepping.
    pub cpu: Duration,
    /// State of the actor after the rollout, if checkpoints are written.
    pub snapshot: Option<ActorSnapshot>,
}

/// Rollouts of all actors for one update.
pub struct LearnerBatch<D> {
    /// Shares of the rollouts, by actor and learner device.
    pub parts: Vec<Vec<D>>,
    /// Episodes that ended, with the timesteps of all actors together.
    pub episodes: Vec<EpisodeRecord>,
    /// Times measured by the first actor.
    pub times: RolloutTimes,
    /// Time that the learner waited for the rollouts.
    pub waited: Duration,
    /// States of the actors after these rollouts, if checkpoints are written.
    pub snapshots: Vec<ActorSnapshot>,
}

/// One rollout in the queue to the learner.
struct Payload<D> {
    version: u64,
    rollout: u64,
    collected: ActorRollout<D>,
    times: RolloutTimes,
}

/// Schedule of a run: its number of updates, and whether acting and learning overlap.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// Number of updates made before the run was resumed; 0 for a new run.
    pub resumed_at: u64,
    /// Total number of updates, including those before the resumption.
    pub updates: u64,
    /// If true, actors act while the learner learns, with parameters [`LAG`] updates old.
    pub concurrency: bool,
}

/// The learner's end of the queues of a run.
pub struct Learner<'a, P, D> {
    queues: &'a ActorLearnerQueues<(u64, P), Payload<D>>,
    schedule: Schedule,
    layout: &'a Layout,
    status: &'a RunStatus,
    /// Number of updates begun, including those before the resumption.
    updates: u64,
    /// Measured times.
    pub stats: Stats,
}

/// Runs actors and a learner to the end. `rollout(actor, params)` is called on the actor's thread;
/// `learn` on the caller's thread, with the learner's end of the queues; `stop` when the run is
/// over, to end the rollouts in progress. All threads report their activity to the status.
///
/// # Errors
/// Returns the first error of any thread, after all threads have ended.
pub fn run_actor_learner<P: Send, D: Send, T>(
    (layout, schedule): (&Layout, Schedule),
    status: &RunStatus,
    rollout: impl Fn(usize, &P) -> Result<ActorRollout<D>> + Sync,
    stop: impl Fn(),
    learn: impl FnOnce(Learner<'_, P, D>) -> Result<T>,
) -> Result<T> {
    let queues = ActorLearnerQueues::new(layout.num_actors());
    let actor = |index: usize| {
        let status = &status.actors[index];
        let outcome = act(&queues, schedule, (index, status), |params| rollout(index, params));
        status.enter(Activity::Ended);
        outcome
    };
    let learner = || {
        let stats = Stats::default();
        let updates = schedule.resumed_at;
        let end = Learner { queues: &queues, schedule, layout, status, updates, stats };
        let outcome = learn(end);
        status.learner.enter(Activity::Ended);
        queues.close();
        stop();
        outcome
    };
    threads::run(&queues, layout.num_actors(), actor, learner)
}

/// An actor's loop.
fn act<P, D>(
    queues: &ActorLearnerQueues<(u64, P), Payload<D>>,
    Schedule { resumed_at, updates, concurrency }: Schedule,
    (index, status): (usize, &ThreadStatus),
    rollout: impl Fn(&P) -> Result<ActorRollout<D>>,
) -> Result<()> {
    let mut current: Option<(u64, P)> = None;
    let first = resumed_at + 1;
    let mut put_wait = Duration::ZERO;
    for number in first..=updates {
        let mut times = RolloutTimes { rollout_queue_put: put_wait, ..RolloutTimes::default() };
        if takes_params(number, first, concurrency) {
            let _span = timeline::span("wait for parameters");
            status.enter(Activity::WaitsForParameters);
            let (params, waited) = queues.take_params(index);
            if params.is_none() {
                return Ok(());
            }
            status.params_taken();
            (current, times.params_queue_get) = (params, waited);
        }
        let (version, params) = current.as_ref().expect("the first rollout takes parameters");
        let outcome = {
            status.begins(number, *version);
            status.enter(Activity::Plays);
            let _span = timeline::span_of("rollout", format_args!("{number} (v{version})"));
            rollout(params)
        };
        let collected = match outcome {
            // `stop` or the error of another thread ended the rollout.
            Err(_) if queues.is_over() => return Ok(()),
            outcome => outcome?,
        };
        (times.rollout, times.data_transfer) = collected.times;
        times.rollout_cpu = collected.cpu;
        let payload = Payload { version: *version, rollout: number, collected, times };
        let _span = timeline::span("wait for the learner");
        status.enter(Activity::WaitsForLearner);
        let (put, waited) = queues.put_rollout(index, payload);
        if !put {
            return Ok(());
        }
        put_wait = waited;
        status.ends();
    }
    Ok(())
}

impl<P: Send, D: Send> Learner<'_, P, D> {
    /// Sends the actors the parameters of the current version: the initial ones, or those of the
    /// last update. `params(device)` returns them on an actor's device. Does nothing if no
    /// remaining rollout uses them.
    ///
    /// # Errors
    /// Returns errors of `params`, and the error that an actor failed with.
    pub fn publish(&self, params: impl Fn(usize) -> Result<P>) -> Result<()> {
        let Schedule { updates, concurrency, .. } = self.schedule;
        let version = self.updates + 1;
        let first_with_it = if concurrency && version > 1 { version + LAG } else { version };
        if first_with_it > updates {
            return Ok(());
        }
        self.put_params(version, params)
    }

    /// Sends the actors of a resumed run the parameters of the version before the current one, with
    /// which they make their first rollout if acting and learning overlap. Does nothing in a new
    /// run.
    ///
    /// # Errors
    /// Returns the same errors as [`publish`](Learner::publish).
    pub(crate) fn publish_behind(&self, params: impl Fn(usize) -> Result<P>) -> Result<()> {
        let Schedule { resumed_at, updates, concurrency } = self.schedule;
        if resumed_at == 0 || resumed_at >= updates || !concurrency {
            return Ok(());
        }
        self.put_params(resumed_at, params)
    }

    fn put_params(&self, version: u64, params: impl Fn(usize) -> Result<P>) -> Result<()> {
        for actor in 0..self.layout.num_actors() {
            self.queues.put_params(actor, (version, params(self.layout.device_of(actor))?))?;
            self.status.actors[actor].params_given();
        }
        Ok(())
    }

    /// Waits for the rollouts of the next update: one of each actor, in their order. Returns `None`
    /// if the user stops the run before all have arrived.
    ///
    /// # Errors
    /// Returns the error of an actor.
    pub fn collect(&mut self) -> Result<Option<LearnerBatch<D>>> {
        let _span = timeline::span("wait for rollouts");
        self.status.learner.enter(Activity::WaitsForRollouts);
        // Several processes stop together, between two updates.
        let stopped = || self.layout.world == World::ALONE && self.stops();
        let Some((payloads, waits)) = self.queues.take_rollouts(&stopped)? else { return Ok(None) };
        self.updates += 1;
        self.status.actors.iter().for_each(ThreadStatus::rollout_taken);
        // The version of the parameters that the update starts from.
        self.status.learner.begins(self.updates, self.updates);
        let expected = version_of(self.updates, self.schedule.concurrency);
        let mut batch = LearnerBatch {
            parts: Vec::new(),
            episodes: Vec::new(),
            times: payloads[0].times,
            waited: waits.iter().sum(),
            snapshots: Vec::new(),
        };
        let every = (payloads.len() * self.layout.world.size) as u64;
        for (actor, payload) in payloads.into_iter().enumerate() {
            let Payload { version, rollout, collected, .. } = payload;
            if (version, rollout) != (expected, self.updates) {
                return Err(Error::Argument(format!(
                    "update {} was to learn from rollouts of version {expected}, and actor {actor} \
                     gave rollout {rollout} of version {version}: this is a fault of the queues",
                    self.updates
                )));
            }
            let everywhere =
                |episode: EpisodeRecord| EpisodeRecord { step: episode.step * every, ..episode };
            batch.episodes.extend(collected.episodes.into_iter().map(everywhere));
            batch.parts.push(collected.parts);
            batch.snapshots.extend(collected.snapshot);
        }
        batch.episodes.sort_by_key(|episode| episode.step);
        self.stats.rollout(&batch.times);
        Ok(Some(batch))
    }

    /// Returns the number of the current or last update, counted from 1.
    pub fn update(&self) -> u64 {
        self.updates
    }

    /// Returns the number of parameter sets and of rollouts in the queues.
    pub fn waiting(&self) -> super::queues::Waiting {
        self.queues.waiting()
    }

    /// Returns true if the user has asked the run to stop. It is checked between gradient steps,
    /// since an update may take long.
    pub fn stops(&self) -> bool {
        interrupt::requested()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    fn layout(actors: usize) -> Layout {
        Layout { actors: vec![0], learners: vec![0], threads: actors, envs: 1, world: World::ALONE }
    }

    /// Returns the versions that each update of a new run learns from.
    fn versions(concurrency: bool, updates: u64) -> Vec<u64> {
        resumed_versions(concurrency, 0, updates)
    }

    /// Returns the versions that each update after the first `resumed_at` learns from.
    fn resumed_versions(concurrency: bool, resumed_at: u64, updates: u64) -> Vec<u64> {
        let rollout = |_: usize, params: &u64| {
            Ok(ActorRollout {
                parts: vec![*params],
                episodes: vec![],
                times: Default::default(),
                cpu: Duration::ZERO,
                snapshot: None,
            })
        };
        let schedule = Schedule { resumed_at, updates, concurrency };
        let learn = |mut learner: Learner<'_, u64, u64>| {
            let mut seen = Vec::new();
            learner.publish_behind(|_| Ok(resumed_at))?;
            learner.publish(|_| Ok(resumed_at + 1))?;
            for update in resumed_at + 1..=updates {
                let batch = learner.collect()?.unwrap();
                assert_eq!(batch.parts.len(), 3);
                assert!(batch.parts.iter().all(|parts| *parts == batch.parts[0]));
                seen.push(batch.parts[0][0]);
                learner.publish(|_| Ok(update + 1))?;
            }
            Ok(seen)
        };
        let status = RunStatus::new(3);
        let seen =
            run_actor_learner((&layout(3), schedule), &status, rollout, || (), learn).unwrap();
        let shown = status.snapshot();
        assert!(shown.actors.iter().all(|actor| {
            (actor.doing, actor.done, actor.rollouts) == (Activity::Ended, updates - resumed_at, 0)
                && (actor.number, actor.version) == (updates, version_of(updates, concurrency))
        }));
        assert_eq!((shown.learner.doing, shown.learner.number), (Activity::Ended, updates));
        seen
    }

    #[test]
    fn the_policy_is_one_version_behind() {
        assert_eq!(versions(true, 6), [1, 1, 2, 3, 4, 5]);
        assert_eq!(versions(false, 6), [1, 2, 3, 4, 5, 6]);
        assert_eq!((versions(true, 1), versions(true, 2)), (vec![1], vec![1, 1]));
        assert_eq!(LAG, 1);
    }

    #[test]
    fn a_resumed_run_acts_with_the_versions_of_an_uninterrupted_one() {
        for concurrency in [true, false] {
            let whole = versions(concurrency, 6);
            for resumed_at in 1..6 {
                let rest = resumed_versions(concurrency, resumed_at, 6);
                assert_eq!(rest, whole[resumed_at as usize..], "{concurrency} {resumed_at}");
            }
        }
    }

    #[test]
    fn a_dead_actor_ends_the_run_while_others_are_in_a_rollout() {
        let (release, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let rollout = |actor: usize, _: &u64| -> Result<ActorRollout<u64>> {
            match actor {
                2 => Err(Error::Env("the game of actor 2 fell over".into())),
                _ => {
                    // Ends when the learner has the error.
                    let _ = held.lock().unwrap().recv();
                    Ok(ActorRollout {
                        parts: vec![0],
                        episodes: vec![],
                        times: Default::default(),
                        cpu: Duration::ZERO,
                        snapshot: None,
                    })
                }
            }
        };
        let learn = |mut learner: Learner<'_, u64, u64>| {
            learner.publish(|_| Ok(1))?;
            let error = learner.collect().map(|_| ()).unwrap_err();
            drop(release);
            Err::<(), _>(error)
        };
        let schedule = Schedule { resumed_at: 0, updates: 5, concurrency: true };
        let error =
            run_actor_learner((&layout(3), schedule), &RunStatus::new(3), rollout, || (), learn)
                .unwrap_err();
        assert!(error.to_string().contains("actor 2 fell over"), "{error}");
    }
}
