//! Proximal policy optimization (PPO) with a gated recurrent unit (GRU) and the environment inside the
//! compiled program: PureJaxRL's `ppo_rnn.py` (Lu et al. 2022) on traced environments, the Anakin
//! architecture (Hessel et al. 2021). Rollouts and updates are one loop in one program, which can
//! train many agents. `--rnn` selects another recurrent cell.
//!
//! Differences from PureJaxRL, with reasons, are listed in `docs/algos/ppo_anakin_gru.md`.

use crate::distributions::{ActionDistribution, Categorical, DiagNormal};
use crate::envs::traced::EpisodeState;
use crate::envs::{ActionKind, EnvPool, PoolOptions};
use crate::nn::init::orthogonal;
use crate::nn::normalize::RunningMeanStd;
use crate::nn::{Dense, RecurrentCell, RecurrentState, RnnKind, reset_carry};
use crate::random;
use crate::rl::anakin::{
    AgentOptions, AnakinArgs, AnakinEnv, Normalizers, Report, argmax, clip_by_norm,
    evaluated_agent, load_agents, normalize, permutations, select_agent, traced_args, train_agents,
    with_sweeps_of,
};
use crate::rl::prelude::*;
use crate::rl::settings::flags::minibatches_of_envs;
use crate::rl::sweep::Scalar;
use crate::trace::jacobian::ravel;
use crate::trace::ops::{IndexMode, concatenate, full};

// ------------------------------------------------------------------------------------- settings

// The defaults are those of PureJaxRL.
/// PPO with a GRU or another RNN, environments included, as one compiled program
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
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment, for each agent
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The recurrent cell
    #[arg(long, value_enum, default_value_t = RnnKind::Gru)]
    pub rnn: RnnKind,
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

    /// Number of environments per gradient step.
    fn minibatch_envs(&self) -> usize {
        self.num_envs / self.num_minibatches
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        ensure(
            i32::try_from(self.num_updates()).is_ok(),
            "total-timesteps",
            self.total_timesteps,
            &format!("fewer than 2^31 batches of num-envs * num-steps = {}", self.batch_size()),
        )?;
        minibatches_of_envs(self.num_envs, self.num_minibatches)?;
        self.agents.check()
    }
}

registered_algorithm!(Args, "ppo_anakin_gru", TRACED, Args::check, train, policy);

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

/// Number of units of each layer.
const UNITS: usize = 128;

/// Actor-critic network: an embedding of the observations, a GRU or the cell of `--rnn`, and a policy
/// and a value head with a hidden layer each; all layers have 128 units.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub embedding: Dense<T>,   // layer from observations to 128 units
    pub gru: RecurrentCell<T>, // recurrent cell with 128 units
    pub actor: [Dense<T>; 2],  // network from the cell to action logits or action means
    pub critic: [Dense<T>; 2], // network from the cell to values
    pub log_std: Option<T>,    // log standard deviations of continuous actions
}

/// Initializes a hidden layer, orthogonal with gain 2, and an output layer of the given gain.
fn head(key: Key<Tensor>, outputs: usize, gain: f64) -> [Dense<Tensor>; 2] {
    let (hidden, head) = key.split();
    [
        Dense::init(hidden, UNITS, UNITS, orthogonal(2.0)),
        Dense::init(head, UNITS, outputs, orthogonal(gain)),
    ]
}

/// Applies the layers to outputs of the cell, `f32[.., 128]`, giving `f32[.., outputs]`.
fn forward(layers: &[Dense<Tensor>; 2], hidden: Tensor) -> Tensor {
    layers[1].apply(layers[0].apply(hidden).relu())
}

/// Computes [`forward`] of a batch `f32[B, 128]` for the update.
fn forward_batch(layers: &[Dense<Tensor>; 2], hidden: Tensor) -> Tensor {
    layers[1].apply_batch(layers[0].apply_batch(hidden).relu())
}

impl Agent<Tensor> {
    /// Initializes an agent with a cell of this kind for observations of size `obs_size`.
    pub fn init(
        key: Key<Tensor>,
        rnn: RnnKind,
        obs_size: usize,
        action_kind: ActionKind,
    ) -> Agent<Tensor> {
        let [embedding, gru, actor, critic] = key.split_n();
        Agent {
            embedding: Dense::init(embedding, obs_size, UNITS, orthogonal(2.0f64.sqrt())),
            gru: RecurrentCell::init(rnn, gru, UNITS, UNITS),
            actor: head(actor, action_kind.num_outputs(), 0.01),
            critic: head(critic, 1, 1.0),
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

    /// Takes one step of the cell on `obs: [N, obs_size]`; returns its next state and its outputs
    /// `f32[N, 128]`. The state is reset first where `episode_start: bool[N]`, that is, where the
    /// observation is the first of an episode.
    pub fn gru_step(
        &self,
        obs: Tensor,
        episode_start: Tensor,
        hidden: RecurrentState<Tensor>,
    ) -> (RecurrentState<Tensor>, Tensor) {
        let embedded = self.embedding.apply(obs.to(DType::F32)).relu();
        self.gru.advance(self.gru.project(embedded), reset_carry(episode_start, hidden))
    }

    /// Unrolls the cell over T steps of n environments; returns its outputs `f32[T n, 128]`.
    fn unroll(&self, batch: &Samples<Tensor>) -> Tensor {
        let obs = merge_time_and_env(batch.obs).to(DType::F32);
        let inputs = self.gru.project(self.embedding.apply_batch(obs).relu()); // f32[T n, ..]
        let [steps, envs] = [batch.obs.dim(0), batch.obs.dim(1)];
        let inputs = inputs.reshape([steps, envs, inputs.dim(-1)]);
        let starts = Some(batch.episode_starts);
        merge_time_and_env(self.gru.unroll(inputs, starts, batch.initial_hidden))
    }

    /// Returns the values `f32[..]` for outputs `f32[.., 128]` of the cell.
    pub fn value(&self, output: Tensor) -> Tensor {
        forward(&self.critic, output).squeeze(-1)
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
    pub episode_start: T, // bool[N]: true where `obs` is the first of an episode
    pub hidden: RecurrentState<T>, // state of the cell before `obs`
    pub state: EpisodeState<T, Vec<T>>, // state of the environments, with leaves `[N, ..]`
    /// Running statistics, if observations and rewards are normalized.
    pub normalizers: Option<Normalizers<T>>,
}

/// Rollout of T steps of N environments; a single step has no axis T.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T, // [T, N, obs_size]: observations, in the environment's dtype or normalized
    pub episode_starts: T, // bool[T, N]: true where the observation is the first of an episode
    pub outputs: T, // f32[T, N, outputs]: outputs of the actor
    pub values: T, // f32[T, N]: values of the observations
    pub actions: T, // i32[T, N] or f32[T, N, outputs]: actions
    pub rewards: T, // f32[T, N]
    pub dones: T, // bool[T, N]: true where the step ended an episode
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
    let EnvState { obs, episode_start, hidden, state, mut normalizers } = env_state;
    let (hidden, output) = agent.gru_step(obs, episode_start, hidden);
    let outputs = forward(&agent.actor, output);
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
        // The final observation continues from the episode's state of the cell.
        let value = |obs| agent.value(agent.gru_step(obs, zeros_like(dones), hidden).1);
        rewards = bootstrap_truncated(rewards, truncated, final_obs, args.gamma, value);
    }
    let transition = Rollout {
        obs,
        episode_starts: episode_start,
        outputs,
        values: agent.value(output),
        actions,
        rewards,
        dones,
        episode_returns: where_(dones, step.episode_return, 0.0),
        episode_lengths: where_(dones, step.episode_length, 0),
    };
    let env_state =
        EnvState { obs: next_obs, episode_start: dones, hidden, state: step.episode, normalizers };
    (env_state, transition)
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
    let num_outputs = agent.actor[1].w.dim(-1);
    let [noise, starts, keys] = key.split_n();
    let noise = agent.noise(noise, [steps, envs, num_outputs]);
    let by_step = |x: Tensor| x.reshape([&[steps, envs][..], &x.shape()[1..]].concat());
    let starts = vmap(|key| env.start(key))(starts.split_batch(steps * envs));
    let starts = tree::map(starts, by_step);
    let keys = tree::map(keys.split_batch(steps * envs), by_step);

    let step = |env_state, noise| env_step(env, agent, env_state, noise, args);
    scan(step, env_state, (noise, starts, keys))
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

/// Training samples made from a rollout: T steps of n environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub initial_hidden: RecurrentState<T>, // state of the cell before the first step
    pub obs: T, // [T, n, obs_size]: observations, in the environment's dtype or normalized
    pub episode_starts: T, // bool[T, n]: true where the observation is the first of an episode
    pub actions: T, // i32[T, n] or f32[T, n, outputs]: actions
    pub logprobs: T, // f32[T, n]: log probabilities under the policy that acted
    pub advantages: T, // f32[T, n]
    pub returns: T, // f32[T, n]
    pub values: T, // f32[T, n]: values at the time of the rollout
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

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &TracedArgs,
) -> (Tensor, Metrics<Tensor>) {
    let hidden = agent.unroll(batch); // f32[T n, 128]
    let Samples { actions, logprobs, advantages, returns, values, .. } = *batch;
    let [actions, logprobs, mut advantages, returns, values] =
        merge_time_and_env([actions, logprobs, advantages, returns, values]);
    let policy = agent.policy(forward_batch(&agent.actor, hidden));
    let logratio = policy.log_prob(actions) - logprobs; // f32[T n]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    if args.norm_adv {
        advantages = (advantages - advantages.mean(..)) / (advantages.std(..) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped);

    let value = forward_batch(&agent.critic, hidden).squeeze(-1); // f32[T n]
    let mut value_error = (value - returns).square();
    if args.clip_vloss {
        let v_clipped = values + (value - values).clip(-clip, clip);
        value_error = value_error.maximum((v_clipped - returns).square());
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
        value_and_grad(|agent: Agent<Tensor>| ppo_loss(&agent, batch, args))(unravel(params));
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

/// Gathers the samples of these environments, `i32[n]`.
fn gather_envs(samples: Samples<Tensor>, envs: Tensor) -> Samples<Tensor> {
    let of_axis = |axis| move |x: Tensor| x.take_mode(envs, axis, IndexMode::Clip);
    let initial_hidden = tree::map(samples.initial_hidden, of_axis(0));
    Samples { initial_hidden, ..tree::map(samples, of_axis(1)) }
}

/// State of the cell before a rollout, the rollout, and the state of the environments after it.
type UpdateData<'a> = (RecurrentState<Tensor>, Rollout<Tensor>, &'a EnvState<Tensor>);

/// Runs the whole update on a rollout: `num_minibatches` gradient steps in each of `update_epochs`
/// epochs.
pub fn update(
    train_state: FlatTrainState<Tensor>,
    unravel: &impl Fn(Tensor) -> Agent<Tensor>,
    (initial_hidden, rollout, env_state): UpdateData<'_>,
    learning_rate: Tensor,
    key: Key<Tensor>,
    args: &TracedArgs,
) -> (FlatTrainState<Tensor>, UpdateMetrics<Tensor>) {
    let agent = unravel(train_state.params);
    let EnvState { obs, episode_start, hidden, .. } = env_state;
    let (_, output) = agent.gru_step(*obs, *episode_start, *hidden);
    let next_value = agent.value(output); // f32[N]
    let logprobs = agent.policy(rollout.outputs).log_prob(rollout.actions);
    let Rollout { obs, episode_starts, values, actions, rewards, dones, .. } = rollout;
    let discounts = (args.gamma, args.gae_lambda);
    let (advantages, returns) = compute_gae(rewards, dones, values, next_value, discounts);
    let explained_variance = explained_variance(values, returns);

    let samples = Samples {
        initial_hidden,
        obs,
        episode_starts,
        actions,
        logprobs,
        advantages,
        returns,
        values,
    };
    let minibatches = [args.update_epochs * args.num_minibatches, args.minibatch_envs()];
    let indices = permutations(key, args.update_epochs, args.num_envs).reshape(minibatches);
    let step = |train_state, indices| {
        let batch = gather_envs(samples, indices);
        gradient_step(train_state, unravel, &batch, learning_rate, args)
    };
    let (train_state, metrics) = scan(step, train_state, indices);
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
    let agent = Agent::init(agent, args.rnn, env.obs_size, env.action_kind);
    let opt_state = Adam::default().init(&agent);
    let (state, obs) = vmap(|key| env.auto_reset.reset(key))(starts.split_batch(args.num_envs));
    let mut obs = obs.reshape([args.num_envs, env.obs_size]);
    let mut normalizers = None;
    if matches!(env.action_kind, ActionKind::Continuous { .. }) && args.normalize_env {
        (obs, normalizers) = normalize::init(obs);
    }
    let train_state = TrainState { agent, opt_state };
    let episode_start = ones([args.num_envs], DType::Bool);
    let hidden = train_state.agent.gru.start(args.num_envs);
    let env_state = EnvState { obs, episode_start, hidden, state, normalizers };
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
        let initial_hidden = env_state.hidden;
        let (env_state, rollout) = collect_rollout(env, &agent, env_state, rollout_key, args);
        let mut learning_rate = args.learning_rate.like(num_updates.to(DType::F32));
        if args.anneal_lr {
            let frac = 1.0 - num_updates.to(DType::F32) / args.num_updates() as f64;
            learning_rate = learning_rate * frac;
        }
        let data = (initial_hidden, rollout, &env_state);
        let (train_state, metrics) =
            update(train_state, &unravel, data, learning_rate, shuffle_key, args);
        let Rollout { episode_returns, episode_lengths, .. } = rollout;
        let report = Report { metrics, episode_returns, episode_lengths };
        ((train_state, env_state, key, num_updates + 1), report)
    };
    let init = (FlatTrainState { params, opt_state }, env_state, key, num_updates);
    let (carry, report) = scan_with(iteration, init, (), ScanOptions::length(updates as usize));
    let (train_state, env_state, key, num_updates) = carry;
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
/// and the standard deviations, and the next state of the cell, `f32[1, B, 128]` of a GRU. If several
/// agents were trained, that of the first that did not diverge. Evaluations sample the action.
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
    let act = move |parameters: &Parameters<Tensor>, obs: Tensor, state: Tensor| {
        let (agent, stats) = select_agent(parameters.clone(), index);
        let obs = obs.flatten_from(1).to(DType::F32);
        let obs = stats.map_or(obs, |stats| normalize::apply(obs, &stats));
        let episode_start = zeros([obs.dim(0)], DType::Bool);
        let hidden = RecurrentState::unstack(state);
        let (hidden, output) = agent.gru_step(obs, episode_start, hidden);
        PolicyResults::from_distribution(agent.policy(forward(&agent.actor, output)), &spec)
            .with("next_state", hidden.stack())
    };
    Ok(Policy::recurrent(pool, [args.rnn.num_states(), UNITS], parameters, act))
}
