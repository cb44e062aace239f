//! Parallelized Q-networks (PQN, Gallici et al. 2024): CleanRL's `pqn.py`, on-policy Q-learning with
//! Q(lambda) returns and neither a replay buffer nor a target network. A rollout and the update on
//! it are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/pqn.md`.

use crate::nn::{Dense, LayerNorm, init::orthogonal};
use crate::optim::RAdam;
use crate::random::{permutation, randint, uniform};
use crate::rl::prelude::*;
use crate::rl::settings::flags::counted_in_i32;

// ------------------------------------------------------------------------------------- settings

/// PQN for discrete actions and vector observations
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "4")]
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
    #[arg(long, default_value = "0.05")]
    pub end_e: f64,
    /// The fraction of timesteps over which epsilon falls from --start-e to --end-e
    #[arg(long, default_value = "0.5")]
    pub exploration_fraction: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "10.0")]
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
        counted_in_i32(self.total_timesteps)
    }
}

registered_algorithm!(Args, "pqn", VECTORS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Network from observations to action values: hidden layers of 120 and 84 units, each with layer
/// normalization.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Hidden layers, each with the normalization of its output.
    pub hidden: Vec<(Dense<T>, LayerNorm<T>)>,
    pub head: Dense<T>, // layer from features to action values
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> QNetwork<Tensor> {
        let [first, second, head] = key.split_n();
        let kernel = orthogonal(2.0f64.sqrt());
        let layer = |key, inputs, outputs| {
            // PyTorch's eps.
            let norm = LayerNorm { eps: 1e-5, ..LayerNorm::init(outputs) };
            (Dense::init(key, inputs, outputs, kernel), norm)
        };
        QNetwork {
            hidden: vec![layer(first, obs_size, 120), layer(second, 120, 84)],
            head: Dense::init(head, 84, num_actions, kernel),
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

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub q: QNetwork<T>,
    pub opt_state: AdamState<T, QNetwork<T>>,
}

/// Initializes a network and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let q = QNetwork::init(key, sizes.obs_size(), sizes.num_actions);
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
    pub obs: T,            // f32[N, obs_size]: last observations
    pub global_step: T,    // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,      // f32[T, N, obs_size]
    pub actions: T,  // i32[T, N]
    pub rewards: T,  // f32[T, N]
    pub dones: T,    // f32[T, N]: 1 where the step ended its episode
    pub values: T,   // f32[T, N]: maximum action values of the observations
    pub next_obs: T, // f32[N, obs_size]: observations after the last step
}

/// Steps all environments once with epsilon-greedy actions. Returns the observations, actions,
/// rewards, ends of episodes and maximum action values of this step.
fn env_step(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 5], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, global_step, key } = env_state;
    let (key, action_key) = key.split();
    let global_step = global_step + args.num_envs as i32;
    let q_values = q.apply(obs);
    let action = epsilon_greedy(q_values, linear_schedule(global_step, args), action_key);
    let (handle, step) = envs.step(handle, action);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step).to(DType::F32);
        let value = |obs| q.apply(obs).max(-1);
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, action, reward, step.done().to(DType::F32), q_values.max(-1)];
    let env_state = EnvState { handle, obs: step.obs.to(DType::F32), global_step, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let step = |env_state, ()| env_step(envs, q, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, actions, rewards, dones, values] = transitions;
    let rollout = Rollout { obs, actions, rewards, dones, values, next_obs: env_state.obs };
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

/// Training samples made from a rollout, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub obs: T,     // f32[B, obs_size]
    pub actions: T, // i32[B]
    pub returns: T, // f32[B]: Q(lambda) returns
}

/// Returns the samples of a rollout.
pub fn make_samples(
    q: &QNetwork<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> Samples<Tensor> {
    let Rollout { obs, actions, rewards, dones, values, next_obs } = rollout;
    let next_value = q.apply(next_obs).max(-1); // f32[N]
    let discounts = (args.gamma, args.q_lambda);
    let returns = compute_q_lambda(rewards, dones, values, next_value, discounts);
    merge_time_and_env(Samples { obs, actions, returns })
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
    let q_value = q_at_action(q.apply(batch.obs), batch.actions);
    let td_loss = (q_value - batch.returns).square().mean(..);
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

/// Returns the sample indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs * num_minibatches, minibatch_size]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.batch_size())).collect();
    let minibatch_size = args.batch_size() / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_size])
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
        gradient_step(train_state, &gather_minibatch(samples, indices), learning_rate, args)
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

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::discrete(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network_key) = key.split();
        let train_state = init_train_state(network_key, &sizes);
        let (handle, first) = envs.reset(handle);
        let (obs, global_step) = (first.obs.to(DType::F32), constant(0i32));
        let env_state = EnvState { handle, obs, global_step, key };
        RunnerState { train_state, env_state }
    });
    let iteration = trainer.jit("iteration", |state| train_iteration(&envs, state, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let (next_state, episodes, metrics) = iteration.call(state)?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the best action and the action values. Evaluations are
/// epsilon-greedy with the epsilon `end_e`.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::discrete(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| init_train_state(key, &sizes))?.q;
    let epsilon = args.end_e as f32;
    Ok(Policy::new(pool, q, move |q: &QNetwork<Tensor>, obs| {
        let q_values = q.apply(obs.to(DType::F32));
        PolicyResults::from_values("q_values", q_values)
            .sampled_by(move |key| epsilon_greedy(q_values, constant(epsilon), key))
    }))
}
