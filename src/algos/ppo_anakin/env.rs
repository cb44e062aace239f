//! Traced environments with the sizes of their observations and actions.

use super::Args;
use crate::envs::ActionKind;
use crate::envs::traced::{AutoReset, Traced, TracedEnv, make};
use crate::error::Result;
use crate::rl::{Algorithm, spaces};

/// Environment with the sizes of its observations and actions.
#[derive(Debug)]
pub struct Env {
    pub(super) env: AutoReset<Traced>,
    pub(super) obs_size: usize,
    pub(super) action_kind: ActionKind,
}

impl Env {
    /// Creates the environment of `--env-id`.
    ///
    /// # Errors
    /// Returns [`Error::Env`](crate::Error::Env) for an unknown id, and
    /// [`Error::Config`](crate::Error::Config) for actions that this
    /// algorithm does not support.
    pub fn new(args: &Args) -> Result<Env> {
        let env = AutoReset::new(make(&args.env_id)?);
        let spec = env.env.spec();
        let action_kind = spaces::action_kind(Args::NAME, &spec)?;
        Ok(Env { env, obs_size: spec.observation.shape().numel(), action_kind })
    }
}
