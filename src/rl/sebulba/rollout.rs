//! What an actor does with its environments.

use crate::envs::{Handle, XlaPool};
use crate::rl::Games;
use crate::rl::on_policy::bootstrap_truncated;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{arange, concatenate, zeros};
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, vmap};

use super::agent::Agent;
use super::reduce::Reduce;

/// An actor's environments between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `[N, ..]`
    pub obs: T,
    /// `f32[N]`: the reward of the last step.
    pub reward: T,
    /// `f32[N]`: 1 where the last step ended an episode.
    pub end: T,
    /// The randomness to come: the same in every actor.
    pub key: Key<T>,
}

/// A rollout of N environments, T steps each.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, ..]`, in the environment's type.
    pub obs: T,
    /// `i32[T, N]` or `f32[T, N, size]`.
    pub actions: T,
    /// `f32[T, N]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[T, N]`: values by the critic that acted.
    pub values: T,
    /// `f32[T, N]`: rewards of the actions.
    pub rewards: T,
    /// `f32[T, N]`: 1 where the action ended the episode.
    pub ends: T,
    /// `[N, ..]`: what follows the last action.
    pub next_obs: T,
    /// `f32[N]`: the reward of the step before the first one.
    pub last_reward: T,
    /// `f32[N]`: 1 where that step ended an episode.
    pub last_end: T,
    /// `i32[N]`: the environments' numbers among all of the run.
    pub env_ids: T,
}

impl Rollout<Tensor> {
    /// The rollouts of several actors as one.
    #[track_caller]
    pub fn joined(parts: Vec<Rollout<Tensor>>) -> Rollout<Tensor> {
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

    /// The axis of environments of each leaf.
    fn axes(&self) -> [isize; 10] {
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]
    }

    /// Equal shares of the environments, in order.
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

/// Starts an actor's environments.
#[track_caller]
pub fn begin(envs: &XlaPool, handle: Handle<Tensor>, key: Key<Tensor>) -> Playing<Tensor> {
    let (handle, first) = envs.reset(handle);
    let none = zeros([envs.rows()], DType::F32);
    Playing { handle, obs: first.obs, reward: none, end: none, key }
}

/// A key for each environment, from one for all.
#[track_caller]
pub fn keys_of(key: Key<Tensor>, env_ids: Tensor) -> Key<Tensor> {
    let data = key.into_data();
    vmap(|id: Tensor| Key::from_data(data).fold_in(id))(env_ids)
}

/// A whole rollout of `num_steps` steps with the environments in the loop, in shares for so many
/// learner devices; `first_env`, `i32[]`, is the number of the first environment. With `bootstrap`, the
/// discount factor, rewards of truncated steps have the value of the final observation in them, by the
/// critic that acts.
#[track_caller]
pub fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    first_env: Tensor,
    (num_steps, learners, exact): (usize, usize, bool),
    bootstrap: Option<f64>,
) -> (Playing<Tensor>, Vec<Rollout<Tensor>>, Games<Tensor>) {
    let env_ids = arange(envs.rows(), DType::I32) + first_env;
    let (last_reward, last_end) = (playing.reward, playing.end);
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, key, .. } = playing;
        let (key, draw) = key.split();
        let keys = keys_of(draw, env_ids);
        let (action, logprob, value) = Reduce::rows(exact, (obs, keys), |(obs, keys)| {
            let (policy, value) = agent.apply(obs);
            let action = policy.sample_each(keys);
            (action, policy.log_prob(action), value)
        });
        let (handle, step) = envs.step(handle, action);
        let end = step.done().to(DType::F32);
        let mut reward = step.reward;
        if let Some(gamma) = bootstrap {
            let (cut, last) = (step.truncated_only(), envs.final_obs_of(&step));
            let value = |obs| Reduce::rows(exact, obs, |obs| agent.value(obs));
            reward = bootstrap_truncated(reward, cut, last, gamma, value);
        }
        let next = Playing { handle, obs: step.obs, reward, end, key };
        (next, (obs, action, logprob, value, reward, end, Games::of(&step)))
    };
    let (playing, told) = scan_with(turn, playing, (), ScanOptions::length(num_steps));
    let (obs, actions, logprobs, values, rewards, ends, games) = told;
    let next_obs = playing.obs;
    let rollout = Rollout {
        obs,
        actions,
        logprobs,
        values,
        rewards,
        ends,
        next_obs,
        last_reward,
        last_end,
        env_ids,
    };
    (playing, rollout.split(learners), games)
}
