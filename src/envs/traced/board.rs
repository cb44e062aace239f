//! Base of MinAtar's traced games: settings, moves of the player, and the board.

use crate::envs::env::spec::EnvSpec;
use crate::envs::minatar::{Game, MOVES, Move};
use crate::random::{self, Key};
use crate::trace::ops::{constant, iota, where_};
use crate::trace::{DType, Tensor};

/// Number of cells along each side of the board.
pub(super) const SIZE: usize = 10;
/// Index of the last column and of the last row.
pub(super) const LAST: i32 = SIZE as i32 - 1;

/// Settings of a game's environment.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub spec: EnvSpec,
    /// Moves of the player's actions.
    moves: &'static [Move],
    /// Probability that a step repeats the previous move instead of the requested one.
    pub sticky_action_prob: f64,
    /// True if the game gets harder over time.
    pub difficulty_ramping: bool,
}

impl Settings {
    /// Returns the defaults of the environment `id`, in which all six actions of MinAtar are allowed.
    pub fn full(id: &str) -> Settings {
        let spec = crate::envs::registry::spec(id).expect("the pool has it");
        Settings { spec, moves: MOVES, sticky_action_prob: 0.1, difficulty_ramping: true }
    }

    /// Returns the defaults of the environment `id`, in which only the actions that have an effect
    /// in the game `G` are allowed.
    pub fn minimal<G: Game>(id: &str) -> Settings {
        Settings { moves: G::MOVES, ..Settings::full(id) }
    }

    /// Returns the player's move, a [`Move`] as `i32[]`: that of `action`, or `last_move` with the
    /// probability of sticky actions.
    #[track_caller]
    pub fn sample(&self, action: Tensor, last_move: Tensor, key: Key<Tensor>) -> Tensor {
        let mut requested = noop();
        for (i, &number) in self.moves.iter().enumerate() {
            requested = where_(action.eq(i as i32), number as i32, requested);
        }
        let sticky = random::bernoulli(key, self.sticky_action_prob, []);
        where_(sticky, last_move, requested)
    }
}

/// Returns the move of a player that does nothing.
#[track_caller]
pub(super) fn noop() -> Tensor {
    constant(Move::Noop as i32)
}

/// Returns 1 where `condition` is true, else 0: `i32`.
#[track_caller]
pub(super) fn count(condition: Tensor) -> Tensor {
    condition.to(DType::I32)
}

/// Returns the displacement along one axis: 1 if `player_move` is `forth`, -1 if `back`, else 0.
#[track_caller]
pub(super) fn steps(player_move: Tensor, back: Move, forth: Move) -> Tensor {
    count(player_move.eq(forth as i32)) - count(player_move.eq(back as i32))
}

/// Returns the column beside `x`: `x + 1` where `right` is true, else `x - 1`.
#[track_caller]
pub(super) fn ahead(x: Tensor, right: Tensor) -> Tensor {
    where_(right, x + 1, x - 1)
}

/// Returns true where `x` is a column of the board.
#[track_caller]
pub(super) fn inside(x: Tensor) -> Tensor {
    x.ge(0) & x.le(LAST)
}

/// Returns `bool[rows.len(), 10]`: the rows `rows` of the board, true at column `x`, row `y` only.
#[track_caller]
pub(super) fn cell(x: Tensor, y: Tensor, rows: std::ops::Range<usize>) -> Tensor {
    let shape = [rows.len(), SIZE];
    let row = iota(shape, 0, DType::I32) + rows.start as i32;
    row.eq(y) & iota(shape, 1, DType::I32).eq(x)
}

/// Returns the map `bool[10,10]` of the entities in the eight lanes between the first row and the
/// last: one in each lane, in column `x: i32[8]`, if `on: bool[8]` is true.
#[track_caller]
pub(super) fn lanes(on: Tensor, x: Tensor) -> Tensor {
    let columns = iota([x.dim(0), SIZE], 1, DType::I32).eq(x.expand_dims(1));
    (columns & on.expand_dims(1)).pad_with(&[1, 0], &[1, 0], &[0, 0], constant(false))
}

/// Returns the rows of the eight lanes: `i32[8]`, from 1.
#[track_caller]
pub(super) fn lane_rows() -> Tensor {
    iota([SIZE - 2], 0, DType::I32) + 1
}
