//! The worker processes of a pool, and the environments in them.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::super::env::{Action, Env, Frame, ObsMut, StepOutcome};
use super::GymnasiumOptions;
use super::process::{Operation, Process, Ticket, end_all};
use super::segment::{Layout, Segment, SharedFile};
use super::spec::Spaces;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::pool::backend::{Backend, Call};
use crate::error::{Error, Result};

const TERMINATED: u8 = 1;
const TRUNCATED: u8 = 2;
const WAS_RESET: u8 = 4;
const OUT: u8 = 8;

/// Saved state of every environment.
const SAVED: &[u8] = b"a new episode";

/// Settings of a pool of processes.
pub(super) struct Settings<'a> {
    /// Id, with the prefix of the family.
    pub(super) id: &'a str,
    pub(super) options: &'a GymnasiumOptions,
    pub(super) placement: Placement,
    pub(super) max_episode_steps: Option<u32>,
    /// Number of threads of EnvPool.
    pub(super) num_threads: usize,
    /// True if a step that ends an episode starts the next one.
    pub(super) reset_in_step: bool,
}

/// Distribution of the environments of a pool over processes. Game `g` is in process `g % n`, so that
/// every batch has work for all; its agents are neighbors. An environment of Gymnasium is a game of
/// one agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    pub(super) num_envs: usize,
    /// Number of environments that are the agents of one game.
    pub(super) num_agents: usize,
    pub(super) num_processes: usize,
}

impl Placement {
    /// Returns the process that has environment `env`.
    fn process(self, env: usize) -> usize {
        env / self.num_agents % self.num_processes
    }

    /// Returns the position of environment `env` in its process.
    fn position(self, env: usize) -> usize {
        env / self.num_agents / self.num_processes * self.num_agents + env % self.num_agents
    }

    /// Returns the environments of a process, by their positions.
    fn envs(self, process: usize) -> Vec<usize> {
        (0..self.num_envs).filter(|&env| self.process(env) == process).collect()
    }
}

/// Processes that step the environments of a pool.
pub(super) struct ProcessPool {
    spec: EnvSpec,
    placement: Placement,
    workers: Vec<Mutex<Worker>>,
    segment: Segment,
    /// Operation of a step.
    step: Operation,
}

/// A process and the state of its environments, by their positions.
struct Worker {
    process: Process,
    envs: Vec<EnvState>,
}

#[derive(Clone, Copy, Default)]
struct EnvState {
    /// Call in progress.
    ticket: Option<Ticket>,
    /// True once a seed was sent. Later resets continue the environment's own generator.
    seeded: bool,
    /// True if the step that was received last has started the next episode.
    was_reset: bool,
    /// True if the next step begins a new episode instead, after the state was restored.
    restart: bool,
    /// True once the environment was rendered. Its resets are then calls of their own, so that the
    /// last state of an episode can be rendered.
    rendered: bool,
}

impl std::fmt::Debug for ProcessPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessPool").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl ProcessPool {
    /// Starts the processes, which make their environments at the same time.
    pub(super) fn start(settings: &Settings<'_>) -> Result<Arc<ProcessPool>> {
        let Settings { id, placement, .. } = *settings;
        let shared = SharedFile::new()
            .map_err(|e| Error::Env(format!("{id}: cannot make shared memory: {e}")))?;
        let (spaces, mut processes) = start_processes(settings, &shared)?;
        let Placement { num_envs, num_processes, .. } = placement;
        let segment = shared
            .map(Layout::new(num_envs, num_processes, &spaces))
            .map_err(|e| Error::Env(format!("{id}: cannot map shared memory: {e}")))?;
        processes.iter_mut().for_each(|process| process.send_message(segment.layout()));
        let worker = |(index, process)| {
            let envs = vec![EnvState::default(); placement.envs(index).len()];
            Mutex::new(Worker { process, envs })
        };
        let step = match settings.reset_in_step {
            true => Operation::StepAndReset,
            false => Operation::Step,
        };
        let workers = processes.into_iter().enumerate().map(worker).collect();
        Ok(Arc::new(ProcessPool { spec: spaces.spec(id), placement, workers, segment, step }))
    }

    /// Returns the specification of an environment and its number of agents.
    pub(super) fn describe(id: &str, options: &GymnasiumOptions) -> Result<(EnvSpec, usize)> {
        let shared = SharedFile::new()
            .map_err(|e| Error::Env(format!("{id}: cannot make shared memory: {e}")))?;
        let placement = Placement { num_envs: 1, num_agents: 1, num_processes: 1 };
        let settings = Settings {
            id,
            options,
            placement,
            max_episode_steps: None,
            num_threads: 1,
            reset_in_step: false,
        };
        let (spaces, mut processes) = start_processes(&settings, &shared)?;
        end_all(processes.iter_mut());
        Ok((spaces.spec(id), spaces.num_agents))
    }

    /// Returns the environments of the processes.
    pub(super) fn envs(self: &Arc<ProcessPool>, num_envs: usize) -> Vec<Box<dyn Env>> {
        let env = |index| Box::new(RemoteEnv { pool: self.clone(), index }) as Box<dyn Env>;
        (0..num_envs).map(env).collect()
    }

    /// Locks the process of environment `env`.
    fn worker(&self, env: usize) -> MutexGuard<'_, Worker> {
        lock(&self.workers[self.placement.process(env)])
    }

    /// Waits for the call of `env` that is in progress, or starts `call` and waits for it.
    fn finish(&self, env: usize, call: Call<'_>) -> Result<MutexGuard<'_, Worker>> {
        let mut worker = self.worker(env);
        if self.state(&mut worker, env).ticket.is_none() {
            self.push(&mut worker, env, call);
            worker.process.flush();
        }
        self.wait(&mut worker, env)?;
        Ok(worker)
    }

    fn wait(&self, worker: &mut Worker, env: usize) -> Result<()> {
        let Some(ticket) = self.state(worker, env).ticket.take() else { return Ok(()) };
        let process = self.placement.process(env);
        worker.process.wait(ticket, env).map_err(|problem| {
            // Known if the process was lost in a call.
            let position = self.segment.current(process);
            let current = position.and_then(|at| self.placement.envs(process).get(at).copied());
            let inside = match current {
                Some(current) if problem.starts_with("the worker process") => {
                    format!(", in a call of env {current}")
                }
                _ => String::new(),
            };
            Error::Env(format!("{problem}{inside}"))
        })
    }

    fn state<'m>(&self, worker: &'m mut Worker, env: usize) -> &'m mut EnvState {
        &mut worker.envs[self.placement.position(env)]
    }

    fn push(&self, worker: &mut Worker, env: usize, call: Call<'_>) {
        // A call whose result was abandoned.
        let _ = self.wait(worker, env);
        let operation = match call {
            Call::Reset(rng) => {
                let seeded = std::mem::replace(&mut self.state(worker, env).seeded, true);
                // Some environments take seeds of 31 bits only.
                let seed = if seeded { -1 } else { (rng.bits() >> 33) as i64 };
                self.segment.set_seed(env, seed);
                Operation::Reset
            }
            Call::Step(action) => {
                match action {
                    Action::Discrete(choice) => self.segment.set_action(env, &[choice as i64]),
                    Action::MultiDiscrete(choices) => {
                        let choices: Vec<i64> = choices.iter().map(|&c| c as i64).collect();
                        self.segment.set_action(env, &choices);
                    }
                    Action::Box(values) => self.segment.set_action(env, values),
                }
                self.segment.clear_flags(env);
                if self.state(worker, env).rendered { Operation::Step } else { self.step }
            }
        };
        let ticket = worker.process.push(self.placement.position(env), operation);
        let state = self.state(worker, env);
        (state.ticket, state.was_reset) = (Some(ticket), false);
    }
}

impl Backend for ProcessPool {
    fn submit(&self, env: usize, call: Call<'_>) {
        let mut worker = self.worker(env);
        // The step of a restored environment is a reset.
        if !(self.state(&mut worker, env).restart && matches!(call, Call::Step(_))) {
            self.push(&mut worker, env, call);
        }
    }

    fn flush(&self) {
        self.workers.iter().for_each(|worker| lock(worker).process.flush());
    }

    fn num_processes(&self) -> usize {
        self.workers.len()
    }
}

impl Drop for ProcessPool {
    fn drop(&mut self) {
        let workers = self.workers.iter_mut();
        end_all(
            workers.map(|worker| {
                &mut worker.get_mut().unwrap_or_else(PoisonError::into_inner).process
            }),
        );
    }
}

fn lock(worker: &Mutex<Worker>) -> MutexGuard<'_, Worker> {
    worker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the processes and waits for their descriptions of the environments.
fn start_processes(settings: &Settings<'_>, shared: &SharedFile) -> Result<(Spaces, Vec<Process>)> {
    let Settings { id, options, placement, .. } = *settings;
    let python = options.python.clone().map_or_else(default_python, Into::into);
    let timeout = (options.timeout > Duration::ZERO).then_some(options.timeout);
    let (family, own_id) = id.split_once(':').unwrap_or(("", id));
    let mut processes = Vec::with_capacity(placement.num_processes);
    for index in 0..placement.num_processes {
        let envs = placement.envs(index);
        let message = json!({
            "id": own_id,
            "family": family,
            "kwargs": options.kwargs,
            "wrappers": options.wrappers,
            "action_mask": options.action_mask,
            "flatten_observation": options.flatten_observation,
            "max_episode_steps": settings.max_episode_steps,
            "num_threads": settings.num_threads,
            "count": envs.len() / placement.num_agents,
            "envs": envs,
            "process": index,
        });
        processes.push(Process::start(id, &python, shared.fd(), &message, timeout)?);
    }
    match describe(id, &mut processes) {
        Ok(spaces) => Ok((spaces, processes)),
        Err(error) => {
            end_all(processes.iter_mut());
            Err(error)
        }
    }
}

/// Waits for the descriptions of all processes, which must be equal.
fn describe(id: &str, processes: &mut [Process]) -> Result<Spaces> {
    let mut first: Option<Spaces> = None;
    for process in processes {
        let json = process.receive_description().map_err(|e| Error::Env(format!("{id}: {e}")))?;
        let spaces = Spaces::parse(&json).map_err(|e| Error::Env(format!("{id}: {e}")))?;
        match &first {
            None => first = Some(spaces),
            Some(first) if *first == spaces => {}
            Some(first) => {
                return Err(Error::Env(format!(
                    "{id}: its spaces differ from one process to another: {} and {}, {} and {}",
                    first.observation, spaces.observation, first.action, spaces.action
                )));
            }
        }
    }
    let spaces = first.expect("there is a process");
    super::record_spaces(id, &spaces.gymnasium);
    Ok(spaces)
}

/// Returns the user's Python: `PODRACER_PYTHON`, otherwise `python3`.
pub(crate) fn default_python() -> OsString {
    let named = std::env::var_os("PODRACER_PYTHON").filter(|python| !python.is_empty());
    named.unwrap_or_else(|| "python3".into())
}

/// Environment in a worker process.
#[derive(Debug)]
struct RemoteEnv {
    pool: Arc<ProcessPool>,
    index: usize,
}

impl Env for RemoteEnv {
    fn spec(&self) -> EnvSpec {
        self.pool.spec.clone()
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let pool = &self.pool;
        let done = {
            let mut worker = pool.worker(self.index);
            let state = pool.state(&mut worker, self.index);
            state.restart = false;
            std::mem::take(&mut state.was_reset)
        };
        if !done {
            drop(pool.finish(self.index, Call::Reset(rng))?);
        }
        pool.segment.obs(self.index, false, obs.0);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let pool = &self.pool;
        let segment = &pool.segment;
        let restart = pool.state(&mut pool.worker(self.index), self.index).restart;
        if restart {
            // The episode before it was cut short.
            let mut worker = pool.finish(self.index, Call::Reset(rng))?;
            let state = pool.state(&mut worker, self.index);
            *state = EnvState {
                seeded: true,
                was_reset: true,
                rendered: state.rendered,
                ..EnvState::default()
            };
            segment.obs(self.index, false, obs.0);
            return Ok(StepOutcome::new(0.0, false).with_truncated(true));
        }
        let mut worker = pool.finish(self.index, Call::Step(action))?;
        let flags = segment.flags(self.index);
        let was_reset = flags & WAS_RESET != 0;
        pool.state(&mut worker, self.index).was_reset = was_reset;
        segment.obs(self.index, was_reset, obs.0);
        let (terminated, truncated) = (flags & TERMINATED != 0, flags & TRUNCATED != 0);
        // An agent that is out of the game before the others.
        let out = flags & OUT != 0;
        Ok(StepOutcome {
            truncated,
            game_over: terminated || truncated,
            zero_discount: out,
            life_lost: out,
            ..StepOutcome::new(segment.reward(self.index), terminated)
        })
    }

    fn render(&mut self) -> Option<Frame> {
        self.try_render().ok().flatten()
    }

    fn try_render(&mut self) -> Result<Option<Frame>> {
        let Placement { num_agents, .. } = self.pool.placement;
        let mut worker = self.pool.worker(self.index);
        let position = self.pool.placement.position(self.index);
        let ticket = worker.process.push(position, Operation::Render);
        worker.process.flush();
        worker.envs[position].ticket = Some(ticket);
        // The agents of a game are reset in the same way.
        let first = position / num_agents * num_agents;
        worker.envs[first..][..num_agents].iter_mut().for_each(|state| state.rendered = true);
        self.pool.wait(&mut worker, self.index)?;
        let damaged = || Error::Env("the worker process sent a damaged image".into());
        let image = worker.process.take_image().ok_or_else(damaged)?;
        if image.is_empty() {
            return Ok(None);
        }
        let (size, rgb) = image.split_first_chunk::<12>().ok_or_else(damaged)?;
        let [height, width, fps]: [u32; 3] = bytemuck::pod_read_unaligned(size);
        let (height, width) = (height as usize, width as usize);
        if height.checked_mul(width).and_then(|pixels| pixels.checked_mul(3)) != Some(rgb.len()) {
            return Err(damaged());
        }
        Ok(Some(Frame { height, width, fps, rgb: rgb.to_vec() }))
    }

    /// The state of an environment in Python cannot be read. A restored one begins a new episode.
    fn save(&self) -> Result<Vec<u8>> {
        Ok(SAVED.to_vec())
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        if state != SAVED {
            let id = &self.pool.spec.id;
            return Err(Error::Env(format!("{id}: these bytes are no saved state of it")));
        }
        let mut worker = self.pool.worker(self.index);
        let state = self.pool.state(&mut worker, self.index);
        *state = EnvState { restart: true, rendered: state.rendered, ..EnvState::default() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_has_the_flags_of_this_file() {
        let flags = [TERMINATED, TRUNCATED, WAS_RESET, OUT].map(|flag| flag.to_string()).join(", ");
        let line = format!("\nTERMINATED, TRUNCATED, WAS_RESET, OUT = {flags}\n");
        assert!(include_str!("worker.py").contains(&line), "{line}");
    }
}
