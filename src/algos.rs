//! Algorithms, one file each, in the same order: settings, network, rollout, loss, update,
//! training. No algorithm imports another, so that the diff of two files is the difference between
//! the two algorithms. Shared code is in [`rl`](crate::rl).

#![allow(missing_docs)] // Fields have their shapes beside them.

/// Implements [`Algorithm`](crate::rl::Algorithm) for an algorithm of the [`registry`]: as
/// [`algorithm!`](crate::algorithm) does, with the environments that it supports, which are a constant
/// of [`EnvSupport`](crate::rl::EnvSupport), and the flags of small environments, if they differ.
macro_rules! registered_algorithm {
    ($args:ty, $name:literal, $envs:ident, $check:path, $train:path, $policy:path
        $(, play = $play:path)? $(, vector_defaults = $vector_defaults:expr)?) => {
        crate::algorithm!(@with $args, $name, $train, [$policy], [$($play)?], {
            const ENVS: crate::rl::EnvSupport = crate::rl::EnvSupport::$envs;

            $(const VECTOR_DEFAULTS: &'static [&'static str] = $vector_defaults;)?

            fn check(&self) -> crate::Result<()> {
                $check(self)
            }

            fn explain(&self, error: crate::Error) -> crate::Error {
                crate::algos::registry::with_alternatives(self, error)
            }
        });
    };
}

pub mod a2c;
pub mod a2c_continuous_action;
pub mod c51;
pub mod c51_atari;
pub mod cleanba_impala;
pub mod cleanba_ppo;
pub mod crossq_continuous_action;
pub mod ddpg_continuous_action;
pub mod dpo_anakin;
pub mod dqn;
pub mod dqn_anakin;
pub mod dqn_atari;
pub mod fast_sac;
pub mod fast_td3;
pub mod iqn;
pub mod ppg;
pub mod ppo;
pub mod ppo_anakin;
pub mod ppo_anakin_gru;
pub mod ppo_atari;
pub mod ppo_atari_envpool;
pub mod ppo_atari_lstm;
pub mod ppo_atari_multigpu;
pub mod ppo_continuous_action;
pub mod ppo_continuous_action_lstm;
pub mod ppo_masked;
pub mod ppo_pettingzoo_ma_atari;
pub mod ppo_rnd_envpool;
pub mod ppo_self_play;
pub mod ppo_trxl;
pub mod pqn;
pub mod pqn_atari_envpool;
pub mod pqn_atari_envpool_lstm;
pub mod qdagger_dqn_atari;
pub mod qrdqn;
pub mod rainbow_atari;
pub mod registry;
pub mod rpo_continuous_action;
pub mod sac_atari;
pub mod sac_continuous_action;
pub mod sebulba_sac;
pub mod simba_sac;
pub mod td3_continuous_action;
