//! Distributed proximal policy optimization: Cleanba's `cleanba_ppo.py` (Huang et al. 2023), PPO
//! (Schulman et al. 2017) on the Sebulba architecture (Hessel et al. 2021).
//!
//! Actors, devices and queues are in [`rl::sebulba`](crate::rl::sebulba). Differences from Cleanba,
//! with reasons, are listed in `docs/algos/cleanba_ppo.md`.

use crate::optim::{apply_updates, clip_by_global_norm};
use crate::rl::prelude::*;
use crate::rl::sebulba::{
    self, Agent, Reduce, Rollout, SebulbaOptions, Sizes, TrainFunctions, UpdateConfig,
    collect_rollout, indivisible, keys_of,
};
use crate::trace::ops::{arange, concatenate};
use crate::{Sharded, random};

// ------------------------------------------------------------------------------------- settings

// The defaults are those of Cleanba.
/// PPO with actors and learners on many devices
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Flags for actors, learners and their devices
    #[command(flatten)]
    #[serde(flatten)]
    pub sebulba: SebulbaOptions,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment, over all processes
    #[arg(long, default_value = "50000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
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
    /// The number of parts of a minibatch whose gradients are averaged into one step
    #[arg(long, default_value = "1")]
    pub gradient_accumulation_steps: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value = "4")]
    pub update_epochs: usize,
    /// Normalize advantages over each minibatch
    #[arg(long, default_value = "true")]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value = "0.1")]
    pub clip_coef: f64,
    /// Coefficient of the entropy
    #[arg(long, default_value = "0.01")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// Bootstrap at time limits with the value of the last observation; Cleanba does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of parts that an epoch is divided into.
    fn parts(&self) -> usize {
        self.num_minibatches * self.gradient_accumulation_steps
    }

    fn check(&self) -> Result<()> {
        if !self.num_steps.is_multiple_of(self.parts()) {
            let of = "minibatches times gradient-accumulation-steps";
            return Err(indivisible("num-steps", self.num_steps, self.parts(), of));
        }
        self.sebulba.check(self.num_steps)?;
        ensure(
            self.clip_coef.is_finite() && self.clip_coef > 0.0,
            "clip-coef",
            self.clip_coef,
            "a number above 0",
        )
    }
}

registered_algorithm!(
    Args,
    "cleanba_ppo",
    ALL,
    Args::check,
    train,
    policy,
    vector_defaults = VECTOR_DEFAULTS
);

/// Defaults for environments with vector observations; Cleanba's defaults are for Atari.
const VECTOR_DEFAULTS: &[&str] = &[
    "--total-timesteps=1000000",
    "--local-num-envs=12",
    "--num-actor-threads=1",
    "--num-steps=32",
    "--learning-rate=2.5e-3",
    "--clip-coef=0.2",
];

// -------------------------------------------------------------------------------------- network

/// State that gradient steps change; saved as the model. The networks of [`Agent`] depend on the
/// observations: the Nature or the IMPALA network for images, two dense layers for vectors.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
    pub key: Key<T>, // PRNG key of the minibatches
}

fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let (agent_key, key) = key.split();
    let agent = Agent::init(agent_key, sizes);
    let opt_state = Adam::default().init(&agent);
    TrainState { agent, opt_state, key }
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

/// A rollout `[T, N]` prepared for the update.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Prepared<T> {
    rollout: Rollout<T>,
    /// `f32[T, N]`
    advantages: T,
    /// `f32[T, N]`
    returns: T,
    /// `i32[K M, N, T / M]`: the steps of each environment that make up each minibatch.
    minibatch_steps: T,
}

/// Computes advantages, and the steps of each minibatch. Values of the rollout are those of the
/// acting critic; the value after the last step is that of the current critic. Each minibatch takes
/// the same number of steps from every environment, in an order drawn for that environment.
pub fn prepare(
    train_state: TrainState<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Prepared<Tensor>) {
    let TrainState { agent, opt_state, key } = train_state;
    let exact = args.sebulba.deterministic;
    let next_value = Reduce::rows(exact, rollout.next_obs, |obs| agent.value(obs));
    let Rollout { rewards, dones, values, env_ids, .. } = rollout;
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let (key, shuffle_key) = key.split();
    let (parts, num_steps) = (args.parts(), args.num_steps);
    let epochs = shuffle_key.split_vec(args.update_epochs).into_iter().map(|key| {
        let permute = vmap(|key: Key<Tensor>| random::permutation(key, num_steps));
        let steps = permute(keys_of(key, env_ids));
        steps.reshape([env_ids.dim(0), parts, num_steps / parts]).transpose(&[1, 0, 2])
    });
    let minibatch_steps = concatenate(&epochs.collect::<Vec<_>>(), 0);
    let train_state = TrainState { agent, opt_state, key };
    (train_state, Prepared { rollout, advantages, returns, minibatch_steps })
}

/// Samples of N environments, B from each.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    pub obs: T,        // [N, B, ..], in the environment's dtype
    pub actions: T,    // i32[N, B] or f32[N, B, size]
    pub logprobs: T,   // f32[N, B]: log probabilities under the policy that acted
    pub advantages: T, // f32[N, B]
    pub returns: T,    // f32[N, B]
}

/// Returns the samples of minibatch `index: i32[]`.
fn minibatch(data: &Prepared<Tensor>, index: Tensor) -> Samples<Tensor> {
    let steps = gather_minibatch(data.minibatch_steps, index); // i32[N, B]
    let num_envs = steps.dim(0);
    let env = arange(num_envs, DType::I32).expand_dims(1);
    let samples = Samples {
        obs: data.rollout.obs,
        actions: data.rollout.actions,
        logprobs: data.rollout.logprobs,
        advantages: data.advantages,
        returns: data.returns,
    };
    gather_minibatch(merge_time_and_env(samples), steps * num_envs as i32 + env)
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T,   // mean entropy of the policy
    pub approx_kl: T, // `mean(ratio - 1 - log ratio)`
}

/// Computes PPO's loss over samples, and its metrics. Advantages must already be normalized.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let batch = merge_time_and_env(batch);
    let (policy, value) = agent.apply(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs;
    let ratio = logratio.exp();
    let unclipped = -batch.advantages * ratio;
    let clipped = -batch.advantages * ratio.clip(1.0 - args.clip_coef, 1.0 + args.clip_coef);
    let policy_loss = unclipped.maximum(clipped).mean(..);
    let value_loss = 0.5 * (value - batch.returns).square().mean(..);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    let approx_kl = ((ratio - 1.0) - logratio).mean(..);
    (loss, Metrics { loss, value_loss, policy_loss, entropy, approx_kl })
}

/// Normalizes advantages by their mean and standard deviation over the environments of all
/// learners.
fn normalize(advantages: Tensor, reduce: &Reduce) -> Tensor {
    let mean_of = |x: Tensor| reduce.mean(x.mean(1));
    let mean = mean_of(advantages);
    let variance = mean_of((advantages - mean).square());
    (advantages - mean) / (variance.sqrt() + 1e-8)
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on minibatch `index: i32[]`, with the mean of the gradients of its
/// parts, as Cleanba's `optax.MultiSteps`.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    data: &Prepared<Tensor>,
    (index, learning_rate): (Tensor, Tensor),
    (reduce, args): (&Reduce, &Args),
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state, key } = train_state;
    let accumulated = args.gradient_accumulation_steps;
    let gradient = |part: Tensor| {
        let mut batch = minibatch(data, part);
        if args.norm_adv {
            batch.advantages = normalize(batch.advantages, reduce);
        }
        let num_envs = batch.obs.dim(0) * reduce.learners;
        let loss = |agent: Agent<Tensor>, batch| ppo_loss(&agent, batch, args);
        reduce.gradient(&agent, batch, num_envs as f64, loss)
    };
    let (mut metrics, mut grads) = gradient(index * accumulated as i32);
    for part in 1..accumulated {
        let (last, more) = gradient(index * accumulated as i32 + part as i32);
        (metrics, grads) = (last, apply_updates(grads, more));
    }
    let grads = tree::map(grads, |x: Tensor| x / accumulated as f64);
    let grads = clip_by_global_norm(args.max_grad_norm).apply(grads);
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let (agent, opt_state) = adam.step(agent, grads, opt_state);
    (TrainState { agent, opt_state, key }, metrics)
}

// ------------------------------------------------------------------------------------- training

fn train(args: &Args) -> Result<Summary> {
    let config = UpdateConfig {
        num_steps: args.num_steps,
        gradient_steps: args.update_epochs * args.num_minibatches,
        learning_starts: 0,
        learning_rate: args.learning_rate,
        anneal_lr: args.anneal_lr,
        bootstrap_truncated: args.bootstrap_truncated.then_some(args.gamma),
    };
    sebulba::train(
        args,
        &args.sebulba,
        config,
        TrainFunctions {
            init: init_train_state,
            params: |state: &TrainState<Sharded>| state.agent.clone(),
            collect: |envs: &XlaPool, agent: &Agent<Tensor>, env_state, first_env| {
                let settings = (&args.sebulba, config);
                collect_rollout(envs, agent, env_state, first_env, settings)
            },
            prepare: |state, parts, _| prepare(state, Rollout::concatenate(parts), args),
            gradient_step: |state, data: &Prepared<Tensor>, index, reduce: &Reduce| {
                gradient_step(state, data, index, (reduce, args))
            },
            model: |state: TrainState<Array>| state,
        },
    )
}

/// Returns the policy of a saved model: the most likely action and the logits, or the mean
/// and the standard deviations. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let agent = |state: TrainState<Array>| state.agent;
    sebulba::policy(args, &args.sebulba, model, init_train_state, agent)
}
