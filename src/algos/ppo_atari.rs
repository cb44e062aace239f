//! Proximal policy optimisation on Atari as gymnasium wraps it: CleanRL's `ppo_atari.py` (Schulman et
//! al. 2017), with the environments stepped inside the compiled rollout.
//!
//! What differs from CleanRL and from `ppo_atari_envpool`, and why, is in `docs/algos/ppo_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::{eval_shape, with_mode};
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, View};
use crate::optim::{Adam, AdamState, clip_by_global_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    annealed, explained_variance, flat, gae, mean, normalize, orders, policy_loss, pool_of, rows,
    value_loss,
};
use crate::rl::saved::load_typed;
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::IndexMode;
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Shape, Tensor, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO on Atari games, wrapped as by gymnasium", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari")]
    pub exp_name: String,
    /// Flags that every algorithm has
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: an Atari game, or a board such as MinAtar's
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
    /// The KL divergence at which the remaining epochs of an update are left out
    #[arg(long)]
    pub target_kl: Option<f64>,
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
            ("target-kl", self.target_kl.unwrap_or(0.0)),
        ])
    }
}

algorithm!(Args, "ppo_atari", train, play);

// -------------------------------------------------------------------------------------- network

/// Layers that see, with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Observations to features.
    pub trunk: Encoder<T>,
    /// Features to logits of the actions.
    pub actor: Dense<T>,
    /// Features to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// A new agent for observations of this view and shape.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, actor, critic] = key.split_n();
        let trunk = Encoder::init(trunk, sizes.view, &sizes.shape);
        Agent {
            actor: Dense::init(actor, trunk.size(), sizes.num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, trunk.size(), 1, orthogonal(1.0)),
            trunk,
        }
    }

    /// The policy and the value `f32[B]` of observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let x = self.trunk.apply(obs);
        (Categorical::new(self.actor.apply(x)), self.critic.apply(x).squeeze(-1))
    }
}

/// What an agent must know of an environment.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// What it shows.
    pub view: View,
    /// The shape of an observation.
    pub shape: Shape,
    /// How many actions there are.
    pub num_actions: usize,
}

/// What an update changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
}

// --------------------------------------------------------------------------------------- losses

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, ..]`, in the environment's type.
    pub obs: T,
    /// `i32[B]`
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[B]`
    pub advantages: T,
    /// `f32[B]`
    pub returns: T,
    /// `f32[B]`: values by the critic that acted.
    pub values: T,
}

/// What is logged of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// The whole loss.
    pub loss: T,
    /// The value loss.
    pub value_loss: T,
    /// The policy's loss.
    pub policy_loss: T,
    /// The mean entropy.
    pub entropy: T,
    /// `mean(-log ratio)`
    pub old_approx_kl: T,
    /// `mean(ratio - 1 - log ratio)`
    pub approx_kl: T,
    /// The part of ratios outside the clip range.
    pub clipfrac: T,
}

/// PPO's loss over a minibatch, and what is logged of it.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages = if args.norm_adv { normalize(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let metrics = Metrics {
        loss,
        value_loss,
        policy_loss,
        entropy,
        old_approx_kl: ratios.old_approx_kl,
        approx_kl: ratios.approx_kl,
        clipfrac: ratios.clipfrac,
    };
    (loss, metrics)
}

// --------------------------------------------------------------------------------------- update

/// What a gradient step takes besides the state.
#[derive(Debug, Clone, Copy, Tree)]
struct Minibatch<T> {
    samples: Samples<T>,
    /// All minibatches' samples, as [`orders`] gives them.
    orders: T,
    /// Which minibatch this is: `i32[]`.
    turn: T,
    learning_rate: T,
}

/// One gradient step: one program. On a CPU the launch costs nothing beside it, and its
/// convolutions run some percent faster than in a loop over the minibatches.
fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Minibatch<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, optimizer } = state;
    let samples = rows(batch.samples, batch.orders.take_mode(batch.turn, 0, IndexMode::Clip));
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| loss(&agent, &samples, args))(agent.clone());
    let grads = clip_by_global_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let (agent, optimizer) = adam.step(agent, grads, optimizer);
    (TrainState { agent, optimizer }, metrics)
}

// -------------------------------------------------------------------------------------- rollout

/// The environments between two steps.
#[derive(Debug, Tree)]
struct Playing<T> {
    handle: Handle<T>,
    /// `[N, ..]`, in the environment's type.
    obs: T,
    key: Key<T>,
}

/// A rollout, ready to learn from.
#[derive(Debug, Tree)]
struct Collected<T> {
    samples: Samples<T>,
    /// The samples of each minibatch.
    orders: T,
    games: Games<T>,
    explained_variance: T,
}

/// A whole rollout with the environments in the loop: one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Collected<Tensor>) {
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, key } = playing;
        let (key, draw) = key.split();
        let (policy, value) = agent.apply(obs);
        let action = policy.sample(draw);
        let logprob = policy.log_prob(action);
        let (handle, step) = envs.step(handle, action);
        let ends = step.done().to(DType::F32);
        let next = Playing { handle, obs: step.obs, key };
        (next, (obs, action, logprob, value, step.reward, ends, Games::of(&step)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, told) = scan_with(length, turn, playing, ());
    let (obs, actions, logprobs, values, rewards, ends, games) = told;
    let Playing { handle, obs: next_obs, key } = playing;
    let (_, next_value) = agent.apply(next_obs);
    let discounts = (args.gamma, args.gae_lambda);
    let (advantages, returns) = gae(rewards, ends, values, next_value, discounts);
    let samples = Samples {
        obs: flat(obs),
        actions: flat(actions),
        logprobs: flat(logprobs),
        advantages: flat(advantages),
        returns: flat(returns),
        values: flat(values),
    };
    let (key, shuffle) = key.split();
    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.batch_size());
    let explained_variance = explained_variance(values, returns);
    let playing = Playing { handle, obs: next_obs, key };
    (playing, Collected { samples, orders, games, explained_variance })
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..PoolOptions::default() };
    pool_of(&args.env_id, AtariOptions::gymnasium(), options)
}

/// What the environment shows and takes; refuses what this algorithm cannot play.
fn sizes(pool: &EnvPool) -> Result<Sizes> {
    let (name, spec) = ("ppo_atari", pool.spec());
    let view = spaces::view(name, spec, &[View::Frames, View::Board])?;
    let num_actions = spaces::choices(name, spec)?;
    Ok(Sizes { view, shape: spec.observation.shape(), num_actions })
}

fn begin(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes);
    let optimizer = Adam::default().init(&agent);
    TrainState { agent, optimizer }
}

/// What is logged of an update.
#[derive(Debug, Tree)]
struct Report<T> {
    metrics: Metrics<T>,
    explained_variance: T,
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
    let mut trainer = Trainer::start(args)?;

    let (handle, envs) = pool.xla()?;
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
    let learn = with_mode(mode, |(state, batch): (TrainState<Tensor>, Minibatch<Tensor>)| {
        minibatch_step(state, batch, args)
    })
    .named("ppo_atari_step")
    .check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut running = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.goes_on(steps, &running, &envs)? {
        let update = trainer.step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let (mut state, playing) = running;

        let span = timeline::span("rollout");
        let (playing, collected) = rollout.call((state.agent.clone(), playing))?;
        let Collected { samples, orders, games, explained_variance } = collected;
        let games = games.list()?;
        drop(span);

        let _span = timeline::span("update");
        let learning_rate = Array::from(rate as f32);
        let mut all = Vec::new();
        for epoch in 0..args.update_epochs {
            for minibatch in 0..args.num_minibatches {
                let batch = Minibatch {
                    samples: samples.clone(),
                    orders: orders.clone(),
                    turn: Array::from((epoch * args.num_minibatches + minibatch) as i32),
                    learning_rate: learning_rate.clone(),
                };
                let (next, metrics) = learn.call((state, batch))?;
                state = next;
                all.push(metrics);
            }
            let last = all.last().expect("at least one minibatch");
            if let Some(target) = args.target_kl
                && f64::from(last.approx_kl.item::<f32>()?) > target
            {
                break;
            }
        }
        running = (state, playing);
        let clipfrac = mean(all.iter().map(|metrics| &metrics.clipfrac))?;
        let last = all.pop().expect("at least one epoch of one minibatch");
        let metrics = Metrics { clipfrac: Array::from(clipfrac), ..last };
        let at = trainer.step() + steps;
        trainer.run.events.scalar("charts/learning_rate", rate, at)?;
        trainer.tell(steps, &games, Some(&Report { metrics, explained_variance }))?;
    }
    let compile_s = init.stats().seconds() + rollout.stats().seconds() + learn.stats().seconds();
    trainer.finish(&running.0, compile_s)
}

/// Plays a saved model, drawing from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Games of another seed than those of the training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let fresh = eval_shape(|key: Key<Tensor>| begin(key, &sizes), &seed)?;
    let agent = load_typed(model, &fresh)?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.apply(obs).0.sample(key)
        })
        .named("ppo_atari_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
