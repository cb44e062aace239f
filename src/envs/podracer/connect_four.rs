//! Connect Four: two players who alternate.

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::Result;
use crate::spaces::Space;

const ID: &str = "ConnectFour-v0";
const ROWS: usize = 6;
const COLUMNS: usize = 7;
const CELLS: usize = ROWS * COLUMNS;

/// `ConnectFour-v0`: two players drop discs into columns; the first with four in a row, in any
/// direction, wins.
///
/// Every step is one move of the current player, and the observation is that of the *other* player,
/// who moves next: `f32[2 * 42 + 7]`, the discs of the player to move (rows from the top), those of
/// the other player, and the mask of the columns that are not full. The action is a column,
/// `MultiDiscrete([7])`, and the choice of a full one loses at once. Reward of the player who
/// moved: 1 for the winning disc, -1 for a full column, 0 otherwise, also for a full board, which
/// ends the episode as well. The player to move next begins the next episode.
#[derive(Debug, Clone)]
pub struct ConnectFour {
    state: State,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Discs of the player to move: cell `row * 7 + column` is this bit.
    own: u64,
    /// Discs of the other player.
    other: u64,
}

/// Returns true if four of these discs are in a row.
fn wins(discs: u64) -> bool {
    let has = |row: isize, column: isize| {
        (0..ROWS as isize).contains(&row)
            && (0..COLUMNS as isize).contains(&column)
            && discs >> (row * COLUMNS as isize + column) & 1 == 1
    };
    let four = |cell: usize, (down, right): (isize, isize)| {
        let (row, column) = ((cell / COLUMNS) as isize, (cell % COLUMNS) as isize);
        (0..4).all(|k| has(row + k * down, column + k * right))
    };
    (0..CELLS).any(|cell| [(0, 1), (1, 0), (1, 1), (1, -1)].iter().any(|&way| four(cell, way)))
}

impl ConnectFour {
    /// Makes `ConnectFour-v0`.
    pub fn v0() -> ConnectFour {
        ConnectFour { state: State { own: 0, other: 0 } }
    }

    /// Returns the lowest free row of a column.
    fn free(&self, column: usize) -> Option<usize> {
        let discs = self.state.own | self.state.other;
        (0..ROWS).rev().find(|row| discs >> (row * COLUMNS + column) & 1 == 0)
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let numbers = obs.elements::<f32>();
        for cell in 0..CELLS {
            numbers[cell] = (self.state.own >> cell & 1) as f32;
            numbers[CELLS + cell] = (self.state.other >> cell & 1) as f32;
        }
        for column in 0..COLUMNS {
            numbers[2 * CELLS + column] = f32::from(u8::from(self.free(column).is_some()));
        }
    }
}

impl Env for ConnectFour {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([2 * CELLS + COLUMNS], 0.0, 1.0),
            action: Space::MultiDiscrete { nvec: vec![COLUMNS], masked: true },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, _rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = State { own: 0, other: 0 };
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let column = action.choices()[0];
        let outcome = match self.free(column) {
            None => StepOutcome::new(-1.0, true),
            Some(row) => {
                let State { own, other } = self.state;
                let own = own | 1 << (row * COLUMNS + column);
                // The other player moves next.
                self.state = State { own: other, other: own };
                let full = (own | other).count_ones() as usize == CELLS;
                let won = wins(own);
                StepOutcome::new(f64::from(u8::from(won)), won || full)
            }
        };
        self.observe(obs);
        Ok(outcome)
    }

    fn render(&mut self) -> Option<Frame> {
        let State { own, other } = self.state;
        // The color of a disc is that of the player who made the first move, whoever moves next.
        let even = (own | other).count_ones() % 2 == 0;
        let (first, second) = if even { (own, other) } else { (other, own) };
        let color = |cell: usize| match (first >> cell & 1, second >> cell & 1) {
            (1, _) => [236, 200, 60],
            (_, 1) => [200, 60, 60],
            _ => [24, 40, 110],
        };
        Some(Frame::of_cells(&(0..CELLS).map(color).collect::<Vec<_>>(), COLUMNS, 2))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(ID, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let valid = |state: &State| {
            let State { own, other } = *state;
            let supported = |discs: u64| {
                // Every disc outside the last row lies on another disc.
                let above = discs & ((1 << (CELLS - COLUMNS)) - 1);
                (above << COLUMNS) & !discs == 0
            };
            let ahead = other.count_ones() as i32 - own.count_ones() as i32;
            (own | other) >> CELLS == 0
                && own & other == 0
                && supported(own | other)
                && (0..=1).contains(&ahead)
        };
        self.state = restore_json(ID, state, valid)?;
        Ok(())
    }
}
