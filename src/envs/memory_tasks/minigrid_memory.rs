//! MiniGrid's memory task: find the object at the end of a hallway that matches one seen before.

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::envs::pool::{EnvPool, PoolOptions};
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};
use crate::trace::DType;

/// Numbers of kinds of objects, colors and states that a cell of an observation encodes.
const CODES: [usize; 3] = [11, 6, 3];
const BITS: usize = CODES[0] + CODES[1] + CODES[2];

/// Id, size of the board, true if the hallway has a random length.
const IDS: [(&str, i32, bool); 6] = [
    ("MiniGrid-MemoryS7-v0", 7, false),
    ("MiniGrid-MemoryS9-v0", 9, false),
    ("MiniGrid-MemoryS11-v0", 11, false),
    ("MiniGrid-MemoryS13-v0", 13, false),
    ("MiniGrid-MemoryS13Random-v0", 13, true),
    ("MiniGrid-MemoryS17Random-v0", 17, true),
];

/// Makes the environment `id` with MiniGrid's defaults.
pub(super) fn make(id: &str) -> Result<Box<dyn Env>> {
    Ok(Box::new(MiniGridMemory::new(id, MiniGridOptions::default())?))
}

/// Options of [`MiniGridMemory`], with MiniGrid's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MiniGridOptions {
    /// Rows and columns of the agent's view: odd, from 3 on.
    pub agent_view_size: usize,
    /// Steps after which an episode is truncated; `None` for five times the square of the size.
    pub max_episode_steps: Option<u32>,
}

impl Default for MiniGridOptions {
    fn default() -> MiniGridOptions {
        MiniGridOptions { agent_view_size: 7, max_episode_steps: None }
    }
}

impl MiniGridOptions {
    /// Returns the options of CleanRL's `ppo_trxl.py`: a view of 3 by 3 cells, and at most 96 steps.
    pub fn cleanrl() -> MiniGridOptions {
        MiniGridOptions { agent_view_size: 3, max_episode_steps: Some(96) }
    }
}

/// `MiniGrid-MemoryS7-v0` and its larger variants: the agent sees a key or a ball in a room, and walks
/// through a hallway to the same object, which is above or below its end. The other end has the other
/// object. The rules are those of the package `minigrid` 3.2 (Chevalier-Boisvert et al. 2023).
///
/// Observation `bool[V, V, 20]`, where V is the size of the view: the output of MiniGrid's
/// `OneHotPartialObsWrapper`, columns of the view first. Each cell has its kind of object (11), its
/// color (6) and its state (3). The agent is in the middle of the last row of its view, looks up,
/// and does not see through walls. Actions: 0 turns left, 1 turns right, 2 moves forward; MiniGrid's
/// pick up, drop, toggle and done, 3 to 6, have no effect here. The step to the matching object ends
/// the episode with a reward of 1 - 0.9 steps / (5 size^2), the step to the other object with 0.
#[derive(Debug, Clone)]
pub struct MiniGridMemory {
    id: &'static str,
    /// Rows and columns of the board.
    size: i32,
    random_length: bool,
    options: MiniGridOptions,
    state: State,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct State {
    /// Column of the last cell of the hallway.
    hallway_end: i32,
    /// Column and row of the agent.
    position: [i32; 2],
    /// Direction of the agent: right, down, left, up.
    direction: usize,
    /// True if the object of the room is a ball.
    ball_in_room: bool,
    /// True if the upper object at the end of the hallway is a ball.
    ball_above: bool,
    steps: u32,
}

/// Columns and rows of a step in each direction.
const DIRECTIONS: [[i32; 2]; 4] = [[1, 0], [0, 1], [-1, 0], [0, -1]];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Empty,
    Wall,
    Key,
    Ball,
}

impl Cell {
    fn object(ball: bool) -> Cell {
        if ball { Cell::Ball } else { Cell::Key }
    }

    /// MiniGrid's numbers of the kind of object, the color and the state.
    fn code(self) -> [usize; 3] {
        match self {
            Cell::Empty => [1, 0, 0],
            Cell::Wall => [2, 5, 0],
            Cell::Key => [5, 1, 0],
            Cell::Ball => [6, 1, 0],
        }
    }
}

impl MiniGridMemory {
    /// Makes the environment `id`.
    ///
    /// # Errors
    /// [`Error::Env`] for an unknown id and for a view size that is even or below 3.
    pub fn new(id: &str, options: MiniGridOptions) -> Result<MiniGridMemory> {
        let Some(&(id, size, random_length)) = IDS.iter().find(|(known, ..)| *known == id) else {
            let ids = IDS.map(|(known, ..)| known).join(", ");
            return Err(Error::Env(format!("\"{id}\" is not of MiniGrid's memory task: {ids}")));
        };
        let view = options.agent_view_size;
        if view < 3 || view.is_multiple_of(2) {
            return Err(Error::Env(format!(
                "{id}: agent_view_size {view}: must be an odd number from 3 on"
            )));
        }
        let state = State {
            hallway_end: size - 3,
            position: [1, size / 2],
            direction: 0,
            ball_in_room: false,
            ball_above: false,
            steps: 0,
        };
        Ok(MiniGridMemory { id, size, random_length, options, state })
    }

    fn max_steps(&self) -> u32 {
        5 * (self.size * self.size) as u32
    }

    fn cell(&self, [x, y]: [i32; 2]) -> Cell {
        let State { hallway_end, ball_in_room, ball_above, .. } = self.state;
        let (last, middle) = (self.size - 1, self.size / 2);
        let row = (y - middle).abs();
        if [x, y] == [1, middle - 1] {
            return Cell::object(ball_in_room);
        }
        if x == hallway_end + 1 && row == 2 {
            return Cell::object(ball_above == (y < middle));
        }
        let border = x <= 0 || y <= 0 || x >= last || y >= last;
        let room = (row == 2 && x <= 4) || (row == 1 && x == 4);
        let hallway = row == 1 && (5..hallway_end).contains(&x);
        let vertical = (x == hallway_end && row != 0) || x == hallway_end + 2;
        if border || room || hallway || vertical { Cell::Wall } else { Cell::Empty }
    }

    /// Returns the cell of the board at column `i` and row `j` of the view.
    fn place(&self, i: usize, j: usize) -> [i32; 2] {
        let view = self.options.agent_view_size;
        let (ahead, aside) = ((view - 1 - j) as i32, i as i32 - (view / 2) as i32);
        let [dx, dy] = DIRECTIONS[self.state.direction];
        let [x, y] = self.state.position;
        [x + dx * ahead - dy * aside, y + dy * ahead + dx * aside]
    }

    /// Returns true for each cell `i * V + j` that the agent sees: MiniGrid's `process_vis`.
    fn visible(&self) -> Vec<bool> {
        let view = self.options.agent_view_size;
        let mut seen = vec![false; view * view];
        seen[view / 2 * view + view - 1] = true;
        let mut spread = |i: usize, j: usize, next: usize| {
            if seen[i * view + j] && self.cell(self.place(i, j)) != Cell::Wall {
                seen[next * view + j] = true;
                if j > 0 {
                    seen[next * view + j - 1] = true;
                    seen[i * view + j - 1] = true;
                }
            }
        };
        for j in (0..view).rev() {
            (0..view - 1).for_each(|i| spread(i, j, i + 1));
            (1..view).rev().for_each(|i| spread(i, j, i - 1));
        }
        seen
    }

    fn observe(&self, mut obs: ObsMut<'_>) {
        let view = self.options.agent_view_size;
        let bits = obs.elements::<u8>();
        bits.fill(0);
        for (at, seen) in self.visible().into_iter().enumerate() {
            let code = match seen {
                true => self.cell(self.place(at / view, at % view)).code(),
                false => [0; 3],
            };
            let mut first = at * BITS;
            for (number, count) in code.into_iter().zip(CODES) {
                bits[first + number] = 1;
                first += count;
            }
        }
    }
}

impl Env for MiniGridMemory {
    fn spec(&self) -> EnvSpec {
        let view = self.options.agent_view_size;
        EnvSpec {
            id: self.id.into(),
            observation: Space::Box {
                low: Bound::All(0.0),
                high: Bound::All(1.0),
                shape: [view, view, BITS].into(),
                dtype: DType::Bool,
            },
            action: Space::Discrete { n: 7 },
            max_episode_steps: self.options.max_episode_steps.or(Some(self.max_steps())),
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        let hallway_end = match self.random_length {
            true => 4 + rng.below(self.size as u64 - 6) as i32,
            false => self.size - 3,
        };
        self.state = State {
            hallway_end,
            position: [1 + rng.below(hallway_end as u64) as i32, self.size / 2],
            direction: 0,
            ball_in_room: rng.below(2) == 1,
            ball_above: rng.below(2) == 0,
            steps: 0,
        };
        self.observe(obs);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        _rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        self.state.steps += 1;
        let ahead = self.place(self.options.agent_view_size / 2, self.options.agent_view_size - 2);
        match action.discrete() {
            0 => self.state.direction = (self.state.direction + 3) % 4,
            1 => self.state.direction = (self.state.direction + 1) % 4,
            2 if self.cell(ahead) == Cell::Empty => self.state.position = ahead,
            _ => {}
        }
        self.observe(obs);
        let State { hallway_end, position: [x, y], ball_in_room, ball_above, steps, .. } =
            self.state;
        let above = y < self.size / 2;
        let terminated = x == hallway_end + 1 && y != self.size / 2;
        let matches = above == (ball_in_room == ball_above);
        let reward = match terminated && matches {
            true => 1.0 - 0.9 * (f64::from(steps) / f64::from(self.max_steps())),
            false => 0.0,
        };
        Ok(StepOutcome::new(reward, terminated))
    }

    fn render(&mut self) -> Option<Frame> {
        let places = (0..self.size).flat_map(|y| (0..self.size).map(move |x| [x, y]));
        let color = |place: [i32; 2]| match self.cell(place) {
            _ if place == self.state.position => [200, 72, 72],
            Cell::Empty => [24; 3],
            Cell::Wall => [110; 3],
            Cell::Key => [200, 160, 60],
            Cell::Ball => [66, 158, 130],
        };
        let mut cells: Vec<[u8; 3]> = places.map(color).collect();
        // The cell that the agent looks at.
        let [dx, dy] = DIRECTIONS[self.state.direction];
        let [x, y] = self.state.position;
        let ahead = &mut cells[((y + dy) * self.size + x + dx) as usize];
        *ahead = ahead.map(|value| value.saturating_add(40));
        Some(Frame::of_cells(&cells, self.size as usize, 10))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(self.id, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let mut other = self.clone();
        let valid = |state: &State| {
            other.state = state.clone();
            (4..=self.size - 3).contains(&state.hallway_end)
                && state.direction < 4
                && other.cell(state.position) == Cell::Empty
        };
        self.state = restore_json(self.id, state, valid)?;
        Ok(())
    }
}

/// Returns true for the ids of MiniGrid's memory task.
#[cfg(feature = "rl")]
pub(crate) fn is_minigrid(id: &str) -> bool {
    IDS.iter().any(|(known, ..)| *known == id)
}

impl EnvPool {
    /// Makes a pool of MiniGrid's memory task `id`; [`EnvPool::make`] does the same with the default
    /// options.
    ///
    /// # Errors
    /// Returns the errors of [`MiniGridMemory::new`] and of [`EnvPool::make`].
    pub fn minigrid(id: &str, minigrid: MiniGridOptions, options: PoolOptions) -> Result<EnvPool> {
        EnvPool::custom(|_| Ok(Box::new(MiniGridMemory::new(id, minigrid)?)), options)
    }
}
