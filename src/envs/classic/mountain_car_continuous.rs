//! The mountain car with a continuous throttle, as gymnasium's `Continuous_MountainCarEnv`.

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_f64, save_f64};
use crate::error::Result;
use crate::spaces::Space;

const MIN_POSITION: f64 = -1.2;
const MAX_POSITION: f64 = 0.6;
const MAX_SPEED: f64 = 0.07;
const GOAL_POSITION: f64 = 0.45;
const GOAL_VELOCITY: f64 = 0.0;
const POWER: f64 = 0.0015;
const GRAVITY: f64 = 0.0025;

const ID: &str = "MountainCarContinuous-v0";

/// `MountainCarContinuous-v0`: a throttle from -1 to 1.
///
/// Observation `f32[2]`: position along the track, velocity, in units of the track per step. Reward
/// `-0.1 throttle^2`, and 100 for reaching the goal. Terminates at position 0.45. An episode starts
/// at rest between -0.6 and -0.4.
///
/// Gymnasium keeps the state as `f64` after a reset, but as `f32` after each step; numpy then
/// rounds each operation to `f32`. This code does the same: an `f32` sum, difference or product is
/// exactly the `f64` one rounded.
#[derive(Debug, Clone, Default)]
pub struct MountainCarContinuous {
    position: f64,
    velocity: f64,
    /// True if the state has become `f32`.
    single: bool,
}

impl MountainCarContinuous {
    /// Makes `MountainCarContinuous-v0`.
    pub fn v0() -> MountainCarContinuous {
        MountainCarContinuous::default()
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        obs.write(&[self.position as f32, self.velocity as f32]);
    }
}

fn to_f32(x: f64) -> f64 {
    f64::from(x as f32)
}

impl Env for MountainCarContinuous {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([2], [MIN_POSITION, -MAX_SPEED], [MAX_POSITION, MAX_SPEED]),
            action: Space::f32([1], -1.0, 1.0),
            max_episode_steps: Some(999),
            reward_threshold: Some(90.0),
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        (self.position, self.velocity) = (rng.uniform(-0.6, -0.4), 0.0);
        self.single = false;
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let throttle = f64::from(action.continuous(0));
        let single = self.single;
        let round = |x: f64| if single { to_f32(x) } else { x };

        let slope = GRAVITY * round(3.0 * self.position).cos();
        // A throttle inside its range is numpy's f32; a clipped throttle is Python's f64.
        let push = if (-1.0..=1.0).contains(&throttle) {
            to_f32(to_f32(throttle * to_f32(POWER)) - to_f32(slope))
        } else {
            round(throttle.signum() * POWER - slope)
        };
        let velocity = round(self.velocity + push);
        let velocity = velocity.clamp(-round(MAX_SPEED), round(MAX_SPEED));
        let position = round(self.position + velocity);
        let position = position.clamp(round(MIN_POSITION), round(MAX_POSITION));
        // The left wall stops the car without a bounce.
        let stopped = position == round(MIN_POSITION) && velocity < 0.0;
        let velocity = if stopped { 0.0 } else { velocity };
        let terminated = position >= round(GOAL_POSITION) && velocity >= GOAL_VELOCITY;

        (self.position, self.velocity) = (to_f32(position), to_f32(velocity));
        self.single = true;
        self.observe(obs);
        let arrived = if terminated { 100.0 } else { 0.0 };
        Ok(StepOutcome::new(arrived - throttle * throttle * 0.1, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        Some(super::mountain_car::picture(self.position, GOAL_POSITION))
    }

    fn save(&self) -> Result<Vec<u8>> {
        Ok(save_f64(&[self.position, self.velocity, f64::from(self.single as u8)]))
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let [position, velocity, single] = restore_f64(ID, state)?;
        (self.position, self.velocity, self.single) = (position, velocity, single != 0.0);
        Ok(())
    }
}
