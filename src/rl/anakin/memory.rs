//! Estimate of the memory that the agents need.

use crate::error::Result;
use crate::rl::anakin::env::AnakinEnv;
use crate::rl::anakin::options::AnakinArgs;
use crate::rl::buffers::memory::ensure_free;
use crate::runtime::running_platform;
use crate::{DType, TensorType};

/// Sizes of the compiled program.
pub(crate) struct ProgramSizes {
    /// Types of the leaves of the state of all agents: parameters, optimizers, environments, buffers.
    pub(crate) state: Vec<TensorType>,
    /// Number of updates in one call.
    pub(crate) updates_per_call: u64,
    /// Number of devices that train agents.
    pub(crate) devices: usize,
}

/// Checks that the agents fit into the free memory.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) that names the flags.
pub(super) fn ensure_memory<A: AnakinArgs>(
    args: &A,
    env: &AnakinEnv,
    sizes: &ProgramSizes,
) -> Result<()> {
    // The free memory of the host says nothing about that of a GPU.
    if !running_platform().is_host() {
        return Ok(());
    }
    let options = args.agents();
    let sweeps = options.sweep.iter().map(|sweep| format!(" --sweep {sweep}")).collect::<String>();
    let flags = format!("--num-seeds {}{sweeps} {}", options.num_seeds, args.memory_flags());
    ensure_free(&flags, estimate(args, env, sizes)?)
}

/// Returns a lower bound of the bytes that the program needs: the states and the reports of all
/// agents, and the rollouts of those that are trained at the same time.
pub(crate) fn estimate<A: AnakinArgs>(
    args: &A,
    env: &AnakinEnv,
    sizes: &ProgramSizes,
) -> Result<u128> {
    let options = args.agents();
    let agents = options.num_agents() as u128;
    let at_once = if options.are_batched() { agents } else { sizes.devices as u128 };
    let state: u128 = sizes.state.iter().map(|ty| ty.bytes() as u128).sum();
    // The return and the length of the episode, for each timestep.
    let report = u128::from(sizes.updates_per_call) * args.steps_per_update() as u128 * 8;
    let rollout = args.steps_per_rollout() as u128 * step_bytes(env)? as u128;
    Ok(state + agents * report + at_once * rollout)
}

/// Returns the bytes of a timestep of one environment in a rollout: observation, action, reward,
/// return and length of the episode, the end of the episode, and the start of another.
fn step_bytes(env: &AnakinEnv) -> Result<usize> {
    let numbers = 3 * DType::F32.size() + DType::Bool.size();
    Ok(env.obs_type().bytes() + env.action_type().bytes() + numbers + env.start_bytes()?)
}
