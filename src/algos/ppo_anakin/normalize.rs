//! Normalisation of observations and rewards: the wrappers of PureJaxRL's `ppo_continuous_action.py`.

use crate::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use crate::tree::Tree;
use crate::{DType, Tensor};

/// Statistics that observations and rewards are normalised with.
#[derive(Debug, Clone, Tree)]
pub struct Normalizers<T> {
    /// Running statistics of the observations.
    pub obs: RunningMeanStd<T>,
    /// Running statistics of the rewards, and the discounted returns so far.
    pub reward: NormalizeRewardState<T>,
}

/// Observations `[N, obs_size]` to act on, and the statistics that they are normalised with, if any.
pub type Observed<T> = (T, Option<Normalizers<T>>);

/// `NormalizeVecObservation`, which does not clip.
const OBSERVATIONS: NormalizeObservation =
    NormalizeObservation { epsilon: 1e-8, clip: f64::INFINITY };

/// `NormalizeVecReward`, which does not clip.
fn rewards(gamma: f64) -> NormalizeReward {
    NormalizeReward { gamma, epsilon: 1e-8, clip: f64::INFINITY }
}

/// Observations `[.., obs_size]` normalised with the statistics as they are.
pub(super) fn apply(obs: Tensor, stats: &RunningMeanStd<Tensor>) -> Tensor {
    OBSERVATIONS.apply(obs.to(DType::F32), stats)
}

/// The first observations `[N, obs_size]`, normalised, and the statistics with them.
pub(super) fn begin(obs: Tensor, gamma: f64) -> Observed<Tensor> {
    let stats = RunningMeanStd::new([obs.dim(1)], DType::F32);
    let reward = rewards(gamma).init([obs.dim(0)], DType::F32);
    let (obs, stats) = OBSERVATIONS.step(obs.to(DType::F32), stats);
    (obs, Some(Normalizers { obs: stats, reward }))
}

impl Normalizers<Tensor> {
    /// Takes in one step of all environments, its observations `[N, obs_size]` and rewards `f32[N]`, of
    /// which `dones: bool[N]` ended an episode; both normalised.
    pub(super) fn step(
        self,
        obs: Tensor,
        reward: Tensor,
        dones: Tensor,
        gamma: f64,
    ) -> (Tensor, Tensor, Normalizers<Tensor>) {
        let (obs, stats) = OBSERVATIONS.step(obs.to(DType::F32), self.obs);
        let (reward, state) = rewards(gamma).step(reward, dones, self.reward);
        (obs, reward, Normalizers { obs: stats, reward: state })
    }
}
