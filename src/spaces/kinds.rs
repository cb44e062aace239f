//! Kinds of observations and actions, by which networks and algorithms choose their layers.

use std::fmt;

use super::Space;
use crate::trace::types::DType;

/// Kind of observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObsKind {
    /// Stacked grayscale frames `u8[frames, 84, 84]`, such as Atari's.
    Frames,
    /// Board `bool[height, width, kinds]`, such as MinAtar's.
    Board,
    /// Vector of floats.
    Vector,
}

impl fmt::Display for ObsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObsKind::Frames => "images u8[frames, 84, 84]",
            ObsKind::Board => "boards bool[height, width, kinds]",
            ObsKind::Vector => "vectors of floats",
        })
    }
}

impl ObsKind {
    /// Returns the kind of observations of a space, or `None` for other observations.
    pub fn of(observation: &Space) -> Option<ObsKind> {
        let Space::Box { shape, dtype, .. } = observation else { return None };
        match (&shape[..], dtype) {
            ([_, 84, 84], DType::U8) => Some(ObsKind::Frames),
            ([height, width, _], DType::Bool) if *height >= 3 && *width >= 3 => {
                Some(ObsKind::Board)
            }
            ([_], DType::F32 | DType::F64) => Some(ObsKind::Vector),
            _ => None,
        }
    }
}

/// Kind of action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// One of several actions, `i32`.
    Discrete {
        /// Number of actions.
        num_actions: usize,
    },
    /// Vector of bounded numbers, `f32`.
    Continuous {
        /// Number of elements of the vector.
        size: usize,
    },
}

impl ActionKind {
    /// Returns the number of outputs of a policy's network: logits or means.
    pub fn num_outputs(self) -> usize {
        match self {
            ActionKind::Discrete { num_actions } => num_actions,
            ActionKind::Continuous { size } => size,
        }
    }
}
