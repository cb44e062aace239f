//! A walk over a frozen lake, as gymnasium's `FrozenLakeEnv`.

use super::table::{self, Table, Transition, check_probability};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::error::{Error, Result};

/// Map of `FrozenLake-v1`: start, frozen, hole, goal.
pub const MAP_4X4: &[&str] = &["SFFF", "FHFH", "FFFH", "HFFG"];

/// Map of `FrozenLake8x8-v1`.
pub const MAP_8X8: &[&str] = &[
    "SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG",
];

/// Options of a frozen lake.
#[derive(Debug, Clone, PartialEq)]
pub struct FrozenLakeOptions {
    /// Rows of `S` (start), `F` (frozen), `H` (hole) and `G` (goal). If there are several starts,
    /// each has the same probability.
    pub map: Vec<String>,
    /// If true, a step may go to either side of the requested direction.
    pub is_slippery: bool,
    /// Probability that a step goes in the requested direction on slippery ice.
    pub success_rate: f64,
    /// Rewards for reaching the goal, a hole and any other cell.
    pub reward_schedule: [f64; 3],
}

impl Default for FrozenLakeOptions {
    fn default() -> Self {
        FrozenLakeOptions {
            map: MAP_4X4.iter().map(|&row| row.into()).collect(),
            is_slippery: true,
            success_rate: 1.0 / 3.0,
            reward_schedule: [1.0, 0.0, 0.0],
        }
    }
}

impl FrozenLakeOptions {
    /// Returns the default options with the map of `FrozenLake8x8-v1`.
    pub fn map_8x8() -> FrozenLakeOptions {
        let map = MAP_8X8.iter().map(|&row| row.into()).collect();
        FrozenLakeOptions { map, ..Default::default() }
    }
}

/// Get from the start to the goal by steps left (0), down (1), right (2) and up (3).
///
/// Observation: the index of the cell, counted by rows. Reward 1 at the goal. Terminates there and
/// in a hole. Ice is slippery: a step goes in each direction except backwards with probability 1/3.
#[derive(Debug, Clone)]
pub struct FrozenLake {
    id: &'static str,
    limits: (u32, f64),
    cells: Vec<u8>,
    columns: usize,
    table: Table,
    state: usize,
}

impl FrozenLake {
    /// Makes `FrozenLake-v1`. Returns an error for a map that is not a rectangle of the four
    /// letters with a start, and for a rate that is not a probability.
    pub fn v1(options: &FrozenLakeOptions) -> Result<FrozenLake> {
        FrozenLake::new("FrozenLake-v1", (100, 0.70), options)
    }

    /// Makes `FrozenLake8x8-v1`.
    pub fn v1_8x8() -> FrozenLake {
        let options = FrozenLakeOptions::map_8x8();
        FrozenLake::new("FrozenLake8x8-v1", (200, 0.85), &options).expect("our own map is good")
    }

    fn new(
        id: &'static str,
        limits: (u32, f64),
        options: &FrozenLakeOptions,
    ) -> Result<FrozenLake> {
        check_probability(id, "success_rate", options.success_rate)?;
        let (cells, columns) = read_map(id, &options.map)?;
        let start: Vec<f64> = cells.iter().map(|&cell| f64::from(cell == b'S')).collect();
        let table = Table::new(start, 4, |state, action| {
            if b"GH".contains(&cells[state]) {
                return vec![Transition { probability: 1.0, state, reward: 0.0, terminated: true }];
            }
            let outcome = |probability: f64, action: usize| {
                let state = walk(state, action, columns, cells.len() / columns);
                let [goal, hole, other] = options.reward_schedule;
                let (reward, terminated) = match cells[state] {
                    b'G' => (goal, true),
                    b'H' => (hole, true),
                    _ => (other, false),
                };
                Transition { probability, state, reward, terminated }
            };
            if !options.is_slippery {
                return vec![outcome(1.0, action)];
            }
            let aside = (1.0 - options.success_rate) / 2.0;
            [(3, aside), (0, options.success_rate), (1, aside)]
                .map(|(rotation, p)| outcome(p, (action + rotation) % 4))
                .into()
        });
        Ok(FrozenLake { id, limits, cells, columns, table, state: 0 })
    }

    /// Returns the transition table.
    pub fn table(&self) -> &Table {
        &self.table
    }
}

/// Returns the cells of a map by rows, and the number of columns.
fn read_map(id: &str, map: &[String]) -> Result<(Vec<u8>, usize)> {
    let columns = map.first().map_or(0, String::len);
    let cells = map.concat().into_bytes();
    let wrong = if columns == 0 {
        "it has no cells"
    } else if map.iter().any(|row| row.len() != columns) {
        "its rows are not of one length"
    } else if cells.iter().any(|cell| !b"SFHG".contains(cell)) {
        "it has other letters than S, F, H and G"
    } else if !cells.contains(&b'S') {
        "it has no start, S"
    } else {
        return Ok((cells, columns));
    };
    Err(Error::Config(format!("{id}: the map {map:?} is not one: {wrong}")))
}

/// Returns the cell beside `state`, or `state` itself at the edge.
fn walk(state: usize, action: usize, columns: usize, rows: usize) -> usize {
    let (row, column) = (state / columns, state % columns);
    match action {
        0 if column > 0 => state - 1,
        1 if row + 1 < rows => state + columns,
        2 if column + 1 < columns => state + 1,
        3 if row > 0 => state - columns,
        _ => state,
    }
}

impl Env for FrozenLake {
    fn spec(&self) -> EnvSpec {
        self.table.spec(self.id, Some(self.limits.0), Some(self.limits.1))
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
        let color = |cell: &u8| match cell {
            b'H' => [24, 48, 96],
            b'G' => [96, 200, 96],
            b'S' => [220, 236, 200],
            _ => [220, 236, 248],
        };
        let mut cells: Vec<[u8; 3]> = self.cells.iter().map(color).collect();
        cells[self.state] = [224, 96, 64];
        Some(Frame::of_cells(&cells, self.columns, 4))
    }

    fn save(&self) -> Result<Vec<u8>> {
        table::save(self.id, self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = self.table.restore(self.id, state)?;
        Ok(())
    }
}
