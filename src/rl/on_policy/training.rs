//! Training loop of algorithms whose rollout and update form one program.

use super::annealed;
use crate::array::Array;
use crate::envs::{Handle, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::random::Key;
use crate::rl::{Algorithm, EpisodeStats, Summary, Trainer};
use crate::timeline;
use crate::trace::Tensor;
use crate::tree::Tree;

/// Number of updates and their learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Number of timesteps in a rollout of all environments.
    pub steps: u64,
    /// Total number of updates.
    pub updates: u64,
    /// Initial learning rate.
    pub learning_rate: f64,
    /// If true, the learning rate decreases linearly to 0.
    pub anneal_lr: bool,
}

/// Trains an agent and returns the result. Writes events and, if requested, the model to the run's
/// folder.
///
/// Two programs are compiled: `init` makes the state from the environment handle and a PRNG key;
/// `iteration` runs a rollout and an update with a learning rate `f32[]`, and returns the episodes
/// and the metrics. `model` selects the part of the last state to save.
///
/// # Errors
/// Returns errors of the environments, compilation, execution and file I/O.
pub fn train<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    schedule: Schedule,
    (handle, envs): (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    iteration: impl Fn(S, Tensor) -> (S, EpisodeStats<Tensor>, M),
    model: impl FnOnce(S::With<Array>) -> N,
) -> Result<Summary> {
    let (options, name) = (args.options(), A::NAME);
    let mut trainer = Trainer::start(args, schedule.steps)?;
    let init = with_mode(options.mode, |(handle, key)| init(handle, key));
    let init = init.named(format!("{name}_init"));
    let learn = with_mode(options.mode, |(state, rate)| iteration(state, rate));
    let learn = learn.named(format!("{name}_iteration")).check_nans(options.check_nans);

    let Schedule { steps, updates, learning_rate, anneal_lr } = schedule;
    let key = Key::new(options.seed);
    let mut state = trainer.init_or_resume(init.call((handle, key))?, envs)?;
    while trainer.should_continue() {
        let _span = timeline::span("iteration");
        let rate = annealed(learning_rate, anneal_lr, trainer.global_step() / steps, updates);
        let (next, games, metrics) = learn.call((state, Array::from(rate as f32)))?;
        state = next;
        let at = trainer.global_step() + steps;
        trainer.run.events.scalar("charts/learning_rate", rate, at)?;
        trainer.record(&games.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, envs)?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds();
    trainer.finish(&model(state), compile_s)
}
