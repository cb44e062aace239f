//! `MinAtar/SpaceInvaders-v1` and `-v0`; see [`crate::envs::minatar`] for a description.

use super::board::{LAST, SIZE, Settings, cell, count, noop, steps};
use super::{TracedEnv, TracedStep, never};
use crate::envs::env::spec::EnvSpec;
use crate::envs::minatar::{self, Move};
use crate::random::Key;
use crate::trace::ops::{concatenate, constant, iota, stack, where_, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Number of frames from one shot of the cannon to the next.
const COOL_DOWN: i32 = 5;
/// Number of frames from one shot of an alien to the next.
const ALIEN_SHOT_INTERVAL: i32 = 10;
/// Initial number of frames between two moves of the aliens.
const ALIEN_MOVE_INTERVAL: i32 = 12;
/// Minimum of that number of frames, which shrinks by one per wave.
const LEAST_MOVE_INTERVAL: i32 = 6;

/// Space Invaders: shoot the aliens before they come down.
#[derive(Debug, Clone)]
pub struct SpaceInvaders {
    settings: Settings,
}

/// State of [`SpaceInvaders`].
#[derive(Debug, Clone, Tree)]
pub struct SpaceInvadersState<T> {
    /// `i32[]`: column of the cannon.
    pub cannon: T,
    /// `i32[]`: number of frames until the cannon can shoot.
    pub cool_down: T,
    /// `bool[10,10]`: bullets of the cannon.
    pub bullets: T,
    /// `bool[10,10]`: bullets of the aliens.
    pub alien_bullets: T,
    /// `bool[10,10]`: aliens.
    pub aliens: T,
    /// `bool[]`: true if the aliens move to the right.
    pub right: T,
    /// `i32[]`: maximum number of frames between two moves of the aliens.
    pub move_interval: T,
    /// `i32[]`: number of frames until the aliens move.
    pub move_timer: T,
    /// `i32[]`: number of frames until an alien shoots.
    pub shot_timer: T,
    /// `i32[]`: last move of the player.
    pub last_move: T,
}

/// Returns a new wave of aliens, `bool[10,10]`.
#[track_caller]
fn wave() -> Tensor {
    let [row, column] = [0, 1].map(|axis| iota([SIZE, SIZE], axis, DType::I32));
    row.lt(4) & column.ge(2) & column.lt(8)
}

/// Returns an empty row, `bool[1,10]`.
#[track_caller]
fn empty_row() -> Tensor {
    zeros([1, SIZE], DType::Bool)
}

/// Returns true if `map` has something in the bottom row at the column `x`.
#[track_caller]
fn at_bottom(map: Tensor, x: Tensor) -> Tensor {
    (map & cell(x, constant(LAST), 0..SIZE)).any(..)
}

impl SpaceInvaders {
    /// Makes `MinAtar/SpaceInvaders-v1`: no-op, left, right, fire.
    pub fn v1() -> SpaceInvaders {
        SpaceInvaders {
            settings: Settings::minimal::<minatar::SpaceInvaders>("MinAtar/SpaceInvaders-v1"),
        }
    }

    /// Makes `MinAtar/SpaceInvaders-v0`: all six actions of MinAtar.
    pub fn v0() -> SpaceInvaders {
        SpaceInvaders { settings: Settings::full("MinAtar/SpaceInvaders-v0") }
    }

    /// Returns the environment with another probability of sticky actions.
    pub fn with_sticky_action_prob(mut self, sticky_action_prob: f64) -> SpaceInvaders {
        self.settings.sticky_action_prob = sticky_action_prob;
        self
    }

    /// Returns the environment with or without waves that are faster than the one before.
    pub fn with_difficulty_ramping(mut self, difficulty_ramping: bool) -> SpaceInvaders {
        self.settings.difficulty_ramping = difficulty_ramping;
        self
    }

    /// Computes one frame with a move of the player, the number of a [`Move`]: the rules without
    /// randomness.
    #[track_caller]
    pub fn play(
        &self,
        state: SpaceInvadersState<Tensor>,
        player_move: Tensor,
    ) -> TracedStep<Tensor, SpaceInvadersState<Tensor>> {
        let mut next = state;
        next.steer(player_move);
        next.bullets = concatenate(&[next.bullets.slice_axis(0, 1, SIZE), empty_row()], 0);
        let last = SIZE - 1;
        next.alien_bullets =
            concatenate(&[empty_row(), next.alien_bullets.slice_axis(0, 0, last)], 0);
        let mut over = at_bottom(next.alien_bullets | next.aliens, next.cannon);
        over = over | next.march();
        next.alien_shot();

        let shot = next.aliens & next.bullets;
        next.aliens = next.aliens & !shot;
        next.bullets = next.bullets & !shot;
        next.cool_down = (next.cool_down - 1).maximum(0);
        let cleared = !next.aliens.any(..);
        if self.settings.difficulty_ramping {
            let faster = cleared & next.move_interval.gt(LEAST_MOVE_INTERVAL);
            next.move_interval = next.move_interval - count(faster);
        }
        next.aliens = next.aliens | (wave() & cleared);
        TracedStep {
            obs: next.observe(),
            reward: count(shot).sum(..).to(DType::F32),
            terminated: over,
            truncated: never(),
            state: next,
        }
    }
}

impl SpaceInvadersState<Tensor> {
    /// Moves the cannon or shoots with it.
    #[track_caller]
    fn steer(&mut self, player_move: Tensor) {
        let fires = player_move.eq(Move::Fire as i32) & self.cool_down.eq(0);
        self.bullets = self.bullets | (cell(self.cannon, constant(LAST), 0..SIZE) & fires);
        self.cool_down = where_(fires, COOL_DOWN, self.cool_down);
        self.cannon = (self.cannon + steps(player_move, Move::Left, Move::Right)).clip(0, LAST);
        self.last_move = player_move;
    }

    /// Moves the aliens if it is time. Returns true if that ends the game.
    #[track_caller]
    fn march(&mut self) -> Tensor {
        let (aliens, right) = (self.aliens, self.right);
        let moving = self.move_timer.eq(0);
        let end = where_(right, LAST, constant(0i32));
        let at_end = (aliens & iota([SIZE, SIZE], 1, DType::I32).eq(end)).any(..);
        let landed = at_end & aliens.index_axis(0, -1).any(..);
        let beside = where_(right, aliens.roll(1, 1), aliens.roll(-1, 1));
        let moved = where_(at_end, aliens.roll(1, 0), beside);
        let interval = self.move_interval.minimum(count(aliens).sum(..));

        self.aliens = where_(moving, moved, aliens);
        self.right = right ^ (moving & at_end);
        self.move_timer = where_(moving, interval, self.move_timer) - 1;
        moving & (landed | at_bottom(moved, self.cannon))
    }

    /// Adds a bullet, if it is time, at the lowest alien of the column nearest to the cannon, the
    /// left column of two.
    #[track_caller]
    fn alien_shot(&mut self) {
        let due = self.shot_timer.eq(0);
        self.shot_timer = where_(due, ALIEN_SHOT_INTERVAL, self.shot_timer) - 1;
        let distance = (iota([SIZE], 0, DType::I32) - self.cannon).abs();
        let nearest = where_(self.aliens.any(0), distance, SIZE as i32).argmin(0);
        let [row, column] = [0, 1].map(|axis| iota([SIZE, SIZE], axis, DType::I32));
        let above = self.aliens & column.eq(nearest);
        let lowest = where_(above, row, -1).max(..);
        self.alien_bullets = self.alien_bullets | (above & row.eq(lowest) & due);
    }

    /// Returns the observation, `bool[10,10,6]`: cannon, alien, alien that moves left, alien that
    /// moves right, bullet, alien's bullet.
    #[track_caller]
    fn observe(&self) -> Tensor {
        let channels = [
            cell(self.cannon, constant(LAST), 0..SIZE),
            self.aliens,
            self.aliens & !self.right,
            self.aliens & self.right,
            self.bullets,
            self.alien_bullets,
        ];
        stack(&channels, -1)
    }
}

impl TracedEnv for SpaceInvaders {
    type State = SpaceInvadersState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.settings.spec.clone()
    }

    #[track_caller]
    fn reset(&self, _key: Key<Tensor>) -> (SpaceInvadersState<Tensor>, Tensor) {
        let empty = zeros([SIZE, SIZE], DType::Bool);
        let state = SpaceInvadersState {
            cannon: constant(5i32),
            cool_down: constant(0i32),
            bullets: empty,
            alien_bullets: empty,
            aliens: wave(),
            right: constant(false),
            move_interval: constant(ALIEN_MOVE_INTERVAL),
            move_timer: constant(ALIEN_MOVE_INTERVAL),
            shot_timer: constant(ALIEN_SHOT_INTERVAL),
            last_move: noop(),
        };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: SpaceInvadersState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, SpaceInvadersState<Tensor>> {
        let player_move = self.settings.sample(action, state.last_move, key);
        self.play(state, player_move)
    }
}
