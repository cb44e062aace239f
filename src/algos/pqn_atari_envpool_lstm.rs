//! Parallelized Q-networks (PQN, Gallici et al. 2024) with an LSTM, on Atari with EnvPool's wrappers:
//! CleanRL's `pqn_atari_envpool_lstm.py`, on-policy Q-learning with Q(lambda) returns and neither a
//! replay buffer nor a target network. A rollout and the update on it are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/pqn_atari_envpool_lstm.md`.

use crate::envs::{AtariOptions, EnvPool, ObsKind};
use crate::nn::{Conv2d, Dense, Encoder, LayerNorm, LstmCell, init::orthogonal, reset_carry};
use crate::optim::RAdam;
use crate::random::{permutation, randint, uniform};
use crate::rl::prelude::*;
use crate::rl::settings::flags::{counted_in_i32, minibatches_of_envs};
use crate::trace::ops::IndexMode;

// ------------------------------------------------------------------------------------- settings

/// Recurrent PQN (LSTM) for Atari, boards and vectors
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: Atari, boards as MinAtar's, or vectors
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "10000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "8")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "128")]
    pub num_steps: usize,
    /// The number of minibatches
    #[arg(long, default_value = "4")]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "4")]
    pub update_epochs: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "true")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "1.0")]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "0.01")]
    pub end_e: f64,
    /// The fraction of timesteps over which epsilon falls from --start-e to --end-e
    #[arg(long, default_value = "0.1")]
    pub exploration_fraction: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// The lambda of Q(lambda) returns
    #[arg(long, default_value = "0.65")]
    pub q_lambda: f64,
    /// Bootstrap at time limits with the value of the final observation; CleanRL does not
    #[arg(long, default_value = "false")]
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

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        counted_in_i32(self.total_timesteps)?;
        minibatches_of_envs(self.num_envs, self.num_minibatches)
    }
}

registered_algorithm!(Args, "pqn_atari_envpool_lstm", DISCRETE, Args::check, train, policy);

/// Number of LSTM units.
const LSTM_SIZE: usize = 128;

// -------------------------------------------------------------------------------------- network

/// Recurrent network from observations to action values: the Nature network (Mnih et al. 2015), or
/// MinAtar's for its boards, or one hidden layer for vectors, with layer normalization after each
/// layer; an LSTM; and a layer of action values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Convolutions, each with the normalization of its whole output.
    pub convs: Vec<(Conv2d<T>, LayerNorm<T>)>,
    pub hidden: (Dense<T>, LayerNorm<T>), // hidden layer with the normalization of its output
    pub lstm: LstmCell<T>,                // LSTM cell from features to 128 units
    /// Second bias of the gates, PyTorch's `bias_hh`: with RAdam, two biases change twice as fast as
    /// one.
    pub recurrent_bias: T,
    pub head: Dense<T>, // layer from hidden units to action values
    pub obs_kind: ObsKind,
}

/// LSTM state `(c, h)`, `f32[N, 128]` each.
pub type LstmState<T> = (T, T);

/// Number of units of the hidden layer for vectors.
const VECTOR_UNITS: usize = 128;

impl QNetwork<Tensor> {
    /// Initializes a network for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> QNetwork<Tensor> {
        let Sizes { obs_kind, shape, num_actions } = sizes;
        let [convs, hidden, input, recurrent, head] = key.split_n();
        let kernel = orthogonal(2.0f64.sqrt());
        // PyTorch's eps.
        let norm = |size| LayerNorm { eps: 1e-5, ..LayerNorm::init(size) };
        let (mut layers, mut features, mut width) = (Vec::new(), shape.numel(), VECTOR_UNITS);
        if *obs_kind != ObsKind::Vector {
            let convs = Encoder::init_convs(convs, *obs_kind, shape, kernel);
            (features, width) = (convs.size(), Encoder::hidden_units(*obs_kind));
            let norms = convs.conv_outputs().into_iter().map(norm);
            layers = convs.convs.into_iter().zip(norms).collect();
        }
        QNetwork {
            convs: layers,
            hidden: (Dense::init(hidden, features, width, kernel), norm(width)),
            lstm: LstmCell::init_orthogonal([input, recurrent], width, LSTM_SIZE),
            recurrent_bias: zeros([4 * LSTM_SIZE], DType::F32),
            head: Dense::init(head, LSTM_SIZE, *num_actions, kernel),
            obs_kind: *obs_kind,
        }
    }

    /// Computes the part of the gates `f32[B, 512]` that depends on observations `[B, ..]` and the
    /// biases.
    fn gate_inputs(&self, obs: Tensor) -> Tensor {
        let layer = |x, (conv, norm): &(Conv2d<Tensor>, LayerNorm<Tensor>)| {
            let y = conv.apply(x);
            norm.apply(y.flatten_from(1)).relu().reshape(y.shape())
        };
        let images = match self.obs_kind {
            ObsKind::Vector => obs.to(DType::F32),
            _ => Encoder::scaled(self.obs_kind, obs),
        };
        let features = self.convs.iter().fold(images, layer).flatten_from(1);
        let (dense, norm) = &self.hidden;
        let hidden = norm.apply(dense.apply(features)).relu();
        self.lstm.project(hidden) + self.recurrent_bias
    }

    /// Takes one LSTM step on observations `[N, ..]`. The state is reset first where
    /// `episode_start: f32[N]` is 1, that is, where the observation is the first of an episode.
    pub fn lstm_step(
        &self,
        obs: Tensor,
        episode_start: Tensor,
        lstm_state: LstmState<Tensor>,
    ) -> LstmState<Tensor> {
        self.lstm.advance(self.gate_inputs(obs), reset_carry(episode_start, lstm_state))
    }

    /// Unrolls the LSTM over T steps of n environments; returns the action values
    /// `f32[T n, actions]`.
    pub fn apply(&self, batch: &Samples<Tensor>) -> Tensor {
        let gate_inputs = self.gate_inputs(merge_time_and_env(batch.obs)); // f32[T n, 512]
        let [steps, envs] = [batch.episode_starts.dim(0), batch.episode_starts.dim(1)];
        let gate_inputs = gate_inputs.reshape([steps, envs, gate_inputs.dim(-1)]);
        let step = |state: LstmState<Tensor>, (inputs, episode_start): (Tensor, Tensor)| {
            let state = self.lstm.advance(inputs, reset_carry(episode_start, state));
            (state, state.1)
        };
        let (_, outputs) =
            scan(step, batch.initial_lstm_state, (gate_inputs, batch.episode_starts));
        self.head.apply(merge_time_and_env(outputs))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub q: QNetwork<T>,
    pub opt_state: AdamState<T, QNetwork<T>>,
}

/// Initializes a network and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let q = QNetwork::init(key, sizes);
    TrainState { opt_state: RAdam::default().init(&q), q }
}

// --------------------------------------------------------------------------------------- acting

/// Returns epsilon at a timestep `i32[]`, annealed linearly from `start_e` to `end_e`: `f32[]`.
pub fn linear_schedule(global_step: Tensor, args: &Args) -> Tensor {
    let duration = (args.exploration_fraction * args.total_timesteps as f64).max(1.0);
    let progress = (global_step.to(DType::F32) / duration).minimum(1.0);
    (args.start_e + (args.end_e - args.start_e) * progress).to(DType::F32)
}

/// Returns the actions with the highest of `q_values: f32[N, actions]`, or with probability
/// `epsilon: f32[]` uniformly random ones: `i32[N]`.
pub fn epsilon_greedy(q_values: Tensor, epsilon: Tensor, key: Key<Tensor>) -> Tensor {
    let (explore_key, action_key) = key.split();
    let (num_envs, num_actions) = (q_values.dim(0), q_values.dim(1) as i32);
    let random_actions = randint(action_key, [num_envs], 0, num_actions, DType::I32);
    let explore = uniform(explore_key, [num_envs], DType::F32, 0.0, 1.0).lt(epsilon);
    where_(explore, random_actions, q_values.argmax(-1))
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations, in the environment's dtype
    pub episode_start: T,  // f32[N]: 1 where `obs` is the first of an episode
    pub lstm_state: LstmState<T>, // LSTM state before `obs`
    pub global_step: T,    // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub initial_lstm_state: LstmState<T>, // LSTM state before the first step
    pub obs: T,                           // [T, N, ..]
    pub episode_starts: T, // f32[T, N]: 1 where the observation is the first of an episode
    pub actions: T,        // i32[T, N]
    pub rewards: T,        // f32[T, N]
    pub dones: T,          // f32[T, N]: 1 where the step ended its episode
    pub values: T,         // f32[T, N]: maximum action values of the observations
    pub next_obs: T,       // [N, ..]: observations after the last step
    pub next_lstm_state: LstmState<T>, // LSTM state after the last step
}

/// Steps all environments once with epsilon-greedy actions. Returns the observations, starts of
/// episodes, actions, rewards, ends of episodes and maximum action values of this step.
fn env_step(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 6], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, episode_start, lstm_state, global_step, key } = env_state;
    let (key, action_key) = key.split();
    let global_step = global_step + args.num_envs as i32;
    let lstm_state = q.lstm_step(obs, episode_start, lstm_state);
    let q_values = q.head.apply(lstm_state.1);
    let action = epsilon_greedy(q_values, linear_schedule(global_step, args), action_key);
    let (handle, step) = envs.step(handle, action);
    let done = step.done().to(DType::F32);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        // The final observation continues from the episode's LSTM state.
        let value = |obs| {
            let (_, h) = q.lstm_step(obs, zeros_like(done), lstm_state);
            q.head.apply(h).max(-1)
        };
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, episode_start, action, reward, done, q_values.max(-1)];
    // `step.obs` is the first observation of the next episode where one ended.
    let env_state =
        EnvState { handle, obs: step.obs, episode_start: done, lstm_state, global_step, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let initial_lstm_state = env_state.lstm_state;
    let step = |env_state, ()| env_step(envs, q, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, episode_starts, actions, rewards, dones, values] = transitions;
    let rollout = Rollout {
        initial_lstm_state,
        obs,
        episode_starts,
        actions,
        rewards,
        dones,
        values,
        next_obs: env_state.obs,
        next_lstm_state: env_state.lstm_state,
    };
    (env_state, rollout, episodes)
}

// -------------------------------------------------------------------------------------- returns

/// Computes the Q(lambda) returns (Daley and Amato 2019), `f32[T, N]`, for maximum action values
/// `f32[T, N]` and `next_value: f32[N]`, the maximum action values of the observations after the
/// last step.
///
/// `R_t = r_t + gamma (1 - done_t) (lambda R_{t+1} + (1 - lambda) max Q(s_{t+1}))`; after the last
/// step both `R` and `max Q` are `next_value`.
pub fn compute_q_lambda(
    rewards: Tensor,
    dones: Tensor,
    values: Tensor,
    next_value: Tensor,
    (gamma, q_lambda): (f64, f64),
) -> Tensor {
    type Step = (Tensor, Tensor, Tensor);
    let step = |(next_return, next_value): (Tensor, Tensor), (reward, done, value): Step| {
        let nonterminal = 1.0 - done;
        let next_return = q_lambda * next_return + (1.0 - q_lambda) * next_value;
        let td_target = reward + gamma * nonterminal * next_return;
        ((td_target, value), td_target)
    };
    let init = (next_value, next_value);
    scan_with(step, init, (rewards, dones, values), ScanOptions::reversed()).1
}

/// Training samples made from a rollout: T steps of n environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub initial_lstm_state: LstmState<T>, // LSTM state before the first step, `f32[n, 128]` each
    pub obs: T,                           // [T, n, ..]
    pub episode_starts: T, // f32[T, n]: 1 where the observation is the first of an episode
    pub actions: T,        // i32[T, n]
    pub returns: T,        // f32[T, n]: Q(lambda) returns
}

/// Returns the samples of a rollout.
pub fn make_samples(
    q: &QNetwork<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> Samples<Tensor> {
    let Rollout { initial_lstm_state, obs, episode_starts, actions, .. } = rollout;
    let Rollout { rewards, dones, values, next_obs, next_lstm_state, .. } = rollout;
    let (_, h) = q.lstm_step(next_obs, dones.index_axis(0, -1), next_lstm_state);
    let next_value = q.head.apply(h).max(-1); // f32[N]
    let discounts = (args.gamma, args.q_lambda);
    let returns = compute_q_lambda(rewards, dones, values, next_value, discounts);
    Samples { initial_lstm_state, obs, episode_starts, actions, returns }
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub td_loss: T,  // mean squared error to the returns
    pub q_values: T, // mean value of the actions taken
}

/// Computes the mean squared error to the returns, and its metrics.
pub fn td_loss(q: &QNetwork<Tensor>, batch: &Samples<Tensor>) -> (Tensor, Metrics<Tensor>) {
    let q_value = q_at_action(q.apply(batch), merge_time_and_env(batch.actions)); // f32[T n]
    let td_loss = (q_value - merge_time_and_env(batch.returns)).square().mean(..);
    (td_loss, Metrics { td_loss, q_values: q_value.mean(..) })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a minibatch.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { q, opt_state } = train_state;
    let ((_, metrics), grads) = value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, batch))(q.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let radam = RAdam::default().with_learning_rate(learning_rate);
    let (q, opt_state) = radam.step(q, grads, opt_state);
    (TrainState { q, opt_state }, metrics)
}

/// Returns the environment indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs * num_minibatches, minibatch_envs]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.num_envs)).collect();
    let minibatch_envs = args.num_envs / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_envs])
}

/// Gathers the samples of these environments, `i32[n]`.
pub fn gather_envs(samples: Samples<Tensor>, envs: Tensor) -> Samples<Tensor> {
    let of_axis = |axis| move |x: Tensor| x.take_mode(envs, axis, IndexMode::Clip);
    let initial_lstm_state = tree::map(samples.initial_lstm_state, of_axis(0));
    Samples { initial_lstm_state, ..tree::map(samples, of_axis(1)) }
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs. Returns the metrics of
/// the last gradient step.
pub fn run_epochs(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let step = |train_state, indices| {
        gradient_step(train_state, &gather_envs(samples, indices), learning_rate, args)
    };
    let (train_state, metrics) = scan(step, train_state, minibatch_indices(key, args));
    (train_state, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
}

/// Returns the learning rate of the iteration that begins at a timestep `i32[]`: `f32[]`.
fn learning_rate(global_step: Tensor, args: &Args) -> Tensor {
    let learning_rate = constant(args.learning_rate as f32);
    if !args.anneal_lr {
        return learning_rate;
    }
    let iteration = global_step.floor_div(args.batch_size() as i32).to(DType::F32);
    learning_rate * (1.0 - iteration / args.num_iterations() as f64)
}

/// Collects a rollout and updates on it; compiled as one program.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Metrics<Tensor>) {
    let RunnerState { train_state, env_state } = state;
    let learning_rate = learning_rate(env_state.global_step, args);
    let (mut env_state, rollout, episodes) = collect_rollout(envs, &train_state.q, env_state, args);
    let samples = make_samples(&train_state.q, rollout, args);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (train_state, metrics) = run_epochs(train_state, samples, shuffle_key, learning_rate, args);
    (RunnerState { train_state, env_state }, episodes, metrics)
}

/// Creates environments and returns them with the sizes of the networks. Atari games have episodic
/// lives and rewards clipped to their signs.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, Sizes)> {
    let atari = AtariOptions {
        episodic_life: true,
        reward_clip: true,
        stack_num: 1,
        ..AtariOptions::envpool()
    };
    pools::with_atari(args, atari, num_envs, seed)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = make_pool(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network_key) = key.split();
        let train_state = init_train_state(network_key, &sizes);
        let (handle, first) = envs.reset(handle);
        let (obs, global_step) = (first.obs, constant(0i32));
        let episode_start = ones([args.num_envs], DType::F32);
        let lstm_state = train_state.q.lstm.start(args.num_envs);
        let env_state = EnvState { handle, obs, episode_start, lstm_state, global_step, key };
        RunnerState { train_state, env_state }
    });
    let iteration = trainer.jit("iteration", |state| train_iteration(&envs, state, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let (next_state, episodes, metrics) = iteration.call(state)?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        let mean_return = trainer.run.returns.mean().unwrap_or(0.0);
        trainer.log(&[("charts/avg_episodic_return", mean_return)])?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the best action, the action values and the next state of the
/// LSTM, `f32[2, B, 128]`: c, then h. Evaluations are epsilon-greedy with the epsilon `end_e`.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = make_pool(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| init_train_state(key, &sizes))?.q;
    let epsilon = args.end_e as f32;
    let act = move |q: &QNetwork<Tensor>, obs: Tensor, state: Tensor| {
        let episode_start = zeros([obs.dim(0)], DType::F32);
        let lstm_state = (state.index_axis(0, 0), state.index_axis(0, 1));
        let (c, h) = q.lstm_step(obs, episode_start, lstm_state);
        let q_values = q.head.apply(h);
        PolicyResults::from_values("q_values", q_values)
            .sampled_by(move |key| epsilon_greedy(q_values, constant(epsilon), key))
            .with("next_state", stack(&[c, h], 0))
    };
    Ok(Policy::recurrent(pool, [2, LSTM_SIZE], q, act))
}
