//! Rollouts for continuous actions, as in CleanRL's `ppo_continuous_action.py`: observations and
//! rewards are normalized by running statistics, and actions are clipped to their bounds.

use super::{Rollout, bootstrap_truncated};
use crate::envs::{Handle, XlaPool};
use crate::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use crate::random::Key;
use crate::rl::EpisodeStats;
use crate::rl::spaces::Bounds;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Normalization of observations.
pub const OBSERVATIONS: NormalizeObservation = NormalizeObservation { epsilon: 1e-8, clip: 10.0 };

/// Running statistics that normalize observations and rewards.
#[derive(Debug, Clone, Tree)]
pub struct Normalizers<T> {
    /// Statistics of the observations.
    pub obs: RunningMeanStd<T>,
    /// Statistics of the rewards, with the discounted returns so far.
    pub reward: NormalizeRewardState<T>,
}

fn rewards(gamma: f64) -> NormalizeReward {
    NormalizeReward { gamma, ..NormalizeReward::default() }
}

impl Normalizers<Tensor> {
    /// Creates the initial statistics, in `f64`.
    #[track_caller]
    pub fn new(obs_size: usize, num_envs: usize, gamma: f64) -> Normalizers<Tensor> {
        Normalizers {
            obs: RunningMeanStd::new([obs_size], DType::F64),
            reward: rewards(gamma).init([num_envs], DType::F64),
        }
    }
}

/// State of the environments between steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// Statistics that normalize observations and rewards.
    pub normalizers: Normalizers<T>,
    /// `f32[N, obs_size]`: last observations, normalized.
    pub obs: T,
    /// PRNG key.
    pub key: Key<T>,
}

impl Playing<Tensor> {
    /// Resets the environments.
    #[track_caller]
    pub fn begin(
        envs: &XlaPool,
        handle: Handle<Tensor>,
        mut normalizers: Normalizers<Tensor>,
        key: Key<Tensor>,
    ) -> Playing<Tensor> {
        let (handle, first) = envs.reset(handle);
        let (obs, stats) = OBSERVATIONS.step(first.obs.to(DType::F32), normalizers.obs);
        normalizers.obs = stats;
        Playing { handle, normalizers, obs, key }
    }

    /// Collects a rollout of `steps` steps of all environments in one compiled loop.
    ///
    /// `draw` samples actions from the policy. With `value`, the rewards of truncated steps include
    /// the value of the final observation, as described at [`bootstrap_truncated`].
    #[track_caller]
    pub fn play(
        self,
        envs: &XlaPool,
        (steps, gamma): (usize, f64),
        bounds: &Bounds,
        draw: impl Fn(Tensor, Key<Tensor>) -> Tensor,
        value: Option<&dyn Fn(Tensor) -> Tensor>,
    ) -> (Playing<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
        let turn = |playing: Playing<Tensor>, ()| {
            let Playing { handle, normalizers, obs, key } = playing;
            let (key, random) = key.split();
            let action = draw(obs, random);
            // The environment gets the clipped action; the rollout keeps the sampled one.
            let (handle, told) = envs.step(handle, bounds.clip(action));
            let Normalizers { obs: stats, reward } = normalizers;
            let (next, stats) = OBSERVATIONS.step(told.obs.to(DType::F32), stats);
            let (mut gain, reward) = rewards(gamma).step(told.reward, told.terminated, reward);
            if let Some(value) = value {
                let last = envs.final_obs_of(&told).to(DType::F32);
                let last = OBSERVATIONS.apply(last, &stats);
                gain = bootstrap_truncated(gain, told.truncated_only(), last, gamma, value);
            }
            let row = (obs, action, gain, told.done().to(DType::F32), EpisodeStats::of(&told));
            let normalizers = Normalizers { obs: stats, reward };
            (Playing { handle, normalizers, obs: next, key }, row)
        };
        let (playing, told) = scan_with(turn, self, (), ScanOptions::length(steps));
        let (obs, actions, rewards, ends, games) = told;
        let rollout = Rollout { obs, actions, rewards, ends, next_obs: playing.obs };
        (playing, rollout, games)
    }
}
