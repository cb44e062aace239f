//! Registry of environments by id.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::atari::{self, pettingzoo};
use super::classic;
use super::env::Env;
use super::gymnasium;
use super::memory_tasks;
use super::minatar;
use super::mujoco;
use super::podracer::{self, TWO_PLAYERS};
use super::pool::{EnvPool, PoolOptions};
use super::programs::{self, ProgramEnv};
use super::toy_text;
use crate::envs::env::entry::{Entry, nearest};
use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};

/// Entries of all families of environments, each with the native parts that it needs. Each family lists
/// its own.
const FAMILIES: &[(&[Entry], &[&str])] = &[
    (atari::ENVS, atari::PARTS),
    (classic::ENVS, &[]),
    (memory_tasks::ENVS, &[]),
    (minatar::ENVS, &[]),
    (mujoco::ENVS, mujoco::PARTS),
    (podracer::ENVS, &[]),
    (toy_text::ENVS, &[]),
];

/// Environment of the user's.
#[derive(Clone)]
enum Registered {
    /// Function that makes one.
    Env(Make),
    /// Function of keyword arguments, and the present ones.
    EnvWith(MakeWith, Map<String, Value>),
    /// Traced functions.
    Traced(ProgramEnv),
}

type Make = Arc<dyn Fn() -> Result<Box<dyn Env>> + Send + Sync>;
type MakeWith = Arc<dyn Fn(&Map<String, Value>) -> Result<Box<dyn Env>> + Send + Sync>;

/// Environments added by [`register`] and its relatives.
static REGISTERED: RwLock<BTreeMap<&'static str, Registered>> = RwLock::new(BTreeMap::new());

/// Registers an environment of your own under an id, by which algorithms, [`make`] and
/// [`EnvPool::make`] find it in this process: `gymnasium.register`.
///
/// ```
/// use podracer::envs::{self, EnvPool, PoolOptions};
/// envs::register("ShortCartPole-v0", || envs::make("CartPole-v1"))?;
/// EnvPool::make("ShortCartPole-v0", PoolOptions::default())?;
/// # Ok::<(), podracer::error::Error>(())
/// ```
///
/// # Errors
/// [`Error::Env`] if the id is empty, has a space, or already names an environment.
pub fn register(
    id: &str,
    make: impl Fn() -> Result<Box<dyn Env>> + Send + Sync + 'static,
) -> Result<()> {
    insert(id, Registered::Env(Arc::new(make)))
}

/// [`register`] for an environment with keyword arguments: `make` takes those of `--env-kwargs`, a
/// JSON object, or of [`set_env_kwargs`]; an empty object if there are none. They are settings of a
/// run: a run that resumes and the evaluation of a model have the same.
///
/// ```
/// use podracer::envs;
/// use podracer::envs::toy_text::{FrozenLake, FrozenLakeOptions};
///
/// #[derive(serde::Deserialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct Kwargs {
///     is_slippery: bool,
/// }
///
/// impl Default for Kwargs {
///     fn default() -> Kwargs {
///         Kwargs { is_slippery: true }
///     }
/// }
///
/// envs::register_with("Lake-v0", |Kwargs { is_slippery }| {
///     let options = FrozenLakeOptions { is_slippery, ..FrozenLakeOptions::default() };
///     Ok(Box::new(FrozenLake::v1(&options)?))
/// })?;
/// // --env-id Lake-v0 --env-kwargs '{"is_slippery": false}'
/// # Ok::<(), podracer::error::Error>(())
/// ```
///
/// # Errors
/// As [`register`]. Making an environment returns [`Error::Env`] for keyword arguments that are not
/// a `K`.
pub fn register_with<K: DeserializeOwned>(
    id: &str,
    make: impl Fn(K) -> Result<Box<dyn Env>> + Send + Sync + 'static,
) -> Result<()> {
    let name = id.to_string();
    let of_json = move |kwargs: &Map<String, Value>| {
        let kwargs = serde_json::from_value(Value::Object(kwargs.clone()));
        make(kwargs.map_err(|error| {
            Error::Env(format!("the keyword arguments of {name}: {error} (--env-kwargs)"))
        })?)
    };
    insert(id, Registered::EnvWith(Arc::new(of_json), Map::new()))
}

/// Registers an environment of Programs under the id of its specification.
pub(super) fn register_traced(env: ProgramEnv) -> Result<()> {
    let id = env.specification().id.clone();
    insert(&id, Registered::Traced(env))
}

/// Sets the keyword arguments with which this process makes the environment `id` of
/// [`register_with`] from now on.
///
/// # Errors
/// [`Error::Env`] for another environment.
pub fn set_env_kwargs(id: &str, kwargs: Map<String, Value>) -> Result<()> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    match registered.get_mut(id) {
        Some(Registered::EnvWith(_, own)) => *own = kwargs,
        _ => return Err(Error::Env(format!("{id} takes no keyword arguments"))),
    }
    Ok(())
}

/// Returns true for the id of an environment of [`register_with`].
#[cfg(feature = "rl")]
pub(crate) fn takes_kwargs(id: &str) -> bool {
    matches!(registered(id), Some(Registered::EnvWith(..)))
}

/// Returns the id of the environment that this program has registered; `None` if it has none or
/// several.
#[cfg(feature = "rl")]
pub(crate) fn only_registered() -> Option<&'static str> {
    let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
    let mut ids = registered.keys();
    ids.next().copied().filter(|_| ids.next().is_none())
}

/// Returns the traced environment `id` of the user's.
pub(super) fn registered_traced(id: &str) -> Option<ProgramEnv> {
    match registered(id)? {
        Registered::Traced(env) => Some(env),
        _ => None,
    }
}

fn insert(id: &str, env: Registered) -> Result<()> {
    let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
    let is_word = !id.is_empty() && !id.chars().any(|c| c.is_whitespace() || c.is_control());
    if !is_word || known(id) || registered.contains_key(id) {
        return Err(Error::Env(format!(
            "cannot register {id:?}: an id must be a name without spaces that no environment has yet"
        )));
    }
    // Ids live as long as the process, like those of the families.
    registered.insert(String::from(id).leak(), env);
    Ok(())
}

/// Returns true if `id` was registered with [`register`].
pub fn is_registered(id: &str) -> bool {
    registered(id).is_some()
}

fn registered(id: &str) -> Option<Registered> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
}

/// Returns true for an id of a family.
fn known(id: &str) -> bool {
    entries().any(|(name, _)| *name == id) || pettingzoo::num_agents(id).is_some()
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().flat_map(|(entries, _)| *entries)
}

/// Returns the native parts that an environment of this crate needs, by their names for
/// `podracer fetch`. Other environments need none.
pub fn native_parts(id: &str) -> &'static [&'static str] {
    if pettingzoo::num_agents(id).is_some() {
        return atari::PARTS;
    }
    let family = FAMILIES.iter().find(|(entries, _)| entries.iter().any(|(name, _)| *name == id));
    family.map_or(&[], |(_, parts)| parts)
}

/// Source of an environment, by its id.
enum Source<'a> {
    /// Environment of the user's.
    Registered(Registered),
    /// Gymnasium or EnvPool, in a process of Python.
    Gymnasium,
    /// PettingZoo, in a process of Python.
    PettingZoo,
    /// Folder of JAX programs.
    Jax(&'a str),
    /// Atari game of PettingZoo, with this number of players.
    AtariPlayers(usize),
    /// [`FAMILIES`], if the id is known at all.
    Family,
}

impl Source<'_> {
    fn of(id: &str) -> Source<'_> {
        if let Some(env) = registered(id) {
            Source::Registered(env)
        } else if gymnasium::is_gymnasium(id) || gymnasium::is_envpool(id) {
            Source::Gymnasium
        } else if gymnasium::is_pettingzoo(id) {
            Source::PettingZoo
        } else if let Some(folder) = programs::jax_folder(id) {
            Source::Jax(folder)
        } else {
            pettingzoo::num_agents(id).map_or(Source::Family, Source::AtariPlayers)
        }
    }
}

/// Returns the ids that [`EnvPool::make`] accepts, in alphabetical order. [`make`] accepts those of
/// them that have one agent.
pub fn list_envs() -> Vec<&'static str> {
    let mut ids: Vec<_> = entries().map(|(id, _)| *id).chain(pettingzoo::ids()).collect();
    ids.extend(REGISTERED.read().unwrap_or_else(PoisonError::into_inner).keys());
    ids.sort_unstable();
    ids
}

/// Makes one environment by its id, without a pool around it: no time limit, no automatic reset.
///
/// Gymnasium's `BreakoutNoFrameskip-v4` is `Breakout-v5` here, and so on for each Atari game.
///
/// Returns an error for an unknown id, with the nearest known ids in its message.
pub fn make(id: &str) -> Result<Box<dyn Env>> {
    let num_agents = match Source::of(id) {
        Source::Registered(Registered::Env(make)) => return make(),
        Source::Registered(Registered::EnvWith(make, kwargs)) => return make(&kwargs),
        Source::Registered(Registered::Traced(env)) => return Ok(programs::make(&env)),
        Source::Gymnasium => return gymnasium::make(id),
        Source::Jax(folder) => return Ok(programs::make(&ProgramEnv::load(folder)?)),
        Source::Family => {
            let (name, make) = entry(id)?;
            return make(name);
        }
        Source::PettingZoo => gymnasium::spec(id)?.1,
        Source::AtariPlayers(num_players) => num_players,
    };
    Err(Error::Env(format!(
        "{id} has {num_agents} agents, which act at the same time: EnvPool::make makes a pool in \
         which each agent is one environment"
    )))
}

/// Returns the entry of an id, or an error that names the nearest ids.
fn entry(id: &str) -> Result<&'static Entry> {
    let id = atari::without_frame_skip(id).unwrap_or(id);
    entries().find(|(name, _)| *name == id).ok_or_else(|| {
        let all = list_envs();
        let count = all.len();
        let similar = nearest(&id.replace("NoFrameskip", ""), all);
        Error::Env(format!(
            "unknown environment \"{id}\"; {similar}`podracer envs` lists all {count}\n  help: one \
             of Gymnasium is {}ID; one that a program registers is known to that program alone",
            gymnasium::PREFIX,
        ))
    })
}

/// Returns the specification of the environment `id`, or the errors of [`make`].
pub fn spec(id: &str) -> Result<EnvSpec> {
    match Source::of(id) {
        Source::Gymnasium | Source::PettingZoo => Ok(gymnasium::spec(id)?.0),
        Source::Jax(folder) => Ok(ProgramEnv::load(folder)?.specification().clone()),
        Source::AtariPlayers(_) => pettingzoo::spec(id),
        Source::Registered(_) | Source::Family => Ok(make(id)?.spec()),
    }
}

/// Returns the number of agents of an environment that act at the same time, each of which is one
/// environment of a pool: PettingZoo's `num_agents`. It is 1 for ids that [`EnvPool::make`] does not
/// know.
pub fn num_agents(id: &str) -> usize {
    match Source::of(id) {
        Source::PettingZoo => gymnasium::spec(id).map_or(1, |(_, num_agents)| num_agents),
        Source::AtariPlayers(num_players) => num_players,
        Source::Registered(_) | Source::Gymnasium | Source::Jax(_) | Source::Family => 1,
    }
}

/// Returns the number of players of an environment, whose steps alternate between them: 1 or 2. It is
/// 1 for ids that [`make`] does not know.
pub fn num_players(id: &str) -> usize {
    match Source::of(id) {
        Source::Jax(folder) => ProgramEnv::load(folder).map_or(1, |env| env.num_players()),
        Source::Family if TWO_PLAYERS.contains(&id) => 2,
        _ => 1,
    }
}

impl EnvPool {
    /// Makes a pool of the registered environment `id`.
    ///
    /// Returns an error for an unknown id and for invalid options.
    ///
    /// ```
    /// use podracer::envs::{EnvPool, PoolOptions};
    /// let options = PoolOptions { num_envs: 4, ..Default::default() };
    /// let mut pool = EnvPool::make("CartPole-v1", options)?;
    /// let batch = pool.reset()?;
    /// assert_eq!(batch.obs::<f32>().len(), 4 * 4);
    /// let batch = pool.step(&[0, 1, 0, 1])?;
    /// assert_eq!(batch.reward(), [1.0; 4]);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn make(id: &str, options: PoolOptions) -> Result<EnvPool> {
        match Source::of(id) {
            Source::Gymnasium | Source::PettingZoo => {
                EnvPool::gymnasium(id, gymnasium::gymnasium_options(id), options)
            }
            Source::Jax(folder) => programs::pool(&ProgramEnv::load(folder)?, options),
            Source::Registered(Registered::Traced(env)) => programs::pool(&env, options),
            Source::AtariPlayers(_) => pettingzoo::pool(id, options),
            Source::Family => {
                let (name, make) = entry(id)?;
                EnvPool::parallel(|_| make(name), options)
            }
            Source::Registered(_) => EnvPool::parallel(|_| make(id), options),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_of_the_users_own_has_an_id() {
        let mine = || make("CartPole-v1");
        register("Registered-v0", mine).unwrap();
        assert!(is_registered("Registered-v0") && !is_registered("CartPole-v1"));
        assert!(list_envs().contains(&"Registered-v0"));
        assert_eq!(spec("Registered-v0").unwrap().id, "CartPole-v1");
        let pool =
            EnvPool::make("Registered-v0", PoolOptions { num_envs: 2, ..Default::default() });
        assert_eq!(pool.unwrap().reset().unwrap().reward().len(), 2);
        for taken in ["Registered-v0", "CartPole-v1", "", "My env"] {
            let error = register(taken, mine).unwrap_err().to_string();
            let expected = format!("cannot register \"{taken}\": an id must be a name without");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
