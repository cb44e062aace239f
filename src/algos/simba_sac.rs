//! SimBa (Lee et al. 2024) with soft actor-critic: the authors' `sac_simba`. Networks of residual
//! blocks with layer normalization, and normalized observations. Environment steps, the replay buffer
//! and gradient steps are one compiled program.
//!
//! Differences from the authors' code, with reasons, are listed in `docs/algos/simba_sac.md`.

use crate::distributions::{TanhCorrection, TanhNormal};
use crate::nn::init::{he_normal, orthogonal};
use crate::nn::normalize::RunningMeanStd;
use crate::nn::{Activation, Dense, LayerNorm, Mlp};
use crate::optim::incremental_update;
use crate::random::{normal, uniform};
use crate::rl::buffers::replay::{ReplayBuffer, Transition};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::trace::ops::concatenate;

// ------------------------------------------------------------------------------------- settings

/// SimBa: SAC with residual networks, for continuous actions
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "1000000")]
    pub total_timesteps: u64,
    /// The number of parallel environments
    #[arg(long, default_value = "1")]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value = "1000000")]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging)
    #[arg(long, default_value = "0.005")]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "256")]
    pub batch_size: usize,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value = "5000")]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimizer
    #[arg(long, default_value = "1e-4")]
    pub policy_lr: f64,
    /// The learning rate of the optimizers of the critics and of the temperature
    #[arg(long, default_value = "1e-4")]
    pub q_lr: f64,
    /// The weight decay of the optimizers of the networks (AdamW)
    #[arg(long, default_value = "0.01")]
    pub weight_decay: f64,
    /// The entropy temperature alpha at first, and always if --autotune is false
    #[arg(long, default_value = "0.01")]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value = "true")]
    pub autotune: bool,
    /// The target entropy, as a multiple of minus the action size
    #[arg(long, default_value = "0.5")]
    pub target_entropy_ratio: f64,
    /// The number of residual blocks of the critics
    #[arg(long, default_value = "2")]
    pub critic_num_blocks: usize,
    /// Units of the critics' residual stream; hidden layers have four times as many
    #[arg(long, default_value = "512")]
    pub critic_hidden_dim: usize,
    /// The number of residual blocks of the actor
    #[arg(long, default_value = "1")]
    pub actor_num_blocks: usize,
    /// Units of the actor's residual stream; hidden layers have four times as many
    #[arg(long, default_value = "128")]
    pub actor_hidden_dim: usize,
    /// Learn from the lower value of two critics, instead of one critic
    #[arg(long, default_value = "true")]
    pub use_cdq: bool,
    /// Normalize observations by their running mean and standard deviation
    #[arg(long, default_value = "true")]
    pub obs_normalization: bool,
    /// The number of updates of actor and critics after each step of the environments
    #[arg(long, default_value = "2")]
    pub gradient_steps: usize,
    /// Steps of the environments in one compiled call; 0: at least 100 timesteps
    #[arg(long, default_value = "0")]
    pub updates_per_call: usize,
}

impl Args {
    /// Number of iterations in one call of the compiled program. Learning starts and training
    /// ends between calls.
    fn updates_per_call(&self) -> usize {
        match self.updates_per_call {
            0 => 100_usize.div_ceil(self.num_envs),
            updates => updates,
        }
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps_per_call(&self) -> u64 {
        (self.updates_per_call() * self.num_envs) as u64
    }

    fn policy_optimizer(&self) -> Adam {
        Adam { learning_rate: self.policy_lr, weight_decay: self.weight_decay, ..Adam::default() }
    }

    fn q_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, weight_decay: self.weight_decay, ..Adam::default() }
    }

    fn alpha_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, ..Adam::default() }
    }

    fn check(&self) -> Result<()> {
        let (total, steps) = (self.total_timesteps, self.steps_per_call());
        let expected = format!("at least {steps}, the timesteps of one call");
        ensure(total >= steps, "total-timesteps", total, &expected)?;
        within("buffer-size", self.buffer_size, self.num_envs, i32::MAX as usize)
    }
}

registered_algorithm!(Args, "simba_sac", BOUNDED_CONTINUOUS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Residual block: layer normalization, a hidden layer of four times the units, and a linear layer.
#[derive(Debug, Clone, Tree)]
pub struct ResidualBlock<T> {
    pub norm: LayerNorm<T>,
    pub layers: Mlp<T>,
}

/// Network of residual blocks, followed by layer normalization and an output layer.
#[derive(Debug, Clone, Tree)]
pub struct Network<T> {
    pub embedding: Dense<T>, // input layer
    pub blocks: Vec<ResidualBlock<T>>,
    pub norm: LayerNorm<T>,
    pub head: Dense<T>, // output layer
}

impl Network<Tensor> {
    /// Initializes a network with `num_blocks` blocks of `units`.
    fn init(
        key: Key<Tensor>,
        inputs: usize,
        (num_blocks, units): (usize, usize),
        outputs: usize,
    ) -> Network<Tensor> {
        let [embedding_key, blocks_key, head_key] = key.split_n();
        let sizes = [units, 4 * units, units];
        let block = |key| ResidualBlock {
            norm: LayerNorm::init(units),
            layers: Mlp::init_with(key, &sizes, Activation::Relu, he_normal(), he_normal()),
        };
        Network {
            embedding: Dense::init(embedding_key, inputs, units, orthogonal(1.0)),
            blocks: blocks_key.split_vec(num_blocks).into_iter().map(block).collect(),
            norm: LayerNorm::init(units),
            head: Dense::init(head_key, units, outputs, orthogonal(1.0)),
        }
    }

    /// Maps `x: f32[B, inputs]` to `f32[B, outputs]`.
    pub fn apply(&self, x: Tensor) -> Tensor {
        let block = |x, block: &ResidualBlock<Tensor>| x + block.layers.apply(block.norm.apply(x));
        let x = self.blocks.iter().fold(self.embedding.apply(x), block);
        self.head.apply(self.norm.apply(x))
    }
}

/// Network from observations and actions to values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Network<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size` and actions of size `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Self {
        let size = (args.critic_num_blocks, args.critic_hidden_dim);
        QNetwork { layers: Network::init(key, obs_size + action_size, size, 1) }
    }

    /// Returns the values `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor, action: Tensor) -> Tensor {
        self.layers.apply(concatenate(&[obs, action], -1)).squeeze(-1)
    }
}

/// Minimum of the policy's log standard deviations.
const LOG_STD_MIN: f64 = -10.0;
/// Maximum of the policy's log standard deviations.
const LOG_STD_MAX: f64 = 2.0;
/// Log probability correction for `tanh`.
const CORRECTION: TanhCorrection = TanhCorrection::Exact;

/// Network from observations to distributions of actions between -1 and 1: a stochastic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    /// Layers; outputs `[.., 2 A]` are the means before the `tanh` and the unscaled log standard
    /// deviations.
    pub layers: Network<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds, args: &Args) -> Self {
        let size = (args.actor_num_blocks, args.actor_hidden_dim);
        let layers = Network::init(key, obs_size, size, 2 * bounds.size());
        Actor { layers, bounds: bounds.clone() }
    }

    /// Returns the policy, a distribution of actions `[B, A]`, at `obs: f32[B, obs_size]`.
    pub fn policy(&self, obs: Tensor) -> TanhNormal<Tensor> {
        let outputs = self.layers.apply(obs).split(2, -1);
        let (mean, log_std) = (outputs[0], outputs[1].tanh());
        // From SpinUp: scales the log standard deviations to [LOG_STD_MIN, LOG_STD_MAX].
        let log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1.0);
        TanhNormal::new(mean, log_std.exp())
    }

    /// Samples actions `f32[B, A]` at `obs: f32[B, obs_size]`; also returns their log probabilities
    /// `f32[B]`.
    pub fn get_action(&self, obs: Tensor, key: Key<Tensor>) -> (Tensor, Tensor) {
        self.policy(obs).sample_and_log_prob(key, CORRECTION)
    }

    /// Scales `action: f32[B, A]`, between -1 and 1, to the bounds.
    pub fn within_bounds(&self, action: Tensor) -> Tensor {
        let (action_scale, action_bias) = (self.bounds.action_scale(), self.bounds.action_bias());
        self.bounds.clip(action * action_scale + action_bias)
    }
}

/// Actor and critics.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Actor<T>,      // stochastic policy
    pub qf: Vec<QNetwork<T>>, // two critics, or one with `--no-use-cdq`
}

impl Agent<Tensor> {
    /// Initializes the networks for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds, args: &Args) -> Self {
        let (actor_key, qf_key) = key.split();
        let qf_keys = qf_key.split_vec(if args.use_cdq { 2 } else { 1 }).into_iter();
        let qf = qf_keys.map(|key| QNetwork::init(key, obs_size, bounds.size(), args)).collect();
        Agent { actor: Actor::init(actor_key, obs_size, bounds, args), qf }
    }
}

/// State of the optimizers.
#[derive(Debug, Clone, Tree)]
pub struct OptState<T> {
    pub actor: AdamState<T, Actor<T>>,
    pub qf: AdamState<T, Vec<QNetwork<T>>>,
    pub log_alpha: AdamState<T, T>,
}

/// State of training but for the environments; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub target: Vec<QNetwork<T>>,
    pub log_alpha: T, // f32[]: logarithm of the entropy temperature
    pub opt_state: OptState<T>,
    pub obs_stats: RunningMeanStd<T>, // statistics of observations
}

/// Initializes the networks, the targets, the temperature, the optimizers and the statistics.
fn init_train_state(
    key: Key<Tensor>,
    obs_size: usize,
    bounds: &Bounds,
    args: &Args,
) -> TrainState<Tensor> {
    let agent = Agent::init(key, obs_size, bounds, args);
    let log_alpha = constant(args.alpha.ln() as f32);
    let opt_state = OptState {
        actor: args.policy_optimizer().init(&agent.actor),
        qf: args.q_optimizer().init(&agent.qf),
        log_alpha: args.alpha_optimizer().init(&log_alpha),
    };
    let obs_stats = RunningMeanStd::new([obs_size], DType::F32);
    TrainState { target: agent.qf.clone(), agent, log_alpha, opt_state, obs_stats }
}

/// Normalizes `obs: f32[B, obs_size]`.
fn normalize_obs(obs: Tensor, stats: &RunningMeanStd<Tensor>, args: &Args) -> Tensor {
    if args.obs_normalization { stats.normalize(obs, 1e-8) } else { obs }
}

// --------------------------------------------------------------------------------------- acting

/// State of the N environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations
    pub key: Key<T>,
}

/// Steps all environments once, with actions of the policy if `learning`, otherwise with uniformly
/// random actions; returns N transitions.
fn env_step(
    envs: &XlaPool,
    train_state: &TrainState<Tensor>,
    env_state: EnvState<Tensor>,
    learning: bool,
    args: &Args,
) -> (EnvState<Tensor>, (Transition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let TrainState { agent: Agent { actor, .. }, obs_stats, .. } = train_state;
    let (key, action_key) = key.split();
    let action = match learning {
        true => actor.get_action(normalize_obs(obs, obs_stats, args), action_key).0,
        false => uniform(action_key, [obs.dim(0), actor.bounds.size()], DType::F32, -1.0, 1.0),
    };
    let (handle, step) = envs.step(handle, actor.within_bounds(action));
    let transition = Transition {
        obs,
        action,
        reward: step.reward,
        // The final observation where an episode ended: `step.obs` is that after the reset.
        next_obs: envs.next_obs_of(&step).to(DType::F32),
        terminated: step.terminated.to(DType::F32),
    };
    let env_state = EnvState { handle, obs: step.obs.to(DType::F32), key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

// ----------------------------------------------------------------------------------------- loss

/// Returns the minimum `f32[B]` of the critics' values of `action: f32[B, A]`.
fn min_q(qf: &[QNetwork<Tensor>], obs: Tensor, action: Tensor) -> Tensor {
    let first = qf[0].apply(obs, action);
    qf[1..].iter().fold(first, |q_value, qf| q_value.minimum(qf.apply(obs, action)))
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted soft value of a sampled next
/// action, which is the minimum of the target critics' values minus `alpha` times its log
/// probability.
pub fn td_target(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> Tensor {
    let (next_action, next_log_prob) = actor.get_action(batch.next_obs, key);
    let next_q_value = min_q(target, batch.next_obs, next_action) - alpha * next_log_prob;
    batch.reward + args.gamma * (1.0 - batch.terminated) * next_q_value
}

/// Metrics of the critics; scalars. With one critic those of the second are those of the first.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    pub qf1_loss: T,   // loss of the first critic
    pub qf2_loss: T,   // loss of the second critic
    pub qf1_values: T, // mean value, under the first critic, of the actions taken
    pub qf2_values: T, // mean value, under the second critic, of the actions taken
}

/// Computes the sum of the critics' mean squared errors to `td_target: f32[B]`, and their metrics.
pub fn critic_loss(
    qf: &[QNetwork<Tensor>],
    batch: &Transition<Tensor>,
    td_target: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let of_critic = |qf: &QNetwork<Tensor>| {
        let q_value = qf.apply(batch.obs, batch.action); // f32[B]
        ((q_value - td_target).square().mean(..), q_value.mean(..))
    };
    let (qf1_loss, qf1_values) = of_critic(&qf[0]);
    let (qf2_loss, qf2_values) = qf.get(1).map_or((qf1_loss, qf1_values), of_critic);
    let loss = if qf.len() == 1 { qf1_loss } else { qf1_loss + qf2_loss };
    (loss, CriticMetrics { qf1_loss, qf2_loss, qf1_values, qf2_values })
}

/// Computes `mean(alpha log pi(a) - min_i Q_i(s, a))` for the policy's actions at standard normal
/// `noise: f32[B, A]`; also returns the log probabilities `f32[B]`.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    qf: &[QNetwork<Tensor>],
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
) -> (Tensor, Tensor) {
    let policy = actor.policy(obs);
    let x = policy.normal.mean + policy.normal.std * noise;
    let log_prob = policy.log_prob_unsquashed(x, CORRECTION);
    ((alpha * log_prob - min_q(qf, obs, x.tanh())).mean(..), log_prob)
}

/// Computes `mean(-alpha (log pi(a) + target_entropy))` for log probabilities `f32[B]`.
pub fn alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: f64) -> Tensor {
    (-log_alpha.exp() * (log_prob + target_entropy)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, target, log_alpha, mut opt_state, obs_stats } = train_state;
    let td_target = td_target(&agent.actor, &target, log_alpha.exp(), batch, key, args);
    let ((_, metrics), grads) =
        value_and_grad(|qf: Vec<_>| critic_loss(&qf, batch, td_target))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.q_optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, target, log_alpha, opt_state, obs_stats }, metrics)
}

/// Takes one gradient step of the actor; returns its loss, and the log probabilities `f32[B]` of the
/// actions before it.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor, Tensor) {
    let TrainState { mut agent, target, log_alpha, mut opt_state, obs_stats } = train_state;
    let alpha = log_alpha.exp();
    let noise = normal(key, batch.action.shape(), DType::F32);
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, &agent.qf, alpha, batch.obs, noise);
    let ((actor_loss, log_prob), grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) =
        args.policy_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, log_alpha, opt_state, obs_stats }, actor_loss, log_prob)
}

/// Takes one gradient step of the temperature, for actions of the log probabilities `log_prob: f32[B]`;
/// returns its loss. With `--autotune false` the temperature is constant and the loss is 0.
pub fn update_alpha(
    train_state: TrainState<Tensor>,
    log_prob: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, target, mut log_alpha, mut opt_state, obs_stats } = train_state;
    let mut loss = constant(0.0f32);
    if args.autotune {
        let target_entropy = -args.target_entropy_ratio * agent.actor.bounds.size() as f64;
        let grads;
        (loss, grads) =
            value_and_grad(|log_alpha: Tensor| alpha_loss(log_alpha, log_prob, target_entropy))(
                log_alpha,
            );
        (log_alpha, opt_state.log_alpha) =
            args.alpha_optimizer().step(log_alpha, grads, opt_state.log_alpha);
    }
    (TrainState { agent, target, log_alpha, opt_state, obs_stats }, loss)
}

/// Updates the target critics.
pub fn update_target(train_state: TrainState<Tensor>, args: &Args) -> TrainState<Tensor> {
    let target = incremental_update(&train_state.agent.qf, &train_state.target, args.tau);
    TrainState { target, ..train_state }
}

// ------------------------------------------------------------------------------------- training

/// Logged metrics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub critic: CriticMetrics<T>,
    pub qf_loss: T, // mean of the critics' losses
    pub actor_loss: T,
    pub alpha: T,      // entropy temperature
    pub alpha_loss: T, // loss of the temperature; 0 if it is not tuned
}

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: ReplayBuffer<T, Transition<T>>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, and the episodes and metrics.
type IterationOutput = (RunnerState<Tensor>, (EpisodeStats<Tensor>, Option<Metrics<Tensor>>));

/// Steps all environments once and, if `learning`, takes `gradient_steps` gradient steps of the actor,
/// of the temperature and of the critics.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { mut train_state, replay_buffer, env_state } = state;
    train_state.obs_stats = train_state.obs_stats.update(env_state.obs);
    let (mut env_state, (transitions, episodes)) =
        env_step(envs, &train_state, env_state, learning, args);
    let replay_buffer = replay_buffer.add(transitions);
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let update = |(mut train_state, key): (TrainState<Tensor>, Key<Tensor>), ()| {
        let [key, sample_key, actor_key, critic_key] = key.split_n();
        let mut batch = replay_buffer.sample(sample_key, args.batch_size);
        batch.obs = normalize_obs(batch.obs, &train_state.obs_stats, args);
        batch.next_obs = normalize_obs(batch.next_obs, &train_state.obs_stats, args);
        let (actor_loss, log_prob, alpha_loss, critic);
        (train_state, actor_loss, log_prob) = update_actor(train_state, &batch, actor_key, args);
        (train_state, alpha_loss) = update_alpha(train_state, log_prob, args);
        (train_state, critic) = update_critic(train_state, &batch, critic_key, args);
        train_state = update_target(train_state, args);
        let qf_loss = (critic.qf1_loss + critic.qf2_loss) / 2.0;
        let alpha = train_state.log_alpha.exp();
        ((train_state, key), Some(Metrics { critic, qf_loss, actor_loss, alpha, alpha_loss }))
    };
    let count = ScanOptions::length(args.gradient_steps);
    let ((train_state, key), metrics) = scan_with(update, (train_state, env_state.key), (), count);
    env_state.key = key;
    let metrics = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
    (RunnerState { train_state, replay_buffer, env_state }, (episodes, metrics))
}

/// Runs `updates_per_call` iterations, compiled as one program; the metrics are those of the last.
fn train_iterations(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let iteration = |state, ()| train_iteration(envs, state, learning, args);
    let count = ScanOptions::length(args.updates_per_call());
    let (state, (episodes, metrics)) = scan_with(iteration, state, (), count);
    (state, episodes, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, obs_size, bounds) = pools::continuous(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let mut trainer = Trainer::start(args, args.steps_per_call())?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network_key) = key.split();
        let (handle, first) = envs.reset(handle);
        let item = Transition::types(obs_size, TensorType::new(DType::F32, [bounds.size()]));
        RunnerState {
            train_state: init_train_state(network_key, obs_size, &bounds, args),
            replay_buffer: ReplayBuffer::new(args.buffer_size, item),
            env_state: EnvState { handle, obs: first.obs.to(DType::F32), key },
        }
    });
    let explore = trainer.jit("explore", |state| train_iterations(&envs, state, false, args));
    let learn = trainer.jit("learn", |state| train_iterations(&envs, state, true, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let (next_state, episodes, metrics) = match trainer.global_step() < args.learning_starts {
            true => explore.call(state)?,
            false => learn.call(state)?,
        };
        state = next_state;
        trainer.record(&episodes.to_vec()?, metrics.as_ref())?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the mode of the distribution, and the mean and standard
/// deviations before the `tanh`.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, obs_size, bounds) = pools::continuous(args, 1, args.run.eval_seed())?;
    let train_state = load_model(model, |key| init_train_state(key, obs_size, &bounds, args))?;
    type Parameters<T> = (Actor<T>, RunningMeanStd<T>);
    let parameters = (train_state.agent.actor, train_state.obs_stats);
    let args = args.clone();
    Ok(Policy::new(pool, parameters, move |(actor, stats): &Parameters<Tensor>, obs| {
        let policy = actor.policy(normalize_obs(obs.to(DType::F32), stats, &args));
        let normal = policy.normal;
        PolicyResults::from_action(actor.within_bounds(policy.mode()))
            .with("mean", normal.mean)
            .with("std", normal.std)
    }))
}
