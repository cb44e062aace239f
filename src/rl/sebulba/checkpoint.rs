//! Checkpoints of a run of actors and a learner.
//!
//! A checkpoint lies between two updates. After update k it holds the learner's state, the
//! parameters with which rollout k + 1 is made, and every actor's state after rollout k, so that a
//! resumed run makes the rollouts and updates of an uninterrupted one.

use super::rollout::EnvState;
use crate::Array;
use crate::envs::{Camera, EnvSpec, XlaPool};
use crate::error::Result;
use crate::random::Key;
use crate::rl::checkpoint::saved::Envs;
use crate::tree::{self, Tree};

/// State that the learner and the actors carry from one update to the next.
#[derive(Debug, Clone, Tree)]
#[tree(nested = S, nested = P)]
pub(super) struct Boundary<T, S, P> {
    /// The learner's train state; `None` if it is copied when a checkpoint is due.
    pub train: Option<S>,
    /// Parameters with which the next rollout is made, unless it waits for newer ones.
    pub behavior_policy: P,
    /// The actors' states; empty in a run of several processes.
    pub actors: Vec<ActorState<T>>,
}

/// State of an actor between two rollouts, except its environments.
#[derive(Debug, Clone, Tree)]
pub struct ActorState<T> {
    /// `[N, ..]`: the last observations.
    pub obs: T,
    /// `f32[N]`: the last rewards.
    pub reward: T,
    /// `f32[N]`: 1 where the last step ended an episode.
    pub done: T,
    /// `u32[2]`: the data of the PRNG key.
    pub key: T,
}

/// State of an actor after a rollout, on the host.
#[derive(Debug, Clone)]
pub struct ActorSnapshot {
    /// Observations, rewards and key.
    pub state: ActorState<Array>,
    /// Saved states of its environments.
    pub envs: Vec<Vec<u8>>,
}

impl ActorState<Array> {
    /// Copies the state to the host.
    ///
    /// # Errors
    /// Returns errors of the rollout that computed it.
    pub fn of(env_state: &EnvState<Array>) -> Result<ActorState<Array>> {
        let data = tree::leaves(&env_state.key);
        on_host(&ActorState {
            obs: env_state.obs.clone(),
            reward: env_state.reward.clone(),
            done: env_state.done.clone(),
            key: data[0].clone(),
        })
    }

    /// Returns `env_state` with this state; it keeps its environment handle.
    pub fn resume(self, env_state: EnvState<Array>) -> EnvState<Array> {
        let ActorState { obs, reward, done, key } = self;
        EnvState { handle: env_state.handle, obs, reward, done, key: Key::from_data(key) }
    }
}

impl ActorSnapshot {
    /// Saves the state of the actor that steps pool `actor` of `pools`.
    ///
    /// # Errors
    /// Returns errors of environments that cannot save themselves.
    pub fn of(pools: &XlaPool, actor: usize, env_state: &EnvState<Array>) -> Result<ActorSnapshot> {
        let state = ActorState::of(env_state)?;
        let envs = (&mut *pools.pool(actor)).states()?;
        Ok(ActorSnapshot { state, envs })
    }
}

/// Copies every leaf to the host, where no later call reuses its memory.
///
/// # Errors
/// Returns errors of the computation that made a leaf.
pub(super) fn on_host<M: Tree<Array>>(tree: &M) -> Result<M> {
    let leaves = tree::leaves(tree).into_iter();
    let leaves = leaves.map(|x| Ok(Array::from(x.to_literal()?.dense())));
    Ok(tree::replace(tree, leaves.collect::<Result<Vec<_>>>()?))
}

/// Environments of all actors, for saving to and restoring from a checkpoint.
pub(super) struct ActorEnvs<'a> {
    /// The environments, one pool for each actor.
    pub pools: &'a XlaPool,
    /// Saved states of the environments, by actor.
    pub states: &'a [Vec<Vec<u8>>],
}

impl Envs for ActorEnvs<'_> {
    fn states(self) -> Result<Vec<Vec<u8>>> {
        Ok(self.states.concat())
    }

    fn put_back(self, mut states: &[&[u8]]) -> Result<()> {
        // A run of several processes saves no environments.
        for actor in 0..self.pools.num_pools() {
            let pool = &mut *self.pools.pool(actor);
            if states.is_empty() {
                break;
            }
            let (its, rest) = states.split_at(pool.num_envs().min(states.len()));
            pool.put_back(its)?;
            states = rest;
        }
        Ok(())
    }

    fn renders(&mut self) -> Result<bool> {
        let mut pools = self.pools;
        pools.renders()
    }

    fn film(&mut self, camera: Box<dyn Camera>) -> Result<()> {
        let mut pools = self.pools;
        pools.film(camera)
    }

    fn spec(&self) -> Option<EnvSpec> {
        Some(self.pools.spec().clone())
    }
}
