//! Training loop of algorithms that learn from a replay buffer. An algorithm defines its initial
//! state and one iteration: acting, storing, sampling, learning. This module compiles iterations
//! into programs and calls them until the timesteps are used up.

use crate::array::Array;
use crate::envs::{Handle, XlaPool};
use crate::error::Result;
use crate::jit;
use crate::random::Key;
use crate::timeline;
use crate::trace::Tensor;
use crate::trace::control::{ScanOptions, scan_with};
use crate::tree::Tree;

use super::{Algorithm, EpisodeStats, Summary, Trainer};

/// Train state of an off-policy algorithm.
#[derive(Debug, Tree)]
#[tree(nested = L)]
#[tree(nested = R)]
#[tree(nested = P)]
pub struct TrainState<L, R, P> {
    /// Networks and the state that changes with them.
    pub learner: L,
    /// Replay buffer.
    pub replay: R,
    /// State of the environments between steps.
    pub playing: P,
}

/// Runs `round` `count` times in one compiled loop, and stacks its outputs along a new first axis
/// of each leaf.
#[track_caller]
pub fn rounds<S: Tree<Tensor>, M: Tree<Tensor>>(
    count: usize,
    state: S,
    round: impl Fn(S) -> (S, EpisodeStats<Tensor>, Option<M>),
) -> (S, EpisodeStats<Tensor>, Option<M>) {
    let turn = |state: S, ()| {
        let (state, games, metrics) = round(state);
        (state, (games, metrics))
    };
    let (state, (games, metrics)) = scan_with(turn, state, (), ScanOptions::length(count));
    (state, games, metrics)
}

/// Loop configuration of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopConfig {
    /// Number of timesteps in one call of the program.
    pub steps: u64,
    /// Timesteps before learning starts, which it does in the first call that begins after them.
    pub learning_starts: u64,
}

/// Trains an agent and returns the result. Writes events and, if requested, the model to the run's
/// folder.
///
/// Three programs are compiled: `init` makes the state from the environment handle and a PRNG key;
/// `rounds` advances it by [`LoopConfig::steps`] timesteps, with or without learning, which gives two
/// programs. `model` selects the part of the last state to save.
///
/// # Errors
/// Returns errors of the environments, compilation, execution and file I/O.
pub fn train<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    pace: LoopConfig,
    pool: (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    rounds: impl Fn(S, bool) -> (S, EpisodeStats<Tensor>, Option<M>),
    model: impl FnOnce(S::With<Array>) -> N,
) -> Result<Summary> {
    train_and_tell(args, pace, pool, init, rounds, model, |_, _| Ok(()))
}

/// Like [`train`], but calls `tell` after each call of the program; its argument is true if that
/// call learned.
///
/// # Errors
/// Returns the errors of [`train`] and those of `tell`.
pub fn train_and_tell<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    pace: LoopConfig,
    (handle, envs): (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    rounds: impl Fn(S, bool) -> (S, EpisodeStats<Tensor>, Option<M>),
    model: impl FnOnce(S::With<Array>) -> N,
    mut tell: impl FnMut(&mut Trainer<'_, A>, bool) -> Result<()>,
) -> Result<Summary> {
    let (options, name) = (args.options(), A::NAME);
    let mut trainer = Trainer::start(args, pace.steps)?;
    let init = jit(|(handle, key)| init(handle, key)).with_mode(options.mode);
    let init = init.named(format!("{name}_init"));
    let explore = jit(|state| rounds(state, false)).with_mode(options.mode);
    let explore = explore.named(format!("{name}_explore"));
    let learn = jit(|state| rounds(state, true)).with_mode(options.mode);
    let learn = learn.named(format!("{name}_rounds")).check_nans(options.check_nans);

    let key = Key::new(options.seed);
    let mut state = trainer.init_or_resume(init.call((handle, key))?, envs)?;
    while trainer.should_continue() {
        let _span = timeline::span("rounds");
        let learning = trainer.global_step() >= pace.learning_starts;
        let (next, games, metrics) = match learning {
            true => learn.call(state)?,
            false => explore.call(state)?,
        };
        state = next;
        trainer.record(&games.to_vec()?, metrics.as_ref())?;
        tell(&mut trainer, learning)?;
        trainer.checkpoint_if_due(&state, envs)?;
    }
    let compile_s = init.stats().seconds() + explore.stats().seconds() + learn.stats().seconds();
    trainer.finish(&model(state), compile_s)
}
