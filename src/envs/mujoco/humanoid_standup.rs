//! HumanoidStandup: the humanoid, lying on its back, is rewarded for standing up.

use super::gymnasium::{Noise, Robot, Seen, Step, Task, Version};
use super::humanoid;
use super::numpy::sum_of_squares;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "HumanoidStandup-v4",
        model: "humanoidstandup.xml",
        robot: &HumanoidStandup,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
    Task {
        id: "HumanoidStandup-v5",
        model: "humanoidstandup.xml",
        robot: &HumanoidStandup,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
];

struct HumanoidStandup;

impl Robot for HumanoidStandup {
    fn num_location_positions(&self) -> usize {
        2
    }

    fn needs_forces(&self, _version: Version) -> bool {
        true
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let height = step.sim.qpos()[2] / step.sim.model.timestep();
        let control_cost = 0.1 * sum_of_squares(step.sim.ctrl());
        let impact_cost = (0.5e-6 * sum_of_squares(step.sim.cfrc_ext())).min(10.0);
        (height - control_cost - impact_cost + 1.0, false)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        humanoid::observe(seen, obs);
    }
}
