//! Episode statistics of the full game, independent of the agent's rewards and episodes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Statistics of a finished episode of the full game: from its first reset to game over or
/// truncation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Index of the environment.
    pub env_id: usize,
    /// Sum of the rewards, before any clipping.
    pub episodic_return: f64,
    /// Number of steps, or the result of [`Env::episode_length`](crate::envs::Env::episode_length).
    pub length: u32,
}

/// Statistics of the current game of one environment.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::envs) struct Running {
    episodic_return: f64,
    length: u32,
}

impl Running {
    /// Counts one step; returns the finished episode if that was its last step. `length` is the
    /// environment's own count, if it has one.
    pub(in crate::envs) fn step(
        &mut self,
        env_id: usize,
        reward: f64,
        over: bool,
        length: Option<u32>,
    ) -> Option<Episode> {
        self.episodic_return += reward;
        self.length += 1;
        over.then(|| {
            let Running { episodic_return, length: steps } = std::mem::take(self);
            Episode { env_id, episodic_return, length: length.unwrap_or(steps) }
        })
    }
}

/// Maximum number of finished episodes kept until they are taken; older ones are dropped.
const MAX_STORED_EPISODES: usize = 1 << 16;

/// Finished episodes of all environments of a pool.
#[derive(Debug, Default)]
pub(in crate::envs) struct Finished {
    episodes: VecDeque<Episode>,
    last: Vec<Option<Episode>>,
}

impl Finished {
    pub(in crate::envs) fn new(num_envs: usize) -> Finished {
        Finished { episodes: VecDeque::new(), last: vec![None; num_envs] }
    }

    pub(in crate::envs) fn push(&mut self, episode: Episode) {
        if self.episodes.len() == MAX_STORED_EPISODES {
            self.episodes.pop_front();
        }
        self.episodes.push_back(episode);
        self.last[episode.env_id] = Some(episode);
    }

    pub(in crate::envs) fn drain(&mut self) -> Vec<Episode> {
        self.episodes.drain(..).collect()
    }

    pub(in crate::envs) fn last(&self, env_id: usize) -> Option<Episode> {
        self.last.get(env_id).copied().flatten()
    }
}
