//! Acrobot: two links with a motor between them (Sutton 1996), as gymnasium's `AcrobotEnv` with the
//! dynamics of the book (Sutton and Barto), its default.

use std::f64::consts::PI;

use super::canvas::Canvas;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_f64, save_f64};
use crate::error::Result;
use crate::spaces::Space;

const DT: f64 = 0.2; // s between steps
const GRAVITY: f64 = 9.8; // m/s^2
const MASS: f64 = 1.0; // kg, of each link
const LENGTH: f64 = 1.0; // m, of the first link
const CENTER: f64 = 0.5; // m from the joint to the center of mass, of each link
const INERTIA: f64 = 1.0; // kg m^2, of each link
const MAX_VELOCITY: [f64; 2] = [4.0 * PI, 9.0 * PI]; // rad/s

const ID: &str = "Acrobot-v1";

/// `Acrobot-v1`: a torque of -1, 0 or 1 N m (actions 0, 1, 2) at the joint between two links swings
/// the tip above the bar.
///
/// Observation `f32[6]`: cosine and sine of the first link's angle (0 hangs down), cosine and sine
/// of the second link's angle relative to the first, both angular velocities (rad/s). Reward -1 per
/// step, 0 for the step that reaches the goal. Terminates when the tip is one length above the
/// joint. An episode starts with all four state variables within 0.1 of zero.
#[derive(Debug, Clone, Default)]
pub struct Acrobot {
    /// Both angles, both angular velocities.
    state: [f64; 4],
}

impl Acrobot {
    /// Makes `Acrobot-v1`.
    pub fn v1() -> Acrobot {
        Acrobot::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let [a, b, a_dot, b_dot] = self.state;
        let values = [a.cos(), a.sin(), b.cos(), b.sin(), a_dot, b_dot];
        obs.write(&values.map(|x| x as f32));
    }
}

/// Returns the time derivative of the state under `torque`.
fn derivative(state: [f64; 4], torque: f64) -> [f64; 4] {
    let [theta1, theta2, dtheta1, dtheta2] = state;
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
    // The book's equation; the paper (NIPS 1996) lacks the term with sin2.
    let ddtheta2 =
        (torque + d2 / d1 * phi1 - MASS * LENGTH * CENTER * (dtheta1 * dtheta1) * sin2 - phi2)
            / (MASS * (CENTER * CENTER) + INERTIA - d2 * d2 / d1);
    let ddtheta1 = -(d2 * ddtheta2 + phi1) / d1;
    [dtheta1, dtheta2, ddtheta1, ddtheta2]
}

/// Takes one step of the classical fourth-order Runge-Kutta method.
fn runge_kutta(state: [f64; 4], torque: f64) -> [f64; 4] {
    let moved = |step: f64, k: [f64; 4]| std::array::from_fn(|i| state[i] + step * k[i]);
    let k1 = derivative(state, torque);
    let k2 = derivative(moved(DT / 2.0, k1), torque);
    let k3 = derivative(moved(DT / 2.0, k2), torque);
    let k4 = derivative(moved(DT, k3), torque);
    std::array::from_fn(|i| state[i] + DT / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// Shifts `x` by full rotations into [-pi, pi]. The velocities are bounded, so few rotations
/// suffice.
fn wrap(mut x: f64) -> f64 {
    while x > PI {
        x -= 2.0 * PI;
    }
    while x < -PI {
        x += 2.0 * PI;
    }
    x
}

impl Env for Acrobot {
    fn spec(&self) -> EnvSpec {
        let high = [1.0, 1.0, 1.0, 1.0, MAX_VELOCITY[0], MAX_VELOCITY[1]];
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([6], high.map(|x| -x), high),
            action: Space::Discrete { n: 3 },
            max_episode_steps: Some(500),
            reward_threshold: Some(-100.0),
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        // Gymnasium rounds the first state to f32.
        self.state = std::array::from_fn(|_| f64::from(rng.uniform(-0.1, 0.1) as f32));
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let [a, b, a_dot, b_dot] = runge_kutta(self.state, action.discrete() as f64 - 1.0);
        let [max_a, max_b] = MAX_VELOCITY;
        self.state = [wrap(a), wrap(b), a_dot.clamp(-max_a, max_a), b_dot.clamp(-max_b, max_b)];
        self.observe(obs);
        let [a, b, ..] = self.state;
        let terminated = -a.cos() - (b + a).cos() > 1.0;
        Ok(StepOutcome::new(if terminated { 0.0 } else { -1.0 }, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let [first, second, ..] = self.state;
        let mut canvas = Canvas::new((0.0, 0.0), 6.6, 15);
        canvas.line((-3.3, LENGTH), (3.3, LENGTH), 0.02, [0, 0, 0]);
        let elbow = (LENGTH * first.sin(), -LENGTH * first.cos());
        let both = first + second;
        let tip = (elbow.0 + LENGTH * both.sin(), elbow.1 - LENGTH * both.cos());
        for (from, to) in [((0.0, 0.0), elbow), (elbow, tip)] {
            canvas.line(from, to, 0.2, [0, 204, 204]);
            canvas.dot(from, 0.1, [204, 204, 0]);
        }
        Some(canvas.frame())
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(save_f64(&self.state))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = restore_f64(ID, state)?;
        Ok(())
    }
}
