//! `Acrobot-v1`; see [`crate::envs::classic`] for a description.

use std::f64::consts::PI;

use super::{TracedEnv, TracedStep, never, observation};
use crate::envs::classic::Acrobot as Pooled;
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::random::{self, Key};
use crate::trace::ops::where_;
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

const DT: f64 = 0.2; // s between steps
const GRAVITY: f64 = 9.8; // m/s^2
const MASS: f64 = 1.0; // kg, of each link
const LENGTH: f64 = 1.0; // m, of the first link
const CENTER: f64 = 0.5; // m from the joint to the center of mass, of each link
const INERTIA: f64 = 1.0; // kg m^2, of each link
const MAX_VELOCITY: [f64; 2] = [4.0 * PI, 9.0 * PI]; // rad/s

/// A double pendulum with a motor between its two links.
#[derive(Debug, Clone)]
pub struct Acrobot {
    dtype: DType,
}

/// State of [`Acrobot`], scalars.
#[derive(Debug, Clone, Tree)]
pub struct AcrobotState<T> {
    /// Angle of the first link (0 hangs down) and of the second relative to it, rad.
    pub theta: [T; 2],
    /// Angular velocities of the links, rad/s.
    pub theta_dot: [T; 2],
}

impl Acrobot {
    /// Makes `Acrobot-v1`.
    pub fn v1() -> Acrobot {
        Acrobot { dtype: DType::F32 }
    }

    /// Returns the environment with a state of `f32` or `f64`.
    pub fn with_dtype(self, dtype: DType) -> Acrobot {
        Acrobot { dtype }
    }
}

impl AcrobotState<Tensor> {
    #[track_caller]
    fn observe(&self) -> Tensor {
        let ([a, b], [a_dot, b_dot]) = (self.theta, self.theta_dot);
        observation(&[a.cos(), a.sin(), b.cos(), b.sin(), a_dot, b_dot])
    }
}

/// Returns the time derivative of the state (both angles, both velocities) under `torque`.
#[track_caller]
fn derivative([theta1, theta2, dtheta1, dtheta2]: [Tensor; 4], torque: Tensor) -> [Tensor; 4] {
    let (sin2, cos2) = (theta2.sin(), theta2.cos());
    let d1 = MASS * (CENTER * CENTER)
        + MASS * (LENGTH * LENGTH + CENTER * CENTER + 2.0 * LENGTH * CENTER * cos2)
        + INERTIA
        + INERTIA;
    let d2 = MASS * (CENTER * CENTER + LENGTH * CENTER * cos2) + INERTIA;
    let phi2 = MASS * CENTER * GRAVITY * (theta1 + theta2 - PI / 2.0).cos();
    let phi1 = -MASS * LENGTH * CENTER * (dtheta2 * dtheta2) * sin2
        - 2.0 * MASS * LENGTH * CENTER * dtheta2 * dtheta1 * sin2
        + (MASS * CENTER + MASS * LENGTH) * GRAVITY * (theta1 - PI / 2.0).cos()
        + phi2;
    let ddtheta2 =
        (torque + d2 / d1 * phi1 - MASS * LENGTH * CENTER * (dtheta1 * dtheta1) * sin2 - phi2)
            / (MASS * (CENTER * CENTER) + INERTIA - d2 * d2 / d1);
    let ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
    [dtheta1, dtheta2, ddtheta1, ddtheta2]
}

/// Takes one step of the classical fourth-order Runge-Kutta method.
#[track_caller]
fn runge_kutta(state: [Tensor; 4], torque: Tensor) -> [Tensor; 4] {
    let moved = |step: f64, k: [Tensor; 4]| [0, 1, 2, 3].map(|i| state[i] + step * k[i]);
    let k1 = derivative(state, torque);
    let k2 = derivative(moved(DT / 2.0, k1), torque);
    let k3 = derivative(moved(DT / 2.0, k2), torque);
    let k4 = derivative(moved(DT, k3), torque);
    [0, 1, 2, 3].map(|i| state[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// Maximum number of full rotations by which an angle is wrapped. With velocities near their bounds
/// the Runge-Kutta method overshoots: of 240,000 such states some came out by five rotations, none
/// by more.
const TURNS: usize = 8;

/// Shifts `x` by full rotations into [-pi, pi].
#[track_caller]
fn wrap(x: Tensor) -> Tensor {
    let mut x = x;
    for _ in 0..TURNS {
        x = where_(x.gt(PI), x - 2.0 * PI, x);
    }
    for _ in 0..TURNS {
        x = where_(x.lt(-PI), x + 2.0 * PI, x);
    }
    x
}

impl TracedEnv for Acrobot {
    type State = AcrobotState<Tensor>;

    fn spec(&self) -> EnvSpec {
        Pooled::v1().spec()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (AcrobotState<Tensor>, Tensor) {
        // Gymnasium rounds the first state to f32.
        let drawn = random::uniform(key, [4], DType::F32, -0.1, 0.1).to(self.dtype);
        let [a, b, a_dot, b_dot] = [0, 1, 2, 3].map(|i| drawn.index_axis(0, i));
        let state = AcrobotState { theta: [a, b], theta_dot: [a_dot, b_dot] };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: AcrobotState<Tensor>,
        action: Tensor,
        _key: Key<Tensor>,
    ) -> TracedStep<Tensor, AcrobotState<Tensor>> {
        let ([a, b], [a_dot, b_dot]) = (state.theta, state.theta_dot);
        let torque = action.to(self.dtype) - 1.0;
        let [a, b, a_dot, b_dot] = runge_kutta([a, b, a_dot, b_dot], torque);
        let [max_a, max_b] = MAX_VELOCITY;
        let (a, b) = (wrap(a), wrap(b));
        let next = AcrobotState {
            theta: [a, b],
            theta_dot: [a_dot.clip(-max_a, max_a), b_dot.clip(-max_b, max_b)],
        };
        let terminated = (-a.cos() - (b + a).cos()).gt(1.0);
        TracedStep {
            obs: next.observe(),
            state: next,
            reward: where_(terminated, 0.0, crate::trace::ops::full([], -1.0, DType::F32)),
            terminated,
            truncated: never(),
        }
    }
}
