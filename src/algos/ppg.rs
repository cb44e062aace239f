//! Phasic policy gradient (PPG, Cobbe et al. 2020): CleanRL's `ppg_procgen.py` on Atari games and
//! boards. A policy phase consists of `--n-iteration` PPO updates; an auxiliary phase follows it,
//! which distils the value function into the shared layers.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppg.md`.

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::{lecun_normal, orthogonal};
use crate::nn::normalize::{NormalizeReward, NormalizeRewardState};
use crate::nn::{Dense, Encoder, ImpalaCnn, View};
use crate::optim::{Adam, AdamState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, expect, not_negative, positive, product, unit};
use crate::rl::on_policy::{
    self, Acted, Metrics, Minibatch, Report, Rollout, Samples, annealed, bootstrap_truncated, flat,
    normalize_by_sample_std, orders, policy_loss, pool_of, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::Sizes;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::ops::{IndexMode, Padding, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Convolutional networks of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The Nature network (Mnih et al. 2015); MinAtar's network for boards (Young and Tian 2019).
    Nature,
    /// IMPALA's residual network (Espeholt et al. 2018), as in CleanRL's script.
    Impala,
}

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPG on images", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppg")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: an Atari game, or one with board observations such as MinAtar's
    #[arg(long, default_value = "MinAtar/Breakout-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 1_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 64)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 256)]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.999)]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value_t = 0.95)]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value_t = 8)]
    pub num_minibatches: usize,
    /// The number of rollouts in a phase, each followed by a policy update
    #[arg(long, default_value_t = 32)]
    pub n_iteration: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 1)]
    pub e_policy: usize,
    /// The number of epochs of the auxiliary phase
    #[arg(long, default_value_t = 6)]
    pub e_auxiliary: usize,
    /// Coefficient of the KL divergence from the policy before the auxiliary phase
    #[arg(long, default_value_t = 1.0)]
    pub beta_clone: f64,
    /// The number of single-environment rollouts per gradient step of the auxiliary phase
    #[arg(long, default_value_t = 4)]
    pub num_aux_rollouts: usize,
    /// Normalise advantages over the whole rollout
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub adv_norm_fullbatch: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.2)]
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
    /// The convolutional network of the agent
    #[arg(long, value_enum, default_value_t = Network::Nature)]
    pub network: Network,
    /// Divide rewards by the standard deviation of the discounted return, and clip them at 10
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub normalize_reward: bool,
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

    /// Number of timesteps in a phase.
    fn phase(&self) -> u64 {
        (self.batch_size() * self.n_iteration) as u64
    }

    /// Total number of policy updates; an incomplete last phase is dropped, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.phase() * self.n_iteration as u64
    }

    fn check(&self) -> Result<()> {
        positive(&[
            ("n-iteration", self.n_iteration),
            ("e-policy", self.e_policy),
            ("e-auxiliary", self.e_auxiliary),
            ("num-aux-rollouts", self.num_aux_rollouts),
        ])?;
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        product(&[
            ("num-envs", self.num_envs),
            ("num-steps", self.num_steps),
            ("n-iteration", self.n_iteration),
        ])?;
        let sequences = self.num_envs * self.n_iteration;
        expect(
            sequences.is_multiple_of(self.num_aux_rollouts),
            "num-aux-rollouts",
            self.num_aux_rollouts,
            &format!("a divisor of num-envs * n-iteration = {sequences}"),
        )?;
        expect(
            self.phase() <= self.total_timesteps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least one phase, {} timesteps", self.phase()),
        )?;
        unit(&[("gamma", self.gamma), ("gae-lambda", self.gae_lambda)])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("beta-clone", self.beta_clone),
        ])
    }
}

algorithm!(Args, "ppg", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Encoder from observations to features.
#[derive(Debug, Clone, Tree)]
pub enum Trunk<T> {
    /// An [`Encoder`].
    Nature(Encoder<T>),
    /// IMPALA's convolutional network.
    Impala(ImpalaCnn<T>),
}

/// Rescales a kernel so that each column, the weights of one output, has the norm `scale`.
fn normed(w: Tensor, scale: f64) -> Tensor {
    let axes: Vec<isize> = (0..w.rank() as isize - 1).collect();
    let norms = w.square().sum(&axes[..]).sqrt();
    w * (scale / norms)
}

/// Initialises PPG's IMPALA network: 16, 32 and 32 features, 256 units. Kernel columns have the
/// norm 1 in the sequences' first convolutions, the root of `1 / sqrt(3) / sqrt(2)` in their
/// residual blocks, and 1.4 in the dense layer. Max pooling pads as PyTorch does.
fn impala(key: Key<Tensor>, shape: [usize; 3]) -> ImpalaCnn<Tensor> {
    let mut net = ImpalaCnn::init(key, shape, &[16, 32, 32], &[256], lecun_normal());
    let residual = (1.0 / 3.0f64.sqrt() / 2.0f64.sqrt()).sqrt();
    for sequence in &mut net.sequences {
        sequence.conv.w = normed(sequence.conv.w, 1.0);
        sequence.pool_padding = Padding::SameLower;
        for conv in sequence.residuals.iter_mut().flat_map(|residual| &mut residual.convs) {
            conv.w = normed(conv.w, residual);
        }
    }
    net.hidden[0].w = normed(net.hidden[0].w, 1.4);
    net
}

impl Trunk<Tensor> {
    fn init(key: Key<Tensor>, network: Network, sizes: &Sizes) -> Trunk<Tensor> {
        match (network, &sizes.shape[..]) {
            (Network::Impala, &[frames, height, width]) if sizes.view == View::Frames => {
                Trunk::Impala(impala(key, [height, width, frames]))
            }
            (Network::Impala, &[height, width, kinds]) => {
                Trunk::Impala(impala(key, [height, width, kinds]))
            }
            _ => Trunk::Nature(Encoder::init(key, sizes.view, &sizes.shape)),
        }
    }

    /// Number of features.
    pub fn size(&self) -> usize {
        match self {
            Trunk::Nature(net) => net.size(),
            Trunk::Impala(net) => net.size(),
        }
    }

    /// Returns features `f32[B, size]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        match self {
            Trunk::Nature(net) => net.apply(obs),
            Trunk::Impala(net) if obs.dtype() == DType::U8 => {
                net.apply(obs.transpose(&[0, 2, 3, 1]).to(DType::F32) / 255.0)
            }
            Trunk::Impala(net) => net.apply(obs.to(DType::F32)),
        }
    }
}

/// Actor-critic network: an encoder, a policy head, a value head, and an auxiliary value head that
/// only the auxiliary phase trains; its loss also trains the encoder.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from observations to features.
    pub trunk: Trunk<T>,
    /// Layer from features to action logits.
    pub actor: Dense<T>,
    /// Layer from features to values.
    pub critic: Dense<T>,
    /// Layer from features to auxiliary values.
    pub aux_critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of the given view and shape.
    pub fn init(key: Key<Tensor>, network: Network, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, actor, critic, aux_critic] = key.split_n();
        let trunk = Trunk::init(trunk, network, sizes);
        let head = |key, outputs, gain| {
            let mut head = Dense::init(key, trunk.size(), outputs, orthogonal(gain));
            if network == Network::Impala {
                head.w = normed(head.w, 0.1);
            }
            head
        };
        Agent {
            actor: head(actor, sizes.num_actions, 0.01),
            critic: head(critic, 1, 1.0),
            aux_critic: head(aux_critic, 1, 1.0),
            trunk,
        }
    }

    /// Returns the policy and the values `f32[B]` for observations `[B, ..]`. The gradient of the
    /// values does not flow into the encoder.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let x = self.trunk.apply(obs);
        let value = self.critic.apply(x.stop_gradient()).squeeze(-1);
        (Categorical::new(self.actor.apply(x)), value)
    }

    /// Returns the policy's logits `f32[B, actions]` for observations `[B, ..]`.
    pub fn logits(&self, obs: Tensor) -> Tensor {
        self.actor.apply(self.trunk.apply(obs))
    }
}

/// The agent and the states of its optimisers.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments of all parameters except `aux_critic`, whose moments here stay 0.
    pub optimizer: AdamState<T, Agent<T>>,
    /// Adam's moments and count of `aux_critic`, which only auxiliary phases train.
    pub aux_optimizer: AdamState<T, Dense<T>>,
}

impl TrainState<Tensor> {
    /// Train state of these parameters before the first gradient step.
    pub fn new(agent: Agent<Tensor>) -> TrainState<Tensor> {
        let (optimizer, aux_optimizer) =
            (Adam::default().init(&agent), Adam::default().init(&agent.aux_critic));
        TrainState { agent, optimizer, aux_optimizer }
    }
}

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let (policy_loss, ratios) = policy_loss(logratio, batch.advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

/// Samples of one auxiliary gradient step: whole rollouts of some environments, flattened to B
/// samples.
#[derive(Debug, Clone, Copy, Tree)]
pub struct AuxSamples<T> {
    /// `[B, ..]`, in the environment's dtype.
    pub obs: T,
    /// `f32[B]`
    pub returns: T,
    /// `f32[B, actions]`: logits of the policy before the phase.
    pub logits: T,
}

/// Metrics of the auxiliary phase; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct AuxMetrics<T> {
    /// `mean(KL(old, new))`
    pub kl_loss: T,
    /// `mean((v_aux - R)^2) / 2`
    pub aux_value_loss: T,
    /// `mean((v - R)^2) / 2`
    pub real_value_loss: T,
}

/// Computes the loss of the auxiliary phase: the auxiliary value loss, the KL divergence from the
/// policy before the phase, and the value loss.
pub fn aux_loss(
    agent: &Agent<Tensor>,
    batch: &AuxSamples<Tensor>,
    args: &Args,
) -> (Tensor, AuxMetrics<Tensor>) {
    let x = agent.trunk.apply(batch.obs);
    let new = Categorical::new(agent.actor.apply(x));
    let kl_loss = Categorical::new(batch.logits).kl(&new).mean(..);
    let error = |head: &Dense<Tensor>, x: Tensor| {
        0.5 * (head.apply(x).squeeze(-1) - batch.returns).square().mean(..)
    };
    let aux_value_loss = error(&agent.aux_critic, x);
    let real_value_loss = error(&agent.critic, x.stop_gradient());
    let loss = aux_value_loss + args.beta_clone * kl_loss + real_value_loss;
    (loss, AuxMetrics { kl_loss, aux_value_loss, real_value_loss })
}

// --------------------------------------------------------------------------------------- update

/// All rollouts of a phase, with observations in the environment's dtype.
#[derive(Debug, Clone, Tree)]
pub struct Phase<T> {
    /// `[n_iteration, T, N, ..]`
    pub obs: T,
    /// `f32[n_iteration, T, N]`
    pub returns: T,
}

/// Takes a gradient step on `loss`. In the policy phase `aux_critic` and its moments do not change:
/// PyTorch's Adam skips parameters without a gradient and counts the steps of each parameter.
fn gradient_step<M: Tree<Tensor>>(
    state: TrainState<Tensor>,
    loss: impl Fn(&Agent<Tensor>) -> (Tensor, M),
    (learning_rate, auxiliary): (Tensor, bool),
    args: &Args,
) -> (TrainState<Tensor>, M) {
    let TrainState { agent, optimizer, mut aux_optimizer } = state;
    let ((_, metrics), grads) = value_and_grad(|agent: Agent<Tensor>| loss(&agent))(agent.clone());
    let mut grads = clip_grad_norm(grads, args.max_grad_norm);
    let zero_grads = tree::map(grads.aux_critic.clone(), zeros_like);
    let aux_grads = std::mem::replace(&mut grads.aux_critic, zero_grads);
    let adam = Adam { eps: 1e-8, ..Adam::default() }.with_learning_rate(learning_rate);
    let (mut agent, optimizer) = adam.step(agent, grads, optimizer);
    if auxiliary {
        (agent.aux_critic, aux_optimizer) = adam.step(agent.aux_critic, aux_grads, aux_optimizer);
    }
    (TrainState { agent, optimizer, aux_optimizer }, metrics)
}

/// Takes one gradient step of the auxiliary phase.
pub fn aux_minibatch_step(
    state: TrainState<Tensor>,
    batch: &AuxSamples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, AuxMetrics<Tensor>) {
    gradient_step(state, |agent| aux_loss(agent, batch, args), (learning_rate, true), args)
}

/// Runs the auxiliary phase as one program. `orders: i32[steps, num_aux_rollouts]` are the
/// single-environment rollouts of each gradient step. Returns the metrics of the last gradient
/// step.
pub fn auxiliary(
    state: TrainState<Tensor>,
    phase: &Phase<Tensor>,
    learning_rate: Tensor,
    orders: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, AuxMetrics<Tensor>) {
    // One row for each environment's rollout, `[n_iteration N, T, ..]`.
    let rollouts = |x: Tensor| flat(x.swapaxes(1, 2));
    let (obs, returns) = (rollouts(phase.obs), rollouts(phase.returns));
    let before = state.agent.clone();
    let ((), logits) = scan(|(), obs: Tensor| ((), before.logits(obs)), (), obs);
    let take = |x: Tensor, envs: Tensor| flat(x.take_mode(envs, 0, IndexMode::Clip));
    let turn = |state: TrainState<Tensor>, envs: Tensor| {
        let batch = AuxSamples {
            obs: take(obs, envs),
            returns: take(returns, envs),
            logits: take(logits, envs),
        };
        aux_minibatch_step(state, &batch, learning_rate, args)
    };
    let (state, all) = scan(turn, state, orders);
    (state, tree::map(all, |x: Tensor| x.index_axis(0, -1)))
}

/// Takes one gradient step of the policy phase; compiled as one program.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Minibatch<Tensor, Samples<Tensor>>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let samples = batch.rows();
    let rate = batch.learning_rate;
    gradient_step(state, |agent| loss(agent, &samples, args), (rate, false), args)
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

/// Environment state between two steps.
#[derive(Debug, Tree)]
struct EnvState<T> {
    handle: Handle<T>,
    /// `[N, ..]`, in the environment's dtype.
    obs: T,
    /// `bool[N]`: true where `obs` is the first of an episode.
    first: T,
    /// Running statistics of the discounted returns.
    reward: NormalizeRewardState<T>,
    /// PRNG key.
    key: Key<T>,
}

/// Computes the samples of a rollout, and the explained variance. `next_value: f32[N]` is the value
/// of the observation after the last step.
pub fn samples(
    rollout: Rollout<Tensor>,
    acted: Acted<Tensor>,
    next_value: Tensor,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let discounts = (args.gamma, args.gae_lambda);
    let (mut samples, explained_variance) = rollout.samples(acted, next_value, discounts);
    // Each update trains on one rollout, so that this is CleanRL's full batch.
    if args.adv_norm_fullbatch {
        samples.advantages = normalize_by_sample_std(samples.advantages);
    }
    (samples, explained_variance)
}

/// Collects a rollout with the environments stepped inside the loop; compiled as one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Collected<Tensor>) {
    let normalizer = NormalizeReward { gamma: args.gamma, ..NormalizeReward::default() };
    let env_step = |state: EnvState<Tensor>, ()| {
        let EnvState { handle, obs, first, reward: stats, key } = state;
        let (key, draw) = key.split();
        let (policy, value) = agent.apply(obs);
        let action = policy.sample(draw);
        let logprob = policy.log_prob(action);
        let (handle, step) = envs.step(handle, action);
        let (mut reward, mut next_stats) = (step.reward, stats.clone());
        if args.normalize_reward {
            // The last reward of an episode is part of its return.
            (reward, next_stats) = normalizer.step(reward, first, stats);
        }
        if args.bootstrap_truncated {
            let (cut, last) = (step.truncated_only(), envs.final_obs_of(&step));
            let value = |obs| agent.apply(obs).1;
            reward = bootstrap_truncated(reward, cut, last, args.gamma, value);
        }
        let end = step.done();
        let next = EnvState { handle, obs: step.obs, first: end, reward: next_stats, key };
        let end = end.to(DType::F32);
        (next, (obs, action, logprob, value, reward, end, EpisodeStats::of(&step)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (state, steps) = scan_with(env_step, state, (), length);
    let (obs, actions, logprobs, values, rewards, ends, games) = steps;
    let rollout = Rollout { obs, actions, rewards, ends, next_obs: state.obs };
    let acted = Acted { logprobs, values };
    let (_, next_value) = agent.apply(rollout.next_obs);
    let (samples, explained_variance) = samples(rollout, acted, next_value, args);
    let (key, shuffle) = state.key.split();
    let orders = orders(shuffle, args.e_policy, args.num_minibatches, args.batch_size());
    let state = EnvState { key, ..state };
    (state, Collected { samples, orders, games, explained_variance })
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
    Sizes::of("ppg", pool.spec(), &[View::Frames, View::Board])
}

fn begin(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> TrainState<Tensor> {
    TrainState::new(Agent::init(key, args.network, sizes))
}

/// State carried between iterations.
#[derive(Debug, Tree)]
struct Running<T> {
    train: TrainState<T>,
    env: EnvState<T>,
    phase: Phase<T>,
}

type Step<T> = (TrainState<T>, Minibatch<T, Samples<T>>);
type Stored<T> = (Phase<T>, (T, T), T);
type Aux<T> = ((TrainState<T>, Key<T>), Phase<T>, T);

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
        let lead = [args.n_iteration, args.num_steps];
        let phase = Phase {
            obs: zeros([&lead, &first.obs.shape()[..]].concat(), first.obs.dtype()),
            returns: zeros([args.n_iteration, args.num_steps, args.num_envs], DType::F32),
        };
        let normalizer = NormalizeReward { gamma: args.gamma, ..NormalizeReward::default() };
        let reward = normalizer.init([args.num_envs], DType::F64);
        let env = EnvState { handle, obs: first.obs, first: first.first, reward, key };
        Running { train: begin(agent, &sizes, args), env, phase }
    })
    .named("ppg_init");
    let rollout = with_mode(mode, |(agent, env): (Agent<Tensor>, EnvState<Tensor>)| {
        collect(&envs, &agent, env, args)
    })
    .named("ppg_rollout");
    let learn = with_mode(mode, |(state, batch): Step<Tensor>| minibatch_step(state, batch, args))
        .named("ppg_step")
        .check_nans(args.run.check_nans);
    let store = with_mode(mode, |(phase, (obs, returns), at): Stored<Tensor>| {
        let put = |all: Tensor, one: Tensor| {
            let one = one.reshape([&[1], &all.shape()[1..]].concat());
            let mut starts = vec![at];
            starts.resize(all.rank(), zeros_like(at));
            all.dynamic_update_slice_clamped(one, &starts)
        };
        Phase { obs: put(phase.obs, obs), returns: put(phase.returns, returns) }
    })
    .named("ppg_store");
    let teach = with_mode(mode, |((state, key), phase, rate): Aux<Tensor>| {
        let (key, shuffle) = key.split();
        let sequences = args.num_envs * args.n_iteration;
        let minibatches = sequences / args.num_aux_rollouts;
        let orders = orders(shuffle, args.e_auxiliary, minibatches, sequences);
        let (state, metrics) = auxiliary(state, &phase, rate, orders, args);
        (state, key, phase, metrics)
    })
    .named("ppg_auxiliary")
    .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    // Only complete phases are started.
    let last = args.num_iterations() * steps;
    let next_steps = |step: u64| if step < last { steps } else { u64::MAX };
    trainer.iteration_steps = next_steps(trainer.global_step());
    while trainer.should_continue() {
        let update = trainer.global_step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let Running { train: mut state, env, phase } = running;

        let span = timeline::span("rollout");
        let (mut env, collected) = rollout.call((state.agent.clone(), env))?;
        let Collected { samples, orders, games, explained_variance } = collected;
        let games = games.to_vec()?;
        let at = update % args.n_iteration as u64;
        let seen = (samples.obs.clone(), samples.returns.clone());
        let mut phase = store.call((phase, seen, Array::from(at as i32)))?;
        drop(span);

        let _span = timeline::span("update");
        let learning_rate = Array::from(rate as f32);
        let count = (args.e_policy, args.num_minibatches);
        let turn = Array::from(0i32);
        let first = Minibatch { samples, orders, turn, learning_rate: learning_rate.clone() };
        let step = |state, turn| learn.call((state, first.at(turn)));
        let (next, metrics) = on_policy::steps(state, count, None, step)?;
        state = next;
        let step = trainer.global_step() + steps;
        if at + 1 == args.n_iteration as u64 {
            let (next, key, kept, told) = teach.call(((state, env.key), phase, learning_rate))?;
            (state, env.key, phase) = (next, key, kept);
            let scalars = [
                ("losses/aux/kl_loss", f64::from(told.kl_loss.item::<f32>()?)),
                ("losses/aux/aux_value_loss", f64::from(told.aux_value_loss.item::<f32>()?)),
                ("losses/aux/real_value_loss", f64::from(told.real_value_loss.item::<f32>()?)),
            ];
            trainer.run.events.scalars(&scalars, step)?;
        }
        running = Running { train: state, env, phase };
        trainer.run.events.scalar("charts/learning_rate", rate, step)?;
        trainer.record(&games, Some(&Report { metrics, explained_variance }))?;
        trainer.iteration_steps = next_steps(trainer.global_step());
        trainer.checkpoint_if_due(&running, &envs)?;
    }
    let compile_s = init.stats().seconds()
        + rollout.stats().seconds()
        + learn.stats().seconds()
        + store.stats().seconds()
        + teach.stats().seconds();
    trainer.finish(&running.train, compile_s)
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, &sizes, args))?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.apply(obs).0.sample(key)
        })
        .named("ppg_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
