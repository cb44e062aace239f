//! Hopper: a planar leg that is rewarded for hopping forwards.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Hopper-v4",
        model: "hopper.xml",
        robot: &Hopper,
        version: Version::V4,
        frame_skip: 4,
        noise: Noise::Uniform(0.005),
        max_episode_steps: 1000,
        reward_threshold: Some(3800.0),
    },
    Task {
        id: "Hopper-v5",
        model: "hopper.xml",
        robot: &Hopper,
        version: Version::V5,
        frame_skip: 4,
        noise: Noise::Uniform(0.005),
        max_episode_steps: 1000,
        reward_threshold: Some(3800.0),
    },
];

struct Hopper;

impl Robot for Hopper {
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
        let (qpos, qvel) = (step.sim.qpos(), step.sim.qvel());
        let (z, angle) = (qpos[1], qpos[2]);
        let mut state = qpos[2..].iter().chain(qvel);
        let healthy =
            state.all(|x| -100.0 < *x && *x < 100.0) && 0.7 < z && -0.2 < angle && angle < 0.2;
        let reward = step.velocity() + step.healthy_reward(healthy, 1.0) - step.control_cost(1e-3);
        (reward, step.terminated(healthy))
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(seen.qpos);
        obs.extend(seen.sim.qvel().iter().map(|x| x.clamp(-10.0, 10.0)));
    }
}
