//! Advantage actor-critic (A2C) for discrete actions and vector observations: the synchronous form
//! of A3C (Mnih et al. 2016) without threads, as Stable-Baselines3's `A2C`. Acting and learning are
//! one compiled program.
//!
//! Differences from Stable-Baselines3 and from PPO are listed in `docs/algos/a2c.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::{Activation, Mlp};
use crate::optim::{RmsProp, RmsPropState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, unit};
use crate::rl::on_policy::{
    Playing, bootstrap_truncated, explained_variance, flat, gae, normalize_by_sample_std,
};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::constant;
use crate::tree::Tree;
use crate::{DType, Key, Tensor, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and the defaults of Stable-Baselines3 (`num_envs` is that of its
/// zoo for CartPole).
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "A2C for discrete actions and vector observations", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "a2c")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 500_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 7e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 8)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per update
    #[arg(long, default_value_t = 5)]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE); 1 gives n-step returns
    #[arg(long, default_value_t = 1.0)]
    pub gae_lambda: f64,
    /// Normalise advantages over each batch
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.0)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// The decay rate (alpha) of RMSProp's running mean of squared gradients
    #[arg(long, default_value_t = 0.99)]
    pub rms_prop_alpha: f64,
    /// The epsilon that RMSProp adds to the root of the mean squared gradient
    #[arg(long, default_value_t = 1e-5)]
    pub rms_prop_eps: f64,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// if false, truncation is treated as termination
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Number of updates in one call of the compiled program: about 2000 timesteps.
    fn rounds(&self) -> usize {
        let all = self.total_timesteps / self.batch_size() as u64;
        2000usize.div_ceil(self.batch_size()).min(all as usize)
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, 1, self.total_timesteps)?;
        unit(&[
            ("gamma", self.gamma),
            ("gae-lambda", self.gae_lambda),
            ("rms-prop-alpha", self.rms_prop_alpha),
        ])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("rms-prop-eps", self.rms_prop_eps),
        ])
    }
}

algorithm!(Args, "a2c", Args::check, train, play_model);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Network from observations to action logits.
    pub actor: Mlp<T>,
    /// Network from observations to values.
    pub critic: Mlp<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of size `obs_size` and `num_actions` actions.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        let network = |key, outputs, gain| {
            let hidden = orthogonal(2.0f64.sqrt());
            Mlp::init(key, &[obs_size, 64, 64, outputs], Activation::Tanh, hidden, orthogonal(gain))
        };
        Agent { actor: network(actor, num_actions, 0.01), critic: network(critic, 1, 1.0) }
    }

    /// Returns the policy at `obs: f32[.., obs_size]`.
    pub fn policy(&self, obs: Tensor) -> Categorical<Tensor> {
        Categorical::new(self.actor.apply(obs))
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(obs).squeeze(-1)
    }
}

/// State carried between updates.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// RMSProp's running mean of squared gradients.
    pub optimizer: RmsPropState<Agent<T>>,
    /// Environment state between two steps.
    pub playing: Playing<T>,
    /// Number of updates so far, `i32[]`.
    pub updates: T,
}

// --------------------------------------------------------------------------------------- losses

/// Samples of one update, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `f32[B, obs_size]`
    pub obs: T,
    /// `i32[B]`
    pub actions: T,
    /// `f32[B]`
    pub advantages: T,
    /// `f32[B]`
    pub returns: T,
}

/// Metrics of one update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// `mean((v - R)^2)`
    pub value_loss: T,
    /// `mean(-A log pi)`
    pub policy_loss: T,
    /// Mean entropy of the policy.
    pub entropy: T,
    /// `1 - var(R - v) / var(R)`
    pub explained_variance: T,
}

/// Computes the loss over a batch, and its parts: the policy loss, the value loss and the entropy.
pub fn loss(agent: &Agent<Tensor>, batch: &Samples<Tensor>, args: &Args) -> (Tensor, [Tensor; 3]) {
    let policy = agent.policy(batch.obs);
    let mut advantages = batch.advantages;
    if args.norm_adv {
        advantages = normalize_by_sample_std(advantages);
    }
    let policy_loss = -(advantages * policy.log_prob(batch.actions)).mean(..);
    let value_loss = (agent.value(batch.obs) - batch.returns).square().mean(..);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, [policy_loss, value_loss, entropy])
}

// --------------------------------------------------------------------------------------- update

fn rms_prop(args: &Args) -> RmsProp {
    RmsProp {
        learning_rate: args.learning_rate,
        decay: args.rms_prop_alpha,
        eps: args.rms_prop_eps,
        eps_in_sqrt: false,
        ..RmsProp::default()
    }
}

// -------------------------------------------------------------------------------------- rollout

/// One step of all environments, `[N, ..]`.
#[derive(Debug, Clone, Copy, Tree)]
struct Transition<T> {
    obs: T,
    actions: T,
    /// Includes the discounted value of the final observation with `--bootstrap-truncated`.
    rewards: T,
    /// 1 where the step ended the episode, by termination or truncation.
    ends: T,
}

/// Steps all environments `num_steps` times; the transitions are `[T, N, ..]`.
fn play(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Transition<Tensor>, EpisodeStats<Tensor>) {
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, key } = playing;
        let (key, draw) = key.split();
        let actions = agent.policy(obs).sample(draw);
        let (handle, told) = envs.step(handle, actions);
        let mut rewards = told.reward;
        if args.bootstrap_truncated {
            let (cut, last) = (told.truncated_only(), envs.final_obs_of(&told).to(DType::F32));
            let value = |obs| agent.value(obs);
            rewards = bootstrap_truncated(rewards, cut, last, args.gamma, value);
        }
        let transition = Transition { obs, actions, rewards, ends: told.done().to(DType::F32) };
        let obs = told.obs.to(DType::F32);
        (Playing { handle, obs, key }, (transition, EpisodeStats::of(&told)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, (steps, games)) = scan_with(turn, playing, (), length);
    (playing, steps, games)
}

/// Runs `rounds` iterations of `num_steps` environment steps and one gradient step; compiled as one
/// program.
fn rounds(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, EpisodeStats<Tensor>, Metrics<Tensor>) {
    let all = args.total_timesteps / args.batch_size() as u64;
    let round = |state: TrainState<Tensor>, ()| {
        let TrainState { agent, optimizer, playing, updates } = state;
        let (playing, steps, games) = play(envs, &agent, playing, args);
        let (values, next_value) = (agent.value(steps.obs), agent.value(playing.obs));
        let discounts = (args.gamma, args.gae_lambda);
        let (advantages, returns) = gae(steps.rewards, steps.ends, values, next_value, discounts);
        let batch = Samples {
            obs: flat(steps.obs),
            actions: flat(steps.actions),
            advantages: flat(advantages),
            returns: flat(returns),
        };
        let ((_, [policy_loss, value_loss, entropy]), grads) =
            value_and_grad(|agent: Agent<Tensor>| loss(&agent, &batch, args))(agent.clone());
        let grads = clip_grad_norm(grads, args.max_grad_norm);
        let left = 1.0 - updates.to(DType::F32) / all as f64;
        let part = if args.anneal_lr { left } else { constant(1.0f32) };
        let rms_prop = rms_prop(args).with_learning_rate(args.learning_rate * part);
        let (agent, optimizer) = rms_prop.step(agent, grads, optimizer);
        let explained_variance = explained_variance(values, returns);
        let metrics = Metrics { value_loss, policy_loss, entropy, explained_variance };
        (TrainState { agent, optimizer, playing, updates: updates + 1 }, (games, metrics))
    };
    let count = ScanOptions::length(args.rounds());
    let (state, (games, metrics)) = scan_with(round, state, (), count);
    (state, games, metrics)
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Returns the sizes of observations and actions, or an error if this algorithm does not support
/// the environment's spaces.
fn sizes(pool: &EnvPool) -> Result<(usize, usize)> {
    Ok((spaces::vector("a2c", pool.spec())?, spaces::choices("a2c", pool.spec())?))
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
    let (obs_size, num_actions) = sizes(&pool)?;
    let mut trainer = Trainer::start(args, (args.rounds() * args.batch_size()) as u64)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network) = key.split();
        let agent = Agent::init(network, obs_size, num_actions);
        let (handle, first) = envs.reset(handle);
        TrainState {
            optimizer: rms_prop(args).init(&agent),
            agent,
            playing: Playing { handle, obs: first.obs.to(DType::F32), key },
            updates: constant(0i32),
        }
    })
    .named("a2c_init");
    let learn = with_mode(mode, |state: TrainState<Tensor>| rounds(&envs, state, args))
        .named("a2c_rounds")
        .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut state = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    while trainer.should_continue() {
        let _span = timeline::span("rounds");
        let (next, games, metrics) = learn.call(state)?;
        state = next;
        trainer.record(&games.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds();
    let TrainState { agent, optimizer, .. } = state;
    trainer.finish(&Model { agent, optimizer }, compile_s)
}

/// Saved model: the training state without the environments.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// RMSProp's running mean of squared gradients.
    pub optimizer: RmsPropState<Agent<T>>,
}

/// Evaluates a saved model, sampling actions from its policy.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, num_actions) = sizes(&pool)?;
    let fresh = |key: Key<Tensor>| {
        let agent = Agent::init(key, obs_size, num_actions);
        Model { optimizer: rms_prop(args).init(&agent), agent }
    };
    let agent = load_model(model, fresh)?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.policy(obs.to(DType::F32)).sample(key)
        })
        .named("a2c_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
