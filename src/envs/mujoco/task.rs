//! A task: a robot with gymnasium's numbers for one id; and the trait that each robot implements.
//!
//! Positions of bodies, and all other derived quantities, are those at the start of the last physics
//! step, as in gymnasium: a step of MuJoCo computes them first and then moves. Operations are in
//! gymnasium's order; where gymnasium computes in `f32` (sums of actions with numpy 2), so does this
//! code.

use std::ffi::CStr;

use super::MujocoOptions;
use super::library::{Model, Simulation};
use super::numpy::sum_of_squares;
use crate::envs::env::seeds::EnvRng;
use crate::error::{Error, Result};
use crate::trace::types::DType;

/// Noise added to the model's default at the start of an episode.
#[derive(Debug, Clone, Copy)]
pub(super) enum Noise {
    /// Offsets of positions and velocities, uniform within this.
    Uniform(f64),
    /// Offsets of positions, uniform within this; velocities, normal with this standard deviation.
    Normal(f64),
    /// [`Robot::reset_model`].
    Own,
}

/// Version of gymnasium's formulas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    V4,
    V5,
}

/// Indices of the bodies that a robot reads, in the order of [`Robot::bodies`].
pub(super) type Bodies = [usize; 3];

/// Values of this step that the next reward needs: a position, or distances.
pub(super) type Carried = [f64; 2];

/// Camera for a model without one: its distance, and the point that it looks at, if that is not the
/// middle of the model.
pub(super) type View = (f64, Option<[f64; 3]>);

/// One robot: gymnasium's Python class of the same name.
pub(super) trait Robot: Sync {
    /// Returns the number of positions that only locate the robot in the world. They are observed
    /// only if `exclude_current_positions` is false.
    fn num_location_positions(&self) -> usize {
        0
    }

    /// Returns true if a fall makes the robot unhealthy, and an option decides if that ends the
    /// episode; false if a fall always ends it, or the robot cannot fall.
    fn has_health(&self) -> bool {
        false
    }

    /// Returns the names of the bodies whose positions are read.
    fn bodies(&self) -> &'static [&'static CStr] {
        &[]
    }

    /// Returns the camera, if the model has none.
    fn view(&self) -> Option<View> {
        None
    }

    /// Returns true if a step ends with `mj_rnePostConstraint`. Gymnasium always calls it; it
    /// matters only to robots that read its results.
    fn needs_forces(&self, _version: Version) -> bool {
        false
    }

    /// Draws the start of an episode, for tasks with [`Noise::Own`]: changes the model's default
    /// positions, and velocities of zero.
    fn reset_model(&self, _rng: &mut EnvRng, _qpos: &mut [f64], _qvel: &mut [f64]) {}

    /// Computes the values of this step that the next reward needs.
    fn carry(&self, _sim: &Simulation<'_>, _bodies: &Bodies) -> Carried {
        Carried::default()
    }

    /// Returns the reward of a step, and true if it ended the episode.
    fn reward(&self, step: &Step<'_>) -> (f64, bool);

    /// Appends the observation to `obs`. `qpos` is the observed part of the positions.
    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>);
}

/// Input of a reward.
pub(super) struct Step<'a> {
    pub(super) sim: &'a Simulation<'a>,
    pub(super) version: Version,
    /// Raw action.
    pub(super) action: &'a [f32],
    /// Values carried from the step before, and those of this step.
    pub(super) before: &'a Carried,
    pub(super) after: &'a Carried,
    /// Time of the step in seconds: the physics step times the frame skip.
    pub(super) dt: f64,
    /// True if an unhealthy robot ends the episode.
    pub(super) terminate_when_unhealthy: bool,
}

impl Step<'_> {
    /// Returns the speed of the first carried value, in metres per second.
    pub(super) fn velocity(&self) -> f64 {
        (self.after[0] - self.before[0]) / self.dt
    }

    /// Returns `weight` times the sum of the squares of the action, computed in `f32`.
    pub(super) fn control_cost(&self, weight: f32) -> f64 {
        f64::from(weight * sum_of_squares(self.action))
    }

    /// Returns the reward for being healthy. Until v4, an episode that ends unhealthy gets that of
    /// its last step too.
    pub(super) fn healthy_reward(&self, healthy: bool, reward: f64) -> f64 {
        let always = self.version == Version::V4 && self.terminate_when_unhealthy;
        if healthy || always { reward } else { 0.0 }
    }

    /// Returns true if the robot's health ends the episode.
    pub(super) fn terminated(&self, healthy: bool) -> bool {
        !healthy && self.terminate_when_unhealthy
    }
}

/// Input of an observation.
pub(super) struct Seen<'a> {
    pub(super) sim: &'a Simulation<'a>,
    pub(super) version: Version,
    pub(super) bodies: &'a Bodies,
    /// Positions, without those that an option leaves out.
    pub(super) qpos: &'a [f64],
}

/// Parameters of one id.
pub(super) struct Task {
    pub(super) id: &'static str,
    /// File of the model.
    pub(super) model: &'static str,
    pub(super) robot: &'static dyn Robot,
    pub(super) version: Version,
    pub(super) frame_skip: u32,
    pub(super) noise: Noise,
    pub(super) max_episode_steps: u32,
    pub(super) reward_threshold: Option<f64>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("id", &self.id).finish_non_exhaustive()
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
        if !options.exclude_current_positions && self.robot.num_location_positions() == 0 {
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

    /// Looks up the bodies that the robot names.
    pub(super) fn bodies(&self, model: &Model) -> Result<Bodies> {
        let mut bodies = Bodies::default();
        for (body, name) in bodies.iter_mut().zip(self.robot.bodies()) {
            *body = model.body(name)?;
        }
        Ok(bodies)
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
        match self.noise {
            Noise::Uniform(scale) => {
                let scale = options.reset_noise_scale.unwrap_or(scale);
                add_uniform(&mut qpos, scale, rng);
                add_uniform(&mut qvel, scale, rng);
            }
            Noise::Normal(scale) => {
                let scale = options.reset_noise_scale.unwrap_or(scale);
                add_uniform(&mut qpos, scale, rng);
                qvel.iter_mut().for_each(|value| *value = scale * rng.normal());
            }
            Noise::Own => self.robot.reset_model(rng, &mut qpos, &mut qvel),
        }
        (qpos, qvel)
    }

    /// Writes the observation to `obs`.
    pub(super) fn observe(
        &self,
        options: &MujocoOptions,
        sim: &Simulation<'_>,
        bodies: &Bodies,
        obs: &mut Vec<f64>,
    ) {
        let skipped = match options.exclude_current_positions {
            true => self.robot.num_location_positions(),
            false => 0,
        };
        obs.clear();
        let qpos = &sim.qpos()[skipped..];
        self.robot.observe(&Seen { sim, version: self.version, bodies, qpos }, obs);
    }
}

/// Adds noise, uniform within `scale`, to each value.
pub(super) fn add_uniform(values: &mut [f64], scale: f64, rng: &mut EnvRng) {
    values.iter_mut().for_each(|value| *value += rng.uniform(-scale, scale));
}

/// Returns the vector from body `b` to body `a`.
pub(super) fn between(sim: &Simulation<'_>, a: usize, b: usize) -> [f64; 3] {
    let position = sim.xpos();
    std::array::from_fn(|k| position[3 * a + k] - position[3 * b + k])
}
