//! A car whose engine is too weak to climb its hill directly (Moore 1990), as gymnasium's
//! `MountainCarEnv`.

use super::canvas::Canvas;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_f64, save_f64};
use crate::error::Result;
use crate::spaces::Space;

const MIN_POSITION: f64 = -1.2;
const MAX_POSITION: f64 = 0.6;
const MAX_SPEED: f64 = 0.07;
const GOAL_POSITION: f64 = 0.5;
const GOAL_VELOCITY: f64 = 0.0;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

const ID: &str = "MountainCar-v0";

/// `MountainCar-v0`: accelerate left (0), not (1) or right (2) to get up the right hill.
///
/// Observation `f32[2]`: position along the track, velocity, in units of the track per step.
/// Reward -1 per step. Terminates at position 0.5. An episode starts at rest between -0.6 and
/// -0.4.
#[derive(Debug, Clone, Default)]
pub struct MountainCar {
    position: f64,
    velocity: f64,
}

impl MountainCar {
    /// Makes `MountainCar-v0`.
    pub fn v0() -> MountainCar {
        MountainCar::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&[self.position as f32, self.velocity as f32]);
    }
}

impl Env for MountainCar {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([2], [MIN_POSITION, -MAX_SPEED], [MAX_POSITION, MAX_SPEED]),
            action: Space::Discrete { n: 3 },
            max_episode_steps: Some(200),
            reward_threshold: Some(-110.0),
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        (self.position, self.velocity) = (rng.uniform(-0.6, -0.4), 0.0);
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let push = (action.discrete() as f64 - 1.0) * FORCE;
        let velocity = self.velocity + (push + (3.0 * self.position).cos() * -GRAVITY);
        self.velocity = velocity.clamp(-MAX_SPEED, MAX_SPEED);
        self.position = (self.position + self.velocity).clamp(MIN_POSITION, MAX_POSITION);
        if self.position == MIN_POSITION && self.velocity < 0.0 {
            self.velocity = 0.0; // The left wall does not bounce.
        }
        self.observe(obs);
        let terminated = self.position >= GOAL_POSITION && self.velocity >= GOAL_VELOCITY;
        Ok(StepOutcome::new(-1.0, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        Some(super::mountain_car::picture(self.position, GOAL_POSITION))
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(save_f64(&[self.position, self.velocity]))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        [self.position, self.velocity] = restore_f64(ID, state)?;
        Ok(())
    }
}

/// Draws the car in its valley, and the flag.
pub(super) fn picture(position: f64, goal: f64) -> Frame {
    // Gymnasium draws the track at this height; the physics uses its slope only.
    let height = |x: f64| (3.0 * x).sin() * 0.45 + 0.55;
    let mut canvas = Canvas::new(((MIN_POSITION + MAX_POSITION) / 2.0, 0.55), 1.8, 30);
    canvas.under(height, [200, 200, 200]);
    let foot = (goal, height(goal));
    canvas.line(foot, (goal, foot.1 + 0.14), 0.01, [0, 0, 0]);
    canvas.block((goal, foot.1 + 0.09), (goal + 0.07, foot.1 + 0.14), [204, 204, 0]);
    canvas.dot((position, height(position) + 0.04), 0.045, [40, 40, 40]);
    canvas.frame()
}
