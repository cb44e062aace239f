//! A walk along a cliff (Sutton and Barto 2018, example 6.6), as gymnasium's `CliffWalkingEnv`.

use super::table::{self, Table, Transition};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::error::Result;

const ROWS: usize = 4;
const COLUMNS: usize = 12;
const START: usize = (ROWS - 1) * COLUMNS;
const GOAL: usize = ROWS * COLUMNS - 1;

/// Options of a cliff.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CliffWalkingOptions {
    /// If true, a step goes in the requested direction or to either side, with probability 1/3
    /// each.
    pub is_slippery: bool,
}

/// Get from the lower left corner to the lower right by steps up (0), right (1), down (2) and left
/// (3).
///
/// Observation: the index of the cell in 4 rows of 12. Reward -1 per step, -100 for a step over the
/// cliff between the two corners, which leads back to the start. Terminates at the goal.
#[derive(Debug, Clone)]
pub struct CliffWalking {
    id: &'static str,
    table: Table,
    state: usize,
}

impl CliffWalking {
    /// Makes `CliffWalking-v0`, which is never slippery.
    pub fn v0() -> CliffWalking {
        CliffWalking::new("CliffWalking-v0", CliffWalkingOptions::default())
    }

    /// Makes `CliffWalking-v1`.
    pub fn v1(options: CliffWalkingOptions) -> CliffWalking {
        CliffWalking::new("CliffWalking-v1", options)
    }

    /// Makes `CliffWalkingSlippery-v1`.
    pub fn slippery_v1() -> CliffWalking {
        let options = CliffWalkingOptions { is_slippery: true };
        CliffWalking::new("CliffWalkingSlippery-v1", options)
    }

    fn new(id: &'static str, options: CliffWalkingOptions) -> CliffWalking {
        let mut start = vec![0.0; ROWS * COLUMNS];
        start[START] = 1.0;
        // Quarter rotations from the requested direction.
        let rotations: &[usize] = if options.is_slippery { &[3, 0, 1] } else { &[0] };
        let table = Table::new(start, 4, |state, action| {
            let outcome = |&rotation| {
                let to = walk(state, (action + rotation) % 4);
                let fallen = to > START && to < GOAL;
                Transition {
                    probability: 1.0 / rotations.len() as f64,
                    state: if fallen { START } else { to },
                    reward: if fallen { -100.0 } else { -1.0 },
                    terminated: to == GOAL,
                }
            };
            rotations.iter().map(outcome).collect()
        });
        CliffWalking { id, table, state: START }
    }

    /// Returns the transition table.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Returns the cell beside `state`, or `state` itself at the edge.
fn walk(state: usize, action: usize) -> usize {
    let (row, column) = (state / COLUMNS, state % COLUMNS);
    match action {
        0 if row > 0 => state - COLUMNS,
        1 if column + 1 < COLUMNS => state + 1,
        2 if row + 1 < ROWS => state + COLUMNS,
        3 if column > 0 => state - 1,
        _ => state,
    }
}

impl Env for CliffWalking {
    fn spec(&self) -> EnvSpec {
        self.table.spec(self.id, None, None)
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = self.table.draw_start(rng);
        table::observe(self.state, obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let came = self.table.draw(self.state, action.discrete(), rng);
        self.state = came.state;
        table::observe(self.state, obs);
        Ok(StepOutcome::new(came.reward, came.terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let mut cells = [[150, 180, 110]; ROWS * COLUMNS];
        cells[START + 1..GOAL].fill([60, 50, 45]);
        cells[GOAL] = [96, 200, 96];
        cells[self.state] = [224, 96, 64];
        Some(Frame::of_cells(&cells, COLUMNS, 4))
    }

    fn save(&self) -> Result<Vec<u8>> {
        table::save(self.id, self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = self.table.restore(self.id, state)?;
        Ok(())
    }
}
