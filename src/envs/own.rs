//! Podracer's own environments: each is the smallest one with a feature that the others lack.
//!
//! [`CartPolePositions`], [`PendulumPositions`], [`ProofOfMemory`] and [`MiniGridMemory`] need memory,
//! [`Harvest`] has actions of several components of which only some are allowed, [`ConnectFour`] has
//! two players.

mod cartpole_positions;
mod connect_four;
mod harvest;
mod minigrid_memory;
mod pendulum_positions;
mod proof_of_memory;

pub use cartpole_positions::CartPolePositions;
pub use connect_four::ConnectFour;
pub use harvest::Harvest;
#[cfg(feature = "rl")]
pub(crate) use minigrid_memory::is_minigrid;
pub use minigrid_memory::{MiniGridMemory, MiniGridOptions};
pub use pendulum_positions::PendulumPositions;
pub use proof_of_memory::ProofOfMemory;

use crate::envs::env::entry::Entry;

/// Environments whose steps alternate between two players.
pub const TWO_PLAYERS: &[&str] = &["ConnectFour-v0"];

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("CartPolePositions-v0", |_| Ok(Box::new(CartPolePositions::v0()))),
    ("ConnectFour-v0", |_| Ok(Box::new(ConnectFour::v0()))),
    ("Harvest-v0", |_| Ok(Box::new(Harvest::v0()))),
    ("MiniGrid-MemoryS11-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS13-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS13Random-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS17Random-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS7-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS9-v0", minigrid_memory::make),
    ("PendulumPositions-v0", |_| Ok(Box::new(PendulumPositions::v0()))),
    ("ProofofMemory-v0", |_| Ok(Box::new(ProofOfMemory::v0()))),
];
