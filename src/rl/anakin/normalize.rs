//! Normalization of observations and rewards: the wrappers of PureJaxRL's
//! `ppo_continuous_action.py`.

use crate::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use crate::rl::sweep::Scalar;
use crate::tree::Tree;
use crate::{DType, Tensor};

/// Running statistics that normalize observations and rewards.
#[derive(Debug, Clone, Tree)]
pub struct Normalizers<T> {
    /// Running statistics of the observations.
    pub obs: RunningMeanStd<T>,
    /// Running statistics of the rewards, and the discounted returns so far.
    pub reward: NormalizeRewardState<T>,
}

/// `NormalizeVecObservation`, which does not clip.
const OBSERVATIONS: NormalizeObservation =
    NormalizeObservation { epsilon: 1e-8, clip: f64::INFINITY };

/// `NormalizeVecReward`, which does not clip. Its discount factor is given to each step.
const REWARDS: NormalizeReward =
    NormalizeReward { gamma: 0.99, epsilon: 1e-8, clip: f64::INFINITY };

/// Normalizes observations `[.., obs_size]` with the statistics, without updating them.
pub fn apply(obs: Tensor, stats: &RunningMeanStd<Tensor>) -> Tensor {
    OBSERVATIONS.apply(obs.to(DType::F32), stats)
}

/// Initializes the statistics with the first observations `[N, obs_size]`; returns those
/// normalized, with the statistics.
pub fn init(obs: Tensor) -> (Tensor, Option<Normalizers<Tensor>>) {
    let stats = RunningMeanStd::new([obs.dim(1)], DType::F32);
    let reward = REWARDS.init([obs.dim(0)], DType::F32);
    let (obs, stats) = OBSERVATIONS.step(obs.to(DType::F32), stats);
    (obs, Some(Normalizers { obs: stats, reward }))
}

impl Normalizers<Tensor> {
    /// Updates the statistics with one step of all environments, its observations `[N, obs_size]`
    /// and rewards `f32[N]`; `dones: bool[N]` is true where the step ended an episode. Returns both
    /// normalized, with the new statistics.
    pub fn step(
        self,
        obs: Tensor,
        reward: Tensor,
        dones: Tensor,
        gamma: Scalar,
    ) -> (Tensor, Tensor, Normalizers<Tensor>) {
        let (obs, stats) = OBSERVATIONS.step(obs.to(DType::F32), self.obs);
        let (reward, state) = REWARDS.step_discounted(reward, dones, self.reward, gamma);
        (obs, reward, Normalizers { obs: stats, reward: state })
    }
}
