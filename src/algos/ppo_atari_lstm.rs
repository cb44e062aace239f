//! Proximal policy optimization (PPO, Schulman et al. 2017) with an LSTM: CleanRL's
//! `ppo_atari_lstm.py`. A rollout is one compiled program, each gradient step a call of another,
//! because XLA's own convolutions (not oneDNN's) are slower inside a compiled loop. `--sequence`
//! selects how a gradient step unrolls the LSTM, `--rnn` another recurrent cell.
//!
//! Differences from CleanRL, and a comparison of both values of `--sequence`, are in
//! `docs/algos/ppo_atari_lstm.md`.

mod sequences;

use clap::ValueEnum;

use crate::Shape;
use crate::distributions::MultiCategorical;
use crate::envs::memory_tasks::MiniGridOptions;
use crate::envs::{AtariOptions, EnvPool, ObsKind, Space};
use crate::nn::{Dense, Encoder, LstmCell, init::orthogonal, reset_carry};
use crate::nn::{RecurrentCell, RecurrentState, RnnKind};
use crate::random::permutation;
use crate::rl::prelude::*;
use crate::rl::settings::flags::minibatches_of_envs;
use crate::trace::ops::IndexMode;

pub use sequences::SplitSequences;
use sequences::split_minibatches;

// ------------------------------------------------------------------------------------- settings

/// Method of unrolling the recurrent cell over a rollout in an update. Both compute the same loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sequence {
    /// All steps of the rollout in order; the LSTM state is reset where an episode begins.
    Scan,
    /// Episodes as separate sequences, padded to the longest: fewer steps of more sequences.
    Split,
}

/// Recurrent PPO (LSTM or another RNN) for Atari, boards and vectors
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: Atari, boards as MinAtar's, or vectors
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "10000000")]
    pub total_timesteps: u64,
    /// The recurrent cell
    #[arg(long, value_enum, default_value_t = RnnKind::Lstm)]
    pub rnn: RnnKind,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "8")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "128")]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "true")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value = "0.95")]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value = "4")]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "4")]
    pub update_epochs: usize,
    /// Normalize advantages over each minibatch
    #[arg(long, default_value = "true")]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value = "0.1")]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as OpenAI Baselines does
    #[arg(long, default_value = "true")]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value = "0.01")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// The method of unrolling the LSTM over a rollout in an update; both compute the same loss
    #[arg(long, value_enum, default_value_t = Sequence::Scan)]
    pub sequence: Sequence,
    /// The KL divergence at which the remaining epochs of an update are skipped
    #[arg(long)]
    pub target_kl: Option<f64>,
    /// Bootstrap at time limits with the value of the final observation; CleanRL does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        minibatches_of_envs(self.num_envs, self.num_minibatches)
    }
}

registered_algorithm!(
    Args,
    "ppo_atari_lstm",
    DISCRETE_OR_MULTI_DISCRETE,
    Args::check,
    train,
    policy
);

/// Number of units of the recurrent cell.
const LSTM_SIZE: usize = 128;

/// Sizes of observations and actions.
#[derive(Debug, Clone)]
pub struct Sizes {
    pub obs_kind: ObsKind,
    pub shape: Shape,
    pub nvec: Vec<usize>, // number of choices of each component of an action
}

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, an LSTM or the cell of `--rnn`, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub trunk: Encoder<T>,      // encoder from observations to features
    pub lstm: RecurrentCell<T>, // recurrent cell from features to 128 units
    /// Second bias of the gates of an LSTM, PyTorch's `bias_hh`: with Adam, two biases change twice
    /// as fast as one.
    pub recurrent_bias: Option<T>,
    pub actor: Dense<T>, // layer from hidden units to the logits of all action components
    pub critic: Dense<T>, // layer from hidden units to values
    pub nvec: Vec<usize>, // number of choices of each component of an action
}

/// Initializes a recurrent cell, and the second bias of an LSTM, which has CleanRL's kernels.
fn init_cell(
    rnn: RnnKind,
    [input, recurrent]: [Key<Tensor>; 2],
    features: usize,
) -> (RecurrentCell<Tensor>, Option<Tensor>) {
    if rnn != RnnKind::Lstm {
        return (RecurrentCell::init(rnn, input, features, LSTM_SIZE), None);
    }
    let lstm = LstmCell::init_orthogonal([input, recurrent], features, LSTM_SIZE);
    (RecurrentCell::Lstm(lstm), Some(zeros([4 * LSTM_SIZE], DType::F32)))
}

impl Agent<Tensor> {
    /// Initializes an agent with a cell of this kind for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, rnn: RnnKind, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, input, recurrent, actor, critic] = key.split_n();
        let trunk = Encoder::init(trunk, sizes.obs_kind, &sizes.shape, orthogonal(2.0f64.sqrt()));
        let (lstm, recurrent_bias) = init_cell(rnn, [input, recurrent], trunk.size());
        Agent {
            lstm,
            recurrent_bias,
            trunk,
            actor: Dense::init(actor, LSTM_SIZE, sizes.nvec.iter().sum(), orthogonal(0.01)),
            critic: Dense::init(critic, LSTM_SIZE, 1, orthogonal(1.0)),
            nvec: sizes.nvec.clone(),
        }
    }

    /// Computes the part of a step that depends on observations `[B, ..]` and the biases only.
    fn project(&self, obs: Tensor) -> Tensor {
        let projected = self.lstm.project(self.trunk.apply(obs));
        self.recurrent_bias.map_or(projected, |bias| projected + bias)
    }

    /// Takes one step of the cell on observations `[N, ..]`; returns its next state and its outputs
    /// `f32[N, 128]`. The state is reset first where `episode_start: f32[N]` is 1, that is, where the
    /// observation is the first of an episode.
    pub fn lstm_step(
        &self,
        obs: Tensor,
        episode_start: Tensor,
        lstm_state: RecurrentState<Tensor>,
    ) -> (RecurrentState<Tensor>, Tensor) {
        self.lstm.advance(self.project(obs), reset_carry(episode_start, lstm_state))
    }

    /// Unrolls the cell over T steps of n environments, or over the `sequences` that they were split
    /// into. Returns its outputs `f32[T n, 128]`.
    fn unroll(
        &self,
        batch: &Samples<Tensor>,
        sequences: Option<&SplitSequences<Tensor>>,
    ) -> Tensor {
        let projected = self.project(merge_time_and_env(batch.obs)); // f32[T n, ..]
        let initial_state = batch.initial_lstm_state;
        let Some(sequences) = sequences else {
            let [steps, envs] = [batch.episode_starts.dim(0), batch.episode_starts.dim(1)];
            let projected = projected.reshape([steps, envs, projected.dim(-1)]);
            let starts = Some(batch.episode_starts);
            return merge_time_and_env(self.lstm.unroll(projected, starts, initial_state));
        };
        let take = |x: Tensor, indices: Tensor| x.take_mode(indices, 0, IndexMode::Clip);
        let initial_state = tree::map(initial_state, |x: Tensor| take(x, sequences.envs));
        let initial_state = reset_carry(sequences.episode_starts, initial_state);
        let outputs = self.lstm.unroll(take(projected, sequences.steps), None, initial_state);
        take(merge_time_and_env(outputs), sequences.positions) // of f32[L, S, 128]
    }

    /// Returns the policy and the values `f32[B]` for outputs `h: f32[B, 128]` of the cell.
    pub fn policy_and_value(&self, h: Tensor) -> (MultiCategorical<Tensor>, Tensor) {
        let policy = MultiCategorical::new(self.actor.apply(h), &self.nvec);
        (policy, self.critic.apply(h).squeeze(-1))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> TrainState<Tensor> {
    let agent = Agent::init(key, args.rnn, sizes);
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations, in the environment's dtype
    pub episode_start: T,  // f32[N]: 1 where `obs` is the first of an episode
    pub lstm_state: RecurrentState<T>, // state of the cell before `obs`
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub initial_lstm_state: RecurrentState<T>, // state of the cell before the first step
    pub obs: T,            // [T, N, ..]: observations, in the environment's dtype
    pub episode_starts: T, // f32[T, N]: 1 where the observation is the first of an episode
    pub actions: T,        // i32[T, N, components]
    pub logprobs: T,       // f32[T, N]: log probabilities of the actions
    pub values: T,         // f32[T, N]: values of the observations
    pub rewards: T,        // f32[T, N]
    pub dones: T,          // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T,       // [N, ..]: observations after the last step
    pub next_lstm_state: RecurrentState<T>, // state of the cell after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 7], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, episode_start, lstm_state, key } = env_state;
    let (key, action_key) = key.split();
    let (lstm_state, h) = agent.lstm_step(obs, episode_start, lstm_state);
    let (policy, value) = agent.policy_and_value(h);
    let action = policy.sample(action_key); // i32[N, components]
    let logprob = policy.log_prob(action);
    let discrete = matches!(envs.spec().action, Space::Discrete { .. });
    let (handle, step) = envs.step(handle, if discrete { action.squeeze(-1) } else { action });
    let done = step.done().to(DType::F32);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        // The final observation continues from the episode's state of the cell.
        let value = |obs| {
            let (_, h) = agent.lstm_step(obs, zeros_like(done), lstm_state);
            agent.policy_and_value(h).1
        };
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, episode_start, action, logprob, value, reward, done];
    // `step.obs` is the first observation of the next episode where one ended.
    let env_state = EnvState { handle, obs: step.obs, episode_start: done, lstm_state, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let initial_lstm_state = env_state.lstm_state;
    let step = |env_state, ()| env_step(envs, agent, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, episode_starts, actions, logprobs, values, rewards, dones] = transitions;
    let rollout = Rollout {
        initial_lstm_state,
        obs,
        episode_starts,
        actions,
        logprobs,
        values,
        rewards,
        dones,
        next_obs: env_state.obs,
        next_lstm_state: env_state.lstm_state,
    };
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

/// Training samples made from a rollout: T steps of n environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub initial_lstm_state: RecurrentState<T>, // state of the cell before the first step
    pub obs: T,            // [T, n, ..]: observations, in the environment's dtype
    pub episode_starts: T, // f32[T, n]: 1 where the observation is the first of an episode
    pub actions: T,        // i32[T, n, components]
    pub logprobs: T,       // f32[T, n]: log probabilities under the policy that acted
    pub advantages: T,     // f32[T, n]
    pub returns: T,        // f32[T, n]
    pub values: T,         // f32[T, n]: values at the time of the rollout
}

/// Returns the samples of a rollout and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { initial_lstm_state, obs, episode_starts, actions, logprobs, .. } = rollout;
    let Rollout { values, rewards, dones, next_obs, next_lstm_state, .. } = rollout;
    let last_done = dones.index_axis(0, -1);
    let (_, h) = agent.lstm_step(next_obs, last_done, next_lstm_state);
    let (_, next_value) = agent.policy_and_value(h); // f32[N]
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let samples = Samples {
        initial_lstm_state,
        obs,
        episode_starts,
        actions,
        logprobs,
        advantages,
        returns,
        values,
    };
    (samples, explained)
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T, // mean entropy of the policy
    /// Estimate `mean(-log ratio)` of the KL divergence from the policy that acted.
    pub old_approx_kl: T,
    pub approx_kl: T, // estimate `mean(ratio - 1 - log ratio)` of the KL divergence
    pub clipfrac: T,  // fraction of ratios that differ from 1 by more than the clip range
}

/// Computes PPO's loss over a minibatch, and its metrics. `sequences` are those of the minibatch
/// with `--sequence split`.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    sequences: Option<&SplitSequences<Tensor>>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.policy_and_value(agent.unroll(batch, sequences));
    let Samples { actions, logprobs, advantages, returns, values, .. } = *batch;
    let actions = merge_time_and_env(actions); // i32[T n, components]
    let [logprobs, mut advantages, returns, values] =
        merge_time_and_env([logprobs, advantages, returns, values]); // f32[T n]
    let logratio = policy.log_prob(actions) - logprobs; // f32[T n]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    if args.norm_adv {
        let ddof = usize::from(advantages.numel() > 1); // PyTorch's std; 0 for one sample
        advantages = (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped).mean(..);

    let mut value_error = (value - returns).square();
    if args.clip_vloss {
        let v_clipped = values + (value - values).clip(-clip, clip);
        value_error = value_error.maximum((v_clipped - returns).square());
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
    sequences: Option<&SplitSequences<Tensor>>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| ppo_loss(&agent, batch, sequences, args))(
            agent.clone(),
        );
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adam.step(agent, grads, opt_state);
    (TrainState { agent, opt_state }, metrics)
}

/// Returns the environment indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs * num_minibatches, minibatch_envs]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.num_envs)).collect();
    let minibatch_envs = args.num_envs / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_envs])
}

/// Arguments of a gradient step besides the train state.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Minibatch<T> {
    pub samples: Samples<T>, // all samples of the update
    /// `i32[update_epochs * num_minibatches, minibatch_envs]`: environments of all minibatches.
    pub indices: T,
    pub index: T, // i32[]: index of this minibatch
    /// Sequences of this minibatch, with `--sequence split`.
    pub sequences: Option<SplitSequences<T>>,
    pub learning_rate: T, // f32[]
}

/// Results of a gradient step.
type StepOutput<T> = (TrainState<T>, Metrics<T>);

/// Gathers the samples of these environments, `i32[n]`.
fn gather_envs(samples: Samples<Tensor>, envs: Tensor) -> Samples<Tensor> {
    let of_axis = |axis| move |x: Tensor| x.take_mode(envs, axis, IndexMode::Clip);
    let initial_lstm_state = tree::map(samples.initial_lstm_state, of_axis(0));
    Samples { initial_lstm_state, ..tree::map(samples, of_axis(1)) }
}

/// Gathers a minibatch and takes one gradient step on it; compiled as one program.
pub fn minibatch_step(
    train_state: TrainState<Tensor>,
    minibatch: Minibatch<Tensor>,
    args: &Args,
) -> StepOutput<Tensor> {
    let Minibatch { samples, indices, index, sequences, learning_rate } = minibatch;
    let batch = gather_envs(samples, indices.take_mode(index, 0, IndexMode::Clip));
    gradient_step(train_state, &batch, sequences.as_ref(), learning_rate, args)
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs, each a call of `step`;
/// stops after an epoch whose last KL divergence exceeds `target_kl`. Returns the metrics of the
/// last gradient step, with the mean `clipfrac` of all.
fn run_epochs(
    mut train_state: TrainState<Array>,
    minibatch: &Minibatch<Array>,
    sequences: &[Option<SplitSequences<Array>>],
    step: impl Fn(TrainState<Array>, Minibatch<Array>) -> Result<StepOutput<Array>>,
    args: &Args,
) -> Result<StepOutput<Array>> {
    let mut all_metrics: Vec<Metrics<Array>> = Vec::new();
    for epoch in 0..args.update_epochs {
        for k in 0..args.num_minibatches {
            let index = epoch * args.num_minibatches + k;
            let sequences = sequences[index].clone();
            let index = Array::from(index as i32);
            let minibatch = Minibatch { index, sequences, ..minibatch.clone() };
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

/// Metrics of an update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct UpdateMetrics<T> {
    pub last: Metrics<T>,      // metrics of the last gradient step
    pub explained_variance: T, // explained variance of the values before the update
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
}

/// Training data of an update.
#[derive(Debug, Tree)]
struct UpdateData<T> {
    samples: Samples<T>,
    /// `i32[update_epochs * num_minibatches, minibatch_envs]`: environments of all minibatches.
    indices: T,
    /// Explained variance of the values.
    explained_variance: T,
}

/// Collects a rollout and makes the training data of it; compiled as one program.
fn collect_samples(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, EpisodeStats<Tensor>, UpdateData<Tensor>) {
    let (mut env_state, rollout, episodes) = collect_rollout(envs, agent, env_state, args);
    let (samples, explained_variance) = make_samples(agent, rollout, args);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let indices = minibatch_indices(shuffle_key, args);
    (env_state, episodes, UpdateData { samples, indices, explained_variance })
}

/// Creates environments, and returns them with the sizes of the networks.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, Sizes)> {
    let atari = AtariOptions { stack_num: 1, ..AtariOptions::gymnasium() };
    let minigrid = MiniGridOptions::default();
    let (pool, obs_kind, nvec) = pools::multi_discrete(args, atari, minigrid, num_envs, seed)?;
    let shape = pool.spec().observation.shape();
    Ok((pool, Sizes { obs_kind, shape, nvec }))
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = make_pool(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let train_state = init_train_state(agent_key, &sizes, args);
        let (handle, first) = envs.reset(handle);
        let episode_start = ones([args.num_envs], DType::F32);
        let lstm_state = train_state.agent.lstm.start(args.num_envs);
        let env_state = EnvState { handle, obs: first.obs, episode_start, lstm_state, key };
        RunnerState { train_state, env_state }
    });
    let collect = trainer
        .jit("rollout", |(agent, env_state)| collect_samples(&envs, &agent, env_state, args));
    let step = trainer
        .jit("step", |(train_state, minibatch)| minibatch_step(train_state, minibatch, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let RunnerState { train_state, env_state } = state;
        let (env_state, episodes, data) = collect.call((train_state.agent.clone(), env_state))?;
        let episodes = episodes.to_vec()?;
        let sequences = split_minibatches(&data.samples.episode_starts, &data.indices, args)?;
        let UpdateData { samples, indices, explained_variance } = data;
        let index = Array::from(0i32);
        let minibatch = Minibatch { samples, indices, index, sequences: None, learning_rate };
        let step = |train_state, minibatch| step.call((train_state, minibatch));
        let (train_state, last) = run_epochs(train_state, &minibatch, &sequences, step, args)?;
        state = RunnerState { train_state, env_state };
        trainer.record(&episodes, Some(&UpdateMetrics { last, explained_variance }))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the most likely action, the logits and the next
/// state of the cell, of an LSTM `f32[2, B, 128]`: c, then h. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = make_pool(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, &sizes, args))?.agent;
    let spec = pool.spec().clone();
    let act = move |agent: &Agent<Tensor>, obs: Tensor, state: Tensor| {
        let episode_start = zeros([obs.dim(0)], DType::F32);
        let lstm_state = RecurrentState::unstack(state);
        let (lstm_state, h) = agent.lstm_step(obs, episode_start, lstm_state);
        let policy = agent.policy_and_value(h).0;
        PolicyResults::from_components(policy, &spec).with("next_state", lstm_state.stack())
    };
    Ok(Policy::recurrent(pool, [args.rnn.num_states(), LSTM_SIZE], agent, act))
}
