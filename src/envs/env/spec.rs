//! Specification of an environment: its spaces, its time limit, and its reward threshold.

use crate::spaces::Space;

/// Specification of an environment.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvSpec {
    /// Id by which [`make`](crate::envs::make) finds the environment, such as `CartPole-v1`.
    pub id: String,
    /// Space of one observation.
    pub observation: Space,
    /// Space of one action.
    pub action: Space,
    /// Number of steps after which the pool truncates an episode; `None` for no limit.
    pub max_episode_steps: Option<u32>,
    /// Mean episodic return from which the task counts as solved.
    pub reward_threshold: Option<f64>,
}
