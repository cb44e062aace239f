//! Rollouts of an actor.

use crate::envs::{Handle, XlaPool};
use crate::rl::rollouts::truncation::bootstrap_truncated;
use crate::rl::run::episodes::EpisodeStats;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{arange, concatenate, zeros};
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, vmap};

use super::agent::Agent;
use super::config::UpdateConfig;
use super::options::SebulbaOptions;
use super::reduce::Reduce;

/// State of an actor's environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// `[N, ..]`: the last observations.
    pub obs: T,
    /// `f32[N]`: the rewards of the last step.
    pub reward: T,
    /// `f32[N]`: 1 where the last step ended an episode.
    pub done: T,
    /// PRNG key; it is the same in every actor.
    pub key: Key<T>,
}

/// Results of a rollout of an actor: the next state, a part for each learner device, and the episodes.
pub type RolloutResults<R> = (EnvState<Tensor>, Vec<R>, EpisodeStats<Tensor>);

/// Rollout of N environments over T steps.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, ..]`: observations, in the environment's dtype.
    pub obs: T,
    /// `i32[T, N]` or `f32[T, N, size]`: actions.
    pub actions: T,
    /// `f32[T, N]`: log probabilities under the acting policy.
    pub logprobs: T,
    /// `f32[T, N]`: values by the acting critic.
    pub values: T,
    /// `f32[T, N]`: rewards of the actions.
    pub rewards: T,
    /// `f32[T, N]`: 1 where the action ended the episode.
    pub dones: T,
    /// `[N, ..]`: observations after the last action.
    pub next_obs: T,
    /// `f32[N]`: rewards of the step before the first one of the rollout.
    pub last_reward: T,
    /// `f32[N]`: 1 where that step ended an episode.
    pub last_done: T,
    /// `i32[N]`: numbers of the environments in the whole run.
    pub env_ids: T,
}

impl Rollout<Tensor> {
    /// Concatenates the rollouts of several actors along the axis of environments.
    #[track_caller]
    pub fn concatenate(parts: Vec<Rollout<Tensor>>) -> Rollout<Tensor> {
        let [part] = parts[..] else {
            let leaves: Vec<Vec<Tensor>> = parts.iter().map(tree::leaves).collect();
            let axes = parts[0].axes();
            let joined = (0..axes.len()).map(|k| {
                let column: Vec<Tensor> = leaves.iter().map(|leaves| leaves[k]).collect();
                concatenate(&column, axes[k])
            });
            return tree::replace(&parts[0], joined.collect::<Vec<_>>());
        };
        part
    }

    /// Returns the axis of environments of each leaf.
    fn axes(&self) -> [isize; 10] {
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    }

    /// Splits the rollout into equal shares of the environments, in order.
    #[track_caller]
    fn split(self, parts: usize) -> Vec<Rollout<Tensor>> {
        if parts == 1 {
            return vec![self];
        }
        let each = self.env_ids.dim(0) / parts;
        let axes = self.axes();
        let share = |part: usize| {
            let leaves = tree::leaves(&self).into_iter().zip(axes);
            let leaves = leaves.map(|(x, axis)| x.slice_axis(axis, part * each, (part + 1) * each));
            tree::replace(&self, leaves.collect::<Vec<_>>())
        };
        (0..parts).map(share).collect()
    }
}

/// Resets an actor's environments.
#[track_caller]
pub(crate) fn reset_envs(
    envs: &XlaPool,
    handle: Handle<Tensor>,
    key: Key<Tensor>,
) -> EnvState<Tensor> {
    let (handle, first) = envs.reset(handle);
    let none = zeros([envs.rows()], DType::F32);
    EnvState { handle, obs: first.obs, reward: none, done: none, key }
}

/// Derives a key for each environment from the shared one.
#[track_caller]
pub(crate) fn keys_of(key: Key<Tensor>, env_ids: Tensor) -> Key<Tensor> {
    let data = key.into_data();
    vmap(|id: Tensor| Key::from_data(data).fold_in(id))(env_ids)
}

/// Collects a rollout of an actor-critic agent, with the environments stepped inside the compiled
/// loop, and splits it into a share for each of the learner devices. `first_env`, `i32[]`, is the
/// number of the first environment. With `bootstrap_truncated` of `config`, the rewards of truncated
/// steps include the discounted value of the final observation by the acting critic.
#[track_caller]
pub fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    first_env: Tensor,
    (options, config): (&SebulbaOptions, UpdateConfig),
) -> RolloutResults<Rollout<Tensor>> {
    let (exact, learners) = (options.deterministic, options.learner_device_ids.len());
    let env_ids = arange(envs.rows(), DType::I32) + first_env;
    let (last_reward, last_done) = (env_state.reward, env_state.done);
    let env_step = |env_state: EnvState<Tensor>, ()| {
        let EnvState { handle, obs, key, .. } = env_state;
        let (key, action_key) = key.split();
        let keys = keys_of(action_key, env_ids);
        let (action, logprob, value) = Reduce::rows(exact, (obs, keys), |(obs, keys)| {
            let (policy, value) = agent.apply(obs);
            let action = policy.sample_each(keys);
            (action, policy.log_prob(action), value)
        });
        let (handle, step) = envs.step(handle, action);
        let done = step.done().to(DType::F32);
        let mut reward = step.reward;
        if let Some(gamma) = config.bootstrap_truncated {
            let final_obs = envs.final_obs_of(&step);
            let value = |obs| Reduce::rows(exact, obs, |obs| agent.value(obs));
            reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, gamma, value);
        }
        let next = EnvState { handle, obs: step.obs, reward, done, key };
        (next, (obs, action, logprob, value, reward, done, EpisodeStats::from_step(&step)))
    };
    let count = ScanOptions::length(config.num_steps);
    let (env_state, outputs) = scan_with(env_step, env_state, (), count);
    let (obs, actions, logprobs, values, rewards, dones, episodes) = outputs;
    let next_obs = env_state.obs;
    let rollout = Rollout {
        obs,
        actions,
        logprobs,
        values,
        rewards,
        dones,
        next_obs,
        last_reward,
        last_done,
        env_ids,
    };
    (env_state, rollout.split(learners), episodes)
}
