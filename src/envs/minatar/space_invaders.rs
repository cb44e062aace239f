//! Space Invaders: shoot the aliens before they come down.

use serde::{Deserialize, Serialize};

use super::game::{Board, Channel, Game, LAST, Move, SIZE, inside};
use crate::envs::env::seeds::EnvRng;

/// Number of frames from one shot of the cannon to the next.
const COOL_DOWN: i32 = 5;
/// Number of frames from one shot of an alien to the next.
const ALIEN_SHOT_INTERVAL: i32 = 10;
/// Initial number of frames between two moves of the aliens.
const ALIEN_MOVE_INTERVAL: i32 = 12;
/// Minimum of that number of frames, which shrinks by one per wave.
const LEAST_MOVE_INTERVAL: i32 = 6;

/// Cells that contain one kind of entity, by row and column.
type Map = [[bool; SIZE as usize]; SIZE as usize];

const EMPTY: Map = [[false; SIZE as usize]; SIZE as usize];
const BOTTOM: usize = LAST as usize;

/// A cannon in the bottom row shoots at aliens, which march left and right and move a row down at
/// each end.
///
/// Channels: cannon, alien, alien that moves left, alien that moves right, the cannon's bullets,
/// the aliens' bullets. Reward 1 for each alien shot. Ends when an alien or a bullet hits the
/// cannon, or when the aliens reverse while one of them is in the bottom row. The alien nearest to
/// the cannon's column shoots. The fewer aliens are left, the faster they are; with ramping, each
/// wave is faster than the one before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SpaceInvaders {
    cannon: i32,
    cool_down: i32,
    bullets: Map,
    alien_bullets: Map,
    aliens: Map,
    aliens_go_right: bool,
    move_interval: i32,
    move_timer: i32,
    shot_timer: i32,
    over: bool,
}

/// Fills the cells of a new wave.
fn wave(aliens: &mut Map) {
    for row in &mut aliens[..4] {
        row[2..8].fill(true);
    }
}

fn count(map: &Map) -> usize {
    map.as_flattened().iter().filter(|on| **on).count()
}

fn any_in_column(map: &Map, x: i32) -> bool {
    map.iter().any(|row| row[x as usize])
}

impl SpaceInvaders {
    fn march(&mut self) {
        self.move_timer = self.move_interval.min(count(&self.aliens) as i32);
        let end = if self.aliens_go_right { LAST } else { 0 };
        if any_in_column(&self.aliens, end) {
            self.aliens_go_right = !self.aliens_go_right;
            self.over |= self.aliens[BOTTOM].contains(&true);
            self.aliens.rotate_right(1);
        } else if self.aliens_go_right {
            self.aliens.iter_mut().for_each(|row| row.rotate_right(1));
        } else {
            self.aliens.iter_mut().for_each(|row| row.rotate_left(1));
        }
        self.over |= self.aliens[BOTTOM][self.cannon as usize];
    }

    /// Adds a bullet at the lowest alien of the column nearest to the cannon, the left column of
    /// two.
    fn alien_shot(&mut self) {
        let aliens = &self.aliens;
        let columns = (0..SIZE).filter(|&x| any_in_column(aliens, x));
        let Some(x) = columns.min_by_key(|x| (x - self.cannon).abs()) else { return };
        let Some(y) = aliens.iter().rposition(|row| row[x as usize]) else { return };
        self.alien_bullets[y][x as usize] = true;
    }
}

impl Game for SpaceInvaders {
    const CHANNELS: &'static [Channel] = &[
        ("cannon", [66, 158, 130]),
        ("alien", [134, 134, 29]),
        ("alien that goes left", [181, 83, 40]),
        ("alien that goes right", [162, 98, 33]),
        ("bullet", [236, 236, 236]),
        ("alien's bullet", [252, 84, 84]),
    ];
    const MOVES: &'static [Move] = &[Move::Noop, Move::Left, Move::Right, Move::Fire];

    fn new(_rng: &mut EnvRng) -> SpaceInvaders {
        let mut aliens = EMPTY;
        wave(&mut aliens);
        SpaceInvaders {
            cannon: 5,
            cool_down: 0,
            bullets: EMPTY,
            alien_bullets: EMPTY,
            aliens,
            aliens_go_right: false,
            move_interval: ALIEN_MOVE_INTERVAL,
            move_timer: ALIEN_MOVE_INTERVAL,
            shot_timer: ALIEN_SHOT_INTERVAL,
            over: false,
        }
    }

    fn play(&mut self, action: Move, ramping: bool, _rng: &mut EnvRng) -> i32 {
        match action {
            Move::Fire if self.cool_down == 0 => {
                self.bullets[BOTTOM][self.cannon as usize] = true;
                self.cool_down = COOL_DOWN;
            }
            Move::Left => self.cannon = (self.cannon - 1).max(0),
            Move::Right => self.cannon = (self.cannon + 1).min(LAST),
            Move::Noop | Move::Up | Move::Down | Move::Fire => {}
        }

        // The rotation moves the row that leaves the board to the other end, where it is cleared.
        self.bullets.rotate_left(1);
        self.bullets[BOTTOM].fill(false);
        self.alien_bullets.rotate_right(1);
        self.alien_bullets[0].fill(false);
        self.over |= self.alien_bullets[BOTTOM][self.cannon as usize];

        self.over |= self.aliens[BOTTOM][self.cannon as usize];
        if self.move_timer == 0 {
            self.march();
        }
        if self.shot_timer == 0 {
            self.shot_timer = ALIEN_SHOT_INTERVAL;
            self.alien_shot();
        }

        let mut reward = 0;
        let aliens = self.aliens.as_flattened_mut().iter_mut();
        for (alien, bullet) in aliens.zip(self.bullets.as_flattened_mut()) {
            if *alien && *bullet {
                (*alien, *bullet) = (false, false);
                reward += 1;
            }
        }

        self.cool_down -= i32::from(self.cool_down > 0);
        self.move_timer -= 1;
        self.shot_timer -= 1;
        if count(&self.aliens) == 0 {
            if ramping && self.move_interval > LEAST_MOVE_INTERVAL {
                self.move_interval -= 1;
            }
            wave(&mut self.aliens);
        }
        reward
    }

    fn over(&self) -> bool {
        self.over
    }

    fn draw(&self, board: &mut Board<'_>) {
        board.set(self.cannon, LAST, 0);
        let direction = if self.aliens_go_right { 3 } else { 2 };
        for y in 0..SIZE {
            for x in 0..SIZE {
                let on = |map: &Map| map[y as usize][x as usize];
                if on(&self.aliens) {
                    board.set(x, y, 1);
                    board.set(x, y, direction);
                }
                if on(&self.bullets) {
                    board.set(x, y, 4);
                }
                if on(&self.alien_bullets) {
                    board.set(x, y, 5);
                }
            }
        }
    }

    fn is_valid(&self) -> bool {
        inside(self.cannon)
    }
}
