//! Traced environments with the sizes of their observations and actions.

use crate::envs::traced::{AutoReset, Traced, TracedEnv, make};
use crate::envs::{ActionKind, EnvSpec};
use crate::error::Result;
use crate::jit::eval_shape;
use crate::rl::algorithm::Algorithm;
use crate::rl::environments::spaces;
use crate::{DType, Key, Tensor, TensorType, tree};

/// Traced environment of a run, with the sizes of its observations and actions.
#[derive(Debug)]
pub struct AnakinEnv {
    /// The environment, which starts the next episode in the step that ends one.
    pub auto_reset: AutoReset<Traced>,
    /// Specification of the environment.
    pub spec: EnvSpec,
    /// Kind and number of actions.
    pub action_kind: ActionKind,
    /// Number of elements of an observation.
    pub obs_size: usize,
}

impl AnakinEnv {
    /// Creates the environment of `--env-id`.
    ///
    /// # Errors
    /// Returns [`Error::Env`](crate::Error::Env) for an unknown id, and
    /// [`Error::Config`](crate::Error::Config) for actions that are neither discrete nor vectors.
    pub fn new<A: Algorithm>(args: &A) -> Result<AnakinEnv> {
        let auto_reset = AutoReset::new(make(args.env_id())?);
        let spec = auto_reset.env.spec();
        let action_kind = spaces::action_kind(A::NAME, &spec)?;
        let obs_size = spec.observation.shape().numel();
        Ok(AnakinEnv { auto_reset, spec, action_kind, obs_size })
    }

    /// Starts an episode without statistics, for [`AutoReset::step_or`]: returns its state and its first
    /// observation.
    #[track_caller]
    pub fn start(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        self.auto_reset.env.reset(key)
    }

    /// Returns the type of an observation.
    pub fn obs_type(&self) -> TensorType {
        TensorType::new(self.spec.observation.dtype(), self.spec.observation.shape())
    }

    /// Returns the bytes of the state and of the observation of one environment.
    ///
    /// # Errors
    /// Returns errors of tracing.
    pub(super) fn start_bytes(&self) -> Result<usize> {
        let start = eval_shape(|key| self.start(key), &Key::new(0))?;
        Ok(tree::leaves(&start).iter().map(TensorType::bytes).sum())
    }

    /// Returns the type of an action.
    pub(super) fn action_type(&self) -> TensorType {
        match self.action_kind {
            ActionKind::Discrete { .. } => TensorType::scalar(DType::I32),
            ActionKind::Continuous { size } => TensorType::new(DType::F32, [size]),
        }
    }
}
