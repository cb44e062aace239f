//! Proximal policy optimization (PPO) with a Transformer-XL as episodic memory (Pleines et al. 2023):
//! CleanRL's `ppo_trxl.py`. A rollout and the update on it are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_trxl.md`.

mod reconstruction;
mod transformer;

use crate::distributions::{Categorical, MultiCategorical};
use crate::envs::memory_tasks::MiniGridOptions;
use crate::envs::{AtariOptions, EnvPool, ObsKind, Space};
use crate::nn::init::{orthogonal, torch_default};
use crate::nn::{Dense, Encoder};
use crate::random::permutation;
use crate::rl::prelude::*;
use crate::trace::ops::{arange, concatenate, ones_like};
use crate::trace::{DType, Shape};

pub use reconstruction::TransposedCnn;
pub use transformer::{
    MemoryWindow, MultiHeadAttention, PositionalEncoding, Transformer, TransformerLayer,
    memory_window,
};
use transformer::{append_memory, env_window};

// ------------------------------------------------------------------------------------- settings

/// PPO with a transformer as episodic memory
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: vectors, boards or images
    #[arg(long, default_value = "ProofofMemory-v0")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "200000000")]
    pub total_timesteps: u64,
    /// The initial learning rate of the optimizer
    #[arg(long, default_value = "2.75e-4")]
    pub init_lr: f64,
    /// The final learning rate, after linear annealing
    #[arg(long, default_value = "1e-5")]
    pub final_lr: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "32")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "512")]
    pub num_steps: usize,
    /// The timesteps over which learning rate and entropy coefficient are annealed
    #[arg(long, default_value_t = 32 * 512 * 10_000)]
    pub anneal_steps: u64,
    /// The discount factor gamma
    #[arg(long, default_value = "0.995")]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value = "0.95")]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value = "8")]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "3")]
    pub update_epochs: usize,
    /// Normalize advantages over each minibatch
    #[arg(long, default_value = "false")]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value = "0.1")]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as OpenAI Baselines does
    #[arg(long, default_value = "true")]
    pub clip_vloss: bool,
    /// The initial coefficient of the entropy
    #[arg(long, default_value = "1e-4")]
    pub init_ent_coef: f64,
    /// The final coefficient of the entropy, after linear annealing
    #[arg(long, default_value = "1e-6")]
    pub final_ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.25")]
    pub max_grad_norm: f64,
    /// The KL divergence at which the remaining epochs of an update are skipped
    #[arg(long)]
    pub target_kl: Option<f64>,
    /// Bootstrap at time limits with the value of the final observation; CleanRL does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,

    /// The number of transformer layers
    #[arg(long, default_value = "3")]
    pub trxl_num_layers: usize,
    /// The number of heads of the attention
    #[arg(long, default_value = "4")]
    pub trxl_num_heads: usize,
    /// The number of units of the transformer
    #[arg(long, default_value = "384")]
    pub trxl_dim: usize,
    /// The length of the memory window in steps, at most that of an episode
    #[arg(long, default_value = "119")]
    pub trxl_memory_length: usize,
    /// The positional encoding of memories
    #[arg(long, value_enum, default_value_t = PositionalEncoding::Absolute)]
    pub trxl_positional_encoding: PositionalEncoding,
    /// Coefficient of the image reconstruction loss; 0 disables it
    #[arg(long, default_value = "0.0")]
    pub reconstruction_coef: f64,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        let (heads, dim) = (self.trxl_num_heads, self.trxl_dim);
        ensure(
            dim.is_multiple_of(heads) && dim.is_multiple_of(2),
            "trxl-dim",
            dim,
            &format!("even, and a multiple of --trxl-num-heads {heads}"),
        )
    }

    /// Returns the learning rate and the entropy coefficient at a timestep.
    pub fn annealed(&self, global_step: u64) -> (f64, f64) {
        let frac = if global_step < self.anneal_steps {
            1.0 - global_step as f64 / self.anneal_steps as f64
        } else {
            0.0
        };
        let anneal = |init: f64, last: f64| (init - last) * frac + last;
        (anneal(self.init_lr, self.final_lr), anneal(self.init_ent_coef, self.final_ent_coef))
    }
}

registered_algorithm!(Args, "ppo_trxl", DISCRETE_OR_MULTI_DISCRETE, Args::check, train, policy);

/// Number of positions that are encoded for environments without a time limit; later steps have the last
/// encoding.
const MAX_EPISODE_STEPS: usize = 1024;

/// Sizes of observations, actions and episodes.
#[derive(Debug, Clone)]
pub struct TrxlSizes {
    pub obs_kind: ObsKind,
    pub shape: Shape,
    pub nvec: Vec<usize>, // number of choices of each component of an action
    pub max_episode_steps: usize, // maximum number of steps of an episode
}

// -------------------------------------------------------------------------------------- network

/// Initializes a dense layer with an orthogonal kernel and PyTorch's default bias.
fn layer_init(key: Key<Tensor>, inputs: usize, outputs: usize, std: f64) -> Dense<Tensor> {
    Dense::init_with(key, inputs, outputs, orthogonal(std), Some(torch_default()))
}

/// Actor-critic network: an encoder, the transformer, a hidden layer, a policy head for each component
/// of the action, and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub convs: Encoder<T>, // convolutions of images and boards; none for vectors
    pub encoder: Dense<T>, // layer from features or vectors to the units of the transformer
    pub transformer: Transformer<T>, // episodic memory
    pub hidden_post_trxl: Dense<T>, // hidden layer after the transformer
    pub actor_branches: Vec<Dense<T>>, // layers from hidden units to action logits
    pub critic: Dense<T>,  // layer from hidden units to values
    pub transposed_cnn: Option<TransposedCnn<T>>, // decoder, with `--reconstruction-coef`
    pub memory_length: usize, // length of the memory window
}

/// Outputs of the network for B observations.
#[derive(Debug, Clone)]
pub struct AgentOutput {
    pub policy: MultiCategorical<Tensor>,
    pub value: Tensor,  // f32[B]: values
    pub memory: Tensor, // f32[B, layers, dim]: new memories
    pub hidden: Tensor, // f32[B, dim]: hidden units
}

impl Agent<Tensor> {
    /// Initializes an agent for observations, actions and episodes of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &TrxlSizes, args: &Args) -> Agent<Tensor> {
        let [convs, encoder, transformer, hidden, heads, critic, decoder] = key.split_n();
        let (gain, dim) = (2.0f64.sqrt(), args.trxl_dim);
        let (kernel, bias) = (orthogonal(gain), Some(torch_default()));
        let convs = Encoder::init_convs_with(convs, sizes.obs_kind, &sizes.shape, kernel, bias);
        let heads = heads.split_vec(sizes.nvec.len()).into_iter().zip(&sizes.nvec);
        Agent {
            encoder: layer_init(encoder, convs.size(), dim, gain),
            convs,
            transformer: Transformer::init(transformer, sizes.max_episode_steps, args),
            hidden_post_trxl: layer_init(hidden, dim, dim, gain),
            actor_branches: heads.map(|(key, &n)| layer_init(key, dim, n, 0.1)).collect(),
            critic: layer_init(critic, dim, 1, 1.0),
            transposed_cnn: (args.reconstruction_coef > 0.0)
                .then(|| TransposedCnn::init(decoder, dim, sizes.shape[0])),
            memory_length: args.trxl_memory_length.min(sizes.max_episode_steps),
        }
    }

    /// Computes the policy, values and new memories at observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor, window: &MemoryWindow<Tensor>) -> AgentOutput {
        let mut x = self.encoder.apply(self.convs.apply(obs));
        if self.convs.obs_kind != ObsKind::Vector {
            x = x.relu();
        }
        let (x, memory) = self.transformer.apply(x, window);
        let hidden = self.hidden_post_trxl.apply(x).relu();
        let branches = self.actor_branches.iter();
        let components = branches.map(|branch| Categorical::new(branch.apply(hidden))).collect();
        let value = self.critic.apply(hidden).squeeze(-1);
        AgentOutput { policy: MultiCategorical { components }, value, memory, hidden }
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &TrxlSizes, args: &Args) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes, args);
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations, in the environment's dtype
    pub episode_steps: T,  // i32[N]: steps of the episodes before `obs`
    pub memory: T,         // f32[N, W, layers, dim]: memories of the last W steps, oldest first
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,           // [T, N, ..]: observations, in the environment's dtype
    pub episode_steps: T, // i32[T, N]: steps of the episodes before the observations
    pub actions: T,       // i32[T, N, components]
    pub logprobs: T,      // f32[T, N, components]: log probabilities of the actions
    pub values: T,        // f32[T, N]: values of the observations
    pub rewards: T,       // f32[T, N]
    pub dones: T,         // f32[T, N]: 1 where the step ended its episode
    /// `f32[N, W + T, layers, dim]`: memories of the last W steps before the rollout and of its steps.
    pub stored_memories: T,
    pub next_value: T, // f32[N]: values of the observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 8], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, episode_steps, memory, key } = env_state;
    let (key, action_key) = key.split();
    let output = agent.apply(obs, &env_window(memory, episode_steps));
    let action = output.policy.sample(action_key); // i32[N, components]
    let logprob = output.policy.component_log_probs(action);
    let discrete = matches!(envs.spec().action, Space::Discrete { .. });
    let (handle, step) = envs.step(handle, if discrete { action.squeeze(-1) } else { action });
    let memory = append_memory(memory, output.memory);
    let done = step.done();
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        // The final observation continues the episode.
        let window = env_window(memory, episode_steps + 1);
        let value = |obs| agent.apply(obs, &window).value;
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let (value, dones) = (output.value, done.to(DType::F32));
    let transition = [obs, episode_steps, action, logprob, value, reward, dones, output.memory];
    // `step.obs` is the first observation of the next episode where one ended.
    let episode_steps = where_(done, zeros_like(episode_steps), episode_steps + 1);
    let env_state = EnvState { handle, obs: step.obs, episode_steps, memory, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let first_memory = env_state.memory;
    let step = |env_state, ()| env_step(envs, agent, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, episode_steps, actions, logprobs, values, rewards, dones, memories] = transitions;
    let window = env_window(env_state.memory, env_state.episode_steps);
    let rollout = Rollout {
        obs,
        episode_steps,
        actions,
        logprobs,
        values,
        rewards,
        dones,
        stored_memories: concatenate(&[first_memory, memories.moveaxis(0, 1)], 1),
        next_value: agent.apply(env_state.obs, &window).value,
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

/// Training samples made from a rollout, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub obs: T,           // [B, ..]: observations, in the environment's dtype
    pub actions: T,       // i32[B, components]
    pub logprobs: T,      // f32[B, components]: log probabilities under the policy that acted
    pub advantages: T,    // f32[B]
    pub returns: T,       // f32[B]
    pub values: T,        // f32[B]: values at the time of the rollout
    pub episode_steps: T, // i32[B]: steps of the episodes before the observations
    /// `i32[B]`: rows of the stored memories at which the last W steps before the sample begin.
    pub memory_starts: T,
}

/// Returns the samples of a rollout and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(rollout: Rollout<Tensor>, args: &Args) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, episode_steps, actions, logprobs, values, rewards, dones, .. } = rollout;
    let Rollout { stored_memories, next_value, .. } = rollout;
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let [num_envs, rows] = [stored_memories.dim(0), stored_memories.dim(1)];
    let memory_starts = arange(args.num_steps, DType::I32).expand_dims(1)
        + arange(num_envs, DType::I32).expand_dims(0) * rows as i32;
    let samples = Samples {
        obs,
        actions,
        logprobs,
        advantages,
        returns,
        values,
        episode_steps,
        memory_starts,
    };
    (merge_time_and_env(samples), explained)
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Default, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T,             // mean entropy of the policy
    pub reconstruction_loss: T, // reconstruction loss; 0 if disabled
    /// Estimate `mean(-log ratio)` of the KL divergence from the policy that acted.
    pub old_approx_kl: T,
    pub approx_kl: T, // estimate `mean(ratio - 1 - log ratio)` of the KL divergence
    pub clipfrac: T,  // fraction of ratios that differ from 1 by more than the clip range
}

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    window: &MemoryWindow<Tensor>,
    ent_coef: Tensor,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let AgentOutput { policy, value, hidden, .. } = agent.apply(batch.obs, window);
    let logratio = policy.component_log_probs(batch.actions) - batch.logprobs; // f32[B, components]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    let mut advantages = batch.advantages;
    if args.norm_adv {
        let ddof = usize::from(advantages.numel() > 1); // PyTorch's std; 0 for one sample
        advantages = (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    let advantages = advantages.expand_dims(1) * ones_like(ratio);
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped).mean(..);

    let mut value_error = (value - batch.returns).square();
    if args.clip_vloss {
        let v_clipped = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((v_clipped - batch.returns).square());
    }
    let value_loss = value_error.mean(..);

    let entropy = policy.entropy().mean(..);
    let mut loss = policy_loss - ent_coef * entropy + args.vf_coef * value_loss;
    let mut reconstruction = constant(0.0f32);
    if let Some(decoder) = &agent.transposed_cnn {
        reconstruction = decoder.loss(hidden, batch.obs);
        loss = loss + args.reconstruction_coef * reconstruction;
    }
    let metrics = Metrics {
        loss,
        value_loss,
        policy_loss,
        entropy,
        reconstruction_loss: reconstruction,
        old_approx_kl: (-logratio).mean(..),
        approx_kl: ((ratio - 1.0) - logratio).mean(..),
        clipfrac: (ratio - 1.0).abs().gt(clip).to(DType::F32).mean(..),
    };
    (loss, metrics)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a minibatch, with a learning rate and an entropy coefficient.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Samples<Tensor>,
    window: &MemoryWindow<Tensor>,
    (learning_rate, ent_coef): (Tensor, Tensor),
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state } = train_state;
    let loss = |agent: Agent<Tensor>| ppo_loss(&agent, batch, window, ent_coef, args);
    let ((_, metrics), grads) = value_and_grad(loss)(agent.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    // PyTorch's AdamW.
    let adamw = Adam { weight_decay: 0.01, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adamw.step(agent, grads, opt_state);
    (TrainState { agent, opt_state }, metrics)
}

/// Returns the sample indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs, num_minibatches, minibatch_size]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.batch_size())).collect();
    let minibatch_size = args.batch_size() / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs, args.num_minibatches, minibatch_size])
}

/// Gathers the minibatch of these samples, `indices: i32[B]`, with its memory windows, and takes one gradient
/// step on it. `stored_memories: f32[N (W + T), layers, dim]` are those of all environments.
pub fn minibatch_step(
    train_state: TrainState<Tensor>,
    (samples, stored_memories): (Samples<Tensor>, Tensor),
    indices: Tensor,
    coefficients: (Tensor, Tensor),
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let batch = gather_minibatch(samples, indices);
    let memory_length = train_state.agent.memory_length;
    let window =
        memory_window(stored_memories, batch.memory_starts, batch.episode_steps, memory_length);
    gradient_step(train_state, &batch, &window, coefficients, args)
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs; stops after an epoch
/// whose last KL divergence exceeds `target_kl`. Returns the metrics of the last gradient step, with
/// the mean `clipfrac` of all.
pub fn run_epochs(
    train_state: TrainState<Tensor>,
    data: (Samples<Tensor>, Tensor),
    key: Key<Tensor>,
    coefficients: (Tensor, Tensor),
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    type Carry = (TrainState<Tensor>, Metrics<Tensor>, Tensor);
    let indices = minibatch_indices(key, args);
    let target_kl = args.target_kl.unwrap_or(f64::INFINITY);
    let more_epochs = |(_, metrics, epoch): Carry| {
        epoch.lt(args.update_epochs as i32) & !metrics.approx_kl.gt(target_kl)
    };
    let run_epoch = |(train_state, previous, epoch): Carry| {
        let step =
            |train_state, indices| minibatch_step(train_state, data, indices, coefficients, args);
        let (train_state, metrics) = scan(step, train_state, indices.dynamic_index(0, epoch));
        let last = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
        let change = metrics.clipfrac.mean(..) - previous.clipfrac;
        let clipfrac = previous.clipfrac + change / (epoch + 1).to(DType::F32);
        (train_state, Metrics { clipfrac, ..last }, epoch + 1)
    };
    let init = (train_state, tree::map(Metrics::<f32>::default(), constant), constant(0i32));
    let (train_state, metrics, _) = while_loop(more_epochs, run_epoch, init);
    (train_state, metrics)
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

/// Means over a rollout; scalars.
#[derive(Debug, Clone, Copy, Tree)]
struct RolloutMetrics<T> {
    value_mean: T,
    advantage_mean: T,
}

/// Results of an iteration: the next state, the episodes, and the metrics of the update and the rollout.
type IterationOutput =
    (RunnerState<Tensor>, EpisodeStats<Tensor>, UpdateMetrics<Tensor>, RolloutMetrics<Tensor>);

/// Collects a rollout and updates on it, with a learning rate and an entropy coefficient; compiled as one
/// program.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    coefficients: (Tensor, Tensor),
    args: &Args,
) -> IterationOutput {
    let RunnerState { train_state, env_state } = state;
    let (mut env_state, rollout, episodes) =
        collect_rollout(envs, &train_state.agent, env_state, args);
    let stored_memories = merge_time_and_env(rollout.stored_memories);
    let (samples, explained_variance) = make_samples(rollout, args);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (value_mean, advantage_mean) = (samples.values.mean(..), samples.advantages.mean(..));
    let data = (samples, stored_memories);
    let (train_state, last) = run_epochs(train_state, data, shuffle_key, coefficients, args);
    let metrics = UpdateMetrics { last, explained_variance };
    let means = RolloutMetrics { value_mean, advantage_mean };
    (RunnerState { train_state, env_state }, episodes, metrics, means)
}

/// Creates environments, and returns them with the sizes of the network.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, TrxlSizes)> {
    let atari = AtariOptions { stack_num: 1, gray_scale: false, ..AtariOptions::gymnasium() };
    let minigrid = MiniGridOptions::cleanrl();
    let (pool, obs_kind, nvec) = pools::multi_discrete(args, atari, minigrid, num_envs, seed)?;
    let shape = pool.spec().observation.shape();
    ensure(
        args.reconstruction_coef == 0.0
            || (obs_kind == ObsKind::Image && matches!(shape[..], [_, 84, 84])),
        "reconstruction-coef",
        args.reconstruction_coef,
        &format!("0: observations of {} are not images of 84 by 84", args.env_id),
    )?;
    let limit = pool.spec().max_episode_steps;
    let max_episode_steps = limit.map_or(MAX_EPISODE_STEPS, |limit| limit as usize);
    Ok((pool, TrxlSizes { obs_kind, shape, nvec, max_episode_steps }))
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
        let window = train_state.agent.memory_length;
        let memory = [args.num_envs, window, args.trxl_num_layers, args.trxl_dim];
        let memory = zeros(memory, DType::F32);
        let episode_steps = zeros([args.num_envs], DType::I32);
        let env_state = EnvState { handle, obs: first.obs, episode_steps, memory, key };
        RunnerState { train_state, env_state }
    });
    let iteration = trainer.jit("iteration", |(state, coefficients)| {
        train_iteration(&envs, state, coefficients, args)
    });

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let (learning_rate, ent_coef) = args.annealed(trainer.global_step());
        let coefficients = [learning_rate, ent_coef].map(|x| Array::from(x as f32));
        let (next_state, episodes, metrics, means) =
            iteration.call((state, coefficients.into()))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        trainer.log(&[
            ("charts/learning_rate", learning_rate),
            ("charts/entropy_coefficient", ent_coef),
            ("episode/value_mean", f64::from(means.value_mean.item::<f32>()?)),
            ("episode/advantage_mean", f64::from(means.advantage_mean.item::<f32>()?)),
        ])?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the most likely action, the logits and the next state,
/// `f32[1 + W, B, layers * dim]`: the step of the episode, then the memories of the last W steps.
/// Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = make_pool(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, &sizes, args))?.agent;
    let (window, layers, dim) = (agent.memory_length, args.trxl_num_layers, args.trxl_dim);
    let spec = pool.spec().clone();
    let act = move |agent: &Agent<Tensor>, obs: Tensor, state: Tensor| {
        let batch = obs.dim(0);
        let steps = state.index_axis(0, 0);
        let episode_steps = steps.index_axis(-1, 0).to(DType::I32);
        let memory = state.slice_axis(0, 1, window + 1).moveaxis(0, 1);
        let memory = memory.reshape([batch, window, layers, dim]);
        let output = agent.apply(obs, &env_window(memory, episode_steps));
        let memory = append_memory(memory, output.memory).reshape([batch, window, layers * dim]);
        let next_state = concatenate(&[(steps + 1.0).expand_dims(0), memory.moveaxis(0, 1)], 0);
        PolicyResults::from_components(output.policy, &spec).with("next_state", next_state)
    };
    Ok(Policy::recurrent(pool, [window + 1, layers * dim], agent, act))
}
