//! Pendulum without its velocity, which an agent can infer only with memory.

use crate::envs::classic::Pendulum;
use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::error::Result;
use crate::spaces::Space;

const ID: &str = "PendulumPositions-v0";

/// `PendulumPositions-v0`: [`Pendulum`] whose observation is only the cosine and the sine of the angle,
/// `f32[2]`. Everything else is as in `Pendulum-v1`.
#[derive(Debug, Clone)]
pub struct PendulumPositions {
    whole: Pendulum,
}

impl PendulumPositions {
    /// Makes `PendulumPositions-v0`.
    pub fn v0() -> PendulumPositions {
        PendulumPositions { whole: Pendulum::v1() }
    }

    /// Lets `f` write the whole observation, and copies the cosine and the sine of it to `obs`.
    fn seen<T>(
        &mut self,
        mut obs: ObsMut<'_>,
        f: impl FnOnce(&mut Pendulum, ObsMut<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut all = [0.0f32; 3];
        let output = f(&mut self.whole, ObsMut(bytemuck::cast_slice_mut(&mut all)))?;
        obs.write(&all[..2]);
        Ok(output)
    }
}

impl Env for PendulumPositions {
    fn spec(&self) -> EnvSpec {
        let observation = Space::f32([2], -1.0, 1.0);
        EnvSpec { id: ID.into(), observation, ..self.whole.spec() }
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.seen(obs, |pendulum, all| pendulum.reset(rng, all))
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        self.seen(obs, |pendulum, all| pendulum.step(action, rng, all))
    }

    fn render(&mut self) -> Option<Frame> {
        self.whole.render()
    }

    fn save(&self) -> Result<Vec<u8>> {
        self.whole.save()
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        self.whole.restore(state)
    }
}
