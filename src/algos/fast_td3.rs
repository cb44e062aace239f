//! FastTD3 (Seo et al. 2025), the authors' `fast_td3`: TD3 with many environments, large batches,
//! distributional critics and normalized observations. Environment steps, the replay buffer and
//! gradient steps are one compiled program.
//!
//! Differences from the authors' code, with reasons, are listed in `docs/algos/fast_td3.md`.

use crate::nn::normalize::RunningMeanStd;
use crate::nn::{Activation, Dense, Mlp};
use crate::optim::incremental_update;
use crate::random::{normal, uniform};
use crate::rl::buffers::replay::{EpisodeStep, ReplayBuffer, Transition};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::rl::settings::flags::support;
use crate::trace::ops::{IndexMode, arange, concatenate};

// ------------------------------------------------------------------------------------- settings

// The defaults are the authors', for a GPU; docs/algos/fast_td3.md has some for CPUs.
/// FastTD3 for continuous actions
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment, of all environments together
    #[arg(long, default_value = "10000000")]
    pub total_timesteps: u64,
    /// The number of parallel environments
    #[arg(long, default_value = "128")]
    pub num_envs: usize,
    /// The learning rate of the critics' optimizer
    #[arg(long, default_value = "3e-4")]
    pub critic_learning_rate: f64,
    /// The learning rate of the actor's optimizer
    #[arg(long, default_value = "3e-4")]
    pub actor_learning_rate: f64,
    /// The weight decay of the optimizers (AdamW)
    #[arg(long, default_value = "0.1")]
    pub weight_decay: f64,
    /// The size of the replay buffer, in transitions of all environments
    #[arg(long, default_value = "1000000")]
    pub buffer_size: usize,
    /// The number of steps of the returns in targets
    #[arg(long, default_value = "1")]
    pub num_steps: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging)
    #[arg(long, default_value = "0.1")]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "32768")]
    pub batch_size: usize,
    /// The standard deviation of the target policy noise, relative to the action scale
    #[arg(long, default_value = "0.001")]
    pub policy_noise: f64,
    /// The clip range of the target policy noise, relative to the action scale
    #[arg(long, default_value = "0.5")]
    pub noise_clip: f64,
    /// The smallest deviation of the exploration noise, relative to the action scale
    #[arg(long, default_value = "0.001")]
    pub std_min: f64,
    /// The largest deviation of the exploration noise, relative to the action scale
    #[arg(long, default_value = "0.4")]
    pub std_max: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value = "1280")]
    pub learning_starts: u64,
    /// The number of critic updates after each step of the environments
    #[arg(long, default_value = "2")]
    pub num_updates: usize,
    /// The number of critic updates between updates of the actor
    #[arg(long, default_value = "2")]
    pub policy_frequency: usize,
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value = "101")]
    pub num_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value = "-250.0")]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value = "250.0")]
    pub v_max: f64,
    /// Units of the critics' hidden layers: this many, a half and a quarter of it
    #[arg(long, default_value = "1024")]
    pub critic_hidden_dim: usize,
    /// Units of the actor's hidden layers: this many, a half and a quarter of it
    #[arg(long, default_value = "512")]
    pub actor_hidden_dim: usize,
    /// The standard deviation of the initial weights of the actor's last layer
    #[arg(long, default_value = "0.01")]
    pub init_scale: f64,
    /// Learn from the critic of the lower value (clipped double Q-learning), instead of both
    #[arg(long, default_value = "true")]
    pub use_cdq: bool,
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
        self.optimizer(self.critic_learning_rate)
    }

    fn actor_optimizer(&self) -> Adam {
        self.optimizer(self.actor_learning_rate)
    }

    fn optimizer(&self, learning_rate: f64) -> Adam {
        Adam { learning_rate, weight_decay: self.weight_decay, ..Adam::default() }
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
        let expected = format!("at most --std-max {}", self.std_max);
        ensure(self.std_min <= self.std_max, "std-min", self.std_min, &expected)?;
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

registered_algorithm!(Args, "fast_td3", BOUNDED_CONTINUOUS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Initializes three hidden layers of `units`, half and a quarter of them, and an output layer, with
/// PyTorch's initialization.
fn network(key: Key<Tensor>, inputs: usize, units: usize, outputs: usize) -> Mlp<Tensor> {
    let sizes = [inputs, units, units / 2, units / 4, outputs];
    let keys: [Key<Tensor>; 4] = key.split_n();
    let layers = keys.into_iter().zip(sizes.windows(2));
    let layers = layers.map(|(key, sizes)| Dense::init_torch(key, sizes[0], sizes[1])).collect();
    Mlp { layers, activation: Activation::Relu }
}

/// Network from observations and actions to distributions of returns.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Mlp<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size` and actions of size `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Self {
        let inputs = obs_size + action_size;
        QNetwork { layers: network(key, inputs, args.critic_hidden_dim, args.num_atoms) }
    }

    /// Returns the logits `f32[B, atoms]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor, action: Tensor) -> Tensor {
        self.layers.apply(concatenate(&[obs, action], -1))
    }
}

/// Network from observations to actions between -1 and 1: a deterministic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    pub layers: Mlp<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds, args: &Args) -> Self {
        let (key, last_key) = key.split();
        let (units, action_size) = (args.actor_hidden_dim, bounds.size());
        let mut layers = network(key, obs_size, units, action_size);
        let w = normal(last_key, [units / 4, action_size], DType::F32) * args.init_scale;
        layers.layers[3] = Dense { w, b: Some(zeros([action_size], DType::F32)) };
        Actor { layers, bounds: bounds.clone() }
    }

    /// Returns the actions `f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.layers.apply(obs).tanh()
    }

    /// Scales `action: f32[B, A]`, between -1 and 1, to the bounds, and clips what lies beyond them.
    pub fn within_bounds(&self, action: Tensor) -> Tensor {
        let (action_scale, action_bias) = (self.bounds.action_scale(), self.bounds.action_bias());
        self.bounds.clip(action * action_scale + action_bias)
    }
}

/// Actor and critics.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Actor<T>, // deterministic policy
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
}

/// State of training but for the environments; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub target: [QNetwork<T>; 2], // target critics
    pub opt_state: OptState<T>,
    pub obs_stats: RunningMeanStd<T>, // statistics of observations
}

/// Initializes the networks, the targets, the optimizers and the statistics.
fn init_train_state(
    key: Key<Tensor>,
    obs_size: usize,
    bounds: &Bounds,
    args: &Args,
) -> TrainState<Tensor> {
    let agent = Agent::init(key, obs_size, bounds, args);
    let opt_state = OptState {
        actor: args.actor_optimizer().init(&agent.actor),
        qf: args.critic_optimizer().init(&agent.qf),
    };
    let obs_stats = RunningMeanStd::new([obs_size], DType::F32);
    TrainState { target: agent.qf.clone(), agent, opt_state, obs_stats }
}

/// Normalizes `obs: f32[B, obs_size]`. The authors add 0.01 to the standard deviation.
fn normalize_obs(obs: Tensor, stats: &RunningMeanStd<Tensor>, args: &Args) -> Tensor {
    if args.obs_normalization { (obs - stats.mean) / (stats.var.sqrt() + 0.01) } else { obs }
}

// --------------------------------------------------------------------------------------- acting

/// Samples a standard deviation of the exploration noise for each of `num_envs` environments,
/// uniformly from `std_min` to `std_max`: `f32[N, 1]`.
fn sample_noise_scale(key: Key<Tensor>, num_envs: usize, args: &Args) -> Tensor {
    uniform(key, [num_envs, 1], DType::F32, args.std_min, args.std_max)
}

/// State of the N environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations
    pub noise_scale: T,    // f32[N, 1]: standard deviations of the exploration noise
    pub key: Key<T>,
}

/// Steps all environments once, with exploration noise, whose scale is sampled anew after an
/// episode; returns N steps.
fn env_step(
    envs: &XlaPool,
    train_state: &TrainState<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, (EpisodeStep<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, noise_scale, key } = env_state;
    let TrainState { agent: Agent { actor, .. }, obs_stats, .. } = train_state;
    let [key, noise_key, scale_key] = key.split_n();
    let action = actor.apply(normalize_obs(obs, obs_stats, args));
    let action = action + normal(noise_key, action.shape(), DType::F32) * noise_scale;
    let (handle, step) = envs.step(handle, actor.within_bounds(action));
    let transition = Transition {
        obs,
        action,
        reward: step.reward,
        // The final observation where an episode ended: `step.obs` is that after the reset.
        next_obs: envs.next_obs_of(&step).to(DType::F32),
        terminated: step.terminated.to(DType::F32),
    };
    let done = (step.terminated | step.truncated).expand_dims(-1);
    let new_scale = sample_noise_scale(scale_key, obs.dim(0), args);
    let noise_scale = where_(done, new_scale, noise_scale);
    let env_state = EnvState { handle, obs: step.obs.to(DType::F32), noise_scale, key };
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
/// those of the actor's next action, to which clipped noise is added, with `discount: f32[B]`. With
/// `use_cdq` both are that of the lower mean.
pub fn target_pmfs(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>; 2],
    batch: &Transition<Tensor>,
    discount: Tensor,
    noise: Tensor,
    args: &Args,
) -> [Tensor; 2] {
    let clipped_noise = (noise * args.policy_noise).clip(-args.noise_clip, args.noise_clip);
    let next_action = (actor.apply(batch.next_obs) + clipped_noise).clip(-1.0, 1.0);
    let discount = discount * (1.0 - batch.terminated);
    let [pmf1, pmf2] = target.each_ref().map(|qf| {
        let pmf = qf.apply(batch.next_obs, next_action).softmax(-1);
        project(batch.reward, discount, pmf, args)
    });
    if !args.use_cdq {
        return [pmf1, pmf2];
    }
    let first_is_lower = mean_of(pmf1, args).lt(mean_of(pmf2, args)).expand_dims(-1);
    [where_(first_is_lower, pmf1, pmf2); 2]
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

/// Computes the negative mean value of the actor's actions at `obs: f32[B, obs_size]`: the lower of
/// both critics' with `use_cdq`, else their mean.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    qf: &[QNetwork<Tensor>; 2],
    obs: Tensor,
    args: &Args,
) -> Tensor {
    let action = actor.apply(obs);
    let [q1, q2] = qf.each_ref().map(|qf| mean_of(qf.apply(obs, action).softmax(-1), args));
    let q_value = if args.use_cdq { q1.minimum(q2) } else { (q1 + q2) / 2.0 };
    -q_value.mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics at standard normal `noise: f32[B, A]`.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    discount: Tensor,
    noise: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, target, mut opt_state, obs_stats } = train_state;
    let pmfs = target_pmfs(&agent.actor, &target, batch, discount, noise, args);
    let (qf_loss, grads) = value_and_grad(|qf| critic_loss(&qf, batch, pmfs))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.critic_optimizer().step(agent.qf, grads, opt_state.qf);
    let target_q = mean_of(pmfs[0], args);
    let metrics = CriticMetrics { qf_loss, qf_max: target_q.max(..), qf_min: target_q.min(..) };
    (TrainState { agent, target, opt_state, obs_stats }, metrics)
}

/// Takes one gradient step of the actor; returns its loss.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { mut agent, target, mut opt_state, obs_stats } = train_state;
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, &agent.qf, batch.obs, args);
    let (actor_loss, grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) =
        args.actor_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, opt_state, obs_stats }, actor_loss)
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
            let [next_key, sample_key, noise_key] = key.split_n();
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
            let (critic, actor_loss);
            (train_state, critic) = update_critic(train_state, &batch, discount, noise, args);
            if step == args.policy_frequency {
                (train_state, actor_loss) = update_actor(train_state, &batch, args);
                metrics = Some(Metrics { critic, actor_loss });
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
        let [key, network_key, scale_key] = key.split_n();
        let (handle, first) = envs.reset(handle);
        let (obs, num_envs) = (first.obs.to(DType::F32), args.num_envs);
        let noise_scale = sample_noise_scale(scale_key, num_envs, args);
        let item = EpisodeStep::types(obs_size, TensorType::new(DType::F32, [bounds.size()]));
        RunnerState {
            train_state: init_train_state(network_key, obs_size, &bounds, args),
            replay_buffer: ReplayBuffer::new(args.buffer_size, item),
            env_state: EnvState { handle, obs, noise_scale, key },
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

/// Returns the policy of a saved model: the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, obs_size, bounds) = pools::continuous(args, 1, args.run.eval_seed())?;
    let train_state = load_model(model, |key| init_train_state(key, obs_size, &bounds, args))?;
    type Parameters<T> = (Actor<T>, RunningMeanStd<T>);
    let parameters = (train_state.agent.actor, train_state.obs_stats);
    let args = args.clone();
    Ok(Policy::new(pool, parameters, move |(actor, stats): &Parameters<Tensor>, obs| {
        let obs = normalize_obs(obs.to(DType::F32), stats, &args);
        PolicyResults::from_action(actor.within_bounds(actor.apply(obs)))
    }))
}
