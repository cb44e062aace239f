//! What all wrappers share: whatever one does not change goes to the environment within.

use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::envs::seeds::EnvRng;
use crate::envs::spec::EnvSpec;
use crate::error::{Error, Result};

/// What a wrapper changes. Every method has a default that changes nothing.
///
/// A wrapper that changes observations gives the environment a place of its own to write them to,
/// [`place`](Wrapper::place), and makes its own of them in [`observe`](Wrapper::observe). The others
/// leave the environment to write into the pool's batch.
pub trait Wrapper: Send + 'static {
    /// The specification around that of the environment within.
    fn spec(&self, spec: EnvSpec) -> EnvSpec {
        spec
    }

    /// The elements of a continuous action for the environment within.
    fn action(&mut self, _action: &mut Vec<f32>) {}

    /// Where the environment within writes its observation, if not to where ours goes.
    fn place(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// Writes an observation from what lies in [`place`](Wrapper::place), if there is one. `first`
    /// is whether it is the first of an episode.
    fn observe(&mut self, _first: bool, _obs: ObsMut<'_>) {}

    /// What came of the step, from what the environment within says. To leave `game_reward` as it
    /// is keeps episode statistics true.
    fn outcome(&mut self, outcome: StepOutcome) -> StepOutcome {
        outcome
    }

    /// What the wrapper knows from earlier steps, as bytes.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes up what [`save`](Wrapper::save) wrote; false, and no change, for anything else.
    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

/// `env` as `wrapper` changes it.
pub fn wrap(env: Box<dyn Env>, wrapper: impl Wrapper) -> Box<dyn Env> {
    Box::new(Wrapped { env, wrapper, action: Vec::new() })
}

struct Wrapped<W> {
    env: Box<dyn Env>,
    wrapper: W,
    /// Memory for the action that the environment within gets.
    action: Vec<f32>,
}

impl<W: Wrapper> Wrapped<W> {
    /// Lets the environment within write an observation, and passes it on.
    fn observed<T>(
        &mut self,
        first: bool,
        obs: ObsMut<'_>,
        write: impl FnOnce(&mut dyn Env, ObsMut<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(place) = self.wrapper.place() else {
            return write(&mut *self.env, obs);
        };
        let told = write(&mut *self.env, ObsMut(place))?;
        self.wrapper.observe(first, obs);
        Ok(told)
    }
}

impl<W: Wrapper> Env for Wrapped<W> {
    fn spec(&self) -> EnvSpec {
        self.wrapper.spec(self.env.spec())
    }

    fn reset(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.observed(true, obs, |env, obs| env.reset(rng, obs))
    }

    fn next_episode(&mut self, rng: &mut EnvRng, obs: ObsMut<'_>) -> Result<()> {
        self.observed(true, obs, |env, obs| env.next_episode(rng, obs))
    }

    fn step(
        &mut self,
        action: Action<'_>,
        rng: &mut EnvRng,
        obs: ObsMut<'_>,
    ) -> Result<StepOutcome> {
        let mut changed = std::mem::take(&mut self.action);
        let action = match action {
            Action::Box(values) => {
                changed.clear();
                changed.extend_from_slice(values);
                self.wrapper.action(&mut changed);
                Action::Box(&changed)
            }
            discrete => discrete,
        };
        let outcome = self.observed(false, obs, |env, obs| env.step(action, rng, obs));
        self.action = changed;
        Ok(self.wrapper.outcome(outcome?))
    }

    fn episode_length(&self) -> Option<u32> {
        self.env.episode_length()
    }

    fn render(&mut self) -> Option<Frame> {
        self.env.render()
    }

    /// The length of the wrapper's bytes, those, and the bytes of the environment within.
    fn save(&self) -> Result<Vec<u8>> {
        let ours = self.wrapper.save();
        let mut state = (ours.len() as u64).to_le_bytes().to_vec();
        state.extend(ours);
        state.extend(self.env.save()?);
        Ok(state)
    }

    fn restore(&mut self, state: &[u8]) -> Result<()> {
        let split = state.split_first_chunk::<8>().and_then(|(length, rest)| {
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let Some((ours, inner)) = split else { return Err(self.not_saved()) };
        // The wrapper goes first and can be put back: a failure changes nothing.
        let before = self.wrapper.save();
        if !self.wrapper.restore(ours) {
            return Err(self.not_saved());
        }
        self.env.restore(inner).inspect_err(|_| {
            self.wrapper.restore(&before);
        })
    }
}

impl<W: Wrapper> Wrapped<W> {
    fn not_saved(&self) -> Error {
        let id = self.env.spec().id;
        Error::Env(format!("{id}: this is not a saved state of it with this wrapper"))
    }
}
