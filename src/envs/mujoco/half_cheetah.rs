//! HalfCheetah: a planar robot that is rewarded for running forwards.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "HalfCheetah-v4",
        model: "half_cheetah.xml",
        robot: &HalfCheetah,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(4800.0),
    },
    Task {
        id: "HalfCheetah-v5",
        model: "half_cheetah.xml",
        robot: &HalfCheetah,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(4800.0),
    },
];

struct HalfCheetah;

impl Robot for HalfCheetah {
    fn num_location_positions(&self) -> usize {
        1
    }

    fn carry(&self, sim: &MjData<'_>, _bodies: &Bodies) -> Carry {
        [sim.qpos()[0], 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        (step.velocity() - step.control_cost(0.1), false)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend_from_slice(seen.sim.qvel());
    }
}
