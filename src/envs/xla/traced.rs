//! Environments of JAX as part of the compiled code that steps them.

use super::EnvStep;
use crate::array::Array;
use crate::envs::pool::EnvPool;
use crate::envs::pool::autoreset::Autoreset;
use crate::envs::pool::columns::TracedRows;
use crate::envs::programs::ProgramEnv;
use crate::envs::traced::{AutoReset, EpisodeState};
use crate::random::Key;
use crate::trace::ops::{where_, zeros_like};
use crate::trace::{DType, Shape, Tensor};
use crate::tree::Tree;
use crate::vmap;

/// Environments that reset in the same step, as a pool of them does.
#[derive(Debug)]
pub(super) struct TracedPool {
    env: AutoReset<ProgramEnv>,
    num_envs: usize,
    seed: u64,
}

/// States of the environments, and the key of their next step.
#[derive(Debug, Tree)]
pub(super) struct TracedStates<T> {
    /// Leaves `[N, ..]`.
    episodes: EpisodeState<T, Vec<T>>,
    key: Key<T>,
}

impl TracedPool {
    /// Returns the environments of a pool; `None` if only the pool can step them.
    pub(super) fn of(pool: &EnvPool) -> Option<TracedPool> {
        let options = pool.options();
        let whole = options.batch_size == options.num_envs;
        if !whole || options.autoreset != Autoreset::SameStep {
            return None;
        }
        let env =
            AutoReset::with_limit(pool.traced::<ProgramEnv>()?.clone(), options.max_episode_steps);
        // Pools that share a seed differ in the others.
        let place =
            [u64::from(options.process), u64::from(options.actor), options.first_env as u64];
        let seed = place.into_iter().fold(options.seed, |seed, x| {
            seed.wrapping_add(x.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(17)
        });
        Some(TracedPool { env, num_envs: options.num_envs, seed })
    }

    /// Returns states before the first reset.
    pub(super) fn states(&self) -> TracedStates<Array> {
        let column = |shape: &Shape| shape.with_axis(0, self.num_envs);
        let leaf = |ty: &crate::trace::TensorType| Array::zeros(&column(&ty.shape)[..], ty.dtype);
        let numbers = |dtype| Array::zeros([self.num_envs], dtype);
        TracedStates {
            episodes: EpisodeState {
                state: self.env.env.state_types().iter().map(leaf).collect(),
                elapsed: numbers(DType::I32),
                episode_return: numbers(DType::F32),
            },
            key: Key::new(self.seed),
        }
    }

    /// Starts all episodes.
    #[track_caller]
    pub(super) fn reset(
        &self,
        states: TracedStates<Tensor>,
        with_final_obs: bool,
    ) -> (TracedStates<Tensor>, EnvStep<Tensor>) {
        let [key, starts] = states.key.split_n();
        let (episodes, obs) = vmap(|key| self.env.reset(key))(starts.split_batch(self.num_envs));
        let rows = TracedRows::new(self.num_envs);
        let final_obs = with_final_obs.then(|| zeros_like(obs));
        let step = EnvStep::from_traced(obs, &rows, final_obs);
        (TracedStates { episodes, key }, step)
    }

    /// Steps all environments.
    #[track_caller]
    pub(super) fn step(
        &self,
        states: TracedStates<Tensor>,
        actions: Tensor,
        with_final_obs: bool,
    ) -> (TracedStates<Tensor>, EnvStep<Tensor>) {
        let [key, steps] = states.key.split_n();
        let step = |(episode, action, key)| self.env.step(episode, action, key);
        let next = vmap(step)((states.episodes, actions, steps.split_batch(self.num_envs)));
        let done = next.done();
        let final_obs = || {
            let shape = next.obs.shape();
            let axes: Vec<usize> =
                (0..shape.rank()).map(|i| if i == 0 { shape[0] } else { 1 }).collect();
            let done = done.reshape(axes).broadcast_to(shape);
            where_(done, next.final_obs, zeros_like(next.obs))
        };
        let rows = TracedRows {
            reward: next.reward,
            terminated: next.terminated,
            truncated: next.truncated,
            first: done,
            elapsed: next.episode_length,
            finished: done,
            episodic_return: where_(done, next.episode_return, zeros_like(next.episode_return)),
            episodic_length: where_(done, next.episode_length, zeros_like(next.episode_length)),
            ..TracedRows::new(self.num_envs)
        };
        let step = EnvStep::from_traced(next.obs, &rows, with_final_obs.then(final_obs));
        (TracedStates { episodes: next.episode, key }, step)
    }
}
