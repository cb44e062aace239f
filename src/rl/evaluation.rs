//! A trained agent plays whole episodes.

use crate::array::Array;
use crate::envs::{Batch, EnvPool};
use crate::error::{Error, Result};
use crate::random::Key;
use crate::trace::DType;
use crate::tree;

use super::interrupt;

/// Episodes to play, and what came of them.
#[derive(Debug)]
pub struct Evaluation {
    episodes: usize,
    /// The returns of the episodes played, without any clipping.
    pub returns: Vec<f64>,
}

impl Evaluation {
    /// That many episodes.
    pub fn new(episodes: usize) -> Evaluation {
        Evaluation { episodes, returns: Vec::new() }
    }

    /// How many episodes there are to play.
    pub fn episodes(&self) -> usize {
        self.episodes
    }

    /// Plays in `pool`: `act` takes observations `[N, ..]` and a key for this step, and gives actions
    /// `i32[N]` or `f32[N, ..]`.
    ///
    /// # Errors
    /// What `act` and the environments say; [`Error::Argument`] for actions of another type.
    pub fn play(
        &mut self,
        pool: EnvPool,
        mut act: impl FnMut(Array, Key<Array>) -> Result<Array>,
    ) -> Result<()> {
        self.play_with(pool, |batch, key| act(batch.obs_array(), key))
    }

    /// [`play`](Evaluation::play) for those who look at more than observations, such as at which of
    /// them are the first of an episode.
    ///
    /// # Errors
    /// As [`play`](Evaluation::play).
    pub fn play_with(
        &mut self,
        mut pool: EnvPool,
        mut act: impl FnMut(&Batch, Key<Array>) -> Result<Array>,
    ) -> Result<()> {
        let mut batch = pool.reset()?;
        let mut keys = (pool.options().seed..).map(|seed| tree::map(Key::new(seed), Array::from));
        while self.returns.len() < self.episodes && !interrupt::requested() {
            let key = keys.next().expect("a long row of numbers");
            let actions = act(&batch, key)?;
            batch = match actions.ty().dtype {
                DType::I32 => pool.step(&actions.to_vec::<i32>()?)?,
                DType::F32 => pool.step(&actions.to_vec::<f32>()?)?,
                other => {
                    let problem = format!("actions are i32 or f32, and these are {other}");
                    return Err(Error::Argument(problem));
                }
            };
            for episode in pool.take_finished() {
                if self.returns.len() < self.episodes {
                    self.returns.push(episode.episodic_return);
                }
            }
        }
        Ok(())
    }
}
