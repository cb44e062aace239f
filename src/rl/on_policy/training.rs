//! The loop of algorithms of which a rollout and its update are one program.

use super::annealed;
use crate::array::Array;
use crate::envs::{Handle, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::random::Key;
use crate::rl::{Algorithm, Games, Summary, Trainer};
use crate::timeline;
use crate::trace::Tensor;
use crate::tree::Tree;

/// How many updates there are, and how fast they learn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Timesteps of a rollout of all environments.
    pub steps: u64,
    /// Updates in all.
    pub updates: u64,
    /// The learning rate of the first.
    pub learning_rate: f64,
    /// Whether it goes linearly to 0.
    pub anneal_lr: bool,
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's folder.
///
/// Two programs are compiled: `init` makes the state from the environments and the randomness;
/// `iteration` takes it a rollout and an update further, with its learning rate `f32[]`, and tells of
/// both. `model` is what of the last state is saved.
///
/// # Errors
/// What the environments, the compiler, the runtime and the file system say.
pub fn train<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    schedule: Schedule,
    (handle, envs): (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    iteration: impl Fn(S, Tensor) -> (S, Games<Tensor>, M),
    model: impl FnOnce(S::With<Array>) -> N,
) -> Result<Summary> {
    let (options, name) = (args.options(), A::NAME);
    let mut trainer = Trainer::start(args)?;
    let init = with_mode(options.mode, |(handle, key)| init(handle, key));
    let init = init.named(format!("{name}_init"));
    let learn = with_mode(options.mode, |(state, rate)| iteration(state, rate));
    let learn = learn.named(format!("{name}_iteration")).check_nans(options.check_nans);

    let Schedule { steps, updates, learning_rate, anneal_lr } = schedule;
    let key = Key::new(options.seed);
    let mut state = trainer.state(init.call((handle, key))?, envs)?;
    while trainer.goes_on(steps, &state, envs)? {
        let _span = timeline::span("iteration");
        let rate = annealed(learning_rate, anneal_lr, trainer.step() / steps, updates);
        let (next, games, metrics) = learn.call((state, Array::from(rate as f32)))?;
        state = next;
        let at = trainer.step() + steps;
        trainer.run.events.scalar("charts/learning_rate", rate, at)?;
        trainer.tell(steps, &games.list()?, Some(&metrics))?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds();
    trainer.finish(&model(state), compile_s)
}
