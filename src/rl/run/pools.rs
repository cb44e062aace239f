//! Environment pools for the settings of an algorithm, with the sizes of its networks; environments
//! that the algorithm does not support are refused.

use crate::envs::memory_tasks::{MiniGridOptions, is_minigrid};
use crate::envs::{
    Action, AtariOptions, Env, EnvPool, EnvRng, EnvSpec, GymnasiumOptions, ObsKind, ObsMut,
    PoolOptions, StepOutcome, gymnasium_options, is_gymnasium, is_python, is_registered,
    num_agents, spec,
};
use crate::error::{Error, Result};
use crate::trace::DType;

use crate::rl::algorithm::Algorithm;
use crate::rl::environments::bounds::Bounds;
use crate::rl::environments::spaces::{self, Masked, Sizes};
use crate::rl::environments::support::{ActionSupport, EnvSupport, is_flattened};

/// Returns a pool with the specification that was read from a model, whose environments cannot be
/// stepped; without one, the environments of `make`.
///
/// # Errors
/// [`Error::Env`] for a specification of a wrong form, and the errors of `make`.
pub(crate) fn recorded_or<A: Algorithm>(
    args: &A,
    make: impl FnOnce() -> Result<EnvPool>,
) -> Result<EnvPool> {
    let Some(spec) = args.options().recorded_spec.get() else {
        return make();
    };
    let options = PoolOptions { num_threads: 1, ..PoolOptions::default() };
    EnvPool::custom(|_| Ok(Box::new(Recorded(spec.clone()))), options)
}

/// Environment that has a specification only.
struct Recorded(EnvSpec);

impl Env for Recorded {
    fn spec(&self) -> EnvSpec {
        self.0.clone()
    }

    fn reset(&mut self, _: &mut EnvRng, _: ObsMut<'_>) -> Result<()> {
        Err(Error::Env(format!("{}: there is a specification only", self.0.id)))
    }

    fn step(&mut self, _: Action<'_>, _: &mut EnvRng, _: ObsMut<'_>) -> Result<StepOutcome> {
        Err(Error::Env(format!("{}: there is a specification only", self.0.id)))
    }
}

fn options<A: Algorithm>(args: &A, num_envs: usize, seed: u64) -> PoolOptions {
    let num_threads = args.options().num_threads;
    // An evaluation with one environment has one game, with all its agents.
    let is_recorded = args.options().recorded_spec.get().is_some();
    let num_envs = match num_envs {
        1 if seed == args.options().eval_seed() && !is_recorded => num_agents(args.env_id()),
        _ => num_envs,
    };
    PoolOptions { num_envs, num_threads, seed, ..Default::default() }
}

/// Creates environments with vector observations and discrete actions; returns them with their
/// sizes.
///
/// # Errors
/// [`Error::Config`] for other environments, and errors of the environments.
pub fn discrete<A: Algorithm>(args: &A, num_envs: usize, seed: u64) -> Result<(EnvPool, Sizes)> {
    let pool = make(args, options(args, num_envs, seed))?;
    let sizes = Sizes::from_spec(A::NAME, pool.spec(), &EnvSupport::VECTORS)?;
    Ok((pool, sizes))
}

/// Creates environments with vector observations and continuous actions; returns them with the size
/// of an observation and the bounds of the actions. A single environment gets a single thread.
///
/// # Errors
/// Returns the same errors as [`discrete`].
pub fn continuous<A: Algorithm>(
    args: &A,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, usize, Bounds)> {
    let mut options = options(args, num_envs, seed);
    if num_envs == 1 {
        options.num_threads = 1;
    }
    let pool = make(args, options)?;
    let obs_size = spaces::vector(A::NAME, pool.spec())?;
    // Only an algorithm that names vectors without bounds gets infinite ones.
    let bounds = match A::ENVS.actions {
        ActionSupport::Continuous => spaces::bounds(A::NAME, pool.spec())?,
        _ => spaces::finite_bounds(A::NAME, pool.spec())?,
    };
    Ok((pool, obs_size, bounds))
}

/// Creates environments with masked MultiDiscrete actions for `players` players, 1 or 2; returns
/// them with their sizes.
///
/// # Errors
/// Returns the same errors as [`discrete`].
pub fn masked<A: Algorithm>(
    args: &A,
    players: usize,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, Masked)> {
    let (id, options) = (args.env_id(), options(args, num_envs, seed));
    let pool = recorded_or(args, || {
        if !is_gymnasium(id) {
            return EnvPool::make(id, options);
        }
        let own = GymnasiumOptions { action_mask: true, ..gymnasium_options(id) };
        EnvPool::gymnasium(id, own, options)
    })?;
    let sizes = spaces::masked(A::NAME, pool.spec(), players)?;
    Ok((pool, sizes))
}

/// Creates environments with discrete or MultiDiscrete actions; returns them with the kind of
/// observation and the number of choices of each component of an action. `atari` are the options for
/// Atari games, `minigrid` those for MiniGrid's environments.
///
/// # Errors
/// Returns the same errors as [`discrete`].
pub(crate) fn multi_discrete<A: Algorithm>(
    args: &A,
    atari: AtariOptions,
    minigrid: MiniGridOptions,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, ObsKind, Vec<usize>)> {
    let (id, options) = (args.env_id(), options(args, num_envs, seed));
    let pool = recorded_or(args, || match is_minigrid(id) {
        true => EnvPool::minigrid(id, minigrid, options),
        false => any(id, atari, options),
    })?;
    let obs_kind = spaces::obs_kind(A::NAME, pool.spec(), &A::ENVS)?;
    let components = spaces::components(A::NAME, pool.spec())?;
    Ok((pool, obs_kind, components))
}

/// Creates environments with observations of the kinds in [`Algorithm::ENVS`] and discrete actions;
/// returns them with their sizes. Atari games get the wrappers of CleanRL's `dqn_atari.py`: stacks
/// of four frames, lives as episodes, rewards clipped to their signs, up to 30 no-ops, fire after a
/// reset. Other environments get no wrappers.
///
/// # Errors
/// Returns the same errors as [`discrete`].
pub fn images<A: Algorithm>(args: &A, num_envs: usize, seed: u64) -> Result<(EnvPool, Sizes)> {
    with_atari(args, AtariOptions::gymnasium(), num_envs, seed)
}

/// Like [`images`], with the options `atari` for Atari games.
///
/// # Errors
/// Returns the same errors as [`discrete`].
pub(crate) fn with_atari<A: Algorithm>(
    args: &A,
    atari: AtariOptions,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, Sizes)> {
    let pool = of_args(args, atari, options(args, num_envs, seed))?;
    let sizes = Sizes::from_spec(A::NAME, pool.spec(), &A::ENVS)?;
    Ok((pool, sizes))
}

/// Creates the environments of the settings as [`any`] does.
///
/// # Errors
/// Returns the same errors as [`any`].
pub(in crate::rl) fn of_args<A: Algorithm>(
    args: &A,
    atari: AtariOptions,
    options: PoolOptions,
) -> Result<EnvPool> {
    recorded_or(args, || any(args.env_id(), atari, options))
}

/// Creates environments of any kind. `atari` are the options for Atari games; other environments,
/// those of several agents, those in Python and those registered by users get no wrappers.
///
/// # Errors
/// Returns the same errors as [`EnvPool::make`] and [`EnvPool::atari`].
pub fn any(env_id: &str, atari: AtariOptions, options: PoolOptions) -> Result<EnvPool> {
    let own = is_registered(env_id) || is_python(env_id) || num_agents(env_id) > 1;
    if !own && spec(env_id)?.observation.dtype() == DType::U8 {
        return EnvPool::atari(env_id, atari, options);
    }
    by_id(env_id, options)
}

fn make<A: Algorithm>(args: &A, options: PoolOptions) -> Result<EnvPool> {
    recorded_or(args, || by_id(args.env_id(), options))
}

/// Creates environments like [`EnvPool::make`]. Observations of Python that no network takes as they are
/// become vectors.
fn by_id(env_id: &str, options: PoolOptions) -> Result<EnvPool> {
    if is_python(env_id) && is_flattened(&spec(env_id)?) {
        let own = GymnasiumOptions { flatten_observation: true, ..gymnasium_options(env_id) };
        return EnvPool::gymnasium(env_id, own, options);
    }
    EnvPool::make(env_id, options)
}
