//! Compatibility of algorithms and environments, for error messages.

use crate::envs::own::TWO_PLAYERS;
use crate::envs::{EnvSpec, ObsKind, Space, traced};
use crate::rl::training::bounds::bounds_of;
use crate::trace::DType;

/// Kind of environment that an algorithm supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Vector observations and discrete actions.
    Vectors,
    /// Atari's stacks of four frames and discrete actions.
    Frames,
    /// As `Frames`, or MinAtar's boards.
    Images,
    /// As `Images`, or vector observations.
    Any,
    /// Vector observations and bounded continuous actions.
    Continuous,
    /// All of the above.
    All,
    /// Vector observations that include a mask of allowed choices, for this number of players.
    Masked(usize),
    /// Environments that are also traced functions.
    Traced,
}

/// Algorithms with the environments that they support. A test compares the names with
/// `algos::registry`, which this module cannot import.
const ALGORITHMS: &[(&str, Kind)] = &[
    ("ppo", Kind::Vectors),
    ("a2c", Kind::Vectors),
    ("dqn", Kind::Vectors),
    ("c51", Kind::Vectors),
    ("pqn", Kind::Vectors),
    ("ppo_anakin", Kind::Traced),
    ("ppo_atari", Kind::Images),
    ("ppo_atari_envpool", Kind::Frames),
    ("ppo_atari_lstm", Kind::Any),
    ("ppo_rnd_envpool", Kind::Images),
    ("ppg", Kind::Images),
    ("pqn_atari_envpool", Kind::Images),
    ("dqn_atari", Kind::Images),
    ("c51_atari", Kind::Images),
    ("rainbow_atari", Kind::Images),
    ("qdagger_dqn_atari", Kind::Images),
    ("sac_atari", Kind::Images),
    ("ppo_continuous_action", Kind::Continuous),
    ("rpo_continuous_action", Kind::Continuous),
    ("ddpg_continuous_action", Kind::Continuous),
    ("td3_continuous_action", Kind::Continuous),
    ("sac_continuous_action", Kind::Continuous),
    ("cleanba_ppo", Kind::All),
    ("cleanba_impala", Kind::All),
    ("ppo_masked", Kind::Masked(1)),
    ("ppo_self_play", Kind::Masked(2)),
];

/// Returns true if algorithms of this kind support the environment.
fn fits(kind: Kind, spec: &EnvSpec) -> bool {
    let obs_kind = ObsKind::of(&spec.observation);
    let (vector, board) = (obs_kind == Some(ObsKind::Vector), obs_kind == Some(ObsKind::Board));
    let frames = obs_kind == Some(ObsKind::Frames) && spec.observation.shape()[0] == 4;
    let discrete = matches!(spec.action, Space::Discrete { .. });
    match kind {
        Kind::Vectors => discrete && vector,
        Kind::Frames => discrete && frames,
        Kind::Images => discrete && (frames || board),
        Kind::Any => discrete && (frames || board || vector),
        Kind::Continuous => vector && bounds_of(&spec.action).is_ok(),
        Kind::All => (frames || board || vector) && (discrete || bounds_of(&spec.action).is_ok()),
        Kind::Masked(players) => {
            let there = if TWO_PLAYERS.contains(&spec.id.as_str()) { 2 } else { 1 };
            let masked = matches!(&spec.action, Space::MultiDiscrete { masked: true, .. });
            masked && vector && there == players
        }
        Kind::Traced => {
            let numbers = match &spec.action {
                Space::Box { shape, dtype: DType::F32, .. } => shape.rank() == 1,
                _ => false,
            };
            traced::list_envs().contains(&spec.id.as_str()) && (discrete || numbers)
        }
    }
}

/// Returns the names of the algorithms that support the environment.
pub fn fitting(spec: &EnvSpec) -> Vec<&'static str> {
    ALGORITHMS.iter().filter(|(_, kind)| fits(*kind, spec)).map(|(name, _)| *name).collect()
}

/// Returns the end of an error message: the algorithms that support the environment.
pub(in crate::rl) fn advice(spec: &EnvSpec) -> String {
    match fitting(spec).as_slice() {
        [] => "no algorithm here takes it".into(),
        names => format!("what fits it: {}", names.join(", ")),
    }
}
