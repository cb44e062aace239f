//! Tasks that need memory, after those of CleanRL and MiniGrid: [`ProofOfMemory`] and [`MiniGridMemory`].

mod minigrid_memory;
mod proof_of_memory;

#[cfg(feature = "rl")]
pub(crate) use minigrid_memory::is_minigrid;
pub use minigrid_memory::{MiniGridMemory, MiniGridOptions};
pub use proof_of_memory::ProofOfMemory;

use crate::envs::env::entry::Entry;

/// Ids of this family.
pub(super) const ENVS: &[Entry] = &[
    ("MiniGrid-MemoryS11-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS13-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS13Random-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS17Random-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS7-v0", minigrid_memory::make),
    ("MiniGrid-MemoryS9-v0", minigrid_memory::make),
    ("ProofofMemory-v0", |_| Ok(Box::new(ProofOfMemory::v0()))),
];
