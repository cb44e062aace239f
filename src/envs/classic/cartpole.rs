//! A pole balanced on a cart (Barto, Sutton and Anderson 1983), as gymnasium's `CartPoleEnv`.

use super::canvas::Canvas;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_f64, save_f64};
use crate::error::Result;
use crate::spaces::Space;

const GRAVITY: f64 = 9.8; // m/s^2
const MASS_POLE: f64 = 0.1; // kg
const TOTAL_MASS: f64 = MASS_POLE + 1.0; // kg, with the cart
const LENGTH: f64 = 0.5; // m, half of the pole
const POLE_MASS_LENGTH: f64 = MASS_POLE * LENGTH;
const FORCE: f64 = 10.0; // N
const TAU: f64 = 0.02; // s between steps
const THETA_LIMIT: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0; // rad
const X_LIMIT: f64 = 2.4; // m

/// `CartPole-v1` and `CartPole-v0`: push the cart left (0) or right (1) so that the pole stays up.
///
/// Observation `f32[4]`: cart position (m), cart velocity (m/s), pole angle (rad), pole angular
/// velocity (rad/s). Reward 1 per step, the last one included. Terminates when the cart leaves
/// 2.4 m or the pole leans over 12 degrees. An episode starts with all four within 0.05 of zero.
#[derive(Debug, Clone)]
pub struct CartPole {
    id: &'static str,
    /// Position, velocity, angle, angular velocity.
    state: [f64; 4],
    /// True if the pole has fallen: later steps have reward 0.
    fallen: bool,
}

impl CartPole {
    /// Makes `CartPole-v1`: 500 steps.
    pub fn v1() -> CartPole {
        CartPole { id: "CartPole-v1", state: [0.0; 4], fallen: false }
    }

    /// Makes `CartPole-v0`: 200 steps.
    pub fn v0() -> CartPole {
        CartPole { id: "CartPole-v0", ..CartPole::v1() }
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&self.state.map(|x| x as f32));
    }
}

impl Env for CartPole {
    fn spec(&self) -> EnvSpec {
        let (steps, threshold) = if self.id == "CartPole-v0" { (200, 195.0) } else { (500, 475.0) };
        // Twice the limits, so that the observation that ends an episode is also inside.
        let high = [X_LIMIT * 2.0, f64::INFINITY, THETA_LIMIT * 2.0, f64::INFINITY];
        EnvSpec {
            id: self.id.into(),
            observation: Space::f32([4], high.map(|x| -x), high),
            action: Space::Discrete { n: 2 },
            max_episode_steps: Some(steps),
            reward_threshold: Some(threshold),
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = std::array::from_fn(|_| rng.uniform(-0.05, 0.05));
        self.fallen = false;
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let [x, x_dot, theta, theta_dot] = self.state;
        let force = if action.discrete() == 1 { FORCE } else { -FORCE };
        let (sin, cos) = (theta.sin(), theta.cos());
        // Florian 2007, Correct equations for the dynamics of the cart-pole system, eq. 23 and 24
        // without friction.
        let temp = (force + POLE_MASS_LENGTH * (theta_dot * theta_dot) * sin) / TOTAL_MASS;
        let theta_acc = (GRAVITY * sin - cos * temp)
            / (LENGTH * (4.0 / 3.0 - MASS_POLE * (cos * cos) / TOTAL_MASS));
        let x_acc = temp - POLE_MASS_LENGTH * theta_acc * cos / TOTAL_MASS;
        let x = x + TAU * x_dot;
        let theta = theta + TAU * theta_dot;
        self.state = [x, x_dot + TAU * x_acc, theta, theta_dot + TAU * theta_acc];
        self.observe(obs);

        let terminated =
            !(-X_LIMIT..=X_LIMIT).contains(&x) || !(-THETA_LIMIT..=THETA_LIMIT).contains(&theta);
        let reward = if terminated && self.fallen { 0.0 } else { 1.0 };
        self.fallen |= terminated;
        Ok(StepOutcome::new(reward, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let [x, _, theta, _] = self.state;
        let mut canvas = Canvas::new((0.0, 0.8), 2.0 * X_LIMIT, 50);
        canvas.line((-X_LIMIT, 0.0), (X_LIMIT, 0.0), 0.02, [0, 0, 0]);
        canvas.block((x - 0.2, -0.12), (x + 0.2, 0.12), [40, 40, 40]);
        let tip = (x + 2.0 * LENGTH * theta.sin(), 2.0 * LENGTH * theta.cos());
        canvas.line((x, 0.06), tip, 0.08, [202, 152, 101]);
        canvas.dot((x, 0.06), 0.04, [129, 132, 203]);
        Some(canvas.frame())
    }

    fn save(&self) -> Result<Vec<u8>> {
        let [a, b, c, d] = self.state;
        Ok(save_f64(&[a, b, c, d, f64::from(self.fallen as u8)]))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let [a, b, c, d, fallen] = restore_f64(self.id, state)?;
        (self.state, self.fallen) = ([a, b, c, d], fallen != 0.0);
        Ok(())
    }
}
