//! Asterix: collect gold and avoid enemies, both of which cross the board.

use serde::{Deserialize, Serialize};

use super::game::{Board, Channel, Game, LAST, Move, ahead, below, chance, inside};
use crate::envs::env::seeds::EnvRng;

/// Number of rows between the first and the last; each holds at most one entity.
const LANES: usize = 8;

/// Initial number of frames between two spawns.
const SPAWN_INTERVAL: i32 = 10;
/// Initial number of frames between two moves of the entities.
const MOVE_INTERVAL: i32 = 5;
/// Number of frames between two increases of the difficulty.
const RAMP_INTERVAL: i32 = 100;

/// The player moves in four directions between the first and the last row.
///
/// Channels: player, enemy, trail (behind moving entities), gold. Reward 1 for touching gold. Ends
/// when an enemy is touched. Every ten frames something appears at the left or the right end of a
/// free lane: gold with probability 1/3. With ramping, both intervals shrink over time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Asterix {
    player: [i32; 2],
    /// Content of each row between the first and the last.
    lanes: [Option<Entity>; LANES],
    spawn_interval: i32,
    spawn_timer: i32,
    move_interval: i32,
    move_timer: i32,
    ramp_timer: i32,
    ramp_index: i32,
    over: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Entity {
    x: i32,
    right: bool,
    gold: bool,
}

impl Asterix {
    /// Spawns an entity in a random free lane, if there is one.
    fn spawn(&mut self, rng: &mut EnvRng) {
        let right = chance(rng, 0.5);
        let gold = chance(rng, 1.0 / 3.0);
        let free: Vec<usize> = (0..LANES).filter(|&lane| self.lanes[lane].is_none()).collect();
        if !free.is_empty() {
            let lane = free[below(rng, free.len())];
            let x = if right { 0 } else { LAST };
            self.lanes[lane] = Some(Entity { x, right, gold });
        }
    }

    /// Collects the gold that the player touches in `lane`, or ends the game if it is an enemy.
    /// Returns the reward.
    fn touch(&mut self, lane: usize) -> i32 {
        let Some(entity) = self.lanes[lane] else { return 0 };
        if [entity.x, lane as i32 + 1] != self.player {
            return 0;
        }
        if entity.gold {
            self.lanes[lane] = None;
            return 1;
        }
        self.over = true;
        0
    }

    fn ramp(&mut self) {
        if self.spawn_interval <= 1 && self.move_interval <= 1 {
            return;
        }
        if self.ramp_timer >= 0 {
            self.ramp_timer -= 1;
            return;
        }
        if self.move_interval > 1 && self.ramp_index % 2 == 1 {
            self.move_interval -= 1;
        }
        if self.spawn_interval > 1 {
            self.spawn_interval -= 1;
        }
        self.ramp_index += 1;
        self.ramp_timer = RAMP_INTERVAL;
    }
}

impl Game for Asterix {
    const CHANNELS: &'static [Channel] = &[
        ("player", [96, 160, 255]),
        ("enemy", [200, 72, 72]),
        ("trail", [110, 110, 110]),
        ("gold", [232, 204, 99]),
    ];
    const MOVES: &'static [Move] = &[Move::Noop, Move::Left, Move::Up, Move::Right, Move::Down];

    fn new(_rng: &mut EnvRng) -> Asterix {
        Asterix {
            player: [5, 5],
            lanes: [None; LANES],
            spawn_interval: SPAWN_INTERVAL,
            spawn_timer: SPAWN_INTERVAL,
            move_interval: MOVE_INTERVAL,
            move_timer: MOVE_INTERVAL,
            ramp_timer: RAMP_INTERVAL,
            ramp_index: 0,
            over: false,
        }
    }

    fn play(&mut self, action: Move, ramping: bool, rng: &mut EnvRng) -> i32 {
        if self.spawn_timer == 0 {
            self.spawn(rng);
            self.spawn_timer = self.spawn_interval;
        }

        let [x, y] = &mut self.player;
        match action {
            Move::Left => *x = (*x - 1).max(0),
            Move::Right => *x = (*x + 1).min(LAST),
            Move::Up => *y = (*y - 1).max(1),
            Move::Down => *y = (*y + 1).min(LAST - 1),
            Move::Noop | Move::Fire => {}
        }

        let mut reward = 0;
        for lane in 0..LANES {
            reward += self.touch(lane);
        }
        if self.move_timer == 0 {
            self.move_timer = self.move_interval;
            for lane in 0..LANES {
                if let Some(entity) = &mut self.lanes[lane] {
                    entity.x = ahead(entity.x, entity.right);
                    if !inside(entity.x) {
                        self.lanes[lane] = None;
                    }
                    reward += self.touch(lane);
                }
            }
        }

        self.spawn_timer -= 1;
        self.move_timer -= 1;
        if ramping {
            self.ramp();
        }
        reward
    }

    fn over(&self) -> bool {
        self.over
    }

    fn draw(&self, board: &mut Board<'_>) {
        board.set(self.player[0], self.player[1], 0);
        for (lane, entity) in self.lanes.iter().enumerate() {
            if let Some(Entity { x, right, gold }) = *entity {
                let y = lane as i32 + 1;
                board.set(x, y, if gold { 3 } else { 1 });
                board.set_inside(ahead(x, !right), y, 2);
            }
        }
    }

    fn is_valid(&self) -> bool {
        let mut xs = self.lanes.iter().flatten().map(|entity| entity.x);
        self.player.into_iter().all(inside) && xs.all(inside)
    }
}
