//! Breakout: keep a ball in play and break bricks with it.

use serde::{Deserialize, Serialize};

use super::game::{Board, Channel, Game, LAST, Move, SIZE, below, inside};
use crate::envs::env::seeds::EnvRng;

/// Rows that are full of bricks at the start.
const BRICK_ROWS: std::ops::Range<usize> = 1..4;

/// A ball that moves along diagonals bounces off walls, bricks and the paddle in the bottom row.
///
/// Channels: paddle, ball, trail (the ball's previous cell), brick. Reward 1 for each brick. The
/// three rows of bricks are refilled when the last one is gone and the ball gets down to the
/// paddle. Ends when the ball passes the paddle. An episode begins with the ball in the fourth row
/// at a random wall, and the paddle in column 4.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Breakout {
    paddle: i32,
    ball: [i32; 2],
    last_ball: [i32; 2],
    /// Columns and rows per frame, each 1 or -1.
    velocity: [i32; 2],
    bricks: [[bool; SIZE as usize]; SIZE as usize],
    /// True if the ball was in a brick in the last frame: then it breaks none in this one.
    strike: bool,
    over: bool,
}

impl Game for Breakout {
    const CHANNELS: &'static [Channel] = &[
        ("paddle", [66, 158, 130]),
        ("ball", [236, 236, 236]),
        ("trail", [110, 110, 110]),
        ("brick", [200, 72, 72]),
    ];
    const MOVES: &'static [Move] = &[Move::Noop, Move::Left, Move::Right];

    fn new(rng: &mut EnvRng) -> Breakout {
        let (x, right) = [(0, 1), (LAST, -1)][below(rng, 2)];
        let mut bricks = [[false; SIZE as usize]; SIZE as usize];
        bricks[BRICK_ROWS].fill([true; SIZE as usize]);
        Breakout {
            paddle: 4,
            ball: [x, 3],
            last_ball: [x, 3],
            velocity: [right, 1],
            bricks,
            strike: false,
            over: false,
        }
    }

    fn play(&mut self, action: Move, _ramping: bool, _rng: &mut EnvRng) -> i32 {
        match action {
            Move::Left => self.paddle = (self.paddle - 1).max(0),
            Move::Right => self.paddle = (self.paddle + 1).min(LAST),
            Move::Noop | Move::Up | Move::Down | Move::Fire => {}
        }

        self.last_ball = self.ball;
        let [old_x, old_y] = self.ball;
        let [mut x, mut y] = [old_x + self.velocity[0], old_y + self.velocity[1]];
        if !inside(x) {
            x = x.clamp(0, LAST);
            self.velocity[0] = -self.velocity[0];
        }
        let mut reward = 0;
        let mut in_brick = false;
        if y < 0 {
            y = 0;
            self.velocity[1] = 1;
        } else if self.bricks[y as usize][x as usize] {
            in_brick = true;
            if !self.strike {
                reward = 1;
                self.bricks[y as usize][x as usize] = false;
                y = old_y;
                self.velocity[1] = -self.velocity[1];
            }
        } else if y == LAST {
            if self.bricks.as_flattened().iter().all(|brick| !brick) {
                self.bricks[BRICK_ROWS].fill([true; SIZE as usize]);
            }
            if old_x == self.paddle {
                y = old_y;
                self.velocity[1] = -self.velocity[1];
            } else if x == self.paddle {
                // If the ball hits the edge of the paddle, it is sent back in the direction that it
                // came from.
                y = old_y;
                self.velocity = self.velocity.map(|v| -v);
            } else {
                self.over = true;
            }
        }
        self.strike = in_brick;
        self.ball = [x, y];
        reward
    }

    fn over(&self) -> bool {
        self.over
    }

    fn draw(&self, board: &mut Board<'_>) {
        board.set(self.paddle, LAST, 0);
        board.set(self.ball[0], self.ball[1], 1);
        board.set(self.last_ball[0], self.last_ball[1], 2);
        for (y, row) in self.bricks.iter().enumerate() {
            for (x, brick) in row.iter().enumerate() {
                if *brick {
                    board.set(x as i32, y as i32, 3);
                }
            }
        }
    }

    fn is_valid(&self) -> bool {
        let mut places = [self.ball, self.last_ball].into_iter().flatten();
        let moves = self.velocity.iter().all(|v| v.abs() == 1);
        // From the bottom row the ball would leave the board.
        let above = self.ball[1] < LAST || self.over;
        inside(self.paddle) && places.all(inside) && moves && above
    }
}
