//! Evaluation of a trained agent over complete episodes.

use std::path::{Path, PathBuf};

use crate::array::Array;
use crate::envs::{Batch, EnvPool};
use crate::error::{Error, Result};
use crate::random::Key;
use crate::trace::DType;

use crate::rl::interrupt;
use crate::rl::logging::training_video;
use crate::rl::logging::video::Recorder;

/// Evaluation over a number of episodes, with its results.
#[derive(Debug)]
pub struct Evaluation {
    episodes: usize,
    /// Returns of the finished episodes, without reward clipping.
    pub returns: Vec<f64>,
    recorder: Option<Recorder>,
    /// True if the evaluation goes on where a video cannot be recorded.
    video_is_optional: bool,
}

/// Actions of an agent, with values to display beside the video.
#[derive(Debug, Clone)]
pub struct PolicyOutput {
    /// Actions, `i32[N]` or `f32[N, ..]`.
    pub actions: Array,
    /// Values drawn as bars beside the frame: `f32[N, K]`, such as the value or the probability of
    /// each action, or `f32[N, A, K]`, such as the distribution of each action's return.
    pub bars: Option<Array>,
}

impl From<Array> for PolicyOutput {
    fn from(actions: Array) -> PolicyOutput {
        PolicyOutput { actions, bars: None }
    }
}

impl From<(Array, Array)> for PolicyOutput {
    fn from((actions, bars): (Array, Array)) -> PolicyOutput {
        PolicyOutput { actions, bars: Some(bars) }
    }
}

impl Evaluation {
    /// Creates an evaluation over this number of episodes.
    pub fn new(episodes: usize) -> Evaluation {
        Evaluation { episodes, returns: Vec::new(), recorder: None, video_is_optional: false }
    }

    /// Returns the number of episodes to evaluate.
    pub fn episodes(&self) -> usize {
        self.episodes
    }

    /// Returns the mean and population standard deviation of the returns; `None` without an
    /// episode.
    pub fn mean_and_std(&self) -> Option<(f64, f64)> {
        let count = self.returns.len() as f64;
        let mean = self.returns.iter().sum::<f64>() / count;
        let variance = self.returns.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        (!self.returns.is_empty()).then(|| (mean, variance.sqrt()))
    }

    /// Records a video of each episode of the first environment in `folder`.
    ///
    /// # Errors
    /// Returns the same errors as [`Recorder::new`].
    pub fn filmed(self, folder: &Path) -> Result<Evaluation> {
        Ok(Evaluation { recorder: Some(Recorder::new(folder)?), ..self })
    }

    /// Prints why a video cannot be recorded, and goes on without it.
    pub(in crate::rl) fn with_optional_video(self) -> Evaluation {
        Evaluation { video_is_optional: true, ..self }
    }

    /// Returns the paths of the videos that are complete.
    pub fn videos(&self) -> &[PathBuf] {
        self.recorder.as_ref().map_or(&[], Recorder::written)
    }

    /// Evaluates an agent in `pool`: `act` takes observations `[N, ..]` and a key for this step.
    ///
    /// # Errors
    /// Returns errors of `act` and of the environments; [`Error::Argument`] for actions of a type
    /// that [`PolicyOutput`] does not have; [`Error::Env`] if a video is requested and the environment
    /// does not render.
    pub fn play<A: Into<PolicyOutput>>(
        &mut self,
        pool: EnvPool,
        mut act: impl FnMut(Array, Key<Array>) -> Result<A>,
    ) -> Result<()> {
        self.play_with(pool, |batch, key| act(batch.obs_array(), key))
    }

    /// Like [`play`](Evaluation::play), but `act` takes the whole batch, which also holds, for
    /// example, the flags of first steps of an episode.
    ///
    /// # Errors
    /// Returns the same errors as [`play`](Evaluation::play).
    pub fn play_with<A: Into<PolicyOutput>>(
        &mut self,
        pool: EnvPool,
        act: impl FnMut(&Batch, Key<Array>) -> Result<A>,
    ) -> Result<()> {
        self.play_counted(pool, |_| true, act)
    }

    /// Like [`play_with`](Evaluation::play_with), but only the episodes of the environments for which
    /// `counts` returns true are counted, as where the others are those of opponents.
    ///
    /// # Errors
    /// Returns the same errors as [`play`](Evaluation::play).
    pub fn play_counted<A: Into<PolicyOutput>>(
        &mut self,
        mut pool: EnvPool,
        counts: impl Fn(usize) -> bool,
        mut act: impl FnMut(&Batch, Key<Array>) -> Result<A>,
    ) -> Result<()> {
        let mut batch = pool.reset()?;
        let mut keys = (pool.options().seed..).map(Key::new);
        while self.returns.len() < self.episodes && !interrupt::requested() {
            let key = keys.next().expect("a long row of numbers");
            let PolicyOutput { actions, bars } = act(&batch, key)?.into();
            if let Some(recorder) = &mut self.recorder
                && let Err(error) = film(recorder, &mut pool, bars.as_ref())
            {
                if !self.video_is_optional {
                    return Err(error);
                }
                training_video::report(&error);
                self.recorder = None;
            }
            batch = match actions.ty().dtype {
                DType::I32 => pool.step(&actions.to_vec::<i32>()?)?,
                DType::F32 => pool.step(&actions.to_vec::<f32>()?)?,
                other => {
                    let problem = format!("actions are i32 or f32, and these are {other}");
                    return Err(Error::Argument(problem));
                }
            };
            for episode in pool.take_finished() {
                if let Some(recorder) = self.recorder.as_mut().filter(|_| episode.env_id == 0) {
                    recorder.cut()?;
                }
                if self.returns.len() < self.episodes && counts(episode.env_id) {
                    self.returns.push(episode.episodic_return);
                }
            }
        }
        self.recorder.as_mut().map_or(Ok(()), Recorder::cut)
    }
}

/// Adds a frame of the first environment to its video.
fn film(recorder: &mut Recorder, pool: &mut EnvPool, bars: Option<&Array>) -> Result<()> {
    let frame = pool.render(0)?.ok_or_else(|| {
        Error::Env(format!("{} draws no pictures, so there is nothing to film", pool.spec().id))
    })?;
    let Some(bars) = bars else { return recorder.show(&frame, &[]) };
    let values = bars.to_vec::<f32>()?;
    let shape = bars.shape();
    let row = shape.last().copied().unwrap_or(1).max(1);
    let own = shape.iter().skip(1).product::<usize>();
    let rows: Vec<&[f32]> = values[..own.min(values.len())].chunks(row).collect();
    recorder.show(&frame, &rows)
}
