//! The MuJoCo control tasks, step for step as in gymnasium.
//!
//! The physics is MuJoCo 3.3.7's own library (`library`), and the models are gymnasium's files;
//! both are native parts, located and if needed fetched when the first of these environments is
//! made. Gymnasium's Python code (observations, rewards, ends, resets) is ported to Rust, one file a
//! robot, with the same operations in the same order: tests compare it with recorded trajectories in
//! `tests/fixtures/envs`, to the last bit. `task` has what the robots share.

mod ant;
mod draw;
mod half_cheetah;
mod hopper;
mod humanoid;
mod humanoid_standup;
mod inverted_double_pendulum;
mod inverted_pendulum;
mod library;
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
use library::{Model, Simulation};
use task::{Bodies, Carried, Step, Task};

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

/// A MuJoCo task, as gymnasium's environment of the same id.
///
/// It keeps the state that the next step depends on, a few hundred bytes. The simulation itself, of
/// hundreds of kilobytes, is lent to it for each step by the model, which all environments share.
///
/// [`render`](Env::render) draws the model's geoms with its own ray caster, because the library
/// draws with OpenGL only: seen by the model's camera `track`, which follows the robot, or else
/// from gymnasium's viewpoint.
#[derive(Debug)]
pub struct Mujoco {
    task: &'static Task,
    model: Arc<Model>,
    bodies: Bodies,
    options: MujocoOptions,
    /// MuJoCo's integration state.
    state: Vec<f64>,
    /// Values of this step that the next reward needs: derived positions, which are not in the
    /// state.
    carried: Carried,
    /// Observation, before it is written to the row.
    obs: Vec<f64>,
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
        task.check(options)?;
        let model = Model::load(task.model)?;
        let mut env = Mujoco {
            bodies: task.bodies(&model)?,
            state: vec![0.0; model.state_size()],
            carried: Carried::default(),
            obs: Vec::new(),
            task,
            model,
            options: options.clone(),
        };
        let (qpos, qvel) = (env.model.qpos0().to_vec(), vec![0.0; env.model.nv()]);
        env.start(&qpos, &qvel)?;
        Ok(env)
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
                self.task.id,
                qpos.len(),
                qvel.len()
            )));
        }
        self.start(qpos, qvel)?;
        self.write(obs);
        Ok(())
    }

    /// Returns all visible geoms of a simulation, whose derived positions are up to date.
    fn solids(&self, simulation: &Simulation<'_>) -> Vec<Solid> {
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
    fn camera(&self, simulation: &mut Simulation<'_>) -> Camera {
        if let Some(k) = self.model.camera(c"track") {
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
        if let Some((from, to)) = self.task.robot.view() {
            (distance, lookat) = (from, to.unwrap_or(lookat));
        }
        Camera::free(lookat, distance, 90.0, -45.0)
    }

    fn start(&mut self, qpos: &[f64], qvel: &[f64]) -> Result<()> {
        let Mujoco { task, bodies, options, state, carried, obs, .. } = self;
        let work = |simulation: &mut Simulation<'_>| {
            simulation.reset(qpos, qvel);
            simulation.check()?;
            simulation.state(state);
            *carried = task.robot.carry(simulation, bodies);
            task.observe(options, simulation, bodies, obs);
            Ok(())
        };
        self.model.simulate(work).map_err(|error| broken(task.id, &error))
    }

    fn write(&self, mut obs: ObsMut<'_>) {
        match self.options.obs_dtype {
            DType::F64 => obs.write(&self.obs),
            _ => {
                let row = obs.elements::<f32>();
                assert_eq!(row.len(), self.obs.len(), "the row is as the specification says");
                row.iter_mut().zip(&self.obs).for_each(|(to, &from)| *to = from as f32);
            }
        }
    }
}

fn broken(id: &str, error: &Error) -> Error {
    Error::Env(format!("{id}: {error}"))
}

impl Env for Mujoco {
    fn spec(&self) -> EnvSpec {
        let range = self.model.actuator_ctrlrange();
        let side = |side: usize| -> Bound {
            range
                .iter()
                .skip(side)
                .step_by(2)
                .map(|&x| f64::from(x as f32))
                .collect::<Vec<_>>()
                .into()
        };
        EnvSpec {
            id: self.task.id.into(),
            observation: Space::Box {
                low: f64::NEG_INFINITY.into(),
                high: f64::INFINITY.into(),
                shape: [self.obs.len()].into(),
                dtype: self.options.obs_dtype,
            },
            action: Space::f32([self.model.nu()], side(0), side(1)),
            max_episode_steps: Some(self.task.max_episode_steps),
            reward_threshold: self.task.reward_threshold,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let (qpos, qvel) = self.task.draw(&self.options, &self.model, rng);
        self.start(&qpos, &qvel)?;
        self.write(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        row: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let Mujoco { task, model, bodies, options, state, carried, obs } = self;
        let action = match action {
            Action::Box(values) if values.len() == model.nu() => values,
            other => {
                let (id, nu) = (task.id, model.nu());
                return Err(Error::Env(format!("{id}: {nu} numbers are needed, not {other:?}")));
            }
        };
        let work = |simulation: &mut Simulation<'_>| {
            simulation.set_state(state);
            simulation.control(action);
            simulation.step(task.frame_skip);
            if task.robot.needs_forces(task.version) {
                simulation.rne_post_constraint();
            }
            simulation.check()?;
            simulation.state(state);
            let before = std::mem::replace(carried, task.robot.carry(simulation, bodies));
            let outcome = task.robot.reward(&Step {
                sim: simulation,
                version: task.version,
                action,
                before: &before,
                after: carried,
                dt: simulation.model.timestep() * f64::from(task.frame_skip),
                terminate_when_unhealthy: options.terminate_when_unhealthy,
            });
            task.observe(options, simulation, bodies, obs);
            Ok(outcome)
        };
        let (reward, terminated) = model.simulate(work).map_err(|error| broken(task.id, &error))?;
        self.write(row);
        Ok(StepOutcome::new(reward, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let work = |simulation: &mut Simulation<'_>| {
            simulation.set_state(&self.state);
            simulation.forward();
            let solids = self.solids(simulation);
            Ok((solids, self.camera(simulation)))
        };
        let (solids, camera) = self.model.simulate(work).ok()?;
        Some(draw(&solids, &camera, self.options.render_size))
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(super::env::save_f64(&[&self.carried[..], &self.state].concat()))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let (bytes, rest) = state.as_chunks::<8>();
        let expected = self.carried.len() + self.state.len();
        if bytes.len() != expected || !rest.is_empty() {
            return Err(Error::Env(format!(
                "{}: a saved state has {} bytes, this one has {}",
                self.task.id,
                8 * expected,
                state.len()
            )));
        }
        let values = self.carried.iter_mut().chain(&mut self.state);
        values.zip(bytes).for_each(|(value, bytes)| *value = f64::from_le_bytes(*bytes));
        Ok(())
    }
}
