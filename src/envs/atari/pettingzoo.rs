//! PettingZoo's Atari games for two and four players, in the wrappers of CleanRL's
//! `ppo_pettingzoo_ma_atari.py`, which are SuperSuit's.
//!
//! In the order of that script: maximum over two frames, four frames a step, rewards clipped to
//! -1 .. 1, the blue plane of the screen, resize to 84 by 84, stacks of four frames, and one more
//! plane for each agent, of which the agent's own is 255 and the others are 0.

use std::ffi::c_int;

use sha2::{Digest, Sha256};

use super::ale::Ale;
use super::cartridge;
use super::colors::Colors;
use super::games::{Game, USUAL};
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Frame, ObsMut, StepOutcome};
use crate::envs::pool::multi_agent::ParallelEnv;
use crate::envs::pool::{EnvPool, PoolOptions, multi_agent};
use crate::error::{Error, Result};
use crate::spaces::Space;
use crate::timeline;

/// Number of frames of a step.
const FRAME_SKIP: u32 = 4;
/// Number of frames of an observation.
const STACK: usize = 4;
/// Number of rows and columns of an observation.
const SIZE: usize = 84;
/// Number of bytes of one plane of an observation.
const PLANE: usize = SIZE * SIZE;
/// Number of frames after which a game is truncated: PettingZoo's `max_cycles`.
const MAX_FRAMES: u32 = 100_000;
/// Number of bytes of the checksum at the end of a saved state.
const SUM: usize = 32;

/// A module of `pettingzoo.atari`.
struct Module {
    /// Name of the module, cartridge and screen.
    game: Game,
    num_players: usize,
    /// The library's number of the mode.
    mode: c_int,
}

/// Defines the table of modules: name, cartridge, number of players, mode.
macro_rules! modules {
    ($($id:literal => $rom:literal, $players:literal, $mode:literal
        $(, { $($field:ident: $value:expr),+ })?;)+) => {
        const MODULES: &[Module] = &[$(
            Module {
                game: Game { id: $id, rom: $rom $($(, $field: $value)+)?, ..USUAL },
                num_players: $players,
                mode: $mode,
            }
        ),+];
    };
}

modules! {
    "basketball_pong_v3" => "pong", 2, 45;
    "boxing_v2" => "boxing", 2, 2;
    "combat_plane_v2" => "combat", 2, 15, { height: 256 };
    "combat_tank_v2" => "combat", 2, 9, { height: 256 };
    "double_dunk_v3" => "double_dunk", 2, 16;
    "entombed_competitive_v3" => "entombed", 2, 2;
    "entombed_cooperative_v3" => "entombed", 2, 3;
    "flag_capture_v2" => "flag_capture", 2, 1;
    "foozpong_v3" => "pong", 4, 21;
    "ice_hockey_v2" => "ice_hockey", 2, 1;
    "joust_v3" => "joust", 2, 1;
    "mario_bros_v3" => "mario_bros", 2, 2;
    "maze_craze_v3" => "maze_craze", 2, 4, { height: 250, pal: true };
    "othello_v3" => "othello", 2, 4;
    "pong_v3" => "pong", 2, 4;
    "quadrapong_v4" => "pong", 4, 33;
    "space_invaders_v2" => "space_invaders", 2, 34;
    "space_war_v2" => "space_war", 2, 1, { height: 250, pal: true };
    "surround_v2" => "surround", 2, 1;
    "tennis_v3" => "tennis", 2, 2;
    "video_checkers_v4" => "video_checkers", 2, 10;
    "volleyball_pong_v3" => "pong", 4, 41;
    "warlords_v3" => "warlords", 4, 1;
    "wizard_of_wor_v3" => "wizard_of_wor", 2, 1;
}

fn module(id: &str) -> Option<&'static Module> {
    MODULES.iter().find(|module| module.game.id == id)
}

/// Returns the ids of the games: the names of PettingZoo's modules.
pub(in crate::envs) fn ids() -> impl Iterator<Item = &'static str> {
    MODULES.iter().map(|module| module.game.id)
}

/// Returns the number of agents of the game `id`, or `None` if it is not a game of this family.
pub(in crate::envs) fn num_agents(id: &str) -> Option<usize> {
    module(id).map(|module| module.num_players)
}

fn known(id: &str) -> Result<&'static Module> {
    module(id).ok_or_else(|| Error::Env(format!("{id} is no game of PettingZoo")))
}

/// Returns the specification of one agent of the game `id` of this family.
pub(in crate::envs) fn spec(id: &str) -> Result<EnvSpec> {
    Ok(Players::new(known(id)?)?.spec())
}

/// Makes a pool of the game `id` of this family, in which each player is one environment.
pub(in crate::envs) fn pool(id: &str, options: PoolOptions) -> Result<EnvPool> {
    let module = known(id)?;
    multi_agent::pool(|| Ok(Box::new(Players::new(module)?)), options)
}

/// Resize to [`SIZE`] by [`SIZE`] between four pixels, rounded down: `tinyscaler.scale` with the
/// mode `bilinear`, to the last bit of its `f32`, which are 0 to 1.
struct Bilinear {
    /// `f32` of each byte.
    scaled: [f32; 256],
    /// First of the two inputs of each output, and the weight of the second, for rows and columns.
    rows: Vec<(usize, f32)>,
    columns: Vec<(usize, f32)>,
    width: usize,
}

impl Bilinear {
    fn new(height: usize, width: usize) -> Bilinear {
        let axis = |input: usize| {
            let ratio = (input - 1) as f32 / SIZE as f32;
            let place = |k: usize| (k as f32 + 0.5) * ratio;
            (0..SIZE).map(|k| (place(k) as usize, place(k) - place(k).floor())).collect()
        };
        let scaled = std::array::from_fn(|byte| byte as f32 * (1.0 / 255.0));
        Bilinear { scaled, rows: axis(height), columns: axis(width), width }
    }

    fn resize(&self, input: &[u8], output: &mut [u8]) {
        let mut line = vec![0.0; self.width];
        for (&(row, weight), output) in self.rows.iter().zip(output.chunks_exact_mut(SIZE)) {
            let (first, second) = input[row * self.width..][..2 * self.width].split_at(self.width);
            for ((line, &first), &second) in line.iter_mut().zip(first).zip(second) {
                let [first, second] = [first, second].map(|byte| self.scaled[usize::from(byte)]);
                *line = first * (1.0 - weight) + second * weight;
            }
            for (&(column, weight), output) in self.columns.iter().zip(output) {
                let value = line[column] * (1.0 - weight) + line[column + 1] * weight;
                *output = (value * 255.0) as u8;
            }
        }
    }
}

/// A console with several players.
struct Players {
    module: &'static Module,
    ale: Ale,
    actions: Vec<c_int>,
    colors: &'static Colors,
    resize: Bilinear,
    /// Last two screens, as pixel values.
    screens: [Vec<u8>; 2],
    /// Last frames, oldest first.
    stack: Vec<u8>,
    /// Rewards of the last step.
    rewards: Vec<f64>,
    /// True for players that are out of the game.
    dead: Vec<bool>,
    game_over: bool,
    /// Number of frames since the reset.
    frames: u32,
    /// True once the console got a seed. Later resets continue its own generator.
    seeded: bool,
}

impl Players {
    fn new(module: &'static Module) -> Result<Players> {
        let game = &module.game;
        let mut ale =
            Ale::for_players(game, &cartridge::rom(game)?, module.mode, module.num_players)?;
        ale.reset_players(module.mode, None);
        let pixels = game.width() * game.height;
        debug_assert_eq!(ale.num_players(), module.num_players);
        Ok(Players {
            actions: ale.minimal_actions(),
            colors: ale.colors(game)?,
            resize: Bilinear::new(game.height, game.width()),
            screens: [vec![0; pixels], vec![0; pixels]],
            stack: vec![0; STACK * PLANE],
            rewards: vec![0.0; module.num_players],
            dead: vec![false; module.num_players],
            game_over: false,
            frames: 0,
            seeded: false,
            module,
            ale,
        })
    }

    /// Adds the brighter of the last two screens to the stack.
    fn see(&mut self) {
        let blue = |pixel: u8| self.colors.rgb[usize::from(pixel)][2];
        let [before, last] = &self.screens;
        let plane: Vec<u8> = before.iter().zip(last).map(|(&a, &b)| blue(a).max(blue(b))).collect();
        self.stack.copy_within(PLANE.., 0);
        self.resize.resize(&plane, &mut self.stack[(STACK - 1) * PLANE..]);
    }

    /// Emulates one frame. Players that are out of the game press nothing and get no reward.
    fn frame(&mut self, actions: &[usize]) {
        let _span = timeline::span("emulate");
        let pressed = |(player, &action): (usize, &usize)| {
            self.actions[if self.dead[player] { 0 } else { action }]
        };
        let pressed: Vec<c_int> = actions.iter().enumerate().map(pressed).collect();
        let mut rewards = vec![0; pressed.len()];
        self.ale.act_all(&pressed, &mut rewards);
        self.frames += 1;
        self.screens.swap(0, 1);
        self.ale.screen(&mut self.screens[1]);
        self.game_over = self.ale.game_over();
        let lives = self.ale.all_lives();
        for (player, reward) in rewards.into_iter().enumerate() {
            if !self.dead[player] {
                self.rewards[player] += f64::from(reward);
                self.dead[player] = self.game_over || lives[player] < 0;
            }
        }
    }

    fn truncated(&self) -> bool {
        self.frames >= MAX_FRAMES
    }

    fn is_over(&self) -> bool {
        self.truncated() || !self.dead.contains(&false)
    }

    /// Returns a checksum of a saved state and its game.
    fn checksum(&self, state: &[u8]) -> [u8; SUM] {
        let mut hash = Sha256::new();
        hash.update(format!("{} {} players", self.module.game.id, self.module.num_players));
        hash.update(state);
        hash.finalize().into()
    }
}

impl ParallelEnv for Players {
    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.module.game.id.into(),
            observation: Space::image([STACK + self.module.num_players, SIZE, SIZE]),
            action: Space::Discrete { n: self.actions.len() },
            max_episode_steps: None,
            reward_threshold: None,
        }
    }

    fn num_agents(&self) -> usize {
        self.module.num_players
    }

    fn reset(&mut self, rng: &mut EnvRng) -> Result<()> {
        let first = !std::mem::replace(&mut self.seeded, true);
        self.ale.reset_players(self.module.mode, first.then(|| (rng.bits() >> 33) as c_int));
        self.dead.fill(false);
        (self.game_over, self.frames) = (false, 0);
        self.ale.screen(&mut self.screens[1]);
        self.screens[0] = self.screens[1].clone();
        self.stack.fill(0);
        self.see();
        Ok(())
    }

    fn step(&mut self, actions: &[usize]) -> Result<()> {
        self.rewards.fill(0.0);
        for _ in 0..FRAME_SKIP {
            self.frame(actions);
            if self.is_over() {
                break;
            }
        }
        self.see();
        Ok(())
    }

    fn outcome(&self, agent: usize) -> StepOutcome {
        let (dead, over) = (self.dead[agent], self.is_over());
        StepOutcome {
            reward: self.rewards[agent].clamp(-1.0, 1.0),
            terminated: over && dead,
            truncated: over && !dead,
            life_lost: dead,
            game_reward: self.rewards[agent],
            game_over: over,
            zero_discount: dead,
        }
    }

    fn observe(&self, agent: usize, obs: ObsMut<'_>) {
        if self.dead[agent] && !self.is_over() {
            obs.0.fill(0);
            return;
        }
        let (frames, indicator) = obs.0.split_at_mut(STACK * PLANE);
        frames.copy_from_slice(&self.stack);
        for (plane, indicator) in indicator.chunks_exact_mut(PLANE).enumerate() {
            indicator.fill(if plane == agent { 255 } else { 0 });
        }
    }

    fn render(&self) -> Option<Frame> {
        let game = &self.module.game;
        let rgb = self.screens[1].iter().flat_map(|&pixel| self.colors.rgb[usize::from(pixel)]);
        Some(Frame {
            height: game.height,
            width: game.width(),
            fps: Frame::FPS,
            rgb: rgb.collect(),
        })
    }

    fn save(&self) -> Result<Vec<u8>> {
        let mut state = self.frames.to_le_bytes().to_vec();
        state.extend([self.seeded, self.game_over].map(u8::from));
        state.extend(self.dead.iter().map(|&dead| u8::from(dead)));
        state.extend_from_slice(&self.stack);
        self.screens.iter().for_each(|screen| state.extend_from_slice(screen));
        state.extend_from_slice(&self.ale.save());
        let sum = self.checksum(&state);
        state.extend_from_slice(&sum);
        Ok(state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        // The library ends the process when it reads bytes that it did not write.
        let refused = || {
            let problem = "this is no state that was saved of this game";
            Error::Env(format!("{}: {problem}", self.module.game.id))
        };
        let (state, sum) = state.split_last_chunk::<SUM>().ok_or_else(refused)?;
        if self.checksum(state) != *sum {
            return Err(refused());
        }
        // The checksum detects damage only: anybody can compute it.
        let (frames, state) = state.split_first_chunk::<4>().ok_or_else(refused)?;
        let (&[seeded, game_over], state) = state.split_first_chunk::<2>().ok_or_else(refused)?;
        let (dead, state) = state.split_at_checked(self.dead.len()).ok_or_else(refused)?;
        let (stack, state) = state.split_at_checked(self.stack.len()).ok_or_else(refused)?;
        let pixels = self.screens[0].len();
        let (before, state) = state.split_at_checked(pixels).ok_or_else(refused)?;
        let (last, console) = state.split_at_checked(pixels).ok_or_else(refused)?;
        self.frames = u32::from_le_bytes(*frames);
        (self.seeded, self.game_over) = (seeded != 0, game_over != 0);
        self.dead = dead.iter().map(|&dead| dead != 0).collect();
        self.stack.copy_from_slice(stack);
        self.screens = [before.to_vec(), last.to_vec()];
        self.ale.restore(console);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::Lock;

    #[test]
    fn every_module_has_its_cartridge() {
        let members = &Lock::get().part("atari-roms").unwrap().wheels[0].members;
        for Module { game, num_players, .. } in MODULES {
            let file = format!("ale_py/roms/{}.bin", game.rom);
            assert!(members.iter().any(|member| member.path == file), "{}", game.id);
            assert!([2, 4].contains(num_players), "{}", game.id);
        }
        assert!(ids().is_sorted());
    }
}
