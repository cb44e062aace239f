//! Swimmer: a chain of three links that is rewarded for swimming forwards.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Swimmer-v4",
        model: "swimmer.xml",
        robot: &Swimmer,
        version: Version::V4,
        frame_skip: 4,
        noise: Noise::Uniform(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(360.0),
    },
    Task {
        id: "Swimmer-v5",
        model: "swimmer.xml",
        robot: &Swimmer,
        version: Version::V5,
        frame_skip: 4,
        noise: Noise::Uniform(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(360.0),
    },
];

struct Swimmer;

impl Robot for Swimmer {
    fn num_location_positions(&self) -> usize {
        2
    }

    fn carry(&self, sim: &MjData<'_>, _bodies: &Bodies) -> Carry {
        [sim.qpos()[0], 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        (step.velocity() - step.control_cost(1e-4), false)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend_from_slice(seen.sim.qvel());
    }
}
