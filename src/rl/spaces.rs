//! Which environments an algorithm fits: sizes of their spaces, or an error that says what would.

use super::fitting::advice;
use crate::Tensor;
use crate::envs::own::TWO_PLAYERS;
use crate::envs::{Bound, EnvSpec, Space};
use crate::error::{Error, Result};
use crate::nn::View;
use crate::random::{self, Key};
use crate::trace::DType;
use crate::trace::ops::constant;

/// How many numbers an observation has; for vectors of `f32` or `f64`.
///
/// # Errors
/// [`Error::Config`] for other observations; `algorithm` is its name.
pub fn vector(algorithm: &str, spec: &EnvSpec) -> Result<usize> {
    let observation = &spec.observation;
    if !observation.dtype().is_float() || observation.shape().rank() != 1 {
        return Err(Error::Config(format!(
            "--env-id {}: {algorithm} takes vectors of floats, and this environment gives \
             {observation}; {}",
            spec.id,
            advice(spec)
        )));
    }
    Ok(observation.shape()[0])
}

/// The shape of an observation, for images `u8[channels, height, width]` of that shape.
///
/// # Errors
/// [`Error::Config`] for other observations; `algorithm` is its name.
pub fn images(algorithm: &str, spec: &EnvSpec, shape: [usize; 3]) -> Result<()> {
    let observation = &spec.observation;
    if observation.dtype() != DType::U8 || observation.shape()[..] != shape {
        return Err(Error::Config(format!(
            "--env-id {}: {algorithm} takes images u8{shape:?}, and this environment gives \
             {observation}; {}",
            spec.id,
            advice(spec)
        )));
    }
    Ok(())
}

/// What an observation is, if it is something of `views`.
///
/// # Errors
/// [`Error::Config`] for other observations; `algorithm` is its name.
pub fn view(algorithm: &str, spec: &EnvSpec, views: &[View]) -> Result<View> {
    let observation = &spec.observation;
    match View::of(&observation.shape(), observation.dtype()) {
        Some(view) if views.contains(&view) => Ok(view),
        _ => {
            let views: Vec<_> = views.iter().map(ToString::to_string).collect();
            Err(Error::Config(format!(
                "--env-id {}: {algorithm} takes {}, and this environment gives {observation}; {}",
                spec.id,
                views.join(" or "),
                advice(spec)
            )))
        }
    }
}

/// How many actions there are; for discrete ones.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is its name.
pub fn choices(algorithm: &str, spec: &EnvSpec) -> Result<usize> {
    match &spec.action {
        Space::Discrete { n } => Ok(*n),
        other => Err(Error::Config(format!(
            "--env-id {}: {algorithm} chooses among discrete actions, and this environment takes \
             {other}; {}",
            spec.id,
            advice(spec)
        ))),
    }
}

/// Observations and actions of environments that say which actions are allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Masked {
    /// How many numbers an observation has, without those that say what is allowed.
    pub features: usize,
    /// How many choices each component of an action has.
    pub nvec: Vec<usize>,
}

impl Masked {
    /// How many numbers say what is allowed: one for each choice of each component.
    pub fn choices(&self) -> usize {
        self.nvec.iter().sum()
    }

    /// An observation `[.., features + choices]` as `f32[.., features]`, and `bool[.., choices]` that
    /// says what is allowed.
    pub fn split(&self, obs: Tensor) -> (Tensor, Tensor) {
        let allowed = obs.slice_axis(-1, self.features, self.features + self.choices());
        (obs.slice_axis(-1, 0, self.features).to(DType::F32), allowed.gt(0.5))
    }
}

/// The sizes of an environment with masked actions and `players` players, 1 or 2.
///
/// # Errors
/// [`Error::Config`] for others; `algorithm` is its name.
pub fn masked(algorithm: &str, spec: &EnvSpec, players: usize) -> Result<Masked> {
    let there = if TWO_PLAYERS.contains(&spec.id.as_str()) { 2 } else { 1 };
    if there != players {
        return Err(Error::Config(format!(
            "--env-id {}: {algorithm} is for {players} player{}, and this environment has {there}; \
             ppo_self_play is for two",
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
             which are allowed, and this environment takes {other}; {}",
            spec.id,
            advice(spec)
        ))),
    }
}

/// The bounds of the actions; for vectors of numbers with bounds.
///
/// # Errors
/// [`Error::Config`] for other actions; `algorithm` is its name.
pub fn bounds(algorithm: &str, spec: &EnvSpec) -> Result<Bounds> {
    bounds_of(&spec.action).map_err(|problem| {
        Error::Config(format!(
            "--env-id {}: {algorithm} {problem}, and this environment takes {}; {}",
            spec.id,
            spec.action,
            advice(spec)
        ))
    })
}

/// The bounds of actions, or what an algorithm that needs some says of them.
pub(super) fn bounds_of(action: &Space) -> std::result::Result<Bounds, &'static str> {
    let Space::Box { low, high, shape, dtype } = action else {
        return Err("takes continuous actions");
    };
    if shape.rank() != 1 || *dtype != DType::F32 {
        return Err("takes vectors of f32 as actions");
    }
    let side = |bound: &Bound| (0..shape[0]).map(|i| bound.at(i) as f32).collect();
    let bounds = Bounds { low: side(low), high: side(high) };
    if bounds.low.iter().chain(&bounds.high).any(|bound| !bound.is_finite()) {
        return Err("needs bounds of every action");
    }
    Ok(bounds)
}

/// The bounds of continuous actions, which are vectors of A numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Bounds {
    /// From `low` to `high`, of as many elements.
    ///
    /// # Errors
    /// [`Error::Config`] if they differ in number, or if an upper bound is not above the lower one.
    pub fn new(low: &[f32], high: &[f32]) -> Result<Bounds> {
        let rising = low.iter().zip(high).all(|(low, high)| low < high);
        if low.len() != high.len() || !rising {
            return Err(Error::Config(format!(
                "the bounds of actions from {low:?} to {high:?}: must be as many, and rising"
            )));
        }
        Ok(Bounds { low: low.to_vec(), high: high.to_vec() })
    }

    /// A: how many numbers an action has.
    pub fn size(&self) -> usize {
        self.low.len()
    }

    /// The lower bounds, `f32[A]`.
    pub fn low(&self) -> Tensor {
        constant(self.low.as_slice())
    }

    /// The upper bounds, `f32[A]`.
    pub fn high(&self) -> Tensor {
        constant(self.high.as_slice())
    }

    /// Half of the distance between them, `f32[A]`: CleanRL's `action_scale`.
    pub fn scale(&self) -> Tensor {
        (self.high() - self.low()) / 2.0
    }

    /// The middle between them, `f32[A]`: CleanRL's `action_bias`.
    pub fn bias(&self) -> Tensor {
        (self.high() + self.low()) / 2.0
    }

    /// `n` actions, each element drawn evenly from between its bounds: `f32[n, A]`.
    pub fn sample(&self, key: Key<Tensor>, n: usize) -> Tensor {
        let unit = random::uniform(key, [n, self.size()], DType::F32, 0.0, 1.0);
        self.low() + unit * (self.high() - self.low())
    }

    /// `action: f32[.., A]`, each element between its bounds.
    pub fn clip(&self, action: Tensor) -> Tensor {
        action.maximum(self.low()).minimum(self.high())
    }
}
