//! Output layer of a policy, for discrete or continuous actions.

use super::init::orthogonal;
use crate::distributions::{ActionDistribution, Categorical, DiagNormal};
use crate::nn::init::Init;
use crate::nn::layers::Dense;
use crate::random::Key;
use crate::spaces::ActionKind;
use crate::trace::ops::zeros;
use crate::trace::tensor::op;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Layer that maps features to an [`ActionDistribution`]: logits, or the means of normal
/// distributions whose standard deviations do not depend on the state (CleanRL's
/// `ppo_continuous_action`).
#[derive(Debug, Clone, Tree)]
pub struct PolicyHead<T> {
    /// Layer from features to logits or means.
    pub layer: Dense<T>,
    /// `f32[size]`: logarithms of the standard deviations, for continuous actions.
    pub log_std: Option<T>,
}

impl PolicyHead<Tensor> {
    /// Initializes a head with a small kernel, so that the initial policy is nearly uniform.
    #[op("PolicyHead::init")]
    pub fn init(key: Key<Tensor>, features: usize, kind: ActionKind) -> PolicyHead<Tensor> {
        let kernel: Init = orthogonal(0.01);
        PolicyHead {
            layer: Dense::init(key, features, kind.num_outputs(), kernel),
            log_std: match kind {
                ActionKind::Discrete { .. } => None,
                ActionKind::Continuous { size } => Some(zeros([size], DType::F32)),
            },
        }
    }

    /// Returns the distributions of actions for features `f32[B, features]`.
    #[op("PolicyHead::apply")]
    pub fn apply(&self, features: Tensor) -> ActionDistribution {
        let outputs = self.layer.apply(features);
        match self.log_std {
            None => ActionDistribution::Discrete(Categorical::new(outputs)),
            Some(log_std) => {
                let std = log_std.exp().broadcast_to(outputs.shape());
                ActionDistribution::Continuous(DiagNormal::new(outputs, std))
            }
        }
    }
}
