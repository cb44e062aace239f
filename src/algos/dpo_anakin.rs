//! Discovered policy optimization (DPO, Lu et al. 2022) with the environment inside the program:
//! PureJaxRL's `dpo_continuous_action.py` on traced environments, as Anakin (Hessel et al. 2021).
//! Rollouts and updates are one loop in one program, which can train many agents.
//!
//! Differences from PureJaxRL, with reasons, are listed in `docs/algos/dpo_anakin.md`.

use crate::distributions::{ActionDistribution, Categorical, DiagNormal};
use crate::envs::traced::EpisodeState;
use crate::envs::{ActionKind, EnvPool, PoolOptions};
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::nn::normalize::RunningMeanStd;
use crate::random;
use crate::rl::anakin::{
    AgentOptions, AnakinArgs, AnakinEnv, Normalizers, Report, argmax, clip_by_norm,
    evaluated_agent, is_packable, load_agents, normalize, permutations, scan_packed, select_agent,
    traced_args, train_agents, with_sweeps_of,
};
use crate::rl::prelude::*;
use crate::rl::sweep::Scalar;
use crate::trace::jacobian::ravel;
use crate::trace::ops::{concatenate, full};

// ------------------------------------------------------------------------------------- settings

// The defaults are those of PureJaxRL.
/// DPO, environments included, as one compiled program
#[derive(Debug, Clone, Parser, Serialize)]
#[command(mut_args(with_sweeps_of(SWEPT)))]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Flags of the agents: seeds, sweeps, devices
    #[command(flatten)]
    #[serde(flatten)]
    pub agents: AgentOptions,

    /// The id of a traced environment, or jax:FOLDER
    #[arg(long, default_value = "Pendulum-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment, for each agent
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments of each agent
    #[arg(long, default_value = "4")]
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
    /// Alpha of the drift function, for advantages of at least 0
    #[arg(long, default_value = "2.0")]
    pub dpo_alpha: f64,
    /// Beta of the drift function, for advantages below 0
    #[arg(long, default_value = "0.6")]
    pub dpo_beta: f64,
    /// The clipping coefficient of the value function
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
    /// Normalize observations and rewards by running statistics, with continuous actions
    #[arg(long, default_value = "true")]
    pub normalize_env: bool,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// Bootstrap at time limits with the value of the last observation; PureJaxRL does not
    #[arg(long, default_value = "false")]
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

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        ensure(
            i32::try_from(self.num_updates()).is_ok(),
            "total-timesteps",
            self.total_timesteps,
            &format!("fewer than 2^31 batches of num-envs * num-steps = {}", self.batch_size()),
        )?;
        self.agents.check()
    }
}

registered_algorithm!(Args, "dpo_anakin", TRACED, Args::check, train, policy);

impl AnakinArgs for Args {
    fn agents(&self) -> &AgentOptions {
        &self.agents
    }

    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn steps_per_update(&self) -> usize {
        self.batch_size()
    }

    fn memory_flags(&self) -> String {
        format!("--num-envs {} --num-steps {}", self.num_envs, self.num_steps)
    }

    fn learning_rate(&self, num_updates: u64) -> f64 {
        let frac = 1.0 - num_updates as f64 / self.num_updates() as f64;
        self.learning_rate * if self.anneal_lr { frac } else { 1.0 }
    }
}

traced_args!(learning_rate, gamma, gae_lambda, clip_coef, ent_coef);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: [Dense<T>; 3], // network from observations to action logits or action means
    pub critic: [Dense<T>; 3], // network from observations to values
    pub log_std: Option<T>,   // log standard deviations of continuous actions
}

/// Initializes two hidden layers, orthogonal with gain sqrt(2), and an output layer of the given
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

/// Computes [`forward`] of a batch `f32[B, inputs]` for the update.
fn forward_batch(layers: &[Dense<Tensor>; 3], obs: Tensor) -> Tensor {
    let hidden = layers[0].apply_batch(obs.to(DType::F32)).tanh();
    let hidden = layers[1].apply_batch(hidden).tanh();
    layers[2].apply_batch(hidden)
}

impl Agent<Tensor> {
    /// Initializes an agent for observations of size `obs_size`.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_kind: ActionKind) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, action_kind.num_outputs(), 0.01),
            critic: network(critic, obs_size, 1, 1.0),
            log_std: match action_kind {
                ActionKind::Discrete { .. } => None,
                ActionKind::Continuous { size } => Some(zeros([size], DType::F32)),
            },
        }
    }

    /// Returns the policy for outputs `f32[.., outputs]` of the actor.
    fn policy(&self, outputs: Tensor) -> ActionDistribution {
        match self.log_std {
            None => ActionDistribution::Discrete(Categorical::new(outputs)),
            Some(log_std) => {
                ActionDistribution::Continuous(DiagNormal::new(outputs, log_std.exp()))
            }
        }
    }

    /// Draws the noise of many samples at once, `f32[.., outputs]`, for [`Agent::sample`].
    fn noise(&self, key: Key<Tensor>, shape: [usize; 3]) -> Tensor {
        match self.log_std {
            None => random::gumbel(key, shape, DType::F32),
            Some(_) => random::normal(key, shape, DType::F32),
        }
    }

    /// Samples actions from the policy: `i32[..]` or `f32[.., outputs]`.
    fn sample(&self, outputs: Tensor, noise: Tensor) -> Tensor {
        match self.log_std {
            None => argmax(outputs + noise),
            Some(log_std) => outputs + log_std.exp() * noise,
        }
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        forward(&self.critic, obs).squeeze(-1)
    }
}

/// State that gradient steps change.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Clone, Tree)]
pub struct EnvState<T> {
    pub obs: T, // [N, obs_size]: last observations, in the environment's dtype or normalized
    pub state: EpisodeState<T, Vec<T>>, // state of the environments, with leaves `[N, ..]`
    /// Running statistics, if observations and rewards are normalized.
    pub normalizers: Option<Normalizers<T>>,
}

/// Rollout of T steps of N environments; a single step has no axis T.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,     // [T, N, obs_size]: observations, in the environment's dtype or normalized
    pub outputs: T, // f32[T, N, outputs]: outputs of the actor
    pub actions: T, // i32[T, N] or f32[T, N, outputs]: actions
    pub rewards: T, // f32[T, N]
    pub dones: T,   // bool[T, N]: true where the step ended an episode
    pub episode_returns: T, // f32[T, N]: returns of the episodes that ended, 0 where none did
    pub episode_lengths: T, // i32[T, N]: lengths of the episodes that ended, 0 where none did
}

/// Random numbers of a step: the noise of the policy `f32[N, outputs]`, a state and an observation
/// after a reset for each environment, and a key for each environment.
type StepNoise<T> = (T, (Vec<T>, T), Key<T>);

/// Steps all environments once with sampled actions.
fn env_step(
    env: &AnakinEnv,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    (noise, starts, keys): StepNoise<Tensor>,
    args: &TracedArgs,
) -> (EnvState<Tensor>, Rollout<Tensor>) {
    let EnvState { obs, state, mut normalizers } = env_state;
    let outputs = forward(&agent.actor, obs);
    let actions = agent.sample(outputs, noise);
    let step = |(state, action, key, start)| env.auto_reset.step_or(state, action, key, start);
    let step = vmap(step)((state, actions, keys, starts));
    let dones = step.done();
    let mut rewards = step.reward;
    let [mut next_obs, mut final_obs] =
        [step.obs, step.final_obs].map(|x| x.reshape([args.num_envs, obs.dim(-1)]));
    if let Some(stats) = normalizers {
        let (normal, scaled, stats) = stats.step(next_obs, rewards, dones, args.gamma);
        final_obs = normalize::apply(final_obs, &stats.obs);
        (next_obs, rewards, normalizers) = (normal, scaled, Some(stats));
    }
    if args.bootstrap_truncated {
        let truncated = step.truncated & !step.terminated;
        let value = |obs| agent.value(obs);
        rewards = bootstrap_truncated(rewards, truncated, final_obs, args.gamma, value);
    }
    let transition = Rollout {
        obs,
        outputs,
        actions,
        rewards,
        dones,
        episode_returns: where_(dones, step.episode_return, 0.0),
        episode_lengths: where_(dones, step.episode_length, 0),
    };
    (EnvState { obs: next_obs, state: step.episode, normalizers }, transition)
}

/// Collects a rollout of `num_steps` steps of all environments.
///
/// All random numbers are drawn before the loop, for all steps at once: the noise of the policy,
/// the keys of the environment steps, and an initial state for each step, whether it is used or
/// not.
pub fn collect_rollout(
    env: &AnakinEnv,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    key: Key<Tensor>,
    args: &TracedArgs,
) -> (EnvState<Tensor>, Rollout<Tensor>) {
    let (steps, envs) = (args.num_steps, args.num_envs);
    let num_outputs = agent.actor[2].w.dim(-1);
    let [noise, starts, keys] = key.split_n();
    let noise = agent.noise(noise, [steps, envs, num_outputs]);
    let by_step = |x: Tensor| x.reshape([&[steps, envs][..], &x.shape()[1..]].concat());
    let starts = vmap(|key| env.start(key))(starts.split_batch(steps * envs));
    let starts = tree::map(starts, by_step);
    let keys = tree::map(keys.split_batch(steps * envs), by_step);

    let step = |env_state, noise| env_step(env, agent, env_state, noise, args);
    let packable = |x: &Tensor| is_packable(x.dtype());
    let batched = args.agents.are_batched();
    // Normalization statistics have no environment axis.
    let normalizes = env_state.normalizers.is_some();
    if batched || normalizes || !tree::leaves(&env_state).iter().all(packable) {
        return scan(step, env_state, (noise, starts, keys));
    }

    let action_type = match agent.log_std {
        None => TensorType::new(DType::I32, [envs]),
        Some(_) => TensorType::new(DType::F32, [envs, num_outputs]),
    };
    let column = |dtype| TensorType::new(dtype, [envs]);
    let outputs = vec![
        TensorType::new(DType::F32, [envs, num_outputs]),
        action_type,
        column(DType::F32),
        column(DType::Bool),
        column(DType::F32),
        column(DType::I32),
    ];
    // The observations of a step are those that the previous step returned.
    let step = |env_state, noise| {
        let (env_state, transition) = step(env_state, noise);
        (env_state, tree::leaves(&transition)[1..].to_vec())
    };
    let (env_state, obs, rest) = scan_packed(step, env_state, (noise, starts, keys), outputs);
    let [outputs, actions, rewards, dones, episode_returns, episode_lengths] = rest[..] else {
        unreachable!("six tensors are packed")
    };
    let rollout =
        Rollout { obs, outputs, actions, rewards, dones, episode_returns, episode_lengths };
    (env_state, rollout)
}

// ----------------------------------------------------------------------------------- advantages

/// Generalized advantage estimation (GAE, Schulman et al. 2016): returns advantages and returns,
/// `f32[T, N]`, for values `f32[T, N]` and `next_value: f32[N]` of the observations after the last
/// step. Truncation counts as termination, as in PureJaxRL; `--bootstrap-truncated` adds the
/// value of the final observation to the reward.
pub fn compute_gae(
    rewards: Tensor,
    dones: Tensor,
    values: Tensor,
    next_value: Tensor,
    (gamma, gae_lambda): (impl Into<Scalar>, impl Into<Scalar>),
) -> (Tensor, Tensor) {
    let (gamma, gae_lambda): (Scalar, Scalar) = (gamma.into(), gae_lambda.into());
    let nonterminal = 1.0 - dones.to(DType::F32);
    let next_values =
        concatenate(&[values.slice_axis(0, 1, values.dim(0)), next_value.expand_dims(0)], 0);
    let deltas = rewards + gamma * next_values * nonterminal - values;
    let step = |advantage: Tensor, (delta, factor): (Tensor, Tensor)| {
        let advantage = delta + factor * advantage;
        (advantage, advantage)
    };
    let options = ScanOptions { unroll: 16, ..ScanOptions::reversed() };
    let xs = (deltas, gamma * gae_lambda * nonterminal);
    let (_, advantages) = scan_with(step, zeros_like(next_value), xs, options);
    (advantages, advantages + values)
}

/// Training samples made from a rollout, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub obs: T,        // [B, obs_size]: observations, in the environment's dtype or normalized
    pub actions: T,    // i32[B] or f32[B, outputs]: actions
    pub logprobs: T,   // f32[B]: log probabilities under the policy that acted
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
    pub values: T,     // f32[B]: values by the critic before the update
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
    /// Fraction of ratios that differ from 1 by more than `clip_coef`, which PPO would clip.
    pub clipfrac: T,
}

/// Returns the drift `f32[B]` from the policy that acted: a function of the ratio where an advantage is
/// at least 0, else of its logarithm.
fn drift(ratio: Tensor, logratio: Tensor, advantages: Tensor, args: &TracedArgs) -> Tensor {
    let excess = |x: Tensor, scale: f64| (x - scale * (x / scale).tanh()).relu();
    let above = excess((ratio - 1.0) * advantages, args.dpo_alpha);
    let below = excess(logratio * advantages, args.dpo_beta);
    where_(advantages.ge(0.0), above, below)
}

/// Computes DPO's loss over a minibatch, and its metrics. Advantages must already be normalized if
/// `--norm-adv` is set.
pub fn dpo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &TracedArgs,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(forward_batch(&agent.actor, batch.obs));
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    let drift = drift(ratio, logratio, batch.advantages, args);
    let policy_loss = drift - batch.advantages * ratio;

    let value = forward_batch(&agent.critic, batch.obs).squeeze(-1); // f32[B]
    let mut value_error = (value - batch.returns).square();
    if args.clip_vloss {
        let v_clipped = batch.values + (value - batch.values).clip(-clip, clip);
        value_error = value_error.maximum((v_clipped - batch.returns).square());
    }
    let value_loss = 0.5 * value_error;

    let entropy = policy.entropy();
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let outside = (ratio - 1.0).abs().gt(clip).to(DType::F32);
    // All column means are computed as one product.
    let approx_kl = (ratio - 1.0) - logratio;
    let columns = [loss, value_loss, policy_loss, entropy, -logratio, approx_kl, outside];
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
pub struct FlatTrainState<T> {
    pub params: T,
    pub opt_state: AdamState<T, T>,
}

/// Takes one gradient step on a minibatch.
pub fn gradient_step(
    train_state: FlatTrainState<Tensor>,
    unravel: impl Fn(Tensor) -> Agent<Tensor>,
    batch: &Samples<Tensor>,
    learning_rate: Tensor,
    args: &TracedArgs,
) -> (FlatTrainState<Tensor>, Metrics<Tensor>) {
    let FlatTrainState { params, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| dpo_loss(&agent, batch, args))(unravel(params));
    let grads = clip_by_norm(ravel(&grads).0, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (params, opt_state) = adam.step(params, grads, opt_state);
    (FlatTrainState { params, opt_state }, metrics)
}

/// Metrics of an update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct UpdateMetrics<T> {
    pub last: Metrics<T>, // metrics of the last gradient step, with the mean `clipfrac` of all
    pub explained_variance: T, // explained variance of the values before the update
}

/// Runs the whole update on a rollout: `num_minibatches` gradient steps in each of `update_epochs`
/// epochs.
pub fn update(
    train_state: FlatTrainState<Tensor>,
    unravel: &impl Fn(Tensor) -> Agent<Tensor>,
    (rollout, next_obs): (Rollout<Tensor>, Tensor),
    learning_rate: Tensor,
    key: Key<Tensor>,
    args: &TracedArgs,
) -> (FlatTrainState<Tensor>, UpdateMetrics<Tensor>) {
    // The critic did not change during the rollout: its values are computed in one batch.
    let agent = unravel(train_state.params);
    let values = agent.value(rollout.obs); // f32[T, N]
    let next_value = agent.value(next_obs); // f32[N]
    let logprobs = agent.policy(rollout.outputs).log_prob(rollout.actions);
    let Rollout { obs, actions, rewards, dones, .. } = rollout;
    let discounts = (args.gamma, args.gae_lambda);
    let (advantages, returns) = compute_gae(rewards, dones, values, next_value, discounts);
    let explained_variance = explained_variance(values, returns);

    let samples = Samples { obs, actions, logprobs, advantages, returns, values };
    let samples = merge_time_and_env(samples);
    // Scalars are gathered for all epochs at once; observations, which can be large, are gathered
    // for each minibatch.
    let minibatches = [args.update_epochs * args.num_minibatches, args.minibatch_size()];
    let indices = permutations(key, args.update_epochs, args.batch_size()).reshape(minibatches);
    let Samples { obs, actions, logprobs, advantages, returns, values } = samples;
    let [actions, logprobs, mut advantages, returns, values] =
        gather_minibatch([actions, logprobs, advantages, returns, values], indices);
    if args.norm_adv {
        let mean = advantages.mean(1).expand_dims(1);
        advantages = (advantages - mean) / (advantages.std(1).expand_dims(1) + 1e-8);
    }
    let step = |train_state, (indices, columns): (Tensor, [Tensor; 5])| {
        let [actions, logprobs, advantages, returns, values] = columns;
        let obs = gather_minibatch(obs, indices);
        let batch = Samples { obs, actions, logprobs, advantages, returns, values };
        gradient_step(train_state, unravel, &batch, learning_rate, args)
    };
    let columns = [actions, logprobs, advantages, returns, values];
    let (train_state, metrics) = scan(step, train_state, (indices, columns));
    let last = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
    let last = Metrics { clipfrac: metrics.clipfrac.mean(..), ..last };
    (train_state, UpdateMetrics { last, explained_variance })
}

// ------------------------------------------------------------------------------------- training

/// State carried between calls; saved as the model.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
    pub key: Key<T>,
    pub num_updates: T, // i32[]: number of updates so far
}

/// Initializes the state of an agent.
pub fn init_runner(env: &AnakinEnv, key: Key<Tensor>, args: &Args) -> RunnerState<Tensor> {
    let [agent, starts, key] = key.split_n();
    let agent = Agent::init(agent, env.obs_size, env.action_kind);
    let opt_state = Adam::default().init(&agent);
    let (state, obs) = vmap(|key| env.auto_reset.reset(key))(starts.split_batch(args.num_envs));
    let mut obs = obs.reshape([args.num_envs, env.obs_size]);
    let mut normalizers = None;
    if matches!(env.action_kind, ActionKind::Continuous { .. }) && args.normalize_env {
        (obs, normalizers) = normalize::init(obs);
    }
    let train_state = TrainState { agent, opt_state };
    let env_state = EnvState { obs, state, normalizers };
    RunnerState { train_state, env_state, key, num_updates: constant(0i32) }
}

/// State carried between iterations, with flat parameters.
type Carry = (FlatTrainState<Tensor>, EnvState<Tensor>, Key<Tensor>, Tensor);

/// Runs `updates` iterations, each a rollout and an update, with the values `f32[]` of the sweeps.
pub fn train_iterations(
    env: &AnakinEnv,
    (swept, state): (Vec<Tensor>, RunnerState<Tensor>),
    updates: u64,
    args: &Args,
) -> (RunnerState<Tensor>, Report<Tensor, UpdateMetrics<Tensor>>) {
    let args = &TracedArgs::new(args, &swept);
    let RunnerState { train_state: TrainState { agent, opt_state }, env_state, key, num_updates } =
        state;
    let (params, unravel) = ravel(&agent);
    let AdamState { count, m, v } = opt_state;
    let opt_state = AdamState { count, m: ravel(&m).0, v: ravel(&v).0 };
    let iteration = |(train_state, env_state, key, num_updates): Carry, ()| {
        let [key, rollout_key, shuffle_key] = key.split_n();
        let agent = unravel(train_state.params);
        let (env_state, rollout) = collect_rollout(env, &agent, env_state, rollout_key, args);
        let mut learning_rate = args.learning_rate.like(num_updates.to(DType::F32));
        if args.anneal_lr {
            let frac = 1.0 - num_updates.to(DType::F32) / args.num_updates() as f64;
            learning_rate = learning_rate * frac;
        }
        let data = (rollout, env_state.obs);
        let (train_state, metrics) =
            update(train_state, &unravel, data, learning_rate, shuffle_key, args);
        let Rollout { episode_returns, episode_lengths, .. } = rollout;
        let report = Report { metrics, episode_returns, episode_lengths };
        ((train_state, env_state, key, num_updates + 1), report)
    };
    let init = (FlatTrainState { params, opt_state }, env_state, key, num_updates);
    let options = ScanOptions::length(updates as usize);
    let ((train_state, env_state, key, num_updates), report) =
        scan_with(iteration, init, (), options);
    let AdamState { count, m, v } = train_state.opt_state;
    let opt_state = AdamState { count, m: unravel(m), v: unravel(v) };
    let train_state = TrainState { agent: unravel(train_state.params), opt_state };
    (RunnerState { train_state, env_state, key, num_updates }, report)
}

fn train(args: &Args) -> Result<Summary> {
    let env = AnakinEnv::new(args)?;
    train_agents(args, &env, init_runner, train_iterations, |state| state)
}

/// Returns the policy of a saved model: the most likely action and the logits, or the mean
/// and the standard deviations. If several agents were trained, that of the first that did
/// not diverge. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let env = AnakinEnv::new(args)?;
    let RunnerState { train_state, env_state, .. } =
        load_agents(args, model, |key| init_runner(&env, key, args))?;
    let parameters = (train_state.agent, env_state.normalizers.map(|normalizers| normalizers.obs));
    let seed = args.run.eval_seed();
    let options =
        PoolOptions { num_threads: 1, seed, clip_actions: true, ..PoolOptions::default() };
    let pool = EnvPool::make(&args.env_id, options)?;
    let (spec, index) = (pool.spec().clone(), evaluated_agent(args, &parameters)?);
    type Parameters<T> = (Agent<T>, Option<RunningMeanStd<T>>);
    let act = move |parameters: &Parameters<Tensor>, obs: Tensor| {
        let (agent, stats) = select_agent(parameters.clone(), index);
        let obs = obs.flatten_from(1).to(DType::F32);
        let obs = stats.map_or(obs, |stats| normalize::apply(obs, &stats));
        PolicyResults::from_distribution(agent.policy(forward(&agent.actor, obs)), &spec)
    };
    Ok(Policy::new(pool, parameters, act))
}
