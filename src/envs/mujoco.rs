//! MuJoCo: the control tasks of Gymnasium, step for step, and robots of one's own.
//!
//! The physics is MuJoCo 3.3.7's own library (`library`, `model`, `data`), and the models are
//! Gymnasium's files; both are native parts, located and if needed fetched when the first of these
//! environments is made. [`Mujoco`] runs a [`MujocoTask`]. Those of Gymnasium (`gymnasium`) are its
//! Python code (observations, rewards, ends, resets) in Rust, one file a robot, with the same
//! operations in the same order: tests compare them with recorded trajectories in
//! `tests/fixtures/envs`, to the last bit.

mod ant;
mod data;
mod draw;
mod gymnasium;
mod half_cheetah;
mod hopper;
mod humanoid;
mod humanoid_standup;
mod inverted_double_pendulum;
mod inverted_pendulum;
mod library;
mod model;
mod numpy;
mod pusher;
mod reacher;
mod swimmer;
mod task;
mod walker2d;

use std::sync::Arc;

use super::env::{Action, Env, Frame, ObsMut, StepOutcome};
use super::pool::{EnvPool, PoolOptions};
use crate::envs::env::entry::Entry;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};
use crate::trace::types::DType;
use draw::{Camera, Shape, Solid, draw};
use gymnasium::{GymnasiumTask, Task};

pub use data::{Body, Contact, Joint, MjData};
pub use model::{MjModel, Mjcf};
pub use task::{Carry, FreeCamera, MujocoSpec, MujocoStep, MujocoTask};

/// Options of a MuJoCo environment. `..Default::default()` sets the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct MujocoOptions {
    /// Type of the observations: `DType::F64` as in gymnasium, or `DType::F32`, to which the
    /// observations are then rounded.
    pub obs_dtype: DType,
    /// If true, the observation leaves out the positions that only locate the robot in the world
    /// (gymnasium's `exclude_current_positions_from_observation`).
    pub exclude_current_positions: bool,
    /// If true, episodes of Ant, Hopper, Humanoid and Walker2d terminate when the robot is
    /// unhealthy, as after a fall.
    pub terminate_when_unhealthy: bool,
    /// Scale of the noise added to the model's default at the start of an episode; `None` for the
    /// task's own.
    pub reset_noise_scale: Option<f64>,
    /// Number of rows, and of columns, of [`render`](Env::render)'s images; gymnasium's have 480.
    pub render_size: usize,
}

impl Default for MujocoOptions {
    fn default() -> Self {
        MujocoOptions {
            obs_dtype: DType::F64,
            exclude_current_positions: true,
            terminate_when_unhealthy: true,
            reset_noise_scale: None,
            render_size: 240,
        }
    }
}

/// Native parts that the robots need.
pub(super) const PARTS: &[&str] = &[library::SIMULATOR, library::MODELS];

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("Ant-v4", by_default),
    ("Ant-v5", by_default),
    ("HalfCheetah-v4", by_default),
    ("HalfCheetah-v5", by_default),
    ("Hopper-v4", by_default),
    ("Hopper-v5", by_default),
    ("Humanoid-v4", by_default),
    ("Humanoid-v5", by_default),
    ("HumanoidStandup-v4", by_default),
    ("HumanoidStandup-v5", by_default),
    ("InvertedDoublePendulum-v4", by_default),
    ("InvertedDoublePendulum-v5", by_default),
    ("InvertedPendulum-v4", by_default),
    ("InvertedPendulum-v5", by_default),
    ("Pusher-v4", by_default),
    ("Pusher-v5", by_default),
    ("Reacher-v4", by_default),
    ("Reacher-v5", by_default),
    ("Swimmer-v4", by_default),
    ("Swimmer-v5", by_default),
    ("Walker2d-v4", by_default),
    ("Walker2d-v5", by_default),
];

/// Tasks of all robots.
const TASKS: [&[Task]; 11] = [
    &ant::TASKS,
    &half_cheetah::TASKS,
    &hopper::TASKS,
    &humanoid::TASKS,
    &humanoid_standup::TASKS,
    &inverted_double_pendulum::TASKS,
    &inverted_pendulum::TASKS,
    &pusher::TASKS,
    &reacher::TASKS,
    &swimmer::TASKS,
    &walker2d::TASKS,
];

fn tasks() -> impl Iterator<Item = &'static Task> {
    TASKS.into_iter().flatten()
}

fn by_default(id: &str) -> Result<Box<dyn Env>> {
    Ok(Box::new(Mujoco::new(id, &MujocoOptions::default())?))
}

impl EnvPool {
    /// Makes a pool of the MuJoCo environment `id`, with custom options.
    ///
    /// Returns an error for an unknown id, for invalid options, and if the library or the models
    /// are missing and cannot be fetched.
    ///
    /// ```no_run
    /// use podracer::DType;
    /// use podracer::envs::{EnvPool, MujocoOptions, PoolOptions};
    /// let options = MujocoOptions { obs_dtype: DType::F32, ..Default::default() };
    /// let pool = PoolOptions { num_envs: 8, clip_actions: true, ..Default::default() };
    /// let mut pool = EnvPool::mujoco("HalfCheetah-v4", options, pool)?;
    /// let batch = pool.reset()?;
    /// assert_eq!(batch.obs::<f32>().len(), 8 * 17);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn mujoco(id: &str, options: MujocoOptions, pool: PoolOptions) -> Result<EnvPool> {
        EnvPool::custom(|_| Ok(Box::new(Mujoco::new(id, &options)?)), pool)
    }
}

/// Environment of a MuJoCo task: one of Gymnasium's, or a [`MujocoTask`] of your own.
///
/// It keeps the state that the next step depends on, a few hundred bytes. The simulation itself, of
/// hundreds of kilobytes, is lent to it for each step by the model, which all environments share.
///
/// [`render`](Env::render) draws the model's geoms with its own ray caster, because the library
/// draws with OpenGL only: seen by the model's camera `track`, which follows the robot, or else
/// from Gymnasium's viewpoint.
pub struct Mujoco {
    task: Box<dyn MujocoTask>,
    spec: MujocoSpec,
    model: Arc<MjModel>,
    /// MuJoCo's integration state.
    state: Vec<f64>,
    /// Values of this step that the next reward needs: derived positions, which are not in the
    /// state.
    carry: Carry,
    /// Observation, before it is written to the row.
    obs: Vec<f64>,
    /// Number of elements of the first observation, which all have.
    obs_size: usize,
}

impl std::fmt::Debug for Mujoco {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mujoco").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Mujoco {
    /// Makes the task `id`, such as `HalfCheetah-v4`.
    ///
    /// Returns an error for an id that is not one of this family, for options that the task does
    /// not have, and if the library or the models are missing and cannot be fetched.
    pub fn new(id: &str, options: &MujocoOptions) -> Result<Mujoco> {
        let task = tasks().find(|task| task.id == id).ok_or_else(|| {
            let known: Vec<&str> = tasks().map(|task| task.id).collect();
            Error::Env(format!("\"{id}\" is no MuJoCo task; there are {}", known.join(", ")))
        })?;
        Mujoco::from_task(GymnasiumTask::new(task, options)?)
    }

    /// Makes the environment of a task. Actions are bounded by the ranges of the model's actuators.
    ///
    /// # Errors
    /// [`Error::Config`] if the specification is not valid; [`Error::Env`] if MuJoCo refuses the model,
    /// with the line of its text or file, and those of the task's first observation;
    /// [`Error::Native`] if the library is missing and cannot be fetched.
    pub fn from_task(task: impl MujocoTask) -> Result<Mujoco> {
        let spec = task.spec();
        let fail = |what: String| Err(Error::Config(format!("{}: {what}", spec.id)));
        if !matches!(spec.obs_dtype, DType::F64 | DType::F32) {
            let dtype = spec.obs_dtype;
            return fail(format!("obs_dtype is {dtype}, expected f64 (as in gymnasium) or f32"));
        }
        if spec.frame_skip == 0 {
            return fail("frame_skip is 0, expected at least 1".into());
        }
        if !(1..=4096).contains(&spec.render_size) {
            return fail(format!("render_size is {}, expected 1 to 4096", spec.render_size));
        }
        let model = MjModel::load(&spec.model).map_err(|error| match error {
            Error::Env(problem) => broken(&spec.id, &problem),
            error => error,
        })?;
        if model.nu() == 0 {
            return fail("the model has no actuator, so there are no actions".into());
        }
        let mut env = Mujoco {
            state: vec![0.0; model.state_size()],
            carry: Carry::default(),
            obs: Vec::new(),
            obs_size: 0,
            task: Box::new(task),
            spec,
            model,
        };
        let (qpos, qvel) = env.default_start();
        env.start(&qpos, &qvel)?;
        env.obs_size = env.obs.len();
        if env.obs_size == 0 {
            return Err(broken(&env.spec.id, "the observation has no numbers"));
        }
        Ok(env)
    }

    /// Returns the model's default positions, and velocities of zero.
    fn default_start(&self) -> (Vec<f64>, Vec<f64>) {
        (self.model.qpos0().to_vec(), vec![0.0; self.model.nv()])
    }

    /// Starts an episode at these positions and velocities, of `nq` and `nv` numbers, instead of
    /// the random ones of [`reset`](Env::reset).
    ///
    /// Returns an error for other lengths and for numbers that are not finite.
    pub fn reset_to(&mut self, qpos: &[f64], qvel: &[f64], obs: ObsMut<'_>) -> Result<()> {
        let (nq, nv) = (self.model.nq(), self.model.nv());
        if qpos.len() != nq || qvel.len() != nv {
            return Err(Error::Env(format!(
                "{}: {nq} positions and {nv} velocities are needed, {} and {} were given",
                self.spec.id,
                qpos.len(),
                qvel.len()
            )));
        }
        self.start(qpos, qvel)?;
        self.write(obs)
    }

    /// Returns all visible geoms of a simulation, whose derived positions are up to date.
    fn solids(&self, simulation: &MjData<'_>) -> Vec<Solid> {
        let model = &self.model;
        let kinds = model.geom_type().iter().zip(model.geom_matid()).enumerate();
        kinds
            .filter_map(|(k, (&kind, &material))| {
                let of =
                    |values: &[f64]| -> [f64; 3] { std::array::from_fn(|i| values[3 * k + i]) };
                let size = of(model.geom_size());
                let material = usize::try_from(material).ok();
                let mut rgba: [f32; 4] = std::array::from_fn(|i| model.geom_rgba()[4 * k + i]);
                // MuJoCo's default color, which the material's color overrides.
                if let (Some(material), [0.5, 0.5, 0.5, 1.0]) = (material, rgba) {
                    rgba = std::array::from_fn(|i| model.mat_rgba()[4 * material + i]);
                }
                let shape = match kind {
                    0 => {
                        // The texture is two by two squares, repeated this often over the whole
                        // plane.
                        let repeat = material.map(|m| f64::from(model.mat_texrepeat()[2 * m]));
                        let square = repeat.map(|repeat| size[0] / repeat);
                        let square = square.filter(|square| square.is_finite() && *square > 0.0);
                        // A floor is infinite, as in the physics: robots leave the part that MuJoCo
                        // draws.
                        let edge = if square.is_some() { [0.0; 2] } else { [size[0], size[1]] };
                        Shape::Plane { size: edge, square }
                    }
                    2 => Shape::Ellipsoid([size[0]; 3]),
                    3 => Shape::Capsule(size[0], size[1]),
                    4 => Shape::Ellipsoid(size),
                    5 => Shape::Cylinder(size[0], size[1]),
                    6 => Shape::Box(size),
                    _ => return None,
                };
                let axes = std::array::from_fn(|i| simulation.geom_xmat()[9 * k + i]);
                let color = [rgba[0], rgba[1], rgba[2]].map(f64::from);
                (rgba[3] > 0.0).then_some(Solid {
                    shape,
                    at: of(simulation.geom_xpos()),
                    axes,
                    color,
                })
            })
            .collect()
    }

    /// Returns the camera of the images.
    fn camera(&self, simulation: &mut MjData<'_>) -> Camera {
        if let Some(k) = self.model.camera("track") {
            return Camera {
                at: std::array::from_fn(|i| simulation.cam_xpos()[3 * k + i]),
                axes: std::array::from_fn(|i| simulation.cam_xmat()[9 * k + i]),
                fovy: self.model.cam_fovy()[k],
            };
        }
        // As in gymnasium: the middle of the geoms at the start, unless the task sets another
        // point.
        let (mut lookat, mut distance) = ([0.0; 3], self.model.extent());
        simulation.reset(self.model.qpos0(), &vec![0.0; self.model.nv()]);
        for (axis, at) in lookat.iter_mut().enumerate() {
            let mut all: Vec<f64> =
                simulation.geom_xpos().iter().skip(axis).step_by(3).copied().collect();
            all.sort_by(f64::total_cmp);
            *at = 0.5 * (all[(all.len() - 1) / 2] + all[all.len() / 2]);
        }
        if let Some(camera) = self.spec.camera {
            (distance, lookat) = (camera.distance, camera.lookat.unwrap_or(lookat));
        }
        Camera::free(lookat, distance, 90.0, -45.0)
    }

    fn start(&mut self, qpos: &[f64], qvel: &[f64]) -> Result<()> {
        let Mujoco { task, spec, state, carry, obs, .. } = self;
        let work = |data: &mut MjData<'_>| {
            data.reset(qpos, qvel);
            data.check()?;
            data.state(state);
            *carry = task.carry(data)?;
            obs.clear();
            task.observe(data, obs)
        };
        self.model.simulate(work).map_err(|error| broken(&spec.id, &error))
    }

    /// Writes the observation to its row.
    fn write(&self, mut row: ObsMut<'_>) -> Result<()> {
        let (numbers, expected) = (self.obs.len(), self.obs_size);
        if numbers != expected {
            let problem =
                format!("the observation has {numbers} numbers, the first had {expected}");
            return Err(broken(&self.spec.id, &problem));
        }
        match self.spec.obs_dtype {
            DType::F64 => row.write(&self.obs),
            _ => {
                let row = row.elements::<f32>();
                row.iter_mut().zip(&self.obs).for_each(|(to, &from)| *to = from as f32);
            }
        }
        Ok(())
    }
}

fn broken(id: &str, error: &(impl std::fmt::Display + ?Sized)) -> Error {
    Error::Env(format!("{id}: {error}"))
}

impl Env for Mujoco {
    fn spec(&self) -> EnvSpec {
        let side = |side: usize| -> Bound {
            let range = self.model.control_range();
            range.map(|range| f64::from(range[side] as f32)).collect::<Vec<_>>().into()
        };
        EnvSpec {
            id: self.spec.id.clone(),
            observation: Space::Box {
                low: f64::NEG_INFINITY.into(),
                high: f64::INFINITY.into(),
                shape: [self.obs_size].into(),
                dtype: self.spec.obs_dtype,
            },
            action: Space::f32([self.model.nu()], side(0), side(1)),
            max_episode_steps: self.spec.max_episode_steps,
            reward_threshold: self.spec.reward_threshold,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let (mut qpos, mut qvel) = self.default_start();
        self.task.reset(rng, &mut qpos, &mut qvel);
        self.start(&qpos, &qvel)?;
        self.write(obs)
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        row: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let Mujoco { task, spec, model, state, carry, obs, .. } = self;
        let action = match action {
            Action::Box(values) if values.len() == model.nu() => values,
            other => {
                let nu = model.nu();
                return Err(broken(&spec.id, &format!("{nu} numbers are needed, not {other:?}")));
            }
        };
        let work = |data: &mut MjData<'_>| {
            data.set_state(state);
            data.control(action);
            data.step(spec.frame_skip);
            if spec.cfrc_ext {
                data.rne_post_constraint();
            }
            data.check()?;
            let (before, after) = (*carry, task.carry(data)?);
            let dt = spec.dt(data.model.timestep());
            let outcome = task.reward(&MujocoStep { data, action, before, after, dt })?;
            obs.clear();
            task.observe(data, obs)?;
            // Only now, so that an error leaves the environment in the state before the step.
            data.state(state);
            *carry = after;
            Ok(outcome)
        };
        let (reward, terminated) =
            model.simulate(work).map_err(|error| broken(&spec.id, &error))?;
        self.write(row)?;
        Ok(StepOutcome::new(reward, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let work = |simulation: &mut MjData<'_>| {
            simulation.set_state(&self.state);
            simulation.forward();
            let solids = self.solids(simulation);
            Ok((solids, self.camera(simulation)))
        };
        let (solids, camera) = self.model.simulate(work).ok()?;
        let fps = (1.0 / self.spec.dt(self.model.timestep())).round().max(1.0) as u32;
        Some(Frame { fps, ..draw(&solids, &camera, self.spec.render_size) })
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(super::env::save_f64(&[&self.carry[..], &self.state].concat()))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let (bytes, rest) = state.as_chunks::<8>();
        let expected = self.carry.len() + self.state.len();
        if bytes.len() != expected || !rest.is_empty() {
            return Err(Error::Env(format!(
                "{}: a saved state has {} bytes, this one has {}",
                self.spec.id,
                8 * expected,
                state.len()
            )));
        }
        let values = self.carry.iter_mut().chain(&mut self.state);
        values.zip(bytes).for_each(|(value, bytes)| *value = f64::from_le_bytes(*bytes));
        Ok(())
    }
}
