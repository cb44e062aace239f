//! Proximal policy optimisation (PPO, Schulman et al. 2017) on Atari with Gymnasium's wrappers:
//! CleanRL's `ppo_atari.py`. The environments are stepped inside the compiled rollout.
//!
//! Differences from CleanRL and from `ppo_atari_envpool`, with reasons, are listed in
//! `docs/algos/ppo_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, View};
use crate::optim::{Adam, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    self, Act, Learner, Metrics, Minibatch, Playing, Report, Samples, annealed,
    normalize_by_sample_std, orders, policy_loss, pool_of, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::Sizes;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::tree::Tree;
use crate::{Array, Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO on Atari games, wrapped as by gymnasium", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: an Atari game, or one with board observations such as MinAtar's
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 10_000_000)]
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

algorithm!(Args, "ppo_atari", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from observations to features.
    pub trunk: Encoder<T>,
    /// Layer from features to action logits.
    pub actor: Dense<T>,
    /// Layer from features to values.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of the given view and shape.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, actor, critic] = key.split_n();
        let trunk = Encoder::init(trunk, sizes.view, &sizes.shape);
        Agent {
            actor: Dense::init(actor, trunk.size(), sizes.num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, trunk.size(), 1, orthogonal(1.0)),
            trunk,
        }
    }

    /// Returns the policy and the values `f32[B]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let x = self.trunk.apply(obs);
        (Categorical::new(self.actor.apply(x)), self.critic.apply(x).squeeze(-1))
    }
}

/// State that an update changes.
pub type TrainState<T> = Learner<T, Agent<T>>;

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs);
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

/// Takes one gradient step; compiled as one program.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Minibatch<Tensor, Samples<Tensor>>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let samples = batch.rows();
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    state.descend(|agent| loss(agent, &samples, args), clip, adam)
}

// -------------------------------------------------------------------------------------- rollout

/// A rollout prepared for the update.
#[derive(Debug, Tree)]
struct Collected<T> {
    samples: Samples<T>,
    /// Sample indices of each minibatch.
    orders: T,
    games: EpisodeStats<T>,
    explained_variance: T,
}

/// Collects a rollout with the environments stepped inside the loop; compiled as one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Collected<Tensor>) {
    let act = |obs, draw| {
        let (policy, value) = agent.apply(obs);
        let action = policy.sample(draw);
        Act { action, logprob: policy.log_prob(action), value }
    };
    let value = |obs| agent.apply(obs).1;
    let bootstrap =
        args.bootstrap_truncated.then_some((args.gamma, &value as &dyn Fn(Tensor) -> Tensor));
    let (playing, (rollout, acted), games) =
        on_policy::play(envs, playing, args.num_steps, act, bootstrap);
    let (_, next_value) = agent.apply(rollout.next_obs);
    let discounts = (args.gamma, args.gae_lambda);
    let (samples, explained_variance) = rollout.samples(acted, next_value, discounts);
    let Playing { handle, obs, key } = playing;
    let (key, shuffle) = key.split();
    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.batch_size());
    let playing = Playing { handle, obs, key };
    (playing, Collected { samples, orders, games, explained_variance })
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..PoolOptions::default() };
    pool_of(&args.env_id, AtariOptions::gymnasium(), options)
}

/// Returns the observation and action sizes of the environment, or an error if this algorithm does
/// not support its spaces.
fn sizes(pool: &EnvPool) -> Result<Sizes> {
    Sizes::of("ppo_atari", pool.spec(), &[View::Frames, View::Board])
}

fn begin(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, sizes))
}

/// Arguments of a gradient step.
type Step<T> = (TrainState<T>, Minibatch<T, Samples<T>>);

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
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent) = key.split();
        let (handle, first) = envs.reset(handle);
        (begin(agent, &sizes), Playing { handle, obs: first.obs, key })
    })
    .named("ppo_atari_init");
    let rollout = with_mode(mode, |(agent, playing): (Agent<Tensor>, Playing<Tensor>)| {
        collect(&envs, &agent, playing, args)
    })
    .named("ppo_atari_rollout");
    let learn = with_mode(mode, |(state, batch): Step<Tensor>| minibatch_step(state, batch, args))
        .named("ppo_atari_step")
        .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.should_continue() {
        let update = trainer.global_step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let (state, playing) = running;

        let span = timeline::span("rollout");
        let (playing, collected) = rollout.call((state.agent.clone(), playing))?;
        let Collected { samples, orders, games, explained_variance } = collected;
        let games = games.to_vec()?;
        drop(span);

        let _span = timeline::span("update");
        let learning_rate = Array::from(rate as f32);
        let count = (args.update_epochs, args.num_minibatches);
        let turn = Array::from(0i32);
        let first = Minibatch { samples, orders, turn, learning_rate };
        let step = |state, turn| learn.call((state, first.at(turn)));
        let (state, metrics) = on_policy::steps(state, count, args.target_kl, step)?;
        running = (state, playing);
        let at = trainer.global_step() + steps;
        trainer.run.events.scalar("charts/learning_rate", rate, at)?;
        trainer.record(&games, Some(&Report { metrics, explained_variance }))?;
        trainer.checkpoint_if_due(&running, &envs)?;
    }
    let compile_s = init.stats().seconds() + rollout.stats().seconds() + learn.stats().seconds();
    trainer.finish(&running.0, compile_s)
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, &sizes))?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.apply(obs).0.sample(key)
        })
        .named("ppo_atari_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
