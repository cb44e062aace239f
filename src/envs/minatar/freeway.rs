//! Freeway: cross a road of eight lanes.

use serde::{Deserialize, Serialize};

use super::game::{Board, Channel, Game, LAST, Move, SIZE, ahead, below, chance, inside};
use crate::envs::env::seeds::EnvRng;

/// Number of cars, one in each row between the first and the last.
const CARS: usize = 8;
/// Column in which the chicken walks.
const COLUMN: i32 = 4;
/// Number of frames from one step of the chicken to the next.
const MOVE_INTERVAL: i32 = 3;
/// Number of frames of an episode, without the last one.
const TIME_LIMIT: i32 = 2500;

/// A chicken walks up and down, one row in three frames at most; a car sends it back to the bottom.
///
/// Channels: chicken, car, and five for the trail behind a car, of which one is set, by the number
/// of frames that the car waits between moves. Reward 1 at the top row, from where the chicken
/// returns to the bottom and the cars get new random speeds and directions. Ends after 2501 frames.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Freeway {
    row: i32,
    move_timer: i32,
    frames_left: i32,
    cars: [Car; CARS],
    over: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Car {
    x: i32,
    right: bool,
    /// Number of frames between two moves, 1 to 5.
    interval: i32,
    timer: i32,
}

/// Draws new speeds and directions for cars at the columns `xs`.
fn random_cars(xs: [i32; CARS], rng: &mut EnvRng) -> [Car; CARS] {
    let intervals = xs.map(|_| 1 + below(rng, 5) as i32);
    let right = xs.map(|_| !chance(rng, 0.5));
    std::array::from_fn(|i| Car {
        x: xs[i],
        right: right[i],
        interval: intervals[i],
        timer: intervals[i],
    })
}

/// Returns the column beside `x`; the road wraps around at its ends.
fn around(x: i32, right: bool) -> i32 {
    ahead(x, right).rem_euclid(SIZE)
}

impl Freeway {
    /// Sends the chicken back if the car of `lane` hits it.
    fn hit(&mut self, lane: usize) {
        if [self.cars[lane].x, lane as i32 + 1] == [COLUMN, self.row] {
            self.row = LAST;
        }
    }
}

impl Game for Freeway {
    const CHANNELS: &'static [Channel] = &[
        ("chicken", [252, 252, 84]),
        ("car", [200, 72, 72]),
        ("trail of a car that waits 1", [150, 150, 150]),
        ("trail of a car that waits 2", [130, 130, 130]),
        ("trail of a car that waits 3", [110, 110, 110]),
        ("trail of a car that waits 4", [90, 90, 90]),
        ("trail of a car that waits 5", [70, 70, 70]),
    ];
    const MOVES: &'static [Move] = &[Move::Noop, Move::Up, Move::Down];

    fn new(rng: &mut EnvRng) -> Freeway {
        Freeway {
            row: LAST,
            move_timer: MOVE_INTERVAL,
            frames_left: TIME_LIMIT,
            cars: random_cars([0; CARS], rng),
            over: false,
        }
    }

    fn play(&mut self, action: Move, _ramping: bool, rng: &mut EnvRng) -> i32 {
        let step = match action {
            Move::Up => -1,
            Move::Down => 1,
            Move::Noop | Move::Left | Move::Right | Move::Fire => 0,
        };
        if step != 0 && self.move_timer == 0 {
            self.move_timer = MOVE_INTERVAL;
            self.row = (self.row + step).clamp(0, LAST);
        }

        let mut reward = 0;
        if self.row == 0 {
            reward = 1;
            self.cars = random_cars(self.cars.map(|car| car.x), rng);
            self.row = LAST;
        }

        for lane in 0..CARS {
            self.hit(lane);
            let car = &mut self.cars[lane];
            if car.timer == 0 {
                car.timer = car.interval;
                car.x = around(car.x, car.right);
                self.hit(lane);
            } else {
                car.timer -= 1;
            }
        }

        self.move_timer -= i32::from(self.move_timer > 0);
        self.frames_left -= 1;
        self.over = self.frames_left < 0;
        reward
    }

    fn over(&self) -> bool {
        self.over
    }

    fn draw(&self, board: &mut Board<'_>) {
        board.set(COLUMN, self.row, 0);
        for (lane, car) in self.cars.iter().enumerate() {
            let y = lane as i32 + 1;
            board.set(car.x, y, 1);
            board.set(around(car.x, !car.right), y, 1 + car.interval as usize);
        }
    }

    fn is_valid(&self) -> bool {
        inside(self.row)
            && self.cars.iter().all(|car| inside(car.x) && (1..=5).contains(&car.interval))
    }
}
