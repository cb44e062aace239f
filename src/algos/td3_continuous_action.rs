//! Twin delayed deep deterministic policy gradient (TD3, Fujimoto et al. 2018) for continuous
//! actions: CleanRL's `td3_continuous_action_jax.py`. Environment steps, the replay buffer and
//! gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/td3_continuous_action.md`.

use crate::nn::{Activation, Mlp};
use crate::optim::incremental_update;
use crate::random::normal;
use crate::rl::buffers::replay::{ReplayBuffer, Transition, concatenate_steps};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::trace::ops::concatenate;

// ------------------------------------------------------------------------------------- settings

/// TD3 for continuous actions
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
    /// The learning rate of the optimizers
    #[arg(long, default_value = "3e-4")]
    pub learning_rate: f64,
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
    /// The standard deviation of the target policy noise, relative to the action scale
    #[arg(long, default_value = "0.2")]
    pub policy_noise: f64,
    /// The standard deviation of the exploration noise, relative to the action scale
    #[arg(long, default_value = "0.1")]
    pub exploration_noise: f64,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value = "25000")]
    pub learning_starts: u64,
    /// The number of critic updates between updates of the actor and the target networks
    #[arg(long, default_value = "2")]
    pub policy_frequency: usize,
    /// The clip range of the target policy noise, relative to the action scale
    #[arg(long, default_value = "0.5")]
    pub noise_clip: f64,
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

    fn optimizer(&self) -> Adam {
        Adam { learning_rate: self.learning_rate, ..Adam::default() }
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
    "td3_continuous_action",
    BOUNDED_CONTINUOUS,
    Args::check,
    train,
    policy
);

// -------------------------------------------------------------------------------------- network

/// Initializes a network with two hidden layers of 256 units.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    Mlp::init(key, &[inputs, 256, 256, outputs], Activation::Relu)
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

/// Network from observations to actions within their bounds: a deterministic policy.
#[derive(Debug, Clone, Tree)]
pub struct Actor<T> {
    pub layers: Mlp<T>,
    pub bounds: Bounds,
}

impl Actor<Tensor> {
    /// Initializes a network for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, bounds: &Bounds) -> Actor<Tensor> {
        Actor { layers: network(key, obs_size, bounds.size()), bounds: bounds.clone() }
    }

    /// Returns the actions `f32[B, A]` at `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let (action_scale, action_bias) = (self.bounds.action_scale(), self.bounds.action_bias());
        self.layers.apply(obs).tanh() * action_scale + action_bias
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
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub target: Agent<T>, // target actor and target critics
    pub opt_state: OptState<T>,
}

/// Initializes the networks, their targets and the optimizers.
fn init_train_state(
    key: Key<Tensor>,
    obs_size: usize,
    bounds: &Bounds,
    args: &Args,
) -> TrainState<Tensor> {
    let agent = Agent::init(key, obs_size, bounds);
    let adam = args.optimizer();
    let opt_state = OptState { actor: adam.init(&agent.actor), qf: adam.init(&agent.qf) };
    TrainState { target: agent.clone(), agent, opt_state }
}

// --------------------------------------------------------------------------------------- acting

/// Returns the actor's actions `f32[N, A]` at `obs: f32[N, obs_size]` with Gaussian exploration
/// noise, clipped to the bounds.
fn noisy_action(
    actor: &Actor<Tensor>,
    obs: Tensor,
    key: Key<Tensor>,
    exploration_noise: f64,
) -> Tensor {
    let action = actor.apply(obs);
    let noise = normal(key, action.shape(), DType::F32) * exploration_noise;
    actor.bounds.clip(action + noise * actor.bounds.action_scale())
}

/// State of the N environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations
    pub key: Key<T>,
}

/// Steps all environments once, with exploration noise if `learning`, otherwise with uniformly
/// random actions; returns N transitions.
fn env_step(
    envs: &XlaPool,
    actor: &Actor<Tensor>,
    env_state: EnvState<Tensor>,
    learning: bool,
    args: &Args,
) -> (EnvState<Tensor>, (Transition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let action = match learning {
        true => noisy_action(actor, obs, action_key, args.exploration_noise),
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
        let (next_state, (transition, stats)) = env_step(envs, actor, env_state, learning, args);
        env_state = next_state;
        transitions.push(transition);
        episodes.push(tree::map(stats, |x: Tensor| x.expand_dims(0)));
    }
    (env_state, concatenate_steps(&transitions), concatenate_steps(&episodes))
}

// ----------------------------------------------------------------------------------------- loss

/// Returns the minimum of the critics' values of `action: f32[B, A]`, `f32[B]`.
fn min_q(qf: &[QNetwork<Tensor>; 2], obs: Tensor, action: Tensor) -> Tensor {
    let [qf1, qf2] = qf;
    qf1.apply(obs, action).minimum(qf2.apply(obs, action))
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted minimum of the target critics'
/// values of the target actor's next action, to which clipped noise is added.
pub fn td_target(
    target: &Agent<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> Tensor {
    let Agent { actor, qf } = target;
    let action = actor.apply(batch.next_obs);
    let noise = normal(key, action.shape(), DType::F32) * args.policy_noise;
    let clipped_noise = noise.clip(-args.noise_clip, args.noise_clip) * actor.bounds.action_scale();
    let next_action = actor.bounds.clip(action + clipped_noise);
    let next_q_value = min_q(qf, batch.next_obs, next_action);
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

/// Computes the negative mean value of the actor's actions at `obs: f32[B, obs_size]`.
pub fn actor_loss(actor: &Actor<Tensor>, qf1: &QNetwork<Tensor>, obs: Tensor) -> Tensor {
    -qf1.apply(obs, actor.apply(obs)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step of the critics.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, target, mut opt_state } = train_state;
    let td_target = td_target(&target, batch, key, args);
    let ((_, metrics), grads) =
        value_and_grad(|qf| critic_loss(&qf, batch, td_target))(agent.qf.clone());
    (agent.qf, opt_state.qf) = args.optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, target, opt_state }, metrics)
}

/// Takes one gradient step of the actor, and updates the target networks; returns the actor's loss.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { mut agent, target, mut opt_state } = train_state;
    let loss = |actor: Actor<Tensor>| actor_loss(&actor, &agent.qf[0], batch.obs);
    let (actor_loss, grads) = value_and_grad(loss)(agent.actor.clone());
    (agent.actor, opt_state.actor) = args.optimizer().step(agent.actor, grads, opt_state.actor);
    let target = incremental_update(&agent, &target, args.tau);
    (TrainState { agent, target, opt_state }, actor_loss)
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
            let [next_key, sample_key, noise_key] = key.split_n();
            key = next_key;
            let batch = replay_buffer.sample(sample_key, args.batch_size);
            let (critic, actor_loss);
            (train_state, critic) = update_critic(train_state, &batch, noise_key, args);
            if step == args.policy_frequency {
                (train_state, actor_loss) = update_actor(train_state, &batch, args);
                metrics = Some(Metrics { critic, actor_loss });
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

/// Returns the policy of a saved model: the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, obs_size, bounds) = pools::continuous(args, 1, args.run.eval_seed())?;
    let train_state = load_model(model, |key| init_train_state(key, obs_size, &bounds, args))?;
    Ok(Policy::new(pool, train_state.agent.actor, move |actor: &Actor<Tensor>, obs| {
        PolicyResults::from_action(actor.bounds.clip(actor.apply(obs.to(DType::F32))))
    }))
}
