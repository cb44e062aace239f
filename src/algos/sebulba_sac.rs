//! Distributed soft actor-critic: [`sac_continuous_action`](super::sac_continuous_action) (SAC,
//! Haarnoja et al. 2018) on the Sebulba architecture (Hessel et al. 2021). Actors step pools of
//! environments while the learner samples from a replay buffer on its devices.
//!
//! Actors, devices and queues are in [`rl::sebulba`](crate::rl::sebulba);
//! `docs/algos/sebulba_sac.md` describes the algorithm.

use crate::Sharded;
use crate::distributions::{TanhCorrection, TanhNormal};
use crate::nn::{Activation, Dense, Mlp};
use crate::optim::incremental_update;
use crate::random::{normal, randint};
use crate::rl::buffers::replay::{ReplayBuffer, Transition, concatenate_steps};
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::rl::sebulba::{
    self, EnvState, Reduce, RolloutResults, SebulbaOptions, Sizes, TrainFunctions, UpdateConfig,
    indivisible, keys_of,
};
use crate::trace::ops::{all_gather_tiled, arange, axis_index, concatenate};
use crate::trace::tensor::fail_op;
use crate::trace::{Axis, TensorType};

// ------------------------------------------------------------------------------------- settings

// Cleanba's defaults, which the algorithms with actors and learners share, are for Atari.
/// SAC with actors and learners on many devices
#[derive(Debug, Clone, Parser, Serialize)]
#[command(mut_args(|arg| match arg.get_id().as_str() {
    "local_num_envs" => arg.default_value("8"),
    "num_actor_threads" => arg.default_value("1"),
    _ => arg,
}))]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Flags for actors, learners and their devices
    #[command(flatten)]
    #[serde(flatten)]
    pub sebulba: SebulbaOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment, over all processes
    #[arg(long, default_value = "1000000")]
    pub total_timesteps: u64,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "16")]
    pub num_steps: usize,
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
    /// The number of critic updates between updates of the actor, which takes as many
    #[arg(long, default_value = "2")]
    pub policy_frequency: usize,
    /// The entropy temperature alpha, used if --autotune is false
    #[arg(long, default_value = "0.2")]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value = "true")]
    pub autotune: bool,
    /// The number of critic updates for each step of all environments
    #[arg(long, default_value = "1")]
    pub gradient_steps: usize,
}

impl Args {
    fn policy_optimizer(&self) -> Adam {
        Adam { learning_rate: self.policy_lr, ..Adam::default() }
    }

    fn q_optimizer(&self) -> Adam {
        Adam { learning_rate: self.q_lr, ..Adam::default() }
    }

    /// Number of critic updates for each rollout.
    fn updates_per_rollout(&self) -> usize {
        self.num_steps * self.gradient_steps
    }

    fn check(&self) -> Result<()> {
        self.sebulba.check(self.num_steps)?;
        let (updates, frequency) = (self.updates_per_rollout(), self.policy_frequency);
        if !updates.is_multiple_of(frequency) {
            let of = "critic updates between updates of the actor";
            return Err(indivisible("num-steps", self.num_steps, frequency, of));
        }
        let learners = self.sebulba.learner_device_ids.len();
        if !self.batch_size.is_multiple_of(learners) {
            return Err(indivisible("batch-size", self.batch_size, learners, "learner devices"));
        }
        let actors = self.sebulba.actor_device_ids.len() * self.sebulba.num_actor_threads;
        let rows = actors * self.sebulba.local_num_envs * self.num_steps;
        within("buffer-size", self.buffer_size, rows, i32::MAX as usize)
    }
}

registered_algorithm!(Args, "sebulba_sac", BOUNDED_CONTINUOUS, Args::check, train, policy);

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

    /// Returns the actions `f32[B, A]` of standard normal `noise: f32[B, A]` at `obs: f32[B, obs_size]`,
    /// and their log probabilities `f32[B]`.
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

/// Parameters with which actors act.
#[derive(Debug, Clone, Tree)]
pub struct ActorParams<T> {
    pub actor: Actor<T>,
    pub has_learned: T, // bool[]: false before the first gradient step; actions are then random
}

/// Collects a rollout of `num_steps` steps; returns its transitions, `[T, N, ..]`, in shares of the
/// environments for each of the learner devices. Actions are those of the policy, or uniformly
/// random before the first gradient step. `first_env`, `i32[]`, is the number of the first
/// environment.
fn collect(
    envs: &XlaPool,
    params: &ActorParams<Tensor>,
    env_state: EnvState<Tensor>,
    first_env: Tensor,
    args: &Args,
) -> RolloutResults<Transition<Tensor>> {
    let env_ids = arange(envs.rows(), DType::I32) + first_env;
    let ActorParams { actor, has_learned } = params;
    let env_step = |env_state: EnvState<Tensor>, ()| {
        let EnvState { handle, obs, key, .. } = env_state;
        let obs = obs.to(DType::F32);
        let (key, action_key) = key.split();
        let draw = |key: Key<Tensor>| {
            let (noise_key, random_key) = key.split();
            let noise = normal(noise_key, [actor.bounds.size()], DType::F32);
            (noise, actor.bounds.sample(random_key, 1).squeeze(0))
        };
        let (noise, random) = vmap(draw)(keys_of(action_key, env_ids));
        let act = |(obs, noise): (Tensor, Tensor)| actor.get_action(obs, noise).0;
        let action = Reduce::rows(args.sebulba.deterministic, (obs, noise), act);
        let action = where_(*has_learned, action, random);
        let (handle, step) = envs.step(handle, action);
        let transition = Transition {
            obs,
            action,
            reward: step.reward,
            // The final observation where an episode ended: `step.obs` is that after the reset.
            next_obs: envs.next_obs_of(&step).to(DType::F32),
            terminated: step.terminated.to(DType::F32),
        };
        let done = step.done().to(DType::F32);
        let next = EnvState { handle, obs: step.obs, reward: step.reward, done, key };
        (next, (transition, EpisodeStats::from_step(&step)))
    };
    let count = ScanOptions::length(args.num_steps);
    let (env_state, (transitions, episodes)) = scan_with(env_step, env_state, (), count);
    let learners = args.sebulba.learner_device_ids.len();
    let each = envs.rows() / learners;
    let share = |learner: usize| {
        tree::map(transitions, |x: Tensor| x.slice_axis(1, learner * each, (learner + 1) * each))
    };
    (env_state, (0..learners).map(share).collect(), episodes)
}

/// State of the learner.
#[derive(Debug, Tree)]
pub struct LearnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: ReplayBuffer<T, Transition<T>>, // the same on every learner device
    pub has_learned: T,                                // bool[]: true after the first gradient step
    pub key: Key<T>,
}

/// Adds the rollouts of all actors to the replay buffer of each learner device; `parts` are this
/// device's shares of them.
fn add_rollouts(
    state: LearnerState<Tensor>,
    parts: Vec<Transition<Tensor>>,
    axis: Axis,
) -> LearnerState<Tensor> {
    // By actor, `[T, N, ..]`; then `[T, all N, ..]`.
    let rollouts = all_gather_tiled(parts, axis, 1);
    let steps = vmap(|step: Vec<Transition<Tensor>>| concatenate_steps(&step))(rollouts);
    let replay_buffer = state.replay_buffer.add(merge_time_and_env(steps));
    LearnerState { replay_buffer, ..state }
}

// ----------------------------------------------------------------------------------------- loss

/// Returns the minimum `f32[B]` of both critics' values of `action: f32[B, A]`.
fn min_q(qf: &[QNetwork<Tensor>; 2], obs: Tensor, action: Tensor) -> Tensor {
    let [qf1, qf2] = qf;
    qf1.apply(obs, action).minimum(qf2.apply(obs, action))
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted soft value of the next action at
/// standard normal `noise: f32[B, A]`, which is the minimum of the target critics' values minus `alpha` times its log
/// probability.
pub fn td_target(
    actor: &Actor<Tensor>,
    target: &[QNetwork<Tensor>; 2],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    noise: Tensor,
    args: &Args,
) -> Tensor {
    let (next_action, next_log_prob) = actor.get_action(batch.next_obs, noise);
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
    let (action, log_prob) = actor.get_action(obs, noise);
    (alpha * log_prob - min_q(qf, obs, action)).mean(..)
}

/// Computes `mean(-alpha (log pi(a) + target_entropy))` for log probabilities `f32[B]`.
pub fn alpha_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: f64) -> Tensor {
    (-log_alpha.exp() * (log_prob + target_entropy)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// This device's share of a batch, with standard normal noise `f32[B, A]`.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub transitions: Transition<T>,
    pub noise: T,
}

/// Returns this device's share of `x: [batch_size, ..]`.
fn share_of(x: Tensor, reduce: &Reduce) -> Tensor {
    let (shape, learners) = (x.shape(), reduce.learners);
    if !shape[0].is_multiple_of(learners) {
        let message = indivisible("batch-size", shape[0], learners, "learners of all processes");
        fail_op("sebulba_sac", message.to_string());
    }
    let each = [&[learners, shape[0] / learners], &shape[1..]].concat();
    x.reshape(each).dynamic_index(0, axis_index(reduce.axis))
}

/// Samples a batch; returns this device's share of it. The batch does not depend on the number of
/// devices.
fn sample(
    replay_buffer: &ReplayBuffer<Tensor, Transition<Tensor>>,
    key: Key<Tensor>,
    (reduce, args): (&Reduce, &Args),
) -> Samples<Tensor> {
    let (rows_key, noise_key) = key.split();
    let rows = randint(rows_key, [args.batch_size], 0, replay_buffer.count, DType::I32);
    let transitions = replay_buffer.gather(share_of(rows, reduce));
    let shape = [args.batch_size, transitions.action.dim(1)];
    Samples { transitions, noise: share_of(normal(noise_key, shape, DType::F32), reduce) }
}

/// Takes one gradient step of the critics.
pub fn update_critic(
    train_state: TrainState<Tensor>,
    samples: &Samples<Tensor>,
    (reduce, args): (&Reduce, &Args),
) -> (TrainState<Tensor>, CriticMetrics<Tensor>) {
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let loss = |qf, Samples { transitions, noise }: Samples<Tensor>| {
        let alpha = log_alpha.exp();
        let td_target = td_target(&agent.actor, &target, alpha, &transitions, noise, args);
        critic_loss(&qf, &transitions, td_target)
    };
    let count = args.batch_size as f64;
    let (metrics, grads) = reduce.gradient(&agent.qf, *samples, count, loss);
    (agent.qf, opt_state.qf) = args.q_optimizer().step(agent.qf, grads, opt_state.qf);
    (TrainState { agent, target, log_alpha, opt_state }, metrics)
}

/// Takes one gradient step of the actor on observations and noise; returns its loss.
pub fn update_actor(
    train_state: TrainState<Tensor>,
    samples: (Tensor, Tensor),
    (reduce, args): (&Reduce, &Args),
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { mut agent, target, log_alpha, mut opt_state } = train_state;
    let loss = |actor: Actor<Tensor>, (obs, noise)| {
        let loss = actor_loss(&actor, &agent.qf, log_alpha.exp(), obs, noise);
        (loss, loss)
    };
    let count = args.batch_size as f64;
    let (actor_loss, grads) = reduce.gradient(&agent.actor, samples, count, loss);
    (agent.actor, opt_state.actor) =
        args.policy_optimizer().step(agent.actor, grads, opt_state.actor);
    (TrainState { agent, target, log_alpha, opt_state }, actor_loss)
}

/// Takes one gradient step of the temperature on observations and noise, for a target entropy of
/// minus the action size; returns its loss. With `--autotune false` the temperature is constant and
/// the loss is 0.
pub fn update_alpha(
    train_state: TrainState<Tensor>,
    samples: (Tensor, Tensor),
    (reduce, args): (&Reduce, &Args),
) -> (TrainState<Tensor>, Tensor) {
    let TrainState { agent, target, mut log_alpha, mut opt_state } = train_state;
    if !args.autotune {
        return (TrainState { agent, target, log_alpha, opt_state }, constant(0.0f32));
    }
    let target_entropy = -(agent.actor.bounds.size() as f64);
    let loss = |log_alpha: Tensor, (obs, noise)| {
        let (_, log_prob) = agent.actor.get_action(obs, noise);
        let loss = alpha_loss(log_alpha, log_prob, target_entropy);
        (loss, loss)
    };
    let count = args.batch_size as f64;
    let (loss, grads) = reduce.gradient(&log_alpha, samples, count, loss);
    (log_alpha, opt_state.log_alpha) =
        args.q_optimizer().step(log_alpha, grads, opt_state.log_alpha);
    (TrainState { agent, target, log_alpha, opt_state }, loss)
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
    pub qf_loss: T, // mean of both critics' losses
    pub actor_loss: T,
    pub alpha: T,      // entropy temperature
    pub alpha_loss: T, // loss of the temperature; 0 if it is not tuned
}

/// Takes `policy_frequency` gradient steps of the critics, and as many of the actor and of the
/// temperature after the last of them.
fn gradient_step(
    state: LearnerState<Tensor>,
    (reduce, args): (&Reduce, &Args),
) -> (LearnerState<Tensor>, Metrics<Tensor>) {
    let LearnerState { mut train_state, replay_buffer, mut key, .. } = state;
    let mut metrics = None;
    for step in 1..=args.policy_frequency {
        let [next_key, sample_key, actor_key] = key.split_n();
        key = next_key;
        let samples = sample(&replay_buffer, sample_key, (reduce, args));
        let critic;
        (train_state, critic) = update_critic(train_state, &samples, (reduce, args));
        if step == args.policy_frequency {
            // Compensates for the delay: the actor takes policy_frequency gradient steps, not one.
            let [mut actor_loss, mut alpha_loss] = [constant(0.0f32); 2];
            let obs = samples.transitions.obs;
            for key in actor_key.split_vec(args.policy_frequency) {
                let shape = [args.batch_size, samples.noise.dim(1)];
                let [actor_noise, alpha_noise]: [Tensor; 2] =
                    key.split_n().map(|key| share_of(normal(key, shape, DType::F32), reduce));
                (train_state, actor_loss) =
                    update_actor(train_state, (obs, actor_noise), (reduce, args));
                (train_state, alpha_loss) =
                    update_alpha(train_state, (obs, alpha_noise), (reduce, args));
            }
            let qf_loss = (critic.qf1_loss + critic.qf2_loss) / 2.0;
            let alpha = train_state.log_alpha.exp();
            metrics = Some(Metrics { critic, qf_loss, actor_loss, alpha, alpha_loss });
        }
        train_state = update_target(train_state, args);
    }
    let has_learned = constant(true);
    let state = LearnerState { train_state, replay_buffer, has_learned, key };
    (state, metrics.expect("--policy-frequency is at least 1"))
}

fn train(args: &Args) -> Result<Summary> {
    let config = UpdateConfig {
        num_steps: args.num_steps,
        gradient_steps: args.updates_per_rollout() / args.policy_frequency,
        learning_starts: args.learning_starts,
        learning_rate: args.policy_lr,
        anneal_lr: false,
        bootstrap_truncated: Some(args.gamma),
    };
    let init = |key: Key<Tensor>, sizes: &Sizes| {
        let (key, network_key) = key.split();
        let bounds = sizes.bounds.clone().expect("actions are continuous");
        let obs_size = sizes.shape.numel();
        let item = Transition::types(obs_size, TensorType::new(DType::F32, [bounds.size()]));
        LearnerState {
            train_state: init_train_state(network_key, obs_size, &bounds, args),
            replay_buffer: ReplayBuffer::new(args.buffer_size, item),
            has_learned: constant(false),
            key,
        }
    };
    sebulba::train(
        args,
        &args.sebulba,
        config,
        TrainFunctions {
            init,
            params: |state: &LearnerState<Sharded>| ActorParams {
                actor: state.train_state.agent.actor.clone(),
                has_learned: state.has_learned.clone(),
            },
            collect: |envs: &XlaPool, params: &ActorParams<Tensor>, env_state, first_env| {
                collect(envs, params, env_state, first_env, args)
            },
            prepare: |state, parts, axis| (add_rollouts(state, parts, axis), ()),
            gradient_step: |state, (): &(), _, reduce: &Reduce| {
                gradient_step(state, (reduce, args))
            },
            model: |state: LearnerState<Array>| state.train_state,
        },
    )
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
