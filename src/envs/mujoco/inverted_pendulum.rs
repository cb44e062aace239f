//! InvertedPendulum: a cart is rewarded for each step that it keeps its pole upright.

use super::gymnasium::{Noise, Robot, Seen, Step, Task, Version};
use super::task::FreeCamera;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "InvertedPendulum-v4",
        model: "inverted_pendulum.xml",
        robot: &InvertedPendulum,
        version: Version::V4,
        frame_skip: 2,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: Some(950.0),
    },
    Task {
        id: "InvertedPendulum-v5",
        model: "inverted_pendulum.xml",
        robot: &InvertedPendulum,
        version: Version::V5,
        frame_skip: 2,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: Some(950.0),
    },
];

struct InvertedPendulum;

impl Robot for InvertedPendulum {
    fn view(&self) -> Option<FreeCamera> {
        Some(FreeCamera { distance: 2.04, lookat: None })
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let fallen = step.sim.qpos()[1].abs() > 0.2;
        (step.healthy_reward(!fallen, 1.0), fallen)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend_from_slice(seen.sim.qvel());
    }
}
