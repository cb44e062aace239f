//! Base of all wrappers: methods that a wrapper does not change are forwarded to the wrapped
//! environment.

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::error::{Error, Result};

/// Changes that a wrapper makes. Every method has a default that changes nothing.
///
/// A wrapper that changes observations gives the wrapped environment a separate buffer to write
/// them to, [`place`](Wrapper::place), and computes its own observation from it in
/// [`observe`](Wrapper::observe). With other wrappers the environment writes into the pool's batch.
pub trait Wrapper: Send + 'static {
    /// Returns the specification of the wrapper, from that of the wrapped environment.
    fn spec(&self, spec: EnvSpec) -> EnvSpec {
        spec
    }

    /// Changes the elements of a continuous action for the wrapped environment.
    fn action(&mut self, _action: &mut Vec<f32>) {}

    /// Returns the buffer for the wrapped environment's observation, or `None` if the environment
    /// writes to the wrapper's own output.
    fn place(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// Writes an observation computed from the content of [`place`](Wrapper::place), if there is
    /// one. `first` is true for the first observation of an episode.
    fn observe(&mut self, _first: bool, _obs: ObsMut<'_>) {}

    /// Returns the outcome of the step, from that of the wrapped environment. Keep `game_reward`
    /// unchanged to keep the episode statistics true.
    fn outcome(&mut self, outcome: StepOutcome) -> StepOutcome {
        outcome
    }

    /// Serializes the wrapper's state from earlier steps.
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Restores the state that [`save`](Wrapper::save) wrote; returns false, and changes nothing,
    /// for other bytes.
    fn restore(&mut self, state: &[u8]) -> bool {
        state.is_empty()
    }
}

/// Wraps `env` with `wrapper`.
pub fn wrap(env: Box<dyn Env>, wrapper: impl Wrapper) -> Box<dyn Env> {
    Box::new(Wrapped { env, wrapper, action: Vec::new() })
}

struct Wrapped<W> {
    env: Box<dyn Env>,
    wrapper: W,
    /// Memory for the action of the wrapped environment.
    action: Vec<f32>,
}

impl<W: Wrapper> Wrapped<W> {
    /// Lets the wrapped environment write an observation, and the wrapper change it.
    fn observed<T>(
        &mut self,
        first: bool,
        obs: ObsMut<'_>,
        write: impl FnOnce(&mut dyn Env, ObsMut<'_>) -> Result<T>,
    ) -> Result<T> {
        let Some(place) = self.wrapper.place() else {
            return write(&mut *self.env, obs);
        };
        let output = write(&mut *self.env, ObsMut(place))?;
        self.wrapper.observe(first, obs);
        Ok(output)
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

    fn try_render(&mut self) -> Result<Option<Frame>> {
        self.env.try_render()
    }

    /// Serializes the length of the wrapper's bytes, those bytes, and the bytes of the wrapped
    /// environment.
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
        // The wrapper is restored first and can be put back: a failure changes nothing.
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
