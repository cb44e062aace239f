//! FastSAC (Seo et al. 2025), the authors' `fast_sac`: SAC with many environments, large batches,
//! distributional critics and normalized observations. Environment steps, the replay buffer and
//! gradient steps are one compiled program.
//!
//! Differences from the authors' code, with reasons, are listed in `docs/algos/fast_sac.md`.

use crate::distributions::{TanhCorrection, TanhNormal};
use crate::nn::normalize::RunningMeanStd;
use crate::nn::{Dense, LayerNorm};
use crate::optim::incremental_update;
use crate::random::normal;
use crate::rl::buffers::replay::{EpisodeStep, ReplayBuffer, Transition};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::rl::settings::flags::support;
use crate::trace::ops::{IndexMode, arange, concatenate};

// ------------------------------------------------------------------------------------- settings

// The defaults are the authors', for a GPU; docs/algos/fast_sac.md has some for CPUs.
/// FastSAC for continuous actions
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment, of all environments together
    #[arg(long, default_value = "204800000")]
    pub total_timesteps: u64,
    /// The number of parallel environments
    #[arg(long, default_value = "4096")]
    pub num_envs: usize,
    /// The learning rate of the critics' optimizer
    #[arg(long, default_value = "3e-4")]
    pub critic_learning_rate: f64,
    /// The learning rate of the actor's optimizer
    #[arg(long, default_value = "3e-4")]
    pub actor_learning_rate: f64,
    /// The learning rate of the temperature's optimizer
    #[arg(long, default_value = "3e-4")]
    pub alpha_learning_rate: f64,
    /// The weight decay of the optimizers of the networks (AdamW)
    #[arg(long, default_value = "0.001")]
    pub weight_decay: f64,
    /// The size of the replay buffer, in transitions of all environments
    #[arg(long, default_value = "4194304")]
    pub buffer_size: usize,
    /// The number of steps of the returns in targets
    #[arg(long, default_value = "1")]
    pub num_steps: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.97")]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging)
    #[arg(long, default_value = "0.125")]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "8192")]
    pub batch_size: usize,
    /// The timestep at which learning starts
    #[arg(long, default_value = "40960")]
    pub learning_starts: u64,
    /// The number of critic updates after each step of the environments
    #[arg(long, default_value = "8")]
    pub num_updates: usize,
    /// The number of critic updates between updates of the actor
    #[arg(long, default_value = "4")]
    pub policy_frequency: usize,
    /// The initial entropy temperature alpha
    #[arg(long, default_value = "0.001")]
    pub alpha_init: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value = "true")]
    pub use_autotune: bool,
    /// The target entropy, as a multiple of minus the action size
    #[arg(long, default_value = "0.0")]
    pub target_entropy_ratio: f64,
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value = "101")]
    pub num_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value = "-20.0")]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value = "20.0")]
    pub v_max: f64,
    /// Units of the critics' hidden layers: this many, a half and a quarter of it
    #[arg(long, default_value = "768")]
    pub critic_hidden_dim: usize,
    /// Units of the actor's hidden layers: this many, a half and a quarter of it
    #[arg(long, default_value = "512")]
    pub actor_hidden_dim: usize,
    /// Normalize observations by their running mean and standard deviation
    #[arg(long, default_value = "true")]
    pub obs_normalization: bool,
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

    fn critic_optimizer(&self) -> Adam {
        self.optimizer(self.critic_learning_rate, self.weight_decay)
    }

    fn actor_optimizer(&self) -> Adam {
        self.optimizer(self.actor_learning_rate, self.weight_decay)
    }

    fn alpha_optimizer(&self) -> Adam {
        // PyTorch's default weight decay, which the authors leave.
        self.optimizer(self.alpha_learning_rate, 0.01)
    }

    fn optimizer(&self, learning_rate: f64, weight_decay: f64) -> Adam {
        Adam { learning_rate, b2: 0.95, weight_decay, ..Adam::default() }
    }

    /// Returns the values of the atoms: `f32[atoms]`.
    pub fn atoms(&self) -> Tensor {
        let delta_z = (self.v_max - self.v_min) / (self.num_atoms - 1) as f64;
        let atom = |i| (self.v_min + delta_z * i as f64) as f32;
        constant((0..self.num_atoms).map(atom).collect::<Vec<f32>>().as_slice())
    }

    fn check(&self) -> Result<()> {
        let (total, steps) = (self.total_timesteps, self.steps_per_call());
        let expected = format!("at least {steps}, the timesteps of one call");
        ensure(total >= steps, "total-timesteps", total, &expected)?;
        let (updates, frequency) = (self.num_updates, self.policy_frequency);
        let expected = format!("a multiple of --policy-frequency {frequency}");
        ensure(updates.is_multiple_of(frequency), "num-updates", updates, &expected)?;
        for (flag, units) in [
            ("critic-hidden-dim", self.critic_hidden_dim),
            ("actor-hidden-dim", self.actor_hidden_dim),
        ] {
            ensure(units.is_multiple_of(4), flag, units, "a multiple of 4")?;
        }
        support(self.v_min, self.v_max)?;
        within("num-steps", self.num_steps, 1, 64)?;
        within("buffer-size", self.buffer_size, self.num_envs, i32::MAX as usize)
    }
}

registered_algorithm!(Args, "fast_sac", BOUNDED_CONTINUOUS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Network with three hidden layers, each with layer normalization and a SiLU.
#[derive(Debug, Clone, Tree)]
pub struct Network<T> {
    /// Hidden layers, each with the normalization of its output.
    pub hidden: Vec<(Dense<T>, LayerNorm<T>)>,
    pub head: Dense<T>, // output layer
}

impl Network<Tensor> {
    /// Initializes hidden layers of `units`, half and a quarter of them, and an output layer, with
    /// PyTorch's initialization.
    fn init(key: Key<Tensor>, inputs: usize, units: usize, outputs: usize) -> Network<Tensor> {
        let sizes = [inputs, units, units / 2, units / 4];
        let [key1, key2, key3, head_key] = key.split_n();
        let layer = |(key, sizes): (Key<Tensor>, &[usize])| {
            let norm = LayerNorm { eps: 1e-5, ..LayerNorm::init(sizes[1]) };
            (Dense::init_torch(key, sizes[0], sizes[1]), norm)
        };
        let hidden = [key1, key2, key3].into_iter().zip(sizes.windows(2)).map(layer).collect();
        Network { hidden, head: Dense::init_torch(head_key, units / 4, outputs) }
    }

    /// Maps `x: f32[B, inputs]` to `f32[B, outputs]`.
    pub fn apply(&self, x: Tensor) -> Tensor {
        let layer = |x, (dense, norm): &(Dense<Tensor>, LayerNorm<Tensor>)| {
            norm.apply(dense.apply(x)).silu()
        };
        self.head.apply(self.hidden.iter().fold(x, layer))
    }
}

/// Network from observations and actions to distributions of returns.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Network<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size` and actions of size `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Self {
        let inputs = obs_size + action_size;
        QNetwork { layers: Network::init(key, inputs, args.critic_hidden_dim, args.num_atoms) }
    }

    /// Returns the logits `f32[B, atoms]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor, action: Tensor) -> Tensor {
        self.layers.apply(concatenate(&[obs, action], -1))
    }
}

/// Minimum of the policy's log standard deviations.
const LOG_STD_MIN: f64 = -5.0;
/// Maximum of the policy's log standard deviations.
const LOG_STD_MAX: f64 = 0.0;
/// Log probability correction for `tanh`: an epsilon of 1e-6 inside the logarithm, as in CleanRL.
const CORRECTION: TanhCorrection = TanhCorrection::Clipped(1e-6);

/// Network from observations to distributions of actions within their bounds: a stochastic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    /// Layers; outputs `[.., 2 A]` are the means before the `tanh` and the unscaled log standard
    /// deviations.
    pub layers: Network<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`; its last layer is 0.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds, args: &Args) -> Self {
        let (units, outputs) = (args.actor_hidden_dim, 2 * bounds.size());
        let mut layers = Network::init(key, obs_size, units, outputs);
        let (w, b) = (zeros([units / 4, outputs], DType::F32), zeros([outputs], DType::F32));
        layers.head = Dense { w, b: Some(b) };
        Actor { layers, bounds: bounds.clone() }
    }

    /// Returns the policy, a distribution of actions `[B, A]`, at `obs: f32[B, obs_size]`.
    pub fn policy(&self, obs: Tensor) -> TanhNormal<Tensor> {
        let outputs = self.layers.apply(obs).split(2, -1);
        let (mean, log_std) = (outputs[0], outputs[1].tanh());
        // From SpinUp: scales the log standard deviations to [LOG_STD_MIN, LOG_STD_MAX].
        let log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1.0);
        TanhNormal::within(mean, log_std.exp(), self.bounds.low(), self.bounds.high())
    }

    /// Returns the actions `f32[B, A]` at `obs: f32[B, obs_size]` and standard normal
    /// `noise: f32[B, A]`, and their log probabilities `f32[B]`.
    pub fn get_action(&self, obs: Tensor, noise: Tensor) -> (Tensor, Tensor) {
        let policy = self.policy(obs);
        let x = policy.normal.mean + policy.normal.std * noise;
        let action = x.tanh() * policy.scale + policy.bias;
        (action, policy.log_prob_unsquashed(x, CORRECTION))
    }
}

/// Actor and critics.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Actor<T>, // stochastic policy
    pub qf: [QNetwork<T>; 2],
}

impl Agent<Tensor> {
    /// Initializes the networks for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds, args: &Args) -> Self {
        let [actor_key, qf1_key, qf2_key] = key.split_n();
        let qf = [qf1_key, qf2_key].map(|key| QNetwork::init(key, obs_size, bounds.size(), args));
        Agent { actor: Actor::init(actor_key, obs_size, bounds, args), qf }
    }
}

/// State of the optimizers.
#[derive(Debug, Clone, Tree)]
pub struct OptState<T> {
    pub actor: AdamState<T, Actor<T>>,
    pub qf: AdamState<T, [QNetwork<T>; 2]>,
    pub log_alpha: AdamState<T, T>,
}

/// State of training but for the environments; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub target: [QNetwork<T>; 2], // target critics
    pub log_alpha: T,             // f32[]: logarithm of the entropy temperature
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
    let log_alpha = constant(args.alpha_init.ln() as f32);
    let opt_state = OptState {
        actor: args.actor_optimizer().init(&agent.actor),
        qf: args.critic_optimizer().init(&agent.qf),
        log_alpha: args.alpha_optimizer().init(&log_alpha),
    };
    let obs_stats = RunningMeanStd::new([obs_size], DType::F32);
    TrainState { target: agent.qf.clone(), agent, log_alpha, opt_state, obs_stats }
}

/// Normalizes `obs: f32[B, obs_size]`. The authors add 0.01 to the standard deviation.
fn normalize_obs(obs: Tensor, stats: &RunningMeanStd<Tensor>, args: &Args) -> Tensor {
    if args.obs_normalization { (obs - stats.mean) / (stats.var.sqrt() + 0.01) } else { obs }
}

// --------------------------------------------------------------------------------------- acting

/// State of the N environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations
    pub key: Key<T>,
}

/// Steps all environments once, with actions of the policy; returns N steps.
fn env_step(
    envs: &XlaPool,
    train_state: &TrainState<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, (EpisodeStep<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let TrainState { agent: Agent { actor, .. }, obs_stats, .. } = train_state;
    let (key, noise_key) = key.split();
    let noise = normal(noise_key, [obs.dim(0), actor.bounds.size()], DType::F32);
    let (action, _) = actor.get_action(normalize_obs(obs, obs_stats, args), noise);
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
    let episode_step = EpisodeStep { transition, truncated: step.truncated.to(DType::F32) };
    (env_state, (episode_step, EpisodeStats::from_step(&step)))
}

// ----------------------------------------------------------------------------------------- loss

/// Projects the distributions of `reward + discount * Z`, where Z has the probabilities
/// `pmf: f32[B, atoms]`, onto the support: `f32[B, atoms]`. `discount: f32[B]` is 0 or at least
/// `gamma^num_steps`.
///
/// Atom i moves to `b_i`, in units of atoms, and atom j receives `max(0, 1 - |b_i - j|)` of its
/// probability. As moved atoms are `discount` apart, only the nearest are gathered for each j.
pub fn project(reward: Tensor, discount: Tensor, pmf: Tensor, args: &Args) -> Tensor {
    let (last, j) = ((args.num_atoms - 1) as f64, arange(args.num_atoms, DType::F32));
    let [reward, discount] = [reward, discount].map(|x| x.expand_dims(-1)); // f32[B, 1]
    let b_0 = (reward + discount * args.v_min - args.v_min) / ((args.v_max - args.v_min) / last);
    let spacing = where_(discount.gt(0.0), discount, 1.0);
    let b = |i: Tensor| b_0 + spacing * i;
    // The ends of the support also receive what moves beyond them.
    let below = (pmf * (-b(j)).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
    let above = (pmf * (b(j) - last).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
    let mut projected = below * j.eq(0.0).to(DType::F32) + above * j.eq(last).to(DType::F32);
    let first = ((j - 1.0 - b_0) / spacing).floor() + 1.0;
    let least = args.gamma.powi(args.num_steps as i32);
    let (first, count) =
        if least < 0.25 { (first.maximum(0.0), last) } else { (first, 2.0 / least) };
    for k in 0..=count as usize {
        let i = first + k as f64;
        let probability = pmf.take_along_axis_mode(i.to(DType::I32), -1, IndexMode::Clip);
        let exists = (i.ge(0.0) & i.le(last)).to(DType::F32);
        let share = exists * (1.0 - (b(i) - j).abs()).maximum(0.0);
        projected = projected + share * probability;
    }
    // With discount 0 all atoms move to the reward.
    where_(discount.gt(0.0), projected, (1.0 - (b_0.clip(0.0, last) - j).abs()).maximum(0.0))
}

/// Returns the mean `f32[B]` of the distributions `pmf: f32[B, atoms]`.
fn mean_of(pmf: Tensor, args: &Args) -> Tensor {
    (pmf * args.atoms()).sum(-1)
}

/// Computes the target distributions of both critics, `f32[B, atoms]`, for normalized observations:
/// those of a next action of the policy, at standard normal `noise: f32[B, A]`, minus `alpha` times
/// its log probability, with `discount: f32[B]`. Also returns the log probabilities `f32[B]`.
pub fn target_pmfs(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    discount: Tensor,
    noise: Tensor,
    args: &Args,
) -> ([Tensor; 2], Tensor) {
    let (next_action, next_log_prob) = actor.get_action(batch.next_obs, noise);
    let discount = discount * (1.0 - batch.terminated);
    let soft_reward = batch.reward - discount * alpha * next_log_prob;
    let pmfs = target.each_ref().map(|qf| {
        let pmf = qf.apply(batch.next_obs, next_action).softmax(-1);
        project(soft_reward, discount, pmf, args)
    });
    (pmfs, next_log_prob)
}

/// Metrics of the critics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    pub qf_loss: T, // sum of both critics' losses
    pub qf_max: T,  // largest mean of the first critic's target distributions
    pub qf_min: T,  // smallest mean of the first critic's target distributions
}

/// Computes the sum of both critics' mean cross entropies to `target_pmfs`, each `f32[B, atoms]`.
pub fn critic_loss(
    qf: &[QNetwork<Tensor>; 2],
    batch: &Transition<Tensor>,
    target_pmfs: [Tensor; 2],
) -> Tensor {
    let [qf1, qf2] = qf.each_ref().map(|qf| qf.apply(batch.obs, batch.action));
    let cross_entropy = |pmf: Tensor, logits: Tensor| -(pmf * logits.log_softmax(-1)).sum(-1);
    let [pmf1, pmf2] = target_pmfs;
    cross_entropy(pmf1, qf1).mean(..) + cross_entropy(pmf2, qf2).mean(..)
}

/// Computes `mean(alpha log pi(a) - (Q_1(s, a) + Q_2(s, a)) / 2)` for the policy's actions at
/// standard normal `noise: f32[B, A]`.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    qf: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
    args: &Args,
) -> Tensor {
    let (action, log_prob) = actor.get_action(obs, noise);
    let [q1, q2] = qf.each_ref().map(|qf| mean_of(qf.apply(obs, action).softmax(-1), args));
    (alpha * log_prob - (q1 + q2) / 2.0).mean(..)
}

/// Computes `mean(-alpha (log pi(a) + target_entropy))` for log probabilities `f32[B]`.
pub fn alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: f64) -> Tensor {
    (-log_alpha.exp() * (log_prob + target_entropy)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics at standard normal `noise: f32[B, A]`; also returns the log
/// probabilities `f32[B]` of the next actions.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    discount: Tensor,
    noise: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>, Tensor) {
    let TrainState { mut agent, target, log_alpha, mut opt_state, obs_stats } = train_state;
    let (pmfs, next_log_prob) =
        target_pmfs(&agent.actor, &target, log_alpha.exp(), batch, discount, noise, args);
    let (qf_loss, grads) = value_and_grad(|qf| critic_loss(&qf, batch, pmfs))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.critic_optimizer().step(agent.qf, grads, opt_state.qf);
    let target_q = mean_of(pmfs[0], args);
    let metrics = CriticMetrics { qf_loss, qf_max: target_q.max(..), qf_min: target_q.min(..) };
    (TrainState { agent, target, log_alpha, opt_state, obs_stats }, metrics, next_log_prob)
}

/// Takes one gradient step of the actor at standard normal `noise: f32[B, A]`; returns its loss.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    noise: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { mut agent, target, log_alpha, mut opt_state, obs_stats } = train_state;
    let alpha = log_alpha.exp();
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, &agent.qf, alpha, batch.obs, noise, args);
    let (actor_loss, grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) =
        args.actor_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, log_alpha, opt_state, obs_stats }, actor_loss)
}

/// Takes one gradient step of the temperature, for actions of the log probabilities `log_prob: f32[B]`;
/// returns its loss. With `--use-autotune false` the temperature is constant and the loss is 0.
pub fn update_alpha(
    train_state: TrainState<Tensor>,
    log_prob: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, target, mut log_alpha, mut opt_state, obs_stats } = train_state;
    let mut loss = constant(0.0f32);
    if args.use_autotune {
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
    pub actor_loss: T,
    pub alpha: T,      // entropy temperature
    pub alpha_loss: T, // loss of the temperature; 0 if it is not tuned
}

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: ReplayBuffer<T, EpisodeStep<T>>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, and the episodes and metrics.
type IterationOutput = (RunnerState<Tensor>, (EpisodeStats<Tensor>, Option<Metrics<Tensor>>));

/// Steps all environments once and, if `learning`, takes `num_updates` gradient steps of the critics.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { mut train_state, replay_buffer, env_state } = state;
    train_state.obs_stats = train_state.obs_stats.update(env_state.obs);
    let (mut env_state, (steps, episodes)) = env_step(envs, &train_state, env_state, args);
    let replay_buffer = replay_buffer.add(steps);
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let update = |(mut train_state, mut key): (TrainState<Tensor>, Key<Tensor>), ()| {
        let mut metrics = None;
        for step in 1..=args.policy_frequency {
            let [next_key, sample_key, noise_key, actor_key] = key.split_n();
            key = next_key;
            let (batch_size, num_envs) = (args.batch_size, args.num_envs);
            let (mut batch, discount) = replay_buffer.sample_n_steps(
                sample_key,
                batch_size,
                num_envs,
                args.num_steps,
                args.gamma,
            );
            batch.obs = normalize_obs(batch.obs, &train_state.obs_stats, args);
            batch.next_obs = normalize_obs(batch.next_obs, &train_state.obs_stats, args);
            let noise = normal(noise_key, batch.action.shape(), DType::F32);
            let (critic, next_log_prob, actor_loss, alpha_loss);
            (train_state, critic, next_log_prob) =
                update_critic(train_state, &batch, discount, noise, args);
            (train_state, alpha_loss) = update_alpha(train_state, next_log_prob, args);
            if step == args.policy_frequency {
                let noise = normal(actor_key, batch.action.shape(), DType::F32);
                (train_state, actor_loss) = update_actor(train_state, &batch, noise, args);
                let alpha = train_state.log_alpha.exp();
                metrics = Some(Metrics { critic, actor_loss, alpha, alpha_loss });
            }
            train_state = update_target(train_state, args);
        }
        ((train_state, key), metrics)
    };
    let count = ScanOptions::length(args.num_updates / args.policy_frequency);
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
        let item = EpisodeStep::types(obs_size, TensorType::new(DType::F32, [bounds.size()]));
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
        PolicyResults::from_action(actor.bounds.clip(policy.mode()))
            .with("mean", normal.mean)
            .with("std", normal.std)
    }))
}
