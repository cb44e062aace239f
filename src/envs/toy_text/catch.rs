//! Catch a falling ball (Mnih et al. 2014), as bsuite's `Catch`, which is also in EnvPool.

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::{Error, Result};
use crate::spaces::Space;

const ID: &str = "Catch-v0";

/// Size of the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatchOptions {
    /// Number of rows; the ball falls from the first to the last.
    pub height: usize,
    /// Number of columns.
    pub width: usize,
}

impl Default for CatchOptions {
    fn default() -> Self {
        CatchOptions { height: 10, width: 5 }
    }
}

/// `Catch-v0`: move a paddle left (0), not (1) or right (2) to the column of a falling ball.
///
/// Observation `f32[height, width]`: 1 for the ball and for the paddle in the last row. Reward 1
/// for catching, -1 for missing. Terminates when the ball is down. An episode begins with the ball
/// in a random column of the first row and the paddle in the middle.
#[derive(Debug, Clone)]
pub struct Catch {
    options: CatchOptions,
    state: State,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Row and column.
    ball: [usize; 2],
    paddle: usize,
}

impl Catch {
    /// Makes `Catch-v0`. Returns an error for a board with less than two rows or without columns.
    pub fn v0(options: CatchOptions) -> Result<Catch> {
        let CatchOptions { height, width } = options;
        if height < 2 || width == 0 {
            return Err(Error::Config(format!(
                "{ID}: a board of {height} rows and {width} columns is too small; 2 by 1 is the \
                 least"
            )));
        }
        Ok(Catch { options, state: State { ball: [0, 0], paddle: width / 2 } })
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let CatchOptions { height, width } = self.options;
        let State { ball: [row, column], paddle } = self.state;
        let cells = obs.elements::<f32>();
        cells.fill(0.0);
        cells[row * width + column] = 1.0;
        cells[(height - 1) * width + paddle] = 1.0;
    }
}

impl Env for Catch {
    fn spec(&self) -> EnvSpec {
        let CatchOptions { height, width } = self.options;
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([height, width], 0.0, 1.0),
            action: Space::Discrete { n: 3 },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let width = self.options.width;
        let column = rng.below(width as u64) as usize;
        self.state = State { ball: [0, column], paddle: width / 2 };
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let CatchOptions { height, width } = self.options;
        let State { ball, paddle } = &mut self.state;
        // Actions 0, 1, 2 move the paddle by -1, 0 and 1.
        *paddle = (*paddle + action.discrete()).saturating_sub(1).min(width - 1);
        ball[0] = (ball[0] + 1).min(height - 1);
        let down = ball[0] == height - 1;
        let reward = match (down, ball[1] == *paddle) {
            (false, _) => 0.0,
            (true, caught) => f64::from(i8::from(caught) * 2 - 1),
        };
        self.observe(obs);
        Ok(StepOutcome::new(reward, down))
    }

    fn render(&mut self) -> Option<Frame> {
        let CatchOptions { height, width } = self.options;
        let State { ball: [row, column], paddle } = self.state;
        let mut cells = vec![[0; 3]; height * width];
        cells[(height - 1) * width + paddle] = [66, 158, 130];
        cells[row * width + column] = [236, 236, 236];
        Some(Frame::of_cells(&cells, width, 4))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(ID, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let CatchOptions { height, width } = self.options;
        let valid =
            |state: &State| state.ball[0] < height && state.ball[1] < width && state.paddle < width;
        self.state = restore_json(ID, state, valid)?;
        Ok(())
    }
}
