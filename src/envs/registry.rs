//! The environments by name.

use crate::error::{Error, Result};

use super::atari;
use super::classic;
use super::entry::{Entry, nearest};
use super::env::Env;
use super::minatar;
use super::mujoco;
use super::own;
use super::pool::{EnvPool, PoolOptions};
use super::spec::EnvSpec;
use super::toy_text;

/// Every family of environments. Each lists its own.
const FAMILIES: &[&[Entry]] =
    &[atari::ENVS, classic::ENVS, minatar::ENVS, mujoco::ENVS, own::ENVS, toy_text::ENVS];

fn entries() -> impl Iterator<Item = &'static Entry> {
    FAMILIES.iter().copied().flatten()
}

/// The ids that [`make`] knows, in alphabetical order.
pub fn list_envs() -> Vec<&'static str> {
    let mut ids: Vec<_> = entries().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids
}

/// One environment by its id, without a pool around it: no time limit, no automatic reset.
///
/// Fails for an unknown id, and then names the nearest ones.
pub fn make(id: &str) -> Result<Box<dyn Env>> {
    match entries().find(|(name, _)| *name == id) {
        Some((name, make)) => make(name),
        None => {
            let all = list_envs();
            let count = all.len();
            Err(Error::Env(format!(
                "unknown environment \"{id}\"; the nearest are {}; list_envs() has all {count}",
                nearest(id, all)
            )))
        }
    }
}

/// What the environment `id` promises. Fails as [`make`] does.
pub fn spec(id: &str) -> Result<EnvSpec> {
    Ok(make(id)?.spec())
}

impl EnvPool {
    /// A pool of the registered environment `id`.
    ///
    /// Fails for an unknown id and for options that make no sense.
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
        EnvPool::parallel(|_| make(id), options)
    }
}
