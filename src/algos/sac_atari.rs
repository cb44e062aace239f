//! Soft actor-critic (SAC) for discrete actions on images (Christodoulou 2019): CleanRL's
//! `sac_atari.py`. Environment steps, the replay buffer and gradient steps are one compiled
//! program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/sac_atari.md`.

use crate::distributions::Categorical;
use crate::nn::{Dense, Encoder, init};
use crate::optim::{incremental_update, periodic_update};
use crate::random::randint;
use crate::rl::buffers::frames::{
    FrameBuffer, FrameTransition, SampledBatch, min_buffer_size, newest_frame, stack_and_frame,
};
use crate::rl::prelude::*;
use crate::rl::settings::flags::{at_least_one_call, largest_divisor, update_schedule};

// ------------------------------------------------------------------------------------- settings

/// SAC for Atari games and MinAtar
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "BeamRider-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "5000000")]
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
    /// The target network update rate tau (Polyak averaging); 1 copies the critics
    #[arg(long, default_value = "1.0")]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "64")]
    pub batch_size: usize,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value = "20000")]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimizer
    #[arg(long, default_value = "3e-4")]
    pub policy_lr: f64,
    /// The learning rate of the optimizers of the critics and of the temperature
    #[arg(long, default_value = "3e-4")]
    pub q_lr: f64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value = "4")]
    pub update_frequency: usize,
    /// The number of timesteps between updates of the target critics
    #[arg(long, default_value = "8000")]
    pub target_network_frequency: usize,
    /// The entropy temperature alpha, used if --autotune is false
    #[arg(long, default_value = "0.2")]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value = "true")]
    pub autotune: bool,
    /// The target entropy of --autotune as a fraction of the maximum entropy
    #[arg(long, default_value = "0.89")]
    pub target_entropy_scale: f64,
}

impl Args {
    /// Number of gradient steps in one call of the compiled program.
    fn updates_per_call(&self) -> usize {
        largest_divisor(self.target_network_frequency / self.update_frequency, 250)
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps_per_call(&self) -> u64 {
        (self.updates_per_call() * self.update_frequency) as u64
    }

    fn policy_optimizer(&self) -> Adam {
        Adam { learning_rate: self.policy_lr, eps: 1e-4, ..Adam::default() }
    }

    fn q_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, eps: 1e-4, ..Adam::default() }
    }

    fn check(&self) -> Result<()> {
        let (update, target) = (self.update_frequency, self.target_network_frequency);
        update_schedule(self.num_envs, ("update-frequency", update), target)?;
        at_least_one_call(self.total_timesteps, self.steps_per_call())?;
        let least = min_buffer_size(update, self.num_envs);
        within("buffer-size", self.buffer_size, least, i32::MAX as usize)
    }
}

registered_algorithm!(Args, "sac_atari", FOUR_FRAMES_OR_BOARDS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Initializes the encoder of an actor or critic.
fn encoder(key: Key<Tensor>, sizes: &Sizes) -> Encoder<Tensor> {
    let (convs_key, hidden_key) = key.split();
    let kernel = init::kaiming_normal();
    Encoder::init_convs(convs_key, sizes.obs_kind, &sizes.shape, kernel)
        .with_hidden(hidden_key, kernel)
}

/// Network from images to action values.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub trunk: Encoder<T>, // network from images to features
    pub head: Dense<T>,    // layer from features to action values
}

impl QNetwork<Tensor> {
    /// Initializes a network.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> QNetwork<Tensor> {
        let (trunk_key, head_key) = key.split();
        let trunk = encoder(trunk_key, sizes);
        let kernel = init::kaiming_normal();
        QNetwork { head: Dense::init(head_key, trunk.size(), sizes.num_actions, kernel), trunk }
    }

    /// Returns action values `f32[B, actions]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(obs))
    }
}

/// Network from images to action logits; it shares no parameters with the critics.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    pub trunk: Encoder<T>, // network from images to features
    pub head: Dense<T>,    // layer from features to logits
}

impl Actor<Tensor> {
    /// Initializes a network.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Actor<Tensor> {
        let (trunk_key, head_key) = key.split();
        let trunk = encoder(trunk_key, sizes);
        let kernel = init::kaiming_normal();
        Actor { head: Dense::init(head_key, trunk.size(), sizes.num_actions, kernel), trunk }
    }

    /// Returns the policy at observations `[B, ..]`.
    pub fn policy(&self, obs: Tensor) -> Categorical<Tensor> {
        Categorical::new(self.head.apply(self.trunk.apply(obs)))
    }

    /// Returns the number of actions.
    fn num_actions(&self) -> usize {
        self.head.w.dim(1)
    }
}

/// Actor and critics.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Actor<T>, // stochastic policy
    pub qf: [QNetwork<T>; 2],
}

impl Agent<Tensor> {
    /// Initializes the networks.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [actor_key, qf1_key, qf2_key] = key.split_n();
        let qf = [qf1_key, qf2_key].map(|key| QNetwork::init(key, sizes));
        Agent { actor: Actor::init(actor_key, sizes), qf }
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
fn init_train_state(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes);
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

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations
    pub age: T,            // i32[N]: steps since the episode began, up to 255
    pub global_step: T,    // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Steps all environments once, with actions of the policy if `learning`, otherwise with uniformly
/// random actions; returns N transitions.
fn env_step(
    envs: &XlaPool,
    actor: &Actor<Tensor>,
    env_state: EnvState<Tensor>,
    learning: bool,
) -> (EnvState<Tensor>, (FrameTransition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, age, global_step, key } = env_state;
    let (key, action_key) = key.split();
    let (num_envs, num_actions) = (obs.dim(0), actor.num_actions() as i32);
    let action = match learning {
        true => actor.policy(obs).sample(action_key),
        false => randint(action_key, [num_envs], 0, num_actions, DType::I32),
    };
    let (handle, step) = envs.step(handle, action);
    let transition = FrameTransition {
        frame: newest_frame(actor.trunk.obs_kind, obs),
        age,
        action,
        reward: step.reward,
        terminated: step.terminated,
        truncated: step.truncated,
    };
    let age = where_(step.first, zeros_like(age), (age + 1).minimum(255));
    let global_step = global_step + num_envs as i32;
    let env_state = EnvState { handle, obs: step.obs, age, global_step, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

// ----------------------------------------------------------------------------------------- loss

/// Returns the minimum of the critics' values of each action, `f32[B, actions]`.
fn min_q(qf: &[QNetwork<Tensor>; 2], obs: Tensor) -> Tensor {
    let [qf1, qf2] = qf;
    qf1.apply(obs).minimum(qf2.apply(obs))
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted expectation, under the policy,
/// of the next actions' soft values: the minimum of the target critics' values minus `alpha` times
/// the log probability.
pub fn td_target(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    batch: &SampledBatch<Tensor>,
) -> Tensor {
    let policy = actor.policy(batch.next_obs);
    let next_q_values = min_q(target, batch.next_obs) - alpha * policy.log_probs();
    batch.reward + batch.discount * (policy.probs() * next_q_values).sum(-1)
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
    batch: &SampledBatch<Tensor>,
    td_target: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let [qf1, qf2] = qf.each_ref().map(|qf| q_at_action(qf.apply(batch.obs), batch.action));
    let [qf1_loss, qf2_loss] = [qf1, qf2].map(|q_value| (q_value - td_target).square().mean(..));
    let (qf1_values, qf2_values) = (qf1.mean(..), qf2.mean(..));
    (qf1_loss + qf2_loss, CriticMetrics { qf1_loss, qf2_loss, qf1_values, qf2_values })
}

/// Computes `mean(pi (alpha log pi - min_i Q_i))` over the batch and the actions, with the minimum
/// of the critics' values `min_q_values: f32[B, actions]`; also returns the policy.
pub fn actor_loss(
    actor: &Actor<Tensor>,
    min_q_values: Tensor,
    alpha: Tensor,
    obs: Tensor,
) -> (Tensor, Categorical<Tensor>) {
    let policy = actor.policy(obs);
    let loss = (policy.probs() * (alpha * policy.log_probs() - min_q_values)).mean(..);
    (loss, policy)
}

/// Computes `mean(-pi alpha (log pi + target_entropy))` over the batch and the actions.
pub fn alpha_loss(log_alpha: Tensor, policy: &Categorical<Tensor>, target_entropy: f64) -> Tensor {
    (policy.probs() * (-log_alpha.exp() * (policy.log_probs() + target_entropy))).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics.
fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let td_target = td_target(&agent.actor, &target, log_alpha.exp(), batch);
    let ((_, metrics), grads) =
        value_and_grad(|qf| critic_loss(&qf, batch, td_target))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.q_optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, target, log_alpha, opt_state }, metrics)
}

/// Takes one gradient step of the actor; returns its loss and the policy before the step.
fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor, Categorical<Tensor>) {
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let (alpha, min_q_values) = (log_alpha.exp(), min_q(&agent.qf, batch.obs));
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, min_q_values, alpha, batch.obs);
    let ((actor_loss, policy), grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) =
        args.policy_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, log_alpha, opt_state }, actor_loss, policy)
}

/// Takes one gradient step of the temperature, for a target entropy of `target_entropy_scale` times
/// the maximum; returns its loss. Without `--autotune` the temperature stays and the loss is 0.
fn update_alpha(
    train_state: TrainState<Tensor>,
    policy: &Categorical<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, target, mut log_alpha, mut opt_state } = train_state;
    let mut loss = constant(0.0f32);
    if args.autotune {
        let max_entropy = (agent.actor.num_actions() as f64).ln();
        let target_entropy = args.target_entropy_scale * max_entropy;
        let grads;
        (loss, grads) =
            value_and_grad(|log_alpha: Tensor| alpha_loss(log_alpha, policy, target_entropy))(
                log_alpha,
            );
        (log_alpha, opt_state.log_alpha) =
            args.q_optimizer().step(log_alpha, grads, opt_state.log_alpha);
    }
    (TrainState { agent, target, log_alpha, opt_state }, loss)
}

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub critic: CriticMetrics<T>,
    pub qf_loss: T, // mean of both critics' losses
    pub actor_loss: T,
    pub alpha: T,      // entropy temperature
    pub alpha_loss: T, // loss of the temperature; 0 if it is not tuned
}

/// Takes one gradient step on a batch: of the critics, of the actor and, with `--autotune`, of the
/// temperature.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let (train_state, critic) = update_critic(train_state, batch, args);
    let (train_state, actor_loss, policy) = update_actor(train_state, batch, args);
    let (train_state, alpha_loss) = update_alpha(train_state, &policy, args);
    let qf_loss = (critic.qf1_loss + critic.qf2_loss) / 2.0;
    let alpha = train_state.log_alpha.exp();
    (train_state, Metrics { critic, qf_loss, actor_loss, alpha, alpha_loss })
}

/// Updates the target critics if the timestep is a multiple of `target_network_frequency`.
fn update_target(
    train_state: TrainState<Tensor>,
    global_step: Tensor,
    args: &Args,
) -> TrainState<Tensor> {
    let TrainState { agent, target, .. } = &train_state;
    let updated = incremental_update(&agent.qf, target, args.tau);
    let target = periodic_update(&updated, target, global_step, args.target_network_frequency);
    TrainState { target, ..train_state }
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: FrameBuffer<T>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, and the episodes and metrics.
type IterationOutput = (RunnerState<Tensor>, (EpisodeStats<Tensor>, Option<Metrics<Tensor>>));

/// Takes `update_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { train_state, replay_buffer, env_state } = state;
    let step = |env_state, ()| env_step(envs, &train_state.agent.actor, env_state, learning);
    let num_steps = ScanOptions::length(args.update_frequency / args.num_envs);
    let (mut env_state, (transitions, episodes)) = scan_with(step, env_state, (), num_steps);
    let replay_buffer = replay_buffer.add(transitions);
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let (key, sample_key) = env_state.key.split();
    env_state.key = key;
    let batch = replay_buffer.sample(sample_key, args.batch_size, 1, args.gamma);
    let (train_state, metrics) = gradient_step(train_state, &batch, args);
    (RunnerState { train_state, replay_buffer, env_state }, (episodes, Some(metrics)))
}

/// Runs `updates_per_call` iterations, and updates the target critics after them if it is due;
/// compiled as one program.
fn train_iterations(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let iteration = |state, ()| train_iteration(envs, state, learning, args);
    let count = ScanOptions::length(args.updates_per_call());
    let (mut state, (episodes, metrics)) = scan_with(iteration, state, (), count);
    if learning {
        state.train_state = update_target(state.train_state, state.env_state.global_step, args);
    }
    (state, episodes, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let mut trainer = Trainer::start(args, args.steps_per_call())?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network_key) = key.split();
        let (handle, first) = envs.reset(handle);
        let (age, global_step) = (zeros([args.num_envs], DType::I32), constant(0i32));
        let (stack, frame) = stack_and_frame(sizes.obs_kind, &sizes.shape);
        RunnerState {
            train_state: init_train_state(network_key, &sizes, args),
            replay_buffer: FrameBuffer::new(args.buffer_size, args.num_envs, stack, &frame),
            env_state: EnvState { handle, obs: first.obs, age, global_step, key },
        }
    });
    let explore = trainer.jit("explore", |state| train_iterations(&envs, state, false, args));
    let learn = trainer.jit("learn", |state| train_iterations(&envs, state, true, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    // The first call never learns: a transition is complete only after the next step.
    let learning_starts = args.learning_starts.max(1);
    while trainer.should_continue() {
        let (next_state, episodes, metrics) = match trainer.global_step() < learning_starts {
            true => explore.call(state)?,
            false => learn.call(state)?,
        };
        state = next_state;
        trainer.record(&episodes.to_vec()?, metrics.as_ref())?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the most likely action and the logits.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::images(args, 1, args.run.eval_seed())?;
    let train_state = load_model(model, |key| init_train_state(key, &sizes, args))?;
    Ok(Policy::new(pool, train_state.agent.actor, |actor: &Actor<Tensor>, obs| {
        let policy = actor.policy(obs);
        PolicyResults::from_values("logits", policy.logits).with_bars(policy.probs())
    }))
}
