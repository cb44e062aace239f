//! `podracer eval`: evaluates a saved model, whichever algorithm saved it, or a policy written by JAX.

use std::path::PathBuf;

use clap::Args;

use podracer::algos::registry;
use podracer::error::{Error, Result};
use podracer::rl::commands::eval::{EvalOptions, report};
use podracer::rl::program_policy;

/// Flags of `podracer eval`.
#[derive(Debug, Args)]
#[command(
    override_usage = "podracer eval --run RUN [OPTIONS]\n       podracer eval --policy FILE \
                            --env-id ID [OPTIONS]"
)]
pub struct EvalFlags {
    #[command(flatten)]
    options: EvalOptions,
    /// File of a policy that tools/jax_to_podracer.py wrote, in place of --run
    #[arg(long, requires = "env_id", conflicts_with = "run")]
    policy: Option<PathBuf>,
    /// The id of the environment, for --policy
    #[arg(long, requires = "policy")]
    env_id: Option<String>,
}

pub fn eval(flags: &EvalFlags) -> Result<String> {
    match (&flags.policy, &flags.env_id) {
        (Some(policy), Some(env_id)) => {
            let mut evaluation = flags.options.evaluation()?;
            program_policy::play(policy, env_id, &mut evaluation)?;
            Ok(report(&policy.display().to_string(), env_id, &evaluation))
        }
        _ if flags.options.run.is_none() => Err(Error::Argument(
            "eval needs --run, the folder of a run, or --policy with --env-id".into(),
        )),
        _ => flags.options.evaluate(registry::play),
    }
}
