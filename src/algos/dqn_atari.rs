//! Deep Q-learning (DQN, Mnih et al. 2015) on images: CleanRL's `dqn_atari_jax.py`. Environment
//! steps, the replay buffer and gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/dqn_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, init};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::cadence::UpdateSchedule;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{not_negative, positive, unit, within};
use crate::rl::frames::{FrameBuffer, SampledBatch};
use crate::rl::images::{Images, Trunk};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::PlayingImages;
use crate::rl::q_values::{epsilon_greedy, linear_schedule, of_action};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, pools};
use crate::trace::ops::constant;
use crate::tree::Tree;
use crate::{Key, Tensor, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "DQN for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "dqn_atari")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 10_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 1e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging); 1 copies the network
    #[arg(long, default_value_t = 1.0)]
    pub tau: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value_t = 1000)]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 0.01)]
    pub end_e: f64,
    /// The fraction of total timesteps over which epsilon is annealed from --start-e to --end-e
    #[arg(long, default_value_t = 0.1)]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value_t = 80_000)]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub train_frequency: usize,
}

impl Args {
    fn cadence(&self) -> UpdateSchedule {
        let Args { num_envs, train_frequency, target_network_frequency, .. } = *self;
        UpdateSchedule { num_envs, train_frequency, target_network_frequency, most_rounds: 250 }
    }

    /// Returns epsilon at a timestep.
    fn epsilon(&self, step: Tensor) -> Tensor {
        let duration = (self.exploration_fraction * self.total_timesteps as f64).max(1.0);
        linear_schedule(self.start_e, self.end_e, duration, step)
    }

    fn adam(&self) -> Adam {
        Adam { learning_rate: self.learning_rate, ..Adam::default() }
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        positive(&[("batch-size", self.batch_size)])?;
        within("buffer-size", self.buffer_size, self.cadence().least_frames(), i32::MAX as usize)?;
        unit(&[
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("start-e", self.start_e),
            ("end-e", self.end_e),
            ("exploration-fraction", self.exploration_fraction),
        ])?;
        not_negative(&[("learning-rate", self.learning_rate)])
    }
}

algorithm!(Args, "dqn_atari", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Network from images to action values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Network from images to features.
    pub trunk: Trunk<T>,
    /// Layer from features to action values.
    pub head: Dense<T>,
}

impl QNetwork<Tensor> {
    /// Initialises a network.
    pub fn init(key: Key<Tensor>, images: Images, num_actions: usize) -> QNetwork<Tensor> {
        let (trunk, head) = key.split();
        let kernel = init::lecun_normal();
        QNetwork {
            trunk: Trunk::init(trunk, images, kernel),
            head: Dense::init(head, images.width(), num_actions, kernel),
        }
    }

    /// Returns action values `f32[B, actions]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(obs))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct Learner<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// The target network.
    pub target: QNetwork<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
}

/// State carried between iterations of training.
pub type State<T> = TrainState<Learner<T>, FrameBuffer<T>, PlayingImages<T>>;

fn learner(key: Key<Tensor>, images: Images, num_actions: usize, args: &Args) -> Learner<Tensor> {
    let q = QNetwork::init(key, images, num_actions);
    Learner { target: q.clone(), optimizer: args.adam().init(&q), q }
}

// --------------------------------------------------------------------------------------- losses

/// Computes the mean squared error to the TD targets, and the mean value of the actions taken. The
/// leaves of `batch` have a leading axis of B transitions.
pub fn loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &SampledBatch<Tensor>,
) -> (Tensor, Tensor) {
    let next = target.apply(batch.next_obs).max(-1);
    let goal = batch.reward + batch.discount * next; // f32[B]
    let value = of_action(q.apply(batch.obs), batch.action);
    ((value - goal).square().mean(..), value.mean(..))
}

// --------------------------------------------------------------------------------------- update

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Loss.
    pub td_loss: T,
    /// Mean value of the actions taken.
    pub q_values: T,
}

/// Takes one gradient step on a batch.
pub fn update(
    learner: Learner<Tensor>,
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> (Learner<Tensor>, Metrics<Tensor>) {
    let Learner { q, target, optimizer } = learner;
    let ((td_loss, q_values), grads) =
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, &target, batch))(q.clone());
    let (q, optimizer) = args.adam().step(q, grads, optimizer);
    (Learner { q, target, optimizer }, Metrics { td_loss, q_values })
}

/// Updates the target network if `step` is a multiple of `target_network_frequency`.
fn with_target(learner: Learner<Tensor>, step: Tensor, args: &Args) -> Learner<Tensor> {
    let mixed = incremental_update(&learner.q, &learner.target, args.tau);
    let target = periodic_update(&mixed, &learner.target, step, args.target_network_frequency);
    Learner { target, ..learner }
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `train_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    learning: bool,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { learner, replay, playing } = state;
    let (q, turns) = (&learner.q, args.cadence().turns());
    let act = |obs, step, key: Key<Tensor>| {
        let (key, draw) = key.split();
        (epsilon_greedy(q.apply(obs), args.epsilon(step), draw), key)
    };
    let (mut playing, seen, games) = playing.turns(envs, q.trunk.images, turns, act);
    let replay = replay.add(seen);
    if !learning {
        return (TrainState { learner, replay, playing }, games, None);
    }
    let (key, draw) = playing.key.split();
    playing.key = key;
    let batch = replay.sample(draw, args.batch_size, 1, args.gamma);
    let (learner, metrics) = update(learner, &batch, args);
    (TrainState { learner, replay, playing }, games, Some(metrics))
}

// ------------------------------------------------------------------------------------- training

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, images, num_actions) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let init = |handle, key: Key<Tensor>| {
        let (key, network) = key.split();
        TrainState {
            learner: learner(network, images, num_actions, args),
            replay: FrameBuffer::new(
                args.buffer_size,
                args.num_envs,
                images.stack(),
                &images.frame(),
            ),
            playing: PlayingImages::start(&envs, handle, key),
        }
    };
    let rounds = |state, learning| {
        let round = |state| round(&envs, state, learning, args);
        let (mut state, games, metrics) = off_policy::rounds(args.cadence().rounds(), state, round);
        if learning {
            state.learner = with_target(state.learner, state.playing.step, args);
        }
        (state, games, metrics)
    };
    // The first call never learns: a transition is complete only after the next step.
    let learning_starts = args.learning_starts.max(1);
    let pace = LoopConfig { steps: args.cadence().steps(), learning_starts };
    off_policy::train(args, pace, (handle, &envs), init, rounds, |state| state.learner)
}

/// Evaluates a saved model with an epsilon-greedy policy whose epsilon is `end_e`.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, images, num_actions) = pools::images(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| learner(key, images, num_actions, args))?.q;
    let act = with_mode(args.run.mode, |(q, obs, key): (QNetwork<Tensor>, Tensor, Key<Tensor>)| {
        let values = q.apply(obs);
        (epsilon_greedy(values, constant(args.end_e as f32), key), values)
    })
    .named("dqn_atari_play");
    evaluation.play(pool, |obs, key| act.call((q.clone(), obs, key)))
}
