//! CartPole without velocities, which an agent can infer only with memory.

use crate::envs::classic::CartPole;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, ObsMut, StepOutcome};
use crate::error::Result;
use crate::spaces::{Bound, Space};

const ID: &str = "CartPolePositions-v0";

/// `CartPolePositions-v0`: [`CartPole`] whose observation is only the position of the cart and the
/// angle of the pole, `f32[2]`. Everything else is as in `CartPole-v1`.
#[derive(Debug, Clone)]
pub struct CartPolePositions {
    whole: CartPole,
}

impl CartPolePositions {
    /// Makes `CartPolePositions-v0`.
    pub fn v0() -> CartPolePositions {
        CartPolePositions { whole: CartPole::v1() }
    }

    /// Lets `f` write the whole observation, and copies the two positions of it to `obs`.
    fn seen<T>(
        &mut self,
        mut obs: ObsMut<'_>,
        f: impl FnOnce(&mut CartPole, ObsMut<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut all = [0.0f32; 4];
        let output = f(&mut self.whole, ObsMut(bytemuck::cast_slice_mut(&mut all)))?;
        obs.write(&[all[0], all[2]]);
        Ok(output)
    }
}

impl Env for CartPolePositions {
    fn spec(&self) -> EnvSpec {
        let spec = self.whole.spec();
        let observation = match spec.observation {
            Space::Box { high: Bound::Each(high), .. } => {
                Space::f32([2], [-high[0], -high[2]], [high[0], high[2]])
            }
            other => other,
        };
        EnvSpec { id: ID.into(), observation, ..spec }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.seen(obs, |cart, all| cart.reset(rng, all))
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        self.seen(obs, |cart, all| cart.step(action, rng, all))
    }

    fn save(&self) -> Result<Vec<u8>> {
        self.whole.save()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.whole.restore(state)
    }
}
