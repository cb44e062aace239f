//! Phasic policy gradient (PPG, Cobbe et al. 2020) on images: CleanRL's `ppg_procgen.py`. A policy
//! phase is `--n-iteration` PPO updates. The auxiliary phase after it distils the value function
//! into the shared layers.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppg.md`.

mod storage;

use crate::distributions::Categorical;
use crate::nn::init::orthogonal;
use crate::nn::normalize::{NormalizeReward, NormalizeRewardState};
use crate::nn::{Dense, Encoder, ImageEncoder, normed};
use crate::random::permutation;
use crate::rl::ImageNetwork;
use crate::rl::prelude::*;
use crate::rl::settings::flags::product;

pub use storage::AuxStorage;

// ------------------------------------------------------------------------------------- settings

/// PPG on images
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: Atari, or boards as MinAtar's
    #[arg(long, default_value = "MinAtar/Breakout-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "1000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "64")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "256")]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "false")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.999")]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value = "0.95")]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value = "8")]
    pub num_minibatches: usize,
    /// The number of rollouts in a phase, each followed by a policy update
    #[arg(long, default_value = "32")]
    pub n_iteration: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "1")]
    pub e_policy: usize,
    /// The number of epochs of the auxiliary phase
    #[arg(long, default_value = "6")]
    pub e_auxiliary: usize,
    /// Coefficient of the KL divergence from the policy before the auxiliary phase
    #[arg(long, default_value = "1.0")]
    pub beta_clone: f64,
    /// The number of single-environment rollouts per gradient step of the auxiliary phase
    #[arg(long, default_value = "4")]
    pub num_aux_rollouts: usize,
    /// Normalize advantages over the whole rollout
    #[arg(long, default_value = "true")]
    pub adv_norm_fullbatch: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value = "0.2")]
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
    /// The convolutional network of the agent
    #[arg(long, value_enum, default_value_t = ImageNetwork::Nature)]
    pub network: ImageNetwork,
    /// Divide rewards by the standard deviation of the discounted return, and clip them at 10
    #[arg(long, default_value = "true")]
    pub normalize_reward: bool,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// Bootstrap at time limits with the value of the final observation; CleanRL does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Number of timesteps in a phase.
    fn phase_steps(&self) -> u64 {
        (self.batch_size() * self.n_iteration) as u64
    }

    /// Total number of policy updates; an incomplete last phase is dropped, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.phase_steps() * self.n_iteration as u64
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        product(&[
            ("num-envs", self.num_envs),
            ("num-steps", self.num_steps),
            ("n-iteration", self.n_iteration),
        ])?;
        let sequences = self.num_envs * self.n_iteration;
        ensure(
            sequences.is_multiple_of(self.num_aux_rollouts),
            "num-aux-rollouts",
            self.num_aux_rollouts,
            &format!("a divisor of num-envs * n-iteration = {sequences}"),
        )?;
        ensure(
            self.phase_steps() <= self.total_timesteps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least one phase, {} timesteps", self.phase_steps()),
        )
    }
}

registered_algorithm!(Args, "ppg", IMAGES, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, a policy head, a value head, and an auxiliary value head that
/// only the auxiliary phase trains; its loss also trains the encoder.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub trunk: ImageEncoder<T>, // encoder from observations to features
    pub actor: Dense<T>,        // layer from features to action logits
    pub critic: Dense<T>,       // layer from features to values
    pub aux_critic: Dense<T>,   // layer from features to auxiliary values
}

impl Agent<Tensor> {
    /// Initializes an agent for observations of the given kind and shape.
    pub fn init(key: Key<Tensor>, network: ImageNetwork, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, actor, critic, aux_critic] = key.split_n();
        let trunk = match network {
            ImageNetwork::Nature => {
                let gain = orthogonal(2.0f64.sqrt());
                ImageEncoder::Nature(Encoder::init(trunk, sizes.obs_kind, &sizes.shape, gain))
            }
            ImageNetwork::Impala => {
                ImageEncoder::impala_normed(trunk, sizes.obs_kind, &sizes.shape)
            }
        };
        let head = |key, outputs, gain| {
            let mut head = Dense::init(key, trunk.size(), outputs, orthogonal(gain));
            if network == ImageNetwork::Impala {
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
    pub fn policy_and_value(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let x = self.trunk.apply(obs);
        let value = self.critic.apply(x.stop_gradient()).squeeze(-1);
        (Categorical::new(self.actor.apply(x)), value)
    }

    /// Returns the policy's logits `f32[B, actions]` for observations `[B, ..]`.
    pub fn logits(&self, obs: Tensor) -> Tensor {
        self.actor.apply(self.trunk.apply(obs))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    /// Adam's state of all parameters except `aux_critic`, whose moments here stay 0.
    pub opt_state: AdamState<T, Agent<T>>,
    /// Adam's state of `aux_critic`, which only auxiliary phases train.
    pub aux_opt_state: AdamState<T, Dense<T>>,
}

/// Initializes an agent and its optimizers.
fn init_train_state(key: Key<Tensor>, network: ImageNetwork, sizes: &Sizes) -> TrainState<Tensor> {
    let agent = Agent::init(key, network, sizes);
    let aux_opt_state = Adam::default().init(&agent.aux_critic);
    TrainState { opt_state: Adam::default().init(&agent), aux_opt_state, agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations, in the environment's dtype
    pub first: T,          // bool[N]: true where `obs` is the first of an episode
    pub reward_stats: NormalizeRewardState<T>, // running statistics of the discounted returns
    pub key: Key<T>,
}

/// Normalization of rewards.
fn reward_normalizer(args: &Args) -> NormalizeReward {
    NormalizeReward { gamma: args.gamma, ..NormalizeReward::default() }
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,      // [T, N, ..]: observations, in the environment's dtype
    pub actions: T,  // i32[T, N]
    pub logprobs: T, // f32[T, N]: log probabilities of the actions
    pub values: T,   // f32[T, N]: values of the observations
    pub rewards: T,  // f32[T, N]
    pub dones: T,    // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T, // [N, ..]: observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 6], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, first, mut reward_stats, key } = env_state;
    let (key, action_key) = key.split();
    let (policy, value) = agent.policy_and_value(obs);
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let (handle, step) = envs.step(handle, action);
    let mut reward = step.reward;
    if args.normalize_reward {
        // The last reward of an episode is part of its return.
        (reward, reward_stats) = reward_normalizer(args).step(reward, first, reward_stats);
    }
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        let value = |obs| agent.policy_and_value(obs).1;
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let done = step.done();
    let transition = [obs, action, logprob, value, reward, done.to(DType::F32)];
    let env_state = EnvState { handle, obs: step.obs, first: done, reward_stats, key };
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
    pub obs: T,        // [B, ..]: observations, in the environment's dtype
    pub actions: T,    // i32[B]
    pub logprobs: T,   // f32[B]: log probabilities under the policy that acted
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
    pub values: T,     // f32[B]: values at the time of the rollout
}

/// Returns the samples of a rollout and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, actions, logprobs, values, rewards, dones, next_obs } = rollout;
    let (_, next_value) = agent.policy_and_value(next_obs); // f32[N]
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let samples = Samples { obs, actions, logprobs, advantages, returns, values };
    let mut samples = merge_time_and_env(samples);
    if args.adv_norm_fullbatch {
        let ddof = usize::from(args.batch_size() > 1); // PyTorch's std; 0 for one sample
        let advantages = samples.advantages;
        samples.advantages =
            (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    (samples, explained)
}

// --------------------------------------------------------------------------------- policy phase

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

    let unclipped = -batch.advantages * ratio;
    let clipped = -batch.advantages * ratio.clip(1.0 - clip, 1.0 + clip);
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

/// Takes one gradient step on `loss`. Only with `auxiliary`, in the auxiliary phase, `aux_critic` and
/// its moments change: PyTorch's Adam skips parameters without a gradient and counts the steps of
/// each parameter.
pub fn gradient_step<M: Tree<Tensor>>(
    train_state: TrainState<Tensor>,
    loss: impl Fn(&Agent<Tensor>) -> (Tensor, M),
    (learning_rate, auxiliary): (Tensor, bool),
    args: &Args,
) -> (TrainState<Tensor>, M) {
    let TrainState { agent, opt_state, mut aux_opt_state } = train_state;
    let ((_, metrics), grads) = value_and_grad(|agent: Agent<Tensor>| loss(&agent))(agent.clone());
    let mut grads = clip_grad_norm(grads, args.max_grad_norm);
    let zero_grads = tree::map(grads.aux_critic.clone(), zeros_like);
    let aux_grads = std::mem::replace(&mut grads.aux_critic, zero_grads);
    let adam = Adam { eps: 1e-8, ..Adam::default() }.with_learning_rate(learning_rate);
    let (mut agent, opt_state) = adam.step(agent, grads, opt_state);
    if auxiliary {
        (agent.aux_critic, aux_opt_state) = adam.step(agent.aux_critic, aux_grads, aux_opt_state);
    }
    (TrainState { agent, opt_state, aux_opt_state }, metrics)
}

/// Divides `size` indices into minibatches, each epoch in a random order of its own:
/// `i32[epochs * num_minibatches, size / num_minibatches]`.
fn minibatch_indices(
    key: Key<Tensor>,
    epochs: usize,
    num_minibatches: usize,
    size: usize,
) -> Tensor {
    let keys = key.split_vec(epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, size)).collect();
    stack(&orders, 0).reshape([epochs * num_minibatches, size / num_minibatches])
}

/// Takes `num_minibatches` gradient steps in each of `e_policy` epochs. Returns the metrics of the last
/// gradient step, with the mean `clipfrac` of all.
fn run_epochs(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let indices = minibatch_indices(key, args.e_policy, args.num_minibatches, args.batch_size());
    let step = |train_state, indices| {
        let batch = gather_minibatch(samples, indices);
        let loss = |agent: &Agent<Tensor>| ppo_loss(agent, &batch, args);
        gradient_step(train_state, loss, (learning_rate, false), args)
    };
    let (train_state, metrics) = scan(step, train_state, indices);
    let last = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
    (train_state, Metrics { clipfrac: metrics.clipfrac.mean(..), ..last })
}

/// Metrics of a policy phase; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct UpdateMetrics<T> {
    pub last: Metrics<T>,      // metrics of the last gradient step
    pub explained_variance: T, // explained variance of the values before the update
}

// ------------------------------------------------------------------------------ auxiliary phase

/// Samples of one auxiliary gradient step: whole single-environment rollouts, flattened to B
/// samples.
#[derive(Debug, Clone, Copy, Tree)]
pub struct AuxSamples<T> {
    pub obs: T,     // [B, ..]: observations, in the environment's dtype
    pub returns: T, // f32[B]
    pub logits: T,  // f32[B, actions]: logits of the policy before the phase
}

/// Metrics of an auxiliary gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct AuxMetrics<T> {
    pub kl_loss: T,         // `mean(KL(old, new))`
    pub aux_value_loss: T,  // `mean((v_aux - R)^2) / 2`
    pub real_value_loss: T, // `mean((v - R)^2) / 2`
}

/// Computes the loss of the auxiliary phase: the auxiliary value loss, the KL divergence from the
/// policy before the phase, and the value loss.
pub fn aux_loss(
    agent: &Agent<Tensor>,
    batch: &AuxSamples<Tensor>,
    args: &Args,
) -> (Tensor, AuxMetrics<Tensor>) {
    let features = agent.trunk.apply(batch.obs);
    let policy = Categorical::new(agent.actor.apply(features));
    let kl_loss = Categorical::new(batch.logits).kl(&policy).mean(..);
    let value_loss = |head: &Dense<Tensor>, features: Tensor| {
        0.5 * (head.apply(features).squeeze(-1) - batch.returns).square().mean(..)
    };
    let aux_value_loss = value_loss(&agent.aux_critic, features);
    let real_value_loss = value_loss(&agent.critic, features.stop_gradient());
    let loss = aux_value_loss + args.beta_clone * kl_loss + real_value_loss;
    (loss, AuxMetrics { kl_loss, aux_value_loss, real_value_loss })
}

/// Takes one auxiliary gradient step for each row of `indices: i32[steps, num_aux_rollouts]`, which
/// are single-environment rollouts. Returns the metrics of the last gradient step.
pub fn run_aux_epochs(
    train_state: TrainState<Tensor>,
    storage: &AuxStorage<Tensor>,
    indices: Tensor,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, AuxMetrics<Tensor>) {
    // Single-environment rollouts, `[n_iteration N, T, ..]`.
    let rollouts = |x: Tensor| merge_time_and_env(x.swapaxes(1, 2));
    let (obs, returns) = (rollouts(storage.obs), rollouts(storage.returns));
    let old_agent = train_state.agent.clone();
    let ((), logits) = scan(|(), obs: Tensor| ((), old_agent.logits(obs)), (), obs);
    let step = |train_state, indices: Tensor| {
        let batch = gather_minibatch(AuxSamples { obs, returns, logits }, indices);
        let batch = merge_time_and_env(batch);
        gradient_step(
            train_state,
            |agent| aux_loss(agent, &batch, args),
            (learning_rate, true),
            args,
        )
    };
    let (train_state, metrics) = scan(step, train_state, indices);
    (train_state, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
    pub storage: AuxStorage<T>, // rollouts of the phase so far
}

/// Initializes the state with the first observations; compiled as one program.
fn init_runner(
    envs: &XlaPool,
    handle: Handle<Tensor>,
    key: Key<Tensor>,
    sizes: &Sizes,
    args: &Args,
) -> RunnerState<Tensor> {
    let (key, agent_key) = key.split();
    let (handle, reset) = envs.reset(handle);
    let storage = AuxStorage::zeros(args.n_iteration, args.num_steps, reset.obs);
    let reward_stats = reward_normalizer(args).init([args.num_envs], DType::F64);
    let train_state = init_train_state(agent_key, args.network, sizes);
    let env_state = EnvState { handle, obs: reset.obs, first: reset.first, reward_stats, key };
    RunnerState { train_state, env_state, storage }
}

/// Runs the policy phase: collects rollout `index: i32[]` of the phase, stores it, and updates on it;
/// compiled as one program.
fn policy_phase(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    index: Tensor,
    learning_rate: Tensor,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, UpdateMetrics<Tensor>) {
    let RunnerState { train_state, env_state, storage } = state;
    let agent = &train_state.agent;
    let (mut env_state, rollout, episodes) = collect_rollout(envs, agent, env_state, args);
    let (samples, explained_variance) = make_samples(agent, rollout, args);
    let storage = storage.store(samples.obs, samples.returns, index);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (train_state, last) = run_epochs(train_state, samples, shuffle_key, learning_rate, args);
    let metrics = UpdateMetrics { last, explained_variance };
    (RunnerState { train_state, env_state, storage }, episodes, metrics)
}

/// Runs the auxiliary phase: `e_auxiliary` epochs over the rollouts of a phase; compiled as one
/// program.
fn auxiliary_phase(
    state: RunnerState<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (RunnerState<Tensor>, AuxMetrics<Tensor>) {
    let RunnerState { train_state, mut env_state, storage } = state;
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let rollouts = args.num_envs * args.n_iteration;
    let num_minibatches = rollouts / args.num_aux_rollouts;
    let indices = minibatch_indices(shuffle_key, args.e_auxiliary, num_minibatches, rollouts);
    let (train_state, metrics) =
        run_aux_epochs(train_state, &storage, indices, learning_rate, args);
    (RunnerState { train_state, env_state, storage }, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key)| init_runner(&envs, handle, key, &sizes, args));
    let policy = trainer
        .jit("policy_phase", |(state, index, rate)| policy_phase(&envs, state, index, rate, args));
    let auxiliary =
        trainer.jit("auxiliary_phase", |(state, rate)| auxiliary_phase(state, rate, args));

    // Only whole phases are run.
    trainer.end_at(args.num_iterations() * args.batch_size() as u64);
    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let index = (trainer.iteration() % args.n_iteration as u64) as i32;
        let (next_state, episodes, metrics) =
            policy.call((state, Array::from(index), rate.clone()))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        if index + 1 == args.n_iteration as i32 {
            let (next_state, metrics) = auxiliary.call((state, rate))?;
            state = next_state;
            log_aux_metrics(&mut trainer, &metrics)?;
        }
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Logs the metrics of an auxiliary phase.
fn log_aux_metrics(trainer: &mut Trainer<'_, Args>, metrics: &AuxMetrics<Array>) -> Result<()> {
    trainer.log(&[
        ("losses/aux/kl_loss", metrics.kl_loss.item::<f32>()?.into()),
        ("losses/aux/aux_value_loss", metrics.aux_value_loss.item::<f32>()?.into()),
        ("losses/aux/real_value_loss", metrics.real_value_loss.item::<f32>()?.into()),
    ])
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::images(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, args.network, &sizes))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy_and_value(obs).0)
    }))
}
