//! C51, distributional Q-learning (Bellemare et al. 2017), for vector observations: CleanRL's
//! `c51_jax.py`. Environment steps, the replay buffer and gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/c51.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Activation, Mlp, init};
use crate::optim::{Adam, AdamState, periodic_update};
use crate::rl::atoms::Atoms;
use crate::rl::cadence::UpdateSchedule;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{not_negative, positive, unit, within};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::Playing;
use crate::rl::q_values::{epsilon_greedy, linear_schedule, of_action};
use crate::rl::replay::{ReplayBuffer, Transition};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, pools};
use crate::trace::ops::constant;
use crate::tree::Tree;
use crate::{DType, Key, Tensor, TensorType, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "C51 for discrete actions and vector observations", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "c51")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 500_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value_t = 101)]
    pub n_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value_t = -100.0, allow_negative_numbers = true)]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value_t = 100.0, allow_negative_numbers = true)]
    pub v_max: f64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 10_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value_t = 500)]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 128)]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 0.05)]
    pub end_e: f64,
    /// The fraction of total timesteps over which epsilon is annealed from --start-e to --end-e
    #[arg(long, default_value_t = 0.5)]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value_t = 10_000)]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value_t = 10)]
    pub train_frequency: usize,
}

impl Args {
    fn cadence(&self) -> UpdateSchedule {
        let Args { num_envs, train_frequency, target_network_frequency, .. } = *self;
        UpdateSchedule { num_envs, train_frequency, target_network_frequency, most_rounds: 1000 }
    }

    /// Returns the atoms of the return distribution.
    pub fn atoms(&self) -> Atoms {
        Atoms { count: self.n_atoms, v_min: self.v_min, v_max: self.v_max }
    }

    /// Returns CleanRL's Adam for C51, whose `eps` is 0.01 divided by the batch size.
    fn adam(&self) -> Adam {
        let eps = 0.01 / self.batch_size as f64;
        Adam { learning_rate: self.learning_rate, eps, ..Adam::default() }
    }

    /// Returns epsilon at a timestep.
    fn epsilon(&self, step: Tensor) -> Tensor {
        let duration = (self.exploration_fraction * self.total_timesteps as f64).max(1.0);
        linear_schedule(self.start_e, self.end_e, duration, step)
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        self.atoms().check()?;
        positive(&[("batch-size", self.batch_size)])?;
        within("buffer-size", self.buffer_size, self.train_frequency, i32::MAX as usize)?;
        unit(&[
            ("gamma", self.gamma),
            ("start-e", self.start_e),
            ("end-e", self.end_e),
            ("exploration-fraction", self.exploration_fraction),
        ])?;
        not_negative(&[("learning-rate", self.learning_rate)])
    }
}

algorithm!(Args, "c51", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Network from observations to the return distribution of each action: hidden layers of 120 and 84
/// units.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// The layers.
    pub layers: Mlp<T>,
}

impl QNetwork<Tensor> {
    /// Initialises a network for observations of size `obs_size`.
    pub fn init(
        key: Key<Tensor>,
        obs_size: usize,
        num_actions: usize,
        atoms: &Atoms,
    ) -> QNetwork<Tensor> {
        let sizes = [obs_size, 120, 84, num_actions * atoms.count];
        let kernel = init::lecun_normal();
        QNetwork { layers: Mlp::init(key, &sizes, Activation::Relu, kernel, kernel) }
    }

    /// Returns probabilities `f32[B, actions, atoms]` for `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor, atoms: &Atoms) -> Tensor {
        let logits = self.layers.apply(obs);
        let (rows, all) = (logits.dim(0), logits.dim(1));
        logits.reshape([rows, all / atoms.count, atoms.count]).softmax(-1)
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
pub type State<T> = TrainState<Learner<T>, ReplayBuffer<T, Transition<T>>, Playing<T>>;

fn learner(key: Key<Tensor>, obs_size: usize, num_actions: usize, args: &Args) -> Learner<Tensor> {
    let q = QNetwork::init(key, obs_size, num_actions, &args.atoms());
    Learner { target: q.clone(), optimizer: args.adam().init(&q), q }
}

// --------------------------------------------------------------------------------------- losses

/// Computes the mean cross entropy to the projected targets, and the mean value of the actions
/// taken. The leaves of `batch` have a leading axis of B transitions.
pub fn loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &Transition<Tensor>,
    atoms: &Atoms,
    gamma: f64,
) -> (Tensor, Tensor) {
    let next = target.apply(batch.next_obs, atoms);
    let next = of_action(next, atoms.mean(next).argmax(-1));
    let goal = atoms.project_near(batch.reward, gamma * (1.0 - batch.terminated), gamma, next);
    let probs = of_action(q.apply(batch.obs, atoms), batch.action); // f32[B, atoms]
    let entropy = -(goal * probs.clip(1e-5, 1.0 - 1e-5).log()).sum(-1);
    (entropy.mean(..), atoms.mean(probs).mean(..))
}

// --------------------------------------------------------------------------------------- update

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Loss.
    pub loss: T,
    /// Mean value of the actions taken.
    pub q_values: T,
}

/// Takes one gradient step on a batch.
pub fn update(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (Learner<Tensor>, Metrics<Tensor>) {
    let Learner { q, target, optimizer } = learner;
    let ((loss, q_values), grads) =
        value_and_grad(|q| loss(&q, &target, batch, &args.atoms(), args.gamma))(q.clone());
    let (q, optimizer) = args.adam().step(q, grads, optimizer);
    (Learner { q, target, optimizer }, Metrics { loss, q_values })
}

/// Updates the target network if `step` is a multiple of `target_network_frequency`.
fn with_target(learner: Learner<Tensor>, step: Tensor, args: &Args) -> Learner<Tensor> {
    let Learner { q, target, .. } = &learner;
    let target = periodic_update(q, target, step, args.target_network_frequency);
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
    let atoms = args.atoms();
    let act = |obs, step, key: Key<Tensor>| {
        let (key, draw) = key.split();
        let values = atoms.mean(learner.q.apply(obs, &atoms));
        (epsilon_greedy(values, args.epsilon(step), draw), key)
    };
    let (mut playing, rows, games) = playing.turns(envs, args.cadence().turns(), act);
    let replay = replay.add(rows);
    if !learning {
        return (TrainState { learner, replay, playing }, games, None);
    }
    let (key, draw) = playing.key.split();
    playing.key = key;
    let batch = replay.sample(draw, args.batch_size);
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
    let (pool, obs_size, num_actions) = pools::discrete(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let init = |handle, key: Key<Tensor>| {
        let (key, network) = key.split();
        let item = Transition::types(obs_size, TensorType::scalar(DType::I32));
        TrainState {
            learner: learner(network, obs_size, num_actions, args),
            replay: ReplayBuffer::new(args.buffer_size, item),
            playing: Playing::start(&envs, handle, key),
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
    let pace = LoopConfig { steps: args.cadence().steps(), learning_starts: args.learning_starts };
    off_policy::train(args, pace, (handle, &envs), init, rounds, |state| state.learner)
}

/// Evaluates a saved model with an epsilon-greedy policy whose epsilon is `end_e`.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, obs_size, num_actions) = pools::discrete(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| learner(key, obs_size, num_actions, args))?.q;
    let atoms = args.atoms();
    let act = with_mode(args.run.mode, |(q, obs, key): (QNetwork<Tensor>, Tensor, Key<Tensor>)| {
        let returns = q.apply(obs.to(DType::F32), &atoms);
        (epsilon_greedy(atoms.mean(returns), constant(args.end_e as f32), key), returns)
    })
    .named("c51_play");
    evaluation.play(pool, |obs, key| act.call((q.clone(), obs, key)))
}
