//! `Pendulum-v1`; see [`crate::envs::classic`] for a description.

use std::f64::consts::PI;

use super::{TracedEnv, TracedStep, never, observation};
use crate::envs::classic::Pendulum as Pooled;
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::random::{self, Key};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

const MAX_SPEED: f64 = 8.0; // rad/s
const MAX_TORQUE: f64 = 2.0; // N m
const DT: f64 = 0.05; // s between steps
const GRAVITY: f64 = 10.0; // m/s^2; the mass is 1 kg and the length 1 m

/// A pendulum to swing up.
#[derive(Debug, Clone)]
pub struct Pendulum {
    dtype: DType,
}

/// State of [`Pendulum`], scalars.
#[derive(Debug, Clone, Tree)]
pub struct PendulumState<T> {
    /// Angle, rad; 0 is up.
    pub theta: T,
    /// Angular velocity, rad/s.
    pub theta_dot: T,
}

impl Pendulum {
    /// Makes `Pendulum-v1`.
    pub fn v1() -> Pendulum {
        Pendulum { dtype: DType::F32 }
    }

    /// Returns the environment with a state of `f32` or `f64`.
    pub fn with_dtype(self, dtype: DType) -> Pendulum {
        Pendulum { dtype }
    }
}

impl PendulumState<Tensor> {
    #[track_caller]
    fn observe(&self) -> Tensor {
        observation(&[self.theta.cos(), self.theta.sin(), self.theta_dot])
    }
}

impl TracedEnv for Pendulum {
    type State = PendulumState<Tensor>;

    fn spec(&self) -> EnvSpec {
        Pooled::v1().spec()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (PendulumState<Tensor>, Tensor) {
        let (angle, speed) = key.split();
        let state = PendulumState {
            theta: random::uniform(angle, [], self.dtype, -PI, PI),
            theta_dot: random::uniform(speed, [], self.dtype, -1.0, 1.0),
        };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: PendulumState<Tensor>,
        action: Tensor,
        _key: Key<Tensor>,
    ) -> TracedStep<Tensor, PendulumState<Tensor>> {
        // The torque is f32 in gymnasium, until it is combined with the state.
        let torque = action.index_axis(0, 0).clip(-MAX_TORQUE, MAX_TORQUE);
        let PendulumState { theta, theta_dot } = state;
        let angle = (theta + PI).modulo(2.0 * PI) - PI; // in [-pi, pi)
        let effort = (0.001 * (torque * torque)).to(self.dtype);
        let cost = angle * angle + 0.1 * (theta_dot * theta_dot) + effort;

        let acceleration = 3.0 * GRAVITY / 2.0 * theta.sin() + (3.0 * torque).to(self.dtype);
        let theta_dot = (theta_dot + acceleration * DT).clip(-MAX_SPEED, MAX_SPEED);
        let next = PendulumState { theta: theta + theta_dot * DT, theta_dot };
        TracedStep {
            obs: next.observe(),
            state: next,
            reward: (-cost).to(DType::F32),
            terminated: never(),
            truncated: never(),
        }
    }
}
