//! Soft actor-critic (SAC, Haarnoja et al. 2018) for continuous actions: CleanRL's
//! `sac_continuous_action.py`. Environment steps, the replay buffer and gradient steps are one
//! compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/sac_continuous_action.md`.

use crate::distributions::{TanhCorrection, TanhNormal};
use crate::nn::{Activation, Dense, Mlp};
use crate::optim::{incremental_update, periodic_update};
use crate::random::normal;
use crate::rl::buffers::replay::{ReplayBuffer, Transition, concatenate_steps};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::trace::ops::concatenate;

// ------------------------------------------------------------------------------------- settings

/// SAC for continuous actions
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Hopper-v4")]
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
    #[arg(long, default_value = "3e-4")]
    pub policy_lr: f64,
    /// The learning rate of the optimizers of the critics and of the temperature
    #[arg(long, default_value = "1e-3")]
    pub q_lr: f64,
    /// The actor is updated once per this many critic updates, by as many gradient steps
    #[arg(long, default_value = "2")]
    pub policy_frequency: usize,
    /// The number of critic updates between updates of the target critics
    #[arg(long, default_value = "1")]
    pub target_network_frequency: usize,
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
        Adam { learning_rate: self.policy_lr, ..Adam::default() }
    }

    fn q_optimizer(&self) -> Adam {
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
    "sac_continuous_action",
    BOUNDED_CONTINUOUS,
    Args::check,
    train,
    policy
);

// -------------------------------------------------------------------------------------- network

/// Initializes a network with two hidden layers of 256 units, with PyTorch's initialization.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    let [key1, key2, key3] = key.split_n();
    let layers = vec![
        Dense::init_torch(key1, inputs, 256),
        Dense::init_torch(key2, 256, 256),
        Dense::init_torch(key3, 256, outputs),
    ];
    Mlp { layers, activation: Activation::Relu }
}

/// Network from observations and actions to values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Mlp<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations of size `obs_size` and actions of size `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> QNetwork<Tensor> {
        QNetwork { layers: network(key, obs_size + action_size, 1) }
    }

    /// Returns the values `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor, action: Tensor) -> Tensor {
        self.layers.apply(concatenate(&[obs, action], -1)).squeeze(-1)
    }
}

/// Minimum of the policy's log standard deviations.
const LOG_STD_MIN: f64 = -5.0;
/// Maximum of the policy's log standard deviations.
const LOG_STD_MAX: f64 = 2.0;
/// Log probability correction for `tanh`: an epsilon of 1e-6 inside the logarithm, as in CleanRL.
const CORRECTION: TanhCorrection = TanhCorrection::Clipped(1e-6);

/// Network from observations to distributions of actions within their bounds: a stochastic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    /// Layers; outputs `[.., 2 A]` are the means before the `tanh` and the unscaled log standard
    /// deviations.
    pub layers: Mlp<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds) -> Actor<Tensor> {
        Actor { layers: network(key, obs_size, 2 * bounds.size()), bounds: bounds.clone() }
    }

    /// Returns the policy, a distribution of actions `[B, A]`, at `obs: f32[B, obs_size]`.
    pub fn policy(&self, obs: Tensor) -> TanhNormal<Tensor> {
        let outputs = self.layers.apply(obs).split(2, -1);
        let (mean, log_std) = (outputs[0], outputs[1].tanh());
        // From SpinUp: scales the log standard deviations to [LOG_STD_MIN, LOG_STD_MAX].
        let log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (log_std + 1.0);
        TanhNormal::within(mean, log_std.exp(), self.bounds.low(), self.bounds.high())
    }

    /// Samples actions `f32[B, A]` at `obs: f32[B, obs_size]`; also returns their log probabilities
    /// `f32[B]`.
    pub fn get_action(&self, obs: Tensor, key: Key<Tensor>) -> (Tensor, Tensor) {
        self.policy(obs).sample_and_log_prob(key, CORRECTION)
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
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds) -> Agent<Tensor> {
        let [actor_key, qf1_key, qf2_key] = key.split_n();
        let qf = [qf1_key, qf2_key].map(|key| QNetwork::init(key, obs_size, bounds.size()));
        Agent { actor: Actor::init(actor_key, obs_size, bounds), qf }
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
    pub target: [QNetwork<T>; 2],
    pub log_alpha: T, // f32[]: logarithm of the entropy temperature
    pub opt_state: OptState<T>,
}

/// Initializes the networks, the targets, the temperature and the optimizers.
fn init_train_state(
    key: Key<Tensor>,
    obs_size: usize,
    bounds: &Bounds,
    args: &Args,
) -> TrainState<Tensor> {
    let agent = Agent::init(key, obs_size, bounds);
    let alpha = if args.autotune { 1.0 } else { args.alpha };
    let log_alpha = constant(alpha.ln() as f32);
    let opt_state = OptState {
        actor: args.policy_optimizer().init(&agent.actor),
        qf: args.q_optimizer().init(&agent.qf),
        log_alpha: args.q_optimizer().init(&log_alpha),
    };
    TrainState { target: agent.qf.clone(), agent, log_alpha, opt_state }
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
    actor: &Actor<Tensor>,
    env_state: EnvState<Tensor>,
    learning: bool,
) -> (EnvState<Tensor>, (Transition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let action = match learning {
        true => actor.get_action(obs, action_key).0,
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
    actor: &Actor<Tensor>,
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

/// Returns the minimum `f32[B]` of both critics' values of `action: f32[B, A]`.
fn min_q(qf: &[QNetwork<Tensor>; 2], obs: Tensor, action: Tensor) -> Tensor {
    let [qf1, qf2] = qf;
    qf1.apply(obs, action).minimum(qf2.apply(obs, action))
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted soft value of a sampled next
/// action, which is the minimum of the target critics' values minus `alpha` times its log
/// probability.
pub fn td_target(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> Tensor {
    let (next_action, next_log_prob) = actor.get_action(batch.next_obs, key);
    let next_q_value = min_q(target, batch.next_obs, next_action) - alpha * next_log_prob;
    batch.reward + args.gamma * (1.0 - batch.terminated) * next_q_value
}

/// Metrics of the critics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    pub qf1_loss: T,   // loss of the first critic
    pub qf2_loss: T,   // loss of the second critic
    pub qf1_values: T, // mean value, under the first critic, of the actions taken
    pub qf2_values: T, // mean value, under the second critic, of the actions taken
}

/// Computes the sum of both critics' mean squared errors to `td_target: f32[B]`, and their metrics.
pub fn critic_loss(
    qf: &[QNetwork<Tensor>; 2],
    batch: &Transition<Tensor>,
    td_target: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let [qf1, qf2] = qf.each_ref().map(|qf| qf.apply(batch.obs, batch.action)); // f32[B]
    let [qf1_loss, qf2_loss] = [qf1, qf2].map(|q_value| (q_value - td_target).square().mean(..));
    let (qf1_values, qf2_values) = (qf1.mean(..), qf2.mean(..));
    (qf1_loss + qf2_loss, CriticMetrics { qf1_loss, qf2_loss, qf1_values, qf2_values })
}

/// Computes `mean(alpha log pi(a) - min_i Q_i(s, a))` for the policy's actions at standard normal
/// `noise: f32[B, A]`.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    qf: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
) -> Tensor {
    let policy = actor.policy(obs);
    let x = policy.normal.mean + policy.normal.std * noise;
    let action = x.tanh() * policy.scale + policy.bias;
    let log_prob = policy.log_prob_unsquashed(x, CORRECTION);
    (alpha * log_prob - min_q(qf, obs, action)).mean(..)
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
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let td_target = td_target(&agent.actor, &target, log_alpha.exp(), batch, key, args);
    let ((_, metrics), grads) =
        value_and_grad(|qf| critic_loss(&qf, batch, td_target))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.q_optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, target, log_alpha, opt_state }, metrics)
}

/// Takes one gradient step of the actor; returns its loss.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let alpha = log_alpha.exp();
    let noise = normal(key, batch.action.shape(), DType::F32);
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, &agent.qf, alpha, batch.obs, noise);
    let (actor_loss, grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) =
        args.policy_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, log_alpha, opt_state }, actor_loss)
}

/// Takes one gradient step of the temperature, for a target entropy of minus the action size;
/// returns its loss. With `--autotune false` the temperature is constant and the loss is 0.
pub fn update_alpha(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, target, mut log_alpha, mut opt_state } = train_state;
    let mut loss = constant(0.0f32);
    if args.autotune {
        let (_, log_prob) = agent.actor.get_action(batch.obs, key);
        let target_entropy = -(agent.actor.bounds.size() as f64);
        let grads;
        (loss, grads) =
            value_and_grad(|log_alpha: Tensor| alpha_loss(log_alpha, log_prob, target_entropy))(
                log_alpha,
            );
        (log_alpha, opt_state.log_alpha) =
            args.q_optimizer().step(log_alpha, grads, opt_state.log_alpha);
    }
    (TrainState { agent, target, log_alpha, opt_state }, loss)
}

/// Updates the target critics if the number of critic updates so far is a multiple of
/// `target_network_frequency`.
pub fn update_target(train_state: TrainState<Tensor>, args: &Args) -> TrainState<Tensor> {
    let TrainState { agent, target, opt_state, .. } = &train_state;
    let updated = incremental_update(&agent.qf, target, args.tau);
    let target = match args.target_network_frequency {
        1 => updated,
        frequency => periodic_update(&updated, target, opt_state.qf.count, frequency),
    };
    TrainState { target, ..train_state }
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
    let (mut env_state, transitions, episodes) =
        env_steps(envs, &train_state.agent.actor, env_state, learning, args);
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
            let critic;
            (train_state, critic) = update_critic(train_state, &batch, critic_key, args);
            if step == args.policy_frequency {
                // Compensates for the delay: the actor takes policy_frequency gradient steps, not one.
                let [mut actor_loss, mut alpha_loss] = [constant(0.0f32); 2];
                for key in actor_key.split_vec(args.policy_frequency) {
                    let (actor_key, alpha_key) = key.split();
                    (train_state, actor_loss) = update_actor(train_state, &batch, actor_key, args);
                    (train_state, alpha_loss) = update_alpha(train_state, &batch, alpha_key, args);
                }
                let qf_loss = (critic.qf1_loss + critic.qf2_loss) / 2.0;
                let alpha = train_state.log_alpha.exp();
                metrics = Some(Metrics { critic, qf_loss, actor_loss, alpha, alpha_loss });
            }
            train_state = update_target(train_state, args);
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
    Ok(Policy::new(pool, train_state.agent.actor, move |actor: &Actor<Tensor>, obs| {
        let policy = actor.policy(obs.to(DType::F32));
        let normal = policy.normal;
        PolicyResults::from_action(actor.bounds.clip(policy.mode()))
            .with("mean", normal.mean)
            .with("std", normal.std)
    }))
}
