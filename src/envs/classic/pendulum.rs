//! A pendulum to swing up, as gymnasium's `PendulumEnv`.

use std::f64::consts::PI;

use super::canvas::Canvas;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_f64, save_f64};
use crate::error::Result;
use crate::spaces::Space;

const MAX_SPEED: f64 = 8.0; // rad/s
const MAX_TORQUE: f32 = 2.0; // N m
const DT: f64 = 0.05; // s between steps
const GRAVITY: f64 = 10.0; // m/s^2; the mass is 1 kg and the length 1 m

const ID: &str = "Pendulum-v1";

/// `Pendulum-v1`: a torque from -2 to 2 N m holds a pendulum up.
///
/// Observation `f32[3]`: cosine and sine of the angle (0 is up), angular velocity (rad/s). Reward
/// `-(angle^2 + 0.1 velocity^2 + 0.001 torque^2)`. Never terminates. An episode starts at any
/// angle with a velocity within 1 rad/s.
#[derive(Debug, Clone, Default)]
pub struct Pendulum {
    theta: f64,
    theta_dot: f64,
}

impl Pendulum {
    /// Makes `Pendulum-v1`.
    pub fn v1() -> Pendulum {
        Pendulum::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let (cos, sin) = (self.theta.cos(), self.theta.sin());
        obs.write(&[cos as f32, sin as f32, self.theta_dot as f32]);
    }
}

/// Returns the angle in [-pi, pi) that is equivalent to `x`.
fn normalize(x: f64) -> f64 {
    (x + PI).rem_euclid(2.0 * PI) - PI
}

impl Env for Pendulum {
    fn spec(&self) -> EnvSpec {
        let high = [1.0, 1.0, MAX_SPEED];
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([3], high.map(|x| -x), high),
            action: Space::f32([1], -f64::from(MAX_TORQUE), f64::from(MAX_TORQUE)),
            max_episode_steps: Some(200),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        (self.theta, self.theta_dot) = (rng.uniform(-PI, PI), rng.uniform(-1.0, 1.0));
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        // The torque is f32 in gymnasium, until it is combined with the state.
        let torque = action.continuous(0).clamp(-MAX_TORQUE, MAX_TORQUE);
        let (theta, theta_dot) = (self.theta, self.theta_dot);
        let angle = normalize(theta);
        let effort = f64::from(0.001 * (torque * torque));
        let cost = angle * angle + 0.1 * (theta_dot * theta_dot) + effort;

        let acceleration = 3.0 * GRAVITY / 2.0 * theta.sin() + f64::from(3.0 * torque);
        self.theta_dot = (theta_dot + acceleration * DT).clamp(-MAX_SPEED, MAX_SPEED);
        self.theta = theta + self.theta_dot * DT;
        self.observe(obs);
        Ok(StepOutcome::new(-cost, false))
    }

    fn render(&mut self) -> Option<Frame> {
        let mut canvas = Canvas::new((0.0, 0.0), 3.6, 30);
        // The angle is measured counterclockwise from the upward direction.
        let tip = (-self.theta.sin(), self.theta.cos());
        canvas.line((0.0, 0.0), tip, 0.2, [204, 77, 77]);
        canvas.dot((0.0, 0.0), 0.05, [0, 0, 0]);
        Some(canvas.frame())
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(save_f64(&[self.theta, self.theta_dot]))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        [self.theta, self.theta_dot] = restore_f64(ID, state)?;
        Ok(())
    }
}
