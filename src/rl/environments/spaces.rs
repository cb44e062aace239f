//! Sizes of the spaces of an environment, or an error that names what the algorithm supports.

use crate::Tensor;
use crate::envs::{ActionKind, EnvSpec, ObsKind, Space, is_gymnasium};
use crate::error::{Error, Result};
use crate::rl::environments::bounds::{Bounds, bounds_of};
use crate::rl::environments::support::{EnvSupport, num_players};
use crate::trace::{DType, Shape};

/// Returns the number of elements of an observation; for vectors of `f32` or `f64`.
///
/// # Errors
/// [`Error::Config`] for other observations; `algorithm` is the algorithm's name in the message.
pub fn vector(algorithm: &str, spec: &EnvSpec) -> Result<usize> {
    let observation = &spec.observation;
    if !observation.dtype().is_float() || observation.shape().rank() != 1 {
        return Err(Error::Config(format!(
            "--env-id {}: {algorithm} takes vectors of floats, and this environment gives \
             {observation}{}",
            spec.id,
            advice(spec)
        )));
    }
    Ok(observation.shape()[0])
}

/// Returns the kind of observation, if `supported` has it.
///
/// # Errors
/// [`Error::Config`] for other observations; `algorithm` is the algorithm's name in the message.
pub fn obs_kind(algorithm: &str, spec: &EnvSpec, supported: &EnvSupport) -> Result<ObsKind> {
    supported.obs_kind(&spec.observation).ok_or_else(|| {
        Error::Config(format!(
            "--env-id {}: {algorithm} takes {}, and this environment gives {}{}",
            spec.id,
            supported.observations(),
            spec.observation,
            advice(spec)
        ))
    })
}

/// Returns the flag that makes vectors of the observations, for the end of a message.
fn advice(spec: &EnvSpec) -> String {
    match &spec.observation {
        _ if is_gymnasium(&spec.id) => "; --env-wrappers gymnasium.wrappers.FlattenObservation \
                                        makes vectors of them"
            .into(),
        Space::Discrete { .. } => {
            format!("; --env-id gymnasium:{} is in Python, where they become vectors", spec.id)
        }
        _ => String::new(),
    }
}

/// Sizes that an agent with discrete actions needs to know of an environment.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Kind of observation.
    pub obs_kind: ObsKind,
    /// Shape of an observation.
    pub shape: Shape,
    /// Number of actions.
    pub num_actions: usize,
}

impl Sizes {
    /// Returns the sizes of an environment with observations that `supported` has.
    ///
    /// # Errors
    /// Returns the errors of [`obs_kind`] and [`choices`].
    pub fn from_spec(algorithm: &str, spec: &EnvSpec, supported: &EnvSupport) -> Result<Sizes> {
        let obs_kind = obs_kind(algorithm, spec, supported)?;
        let num_actions = choices(algorithm, spec)?;
        Ok(Sizes { obs_kind, shape: spec.observation.shape(), num_actions })
    }

    /// Returns the number of elements of an observation.
    pub fn obs_size(&self) -> usize {
        self.shape.numel()
    }
}

/// Returns the number of actions; for discrete ones.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is the algorithm's name in the message.
pub fn choices(algorithm: &str, spec: &EnvSpec) -> Result<usize> {
    match &spec.action {
        Space::Discrete { n } => Ok(*n),
        other => Err(Error::Config(format!(
            "--env-id {}: {algorithm} chooses among discrete actions, and this environment takes \
             {other}",
            spec.id
        ))),
    }
}

/// Returns the number of choices of each component of an action; for MultiDiscrete actions of one
/// player, and for discrete ones, which have one component.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is the algorithm's name in the message.
pub fn components(algorithm: &str, spec: &EnvSpec) -> Result<Vec<usize>> {
    match &spec.action {
        Space::Discrete { n } => Ok(vec![*n]),
        Space::MultiDiscrete { nvec, .. } if num_players(spec) == 1 => Ok(nvec.clone()),
        other => Err(Error::Config(format!(
            "--env-id {}: {algorithm} takes discrete and MultiDiscrete actions of one player, and \
             this environment has {} and takes {other}",
            spec.id,
            num_players(spec)
        ))),
    }
}

/// Returns the kind of action; for discrete actions and for vectors of numbers.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is the algorithm's name in the message.
pub fn action_kind(algorithm: &str, spec: &EnvSpec) -> Result<ActionKind> {
    match &spec.action {
        Space::Box { .. } => Ok(ActionKind::Continuous { size: bounds(algorithm, spec)?.size() }),
        _ => Ok(ActionKind::Discrete { num_actions: choices(algorithm, spec)? }),
    }
}

/// Sizes of environments with an action mask.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Masked {
    /// Number of elements of an observation, without the action mask.
    pub features: usize,
    /// Number of choices of each component of an action.
    pub nvec: Vec<usize>,
}

impl Masked {
    /// Returns the size of the action mask: one element for each choice of each component.
    pub fn choices(&self) -> usize {
        self.nvec.iter().sum()
    }

    /// Splits an observation `[.., features + choices]` into `f32[.., features]` and the action
    /// mask `bool[.., choices]`, which is true where the choice is allowed.
    pub fn split(&self, obs: Tensor) -> (Tensor, Tensor) {
        let allowed = obs.slice_axis(-1, self.features, self.features + self.choices());
        (obs.slice_axis(-1, 0, self.features).to(DType::F32), allowed.gt(0.5))
    }
}

/// Returns the sizes of an environment with an action mask and `players` players, 1 or 2.
///
/// # Errors
/// [`Error::Config`] for other environments; `algorithm` is the algorithm's name in the message.
pub fn masked(algorithm: &str, spec: &EnvSpec, players: usize) -> Result<Masked> {
    let there = num_players(spec);
    if there != players {
        return Err(Error::Config(format!(
            "--env-id {}: {algorithm} is for {players} player{}, and this environment has {there}",
            spec.id,
            if players == 1 { "" } else { "s" }
        )));
    }
    let size = vector(algorithm, spec)?;
    match &spec.action {
        Space::MultiDiscrete { nvec, masked: true } if nvec.iter().sum::<usize>() < size => {
            Ok(Masked { features: size - nvec.iter().sum::<usize>(), nvec: nvec.clone() })
        }
        other => Err(Error::Config(format!(
            "--env-id {}: {algorithm} takes masked MultiDiscrete actions, whose observations say \
             which are allowed, and this environment takes {other}",
            spec.id
        ))),
    }
}

/// Returns the bounds of the actions, which may be infinite; for vectors of numbers.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is the algorithm's name in the message.
pub fn bounds(algorithm: &str, spec: &EnvSpec) -> Result<Bounds> {
    bounds_of(&spec.action).map_err(|problem| {
        Error::Config(format!(
            "--env-id {}: {algorithm} {problem}, and this environment takes {}",
            spec.id, spec.action
        ))
    })
}

/// Returns the bounds of the actions; for vectors of numbers with finite bounds.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is the algorithm's name in the message.
pub fn finite_bounds(algorithm: &str, spec: &EnvSpec) -> Result<Bounds> {
    let bounds = bounds(algorithm, spec)?;
    if bounds.are_finite() {
        return Ok(bounds);
    }
    Err(Error::Config(format!(
        "--env-id {}: {algorithm} scales its actions to the bounds of the environment, and this \
         environment takes {}, which has none; give it a Box with finite bounds by a wrapper, or choose \
         an algorithm without bounds",
        spec.id, spec.action
    )))
}
