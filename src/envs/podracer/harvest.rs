//! Workers that carry ore, with most of their moves masked: in the spirit of MicroRTS' mining
//! (Huang and Ontanon 2022).

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::Result;
use crate::spaces::Space;

const ID: &str = "Harvest-v0";
/// Number of rows and of columns of the board.
const SIDE: usize = 8;
const CELLS: usize = SIDE * SIDE;
const WORKERS: usize = 3;
/// Cell to which ore is delivered.
const BASE: usize = SIDE + 1;
/// Choices: wait; move up, right, down, left; take and give, each in the same four directions.
const CHOICES: usize = 13;
const STEPS: u32 = 100;

/// `Harvest-v0`: three workers fetch ore from a mine and bring it to the base.
///
/// The action is a choice of 13 for each worker, `MultiDiscrete([13, 13, 13])`: 0 waits, 1 to 4
/// moves up, right, down, left, 5 to 8 takes ore from the mine on that side, 9 to 12 gives ore to
/// the base on that side. A worker moves to free cells only, takes only if the mine is on that side
/// and it carries nothing, and gives only if the base is on that side and it carries ore; all other
/// choices do nothing. Workers act in order, so one may take the cell that another was going to.
///
/// Observation `f32[4 * 64 + 3 + 39]`: the cell of each worker, one-hot over 64 cells; the cell of
/// the mine, one-hot; for each worker, 1 if it carries ore; and for each worker in order, the mask
/// of allowed choices. Reward 1 for each ore delivered. An episode has 100 steps, and begins with
/// the workers beside the base and the mine in one of the four columns on the right, any row.
#[derive(Debug, Clone)]
pub struct Harvest {
    state: State,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Cell, and true if the worker carries ore.
    workers: [(usize, bool); WORKERS],
    mine: usize,
}

/// Returns the cell on that side (up, right, down, left), if there is one.
fn beside(cell: usize, side: usize) -> Option<usize> {
    let (row, column) = (cell / SIDE, cell % SIDE);
    match side {
        0 => (row > 0).then(|| cell - SIDE),
        1 => (column + 1 < SIDE).then_some(cell + 1),
        2 => (row + 1 < SIDE).then_some(cell + SIDE),
        _ => (column > 0).then(|| cell - 1),
    }
}

impl Harvest {
    /// Makes `Harvest-v0`.
    pub fn v0() -> Harvest {
        let workers = [(BASE - 1, false), (BASE + 1, false), (BASE + SIDE, false)];
        Harvest { state: State { workers, mine: CELLS - 1 } }
    }

    fn allowed(&self, worker: usize, choice: usize) -> bool {
        let State { workers, mine } = &self.state;
        let (cell, loaded) = workers[worker];
        let Some(direction) = choice.checked_sub(1) else { return true };
        let Some(target) = beside(cell, direction % 4) else { return false };
        match direction / 4 {
            0 => {
                let taken = workers.iter().any(|&(other, _)| other == target);
                !taken && target != BASE && target != *mine
            }
            1 => !loaded && target == *mine,
            _ => loaded && target == BASE,
        }
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let State { workers, mine } = &self.state;
        let numbers = obs.elements::<f32>();
        numbers.fill(0.0);
        for (worker, &(cell, loaded)) in workers.iter().enumerate() {
            numbers[worker * CELLS + cell] = 1.0;
            numbers[(WORKERS + 1) * CELLS + worker] = f32::from(u8::from(loaded));
            for choice in 0..CHOICES {
                let at = (WORKERS + 1) * CELLS + WORKERS + worker * CHOICES + choice;
                numbers[at] = f32::from(u8::from(self.allowed(worker, choice)));
            }
        }
        numbers[WORKERS * CELLS + mine] = 1.0;
    }
}

impl Env for Harvest {
    fn spec(&self) -> EnvSpec {
        let size = (WORKERS + 1) * CELLS + WORKERS + WORKERS * CHOICES;
        EnvSpec {
            id: ID.into(),
            observation: Space::f32([size], 0.0, 1.0),
            action: Space::MultiDiscrete { nvec: vec![CHOICES; WORKERS], masked: true },
            max_episode_steps: Some(STEPS),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = Harvest::v0().state;
        let column = SIDE - 1 - rng.below(SIDE as u64 - 4) as usize;
        self.state.mine = rng.below(SIDE as u64) as usize * SIDE + column;
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let mut reward = 0.0;
        for (worker, &choice) in action.choices().iter().enumerate() {
            if choice == 0 || !self.allowed(worker, choice) {
                continue;
            }
            let (cell, loaded) = &mut self.state.workers[worker];
            match (choice - 1) / 4 {
                0 => *cell = beside(*cell, (choice - 1) % 4).expect("it was allowed"),
                1 => *loaded = true,
                _ => {
                    *loaded = false;
                    reward += 1.0;
                }
            }
        }
        self.observe(obs);
        Ok(StepOutcome::new(reward, false))
    }

    fn render(&mut self) -> Option<Frame> {
        let mut cells = vec![[24; 3]; CELLS];
        cells[BASE] = [66, 158, 130];
        cells[self.state.mine] = [200, 160, 60];
        for (cell, loaded) in self.state.workers {
            cells[cell] = if loaded { [236, 200, 120] } else { [236, 236, 236] };
        }
        Some(Frame::of_cells(&cells, SIDE, 10))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(ID, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let apart = |State { workers: [a, b, c], mine }: &State| {
            let mut cells = [a.0, b.0, c.0, *mine, BASE];
            cells.sort_unstable();
            cells.windows(2).all(|pair| pair[0] < pair[1]) && cells[4] < CELLS
        };
        self.state = restore_json(ID, state, apart)?;
        Ok(())
    }
}
