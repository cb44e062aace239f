//! Soft actor-critic (SAC) for discrete actions on images (Christodoulou 2019): CleanRL's
//! `sac_atari.py`. Environment steps, the replay buffer and gradient steps are one compiled
//! program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/sac_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, init};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::cadence::UpdateSchedule;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{ensure, not_negative, positive, unit, within};
use crate::rl::frames::{FrameBuffer, SampledBatch};
use crate::rl::images::{Images, Trunk};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::PlayingImages;
use crate::rl::q_values::of_action;
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, pools};
use crate::trace::ops::constant;
use crate::tree::Tree;
use crate::{DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "SAC for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "sac_atari")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "BeamRider-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 5_000_000)]
    pub total_timesteps: u64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging); 1 copies the critics
    #[arg(long, default_value_t = 1.0)]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 64)]
    pub batch_size: usize,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value_t = 20_000)]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimiser
    #[arg(long, default_value_t = 3e-4)]
    pub policy_lr: f64,
    /// The learning rate of the optimisers of the critics and of the temperature
    #[arg(long, default_value_t = 3e-4)]
    pub q_lr: f64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub update_frequency: usize,
    /// The number of timesteps between updates of the target critics
    #[arg(long, default_value_t = 8000)]
    pub target_network_frequency: usize,
    /// The entropy temperature alpha, used if --autotune is false
    #[arg(long, default_value_t = 0.2)]
    pub alpha: f64,
    /// Tune the entropy temperature automatically
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub autotune: bool,
    /// The target entropy of --autotune as a fraction of the maximum entropy
    #[arg(long, default_value_t = 0.89)]
    pub target_entropy_scale: f64,
}

impl Args {
    fn cadence(&self) -> UpdateSchedule {
        let Args { num_envs, update_frequency, target_network_frequency, .. } = *self;
        let train_frequency = update_frequency;
        UpdateSchedule { num_envs, train_frequency, target_network_frequency, most_rounds: 250 }
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("update-frequency", self.total_timesteps)?;
        positive(&[("batch-size", self.batch_size)])?;
        within("buffer-size", self.buffer_size, self.cadence().least_frames(), i32::MAX as usize)?;
        unit(&[
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("target-entropy-scale", self.target_entropy_scale),
        ])?;
        not_negative(&[("policy-lr", self.policy_lr), ("q-lr", self.q_lr)])?;
        let alpha = self.alpha;
        ensure(alpha.is_finite() && alpha > 0.0, "alpha", alpha, "a number above 0")
    }
}

algorithm!(Args, "sac_atari", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Network from images to one number per action: the logits of the policy or action values. Actor
/// and critics share no parameters.
#[derive(Debug, Clone, Tree)]
pub struct Network<T> {
    /// Network from images to features.
    pub trunk: Trunk<T>,
    /// Layer from features to logits or action values.
    pub head: Dense<T>,
}

impl Network<Tensor> {
    /// Initialises a network.
    pub fn init(key: Key<Tensor>, images: Images, num_actions: usize) -> Network<Tensor> {
        let (trunk, head) = key.split();
        let kernel = init::kaiming_normal();
        Network {
            trunk: Trunk::init(trunk, images, kernel),
            head: Dense::init(head, images.width(), num_actions, kernel),
        }
    }

    /// Returns logits or action values, `f32[B, actions]`, for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(obs))
    }
}

/// The policy and the two critics.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// Network from observations to action logits.
    pub actor: Network<T>,
    /// Networks from observations to action values.
    pub critics: [Network<T>; 2],
}

/// Entropy temperature, a trainable parameter.
#[derive(Debug, Clone, Tree)]
pub struct Temperature<T> {
    /// Logarithm of the temperature, `f32[]`.
    pub log_alpha: T,
}

/// Adam's moments.
#[derive(Debug, Tree)]
pub struct Optimizers<T> {
    /// Moments of the actor's optimiser.
    pub actor: AdamState<T, Network<T>>,
    /// Moments of the critics' optimiser.
    pub critics: AdamState<T, [Network<T>; 2]>,
    /// Moments of the temperature's optimiser.
    pub log_alpha: AdamState<T, Temperature<T>>,
}

/// The networks, the target critics, the temperature and the optimisers.
#[derive(Debug, Tree)]
pub struct Learner<T> {
    /// The networks.
    pub networks: Networks<T>,
    /// Target critics.
    pub targets: [Network<T>; 2],
    /// Entropy temperature.
    pub temperature: Temperature<T>,
    /// Adam's moments.
    pub optimizers: Optimizers<T>,
}

/// State carried between iterations of training.
pub type State<T> = TrainState<Learner<T>, FrameBuffer<T>, PlayingImages<T>>;

/// Initialises the networks, their targets and optimisers.
fn learner(key: Key<Tensor>, images: Images, num_actions: usize, args: &Args) -> Learner<Tensor> {
    let [actor, first, second] = key.split_n();
    let networks = Networks {
        actor: Network::init(actor, images, num_actions),
        critics: [first, second].map(|key| Network::init(key, images, num_actions)),
    };
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

/// Returns the minimum of two critics' values of each action, `f32[B, actions]`.
fn lower_values(critics: &[Network<Tensor>; 2], obs: Tensor) -> Tensor {
    let [first, second] = critics.each_ref().map(|critic| critic.apply(obs));
    first.minimum(second)
}

/// Computes the TD targets `f32[B]`: the reward plus the discounted expectation, under the policy,
/// of the minimum of the target critics' values minus `alpha` times the log probability. No action
/// is sampled.
pub fn goal(
    actor: &Network<Tensor>,
    targets: &[Network<Tensor>; 2],
    alpha: Tensor,
    batch: &SampledBatch<Tensor>,
) -> Tensor {
    let policy = Categorical::new(actor.apply(batch.next_obs));
    let soft = lower_values(targets, batch.next_obs) - alpha * policy.log_probs();
    batch.reward + batch.discount * (policy.probs() * soft).sum(-1)
}

/// Computes the sum of both critics' mean squared errors, and their metrics.
pub fn critic_loss(
    critics: &[Network<Tensor>; 2],
    batch: &SampledBatch<Tensor>,
    goal: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let [first, second] =
        critics.each_ref().map(|critic| of_action(critic.apply(batch.obs), batch.action));
    let [first_loss, second_loss] = [first, second].map(|value| (value - goal).square().mean(..));
    let metrics = CriticMetrics {
        qf1_loss: first_loss,
        qf2_loss: second_loss,
        qf1_values: first.mean(..),
        qf2_values: second.mean(..),
    };
    (first_loss + second_loss, metrics)
}

/// Computes `mean(pi (alpha log pi - values))` over the batch and the actions, for
/// `values: f32[B, actions]`; also returns the policy.
pub fn actor_loss(
    actor: &Network<Tensor>,
    values: Tensor,
    alpha: Tensor,
    obs: Tensor,
) -> (Tensor, Categorical<Tensor>) {
    let policy = Categorical::new(actor.apply(obs));
    let loss = (policy.probs() * (alpha * policy.log_probs() - values)).mean(..);
    (loss, policy)
}

/// Computes `mean(pi (-alpha (log pi + target)))` over the batch and the actions, for a target
/// entropy of `target`.
pub fn alpha_loss(
    temperature: &Temperature<Tensor>,
    policy: &Categorical<Tensor>,
    target: f64,
) -> Tensor {
    let alpha = temperature.log_alpha.exp();
    (policy.probs() * (-alpha * (policy.log_probs() + target))).mean(..)
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

/// Metrics of one gradient step; scalars.
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
    Adam { learning_rate, eps: 1e-4, ..Adam::default() }
}

/// Takes one gradient step on a batch: of the critics, of the actor and, with `--autotune`, of the
/// temperature.
pub fn update(
    learner: Learner<Tensor>,
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> (Learner<Tensor>, Metrics<Tensor>) {
    let Learner { networks: Networks { actor, critics }, targets, temperature, optimizers } =
        learner;
    let alpha = temperature.log_alpha.exp();

    let goal = goal(&actor, &targets, alpha, batch);
    let ((_, told), grads) =
        value_and_grad(|critics| critic_loss(&critics, batch, goal))(critics.clone());
    let (critics, critics_moments) = adam(args.q_lr).step(critics, grads, optimizers.critics);

    let values = lower_values(&critics, batch.obs);
    let ((actor_loss, policy), grads) =
        value_and_grad(|actor| actor_loss(&actor, values, alpha, batch.obs))(actor.clone());
    let (actor, actor_moments) = adam(args.policy_lr).step(actor, grads, optimizers.actor);

    let (mut temperature, mut log_alpha) = (temperature, optimizers.log_alpha);
    let mut alpha_loss = constant(0.0f32);
    if args.autotune {
        // The policy before its step is used, because its probabilities are already computed.
        let target = args.target_entropy_scale * (values.dim(-1) as f64).ln();
        let (loss, grads) =
            value_and_grad(|temperature| self::alpha_loss(&temperature, &policy, target))(
                temperature.clone(),
            );
        alpha_loss = loss;
        (temperature, log_alpha) = adam(args.q_lr).step(temperature, grads, log_alpha);
    }
    let metrics = Metrics {
        qf_loss: (told.qf1_loss + told.qf2_loss) / 2.0,
        critics: told,
        actor_loss,
        alpha: temperature.log_alpha.exp(),
        alpha_loss,
    };
    let networks = Networks { actor, critics };
    let optimizers = Optimizers { actor: actor_moments, critics: critics_moments, log_alpha };
    (Learner { networks, targets, temperature, optimizers }, metrics)
}

/// Updates the target critics if `step` is a multiple of `target_network_frequency`.
fn with_targets(learner: Learner<Tensor>, step: Tensor, args: &Args) -> Learner<Tensor> {
    let mixed = incremental_update(&learner.networks.critics, &learner.targets, args.tau);
    let frequency = args.target_network_frequency;
    let targets = periodic_update(&mixed, &learner.targets, step, frequency);
    Learner { targets, ..learner }
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `update_frequency` timesteps, with actions of the policy if `learning` and with uniform
/// actions otherwise; then, if `learning`, one gradient step.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    learning: bool,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { learner, replay, playing } = state;
    let actor = &learner.networks.actor;
    let act = |obs: Tensor, _, key: Key<Tensor>| {
        let (key, draw) = key.split();
        if learning {
            return (Categorical::new(actor.apply(obs)).sample(draw), key);
        }
        let num_actions = actor.head.w.dim(1) as i32;
        (random::randint(draw, [obs.dim(0)], 0, num_actions, DType::I32), key)
    };
    let images = actor.trunk.images;
    let (mut playing, seen, games) = playing.turns(envs, images, args.cadence().turns(), act);
    let replay = replay.add(seen);
    if !learning {
        return (TrainState { learner, replay, playing }, games, None);
    }
    let (key, draw) = playing.key.split();
    playing.key = key;
    let batch = replay.sample(draw, args.batch_size, 1, args.gamma);
    let (learner, metrics) = update(learner, &batch, args);
    (TrainState { learner, replay, playing }, games, Some(metrics))
}

// ------------------------------------------------------------------------------------- training

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, images, num_actions) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let init = |handle, key: Key<Tensor>| {
        let (key, networks) = key.split();
        TrainState {
            learner: learner(networks, images, num_actions, args),
            replay: FrameBuffer::new(
                args.buffer_size,
                args.num_envs,
                images.stack(),
                &images.frame(),
            ),
            playing: PlayingImages::start(&envs, handle, key),
        }
    };
    let rounds = |state, learning| {
        let round = |state| round(&envs, state, learning, args);
        let (mut state, games, metrics) = off_policy::rounds(args.cadence().rounds(), state, round);
        if learning {
            state.learner = with_targets(state.learner, state.playing.step, args);
        }
        (state, games, metrics)
    };
    // The first call never learns: a transition is complete only after the next step.
    let learning_starts = args.learning_starts.max(1);
    let pace = LoopConfig { steps: args.cadence().steps(), learning_starts };
    off_policy::train(args, pace, (handle, &envs), init, rounds, |state| state.learner)
}

/// Evaluates a saved model, taking the most likely action of its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, images, num_actions) = pools::images(args, 1, args.run.eval_seed())?;
    let new = |key| learner(key, images, num_actions, args);
    let actor = load_model(model, new)?.networks.actor;
    let act = with_mode(args.run.mode, |(actor, obs): (Network<Tensor>, Tensor)| {
        let policy = Categorical::new(actor.apply(obs));
        (policy.mode(), policy.probs())
    })
    .named("sac_atari_play");
    evaluation.play(pool, |obs, _| act.call((actor.clone(), obs)))
}
