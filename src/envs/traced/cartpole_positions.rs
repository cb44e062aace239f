//! `CartPolePositions-v0`; see [`crate::envs::podracer`] for a description.

use super::{TracedEnv, TracedStep, observation};
use crate::envs::env::Env;
use crate::envs::env::spec::EnvSpec;
use crate::envs::podracer::CartPolePositions as Pooled;
use crate::envs::traced::cartpole::{CartPole, CartPoleState};
use crate::random::Key;
use crate::trace::{DType, Tensor};

/// [`CartPole`] whose observation is only the position of the cart and the angle of the pole.
#[derive(Debug, Clone)]
pub struct CartPolePositions {
    whole: CartPole,
}

impl CartPolePositions {
    /// Makes `CartPolePositions-v0`.
    pub fn v0() -> CartPolePositions {
        CartPolePositions { whole: CartPole::v1() }
    }

    /// Returns the environment with a state of `f32` or `f64`.
    pub fn with_dtype(self, dtype: DType) -> CartPolePositions {
        CartPolePositions { whole: self.whole.with_dtype(dtype) }
    }
}

#[track_caller]
fn observe(state: &CartPoleState<Tensor>) -> Tensor {
    observation(&[state.x, state.theta])
}

impl TracedEnv for CartPolePositions {
    type State = CartPoleState<Tensor>;

    fn spec(&self) -> EnvSpec {
        Pooled::v0().spec()
    }

    #[track_caller]
    fn reset(&self, key: Key<Tensor>) -> (CartPoleState<Tensor>, Tensor) {
        let (state, _) = self.whole.reset(key);
        let obs = observe(&state);
        (state, obs)
    }

    #[track_caller]
    fn step(
        &self,
        state: CartPoleState<Tensor>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, CartPoleState<Tensor>> {
        let step = self.whole.step(state, action, key);
        TracedStep { obs: observe(&step.state), ..step }
    }
}
