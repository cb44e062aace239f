//! Walker2d: a planar robot with two legs that is rewarded for walking forwards.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Walker2d-v4",
        model: "walker2d.xml",
        robot: &Walker2d,
        version: Version::V4,
        frame_skip: 4,
        noise: Noise::Uniform(0.005),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
    Task {
        id: "Walker2d-v5",
        model: "walker2d_v5.xml",
        robot: &Walker2d,
        version: Version::V5,
        frame_skip: 4,
        noise: Noise::Uniform(0.005),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
];

struct Walker2d;

impl Robot for Walker2d {
    fn num_location_positions(&self) -> usize {
        1
    }

    fn has_health(&self) -> bool {
        true
    }

    fn carry(&self, sim: &MjData<'_>, _bodies: &Bodies) -> Carry {
        [sim.qpos()[0], 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let (z, angle) = (step.sim.qpos()[1], step.sim.qpos()[2]);
        let healthy = 0.8 < z && z < 2.0 && -1.0 < angle && angle < 1.0;
        let reward = step.velocity() + step.healthy_reward(healthy, 1.0) - step.control_cost(1e-3);
        (reward, step.terminated(healthy))
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend(seen.sim.qvel().iter().map(|x| x.clamp(-10.0, 10.0)));
    }
}
