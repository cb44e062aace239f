//! Proximal policy optimisation for continuous actions: CleanRL's `ppo_continuous_action.py`
//! (Schulman et al. 2017), with the rollout, its environments, the normalisation of observations and
//! rewards, and the update in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/ppo_continuous_action.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::DiagNormal;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::{eval_shape, with_mode};
use crate::nn::init::orthogonal;
use crate::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use crate::nn::{Activation, Mlp};
use crate::optim::{Adam, AdamState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::expect;
use crate::rl::saved::load_typed;
use crate::rl::spaces::{self, Bounds};
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, cond, scan, scan_with};
use crate::trace::ops::{IndexMode, constant, ones_like, stack, where_, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_continuous_action")]
    pub exp_name: String,
    /// Flags that every algorithm has
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
    /// The number of steps in each environment per rollout
    #[arg(long, default_value_t = 2048)]
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
    #[arg(long, default_value_t = 32)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 10)]
    pub update_epochs: usize,
    /// Normalise advantages, in each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.2)]
    pub clip_coef: f64,
    /// Clip the value loss too, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.0)]
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
    /// Where a time limit ends an episode, add the value of its last observation to the reward;
    /// CleanRL does not
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Samples per gradient step.
    fn minibatch_size(&self) -> usize {
        self.batch_size() / self.num_minibatches
    }

    /// Updates in all; the remainder of the timesteps is left out, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    fn check(&self) -> Result<()> {
        let positive = "at least 1";
        expect(self.num_envs > 0, "num-envs", self.num_envs, positive)?;
        expect(self.num_steps > 0, "num-steps", self.num_steps, positive)?;
        expect(self.num_minibatches > 0, "num-minibatches", self.num_minibatches, positive)?;
        expect(self.update_epochs > 0, "update-epochs", self.update_epochs, positive)?;
        let batch = self.batch_size();
        expect(
            batch.is_multiple_of(self.num_minibatches),
            "num-minibatches",
            self.num_minibatches,
            &format!("a divisor of the batch, num-envs * num-steps = {batch}"),
        )?;
        expect(
            self.num_iterations() > 0,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least one batch, num-envs * num-steps = {batch}"),
        )?;
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        expect(unit(self.gamma), "gamma", self.gamma, "between 0 and 1")?;
        expect(unit(self.gae_lambda), "gae-lambda", self.gae_lambda, "between 0 and 1")?;
        let not_negative = |x: f64| x.is_finite() && x >= 0.0;
        for (flag, x) in [
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("target-kl", self.target_kl.unwrap_or(0.0)),
        ] {
            expect(not_negative(x), flag, x, "a number not below 0")?;
        }
        Ok(())
    }
}

algorithm!(Args, "ppo_continuous_action", train, play_model);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks of two hidden layers of 64 units.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Observations to the means of the actions.
    pub actor: Mlp<T>,
    /// The logarithms of the actions' standard deviations, `f32[A]`: the same at all observations.
    pub log_std: T,
    /// Observations to the value.
    pub critic: Mlp<T>,
}

/// Two hidden layers, orthogonal with gain sqrt(2), and a head of the given gain.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize, gain: f64) -> Mlp<Tensor> {
    let hidden = orthogonal(2.0f64.sqrt());
    Mlp::init(key, &[inputs, 64, 64, outputs], Activation::Tanh, hidden, orthogonal(gain))
}

impl Agent<Tensor> {
    /// A new agent for observations of `obs_size` numbers and actions of `action_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, action_size, 0.01),
            log_std: zeros([action_size], DType::F32),
            critic: network(critic, obs_size, 1, 1.0),
        }
    }

    /// The policy at `obs: f32[.., obs_size]`.
    pub fn policy(&self, obs: Tensor) -> DiagNormal<Tensor> {
        DiagNormal::new(self.actor.apply(obs), self.log_std.exp())
    }

    /// The value of `obs: f32[.., obs_size]`, `f32[..]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(obs).squeeze(-1)
    }
}

/// The statistics that observations and rewards are normalised with.
#[derive(Debug, Clone, Tree)]
pub struct Normalizers<T> {
    /// Of the observations.
    pub obs: RunningMeanStd<T>,
    /// Of the rewards, and the returns so far.
    pub reward: NormalizeRewardState<T>,
}

/// What training changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// The environments between two steps.
    pub playing: Playing<T>,
}

/// The environments between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// What observations and rewards are normalised with.
    pub normalizers: Normalizers<T>,
    /// `f32[N, obs_size]`, normalised.
    pub obs: T,
    /// `f32[N]`: 1 where `obs` is the first of an episode.
    pub done: T,
    /// The randomness to come.
    pub key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// One rollout, T steps of N environments; observations and rewards are normalised.
#[derive(Debug, Clone, Tree)]
pub struct Rollout<T> {
    /// `f32[T, N, obs_size]`
    pub obs: T,
    /// `f32[T, N, A]`: as drawn, which may lie outside the bounds.
    pub actions: T,
    /// `f32[T, N]`
    pub rewards: T,
    /// `f32[T, N]`: 1 where `obs` is the first of an episode.
    pub dones: T,
    /// `f32[N, obs_size]`: what follows the last step.
    pub next_obs: T,
    /// `f32[N]`: 1 where `next_obs` is the first of an episode.
    pub next_done: T,
}

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `f32[B, obs_size]`
    pub obs: T,
    /// `f32[B, A]`
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[B]`
    pub advantages: T,
    /// `f32[B]`
    pub returns: T,
    /// `f32[B]`: values by the critic before the update.
    pub values: T,
}

/// What is logged of an update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
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
    /// `1 - var(returns - values) / var(returns)`
    pub explained_variance: T,
}

/// Generalised advantage estimation (Schulman et al. 2016): advantages and returns, `f32[T, N]`.
pub fn gae(
    rollout: &Rollout<Tensor>,
    values: Tensor,
    next_value: Tensor,
    gamma: f64,
    lambda: f64,
) -> (Tensor, Tensor) {
    let turn = |(advantage, next_value, next_done): (Tensor, Tensor, Tensor),
                (reward, value, done): (Tensor, Tensor, Tensor)| {
        let going_on = 1.0 - next_done;
        let delta = reward + gamma * next_value * going_on - value;
        let advantage = delta + gamma * lambda * going_on * advantage;
        ((advantage, value, done), advantage)
    };
    let start = (zeros_like(next_value), next_value, rollout.next_done);
    let steps = (rollout.rewards, values, rollout.dones);
    let (_, advantages) = scan_with(ScanOptions::reversed(), turn, start, steps);
    (advantages, advantages + values)
}

/// PPO's loss over a minibatch, and what is logged of it.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    let mut advantages = batch.advantages;
    if args.norm_adv {
        advantages = (advantages - advantages.mean(..)) / (advantages.std(..) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped).mean(..);

    let value = agent.value(batch.obs); // f32[B]
    let mut value_error = (value - batch.returns).square();
    if args.clip_vloss {
        let near = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((near - batch.returns).square());
    }
    let value_loss = 0.5 * value_error.mean(..);

    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let outside = (ratio - 1.0).abs().gt(clip).to(DType::F32);
    let metrics = Metrics {
        value_loss,
        policy_loss,
        entropy,
        old_approx_kl: (-logratio).mean(..),
        approx_kl: ((ratio - 1.0) - logratio).mean(..),
        clipfrac: outside.mean(..),
        explained_variance: zeros_like(loss),
    };
    (loss, metrics)
}

// --------------------------------------------------------------------------------------- update

type Learned<T> = (Agent<T>, AdamState<T, Agent<T>>);

/// One gradient step.
fn minibatch_step(
    (agent, optimizer): Learned<Tensor>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learned<Tensor>, Metrics<Tensor>) {
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| loss(&agent, &batch, args))(agent.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    (adam.step(agent, grads, optimizer), metrics)
}

/// The whole update, `update_epochs` times `num_minibatches` gradient steps: one Program. Gives
/// what was learned, and the last minibatch's metrics with `clipfrac` the mean over all.
pub fn update(
    (agent, optimizer): Learned<Tensor>,
    rollout: Rollout<Tensor>,
    shuffle: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learned<Tensor>, Metrics<Tensor>) {
    // The policy has not changed since it acted: its values and log probabilities are computed
    // here in one batch instead of being kept from each step.
    let values = agent.value(rollout.obs); // f32[T, N]
    let logprobs = agent.policy(rollout.obs).log_prob(rollout.actions);
    let next_value = agent.value(rollout.next_obs); // f32[N]
    let (advantages, returns) = gae(&rollout, values, next_value, args.gamma, args.gae_lambda);

    let size = args.batch_size();
    let samples = Samples {
        obs: rollout.obs.reshape([size, rollout.obs.dim(-1)]),
        actions: rollout.actions.reshape([size, rollout.actions.dim(-1)]),
        logprobs: logprobs.ravel(),
        advantages: advantages.ravel(),
        returns: returns.ravel(),
        values: values.ravel(),
    };
    let minibatches = [args.num_minibatches, args.minibatch_size()];
    let take =
        |indices: Tensor| tree::map(samples, |x: Tensor| x.take_mode(indices, 0, IndexMode::Clip));
    let mut orders = Vec::new();
    for key in shuffle.split_vec(args.update_epochs) {
        orders.push(random::permutation(key, size).reshape(minibatches));
    }

    let step = |learned: Learned<Tensor>, indices: Tensor| {
        minibatch_step(learned, take(indices), learning_rate, args)
    };
    let (learned, metrics) = match args.target_kl {
        None => {
            let orders = stack(&orders, 0)
                .reshape([args.update_epochs * args.num_minibatches, args.minibatch_size()]);
            let (learned, all) = scan(step, (agent, optimizer), orders);
            let last = tree::map(all, |x: Tensor| x.index_axis(0, -1));
            (learned, Metrics { clipfrac: all.clipfrac.mean(..), ..last })
        }
        Some(target) => {
            let epoch = |learned: Learned<Tensor>, order: Tensor| {
                let (learned, all) = scan(step, learned, order);
                let last = tree::map(all, |x: Tensor| x.index_axis(0, -1));
                (learned, Metrics { clipfrac: all.clipfrac.sum(..), ..last })
            };
            let nothing = zeros_like(learning_rate);
            let none = Metrics {
                value_loss: nothing,
                policy_loss: nothing,
                entropy: nothing,
                old_approx_kl: nothing,
                approx_kl: nothing,
                clipfrac: nothing,
                explained_variance: nothing,
            };
            // Once an epoch ends above the target, the others are left out.
            let turn = |(learned, last, fractions, epochs, stop): Progressing<Tensor>, order| {
                let run = |((learned, last, fractions, epochs, _), order): (
                    Progressing<Tensor>,
                    Tensor,
                )| {
                    let _: Metrics<Tensor> = last;
                    let (learned, metrics) = epoch(learned, order);
                    let stop = metrics.approx_kl.gt(target);
                    (learned, metrics, fractions + metrics.clipfrac, epochs + 1.0, stop)
                };
                let skip = |(progress, _): (Progressing<Tensor>, Tensor)| progress;
                (cond(stop, skip, run, ((learned, last, fractions, epochs, stop), order)), ())
            };
            let start = ((agent, optimizer), none, nothing, nothing, constant(false));
            let ((learned, last, fractions, epochs, _), ()) = scan(turn, start, stack(&orders, 0));
            let clipfrac = fractions / (epochs * args.num_minibatches as f64);
            (learned, Metrics { clipfrac, ..last })
        }
    };

    let variance = returns.var(..);
    let unexplained = (returns - values).var(..);
    let nan = ones_like(variance) * f64::NAN;
    let explained = where_(variance.equal(0.0), nan, 1.0 - unexplained / variance);
    (learned, Metrics { explained_variance: explained, ..metrics })
}

/// State of the epochs under `target_kl`: what is learned, the last metrics, the sum of clip
/// fractions, the number of epochs run, and whether to stop.
type Progressing<T> = (Learned<T>, Metrics<T>, T, T, T);

// -------------------------------------------------------------------------------------- rollout

const OBSERVATIONS: NormalizeObservation = NormalizeObservation { epsilon: 1e-8, clip: 10.0 };

fn rewards(args: &Args) -> NormalizeReward {
    NormalizeReward { gamma: args.gamma, ..NormalizeReward::default() }
}

/// `num_steps` steps of all environments.
fn play(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Playing<Tensor>, Rollout<Tensor>, Games<Tensor>) {
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, normalizers, obs, done, key } = playing;
        let (key, draw) = key.split();
        let action = agent.policy(obs).sample(draw);
        // The environment takes what lies within the bounds; the policy keeps what it drew.
        let (handle, told) = envs.step(handle, bounds.clip(action));
        let Normalizers { obs: stats, reward } = normalizers;
        let (next, stats) = OBSERVATIONS.step(told.obs.to(DType::F32), stats);
        let (mut gain, reward) = rewards(args).step(told.reward, told.terminated, reward);
        if args.bootstrap_truncated {
            // Where an episode ended, `obs` is already the next one's.
            let last = told.final_obs.expect("the pool was asked for it").to(DType::F32);
            let value = agent.value(OBSERVATIONS.apply(last, &stats));
            let cut = told.truncated & !told.terminated;
            gain = gain + where_(cut, args.gamma * value, zeros_like(value));
        }
        let games = Games::of(&told);
        let row = (obs, action, gain, done);
        let normalizers = Normalizers { obs: stats, reward };
        let done = told.done().to(DType::F32);
        (Playing { handle, normalizers, obs: next, done, key }, (row, games))
    };
    let steps = ScanOptions::length(args.num_steps);
    let (playing, (rows, games)) = scan_with(steps, turn, playing, ());
    let (obs, actions, rewards, dones) = rows;
    let (next_obs, next_done) = (playing.obs, playing.done);
    (playing, Rollout { obs, actions, rewards, dones, next_obs, next_done }, games)
}

/// A rollout and its update. One program.
fn iteration(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    learning_rate: Tensor,
    bounds: &Bounds,
    args: &Args,
) -> (TrainState<Tensor>, Games<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, optimizer, playing } = state;
    let (playing, rollout, games) = play(envs, &agent, playing, bounds, args);
    let Playing { handle, normalizers, obs, done, key } = playing;
    let (key, shuffle) = key.split();
    let ((agent, optimizer), metrics) =
        update((agent, optimizer), rollout, shuffle, learning_rate, args);
    let playing = Playing { handle, normalizers, obs, done, key };
    (TrainState { agent, optimizer, playing }, games, metrics)
}

// ------------------------------------------------------------------------------------- training

/// The size of the observations and the bounds of the actions; refuses what this algorithm cannot
/// act in.
fn sizes(pool: &EnvPool) -> Result<(usize, Bounds)> {
    let (name, spec) = ("ppo_continuous_action", pool.spec());
    Ok((spaces::vector(name, spec)?, spaces::bounds(name, spec)?))
}

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = if num_envs == 1 { 1 } else { args.run.num_threads };
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// What is saved of a run: all but the environments.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// What observations and rewards are normalised with.
    pub normalizers: Normalizers<T>,
}

/// A new model.
fn model(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Model<Tensor> {
    let agent = Agent::init(key, obs_size, action_size);
    Model {
        optimizer: Adam::default().init(&agent),
        agent,
        normalizers: Normalizers {
            obs: RunningMeanStd::new([obs_size], DType::F64),
            reward: rewards(args).init([args.num_envs], DType::F64),
        },
    }
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
    let (obs_size, bounds) = sizes(&pool)?;
    let mut trainer = Trainer::start(args)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, draw) = key.split();
        let Model { agent, optimizer, mut normalizers } =
            model(draw, obs_size, bounds.size(), args);
        let (handle, first) = envs.reset(handle);
        let (obs, stats) = OBSERVATIONS.step(first.obs.to(DType::F32), normalizers.obs);
        normalizers.obs = stats;
        let done = zeros([args.num_envs], DType::F32);
        let playing = Playing { handle, normalizers, obs, done, key };
        TrainState { agent, optimizer, playing }
    })
    .named("ppo_continuous_init");
    let learn = with_mode(mode, |(state, learning_rate): (TrainState<Tensor>, Tensor)| {
        iteration(&envs, state, learning_rate, &bounds, args)
    })
    .named("ppo_continuous_iteration")
    .check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut state = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.goes_on(steps, &state, &envs)? {
        let _span = timeline::span("iteration");
        let done = (trainer.step() / steps) as f64;
        let left = 1.0 - done / args.num_iterations() as f64;
        let learning_rate = args.learning_rate * if args.anneal_lr { left } else { 1.0 };
        let (next, games, metrics) = learn.call((state, Array::from(learning_rate as f32)))?;
        state = next;
        let games = games.list()?;
        let step = trainer.step() + steps;
        trainer.run.events.scalar("charts/learning_rate", learning_rate, step)?;
        trainer.tell(steps, &games, Some(&metrics))?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds();
    let TrainState { agent, optimizer, playing: Playing { normalizers, .. } } = state;
    trainer.finish(&Model { agent, optimizer, normalizers }, compile_s)
}

/// Plays a saved model: draws of its policy, as in training, with observations normalised by the
/// statistics of the training.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Episodes of another seed than those of the training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, bounds) = sizes(&pool)?;
    let size = bounds.size();
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let fresh = eval_shape(|key: Key<Tensor>| self::model(key, obs_size, size, args), &seed)?;
    let Model { agent, normalizers, .. } = load_typed(model, &fresh)?;
    let stats = normalizers.obs;
    type Input<T> = (Agent<T>, RunningMeanStd<T>, T, Key<T>);
    let act = with_mode(args.run.mode, |(agent, stats, obs, key): Input<Tensor>| {
        let obs = OBSERVATIONS.apply(obs.to(DType::F32), &stats);
        bounds.clip(agent.policy(obs).sample(key))
    })
    .named("ppo_continuous_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), stats.clone(), obs, key)))
}
