//! Proximal policy optimization (PPO, Schulman et al. 2017) with an LSTM for continuous actions and vector
//! observations: `ppo_continuous_action` with the recurrent training of CleanRL's `ppo_atari_lstm.py`. A
//! rollout, with the normalization of its observations and rewards, and the update on it are one compiled
//! program. Minibatches are whole environments, so that the LSTM is unrolled over the rollout. `--rnn`
//! selects another recurrent cell.
//!
//! Choices without a script of CleanRL are listed in `docs/algos/ppo_continuous_action_lstm.md`.

use crate::distributions::DiagNormal;
use crate::nn::normalize::{
    NormalizeObservation, NormalizeReward, NormalizeRewardState, RunningMeanStd,
};
use crate::nn::{
    Dense, LstmCell, RecurrentCell, RecurrentState, RnnKind, init::orthogonal, reset_carry,
};
use crate::random::permutation;
use crate::rl::environments::bounds::Bounds;
use crate::rl::prelude::*;
use crate::rl::settings::flags::minibatches_of_envs;
use crate::trace::ops::IndexMode;

// ------------------------------------------------------------------------------------- settings

// The defaults are those of `ppo_continuous_action`, but for the rollout and the minibatches.
/// Recurrent PPO (LSTM or another RNN) for continuous actions
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "HalfCheetah-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "1000000")]
    pub total_timesteps: u64,
    /// The recurrent cell
    #[arg(long, value_enum, default_value_t = RnnKind::Lstm)]
    pub rnn: RnnKind,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "3e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "16")]
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
    /// The number of minibatches, a divisor of the number of environments
    #[arg(long, default_value = "8")]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "10")]
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
    #[arg(long, default_value = "0.0")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
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

registered_algorithm!(Args, "ppo_continuous_action_lstm", CONTINUOUS, Args::check, train, policy);

/// Number of units of the hidden layer.
const HIDDEN_SIZE: usize = 64;
/// Number of units of the recurrent cell.
const LSTM_SIZE: usize = 128;

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: a hidden layer, an LSTM or the cell of `--rnn`, a policy head and a value
/// head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub trunk: Dense<T>,        // layer from observations to 64 features, with tanh
    pub lstm: RecurrentCell<T>, // recurrent cell from features to 128 units
    pub actor: Dense<T>,        // layer from hidden units to action means
    /// `f32[A]`: log standard deviations of the actions; independent of the observation.
    pub log_std: T,
    pub critic: Dense<T>, // layer from hidden units to values
}

/// Initializes a recurrent cell from 64 features. An LSTM has the kernels of CleanRL's.
fn init_cell(rnn: RnnKind, [input, recurrent]: [Key<Tensor>; 2]) -> RecurrentCell<Tensor> {
    if rnn != RnnKind::Lstm {
        return RecurrentCell::init(rnn, input, HIDDEN_SIZE, LSTM_SIZE);
    }
    let keys = [input, recurrent];
    RecurrentCell::Lstm(LstmCell::init_orthogonal(keys, HIDDEN_SIZE, LSTM_SIZE))
}

impl Agent<Tensor> {
    /// Initializes an agent with a cell of this kind for observations of size `obs_size` and actions
    /// of size `action_size`.
    pub fn init(
        key: Key<Tensor>,
        rnn: RnnKind,
        obs_size: usize,
        action_size: usize,
    ) -> Agent<Tensor> {
        let [trunk, input, recurrent, actor, critic] = key.split_n();
        Agent {
            trunk: Dense::init(trunk, obs_size, HIDDEN_SIZE, orthogonal(2.0f64.sqrt())),
            lstm: init_cell(rnn, [input, recurrent]),
            actor: Dense::init(actor, LSTM_SIZE, action_size, orthogonal(0.01)),
            log_std: zeros([action_size], DType::F32),
            critic: Dense::init(critic, LSTM_SIZE, 1, orthogonal(1.0)),
        }
    }

    /// Computes the part of a step that depends on `obs: f32[.., obs_size]` only.
    fn project(&self, obs: Tensor) -> Tensor {
        self.lstm.project(self.trunk.apply(obs).tanh())
    }

    /// Takes one step of the cell on `obs: f32[N, obs_size]`; returns its next state and its outputs
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

    /// Unrolls the cell over `obs: f32[T, n, obs_size]` of n environments, from the state before the
    /// first step. Returns its outputs `f32[T, n, 128]`.
    pub fn unroll(
        &self,
        obs: Tensor,
        episode_starts: Tensor,
        initial_state: RecurrentState<Tensor>,
    ) -> Tensor {
        self.lstm.unroll(self.project(obs), Some(episode_starts), initial_state)
    }

    /// Returns the policy for outputs `h: f32[.., 128]` of the cell.
    pub fn policy(&self, h: Tensor) -> DiagNormal<Tensor> {
        DiagNormal::new(self.actor.apply(h), self.log_std.exp())
    }

    /// Returns the values `f32[..]` for outputs `h: f32[.., 128]` of the cell.
    pub fn value(&self, h: Tensor) -> Tensor {
        self.critic.apply(h).squeeze(-1)
    }
}

/// State that gradient steps change.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Saved model: the train state and the running statistics.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    pub train_state: TrainState<T>,
    pub obs_stats: RunningMeanStd<T>, // running statistics of the observations
    pub reward_stats: NormalizeRewardState<T>, // running statistics of the rewards
}

/// Initializes an agent, its optimizer and the running statistics.
fn init_model(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Model<Tensor> {
    let agent = Agent::init(key, args.rnn, obs_size, action_size);
    Model {
        train_state: TrainState { opt_state: Adam::default().init(&agent), agent },
        obs_stats: RunningMeanStd::new([obs_size], DType::F64),
        reward_stats: normalize_reward(args).init([args.num_envs], DType::F64),
    }
}

// -------------------------------------------------------------------------------------- rollout

/// Normalization of observations.
const NORMALIZE_OBS: NormalizeObservation = NormalizeObservation { epsilon: 1e-8, clip: 10.0 };

/// Returns the normalization of rewards.
fn normalize_reward(args: &Args) -> NormalizeReward {
    NormalizeReward { gamma: args.gamma, ..NormalizeReward::default() }
}

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations, normalized
    pub episode_start: T,  // f32[N]: 1 where `obs` is the first of an episode
    pub lstm_state: RecurrentState<T>, // state of the cell before `obs`
    pub obs_stats: RunningMeanStd<T>, // running statistics of the observations
    pub reward_stats: NormalizeRewardState<T>, // running statistics of the rewards
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub initial_lstm_state: RecurrentState<T>, // state of the cell before the first step
    pub obs: T,                                // f32[T, N, obs_size]
    pub episode_starts: T, // f32[T, N]: 1 where the observation is the first of an episode
    pub actions: T,        // f32[T, N, A]: actions as sampled from the policy
    pub logprobs: T,       // f32[T, N]: log probabilities of the actions
    pub values: T,         // f32[T, N]: values of the observations
    pub rewards: T,        // f32[T, N]
    pub dones: T,          // f32[T, N]: 1 where the step ended its episode
    pub next_value: T,     // f32[N]: values of the observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 7], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, episode_start, lstm_state, obs_stats, reward_stats, key } =
        env_state;
    let (key, action_key) = key.split();
    let (lstm_state, h) = agent.lstm_step(obs, episode_start, lstm_state);
    let (policy, value) = (agent.policy(h), agent.value(h));
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let (handle, step) = envs.step(handle, bounds.clip(action));
    let done = step.done().to(DType::F32);
    let (next_obs, obs_stats) = NORMALIZE_OBS.step(step.obs.to(DType::F32), obs_stats);
    let (mut reward, reward_stats) =
        normalize_reward(args).step(step.reward, step.terminated, reward_stats);
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step).to(DType::F32);
        let final_obs = NORMALIZE_OBS.apply(final_obs, &obs_stats);
        // The final observation continues from the episode's state of the cell.
        let value = |obs| agent.value(agent.lstm_step(obs, zeros_like(done), lstm_state).1);
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, episode_start, action, logprob, value, reward, done];
    // `next_obs` is the first observation of the next episode where one ended.
    let env_state = EnvState {
        handle,
        obs: next_obs,
        episode_start: done,
        lstm_state,
        obs_stats,
        reward_stats,
        key,
    };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let initial_lstm_state = env_state.lstm_state;
    let step = |env_state, ()| env_step(envs, agent, env_state, bounds, args);
    let (env_state, (transitions, episodes)) =
        scan_with(step, env_state, (), ScanOptions::length(args.num_steps));
    let [obs, episode_starts, actions, logprobs, values, rewards, dones] = transitions;
    let EnvState { obs: next_obs, episode_start, lstm_state, .. } = env_state;
    let next_value = agent.value(agent.lstm_step(next_obs, episode_start, lstm_state).1);
    let rollout = Rollout {
        initial_lstm_state,
        obs,
        episode_starts,
        actions,
        logprobs,
        values,
        rewards,
        dones,
        next_value,
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
    pub obs: T,                                // f32[T, n, obs_size]
    pub episode_starts: T, // f32[T, n]: 1 where the observation is the first of an episode
    pub actions: T,        // f32[T, n, A]
    pub logprobs: T,       // f32[T, n]: log probabilities under the policy that acted
    pub advantages: T,     // f32[T, n]
    pub returns: T,        // f32[T, n]
    pub values: T,         // f32[T, n]: values at the time of the rollout
}

/// Returns the samples of a rollout, and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(rollout: Rollout<Tensor>, args: &Args) -> (Samples<Tensor>, Tensor) {
    let Rollout { initial_lstm_state, obs, episode_starts, actions, logprobs, .. } = rollout;
    let Rollout { values, rewards, dones, next_value, .. } = rollout;
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
#[derive(Debug, Clone, Copy, Default, Tree)]
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

/// Computes PPO's loss over a minibatch of B = T n steps, and its metrics.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let outputs = agent.unroll(batch.obs, batch.episode_starts, batch.initial_lstm_state);
    let Samples { actions, logprobs, advantages, returns, values, .. } = *batch;
    let [outputs, actions, logprobs, mut advantages, returns, values] =
        merge_time_and_env([outputs, actions, logprobs, advantages, returns, values]); // [B, ..]
    let policy = agent.policy(outputs);
    let logratio = policy.log_prob(actions) - logprobs; // f32[B]
    let ratio = logratio.exp();
    let clip = args.clip_coef;

    if args.norm_adv {
        let ddof = usize::from(advantages.numel() > 1); // PyTorch's std; 0 for one sample
        advantages = (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
    let policy_loss = unclipped.maximum(clipped).mean(..);

    let value = agent.value(outputs);
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
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|agent: Agent<Tensor>| ppo_loss(&agent, batch, args))(agent.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adam.step(agent, grads, opt_state);
    (TrainState { agent, opt_state }, metrics)
}

/// Returns the environment indices of the minibatches, each epoch in a random order of its own:
/// `i32[update_epochs, num_minibatches, minibatch_envs]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.num_envs)).collect();
    let minibatch_envs = args.num_envs / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs, args.num_minibatches, minibatch_envs])
}

/// Gathers the samples of these environments, `i32[n]`.
fn gather_envs(samples: Samples<Tensor>, envs: Tensor) -> Samples<Tensor> {
    let of_axis = |axis| move |x: Tensor| x.take_mode(envs, axis, IndexMode::Clip);
    let initial_lstm_state = tree::map(samples.initial_lstm_state, of_axis(0));
    Samples { initial_lstm_state, ..tree::map(samples, of_axis(1)) }
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs; stops after an epoch
/// whose last KL divergence exceeds `target_kl`. Returns the metrics of the last gradient step, with
/// the mean `clipfrac` of all.
pub fn run_epochs(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    type Carry = (TrainState<Tensor>, Metrics<Tensor>, Tensor);
    let indices = minibatch_indices(key, args);
    let target_kl = args.target_kl.unwrap_or(f64::INFINITY);
    let more_epochs = |(_, metrics, epoch): Carry| {
        epoch.lt(args.update_epochs as i32) & !metrics.approx_kl.gt(target_kl)
    };
    let run_epoch = |(train_state, previous, epoch): Carry| {
        let step = |train_state, indices| {
            gradient_step(train_state, &gather_envs(samples, indices), learning_rate, args)
        };
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

/// Runs the whole update on a rollout.
pub fn update(
    train_state: TrainState<Tensor>,
    rollout: Rollout<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, UpdateMetrics<Tensor>) {
    let (samples, explained_variance) = make_samples(rollout, args);
    let (train_state, last) = run_epochs(train_state, samples, key, learning_rate, args);
    (train_state, UpdateMetrics { last, explained_variance })
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
}

/// Collects a rollout and updates on it; compiled as one program.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning_rate: Tensor,
    bounds: &Bounds,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, UpdateMetrics<Tensor>) {
    let RunnerState { train_state, env_state } = state;
    let (mut env_state, rollout, episodes) =
        collect_rollout(envs, &train_state.agent, env_state, bounds, args);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (train_state, metrics) = update(train_state, rollout, shuffle_key, learning_rate, args);
    (RunnerState { train_state, env_state }, episodes, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, obs_size, bounds) = pools::continuous(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let Model { train_state, obs_stats, reward_stats } =
            init_model(agent_key, obs_size, bounds.size(), args);
        let (handle, first) = envs.reset(handle);
        let (obs, obs_stats) = NORMALIZE_OBS.step(first.obs.to(DType::F32), obs_stats);
        let episode_start = ones([args.num_envs], DType::F32);
        let lstm_state = train_state.agent.lstm.start(args.num_envs);
        let env_state =
            EnvState { handle, obs, episode_start, lstm_state, obs_stats, reward_stats, key };
        RunnerState { train_state, env_state }
    });
    let iteration = trainer
        .jit("iteration", |(state, rate)| train_iteration(&envs, state, rate, &bounds, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let (next_state, episodes, metrics) = iteration.call((state, learning_rate))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    let RunnerState { train_state, env_state: EnvState { obs_stats, reward_stats, .. } } = state;
    trainer.finish(&Model { train_state, obs_stats, reward_stats })
}

/// Returns the policy of a saved model: the mean within the bounds of the actions, the mean, the
/// standard deviations, and the next state of the cell, of an LSTM `f32[2, B, 128]`: c, then h.
/// Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, obs_size, bounds) = pools::continuous(args, 1, args.run.eval_seed())?;
    let init = |key| init_model(key, obs_size, bounds.size(), args);
    let Model { train_state: TrainState { agent, .. }, obs_stats, .. } = load_model(model, init)?;
    type Parameters<T> = (Agent<T>, RunningMeanStd<T>);
    let act = move |(agent, obs_stats): &Parameters<Tensor>, obs: Tensor, state: Tensor| {
        let obs = NORMALIZE_OBS.apply(obs.to(DType::F32), obs_stats);
        let episode_start = zeros([obs.dim(0)], DType::F32);
        let lstm_state = RecurrentState::unstack(state);
        let (lstm_state, h) = agent.lstm_step(obs, episode_start, lstm_state);
        PolicyResults::from_normal(agent.policy(h), Some(bounds.clone()))
            .with("next_state", lstm_state.stack())
    };
    let state = [args.rnn.num_states(), LSTM_SIZE];
    Ok(Policy::recurrent(pool, state, (agent, obs_stats), act))
}
