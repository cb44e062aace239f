//! Episodes that end in compiled steps of environments, with their statistics.

use crate::Tensor;
use crate::array::Array;
use crate::envs::EnvStep;
use crate::error::Result;
use crate::tree::Tree;

/// Statistics of the episodes that ended in some steps of N environments: `[.., N]` each, in step
/// order.
#[derive(Debug, Clone, Copy, Tree)]
pub struct EpisodeStats<T> {
    /// `bool`: true where a full game ended.
    pub finished: T,
    /// `f32`: sum of its rewards, before any clipping.
    pub episodic_return: T,
    /// `i32`: number of its steps; of Atari games with
    /// [`AtariStart::Gymnasium`](crate::envs::AtariStart::Gymnasium), number of its frames.
    pub episodic_length: T,
}

/// Statistics of one episode that ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EpisodeRecord {
    /// Timesteps of all environments since the call began, including the step in which it ended.
    pub step: u64,
    /// Index of its environment.
    pub env_id: usize,
    /// Sum of its rewards.
    pub episodic_return: f64,
    /// Length as in [`EpisodeStats::episodic_length`].
    pub length: u64,
}

impl EpisodeStats<Tensor> {
    /// Returns the statistics of one step: `[N]`.
    pub fn from_step(step: &EnvStep<Tensor>) -> EpisodeStats<Tensor> {
        EpisodeStats {
            finished: step.finished,
            episodic_return: step.episodic_return,
            episodic_length: step.episodic_length,
        }
    }
}

impl EpisodeStats<Array> {
    /// Returns the episodes that ended, in order.
    ///
    /// # Errors
    /// Returns errors of the computation that made the statistics.
    pub fn to_vec(&self) -> Result<Vec<EpisodeRecord>> {
        let finished = self.finished.to_vec::<bool>()?;
        if !finished.contains(&true) {
            return Ok(Vec::new());
        }
        let num_envs = self.finished.shape().last().copied().unwrap_or(1);
        let returns = self.episodic_return.to_vec::<f32>()?;
        let lengths = self.episodic_length.to_vec::<i32>()?;
        let ended = (0..finished.len()).filter(|&i| finished[i]);
        let episode = |i: usize| EpisodeRecord {
            step: ((i / num_envs + 1) * num_envs) as u64,
            env_id: i % num_envs,
            episodic_return: returns[i].into(),
            length: lengths[i] as u64,
        };
        Ok(ended.map(episode).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn episodes_are_listed_at_the_steps_they_ended() {
        let stats = EpisodeStats {
            finished: Array::new([3, 2], &[false, false, true, true, false, true]).unwrap(),
            episodic_return: Array::new([3, 2], &[0.0f32, 0.0, 1.5, 2.5, 0.0, 3.5]).unwrap(),
            episodic_length: Array::new([3, 2], &[0, 0, 7, 8, 0, 1]).unwrap(),
        };
        let episodes: Vec<_> =
            stats.to_vec().unwrap().iter().map(|e| (e.step, e.env_id, e.length)).collect();
        assert_eq!(episodes, [(4, 0, 7), (4, 1, 8), (6, 1, 1)]);
        assert_eq!(stats.to_vec().unwrap()[2].episodic_return, 3.5);
    }
}
