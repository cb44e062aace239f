//! Humanoid: a robot with two legs and two arms that is rewarded for walking forwards.

use super::data::MjData;
use super::gymnasium::{Bodies, Noise, Robot, Seen, Step, Task, Version};
use super::numpy::{sum, sum_of_squares};
use super::task::Carry;

pub(super) const TASKS: [Task; 2] = [
    Task {
        id: "Humanoid-v4",
        model: "humanoid.xml",
        robot: &Humanoid,
        version: Version::V4,
        frame_skip: 5,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
    Task {
        id: "Humanoid-v5",
        model: "humanoid.xml",
        robot: &Humanoid,
        version: Version::V5,
        frame_skip: 5,
        noise: Noise::Uniform(0.01),
        max_episode_steps: 1000,
        reward_threshold: None,
    },
];

struct Humanoid;

impl Robot for Humanoid {
    fn num_location_positions(&self) -> usize {
        2
    }

    fn has_health(&self) -> bool {
        true
    }

    fn needs_forces(&self, _version: Version) -> bool {
        true
    }

    fn carry(&self, sim: &MjData<'_>, _bodies: &Bodies) -> Carry {
        [mass_center(sim), 0.0]
    }

    fn reward(&self, step: &Step<'_>) -> (f64, bool) {
        let z = step.sim.qpos()[2];
        let healthy = 1.0 < z && z < 2.0;
        let mut costs = 0.1 * sum_of_squares(step.sim.ctrl());
        if step.version == Version::V5 {
            costs += (5e-7 * sum_of_squares(step.sim.cfrc_ext())).min(10.0);
        }
        let reward = 1.25 * step.velocity() + step.healthy_reward(healthy, 5.0) - costs;
        (reward, step.terminated(healthy))
    }

    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>) {
        observe(seen, obs);
    }
}

/// Appends the observation of the model, which HumanoidStandup has too.
pub(super) fn observe(seen: &Seen<'_>, obs: &mut Vec<f64>) {
    obs.extend_from_slice(seen.qpos);
    obs.extend_from_slice(seen.sim.qvel());
    // v5 leaves out the world and the joint without an actuator, which are always zero.
    let skip = |count: usize| if seen.version == Version::V5 { count } else { 0 };
    obs.extend_from_slice(&seen.sim.cinert()[skip(10)..]);
    obs.extend_from_slice(&seen.sim.cvel()[skip(6)..]);
    obs.extend_from_slice(&seen.sim.qfrc_actuator()[skip(6)..]);
    obs.extend_from_slice(&seen.sim.cfrc_ext()[skip(6)..]);
}

/// Returns the center of mass of the whole model along x.
fn mass_center(sim: &MjData<'_>) -> f64 {
    let (mass, position) = (sim.model.body_mass(), sim.xipos());
    let moment = mass.iter().zip(position.chunks_exact(3)).fold(0.0, |sum, (m, x)| sum + m * x[0]);
    moment / sum(mass.len(), |i| mass[i])
}
