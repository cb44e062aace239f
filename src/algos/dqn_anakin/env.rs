//! Traced environments with the sizes of their observations and actions.

use super::Args;
use crate::envs::traced::{AutoReset, Traced, TracedEnv, make};
use crate::error::Result;
use crate::rl::Algorithm;
use crate::rl::spaces::Sizes;
use crate::{DType, TensorType};

/// Environment with the sizes of its observations and actions.
#[derive(Debug)]
pub struct Env {
    pub(super) env: AutoReset<Traced>,
    pub(super) sizes: Sizes,
    /// Element type of an observation.
    pub(super) obs_dtype: DType,
}

impl Env {
    /// Creates the environment of `--env-id`.
    ///
    /// # Errors
    /// Returns [`Error::Env`](crate::Error::Env) for an unknown id, and
    /// [`Error::Config`](crate::Error::Config) for observations and actions that this algorithm does
    /// not support.
    pub fn new(args: &Args) -> Result<Env> {
        let env = AutoReset::new(make(&args.env_id)?);
        let spec = env.env.spec();
        let sizes = Sizes::from_spec(Args::NAME, &spec, &Args::ENVS)?;
        Ok(Env { env, sizes, obs_dtype: spec.observation.dtype() })
    }

    /// Returns the type of an observation.
    pub(super) fn obs_type(&self) -> TensorType {
        TensorType::new(self.obs_dtype, self.sizes.shape.clone())
    }
}
