//! Policies for discrete and continuous actions.

use crate::distributions::{Categorical, DiagNormal};
use crate::envs::{EnvSpec, Space};
use crate::error::Result;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Init};
use crate::rl::spaces;
use crate::trace::ops::{IndexMode, zeros};
use crate::tree::Tree;
use crate::{DType, Key, Tensor, random, vmap};

/// Kind of action that a policy chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// One of this number of actions, `i32`.
    OneOf(usize),
    /// Vector of this number of elements, `f32`.
    Vector(usize),
}

impl Choice {
    /// Returns the kind of action of an environment.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for other action spaces; `algorithm` is the
    /// algorithm's name in the message.
    pub fn of(algorithm: &str, spec: &EnvSpec) -> Result<Choice> {
        match &spec.action {
            Space::Box { .. } => {
                spaces::bounds(algorithm, spec)?;
                Ok(Choice::Vector(spec.action.shape()[0]))
            }
            _ => Ok(Choice::OneOf(spaces::choices(algorithm, spec)?)),
        }
    }
}

/// Layer that maps features to a [`Policy`]: logits, or the means of normal distributions whose
/// standard deviations do not depend on the state (CleanRL's `ppo_continuous_action`).
#[derive(Debug, Clone, Tree)]
pub struct Head<T> {
    /// Layer from features to logits or means.
    pub layer: Dense<T>,
    /// `f32[size]`: logarithms of the standard deviations, for vectors.
    pub log_std: Option<T>,
}

impl Head<Tensor> {
    /// Initializes a head with a small kernel, so that the initial policy is nearly uniform.
    #[track_caller]
    pub fn init(key: Key<Tensor>, inputs: usize, choice: Choice) -> Head<Tensor> {
        let kernel: Init = orthogonal(0.01);
        match choice {
            Choice::OneOf(n) => Head { layer: Dense::init(key, inputs, n, kernel), log_std: None },
            Choice::Vector(size) => Head {
                layer: Dense::init(key, inputs, size, kernel),
                log_std: Some(zeros([size], DType::F32)),
            },
        }
    }

    /// Returns the policies of features `f32[B, inputs]`.
    #[track_caller]
    pub fn apply(&self, x: Tensor) -> Policy {
        let x = self.layer.apply(x);
        match self.log_std {
            None => Policy::OneOf(Categorical::new(x)),
            Some(log_std) => {
                let std = log_std.exp().broadcast_to(x.shape());
                Policy::Vector(DiagNormal::new(x, std))
            }
        }
    }
}

/// Distributions of actions, one for each of B rows.
#[derive(Debug, Clone, Copy)]
pub enum Policy {
    /// Distributions over discrete actions, `i32[B]`.
    OneOf(Categorical<Tensor>),
    /// Distributions over vectors, `f32[B, size]`.
    Vector(DiagNormal<Tensor>),
}

impl Policy {
    /// Samples one action per row, with a key for each row, `u32[B, 2]`: a row's sample does not
    /// depend on the other rows.
    #[track_caller]
    pub fn sample_each(&self, keys: Key<Tensor>) -> Tensor {
        match self {
            Policy::OneOf(policy) => {
                let draw =
                    |(key, logits): (Key<Tensor>, Tensor)| random::categorical(key, logits, -1);
                vmap(draw)((keys, policy.logits))
            }
            Policy::Vector(policy) => {
                let size = policy.mode().dim(-1);
                let noise = vmap(|key: Key<Tensor>| random::normal(key, [size], DType::F32))(keys);
                policy.mode() + noise * policy.normal.std
            }
        }
    }

    /// Returns the policies of these rows, `i32[K]`.
    #[track_caller]
    pub fn rows(&self, rows: Tensor) -> Policy {
        let take = |x: Tensor| x.take_mode(rows, 0, IndexMode::Clip);
        match self {
            Policy::OneOf(policy) => Policy::OneOf(Categorical::new(take(policy.logits))),
            Policy::Vector(policy) => {
                let normal = &policy.normal;
                Policy::Vector(DiagNormal::new(take(normal.mean), take(normal.std)))
            }
        }
    }

    /// Returns the most likely actions.
    #[track_caller]
    pub fn mode(&self) -> Tensor {
        match self {
            Policy::OneOf(policy) => policy.mode(),
            Policy::Vector(policy) => policy.mode(),
        }
    }

    /// Returns the log probabilities or log densities of actions, `f32[B]`.
    #[track_caller]
    pub fn log_prob(&self, actions: Tensor) -> Tensor {
        match self {
            Policy::OneOf(policy) => policy.log_prob(actions),
            Policy::Vector(policy) => policy.log_prob(actions),
        }
    }

    /// Returns the entropies, `f32[B]`.
    #[track_caller]
    pub fn entropy(&self) -> Tensor {
        match self {
            Policy::OneOf(policy) => policy.entropy(),
            Policy::Vector(policy) => policy.entropy(),
        }
    }
}
