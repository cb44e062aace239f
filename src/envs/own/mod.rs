//! Environments of our own: each the smallest that needs something which the others do not.
//!
//! [`CartPolePositions`] needs memory, [`Harvest`] has actions of several components of which only
//! some are allowed, [`ConnectFour`] has two players.

mod cartpole_positions;
mod connect_four;
mod harvest;

pub use cartpole_positions::CartPolePositions;
pub use connect_four::ConnectFour;
pub use harvest::Harvest;

use super::entry::Entry;

/// The environments whose steps are those of two players in turn.
pub const TWO_PLAYERS: &[&str] = &["ConnectFour-v0"];

/// The ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("CartPolePositions-v0", |_| Ok(Box::new(CartPolePositions::v0()))),
    ("ConnectFour-v0", |_| Ok(Box::new(ConnectFour::v0()))),
    ("Harvest-v0", |_| Ok(Box::new(Harvest::v0()))),
];
