//! `MinAtar/Seaquest-v1` and `-v0`; see [`crate::envs::minatar`] for a description.
//!
//! The lists of the pool's game are tensors of a fixed size, in the same order: a new element is
//! appended at the end and the first element drops out, which has left the board by then. An
//! element that is removed leaves a hole.

use super::board::{LAST, SIZE, Settings, ahead, cell, count, inside, noop, steps};
use super::{TracedEnv, TracedStep, never};
use crate::envs::env::spec::EnvSpec;
use crate::envs::minatar::{self, Move};
use crate::random::{self, Key};
use crate::trace::ops::{concatenate, constant, iota, stack, where_, zeros};
use crate::trace::{DType, Tensor};
use crate::tree::Tree;

/// Number of frames that a full tank lasts.
const FULL_TANK: i32 = 200;
/// Maximum number of divers aboard.
const CREW: i32 = 6;
/// Number of frames from one shot of the player to the next.
const COOL_DOWN: i32 = 5;
/// Initial number of frames between two spawns of enemies.
const ENEMY_INTERVAL: i32 = 20;
/// Number of frames between two spawns of divers.
const DIVER_INTERVAL: i32 = 30;
/// Initial number of frames between two moves of a fish or an enemy's submarine.
const MOVE_INTERVAL: i32 = 5;
/// Minimum of that number of frames.
const LEAST_MOVE_INTERVAL: i32 = 2;
/// Number of frames between two moves of a diver.
const DIVER_MOVE_INTERVAL: i32 = 5;
/// Number of frames from one shot of an enemy to the next.
const ENEMY_SHOT_INTERVAL: i32 = 10;

/// Maximum number of the player's bullets: one in five frames, each on the board for at most ten.
const BULLETS: usize = 2;
/// Maximum number of divers in the water: one in 30 frames, each for at most 60.
const DIVERS: usize = 2;
/// Maximum number of enemies, rounded up: at the highest speed one in each frame, each on the board
/// for 30 frames.
const ENEMIES: usize = 32;

/// Seaquest: rescue divers and shoot enemies.
#[derive(Debug, Clone)]
pub struct Seaquest {
    settings: Settings,
}

/// State of [`Seaquest`].
#[derive(Debug, Clone, Tree)]
pub struct SeaquestState<T> {
    /// `i32[]` each: column and row of the submarine's front.
    pub place: [T; 2],
    /// `bool[]`: true if it faces to the right.
    pub right: T,
    /// `i32[]`: number of frames until the player can shoot.
    pub cool_down: T,
    /// `i32[]`: number of frames until the tank is empty.
    pub oxygen: T,
    /// `i32[]`: number of divers aboard; negative after six were set free, as in the reference.
    pub divers_aboard: T,
    /// `bool[]`: true while the submarine stays at the surface.
    pub surfaced: T,
    /// Bullets of the player, which move in each frame: the timers are unused.
    pub bullets: SeaquestEntities<T>,
    /// `bool[10,10]` each: bullets of the enemies that move to the left, and to the right.
    pub enemy_bullets: [T; 2],
    /// Fish and submarines of the enemies.
    pub enemies: SeaquestEntities<T>,
    /// `bool[32]`: true for a submarine, false for a fish.
    pub is_submarine: T,
    /// `i32[32]`: number of frames until a submarine shoots.
    pub shot_timer: T,
    /// Divers in the water.
    pub divers: SeaquestEntities<T>,
    /// `i32[]`: number of frames between two spawns of enemies.
    pub enemy_interval: T,
    /// `i32[]`: number of frames until an enemy spawns.
    pub enemy_timer: T,
    /// `i32[]`: number of frames until a diver spawns.
    pub diver_timer: T,
    /// `i32[]`: number of frames between two moves of an enemy.
    pub move_interval: T,
    /// `i32[]`: number of increases of the difficulty.
    pub ramp_index: T,
    /// `i32[]`: last move of the player.
    pub last_move: T,
}

/// List of `n` entities that swim to the left or to the right, the oldest first.
#[derive(Debug, Clone, Copy, Tree)]
pub struct SeaquestEntities<T> {
    /// `bool[n]`: true for an entity on the board, false for a hole in the list.
    pub on: T,
    /// `i32[n]`: column.
    pub x: T,
    /// `i32[n]`: row.
    pub y: T,
    /// `bool[n]`: true if it moves to the right.
    pub right: T,
    /// `i32[n]`: number of frames until it moves.
    pub timer: T,
}

/// Random numbers of a frame of [`Seaquest`]; used if an enemy or a diver spawns in it.
#[derive(Debug, Clone, Copy, Tree)]
pub struct SeaquestDraws<T> {
    /// `bool[]`: true for an enemy that moves to the right.
    pub enemy_right: T,
    /// `bool[]`: true for a submarine, false for a fish.
    pub is_submarine: T,
    /// `i32[]`: row of the enemy, 1 to 8.
    pub enemy_row: T,
    /// `bool[]`: true for a diver that moves to the right.
    pub diver_right: T,
    /// `i32[]`: row of the diver, 1 to 8.
    pub diver_row: T,
}

/// Appends `last` to a list `[n]` where `due: bool[]` is true; the first element drops out.
#[track_caller]
fn push(list: Tensor, last: Tensor, due: Tensor) -> Tensor {
    let rest = list.slice_axis(0, 1, list.dim(0));
    where_(due, concatenate(&[rest, last.expand_dims(0)], 0), list)
}

/// Returns the column where an entity enters the board.
#[track_caller]
fn entrance(right: Tensor) -> Tensor {
    where_(right, 0, constant(LAST))
}

/// Returns the map `bool[10,10]` of the cells in columns `x: i32[n]` and rows `y: i32[n]` where
/// `on: bool[n]` is true.
#[track_caller]
fn map(on: Tensor, x: Tensor, y: Tensor) -> Tensor {
    let shape = [on.dim(0), SIZE, SIZE];
    let [x, y, on] = [x, y, on].map(|part| part.expand_dims(1).expand_dims(2));
    (iota(shape, 1, DType::I32).eq(y) & iota(shape, 2, DType::I32).eq(x) & on).any(0)
}

impl SeaquestEntities<Tensor> {
    /// Returns `n` holes.
    #[track_caller]
    fn none(n: usize) -> SeaquestEntities<Tensor> {
        let [number, flag] = [DType::I32, DType::Bool].map(|dtype| zeros([n], dtype));
        SeaquestEntities { on: flag, x: number, y: number, right: flag, timer: number }
    }

    /// Appends an entity where `due: bool[]` is true.
    #[track_caller]
    fn push(&mut self, due: Tensor, [x, y]: [Tensor; 2], right: Tensor, timer: Tensor) {
        *self = SeaquestEntities {
            on: push(self.on, due, due),
            x: push(self.x, x, due),
            y: push(self.y, y, due),
            right: push(self.right, right, due),
            timer: push(self.timer, timer, due),
        };
    }

    /// Returns true for each entity in column `x` of row `y`: `bool[n]`.
    #[track_caller]
    fn at(&self, [x, y]: [Tensor; 2]) -> Tensor {
        self.on & self.x.eq(x) & self.y.eq(y)
    }

    /// Counts down, or moves and restarts the timer, where `active: bool[n]` is true. Returns true
    /// for each entity that moved.
    #[track_caller]
    fn advance(&mut self, active: Tensor, interval: Tensor) -> Tensor {
        let moved = active & self.timer.le(0);
        self.x = where_(moved, ahead(self.x, self.right), self.x);
        self.timer = where_(moved, interval, self.timer - count(active & !moved));
        moved
    }

    /// Returns the maps `bool[10,10]` of the entities and of the trails behind them.
    #[track_caller]
    fn with_trails(&self, on: Tensor) -> [Tensor; 2] {
        [map(on, self.x, self.y), map(on, ahead(self.x, !self.right), self.y)]
    }
}

impl Seaquest {
    /// Makes `MinAtar/Seaquest-v1`: all six actions of MinAtar have an effect.
    pub fn v1() -> Seaquest {
        Seaquest { settings: Settings::minimal::<minatar::Seaquest>("MinAtar/Seaquest-v1") }
    }

    /// Makes `MinAtar/Seaquest-v0`, which is the same game.
    pub fn v0() -> Seaquest {
        Seaquest { settings: Settings::full("MinAtar/Seaquest-v0") }
    }

    /// Returns the environment with another probability of sticky actions.
    pub fn with_sticky_action_prob(mut self, sticky_action_prob: f64) -> Seaquest {
        self.settings.sticky_action_prob = sticky_action_prob;
        self
    }

    /// Returns the environment with or without enemies that get faster.
    pub fn with_difficulty_ramping(mut self, difficulty_ramping: bool) -> Seaquest {
        self.settings.difficulty_ramping = difficulty_ramping;
        self
    }

    /// Computes one frame with a move of the player, the number of a [`Move`]: the rules without
    /// randomness.
    #[track_caller]
    pub fn play(
        &self,
        state: SeaquestState<Tensor>,
        player_move: Tensor,
        draws: SeaquestDraws<Tensor>,
    ) -> TracedStep<Tensor, SeaquestState<Tensor>> {
        let mut next = state;
        next.spawn_enemy(draws);
        next.spawn_diver(draws);
        next.steer(player_move);
        let mut reward = next.move_bullets();
        next.move_divers();
        let (hits, touched, shots) = next.move_enemies();
        reward = reward + hits;
        let mut over = touched | next.move_enemy_bullets(shots);

        for timer in [&mut next.enemy_timer, &mut next.diver_timer, &mut next.cool_down] {
            *timer = (*timer - 1).maximum(0);
        }
        over = over | next.oxygen.le(0);
        let (bonus, abandoned) = next.breathe(self.settings.difficulty_ramping);
        TracedStep {
            obs: next.observe(),
            reward: (reward + bonus).to(DType::F32),
            terminated: over | abandoned,
            truncated: never(),
            state: next,
        }
    }
}

impl SeaquestState<Tensor> {
    /// Spawns an enemy if it is time, unless one swims the other way in its row.
    #[track_caller]
    fn spawn_enemy(&mut self, draws: SeaquestDraws<Tensor>) {
        let SeaquestDraws { enemy_right: right, enemy_row: y, is_submarine, .. } = draws;
        let due = self.enemy_timer.eq(0);
        let enemies = &mut self.enemies;
        let opposed = enemies.on & enemies.y.eq(y) & (enemies.right ^ right);
        let free = due & !opposed.any(..);
        enemies.push(free, [entrance(right), y], right, self.move_interval);
        self.is_submarine = push(self.is_submarine, is_submarine, free);
        self.shot_timer = push(self.shot_timer, constant(ENEMY_SHOT_INTERVAL), free);
        self.enemy_timer = where_(due, self.enemy_interval, self.enemy_timer);
    }

    /// Spawns a diver if it is time.
    #[track_caller]
    fn spawn_diver(&mut self, draws: SeaquestDraws<Tensor>) {
        let SeaquestDraws { diver_right: right, diver_row: y, .. } = draws;
        let due = self.diver_timer.eq(0);
        self.divers.push(due, [entrance(right), y], right, constant(DIVER_MOVE_INTERVAL));
        self.diver_timer = where_(due, DIVER_INTERVAL, self.diver_timer);
    }

    /// Moves the submarine or shoots with it.
    #[track_caller]
    fn steer(&mut self, player_move: Tensor) {
        let fires = player_move.eq(Move::Fire as i32) & self.cool_down.eq(0);
        self.bullets.push(fires, self.place, self.right, constant(0i32));
        self.cool_down = where_(fires, COOL_DOWN, self.cool_down);
        let [x, y] = self.place;
        let columns = steps(player_move, Move::Left, Move::Right);
        let rows = steps(player_move, Move::Up, Move::Down);
        self.place = [(x + columns).clip(0, LAST), (y + rows).clip(0, LAST - 1)];
        self.right = where_(columns.eq(0), self.right, columns.gt(0));
        self.last_move = player_move;
    }

    /// Moves the player's bullets, the newest first; each hits the first fish in its cell, else the
    /// first submarine. Returns the reward.
    #[track_caller]
    fn move_bullets(&mut self) -> Tensor {
        let bullets = &mut self.bullets;
        bullets.advance(bullets.on, constant(0i32));
        bullets.on = bullets.on & inside(bullets.x);
        let order = iota([ENEMIES], 0, DType::I32) + count(self.is_submarine) * ENEMIES as i32;
        let mut reward = constant(0i32);
        for i in (0..BULLETS).rev() {
            let [on, x, y] =
                [bullets.on, bullets.x, bullets.y].map(|list| list.index_axis(0, i as isize));
            let candidates = self.enemies.at([x, y]) & on;
            let first = where_(candidates, order, 2 * ENEMIES as i32).min(..);
            self.enemies.on = self.enemies.on & !(candidates & order.eq(first));
            let hit = candidates.any(..);
            bullets.on = bullets.on & !(iota([BULLETS], 0, DType::I32).eq(i as i32) & hit);
            reward = reward + count(hit);
        }
        reward
    }

    /// Moves the divers. One that meets the submarine comes aboard if there is room; if there is
    /// room for one of two, the newer comes.
    #[track_caller]
    fn move_divers(&mut self) {
        let divers = &mut self.divers;
        let met_before = divers.at(self.place);
        let mut ahead = *divers;
        let met_after =
            ahead.advance(divers.on, constant(DIVER_MOVE_INTERVAL)) & ahead.at(self.place);
        let meets = met_before | met_after;
        let newer = concatenate(&[meets.slice_axis(0, 1, DIVERS), zeros([1], DType::Bool)], 0);
        let taken = meets & (self.divers_aboard + count(newer)).lt(CREW);
        ahead.on = divers.on & !taken & inside(ahead.x);
        *divers = ahead;
        self.divers_aboard = self.divers_aboard + count(taken).sum(..);
    }

    /// Moves the enemies. Of several that move into one of the player's bullets, the newest
    /// submarine is hit, else the newest fish. Returns the reward, true if the player is touched,
    /// and the map of new shots to the left and to the right.
    #[track_caller]
    fn move_enemies(&mut self) -> (Tensor, Tensor, [Tensor; 2]) {
        let SeaquestState { enemies, bullets, place, is_submarine, .. } = self;
        let was_on = enemies.on;
        let touched_before = enemies.at(*place);
        let moved = enemies.advance(was_on, self.move_interval);
        let touched = enemies.at(*place);

        // A submarine that was just hit still shoots.
        let armed = was_on & *is_submarine;
        let shoots = armed & self.shot_timer.eq(0);
        let shots = [shoots & !enemies.right, shoots & enemies.right];
        let shots = shots.map(|shoots| map(shoots, enemies.x, enemies.y));
        self.shot_timer = where_(shoots, ENEMY_SHOT_INTERVAL, self.shot_timer - count(armed));

        let order = iota([ENEMIES], 0, DType::I32) + count(*is_submarine) * ENEMIES as i32;
        let mut reward = constant(0i32);
        for i in 0..BULLETS {
            let [on, x, y] =
                [bullets.on, bullets.x, bullets.y].map(|list| list.index_axis(0, i as isize));
            let candidates = enemies.at([x, y]) & moved & !touched & on;
            let last = where_(candidates, order, -1).max(..);
            enemies.on = enemies.on & !(candidates & order.eq(last));
            let hit = candidates.any(..);
            bullets.on = bullets.on & !(iota([BULLETS], 0, DType::I32).eq(i as i32) & hit);
            reward = reward + count(hit);
        }
        enemies.on = enemies.on & inside(enemies.x);
        (reward, (touched_before | touched).any(..), shots)
    }

    /// Adds the enemies' shots to their bullets and moves all of them. Returns true if one touches
    /// the player.
    #[track_caller]
    fn move_enemy_bullets(&mut self, shots: [Tensor; 2]) -> Tensor {
        let player = cell(self.place[0], self.place[1], 0..SIZE);
        let [left, right] = [0, 1].map(|i| self.enemy_bullets[i] | shots[i]);
        let column = zeros([SIZE, 1], DType::Bool);
        self.enemy_bullets = [
            concatenate(&[left.slice_axis(1, 1, SIZE), column], 1),
            concatenate(&[column, right.slice_axis(1, 0, SIZE - 1)], 1),
        ];
        let [left_after, right_after] = self.enemy_bullets;
        ((left | right | left_after | right_after) & player).any(..)
    }

    /// Uses oxygen below the surface and fills the tank at it, if there is a diver to set free.
    /// Returns the reward, and true if there is none.
    #[track_caller]
    fn breathe(&mut self, ramping: bool) -> (Tensor, Tensor) {
        let below = self.place[1].gt(0);
        let arrives = !below & !self.surfaced;
        let surfaces = arrives & self.divers_aboard.ne(0);
        let crew = surfaces & self.divers_aboard.eq(CREW);
        let reward = where_(crew, self.oxygen_level(), 0);
        self.divers_aboard = where_(crew, 0, self.divers_aboard) - count(surfaces);
        self.oxygen = where_(surfaces, FULL_TANK, self.oxygen - count(below));
        self.surfaced = !below & (self.surfaced | surfaces);
        if ramping {
            let slower = self.move_interval.gt(LEAST_MOVE_INTERVAL);
            let faster = surfaces & (self.enemy_interval.gt(1) | slower);
            let odd = (self.ramp_index & 1).eq(1);
            self.move_interval = self.move_interval - count(faster & slower & odd);
            self.enemy_interval = (self.enemy_interval - count(faster)).maximum(1);
            self.ramp_index = self.ramp_index + count(faster);
        }
        (reward, arrives & !surfaces)
    }

    /// Returns the number of full cells of the oxygen gauge.
    #[track_caller]
    fn oxygen_level(&self) -> Tensor {
        (self.oxygen.maximum(0) * SIZE as i32).floor_div(FULL_TANK)
    }

    /// Returns the observation, `bool[10,10,10]`: front, back, bullet, trail, enemy's bullet, fish,
    /// submarine, oxygen gauge, diver gauge, diver.
    #[track_caller]
    fn observe(&self) -> Tensor {
        let SeaquestState { place: [x, y], right, bullets, enemies, divers, .. } = self;
        let [row, column] = [0, 1].map(|axis| iota([SIZE, SIZE], axis, DType::I32));
        let (last_row, aboard) = (row.eq(LAST), LAST - self.divers_aboard);
        let [fish, fish_trails] = enemies.with_trails(enemies.on & !self.is_submarine);
        let [submarines, trails] = enemies.with_trails(enemies.on & self.is_submarine);
        let [swimming, diver_trails] = divers.with_trails(divers.on);
        let channels = [
            cell(*x, *y, 0..SIZE),
            cell(ahead(*x, !*right), *y, 0..SIZE),
            map(bullets.on, bullets.x, bullets.y),
            fish_trails | trails | diver_trails,
            self.enemy_bullets[0] | self.enemy_bullets[1],
            fish,
            submarines,
            last_row & column.lt(self.oxygen_level()),
            last_row & column.ge(aboard) & column.lt(LAST),
            swimming,
        ];
        stack(&channels, -1)
    }
}

impl TracedEnv for Seaquest {
    type State = SeaquestState<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.settings.spec.clone()
    }

    #[track_caller]
    fn reset(&self, _key: Key<Tensor>) -> (SeaquestState<Tensor>, Tensor) {
        let empty = zeros([SIZE, SIZE], DType::Bool);
        let state = SeaquestState {
            place: [constant(5i32), constant(0i32)],
            right: constant(false),
            cool_down: constant(0i32),
            oxygen: constant(FULL_TANK),
            divers_aboard: constant(0i32),
            surfaced: constant(true),
            bullets: SeaquestEntities::none(BULLETS),
            enemy_bullets: [empty, empty],
            enemies: SeaquestEntities::none(ENEMIES),
            is_submarine: zeros([ENEMIES], DType::Bool),
            shot_timer: zeros([ENEMIES], DType::I32),
            divers: SeaquestEntities::none(DIVERS),
            enemy_interval: constant(ENEMY_INTERVAL),
            enemy_timer: constant(ENEMY_INTERVAL),
            diver_timer: constant(DIVER_INTERVAL),
            move_interval: constant(MOVE_INTERVAL),
            ramp_index: constant(0i32),
            last_move: noop(),
        };
        let obs = state.observe();
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: SeaquestState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, SeaquestState<Tensor>> {
        let [sticky, directions, kind, rows] = key.split_n();
        let player_move = self.settings.sample(action, state.last_move, sticky);
        let right = random::bernoulli(directions, 0.5, [2]);
        let row = random::randint(rows, [2], 1, LAST, DType::I32);
        let draws = SeaquestDraws {
            enemy_right: right.index_axis(0, 0),
            is_submarine: random::bernoulli(kind, 1.0 / 3.0, []),
            enemy_row: row.index_axis(0, 0),
            diver_right: right.index_axis(0, 1),
            diver_row: row.index_axis(0, 1),
        };
        self.play(state, player_move, draws)
    }
}
