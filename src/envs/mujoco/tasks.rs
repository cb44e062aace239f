//! Port of gymnasium's Python code of each task: observation, reward, end, reset.
//!
//! `a` is the raw action, dt the physics step times the frame skip. Positions of bodies, and all
//! other derived quantities, are those at the start of the last physics step, as in gymnasium: a
//! step of MuJoCo computes them first and then moves. Operations are in gymnasium's order; where
//! gymnasium computes in `f32` (sums of actions with numpy 2), so does this code.

use std::ffi::CStr;
use std::hint::black_box;

use crate::envs::seeds::EnvRng;
use crate::error::{Error, Result};
use crate::trace::types::DType;

use super::MujocoOptions;
use super::library::{Model, Simulation};
use super::numpy::{norm, sum, sum_of_squares};

/// Robot, which determines all formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Robot {
    Ant,
    HalfCheetah,
    Hopper,
    Humanoid,
    HumanoidStandup,
    InvertedDoublePendulum,
    InvertedPendulum,
    Pusher,
    Reacher,
    Swimmer,
    Walker2d,
}

/// Noise added to the model's default at the start of an episode.
#[derive(Debug, Clone, Copy)]
enum Noise {
    /// Offsets of positions and velocities, uniform within this.
    Uniform(f64),
    /// Offsets of positions, uniform within this; velocities, normal with this standard deviation.
    Normal(f64),
    /// The robot's own rule.
    Own,
}

/// Parameters of one id.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: &'static str,
    /// File of the model.
    pub(super) model: &'static str,
    robot: Robot,
    /// True if the formulas are those of gymnasium's v5; otherwise those of v4.
    v5: bool,
    pub(super) frame_skip: u32,
    noise: Noise,
    pub(super) max_episode_steps: u32,
    pub(super) reward_threshold: Option<f64>,
}

#[rustfmt::skip]
pub(super) const TASKS: &[Task] = {
    use Noise::{Normal, Own, Uniform};
    use Robot::*;
    const fn task(
        (id, model): (&'static str, &'static str), robot: Robot, v5: bool, frame_skip: u32, noise: Noise,
        max_episode_steps: u32, reward_threshold: Option<f64>,
    ) -> Task {
        Task { id, model, robot, v5, frame_skip, noise, max_episode_steps, reward_threshold }
    }
    const V4: bool = false;
    const V5: bool = true;
    &[
        task(("Ant-v4", "ant.xml"), Ant, V4, 5, Normal(0.1), 1000, Some(6000.0)),
        task(("Ant-v5", "ant.xml"), Ant, V5, 5, Normal(0.1), 1000, Some(6000.0)),
        task(("HalfCheetah-v4", "half_cheetah.xml"), HalfCheetah, V4, 5, Normal(0.1), 1000, Some(4800.0)),
        task(("HalfCheetah-v5", "half_cheetah.xml"), HalfCheetah, V5, 5, Normal(0.1), 1000, Some(4800.0)),
        task(("Hopper-v4", "hopper.xml"), Hopper, V4, 4, Uniform(0.005), 1000, Some(3800.0)),
        task(("Hopper-v5", "hopper.xml"), Hopper, V5, 4, Uniform(0.005), 1000, Some(3800.0)),
        task(("Humanoid-v4", "humanoid.xml"), Humanoid, V4, 5, Uniform(0.01), 1000, None),
        task(("Humanoid-v5", "humanoid.xml"), Humanoid, V5, 5, Uniform(0.01), 1000, None),
        task(("HumanoidStandup-v4", "humanoidstandup.xml"), HumanoidStandup, V4, 5, Uniform(0.01), 1000, None),
        task(("HumanoidStandup-v5", "humanoidstandup.xml"), HumanoidStandup, V5, 5, Uniform(0.01), 1000, None),
        task(("InvertedDoublePendulum-v4", "inverted_double_pendulum.xml"), InvertedDoublePendulum, V4, 5, Normal(0.1), 1000, Some(9100.0)),
        task(("InvertedDoublePendulum-v5", "inverted_double_pendulum.xml"), InvertedDoublePendulum, V5, 5, Normal(0.1), 1000, Some(9100.0)),
        task(("InvertedPendulum-v4", "inverted_pendulum.xml"), InvertedPendulum, V4, 2, Uniform(0.01), 1000, Some(950.0)),
        task(("InvertedPendulum-v5", "inverted_pendulum.xml"), InvertedPendulum, V5, 2, Uniform(0.01), 1000, Some(950.0)),
        task(("Pusher-v4", "pusher.xml"), Pusher, V4, 5, Own, 100, Some(0.0)),
        task(("Pusher-v5", "pusher_v5.xml"), Pusher, V5, 5, Own, 100, Some(0.0)),
        task(("Reacher-v4", "reacher.xml"), Reacher, V4, 2, Own, 50, Some(-3.75)),
        task(("Reacher-v5", "reacher.xml"), Reacher, V5, 2, Own, 50, Some(-3.75)),
        task(("Swimmer-v4", "swimmer.xml"), Swimmer, V4, 4, Uniform(0.1), 1000, Some(360.0)),
        task(("Swimmer-v5", "swimmer.xml"), Swimmer, V5, 4, Uniform(0.1), 1000, Some(360.0)),
        task(("Walker2d-v4", "walker2d.xml"), Walker2d, V4, 4, Uniform(0.005), 1000, None),
        task(("Walker2d-v5", "walker2d_v5.xml"), Walker2d, V5, 4, Uniform(0.005), 1000, None),
    ]
};

/// Indices of the bodies that a task reads.
pub(super) type Bodies = [usize; 3];

/// Values of this step that the next reward needs: a position, or distances.
pub(super) type Carried = [f64; 2];

impl Robot {
    /// Returns the number of positions that only locate the robot in the world, and are not
    /// observed.
    fn hidden(self) -> usize {
        match self {
            Robot::HalfCheetah | Robot::Hopper | Robot::Walker2d => 1,
            Robot::Ant | Robot::Humanoid | Robot::HumanoidStandup | Robot::Swimmer => 2,
            Robot::InvertedDoublePendulum
            | Robot::InvertedPendulum
            | Robot::Pusher
            | Robot::Reacher => 0,
        }
    }

    /// Returns true if a fall makes the robot unhealthy, and an option decides if that ends the
    /// episode; false if a fall always ends it, or the robot cannot fall.
    fn has_health(self) -> bool {
        matches!(self, Robot::Ant | Robot::Hopper | Robot::Humanoid | Robot::Walker2d)
    }
}

impl Task {
    /// Returns an error for options that this task does not have.
    pub(super) fn check(&self, options: &MujocoOptions) -> Result<()> {
        let fail = |what: String| Err(Error::Config(format!("{}: {what}", self.id)));
        if !matches!(options.obs_dtype, DType::F64 | DType::F32) {
            let dtype = options.obs_dtype;
            return fail(format!("obs_dtype is {dtype}, expected f64 (as in gymnasium) or f32"));
        }
        if !options.exclude_current_positions && self.robot.hidden() == 0 {
            return fail("exclude_current_positions is false, but it leaves none out".into());
        }
        if !options.terminate_when_unhealthy && !self.robot.has_health() {
            return fail("terminate_when_unhealthy is false, but it knows no health".into());
        }
        if !(1..=4096).contains(&options.render_size) {
            return fail(format!("render_size is {}, expected 1 to 4096", options.render_size));
        }
        match (options.reset_noise_scale, self.noise) {
            (Some(_), Noise::Own) => {
                fail("reset_noise_scale is set, but its start is fixed".into())
            }
            (Some(scale), _) if !(0.0..=1e3).contains(&scale) => {
                fail(format!("reset_noise_scale is {scale}, expected 0 to 1000"))
            }
            _ => Ok(()),
        }
    }

    /// Returns gymnasium's camera for the models that have none: its distance, and the point that
    /// it looks at, if that is not the middle.
    pub(super) fn view(&self) -> Option<(f64, Option<[f64; 3]>)> {
        match self.robot {
            Robot::InvertedPendulum => Some((2.04, None)),
            Robot::InvertedDoublePendulum => Some((4.1225, Some([0.0, 0.0, 0.1225]))),
            Robot::Pusher => Some((4.0, None)),
            _ => None,
        }
    }

    /// Looks up the bodies that this task names.
    pub(super) fn bodies(&self, model: &Model) -> Result<Bodies> {
        let names: &[&CStr] = match self.robot {
            Robot::Ant => &[c"torso"],
            Robot::Reacher => &[c"fingertip", c"target"],
            Robot::Pusher => &[c"tips_arm", c"object", c"goal"],
            _ => &[],
        };
        let mut bodies = Bodies::default();
        for (body, name) in bodies.iter_mut().zip(names) {
            *body = model.body(name)?;
        }
        Ok(bodies)
    }

    /// Returns true if a step ends with `mj_rnePostConstraint`. Gymnasium always calls it; only
    /// these tasks read its results.
    pub(super) fn needs_forces(&self) -> bool {
        match self.robot {
            Robot::Ant => self.v5,
            Robot::Humanoid | Robot::HumanoidStandup => true,
            _ => false,
        }
    }

    /// Draws positions and velocities of an episode's start, in gymnasium's order.
    pub(super) fn draw(
        &self,
        options: &MujocoOptions,
        model: &Model,
        rng: &mut EnvRng,
    ) -> (Vec<f64>, Vec<f64>) {
        let mut qpos = model.qpos0().to_vec();
        let mut qvel = vec![0.0; model.nv()];
        let mut around = |values: &mut [f64], scale: f64| {
            values.iter_mut().for_each(|value| *value += rng.uniform(-scale, scale));
        };
        match (self.noise, self.robot) {
            (Noise::Uniform(scale), _) => {
                let scale = options.reset_noise_scale.unwrap_or(scale);
                around(&mut qpos, scale);
                around(&mut qvel, scale);
            }
            (Noise::Normal(scale), _) => {
                let scale = options.reset_noise_scale.unwrap_or(scale);
                around(&mut qpos, scale);
                qvel.iter_mut().for_each(|value| *value = scale * rng.normal());
            }
            (Noise::Own, Robot::Pusher) => {
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
            (Noise::Own, _) => {
                around(&mut qpos, 0.1);
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
        }
        (qpos, qvel)
    }

    /// Computes the values of this step that the next reward needs.
    pub(super) fn carry(&self, now: &Simulation<'_>, bodies: &Bodies) -> Carried {
        match self.robot {
            Robot::Ant => [now.xpos()[3 * bodies[0]], 0.0],
            Robot::Humanoid => [mass_center(now), 0.0],
            Robot::HalfCheetah | Robot::Hopper | Robot::Swimmer | Robot::Walker2d => {
                [now.qpos()[0], 0.0]
            }
            Robot::Reacher => [norm(&between(now, bodies[0], bodies[1])), 0.0],
            Robot::Pusher => {
                let [tip, object, goal] = *bodies;
                [norm(&between(now, object, tip)), norm(&between(now, object, goal))]
            }
            Robot::HumanoidStandup | Robot::InvertedDoublePendulum | Robot::InvertedPendulum => {
                Carried::default()
            }
        }
    }

    /// Returns the reward of a step, and true if it ended the episode.
    pub(super) fn judge(
        &self,
        options: &MujocoOptions,
        now: &Simulation<'_>,
        action: &[f32],
        before: &Carried,
        after: &Carried,
    ) -> (f64, bool) {
        let dt = now.model.timestep() * f64::from(self.frame_skip);
        let velocity = (after[0] - before[0]) / dt;
        let effort = sum_of_squares(action);
        let cost = |weight: f32| f64::from(weight * effort);
        let (qpos, qvel) = (now.qpos(), now.qvel());
        let ends = options.terminate_when_unhealthy;
        // Until v4, an episode that ends unhealthy gets the bonus of the last step too.
        let paid = !self.v5 && ends;
        let bonus = |healthy: bool, bonus: f64| if healthy || paid { bonus } else { 0.0 };
        match self.robot {
            Robot::HalfCheetah => (velocity - cost(0.1), false),
            Robot::Swimmer => (velocity - cost(1e-4), false),
            Robot::Hopper => {
                let (z, angle) = (qpos[1], qpos[2]);
                let mut state = qpos[2..].iter().chain(qvel);
                let healthy = state.all(|x| -100.0 < *x && *x < 100.0)
                    && 0.7 < z
                    && -0.2 < angle
                    && angle < 0.2;
                (velocity + bonus(healthy, 1.0) - cost(1e-3), !healthy && ends)
            }
            Robot::Walker2d => {
                let (z, angle) = (qpos[1], qpos[2]);
                let healthy = 0.8 < z && z < 2.0 && -1.0 < angle && angle < 1.0;
                (velocity + bonus(healthy, 1.0) - cost(1e-3), !healthy && ends)
            }
            Robot::Ant => {
                let healthy = (0.2..=1.0).contains(&qpos[2]);
                let forces = now.cfrc_ext();
                let costs = cost(0.5)
                    + if self.v5 {
                        5e-4 * sum(forces.len(), |i| square(forces[i].clamp(-1.0, 1.0)))
                    } else {
                        0.0
                    };
                (velocity + bonus(healthy, 1.0) - costs, !healthy && ends)
            }
            Robot::Humanoid => {
                let healthy = 1.0 < qpos[2] && qpos[2] < 2.0;
                let mut costs = 0.1 * sum_of_squares(now.ctrl());
                if self.v5 {
                    costs += (5e-7 * sum_of_squares(now.cfrc_ext())).min(10.0);
                }
                (1.25 * velocity + bonus(healthy, 5.0) - costs, !healthy && ends)
            }
            Robot::HumanoidStandup => {
                let height = qpos[2] / now.model.timestep();
                let effort = 0.1 * sum_of_squares(now.ctrl());
                let impact = (0.5e-6 * sum_of_squares(now.cfrc_ext())).min(10.0);
                (height - effort - impact + 1.0, false)
            }
            Robot::InvertedPendulum => {
                let fallen = qpos[1].abs() > 0.2;
                (bonus(!fallen, 1.0), fallen)
            }
            Robot::InvertedDoublePendulum => {
                let (x, y) = (now.site_xpos()[0], now.site_xpos()[2]);
                let fallen = y <= 1.0;
                let distance = 0.01 * pow2(x) + pow2(y - 2.0);
                let speed = 1e-3 * pow2(qvel[1]) + 5e-3 * pow2(qvel[2]);
                (bonus(!fallen, 10.0) - distance - speed, fallen)
            }
            // Distances: until v4 those before the step, since v5 those after.
            Robot::Reacher => {
                let [distance, _] = if self.v5 { after } else { before };
                (-distance - cost(1.0), false)
            }
            Robot::Pusher => {
                let [near, distance] = if self.v5 { after } else { before };
                (-distance - cost(0.1) - near * 0.5, false)
            }
        }
    }

    /// Writes the observation to `obs`.
    pub(super) fn observe(
        &self,
        options: &MujocoOptions,
        now: &Simulation<'_>,
        bodies: &Bodies,
        obs: &mut Vec<f64>,
    ) {
        let (qpos, qvel) = (now.qpos(), now.qvel());
        let hidden = if options.exclude_current_positions { self.robot.hidden() } else { 0 };
        obs.clear();
        match self.robot {
            Robot::HalfCheetah | Robot::Swimmer => {
                obs.extend_from_slice(&qpos[hidden..]);
                obs.extend_from_slice(qvel);
            }
            Robot::Hopper | Robot::Walker2d => {
                obs.extend_from_slice(&qpos[hidden..]);
                obs.extend(qvel.iter().map(|x| x.clamp(-10.0, 10.0)));
            }
            Robot::Ant => {
                obs.extend_from_slice(&qpos[hidden..]);
                obs.extend_from_slice(qvel);
                if self.v5 {
                    // Without the world, which is body 0.
                    obs.extend(now.cfrc_ext()[6..].iter().map(|x| x.clamp(-1.0, 1.0)));
                }
            }
            Robot::Humanoid | Robot::HumanoidStandup => {
                obs.extend_from_slice(&qpos[hidden..]);
                obs.extend_from_slice(qvel);
                // v5 leaves out the world and the joint without an actuator, which are always zero.
                let skip = |count: usize| if self.v5 { count } else { 0 };
                obs.extend_from_slice(&now.cinert()[skip(10)..]);
                obs.extend_from_slice(&now.cvel()[skip(6)..]);
                obs.extend_from_slice(&now.qfrc_actuator()[skip(6)..]);
                obs.extend_from_slice(&now.cfrc_ext()[skip(6)..]);
            }
            Robot::InvertedPendulum => {
                obs.extend_from_slice(qpos);
                obs.extend_from_slice(qvel);
            }
            Robot::InvertedDoublePendulum => {
                obs.push(qpos[0]);
                obs.extend(qpos[1..].iter().map(|x| x.sin()));
                obs.extend(qpos[1..].iter().map(|x| x.cos()));
                obs.extend(qvel.iter().map(|x| x.clamp(-10.0, 10.0)));
                let forces = now.qfrc_constraint();
                let count = if self.v5 { 1 } else { forces.len() };
                obs.extend(forces[..count].iter().map(|x| x.clamp(-10.0, 10.0)));
            }
            Robot::Reacher => {
                obs.extend(qpos[..2].iter().map(|x| x.cos()));
                obs.extend(qpos[..2].iter().map(|x| x.sin()));
                obs.extend_from_slice(&qpos[2..]);
                obs.extend_from_slice(&qvel[..2]);
                let vector = between(now, bodies[0], bodies[1]);
                obs.extend_from_slice(if self.v5 { &vector[..2] } else { &vector });
            }
            Robot::Pusher => {
                obs.extend_from_slice(&qpos[..7]);
                obs.extend_from_slice(&qvel[..7]);
                bodies.iter().for_each(|body| obs.extend_from_slice(&now.xpos()[3 * body..][..3]));
            }
        }
    }
}

fn square(x: f64) -> f64 {
    x * x
}

/// Returns `x ** 2` of a Python number: the C library's `pow`, which differs from `x * x` in the
/// last bit once in a thousand times. The compiler must not see the constant 2.
fn pow2(x: f64) -> f64 {
    x.powf(black_box(2.0))
}

/// Returns the vector from body `b` to body `a`.
fn between(now: &Simulation<'_>, a: usize, b: usize) -> [f64; 3] {
    let position = now.xpos();
    std::array::from_fn(|k| position[3 * a + k] - position[3 * b + k])
}

/// Returns the centre of mass of the whole model along x.
fn mass_center(now: &Simulation<'_>) -> f64 {
    let (mass, position) = (now.model.body_mass(), now.xipos());
    let moment = mass.iter().zip(position.chunks_exact(3)).fold(0.0, |sum, (m, x)| sum + m * x[0]);
    moment / sum(mass.len(), |i| mass[i])
}
