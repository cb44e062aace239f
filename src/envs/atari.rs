//! The games of the Atari 2600, as in EnvPool.
//!
//! The emulator is the Arcade Learning Environment (Bellemare, Naddaf, Veness and Bowling: The
//! Arcade Learning Environment, JAIR 2013), loaded at run time. This module implements everything
//! around it: frame skip, the maximum over two frames, starts with a random number of no-ops, the
//! fire button after a reset, lives as episodes, sticky actions, resizing, stacking. Games of several
//! players are those of PettingZoo, with SuperSuit's wrappers (`pettingzoo`).
//!
//! ```no_run
//! use podracer::envs::{AtariOptions, EnvPool, PoolOptions};
//!
//! let options = PoolOptions { num_envs: 8, seed: 1, ..Default::default() };
//! // With EnvPool's settings ...
//! let mut pool = EnvPool::make("Breakout-v5", options.clone())?;
//! // ... or those that agents are usually trained with.
//! let atari = AtariOptions { episodic_life: true, reward_clip: true, ..Default::default() };
//! let mut pool = EnvPool::atari("Breakout-v5", atari, options)?;
//! let batch = pool.reset()?; // obs u8[8,4,84,84]
//! # Ok::<(), podracer::error::Error>(())
//! ```

mod ale;
mod cartridge;
mod colors;
mod console;
mod fast;
mod games;
mod options;
pub(super) mod pettingzoo;
mod picture;
mod resize;
mod start_memory;

pub use options::{AtariOptions, AtariStart};

use super::env::Env;
use super::pool::{EnvPool, PoolOptions};
use crate::envs::env::entry::{Entry, nearest};
use crate::error::{Error, Result};
use games::GAMES;

/// Native parts that the games need.
pub(super) const PARTS: &[&str] = &[cartridge::EMULATOR, cartridge::CARTRIDGES];

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &{
    let mut entries: [Entry; GAMES.len()] = [("", as_in_envpool); GAMES.len()];
    let mut i = 0;
    while i < GAMES.len() {
        entries[i].0 = GAMES[i].id;
        i += 1;
    }
    entries
};

fn as_in_envpool(id: &str) -> Result<Box<dyn Env>> {
    make_atari(id, &AtariOptions::envpool())
}

/// Returns the id of a game here if `id` is that of Gymnasium without frame skip and sticky actions:
/// `Breakout-v5` for `BreakoutNoFrameskip-v4`. The options of the pool decide about both.
pub(super) fn without_frame_skip(id: &str) -> Option<&'static str> {
    let name = id.strip_suffix("NoFrameskip-v4")?;
    GAMES.iter().map(|game| game.id).find(|id| id.strip_suffix("-v5") == Some(name))
}

/// Makes the Atari game `id` without a pool around it: no time limit, no automatic reset.
///
/// Returns the errors of [`EnvPool::atari`].
pub fn make_atari(id: &str, options: &AtariOptions) -> Result<Box<dyn Env>> {
    let id = without_frame_skip(id).unwrap_or(id);
    let Some(game) = GAMES.iter().find(|game| game.id == id) else {
        let ids = GAMES.iter().map(|game| game.id).collect();
        return Err(Error::Env(format!(
            "unknown Atari game \"{id}\"; {}`podracer envs` or list_envs() shows all",
            nearest(id, ids)
        )));
    };
    options.check(game)?;
    Ok(Box::new(console::Console::new(game, options.clone())?))
}

impl EnvPool {
    /// Makes a pool of the Atari game `id`, named as in EnvPool (`Pong-v5`), with custom settings.
    ///
    /// Observations are `u8[stack, height, width]` in gray, oldest frame first, and `u8[3 * stack,
    /// height, width]` in color. Actions are `i32` choices of the game's minimal set or of the
    /// full set.
    ///
    /// Returns an error for an unknown game, for invalid settings, and if the emulator or the
    /// cartridge is missing or damaged.
    pub fn atari(id: &str, atari: AtariOptions, options: PoolOptions) -> Result<EnvPool> {
        EnvPool::parallel(|_| make_atari(id, &atari), options)
    }
}
