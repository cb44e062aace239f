//! Environments of Gymnasium, of PettingZoo and of EnvPool, stepped by processes of the user's Python.
//!
//! The id `gymnasium:LunarLander-v3` is the environment that `gymnasium.make("LunarLander-v3")`
//! makes; `gymnasium:module:Id-v0` imports a module first, which registers the id. The id
//! `pettingzoo:module` is the game that the module's `parallel_env()` makes; each of its agents is
//! one environment of a pool. The id `envpool:WalkerWalk-v1` is the environment of EnvPool; one process
//! has all of a pool, which EnvPool steps at once in its own threads.
//!
//! Each process has several environments (`process_pool`). Observations, actions, rewards and flags lie in
//! one shared memory (`segment`); a pipe in each direction carries four bytes for a step, and one for
//! a batch (`process`). The script of the processes is `gymnasium/worker.py`.

mod process;
mod process_pool;
mod segment;
mod spec;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

use super::env::Env;
use super::pool::{self, EnvPool, PoolOptions};
use crate::envs::env::spec::EnvSpec;
use crate::envs::pool::autoreset::Autoreset;
use crate::envs::pool::multi_agent::check_agents;
use crate::error::{Error, Result};
#[cfg(feature = "rl")]
pub(crate) use process_pool::default_python;
use process_pool::{Placement, ProcessPool, Settings};
pub use spec::GymnasiumSpaces;

/// Prefix of the ids of this family.
pub(super) const PREFIX: &str = "gymnasium:";

/// Prefix of the ids of games of PettingZoo.
const PETTINGZOO: &str = "pettingzoo:";

/// Prefix of the ids of environments of EnvPool.
const ENVPOOL: &str = "envpool:";

/// Options of environments of Gymnasium, PettingZoo and EnvPool. `..Default::default()` sets the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct GymnasiumOptions {
    /// Python interpreter that has Gymnasium; `None` for that of the environment variable
    /// `PODRACER_PYTHON`, or else `python3`.
    pub python: Option<PathBuf>,
    /// Keyword arguments of `gymnasium.make`, of the module's `parallel_env`, or of `envpool.make`.
    pub kwargs: Map<String, Value>,
    /// Wrappers, innermost first: import path, as in `gymnasium.wrappers.ClipReward`, and keyword
    /// arguments.
    pub wrappers: Vec<(String, Map<String, Value>)>,
    /// Time without an answer after which a process counts as hanging; zero waits for ever.
    pub timeout: Duration,
    /// If true, the observation is flattened and ends with `info["action_mask"]`, and the action is
    /// a masked [`Space::MultiDiscrete`](super::Space::MultiDiscrete).
    pub action_mask: bool,
    /// If true, the observation is flattened by `gymnasium.spaces.flatten`, as `FlattenObservation` does:
    /// a vector, with one element for each value of a `Discrete`.
    pub flatten_observation: bool,
}

impl Default for GymnasiumOptions {
    fn default() -> Self {
        GymnasiumOptions {
            python: None,
            kwargs: Map::new(),
            wrappers: Vec::new(),
            timeout: Duration::from_secs(300),
            action_mask: false,
            flatten_observation: false,
        }
    }
}

/// Options that [`set_gymnasium_options`] gave to ids.
static OPTIONS: Mutex<BTreeMap<String, GymnasiumOptions>> = Mutex::new(BTreeMap::new());

/// Specifications of environments that were made before, with their numbers of agents.
static SPECS: Mutex<Vec<(String, GymnasiumOptions, EnvSpec, usize)>> = Mutex::new(Vec::new());

/// Spaces of the environments that were made before, by id.
static GYMNASIUM_SPACES: Mutex<BTreeMap<String, GymnasiumSpaces>> = Mutex::new(BTreeMap::new());

fn record_spaces(id: &str, spaces: &GymnasiumSpaces) {
    let mut known = GYMNASIUM_SPACES.lock().unwrap_or_else(PoisonError::into_inner);
    known.insert(id.to_string(), spaces.clone());
}

/// Returns the spaces, as Python has them, of the environment `id` that this process made last; `None` if
/// it made none.
pub fn gymnasium_spaces(id: &str) -> Option<GymnasiumSpaces> {
    GYMNASIUM_SPACES.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
}

/// Returns true for an id of an environment of Gymnasium, as in `gymnasium:LunarLander-v3`.
pub fn is_gymnasium(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// Returns true for an id of a game of PettingZoo in Python, as in `pettingzoo:mpe2.simple_spread_v3`.
pub fn is_pettingzoo(id: &str) -> bool {
    id.starts_with(PETTINGZOO)
}

/// Returns true for an id of an environment of EnvPool, as in `envpool:WalkerWalk-v1`.
pub fn is_envpool(id: &str) -> bool {
    id.starts_with(ENVPOOL)
}

/// Returns true for an id of an environment in Python.
pub(crate) fn is_python(id: &str) -> bool {
    is_gymnasium(id) || is_pettingzoo(id) || is_envpool(id)
}

/// Sets the options with which this process makes the environment `id` from now on, where it is
/// made by its id alone.
pub fn set_gymnasium_options(id: &str, options: GymnasiumOptions) {
    OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_string(), options);
}

/// Returns the options of the environment `id`: the defaults, unless [`set_gymnasium_options`] has
/// set others.
pub fn gymnasium_options(id: &str) -> GymnasiumOptions {
    let options = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    options.get(id).cloned().unwrap_or_default()
}

/// Makes one environment, in a process of its own.
pub(super) fn make(id: &str) -> Result<Box<dyn Env>> {
    let processes = ProcessPool::start(&Settings {
        id,
        options: &gymnasium_options(id),
        placement: Placement { num_envs: 1, num_agents: 1, num_processes: 1 },
        max_episode_steps: None,
        num_threads: 1,
        reset_in_step: false,
    })?;
    Ok(processes.envs(1).remove(0))
}

/// Returns the specification of the environment `id`, or of one agent of the game `id`, and the
/// number of agents. The first call makes the environment.
pub(super) fn spec(id: &str) -> Result<(EnvSpec, usize)> {
    spec_with(id, &gymnasium_options(id))
}

fn spec_with(id: &str, options: &GymnasiumOptions) -> Result<(EnvSpec, usize)> {
    // Specifications do not depend on the time-out.
    let key = GymnasiumOptions { timeout: Duration::ZERO, ..options.clone() };
    // Locked throughout: other threads that ask for the same wait instead of starting Python.
    let mut known = SPECS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.iter().find(|(name, with, ..)| name == id && *with == key);
    if let Some((.., spec, num_agents)) = found {
        return Ok((spec.clone(), *num_agents));
    }
    let (spec, num_agents) = ProcessPool::describe(id, options)?;
    known.push((id.to_string(), key, spec.clone(), num_agents));
    Ok((spec, num_agents))
}

impl EnvPool {
    /// Makes a pool of the environment `id` of Gymnasium or EnvPool, or of the game `id` of PettingZoo,
    /// with custom options.
    ///
    /// Each agent of a game is one environment: environments `0 .. A` are the agents of the first game,
    /// in the order of `possible_agents`. All agents of a game end their episodes in the same step. An
    /// agent that is out of the game before the others gets observations of zeros and rewards of 0
    /// until then.
    ///
    /// [`PoolOptions::num_threads`] is the number of worker processes, or of threads of EnvPool; 0 for
    /// one on each core. The seed of an environment is the argument of its first `reset`; later resets continue its own
    /// generator, as in Gymnasium. A game gets the seed of its first agent.
    /// [`PoolOptions::max_episode_steps`] is passed to `gymnasium.make`.
    ///
    /// Returns an error if Python or Gymnasium is missing, and if the environment cannot be made. For
    /// PettingZoo, returns an error as well if the agents of a game have different spaces, if
    /// `num_envs` is not a multiple of the number of agents, and if the pool is asynchronous or has
    /// `max_episode_steps`.
    ///
    /// ```no_run
    /// use podracer::envs::{EnvPool, GymnasiumOptions, PoolOptions};
    /// let options = GymnasiumOptions {
    ///     kwargs: [("continuous".to_string(), true.into())].into_iter().collect(),
    ///     ..Default::default()
    /// };
    /// let pool = PoolOptions { num_envs: 8, ..Default::default() };
    /// let mut pool = EnvPool::gymnasium("gymnasium:LunarLander-v3", options, pool)?;
    /// let batch = pool.reset()?;
    /// assert_eq!(batch.obs::<f32>().len(), 8 * 8);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn gymnasium(id: &str, options: GymnasiumOptions, pool: PoolOptions) -> Result<EnvPool> {
        if !is_python(id) {
            return Err(Error::Env(format!(
                "\"{id}\" is no environment of Gymnasium, PettingZoo or EnvPool, whose ids begin with \
                 {PREFIX}, {PETTINGZOO} or {ENVPOOL}"
            )));
        }
        let pool = pool::check(pool)?;
        let num_agents = match is_pettingzoo(id) {
            true => num_agents_of_pool(id, &options, &pool)?,
            false => 1,
        };
        let num_envs = pool.num_envs;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = if pool.num_threads == 0 { cores } else { pool.num_threads };
        let num_processes = if is_envpool(id) { 1 } else { wanted.min(num_envs / num_agents) };
        let processes = ProcessPool::start(&Settings {
            id,
            options: &options,
            placement: Placement { num_envs, num_agents, num_processes },
            max_episode_steps: pool.max_episode_steps,
            num_threads: wanted,
            reset_in_step: pool.autoreset == Autoreset::SameStep,
        })?;
        EnvPool::with_backend(processes.envs(num_envs), processes, pool)
    }
}

/// Returns the number of agents of a game, or an error if a pool cannot have these options.
fn num_agents_of_pool(id: &str, options: &GymnasiumOptions, pool: &PoolOptions) -> Result<usize> {
    if options.action_mask || pool.max_episode_steps.is_some() {
        let option = if options.action_mask { "action_mask" } else { "max_episode_steps" };
        return Err(Error::Config(format!(
            "{id}: {option} is for environments of Gymnasium only; give the game its own arguments, \
             such as max_cycles, as kwargs"
        )));
    }
    let (_, num_agents) = spec_with(id, options)?;
    check_agents(id, num_agents, pool)?;
    Ok(num_agents)
}
