//! Tasks of MuJoCo: the trait that a robot of one's own implements, and its specification.

use super::data::MjData;
use super::model::Mjcf;
use crate::envs::env::seeds::EnvRng;
use crate::error::Result;
use crate::trace::types::DType;

/// Camera of the images of a model that has none named `track`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FreeCamera {
    /// Distance from the point that it looks at, in metres.
    pub distance: f64,
    /// Point that it looks at; `None` for the middle of the model.
    pub lookat: Option<[f64; 3]>,
}

/// Specification of a [`MujocoTask`]. `..Default::default()` sets all but the model.
#[derive(Debug, Clone, PartialEq)]
pub struct MujocoSpec {
    /// Id, as in `Hopper-v5`; error messages have it.
    pub id: String,
    /// Model of the robot and of the world around it.
    pub model: Mjcf,
    /// Number of physics steps in one step of the environment.
    pub frame_skip: u32,
    /// Number of steps after which an episode is truncated.
    pub max_episode_steps: Option<u32>,
    /// Mean return of a solved task.
    pub reward_threshold: Option<f64>,
    /// Type of the observations, to which they are rounded: `DType::F64` or `DType::F32`.
    pub obs_dtype: DType,
    /// True if each step ends with the computation of [`MjData::cfrc_ext`], which takes time.
    pub cfrc_ext: bool,
    /// Camera of the images; `None` for MuJoCo's default.
    pub camera: Option<FreeCamera>,
    /// Number of rows, and of columns, of the images.
    pub render_size: usize,
}

impl MujocoSpec {
    /// Returns the seconds of one step of the environment, whose physics has this timestep.
    pub(super) fn dt(&self, timestep: f64) -> f64 {
        timestep * f64::from(self.frame_skip)
    }
}

impl Default for MujocoSpec {
    fn default() -> Self {
        MujocoSpec {
            id: "MujocoTask".into(),
            model: Mjcf::Text("<mujoco/>".into()),
            frame_skip: 1,
            max_episode_steps: Some(1000),
            reward_threshold: None,
            obs_dtype: DType::F32,
            cfrc_ext: false,
            camera: None,
            render_size: 240,
        }
    }
}

/// Values of a step that the reward of the next needs, such as a position.
pub type Carry = [f64; 2];

/// A robot and its task, from which [`Mujoco`](super::Mujoco) makes an environment: what
/// Gymnasium's `MujocoEnv` asks of a subclass.
///
/// ```
/// use podracer::Result;
/// use podracer::envs::mujoco::{Mjcf, MjData, Mujoco, MujocoSpec, MujocoStep, MujocoTask};
///
/// /// A ball on a slide is rewarded for staying near the origin.
/// struct Slide;
///
/// impl MujocoTask for Slide {
///     fn spec(&self) -> MujocoSpec {
///         let model = r#"<mujoco><worldbody><body name="ball">
///             <joint name="x" type="slide" axis="1 0 0" damping="0.1"/><geom size="0.1"/>
///         </body></worldbody><actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>"#;
///         MujocoSpec { id: "Slide-v0".into(), model: Mjcf::Text(model.into()), ..Default::default() }
///     }
///
///     fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)> {
///         let x = step.data.body("ball")?.xpos[0];
///         Ok((-x.abs(), x.abs() > 2.0))
///     }
///
///     fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()> {
///         obs.extend_from_slice(data.qpos());
///         obs.extend_from_slice(data.qvel());
///         Ok(())
///     }
/// }
///
/// podracer::envs::register("Slide-v0", || Ok(Box::new(Mujoco::from_task(Slide)?)))?;
/// # Ok::<(), podracer::Error>(())
/// ```
pub trait MujocoTask: Send + Sync + 'static {
    /// Returns the specification.
    fn spec(&self) -> MujocoSpec;

    /// Changes the start of an episode: the model's default positions, `nq` numbers, and velocities
    /// of zero, `nv` numbers.
    fn reset(&self, _rng: &mut EnvRng, _qpos: &mut [f64], _qvel: &mut [f64]) {}

    /// Returns values of the start of an episode or of the end of a step that the reward of the
    /// next step needs. Positions and velocities before a step are not kept otherwise.
    ///
    /// # Errors
    /// Returns those of [`MjData`], which end the episode.
    fn carry(&self, _data: &MjData<'_>) -> Result<Carry> {
        Ok(Carry::default())
    }

    /// Returns the reward of a step, and true if it ended the episode.
    ///
    /// # Errors
    /// Returns those of [`MjData`], which end the episode.
    fn reward(&self, step: &MujocoStep<'_>) -> Result<(f64, bool)>;

    /// Appends the observation to `obs`: as many numbers each time.
    ///
    /// # Errors
    /// Returns those of [`MjData`], which end the episode.
    fn observe(&self, data: &MjData<'_>, obs: &mut Vec<f64>) -> Result<()>;
}

/// Step of a [`MujocoTask`], from which its reward is computed.
#[derive(Debug)]
pub struct MujocoStep<'a> {
    /// Simulation after the step.
    pub data: &'a MjData<'a>,
    /// Action, as it was given: the controls are within the actuators' ranges.
    pub action: &'a [f32],
    /// [`carry`](MujocoTask::carry) of the step before.
    pub before: Carry,
    /// [`carry`](MujocoTask::carry) of this step.
    pub after: Carry,
    /// Time of the step in seconds: the time of a physics step times the frame skip.
    pub dt: f64,
}
