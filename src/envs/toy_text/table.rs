//! A Markov decision process as a table.

use crate::envs::env::{ObsMut, restore_json, save_json};
use crate::envs::seeds::EnvRng;
use crate::envs::spec::{EnvSpec, Space};
use crate::error::{Error, Result};

/// One thing that can come of an action in a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// How likely it is.
    pub probability: f64,
    /// The state after it.
    pub state: usize,
    /// The reward for it.
    pub reward: f64,
    /// Whether it ends the episode.
    pub terminated: bool,
}

/// What can come of each action in each state, and where episodes begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    num_actions: usize,
    /// By `state * num_actions + action`.
    transitions: Vec<Vec<Transition>>,
    /// How likely an episode begins in each state.
    start: Vec<f64>,
}

impl Table {
    /// A table of what `outcomes(state, action)` says; `start` has a weight for each state.
    pub(super) fn new(
        start: Vec<f64>,
        num_actions: usize,
        mut outcomes: impl FnMut(usize, usize) -> Vec<Transition>,
    ) -> Table {
        let transitions = (0..start.len() * num_actions)
            .map(|i| outcomes(i / num_actions, i % num_actions))
            .collect();
        let total: f64 = start.iter().sum();
        let start = start.into_iter().map(|weight| weight / total).collect();
        Table { num_actions, transitions, start }
    }

    /// How many states there are.
    pub fn num_states(&self) -> usize {
        self.start.len()
    }

    /// How many actions there are.
    pub fn num_actions(&self) -> usize {
        self.num_actions
    }

    /// What can come of `action` in `state`: gymnasium's `env.P[state][action]`.
    ///
    /// # Panics
    /// If there is no such state or action.
    pub fn transitions(&self, state: usize, action: usize) -> &[Transition] {
        assert!(action < self.num_actions, "there are {} actions", self.num_actions);
        &self.transitions[state * self.num_actions + action]
    }

    /// How likely an episode begins in each state: gymnasium's `env.initial_state_distrib`.
    pub fn start(&self) -> &[f64] {
        &self.start
    }

    /// A specification with these states and actions.
    pub(super) fn spec(
        &self,
        id: &str,
        max_episode_steps: Option<u32>,
        reward_threshold: Option<f64>,
    ) -> EnvSpec {
        EnvSpec {
            id: id.into(),
            observation: Space::Discrete { n: self.num_states() },
            action: Space::Discrete { n: self.num_actions },
            max_episode_steps,
            reward_threshold,
        }
    }

    /// A random first state.
    pub(super) fn draw_start(&self, rng: &mut EnvRng) -> usize {
        categorical(self.start.iter().copied(), rng)
    }

    /// A random consequence of `action` in `state`.
    pub(super) fn draw(&self, state: usize, action: usize, rng: &mut EnvRng) -> Transition {
        let transitions = self.transitions(state, action);
        transitions[categorical(transitions.iter().map(|t| t.probability), rng)]
    }

    /// Reads a saved state.
    pub(super) fn restore(&self, id: &str, saved: &[u8]) -> Result<usize> {
        restore_json(id, saved, |&state| state < self.num_states())
    }
}

/// The first index at which the sum of the probabilities so far exceeds a uniform number.
fn categorical(probabilities: impl Iterator<Item = f64>, rng: &mut EnvRng) -> usize {
    let u = rng.uniform(0.0, 1.0);
    let mut total = 0.0;
    let mut sums = probabilities.map(|p| {
        total += p;
        total
    });
    // Rounding may keep the whole sum below 1; the first is then as good as any, and numpy's.
    sums.position(|sum| sum > u).unwrap_or(0)
}

/// Writes a state as an observation.
pub(super) fn observe(state: usize, mut obs: ObsMut<'_>) {
    obs.write(&[state as i32]);
}

/// A saved state, of a task whose state is one number.
pub(super) fn save(id: &str, state: usize) -> Result<Vec<u8>> {
    save_json(id, &state)
}

/// Fails unless `p` is a probability.
pub(super) fn check_probability(id: &str, name: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::Config(format!("{id}: {name} is {p}, expected a probability from 0 to 1")))
}
