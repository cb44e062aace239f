//! Proximal policy optimization (PPO, Schulman et al. 2017) on Atari with EnvPool's wrappers:
//! CleanRL's `ppo_atari_envpool_xla_jax_scan.py`. A rollout is one compiled program, the update on it
//! another. With `--rollout host`, the host steps the environments (submodule `host`).
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_atari_envpool.md`.

mod host;

use std::time::Instant;

use clap::ValueEnum;

use crate::distributions::Categorical;
use crate::envs::{AtariOptions, Autoreset, EnvPool, ObsKind, PoolOptions};
use crate::nn::{Dense, Encoder, init::orthogonal};
use crate::optim::clip_by_global_norm;
use crate::random::permutation;
use crate::rl::prelude::*;

use host::HostRollout;

// ------------------------------------------------------------------------------------- settings

/// Execution mode of the environments in a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RolloutMode {
    /// Environments step inside the compiled program: a whole rollout is one call.
    Xla,
    /// Environments step on the host, between calls of the compiled policy.
    Host,
}

/// PPO on Atari games, with rollouts in the environment pool
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Step the environments in the compiled rollout (xla) or on the host (host)
    #[arg(long, value_enum, default_value_t = RolloutMode::Xla)]
    pub rollout: RolloutMode,
    /// Reset one step after the end of an episode (NEXT_STEP), as EnvPool does, and train on that step
    #[arg(long, default_value = "false")]
    pub envpool_reset: bool,
    /// The element type in which the encoder computes
    #[arg(long, value_enum, default_value_t = ComputeDtype::Float32)]
    pub compute_dtype: ComputeDtype,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "10000000")]
    pub total_timesteps: u64,
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
    /// Use a clipped loss for the value function, as OpenAI Baselines does; CleanRL's JAX variants do not
    #[arg(long, default_value = "false")]
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
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)
    }
}

registered_algorithm!(Args, "ppo_atari_envpool", FOUR_FRAMES, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: the Nature network (Mnih et al. 2015), a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub trunk: Encoder<T>, // encoder from images to 512 features
    pub actor: Dense<T>,   // layer from features to action logits
    pub critic: Dense<T>,  // layer from features to values
}

impl Agent<Tensor> {
    /// Initializes an agent for four images of 84 by 84 and `num_actions` actions.
    pub fn init(key: Key<Tensor>, num_actions: usize) -> Agent<Tensor> {
        let [a, b, c, hidden, actor, critic] = key.split_n();
        let (keys, shape) = (vec![a, b, c, hidden], [4, 84, 84].into());
        let gain = orthogonal(2.0f64.sqrt());
        Agent {
            trunk: Encoder::init_with_keys(keys, ObsKind::Image, &shape, gain),
            actor: Dense::init(actor, 512, num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, 512, 1, orthogonal(1.0)),
        }
    }

    /// Returns the policy and the values `f32[B]` at `obs: u8[B, 4, 84, 84]`.
    pub fn policy_and_value(&self, obs: Tensor) -> (Categorical<Tensor>, Tensor) {
        let features = self.trunk.apply(obs);
        let value = self.critic.apply(features).squeeze(-1);
        (Categorical::new(self.actor.apply(features)), value)
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, num_actions: usize, args: &Args) -> TrainState<Tensor> {
    let mut agent = Agent::init(key, num_actions);
    agent.trunk = agent.trunk.with_compute_dtype(args.compute_dtype.dtype());
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // u8[N, 4, 84, 84]: last observations
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,      // u8[T, N, 4, 84, 84]
    pub actions: T,  // i32[T, N]
    pub logprobs: T, // f32[T, N]: log probabilities of the actions
    pub values: T,   // f32[T, N]: values of the observations
    pub rewards: T,  // f32[T, N]
    pub dones: T,    // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T, // u8[N, 4, 84, 84]: observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 6], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let (policy, value) = agent.policy_and_value(obs);
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let (handle, step) = envs.step(handle, action);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step);
        let value = |obs| agent.policy_and_value(obs).1;
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, action, logprob, value, reward, step.done().to(DType::F32)];
    let env_state = EnvState { handle, obs: step.obs, key };
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
    pub obs: T,        // u8[B, 4, 84, 84]
    pub actions: T,    // i32[B]
    pub logprobs: T,   // f32[B]: log probabilities under the policy of the rollout
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
    pub values: T,     // f32[B]: values that the critic predicted in the rollout
}

/// Returns the samples of a rollout.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> Samples<Tensor> {
    let Rollout { obs, actions, logprobs, values, rewards, dones, next_obs } = rollout;
    let (_, next_value) = agent.policy_and_value(next_obs); // f32[N]
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    merge_time_and_env(Samples { obs, actions, logprobs, advantages, returns, values })
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Default, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T, // mean entropy of the policy
    /// Estimate `mean(-log ratio)` of the KL divergence from the policy of the rollout.
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

    let mut advantages = batch.advantages;
    if args.norm_adv {
        advantages = (advantages - advantages.mean(..)) / (advantages.std(..) + 1e-8);
    }
    let unclipped = -advantages * ratio;
    let clipped = -advantages * ratio.clip(1.0 - clip, 1.0 + clip);
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
    let grads = clip_by_global_norm(args.max_grad_norm).apply(grads);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adam.step(agent, grads, opt_state);
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
            gradient_step(train_state, &gather_minibatch(samples, indices), learning_rate, args)
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

/// Runs all epochs of an update on the samples of a rollout; compiled as one program.
fn update(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Key<Tensor>, Metrics<Tensor>) {
    let (key, shuffle_key) = key.split();
    let (train_state, metrics) = run_epochs(train_state, samples, shuffle_key, learning_rate, args);
    (train_state, key, metrics)
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
    pub shuffle_key: Key<T>, // PRNG key of the minibatches
}

/// Collects a rollout and makes samples of it; compiled as one program.
fn collect_samples(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, EpisodeStats<Tensor>, Samples<Tensor>) {
    let (env_state, rollout, episodes) = collect_rollout(envs, agent, env_state, args);
    (env_state, episodes, make_samples(agent, rollout, args))
}

/// Creates environments with episodic lives and rewards clipped to their signs, and returns them
/// with the number of actions.
fn make_pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, usize)> {
    let atari = AtariOptions { episodic_life: true, reward_clip: true, ..AtariOptions::envpool() };
    let options = PoolOptions {
        num_envs,
        num_threads: args.run.num_threads,
        seed,
        autoreset: if args.envpool_reset { Autoreset::NextStep } else { Autoreset::SameStep },
        ..PoolOptions::default()
    };
    let pool = pools::recorded_or(args, || EnvPool::atari(&args.env_id, atari, options))?;
    let sizes = Sizes::from_spec(Args::NAME, pool.spec(), &Args::ENVS)?;
    Ok((pool, sizes.num_actions))
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, num_actions) = make_pool(args, args.num_envs, args.run.seed)?;
    let (handle, mut envs) = pool.xla()?;
    if args.rollout == RolloutMode::Host {
        envs = envs.untraced();
    }
    if args.bootstrap_truncated && !args.envpool_reset {
        envs = envs.with_final_obs()?;
    }
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let [shuffle_key, agent_key, key] = key.split_n();
        let train_state = init_train_state(agent_key, num_actions, args);
        let (handle, first) = envs.reset(handle);
        let env_state = EnvState { handle, obs: first.obs, key };
        RunnerState { train_state, env_state, shuffle_key }
    });
    // Compiled at its first call, so never with --rollout host.
    let collect = trainer
        .jit("rollout", |(agent, env_state)| collect_samples(&envs, &agent, env_state, args));
    let host = HostRollout::new(&mut trainer, args);
    let update = trainer.jit("update", |(train_state, samples, key, rate)| {
        update(train_state, samples, key, rate, args)
    });

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let RunnerState { train_state, env_state, shuffle_key } = state;
        let agent = &train_state.agent;
        let (env_state, episodes, samples) = match args.rollout {
            RolloutMode::Xla => {
                let (env_state, episodes, samples) = collect.call((agent.clone(), env_state))?;
                (env_state, episodes.to_vec()?, samples)
            }
            RolloutMode::Host => host.collect_samples(&envs, agent, env_state)?,
        };
        let update_start = Instant::now();
        let (train_state, shuffle_key, metrics) =
            update.call((train_state, samples, shuffle_key, learning_rate))?;
        state = RunnerState { train_state, env_state, shuffle_key };
        trainer.record(&episodes, Some(&metrics))?;
        let learner_sps = args.batch_size() as f64 / update_start.elapsed().as_secs_f64();
        trainer.log(&[
            ("charts/avg_episodic_return", trainer.run.returns.mean().unwrap_or(0.0)),
            ("charts/SPS_learner", learner_sps.floor()),
        ])?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, num_actions) = make_pool(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, num_actions, args))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy_and_value(obs).0)
    }))
}
