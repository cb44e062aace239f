//! Base of the five games: moves, the board, sticky actions, images, saved states.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome, restore_json, save_json};
use crate::error::{Error, Result};
use crate::spaces::{Bound, Space};
use crate::trace::types::DType;

/// Number of cells along each side of the board.
pub(super) const SIZE: i32 = 10;
/// Index of the last column and of the last row.
pub(super) const LAST: i32 = SIZE - 1;

/// Options of a MinAtar environment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MinAtarOptions {
    /// Probability that a step repeats the previous move instead of the requested one.
    pub sticky_action_prob: f64,
    /// If true, a game gets faster as the player succeeds. Breakout and Freeway never do.
    pub difficulty_ramping: bool,
}

impl Default for MinAtarOptions {
    fn default() -> Self {
        MinAtarOptions { sticky_action_prob: 0.1, difficulty_ramping: true }
    }
}

/// Moves of a player. Some games ignore some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Move {
    /// No-op.
    Noop,
    /// Move one column left.
    Left,
    /// Move one row up.
    Up,
    /// Move one column right.
    Right,
    /// Move one row down.
    Down,
    /// Shoot.
    Fire,
}

/// Moves in the order of the actions of an id that ends in `-v0`.
pub(in crate::envs) const MOVES: &[Move] =
    &[Move::Noop, Move::Left, Move::Up, Move::Right, Move::Down, Move::Fire];

/// Set of moves that an environment's actions stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ActionSet {
    /// All six moves.
    Full,
    /// The moves that have an effect in the game.
    Minimal,
}

impl ActionSet {
    fn moves<G: Game>(self) -> &'static [Move] {
        match self {
            ActionSet::Full => MOVES,
            ActionSet::Minimal => G::MOVES,
        }
    }
}

/// Channel of the observation: the name of what it shows, and its color in images.
pub type Channel = (&'static str, [u8; 3]);

/// State and rules of one game. Only MinAtar's five games implement it.
pub trait Game: Clone + fmt::Debug + Send + Serialize + DeserializeOwned {
    /// Channels of the observation, in order. In images a later one covers an earlier one.
    const CHANNELS: &'static [Channel];

    /// Moves that have an effect.
    const MOVES: &'static [Move];

    /// Starts an episode.
    fn new(rng: &mut EnvRng) -> Self;

    /// Advances the game by one frame; returns the reward.
    fn play(&mut self, action: Move, ramping: bool, rng: &mut EnvRng) -> i32;

    /// Returns true if the game has ended.
    fn over(&self) -> bool;

    /// Sets the cells of an empty board.
    fn draw(&self, board: &mut Board<'_>);

    /// Returns true if everything is where the rules can put it. A restored state may be invalid.
    fn is_valid(&self) -> bool;
}

/// Observation: `SIZE * SIZE` cells with one byte per channel.
#[derive(Debug)]
pub struct Board<'a> {
    cells: &'a mut [u8],
    channels: usize,
}

impl Board<'_> {
    /// Sets a channel of the cell in column `x` of row `y`.
    #[inline]
    pub(super) fn set(&mut self, x: i32, y: i32, channel: usize) {
        self.cells[(y * SIZE + x) as usize * self.channels + channel] = 1;
    }

    /// Sets the channel unless `x` is outside the board.
    #[inline]
    pub(super) fn set_inside(&mut self, x: i32, y: i32, channel: usize) {
        if inside(x) {
            self.set(x, y, channel);
        }
    }
}

/// Returns true if there is a column or row with this index.
#[inline]
pub(super) fn inside(x: i32) -> bool {
    (0..SIZE).contains(&x)
}

/// Returns the next column to the right or to the left.
#[inline]
pub(super) fn ahead(x: i32, right: bool) -> i32 {
    if right { x + 1 } else { x - 1 }
}

/// Returns true with probability `p`.
#[inline]
pub(super) fn chance(rng: &mut EnvRng, p: f64) -> bool {
    rng.uniform(0.0, 1.0) < p
}

/// Draws a whole number below `n`.
#[inline]
pub(super) fn below(rng: &mut EnvRng, n: usize) -> usize {
    rng.below(n as u64) as usize
}

/// Adapter from a game to an environment.
#[derive(Debug, Clone)]
pub struct MinAtar<G> {
    id: &'static str,
    action_set: ActionSet,
    options: MinAtarOptions,
    state: State<G>,
}

/// Content of a saved state, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct State<G> {
    game: G,
    last_move: Move,
}

impl<G: Game> MinAtar<G> {
    pub(super) fn new(
        id: &'static str,
        action_set: ActionSet,
        options: MinAtarOptions,
    ) -> Result<MinAtar<G>> {
        let p = options.sticky_action_prob;
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::Config(format!(
                "{id}: sticky_action_prob is {p}, expected a probability from 0 to 1"
            )));
        }
        // This state is unused: an episode begins with `reset`.
        let mut rng = EnvRng::new(crate::envs::env::seeds::EnvSeed(0));
        let state = State { game: G::new(&mut rng), last_move: Move::Noop };
        Ok(MinAtar { id, action_set, options, state })
    }

    fn observe(&self, obs: &mut [u8]) {
        obs.fill(0);
        self.state.game.draw(&mut Board { cells: obs, channels: G::CHANNELS.len() });
    }
}

impl<G: Game> Env for MinAtar<G> {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id.into(),
            observation: Space::Box {
                low: Bound::All(0.0),
                high: Bound::All(1.0),
                shape: [SIZE as usize, SIZE as usize, G::CHANNELS.len()].into(),
                dtype: DType::Bool,
            },
            action: Space::Discrete { n: self.action_set.moves::<G>().len() },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.state = State { game: G::new(rng), last_move: Move::Noop };
        self.observe(obs.0);
        Ok(())
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let State { game, last_move } = &mut self.state;
        if !chance(rng, self.options.sticky_action_prob) {
            *last_move = self.action_set.moves::<G>()[action.discrete()];
        }
        // A game that is over is not changed.
        let mut reward = 0;
        if !game.over() {
            reward = game.play(*last_move, self.options.difficulty_ramping, rng);
        }
        let over = game.over();
        self.observe(obs.0);
        Ok(StepOutcome::new(reward.into(), over))
    }

    fn render(&mut self) -> Option<Frame> {
        let mut cells = vec![0; SIZE as usize * SIZE as usize * G::CHANNELS.len()];
        self.observe(&mut cells);
        let colors: Vec<[u8; 3]> = cells
            .chunks(G::CHANNELS.len())
            .map(|cell| cell.iter().rposition(|&on| on == 1).map_or([0; 3], |c| G::CHANNELS[c].1))
            .collect();
        Some(Frame::of_cells(&colors, SIZE as usize, 10))
    }

    fn save(&self) -> Result<Vec<u8>> {
        save_json(self.id, &self.state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.state = restore_json(self.id, state, |state: &State<G>| state.game.is_valid())?;
        Ok(())
    }
}
