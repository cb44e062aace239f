//! Specification of an environment in a saved model, so that its policy needs no environment.

use serde::{Deserialize, Serialize};

use crate::envs::{EnvSpec, GymnasiumSpaces, gymnasium_spaces};
use crate::error::{Error, Result};
use crate::spaces::described::Described;

/// Specification of an environment, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedSpec {
    observation: Described,
    action: Described,
    max_episode_steps: Option<u32>,
    reward_threshold: Option<f64>,
    /// Spaces as Python has them, for an environment in Python.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gymnasium: Option<GymnasiumSpaces>,
}

impl SavedSpec {
    /// Returns the form of a specification in JSON; `None` for a space of elements that numpy does not
    /// have.
    pub fn new(spec: &EnvSpec) -> Option<SavedSpec> {
        Some(SavedSpec {
            observation: Described::new(&spec.observation).ok()?,
            action: Described::new(&spec.action).ok()?,
            max_episode_steps: spec.max_episode_steps,
            reward_threshold: spec.reward_threshold,
            gymnasium: gymnasium_spaces(&spec.id),
        })
    }

    /// Returns the specification under the id `id`.
    ///
    /// # Errors
    /// [`Error::Env`] for a space that no environment has.
    pub(in crate::rl) fn spec(self, id: &str) -> Result<EnvSpec> {
        let SavedSpec { observation, action, max_episode_steps, reward_threshold, .. } = self;
        let (observation, action) = (observation.space()?, action.space()?);
        if let Some(problem) = observation.problem().or(action.problem()) {
            return Err(Error::Env(format!("the spaces {observation} and {action}: {problem}")));
        }
        Ok(EnvSpec { id: id.into(), observation, action, max_episode_steps, reward_threshold })
    }
}
