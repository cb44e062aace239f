//! CrossQ (Bhatt et al. 2024) for continuous actions, after its authors' JAX code: soft actor-critic
//! with batch renormalization and wide critics, without target networks. Environment steps, the
//! replay buffer and gradient steps are one compiled program.
//!
//! Differences from the authors' code, with reasons, are listed in
//! `docs/algos/crossq_continuous_action.md`.

use crate::distributions::{TanhCorrection, TanhNormal};
use crate::nn::{BatchRenorm, BatchRenormStats, Dense, init::lecun_normal};
use crate::random::normal;
use crate::rl::buffers::replay::{ReplayBuffer, Transition, concatenate_steps};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::trace::ops::concatenate;

// ------------------------------------------------------------------------------------- settings

// The defaults are those of the paper.
/// CrossQ for continuous actions
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
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "256")]
    pub batch_size: usize,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value = "5000")]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimizer
    #[arg(long, default_value = "1e-3")]
    pub policy_lr: f64,
    /// The learning rate of the optimizers of the critics and of the temperature
    #[arg(long, default_value = "1e-3")]
    pub q_lr: f64,
    /// The decay rate b1 of Adam, for the actor and the critics
    #[arg(long, default_value = "0.5")]
    pub adam_b1: f64,
    /// The number of units of each hidden layer of the critics
    #[arg(long, default_value = "2048")]
    pub n_neurons: usize,
    /// The actor and the temperature are updated once per this many critic updates
    #[arg(long, default_value = "3")]
    pub policy_frequency: usize,
    /// The entropy temperature alpha, used if --autotune is false
    #[arg(long, default_value = "0.2")]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value = "true")]
    pub autotune: bool,
    /// The number of critic updates after each step of the environments
    #[arg(long, default_value = "1")]
    pub gradient_steps: usize,
    /// Iterations of --policy-frequency steps in one call; 0: at least 100 timesteps
    #[arg(long, default_value = "0")]
    pub updates_per_call: usize,
}

impl Args {
    /// Number of iterations in one call of the compiled program. Learning starts and training
    /// ends between calls.
    fn updates_per_call(&self) -> usize {
        match self.updates_per_call {
            0 => 100_usize.div_ceil(self.steps_per_iteration()),
            updates => updates,
        }
    }

    /// Number of timesteps in one iteration.
    fn steps_per_iteration(&self) -> usize {
        self.policy_frequency * self.num_envs
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps_per_call(&self) -> u64 {
        (self.updates_per_call() * self.steps_per_iteration()) as u64
    }

    fn policy_optimizer(&self) -> Adam {
        Adam { learning_rate: self.policy_lr, b1: self.adam_b1, ..Adam::default() }
    }

    fn q_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, b1: self.adam_b1, ..Adam::default() }
    }

    fn alpha_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, ..Adam::default() }
    }

    fn check(&self) -> Result<()> {
        let (total, steps) = (self.total_timesteps, self.steps_per_call());
        let expected = format!("at least {steps}, the timesteps of one call");
        ensure(total >= steps, "total-timesteps", total, &expected)?;
        within("buffer-size", self.buffer_size, self.steps_per_iteration(), i32::MAX as usize)
    }
}

registered_algorithm!(
    Args,
    "crossq_continuous_action",
    BOUNDED_CONTINUOUS,
    Args::check,
    train,
    policy
);

// -------------------------------------------------------------------------------------- network

/// Statistics of the normalizations of a [`Network`], one for each layer.
pub type BatchStats<T> = Vec<BatchRenormStats<T>>;

/// Network with two hidden layers. Batch renormalization is applied to the input, and after the ReLU
/// of each hidden layer.
#[derive(Debug, Clone, Tree)]
pub struct Network<T> {
    pub norms: Vec<BatchRenorm<T>>, // normalization of the input of each layer
    pub layers: Vec<Dense<T>>,
}

impl Network<Tensor> {
    /// Initializes a network of these sizes as Flax does, and its statistics.
    fn init(key: Key<Tensor>, sizes: [usize; 4]) -> (Network<Tensor>, BatchStats<Tensor>) {
        let keys: [Key<Tensor>; 3] = key.split_n();
        let layer = |(i, key)| Dense::init(key, sizes[i], sizes[i + 1], lecun_normal());
        let layers = keys.into_iter().enumerate().map(layer).collect();
        let (norms, stats) = sizes[..3].iter().map(|size| BatchRenorm::init(*size)).unzip();
        (Network { norms, layers }, stats)
    }

    /// Maps `x: f32[B, inputs]` to `f32[B, outputs]`. With `train`, it normalizes by the statistics of
    /// the batch and returns the updated running statistics.
    pub fn apply(
        &self,
        mut x: Tensor,
        stats: &BatchStats<Tensor>,
        train: bool,
    ) -> (Tensor, BatchStats<Tensor>) {
        let mut updated = Vec::new();
        for (i, (norm, layer)) in self.norms.iter().zip(&self.layers).enumerate() {
            let (normalized, stats) = norm.apply(x, stats[i].clone(), train);
            updated.push(stats);
            x = layer.apply(normalized);
            if i + 1 < self.layers.len() {
                x = x.relu();
            }
        }
        (x, updated)
    }
}

/// Network from observations and actions to values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Network<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size` and actions of size `action_size`,
    /// with hidden layers of `units` units, and its statistics.
    pub fn init(
        key: Key<Tensor>,
        obs_size: usize,
        action_size: usize,
        units: usize,
    ) -> (QNetwork<Tensor>, BatchStats<Tensor>) {
        let (layers, stats) = Network::init(key, [obs_size + action_size, units, units, 1]);
        (QNetwork { layers }, stats)
    }

    /// Returns the values `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`, and the updated
    /// statistics.
    pub fn apply(
        &self,
        obs: Tensor,
        action: Tensor,
        stats: &BatchStats<Tensor>,
        train: bool,
    ) -> (Tensor, BatchStats<Tensor>) {
        let (values, stats) = self.layers.apply(concatenate(&[obs, action], -1), stats, train);
        (values.squeeze(-1), stats)
    }
}

/// Minimum of the policy's log standard deviations.
const LOG_STD_MIN: f64 = -20.0;
/// Maximum of the policy's log standard deviations.
const LOG_STD_MAX: f64 = 2.0;
/// Number of units of each hidden layer of the actor.
const ACTOR_UNITS: usize = 256;

/// Network from observations to distributions of actions within their bounds: a stochastic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    /// Layers; outputs `[.., 2 A]` are the means before the `tanh` and the log standard deviations
    /// before they are clipped.
    pub layers: Network<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`, and its statistics.
    pub fn init(
        key: Key<Tensor>,
        obs_size: usize,
        bounds: &Bounds,
    ) -> (Actor<Tensor>, BatchStats<Tensor>) {
        let sizes = [obs_size, ACTOR_UNITS, ACTOR_UNITS, 2 * bounds.size()];
        let (layers, stats) = Network::init(key, sizes);
        (Actor { layers, bounds: bounds.clone() }, stats)
    }

    /// Returns the policy, a distribution of actions `[B, A]`, at `obs: f32[B, obs_size]`, and the
    /// updated statistics.
    pub fn policy(
        &self,
        obs: Tensor,
        stats: &BatchStats<Tensor>,
        train: bool,
    ) -> (TanhNormal<Tensor>, BatchStats<Tensor>) {
        let (outputs, stats) = self.layers.apply(obs, stats, train);
        let outputs = outputs.split(2, -1);
        let std = outputs[1].clip(LOG_STD_MIN, LOG_STD_MAX).exp();
        (TanhNormal::within(outputs[0], std, self.bounds.low(), self.bounds.high()), stats)
    }
}

/// Returns the actions `f32[B, A]` of a policy at standard normal `noise: f32[B, A]`, and their log
/// probabilities `f32[B]` as those of actions between -1 and 1.
fn get_action(policy: &TanhNormal<Tensor>, noise: Tensor) -> (Tensor, Tensor) {
    let TanhNormal { normal, scale, bias } = *policy;
    let x = normal.mean + normal.std * noise;
    let unit = TanhNormal::new(normal.mean, normal.std);
    (x.tanh() * scale + bias, unit.log_prob_unsquashed(x, TanhCorrection::Exact))
}

/// Actor and critics.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Actor<T>, // stochastic policy
    pub qf: [QNetwork<T>; 2],
}

/// Statistics of the normalizations of an [`Agent`].
#[derive(Debug, Clone, Tree)]
pub struct AgentStats<T> {
    pub actor: BatchStats<T>,   // statistics of the actor
    pub qf: [BatchStats<T>; 2], // statistics of the critics
}

impl Agent<Tensor> {
    /// Initializes the networks for observations of size `obs_size`, and their statistics.
    pub fn init(
        key: Key<Tensor>,
        obs_size: usize,
        bounds: &Bounds,
        args: &Args,
    ) -> (Agent<Tensor>, AgentStats<Tensor>) {
        let [actor_key, qf1_key, qf2_key] = key.split_n();
        let critic = |key| QNetwork::init(key, obs_size, bounds.size(), args.n_neurons);
        let [(qf1, stats1), (qf2, stats2)] = [qf1_key, qf2_key].map(critic);
        let (actor, actor_stats) = Actor::init(actor_key, obs_size, bounds);
        let stats = AgentStats { actor: actor_stats, qf: [stats1, stats2] };
        (Agent { actor, qf: [qf1, qf2] }, stats)
    }
}

/// State of the optimizers.
#[derive(Debug, Clone, Tree)]
pub struct OptState<T> {
    pub actor: AdamState<T, Actor<T>>,
    pub qf: AdamState<T, [QNetwork<T>; 2]>,
    pub log_alpha: AdamState<T, T>,
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub stats: AgentStats<T>, // statistics of the normalizations
    pub log_alpha: T,         // f32[]: logarithm of the entropy temperature
    pub opt_state: OptState<T>,
}

/// Initializes the networks, the temperature and the optimizers.
fn init_train_state(
    key: Key<Tensor>,
    obs_size: usize,
    bounds: &Bounds,
    args: &Args,
) -> TrainState<Tensor> {
    let (agent, stats) = Agent::init(key, obs_size, bounds, args);
    let alpha = if args.autotune { 1.0 } else { args.alpha };
    let log_alpha = constant(alpha.ln() as f32);
    let opt_state = OptState {
        actor: args.policy_optimizer().init(&agent.actor),
        qf: args.q_optimizer().init(&agent.qf),
        log_alpha: args.alpha_optimizer().init(&log_alpha),
    };
    TrainState { agent, stats, log_alpha, opt_state }
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
    (actor, stats): (&Actor<Tensor>, &BatchStats<Tensor>),
    env_state: EnvState<Tensor>,
    learning: bool,
) -> (EnvState<Tensor>, (Transition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let action = match learning {
        true => {
            let noise = normal(action_key, [obs.dim(0), actor.bounds.size()], DType::F32);
            get_action(&actor.policy(obs, stats, false).0, noise).0
        }
        false => actor.bounds.sample(action_key, obs.dim(0)),
    };
    let (handle, step) = envs.step(handle, action);
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

/// Takes `policy_frequency` steps, unrolled, which is faster than a loop over so few. Returns the
/// transitions, `policy_frequency * N`, and the episode statistics, `[policy_frequency, N]`.
fn env_steps(
    envs: &XlaPool,
    actor: (&Actor<Tensor>, &BatchStats<Tensor>),
    mut env_state: EnvState<Tensor>,
    learning: bool,
    args: &Args,
) -> (EnvState<Tensor>, Transition<Tensor>, EpisodeStats<Tensor>) {
    let (mut transitions, mut episodes) = (Vec::new(), Vec::new());
    for _ in 0..args.policy_frequency {
        let (next_state, (transition, stats)) = env_step(envs, actor, env_state, learning);
        env_state = next_state;
        transitions.push(transition);
        episodes.push(tree::map(stats, |x: Tensor| x.expand_dims(0)));
    }
    (env_state, concatenate_steps(&transitions), concatenate_steps(&episodes))
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of the critics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    pub qf1_loss: T,   // loss of the first critic
    pub qf2_loss: T,   // loss of the second critic
    pub qf1_values: T, // mean value, under the first critic, of the actions taken
    pub qf2_values: T, // mean value, under the second critic, of the actions taken
}

/// Computes the sum of halves of both critics' mean squared errors to the TD targets, and returns it
/// with the metrics and the updated statistics.
///
/// Values of the batch and of the sampled next actions are computed in one forward pass of `2 B`
/// rows, so that both are normalized by the statistics of their mixture. The TD target is the reward
/// plus the discounted soft value of the next action, the minimum of the critics' values minus
/// `alpha` times its log probability; it has no gradient.
pub fn critic_loss(
    (qf, stats): (&[QNetwork<Tensor>; 2], &[BatchStats<Tensor>; 2]),
    batch: &Transition<Tensor>,
    (next_action, next_log_prob): (Tensor, Tensor),
    alpha: Tensor,
    args: &Args,
) -> (Tensor, (CriticMetrics<Tensor>, [BatchStats<Tensor>; 2])) {
    let obs = concatenate(&[batch.obs, batch.next_obs], 0);
    let action = concatenate(&[batch.action, next_action], 0);
    let (values1, stats1) = qf[0].apply(obs, action, &stats[0], true); // f32[2 B]
    let (values2, stats2) = qf[1].apply(obs, action, &stats[1], true);
    let [values1, values2] = [values1, values2].map(|values| values.split(2, 0));

    let next_q_value = values1[1].minimum(values2[1]) - alpha * next_log_prob;
    let td_target = batch.reward + args.gamma * (1.0 - batch.terminated) * next_q_value;
    let td_target = td_target.stop_gradient();
    let [qf1, qf2] = [values1[0], values2[0]]; // f32[B]
    let [qf1_loss, qf2_loss] =
        [qf1, qf2].map(|q_value| 0.5 * (q_value - td_target).square().mean(..));
    let (qf1_values, qf2_values) = (qf1.mean(..), qf2.mean(..));
    let metrics = CriticMetrics { qf1_loss, qf2_loss, qf1_values, qf2_values };
    (qf1_loss + qf2_loss, (metrics, [stats1, stats2]))
}

/// Computes `mean(alpha log pi(a) - min_i Q_i(s, a))` for the policy's actions at standard normal
/// `noise: f32[B, A]`. The actor normalizes by the statistics of the batch, the critics by their
/// running statistics. Also returns the log probabilities `f32[B]` and the actor's updated
/// statistics.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    qf: &[QNetwork<Tensor>; 2],
    stats: &AgentStats<Tensor>,
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
) -> (Tensor, (Tensor, BatchStats<Tensor>)) {
    let (policy, actor_stats) = actor.policy(obs, &stats.actor, true);
    let (action, log_prob) = get_action(&policy, noise);
    let [qf1, qf2] = [0, 1].map(|i| qf[i].apply(obs, action, &stats.qf[i], false).0);
    ((alpha * log_prob - qf1.minimum(qf2)).mean(..), (log_prob, actor_stats))
}

/// Computes `mean(-alpha (log pi(a) + target_entropy))` for log probabilities `f32[B]`.
pub fn alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: f64) -> Tensor {
    (-log_alpha.exp() * (log_prob + target_entropy)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics, for next actions of the policy at standard normal
/// `noise: f32[B, A]`.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    noise: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, mut stats, log_alpha, mut opt_state } = train_state;
    let (policy, _) = agent.actor.policy(batch.next_obs, &stats.actor, false);
    let next = get_action(&policy, noise);
    let loss = |qf: [QNetwork<Tensor>; 2]| {
        critic_loss((&qf, &stats.qf), batch, next, log_alpha.exp(), args)
    };
    let ((_, (metrics, qf_stats)), grads) = value_and_grad(loss)(agent.qf.clone());
    stats.qf = qf_stats;
    (agent.qf, opt_state.qf) = args.q_optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, stats, log_alpha, opt_state }, metrics)
}

/// Takes one gradient step of the actor, at standard normal `noise: f32[B, A]`; returns its loss and
/// the log probabilities `f32[B]` of the actions.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    noise: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, (Tensor, Tensor)) {
    let TrainState { mut agent, mut stats, log_alpha, mut opt_state } = train_state;
    let loss = |actor: Actor<Tensor>| {
        actor_loss(&actor, &agent.qf, &stats, log_alpha.exp(), batch.obs, noise)
    };
    let ((actor_loss, (log_prob, actor_stats)), grads) = value_and_grad(loss)(agent.actor.clone());
    stats.actor = actor_stats;
    (agent.actor, opt_state.actor) =
        args.policy_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, stats, log_alpha, opt_state }, (actor_loss, log_prob))
}

/// Takes one gradient step of the temperature for the log probabilities `f32[B]` of the actor's
/// update and a target entropy of minus the action size; returns its loss. With `--autotune false`
/// the temperature is constant and the loss is 0.
pub fn update_alpha(
    train_state: TrainState<Tensor>,
    log_prob: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, stats, mut log_alpha, mut opt_state } = train_state;
    let mut loss = constant(0.0f32);
    if args.autotune {
        let target_entropy = -(agent.actor.bounds.size() as f64);
        let grads;
        (loss, grads) =
            value_and_grad(|log_alpha: Tensor| alpha_loss(log_alpha, log_prob, target_entropy))(
                log_alpha,
            );
        (log_alpha, opt_state.log_alpha) =
            args.alpha_optimizer().step(log_alpha, grads, opt_state.log_alpha);
    }
    (TrainState { agent, stats, log_alpha, opt_state }, loss)
}

// ------------------------------------------------------------------------------------- training

/// Logged metrics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub critic: CriticMetrics<T>,
    pub qf_loss: T, // mean of both critics' losses
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

/// Takes `policy_frequency` steps in the environments and, if `learning`, `gradient_steps` times as
/// many gradient steps of the critics.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { train_state, replay_buffer, env_state } = state;
    let actor = (&train_state.agent.actor, &train_state.stats.actor);
    let (mut env_state, transitions, episodes) = env_steps(envs, actor, env_state, learning, args);
    let replay_buffer = replay_buffer.add(transitions);
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let update = |(mut train_state, mut key): (TrainState<Tensor>, Key<Tensor>), ()| {
        let mut metrics = None;
        for step in 1..=args.policy_frequency {
            let [next_key, sample_key, critic_key, actor_key] = key.split_n();
            key = next_key;
            let batch = replay_buffer.sample(sample_key, args.batch_size);
            let noise = |key| normal(key, batch.action.shape(), DType::F32);
            let critic;
            (train_state, critic) = update_critic(train_state, &batch, noise(critic_key), args);
            if step == args.policy_frequency {
                let (actor_loss, log_prob);
                (train_state, (actor_loss, log_prob)) =
                    update_actor(train_state, &batch, noise(actor_key), args);
                let alpha_loss;
                (train_state, alpha_loss) = update_alpha(train_state, log_prob, args);
                let qf_loss = (critic.qf1_loss + critic.qf2_loss) / 2.0;
                let alpha = train_state.log_alpha.exp();
                metrics = Some(Metrics { critic, qf_loss, actor_loss, alpha, alpha_loss });
            }
        }
        ((train_state, key), metrics)
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
    type Parameters<T> = (Actor<T>, BatchStats<T>);
    let parameters = (train_state.agent.actor, train_state.stats.actor);
    Ok(Policy::new(pool, parameters, move |(actor, stats): &Parameters<Tensor>, obs| {
        let (policy, _) = actor.policy(obs.to(DType::F32), stats, false);
        let normal = policy.normal;
        PolicyResults::from_action(actor.bounds.clip(policy.mode()))
            .with("mean", normal.mean)
            .with("std", normal.std)
    }))
}
