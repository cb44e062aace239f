//! Proximal policy optimisation (PPO, Schulman et al. 2017) for continuous actions: CleanRL's
//! `ppo_continuous_action.py`. The rollout, its environments, the normalisation of observations and
//! rewards, and the update are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_continuous_action.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::DiagNormal;
use crate::envs::{EnvPool, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::normalize::RunningMeanStd;
use crate::nn::{Activation, Mlp};
use crate::optim::{Adam, AdamState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::normalized::{Normalizers, OBSERVATIONS, Playing};
use crate::rl::on_policy::{
    self, Acted, Learner, Metrics, Report, Rollout, Samples, Schedule, epochs,
    normalize_by_sample_std, orders, policy_loss, rows, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::{self, Bounds};
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary};
use crate::trace::ops::zeros;
use crate::tree::Tree;
use crate::{DType, Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_continuous_action")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 1_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 3e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 2048)]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value_t = 0.95)]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value_t = 32)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 10)]
    pub update_epochs: usize,
    /// Normalise advantages over each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.2)]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.0)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// The target KL divergence; the remaining epochs of an update are skipped once it is exceeded
    #[arg(long)]
    pub target_kl: Option<f64>,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// CleanRL treats truncation as termination
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Total number of updates; remaining timesteps are dropped, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    fn check(&self) -> Result<()> {
        positive(&[("update-epochs", self.update_epochs)])?;
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        unit(&[("gamma", self.gamma), ("gae-lambda", self.gae_lambda)])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("target-kl", self.target_kl.unwrap_or(0.0)),
        ])
    }
}

algorithm!(Args, "ppo_continuous_action", Args::check, train, play_model);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Network from observations to action means.
    pub actor: Mlp<T>,
    /// Log standard deviations of the actions, `f32[A]`; independent of the observation.
    pub log_std: T,
    /// Network from observations to values.
    pub critic: Mlp<T>,
}

/// Initialises two hidden layers, orthogonal with gain sqrt(2), and an output layer of the given
/// gain.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize, gain: f64) -> Mlp<Tensor> {
    let hidden = orthogonal(2.0f64.sqrt());
    Mlp::init(key, &[inputs, 64, 64, outputs], Activation::Tanh, hidden, orthogonal(gain))
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of size `obs_size` and actions of size `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, action_size, 0.01),
            log_std: zeros([action_size], DType::F32),
            critic: network(critic, obs_size, 1, 1.0),
        }
    }

    /// Returns the policy at `obs: f32[.., obs_size]`.
    pub fn policy(&self, obs: Tensor) -> DiagNormal<Tensor> {
        DiagNormal::new(self.actor.apply(obs), self.log_std.exp())
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(obs).squeeze(-1)
    }
}

/// State carried between iterations of training.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// State that gradient steps change.
    pub learner: Learner<T, Agent<T>>,
    /// Environment state between two steps.
    pub playing: Playing<T>,
}

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages =
        if args.norm_adv { normalize_by_sample_std(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(agent.value(batch.obs), batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step.
pub fn minibatch_step(
    learner: Learner<Tensor, Agent<Tensor>>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learner<Tensor, Agent<Tensor>>, Metrics<Tensor>) {
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    learner.descend(|agent| loss(agent, &batch, args), clip, adam)
}

/// Runs the whole update, `update_epochs` times `num_minibatches` gradient steps, as one program.
/// Returns the updated learner and the metrics.
pub fn update(
    learner: Learner<Tensor, Agent<Tensor>>,
    rollout: Rollout<Tensor>,
    shuffle: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learner<Tensor, Agent<Tensor>>, Report<Tensor>) {
    // The policy has not changed since the rollout: values and log probabilities are computed here
    // in one batch instead of being stored at each step.
    let agent = &learner.agent;
    let values = agent.value(rollout.obs); // f32[T, N]
    let logprobs = agent.policy(rollout.obs).log_prob(rollout.actions);
    let next_value = agent.value(rollout.next_obs); // f32[N]
    let discounts = (args.gamma, args.gae_lambda);
    let acted = Acted { logprobs, values };
    let (samples, explained_variance) = rollout.samples(acted, next_value, discounts);
    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.batch_size());
    let step =
        |learner, indices| minibatch_step(learner, rows(samples, indices), learning_rate, args);
    let (learner, metrics) = epochs(learner, orders, (args.num_minibatches, args.target_kl), step);
    (learner, Report { metrics, explained_variance })
}

// -------------------------------------------------------------------------------------- rollout

/// Collects a rollout and updates on it; compiled as one program.
fn iteration(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    learning_rate: Tensor,
    bounds: &Bounds,
    args: &Args,
) -> (TrainState<Tensor>, EpisodeStats<Tensor>, Report<Tensor>) {
    let TrainState { learner, playing } = state;
    let agent = &learner.agent;
    let draw = |obs, key| agent.policy(obs).sample(key);
    let value = |obs| agent.value(obs);
    let cut = args.bootstrap_truncated.then_some(&value as &dyn Fn(Tensor) -> Tensor);
    let pace = (args.num_steps, args.gamma);
    let (mut playing, rollout, games) = playing.play(envs, pace, bounds, draw, cut);
    let (key, shuffle) = playing.key.split();
    playing.key = key;
    let (learner, report) = update(learner, rollout, shuffle, learning_rate, args);
    (TrainState { learner, playing }, games, report)
}

// ------------------------------------------------------------------------------------- training

/// Returns the size of observations and the bounds of actions, or an error if this algorithm does
/// not support the environment's spaces.
fn sizes(pool: &EnvPool) -> Result<(usize, Bounds)> {
    let (name, spec) = ("ppo_continuous_action", pool.spec());
    Ok((spaces::vector(name, spec)?, spaces::bounds(name, spec)?))
}

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = if num_envs == 1 { 1 } else { args.run.num_threads };
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Saved model: the training state without the environments.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// Running statistics that normalise observations and rewards.
    pub normalizers: Normalizers<T>,
}

/// Initialises a model.
fn model(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Model<Tensor> {
    let Learner { agent, optimizer } = Learner::new(Agent::init(key, obs_size, action_size));
    let normalizers = Normalizers::new(obs_size, args.num_envs, args.gamma);
    Model { agent, optimizer, normalizers }
}

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = pool(args, args.num_envs, args.run.seed)?;
    let (obs_size, bounds) = sizes(&pool)?;
    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let schedule = Schedule {
        steps: args.batch_size() as u64,
        updates: args.num_iterations(),
        learning_rate: args.learning_rate,
        anneal_lr: args.anneal_lr,
    };
    let init = |handle, key: Key<Tensor>| {
        let (key, draw) = key.split();
        let Model { agent, optimizer, normalizers } = model(draw, obs_size, bounds.size(), args);
        let playing = Playing::begin(&envs, handle, normalizers, key);
        TrainState { learner: Learner { agent, optimizer }, playing }
    };
    let iteration = |state, rate| iteration(&envs, state, rate, &bounds, args);
    on_policy::train(args, schedule, (handle, &envs), init, iteration, |state| {
        let Learner { agent, optimizer } = state.learner;
        Model { agent, optimizer, normalizers: state.playing.normalizers }
    })
}

/// Evaluates a saved model, sampling actions from its policy as in training. Observations are
/// normalised by the statistics from training.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, bounds) = sizes(&pool)?;
    let size = bounds.size();
    let new = |key| self::model(key, obs_size, size, args);
    let Model { agent, normalizers, .. } = load_model(model, new)?;
    let stats = normalizers.obs;
    type Input<T> = (Agent<T>, RunningMeanStd<T>, T, Key<T>);
    let act = with_mode(args.run.mode, |(agent, stats, obs, key): Input<Tensor>| {
        let obs = OBSERVATIONS.apply(obs.to(DType::F32), &stats);
        bounds.clip(agent.policy(obs).sample(key))
    })
    .named("ppo_continuous_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), stats.clone(), obs, key)))
}
