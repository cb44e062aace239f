//! MinAtar's five games (Young and Tian 2019, arXiv:1903.03176): small versions of the Atari games
//! with the same names, with fully observed states.
//!
//! Observation `bool[10,10,C]`: rows from the top, columns from the left, one channel per kind of
//! thing. This is the reference's own layout and type, channels last as in convolutions; a network
//! begins with a conversion to `f32`, and a replay buffer holds one byte per cell.
//!
//! The rules are those of the `MinAtar` package 1.0.15, and so is the order in which random numbers
//! are drawn: with the numbers of our generator, the reference has the same episodes
//! (`tests/fixtures/envs/make_minatar.py`). `docs/environments.md` lists the differences, and the
//! oddities of the reference that are kept.

mod asterix;
mod breakout;
mod freeway;
mod game;
mod seaquest;
mod space_invaders;

pub use asterix::Asterix;
pub use breakout::Breakout;
pub use freeway::Freeway;
pub use game::{Game, MinAtar, MinAtarOptions, Move};
pub use seaquest::Seaquest;
pub use space_invaders::SpaceInvaders;

use super::env::Env;
use super::pool::{EnvPool, PoolOptions};
use crate::envs::env::entry::Entry;
use crate::error::{Error, Result};
use game::ActionSet;
pub(super) use game::MOVES;

/// Factory of an environment with options.
type Make = fn(MinAtarOptions) -> Result<Box<dyn Env>>;

/// Defines the ids of this family, each with and without options.
macro_rules! games {
    ($($game:ident $v0:literal $v1:literal,)*) => {
        const MAKE: &[(&str, Make)] = &[$(
            ($v0, |options| Ok(Box::new(MinAtar::<$game>::new($v0, ActionSet::Full, options)?))),
            ($v1, |options| Ok(Box::new(MinAtar::<$game>::new($v1, ActionSet::Minimal, options)?))),
        )*];

        /// Ids of this family.
        pub(super) const ENVS: &[Entry] = &[$(
            ($v0, by_default),
            ($v1, by_default),
        )*];
    };
}

games! {
    Asterix "MinAtar/Asterix-v0" "MinAtar/Asterix-v1",
    Breakout "MinAtar/Breakout-v0" "MinAtar/Breakout-v1",
    Freeway "MinAtar/Freeway-v0" "MinAtar/Freeway-v1",
    Seaquest "MinAtar/Seaquest-v0" "MinAtar/Seaquest-v1",
    SpaceInvaders "MinAtar/SpaceInvaders-v0" "MinAtar/SpaceInvaders-v1",
}

/// Makes the MinAtar environment `id` with `options`.
///
/// `-v0` has all six actions, `-v1` those that have an effect in the game. Returns an error for an
/// id that is not one of MinAtar's and for a probability outside 0 to 1.
pub fn make(id: &str, options: MinAtarOptions) -> Result<Box<dyn Env>> {
    match MAKE.iter().find(|(name, _)| *name == id) {
        Some((_, make)) => make(options),
        None => {
            let ids: Vec<_> = MAKE.iter().map(|(name, _)| *name).collect();
            Err(Error::Env(format!("\"{id}\" is not of MinAtar, which has {}", ids.join(", "))))
        }
    }
}

fn by_default(id: &str) -> Result<Box<dyn Env>> {
    make(id, MinAtarOptions::default())
}

impl EnvPool {
    /// Makes a pool of the MinAtar environment `id`; [`EnvPool::make`] does the same with the
    /// default options.
    ///
    /// Returns the errors of [`minatar::make`](make) and of `EnvPool::make`.
    ///
    /// ```
    /// use podracer::envs::minatar::MinAtarOptions;
    /// use podracer::envs::{EnvPool, PoolOptions};
    /// let still = MinAtarOptions { sticky_action_prob: 0.0, ..Default::default() };
    /// let options = PoolOptions { num_envs: 2, ..Default::default() };
    /// let mut pool = EnvPool::minatar("MinAtar/Breakout-v1", still, options)?;
    /// let batch = pool.reset()?; // obs bool[2,10,10,4]
    /// // The paddle is channel 0 and begins in column 4 of the bottom row.
    /// assert_eq!(batch.obs_row::<u8>(0)[(9 * 10 + 4) * 4], 1);
    /// # Ok::<(), podracer::error::Error>(())
    /// ```
    pub fn minatar(id: &str, minatar: MinAtarOptions, options: PoolOptions) -> Result<EnvPool> {
        EnvPool::custom(|_| make(id, minatar), options)
    }
}
