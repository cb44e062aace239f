//! Distributions of discrete or continuous actions, for algorithms that support both.

use super::{Categorical, DiagNormal};
use crate::trace::ops::IndexMode;
use crate::{DType, Key, Tensor, random, vmap};

/// Distributions of actions, one for each of B observations.
#[derive(Debug, Clone, Copy)]
pub enum ActionDistribution {
    /// Distributions over discrete actions, `i32[B]`.
    Discrete(Categorical<Tensor>),
    /// Distributions over continuous actions, `f32[B, size]`.
    Continuous(DiagNormal<Tensor>),
}

impl ActionDistribution {
    /// Samples an action for each observation, with a key each, `u32[B, 2]`: a sample does not depend
    /// on the other observations.
    #[track_caller]
    pub fn sample_each(&self, keys: Key<Tensor>) -> Tensor {
        match self {
            ActionDistribution::Discrete(policy) => {
                let draw =
                    |(key, logits): (Key<Tensor>, Tensor)| random::categorical(key, logits, -1);
                vmap(draw)((keys, policy.logits))
            }
            ActionDistribution::Continuous(policy) => {
                let size = policy.mode().dim(-1);
                let noise = vmap(|key: Key<Tensor>| random::normal(key, [size], DType::F32))(keys);
                policy.mode() + noise * policy.normal.std
            }
        }
    }

    /// Returns the distributions of the observations with these indices, `i32[K]`.
    #[track_caller]
    pub fn gather(&self, indices: Tensor) -> ActionDistribution {
        let take = |x: Tensor| x.take_mode(indices, 0, IndexMode::Clip);
        match self {
            ActionDistribution::Discrete(policy) => {
                ActionDistribution::Discrete(Categorical::new(take(policy.logits)))
            }
            ActionDistribution::Continuous(policy) => {
                let normal = &policy.normal;
                ActionDistribution::Continuous(DiagNormal::new(take(normal.mean), take(normal.std)))
            }
        }
    }

    /// Returns the most likely actions.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        match self {
            ActionDistribution::Discrete(policy) => policy.mode(),
            ActionDistribution::Continuous(policy) => policy.mode(),
        }
    }

    /// Returns the log probabilities or log densities of actions, `f32[B]`.
    #[track_caller]
    pub fn log_prob(&self, actions: Tensor) -> Tensor {
        match self {
            ActionDistribution::Discrete(policy) => policy.log_prob(actions),
            ActionDistribution::Continuous(policy) => policy.log_prob(actions),
        }
    }

    /// Returns the entropies, `f32[B]`.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        match self {
            ActionDistribution::Discrete(policy) => policy.entropy(),
            ActionDistribution::Continuous(policy) => policy.entropy(),
        }
    }
}
