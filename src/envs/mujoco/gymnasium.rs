//! Gymnasium's tasks: a robot with the numbers of one id, the trait that each robot implements, and
//! the [`MujocoTask`] that both make.
//!
//! Positions of bodies, and all other derived quantities, are those at the start of the last physics
//! step, as in gymnasium: a step of MuJoCo computes them first and then moves. Operations are in
//! gymnasium's order; where gymnasium computes in `f32` (sums of actions with numpy 2), so does this
//! code.

use super::MujocoOptions;
use super::data::MjData;
use super::model::{MjModel, Mjcf, gymnasium_model};
use super::numpy::sum_of_squares;
use super::task::{Carry, FreeCamera, MujocoSpec, MujocoStep, MujocoTask};
use crate::envs::env::seeds::EnvRng;
use crate::error::{Error, Result};

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
    fn bodies(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the camera, if the model has none.
    fn view(&self) -> Option<FreeCamera> {
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
    fn carry(&self, _sim: &MjData<'_>, _bodies: &Bodies) -> Carry {
        Carry::default()
    }

    /// Returns the reward of a step, and true if it ended the episode.
    fn reward(&self, step: &Step<'_>) -> (f64, bool);

    /// Appends the observation to `obs`. `qpos` is the observed part of the positions.
    fn observe(&self, seen: &Seen<'_>, obs: &mut Vec<f64>);
}

/// Input of a reward.
pub(super) struct Step<'a> {
    pub(super) sim: &'a MjData<'a>,
    pub(super) version: Version,
    /// Raw action.
    pub(super) action: &'a [f32],
    /// Values carried from the step before, and those of this step.
    pub(super) before: Carry,
    pub(super) after: Carry,
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
    pub(super) sim: &'a MjData<'a>,
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
        if !options.exclude_current_positions && self.robot.num_location_positions() == 0 {
            return fail("exclude_current_positions is false, but it leaves none out".into());
        }
        if !options.terminate_when_unhealthy && !self.robot.has_health() {
            return fail("terminate_when_unhealthy is false, but it knows no health".into());
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
}

/// One of gymnasium's tasks with its options.
#[derive(Debug)]
pub(super) struct GymnasiumTask {
    task: &'static Task,
    options: MujocoOptions,
    model: Mjcf,
    bodies: Bodies,
}

impl GymnasiumTask {
    /// Checks the options, and looks up the bodies that the robot names.
    pub(super) fn new(task: &'static Task, options: &MujocoOptions) -> Result<GymnasiumTask> {
        task.check(options)?;
        let model = gymnasium_model(task.model)?;
        let loaded = MjModel::load(&model)?;
        let mut bodies = Bodies::default();
        for (body, name) in bodies.iter_mut().zip(task.robot.bodies()) {
            *body = loaded.body(name)?;
        }
        Ok(GymnasiumTask { task, options: options.clone(), model, bodies })
    }
}

impl MujocoTask for GymnasiumTask {
    fn spec(&self) -> MujocoSpec {
        let Task { id, robot, version, frame_skip, .. } = self.task;
        MujocoSpec {
            id: (*id).into(),
            model: self.model.clone(),
            frame_skip: *frame_skip,
            max_episode_steps: Some(self.task.max_episode_steps),
            reward_threshold: self.task.reward_threshold,
            obs_dtype: self.options.obs_dtype,
            cfrc_ext: robot.needs_forces(*version),
            camera: robot.view(),
            render_size: self.options.render_size,
        }
    }

    /// Draws positions and velocities in gymnasium's order.
    fn reset(&self, rng: &mut EnvRng, qpos: &mut [f64], qvel: &mut [f64]) {
        match self.task.noise {
            Noise::Uniform(scale) => {
                let scale = self.options.reset_noise_scale.unwrap_or(scale);
                add_uniform(qpos, scale, rng);
                add_uniform(qvel, scale, rng);
            }
            Noise::Normal(scale) => {
                let scale = self.options.reset_noise_scale.unwrap_or(scale);
                add_uniform(qpos, scale, rng);
                qvel.iter_mut().for_each(|value| *value = scale * rng.normal());
            }
            Noise::Own => self.task.robot.reset_model(rng, qpos, qvel),
        }
    }

    fn carry(&self, data: &MjData<'_>) -> Result<Carry> {
        Ok(self.task.robot.carry(data, &self.bodies))
    }

    fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)> {
        let &MujocoStep { data, action, before, after, dt } = step;
        Ok(self.task.robot.reward(&Step {
            sim: data,
            version: self.task.version,
            action,
            before,
            after,
            dt,
            terminate_when_unhealthy: self.options.terminate_when_unhealthy,
        }))
    }

    fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()> {
        let skipped = match self.options.exclude_current_positions {
            true => self.task.robot.num_location_positions(),
            false => 0,
        };
        let (version, bodies, qpos) = (self.task.version, &self.bodies, &data.qpos()[skipped..]);
        self.task.robot.observe(&Seen { sim: data, version, bodies, qpos }, obs);
        Ok(())
    }
}

/// Adds noise, uniform within `scale`, to each value.
pub(super) fn add_uniform(values: &mut [f64], scale: f64, rng: &mut EnvRng) {
    values.iter_mut().for_each(|value| *value += rng.uniform(-scale, scale));
}

/// Returns the vector from body `b` to body `a`.
pub(super) fn between(sim: &MjData<'_>, a: usize, b: usize) -> [f64; 3] {
    let position = sim.xpos();
    std::array::from_fn(|k| position[3 * a + k] - position[3 * b + k])
}
