//! Soft actor-critic (SAC, Haarnoja et al. 2018) for continuous actions: CleanRL's
//! `sac_continuous_action.py`. Environment steps, the replay buffer and gradient steps are one
//! compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/sac_continuous_action.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::{TanhCorrection, TanhNormal};
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Activation, Dense, Mlp};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{ensure, not_negative, positive, unit, within};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::Playing;
use crate::rl::replay::{ReplayBuffer, Transition};
use crate::rl::saved::load_model;
use crate::rl::spaces::Bounds;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, pools};
use crate::trace::ops::{concatenate, constant};
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, TensorType, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "SAC for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "sac_continuous_action")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Hopper-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 1_000_000)]
    pub total_timesteps: u64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging)
    #[arg(long, default_value_t = 0.005)]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 256)]
    pub batch_size: usize,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value_t = 5_000)]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimiser
    #[arg(long, default_value_t = 3e-4)]
    pub policy_lr: f64,
    /// The learning rate of the optimisers of the critics and of the temperature
    #[arg(long, default_value_t = 1e-3)]
    pub q_lr: f64,
    /// The number of critic updates between updates of the actor, which is then updated as many
    /// times
    #[arg(long, default_value_t = 2)]
    pub policy_frequency: usize,
    /// The number of critic updates between updates of the target critics
    #[arg(long, default_value_t = 1)]
    pub target_network_frequency: usize,
    /// The entropy temperature alpha, used if --autotune is false
    #[arg(long, default_value_t = 0.2)]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub autotune: bool,
    /// The number of actor updates in one call of the compiled program, after which losses are
    /// logged; 0 covers about 100 timesteps. The results do not depend on it
    #[arg(long, default_value_t = 0)]
    pub updates_per_call: usize,
}

impl Args {
    /// Number of iterations, each with one delayed actor update, in one call of the compiled
    /// program.
    fn rounds(&self) -> usize {
        match self.updates_per_call {
            0 => 100_usize.div_ceil(self.policy_frequency),
            rounds => rounds,
        }
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps(&self) -> u64 {
        (self.rounds() * self.policy_frequency) as u64
    }

    fn check(&self) -> Result<()> {
        positive(&[("batch-size", self.batch_size), ("policy-frequency", self.policy_frequency)])?;
        let frequency = self.target_network_frequency;
        within("target-network-frequency", frequency, 1, i32::MAX as usize)?;
        let steps = self.steps();
        ensure(
            self.total_timesteps >= steps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least {steps}, the timesteps of one call"),
        )?;
        within("buffer-size", self.buffer_size, 1, i32::MAX as usize)?;
        unit(&[("gamma", self.gamma), ("tau", self.tau)])?;
        not_negative(&[("policy-lr", self.policy_lr), ("q-lr", self.q_lr)])?;
        let alpha = self.alpha;
        ensure(alpha.is_finite() && alpha > 0.0, "alpha", alpha, "a number above 0")
    }
}

algorithm!(Args, "sac_continuous_action", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Initialises a network with two hidden layers of 256 units, with PyTorch's initialisation.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    let [first, second, head] = key.split_n();
    let layers = vec![
        Dense::init_torch(first, inputs, 256),
        Dense::init_torch(second, 256, 256),
        Dense::init_torch(head, 256, outputs),
    ];
    Mlp { layers, activation: Activation::Relu }
}

/// The policy and the two critics.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// Network from observations to `[.., 2 A]`: the action means before the `tanh`, and the
    /// unscaled log standard deviations.
    pub actor: Mlp<T>,
    /// Networks from observations and actions to values.
    pub critics: [Mlp<T>; 2],
}

impl Networks<Tensor> {
    /// Initialises the networks.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Networks<Tensor> {
        let [actor, first, second] = key.split_n();
        Networks {
            actor: network(actor, obs_size, 2 * action_size),
            critics: [first, second].map(|key| network(key, obs_size + action_size, 1)),
        }
    }
}

/// Range of the policy's log standard deviation.
const LOG_STD: [f64; 2] = [-5.0, 2.0];
/// Epsilon that Haarnoja et al. 2018 add inside the logarithm of the `tanh` derivative.
const CORRECTION: TanhCorrection = TanhCorrection::Clipped(1e-6);

/// Returns the distribution of actions `[B, A]` at `obs: f32[B, obs_size]`.
pub fn policy(actor: &Mlp<Tensor>, obs: Tensor, bounds: &Bounds) -> TanhNormal<Tensor> {
    let heads = actor.apply(obs).split(2, -1);
    let (mean, raw) = (heads[0], heads[1]);
    let [low, high] = LOG_STD;
    let log_std = low + 0.5 * (high - low) * (raw.tanh() + 1.0);
    TanhNormal::within(mean, log_std.exp(), bounds.low(), bounds.high())
}

/// Returns the values `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
fn value(critic: &Mlp<Tensor>, obs: Tensor, action: Tensor) -> Tensor {
    critic.apply(concatenate(&[obs, action], -1)).squeeze(-1)
}

/// Adam's moments.
#[derive(Debug, Tree)]
pub struct Optimizers<T> {
    /// Moments of the actor's optimiser.
    pub actor: AdamState<T, Mlp<T>>,
    /// Moments of the critics' optimiser.
    pub critics: AdamState<T, [Mlp<T>; 2]>,
    /// Moments of the temperature's optimiser.
    pub log_alpha: AdamState<T, Temperature<T>>,
}

/// Entropy temperature, a trainable parameter.
#[derive(Debug, Clone, Tree)]
pub struct Temperature<T> {
    /// Logarithm of the temperature, `f32[]`.
    pub log_alpha: T,
}

/// The networks, the target critics, the temperature and the optimisers.
#[derive(Debug, Tree)]
pub struct Learner<T> {
    /// The networks.
    pub networks: Networks<T>,
    /// Target critics.
    pub targets: [Mlp<T>; 2],
    /// Entropy temperature.
    pub temperature: Temperature<T>,
    /// Adam's moments.
    pub optimizers: Optimizers<T>,
}

/// State carried between iterations of training.
pub type State<T> = TrainState<Learner<T>, ReplayBuffer<T, Transition<T>>, Playing<T>>;

/// Initialises the networks, their targets and optimisers.
fn learner(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Learner<Tensor> {
    let networks = Networks::init(key, obs_size, action_size);
    let start = if args.autotune { 1.0 } else { args.alpha };
    let temperature = Temperature { log_alpha: constant(start.ln() as f32) };
    let optimizers = Optimizers {
        actor: adam(args.policy_lr).init(&networks.actor),
        critics: adam(args.q_lr).init(&networks.critics),
        log_alpha: adam(args.q_lr).init(&temperature),
    };
    Learner { targets: networks.critics.clone(), networks, temperature, optimizers }
}

// --------------------------------------------------------------------------------------- losses

/// Computes the TD targets `f32[B]` with the soft value of a sampled action: the minimum of the
/// target critics' values minus `alpha` times the action's log probability.
pub fn goal(
    actor: &Mlp<Tensor>,
    targets: &[Mlp<Tensor>; 2],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    gamma: f64,
) -> Tensor {
    let policy = policy(actor, batch.next_obs, bounds);
    let (action, log_prob) = policy.sample_and_log_prob(key, CORRECTION);
    let next = lower_value(targets, batch.next_obs, action) - alpha * log_prob;
    batch.reward + gamma * (1.0 - batch.terminated) * next
}

/// Computes the sum of both critics' mean squared errors, and their metrics.
pub fn critic_loss(
    critics: &[Mlp<Tensor>; 2],
    batch: &Transition<Tensor>,
    goal: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let [first, second] = critics.each_ref().map(|critic| value(critic, batch.obs, batch.action));
    let [first_loss, second_loss] = [first, second].map(|value| (value - goal).square().mean(..));
    let metrics = CriticMetrics {
        qf1_loss: first_loss,
        qf2_loss: second_loss,
        qf1_values: first.mean(..),
        qf2_values: second.mean(..),
    };
    (first_loss + second_loss, metrics)
}

/// Computes `mean(alpha log pi(a) - min_i Q_i(s, a))` for the policy's actions at standard normal
/// `noise: f32[B, A]`.
pub fn actor_loss(
    actor: &Mlp<Tensor>,
    critics: &[Mlp<Tensor>; 2],
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
    bounds: &Bounds,
) -> Tensor {
    let policy = policy(actor, obs, bounds);
    let x = policy.normal.mean + policy.normal.std * noise;
    let (action, log_prob) =
        (x.tanh() * policy.scale + policy.bias, policy.log_prob_unsquashed(x, CORRECTION));
    (alpha * log_prob - lower_value(critics, obs, action)).mean(..)
}

/// Computes `mean(-alpha (log pi(a) + target))` for log probabilities `f32[B]` of actions of the
/// policy. The target entropy is minus the action size.
pub fn alpha_loss(temperature: &Temperature<Tensor>, log_prob: Tensor, target: f64) -> Tensor {
    (-temperature.log_alpha.exp() * (log_prob + target)).mean(..)
}

/// Returns the minimum of two critics' values, `f32[B]`.
fn lower_value(critics: &[Mlp<Tensor>; 2], obs: Tensor, action: Tensor) -> Tensor {
    let [first, second] = critics.each_ref().map(|critic| value(critic, obs, action));
    first.minimum(second)
}

// --------------------------------------------------------------------------------------- update

/// Metrics of the critics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    /// Loss of the first critic.
    pub qf1_loss: T,
    /// Loss of the second critic.
    pub qf2_loss: T,
    /// Mean value, under the first critic, of the actions taken.
    pub qf1_values: T,
    /// Mean value, under the second critic, of the actions taken.
    pub qf2_values: T,
}

/// Logged metrics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Metrics of the critics.
    pub critics: CriticMetrics<T>,
    /// Mean of both critics' losses.
    pub qf_loss: T,
    /// Loss of the actor.
    pub actor_loss: T,
    /// Entropy temperature.
    pub alpha: T,
    /// Loss of the temperature; 0 if it is not tuned.
    pub alpha_loss: T,
}

fn adam(learning_rate: f64) -> Adam {
    Adam { learning_rate, ..Adam::default() }
}

/// Takes one gradient step of the critics, and updates their targets when due.
pub fn critic_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, CriticMetrics<Tensor>) {
    let Learner { networks: Networks { actor, critics }, targets, temperature, optimizers } =
        learner;
    let alpha = temperature.log_alpha.exp();
    let goal = goal(&actor, &targets, alpha, batch, key, bounds, args.gamma);
    let ((_, metrics), grads) =
        value_and_grad(|critics| critic_loss(&critics, batch, goal))(critics.clone());
    let (critics, moments) = adam(args.q_lr).step(critics, grads, optimizers.critics);
    let moved = incremental_update(&critics, &targets, args.tau);
    let targets = match args.target_network_frequency {
        1 => moved,
        frequency => periodic_update(&moved, &targets, moments.count, frequency),
    };
    let networks = Networks { actor, critics };
    let optimizers = Optimizers { critics: moments, ..optimizers };
    (Learner { networks, targets, temperature, optimizers }, metrics)
}

/// Takes one gradient step of the actor and, with `--autotune`, one of the temperature; also
/// returns their losses.
pub fn actor_step(
    learner: Learner<Tensor>,
    obs: Tensor,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, (Tensor, Tensor)) {
    let Learner { networks: Networks { actor, critics }, targets, temperature, optimizers } =
        learner;
    let (draw, again) = key.split();
    let alpha = temperature.log_alpha.exp();
    let noise = random::normal(draw, [obs.dim(0), bounds.size()], DType::F32);
    let (loss, grads) = value_and_grad(|actor: Mlp<Tensor>| {
        actor_loss(&actor, &critics, alpha, obs, noise, bounds)
    })(actor.clone());
    let (actor, moments) = adam(args.policy_lr).step(actor, grads, optimizers.actor);
    let mut optimizers = Optimizers { actor: moments, ..optimizers };
    let (mut temperature, mut alpha_loss) = (temperature, constant(0.0f32));
    if args.autotune {
        // Log probabilities of the policy after its step.
        let (_, log_prob) = policy(&actor, obs, bounds).sample_and_log_prob(again, CORRECTION);
        let target = -(bounds.size() as f64);
        let (loss, grads) = value_and_grad(|temperature: Temperature<Tensor>| {
            self::alpha_loss(&temperature, log_prob, target)
        })(temperature.clone());
        alpha_loss = loss;
        (temperature, optimizers.log_alpha) =
            adam(args.q_lr).step(temperature, grads, optimizers.log_alpha);
    }
    let networks = Networks { actor, critics };
    (Learner { networks, targets, temperature, optimizers }, (loss, alpha_loss))
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `policy_frequency` environment steps, with actions of the policy if `learning` and with
/// uniform actions otherwise; then, if `learning`, as many gradient steps of the critics and as
/// many of the actor.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    learning: bool,
    bounds: &Bounds,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { mut learner, replay, playing } = state;
    let actor = &learner.networks.actor;
    let act = |obs: Tensor, _, key: Key<Tensor>| {
        let (key, draw) = key.split();
        if !learning {
            return (bounds.sample(draw, obs.dim(0)), key);
        }
        (policy(actor, obs, bounds).sample_and_log_prob(draw, CORRECTION).0, key)
    };
    let (mut playing, rows, games) = playing.unrolled(envs, args.policy_frequency, act);
    let replay = replay.add(rows);
    if !learning {
        return (TrainState { learner, replay, playing }, games, None);
    }
    let mut told = None;
    for turn in 1..=args.policy_frequency {
        let [key, draw, noise, actor_key] = playing.key.split_n();
        playing.key = key;
        let batch = replay.sample(draw, args.batch_size);
        let critics;
        (learner, critics) = critic_step(learner, &batch, noise, bounds, args);
        if turn < args.policy_frequency {
            continue;
        }
        // The actor takes `policy_frequency` gradient steps to compensate for the delay.
        let mut losses = None;
        for key in actor_key.split_vec(args.policy_frequency) {
            let lost;
            (learner, lost) = actor_step(learner, batch.obs, key, bounds, args);
            losses = Some(lost);
        }
        told = losses.map(|(actor_loss, alpha_loss)| Metrics {
            qf_loss: (critics.qf1_loss + critics.qf2_loss) / 2.0,
            critics,
            actor_loss,
            alpha: learner.temperature.log_alpha.exp(),
            alpha_loss,
        });
    }
    (TrainState { learner, replay, playing }, games, told)
}

// ------------------------------------------------------------------------------------- training

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environment, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, obs_size, bounds) = pools::continuous(args, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let init = |handle, key: Key<Tensor>| {
        let (key, networks) = key.split();
        let action = TensorType::new(DType::F32, [bounds.size()]);
        TrainState {
            learner: learner(networks, obs_size, bounds.size(), args),
            replay: ReplayBuffer::new(args.buffer_size, Transition::types(obs_size, action)),
            playing: Playing::start(&envs, handle, key),
        }
    };
    let rounds = |state, learning| {
        let round = |state| round(&envs, state, learning, &bounds, args);
        let (state, games, metrics) = off_policy::rounds(args.rounds(), state, round);
        // The metrics of the last iteration are logged.
        (state, games, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
    };
    let pace = LoopConfig { steps: args.steps(), learning_starts: args.learning_starts };
    off_policy::train(args, pace, (handle, &envs), init, rounds, |state| state.learner)
}

/// Evaluates a saved model, taking the mean action of its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, obs_size, bounds) = pools::continuous(args, args.run.eval_seed())?;
    let new = |key| learner(key, obs_size, bounds.size(), args);
    let actor = load_model(model, new)?.networks.actor;
    let act = with_mode(args.run.mode, |(actor, obs): (Mlp<Tensor>, Tensor)| {
        policy(&actor, obs.to(DType::F32), &bounds).mode()
    })
    .named("sac_play");
    evaluation.play(pool, |obs, _| act.call((actor.clone(), obs)))
}
