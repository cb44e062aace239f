//! Spaces of an environment, as its worker process describes them.

use serde::{Deserialize, Serialize};

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
    gymnasium: GymnasiumSpaces,
}

/// Spaces of an environment as Python has them. A pool flattens observations
/// in the order of the space, and counts choices from 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GymnasiumSpaces {
    /// Text of the observation space. That of a `Dict` has its keys in the order in which they are
    /// flattened.
    pub observation_space: String,
    /// Text of the action space.
    pub action_space: String,
    /// First choice of a `Discrete` action, `start`: the pool's action plus `action_start` is Python's.
    /// It is 0 for other spaces.
    pub action_start: i64,
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
    /// Spaces as Python has them.
    pub(super) gymnasium: GymnasiumSpaces,
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
            gymnasium: described.gymnasium,
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
