//! Proximal policy optimisation (PPO) for multi-discrete actions with invalid action masking: the
//! `ppo_multidiscrete_mask.py` of Huang and Ontanon (2022). The rollout and the update are one
//! compiled program.
//!
//! Differences from it, with reasons, are listed in `docs/algos/ppo_masked.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::optim::{Adam, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    self, Act, Learner, Metrics, MultiCategorical, Playing, Report, Samples, Schedule, epochs,
    normalize_by_sample_std, orders, policy_loss, rows, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::{self, Masked};
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary};
use crate::trace::ops::ones_like;
use crate::tree::Tree;
use crate::{Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO with masked MultiDiscrete actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_masked")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Harvest-v0")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 2_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 8)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 128)]
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
    #[arg(long, default_value_t = 4)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 4)]
    pub update_epochs: usize,
    /// Mask invalid actions; if false, invalid actions can be sampled and have no effect
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub mask: bool,
    /// Normalise advantages over each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.1)]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.01)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
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
        ])
    }
}

algorithm!(Args, "ppo_masked", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: two shared hidden layers of 128 units, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Hidden layers from features.
    pub hidden: [Dense<T>; 2],
    /// Layer from hidden units to the logits of all action components.
    pub actor: Dense<T>,
    /// Layer from hidden units to values.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent.
    pub fn init(key: Key<Tensor>, sizes: &Masked) -> Agent<Tensor> {
        let [first, second, actor, critic] = key.split_n();
        let gain = orthogonal(2.0f64.sqrt());
        Agent {
            hidden: [
                Dense::init(first, sizes.features, 128, gain),
                Dense::init(second, 128, 128, gain),
            ],
            actor: Dense::init(actor, 128, sizes.choices(), orthogonal(0.01)),
            critic: Dense::init(critic, 128, 1, orthogonal(1.0)),
        }
    }

    /// Returns the policy and the values `f32[B]` for observations `[B, features + choices]`. If
    /// `mask` is false, the policy can sample invalid actions.
    pub fn apply(
        &self,
        obs: Tensor,
        sizes: &Masked,
        mask: bool,
    ) -> (MultiCategorical<Tensor>, Tensor) {
        let (features, mut allowed) = sizes.split(obs);
        if !mask {
            allowed = ones_like(allowed);
        }
        let x = self.hidden[1].apply(self.hidden[0].apply(features).relu()).relu();
        let policy = MultiCategorical::new(self.actor.apply(x), allowed, &sizes.nvec);
        (policy, self.critic.apply(x).squeeze(-1))
    }
}

/// State that an update changes.
pub type TrainState<T> = Learner<T, Agent<T>>;

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    sizes: &Masked,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs, sizes, args.mask);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages =
        if args.norm_adv { normalize_by_sample_std(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    sizes: &Masked,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    state.descend(|agent| loss(agent, &batch, sizes, args), clip, adam)
}

/// Runs all epochs over a rollout.
fn update(
    state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    learning_rate: Tensor,
    key: Key<Tensor>,
    sizes: &Masked,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let step = |state: TrainState<Tensor>, indices: Tensor| {
        minibatch_step(state, rows(samples, indices), learning_rate, sizes, args)
    };
    let orders = orders(key, args.update_epochs, args.num_minibatches, args.batch_size());
    epochs(state, orders, (args.num_minibatches, None), step)
}

// -------------------------------------------------------------------------------------- rollout

type Running<T> = (TrainState<T>, Playing<T>);

/// Collects a rollout and updates on it; compiled as one program.
fn iteration(
    envs: &XlaPool,
    (state, playing): Running<Tensor>,
    learning_rate: Tensor,
    sizes: &Masked,
    args: &Args,
) -> (Running<Tensor>, EpisodeStats<Tensor>, Report<Tensor>) {
    let act = |obs, draw| {
        let (policy, value) = state.agent.apply(obs, sizes, args.mask);
        let action = policy.sample(draw);
        Act { action, logprob: policy.log_prob(action), value }
    };
    let value = |obs| state.agent.apply(obs, sizes, args.mask).1;
    let bootstrap =
        args.bootstrap_truncated.then_some((args.gamma, &value as &dyn Fn(Tensor) -> Tensor));
    let (playing, (rollout, acted), games) =
        on_policy::play(envs, playing, args.num_steps, act, bootstrap);
    let (_, next_value) = state.agent.apply(rollout.next_obs, sizes, args.mask);
    let discounts = (args.gamma, args.gae_lambda);
    let (samples, explained_variance) = rollout.samples(acted, next_value, discounts);
    let Playing { handle, obs, key } = playing;
    let (key, shuffle) = key.split();
    let (state, metrics) = update(state, samples, learning_rate, shuffle, sizes, args);
    let playing = Playing { handle, obs, key };
    ((state, playing), games, Report { metrics, explained_variance })
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Returns the observation and action sizes of the environment, or an error if this algorithm does
/// not support its spaces.
fn sizes(pool: &EnvPool) -> Result<Masked> {
    spaces::masked("ppo_masked", pool.spec(), 1)
}

fn begin(key: Key<Tensor>, sizes: &Masked) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, sizes))
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
    let sizes = sizes(&pool)?;
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
        let (key, agent) = key.split();
        let (handle, first) = envs.reset(handle);
        (begin(agent, &sizes), Playing { handle, obs: first.obs, key })
    };
    let iteration = |running, rate| iteration(&envs, running, rate, &sizes, args);
    on_policy::train(args, schedule, (handle, &envs), init, iteration, |(state, _)| state)
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, &sizes))?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.apply(obs, &sizes, args.mask).0.sample(key)
        })
        .named("ppo_masked_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
