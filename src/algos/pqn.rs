//! Parallelised Q-networks (PQN, Gallici et al. 2024): CleanRL's `pqn.py`, on-policy Q-learning
//! with Q(lambda) returns and neither a replay buffer nor a target network. An iteration is one
//! compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/pqn.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, LayerNorm, init};
use crate::optim::{AdamState, RAdam, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{bootstrap_truncated, orders, rows};
use crate::rl::playing::Playing;
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::ops::{constant, one_hot, where_, zeros_like};
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PQN for discrete actions and vector observations", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "pqn")]
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
    #[arg(long, default_value_t = 4)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 128)]
    pub num_steps: usize,
    /// The number of minibatches
    #[arg(long, default_value_t = 4)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 4)]
    pub update_epochs: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 0.05)]
    pub end_e: f64,
    /// The fraction of total timesteps over which epsilon is annealed from --start-e to --end-e
    #[arg(long, default_value_t = 0.5)]
    pub exploration_fraction: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 10.0)]
    pub max_grad_norm: f64,
    /// The lambda of Q(lambda) returns
    #[arg(long, default_value_t = 0.65)]
    pub q_lambda: f64,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// CleanRL treats truncation as termination
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per iteration.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Total number of iterations; remaining timesteps are dropped, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    /// Number of timesteps over which epsilon is annealed.
    fn exploration(&self) -> f64 {
        (self.exploration_fraction * self.total_timesteps as f64).max(1.0)
    }

    fn check(&self) -> Result<()> {
        positive(&[("update-epochs", self.update_epochs)])?;
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        unit(&[
            ("gamma", self.gamma),
            ("q-lambda", self.q_lambda),
            ("start-e", self.start_e),
            ("end-e", self.end_e),
            ("exploration-fraction", self.exploration_fraction),
        ])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("max-grad-norm", self.max_grad_norm),
        ])
    }
}

algorithm!(Args, "pqn", Args::check, train, play_model);

// -------------------------------------------------------------------------------------- network

/// Network from observations to action values: hidden layers of 120 and 84 units, each with layer
/// normalisation.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Hidden layers, each with the normalisation of its output.
    pub hidden: Vec<(Dense<T>, LayerNorm<T>)>,
    /// Layer from features to action values.
    pub head: Dense<T>,
}

impl QNetwork<Tensor> {
    /// Initialises a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> QNetwork<Tensor> {
        let [a, b, head] = key.split_n();
        let gain = init::orthogonal(2.0f64.sqrt());
        let layer = |key, inputs, outputs| {
            // PyTorch's eps.
            let norm = LayerNorm { eps: 1e-5, ..LayerNorm::init(outputs) };
            (Dense::init(key, inputs, outputs, gain), norm)
        };
        QNetwork {
            hidden: vec![layer(a, obs_size, 120), layer(b, 120, 84)],
            head: Dense::init(head, 84, num_actions, gain),
        }
    }

    /// Returns action values `f32[B, actions]` for `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let layer = |x, (dense, norm): &(Dense<Tensor>, LayerNorm<Tensor>)| {
            norm.apply(dense.apply(x)).relu()
        };
        self.head.apply(self.hidden.iter().fold(obs, layer))
    }
}

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// RAdam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
    /// Environment state between two steps.
    pub playing: Playing<T>,
}

// --------------------------------------------------------------------------------------- losses

/// A rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `f32[T, N, obs_size]`
    pub obs: T,
    /// `i32[T, N]`
    pub actions: T,
    /// `f32[T, N]`
    pub rewards: T,
    /// `f32[T, N]`: 1 where this step ended an episode.
    pub dones: T,
    /// `f32[T, N]`: maximum action value of the observation, by the network that acted.
    pub values: T,
}

/// Samples of a rollout, B in number.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `f32[B, obs_size]`
    pub obs: T,
    /// `i32[B]`
    pub actions: T,
    /// `f32[B]`
    pub returns: T,
}

/// Computes the Q(lambda) returns (Daley and Amato 2019), `f32[T, N]`; `next_value: f32[N]` is the
/// maximum action value of the observation after the last step.
///
/// `R_t = r_t + gamma (1 - done_t) (lambda R_{t+1} + (1 - lambda) max Q(s_{t+1}))`; after the last
/// step both `R` and `max Q` are `next_value`.
pub fn q_lambda(rollout: &Rollout<Tensor>, next_value: Tensor, gamma: f64, lambda: f64) -> Tensor {
    let turn = |(next_return, next_value): (Tensor, Tensor),
                (reward, done, value): (Tensor, Tensor, Tensor)| {
        let next = lambda * next_return + (1.0 - lambda) * next_value;
        let goal = reward + gamma * (1.0 - done) * next;
        ((goal, value), goal)
    };
    let steps = (rollout.rewards, rollout.dones, rollout.values);
    scan_with(turn, (next_value, next_value), steps, ScanOptions::reversed()).1
}

/// Computes the mean squared error to the returns, and the mean value of the actions taken.
pub fn loss(q: &QNetwork<Tensor>, batch: &Samples<Tensor>) -> (Tensor, Tensor) {
    let values = q.apply(batch.obs);
    let taken = one_hot(batch.actions, values.dim(-1), DType::Bool);
    let value = where_(taken, values, zeros_like(values)).sum(-1);
    ((value - batch.returns).square().mean(..), value.mean(..))
}

// --------------------------------------------------------------------------------------- update

/// Metrics of one iteration, those of its last minibatch as in CleanRL; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Loss.
    pub td_loss: T,
    /// Mean value of the actions taken.
    pub q_values: T,
}

/// The network and its optimiser state, which a gradient step updates.
pub type Learner<T> = (QNetwork<T>, AdamState<T, QNetwork<T>>);

/// Takes one RAdam step on a minibatch, with the gradient clipped to `--max-grad-norm`.
pub fn gradient_step(
    (q, optimizer): Learner<Tensor>,
    minibatch: &Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learner<Tensor>, Metrics<Tensor>) {
    let ((td_loss, q_values), grads) =
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, minibatch))(q.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let radam = RAdam::default().with_learning_rate(learning_rate);
    (radam.step(q, grads, optimizer), Metrics { td_loss, q_values })
}

/// Runs all epochs over a batch.
fn update(
    learner: Learner<Tensor>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    key: Key<Tensor>,
    args: &Args,
) -> (Learner<Tensor>, Metrics<Tensor>) {
    let size = args.batch_size();
    let orders = orders(key, args.update_epochs, args.num_minibatches, size);
    let step = |learner: Learner<Tensor>, indices: Tensor| {
        gradient_step(learner, &rows(batch, indices), learning_rate, args)
    };
    let (learner, metrics) = scan(step, learner, orders);
    (learner, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

// -------------------------------------------------------------------------------------- rollout

/// Returns the greedy action, or with probability `epsilon` a random one, `i32[N]`; and the maximum
/// action value, `f32[N]`.
fn act(q: &QNetwork<Tensor>, obs: Tensor, epsilon: Tensor, key: Key<Tensor>) -> (Tensor, Tensor) {
    let (which, draw) = key.split();
    let values = q.apply(obs);
    let envs = obs.dim(0);
    let random = random::randint(draw, [envs], 0, values.dim(-1) as i32, DType::I32);
    let explore = random::uniform(which, [envs], DType::F32, 0.0, 1.0).lt(epsilon);
    (where_(explore, random, values.argmax(-1)), values.max(-1))
}

/// Collects a rollout of all environments.
fn play(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let (start, end) = (args.start_e, args.end_e);
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, step, key } = playing;
        let (key, draw) = key.split();
        let step = step + args.num_envs as i32;
        let progress = step.to(DType::F32) / args.exploration();
        let epsilon = (start + (end - start) * progress.minimum(1.0)).to(DType::F32);
        let (actions, values) = act(q, obs, epsilon, draw);
        let (handle, told) = envs.step(handle, actions);
        let dones = told.done().to(DType::F32);
        let mut rewards = told.reward;
        if args.bootstrap_truncated {
            let (cut, last) = (told.truncated_only(), envs.final_obs_of(&told).to(DType::F32));
            let value = |obs| q.apply(obs).max(-1);
            rewards = bootstrap_truncated(rewards, cut, last, args.gamma, value);
        }
        let rollout = Rollout { obs, actions, rewards, dones, values };
        let obs = told.obs.to(DType::F32);
        (Playing { handle, obs, step, key }, (rollout, EpisodeStats::of(&told)))
    };
    let turns = ScanOptions::length(args.num_steps);
    let (playing, (rollout, games)) = scan_with(turn, playing, (), turns);
    (playing, rollout, games)
}

/// Runs one iteration: a rollout, its returns and all epochs; compiled as one program.
fn iteration(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, EpisodeStats<Tensor>, Metrics<Tensor>) {
    let TrainState { q, optimizer, playing } = state;
    let mut learning_rate = constant(args.learning_rate as f32);
    if args.anneal_lr {
        let done = playing.step.floor_div(args.batch_size() as i32).to(DType::F32);
        learning_rate = learning_rate * (1.0 - done / args.num_iterations() as f64);
    }
    let (playing, rollout, games) = play(envs, &q, playing, args);
    let next_value = q.apply(playing.obs).max(-1);
    let returns = q_lambda(&rollout, next_value, args.gamma, args.q_lambda);
    let batch = Samples {
        obs: rollout.obs.reshape([args.batch_size(), rollout.obs.dim(-1)]),
        actions: rollout.actions.ravel(),
        returns: returns.ravel(),
    };
    let (key, order) = playing.key.split();
    let playing = Playing { key, ..playing };
    let ((q, optimizer), metrics) = update((q, optimizer), batch, learning_rate, order, args);
    (TrainState { q, optimizer, playing }, games, metrics)
}

// ------------------------------------------------------------------------------------- training

/// Creates the pool of environments, which compiled code steps.
fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Returns the sizes of observations and actions, or an error if this algorithm does not support
/// the environment's spaces.
fn sizes(pool: &EnvPool) -> Result<(usize, usize)> {
    Ok((spaces::vector("pqn", pool.spec())?, spaces::choices("pqn", pool.spec())?))
}

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = pool(args, args.num_envs, args.run.seed)?;
    let (obs_size, num_actions) = sizes(&pool)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network) = key.split();
        let q = QNetwork::init(network, obs_size, num_actions);
        let playing = Playing::start(&envs, handle, key);
        TrainState { optimizer: RAdam::default().init(&q), q, playing }
    })
    .named("pqn_init");
    let learn = with_mode(mode, |state| iteration(&envs, state, args))
        .named("pqn_iteration")
        .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut state = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    while trainer.should_continue() {
        let _span = timeline::span("iteration");
        let (next, games, metrics) = learn.call(state)?;
        state = next;
        trainer.record(&games.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds();
    let TrainState { q, optimizer, .. } = state;
    trainer.finish(&Model { q, optimizer }, compile_s)
}

/// Saved model: the training state without the environments.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// RAdam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
}

/// Evaluates a saved model with an epsilon-greedy policy whose epsilon is `end_e`.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, num_actions) = sizes(&pool)?;
    let fresh = |key: Key<Tensor>| {
        let q = QNetwork::init(key, obs_size, num_actions);
        Model { optimizer: RAdam::default().init(&q), q }
    };
    let Model { q, .. } = load_model(model, fresh)?;
    let act = with_mode(args.run.mode, |(q, obs, key): (QNetwork<Tensor>, Tensor, Key<Tensor>)| {
        act(&q, obs.to(DType::F32), constant(args.end_e as f32), key).0
    })
    .named("pqn_play");
    evaluation.play(pool, |obs, key| act.call((q.clone(), obs, key)))
}
