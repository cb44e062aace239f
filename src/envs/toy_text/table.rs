//! Markov decision process as a transition table.

use crate::envs::env::seeds::EnvRng;
use crate::envs::env::spec::EnvSpec;
use crate::envs::env::{ObsMut, restore_json, save_json};
use crate::error::{Error, Result};
use crate::spaces::Space;

/// Possible outcome of an action in a state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Probability of the outcome.
    pub probability: f64,
    /// Next state.
    pub state: usize,
    /// Reward of the outcome.
    pub reward: f64,
    /// True if the outcome ends the episode.
    pub terminated: bool,
}

/// Possible outcomes of each action in each state, and the distribution of initial states.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    num_actions: usize,
    /// Outcomes by `state * num_actions + action`.
    transitions: Vec<Vec<Transition>>,
    /// Probability of each state at the start of an episode.
    start: Vec<f64>,
}

impl Table {
    /// Makes the table of `outcomes(state, action)`; `start` has a weight for each state.
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

    /// Returns the number of states.
    pub fn num_states(&self) -> usize {
        self.start.len()
    }

    /// Returns the number of actions.
    pub fn num_actions(&self) -> usize {
        self.num_actions
    }

    /// Returns the possible outcomes of `action` in `state`: gymnasium's `env.P[state][action]`.
    ///
    /// # Panics
    /// If there is no such state or action.
    pub fn transitions(&self, state: usize, action: usize) -> &[Transition] {
        assert!(action < self.num_actions, "there are {} actions", self.num_actions);
        &self.transitions[state * self.num_actions + action]
    }

    /// Returns the probability of each state at the start of an episode: gymnasium's
    /// `env.initial_state_distrib`.
    pub fn start(&self) -> &[f64] {
        &self.start
    }

    /// Returns a specification with these states and actions.
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

    /// Draws a random initial state.
    pub(super) fn draw_start(&self, rng: &mut EnvRng) -> usize {
        categorical(self.start.iter().copied(), rng)
    }

    /// Draws a random outcome of `action` in `state`.
    pub(super) fn draw(&self, state: usize, action: usize, rng: &mut EnvRng) -> Transition {
        let transitions = self.transitions(state, action);
        transitions[categorical(transitions.iter().map(|t| t.probability), rng)]
    }

    /// Restores a saved state.
    pub(super) fn restore(&self, id: &str, saved: &[u8]) -> Result<usize> {
        restore_json(id, saved, |&state| state < self.num_states())
    }
}

/// Returns the first index at which the cumulative sum of the probabilities exceeds a uniform
/// number.
fn categorical(probabilities: impl Iterator<Item = f64>, rng: &mut EnvRng) -> usize {
    let u = rng.uniform(0.0, 1.0);
    let mut total = 0.0;
    let mut sums = probabilities.map(|p| {
        total += p;
        total
    });
    // Rounding may keep the whole sum below 1; numpy then returns the first index too.
    sums.position(|sum| sum > u).unwrap_or(0)
}

/// Writes a state as an observation.
pub(super) fn observe(state: usize, mut obs: ObsMut<'_>) {
    obs.write(&[state as i32]);
}

/// Serializes the state of a task whose state is one number.
pub(super) fn save(id: &str, state: usize) -> Result<Vec<u8>> {
    save_json(id, &state)
}

/// Returns an error unless `p` is a probability.
pub(super) fn check_probability(id: &str, name: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::Config(format!("{id}: {name} is {p}, expected a probability from 0 to 1")))
}
