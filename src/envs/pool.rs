//! The pool: many environments of one kind, stepped together.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::envs::env::seeds::{EnvRng, seeds};
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Env, Frame};
use crate::envs::pool::actions::{ActionRule, Actions};
use crate::envs::pool::autoreset::Autoreset;
use crate::envs::pool::backend::Backend;
use crate::envs::pool::buffer::{Batch, BatchBuilder, check_rows};
use crate::envs::pool::camera::Camera;
use crate::envs::pool::failures::{Failure, Failures, OnError};
use crate::envs::pool::slot::{Phase, Slot, Task, guard};
use crate::envs::pool::stats::{Episode, Finished};
use crate::envs::pool::thread_count::{Probe, WORTH_A_THREAD, threads_for};
use crate::envs::pool::watchdog::Watch;
use crate::envs::pool::workers::{Inbox, Job, Team, Workers};
use crate::error::{Error, Result};
use crate::timeline;

pub(in crate::envs) mod actions;
pub(in crate::envs) mod autoreset;
pub(in crate::envs) mod backend;
pub(in crate::envs) mod buffer;
pub(in crate::envs) mod camera;
pub(in crate::envs) mod columns;
mod cores;
pub(in crate::envs) mod failures;
pub(in crate::envs) mod multi_agent;
mod slot;
pub(in crate::envs) mod stats;
mod thread_count;
mod watchdog;
mod workers;

/// Maximum of [`PoolOptions::num_envs`].
pub(crate) const MAX_ENVS: usize = 1 << 20;

/// Maximum of [`PoolOptions::num_threads`].
pub(crate) const MAX_THREADS: usize = 1024;

/// Options of a pool. `..Default::default()` sets the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolOptions {
    /// Number of environments.
    pub num_envs: usize,
    /// Rows of a batch; 0 for one row per environment (synchronous). A smaller number makes the
    /// pool asynchronous: `recv` waits only for that many environments.
    pub batch_size: usize,
    /// Number of threads that step environments; 0 lets the pool measure and choose. In a
    /// synchronous pool the caller's thread is one of them, so 1 starts none. Results do not depend
    /// on it.
    pub num_threads: usize,
    /// Core that the first thread is pinned to, as an index into the cores that the process may
    /// use; each further thread is pinned to the next core. `None` leaves the threads unpinned. In
    /// a synchronous pool the caller's own thread is not pinned.
    pub first_core: Option<usize>,
    /// Seed of the run. Each environment's own seed is derived from it.
    pub seed: u64,
    /// Index of this process among the processes that share `seed`.
    pub process: u16,
    /// Index of this pool's actor thread among those that share `seed` and `process`.
    pub actor: u16,
    /// Index of the pool's first environment among all pools that share `seed`, `process` and
    /// `actor`: environment `i` has the seed of environment `first_env + i`.
    pub first_env: usize,
    /// Time at which the next episode starts after an end.
    pub autoreset: Autoreset,
    /// Number of steps after which an episode is truncated; `None` for the limit in the
    /// environment's specification.
    pub max_episode_steps: Option<u32>,
    /// If true, continuous actions outside their bounds are clipped to the nearest bound
    /// (gymnasium's `ClipAction`) instead of refused. NaN is always refused.
    pub clip_actions: bool,
    /// Policy for environments whose step returns an error.
    pub on_error: OnError,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            num_envs: 1,
            batch_size: 0,
            num_threads: 0,
            first_core: None,
            seed: 1,
            process: 0,
            actor: 0,
            first_env: 0,
            autoreset: Autoreset::SameStep,
            max_episode_steps: None,
            clip_actions: false,
            on_error: OnError::Stop,
        }
    }
}

/// Many environments of one kind, stepped together into shared batches.
///
/// Synchronous: [`reset`](EnvPool::reset), then [`step`](EnvPool::step) with one action per
/// environment; row `i` of a batch is environment `i`.
///
/// Asynchronous (`batch_size < num_envs`): [`async_reset`](EnvPool::async_reset), then
/// [`recv`](EnvPool::recv) a batch and [`send`](EnvPool::send) actions for the environments in it,
/// while the other environments are being stepped. Batches hold the environments in the order in
/// which they were sent, not in the order in which they finished, so a run can be repeated bit for
/// bit regardless of thread timing.
///
/// If an environment panics or returns an error, the call that would have returned its row fails,
/// and so does every later call, unless [`PoolOptions::on_error`] says otherwise.
pub struct EnvPool {
    spec: EnvSpec,
    options: PoolOptions,
    rule: ActionRule,
    /// The environments; `None` while a worker has one.
    slots: Vec<Option<Box<Slot>>>,
    /// True for each environment that has been sent and not received.
    busy: Vec<bool>,
    /// Environments that have been sent but not started, in order.
    pending: VecDeque<Pending>,
    /// Batches being filled, in order; each but the last has all its rows assigned.
    blocks: VecDeque<Block>,
    /// Number of blocks removed from the front of `blocks`.
    blocks_done: u64,
    /// Batches returned to the caller whose memory may still be in use.
    handed_out: Vec<Batch>,
    engine: Engine,
    /// Processes that have the environments; `None` if they are in this process.
    backend: Option<Arc<dyn Backend>>,
    finished: Finished,
    failures: Failures,
    failed: Option<String>,
    /// Watchdog that reports environments that do not return; `None` after a failure.
    watch: Option<Arc<Watch>>,
    /// The environment as a value that compiled code can contain, if it has such a form.
    traced: Option<Arc<dyn Any + Send + Sync>>,
}

/// One environment to be stepped, and the row it will fill.
struct Pending {
    env: usize,
    block: u64,
    row: usize,
    task: Task,
    /// True once a backend has the call.
    submitted: bool,
}

struct Block {
    builder: BatchBuilder,
    assigned: usize,
    inbox: Arc<Inbox>,
}

enum Engine {
    /// On the caller's thread, inside `recv`.
    Inline(Option<Probe>),
    Threads(Workers),
}

impl std::fmt::Debug for EnvPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvPool")
            .field("id", &self.spec.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl EnvPool {
    /// Makes a pool of custom environments: `factory` makes environment 0, 1, ...
    ///
    /// All must have the same specification.
    pub fn custom(
        mut factory: impl FnMut(usize) -> Result<Box<dyn Env>>,
        options: PoolOptions,
    ) -> Result<EnvPool> {
        let options = check(options)?;
        let made = |i| guard(|| factory(i)).map_err(|e| Error::Env(format!("making env {i} {e}")));
        let envs = (0..options.num_envs).map(made).collect::<Result<Vec<_>>>()?;
        EnvPool::with_envs(envs, options)
    }

    /// [`custom`](EnvPool::custom) with a factory that several threads may call, for environments
    /// that take long to make.
    pub(super) fn parallel(
        factory: impl Fn(usize) -> Result<Box<dyn Env>> + Sync,
        options: PoolOptions,
    ) -> Result<EnvPool> {
        let options = check(options)?;
        EnvPool::with_envs(make_all(&factory, options.num_envs)?, options)
    }

    /// Makes a pool of environments that live in the processes of `backend`. The pool's own thread
    /// waits for them; the options are [checked](check).
    pub(super) fn with_backend(
        envs: Vec<Box<dyn Env>>,
        backend: Arc<dyn Backend>,
        options: PoolOptions,
    ) -> Result<EnvPool> {
        let num_threads = options.num_threads;
        let mut pool = EnvPool::with_envs(envs, PoolOptions { num_threads: 0, ..options })?;
        pool.options.num_threads = num_threads;
        pool.engine = Engine::Inline(None);
        pool.backend = Some(backend);
        Ok(pool)
    }

    fn with_envs(envs: Vec<Box<dyn Env>>, options: PoolOptions) -> Result<EnvPool> {
        let spec = envs[0].spec();
        for (name, space) in [("observation", &spec.observation), ("action", &spec.action)] {
            if let Some(problem) = space.problem() {
                let id = &spec.id;
                return Err(Error::Env(format!("{id}: its {name} space {space}: {problem}")));
            }
        }
        check_rows(&spec.id, options.num_envs, &spec.observation)?;
        let limit = options.max_episode_steps.or(spec.max_episode_steps);
        let mut slots = Vec::with_capacity(envs.len());
        for (i, env) in envs.into_iter().enumerate() {
            if env.spec() != spec {
                return Err(Error::Env(format!(
                    "env {i} ({}) has another specification than env 0 ({})",
                    env.spec().id,
                    spec.id
                )));
            }
            let PoolOptions { seed, process, actor, first_env, autoreset, on_error, .. } = options;
            let rng = EnvRng::new(seeds(seed, process, actor, (first_env + i) as u32));
            slots.push(Some(Box::new(Slot::new(env, i, rng, autoreset, limit, on_error))));
        }
        let calls = slots.iter().flatten().map(|slot| Arc::clone(&slot.calls)).collect();
        let synchronous = options.batch_size == options.num_envs;
        let engine = match options.num_threads {
            0 => Engine::Inline(Some(Probe::new())),
            1 if synchronous => Engine::Inline(None),
            n => Engine::Threads(start(&spec.id, n, &options)?),
        };
        Ok(EnvPool {
            rule: ActionRule::new(&spec, options.clip_actions),
            busy: vec![false; options.num_envs],
            backend: None,
            pending: VecDeque::with_capacity(options.num_envs),
            blocks: VecDeque::new(),
            blocks_done: 0,
            handed_out: Vec::new(),
            finished: Finished::new(options.num_envs),
            failures: Failures::default(),
            failed: None,
            watch: Some(Watch::new(&spec.id, calls)),
            traced: None,
            spec,
            options,
            slots,
            engine,
        })
    }

    /// Adds the traced environment of which all environments are copies.
    pub(super) fn with_traced(mut self, env: impl Any + Send + Sync) -> EnvPool {
        self.traced = Some(Arc::new(env));
        self
    }

    /// Returns the traced environment of which all environments are copies, if its type is `E`.
    pub(super) fn traced<E: Any>(&self) -> Option<&E> {
        self.traced.as_deref()?.downcast_ref()
    }

    /// Returns the specification of the environments.
    pub fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    /// Returns the options of the pool; `batch_size` is the resolved number of rows.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Returns the number of environments.
    pub fn num_envs(&self) -> usize {
        self.options.num_envs
    }

    /// Returns the number of rows of a batch.
    pub fn batch_size(&self) -> usize {
        self.options.batch_size
    }

    /// Returns the number of threads that step environments now; 1 if that is the caller's own
    /// thread. For environments in other processes, returns the number of processes.
    pub fn num_threads(&self) -> usize {
        if let Some(backend) = &self.backend {
            return backend.num_processes();
        }
        match &self.engine {
            Engine::Inline(_) => 1,
            Engine::Threads(workers) => workers.num_threads(),
        }
    }

    fn is_synchronous(&self) -> bool {
        self.options.batch_size == self.options.num_envs
    }

    /// Starts an episode in every environment. Batches that were sent and not received are dropped.
    ///
    /// For synchronous pools; returns an error in an asynchronous one.
    pub fn reset(&mut self) -> Result<Batch> {
        self.ensure_synchronous("reset", "async_reset and recv")?;
        self.async_reset()?;
        self.recv()
    }

    /// Starts an episode in every environment; `recv` returns the first observations. Batches that
    /// were sent and not received are dropped.
    pub fn async_reset(&mut self) -> Result<()> {
        self.alive()?;
        self.abandon()?;
        let num_envs = self.options.num_envs;
        self.enqueue(Task::Reset, 0..num_envs);
        self.dispatch();
        Ok(())
    }

    /// Takes one step in every environment: `actions[i]` is the action of environment `i`.
    ///
    /// For synchronous pools. Returns an error in an asynchronous one, and for actions outside the
    /// action space, before any environment is stepped.
    pub fn step<'a>(&mut self, actions: impl Into<Actions<'a>>) -> Result<Batch> {
        let _span = timeline::span("env step");
        self.ensure_synchronous("step", "send and recv")?;
        let num_envs = self.options.num_envs;
        self.send_to(actions.into(), 0..num_envs)?;
        self.recv()
    }

    /// Sends the environments `env_ids` their actions, in this order, and returns at once.
    ///
    /// Returns an error, before any environment is stepped, for actions outside the action space
    /// and for environments that do not exist, were not reset, or were sent and not received.
    pub fn send<'a>(&mut self, actions: impl Into<Actions<'a>>, env_ids: &[i32]) -> Result<()> {
        // A negative id becomes a huge one here.
        self.send_to(actions.into(), env_ids.iter().map(|&id| id as u32 as usize))
    }

    /// Starts an episode in the environments `env_ids`; `recv` returns their rows like those of
    /// steps.
    ///
    /// Returns the errors of [`send`](EnvPool::send).
    pub fn send_reset(&mut self, env_ids: &[i32]) -> Result<()> {
        self.alive()?;
        let envs = env_ids.iter().map(|&id| id as u32 as usize);
        self.claim(Task::Reset, envs.clone())?;
        self.enqueue(Task::Reset, envs);
        self.dispatch();
        Ok(())
    }

    fn send_to(
        &mut self,
        actions: Actions<'_>,
        envs: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Result<()> {
        self.alive()?;
        self.rule.check(&self.spec.id, actions, envs.clone())?;
        self.claim(Task::Step, envs.clone())?;
        for (k, env) in envs.clone().enumerate() {
            let slot = self.slots[env].as_mut().expect("it was not busy, so it is here");
            self.rule.give(actions, k, slot);
        }
        self.enqueue(Task::Step, envs);
        self.dispatch();
        Ok(())
    }

    /// Returns the oldest batch that was sent, after waiting for its environments.
    ///
    /// Returns an error if fewer environments have been sent than a batch has rows, and if one of
    /// them failed.
    pub fn recv(&mut self) -> Result<Batch> {
        let _span = timeline::span("env recv");
        self.alive()?;
        let assigned = self.blocks.front().map_or(0, |block| block.assigned);
        if assigned < self.options.batch_size {
            return Err(Error::Env(format!(
                "{}: recv would wait forever: a batch has {} rows, and {assigned} environments \
                 were sent",
                self.spec.id, self.options.batch_size
            )));
        }
        self.receive(assigned)?;
        let block = self.blocks.pop_front().expect("there is a front");
        self.blocks_done += 1;
        let batch = block.builder.finish();
        self.handed_out.push(batch.clone());
        Ok(batch)
    }

    /// Returns the episodes that finished since the last call, in the order of the batches' rows,
    /// with returns and lengths of the full game, unclipped. At most the last 65,536 are kept.
    pub fn take_finished(&mut self) -> Vec<Episode> {
        self.finished.drain()
    }

    /// Returns the steps that failed since the last call, in the order of the batches' rows, in a
    /// pool that continues after failures ([`OnError::Truncate`]). At most the last 65,536 are
    /// kept.
    pub fn take_failures(&mut self) -> Vec<Failure> {
        self.failures.drain()
    }

    /// Returns the last episode (full game) that environment `env_id` finished.
    pub fn last_finished(&self, env_id: usize) -> Option<Episode> {
        self.finished.last(env_id)
    }

    /// Renders environment `env_id`, if it can be rendered.
    ///
    /// Returns an error for an environment that does not exist or was sent and not received, and one
    /// for an environment whose rendering fails, which can be stepped nevertheless.
    pub fn render(&mut self, env_id: usize) -> Result<Option<Frame>> {
        let slot = self.idle(env_id)?;
        let rendered = guard(|| Ok(slot.render()));
        rendered.unwrap_or_else(|problem| Err(self.fail(env_id, &problem)))
    }

    /// Films environment `env_id` from now on: `camera` gets the frames of the episodes that it chooses.
    ///
    /// Returns the errors of [`render`](EnvPool::render).
    pub fn film(&mut self, env_id: usize, camera: Box<dyn Camera>) -> Result<()> {
        self.idle(env_id)?.film(camera);
        Ok(())
    }

    /// Serializes the whole state of environment `env_id` between two steps: the environment, its
    /// generator, its position in the episode and the running statistics.
    ///
    /// Returns the errors of [`render`](EnvPool::render), and an error if the environment cannot be
    /// saved.
    pub fn save(&mut self, env_id: usize) -> Result<Vec<u8>> {
        self.idle(env_id)?.save()
    }

    /// Restores environment `env_id` from the bytes that [`save`](EnvPool::save) returned, in this
    /// or another process: the same actions lead to the same episodes. The restored observation is
    /// not returned; the next `step` returns the one after it.
    ///
    /// Returns the errors of [`render`](EnvPool::render), and an error for bytes that are not a
    /// state of this kind of environment; then nothing is changed.
    ///
    /// ```
    /// use podracer::envs::{EnvPool, PoolOptions};
    /// let mut pool = EnvPool::make("CartPole-v1", PoolOptions::default())?;
    /// pool.reset()?;
    /// let state = pool.save(0)?;
    /// let once = pool.step(&[1])?.obs::<f32>().to_vec();
    /// pool.restore(0, &state)?;
    /// assert_eq!(pool.step(&[1])?.obs::<f32>(), once);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn restore(&mut self, env_id: usize, state: &[u8]) -> Result<()> {
        self.idle(env_id)?.restore(state)
    }

    /// Returns environment `env_id`, which must not be in flight.
    fn idle(&mut self, env_id: usize) -> Result<&mut Slot> {
        self.alive()?;
        self.claim(Task::Reset, [env_id].into_iter())?;
        self.busy[env_id] = false;
        Ok(self.slots[env_id].as_mut().expect("it was not busy, so it is here"))
    }

    fn ensure_synchronous(&self, call: &str, instead: &str) -> Result<()> {
        if self.is_synchronous() {
            return Ok(());
        }
        Err(Error::Env(format!(
            "{}: {call} is for synchronous pools; with batch_size {} of {} environments use \
             {instead}",
            self.spec.id, self.options.batch_size, self.options.num_envs
        )))
    }

    fn alive(&self) -> Result<()> {
        match &self.failed {
            Some(message) => {
                Err(Error::Env(format!("{message}\n  help: the pool ended there; make a new one")))
            }
            None => Ok(()),
        }
    }

    /// Closes the pool: every later call fails, including those of compiled code that steps it.
    pub fn close(&mut self) {
        self.failed.get_or_insert_with(|| format!("{}: the pool was closed", self.spec.id));
    }

    /// Closes the pool after a failure, which may have left an environment in any state.
    fn fail(&mut self, env: usize, problem: &str) -> Error {
        let message = format!("{}: env {env} {problem}", self.spec.id);
        self.failed = Some(message.clone());
        self.watch = None;
        Error::Env(message)
    }

    /// Marks `envs` as sent, all or none.
    fn claim(&mut self, task: Task, envs: impl Iterator<Item = usize> + Clone) -> Result<()> {
        let mut claimed = 0;
        let mut problem = None;
        for env in envs.clone() {
            problem = self.objection(task, env);
            if problem.is_some() {
                break;
            }
            self.busy[env] = true;
            claimed += 1;
        }
        let Some(problem) = problem else { return Ok(()) };
        envs.take(claimed).for_each(|env| self.busy[env] = false);
        Err(Error::Env(format!("{}: {problem}", self.spec.id)))
    }

    /// Returns the reason why `env` cannot be sent, or `None` if it can.
    fn objection(&self, task: Task, env: usize) -> Option<String> {
        match self.busy.get(env) {
            None => {
                let last = self.options.num_envs - 1;
                return Some(format!("there is no env {}, only 0 to {last}", env as u32 as i32));
            }
            Some(true) => return Some(format!("env {env} was sent and not received yet")),
            Some(false) => {}
        }
        let phase = self.slots[env].as_ref().map(|slot| slot.phase);
        match (task, phase, self.options.autoreset) {
            (Task::Step, Some(Phase::New), _) => {
                Some(format!("env {env} has not been reset; call reset first"))
            }
            (Task::Step, Some(Phase::Over), Autoreset::Disabled) => Some(format!(
                "env {env}'s episode is over and autoreset is disabled; call send_reset for it"
            )),
            _ => None,
        }
    }

    /// Assigns a row to each of `envs`, which have been claimed.
    fn enqueue(&mut self, task: Task, envs: impl Iterator<Item = usize>) {
        let rows = self.options.batch_size;
        for env in envs {
            self.busy[env] = true;
            if self.blocks.back().is_none_or(|block| block.assigned == rows) {
                let builder = self.fresh();
                let inbox = Arc::new(Inbox::new(rows));
                self.blocks.push_back(Block { builder, assigned: 0, inbox });
            }
            let block = self.blocks_done + self.blocks.len() as u64 - 1;
            let back = self.blocks.back_mut().expect("just pushed");
            // In a synchronous pool a batch has each environment once, so the rows are in order.
            let row = if rows == self.options.num_envs { env } else { back.assigned };
            back.assigned += 1;
            self.pending.push_back(Pending { env, block, row, task, submitted: false });
        }
    }

    /// Returns memory for a batch: that of a batch that is no longer in use, or new memory.
    fn fresh(&mut self) -> BatchBuilder {
        let free = self.handed_out.iter().position(Batch::is_unshared);
        free.and_then(|i| self.handed_out.swap_remove(i).recycle()).unwrap_or_else(|| {
            let keep_final = self.options.autoreset == Autoreset::SameStep;
            BatchBuilder::new(self.options.batch_size, &self.spec.observation, keep_final)
        })
    }

    /// Submits the pending environments to the worker threads or processes, if there are any.
    fn dispatch(&mut self) {
        if let Some(backend) = &self.backend {
            for pending in self.pending.iter_mut().filter(|pending| !pending.submitted) {
                pending.submitted = true;
                let slot = self.slots[pending.env].as_mut().expect("no thread has it");
                slot.submit(pending.task, &**backend);
            }
            backend.flush();
        }
        let Engine::Threads(workers) = &self.engine else { return };
        workers.submit(self.pending.drain(..).map(|Pending { env, block, row, task, .. }| {
            let block = &mut self.blocks[(block - self.blocks_done) as usize];
            let slot = self.slots[env].take().expect("it was not busy, so it is here");
            let writer = block.builder.writer(row);
            Job { slot, row, writer, task, inbox: block.inbox.clone() }
        }));
    }

    /// Takes the `count` environments of the front block back and stores the results of their
    /// steps.
    fn receive(&mut self, count: usize) -> Result<()> {
        let block = self.blocks.front_mut().expect("there is a front");
        if let Engine::Threads(workers) = &self.engine {
            let returned = workers.collect(&block.inbox, count);
            let mut failure = None;
            for mut back in returned {
                let env = back.slot.index;
                match back.failure {
                    Some(problem) => failure = failure.or(Some((env, problem))),
                    None => {
                        store(&mut block.builder, &mut self.finished, back.row, &back.slot);
                        back.slot.failure.take().into_iter().for_each(|f| self.failures.push(f));
                    }
                }
                self.busy[env] = false;
                self.slots[env] = Some(back.slot);
            }
            return match failure {
                Some((env, problem)) => Err(self.fail(env, &problem)),
                None => Ok(()),
            };
        }
        self.receive_inline(count)
    }

    fn receive_inline(&mut self, count: usize) -> Result<()> {
        // A reset may cost much less or much more than a step.
        let probing = matches!(self.engine, Engine::Inline(Some(_)))
            && self.pending.iter().take(count).all(|pending| pending.task == Task::Step);
        let began = probing.then(Instant::now);
        let Block { builder, .. } = self.blocks.front_mut().expect("there is a front");
        let obs_bytes = builder.obs_bytes();
        let (obs, final_obs) = builder.all();
        let final_bytes = if final_obs.is_empty() { 0 } else { obs_bytes };
        // One guard for all rows up to a failure. The environments after it are stepped too, as by
        // threads, so that results do not depend on the number of threads. Processes that hang are not
        // waited for one after the other.
        let (mut done, mut failed) = (0, Vec::new());
        while done < count && (failed.is_empty() || self.backend.is_none()) {
            let outcome = guard(|| {
                for Pending { env, row, task, .. } in self.pending.range(done..count) {
                    done += 1;
                    let slot = self.slots[*env].as_mut().expect("nothing is with a worker");
                    let obs = &mut obs[row * obs_bytes..][..obs_bytes];
                    slot.run(*task, obs, &mut final_obs[row * final_bytes..][..final_bytes])?;
                }
                Ok(())
            });
            if let Err(problem) = outcome {
                let Pending { env, row, .. } = self.pending[done - 1];
                failed.push((row, env, problem));
            }
        }
        for (k, Pending { env, row, .. }) in self.pending.drain(..count).enumerate() {
            self.busy[env] = false;
            if k >= done || failed.iter().any(|(other, ..)| *other == row) {
                continue;
            }
            let slot = self.slots[env].as_mut().expect("nothing is with a worker");
            store(builder, &mut self.finished, row, slot);
            slot.failure.take().into_iter().for_each(|f| self.failures.push(f));
        }
        // The first row that failed, as with threads.
        if let Some((_, env, problem)) = failed.into_iter().min_by_key(|(row, ..)| *row) {
            return Err(self.fail(env, &problem));
        }
        if let Some(began) = began {
            self.probed(began.elapsed());
        }
        Ok(())
    }

    /// Records the cost of a batch; after enough batches, chooses the number of threads.
    fn probed(&mut self, cost: Duration) {
        let Engine::Inline(Some(probe)) = &mut self.engine else { return };
        let Some(fastest) = probe.fastest_of_enough(cost) else { return };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let size = self.options.batch_size;
        let count = threads_for(fastest, size, cores, self.is_synchronous());
        // The steps of this batch are taken: where no thread can be started, the caller goes on alone.
        self.engine = count
            .and_then(|count| start(&self.spec.id, count, &self.options).ok())
            .map_or(Engine::Inline(None), Engine::Threads);
        self.dispatch();
    }

    /// Takes the steps that were sent and not received, and discards their batches. Without threads the
    /// caller takes them now, so that the environments are in the same state as with threads.
    fn abandon(&mut self) -> Result<()> {
        while let Some(block) = self.blocks.front() {
            let assigned = block.assigned;
            // Agents of a game take a step together: the last ones may have no action.
            if self.backend.is_some() && assigned < self.options.batch_size {
                self.pending.clear();
                self.busy.fill(false);
            } else {
                self.receive(assigned)?;
            }
            self.blocks.pop_front();
            self.blocks_done += 1;
        }
        Ok(())
    }
}

/// Returns the options with `batch_size` filled in, or an error for invalid options.
pub(super) fn check(mut options: PoolOptions) -> Result<PoolOptions> {
    for (name, given, least, most) in [
        ("num_envs", options.num_envs, 1, MAX_ENVS),
        ("num_threads", options.num_threads, 0, MAX_THREADS),
    ] {
        if !(least..=most).contains(&given) {
            return Err(Error::Config(format!("{name} is {given}, expected {least} to {most}")));
        }
    }
    if options.batch_size == 0 {
        options.batch_size = options.num_envs;
    }
    if options.batch_size > options.num_envs {
        return Err(Error::Config(format!(
            "batch_size {} is more than num_envs {}: a batch has one row per environment at most",
            options.batch_size, options.num_envs
        )));
    }
    if options.max_episode_steps == Some(0) {
        return Err(Error::Config("max_episode_steps must be at least 1".into()));
    }
    Ok(options)
}

/// Makes environments 0 to `count - 1`. The first one is made alone: if that is fast, so are the
/// others, and if it fails, its error is the only one.
fn make_all(
    factory: &(impl Fn(usize) -> Result<Box<dyn Env>> + Sync),
    count: usize,
) -> Result<Vec<Box<dyn Env>>> {
    let make = |i| match guard(|| factory(i)) {
        // The same error text as from `make` without a pool.
        Err(problem) => Err(Error::Env(format!("making env {i} {problem}"))),
        made => Ok(made.expect("no error")),
    };
    let began = Instant::now();
    let mut envs = vec![make(0)?];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if began.elapsed() < WORTH_A_THREAD { 1 } else { cores.min(count) };
    // Thread k makes environments k + 1, k + 1 + threads, ...
    let share = |k: usize| (k + 1..count).step_by(threads).map(make).collect::<Result<Vec<_>>>();
    let shares = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|k| scope.spawn(move || share(k))).collect();
        let mut shares = vec![share(0)];
        shares.extend(others.into_iter().map(|other| other.join().expect("panics are caught")));
        shares
    });
    let mut shares =
        shares.into_iter().map(|share| Ok(share?.into_iter())).collect::<Result<Vec<_>>>()?;
    for i in 1..count {
        envs.push(shares[(i - 1) % threads].next().expect("each made its share"));
    }
    Ok(envs)
}

/// Starts the threads of a pool; in a synchronous pool the caller is one of the `count`.
fn start(id: &str, count: usize, options: &PoolOptions) -> Result<Workers> {
    let synchronous = options.batch_size == options.num_envs;
    let team = Team {
        count: count - usize::from(synchronous),
        caller_helps: synchronous,
        most_jobs: options.num_envs,
        first_core: options.first_core,
    };
    Workers::start(id, &team)
}

fn store(builder: &mut BatchBuilder, finished: &mut Finished, row: usize, slot: &Slot) {
    builder.set(row, &slot.row);
    if let Some(episode) = slot.row.finished {
        finished.push(episode);
    }
}
