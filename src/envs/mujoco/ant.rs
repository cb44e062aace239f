//! Ant: a robot with four legs that is rewarded for walking along x.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::numpy::sum;
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Ant-v4",
        model: "ant.xml",
        robot: &Ant,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(6000.0),
    },
    Task {
        id: "Ant-v5",
        model: "ant.xml",
        robot: &Ant,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(6000.0),
    },
];

struct Ant;

impl Robot for Ant {
    fn num_location_positions(&self) -> usize {
        2
    }

    fn has_health(&self) -> bool {
        true
    }

    fn bodies(&self) -> &'static [&'static str] {
        &["torso"]
    }

    fn needs_forces(&self, version: Version) -> bool {
        version == Version::V5
    }

    fn carry(&self, sim: &MjData<'_>, bodies: &Bodies) -> Carry {
        [sim.xpos()[3 * bodies[0]], 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let healthy = (0.2..=1.0).contains(&step.sim.qpos()[2]);
        let forces = step.sim.cfrc_ext();
        let contact_cost = match step.version {
            Version::V4 => 0.0,
            Version::V5 => 5e-4 * sum(forces.len(), |i| square(forces[i].clamp(-1.0, 1.0))),
        };
        let costs = step.control_cost(0.5) + contact_cost;
        let reward = step.velocity() + step.healthy_reward(healthy, 1.0) - costs;
        (reward, step.terminated(healthy))
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend_from_slice(seen.sim.qvel());
        if seen.version == Version::V5 {
            // Without the world, which is body 0.
            obs.extend(seen.sim.cfrc_ext()[6..].iter().map(|x| x.clamp(-1.0, 1.0)));
        }
    }
}

fn square(x: f64) -> f64 {
    x * x
}
