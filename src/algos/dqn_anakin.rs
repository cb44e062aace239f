//! Deep Q-learning (DQN, Mnih et al. 2015) with the environment and the replay buffer inside the
//! compiled program: PureJaxRL's `dqn.py` (Lu et al. 2022) on traced environments, the Anakin
//! architecture (Hessel et al. 2021). The whole loop is one program, which can train many agents.
//!
//! Differences from PureJaxRL, with reasons, are listed in `docs/algos/dqn_anakin.md`.

use crate::envs::traced::EpisodeState;
use crate::envs::{EnvPool, ObsKind, PoolOptions};
use crate::nn::{Activation, Encoder, Mlp, init};
use crate::optim::incremental_update;
use crate::random::{randint, uniform};
use crate::rl::anakin::{
    AgentOptions, AnakinArgs, AnakinEnv, Report, evaluated_agent, load_agents, select_agent,
    traced_args, train_agents, with_sweeps_of,
};
use crate::rl::buffers::replay::{ReplayBuffer, Transition};
use crate::rl::prelude::*;
use crate::rl::rollouts::minibatch::merge_time_and_env;
use crate::rl::settings::flags::{at_least_one_call, update_schedule};

// ------------------------------------------------------------------------------------- settings

// The defaults are those of PureJaxRL.
/// DQN, environments included, as one compiled program
#[derive(Debug, Clone, Parser, Serialize)]
#[command(
    mut_args(with_sweeps_of(SWEPT)),
    mut_args(|arg| match arg.get_id() == "updates_per_call" {
        true => arg.help("The number of target updates in one call; 0 makes about 64 calls"),
        false => arg,
    }),
)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Flags of the agents: seeds, sweeps, devices
    #[command(flatten)]
    #[serde(flatten)]
    pub agents: AgentOptions,

    /// The id of a traced environment with discrete actions, or jax:FOLDER
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment, for each agent
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "false")]
    pub anneal_lr: bool,
    /// The number of parallel environments of each agent
    #[arg(long, default_value = "10")]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value = "10000")]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging); 1 copies the network
    #[arg(long, default_value = "1.0")]
    pub tau: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value = "500")]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "128")]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "1.0")]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "0.05")]
    pub end_e: f64,
    /// The fraction of timesteps over which epsilon falls from --start-e to --end-e
    #[arg(long, default_value = "0.5")]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value = "10000")]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value = "10")]
    pub train_frequency: usize,
    /// Bootstrap at time limits with the values of the last observation; PureJaxRL does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of gradient steps between two updates of the target network.
    fn steps_per_target(&self) -> usize {
        self.target_network_frequency / self.train_frequency
    }

    fn check(&self) -> Result<()> {
        let (train, target) = (self.train_frequency, self.target_network_frequency);
        update_schedule(self.num_envs, ("train-frequency", train), target)?;
        at_least_one_call(self.total_timesteps, target as u64)?;
        within("buffer-size", self.buffer_size, train, i32::MAX as usize)?;
        self.agents.check()
    }
}

registered_algorithm!(Args, "dqn_anakin", TRACED_DISCRETE, Args::check, train, policy);

impl AnakinArgs for Args {
    fn agents(&self) -> &AgentOptions {
        &self.agents
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn steps_per_update(&self) -> usize {
        self.target_network_frequency
    }

    fn steps_per_rollout(&self) -> usize {
        self.train_frequency
    }

    fn memory_flags(&self) -> String {
        format!("--buffer-size {} --env-id {}", self.buffer_size, self.env_id)
    }

    fn learning_rate(&self, num_updates: u64) -> f64 {
        let frac = 1.0 - num_updates as f64 / self.num_updates() as f64;
        self.learning_rate * if self.anneal_lr { frac } else { 1.0 }
    }
}

traced_args!(learning_rate, gamma, end_e, exploration_fraction);

// -------------------------------------------------------------------------------------- network

/// Network from observations to action values. Vectors have hidden layers of 120 and 84 units;
/// images have the convolutions and the hidden layer of [`Encoder`].
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub convs: Encoder<T>, // convolutions; none for vectors
    pub layers: Mlp<T>,    // the other layers
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> QNetwork<Tensor> {
        let (convs, layers) = key.split();
        let convs = Encoder::init_convs(convs, sizes.obs_kind, &sizes.shape, init::lecun_normal());
        let hidden = match sizes.obs_kind {
            ObsKind::Vector => vec![120, 84],
            image => vec![Encoder::hidden_units(image)],
        };
        let sizes = [&[convs.size()], &hidden[..], &[sizes.num_actions]].concat();
        QNetwork { layers: Mlp::init(layers, &sizes, Activation::Relu), convs }
    }

    /// Returns action values `f32[B, actions]` for `obs: [B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.layers.apply(self.convs.apply(obs))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub q: QNetwork<T>,
    pub target: QNetwork<T>,
    pub opt_state: AdamState<T, QNetwork<T>>,
}

/// Initializes the networks and the optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let q = QNetwork::init(key, sizes);
    TrainState { target: q.clone(), opt_state: Adam::default().init(&q), q }
}

// --------------------------------------------------------------------------------------- acting

/// Returns epsilon at a timestep `i32[]`, annealed linearly from `start_e` to `end_e`: `f32[]`.
pub fn linear_schedule(global_step: Tensor, args: &TracedArgs) -> Tensor {
    let global_step = global_step.to(DType::F32);
    let [fraction, end_e] = [args.exploration_fraction, args.end_e].map(|x| x.like(global_step));
    let duration = (fraction * args.total_timesteps as f64).maximum(1.0);
    let progress = (global_step / duration).minimum(1.0);
    args.start_e + (end_e - args.start_e) * progress
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

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub obs: T,                         // [N, ..]: last observations
    pub state: EpisodeState<T, Vec<T>>, // state of the environments, with leaves `[N, ..]`
    pub global_step: T,                 // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Returns and lengths of the episodes that ended in steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Episodes<T> {
    pub returns: T, // f32[.., N]: returns of the episodes that ended, 0 where none did
    pub lengths: T, // i32[.., N]: lengths of the episodes that ended, 0 where none did
}

/// Steps all environments once, with epsilon-greedy actions; returns N transitions.
fn env_step(
    env: &AnakinEnv,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &TracedArgs,
) -> (EnvState<Tensor>, (Transition<Tensor>, Episodes<Tensor>)) {
    let EnvState { obs, state, global_step, key } = env_state;
    let [key, action_key, step_key] = key.split_n();
    let epsilon = linear_schedule(global_step, args);
    let q_values = q.apply(obs);
    let action = epsilon_greedy(q_values, epsilon, action_key);
    let step = |(state, action, key)| env.auto_reset.step(state, action, key);
    let step = vmap(step)((state, action, step_key.split_batch(args.num_envs)));
    let done = step.done();
    // PureJaxRL has no value after a time limit.
    let terminated = if args.bootstrap_truncated { step.terminated } else { done };
    let transition = Transition {
        obs,
        action,
        reward: step.reward,
        // The final observation where an episode ended: `step.obs` is that after the reset.
        next_obs: step.final_obs,
        terminated: terminated.to(DType::F32),
    };
    let returns = where_(done, step.episode_return, 0.0);
    let episodes = Episodes { returns, lengths: where_(done, step.episode_length, 0) };
    let global_step = global_step + args.num_envs as i32;
    (EnvState { obs: step.obs, state: step.episode, global_step, key }, (transition, episodes))
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub td_loss: T,
    pub q_values: T, // mean value of the actions taken
}

/// Computes the mean squared error to the TD targets, and its metrics.
pub fn td_loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &Transition<Tensor>,
    args: &TracedArgs,
) -> (Tensor, Metrics<Tensor>) {
    let discount = args.gamma * (1.0 - batch.terminated);
    let next_q_value = target.apply(batch.next_obs).max(-1); // f32[B]
    let td_target = batch.reward + discount * next_q_value;
    let q_value = q_at_action(q.apply(batch.obs), batch.action);
    let td_loss = (q_value - td_target).square().mean(..);
    (td_loss, Metrics { td_loss, q_values: q_value.mean(..) })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a batch.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    learning_rate: Tensor,
    args: &TracedArgs,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { q, target, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, batch, args))(q.clone());
    let adam = Adam::default().with_learning_rate(learning_rate);
    let (q, opt_state) = adam.step(q, grads, opt_state);
    (TrainState { q, target, opt_state }, metrics)
}

/// Updates the target network.
pub fn update_target(train_state: TrainState<Tensor>, args: &Args) -> TrainState<Tensor> {
    let TrainState { q, target, .. } = &train_state;
    TrainState { target: incremental_update(q, target, args.tau), ..train_state }
}

// ------------------------------------------------------------------------------------- training

/// State carried between calls.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: ReplayBuffer<T, Transition<T>>,
    pub env_state: EnvState<T>,
    pub num_updates: T, // i32[]: number of updates of the target network so far
}

/// Initializes the state of an agent.
pub fn init_runner(
    env: &AnakinEnv,
    sizes: &Sizes,
    key: Key<Tensor>,
    args: &Args,
) -> RunnerState<Tensor> {
    let [network, starts, key] = key.split_n();
    let (state, obs) = vmap(|key| env.auto_reset.reset(key))(starts.split_batch(args.num_envs));
    let number = TensorType::scalar(DType::F32);
    let item = Transition {
        obs: env.obs_type(),
        action: TensorType::scalar(DType::I32),
        reward: number.clone(),
        next_obs: env.obs_type(),
        terminated: number,
    };
    RunnerState {
        train_state: init_train_state(network, sizes),
        replay_buffer: ReplayBuffer::new(args.buffer_size, item),
        env_state: EnvState { obs, state, global_step: constant(0i32), key },
        num_updates: constant(0i32),
    }
}

/// Takes `train_frequency` timesteps in the environments and, once learning has started, one gradient
/// step; before it, metrics are 0.
fn train_iteration(
    env: &AnakinEnv,
    state: RunnerState<Tensor>,
    args: &TracedArgs,
) -> (RunnerState<Tensor>, (Episodes<Tensor>, Metrics<Tensor>)) {
    let RunnerState { train_state, replay_buffer, env_state, num_updates } = state;
    let step = |env_state, ()| env_step(env, &train_state.q, env_state, args);
    let num_steps = ScanOptions::length(args.train_frequency / args.num_envs);
    let (mut env_state, (transitions, episodes)) = scan_with(step, env_state, (), num_steps);
    let replay_buffer = replay_buffer.add(merge_time_and_env(transitions));
    let (key, sample_key) = env_state.key.split();
    env_state.key = key;
    let batch = replay_buffer.sample(sample_key, args.batch_size);
    let mut learning_rate = args.learning_rate.like(num_updates.to(DType::F32));
    if args.anneal_lr {
        let frac = 1.0 - num_updates.to(DType::F32) / args.num_updates() as f64;
        learning_rate = learning_rate * frac;
    }
    type Operands = (TrainState<Tensor>, Transition<Tensor>, Tensor);
    let learn = |(train_state, batch, learning_rate): Operands| {
        gradient_step(train_state, &batch, learning_rate, args)
    };
    let explore = |(train_state, ..): Operands| {
        let zero = zeros([], DType::F32);
        (train_state, Metrics { td_loss: zero, q_values: zero })
    };
    let learning = env_state.global_step.gt(args.learning_starts as i64);
    let (train_state, metrics) =
        cond(learning, learn, explore, (train_state, batch, learning_rate));
    (RunnerState { train_state, replay_buffer, env_state, num_updates }, (episodes, metrics))
}

/// Runs the iterations up to `updates` updates of the target network, with the values `f32[]` of the
/// sweeps.
pub fn train_iterations(
    env: &AnakinEnv,
    (swept, state): (Vec<Tensor>, RunnerState<Tensor>),
    updates: u64,
    args: &Args,
) -> (RunnerState<Tensor>, Report<Tensor, Metrics<Tensor>>) {
    let args = &TracedArgs::new(args, &swept);
    let iteration = |state, ()| train_iteration(env, state, args);
    let update = |state, ()| {
        let count = ScanOptions::length(args.steps_per_target());
        let (mut state, (episodes, metrics)) = scan_with(iteration, state, (), count);
        state.train_state = update_target(state.train_state, args);
        state.num_updates = state.num_updates + 1;
        let Episodes { returns, lengths } = merge_time_and_env(episodes);
        let metrics = tree::map(metrics, |x: Tensor| x.mean(..));
        (state, Report { metrics, episode_returns: returns, episode_lengths: lengths })
    };
    scan_with(update, state, (), ScanOptions::length(updates as usize))
}

fn train(args: &Args) -> Result<Summary> {
    let env = AnakinEnv::new(args)?;
    let sizes = Sizes::from_spec(Args::NAME, &env.spec, &Args::ENVS)?;
    let init = |env: &AnakinEnv, key, args: &Args| init_runner(env, &sizes, key, args);
    train_agents(args, &env, init, train_iterations, |state: RunnerState<Array>| state.train_state)
}

/// Returns the policy of a saved model: the best action and the action values. Evaluations are
/// epsilon-greedy with the epsilon `end_e`. If several agents were trained, that of the first that
/// did not diverge.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let env = AnakinEnv::new(args)?;
    let sizes = Sizes::from_spec(Args::NAME, &env.spec, &Args::ENVS)?;
    let TrainState { q, .. } = load_agents(args, model, |key| init_train_state(key, &sizes))?;
    let options = PoolOptions { num_threads: 1, seed: args.run.eval_seed(), ..Default::default() };
    let pool = EnvPool::make(&args.env_id, options)?;
    let (index, epsilon) = (evaluated_agent(args, &q)?, args.end_e as f32);
    Ok(Policy::new(pool, q, move |q: &QNetwork<Tensor>, obs| {
        let q_values = select_agent(q.clone(), index).apply(obs);
        PolicyResults::from_values("q_values", q_values)
            .sampled_by(move |key| epsilon_greedy(q_values, constant(epsilon), key))
    }))
}
