//! The environments of an algorithm's settings, and the sizes of its networks for them; environments
//! that do not fit the algorithm are refused.

use crate::envs::{EnvPool, PoolOptions};
use crate::error::Result;

use super::Algorithm;
use super::images::Images;
use super::spaces::{self, Bounds};

fn options<A: Algorithm>(args: &A, num_envs: usize, seed: u64) -> PoolOptions {
    let num_threads = args.options().num_threads;
    PoolOptions { num_envs, num_threads, seed, ..Default::default() }
}

/// Vectors to discrete actions: how many numbers an observation has, and how many actions there are.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for other environments, and what they say.
pub fn discrete<A: Algorithm>(
    args: &A,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, usize, usize)> {
    let pool = EnvPool::make(args.env_id(), options(args, num_envs, seed))?;
    let obs_size = spaces::vector(A::NAME, pool.spec())?;
    let num_actions = spaces::choices(A::NAME, pool.spec())?;
    Ok((pool, obs_size, num_actions))
}

/// Vectors to continuous actions, one environment: how many numbers an observation has, and the
/// bounds of the actions.
///
/// # Errors
/// As [`discrete`].
pub fn continuous<A: Algorithm>(args: &A, seed: u64) -> Result<(EnvPool, usize, Bounds)> {
    let options = PoolOptions { num_threads: 1, ..options(args, 1, seed) };
    let pool = EnvPool::make(args.env_id(), options)?;
    let obs_size = spaces::vector(A::NAME, pool.spec())?;
    let bounds = spaces::bounds(A::NAME, pool.spec())?;
    Ok((pool, obs_size, bounds))
}

/// Images to discrete actions, as [`Images::pool`] makes them: what they show, and how many actions
/// there are.
///
/// # Errors
/// As [`discrete`].
pub fn images<A: Algorithm>(
    args: &A,
    num_envs: usize,
    seed: u64,
) -> Result<(EnvPool, Images, usize)> {
    let (pool, images) = Images::pool(A::NAME, args.env_id(), options(args, num_envs, seed))?;
    let num_actions = spaces::choices(A::NAME, pool.spec())?;
    Ok((pool, images, num_actions))
}
