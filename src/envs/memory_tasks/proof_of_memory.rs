//! A corridor whose rewarding end is shown in the first steps only: CleanRL's Proof of Memory.

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::Result;
use crate::spaces::Space;

const ID: &str = "ProofofMemory-v0";
/// Cells from the middle of the corridor to an end, and the length of a step.
const CELLS: i32 = 5;
const STEP_SIZE: f64 = 1.0 / CELLS as f64;
/// Cells from the middle in which an episode begins.
const STARTS: std::ops::RangeInclusive<i32> = -2..=2;
/// Steps in which the agent stands still and sees the goals.
const SHOW_STEPS: u32 = 2;
const TIME_PENALTY: f64 = 0.1;
/// Reward at a goal, of the goal's sign: 1 and the time penalty of six steps.
const GOAL: f64 = 1.0 + 6.0 * TIME_PENALTY;

/// `ProofofMemory-v0`: an agent walks to the rewarding end of a corridor that it saw at the begin of
/// the episode. The rules are those of `pom_env.py` of CleanRL's `ppo_trxl`.
///
/// Observation `f32[3]`: the goal at the left end (1 if rewarding, -1 if punishing), the position
/// from -1 to 1, the goal at the right end. Actions: 0 goes left, 1 goes right, by 0.2. In the first
/// two steps the agent does not move, and the reward is 0; in later observations the goals are 0.
/// Reward -0.1 for a step, 1.6 or -1.6 for the step onto an end, which ends the episode. An episode
/// begins at a position from -0.4 to 0.4. The mean return of the best policy is 1.2.
#[derive(Debug, Clone)]
pub struct ProofOfMemory {
    state: State,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Cell of the agent, 0 in the middle.
    cell: i32,
    /// True if the left end is the rewarding one.
    left_rewards: bool,
    /// Steps of this episode, at most [`SHOW_STEPS`].
    shown: u32,
}

impl ProofOfMemory {
    /// Makes `ProofofMemory-v0`.
    pub fn v0() -> ProofOfMemory {
        ProofOfMemory { state: State { cell: 0, left_rewards: true, shown: 0 } }
    }

    fn observe(&self, show_goals: bool, mut obs: ObsMut<'_>) {
        let State { cell, left_rewards, .. } = self.state;
        let [left, right] = match (show_goals, left_rewards) {
            (false, _) => [0.0, 0.0],
            (true, true) => [1.0, -1.0],
            (true, false) => [-1.0, 1.0],
        };
        // As NumPy, which rounds positions to two decimals.
        let position = (f64::from(cell) * STEP_SIZE * 100.0).round() / 100.0;
        obs.write(&[left, position as f32, right]);
    }
}

impl Env for ProofOfMemory {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([3], -1.0, 1.0),
            action: Space::Discrete { n: 2 },
            max_episode_steps: Some(16),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let cell = STARTS.start() + rng.below(STARTS.count() as u64) as i32;
        self.state = State { cell, left_rewards: rng.below(2) == 1, shown: 0 };
        self.observe(true, obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        if self.state.shown < SHOW_STEPS {
            self.state.shown += 1;
            self.observe(true, obs);
            return Ok(StepOutcome::new(0.0, false));
        }
        self.state.cell += if action.discrete() == 1 { 1 } else { -1 };
        self.observe(false, obs);
        let State { cell, left_rewards, .. } = self.state;
        let terminated = cell.abs() == CELLS;
        let reward = match (terminated, left_rewards == (cell < 0)) {
            (false, _) => -TIME_PENALTY,
            (true, true) => GOAL,
            (true, false) => -GOAL,
        };
        Ok(StepOutcome::new(reward, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let State { cell, left_rewards, shown } = self.state;
        let goal = |rewards: bool| match (shown < SHOW_STEPS, rewards) {
            (false, _) => [110, 110, 110],
            (true, true) => [66, 158, 130],
            (true, false) => [200, 72, 72],
        };
        let mut cells = vec![[24; 3]; 2 * CELLS as usize + 1];
        cells[0] = goal(left_rewards);
        cells[2 * CELLS as usize] = goal(!left_rewards);
        cells[(cell + CELLS) as usize] = [236; 3];
        Some(Frame::of_cells(&cells, 2 * CELLS as usize + 1, 10))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(ID, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let valid = |State { cell, shown, .. }: &State| {
            (-CELLS..=CELLS).contains(cell) && *shown <= SHOW_STEPS
        };
        self.state = restore_json(ID, state, valid)?;
        Ok(())
    }
}
