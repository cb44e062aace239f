//! Learner thread: collects rollouts, updates, publishes parameters, logs and writes checkpoints.

use std::time::Instant;

use serde_json::{Value, json};

use super::actor_learner::{Learner, LearnerBatch};
use super::actors::copy_to;
use super::checkpoint::{ActorEnvs, Boundary, on_host};
use super::config::UpdateConfig;
use super::layout::World;
use super::options::SebulbaOptions;
use super::setup::Setup;
use super::stats::processor_time;
use super::status::{Activity, RunStatus};
use crate::Array;
use crate::error::{Error, Result};
use crate::pmap::{Sharded, device_put_sharded, replicate, unreplicate};
use crate::rl::algorithm::Algorithm;
use crate::rl::interrupt;
use crate::rl::returns::Returns;
use crate::rl::run::trainer::Trainer;
use crate::timeline;
use crate::tree::{self, Tree};

/// The learner's end of the queues, for parameters `P` and rollouts `R`.
type Queues<'a, P, R> =
    Learner<'a, <P as Tree<Sharded>>::With<Array>, <R as Tree<Sharded>>::With<Array>>;
/// State between two updates.
pub(super) type BoundaryOf<S, P> =
    Boundary<Array, <S as Tree<Sharded>>::With<Array>, <P as Tree<Sharded>>::With<Array>>;
/// Saved states of the environments, by actor.
type EnvStates = Vec<Vec<Vec<u8>>>;

/// Programs of the learner devices, for a train state `S`, parameters `P`, rollouts `R`, a prepared
/// rollout `D` and metrics `M`.
pub(super) struct LearnerPrograms<'p, S, P, R, D, M> {
    /// Computes what is needed once per rollout, from the shares of all actors.
    pub prepare: &'p dyn Fn(S, Vec<R>) -> Result<(S, D)>,
    /// Takes the gradient steps of these indices, `i32[K]`, with a learning rate `f32[]`.
    pub gradient_steps: &'p dyn Fn(S, D, Sharded, Sharded) -> Result<(S, D, M)>,
    /// Returns the parameters with which actors act.
    pub params: &'p dyn Fn(&S) -> P,
}

/// Learner of a run.
pub(super) struct LearnerLoop<'r, 'a, A, S, P, R, D, M> {
    pub trainer: &'r mut Trainer<'a, A>,
    pub setup: &'r Setup,
    pub options: &'r SebulbaOptions,
    pub config: UpdateConfig,
    /// Total number of updates.
    pub updates: u64,
    pub status: &'r RunStatus,
    pub programs: LearnerPrograms<'r, S, P, R, D, M>,
    pub writes_checkpoints: bool,
}

/// Outcome of the gradient steps of an update.
enum Updated<M> {
    /// Metrics of the last gradient step.
    Learned(M),
    /// Learning starts later.
    NotYet,
    /// The user stopped the run between two gradient steps.
    Interrupted,
}

impl<A, S, P, R, D, M> LearnerLoop<'_, '_, A, S, P, R, D, M>
where
    A: Algorithm,
    S: Tree<Sharded>,
    P: Tree<Sharded>,
    P::With<Array>: Clone + Send,
    R: Tree<Sharded>,
    R::With<Array>: Send,
    M: Tree<Sharded>,
{
    /// Runs the remaining updates from `state`; `boundary` is the state before the first of them.
    /// Returns the train state at the end.
    ///
    /// # Errors
    /// Returns the error of an actor, and errors of execution and file I/O.
    pub fn run(
        mut self,
        mut queues: Queues<'_, P, R>,
        mut state: S,
        mut boundary: BoundaryOf<S, P>,
    ) -> Result<S::With<Array>> {
        let mut lengths = saved_lengths(&self.trainer.extra_state)?;
        queues.publish_behind(|device| copy_to(&boundary.behavior_policy, device))?;
        self.publish(&queues, &state)?;
        let mut env_states = EnvStates::new();
        let mut interrupted = false;
        loop {
            let stop = self.agree_to_stop()?;
            self.trainer.decide(stop);
            if boundary.train.is_none() && self.trainer.checkpoint_is_due() {
                boundary.train = Some(on_host(&unreplicate(&state)?)?);
            }
            let envs = ActorEnvs { pools: &self.setup.envs, states: &env_states };
            self.trainer.checkpoint_if_due(&boundary, envs)?;
            if !self.setup.is_interruptible() {
                boundary.train = None;
            }
            if !self.trainer.should_continue() {
                break;
            }
            let learning_rate = self.learning_rate();
            let Some(batch) = queues.collect()? else { continue };
            let (began, cpu) = (Instant::now(), processor_time());
            let number = queues.update();
            let update_span =
                timeline::span_of("update", format_args!("{number} -> v{}", number + 1));
            let policy_before = match self.writes_checkpoints {
                true => on_host(&unreplicate(&(self.programs.params)(&state))?)?,
                false => boundary.behavior_policy.clone(),
            };
            let updated;
            (state, updated) = self.update(&queues, state, &batch, learning_rate)?;
            let metrics = match updated {
                Updated::Learned(metrics) => Some(unreplicate(&metrics)?),
                Updated::NotYet => None,
                Updated::Interrupted => {
                    // The interrupted update is discarded; the checkpoint holds the state before it.
                    interrupted = true;
                    continue;
                }
            };
            let LearnerBatch { snapshots, episodes, times, waited, .. } = batch;
            if self.writes_checkpoints {
                let actors;
                (actors, env_states) =
                    snapshots.into_iter().map(|snapshot| (snapshot.state, snapshot.envs)).unzip();
                let train = match self.setup.is_interruptible() {
                    true => Some(on_host(&unreplicate(&state)?)?),
                    false => None,
                };
                boundary = Boundary { train, behavior_policy: policy_before, actors };
            }
            tree::leaves(&metrics).iter().try_for_each(Array::wait)?;
            let learned = (began.elapsed(), processor_time().saturating_sub(cpu));
            self.publish(&queues, &state)?;
            drop(update_span);
            self.status.learner.ends();
            self.status.learner.enter(Activity::Logs);
            let published = began.elapsed() - learned.0;
            queues.stats.update(waited, learned, published, times.params_queue_get);
            episodes.iter().for_each(|episode| lengths.push(episode.length as f64));
            self.trainer.extra_state = json!(lengths);
            self.trainer.record(&episodes, metrics.as_ref())?;
            self.log(&queues, learning_rate, &lengths)?;
        }
        match boundary.train.filter(|_| interrupted && self.writes_checkpoints) {
            Some(train) => Ok(train),
            None => unreplicate(&state),
        }
    }

    /// Takes the gradient steps of an update.
    fn update(
        &self,
        queues: &Queues<'_, P, R>,
        state: S,
        batch: &LearnerBatch<R::With<Array>>,
        learning_rate: f64,
    ) -> Result<(S, Updated<M>)> {
        let learners = &self.setup.layout.learners;
        let parts = batch.parts.iter().map(|parts| device_put_sharded(parts, learners));
        let (mut state, mut data) = {
            let _span = timeline::span("prepare");
            self.status.learner.enter(Activity::Prepares);
            (self.programs.prepare)(state, parts.collect::<Result<Vec<_>>>()?)?
        };
        if queues.update() * self.setup.update_steps <= self.config.learning_starts {
            return Ok((state, Updated::NotYet));
        }
        let _span = timeline::span("learn");
        self.status.learner.enter(Activity::Learns);
        let learning_rate = replicate(&Array::from(learning_rate as f32), learners)?;
        let count = self.config.gradient_steps;
        let per_call = if self.setup.is_interruptible() { 1 } else { count };
        let indices: Vec<i32> = (0..count as i32).collect();
        let mut updated = Updated::NotYet;
        for indices in indices.chunks(per_call) {
            let indices = replicate(&Array::new([indices.len()], indices)?, learners)?;
            let last;
            (state, data, last) =
                (self.programs.gradient_steps)(state, data, indices, learning_rate.clone())?;
            if self.setup.is_interruptible() {
                // Wait for each step, so that an interruption takes effect soon.
                tree::leaves(&last).iter().try_for_each(Sharded::wait)?;
                if self.setup.layout.world == World::ALONE && queues.stops() {
                    return Ok((state, Updated::Interrupted));
                }
            }
            updated = Updated::Learned(last);
        }
        Ok((state, updated))
    }

    /// Sends the parameters of the current version to the actors.
    fn publish(&self, queues: &Queues<'_, P, R>, state: &S) -> Result<()> {
        let _span = timeline::span("give parameters");
        self.status.learner.enter(Activity::GivesParameters);
        let params = unreplicate(&(self.programs.params)(state))?;
        queues.publish(|device| {
            let copy = copy_to(&params, device)?;
            // An actor that waited for the parameters inside a call would block others of its
            // device.
            tree::leaves(&copy).iter().try_for_each(Array::wait)?;
            Ok(copy)
        })
    }

    /// Returns true in all processes if one of them was asked to stop.
    fn agree_to_stop(&self) -> Result<bool> {
        let requested = interrupt::requested();
        let Some(processes) = &self.setup.processes else { return Ok(requested) };
        let mut requests = [i64::from(requested)];
        processes.sum_i64(&mut requests)?;
        Ok(requests[0] > 0)
    }

    /// Returns the learning rate of the next update, which decreases linearly with `anneal_lr`.
    fn learning_rate(&self) -> f64 {
        let UpdateConfig { learning_rate, anneal_lr, .. } = self.config;
        if !anneal_lr {
            return learning_rate;
        }
        let update = self.trainer.global_step() / self.setup.update_steps;
        learning_rate * (1.0 - update as f64 / self.updates as f64)
    }

    /// Logs Cleanba's statistics every `--log-frequency` updates.
    fn log(
        &mut self,
        queues: &Queues<'_, P, R>,
        learning_rate: f64,
        lengths: &Returns,
    ) -> Result<()> {
        let update = self.trainer.global_step() / self.setup.update_steps;
        if !update.is_multiple_of(self.options.log_frequency.max(1)) {
            return Ok(());
        }
        let waiting = queues.waiting();
        let mean_return = self.trainer.run.returns.mean().unwrap_or_default();
        let mut scalars = queues.stats.scalars().to_vec();
        scalars.extend([
            ("stats/rollout_queue_size", waiting.rollouts as f64),
            ("stats/params_queue_size", waiting.params as f64),
            ("charts/learning_rate", learning_rate),
            ("charts/avg_episodic_return", mean_return),
            ("charts/avg_episodic_length", lengths.mean().unwrap_or_default()),
        ]);
        self.trainer.log(&scalars)
    }
}

/// Returns the lengths of the last episodes that a checkpoint has; earlier versions saved none.
fn saved_lengths(state: &Value) -> Result<Returns> {
    if state.is_null() {
        return Ok(Returns::default());
    }
    let lengths: std::result::Result<Returns, _> = serde_json::from_value(state.clone());
    let problem = match lengths.map_err(|error| error.to_string()) {
        Ok(lengths) => match lengths.ensure_possible() {
            Ok(()) => return Ok(lengths),
            Err(problem) => problem,
        },
        Err(problem) => problem,
    };
    Err(Error::Argument(format!("the checkpoint's lengths of episodes: {problem}")))
}
