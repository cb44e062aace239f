//! `MinAtar/Asterix-v1` and `-v0`; see [`crate::envs::minatar`] for a description.

use super::board::{
    LAST, SIZE, Settings, ahead, cell, count, inside, lane_rows, lanes, noop, steps,
};
use super::{TracedEnv, TracedStep, never};
use crate::envs::env::spec::EnvSpec;
use crate::envs::minatar::{self, Move};
use crate::random::{self, Key};
use crate::trace::ops::{constant, iota, stack, where_, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Number of rows between the first and the last; each holds at most one entity.
const LANES: usize = SIZE - 2;
/// Initial number of frames between two spawns.
const SPAWN_INTERVAL: i32 = 10;
/// Initial number of frames between two moves of the entities.
const MOVE_INTERVAL: i32 = 5;
/// Initial value of the difficulty's timer, which ends at -1: the difficulty increases every 102
/// frames.
const RAMP_INTERVAL: i32 = 100;

/// Asterix: collect gold and avoid enemies, both of which cross the board.
#[derive(Debug, Clone)]
pub struct Asterix {
    settings: Settings,
}

/// State of [`Asterix`].
#[derive(Debug, Clone, Tree)]
pub struct AsterixState<T> {
    /// `i32[]` each: column and row of the player.
    pub player: [T; 2],
    /// `bool[8]`: true for a lane that holds an entity. The lanes are the rows 1 to 8 of the board.
    pub occupied: T,
    /// `i32[8]`: column of the entity in each lane.
    pub x: T,
    /// `bool[8]`: true for an entity that moves to the right.
    pub right: T,
    /// `bool[8]`: true for gold, false for an enemy.
    pub gold: T,
    /// `i32[]` each: number of frames between two spawns, and until the next.
    pub spawn: [T; 2],
    /// `i32[]` each: number of frames between two moves of the entities, and until the next.
    pub moves: [T; 2],
    /// `i32[]`: timer of the difficulty, which increases in the frame after this is negative.
    pub ramp_timer: T,
    /// `i32[]`: number of increases of the difficulty.
    pub ramp_index: T,
    /// `i32[]`: last move of the player.
    pub last_move: T,
}

/// Random numbers of a frame of [`Asterix`]; used if something spawns in it.
#[derive(Debug, Clone, Copy, Tree)]
pub struct AsterixDraws<T> {
    /// `bool[]`: true for an entity that moves to the right.
    pub right: T,
    /// `bool[]`: true for gold, false for an enemy.
    pub gold: T,
    /// `i32[]`: a free lane; any if none is free.
    pub lane: T,
}

impl Asterix {
    /// Makes `MinAtar/Asterix-v1`: no-op, left, up, right, down.
    pub fn v1() -> Asterix {
        Asterix { settings: Settings::minimal::<minatar::Asterix>("MinAtar/Asterix-v1") }
    }

    /// Makes `MinAtar/Asterix-v0`: all six actions of MinAtar.
    pub fn v0() -> Asterix {
        Asterix { settings: Settings::full("MinAtar/Asterix-v0") }
    }

    /// Returns the environment with another probability of sticky actions.
    pub fn with_sticky_action_prob(mut self, sticky_action_prob: f64) -> Asterix {
        self.settings.sticky_action_prob = sticky_action_prob;
        self
    }

    /// Returns the environment with or without intervals that shrink over time.
    pub fn with_difficulty_ramping(mut self, difficulty_ramping: bool) -> Asterix {
        self.settings.difficulty_ramping = difficulty_ramping;
        self
    }

    /// Computes one frame from a move of the player (a [`Move`] as `i32[]`) and random numbers that
    /// were drawn before. Deterministic.
    #[track_caller]
    pub fn play(
        &self,
        state: AsterixState<Tensor>,
        player_move: Tensor,
        draws: AsterixDraws<Tensor>,
    ) -> TracedStep<Tensor, AsterixState<Tensor>> {
        let mut next = state;
        next.spawn(draws);
        let [x, y] = next.player;
        next.player = [
            (x + steps(player_move, Move::Left, Move::Right)).clip(0, LAST),
            (y + steps(player_move, Move::Up, Move::Down)).clip(1, LAST - 1),
        ];
        next.last_move = player_move;

        let (collected, hit) = next.touch(constant(true));
        let [interval, timer] = next.moves;
        let moving = timer.eq(0);
        next.x = where_(moving, ahead(next.x, next.right), next.x);
        next.occupied = next.occupied & inside(next.x);
        let (collected_later, hit_later) = next.touch(moving);
        next.moves = [interval, where_(moving, interval, timer) - 1];

        if self.settings.difficulty_ramping {
            next.ramp();
        }
        TracedStep {
            obs: next.observe(),
            reward: count(collected).to(DType::F32) + count(collected_later).to(DType::F32),
            terminated: hit | hit_later,
            truncated: never(),
            state: next,
        }
    }
}

impl AsterixState<Tensor> {
    /// Spawns an entity if it is time and a lane is free, and counts down to the next one.
    #[track_caller]
    fn spawn(&mut self, draws: AsterixDraws<Tensor>) {
        let [interval, timer] = self.spawn;
        let due = timer.eq(0);
        let lane = iota([LANES], 0, DType::I32).eq(draws.lane);
        let placed = due & lane & !self.occupied;
        self.x = where_(placed, where_(draws.right, 0, constant(LAST)), self.x);
        self.right = where_(placed, draws.right, self.right);
        self.gold = where_(placed, draws.gold, self.gold);
        self.occupied = self.occupied | placed;
        self.spawn = [interval, where_(due, interval, timer) - 1];
    }

    /// Takes away the gold that the player touches. Returns true if there was some, and true if the
    /// player touches an enemy; both false if `moved` is false.
    #[track_caller]
    fn touch(&mut self, moved: Tensor) -> (Tensor, Tensor) {
        let [x, y] = self.player;
        let touched = self.occupied & lane_rows().eq(y) & self.x.eq(x) & moved;
        let collected = touched & self.gold;
        self.occupied = self.occupied & !collected;
        (collected.any(..), (touched & !self.gold).any(..))
    }

    /// Counts down to the next increase of the difficulty, or makes it.
    #[track_caller]
    fn ramp(&mut self) {
        let ([spawn, spawn_timer], [moves, move_timer]) = (self.spawn, self.moves);
        let active = spawn.gt(1) | moves.gt(1);
        let due = active & self.ramp_timer.lt(0);
        let odd = (self.ramp_index & 1).eq(1);
        self.spawn = [spawn - count(due & spawn.gt(1)), spawn_timer];
        self.moves = [moves - count(due & moves.gt(1) & odd), move_timer];
        self.ramp_index = self.ramp_index + count(due);
        self.ramp_timer = where_(due, RAMP_INTERVAL, self.ramp_timer - count(active));
    }

    /// Returns the observation, `bool[10,10,4]`: player, enemy, trail, gold.
    #[track_caller]
    fn observe(&self) -> Tensor {
        let [x, y] = self.player;
        let channels = [
            cell(x, y, 0..SIZE),
            lanes(self.occupied & !self.gold, self.x),
            lanes(self.occupied, ahead(self.x, !self.right)),
            lanes(self.occupied & self.gold, self.x),
        ];
        stack(&channels, -1)
    }
}

impl TracedEnv for Asterix {
    type State = AsterixState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.settings.spec.clone()
    }

    #[track_caller]
    fn reset(&self, _key: Key<Tensor>) -> (AsterixState<Tensor>, Tensor) {
        let state = AsterixState {
            player: [constant(5i32), constant(5i32)],
            occupied: zeros([LANES], DType::Bool),
            x: zeros([LANES], DType::I32),
            right: zeros([LANES], DType::Bool),
            gold: zeros([LANES], DType::Bool),
            spawn: [constant(SPAWN_INTERVAL), constant(SPAWN_INTERVAL)],
            moves: [constant(MOVE_INTERVAL), constant(MOVE_INTERVAL)],
            ramp_timer: constant(RAMP_INTERVAL),
            ramp_index: constant(0i32),
            last_move: noop(),
        };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: AsterixState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, AsterixState<Tensor>> {
        let [sticky, right, gold, lane] = key.split_n();
        let player_move = self.settings.sample(action, state.last_move, sticky);
        // The highest of random numbers among the free lanes is in a uniformly random one.
        let noise = random::uniform(lane, [LANES], DType::F32, 0.0, 1.0);
        let draws = AsterixDraws {
            right: random::bernoulli(right, 0.5, []),
            gold: random::bernoulli(gold, 1.0 / 3.0, []),
            lane: where_(state.occupied, -1.0, noise).argmax(0),
        };
        self.play(state, player_move, draws)
    }
}
