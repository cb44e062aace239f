//! Environments that an algorithm supports.

use crate::envs::{self, EnvSpec, ObsKind, Space, is_python, traced};
use crate::rl::environments::bounds::bounds_of;

/// Environments that an algorithm supports: kinds of observations and actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvSupport {
    /// Kinds of observation; `None` for every observation.
    pub obs_kinds: Option<&'static [ObsKind]>,
    /// Number of stacked frames of 84 by 84, if the algorithm takes no other images.
    pub num_frames: Option<usize>,
    /// Actions.
    pub actions: ActionSupport,
    /// True if the environments must be traced functions.
    pub traced: bool,
}

/// Actions that an algorithm supports. [`ActionKind`](crate::spaces::ActionKind) describes those of
/// one environment, with their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionSupport {
    /// Discrete actions.
    Discrete,
    /// Vectors of numbers.
    Continuous,
    /// Vectors of numbers with finite bounds.
    BoundedContinuous,
    /// Discrete actions and vectors of numbers.
    DiscreteOrContinuous,
    /// Discrete actions, and MultiDiscrete actions for one player; a mask of allowed choices is an
    /// ordinary part of the observation.
    DiscreteOrMultiDiscrete,
    /// MultiDiscrete actions with a mask of allowed choices, for this number of players.
    Masked(usize),
}

impl EnvSupport {
    const fn new(obs_kinds: &'static [ObsKind], actions: ActionSupport) -> EnvSupport {
        EnvSupport { obs_kinds: Some(obs_kinds), num_frames: None, actions, traced: false }
    }

    /// Vector observations, discrete actions.
    pub const VECTORS: EnvSupport = EnvSupport::new(&[ObsKind::Vector], ActionSupport::Discrete);
    /// Vector observations, continuous actions.
    pub const CONTINUOUS: EnvSupport =
        EnvSupport::new(&[ObsKind::Vector], ActionSupport::Continuous);
    /// Vector observations, continuous actions with finite bounds.
    pub const BOUNDED_CONTINUOUS: EnvSupport =
        EnvSupport::new(&[ObsKind::Vector], ActionSupport::BoundedContinuous);
    /// Images or boards, discrete actions.
    pub const IMAGES: EnvSupport =
        EnvSupport::new(&[ObsKind::Image, ObsKind::Board], ActionSupport::Discrete);
    /// Stacks of four frames or boards, discrete actions.
    pub const FOUR_FRAMES_OR_BOARDS: EnvSupport =
        EnvSupport { num_frames: Some(4), ..EnvSupport::IMAGES };
    /// Stacks of four frames, discrete actions.
    pub const FOUR_FRAMES: EnvSupport = EnvSupport {
        num_frames: Some(4),
        ..EnvSupport::new(&[ObsKind::Image], ActionSupport::Discrete)
    };
    /// Images, boards or vectors; discrete actions.
    pub const DISCRETE: EnvSupport = EnvSupport::new(
        &[ObsKind::Image, ObsKind::Board, ObsKind::Vector],
        ActionSupport::Discrete,
    );
    /// Images, boards or vectors; discrete or continuous actions.
    pub const ALL: EnvSupport =
        EnvSupport { actions: ActionSupport::DiscreteOrContinuous, ..EnvSupport::DISCRETE };
    /// Images, boards or vectors; discrete or MultiDiscrete actions.
    pub const DISCRETE_OR_MULTI_DISCRETE: EnvSupport =
        EnvSupport { actions: ActionSupport::DiscreteOrMultiDiscrete, ..EnvSupport::DISCRETE };
    /// Vector observations with a mask of the allowed choices, one player.
    pub const MASKED: EnvSupport = EnvSupport::new(&[ObsKind::Vector], ActionSupport::Masked(1));
    /// Vector observations with a mask of the allowed choices, two players.
    pub const TWO_PLAYERS: EnvSupport =
        EnvSupport::new(&[ObsKind::Vector], ActionSupport::Masked(2));
    /// Traced functions with discrete or continuous actions.
    pub const TRACED: EnvSupport = EnvSupport { obs_kinds: None, traced: true, ..EnvSupport::ALL };
    /// Traced functions with images, boards or vectors, and discrete actions.
    pub const TRACED_DISCRETE: EnvSupport = EnvSupport { traced: true, ..EnvSupport::DISCRETE };

    /// Returns true if the algorithm supports the environment.
    pub fn fits(&self, spec: &EnvSpec) -> bool {
        let vectors = || self.obs_kinds.is_some_and(|kinds| kinds.contains(&ObsKind::Vector));
        (self.obs_kinds.is_none()
            || self.obs_kind(&spec.observation).is_some()
            || (is_flattened(spec) && vectors()))
            && self.actions.fits(spec)
            && (!self.traced || traced::is_traced(&spec.id))
    }

    /// Returns the kind of observations of a space, if the algorithm supports them.
    pub(in crate::rl) fn obs_kind(&self, observation: &Space) -> Option<ObsKind> {
        let kind = ObsKind::of(observation)?;
        let right_number = match (kind, self.num_frames) {
            (ObsKind::Image, Some(num_frames)) => observation.shape()[..] == [num_frames, 84, 84],
            _ => true,
        };
        let known = self.obs_kinds.is_none_or(|kinds| kinds.contains(&kind));
        (known && right_number).then_some(kind)
    }

    /// Returns a description of the supported observations, for error messages.
    pub(in crate::rl) fn observations(&self) -> String {
        let of_kind = |kind: &ObsKind| match (kind, self.num_frames) {
            (ObsKind::Image, Some(num_frames)) => format!("images u8[{num_frames}, 84, 84]"),
            _ => kind.to_string(),
        };
        let kinds: Vec<String> = self.obs_kinds.unwrap_or_default().iter().map(of_kind).collect();
        kinds.join(" or ")
    }
}

impl ActionSupport {
    fn fits(self, spec: &EnvSpec) -> bool {
        let discrete = matches!(spec.action, Space::Discrete { .. });
        match self {
            ActionSupport::Discrete => discrete,
            ActionSupport::Continuous => bounds_of(&spec.action).is_ok(),
            ActionSupport::BoundedContinuous => {
                bounds_of(&spec.action).is_ok_and(|bounds| bounds.are_finite())
            }
            ActionSupport::DiscreteOrContinuous => discrete || bounds_of(&spec.action).is_ok(),
            ActionSupport::DiscreteOrMultiDiscrete => {
                let multi_discrete = matches!(spec.action, Space::MultiDiscrete { .. });
                discrete || (multi_discrete && num_players(spec) == 1)
            }
            ActionSupport::Masked(players) => {
                let masked = matches!(&spec.action, Space::MultiDiscrete { masked: true, .. });
                masked && players == num_players(spec)
            }
        }
    }
}

/// Returns true for observations of Python that become vectors in the environments of an algorithm, as by
/// CleanRL's wrapper `FlattenObservation`: those of a Discrete, and arrays of floats with several axes.
pub(in crate::rl) fn is_flattened(spec: &EnvSpec) -> bool {
    let flattened = match &spec.observation {
        Space::Discrete { .. } => true,
        Space::Box { shape, dtype, .. } => dtype.is_float() && shape.rank() > 1,
        _ => false,
    };
    flattened && is_python(&spec.id)
}

/// Returns the number of players of an environment.
pub(in crate::rl) fn num_players(spec: &EnvSpec) -> usize {
    envs::num_players(&spec.id)
}
