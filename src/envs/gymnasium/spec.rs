//! Spaces of an environment, as its worker process describes them.

use serde::Deserialize;

use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::spaces::described::Described;

/// Description of an environment by its worker.
#[derive(Debug, Deserialize)]
pub(super) struct Description {
    observation: Described,
    action: Described,
    width: usize,
    agents: usize,
    max_episode_steps: Option<u32>,
    reward_threshold: Option<f64>,
}

/// Spaces and limits of an environment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spaces {
    pub(super) observation: Space,
    pub(super) action: Space,
    /// Number of elements of an action.
    pub(super) width: usize,
    /// Number of agents of a game of PettingZoo; 1 for environments of Gymnasium.
    pub(super) num_agents: usize,
    max_episode_steps: Option<u32>,
    reward_threshold: Option<f64>,
}

impl Spaces {
    /// Parses a worker's description.
    pub(super) fn parse(json: &[u8]) -> Result<Spaces> {
        let described: Description = serde_json::from_slice(json)
            .map_err(|e| Error::Env(format!("the description of its spaces: {e}")))?;
        Ok(Spaces {
            observation: described.observation.space()?,
            action: described.action.space()?,
            width: described.width,
            num_agents: described.agents,
            max_episode_steps: described.max_episode_steps,
            reward_threshold: described.reward_threshold,
        })
    }

    pub(super) fn is_continuous(&self) -> bool {
        matches!(self.action, Space::Box { .. })
    }

    /// Returns the specification under the id `id`.
    pub(super) fn spec(&self, id: &str) -> EnvSpec {
        EnvSpec {
            id: id.to_string(),
            observation: self.observation.clone(),
            action: self.action.clone(),
            max_episode_steps: self.max_episode_steps,
            reward_threshold: self.reward_threshold,
        }
    }
}
