//! Seaquest: rescue divers and shoot enemies.

use serde::{Deserialize, Serialize};

use super::game::{Board, Channel, Game, LAST, Move, SIZE, ahead, below, chance, inside};
use crate::envs::env::seeds::EnvRng;

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

/// A submarine of two cells moves below the surface, which is the first row.
///
/// Channels: front, back, the player's bullets, trail, enemies' bullets, fish, submarines, oxygen
/// gauge, diver gauge, divers. Reward 1 for a fish or a submarine shot. Surfacing with six divers
/// sets them free for a reward of 1 for each full cell of the oxygen gauge; surfacing with fewer
/// sets one free, without a reward. In both cases the tank is filled and, with ramping, enemies get
/// faster. Ends when an enemy or its bullet is touched, when the oxygen is gone, and when the
/// submarine surfaces without a diver.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Seaquest {
    place: [i32; 2],
    right: bool,
    cool_down: i32,
    oxygen: i32,
    /// Number of divers aboard. Negative after six were set free: the reference then subtracts one
    /// more, and lets a submarine with a negative number surface any number of times. This code
    /// does the same.
    divers_aboard: i32,
    surfaced: bool,
    bullets: Vec<Bullet>,
    enemy_bullets: Vec<Bullet>,
    fish: Vec<Swimmer>,
    submarines: Vec<Submarine>,
    divers: Vec<Swimmer>,
    enemy_interval: i32,
    enemy_timer: i32,
    diver_timer: i32,
    move_interval: i32,
    ramp_index: i32,
    over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Bullet {
    place: [i32; 2],
    right: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Swimmer {
    place: [i32; 2],
    right: bool,
    timer: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Submarine {
    swimmer: Swimmer,
    shot_timer: i32,
}

impl Bullet {
    fn advance(&mut self) {
        self.place[0] = ahead(self.place[0], self.right);
    }
}

impl Swimmer {
    /// Counts down, or moves and restarts the timer; returns true if it moved.
    fn advance(&mut self, interval: i32) -> bool {
        if self.timer > 0 {
            self.timer -= 1;
            return false;
        }
        self.timer = interval;
        self.place[0] = ahead(self.place[0], self.right);
        true
    }
}

/// Common interface of fish and submarines.
trait Enemy: Copy + PartialEq {
    fn swimmer(&mut self) -> &mut Swimmer;

    fn place(mut self) -> [i32; 2] {
        self.swimmer().place
    }
}

impl Enemy for Swimmer {
    fn swimmer(&mut self) -> &mut Swimmer {
        self
    }
}

impl Enemy for Submarine {
    fn swimmer(&mut self) -> &mut Swimmer {
        &mut self.swimmer
    }
}

/// Removes the first element that equals the one at `i`; returns the new index of the element at
/// `i` unless it was itself the one removed.
///
/// The reference removes by value, so a loop from the last element to the first visits an element
/// twice if an equal one before it was removed instead. Two of the player's bullets can be equal if
/// the second is fired while moving.
fn remove_equal<T: PartialEq>(list: &mut Vec<T>, i: usize) -> Option<usize> {
    let first = list.iter().position(|other| *other == list[i])?;
    list.remove(first);
    (first < i).then(|| i - 1)
}

/// Removes the first of `enemies` that is at `place`; returns true if there was one.
fn shoot<E: Enemy>(enemies: &mut Vec<E>, place: [i32; 2]) -> bool {
    let target = enemies.iter().position(|enemy| enemy.place() == place);
    target.map(|i| enemies.remove(i)).is_some()
}

impl Seaquest {
    /// Spawns an enemy at an end of a random row, unless one swims the other way there.
    fn spawn_enemy(&mut self, rng: &mut EnvRng) {
        let right = chance(rng, 0.5);
        let is_submarine = chance(rng, 1.0 / 3.0);
        let place = [if right { 0 } else { LAST }, 1 + below(rng, 8) as i32];
        let swimmer = Swimmer { place, right, timer: self.move_interval };
        let submarines = self.submarines.iter().map(|submarine| &submarine.swimmer);
        let mut others = submarines.chain(&self.fish);
        if others.any(|other| other.place[1] == place[1] && other.right != right) {
            return;
        }
        if is_submarine {
            self.submarines.push(Submarine { swimmer, shot_timer: ENEMY_SHOT_INTERVAL });
        } else {
            self.fish.push(swimmer);
        }
    }

    fn spawn_diver(&mut self, rng: &mut EnvRng) {
        let right = chance(rng, 0.5);
        let place = [if right { 0 } else { LAST }, 1 + below(rng, 8) as i32];
        self.divers.push(Swimmer { place, right, timer: DIVER_MOVE_INTERVAL });
    }

    fn steer(&mut self, action: Move) {
        let [x, y] = &mut self.place;
        match action {
            Move::Fire if self.cool_down == 0 => {
                self.bullets.push(Bullet { place: [*x, *y], right: self.right });
                self.cool_down = COOL_DOWN;
            }
            Move::Left => (*x, self.right) = ((*x - 1).max(0), false),
            Move::Right => (*x, self.right) = ((*x + 1).min(LAST), true),
            Move::Up => *y = (*y - 1).max(0),
            Move::Down => *y = (*y + 1).min(LAST - 1),
            Move::Noop | Move::Fire => {}
        }
    }

    fn move_bullets(&mut self) -> i32 {
        let mut reward = 0;
        for i in (0..self.bullets.len()).rev() {
            self.bullets[i].advance();
            let place = self.bullets[i].place;
            let hit = inside(place[0])
                && (shoot(&mut self.fish, place) || shoot(&mut self.submarines, place));
            reward += i32::from(hit);
            if hit || !inside(place[0]) {
                remove_equal(&mut self.bullets, i);
            }
        }
        reward
    }

    fn move_divers(&mut self) {
        let submarine = self.place;
        for i in (0..self.divers.len()).rev() {
            let diver = &mut self.divers[i];
            let room = self.divers_aboard < CREW;
            let mut taken = room && diver.place == submarine;
            let moved = !taken && diver.advance(DIVER_MOVE_INTERVAL);
            taken |= moved && room && diver.place == submarine;
            let gone = !inside(diver.place[0]);
            self.divers_aboard += i32::from(taken);
            if taken || gone {
                remove_equal(&mut self.divers, i);
            }
        }
    }

    /// Moves enemy `i` of a list, which may end the game or hit a bullet. Returns the reward, the
    /// enemy after the move, and its index in the list if it is still there.
    fn move_enemy<E: Enemy>(
        &mut self,
        i: usize,
        list: fn(&mut Seaquest) -> &mut Vec<E>,
    ) -> (i32, E, Option<usize>) {
        let interval = self.move_interval;
        let before = list(self)[i].place();
        let moved = list(self)[i].swimmer().advance(interval);
        let enemy = list(self)[i];
        let after = enemy.place();
        self.over |= before == self.place || after == self.place;
        if !moved || after == self.place {
            return (0, enemy, Some(i));
        }
        let bullet = self.bullets.iter().position(|bullet| bullet.place == after);
        if let Some(bullet) = bullet {
            self.bullets.remove(bullet);
        }
        if bullet.is_none() && inside(after[0]) {
            return (0, enemy, Some(i));
        }
        (i32::from(bullet.is_some()), enemy, remove_equal(list(self), i))
    }

    fn move_submarines(&mut self) -> i32 {
        let mut reward = 0;
        for i in (0..self.submarines.len()).rev() {
            let (hit, mut submarine, at) = self.move_enemy(i, |game| &mut game.submarines);
            reward += hit;
            // A submarine that was just hit still shoots.
            if submarine.shot_timer == 0 {
                submarine.shot_timer = ENEMY_SHOT_INTERVAL;
                let Swimmer { place, right, .. } = submarine.swimmer;
                self.enemy_bullets.push(Bullet { place, right });
            } else {
                submarine.shot_timer -= 1;
            }
            if let Some(at) = at {
                self.submarines[at] = submarine;
            }
        }
        reward
    }

    fn move_enemy_bullets(&mut self) {
        for i in (0..self.enemy_bullets.len()).rev() {
            let before = self.enemy_bullets[i].place;
            self.enemy_bullets[i].advance();
            let after = self.enemy_bullets[i].place;
            self.over |= before == self.place || after == self.place;
            if !inside(after[0]) {
                remove_equal(&mut self.enemy_bullets, i);
            }
        }
    }

    fn move_fish(&mut self) -> i32 {
        (0..self.fish.len()).rev().map(|i| self.move_enemy(i, |game| &mut game.fish).0).sum()
    }

    /// Fills the tank at the surface; returns the reward.
    fn surface(&mut self, ramping: bool) -> i32 {
        self.surfaced = true;
        let mut reward = 0;
        if self.divers_aboard == CREW {
            self.divers_aboard = 0;
            reward = self.oxygen_level();
        }
        self.oxygen = FULL_TANK;
        self.divers_aboard -= 1;
        let slowest = self.enemy_interval <= 1 && self.move_interval <= LEAST_MOVE_INTERVAL;
        if ramping && !slowest {
            if self.move_interval > LEAST_MOVE_INTERVAL && self.ramp_index % 2 == 1 {
                self.move_interval -= 1;
            }
            self.enemy_interval = (self.enemy_interval - 1).max(1);
            self.ramp_index += 1;
        }
        reward
    }

    /// Returns the number of full cells of the oxygen gauge.
    fn oxygen_level(&self) -> i32 {
        self.oxygen.max(0) * SIZE / FULL_TANK
    }
}

impl Game for Seaquest {
    const CHANNELS: &'static [Channel] = &[
        ("front", [187, 187, 53]),
        ("back", [134, 134, 29]),
        ("bullet", [236, 236, 236]),
        ("trail", [110, 110, 110]),
        ("enemy's bullet", [252, 84, 84]),
        ("fish", [92, 186, 92]),
        ("submarine", [170, 170, 190]),
        ("oxygen gauge", [96, 160, 255]),
        ("diver gauge", [66, 114, 194]),
        ("diver", [210, 132, 222]),
    ];
    const MOVES: &'static [Move] =
        &[Move::Noop, Move::Left, Move::Up, Move::Right, Move::Down, Move::Fire];

    fn new(_rng: &mut EnvRng) -> Seaquest {
        Seaquest {
            place: [5, 0],
            right: false,
            cool_down: 0,
            oxygen: FULL_TANK,
            divers_aboard: 0,
            surfaced: true,
            bullets: Vec::new(),
            enemy_bullets: Vec::new(),
            fish: Vec::new(),
            submarines: Vec::new(),
            divers: Vec::new(),
            enemy_interval: ENEMY_INTERVAL,
            enemy_timer: ENEMY_INTERVAL,
            diver_timer: DIVER_INTERVAL,
            move_interval: MOVE_INTERVAL,
            ramp_index: 0,
            over: false,
        }
    }

    fn play(&mut self, action: Move, ramping: bool, rng: &mut EnvRng) -> i32 {
        if self.enemy_timer == 0 {
            self.spawn_enemy(rng);
            self.enemy_timer = self.enemy_interval;
        }
        if self.diver_timer == 0 {
            self.spawn_diver(rng);
            self.diver_timer = DIVER_INTERVAL;
        }

        self.steer(action);
        let mut reward = self.move_bullets();
        self.move_divers();
        reward += self.move_submarines();
        self.move_enemy_bullets();
        reward += self.move_fish();

        for timer in [&mut self.enemy_timer, &mut self.diver_timer, &mut self.cool_down] {
            *timer -= i32::from(*timer > 0);
        }
        self.over |= self.oxygen <= 0;
        if self.place[1] > 0 {
            self.oxygen -= 1;
            self.surfaced = false;
        } else if !self.surfaced {
            if self.divers_aboard == 0 {
                self.over = true;
            } else {
                reward += self.surface(ramping);
            }
        }
        reward
    }

    fn over(&self) -> bool {
        self.over
    }

    fn draw(&self, board: &mut Board<'_>) {
        let [x, y] = self.place;
        board.set(x, y, 0);
        board.set(ahead(x, !self.right), y, 1);
        (0..self.oxygen_level()).for_each(|x| board.set(x, LAST, 7));
        (LAST - self.divers_aboard..LAST).for_each(|x| board.set(x, LAST, 8));
        let all = |list: &[Bullet], channel, board: &mut Board<'_>| {
            list.iter().for_each(|bullet| board.set(bullet.place[0], bullet.place[1], channel));
        };
        all(&self.bullets, 2, board);
        all(&self.enemy_bullets, 4, board);
        let submarines = self.submarines.iter().map(|submarine| (submarine.swimmer, 6));
        let fish = self.fish.iter().map(|&fish| (fish, 5));
        let divers = self.divers.iter().map(|&diver| (diver, 9));
        for (Swimmer { place: [x, y], right, .. }, channel) in submarines.chain(fish).chain(divers)
        {
            board.set(x, y, channel);
            board.set_inside(ahead(x, !right), y, 3);
        }
    }

    fn is_valid(&self) -> bool {
        let bullets = self.bullets.iter().chain(&self.enemy_bullets).map(|bullet| bullet.place);
        let submarines = self.submarines.iter().map(|submarine| submarine.swimmer.place);
        let swimmers = self.fish.iter().chain(&self.divers).map(|swimmer| swimmer.place);
        let mut places = bullets.chain(submarines).chain(swimmers).chain([self.place]).flatten();
        places.all(inside)
            && inside(ahead(self.place[0], !self.right))
            && self.divers_aboard <= CREW
            && self.oxygen <= FULL_TANK
    }
}
