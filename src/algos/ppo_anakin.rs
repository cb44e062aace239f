//! Proximal policy optimisation with the environment inside of the compiled program: PureJaxRL's
//! `ppo.py` (Lu et al. 2022) on the traced environments, an Anakin (Hessel et al. 2021) of one
//! device. Rollouts and updates are one loop in one program, and `vmap` trains many agents at once.
//!
//! What differs from PureJaxRL, and why, is in `docs/algos/ppo_anakin.md`.

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use crate::distributions::{Categorical, DiagNormal};
use crate::envs::traced::{AutoReset, Playing, Traced, TracedEnv, make};
use crate::envs::{EnvSpec, Space};
use crate::error::{Error, Result};
use crate::jit::{Mode, with_mode};
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::optim::{Adam, AdamState};
use crate::rl::flags::expect;
use crate::rl::{Progress, Returns, Run, Summary, checkpoint, interrupt};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::jacobian::ravel;
use crate::trace::ops::{
    IndexMode, concatenate, constant, full, full_like, iota, ones, stack, where_, zeros, zeros_like,
};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType, random, value_and_grad, vmap};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with PureJaxRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO, environments included, as one compiled program", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_anakin")]
    pub exp_name: String,
    /// Seed of the experiment: the same seed gives the same run, bit for bit
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many agents to train at once, with the seeds from --seed on
    #[arg(long, default_value_t = 1)]
    pub num_seeds: usize,
    /// Run compiled (jit), operation by operation (eager), or on the host (interpret)
    #[arg(long, value_enum, default_value_t = Mode::Jit)]
    pub mode: Mode,
    /// End with one line of JSON on the standard output, and show no progress bar
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub json: bool,
    /// Save the model into the run's folder
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub save_model: bool,
    /// Stop at the first NaN, and say which operation made it and at what line
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub check_nans: bool,
    /// Record a timeline of the run into this file, for Perfetto or chrome://tracing
    #[arg(long)]
    pub timeline: Option<PathBuf>,
    /// The folder in which the run's folder is made
    #[arg(long, default_value = "runs")]
    pub runs_dir: PathBuf,
    /// Updates in one launch of the program; 0 chooses
    #[arg(long, default_value_t = 0)]
    pub updates_per_launch: u64,

    /// The id of the environment, a traced one
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
    #[arg(long, default_value_t = 0.2)]
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
}

impl Args {
    /// The settings of a command line: `Args::from_flags(["--seed", "3"])`.
    ///
    /// # Errors
    /// What clap says.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = &'a str>,
    ) -> std::result::Result<Args, clap::Error> {
        crate::rl::flags::parse_from(["ppo_anakin"].into_iter().chain(flags).map(Into::into))
    }

    /// Samples per update of an agent.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Samples per gradient step.
    fn minibatch_size(&self) -> usize {
        self.batch_size() / self.num_minibatches
    }

    /// Updates in all; the remainder of the timesteps is left out, as in PureJaxRL.
    fn num_updates(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    /// Updates in one launch: about 64 launches, so that the progress moves and a launch costs
    /// nothing beside its work; all of one length if a number near to that divides, because a
    /// second length is a second compilation.
    fn launch(&self) -> u64 {
        let total = self.num_updates();
        if self.updates_per_launch > 0 {
            return self.updates_per_launch.min(total);
        }
        let wanted = total.div_ceil(64);
        (wanted..=wanted * 2).find(|n| total.is_multiple_of(*n)).unwrap_or(wanted)
    }

    fn check(&self) -> Result<()> {
        let positive = "at least 1";
        expect(self.num_seeds > 0, "num-seeds", self.num_seeds, positive)?;
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
            self.num_updates() > 0,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least one batch, num-envs * num-steps = {batch}"),
        )?;
        expect(
            i32::try_from(self.num_updates()).is_ok(),
            "total-timesteps",
            self.total_timesteps,
            &format!("fewer than 2^31 batches of num-envs * num-steps = {batch}"),
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
        ] {
            expect(not_negative(x), flag, x, "a number not below 0")?;
        }
        Ok(())
    }
}

// -------------------------------------------------------------------------------------- network

/// What an agent acts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actions {
    /// One of so many choices: a categorical policy.
    Choices(usize),
    /// So many numbers: a normal policy whose standard deviations are parameters.
    Numbers(usize),
}

impl Actions {
    /// Numbers that the actor puts out.
    fn heads(self) -> usize {
        match self {
            Actions::Choices(n) | Actions::Numbers(n) => n,
        }
    }
}

/// Actor and critic: two networks of two hidden layers of 64 units.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Observations to logits of the actions, or to their means.
    pub actor: [Dense<T>; 3],
    /// Observations to the value.
    pub critic: [Dense<T>; 3],
    /// Logarithms of the standard deviations of continuous actions.
    pub log_std: Option<T>,
}

/// Two hidden layers, orthogonal with gain sqrt(2), and a head of the given gain.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize, gain: f64) -> [Dense<Tensor>; 3] {
    let [first, second, head] = key.split_n();
    let hidden = orthogonal(2.0f64.sqrt());
    [
        Dense::init(first, inputs, 64, hidden),
        Dense::init(second, 64, 64, hidden),
        Dense::init(head, 64, outputs, orthogonal(gain)),
    ]
}

/// obs `f32[.., inputs]` to `f32[.., outputs]`.
fn forward(layers: &[Dense<Tensor>; 3], obs: Tensor) -> Tensor {
    let hidden = layers[0].apply(obs.to(DType::F32)).tanh();
    let hidden = layers[1].apply(hidden).tanh();
    layers[2].apply(hidden)
}

/// [`forward`] of a batch `f32[B, inputs]` for the update: each bias is added as a product with a
/// column of ones, so that its derivative, a sum over the batch, is a product too. The compiler's
/// sums of columns are several times slower on CPU.
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

/// The actor's distribution.
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
    /// A new agent for observations of `obs_size` numbers.
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

    /// The policy of what the actor put out, `f32[.., heads]`.
    fn policy(&self, heads: Tensor) -> Policy {
        match self.log_std {
            None => Policy::Choices(Categorical::new(heads)),
            Some(log_std) => Policy::Numbers(DiagNormal::new(heads, log_std.exp())),
        }
    }

    /// Noise of many draws at once, `f32[.., heads]`, for [`Agent::draw`].
    fn noise(&self, key: Key<Tensor>, shape: [usize; 3]) -> Tensor {
        match self.log_std {
            None => random::gumbel(key, shape, DType::F32),
            Some(_) => random::normal(key, shape, DType::F32),
        }
    }

    /// A draw from the policy: `i32[..]` or `f32[.., heads]`.
    fn draw(&self, heads: Tensor, noise: Tensor) -> Tensor {
        match self.log_std {
            None => argmax(heads + noise),
            Some(log_std) => heads + log_std.exp() * noise,
        }
    }

    /// The value of `obs: f32[.., obs_size]`, `f32[..]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        forward(&self.critic, obs).squeeze(-1)
    }
}

/// The index (i32) of the first largest number along the last axis. Of few numbers it is compared
/// one by one, which the compiler fuses with what comes before and after.
fn argmax(x: Tensor) -> Tensor {
    let classes = x.dim(-1);
    if classes > 8 {
        return x.argmax(-1);
    }
    let mut largest = x.index_axis(-1, 0);
    let mut index = zeros(largest.shape(), DType::I32);
    for class in 1..classes {
        let other = x.index_axis(-1, class as isize);
        index = where_(other.gt(largest), class as i32, index);
        largest = largest.maximum(other);
    }
    index
}

/// The whole state of a run of one agent.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// The environments, leaves `[N, ..]`.
    pub games: Playing<T, Vec<T>>,
    /// `[N, obs_size]`: what the environments show now, in their own type.
    pub obs: T,
    /// The randomness to come.
    pub key: Key<T>,
    /// `i32[]`: updates made.
    pub updates: T,
}

// --------------------------------------------------------------------------------------- losses

/// One rollout; T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    /// `[T, N, obs_size]`, in the environment's type.
    pub obs: T,
    /// `f32[T, N, heads]`: what the actor put out.
    pub heads: T,
    /// `i32[T, N]` or `f32[T, N, heads]`
    pub actions: T,
    /// `f32[T, N]`
    pub rewards: T,
    /// `bool[T, N]`: the step ended its episode.
    pub dones: T,
    /// `f32[T, N]`: returns of the episodes that ended, NaN where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: steps of the episode so far.
    pub episode_lengths: T,
}

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, obs_size]`, in the environment's type.
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
    /// `mean(-log ratio)`
    pub old_approx_kl: T,
    /// `mean(ratio - 1 - log ratio)`
    pub approx_kl: T,
    /// The part of ratios outside the clip range.
    pub clipfrac: T,
}

/// Generalised advantage estimation (Schulman et al. 2016): advantages and returns, `f32[T, N]`.
/// A cut by the time limit counts as an end, as in PureJaxRL.
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
    let (_, advantages) = scan_with(options, turn, zeros_like(next_value), steps);
    (advantages, advantages + values)
}

/// PPO's loss over a minibatch, and what is logged of it. The advantages are normalised already
/// if they are to be.
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
    // The means of all columns as one product.
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

/// Parameters and Adam's moments, each as one vector: an update of Adam is then one loop of the
/// compiled code, and not one for each layer.
#[derive(Debug, Clone, Tree)]
pub struct Learned<T> {
    /// The parameters.
    pub params: T,
    /// Adam's moments.
    pub optimizer: AdamState<T, T>,
}

/// `optax.clip_by_global_norm` of a vector. Its sum of squares is a product with ones.
fn clip_by_norm(grads: Tensor, max_norm: f64) -> Tensor {
    let rows = grads.numel().div_ceil(64);
    let squares = grads.square().pad(&[0], &[(rows * 64 - grads.numel()) as i64], 0.0);
    let sums = ones([rows], DType::F32).matmul(squares.reshape([rows, 64]));
    let norm = sums.sum(..).sqrt();
    where_(norm.lt(max_norm), grads, grads / norm * max_norm)
}

/// One gradient step.
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

/// Orders of `0..size`, `i32[count, size]`, each equally likely: random words, with the number
/// itself as the lowest digits, are sorted. Sorting one column is several times faster than
/// sorting pairs.
fn orders(key: Key<Tensor>, count: usize, size: usize) -> Tensor {
    let digits = usize::BITS - (size - 1).leading_zeros();
    let words = random::bits(key, [count, size], DType::U64);
    let numbers = iota([count, size], 1, DType::U64);
    let sorted = (((words >> digits) << digits) | numbers).sort(1);
    (sorted & ((1u64 << digits) - 1)).to(DType::I32)
}

/// `update_epochs` times `num_minibatches` gradient steps. Gives what was learned, the last
/// minibatch's metrics with `clipfrac` the mean over all, and the explained variance of the values.
pub fn learn(
    learned: Learned<Tensor>,
    unravel: &impl Fn(Tensor) -> Agent<Tensor>,
    rollout: Rollout<Tensor>,
    next_obs: Tensor,
    learning_rate: Tensor,
    shuffle: Key<Tensor>,
    args: &Args,
) -> (Learned<Tensor>, Metrics<Tensor>, Tensor) {
    // The critic did not change during the rollout: its values are computed in one batch.
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
    // Numbers are put in order for all epochs at once; observations, which can be large, for each
    // minibatch.
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
    let explained = where_(variance.equal(0.0), nan, 1.0 - unexplained / variance);
    (learned, Metrics { clipfrac: all.clipfrac.mean(..), ..last }, explained)
}

// -------------------------------------------------------------------------------------- rollout

/// Several tensors `[N, ..]` as the rows of one, `f32[rows, N]`: a loop that carries one tensor
/// and stacks one is a few operations of the compiled code, and not a few for each.
struct Rows {
    types: Vec<TensorType>,
}

impl Rows {
    fn of(tensors: &[Tensor]) -> Rows {
        Rows { types: tensors.iter().map(|x| x.ty()).collect() }
    }

    /// How many rows they are.
    fn count(&self) -> usize {
        self.types.iter().map(|ty| ty.numel() / ty.shape[0]).sum()
    }

    fn pack(&self, tensors: &[Tensor]) -> Tensor {
        let mut rows = Vec::new();
        for (x, ty) in tensors.iter().zip(&self.types) {
            let columns = ty.numel() / ty.shape[0];
            rows.push(x.to(DType::F32).reshape([ty.shape[0], columns]).t());
        }
        concatenate(&rows, 0)
    }

    /// From `f32[.., rows, N]` back to tensors `[.., N, ..]`.
    fn unpack(&self, packed: Tensor) -> Vec<Tensor> {
        let lead = packed.shape()[..packed.rank() - 2].to_vec();
        let mut from = 0;
        let mut tensors = Vec::new();
        for ty in &self.types {
            let columns = ty.numel() / ty.shape[0];
            let rows = packed.slice_axis(-2, from, from + columns).swapaxes(-2, -1);
            from += columns;
            tensors.push(rows.reshape([&lead[..], &ty.shape[..]].concat()).to(ty.dtype));
        }
        tensors
    }
}

/// `num_steps` steps of all environments under one policy: where they are then, what they show,
/// and what happened.
///
/// Everything random is drawn for all steps together before the loop: noise of the policy, and
/// the starts of episodes, one for each step, used or not.
pub fn rollout<E: TracedEnv>(
    env: &AutoReset<E>,
    agent: &Agent<Tensor>,
    games: Playing<Tensor, E::State>,
    obs: Tensor,
    key: Key<Tensor>,
    args: &Args,
) -> (Playing<Tensor, E::State>, Tensor, Rollout<Tensor>) {
    let (steps, envs) = (args.num_steps, args.num_envs);
    let heads = agent.actor[2].w.dim(-1);
    let [noise, starts, keys] = key.split_n();
    let noise = agent.noise(noise, [steps, envs, heads]);
    let by_step = |x: Tensor| x.reshape([&[steps, envs][..], &x.shape()[1..]].concat());
    let starts = vmap(|key| env.env.reset(key))(starts.split_batch(steps * envs));
    let rows: Vec<Tensor> = tree::leaves(&starts).into_iter().map(by_step).collect();
    let starts = tree::replace(&starts, rows);
    let keys = tree::map(keys.split_batch(steps * envs), by_step);

    type Moving<S> = (Tensor, Playing<Tensor, S>);
    type Drawn<S> = (Tensor, (S, Tensor), Key<Tensor>);
    let turn = |(obs, games): Moving<E::State>, (noise, starts, keys): Drawn<E::State>| {
        let heads = forward(&agent.actor, obs);
        let actions = agent.draw(heads, noise);
        let step = vmap(|(game, action, key, start)| env.step_or(game, action, key, start))((
            games, actions, keys, starts,
        ));
        let dones = step.done();
        let told = Rollout {
            obs,
            heads,
            actions,
            rewards: step.reward,
            dones,
            episode_returns: where_(dones, step.episode_return, f64::NAN),
            episode_lengths: step.episode_length,
        };
        ((step.obs.reshape([envs, obs.dim(-1)]), step.playing), told)
    };
    let start: Moving<E::State> = (obs, games);
    let xs = (noise, starts, keys);
    let packable = |x: &Tensor| matches!(x.dtype(), DType::F32 | DType::I32 | DType::Bool);
    if args.num_seeds > 1 || !tree::leaves(&start).iter().all(packable) {
        let ((obs, games), told) = scan(turn, start, xs);
        return (games, obs, told);
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
        let ((obs, games), now) = turn(unpacked(row), drawn);
        let now = tree::leaves(&now)[1..].to_vec();
        let next = [moving.pack(&tree::leaves(&(obs, games))), told.pack(&now)];
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
    // What a step acted on is what the step before it left.
    let before = concatenate(&[first.expand_dims(0), rows.slice_axis(0, 0, steps - 1)], 0);
    let obs = Rows { types: moving.types[..1].to_vec() }.unpack(before)[0];
    let told = Rollout { obs, heads, actions, rewards, dones, episode_returns, episode_lengths };
    let (obs, games) = unpacked(last);
    (games, obs, told)
}

// ------------------------------------------------------------------------------------- training

/// What is told of an update.
#[derive(Debug, Clone, Tree)]
pub struct Report<T> {
    /// Scalars of the update.
    pub metrics: Metrics<T>,
    /// The explained variance of the values.
    pub explained: T,
    /// `f32[T, N]`: returns of the episodes that ended, NaN where none did.
    pub episode_returns: T,
    /// `i32[T, N]`: steps of the episode so far.
    pub episode_lengths: T,
}

/// The environment, and what an agent needs to know of it.
#[derive(Debug)]
pub struct Problem {
    env: AutoReset<Traced>,
    obs_size: usize,
    actions: Actions,
}

impl Problem {
    /// The environment of `--env-id`; refuses what this algorithm cannot act in.
    ///
    /// # Errors
    /// [`Error::Env`] for an unknown id, [`Error::Config`] for spaces that do not fit.
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

    /// The state of an agent at the start.
    pub fn init(&self, key: Key<Tensor>, args: &Args) -> TrainState<Tensor> {
        let [agent, starts, key] = key.split_n();
        let agent = Agent::init(agent, self.obs_size, self.actions);
        let optimizer = Adam::default().init(&agent);
        let (games, obs) = vmap(|key| self.env.reset(key))(starts.split_batch(args.num_envs));
        let obs = obs.reshape([args.num_envs, self.obs_size]);
        TrainState { agent, optimizer, games, obs, key, updates: constant(0i32) }
    }

    /// `updates` times a rollout and an update.
    pub fn go_on(
        &self,
        state: TrainState<Tensor>,
        updates: u64,
        args: &Args,
    ) -> (TrainState<Tensor>, Report<Tensor>) {
        let TrainState { agent, optimizer, games, obs, key, updates: before } = state;
        let (params, unravel) = ravel(&agent);
        let AdamState { count, m, v } = optimizer;
        let optimizer = AdamState { count, m: ravel(&m).0, v: ravel(&v).0 };
        let turn = |(learned, games, obs, key, updates): Running, ()| {
            let learned: Learned<Tensor> = learned;
            let [key, play, shuffle] = key.split_n();
            let agent = unravel(learned.params);
            let (games, obs, told) = rollout(&self.env, &agent, games, obs, play, args);
            let mut learning_rate = full_like(updates.to(DType::F32), args.learning_rate);
            if args.anneal_lr {
                let part = updates.to(DType::F32) / args.num_updates() as f64;
                learning_rate = learning_rate * (1.0 - part);
            }
            let (learned, metrics, explained) =
                learn(learned, &unravel, told, obs, learning_rate, shuffle, args);
            let report = Report {
                metrics,
                explained,
                episode_returns: told.episode_returns,
                episode_lengths: told.episode_lengths,
            };
            ((learned, games, obs, key, updates + 1), report)
        };
        let start = (Learned { params, optimizer }, games, obs, key, before);
        let options = ScanOptions::length(updates as usize);
        let ((learned, games, obs, key, updates), report) = scan_with(options, turn, start, ());
        let AdamState { count, m, v } = learned.optimizer;
        let optimizer = AdamState { count, m: unravel(m), v: unravel(v) };
        let agent = unravel(learned.params);
        (TrainState { agent, optimizer, games, obs, key, updates }, report)
    }
}

/// What changes from update to update.
type Running = (Learned<Tensor>, Playing<Tensor, Vec<Tensor>>, Tensor, Key<Tensor>, Tensor);

/// Applies `f` to the agents of all seeds. One agent has no axis for it.
fn for_seeds<A: Tree<Tensor>, B: Tree<Tensor>>(args: &Args, f: impl Fn(A) -> B, all: A) -> B {
    if args.num_seeds == 1 { f(all) } else { vmap(f)(all) }
}

/// Trains agents and gives the result: events and, if asked for, the models are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`] for settings out of range, and what the environments, the compiler, the
/// runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let timeline = args.timeline.as_ref().map(timeline::start).transpose()?;
    let problem = Problem::new(args)?;
    interrupt::install()?;
    let mut run = Run::create(&args.runs_dir, &args.exp_name, &args.env_id, args.seed, args)?;
    let seeds = args.num_seeds as u64;
    let mut progress = Progress::new(args.total_timesteps * seeds, args.json);

    let init = with_mode(args.mode, |key: Key<Tensor>| {
        for_seeds(args, |key| problem.init(key, args), key)
    })
    .named("ppo_anakin_init");
    let go_on = |updates: u64| {
        let problem = &problem;
        with_mode(args.mode, move |state: TrainState<Tensor>| {
            for_seeds(args, |state| problem.go_on(state, updates, args), state)
        })
        .named("ppo_anakin")
        .check_nans(args.check_nans)
    };
    let launch = args.launch();
    let whole = go_on(launch);
    let rest = go_on(args.num_updates() % launch);

    let mut state = init.call(keys(args)?)?;
    let mut log = Log { args, returns: vec![Returns::default(); args.num_seeds], updates: 0 };
    while log.updates < args.num_updates() {
        let left = args.num_updates() - log.updates;
        let (next, report) = if left < launch { rest.call(state)? } else { whole.call(state)? };
        state = next;
        log.reports(&mut run, &report, left.min(launch))?;
        let step = log.updates * args.batch_size() as u64 * seeds;
        progress.update(step, run.sps(step), log.mean_return());
        if interrupt::requested() {
            progress.note("stopped: the events and the model so far are kept");
            break;
        }
    }
    progress.finish();
    if args.save_model {
        save(&run, &state, args)?;
    }
    run.events.flush()?;
    if let Some(timeline) = timeline {
        timeline.finish()?;
    }
    if args.num_seeds > 1 && !args.json {
        eprint!("{}", log.table());
    }
    let compile_s = init.stats().seconds() + whole.stats().seconds() + rest.stats().seconds();
    let platform = match args.mode {
        Mode::Interpret => "host".to_string(),
        Mode::Jit | Mode::Eager => Runtime::get()?.client.platform_name().to_string(),
    };
    let step = log.updates * args.batch_size() as u64 * seeds;
    let summary = run.summary(&args.mode.to_string(), &platform, 1, step, compile_s);
    Ok(Summary { avg_episodic_return: log.mean_return(), ..summary })
}

/// The keys of the seeds: agent i of `--seed s` is the agent of `--seed s + i` alone.
fn keys(args: &Args) -> Result<Key<Array>> {
    if args.num_seeds == 1 {
        return Ok(tree::map(Key::new(args.seed), Array::from));
    }
    let mut words = Vec::new();
    for i in 0..args.num_seeds as u64 {
        let seed = args.seed.wrapping_add(i);
        words.extend([(seed >> 32) as u32, seed as u32]);
    }
    Ok(Key::from_data(Array::new([args.num_seeds, 2], &words)?))
}

/// What has been told of the run.
struct Log<'a> {
    args: &'a Args,
    /// Of each seed.
    returns: Vec<Returns>,
    updates: u64,
}

impl Log<'_> {
    /// The mean over the seeds of the mean of the last returns.
    fn mean_return(&self) -> Option<f64> {
        let means: Vec<f64> = self.returns.iter().filter_map(Returns::mean).collect();
        (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
    }

    /// Logs the reports of one launch, `[seeds, updates, ..]` or `[updates, ..]`.
    fn reports(&mut self, run: &mut Run, report: &Report<Array>, updates: u64) -> Result<()> {
        let seeds = self.args.num_seeds;
        let (updates, size) = (updates as usize, self.args.batch_size());
        let returns = report.episode_returns.to_vec::<f32>()?;
        let lengths = report.episode_lengths.to_vec::<i32>()?;
        let m = &report.metrics;
        let mut scalars = Vec::new();
        for (tag, column) in [
            ("losses/loss", &m.loss),
            ("losses/value_loss", &m.value_loss),
            ("losses/policy_loss", &m.policy_loss),
            ("losses/entropy", &m.entropy),
            ("losses/old_approx_kl", &m.old_approx_kl),
            ("losses/approx_kl", &m.approx_kl),
            ("losses/clipfrac", &m.clipfrac),
            ("losses/explained_variance", &report.explained),
        ] {
            scalars.push((tag, column.to_vec::<f32>()?));
        }
        for update in 0..updates {
            let begin = self.updates * size as u64;
            let step = begin + size as u64;
            let left = 1.0 - self.updates as f64 / self.args.num_updates() as f64;
            let rate = self.args.learning_rate * if self.args.anneal_lr { left } else { 1.0 };
            self.updates += 1;
            let mut all = Vec::new();
            for seed in 0..seeds {
                let place = (seed * updates + update) * size;
                let mut own = Vec::new();
                for i in (0..size).filter(|i| !returns[place + i].is_nan()) {
                    let (value, length) = (f64::from(returns[place + i]), lengths[place + i]);
                    self.returns[seed].push(value);
                    own.push(value);
                    if seeds == 1 {
                        // The step at which it ended, counted as CleanRL does.
                        let at = begin + ((i / self.args.num_envs + 1) * self.args.num_envs) as u64;
                        run.episode(value, length as u64, at)?;
                    } else {
                        run.returns.push(value);
                        all.push((value, f64::from(length)));
                    }
                }
                if seeds > 1 && !own.is_empty() {
                    let tag = format!("seeds/{}/episodic_return", self.args.seed + seed as u64);
                    run.events.scalar(&tag, own.iter().sum::<f64>() / own.len() as f64, step)?;
                }
            }
            if !all.is_empty() {
                let (sum, lengths) = all.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
                let count = all.len() as f64;
                run.events.scalar("charts/episodic_return", sum / count, step)?;
                run.events.scalar("charts/episodic_length", lengths / count, step)?;
            }
            let mut values = vec![("charts/learning_rate", rate)];
            for (tag, column) in &scalars {
                let of_seed = |seed: usize| f64::from(column[seed * updates + update]);
                let mean = (0..seeds).map(of_seed).sum::<f64>() / seeds as f64;
                if *tag != "losses/loss" {
                    values.push((tag, mean));
                } else if let Some(seed) = (0..seeds).find(|&seed| !of_seed(seed).is_finite()) {
                    run.events.flush()?;
                    return Err(Error::Nan(format!(
                        "the loss of seed {} is {} after update {}, at step {step}; run again \
                         with --check-nans to see which operation made it",
                        self.args.seed + seed as u64,
                        of_seed(seed),
                        self.updates
                    )));
                }
            }
            values.push(("charts/SPS", run.sps(step * seeds as u64).floor()));
            run.events.scalars(&values, step)?;
        }
        Ok(())
    }

    /// A line for each seed.
    fn table(&self) -> String {
        let mut table = "seed  episodes  mean return of the last 100\n".to_string();
        for (seed, returns) in (self.args.seed..).zip(&self.returns) {
            let mean = returns.mean().map_or("none ended".to_string(), |mean| format!("{mean:.1}"));
            table.push_str(&format!("{seed:>4}  {:>8}  {mean:>10}\n", returns.episodes()));
        }
        table
    }
}

/// Saves the whole state as `{exp_name}.safetensors`, with the settings. Of several agents each
/// array has one more axis in front, in the order of the seeds.
fn save(run: &Run, state: &TrainState<Array>, args: &Args) -> Result<()> {
    let path = run.dir.join(format!("{}.safetensors", args.exp_name));
    checkpoint::save_tree(path, state, args)
}
