//! Environments of JAX as traced environments.

use super::{TracedEnv, TracedStep};
use crate::envs::env::spec::EnvSpec;
use crate::envs::jax::StepResults;
use crate::random::Key;
use crate::trace::Tensor;

pub use crate::envs::jax::JaxEnv;

impl TracedEnv for JaxEnv {
    type State = Vec<Tensor>;

    fn spec(&self) -> EnvSpec {
        self.specification().clone()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (Vec<Tensor>, Tensor) {
        self.start(key)
    }

    #[track_caller]
    fn step(
        &self,
        state: Vec<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Vec<Tensor>> {
        let StepResults { obs, state, reward, terminated, truncated } =
            self.advance(state, action, key);
        TracedStep { state, obs, reward, terminated, truncated }
    }
}
