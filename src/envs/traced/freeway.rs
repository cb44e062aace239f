//! `MinAtar/Freeway-v1` and `-v0`; see [`crate::envs::minatar`] for a description.

use super::board::{LAST, SIZE, Settings, ahead, cell, count, lane_rows, lanes, noop, steps};
use super::{TracedEnv, TracedStep, never};
use crate::envs::env::spec::EnvSpec;
use crate::envs::minatar::{self, Move};
use crate::random::{self, Key};
use crate::trace::ops::{constant, stack, where_, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Number of cars, one in each row between the first and the last.
const CARS: usize = SIZE - 2;
/// Column in which the chicken walks.
const COLUMN: i32 = 4;
/// Number of frames from one step of the chicken to the next.
const MOVE_INTERVAL: i32 = 3;
/// Number of frames of an episode, without the last one.
const TIME_LIMIT: i32 = 2500;
/// Maximum number of frames between two moves of a car.
const SLOWEST: i32 = 5;

/// Freeway: cross a road of eight lanes.
#[derive(Debug, Clone)]
pub struct Freeway {
    settings: Settings,
}

/// State of [`Freeway`].
#[derive(Debug, Clone, Tree)]
pub struct FreewayState<T> {
    /// `i32[]`: row of the chicken.
    pub row: T,
    /// `i32[]`: number of frames until the chicken can take a step.
    pub move_timer: T,
    /// `i32[]`: number of frames of the episode that are left, without the last one.
    pub frames_left: T,
    /// `i32[8]`: column of each car.
    pub x: T,
    /// Directions and speeds of the cars.
    pub cars: FreewayCars<T>,
    /// `i32[8]`: number of frames until each car moves.
    pub timer: T,
    /// `i32[]`: last move of the player.
    pub last_move: T,
}

/// Directions and speeds of the cars of [`Freeway`], which are drawn at the start and when the
/// chicken has crossed the road.
#[derive(Debug, Clone, Copy, Tree)]
pub struct FreewayCars<T> {
    /// `i32[8]`: number of frames that each car waits between moves, 1 to 5.
    pub interval: T,
    /// `bool[8]`: true for a car that moves to the right.
    pub right: T,
}

impl FreewayCars<Tensor> {
    /// Draws new cars.
    #[track_caller]
    fn sample(key: Key<Tensor>) -> FreewayCars<Tensor> {
        let (interval, right) = key.split();
        FreewayCars {
            interval: random::randint(interval, [CARS], 1, SLOWEST + 1, DType::I32),
            right: random::bernoulli(right, 0.5, [CARS]),
        }
    }
}

/// Returns the columns beside `x`; the road wraps around at its ends.
#[track_caller]
fn around(x: Tensor, right: Tensor) -> Tensor {
    let x = ahead(x, right);
    where_(x.lt(0), LAST, where_(x.gt(LAST), 0, x))
}

impl Freeway {
    /// Makes `MinAtar/Freeway-v1`: no-op, up, down.
    pub fn v1() -> Freeway {
        Freeway { settings: Settings::minimal::<minatar::Freeway>("MinAtar/Freeway-v1") }
    }

    /// Makes `MinAtar/Freeway-v0`: all six actions of MinAtar.
    pub fn v0() -> Freeway {
        Freeway { settings: Settings::full("MinAtar/Freeway-v0") }
    }

    /// Returns the environment with another probability of sticky actions.
    pub fn with_sticky_action_prob(mut self, sticky_action_prob: f64) -> Freeway {
        self.settings.sticky_action_prob = sticky_action_prob;
        self
    }

    /// Returns the start of an episode with the given cars.
    #[track_caller]
    pub fn start(&self, cars: FreewayCars<Tensor>) -> FreewayState<Tensor> {
        FreewayState {
            row: constant(LAST),
            move_timer: constant(MOVE_INTERVAL),
            frames_left: constant(TIME_LIMIT),
            x: zeros([CARS], DType::I32),
            cars,
            timer: cars.interval,
            last_move: noop(),
        }
    }

    /// Computes one frame with a move of the player, the number of a [`Move`], and with the cars
    /// that come if the chicken crosses the road: the rules without randomness.
    #[track_caller]
    pub fn play(
        &self,
        state: FreewayState<Tensor>,
        player_move: Tensor,
        next_cars: FreewayCars<Tensor>,
    ) -> TracedStep<Tensor, FreewayState<Tensor>> {
        let FreewayState { row, move_timer, frames_left, x, cars, timer, .. } = state;
        let step = steps(player_move, Move::Up, Move::Down);
        let walks = move_timer.eq(0) & step.ne(0);
        let row = where_(walks, (row + step).clip(0, LAST), row);
        let move_timer = where_(walks, MOVE_INTERVAL, move_timer);

        let crossed = row.eq(0);
        let interval = where_(crossed, next_cars.interval, cars.interval);
        let right = where_(crossed, next_cars.right, cars.right);
        let timer = where_(crossed, next_cars.interval, timer);
        let row = where_(crossed, LAST, row);

        let hit = |x: Tensor, row: Tensor| (x.eq(COLUMN) & lane_rows().eq(row)).any(..);
        let row = where_(hit(x, row), LAST, row);
        let moving = timer.eq(0);
        let x = where_(moving, around(x, right), x);
        let row = where_(hit(x, row), LAST, row);

        let frames_left = frames_left - 1;
        let next = FreewayState {
            row,
            move_timer: (move_timer - 1).maximum(0),
            frames_left,
            x,
            cars: FreewayCars { interval, right },
            timer: where_(moving, interval, timer - 1),
            last_move: player_move,
        };
        TracedStep {
            obs: next.observe(),
            reward: count(crossed).to(DType::F32),
            terminated: frames_left.lt(0),
            truncated: never(),
            state: next,
        }
    }
}

impl FreewayState<Tensor> {
    /// Returns the observation, `bool[10,10,7]`: chicken, car, and the trails of cars that wait 1
    /// to 5 frames.
    #[track_caller]
    fn observe(&self) -> Tensor {
        let FreewayCars { interval, right } = self.cars;
        let all = interval.gt(0);
        let mut channels = vec![cell(constant(COLUMN), self.row, 0..SIZE), lanes(all, self.x)];
        let behind = around(self.x, !right);
        for waits in 1..=SLOWEST {
            channels.push(lanes(interval.eq(waits), behind));
        }
        stack(&channels, -1)
    }
}

impl TracedEnv for Freeway {
    type State = FreewayState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.settings.spec.clone()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (FreewayState<Tensor>, Tensor) {
        let state = self.start(FreewayCars::sample(key));
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: FreewayState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, FreewayState<Tensor>> {
        let (sticky, cars) = key.split();
        let player_move = self.settings.sample(action, state.last_move, sticky);
        self.play(state, player_move, FreewayCars::sample(cars))
    }
}
