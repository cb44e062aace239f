//! `CartPole-v1` and `CartPole-v0`; see [`crate::envs::classic`] for a description.

use super::{TracedEnv, TracedStep, never, observation};
use crate::envs::classic::CartPole as Pooled;
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::random::{self, Key};
use crate::trace::ops::ones;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

const GRAVITY: f64 = 9.8; // m/s^2
const MASS_POLE: f64 = 0.1; // kg
const TOTAL_MASS: f64 = MASS_POLE + 1.0; // kg, with the cart
const LENGTH: f64 = 0.5; // m, half of the pole
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0; // N
const TAU: f64 = 0.02; // s between steps
const THETA_LIMIT: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0; // rad
const X_LIMIT: f64 = 2.4; // m

/// A pole balanced on a cart.
#[derive(Debug, Clone)]
pub struct CartPole {
    spec: EnvSpec,
    dtype: DType,
}

/// State of [`CartPole`], scalars.
#[derive(Debug, Clone, Tree)]
pub struct CartPoleState<T> {
    /// Position of the cart, m.
    pub x: T,
    /// Velocity of the cart, m/s.
    pub x_dot: T,
    /// Angle of the pole, rad.
    pub theta: T,
    /// Angular velocity of the pole, rad/s.
    pub theta_dot: T,
}

impl CartPole {
    /// Makes `CartPole-v1`: 500 steps.
    pub fn v1() -> CartPole {
        CartPole { spec: Pooled::v1().spec(), dtype: DType::F32 }
    }

    /// Makes `CartPole-v0`: 200 steps.
    pub fn v0() -> CartPole {
        CartPole { spec: Pooled::v0().spec(), dtype: DType::F32 }
    }

    /// Returns the environment with a state of `f32` or `f64`.
    pub fn with_dtype(self, dtype: DType) -> CartPole {
        CartPole { dtype, ..self }
    }
}

impl CartPoleState<Tensor> {
    #[track_caller]
    fn observe(&self) -> Tensor {
        observation(&[self.x, self.x_dot, self.theta, self.theta_dot])
    }
}

impl TracedEnv for CartPole {
    type State = CartPoleState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.spec.clone()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (CartPoleState<Tensor>, Tensor) {
        let drawn = random::uniform(key, [4], self.dtype, -0.05, 0.05);
        let [x, x_dot, theta, theta_dot] = [0, 1, 2, 3].map(|i| drawn.index_axis(0, i));
        (CartPoleState { x, x_dot, theta, theta_dot }, drawn.to(DType::F32))
    }

    #[track_caller]
    fn step(
        &self,
        state: CartPoleState<Tensor>,
        action: Tensor,
        _key: Key<Tensor>,
    ) -> TracedStep<Tensor, CartPoleState<Tensor>> {
        let CartPoleState { x, x_dot, theta, theta_dot } = state;
        let force = action.to(self.dtype) * (2.0 * FORCE) - FORCE;
        let (sin, cos) = (theta.sin(), theta.cos());
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * temp)
            / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let next = CartPoleState {
            x: x + TAU * x_dot,
            x_dot: x_dot + TAU * x_acc,
            theta: theta + TAU * theta_dot,
            theta_dot: theta_dot + TAU * theta_acc,
        };
        // `le` and not a negated `>`: a NaN ends the episode.
        let inside = next.x.abs().le(X_LIMIT) & next.theta.abs().le(THETA_LIMIT);
        TracedStep {
            obs: next.observe(),
            state: next,
            reward: ones([], DType::F32),
            terminated: !inside,
            truncated: never(),
        }
    }
}
