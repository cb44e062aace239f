//! Spaces of an environment, as its worker process describes them.

use serde::Deserialize;

use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};
use crate::trace::types::DType;

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

/// A space, as JSON.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in crate::envs) enum Described {
    Discrete {
        n: usize,
    },
    MultiDiscrete {
        nvec: Vec<usize>,
        #[serde(default)]
        masked: bool,
    },
    Box {
        shape: Vec<usize>,
        dtype: String,
        low: Side,
        high: Side,
    },
}

/// Bounds of a box; `None` is infinite.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(in crate::envs) enum Side {
    All(Option<f64>),
    Each(Vec<Option<f64>>),
}

impl Side {
    fn bound(self, infinity: f64) -> Bound {
        match self {
            Side::All(bound) => Bound::All(bound.unwrap_or(infinity)),
            Side::Each(bounds) => {
                let bounds = bounds.into_iter().map(|bound| bound.unwrap_or(infinity));
                Bound::Each(bounds.collect())
            }
        }
    }
}

impl Described {
    /// Returns the space, which may still have a [`Space::problem`].
    pub(in crate::envs) fn space(self) -> Result<Space> {
        Ok(match self {
            Described::Discrete { n } => Space::Discrete { n },
            Described::MultiDiscrete { nvec, masked } => Space::MultiDiscrete { nvec, masked },
            Described::Box { shape, dtype, low, high } => Space::Box {
                low: low.bound(f64::NEG_INFINITY),
                high: high.bound(f64::INFINITY),
                shape: shape.into(),
                dtype: match dtype.as_str() {
                    "float32" => DType::F32,
                    "float64" => DType::F64,
                    "uint8" => DType::U8,
                    "bool" => DType::Bool,
                    other => return Err(Error::Env(format!("observations are {other}"))),
                },
            },
        })
    }
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
