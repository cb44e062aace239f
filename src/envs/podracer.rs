//! Podracer's own environments: each is the smallest one with a feature that the others lack.
//!
//! [`CartPolePositions`] and [`PendulumPositions`] need memory, [`Harvest`] has actions of several
//! components of which only some are allowed, [`ConnectFour`] has two players.

mod cartpole_positions;
mod connect_four;
mod harvest;
mod pendulum_positions;

pub use cartpole_positions::CartPolePositions;
pub use connect_four::ConnectFour;
pub use harvest::Harvest;
pub use pendulum_positions::PendulumPositions;

use crate::envs::env::entry::Entry;

/// Environments whose steps alternate between two players.
pub const TWO_PLAYERS: &[&str] = &["ConnectFour-v0"];

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("CartPolePositions-v0", |_| Ok(Box::new(CartPolePositions::v0()))),
    ("ConnectFour-v0", |_| Ok(Box::new(ConnectFour::v0()))),
    ("Harvest-v0", |_| Ok(Box::new(Harvest::v0()))),
    ("PendulumPositions-v0", |_| Ok(Box::new(PendulumPositions::v0()))),
];
