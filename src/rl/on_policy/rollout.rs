//! Rollouts and the training samples made from them.

use super::{bootstrap_truncated, explained_variance, flat, gae};
use crate::envs::{Handle, XlaPool};
use crate::random::Key;
use crate::rl::EpisodeStats;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, ..]`: observations, in the environment's dtype.
    pub obs: T,
    /// `[T, N, ..]`: actions as sampled from the policy.
    pub actions: T,
    /// `f32[T, N]`: rewards.
    pub rewards: T,
    /// `f32[T, N]`: 1 where the step terminated or truncated its episode.
    pub ends: T,
    /// `[N, ..]`: observations after the last step.
    pub next_obs: T,
}

/// Training samples made from a rollout, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, ..]`: observations, in the environment's dtype.
    pub obs: T,
    /// `[B, ..]`: actions.
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[B]`: advantages.
    pub advantages: T,
    /// `f32[B]`: returns.
    pub returns: T,
    /// `f32[B]`: values by the critic that acted.
    pub values: T,
}

impl Rollout<Tensor> {
    /// Returns the training samples, and the explained variance of the values.
    ///
    /// `acted` holds the log probabilities and values of the rollout, `f32[T, N]`, and `next_value:
    /// f32[N]` the values of `next_obs`; `gamma` and `lambda` are those of [`gae`].
    #[track_caller]
    pub fn samples(
        self,
        acted: Acted<Tensor>,
        next_value: Tensor,
        discounts: (f64, f64),
    ) -> (Samples<Tensor>, Tensor) {
        let Acted { logprobs, values } = acted;
        let (advantages, returns) = gae(self.rewards, self.ends, values, next_value, discounts);
        let samples = Samples {
            obs: flat(self.obs),
            actions: flat(self.actions),
            logprobs: flat(logprobs),
            advantages: flat(advantages),
            returns: flat(returns),
            values: flat(values),
        };
        (samples, explained_variance(values, returns))
    }
}

/// Outputs of the policy and the critic in a rollout; `f32[T, N]`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Acted<T> {
    /// Log probabilities of the actions.
    pub logprobs: T,
    /// Values of the observations.
    pub values: T,
}

/// A rollout, with the outputs of the policy and the critic in it.
pub type Played<T> = (Rollout<T>, Acted<T>);

/// Outputs of an agent for observations `[N, ..]`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Act<T> {
    /// `[N, ..]`: actions for the environments.
    pub action: T,
    /// `f32[N]`: log probabilities of the actions.
    pub logprob: T,
    /// `f32[N]`: values of the observations.
    pub value: T,
}

/// State of the environments between steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// `[N, ..]`: last observations, in the environment's dtype.
    pub obs: T,
    /// PRNG key.
    pub key: Key<T>,
}

/// Collects a rollout of `steps` steps of all environments in one compiled loop. `act` samples
/// actions with its key.
///
/// With `bootstrap`, gamma and the value function, the rewards of truncated steps include the value
/// of the final observation, as described at [`bootstrap_truncated`].
#[track_caller]
pub fn play(
    envs: &XlaPool,
    playing: Playing<Tensor>,
    steps: usize,
    act: impl Fn(Tensor, Key<Tensor>) -> Act<Tensor>,
    bootstrap: Option<(f64, &dyn Fn(Tensor) -> Tensor)>,
) -> (Playing<Tensor>, Played<Tensor>, EpisodeStats<Tensor>) {
    let turn = |Playing { handle, obs, key }: Playing<Tensor>, ()| {
        let (key, draw) = key.split();
        let Act { action, logprob, value } = act(obs, draw);
        let (handle, step) = envs.step(handle, action);
        let end = step.done().to(DType::F32);
        let reward = match bootstrap {
            None => step.reward,
            Some((gamma, value)) => {
                let (cut, last) = (step.truncated_only(), envs.final_obs_of(&step));
                bootstrap_truncated(step.reward, cut, last, gamma, value)
            }
        };
        let games = EpisodeStats::of(&step);
        let next = Playing { handle, obs: step.obs, key };
        (next, (obs, action, logprob, value, reward, end, games))
    };
    let (playing, told) = scan_with(turn, playing, (), ScanOptions::length(steps));
    let (obs, actions, logprobs, values, rewards, ends, games) = told;
    let rollout = Rollout { obs, actions, rewards, ends, next_obs: playing.obs };
    (playing, (rollout, Acted { logprobs, values }), games)
}
