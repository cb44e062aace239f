//! Proximal policy optimisation on Atari: CleanRL's `ppo_atari_envpool_xla_jax_scan.py` (Schulman
//! et al. 2017), with the environments stepped inside the compiled rollout or beside it.
//!
//! What differs from CleanRL, and why, is in `docs/algos/ppo_atari_envpool.md`.

use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, Autoreset, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::{eval_shape, with_mode};
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder};
use crate::optim::{Adam, AdamState, clip_by_global_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::saved::load_typed;
use crate::rl::{Evaluation, Game, Games, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{IndexMode, stack, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Where the environments step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutMode {
    /// Inside the compiled program: a whole rollout is one call.
    Xla,
    /// On the host, between calls of the compiled policy.
    Host,
}

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO on Atari games, for the env pool", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari_envpool")]
    pub exp_name: String,
    /// Flags that every algorithm has
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Step the environments inside the compiled rollout (xla) or between calls (host)
    #[arg(long, value_enum, default_value_t = RolloutMode::Xla)]
    pub rollout: RolloutMode,
    /// Start the next episode in the step after the end, as EnvPool does, and train on that step
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub envpool_reset: bool,

    /// The id of the environment
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
    /// Clip the value loss too, as in the paper. CleanRL's JAX variants have the flag and never do
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
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

    /// Samples per gradient step.
    fn minibatch_size(&self) -> usize {
        self.batch_size() / self.num_minibatches
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

    /// The pool that this run steps: episodes are lives, rewards are signs.
    fn pool(&self, num_envs: usize, seed: u64) -> Result<EnvPool> {
        let atari =
            AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() };
        let options = PoolOptions {
            num_envs,
            num_threads: self.run.num_threads,
            seed,
            autoreset: if self.envpool_reset { Autoreset::NextStep } else { Autoreset::SameStep },
            ..PoolOptions::default()
        };
        EnvPool::atari(&self.env_id, atari, options)
    }
}

algorithm!(Args, "ppo_atari_envpool", train, play);

// -------------------------------------------------------------------------------------- network

/// The Nature network (Mnih et al. 2015) with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Images to 512 units.
    pub trunk: Encoder<T>,
    /// Units to logits of the actions.
    pub actor: Dense<T>,
    /// Units to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// A new agent for four images of 84 by 84 and `num_actions` actions.
    pub fn init(key: Key<Tensor>, num_actions: usize) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        Agent {
            trunk: Encoder::nature([a, b, c, hidden], 4),
            actor: Dense::init(actor, 512, num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, 512, 1, orthogonal(1.0)),
        }
    }

    /// The policy and the value `f32[B]` of observations `u8[B, 4, 84, 84]`.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let x = self.trunk.apply(obs);
        (Categorical::new(self.actor.apply(x)), self.critic.apply(x).squeeze(-1))
    }
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

/// One rollout; T steps of N environments.
#[derive(Debug, Clone, Tree)]
pub struct Rollout<T> {
    /// `u8[T, N, 4, 84, 84]`
    pub obs: T,
    /// `i32[T, N]`
    pub actions: T,
    /// `f32[T, N]`: log probabilities of the actions.
    pub logprobs: T,
    /// `f32[T, N]`: values of the observations.
    pub values: T,
    /// `f32[T, N]`: clipped to signs.
    pub rewards: T,
    /// `f32[T, N]`: 1 where the step before `obs` ended an episode.
    pub dones: T,
    /// `u8[N, 4, 84, 84]`: what follows the last step.
    pub next_obs: T,
    /// `f32[N]`: 1 where the last step ended an episode.
    pub next_done: T,
}

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `u8[B, 4, 84, 84]`
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

/// What is logged of an update; scalars.
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
    /// `mean(ratio - 1 - log ratio)`
    pub approx_kl: T,
}

/// Generalised advantage estimation (Schulman et al. 2016): advantages `f32[T, N]`.
pub fn gae(rollout: &Rollout<Tensor>, next_value: Tensor, gamma: f64, lambda: f64) -> Tensor {
    let turn = |(advantage, next_value, next_done): (Tensor, Tensor, Tensor),
                (reward, value, done): (Tensor, Tensor, Tensor)| {
        let going_on = 1.0 - next_done;
        let delta = reward + gamma * next_value * going_on - value;
        let advantage = delta + gamma * lambda * going_on * advantage;
        ((advantage, value, done), advantage)
    };
    let start = (zeros_like(next_value), next_value, rollout.next_done);
    let steps = (rollout.rewards, rollout.values, rollout.dones);
    scan_with(ScanOptions::reversed(), turn, start, steps).1
}

/// PPO's loss over a minibatch, and what is logged of it.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs);
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

    let mut value_error = (value - batch.returns).square();
    if args.clip_vloss {
        let near = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((near - batch.returns).square());
    }
    let value_loss = 0.5 * value_error.mean(..);

    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let approx_kl = ((ratio - 1.0) - logratio).mean(..);
    (loss, Metrics { loss, value_loss, policy_loss, entropy, approx_kl })
}

// --------------------------------------------------------------------------------------- update

/// Advantages and returns of a rollout, which becomes samples in the order `[T, N]`.
pub fn prepare(agent: &Agent<Tensor>, rollout: Rollout<Tensor>, args: &Args) -> Samples<Tensor> {
    let (_, next_value) = agent.apply(rollout.next_obs);
    let advantages = gae(&rollout, next_value, args.gamma, args.gae_lambda);
    let images = rollout.obs.shape();
    Samples {
        obs: rollout.obs.reshape([&[args.batch_size()], &images[2..]].concat()),
        actions: rollout.actions.ravel(),
        logprobs: rollout.logprobs.ravel(),
        advantages: advantages.ravel(),
        returns: (advantages + rollout.values).ravel(),
        values: rollout.values.ravel(),
    }
}

/// Which samples make up each minibatch of all epochs: `i32[epochs * minibatches, size]`.
fn shuffle(key: Key<Tensor>, args: &Args) -> Tensor {
    let order = |key| random::permutation(key, args.batch_size());
    let orders: Vec<Tensor> = key.split_vec(args.update_epochs).into_iter().map(order).collect();
    let rows = args.update_epochs * args.num_minibatches;
    stack(&orders, 0).reshape([rows, args.minibatch_size()])
}

/// What a gradient step takes besides the state.
#[derive(Debug, Clone, Copy, Tree)]
struct Minibatch<T> {
    samples: Samples<T>,
    /// All minibatches' samples, as [`shuffle`] gives them.
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
    let rows = batch.orders.take_mode(batch.turn, 0, IndexMode::Clip);
    let samples = tree::map(batch.samples, |x: Tensor| x.take_mode(rows, 0, IndexMode::Clip));
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| loss(&agent, &samples, args))(agent.clone());
    let grads = clip_by_global_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let (agent, optimizer) = adam.step(agent, grads, optimizer);
    (TrainState { agent, optimizer }, metrics)
}

// -------------------------------------------------------------------------------------- rollout

/// What the policy does with observations `u8[N, 4, 84, 84]`.
#[derive(Debug, Clone, Copy, Tree)]
struct Act<T> {
    /// `i32[N]`
    action: T,
    /// `f32[N]`
    logprob: T,
    /// `f32[N]`
    value: T,
}

fn act(agent: &Agent<Tensor>, obs: Tensor, key: Key<Tensor>) -> (Act<Tensor>, Key<Tensor>) {
    let (key, draw) = key.split();
    let (policy, value) = agent.apply(obs);
    let action = policy.sample(draw);
    (Act { action, logprob: policy.log_prob(action), value }, key)
}

/// The environments between two steps.
#[derive(Debug, Tree)]
struct Playing<T> {
    handle: Handle<T>,
    /// `u8[N, 4, 84, 84]`
    obs: T,
    /// `f32[N]`: 1 where the last step ended an episode.
    done: T,
    key: Key<T>,
}

/// A whole rollout with the environments in the loop: one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Samples<Tensor>, Games<Tensor>) {
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, done, key } = playing;
        let (act, key) = act(agent, obs, key);
        let (handle, step) = envs.step(handle, act.action);
        let next = Playing { handle, obs: step.obs, done: step.done().to(DType::F32), key };
        (next, (obs, act, step.reward, done, Games::of(&step)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, (obs, act, rewards, dones, games)) = scan_with(length, turn, playing, ());
    let rollout = Rollout {
        obs,
        actions: act.action,
        logprobs: act.logprob,
        values: act.value,
        rewards,
        dones,
        next_obs: playing.obs,
        next_done: playing.done,
    };
    (playing, prepare(agent, rollout, args), games)
}

/// The rollout's host memory, filled step by step.
#[derive(Default)]
struct Storage {
    obs: Vec<u8>,
    actions: Vec<i32>,
    logprobs: Vec<f32>,
    values: Vec<f32>,
    rewards: Vec<f32>,
    dones: Vec<f32>,
}

// ------------------------------------------------------------------------------------- training

/// The number of actions; refuses what this algorithm cannot play.
fn num_actions(pool: &EnvPool) -> Result<usize> {
    let (name, spec) = ("ppo_atari_envpool", pool.spec());
    spaces::images(name, spec, [4, 84, 84])?;
    spaces::choices(name, spec)
}

/// What a run goes on from.
#[derive(Debug, Tree)]
struct Running<T> {
    train: TrainState<T>,
    /// The randomness of the minibatches to come.
    key: Key<T>,
    playing: Playing<T>,
}

fn begin(key: Key<Tensor>, num_actions: usize) -> TrainState<Tensor> {
    let agent = Agent::init(key, num_actions);
    let optimizer = Adam::default().init(&agent);
    TrainState { agent, optimizer }
}

type CollectIn<T> = (Agent<T>, Playing<T>);
type CollectOut<T> = (Playing<T>, Samples<T>, Games<T>);

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and what the environments,
/// the compiler, the runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = args.pool(args.num_envs, args.run.seed)?;
    let num_actions = num_actions(&pool)?;
    let mut trainer = Trainer::start(args)?;

    let (handle, envs) = pool.xla()?;
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let [key, agent, play] = key.split_n();
        let (handle, first) = envs.reset(handle);
        let done = zeros([args.num_envs], DType::F32);
        let playing = Playing { handle, obs: first.obs, done, key: play };
        Running { train: begin(agent, num_actions), key, playing }
    })
    .named("ppo_atari_init");
    let shuffle = with_mode(mode, |key: Key<Tensor>| {
        let (key, draw) = key.split();
        (shuffle(draw, args), key)
    })
    .named("ppo_atari_shuffle");
    let learn = with_mode(mode, |(state, batch): (TrainState<Tensor>, Minibatch<Tensor>)| {
        minibatch_step(state, batch, args)
    })
    .named("ppo_atari_step")
    .check_nans(args.run.check_nans);
    // The one or the other rollout; what is not called is not compiled.
    let rollout = with_mode(mode, |(agent, playing): CollectIn<Tensor>| -> CollectOut<Tensor> {
        collect(&envs, &agent, playing, args)
    })
    .named("ppo_atari_rollout");
    let act = with_mode(mode, |(agent, obs, key): ActIn<Tensor>| act(&agent, obs, key))
        .named("ppo_atari_act");
    let prepare =
        with_mode(mode, |(agent, rollout): PrepareIn<Tensor>| prepare(&agent, rollout, args))
            .named("ppo_atari_prepare");

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut running = trainer.state(init.call((handle, seed))?, &envs)?;
    let (steps, num_iterations) = (args.batch_size() as u64, args.num_iterations());
    while trainer.goes_on(steps, &running, &envs)? {
        let left = 1.0 - (trainer.step() / steps) as f64 / num_iterations as f64;
        let learning_rate = args.learning_rate * if args.anneal_lr { left } else { 1.0 };
        let Running { train: mut state, key, playing } = running;

        let span = timeline::span("rollout");
        let (playing, samples, games) = match args.rollout {
            RolloutMode::Xla => {
                let (playing, samples, games) = rollout.call((state.agent.clone(), playing))?;
                (playing, samples, games.list()?)
            }
            RolloutMode::Host => {
                let agent = &state.agent;
                let act = |obs: &Array, key| act.call((agent.clone(), obs.clone(), key));
                let (playing, rollout, games) = step_on_host(&envs, playing, act, args)?;
                (playing, prepare.call((agent.clone(), rollout))?, games)
            }
        };
        drop(span);

        let _span = timeline::span("update");
        let updating = Instant::now();
        let (orders, key) = shuffle.call(key)?;
        let rate = Array::from(learning_rate as f32);
        let mut metrics = None;
        for epoch in 0..args.update_epochs {
            for minibatch in 0..args.num_minibatches {
                let turn = Array::from((epoch * args.num_minibatches + minibatch) as i32);
                let batch = Minibatch {
                    samples: samples.clone(),
                    orders: orders.clone(),
                    turn,
                    learning_rate: rate.clone(),
                };
                let (next, told) = learn.call((state, batch))?;
                (state, metrics) = (next, Some(told));
            }
            if let (Some(target), Some(told)) = (args.target_kl, &metrics)
                && f64::from(told.approx_kl.item::<f32>()?) > target
            {
                break;
            }
        }
        running = Running { train: state, key, playing };
        let at = trainer.step() + steps;
        trainer.tell(steps, &games, metrics.as_ref())?;
        let update = steps as f64 / updating.elapsed().as_secs_f64();
        let mean = trainer.run.returns.mean().unwrap_or(0.0);
        let scalars = [
            ("charts/learning_rate", learning_rate),
            ("charts/avg_episodic_return", mean),
            ("charts/SPS_learner", update.floor()),
        ];
        trainer.run.events.scalars(&scalars, at)?;
    }
    let compile_s = init.stats().seconds()
        + shuffle.stats().seconds()
        + learn.stats().seconds()
        + rollout.stats().seconds()
        + act.stats().seconds()
        + prepare.stats().seconds();
    trainer.finish(&running.train, compile_s)
}

type ActIn<T> = (Agent<T>, T, Key<T>);
type PrepareIn<T> = (Agent<T>, Rollout<T>);

/// `--rollout host`: the environments between calls of the policy.
fn step_on_host(
    envs: &XlaPool,
    playing: Playing<Array>,
    act: impl Fn(&Array, Key<Array>) -> Result<(Act<Array>, Key<Array>)>,
    args: &Args,
) -> Result<(Playing<Array>, Rollout<Array>, Vec<Game>)> {
    let Playing { handle, mut obs, done, mut key } = playing;
    let mut pool = envs.pool(0);
    let mut dones = done.to_vec::<f32>()?;
    let (mut storage, mut games) = (Storage::default(), Vec::new());
    for turn in 1..=args.num_steps {
        let (act, next) = act(&obs, key)?;
        key = next;
        storage.obs.extend(obs.to_vec::<u8>()?);
        storage.dones.extend_from_slice(&dones);
        let actions = act.action.to_vec::<i32>()?;
        storage.actions.extend_from_slice(&actions);
        storage.logprobs.extend(act.logprob.to_vec::<f32>()?);
        storage.values.extend(act.value.to_vec::<f32>()?);
        let batch = pool.step(&actions)?;
        obs = batch.obs_array();
        storage.rewards.extend_from_slice(batch.reward());
        for (row, done) in dones.iter_mut().enumerate() {
            *done = f32::from(u8::from(batch.terminated()[row] || batch.truncated()[row]));
            if batch.finished()[row] {
                games.push(Game {
                    after: (turn * args.num_envs) as u64,
                    episodic_return: batch.episodic_return()[row].into(),
                    length: batch.episodic_length()[row] as u64,
                });
            }
        }
    }
    let both = [args.num_steps, args.num_envs];
    let done = Array::new([args.num_envs], &dones)?;
    let rollout = Rollout {
        obs: Array::new([&both, &obs.shape()[1..]].concat(), &storage.obs)?,
        actions: Array::new(both, &storage.actions)?,
        logprobs: Array::new(both, &storage.logprobs)?,
        values: Array::new(both, &storage.values)?,
        rewards: Array::new(both, &storage.rewards)?,
        dones: Array::new(both, &storage.dones)?,
        next_obs: obs.clone(),
        next_done: done.clone(),
    };
    Ok((Playing { handle, obs, done, key }, rollout, games))
}

/// Plays a saved model, drawing from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Games of another seed than those of the training.
    let pool = args.pool(1, args.run.seed.wrapping_add(1 << 32))?;
    let num_actions = num_actions(&pool)?;
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let fresh = eval_shape(|key: Key<Tensor>| begin(key, num_actions), &seed)?;
    let agent = load_typed(model, &fresh)?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): ActIn<Tensor>| act(&agent, obs, key).0.action)
            .named("ppo_atari_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
