//! Environments, and the pool that steps many of them together.
//!
//! The modules, from the bottom up: the trait that an environment implements (`env`), with its
//! specification, whose spaces are those of [`spaces`](crate::spaces), and its seeds; wrappers around one
//! environment ([`wrappers`]); the pool (`pool`): columns of a step, batch memory, episodes and resets of
//! one environment, checks of actions, processes and threads that step environments, episode statistics,
//! failed steps, videos; and
//! its interface for compiled code (`xla`). The families of environments are built on the pool (`atari`,
//! `classic`, `gymnasium`, `jax`, `memory_tasks`, `minatar`, `mujoco`, `podracer`, `toy_text`), each with its
//! list of ids; `registry` finds all of them by id. [`traced`] has some environments as functions of tensors.
//!
//! ```
//! use podracer::envs::{EnvPool, PoolOptions, list_envs};
//!
//! assert!(list_envs().contains(&"CartPole-v1"));
//! let options = PoolOptions { num_envs: 8, seed: 1, ..Default::default() };
//! let mut pool = EnvPool::make("CartPole-v1", options)?;
//! pool.reset()?;
//! for _ in 0..100 {
//!     let batch = pool.step(&[1; 8])?; // rows: obs f32[8,4], reward f32[8], flags
//!     for row in 0..8 {
//!         // Where an episode ended, obs is already the next one's first.
//!         assert_eq!(batch.final_obs::<f32>(row).is_some(), batch.first()[row]);
//!     }
//! }
//! for episode in pool.take_finished() {
//!     assert_eq!(episode.episodic_return, f64::from(episode.length));
//! }
//! # Ok::<(), podracer::error::Error>(())
//! ```
//!
//! # An environment of your own
//!
//! Implement [`Env`] and pass [`EnvPool::custom`] a function that makes one. The pool adds threads,
//! time limits, resets, seeds and statistics. [`register`] gives the environment an id, by which
//! the algorithms of [`algos`](crate::algos) train on it.
//!
//! ```
//! use podracer::envs::{
//!     Action, Env, EnvPool, EnvRng, EnvSpec, ObsMut, PoolOptions, Space, StepOutcome,
//! };
//! use podracer::error::Result;
//!
//! /// Guess on which side of zero a hidden number lies; the observation is the number with noise.
//! struct Sign {
//!     // Only what changes. Time limits and statistics are the pool's, so is the generator.
//!     hidden: f64,
//! }
//!
//! impl Env for Sign {
//!     // Specification first: the pool sizes its buffers and checks actions by it. It must not
//!     // change, and must be the same for all environments of a pool.
//!     fn spec(&self) -> EnvSpec {
//!         EnvSpec {
//!             id: "Sign-v0".into(),
//!             // One f32 between -2 and 2. `Space::image([84, 84])` would be an image of bytes.
//!             observation: Space::f32([1], -2.0, 2.0),
//!             action: Space::Discrete { n: 2 },
//!             // After ten steps the pool sets `truncated`. Never count steps here.
//!             max_episode_steps: Some(10),
//!             reward_threshold: None,
//!         }
//!     }
//!
//!     // `rng` is the only source of randomness: the same seed then makes the same episodes.
//!     fn reset(&mut self, rng: &mut EnvRng, mut obs: ObsMut<'_>) -> Result<()> {
//!         self.hidden = rng.uniform(-1.0, 1.0);
//!         // Fill the whole row: it is a piece of the batch and holds something older.
//!         obs.write(&[self.hidden as f32]);
//!         Ok(())
//!     }
//!
//!     fn step(
//!         &mut self,
//!         action: Action<'_>, // inside the action space: the pool has checked
//!         rng: &mut EnvRng,
//!         mut obs: ObsMut<'_>,
//!     ) -> Result<StepOutcome> {
//!         let right = (action.discrete() == 1) == (self.hidden > 0.0);
//!         // The observation after the step, also where it ends the episode: the pool keeps it
//!         // as `final_obs` before it resets.
//!         obs.write(&[(self.hidden + rng.uniform(-1.0, 1.0)) as f32]);
//!         // `terminated` is an ending by the rules; cuts from outside are `truncated`.
//!         let terminated = !right;
//!         Ok(StepOutcome::new(if right { 1.0 } else { 0.0 }, terminated))
//!     }
//! }
//!
//! let options = PoolOptions { num_envs: 3, ..Default::default() };
//! let mut pool = EnvPool::custom(|_index| Ok(Box::new(Sign { hidden: 0.0 })), options)?;
//! let batch = pool.reset()?;
//! let actions: Vec<i32> = batch.obs::<f32>().iter().map(|&x| i32::from(x > 0.0)).collect();
//! let batch = pool.step(&actions)?;
//! assert_eq!(batch.reward(), [1.0; 3]);
//! # Ok::<(), podracer::error::Error>(())
//! ```

mod atari;
pub mod classic;
mod env;
mod gymnasium;
pub mod memory_tasks;
pub mod minatar;
pub mod mujoco;
pub mod podracer;
mod pool;
mod programs;
mod registry;
pub mod toy_text;
pub mod traced;
pub mod wrappers;
mod xla;

pub use atari::{AtariOptions, AtariStart, make_atari};
pub use env::seeds::{EnvRng, EnvSeed, seeds};
pub use env::spec::EnvSpec;
pub use env::{Action, Env, Frame, ObsMut, StepOutcome};
#[cfg(feature = "rl")]
pub(crate) use gymnasium::default_python;
#[cfg(feature = "rl")]
pub(crate) use gymnasium::is_python;
pub use gymnasium::{
    GymnasiumOptions, GymnasiumSpaces, gymnasium_options, gymnasium_spaces, is_envpool,
    is_gymnasium, is_pettingzoo, set_gymnasium_options,
};
pub use mujoco::MujocoOptions;
pub use pool::actions::Actions;
pub use pool::autoreset::Autoreset;
pub use pool::buffer::{ALIGNMENT, Batch, Field, SharedBytes};
pub use pool::camera::Camera;
pub use pool::failures::{Failure, OnError};
pub use pool::stats::Episode;
pub use pool::{EnvPool, PoolOptions};
#[cfg(feature = "rl")]
pub(crate) use pool::{MAX_ENVS, MAX_THREADS};
#[cfg(feature = "rl")]
pub(crate) use programs::jax_folder;
pub use registry::{
    is_registered, list_envs, make, native_parts, num_agents, num_players, register, register_with,
    set_env_kwargs, spec,
};
#[cfg(feature = "rl")]
pub(crate) use registry::{only_registered, takes_kwargs};
pub use xla::{EnvStep, Handle, XlaPool};

pub use crate::spaces::{ActionKind, Bound, ObsKind, Space};
