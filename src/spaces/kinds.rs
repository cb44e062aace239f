//! Kinds of observations and actions, by which networks and algorithms choose their layers.

use std::fmt;

use super::Space;
use crate::trace::types::DType;

/// Kind of observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObsKind {
    /// Image `u8[channels, height, width]` of at least 36 by 36 pixels. The channels are colors, or
    /// grayscale frames, such as Atari's four of 84 by 84.
    Image,
    /// Board `bool[height, width, kinds]`, such as MinAtar's.
    Board,
    /// Vector of floats.
    Vector,
}

impl fmt::Display for ObsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObsKind::Image => "images u8[channels, height, width] of at least 36 by 36",
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
            ([_, height, width], DType::U8) if *height >= 36 && *width >= 36 => {
                Some(ObsKind::Image)
            }
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
