//! Estimate of the memory that the agents need.

use super::{Args, Env, SeedAxis};
use crate::error::Result;
use crate::rl::memory::ensure_free;

/// Checks that the agents fit into the free memory: the rollouts of those that are trained at the
/// same time, and the parameters, moments and reports of all. The estimate is a lower bound.
pub(super) fn ensure_memory(env: &Env, devices: usize, args: &Args) -> Result<()> {
    let agents = args.num_agents();
    let at_once = if args.seed_axis == SeedAxis::Vmap { agents } else { devices };
    let outputs = env.action_kind.num_outputs();
    let samples = args.batch_size() * (env.obs_size + outputs + 8);
    let params = 2 * (env.obs_size * 64 + 64 * 64) + 64 * (outputs + 1);
    let reports =
        2 * args.batch_size() as u128 * u128::from(args.updates_per_call(args.batch_size()));
    let floats =
        at_once as u128 * samples as u128 + agents as u128 * (3 * params as u128 + reports);
    let sweeps = args.sweep.iter().map(|sweep| format!(" --sweep {sweep}")).collect::<String>();
    let flags = format!(
        "--num-seeds {}{sweeps} --num-envs {} --num-steps {}",
        args.num_seeds, args.num_envs, args.num_steps
    );
    ensure_free(&flags, floats * size_of::<f32>() as u128)
}
