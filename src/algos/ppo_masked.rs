//! Proximal policy optimisation with actions of several components, of which only some are allowed:
//! the `ppo_multidiscrete_mask.py` of Huang and Ontanon (2022), with rollout and update in one compiled
//! program.
//!
//! What differs from it, and why, is in `docs/algos/ppo_masked.md`.

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
use crate::rl::{Evaluation, Games, RunOptions, Summary};
use crate::trace::ops::ones_like;
use crate::tree::Tree;
use crate::{Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO with masked MultiDiscrete actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_masked")]
    pub exp_name: String,
    /// Flags that every algorithm has
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
    /// The number of steps in each environment per rollout
    #[arg(long, default_value_t = 128)]
    pub num_steps: usize,
    /// Lower the learning rate linearly to 0
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The lambda of the general advantage estimation
    #[arg(long, default_value_t = 0.95)]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value_t = 4)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 4)]
    pub update_epochs: usize,
    /// Draw only actions that are allowed; without it what is not allowed is drawn and does nothing
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub mask: bool,
    /// Normalise advantages, in each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.1)]
    pub clip_coef: f64,
    /// Clip the value loss too, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.01)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The largest norm of the gradient
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// CleanRL ends the return there
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Updates in all; the remainder of the timesteps is left out, as in CleanRL.
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

/// Two hidden layers of 128 units, with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Features to units.
    pub hidden: [Dense<T>; 2],
    /// Units to the logits of all components.
    pub actor: Dense<T>,
    /// Units to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// A new agent.
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

    /// The policy and the value `f32[B]` of observations `[B, features + choices]`; without `mask`
    /// the policy draws what is not allowed too.
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

/// What an update changes.
pub type TrainState<T> = Learner<T, Agent<T>>;

// --------------------------------------------------------------------------------------- losses

/// PPO's loss over a minibatch, and what is logged of it.
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

/// One gradient step.
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

/// All epochs over a rollout.
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

/// A rollout and an update: one program.
fn iteration(
    envs: &XlaPool,
    (state, playing): Running<Tensor>,
    learning_rate: Tensor,
    sizes: &Masked,
    args: &Args,
) -> (Running<Tensor>, Games<Tensor>, Report<Tensor>) {
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

/// What the environment shows and takes; refuses what this algorithm cannot play.
fn sizes(pool: &EnvPool) -> Result<Masked> {
    spaces::masked("ppo_masked", pool.spec(), 1)
}

fn begin(key: Key<Tensor>, sizes: &Masked) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, sizes))
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and what the environments,
/// the compiler, the runtime and the file system say.
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

/// Plays a saved model, drawing from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Episodes of another seed than those of the training.
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
