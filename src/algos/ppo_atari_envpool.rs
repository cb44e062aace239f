//! Proximal policy optimisation (PPO, Schulman et al. 2017) on Atari: CleanRL's
//! `ppo_atari_envpool_xla_jax_scan.py`. The environments are stepped inside the compiled rollout or
//! on the host.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_atari_envpool.md`.

use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, Autoreset, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder};
use crate::optim::{Adam, clip_by_global_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    self, Act, Acted, Learner, Metrics, Minibatch, Played, Playing, Rollout, Samples, annealed,
    bootstrap_truncated_batch, normalize, orders, policy_loss, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeRecord, EpisodeStats, Evaluation, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::tree::Tree;
use crate::{Array, Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Execution mode of the environments in a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutMode {
    /// Environments step inside the compiled program: a whole rollout is one call.
    Xla,
    /// Environments step on the host, between calls of the compiled policy.
    Host,
}

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO on Atari games, for the env pool", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari_envpool")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Step the environments inside the compiled rollout (xla) or on the host between calls of the
    /// policy (host)
    #[arg(long, value_enum, default_value_t = RolloutMode::Xla)]
    pub rollout: RolloutMode,
    /// Reset in the step after the end of an episode, as EnvPool does, and train on that step
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
    /// Use a clipped loss for the value function, as in the paper. CleanRL's JAX variants have this
    /// flag but ignore it
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
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

    /// Creates the environment pool of this run, with episodic lives and rewards clipped to their
    /// signs.
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

algorithm!(Args, "ppo_atari_envpool", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: the Nature network (Mnih et al. 2015), a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from images to 512 units.
    pub trunk: Encoder<T>,
    /// Layer from hidden units to action logits.
    pub actor: Dense<T>,
    /// Layer from hidden units to values.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent for four images of 84 by 84 and `num_actions` actions.
    pub fn init(key: Key<Tensor>, num_actions: usize) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        Agent {
            trunk: Encoder::nature([a, b, c, hidden], 4),
            actor: Dense::init(actor, 512, num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, 512, 1, orthogonal(1.0)),
        }
    }

    /// Returns the policy and the values `f32[B]` for observations `u8[B, 4, 84, 84]`.
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
    let advantages = if args.norm_adv { normalize(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Computes the samples of a rollout, in the order `[T, N]`.
fn prepare(
    agent: &Agent<Tensor>,
    (rollout, acted): Played<Tensor>,
    args: &Args,
) -> Samples<Tensor> {
    let (_, next_value) = agent.apply(rollout.next_obs);
    rollout.samples(acted, next_value, (args.gamma, args.gae_lambda)).0
}

/// Takes one gradient step; compiled as one program.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Minibatch<Tensor, Samples<Tensor>>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let samples = batch.rows();
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let clip = |grads| clip_by_global_norm(grads, args.max_grad_norm);
    state.descend(|agent| loss(agent, &samples, args), clip, adam)
}

// -------------------------------------------------------------------------------------- rollout

/// Computes the actions, log probabilities and values for observations `u8[N, 4, 84, 84]`.
fn act(agent: &Agent<Tensor>, obs: Tensor, draw: Key<Tensor>) -> Act<Tensor> {
    let (policy, value) = agent.apply(obs);
    let action = policy.sample(draw);
    Act { action, logprob: policy.log_prob(action), value }
}

/// Collects a rollout with the environments stepped inside the loop; compiled as one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Samples<Tensor>, EpisodeStats<Tensor>) {
    let act = |obs, draw| act(agent, obs, draw);
    let value = |obs| agent.apply(obs).1;
    let bootstrap =
        args.bootstrap_truncated.then_some((args.gamma, &value as &dyn Fn(Tensor) -> Tensor));
    let (playing, told, games) = on_policy::play(envs, playing, args.num_steps, act, bootstrap);
    (playing, prepare(agent, told, args), games)
}

/// Host memory of a rollout, filled step by step.
#[derive(Default)]
struct Storage {
    obs: Vec<u8>,
    actions: Vec<i32>,
    logprobs: Vec<f32>,
    values: Vec<f32>,
    rewards: Vec<f32>,
    ends: Vec<f32>,
}

// ------------------------------------------------------------------------------------- training

/// Returns the number of actions, or an error if this algorithm does not support the environment's
/// spaces.
fn num_actions(pool: &EnvPool) -> Result<usize> {
    let (name, spec) = ("ppo_atari_envpool", pool.spec());
    spaces::images(name, spec, [4, 84, 84])?;
    spaces::choices(name, spec)
}

/// State carried between iterations.
#[derive(Debug, Tree)]
struct Running<T> {
    train: TrainState<T>,
    /// PRNG key of the minibatch orders.
    key: Key<T>,
    playing: Playing<T>,
}

fn begin(key: Key<Tensor>, num_actions: usize) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, num_actions))
}

type CollectIn<T> = (Agent<T>, Playing<T>);
type CollectOut<T> = (Playing<T>, Samples<T>, EpisodeStats<T>);

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = args.pool(args.num_envs, args.run.seed)?;
    let num_actions = num_actions(&pool)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated && !args.envpool_reset {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let [key, agent, play] = key.split_n();
        let (handle, first) = envs.reset(handle);
        let playing = Playing { handle, obs: first.obs, key: play };
        Running { train: begin(agent, num_actions), key, playing }
    })
    .named("ppo_atari_init");
    let shuffle = with_mode(mode, |key: Key<Tensor>| {
        let (key, draw) = key.split();
        (orders(draw, args.update_epochs, args.num_minibatches, args.batch_size()), key)
    })
    .named("ppo_atari_shuffle");
    let learn = with_mode(mode, |(state, batch): Step<Tensor>| minibatch_step(state, batch, args))
        .named("ppo_atari_step")
        .check_nans(args.run.check_nans);
    // Only one of the two rollouts is called; the other is never compiled.
    let rollout = with_mode(mode, |(agent, playing): CollectIn<Tensor>| -> CollectOut<Tensor> {
        collect(&envs, &agent, playing, args)
    })
    .named("ppo_atari_rollout");
    let act = with_mode(mode, |(agent, obs, key): ActIn<Tensor>| {
        let (key, draw) = key.split();
        (act(&agent, obs, draw), key)
    })
    .named("ppo_atari_act");
    // Compiled on the first use on the host, by --bootstrap-truncated.
    let value = with_mode(mode, |(agent, obs): (Agent<Tensor>, Tensor)| agent.apply(obs).1)
        .named("ppo_atari_value");
    let prepare = with_mode(mode, |(agent, told): PrepareIn<Tensor>| prepare(&agent, told, args))
        .named("ppo_atari_prepare");

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let (steps, num_iterations) = (args.batch_size() as u64, args.num_iterations());
    while trainer.should_continue() {
        let update = trainer.global_step() / steps;
        let learning_rate = annealed(args.learning_rate, args.anneal_lr, update, num_iterations);
        let Running { train: state, key, playing } = running;

        let span = timeline::span("rollout");
        let (playing, samples, games) = match args.rollout {
            RolloutMode::Xla => {
                let (playing, samples, games) = rollout.call((state.agent.clone(), playing))?;
                (playing, samples, games.to_vec()?)
            }
            RolloutMode::Host => {
                let agent = &state.agent;
                let act = |obs: &Array, key| act.call((agent.clone(), obs.clone(), key));
                let value = |obs| value.call((agent.clone(), obs));
                let (playing, told, games) = step_on_host(&envs, playing, act, value, args)?;
                (playing, prepare.call((agent.clone(), told))?, games)
            }
        };
        drop(span);

        let _span = timeline::span("update");
        let updating = Instant::now();
        let (orders, key) = shuffle.call(key)?;
        let rate = Array::from(learning_rate as f32);
        let count = (args.update_epochs, args.num_minibatches);
        let turn = Array::from(0i32);
        let first = Minibatch { samples, orders, turn, learning_rate: rate };
        let step = |state, turn| learn.call((state, first.at(turn)));
        let (state, metrics) = on_policy::steps(state, count, args.target_kl, step)?;
        running = Running { train: state, key, playing };
        let at = trainer.global_step() + steps;
        trainer.record(&games, Some(&metrics))?;
        let update = steps as f64 / updating.elapsed().as_secs_f64();
        let mean = trainer.run.returns.mean().unwrap_or(0.0);
        let scalars = [
            ("charts/learning_rate", learning_rate),
            ("charts/avg_episodic_return", mean),
            ("charts/SPS_learner", update.floor()),
        ];
        trainer.run.events.scalars(&scalars, at)?;
        trainer.checkpoint_if_due(&running, &envs)?;
    }
    let compile_s = init.stats().seconds()
        + shuffle.stats().seconds()
        + learn.stats().seconds()
        + rollout.stats().seconds()
        + act.stats().seconds()
        + value.stats().seconds()
        + prepare.stats().seconds();
    trainer.finish(&running.train, compile_s)
}

type ActIn<T> = (Agent<T>, T, Key<T>);
type PrepareIn<T> = (Agent<T>, Played<T>);
type Step<T> = (TrainState<T>, Minibatch<T, Samples<T>>);

/// Steps the environments between calls of the policy, for `--rollout host`.
fn step_on_host(
    envs: &XlaPool,
    playing: Playing<Array>,
    act: impl Fn(&Array, Key<Array>) -> Result<(Act<Array>, Key<Array>)>,
    value: impl Fn(Array) -> Result<Array>,
    args: &Args,
) -> Result<(Playing<Array>, Played<Array>, Vec<EpisodeRecord>)> {
    let Playing { handle, mut obs, mut key } = playing;
    let mut pool = envs.pool(0);
    let (mut storage, mut games) = (Storage::default(), Vec::new());
    for turn in 1..=args.num_steps {
        let (act, next) = act(&obs, key)?;
        key = next;
        storage.obs.extend(obs.to_vec::<u8>()?);
        let actions = act.action.to_vec::<i32>()?;
        storage.actions.extend_from_slice(&actions);
        storage.logprobs.extend(act.logprob.to_vec::<f32>()?);
        storage.values.extend(act.value.to_vec::<f32>()?);
        let batch = pool.step(&actions)?;
        obs = batch.obs_array();
        storage.rewards.extend_from_slice(batch.reward());
        if args.bootstrap_truncated {
            let rewards = &mut storage.rewards[(turn - 1) * args.num_envs..];
            bootstrap_truncated_batch(rewards, &batch, args.gamma, &value)?;
        }
        for row in 0..args.num_envs {
            let end = batch.terminated()[row] || batch.truncated()[row];
            storage.ends.push(f32::from(u8::from(end)));
            if batch.finished()[row] {
                games.push(EpisodeRecord {
                    step: (turn * args.num_envs) as u64,
                    episodic_return: batch.episodic_return()[row].into(),
                    length: batch.episodic_length()[row] as u64,
                });
            }
        }
    }
    let both = [args.num_steps, args.num_envs];
    let rollout = Rollout {
        obs: Array::new([&both, &obs.shape()[1..]].concat(), &storage.obs)?,
        actions: Array::new(both, &storage.actions)?,
        rewards: Array::new(both, &storage.rewards)?,
        ends: Array::new(both, &storage.ends)?,
        next_obs: obs.clone(),
    };
    let acted = Acted {
        logprobs: Array::new(both, &storage.logprobs)?,
        values: Array::new(both, &storage.values)?,
    };
    Ok((Playing { handle, obs, key }, (rollout, acted), games))
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = args.pool(1, args.run.seed.wrapping_add(1 << 32))?;
    let num_actions = num_actions(&pool)?;
    let agent = load_model(model, |key| begin(key, num_actions))?.agent;
    let act = with_mode(args.run.mode, |(agent, obs, key): ActIn<Tensor>| {
        act(&agent, obs, key.split().1).action
    })
    .named("ppo_atari_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
