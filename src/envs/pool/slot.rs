//! One environment inside a pool: its generator, its phase in the episode, and the reset rules. A game is
//! what `reset` begins; it has several episodes where a lost life ends an episode.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::{Action, Env, Frame, ObsMut, StepOutcome};
use crate::envs::pool::autoreset::Autoreset;
use crate::envs::pool::backend::{Backend, Call};
use crate::envs::pool::camera::Camera;
use crate::envs::pool::columns::Row;
use crate::envs::pool::failures::{Failure, OnError};
use crate::envs::pool::stats::Running;
use crate::envs::pool::watchdog::Calls;
use crate::error::{Error, Result};
use crate::trace::host::panic_text;
use crate::trace::types::DType;

/// Task to run on an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Reset,
    Step,
}

/// Phase of an environment in its episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Phase {
    /// Never reset.
    New,
    /// In the middle of an episode.
    InEpisode,
    /// At the end of an episode, not reset yet.
    Over,
}

pub(super) struct Slot {
    pub(super) env: Box<dyn Env>,
    pub(super) index: usize,
    pub(super) rng: EnvRng,
    pub(super) phase: Phase,
    /// Results of the last step.
    pub(super) row: Row,
    pub(super) choice: usize,
    /// Choices of the next multi-discrete action.
    pub(super) choices: Vec<usize>,
    pub(super) values: Vec<f32>,
    /// The step that failed just now, in a pool that continues after failures.
    pub(super) failure: Option<Failure>,
    autoreset: Autoreset,
    max_steps: u32,
    /// Steps of the game, over all its episodes.
    elapsed: u32,
    /// True if the next episode starts a new game.
    game_over: bool,
    running: Running,
    /// Observation before this step, kept in case the step fails.
    last_obs: Option<Vec<u8>>,
    /// Type of the observations.
    dtype: DType,
    /// Call counter that the watchdog of late environments reads.
    pub(super) calls: Arc<Calls>,
    filming: Option<Box<Filming>>,
}

/// A camera and its state.
struct Filming {
    camera: Box<dyn Camera>,
    /// True once a game was started; false for the one under way when the camera came.
    started: bool,
    /// True if the camera gets the frames of the current game.
    recording: bool,
}

/// State that the pool keeps of an environment between two steps.
#[derive(Serialize, Deserialize)]
struct Saved {
    id: String,
    rng: EnvRng,
    phase: Phase,
    elapsed: u32,
    game_over: bool,
    running: Running,
    /// Last observation, if a failed step is to repeat it.
    #[serde(default)]
    last_obs: Vec<u8>,
}

/// First line of a saved state, by which other bytes are recognized.
const MAGIC: &str = "podracer env 1";

impl Slot {
    pub(super) fn new(
        env: Box<dyn Env>,
        index: usize,
        rng: EnvRng,
        autoreset: Autoreset,
        max_steps: Option<u32>,
        on_error: OnError,
    ) -> Slot {
        Slot {
            dtype: env.spec().observation.dtype(),
            calls: Arc::default(),
            env,
            index,
            rng,
            phase: Phase::New,
            row: Row::new(index),
            choice: 0,
            choices: Vec::new(),
            values: Vec::new(),
            autoreset,
            max_steps: max_steps.unwrap_or(u32::MAX),
            elapsed: 0,
            game_over: true,
            running: Running::default(),
            failure: None,
            filming: None,
            last_obs: (on_error == OnError::Truncate).then(Vec::new),
        }
    }

    /// Runs `task`: fills `obs` and `self.row`, and, if an episode ended and the next one starts
    /// in the same step, `final_obs`.
    pub(super) fn run(&mut self, task: Task, obs: &mut [u8], final_obs: &mut [u8]) -> Result<()> {
        self.row = Row::new(self.index);
        self.calls.advance();
        let done = self.advance(task, obs, final_obs);
        self.calls.advance();
        done?;
        if let Some(last) = &mut self.last_obs {
            last.clear();
            last.extend_from_slice(obs);
        }
        Ok(())
    }

    /// Submits the call of the environment with which [`run`](Slot::run) will begin.
    pub(super) fn submit(&mut self, task: Task, backend: &dyn Backend) {
        let call = match task == Task::Reset || self.phase == Phase::Over {
            true => Call::Reset(&mut self.rng),
            false => Call::Step(action(self.choice, &self.choices, &self.values)),
        };
        backend.submit(self.index, call);
    }

    fn advance(&mut self, task: Task, obs: &mut [u8], final_obs: &mut [u8]) -> Result<()> {
        if task == Task::Reset {
            self.running = Running::default(); // An abandoned game is not a finished one.
            self.game_over = true;
            return self.begin(obs);
        }
        if self.phase == Phase::Over {
            // Next-step mode: this step's action is ignored. If the game continues (a life was
            // lost), so do its statistics.
            return self.begin(obs);
        }
        let action = action(self.choice, &self.choices, &self.values);
        self.elapsed += 1;
        let stepped = self.env.step(action, &mut self.rng, ObsMut(obs));
        let stepped = stepped.and_then(|outcome| self.finite(outcome, obs));
        let outcome = match (stepped, &self.last_obs) {
            (Ok(outcome), _) => outcome,
            (Err(error), None) => return Err(error),
            (Err(error), Some(last)) => {
                // A state saved by a pool that stops at errors has no last observation.
                if last.len() == obs.len() {
                    obs.copy_from_slice(last);
                } else {
                    obs.fill(0);
                }
                let (env_id, step, message) = (self.index, self.elapsed, error.to_string());
                self.failure = Some(Failure { env_id, step, message });
                StepOutcome::new(0.0, false).with_truncated(true)
            }
        };
        let truncated = outcome.truncated || self.elapsed >= self.max_steps;
        self.game_over = outcome.game_over || truncated;
        if self.filming.is_some() {
            self.film_step();
        }
        self.row.outcome = outcome.with_truncated(truncated);
        self.row.elapsed = self.elapsed;
        let length = self.env.episode_length();
        self.row.finished =
            self.running.step(self.index, outcome.game_reward, self.game_over, length);
        if outcome.terminated || truncated {
            self.phase = Phase::Over;
            if self.autoreset == Autoreset::SameStep {
                final_obs.copy_from_slice(obs);
                self.row.has_final_obs = true;
                self.begin(obs)?;
            }
        }
        Ok(())
    }

    /// Returns the outcome of a step, or an error if it or the observation has a number that is not
    /// finite in `f32`.
    #[inline]
    fn finite(&self, outcome: StepOutcome, obs: &[u8]) -> Result<StepOutcome> {
        for (name, reward) in [("reward", outcome.reward), ("game_reward", outcome.game_reward)] {
            if !(reward as f32).is_finite() {
                let (step, reward) = (self.elapsed, shown(reward));
                return Err(Error::Env(format!(
                    "the {name} of step {step} of the game is {reward}"
                )));
            }
        }
        self.ensure_finite(obs)?;
        Ok(outcome)
    }

    #[inline]
    fn ensure_finite(&self, obs: &[u8]) -> Result<()> {
        let found = match self.dtype {
            DType::F32 => not_finite(bytemuck::cast_slice(obs), |x: f32| x),
            DType::F64 => not_finite(bytemuck::cast_slice(obs), |x: f64| x as f32),
            _ => None,
        };
        let Some((element, value)) = found else { return Ok(()) };
        Err(Error::Env(format!(
            "element {element} of the observation is {}, {} steps after the game's start",
            shown(value),
            self.elapsed
        )))
    }

    fn begin(&mut self, obs: &mut [u8]) -> Result<()> {
        if self.game_over {
            self.env.reset(&mut self.rng, ObsMut(obs))?;
            self.elapsed = 0;
            if self.filming.is_some() {
                self.film_start();
            }
        } else {
            self.env.next_episode(&mut self.rng, ObsMut(obs))?;
            self.row.elapsed = self.elapsed;
        }
        self.ensure_finite(obs)?;
        self.phase = Phase::InEpisode;
        self.row.first = true;
        Ok(())
    }

    /// Serializes the environment's state and the pool's state of it: two lines of text, then the
    /// bytes of the environment itself.
    pub(super) fn save(&self) -> Result<Vec<u8>> {
        let saved = Saved {
            id: self.env.spec().id,
            rng: self.rng.clone(),
            phase: self.phase,
            elapsed: self.elapsed,
            game_over: self.game_over,
            running: self.running,
            last_obs: self.last_obs.clone().unwrap_or_default(),
        };
        let head = serde_json::to_string(&saved)
            .map_err(|e| Error::Env(format!("{}: its state cannot be written: {e}", saved.id)))?;
        let mut bytes = format!("{MAGIC}\n{head}\n").into_bytes();
        bytes.extend(self.env.save()?);
        Ok(bytes)
    }

    /// Restores the state that [`Slot::save`] returned, in this or another process.
    pub(super) fn restore(&mut self, state: &[u8]) -> Result<()> {
        let id = self.env.spec().id;
        let mut lines = state.splitn(3, |&byte| byte == b'\n');
        let (magic, head, own) = (lines.next(), lines.next(), lines.next());
        let (Some(head), Some(own), true) = (head, own, magic == Some(MAGIC.as_bytes())) else {
            return Err(Error::Env(format!(
                "{id}: these {} bytes are no saved state: EnvPool::save begins one with \"{MAGIC}\"",
                state.len()
            )));
        };
        let saved: Saved = serde_json::from_slice(head)
            .map_err(|e| Error::Env(format!("{id}: the saved state is damaged: {e}")))?;
        if saved.id != id {
            return Err(Error::Env(format!("{id}: the saved state is one of {}", saved.id)));
        }
        // The environment is restored first: if it returns an error, nothing has changed.
        self.env.restore(own)?;
        let Saved { rng, phase, elapsed, game_over, running, last_obs, .. } = saved;
        (self.rng, self.game_over) = (rng, game_over);
        if let Some(last) = &mut self.last_obs {
            *last = last_obs;
        }
        (self.phase, self.elapsed, self.running) = (phase, elapsed, running);
        Ok(())
    }

    /// Makes `camera` get the frames of the games that it chooses.
    pub(super) fn film(&mut self, camera: Box<dyn Camera>) {
        self.filming = Some(Box::new(Filming { camera, started: false, recording: false }));
    }

    /// Starts a game for the camera.
    #[cold]
    fn film_start(&mut self) {
        let Some(filming) = &mut self.filming else { return };
        if filming.recording {
            filming.camera.end();
        }
        filming.started = true;
        filming.recording = filming.camera.begin();
        self.film_frame();
    }

    /// Passes the state after a step to the camera.
    #[cold]
    fn film_step(&mut self) {
        match self.filming.as_ref().map(|filming| filming.started) {
            None => return,
            Some(true) => self.film_frame(),
            Some(false) => self.film_start(),
        }
        if let Some(filming) = self.filming.as_mut().filter(|f| self.game_over && f.recording) {
            filming.recording = false;
            filming.camera.end();
        }
    }

    /// Passes a picture of the environment to the camera if it records the game. Without one the
    /// environment goes on, as without a camera.
    fn film_frame(&mut self) {
        let Some(filming) = self.filming.as_mut().filter(|filming| filming.recording) else {
            return;
        };
        match self.env.try_render() {
            Ok(frame) => frame.into_iter().for_each(|frame| filming.camera.frame(frame)),
            Err(error) => {
                filming.camera.fail(error);
                self.filming = None;
            }
        }
    }

    pub(super) fn render(&mut self) -> Result<Option<Frame>> {
        self.env.try_render()
    }
}

/// Returns the action that a slot was given.
#[inline]
fn action<'a>(choice: usize, choices: &'a [usize], values: &'a [f32]) -> Action<'a> {
    match (values, choices) {
        ([], []) => Action::Discrete(choice),
        ([], choices) => Action::MultiDiscrete(choices),
        (values, _) => Action::Box(values),
    }
}

/// Returns the first value that is not finite as `f32`, and its index. The first loop has no early exit, so
/// that it is vectorized.
fn not_finite<T: Copy + Into<f64>>(
    values: &[T],
    as_f32: impl Fn(T) -> f32,
) -> Option<(usize, f64)> {
    if values.iter().fold(true, |all, &x| all & as_f32(x).is_finite()) {
        return None;
    }
    let position = values.iter().position(|&x| !as_f32(x).is_finite())?;
    Some((position, values[position].into()))
}

/// Returns the text of a value that is not finite as `f32`.
fn shown(value: f64) -> String {
    if value.is_finite() { format!("{value:e}, infinite in f32") } else { value.to_string() }
}

/// Runs `work` on an environment; an error or a panic becomes the end of a sentence whose subject
/// is the environment.
#[inline]
pub(super) fn guard<T>(work: impl FnOnce() -> Result<T>) -> Result<T, String> {
    // Unwind safety: after a failure the pool never touches its environments again.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(format!("failed: {error}")),
        Err(payload) => Err(format!("panicked: {}", panic_text(payload))),
    }
}
