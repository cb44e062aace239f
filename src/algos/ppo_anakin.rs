//! Proximal policy optimisation (PPO) with the environment inside the compiled program: PureJaxRL's
//! `ppo.py` (Lu et al. 2022) on traced environments, the Anakin architecture (Hessel et al. 2021)
//! on one device. Rollouts and updates are one loop in one program, and `vmap` trains many agents
//! at once.
//!
//! Differences from PureJaxRL, with reasons, are listed in `docs/algos/ppo_anakin.md`.

mod fast;
mod log;
mod normalize;
mod seeds;

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::{Categorical, DiagNormal};
use crate::envs::traced::{AutoReset, Playing, Traced, TracedEnv, make};
use crate::envs::{EnvPool, EnvSpec, PoolOptions, Space};
use crate::error::{Error, Result};
use crate::jit::{eval_shape, with_mode};
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::nn::normalize::RunningMeanStd;
use crate::optim::{Adam, AdamState};
use crate::rl::bootstrap_truncated;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, expect, not_negative, positive, unit};
use crate::rl::saved::load_typed;
use crate::rl::{Evaluation, RunOptions, Summary, Trainer};
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::jacobian::ravel;
use crate::trace::ops::{
    IndexMode, concatenate, constant, full, full_like, ones, stack, where_, zeros, zeros_like,
};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType, random, value_and_grad, vmap};
use fast::{Rows, argmax, clip_by_norm, orders};
use log::Log;
pub use normalize::{Normalizers, Observed};
use seeds::for_seeds;
pub use seeds::{Launch, SeedAxis, start};

/// Maximum number of timesteps that one call of the program reports, over all seeds.
const MAX_REPORT: usize = 1 << 26;

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and PureJaxRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO, environments included, as one compiled program", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_anakin")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// The number of agents to train at once, with consecutive seeds starting at --seed
    #[arg(long, default_value_t = 1)]
    pub num_seeds: usize,
    /// The method of training several agents on one device: one after another (map) or in a batch
    /// (vmap)
    #[arg(long, value_enum, default_value_t = SeedAxis::Map)]
    pub seed_axis: SeedAxis,
    /// The number of devices that share the agents; 0 uses the largest divisor of --num-seeds that
    /// does not exceed the number of processors
    #[arg(long, default_value_t = 0)]
    pub num_devices: usize,
    /// The number of updates in one launch of the compiled program; 0 chooses it automatically
    #[arg(long, default_value_t = 0)]
    pub updates_per_launch: u64,

    /// The id of the environment, which must be a traced one
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment, for each agent
    #[arg(long, default_value_t = 500_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments of each agent
    #[arg(long, default_value_t = 4)]
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
    /// Normalise observations and rewards of environments with continuous actions by running
    /// statistics, as PureJaxRL's ppo_continuous_action.py
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub normalize_env: bool,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// PureJaxRL treats truncation as termination
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update of one agent.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Number of samples per gradient step.
    fn minibatch_size(&self) -> usize {
        self.batch_size() / self.num_minibatches
    }

    /// Total number of updates; remaining timesteps are dropped, as in PureJaxRL.
    fn num_updates(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    /// Number of updates in one launch. The default gives about 64 launches, so that progress is
    /// visible and the cost of a launch is negligible. It divides the total if a divisor is near,
    /// because a last launch of another length is compiled separately.
    fn launch(&self) -> u64 {
        let total = self.num_updates();
        if self.updates_per_launch > 0 {
            return self.updates_per_launch.min(total);
        }
        // The report of a launch, which covers every timestep, is kept in memory.
        let most = (MAX_REPORT / (self.batch_size() * self.num_seeds).max(1)).max(1) as u64;
        let wanted = total.div_ceil(64).min(most);
        (wanted..=wanted * 2).find(|n| total.is_multiple_of(*n)).unwrap_or(wanted)
    }

    fn check(&self) -> Result<()> {
        positive(&[("num-seeds", self.num_seeds), ("update-epochs", self.update_epochs)])?;
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        expect(
            i32::try_from(self.num_updates()).is_ok(),
            "total-timesteps",
            self.total_timesteps,
            &format!("fewer than 2^31 batches of num-envs * num-steps = {}", self.batch_size()),
        )?;
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

algorithm!(Args, "ppo_anakin", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Action space of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actions {
    /// Discrete actions, with the given number of choices: a categorical policy.
    Choices(usize),
    /// Continuous actions of the given size: a normal policy whose standard deviations are
    /// parameters.
    Numbers(usize),
}

impl Actions {
    /// Number of the actor's outputs.
    fn heads(self) -> usize {
        match self {
            Actions::Choices(n) | Actions::Numbers(n) => n,
        }
    }
}

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Network from observations to action logits or action means.
    pub actor: [Dense<T>; 3],
    /// Network from observations to values.
    pub critic: [Dense<T>; 3],
    /// Log standard deviations of continuous actions.
    pub log_std: Option<T>,
}

/// Initialises two hidden layers, orthogonal with gain sqrt(2), and an output layer of the given
/// gain.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize, gain: f64) -> [Dense<Tensor>; 3] {
    let [first, second, head] = key.split_n();
    let hidden = orthogonal(2.0f64.sqrt());
    [
        Dense::init(first, inputs, 64, hidden),
        Dense::init(second, 64, 64, hidden),
        Dense::init(head, 64, outputs, orthogonal(gain)),
    ]
}

/// Applies the layers to `obs: f32[.., inputs]`, giving `f32[.., outputs]`.
fn forward(layers: &[Dense<Tensor>; 3], obs: Tensor) -> Tensor {
    let hidden = layers[0].apply(obs.to(DType::F32)).tanh();
    let hidden = layers[1].apply(hidden).tanh();
    layers[2].apply(hidden)
}

/// Computes [`forward`] of a batch `f32[B, inputs]` for the update. Each bias is added as a product
/// with a column of ones, so that its gradient, a sum over the batch, is a product too: the
/// compiler's column sums are several times slower on CPU.
fn forward_batch(layers: &[Dense<Tensor>; 3], obs: Tensor) -> Tensor {
    let column = ones([obs.dim(0), 1], DType::F32);
    let layer = |layer: &Dense<Tensor>, x: Tensor| {
        let y = x.matmul(layer.w);
        layer.b.map_or(y, |b| y + column.matmul(b.expand_dims(0)))
    };
    let hidden = layer(&layers[0], obs.to(DType::F32)).tanh();
    let hidden = layer(&layers[1], hidden).tanh();
    layer(&layers[2], hidden)
}

/// Distribution of the actor.
enum Policy {
    Choices(Categorical<Tensor>),
    Numbers(DiagNormal<Tensor>),
}

impl Policy {
    fn log_prob(&self, actions: Tensor) -> Tensor {
        match self {
            Policy::Choices(policy) => policy.log_prob(actions),
            Policy::Numbers(policy) => policy.log_prob(actions),
        }
    }

    fn entropy(&self) -> Tensor {
        match self {
            Policy::Choices(policy) => policy.entropy(),
            Policy::Numbers(policy) => policy.entropy(),
        }
    }
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, actions: Actions) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, actions.heads(), 0.01),
            critic: network(critic, obs_size, 1, 1.0),
            log_std: match actions {
                Actions::Choices(_) => None,
                Actions::Numbers(n) => Some(zeros([n], DType::F32)),
            },
        }
    }

    /// Returns the policy for outputs `f32[.., heads]` of the actor.
    fn policy(&self, heads: Tensor) -> Policy {
        match self.log_std {
            None => Policy::Choices(Categorical::new(heads)),
            Some(log_std) => Policy::Numbers(DiagNormal::new(heads, log_std.exp())),
        }
    }

    /// Draws the noise of many samples at once, `f32[.., heads]`, for [`Agent::draw`].
    fn noise(&self, key: Key<Tensor>, shape: [usize; 3]) -> Tensor {
        match self.log_std {
            None => random::gumbel(key, shape, DType::F32),
            Some(_) => random::normal(key, shape, DType::F32),
        }
    }

    /// Samples actions from the policy: `i32[..]` or `f32[.., heads]`.
    fn draw(&self, heads: Tensor, noise: Tensor) -> Tensor {
        match self.log_std {
            None => argmax(heads + noise),
            Some(log_std) => heads + log_std.exp() * noise,
        }
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        forward(&self.critic, obs).squeeze(-1)
    }
}

/// Training state of one agent.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// State of the environments, with leaves `[N, ..]`.
    pub games: Playing<T, Vec<T>>,
    /// `[N, obs_size]`: the current observations, in the environment's dtype or normalised.
    pub obs: T,
    /// Running statistics, if observations and rewards are normalised.
    pub normalizers: Option<Normalizers<T>>,
    /// PRNG key.
    pub key: Key<T>,
    /// `i32[]`: number of updates so far.
    pub updates: T,
}

// --------------------------------------------------------------------------------------- losses

/// A rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, obs_size]`, in the environment's dtype.
    pub obs: T,
    /// `f32[T, N, heads]`: outputs of the actor.
    pub heads: T,
    /// `i32[T, N]` or `f32[T, N, heads]`
    pub actions: T,
    /// `f32[T, N]`
    pub rewards: T,
    /// `bool[T, N]`: true where the step ended an episode.
    pub dones: T,
    /// `f32[T, N]`: returns of the episodes that ended, NaN where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: number of steps of the episode so far.
    pub episode_lengths: T,
}

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, obs_size]`, in the environment's dtype.
    pub obs: T,
    /// `i32[B]` or `f32[B, heads]`
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

/// Metrics of one update; scalars.
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
    /// `mean(-log ratio)`
    pub old_approx_kl: T,
    /// `mean(ratio - 1 - log ratio)`
    pub approx_kl: T,
    /// Fraction of ratios outside the clip range.
    pub clipfrac: T,
}

/// Computes generalised advantage estimation (GAE, Schulman et al. 2016): advantages and returns,
/// `f32[T, N]`. Truncation counts as termination, as in PureJaxRL; `--bootstrap-truncated` adds the
/// value of the final observation to the reward.
pub fn gae(
    rewards: Tensor,
    dones: Tensor,
    values: Tensor,
    next_value: Tensor,
    (gamma, lambda): (f64, f64),
) -> (Tensor, Tensor) {
    let going_on = 1.0 - dones.to(DType::F32);
    let next_values =
        concatenate(&[values.slice_axis(0, 1, values.dim(0)), next_value.expand_dims(0)], 0);
    let deltas = rewards + gamma * next_values * going_on - values;
    let turn = |advantage: Tensor, (delta, factor): (Tensor, Tensor)| {
        let advantage = delta + factor * advantage;
        (advantage, advantage)
    };
    let options = ScanOptions { unroll: 16, ..ScanOptions::reversed() };
    let steps = (deltas, gamma * lambda * going_on);
    let (_, advantages) = scan_with(turn, zeros_like(next_value), steps, options);
    (advantages, advantages + values)
}

/// Computes PPO's loss over a minibatch, and its metrics. Advantages must already be normalised if
/// `--norm-adv` is set.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(forward_batch(&agent.actor, batch.obs));
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    let unclipped = -batch.advantages * ratio;
    let clipped = -batch.advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped);

    let value = forward_batch(&agent.critic, batch.obs).squeeze(-1); // f32[B]
    let mut value_error = (value - batch.returns).square();
    if args.clip_vloss {
        let near = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((near - batch.returns).square());
    }
    let value_loss = 0.5 * value_error;

    let entropy = policy.entropy();
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let outside = (ratio - 1.0).abs().gt(clip).to(DType::F32);
    // All column means are computed as one product.
    let approx_kl = (ratio - 1.0) - logratio;
    let columns =
        [loss, value_loss, policy_loss, entropy, -logratio, approx_kl, outside.to(DType::F32)];
    let size = loss.numel();
    let means =
        stack(&columns, 0).stop_gradient().matmul(full([size], 1.0 / size as f64, DType::F32));
    let mean = |i: isize| means.index_axis(0, i);
    let metrics = Metrics {
        loss: mean(0),
        value_loss: mean(1),
        policy_loss: mean(2),
        entropy: mean(3),
        old_approx_kl: mean(4),
        approx_kl: mean(5),
        clipfrac: mean(6),
    };
    (loss.mean(..), metrics)
}

// --------------------------------------------------------------------------------------- update

/// Parameters and Adam's moments, each as one vector, so that a step of Adam is one loop of the
/// compiled code instead of one per layer.
#[derive(Debug, Clone, Tree)]
pub struct Learned<T> {
    /// The parameters.
    pub params: T,
    /// Adam's moments.
    pub optimizer: AdamState<T, T>,
}

/// Takes one gradient step.
fn minibatch_step(
    learned: Learned<Tensor>,
    unravel: impl Fn(Tensor) -> Agent<Tensor>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learned<Tensor>, Metrics<Tensor>) {
    let Learned { params, optimizer } = learned;
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| loss(&agent, &batch, args))(unravel(params));
    let grads = clip_by_norm(ravel(&grads).0, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (params, optimizer) = adam.step(params, grads, optimizer);
    (Learned { params, optimizer }, metrics)
}

/// Takes `update_epochs` times `num_minibatches` gradient steps. Returns the updated parameters and
/// moments, the last minibatch's metrics with `clipfrac` averaged over all minibatches, and the
/// explained variance of the values.
pub fn learn(
    learned: Learned<Tensor>,
    unravel: &impl Fn(Tensor) -> Agent<Tensor>,
    rollout: Rollout<Tensor>,
    next_obs: Tensor,
    learning_rate: Tensor,
    shuffle: Key<Tensor>,
    args: &Args,
) -> (Learned<Tensor>, Metrics<Tensor>, Tensor) {
    // The critic did not change during the rollout, so that its values are computed in one batch.
    let agent = unravel(learned.params);
    let values = agent.value(rollout.obs); // f32[T, N]
    let next_value = agent.value(next_obs); // f32[N]
    let logprobs = agent.policy(rollout.heads).log_prob(rollout.actions);
    let discounts = (args.gamma, args.gae_lambda);
    let (advantages, returns) = gae(rollout.rewards, rollout.dones, values, next_value, discounts);

    let size = args.batch_size();
    let flat = |x: Tensor| match x.rank() {
        2 => x.reshape([size]),
        _ => x.reshape([size, x.dim(-1)]),
    };
    let (obs, actions) = (flat(rollout.obs), flat(rollout.actions));
    let columns = [logprobs, advantages, returns, values].map(flat);
    let minibatches = [args.update_epochs * args.num_minibatches, args.minibatch_size()];
    let orders = orders(shuffle, args.update_epochs, size).reshape(minibatches);
    // Scalars are gathered for all epochs at once; observations, which can be large, are gathered
    // for each minibatch.
    let take = |x: Tensor, indices: Tensor| x.take_mode(indices, 0, IndexMode::Clip);
    let [logprobs, mut advantages, returns_, values_] = columns.map(|x| take(x, orders));
    if args.norm_adv {
        let mean = advantages.mean(1).expand_dims(1);
        advantages = (advantages - mean) / (advantages.std(1).expand_dims(1) + 1e-8);
    }
    let step = |learned: Learned<Tensor>, (indices, rest): (Tensor, [Tensor; 5])| {
        let [actions, logprobs, advantages, returns, values] = rest;
        let obs = take(obs, indices);
        let batch = Samples { obs, actions, logprobs, advantages, returns, values };
        minibatch_step(learned, unravel, batch, learning_rate, args)
    };
    let rest = [take(actions, orders), logprobs, advantages, returns_, values_];
    let (learned, all) = scan(step, learned, (orders, rest));
    let last = tree::map(all, |x: Tensor| x.index_axis(0, -1));

    let variance = returns.var(..);
    let unexplained = (returns - values).var(..);
    let nan = full_like(variance, f64::NAN);
    let explained = where_(variance.eq(0.0), nan, 1.0 - unexplained / variance);
    (learned, Metrics { clipfrac: all.clipfrac.mean(..), ..last }, explained)
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `num_steps` steps of all environments under one policy. Returns the next environment
/// state, the next observations with their normalisers, and the rollout.
///
/// All random numbers are drawn before the loop, for all steps at once: the noise of the policy,
/// the keys of the environment steps, and an initial state for each step, whether it is used or
/// not.
pub fn rollout<E: TracedEnv>(
    env: &AutoReset<E>,
    agent: &Agent<Tensor>,
    games: Playing<Tensor, E::State>,
    (obs, normalizers): Observed<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (Playing<Tensor, E::State>, Observed<Tensor>, Rollout<Tensor>) {
    let (steps, envs) = (args.num_steps, args.num_envs);
    let heads = agent.actor[2].w.dim(-1);
    let [noise, starts, keys] = key.split_n();
    let noise = agent.noise(noise, [steps, envs, heads]);
    let by_step = |x: Tensor| x.reshape([&[steps, envs][..], &x.shape()[1..]].concat());
    let starts = vmap(|key| env.env.reset(key))(starts.split_batch(steps * envs));
    let rows: Vec<Tensor> = tree::leaves(&starts).into_iter().map(by_step).collect();
    let starts = tree::replace(&starts, rows);
    let keys = tree::map(keys.split_batch(steps * envs), by_step);

    type Moving<S> = (Tensor, Playing<Tensor, S>, Option<Normalizers<Tensor>>);
    type Drawn<S> = (Tensor, (S, Tensor), Key<Tensor>);
    let turn = |(obs, games, mut normalizers): Moving<E::State>,
                (noise, starts, keys): Drawn<E::State>| {
        let heads = forward(&agent.actor, obs);
        let actions = agent.draw(heads, noise);
        let step = vmap(|(game, action, key, start)| env.step_or(game, action, key, start))((
            games, actions, keys, starts,
        ));
        let dones = step.done();
        let mut rewards = step.reward;
        let [mut next_obs, mut last] =
            [step.obs, step.final_obs].map(|x| x.reshape([envs, obs.dim(-1)]));
        if let Some(before) = normalizers {
            let (normal, scaled, after) = before.step(next_obs, rewards, dones, args.gamma);
            last = normalize::apply(last, &after.obs);
            (next_obs, rewards, normalizers) = (normal, scaled, Some(after));
        }
        if args.bootstrap_truncated {
            let cut = step.truncated & !step.terminated;
            let value = |obs| agent.value(obs);
            rewards = bootstrap_truncated(rewards, cut, last, args.gamma, value);
        }
        let told = Rollout {
            obs,
            heads,
            actions,
            rewards,
            dones,
            episode_returns: where_(dones, step.episode_return, f64::NAN),
            episode_lengths: step.episode_length,
        };
        ((next_obs, step.playing, normalizers), told)
    };
    let normalizes = normalizers.is_some();
    let start: Moving<E::State> = (obs, games, normalizers);
    let xs = (noise, starts, keys);
    let packable = |x: &Tensor| matches!(x.dtype(), DType::F32 | DType::I32 | DType::Bool);
    let batched = args.num_seeds > 1 && args.seed_axis == SeedAxis::Vmap;
    // Normalisation statistics have no environment axis.
    if batched || normalizes || !tree::leaves(&start).iter().all(packable) {
        let ((obs, games, normalizers), told) = scan(turn, start, xs);
        return (games, (obs, normalizers), told);
    }

    let moving = Rows::of(&tree::leaves(&start));
    let (choice, action) = match agent.log_std {
        None => (DType::I32, vec![envs]),
        Some(_) => (DType::F32, vec![envs, heads]),
    };
    let number = |dtype| TensorType::new(dtype, [envs]);
    let told = Rows {
        types: vec![
            TensorType::new(DType::F32, [envs, heads]),
            TensorType::new(choice, action),
            number(DType::F32),
            number(DType::Bool),
            number(DType::F32),
            number(DType::I32),
        ],
    };
    let unpacked = |row: Tensor| -> Moving<E::State> { tree::replace(&start, moving.unpack(row)) };
    let turn = |row: Tensor, drawn: Drawn<E::State>| {
        let (next, now) = turn(unpacked(row), drawn);
        let now = tree::leaves(&now)[1..].to_vec();
        let next = [moving.pack(&tree::leaves(&next)), told.pack(&now)];
        let next = concatenate(&next, 0);
        (next, next)
    };
    let nothing = zeros([told.count(), envs], DType::F32);
    let first = concatenate(&[moving.pack(&tree::leaves(&start)), nothing], 0);
    let (last, rows) = scan(turn, first, xs);
    let told = told.unpack(rows.slice_axis(1, moving.count(), rows.dim(1)));
    let [heads, actions, rewards, dones, episode_returns, episode_lengths] = told[..] else {
        unreachable!("six were packed")
    };
    // The observations of a step are those that the previous step returned.
    let before = concatenate(&[first.expand_dims(0), rows.slice_axis(0, 0, steps - 1)], 0);
    let obs = Rows { types: moving.types[..1].to_vec() }.unpack(before)[0];
    let told = Rollout { obs, heads, actions, rewards, dones, episode_returns, episode_lengths };
    let (obs, games, normalizers) = unpacked(last);
    (games, (obs, normalizers), told)
}

// ------------------------------------------------------------------------------------- training

/// Report of one update.
#[derive(Debug, Clone, Tree)]
pub struct Report<T> {
    /// Metrics of the update.
    pub metrics: Metrics<T>,
    /// Explained variance of the values.
    pub explained: T,
    /// `f32[T, N]`: returns of the episodes that ended, NaN where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: number of steps of the episode so far.
    pub episode_lengths: T,
}

/// The environment, its observation size and its action space.
#[derive(Debug)]
pub struct Problem {
    env: AutoReset<Traced>,
    obs_size: usize,
    actions: Actions,
}

impl Problem {
    /// Creates the environment of `--env-id`.
    ///
    /// # Errors
    /// Returns [`Error::Env`] for an unknown id, and [`Error::Config`] for spaces that this
    /// algorithm does not support.
    pub fn new(args: &Args) -> Result<Problem> {
        let env = AutoReset::new(make(&args.env_id)?);
        let EnvSpec { id, observation, action, .. } = env.env.spec();
        let actions = match &action {
            Space::Discrete { n } => Actions::Choices(*n),
            Space::Box { shape, dtype: DType::F32, .. } if shape.rank() == 1 => {
                Actions::Numbers(shape[0])
            }
            other => {
                return Err(Error::Config(format!(
                    "--env-id {id}: ppo_anakin acts with a choice or a vector of f32, and this \
                     environment takes {other}"
                )));
            }
        };
        Ok(Problem { env, obs_size: observation.shape().numel(), actions })
    }

    /// Initialises the training state of an agent.
    pub fn init(&self, key: Key<Tensor>, args: &Args) -> TrainState<Tensor> {
        let [agent, starts, key] = key.split_n();
        let agent = Agent::init(agent, self.obs_size, self.actions);
        let optimizer = Adam::default().init(&agent);
        let (games, obs) = vmap(|key| self.env.reset(key))(starts.split_batch(args.num_envs));
        let mut obs = obs.reshape([args.num_envs, self.obs_size]);
        let continuous = matches!(self.actions, Actions::Numbers(_));
        let mut normalizers = None;
        if continuous && args.normalize_env {
            (obs, normalizers) = normalize::begin(obs, args.gamma);
        }
        let updates = constant(0i32);
        TrainState { agent, optimizer, games, obs, normalizers, key, updates }
    }

    /// Runs `updates` iterations, each a rollout and an update.
    pub fn go_on(
        &self,
        state: TrainState<Tensor>,
        updates: u64,
        args: &Args,
    ) -> (TrainState<Tensor>, Report<Tensor>) {
        let TrainState { agent, optimizer, games, obs, normalizers, key, updates: before } = state;
        let (params, unravel) = ravel(&agent);
        let AdamState { count, m, v } = optimizer;
        let optimizer = AdamState { count, m: ravel(&m).0, v: ravel(&v).0 };
        let turn = |(learned, games, seen, key, updates): Running, ()| {
            let learned: Learned<Tensor> = learned;
            let [key, play, shuffle] = key.split_n();
            let agent = unravel(learned.params);
            let (games, seen, told) = rollout(&self.env, &agent, games, seen, play, args);
            let mut learning_rate = full_like(updates.to(DType::F32), args.learning_rate);
            if args.anneal_lr {
                let part = updates.to(DType::F32) / args.num_updates() as f64;
                learning_rate = learning_rate * (1.0 - part);
            }
            let (learned, metrics, explained) =
                learn(learned, &unravel, told, seen.0, learning_rate, shuffle, args);
            let report = Report {
                metrics,
                explained,
                episode_returns: told.episode_returns,
                episode_lengths: told.episode_lengths,
            };
            ((learned, games, seen, key, updates + 1), report)
        };
        let start = (Learned { params, optimizer }, games, (obs, normalizers), key, before);
        let options = ScanOptions::length(updates as usize);
        let ((learned, games, (obs, normalizers), key, updates), report) =
            scan_with(turn, start, (), options);
        let AdamState { count, m, v } = learned.optimizer;
        let optimizer = AdamState { count, m: unravel(m), v: unravel(v) };
        let agent = unravel(learned.params);
        (TrainState { agent, optimizer, games, obs, normalizers, key, updates }, report)
    }
}

/// Loop state carried between updates.
type Running =
    (Learned<Tensor>, Playing<Tensor, Vec<Tensor>>, Observed<Tensor>, Key<Tensor>, Tensor);

/// Trains agents and returns a summary. Event files and, if requested, the models are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`] if settings are out of range, and errors from the environments,
/// compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let devices = start(args)?;
    let problem = Problem::new(args)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let init = with_mode(args.run.mode, |key: Key<Tensor>| {
        for_seeds(args, |key| problem.init(key, args), key)
    })
    .named("ppo_anakin_init");
    let (launch, size) = (args.launch(), args.batch_size() as u64);
    let whole = Launch::new(&problem, launch, devices, args);
    let rest = Launch::new(&problem, args.num_updates() % launch, devices, args);

    let mut state = trainer.init_or_resume(init.call(keys(args)?)?, ())?;
    let mut log = Log::new(args, &trainer.notes, trainer.global_step() / size)?;
    // 0 if a resumed run has already taken all of its timesteps. The trainer then stops, as no
    // update is left.
    let next_updates = |log: &Log| args.num_updates().saturating_sub(log.updates).min(launch);
    trainer.iteration_steps = next_updates(&log).max(1) * size;
    while trainer.should_continue() {
        let updates = next_updates(&log);
        let program = if updates < launch { &rest } else { &whole };
        let (next, report) = program.call(state)?;
        state = next;
        log.reports(&mut trainer.run, &report, updates)?;
        trainer.notes = log.notes()?;
        trainer.advance(updates * size)?;
        trainer.iteration_steps = next_updates(&log).max(1) * size;
        trainer.checkpoint_if_due(&state, ())?;
    }
    let compile_s = init.stats().seconds() + whole.compile_s() + rest.compile_s();
    let summary = trainer.finish(&state, compile_s)?;
    let seeds = args.num_seeds as u64;
    Ok(Summary {
        num_devices: devices,
        global_step: summary.global_step * seeds,
        sps: summary.sps * seeds as f64,
        avg_episodic_return: log.mean_return(),
        details: if seeds > 1 { log.table() } else { String::new() },
        ..summary
    })
}

/// Evaluates a saved model, sampling actions from its policy. If several agents were trained, the
/// first is evaluated.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let problem = Problem::new(args)?;
    let fresh = |key: Key<Tensor>| for_seeds(args, |key| problem.init(key, args), key);
    let fresh = eval_shape(fresh, &keys(args)?)?;
    let TrainState { agent: agents, normalizers, .. } = load_typed(model, &fresh)?;
    let stats = normalizers.map(|normalizers| normalizers.obs);
    type Input<T> = (Agent<T>, Option<RunningMeanStd<T>>, T, Key<T>);
    let act = with_mode(args.run.mode, |(agents, stats, obs, key): Input<Tensor>| {
        let first = |x: Tensor| if args.num_seeds == 1 { x } else { x.index_axis(0, 0) };
        let (agent, stats) = tree::map((agents, stats), first);
        let mut obs = obs.flatten_from(1);
        if let Some(stats) = stats {
            obs = normalize::apply(obs, &stats);
        }
        let heads = forward(&agent.actor, obs);
        let [envs, size] = [heads.dim(0), heads.dim(1)];
        agent.draw(heads, agent.noise(key, [1, envs, size]).index_axis(0, 0))
    })
    .named("ppo_anakin_play");
    // The seed differs from that of training.
    let seed = args.run.seed.wrapping_add(1 << 32);
    let options =
        PoolOptions { num_threads: 1, seed, clip_actions: true, ..PoolOptions::default() };
    let pool = EnvPool::make(&args.env_id, options)?;
    evaluation.play(pool, |obs, key| act.call((agents.clone(), stats.clone(), obs, key)))
}

/// Returns the keys of the seeds: agent i of `--seed s` equals the only agent of `--seed s + i`.
fn keys(args: &Args) -> Result<Key<Array>> {
    if args.num_seeds == 1 {
        return Ok(Key::new(args.run.seed));
    }
    let mut words = Vec::new();
    for i in 0..args.num_seeds as u64 {
        let seed = args.run.seed.wrapping_add(i);
        words.extend([(seed >> 32) as u32, seed as u32]);
    }
    Ok(Key::from_data(Array::new([args.num_seeds, 2], &words)?))
}
