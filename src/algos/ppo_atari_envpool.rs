//! Proximal policy optimisation on Atari: CleanRL's `ppo_atari_envpool_xla_jax_scan.py` (Schulman
//! et al. 2017), with the environments stepped inside the compiled rollout or beside it.
//!
//! What differs from CleanRL, and why, is in `docs/algos/ppo_atari_envpool.md`.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::distributions::Categorical;
use crate::envs::{AtariOptions, Autoreset, Batch, EnvPool, Handle, PoolOptions, Space, XlaPool};
use crate::error::{Error, Result};
use crate::jit::{Jit, Mode, with_mode};
use crate::nn::init::orthogonal;
use crate::nn::{Conv2d, Dense};
use crate::optim::{Adam, AdamState, clip_by_global_norm};
use crate::rl::flags::expect;
use crate::rl::{Progress, Run, Summary, checkpoint, interrupt, scalars};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{ConvOptions, IndexMode, Padding, stack, zeros_like};
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
    /// Seed of the experiment: the same seed gives the same run, bit for bit
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run compiled (jit), operation by operation (eager), or on the host (interpret)
    #[arg(long, value_enum, default_value_t = Mode::Jit)]
    pub mode: Mode,
    /// Step the environments inside the compiled rollout (xla) or between calls (host)
    #[arg(long, value_enum, default_value_t = RolloutMode::Xla)]
    pub rollout: RolloutMode,
    /// End with one line of JSON on the standard output, and show no progress bar
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub json: bool,
    /// Save the model into the run's folder, and play it for --eval-episodes
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub save_model: bool,
    /// Games that a saved model plays at the end
    #[arg(long, default_value_t = 10)]
    pub eval_episodes: usize,
    /// Stop at the first NaN, and say which operation made it and at what line
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub check_nans: bool,
    /// Record a timeline of the run into this file, for Perfetto or chrome://tracing
    #[arg(long)]
    pub timeline: Option<PathBuf>,
    /// The folder in which the run's folder is made
    #[arg(long, default_value = "runs")]
    pub runs_dir: PathBuf,
    /// Threads that step environments; 0 measures and chooses
    #[arg(long, default_value_t = 0)]
    pub num_threads: usize,
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
    /// The settings of a command line: `Args::from_flags(["--seed", "3"])`.
    ///
    /// # Errors
    /// What clap says.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = &'a str>,
    ) -> std::result::Result<Args, clap::Error> {
        crate::rl::flags::parse_from(["ppo_atari_envpool"].into_iter().chain(flags).map(Into::into))
    }

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

    /// The pool that this run steps: episodes are lives, rewards are signs.
    fn pool(&self, num_envs: usize, seed: u64) -> Result<EnvPool> {
        let atari =
            AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() };
        let options = PoolOptions {
            num_envs,
            num_threads: self.num_threads,
            seed,
            autoreset: if self.envpool_reset { Autoreset::NextStep } else { Autoreset::SameStep },
            ..PoolOptions::default()
        };
        EnvPool::atari(&self.env_id, atari, options)
    }
}

// -------------------------------------------------------------------------------------- network

/// The Nature network (Mnih et al. 2015) with a head for the policy and one for the value.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Images to features.
    pub convs: [Conv2d<T>; 3],
    /// Features to 512 units.
    pub hidden: Dense<T>,
    /// Units to logits of the actions.
    pub actor: Dense<T>,
    /// Units to the value.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// A new agent for four images of 84 by 84 and `num_actions` actions.
    pub fn init(key: Key<Tensor>, num_actions: usize) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        let gain = orthogonal(2.0f64.sqrt());
        let conv = |key, shape, stride| {
            Conv2d::init(key, shape, ConvOptions { stride, padding: Padding::Valid }, gain)
        };
        Agent {
            convs: [
                conv(a, [8, 8, 4, 32], 4),
                conv(b, [4, 4, 32, 64], 2),
                conv(c, [3, 3, 64, 64], 1),
            ],
            hidden: Dense::init(hidden, 3136, 512, gain),
            actor: Dense::init(actor, 512, num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, 512, 1, orthogonal(1.0)),
        }
    }

    /// The policy and the value `f32[B]` of observations `u8[B, 4, 84, 84]`.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let mut x = obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0;
        for conv in &self.convs {
            x = conv.apply(x).relu();
        }
        let x = self.hidden.apply(x.flatten_from(1)).relu();
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

/// Games that finished in a rollout; `[T, N]` each.
#[derive(Debug, Clone, Copy, Tree)]
struct Games<T> {
    /// Whether one finished: `bool`.
    finished: T,
    /// Its return, not clipped: `f32`.
    episodic_return: T,
    /// Its steps: `i32`.
    length: T,
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
        let games = Games {
            finished: step.finished,
            episodic_return: step.episodic_return,
            length: step.episodic_length,
        };
        (next, (obs, act, step.reward, done, games))
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

impl Storage {
    fn clear(&mut self) {
        self.obs.clear();
        self.actions.clear();
        self.logprobs.clear();
        self.values.clear();
        self.rewards.clear();
        self.dones.clear();
    }
}

// ------------------------------------------------------------------------------------- training

/// The number of actions; refuses what this algorithm cannot play.
fn num_actions(pool: &EnvPool) -> Result<usize> {
    let spec = pool.spec();
    match &spec.action {
        Space::Discrete { n } if spec.observation.shape()[..] == [4, 84, 84] => Ok(*n),
        _ => Err(Error::Config(format!(
            "--env-id {}: ppo_atari_envpool takes images u8[4,84,84] and chooses among discrete \
             actions; this environment gives {} and takes {}",
            spec.id, spec.observation, spec.action
        ))),
    }
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`] for settings out of range, and what the environments, the compiler, the
/// runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let timeline = args.timeline.as_ref().map(timeline::start).transpose()?;
    let pool = args.pool(args.num_envs, args.seed)?;
    let num_actions = num_actions(&pool)?;
    interrupt::install()?;
    let mut run = Run::create(&args.runs_dir, &args.exp_name, &args.env_id, args.seed, args)?;
    let mut progress = Progress::new(args.total_timesteps, args.json);

    let init = with_mode(args.mode, |key: Key<Tensor>| {
        let [key, agent, play] = key.split_n();
        let agent = Agent::init(agent, num_actions);
        let optimizer = Adam::default().init(&agent);
        (TrainState { agent, optimizer }, key, play)
    })
    .named("ppo_atari_init");
    let shuffle = with_mode(args.mode, |key: Key<Tensor>| {
        let (key, draw) = key.split();
        (shuffle(draw, args), key)
    })
    .named("ppo_atari_shuffle");
    let learn = with_mode(args.mode, |(state, batch): (TrainState<Tensor>, Minibatch<Tensor>)| {
        minibatch_step(state, batch, args)
    })
    .named("ppo_atari_step")
    .check_nans(args.check_nans);

    let seed = tree::map(Key::new(args.seed), Array::from);
    let (mut state, mut key, play): (TrainState<Array>, Key<Array>, Key<Array>) =
        init.call(seed)?;
    let mut rollouts: Box<dyn Collect> = match args.rollout {
        RolloutMode::Xla => Box::new(Compiled::new(pool, play, args)?),
        RolloutMode::Host => Box::new(Stepped::new(pool, play, args)?),
    };
    let mut global_step: u64 = 0;
    let num_iterations = args.num_iterations();
    let steps = args.batch_size() as u64;

    for iteration in 1..=num_iterations {
        let started = Instant::now();
        let left = 1.0 - (iteration - 1) as f64 / num_iterations as f64;
        let learning_rate = args.learning_rate * if args.anneal_lr { left } else { 1.0 };

        let span = timeline::span("rollout");
        let (samples, games) = rollouts.collect(&state.agent)?;
        for (turn, episodic_return, length) in games {
            let at = global_step + ((turn + 1) * args.num_envs) as u64;
            run.episode(episodic_return.into(), length as u64, at)?;
        }
        global_step += steps;
        drop(span);

        let span = timeline::span("update");
        let updating = Instant::now();
        let (orders, next) = shuffle.call(key)?;
        key = next;
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
        let metrics = metrics.expect("at least one epoch of one minibatch");
        let metrics = log(&mut run, &metrics, learning_rate, global_step)?;
        let seconds = [started, updating].map(|start| start.elapsed().as_secs_f64());
        let [window, update] = seconds.map(|seconds| (steps as f64 / seconds).floor());
        run.events.scalars(
            &[("charts/SPS_update", window), ("charts/SPS_learner", update)],
            global_step,
        )?;
        drop(span);
        progress.update(global_step, run.sps(global_step), run.returns.mean());
        if !metrics.loss.is_finite() {
            run.events.flush()?;
            return Err(Error::Nan(format!(
                "the loss is {} after update {iteration}, at step {global_step}; run again with \
                 --check-nans to see which operation made it",
                metrics.loss
            )));
        }
        if interrupt::requested() {
            progress.note("stopped: the events and the model so far are kept");
            break;
        }
    }
    progress.finish();
    if args.save_model {
        save(&run, &state, args)?;
        for (k, game) in evaluate(&state.agent, args)?.into_iter().enumerate() {
            run.events.scalar("eval/episodic_return", game, k as u64)?;
        }
    }
    run.events.flush()?;
    if let Some(timeline) = timeline {
        timeline.finish()?;
    }
    let compile_s = init.stats().seconds()
        + shuffle.stats().seconds()
        + learn.stats().seconds()
        + rollouts.compile_seconds();
    let platform = match args.mode {
        Mode::Interpret => "host".to_string(),
        Mode::Jit | Mode::Eager => Runtime::get()?.client.platform_name().to_string(),
    };
    Ok(run.summary(&args.mode.to_string(), &platform, 1, global_step, compile_s))
}

/// A finished game: the turn of the rollout, its return and its length.
type Game = (usize, f32, i32);

/// The two ways to a rollout.
trait Collect {
    /// The next rollout, ready to learn from, and the games that finished in it.
    fn collect(&mut self, agent: &Agent<Array>) -> Result<(Samples<Array>, Vec<Game>)>;

    fn compile_seconds(&self) -> f64;
}

type CollectIn<T> = (Agent<T>, Playing<T>);
type CollectOut<T> = (Playing<T>, Samples<T>, Games<T>);

/// `--rollout xla`: one program with the environments in it.
struct Compiled<F> {
    program: Jit<CollectIn<Tensor>, CollectOut<Tensor>, F>,
    /// `None` only after a call failed.
    playing: Option<Playing<Array>>,
}

impl Compiled<()> {
    fn new<'a>(
        pool: EnvPool,
        key: Key<Array>,
        args: &'a Args,
    ) -> Result<Compiled<impl Fn(CollectIn<Tensor>) -> CollectOut<Tensor> + 'a>> {
        let (handle, envs) = pool.xla()?;
        let start = envs.clone();
        let reset = with_mode(args.mode, move |handle: Handle<Tensor>| {
            let (handle, step) = start.reset(handle);
            (handle, step.obs)
        });
        let (handle, obs) = reset.call(handle)?;
        let done = Array::zeros([args.num_envs], DType::F32);
        let collect =
            move |(agent, playing): CollectIn<Tensor>| collect(&envs, &agent, playing, args);
        Ok(Compiled {
            program: with_mode(args.mode, collect).named("ppo_atari_rollout"),
            playing: Some(Playing { handle, obs, done, key }),
        })
    }
}

impl<F: Fn(CollectIn<Tensor>) -> CollectOut<Tensor>> Collect for Compiled<F> {
    fn collect(&mut self, agent: &Agent<Array>) -> Result<(Samples<Array>, Vec<Game>)> {
        let playing = self.playing.take().ok_or_else(|| {
            Error::Env("the rollout failed before; its environments are gone".into())
        })?;
        let (playing, samples, games) = self.program.call((agent.clone(), playing))?;
        self.playing = Some(playing);
        let finished = games.finished.to_vec::<bool>()?;
        let returns = games.episodic_return.to_vec::<f32>()?;
        let lengths = games.length.to_vec::<i32>()?;
        let num_envs = games.finished.shape()[1];
        let games = (0..finished.len()).filter(|&i| finished[i]);
        Ok((samples, games.map(|i| (i / num_envs, returns[i], lengths[i])).collect()))
    }

    fn compile_seconds(&self) -> f64 {
        self.program.stats().seconds()
    }
}

type ActIn<T> = (Agent<T>, T, Key<T>);
type ActOut<T> = (Act<T>, Key<T>);
type PrepareIn<T> = (Agent<T>, Rollout<T>);

/// `--rollout host`: the environments between calls of the policy.
struct Stepped<F, G> {
    act: Jit<ActIn<Tensor>, ActOut<Tensor>, F>,
    prepare: Jit<PrepareIn<Tensor>, Samples<Tensor>, G>,
    pool: EnvPool,
    batch: Batch,
    dones: Vec<f32>,
    /// `None` only after a call failed.
    key: Option<Key<Array>>,
    storage: Storage,
    steps: usize,
}

impl Stepped<(), ()> {
    #[allow(clippy::type_complexity)] // The two functions have no name.
    fn new<'a>(
        mut pool: EnvPool,
        key: Key<Array>,
        args: &'a Args,
    ) -> Result<
        Stepped<
            impl Fn(ActIn<Tensor>) -> ActOut<Tensor> + 'a,
            impl Fn(PrepareIn<Tensor>) -> Samples<Tensor> + 'a,
        >,
    > {
        let policy = |(agent, obs, key): ActIn<Tensor>| act(&agent, obs, key);
        let ready = |(agent, rollout): PrepareIn<Tensor>| prepare(&agent, rollout, args);
        let batch = pool.reset()?;
        Ok(Stepped {
            act: with_mode(args.mode, policy).named("ppo_atari_act"),
            prepare: with_mode(args.mode, ready).named("ppo_atari_prepare"),
            pool,
            batch,
            dones: vec![0.0; args.num_envs],
            key: Some(key),
            storage: Storage::default(),
            steps: args.num_steps,
        })
    }
}

impl<F, G> Collect for Stepped<F, G>
where
    F: Fn(ActIn<Tensor>) -> ActOut<Tensor>,
    G: Fn(PrepareIn<Tensor>) -> Samples<Tensor>,
{
    fn collect(&mut self, agent: &Agent<Array>) -> Result<(Samples<Array>, Vec<Game>)> {
        let Stepped { storage, .. } = self;
        storage.clear();
        let mut games = Vec::new();
        for turn in 0..self.steps {
            let key = self.key.take().ok_or_else(|| {
                Error::Env("the rollout failed before; its randomness is gone".into())
            })?;
            let (act, key) = self.act.call((agent.clone(), self.batch.obs_array(), key))?;
            self.key = Some(key);
            storage.obs.extend_from_slice(self.batch.obs());
            storage.dones.extend_from_slice(&self.dones);
            let actions = act.action.to_vec::<i32>()?;
            storage.actions.extend_from_slice(&actions);
            storage.logprobs.extend(act.logprob.to_vec::<f32>()?);
            storage.values.extend(act.value.to_vec::<f32>()?);
            self.batch = self.pool.step(&actions)?;
            let batch = &self.batch;
            storage.rewards.extend_from_slice(batch.reward());
            for (row, done) in self.dones.iter_mut().enumerate() {
                *done = f32::from(u8::from(batch.terminated()[row] || batch.truncated()[row]));
                if batch.finished()[row] {
                    games.push((turn, batch.episodic_return()[row], batch.episodic_length()[row]));
                }
            }
        }
        let envs = self.dones.len();
        let images = self.batch.obs_shape();
        let both = [self.steps, envs];
        let rollout = Rollout {
            obs: Array::new([&both, &images[1..]].concat(), &storage.obs)?,
            actions: Array::new(both, &storage.actions)?,
            logprobs: Array::new(both, &storage.logprobs)?,
            values: Array::new(both, &storage.values)?,
            rewards: Array::new(both, &storage.rewards)?,
            dones: Array::new(both, &storage.dones)?,
            next_obs: self.batch.obs_array(),
            next_done: Array::new([envs], &self.dones)?,
        };
        Ok((self.prepare.call((agent.clone(), rollout))?, games))
    }

    fn compile_seconds(&self) -> f64 {
        self.act.stats().seconds() + self.prepare.stats().seconds()
    }
}

/// Reads the metrics and logs them under CleanRL's tags.
fn log(
    run: &mut Run,
    metrics: &Metrics<Array>,
    learning_rate: f64,
    step: u64,
) -> Result<Metrics<f32>> {
    let values = scalars(metrics)?;
    run.events.scalars(
        &[
            ("charts/learning_rate", learning_rate),
            ("charts/avg_episodic_return", run.returns.mean().unwrap_or(0.0)),
            ("losses/value_loss", values.value_loss.into()),
            ("losses/policy_loss", values.policy_loss.into()),
            ("losses/entropy", values.entropy.into()),
            ("losses/approx_kl", values.approx_kl.into()),
            ("losses/loss", values.loss.into()),
            ("charts/SPS", run.sps(step).floor()),
        ],
        step,
    )?;
    Ok(values)
}

/// Saves parameters and optimiser as `{exp_name}.safetensors`, with the settings.
fn save(run: &Run, state: &TrainState<Array>, args: &Args) -> Result<()> {
    let path = run.dir.join(format!("{}.safetensors", args.exp_name));
    checkpoint::save_tree(path, state, args)
}

/// The returns of `eval_episodes` whole games that the agent plays, drawing from its policy.
pub fn evaluate(agent: &Agent<Array>, args: &Args) -> Result<Vec<f64>> {
    // Games of another seed than those of the training.
    let mut pool = args.pool(1, args.seed.wrapping_add(1 << 32))?;
    let policy = |(agent, obs, key): ActIn<Tensor>| act(&agent, obs, key);
    let act = with_mode(args.mode, policy).named("ppo_atari_eval");
    let mut key = tree::map(Key::new(args.seed), Array::from);
    let mut batch = pool.reset()?;
    let mut returns = Vec::new();
    while returns.len() < args.eval_episodes && !interrupt::requested() {
        let (acted, next) = act.call((agent.clone(), batch.obs_array(), key))?;
        key = next;
        batch = pool.step(&acted.action.to_vec::<i32>()?)?;
        returns.extend(pool.take_finished().iter().map(|game| game.episodic_return));
    }
    Ok(returns)
}
