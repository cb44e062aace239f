//! Pusher: an arm with seven joints is rewarded for pushing an object to a goal.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version, between};
use super::numpy::norm;
use super::task::{Carry, FreeCamera};
use crate::envs::env::seeds::EnvRng;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Pusher-v4",
        model: "pusher.xml",
        robot: &Pusher,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Own,
        max_episode_steps: 100,
        reward_threshold: Some(0.0),
    },
    Task {
        id: "Pusher-v5",
        model: "pusher_v5.xml",
        robot: &Pusher,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Own,
        max_episode_steps: 100,
        reward_threshold: Some(0.0),
    },
];

struct Pusher;

impl Robot for Pusher {
    fn bodies(&self) -> &'static [&'static str] {
        &["tips_arm", "object", "goal"]
    }

    fn view(&self) -> Option<FreeCamera> {
        Some(FreeCamera { distance: 4.0, lookat: None })
    }

    fn reset_model(&self, rng: &mut EnvRng, qpos: &mut [f64], qvel: &mut [f64]) {
        // The object, not too near to the goal at the origin.
        let object = loop {
            let object = [rng.uniform(-0.3, 0.0), rng.uniform(-0.2, 0.2)];
            if norm(&object) > 0.17 {
                break object;
            }
        };
        let at = qpos.len() - 4;
        qpos[at..].copy_from_slice(&[object[0], object[1], 0.0, 0.0]);
        qvel.iter_mut().for_each(|value| *value = rng.uniform(-0.005, 0.005));
        let at = qvel.len() - 4;
        qvel[at..].fill(0.0);
    }

    fn carry(&self, sim: &MjData<'_>, bodies: &Bodies) -> Carry {
        let [tip, object, goal] = *bodies;
        [norm(&between(sim, object, tip)), norm(&between(sim, object, goal))]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        // Until v4 the distances before the step, since v5 those after it.
        let [near, distance] = if step.version == Version::V5 { step.after } else { step.before };
        (-distance - step.control_cost(0.1) - near * 0.5, false)
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        obs.extend_from_slice(&seen.qpos[..7]);
        obs.extend_from_slice(&seen.sim.qvel()[..7]);
        for body in seen.bodies {
            obs.extend_from_slice(&seen.sim.xpos()[3 * body..][..3]);
        }
    }
}
