//! The loop of algorithms that learn from a replay buffer. An algorithm says how its state begins and
//! what a round is: acting, storing, drawing, learning. Here rounds become programs, and these are
//! called until the timesteps are over.

use crate::array::Array;
use crate::envs::{Handle, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::random::Key;
use crate::timeline;
use crate::trace::Tensor;
use crate::trace::control::{ScanOptions, scan_with};
use crate::tree::Tree;

use super::{Algorithm, Games, Summary, Trainer};

/// What training changes.
#[derive(Debug, Tree)]
#[tree(nested = L)]
#[tree(nested = R)]
#[tree(nested = P)]
pub struct TrainState<L, R, P> {
    /// The networks, and what changes with them.
    pub learner: L,
    /// The steps to learn from.
    pub replay: R,
    /// The environments between two steps.
    pub playing: P,
}

/// `count` times `round`, in one loop of the program: what was told of them, each leaf with a new
/// first axis.
#[track_caller]
pub fn rounds<S: Tree<Tensor>, M: Tree<Tensor>>(
    count: usize,
    state: S,
    round: impl Fn(S) -> (S, Games<Tensor>, Option<M>),
) -> (S, Games<Tensor>, Option<M>) {
    let turn = |state: S, ()| {
        let (state, games, metrics) = round(state);
        (state, (games, metrics))
    };
    let (state, (games, metrics)) = scan_with(turn, state, (), ScanOptions::length(count));
    (state, games, metrics)
}

/// How far a run goes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Timesteps of one call of the program.
    pub steps: u64,
    /// Timesteps before learning starts, with the first call that begins after them.
    pub learning_starts: u64,
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's folder.
///
/// Three programs are compiled: `init` makes the state from the environments and the randomness;
/// `rounds` takes it [`Pace::steps`] further, and learns if it is told to, which gives two. `model` is
/// what of the last state is saved.
///
/// # Errors
/// What the environments, the compiler, the runtime and the file system say.
pub fn train<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    pace: Pace,
    pool: (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    rounds: impl Fn(S, bool) -> (S, Games<Tensor>, Option<M>),
    model: impl FnOnce(S::With<Array>) -> N,
) -> Result<Summary> {
    train_and_tell(args, pace, pool, init, rounds, model, |_, _| Ok(()))
}

/// [`train`], and `tell` is called after each call of the program, with whether it learned.
///
/// # Errors
/// As [`train`], and those of `tell`.
pub fn train_and_tell<A: Algorithm, S: Tree<Tensor>, M: Tree<Tensor>, N: Tree<Array>>(
    args: &A,
    pace: Pace,
    (handle, envs): (Handle<Array>, &XlaPool),
    init: impl Fn(Handle<Tensor>, Key<Tensor>) -> S,
    rounds: impl Fn(S, bool) -> (S, Games<Tensor>, Option<M>),
    model: impl FnOnce(S::With<Array>) -> N,
    mut tell: impl FnMut(&mut Trainer<'_, A>, bool) -> Result<()>,
) -> Result<Summary> {
    let (options, name) = (args.options(), A::NAME);
    let mut trainer = Trainer::start(args)?;
    let init = with_mode(options.mode, |(handle, key)| init(handle, key));
    let init = init.named(format!("{name}_init"));
    let explore = with_mode(options.mode, |state| rounds(state, false));
    let explore = explore.named(format!("{name}_explore"));
    let learn = with_mode(options.mode, |state| rounds(state, true));
    let learn = learn.named(format!("{name}_rounds")).check_nans(options.check_nans);

    let key = Key::new(options.seed);
    let mut state = trainer.state(init.call((handle, key))?, envs)?;
    while trainer.goes_on(pace.steps, &state, envs)? {
        let _span = timeline::span("rounds");
        let learning = trainer.step() >= pace.learning_starts;
        let (next, games, metrics) = match learning {
            true => learn.call(state)?,
            false => explore.call(state)?,
        };
        state = next;
        trainer.tell(pace.steps, &games.list()?, metrics.as_ref())?;
        tell(&mut trainer, learning)?;
    }
    let compile_s = init.stats().seconds() + explore.stats().seconds() + learn.stats().seconds();
    trainer.finish(&model(state), compile_s)
}
