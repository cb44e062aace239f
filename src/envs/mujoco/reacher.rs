//! Reacher: an arm with two joints is rewarded for a fingertip near the target.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version, add_uniform, between};
use super::numpy::norm;
use super::task::Carry;
use crate::envs::env::seeds::EnvRng;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Reacher-v4",
        model: "reacher.xml",
        robot: &Reacher,
        version: Version::V4,
        frame_skip: 2,
        noise: Noise::Own,
        max_episode_steps: 50,
        reward_threshold: Some(-3.75),
    },
    Task {
        id: "Reacher-v5",
        model: "reacher.xml",
        robot: &Reacher,
        version: Version::V5,
        frame_skip: 2,
        noise: Noise::Own,
        max_episode_steps: 50,
        reward_threshold: Some(-3.75),
    },
];

struct Reacher;

impl Robot for Reacher {
    fn bodies(&self) -> &'static [&'static str] {
        &["fingertip", "target"]
    }

    fn reset_model(&self, rng: &mut EnvRng, qpos: &mut [f64], qvel: &mut [f64]) {
        add_uniform(qpos, 0.1, rng);
        // The target, within reach.
        let target = loop {
            let target = [rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2)];
            if norm(&target) < 0.2 {
                break target;
            }
        };
        let at = qpos.len() - 2;
        qpos[at..].copy_from_slice(&target);
        qvel.iter_mut().for_each(|value| *value = rng.uniform(-0.005, 0.005));
        let at = qvel.len() - 2;
        qvel[at..].fill(0.0);
    }

    fn carry(&self, sim: &MjData<'_>, bodies: &Bodies) -> Carry {
        [norm(&between(sim, bodies[0], bodies[1])), 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        // Until v4 the distance before the step, since v5 that after it.
        let [distance, _] = if step.version == Version::V5 { step.after } else { step.before };
        (-distance - step.control_cost(1.0), false)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        let (qpos, qvel) = (seen.qpos, seen.sim.qvel());
        obs.extend(qpos[..2].iter().map(|x| x.cos()));
        obs.extend(qpos[..2].iter().map(|x| x.sin()));
        obs.extend_from_slice(&qpos[2..]);
        obs.extend_from_slice(&qvel[..2]);
        let vector = between(seen.sim, seen.bodies[0], seen.bodies[1]);
        obs.extend_from_slice(if seen.version == Version::V5 { &vector[..2] } else { &vector });
    }
}
