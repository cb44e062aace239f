//! Traced environments with the sizes of their observations and actions.

use super::Args;
use crate::DType;
use crate::envs::traced::{AutoReset, Traced, TracedEnv, make};
use crate::envs::{EnvSpec, Space};
use crate::error::{Error, Result};

/// Action space of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionSpace {
    /// Discrete actions, with the given number of choices: a categorical policy.
    Discrete(usize),
    /// Continuous actions of the given size: a normal policy whose standard deviations are
    /// parameters.
    Continuous(usize),
}

impl ActionSpace {
    /// Number of the actor's outputs.
    pub(super) fn num_outputs(self) -> usize {
        match self {
            ActionSpace::Discrete(n) | ActionSpace::Continuous(n) => n,
        }
    }
}

/// Environment with the sizes of its observations and actions.
#[derive(Debug)]
pub struct Env {
    pub(super) env: AutoReset<Traced>,
    pub(super) obs_size: usize,
    pub(super) actions: ActionSpace,
}

impl Env {
    /// Creates the environment of `--env-id`.
    ///
    /// # Errors
    /// Returns [`Error::Env`] for an unknown id, and [`Error::Config`] for spaces that this
    /// algorithm does not support.
    pub fn new(args: &Args) -> Result<Env> {
        let env = AutoReset::new(make(&args.env_id)?);
        let EnvSpec { id, observation, action, .. } = env.env.spec();
        let actions = match &action {
            Space::Discrete { n } => ActionSpace::Discrete(*n),
            Space::Box { shape, dtype: DType::F32, .. } if shape.rank() == 1 => {
                ActionSpace::Continuous(shape[0])
            }
            other => {
                return Err(Error::Config(format!(
                    "--env-id {id}: ppo_anakin acts with a choice or a vector of f32, and this \
                     environment takes {other}"
                )));
            }
        };
        Ok(Env { env, obs_size: observation.shape().numel(), actions })
    }
}
