//! Proximal policy optimization (PPO) with random network distillation (RND, Burda et al. 2018) on
//! images: CleanRL's `ppo_rnd_envpool.py`. A rollout and the update on it are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_rnd_envpool.md`.

mod moments;

use crate::Shape;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, ObsKind};
use crate::nn::{Dense, Encoder, init::orthogonal};
use crate::random::{permutation, randint, uniform};
use crate::rl::prelude::*;

pub use moments::Moments;

// ------------------------------------------------------------------------------------- settings

/// PPO with curiosity (random network distillation) on images
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: Atari, or boards as MinAtar's
    #[arg(long, default_value = "MontezumaRevenge-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "2000000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "1e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "128")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "128")]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "true")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.999")]
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
    #[arg(long, default_value = "0.001")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// The discount factor of the intrinsic rewards
    #[arg(long, default_value = "0.99")]
    pub int_gamma: f64,
    /// Coefficient of the advantages of the intrinsic rewards
    #[arg(long, default_value = "1.0")]
    pub int_coef: f64,
    /// Coefficient of the advantages of the extrinsic rewards, those of the environment
    #[arg(long, default_value = "2.0")]
    pub ext_coef: f64,
    /// The fraction of samples used to train the predictor
    #[arg(long, default_value = "0.25")]
    pub update_proportion: f64,
    /// The number of random rollouts that initialize the observation normalization
    #[arg(long, default_value = "50")]
    pub num_iterations_obs_norm_init: usize,
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
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)
    }
}

registered_algorithm!(Args, "ppo_rnd_envpool", FOUR_FRAMES_OR_BOARDS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, a policy head, and two value heads for extrinsic and intrinsic
/// rewards.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub trunk: Encoder<T>, // encoder from observations to features
    pub extra: Dense<T>,   // residual layer on the features, as input of the value heads
    /// Hidden layer of the size of the features, and output layer to action logits.
    pub actor: [Dense<T>; 2],
    pub critic_ext: Dense<T>, // value head of the extrinsic rewards
    pub critic_int: Dense<T>, // value head of the intrinsic rewards
}

impl Agent<Tensor> {
    /// Initializes an agent for observations of the given kind and shape.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, extra, hidden, actor, ext, int] = key.split_n();
        let trunk = encoder(trunk, sizes);
        let (size, small) = (trunk.size(), orthogonal(0.01));
        Agent {
            extra: Dense::init(extra, size, size, orthogonal(0.1)),
            actor: [
                Dense::init(hidden, size, size, small),
                Dense::init(actor, size, sizes.num_actions, small),
            ],
            critic_ext: Dense::init(ext, size, 1, small),
            critic_int: Dense::init(int, size, 1, small),
            trunk,
        }
    }

    /// Returns the policy and the values `f32[B]` of extrinsic and of intrinsic rewards for
    /// observations `[B, ..]`.
    pub fn policy_and_values(&self, obs: Tensor) -> (Categorical<Tensor>, [Tensor; 2]) {
        let hidden = self.trunk.apply(obs);
        let logits = self.actor[1].apply(self.actor[0].apply(hidden).relu());
        let features = self.extra.apply(hidden).relu() + hidden;
        let value = |head: &Dense<Tensor>| head.apply(features).squeeze(-1);
        let values = [value(&self.critic_ext), value(&self.critic_int)];
        (Categorical::new(logits), values)
    }
}

/// Initializes the encoder: for frames, the Nature network's convolutions and dense layers of 256
/// and 448 units.
fn encoder(key: Key<Tensor>, sizes: &Sizes) -> Encoder<Tensor> {
    let (encoder, dense) = key.split();
    let gain = orthogonal(2.0f64.sqrt());
    let mut encoder = Encoder::init(encoder, sizes.obs_kind, &sizes.shape, gain);
    if sizes.obs_kind == ObsKind::Image {
        let (first, second) = dense.split();
        encoder.dense =
            vec![Dense::init(first, 3136, 256, gain), Dense::init(second, 256, 448, gain)];
    }
    encoder
}

/// Returns the part of observations `[B, ..]` that the RND networks take, as `f32`: the newest of
/// stacked frames, or the whole observation.
pub fn rnd_input(obs: Tensor, obs_kind: ObsKind) -> Tensor {
    let obs = match obs_kind {
        ObsKind::Image => obs.slice_axis(1, obs.dim(1) - 1, obs.dim(1)),
        ObsKind::Board | ObsKind::Vector => obs,
    };
    obs.to(DType::F32)
}

/// Returns the shape of [`rnd_input`] of one observation.
fn rnd_shape(sizes: &Sizes) -> Shape {
    match sizes.obs_kind {
        ObsKind::Image => Shape::from([1, 84, 84]),
        ObsKind::Board | ObsKind::Vector => sizes.shape.clone(),
    }
}

/// Convolutions, each followed by a leaky ReLU of slope 0.01, and a dense layer without activation.
#[derive(Debug, Clone, Tree)]
pub struct Features<T> {
    pub layers: Encoder<T>, // layers of an encoder: convolutions and one dense layer
}

impl Features<Tensor> {
    /// Returns features `f32[B, size]` for observations `f32[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let mut x = match self.layers.obs_kind {
            ObsKind::Image => obs.transpose(&[0, 2, 3, 1]),
            ObsKind::Board | ObsKind::Vector => obs,
        };
        for conv in &self.layers.convs {
            x = conv.apply(x).leaky_relu(0.01);
        }
        self.layers.dense[0].apply(x.flatten_from(1))
    }
}

/// Networks of random network distillation: a predictor that is trained on the outputs of a fixed,
/// randomly initialized target.
#[derive(Debug, Clone, Tree)]
pub struct RndModel<T> {
    pub target: Features<T>,    // fixed target network
    pub predictor: Features<T>, // convolutions and first dense layer of the predictor
    /// Last two layers of the predictor, which predict the target's features.
    pub head: [Dense<T>; 2],
}

impl RndModel<Tensor> {
    /// Initializes the networks for the part of the observations that [`rnd_input`] returns.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> RndModel<Tensor> {
        let [target, predictor, first, second] = key.split_n();
        let (shape, gain) = (rnd_shape(sizes), orthogonal(2.0f64.sqrt()));
        let features = |key| Features { layers: Encoder::init(key, sizes.obs_kind, &shape, gain) };
        let target = features(target);
        let size = target.layers.size();
        RndModel {
            predictor: features(predictor),
            head: [Dense::init(first, size, size, gain), Dense::init(second, size, size, gain)],
            target,
        }
    }

    /// Returns the outputs of the predictor and of the target, `f32[B, size]` each, for whitened
    /// observations `f32[B, ..]`. No gradient flows into the target.
    pub fn apply(&self, white: Tensor) -> [Tensor; 2] {
        let hidden = self.predictor.apply(white).relu();
        let predicted = self.head[1].apply(self.head[0].apply(hidden).relu());
        [predicted, self.target.apply(white).stop_gradient()]
    }
}

/// Trained networks: the agent and the RND networks.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    pub agent: Agent<T>,
    /// RND networks. The target's gradients are zero.
    pub rnd: RndModel<T>,
}

/// State that updates change; saved as the model.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    pub networks: Networks<T>,
    pub opt_state: AdamState<T, Networks<T>>,
    pub obs_rms: Moments<T>, // statistics of the observations that the RND networks take
    pub reward_rms: Moments<T>, // statistics of the discounted intrinsic rewards
    pub discounted_reward: T, // f32[N]: discounted sums of the intrinsic rewards so far
}

/// Initializes the networks, their optimizer and the statistics.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes, num_envs: usize) -> TrainState<Tensor> {
    let (agent_key, rnd_key) = key.split();
    let (agent, rnd) = (Agent::init(agent_key, sizes), RndModel::init(rnd_key, sizes));
    let networks = Networks { agent, rnd };
    TrainState {
        opt_state: Adam::default().init(&networks),
        networks,
        obs_rms: Moments::new(&rnd_shape(sizes)),
        reward_rms: Moments::new(&[]),
        discounted_reward: zeros([num_envs], DType::F32),
    }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations, in the environment's dtype
    pub key: Key<T>,
}

/// Initializes the observation statistics in `num_iterations_obs_norm_init` rollouts of random
/// actions.
fn init_obs_rms(
    envs: &XlaPool,
    obs_rms: Moments<Tensor>,
    env_state: EnvState<Tensor>,
    sizes: &Sizes,
    args: &Args,
) -> (Moments<Tensor>, EnvState<Tensor>) {
    let step = |(obs_rms, env_state): (Moments<Tensor>, EnvState<Tensor>), ()| {
        let EnvState { handle, obs, key } = env_state;
        let (key, action_key) = key.split();
        let action = randint(action_key, [obs.dim(0)], 0, sizes.num_actions as i32, DType::I32);
        let (handle, step) = envs.step(handle, action);
        let obs_rms = obs_rms.update(rnd_input(step.obs, sizes.obs_kind));
        ((obs_rms, EnvState { handle, obs: step.obs, key }), ())
    };
    let steps = args.num_iterations_obs_norm_init * args.num_steps;
    scan_with(step, (obs_rms, env_state), (), ScanOptions::length(steps)).0
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,               // [T, N, ..]: observations, in the environment's dtype
    pub actions: T,           // i32[T, N]
    pub logprobs: T,          // f32[T, N]: log probabilities of the actions
    pub values: [T; 2], // f32[T, N] each: values of the extrinsic and of the intrinsic rewards
    pub rewards: T,     // f32[T, N]: extrinsic rewards, those of the environment
    pub curiosity_rewards: T, // f32[T, N]: intrinsic rewards
    pub dones: T,       // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T,    // [N, ..]: observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    networks: &Networks<Tensor>,
    obs_rms: &Moments<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 8], EpisodeStats<Tensor>)) {
    let Networks { agent, rnd } = networks;
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let (policy, [ext_value, int_value]) = agent.policy_and_values(obs);
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let (handle, step) = envs.step(handle, action);
    let white = obs_rms.whiten(rnd_input(step.obs, agent.trunk.obs_kind));
    let [predicted, target] = rnd.apply(white);
    let curiosity_reward = 0.5 * (predicted - target).square().sum(-1);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        // Only extrinsic returns are bootstrapped: intrinsic returns do not end with the episode.
        let value = |obs| agent.policy_and_values(obs).1[0];
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let done = step.done().to(DType::F32);
    let transition = [obs, action, logprob, ext_value, int_value, reward, curiosity_reward, done];
    let env_state = EnvState { handle, obs: step.obs, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    networks: &Networks<Tensor>,
    obs_rms: &Moments<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let step = |env_state, ()| env_step(envs, networks, obs_rms, env_state, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, actions, logprobs, ext_values, int_values, rewards, curiosity_rewards, dones] =
        transitions;
    let (values, next_obs) = ([ext_values, int_values], env_state.obs);
    let rollout =
        Rollout { obs, actions, logprobs, values, rewards, curiosity_rewards, dones, next_obs };
    (env_state, rollout, episodes)
}

/// Computes discounted sums `f <- gamma f + r` from `start: f32[N]`; returns the last, `f32[N]`, and
/// those of all steps, `f32[T, N]`. CleanRL calls it `RewardForwardFilter`.
pub fn reward_forward_filter(start: Tensor, rewards: Tensor, gamma: f64) -> (Tensor, Tensor) {
    let step = |sum: Tensor, reward: Tensor| {
        let sum = gamma * sum + reward;
        (sum, sum)
    };
    scan(step, start, rewards)
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
    pub obs: T,         // [B, ..]: observations, in the environment's dtype
    pub actions: T,     // i32[B]
    pub logprobs: T,    // f32[B]: log probabilities under the policy that acted
    pub advantages: T,  // f32[B]: advantages, those of both rewards together
    pub ext_returns: T, // f32[B]: returns of the extrinsic rewards
    pub int_returns: T, // f32[B]: returns of the intrinsic rewards
    pub ext_values: T,  // f32[B]: values of the extrinsic rewards, by the critic that acted
}

/// Returns the samples of a rollout with normalized intrinsic rewards, and the explained variance of
/// its extrinsic values, `1 - var(R - v) / var(R)`.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, actions, logprobs, values, rewards, dones, .. } = rollout;
    let [ext_values, int_values] = values;
    let (_, [next_ext, next_int]) = agent.policy_and_values(rollout.next_obs); // f32[N] each
    let (ext_advantages, ext_returns) =
        compute_gae(rewards, dones, ext_values, next_ext, (args.gamma, args.gae_lambda));
    // Intrinsic returns do not end with the episode.
    let (never, discounts) = (zeros_like(dones), (args.int_gamma, args.gae_lambda));
    let (int_advantages, int_returns) =
        compute_gae(rollout.curiosity_rewards, never, int_values, next_int, discounts);
    let advantages = args.ext_coef * ext_advantages + args.int_coef * int_advantages;
    let samples =
        Samples { obs, actions, logprobs, advantages, ext_returns, int_returns, ext_values };
    let samples = merge_time_and_env(samples);
    (samples, explained_variance(samples.ext_values, samples.ext_returns))
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
    pub fwd_loss: T,  // loss of the predictor
}

/// Computes the predictor's loss: the mean squared error, averaged over the samples where
/// `mask: f32[B]` is 1.
pub fn fwd_loss([predicted, target]: [Tensor; 2], mask: Tensor) -> Tensor {
    let error = (predicted - target).square().mean(-1);
    (error * mask).sum(..) / mask.sum(..).maximum(1.0)
}

/// Computes the loss of PPO and of the predictor over a minibatch, and its metrics. `mask: f32[B]` is
/// 1 for the samples that train the predictor.
pub fn ppo_loss(
    networks: &Networks<Tensor>,
    obs_rms: &Moments<Tensor>,
    (batch, mask): (&Samples<Tensor>, Tensor),
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let Networks { agent, rnd } = networks;
    let white = obs_rms.whiten(rnd_input(batch.obs, agent.trunk.obs_kind));
    let fwd_loss = fwd_loss(rnd.apply(white), mask);

    let (policy, [ext_value, int_value]) = agent.policy_and_values(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    let mut advantages = batch.advantages;
    if args.norm_adv {
        let ddof = usize::from(advantages.numel() > 1); // PyTorch's std; 0 for one sample
        advantages = (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped).mean(..);

    let mut ext_error = (ext_value - batch.ext_returns).square();
    if args.clip_vloss {
        let v_clipped = batch.ext_values + (ext_value - batch.ext_values).clip(-clip, clip);
        ext_error = ext_error.maximum((v_clipped - batch.ext_returns).square());
    }
    let int_error = (int_value - batch.int_returns).square();
    let value_loss = 0.5 * ext_error.mean(..) + 0.5 * int_error.mean(..);

    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss + fwd_loss;
    let metrics = Metrics {
        loss,
        value_loss,
        policy_loss,
        entropy,
        old_approx_kl: (-logratio).mean(..),
        approx_kl: ((ratio - 1.0) - logratio).mean(..),
        clipfrac: (ratio - 1.0).abs().gt(clip).to(DType::F32).mean(..),
        fwd_loss,
    };
    (loss, metrics)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a minibatch. `mask: f32[B]` is 1 for the samples that train the
/// predictor, else 0.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Samples<Tensor>,
    mask: Tensor,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { networks, opt_state, obs_rms, .. } = train_state;
    let loss = |networks: Networks<Tensor>| ppo_loss(&networks, &obs_rms, (batch, mask), args);
    let ((_, metrics), grads) = value_and_grad(loss)(networks.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (networks, opt_state) = adam.step(networks, grads, opt_state);
    (TrainState { networks, opt_state, ..train_state }, metrics)
}

/// Returns the sample indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs * num_minibatches, minibatch_size]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.batch_size())).collect();
    let minibatch_size = args.batch_size() / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_size])
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs. Returns the metrics of the
/// last gradient step, with the mean `clipfrac` of all.
fn run_epochs(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    (shuffle_key, mask_key): (Key<Tensor>, Key<Tensor>),
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let indices = minibatch_indices(shuffle_key, args);
    let draws = uniform(mask_key, indices.shape(), DType::F32, 0.0, 1.0);
    let masks = draws.lt(args.update_proportion).to(DType::F32);
    let step = |train_state, (indices, mask): (Tensor, Tensor)| {
        gradient_step(train_state, &gather_minibatch(samples, indices), mask, learning_rate, args)
    };
    let (train_state, metrics) = scan(step, train_state, (indices, masks));
    let last = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
    (train_state, Metrics { clipfrac: metrics.clipfrac.mean(..), ..last })
}

/// Metrics of an update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct UpdateMetrics<T> {
    pub last: Metrics<T>,      // metrics of the last gradient step
    pub explained_variance: T, // of the extrinsic values before the update
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, the episodes, the metrics, and the mean of the normalized
/// intrinsic rewards.
type IterationOutput = (RunnerState<Tensor>, EpisodeStats<Tensor>, UpdateMetrics<Tensor>, Tensor);

/// Collects a rollout, updates the statistics of observations and intrinsic rewards, and updates on the
/// rollout; compiled as one program.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> IterationOutput {
    let RunnerState { mut train_state, env_state } = state;
    let TrainState { networks, obs_rms, .. } = &train_state;
    let (mut env_state, mut rollout, episodes) =
        collect_rollout(envs, networks, obs_rms, env_state, args);

    let (last, discounted) = reward_forward_filter(
        train_state.discounted_reward,
        rollout.curiosity_rewards,
        args.int_gamma,
    );
    train_state.discounted_reward = last;
    train_state.reward_rms = train_state.reward_rms.update(discounted.ravel());
    rollout.curiosity_rewards =
        rollout.curiosity_rewards * (train_state.reward_rms.var + 1e-8).rsqrt();
    let agent = &train_state.networks.agent;
    let (samples, explained_variance) = make_samples(agent, rollout, args);
    train_state.obs_rms = train_state.obs_rms.update(rnd_input(samples.obs, agent.trunk.obs_kind));

    let [key, shuffle_key, mask_key] = env_state.key.split_n();
    env_state.key = key;
    let keys = (shuffle_key, mask_key);
    let (train_state, last) = run_epochs(train_state, samples, keys, learning_rate, args);
    let metrics = UpdateMetrics { last, explained_variance };
    let curiosity_reward = rollout.curiosity_rewards.mean(..);
    (RunnerState { train_state, env_state }, episodes, metrics, curiosity_reward)
}

/// Creates environments with episodic lives, rewards clipped to their signs and sticky actions, and
/// returns them with the sizes of the networks.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, Sizes)> {
    let atari = AtariOptions {
        episodic_life: true,
        reward_clip: true,
        repeat_action_probability: 0.25,
        ..AtariOptions::envpool()
    };
    pools::with_atari(args, atari, num_envs, seed)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = make_pool(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let (handle, first) = envs.reset(handle);
        let mut train_state = init_train_state(agent_key, &sizes, args.num_envs);
        let env_state = EnvState { handle, obs: first.obs, key };
        let (obs_rms, env_state) =
            init_obs_rms(&envs, train_state.obs_rms, env_state, &sizes, args);
        train_state.obs_rms = obs_rms;
        RunnerState { train_state, env_state }
    });
    let iteration =
        trainer.jit("iteration", |(state, rate)| train_iteration(&envs, state, rate, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let (next_state, episodes, metrics, curiosity_reward) =
            iteration.call((state, learning_rate))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        let curiosity_reward = curiosity_reward.item::<f32>()?.into();
        trainer.log(&[("charts/episode_curiosity_reward", curiosity_reward)])?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = make_pool(args, 1, args.run.eval_seed())?;
    let init = |key| init_train_state(key, &sizes, args.num_envs);
    let agent = load_model(model, init)?.networks.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy_and_values(obs).0)
    }))
}
