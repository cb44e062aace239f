//! Rollouts, and what is learned from of them.

use super::{bootstrap_truncated, explained_variance, flat, gae};
use crate::envs::{Handle, XlaPool};
use crate::random::Key;
use crate::rl::Games;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// One rollout as the environments gave it; T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, ..]`, in the environment's type.
    pub obs: T,
    /// `[T, N, ..]`: as the policy drew them.
    pub actions: T,
    /// `f32[T, N]`
    pub rewards: T,
    /// `f32[T, N]`: 1 where the step ended its episode, one way or the other.
    pub ends: T,
    /// `[N, ..]`: what follows the last step.
    pub next_obs: T,
}

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, ..]`, in the environment's type.
    pub obs: T,
    /// `[B, ..]`
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[B]`
    pub advantages: T,
    /// `f32[B]`
    pub returns: T,
    /// `f32[B]`: values by the critic that acted.
    pub values: T,
}

impl Rollout<Tensor> {
    /// The samples, and the explained variance of the values.
    ///
    /// `acted` is what the policy and the critic said, `f32[T, N]`, and `next_value: f32[N]` the value
    /// of `next_obs`; the discounts are `gamma` and `lambda` of [`gae`].
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

/// What the policy and the critic said in a rollout; `f32[T, N]`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Acted<T> {
    /// Log probabilities of the actions.
    pub logprobs: T,
    /// Values of the observations.
    pub values: T,
}

/// A rollout, and what was said in it.
pub type Played<T> = (Rollout<T>, Acted<T>);

/// What an agent does with observations `[N, ..]`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Act<T> {
    /// `[N, ..]`, as the environments take it.
    pub action: T,
    /// `f32[N]`: its log probability.
    pub logprob: T,
    /// `f32[N]`: the value of the observation.
    pub value: T,
}

/// The environments between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `[N, ..]`, in the environment's type.
    pub obs: T,
    /// The randomness to come.
    pub key: Key<T>,
}

/// `steps` steps of all environments, in one loop of the program. `act` draws with its key.
///
/// With `bootstrap`, gamma and the value function, rewards of truncated steps have the value of the
/// final observation in them, as [`bootstrap_truncated`] says.
#[track_caller]
pub fn play(
    envs: &XlaPool,
    playing: Playing<Tensor>,
    steps: usize,
    act: impl Fn(Tensor, Key<Tensor>) -> Act<Tensor>,
    bootstrap: Option<(f64, &dyn Fn(Tensor) -> Tensor)>,
) -> (Playing<Tensor>, Played<Tensor>, Games<Tensor>) {
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
        let games = Games::of(&step);
        let next = Playing { handle, obs: step.obs, key };
        (next, (obs, action, logprob, value, reward, end, games))
    };
    let (playing, told) = scan_with(turn, playing, (), ScanOptions::length(steps));
    let (obs, actions, logprobs, values, rewards, ends, games) = told;
    let rollout = Rollout { obs, actions, rewards, ends, next_obs: playing.obs };
    (playing, (rollout, Acted { logprobs, values }), games)
}
