//! `MountainCar-v0`; see [`crate::envs::classic`] for a description.

use super::{TracedEnv, TracedStep, never, observation};
use crate::envs::classic::MountainCar as Pooled;
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::random::{self, Key};
use crate::trace::ops::{full, where_, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

const MIN_POSITION: f64 = -1.2;
const MAX_POSITION: f64 = 0.6;
const MAX_SPEED: f64 = 0.07;
const GOAL_POSITION: f64 = 0.5;
const GOAL_VELOCITY: f64 = 0.0;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

/// A car whose engine is too weak to climb its hill directly.
#[derive(Debug, Clone)]
pub struct MountainCar {
    dtype: DType,
}

/// State of [`MountainCar`], scalars.
#[derive(Debug, Clone, Tree)]
pub struct MountainCarState<T> {
    /// Position along the track.
    pub position: T,
    /// Change of the position per step.
    pub velocity: T,
}

impl MountainCar {
    /// Makes `MountainCar-v0`.
    pub fn v0() -> MountainCar {
        MountainCar { dtype: DType::F32 }
    }

    /// Returns the environment with a state of `f32` or `f64`.
    pub fn with_dtype(self, dtype: DType) -> MountainCar {
        MountainCar { dtype }
    }
}

impl TracedEnv for MountainCar {
    type State = MountainCarState<Tensor>;

    fn spec(&self) -> EnvSpec {
        Pooled::v0().spec()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (MountainCarState<Tensor>, Tensor) {
        let position = random::uniform(key, [], self.dtype, -0.6, -0.4);
        let velocity = zeros([], self.dtype);
        (MountainCarState { position, velocity }, observation(&[position, velocity]))
    }

    #[track_caller]
    fn step(
        &self,
        state: MountainCarState<Tensor>,
        action: Tensor,
        _key: Key<Tensor>,
    ) -> TracedStep<Tensor, MountainCarState<Tensor>> {
        let push = (action.to(self.dtype) - 1.0) * FORCE;
        let velocity = state.velocity + (push + (3.0 * state.position).cos() * -GRAVITY);
        let velocity = velocity.clip(-MAX_SPEED, MAX_SPEED);
        let position = (state.position + velocity).clip(MIN_POSITION, MAX_POSITION);
        // The left wall stops the car without a bounce.
        let stopped = position.eq(MIN_POSITION) & velocity.lt(0.0);
        let velocity = where_(stopped, 0.0, velocity);
        TracedStep {
            obs: observation(&[position, velocity]),
            reward: full([], -1.0, DType::F32),
            terminated: position.ge(GOAL_POSITION) & velocity.ge(GOAL_VELOCITY),
            truncated: never(),
            state: MountainCarState { position, velocity },
        }
    }
}
