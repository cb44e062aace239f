//! InvertedDoublePendulum: a cart is rewarded for keeping two linked poles upright and still.

use std::hint::black_box;

use super::gymnasium::{Noise, Robot, Seen, Step, Task, Version};
use super::task::FreeCamera;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "InvertedDoublePendulum-v4",
        model: "inverted_double_pendulum.xml",
        robot: &InvertedDoublePendulum,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(9100.0),
    },
    Task {
        id: "InvertedDoublePendulum-v5",
        model: "inverted_double_pendulum.xml",
        robot: &InvertedDoublePendulum,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Normal(0.1),
        max_episode_steps: 1000,
        reward_threshold: Some(9100.0),
    },
];

struct InvertedDoublePendulum;

impl Robot for InvertedDoublePendulum {
    fn view(&self) -> Option<FreeCamera> {
        Some(FreeCamera { distance: 4.1225, lookat: Some([0.0, 0.0, 0.1225]) })
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let (x, y) = (step.sim.site_xpos()[0], step.sim.site_xpos()[2]);
        let qvel = step.sim.qvel();
        let fallen = y <= 1.0;
        let distance_penalty = 0.01 * pow2(x) + pow2(y - 2.0);
        let velocity_penalty = 1e-3 * pow2(qvel[1]) + 5e-3 * pow2(qvel[2]);
        let alive_bonus = step.healthy_reward(!fallen, 10.0);
        (alive_bonus - distance_penalty - velocity_penalty, fallen)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        let (qpos, qvel) = (seen.qpos, seen.sim.qvel());
        obs.push(qpos[0]);
        obs.extend(qpos[1..].iter().map(|x| x.sin()));
        obs.extend(qpos[1..].iter().map(|x| x.cos()));
        obs.extend(qvel.iter().map(|x| x.clamp(-10.0, 10.0)));
        let forces = seen.sim.qfrc_constraint();
        let count = if seen.version == Version::V5 { 1 } else { forces.len() };
        obs.extend(forces[..count].iter().map(|x| x.clamp(-10.0, 10.0)));
    }
}

/// Returns `x ** 2` of a Python number: the C library's `pow`, which differs from `x * x` in the
/// last bit once in a thousand times. The compiler must not see the constant 2.
fn pow2(x: f64) -> f64 {
    x.powf(black_box(2.0))
}
