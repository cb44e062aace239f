//! Small tasks with finitely many states, as in gymnasium's toy text, and two more that are in
//! EnvPool.
//!
//! An observation that is a single number in gymnasium (`Discrete`) is an `i32` here: `obs` of a
//! batch is `i32[rows]`. [`FrozenLake`], [`CliffWalking`], [`Taxi`] and [`NChain`] are built on a
//! transition [`Table`], which `table()` returns for planning: gymnasium's `env.P`.
//!
//! The ids make them with gymnasium's registered settings. For other settings, make a custom pool:
//!
//! ```
//! use podracer::envs::toy_text::{FrozenLake, FrozenLakeOptions};
//! use podracer::envs::{EnvPool, PoolOptions};
//! let dry = FrozenLakeOptions { is_slippery: false, ..Default::default() };
//! let options = PoolOptions { num_envs: 2, ..Default::default() };
//! let mut pool = EnvPool::custom(|_| Ok(Box::new(FrozenLake::v1(&dry)?)), options)?;
//! pool.reset()?;
//! let batch = pool.step(&[1, 2])?; // one down, one right
//! assert_eq!(batch.obs::<i32>(), [4, 1]);
//! # Ok::<(), podracer::error::Error>(())
//! ```

mod blackjack;
mod catch;
mod cliff_walking;
mod frozen_lake;
mod nchain;
mod table;
mod taxi;

pub use blackjack::{Blackjack, BlackjackOptions};
pub use catch::{Catch, CatchOptions};
pub use cliff_walking::{CliffWalking, CliffWalkingOptions};
pub use frozen_lake::{FrozenLake, FrozenLakeOptions, MAP_4X4, MAP_8X8};
pub use nchain::NChain;
pub use table::{Table, Transition};
pub use taxi::{Taxi, TaxiOptions};

use crate::envs::env::entry::Entry;

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("Blackjack-v1", |_| Ok(Box::new(Blackjack::v1(BlackjackOptions::default())))),
    ("Catch-v0", |_| Ok(Box::new(Catch::v0(CatchOptions::default())?))),
    ("CliffWalking-v0", |_| Ok(Box::new(CliffWalking::v0()))),
    ("CliffWalking-v1", |_| Ok(Box::new(CliffWalking::v1(CliffWalkingOptions::default())))),
    ("CliffWalkingSlippery-v1", |_| Ok(Box::new(CliffWalking::slippery_v1()))),
    ("FrozenLake-v1", |_| Ok(Box::new(FrozenLake::v1(&FrozenLakeOptions::default())?))),
    ("FrozenLake8x8-v1", |_| Ok(Box::new(FrozenLake::v1_8x8()))),
    ("NChain-v0", |_| Ok(Box::new(NChain::v0()))),
    ("Taxi-v3", |_| Ok(Box::new(Taxi::v3()))),
    ("Taxi-v4", |_| Ok(Box::new(Taxi::v4(TaxiOptions::default())?))),
];
