//! Environments as pure functions over tensors, in gymnax's style (Lange 2022): a whole training
//! run becomes one compiled program, and `vmap` runs many environments, or many runs, at once.
//!
//! Each is the environment of the same id in the [pool](super::EnvPool), operation for operation.
//! The differences are the source of randomness (a [`Key`] argument) and, by default, the type of
//! the state: `f32` here, `f64` there. With [`DType::F64`] the steps are equal bit for bit.
//!
//! The functions are those of one environment, mapped over a batch by `vmap`:
//!
//! ```
//! use podracer::envs::traced::{AutoReset, CartPole};
//! use podracer::trace::ops::constant;
//! use podracer::{Key, Tensor, interpret, vmap};
//!
//! let env = AutoReset::new(CartPole::v1());
//! // Eight carts pushed to the right once.
//! let f = interpret(|key: Key<Tensor>| {
//!     let (starts, steps) = key.split();
//!     let (episode, obs) = vmap(|key| env.reset(key))(starts.split_batch(8));
//!     let push = |(episode, key)| {
//!         let step = env.step(episode, constant(1), key);
//!         (step.obs, step.reward, step.terminated)
//!     };
//!     (obs, vmap(push)((episode, steps.split_batch(8))))
//! });
//! let (first, (obs, reward, _)) = f.call(Key::new(1))?;
//! assert_eq!((first.shape().to_vec(), obs.shape().to_vec()), (vec![8, 4], vec![8, 4]));
//! assert_eq!(reward.to_vec::<f32>()?, [1.0; 8]);
//! # Ok::<(), podracer::Error>(())
//! ```

mod acrobot;
mod asterix;
mod board;
mod breakout;
mod cartpole;
mod cartpole_positions;
mod freeway;
mod mountain_car;
mod pendulum;
mod programs;
mod registry;
mod seaquest;
mod space_invaders;

pub use acrobot::{Acrobot, AcrobotState};
pub use asterix::{Asterix, AsterixDraws, AsterixState};
pub use breakout::{Breakout, BreakoutState};
pub use cartpole::{CartPole, CartPoleState};
pub use cartpole_positions::CartPolePositions;
pub use freeway::{Freeway, FreewayCars, FreewayState};
pub use mountain_car::{MountainCar, MountainCarState};
pub use pendulum::{Pendulum, PendulumState};
pub use programs::ProgramEnv;
pub use registry::{Traced, is_traced, list_envs, make, register};
pub use seaquest::{Seaquest, SeaquestDraws, SeaquestEntities, SeaquestState};
pub use space_invaders::{SpaceInvaders, SpaceInvadersState};

use crate::envs::env::spec::EnvSpec;
use crate::random::Key;
use crate::trace::ops::{constant, where_};
use crate::trace::{DType, Tensor};
use crate::tree::{self, Tree};

/// One environment as pure functions; [`vmap`](crate::vmap()) makes a batch of them.
pub trait TracedEnv {
    /// State of the environment between steps.
    type State: Tree<Tensor> + Clone;

    /// Returns the specification of this environment; the same as that of the pool's environment of
    /// this id. The time limit is applied by [`AutoReset`], not here.
    fn spec(&self) -> EnvSpec;

    /// Starts an episode: returns its state and its first observation.
    fn reset(&self, key: Key<Tensor>) -> (Self::State, Tensor);

    /// Takes one step. `action` is a scalar i32 for discrete actions, else f32 of the shape in
    /// [`EnvSpec::action`], clipped by the environment. Steps after the end of an episode have
    /// undefined results.
    fn step(
        &self,
        state: Self::State,
        action: Tensor,
        key: Key<Tensor>,
    ) -> TracedStep<Tensor, Self::State>;
}

/// Result of a step.
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct TracedStep<T, S> {
    /// Next state.
    pub state: S,
    /// Observation of the next state, of the shape and type in [`EnvSpec::observation`].
    pub obs: T,
    /// `f32[]`: reward.
    pub reward: T,
    /// `bool[]`: true if the episode ended by the rules of the task.
    pub terminated: T,
    /// `bool[]`: true if the environment itself cut the episode.
    pub truncated: T,
}

/// Environment with a time limit, resets in the same step, and episode statistics: the counterpart
/// of the pool's slots, and of gymnax's `step` with PureJaxRL's `LogWrapper`.
#[derive(Debug, Clone)]
pub struct AutoReset<E> {
    /// The wrapped environment.
    pub env: E,
    max_steps: Option<u32>,
}

/// State of an [`AutoReset`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct EpisodeState<T, S> {
    /// State of the wrapped environment.
    pub state: S,
    /// `i32[]`: number of steps of the episode so far.
    pub elapsed: T,
    /// `f32[]`: sum of the episode's rewards so far.
    pub episode_return: T,
}

/// Result of a step of an [`AutoReset`].
#[derive(Debug, Clone, Tree)]
#[tree(nested = S)]
pub struct AutoStep<T, S> {
    /// Next state.
    pub episode: EpisodeState<T, S>,
    /// Observation for the next action: if the episode ended, the first one of the next episode.
    pub obs: T,
    /// `f32[]`: reward.
    pub reward: T,
    /// `bool[]`: true if the episode ended by the rules of the task.
    pub terminated: T,
    /// `bool[]`: true if the episode was cut, by the time limit or by the environment.
    pub truncated: T,
    /// Observation after the step, before a reset.
    pub final_obs: T,
    /// `f32[]`: return of the episode up to and including this step.
    pub episode_return: T,
    /// `i32[]`: number of steps of the episode up to and including this one.
    pub episode_length: T,
}

impl<T, S> AutoStep<T, S>
where
    T: Copy + std::ops::BitOr<Output = T>,
{
    /// Returns true if the episode terminated or was truncated.
    pub fn done(&self) -> T {
        self.terminated | self.truncated
    }
}

impl<E: TracedEnv> AutoReset<E> {
    /// Wraps the environment with the time limit of its specification.
    pub fn new(env: E) -> AutoReset<E> {
        let max_steps = env.spec().max_episode_steps;
        AutoReset { env, max_steps }
    }

    /// [`AutoReset::new`] with another time limit, if there is one.
    pub(super) fn with_limit(env: E, max_steps: Option<u32>) -> AutoReset<E> {
        let AutoReset { env, max_steps: own } = AutoReset::new(env);
        AutoReset { env, max_steps: max_steps.or(own) }
    }

    /// Starts the first episode: returns its state and its first observation.
    #[track_caller]
    pub fn reset(&self, key: Key<Tensor>) -> (EpisodeState<Tensor, E::State>, Tensor) {
        let (state, obs) = self.env.reset(key);
        (EpisodeState { state, elapsed: constant(0), episode_return: constant(0.0f32) }, obs)
    }

    /// Takes one step, and starts the next episode if the step ended one.
    #[track_caller]
    pub fn step(
        &self,
        episode: EpisodeState<Tensor, E::State>,
        action: Tensor,
        key: Key<Tensor>,
    ) -> AutoStep<Tensor, E::State> {
        let (now, next) = key.split();
        self.step_or(episode, action, now, self.env.reset(next))
    }

    /// [`AutoReset::step`] with a precomputed start of the next episode. Every step takes a start,
    /// needed or not; drawing the starts of many steps together, before the loop over the steps, is
    /// faster.
    #[track_caller]
    pub fn step_or(
        &self,
        episode: EpisodeState<Tensor, E::State>,
        action: Tensor,
        key: Key<Tensor>,
        (start, first_obs): (E::State, Tensor),
    ) -> AutoStep<Tensor, E::State> {
        let step = self.env.step(episode.state, action, key);
        let elapsed = episode.elapsed + 1;
        let truncated = match self.max_steps {
            Some(limit) => step.truncated | elapsed.ge(i64::from(limit)),
            None => step.truncated,
        };
        let done = step.terminated | truncated;
        let episode_return = episode.episode_return + step.reward;
        let next = EpisodeState {
            state: choose(done, start, step.state),
            elapsed: where_(done, 0, elapsed),
            episode_return: where_(done, 0.0, episode_return),
        };
        AutoStep {
            episode: next,
            obs: where_(done, first_obs, step.obs),
            reward: step.reward,
            terminated: step.terminated,
            truncated,
            final_obs: step.obs,
            episode_return,
            episode_length: elapsed,
        }
    }
}

/// Selects a whole state by a scalar bool.
#[track_caller]
fn choose<S: Tree<Tensor>>(chosen: Tensor, on_true: S, on_false: S) -> S {
    let mut leaves = Vec::new();
    for (a, b) in tree::leaves(&on_true).into_iter().zip(tree::leaves(&on_false)) {
        leaves.push(where_(chosen, a, b));
    }
    tree::replace(&on_false, leaves)
}

/// Stacks `numbers` to an observation, `f32[n]`.
#[track_caller]
fn observation(numbers: &[Tensor]) -> Tensor {
    crate::trace::ops::stack(numbers, 0).to(DType::F32)
}

/// Returns false: the flag of an end that this environment never has.
#[track_caller]
fn never() -> Tensor {
    constant(false)
}
