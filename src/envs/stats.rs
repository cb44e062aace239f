//! Episode statistics of the full game, whatever the agent's reward and episodes look like.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// A finished game: from its first reset to game over or truncation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// The environment that played it.
    pub env_id: usize,
    /// The sum of its rewards, before any clipping.
    pub episodic_return: f64,
    /// Its steps, or what [`Env::episode_length`](super::Env::episode_length) gives instead.
    pub length: u32,
}

/// The game that one environment is in the middle of.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Running {
    episodic_return: f64,
    length: u32,
}

impl Running {
    /// Counts one step; returns the game if that was its last. `length` is the environment's own
    /// count, if it has one.
    pub(super) fn step(
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

/// Finished games that nobody has asked for are forgotten beyond this many.
const KEPT: usize = 1 << 16;

/// The finished games of all environments of a pool.
#[derive(Debug, Default)]
pub(super) struct Finished {
    episodes: VecDeque<Episode>,
    last: Vec<Option<Episode>>,
}

impl Finished {
    pub(super) fn new(num_envs: usize) -> Finished {
        Finished { episodes: VecDeque::new(), last: vec![None; num_envs] }
    }

    pub(super) fn push(&mut self, episode: Episode) {
        if self.episodes.len() == KEPT {
            self.episodes.pop_front();
        }
        self.episodes.push_back(episode);
        self.last[episode.env_id] = Some(episode);
    }

    pub(super) fn drain(&mut self) -> Vec<Episode> {
        self.episodes.drain(..).collect()
    }

    pub(super) fn last(&self, env_id: usize) -> Option<Episode> {
        self.last.get(env_id).copied().flatten()
    }
}
