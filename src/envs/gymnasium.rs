//! Environments of Gymnasium, stepped by processes of the user's Python.
//!
//! The id `gymnasium:LunarLander-v3` is the environment that `gymnasium.make("LunarLander-v3")`
//! makes; `gymnasium:module:Id-v0` imports a module first, which registers the id. Each process has
//! several environments (`group`). Observations, actions, rewards and flags lie in one shared
//! memory (`segment`); a pipe in each direction carries four bytes for a step, and one for a batch
//! (`process`). The script of the processes is `gymnasium/worker.py`.

mod group;
mod process;
mod segment;
mod spec;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

use super::autoreset::Autoreset;
use super::env::Env;
use super::pool::{self, EnvPool, PoolOptions};
use super::spec::EnvSpec;
#[cfg(feature = "rl")]
pub(crate) use group::default_python;
use group::{Group, Settings};
pub(super) use spec::Described;

/// Prefix of the ids of this family.
pub(super) const PREFIX: &str = "gymnasium:";

/// Options of environments of Gymnasium. `..Default::default()` sets the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct GymnasiumOptions {
    /// Python interpreter that has Gymnasium; `None` for that of the environment variable
    /// `PODRACER_PYTHON`, or else `python3`.
    pub python: Option<PathBuf>,
    /// Keyword arguments of `gymnasium.make`.
    pub kwargs: Map<String, Value>,
    /// Wrappers, innermost first: import path, as in `gymnasium.wrappers.ClipReward`, and keyword
    /// arguments.
    pub wrappers: Vec<(String, Map<String, Value>)>,
    /// Time without an answer after which a process counts as hanging; zero waits for ever.
    pub timeout: Duration,
    /// If true, the observation is flattened and ends with `info["action_mask"]`, and the action is
    /// a masked [`Space::MultiDiscrete`](super::Space::MultiDiscrete).
    pub action_mask: bool,
}

impl Default for GymnasiumOptions {
    fn default() -> Self {
        GymnasiumOptions {
            python: None,
            kwargs: Map::new(),
            wrappers: Vec::new(),
            timeout: Duration::from_secs(300),
            action_mask: false,
        }
    }
}

/// Options that [`set_gymnasium_options`] gave to ids.
static OPTIONS: Mutex<BTreeMap<String, GymnasiumOptions>> = Mutex::new(BTreeMap::new());

/// Specifications of environments that were made before.
static SPECS: Mutex<Vec<(String, GymnasiumOptions, EnvSpec)>> = Mutex::new(Vec::new());

/// Returns true for an id of an environment of Gymnasium, as in `gymnasium:LunarLander-v3`.
pub fn is_gymnasium(id: &str) -> bool {
    id.starts_with(PREFIX)
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
    let group = Group::start(&Settings {
        id,
        options: &gymnasium_options(id),
        num_envs: 1,
        num_processes: 1,
        max_episode_steps: None,
        reset_in_step: false,
    })?;
    Ok(group.envs(1).remove(0))
}

/// Returns the specification of the environment `id`. The first call makes the environment.
pub(super) fn spec(id: &str) -> Result<EnvSpec> {
    // Specifications do not depend on the time-out.
    let options = GymnasiumOptions { timeout: Duration::ZERO, ..gymnasium_options(id) };
    // Locked throughout: other threads that ask for the same wait instead of starting Python.
    let mut known = SPECS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, spec)) = known.iter().find(|(name, with, _)| name == id && *with == options)
    {
        return Ok(spec.clone());
    }
    let spec = make(id)?.spec();
    known.push((id.to_string(), options, spec.clone()));
    Ok(spec)
}

impl EnvPool {
    /// Makes a pool of the environment `id` of Gymnasium, with custom options.
    ///
    /// [`PoolOptions::num_threads`] is the number of worker processes; 0 for one on each core. The
    /// seed of an environment is the argument of its first `reset`; later resets continue its own
    /// generator, as in Gymnasium. [`PoolOptions::max_episode_steps`] is passed to
    /// `gymnasium.make`.
    ///
    /// Returns an error if Python or Gymnasium is missing, and if the environment cannot be made.
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
        if !is_gymnasium(id) {
            return Err(Error::Env(format!(
                "\"{id}\" is no environment of Gymnasium, whose ids begin with {PREFIX}"
            )));
        }
        let pool = pool::check(pool)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = if pool.num_threads == 0 { cores } else { pool.num_threads };
        let group = Group::start(&Settings {
            id,
            options: &options,
            num_envs: pool.num_envs,
            num_processes: wanted.min(pool.num_envs),
            max_episode_steps: pool.max_episode_steps,
            reset_in_step: pool.autoreset == Autoreset::SameStep,
        })?;
        EnvPool::with_backend(group.envs(pool.num_envs), group, pool)
    }
}
