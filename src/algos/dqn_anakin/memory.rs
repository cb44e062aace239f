//! Estimate of the memory that the agents need.

use super::{Args, Env};
use crate::error::Result;
use crate::rl::memory::ensure_free;

/// Checks that the replay buffers of all agents fit into the free memory.
pub(super) fn ensure_memory(env: &Env, args: &Args) -> Result<()> {
    // Two observations, and 4 bytes each for action, reward and termination.
    let bytes = 2 * env.obs_type().bytes() + 12;
    let flags = format!(
        "--num-seeds {} --buffer-size {} --env-id {}",
        args.num_seeds, args.buffer_size, args.env_id
    );
    let transitions = args.num_agents() as u128 * args.buffer_size as u128;
    ensure_free(&flags, transitions * bytes as u128)
}
