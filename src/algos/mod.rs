//! The algorithms: one complete file each, in one order: settings, network, losses, update,
//! rollout, training. None imports another, so that the difference of two files is the difference
//! of two algorithms. What they share is not an algorithm, and lives in [`rl`](crate::rl).

pub mod c51;
pub mod c51_atari;
pub mod ddpg_continuous_action;
pub mod dqn;
pub mod dqn_atari;
pub mod ppo;
pub mod ppo_anakin;
pub mod ppo_atari_envpool;
pub mod ppo_continuous_action;
pub mod pqn;
pub mod qdagger_dqn_atari;
pub mod rainbow_atari;
pub mod registry;
pub mod rpo_continuous_action;
pub mod sac_continuous_action;
pub mod td3_continuous_action;
