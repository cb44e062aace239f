//! Wrappers around one environment, with gymnasium's names.
//!
//! Each has a function `wrap` that takes an environment and returns one, so wrappers can be
//! stacked:
//!
//! ```
//! use podracer::envs::wrappers::{ClipReward, FrameStack, RescaleAction};
//! use podracer::envs::{EnvPool, PoolOptions, make};
//!
//! let factory = |_| {
//!     let env = make("Pendulum-v1")?; // torque -2 to 2
//!     let env = RescaleAction::wrap(env, -1.0, 1.0)?;
//!     let env = ClipReward::wrap(env, -1.0, 1.0)?;
//!     FrameStack::wrap(env, 4)
//! };
//! let mut pool = EnvPool::custom(factory, PoolOptions { num_envs: 2, ..Default::default() })?;
//! assert_eq!(pool.reset()?.obs_shape(), [2, 4, 3].into());
//! let batch = pool.step(&[-1.0f32, 1.0])?;
//! assert!(batch.reward().iter().all(|reward| (-1.0..=0.0).contains(reward)));
//! # Ok::<(), podracer::error::Error>(())
//! ```
//!
//! Some of gymnasium's wrappers are options of the pool: time limits (`max_episode_steps`),
//! clipping of actions (`clip_actions`), automatic resets and episode statistics, which always
//! count the unchanged rewards.
//!
//! Normalization comes in three forms with the same arithmetic: [`NormalizeObservation`] and
//! [`NormalizeReward`] here, with separate statistics for each environment, as CleanRL's scripts
//! wrap theirs; [`ObservationNormalizer`] and [`RewardNormalizer`] over the rows of a pool's
//! batches, with shared statistics; and the latter as functions over tensors,
//! [`nn::normalize`](crate::nn::normalize).

mod action;
mod normalize;
mod observation;
mod reward;
mod running;
mod wrapped;

pub use action::RescaleAction;
pub use normalize::{
    NormalizeObservation, NormalizeObservationOptions, NormalizeReward, NormalizeRewardOptions,
    ObservationNormalizer, RewardNormalizer,
};
pub use observation::{FlattenObservation, FrameStack};
pub use reward::{ClipReward, TransformReward};
pub use running::RunningMeanStd;
pub use wrapped::{Wrapper, wrap};
