//! Proximal policy optimization (PPO, Schulman et al. 2017) on Atari with EnvPool's wrappers:
//! CleanRL's `ppo_atari_envpool_xla_jax_scan.py`. A rollout is one compiled program, each gradient
//! step a call of another, because XLA's own convolutions (not oneDNN's) are slower inside a
//! compiled loop. With `--rollout host`, the host steps the environments (submodule `host`).
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_atari_envpool.md`.

mod host;

use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::distributions::Categorical;
use crate::envs::{AtariOptions, Autoreset, EnvPool, Handle, ObsKind, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::{Stats, jit};
use crate::nn::{Dense, Encoder, init::orthogonal};
use crate::optim::{Adam, AdamState, clip_by_global_norm};
use crate::random::permutation;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::saved::load_model;
use crate::rl::spaces::Sizes;
use crate::rl::{
    Algorithm, ComputeDtype, EpisodeStats, Policy, PolicyResults, RunOptions, Summary, Trainer,
    bootstrap_truncated, gather_minibatch, merge_time_and_env,
};
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{IndexMode, stack, zeros_like};
use crate::tree::Tree;
use crate::{Array, DType, Key, Tensor, value_and_grad};

use host::HostRollout;

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
#[command(
    about = "PPO on Atari games, with rollouts in the environment pool",
    args_override_self = true
)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari_envpool")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Step the environments in the compiled rollout (xla) or on the host (host)
    #[arg(long, value_enum, default_value_t = RolloutMode::Xla)]
    pub rollout: RolloutMode,
    /// Reset one step after the end of an episode (NEXT_STEP), as EnvPool does, and train on that step
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub envpool_reset: bool,
    /// The element type in which the encoder computes
    #[arg(long, value_enum, default_value_t = ComputeDtype::Float32)]
    pub compute_dtype: ComputeDtype,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 10_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
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
    /// Normalize advantages over each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.1)]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as OpenAI Baselines does; CleanRL's JAX variants do not
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
    /// The KL divergence at which the remaining epochs of an update are skipped
    #[arg(long)]
    pub target_kl: Option<f64>,
    /// Bootstrap at time limits with the value of the final observation; CleanRL does not
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

registered_algorithm!(Args, "ppo_atari_envpool", FOUR_FRAMES, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: the Nature network (Mnih et al. 2015), a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from images to 512 features.
    pub trunk: Encoder<T>,
    /// Layer from features to action logits.
    pub actor: Dense<T>,
    /// Layer from features to values.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initializes an agent for four images of 84 by 84 and `num_actions` actions.
    pub fn init(key: Key<Tensor>, num_actions: usize) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        let (keys, shape) = (vec![a, b, c, hidden], [4, 84, 84].into());
        let gain = orthogonal(2.0f64.sqrt());
        Agent {
            trunk: Encoder::init_with_keys(keys, ObsKind::Frames, &shape, gain),
            actor: Dense::init(actor, 512, num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, 512, 1, orthogonal(1.0)),
        }
    }

    /// Returns the policy and the values `f32[B]` at `obs: u8[B, 4, 84, 84]`.
    pub fn policy_and_value(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let features = self.trunk.apply(obs);
        let value = self.critic.apply(features).squeeze(-1);
        (Categorical::new(self.actor.apply(features)), value)
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    /// Parameters.
    pub agent: Agent<T>,
    /// Adam's state.
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, num_actions: usize, args: &Args) -> TrainState<Tensor> {
    let mut agent = Agent::init(key, num_actions);
    agent.trunk = agent.trunk.with_compute_dtype(args.compute_dtype.dtype());
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    /// Environment handle. Passing it on orders the calls, as EnvPool's handle does.
    pub handle: Handle<T>,
    /// `u8[N, 4, 84, 84]`: last observations.
    pub obs: T,
    /// PRNG key.
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `u8[T, N, 4, 84, 84]`: observations.
    pub obs: T,
    /// `i32[T, N]`: actions.
    pub actions: T,
    /// `f32[T, N]`: log probabilities of the actions.
    pub logprobs: T,
    /// `f32[T, N]`: values of the observations.
    pub values: T,
    /// `f32[T, N]`: rewards.
    pub rewards: T,
    /// `f32[T, N]`: 1 where the step ended its episode.
    pub dones: T,
    /// `u8[N, 4, 84, 84]`: observations after the last step.
    pub next_obs: T,
}

/// Steps all environments once with sampled actions. Returns the observations, actions, log
/// probabilities, values, rewards and ends of episodes of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 6], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let (policy, value) = agent.policy_and_value(obs);
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let (handle, step) = envs.step(handle, action);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        let value = |obs| agent.policy_and_value(obs).1;
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, action, logprob, value, reward, step.done().to(DType::F32)];
    let env_state = EnvState { handle, obs: step.obs, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let step = |env_state, ()| env_step(envs, agent, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, actions, logprobs, values, rewards, dones] = transitions;
    let next_obs = env_state.obs;
    let rollout = Rollout { obs, actions, logprobs, values, rewards, dones, next_obs };
    (env_state, rollout, episodes)
}

// ----------------------------------------------------------------------------------- advantages

/// Generalized advantage estimation (GAE, Schulman et al. 2016): returns advantages and returns,
/// `f32[T, N]`, for values `f32[T, N]` and `next_value: f32[N]` of the observations after the last
/// step.
pub fn compute_gae(
    rewards: Tensor,
    dones: Tensor,
    values: Tensor,
    next_value: Tensor,
    (gamma, gae_lambda): (f64, f64),
) -> (Tensor, Tensor) {
    type Step = (Tensor, Tensor, Tensor);
    let step = |(next_advantage, next_value): (Tensor, Tensor), (reward, done, value): Step| {
        let nonterminal = 1.0 - done;
        let delta = reward + gamma * next_value * nonterminal - value;
        let advantage = delta + gamma * gae_lambda * nonterminal * next_advantage;
        ((advantage, value), advantage)
    };
    let init = (zeros_like(next_value), next_value);
    let (_, advantages) = scan_with(step, init, (rewards, dones, values), ScanOptions::reversed());
    (advantages, advantages + values)
}

/// Training samples made from a rollout, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `u8[B, 4, 84, 84]`: observations.
    pub obs: T,
    /// `i32[B]`: actions.
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy of the rollout.
    pub logprobs: T,
    /// `f32[B]`: advantages.
    pub advantages: T,
    /// `f32[B]`: returns.
    pub returns: T,
    /// `f32[B]`: values that the critic predicted in the rollout.
    pub values: T,
}

/// Returns the samples of a rollout.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> Samples<Tensor> {
    let Rollout { obs, actions, logprobs, values, rewards, dones, next_obs } = rollout;
    let (_, next_value) = agent.policy_and_value(next_obs); // f32[N]
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    merge_time_and_env(Samples { obs, actions, logprobs, advantages, returns, values })
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Total loss.
    pub loss: T,
    /// Value loss.
    pub value_loss: T,
    /// Policy loss.
    pub policy_loss: T,
    /// Mean entropy of the policy.
    pub entropy: T,
    /// Estimate `mean(-log ratio)` of the KL divergence from the policy of the rollout.
    pub old_approx_kl: T,
    /// Estimate `mean(ratio - 1 - log ratio)` of the KL divergence.
    pub approx_kl: T,
    /// Fraction of ratios that differ from 1 by more than the clip range.
    pub clipfrac: T,
}

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.policy_and_value(batch.obs);
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
        let v_clipped = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((v_clipped - batch.returns).square());
    }
    let value_loss = 0.5 * value_error.mean(..);

    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let metrics = Metrics {
        loss,
        value_loss,
        policy_loss,
        entropy,
        old_approx_kl: (-logratio).mean(..),
        approx_kl: ((ratio - 1.0) - logratio).mean(..),
        clipfrac: (ratio - 1.0).abs().gt(clip).to(DType::F32).mean(..),
    };
    (loss, metrics)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a minibatch.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| ppo_loss(&agent, batch, args))(agent.clone());
    let grads = clip_by_global_norm(args.max_grad_norm).apply(grads);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adam.step(agent, grads, opt_state);
    (TrainState { agent, opt_state }, metrics)
}

/// Returns the sample indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs * num_minibatches, minibatch_size]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.batch_size())).collect();
    let minibatch_size = args.batch_size() / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_size])
}

/// Arguments of [`minibatch_step`] besides the train state: all samples, and which to use.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Minibatch<T> {
    /// All samples of the update.
    pub samples: Samples<T>,
    /// `i32[update_epochs * num_minibatches, minibatch_size]`: sample indices of all minibatches.
    pub indices: T,
    /// `i32[]`: index of this minibatch.
    pub index: T,
    /// `f32[]`: learning rate.
    pub learning_rate: T,
}

/// Results of a gradient step.
type StepOutput<T> = (TrainState<T>, Metrics<T>);

/// Gathers a minibatch and takes one gradient step on it; compiled as one program.
pub fn minibatch_step(
    train_state: TrainState<Tensor>,
    minibatch: Minibatch<Tensor>,
    args: &Args,
) -> StepOutput<Tensor> {
    let Minibatch { samples, indices, index, learning_rate } = minibatch;
    let indices = indices.take_mode(index, 0, IndexMode::Clip);
    gradient_step(train_state, &gather_minibatch(samples, indices), learning_rate, args)
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs, each a call of `step`;
/// stops after an epoch whose last KL divergence exceeds `target_kl`. Returns the metrics of the
/// last gradient step, with the mean `clipfrac` of all.
fn run_epochs(
    mut train_state: TrainState<Array>,
    minibatch: &Minibatch<Array>,
    step: impl Fn(TrainState<Array>, Minibatch<Array>) -> Result<StepOutput<Array>>,
    args: &Args,
) -> Result<StepOutput<Array>> {
    let mut all_metrics: Vec<Metrics<Array>> = Vec::new();
    for epoch in 0..args.update_epochs {
        for k in 0..args.num_minibatches {
            let index = Array::from((epoch * args.num_minibatches + k) as i32);
            let minibatch = Minibatch { index, ..minibatch.clone() };
            let (next_state, metrics) = step(train_state, minibatch)?;
            train_state = next_state;
            all_metrics.push(metrics);
        }
        if let (Some(target_kl), Some(last)) = (args.target_kl, all_metrics.last())
            && f64::from(last.approx_kl.item::<f32>()?) > target_kl
        {
            break;
        }
    }
    let mut clipfrac = 0.0;
    for metrics in &all_metrics {
        clipfrac += metrics.clipfrac.item::<f32>()?;
    }
    let clipfrac = Array::from(clipfrac / all_metrics.len() as f32);
    let last = all_metrics.pop().expect("at least one gradient step");
    Ok((train_state, Metrics { clipfrac, ..last }))
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    /// State that gradient steps change.
    pub train_state: TrainState<T>,
    /// State of the environments.
    pub env_state: EnvState<T>,
    /// PRNG key of the minibatches.
    pub shuffle_key: Key<T>,
}

/// Collects a rollout and makes samples of it; compiled as one program.
fn collect_samples(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, EpisodeStats<Tensor>, Samples<Tensor>) {
    let (env_state, rollout, episodes) = collect_rollout(envs, agent, env_state, args);
    (env_state, episodes, make_samples(agent, rollout, args))
}

/// Creates environments with episodic lives and rewards clipped to their signs, and returns them
/// with the number of actions.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, usize)> {
    let atari = AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() };
    let options = PoolOptions {
        num_envs,
        num_threads: args.run.num_threads,
        seed,
        autoreset: if args.envpool_reset { Autoreset::NextStep } else { Autoreset::SameStep },
        ..PoolOptions::default()
    };
    let pool = EnvPool::atari(&args.env_id, atari, options)?;
    let sizes = Sizes::from_spec(Args::NAME, pool.spec(), &Args::ENVS)?;
    Ok((pool, sizes.num_actions))
}

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, num_actions) = make_pool(args, args.num_envs, args.run.seed)?;
    let (handle, mut envs) = pool.xla()?;
    if args.rollout == RolloutMode::Host {
        envs = envs.untraced();
    }
    if args.bootstrap_truncated && !args.envpool_reset {
        envs = envs.with_final_obs()?;
    }
    let init = jit(|(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let [shuffle_key, agent_key, key] = key.split_n();
        let train_state = init_train_state(agent_key, num_actions, args);
        let (handle, first) = envs.reset(handle);
        let env_state = EnvState { handle, obs: first.obs, key };
        RunnerState { train_state, env_state, shuffle_key }
    })
    .with_mode(args.run.mode)
    .named("ppo_atari_init");
    // Compiled at its first call, so never with --rollout host.
    let collect = jit(|(agent, env_state)| collect_samples(&envs, &agent, env_state, args))
        .with_mode(args.run.mode)
        .named("ppo_atari_rollout")
        .check_nans(args.run.check_nans);
    let host = HostRollout::new(args);
    let shuffle = jit(|key: Key<Tensor>| {
        let (key, shuffle_key) = key.split();
        (key, minibatch_indices(shuffle_key, args))
    })
    .with_mode(args.run.mode)
    .named("ppo_atari_shuffle");
    let step = jit(|(train_state, minibatch)| minibatch_step(train_state, minibatch, args))
        .with_mode(args.run.mode)
        .named("ppo_atari_step")
        .check_nans(args.run.check_nans);

    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let mut learning_rate = args.learning_rate;
        if args.anneal_lr {
            let iteration = trainer.global_step() / args.batch_size() as u64;
            learning_rate *= 1.0 - iteration as f64 / args.num_iterations() as f64;
        }
        let RunnerState { train_state, env_state, shuffle_key } = state;
        let agent = &train_state.agent;
        let (env_state, episodes, samples) = match args.rollout {
            RolloutMode::Xla => {
                let (env_state, episodes, samples) = collect.call((agent.clone(), env_state))?;
                (env_state, episodes.to_vec()?, samples)
            }
            RolloutMode::Host => host.collect_samples(&envs, agent, env_state)?,
        };
        let update_start = Instant::now();
        let (shuffle_key, indices) = shuffle.call(shuffle_key)?;
        let (index, rate) = (Array::from(0i32), Array::from(learning_rate as f32));
        let minibatch = Minibatch { samples, indices, index, learning_rate: rate };
        let step = |train_state, minibatch| step.call((train_state, minibatch));
        let (train_state, metrics) = run_epochs(train_state, &minibatch, step, args)?;
        state = RunnerState { train_state, env_state, shuffle_key };
        trainer.record(&episodes, Some(&metrics))?;
        let learner_sps = args.batch_size() as f64 / update_start.elapsed().as_secs_f64();
        trainer.log(&[
            ("charts/learning_rate", learning_rate),
            ("charts/avg_episodic_return", trainer.run.returns.mean().unwrap_or(0.0)),
            ("charts/SPS_learner", learner_sps.floor()),
        ])?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    let stats = [init.stats(), collect.stats(), shuffle.stats(), step.stats()];
    let compile_s = stats.iter().map(Stats::seconds).sum::<f64>() + host.compile_seconds();
    trainer.finish(&state.train_state, compile_s)
}

/// Returns the policy of a saved model: the most likely action and the logits.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, num_actions) = make_pool(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, num_actions, args))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy_and_value(obs).0)
    }))
}
