//! Estimate of the memory that the agents need.

use super::{AnakinArgs, AnakinEnv, SeedAxis};
use crate::error::Result;
use crate::rl::memory::ensure_free;
use crate::{DType, TensorType};

/// Checks that the agents fit into the free memory: the states and the reports of all, and the
/// rollouts of those that are trained at the same time. `state` are the types of the leaves of all
/// states. The estimate is a lower bound.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) that names the flags.
pub(super) fn ensure_memory<A: AnakinArgs>(
    args: &A,
    env: &AnakinEnv,
    (state, updates_per_call, devices): (&[TensorType], u64, usize),
) -> Result<()> {
    let options = args.agents();
    let agents = options.num_agents() as u128;
    let at_once = match options.seed_axis {
        SeedAxis::Vmap => agents,
        SeedAxis::Map => devices as u128,
    };
    let state: u128 = state.iter().map(|ty| ty.bytes() as u128).sum();
    // The return and the length of the episode, for each timestep.
    let report = u128::from(updates_per_call) * args.steps_per_update() as u128 * 8;
    let rollout = args.steps_per_rollout() as u128 * step_bytes(env)? as u128;
    let sweeps = options.sweep.iter().map(|sweep| format!(" --sweep {sweep}")).collect::<String>();
    let flags = format!("--num-seeds {}{sweeps} {}", options.num_seeds, args.memory_flags());
    ensure_free(&flags, state + agents * report + at_once * rollout)
}

/// Returns the bytes of a timestep of one environment in a rollout: observation, action, reward,
/// return and length of the episode, and the end of the episode.
fn step_bytes(env: &AnakinEnv) -> Result<usize> {
    let numbers = 3 * DType::F32.size() + DType::Bool.size();
    Ok(env.obs_type().bytes() + env.action_type().bytes() + numbers)
}
