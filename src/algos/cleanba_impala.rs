//! IMPALA (Espeholt et al. 2018) on the Sebulba architecture (Hessel et al. 2021): Cleanba's
//! `cleanba_impala.py` (Huang et al. 2023).
//!
//! Actors, devices and queues are in [`rl::sebulba`](crate::rl::sebulba). Differences from Cleanba,
//! with reasons, are listed in `docs/algos/cleanba_impala.md`.

use crate::Sharded;
use crate::optim::{RmsProp, RmsPropState, apply_updates, clip_by_global_norm};
use crate::rl::prelude::*;
use crate::rl::sebulba::{
    self, Agent, Reduce, Rollout, SebulbaOptions, Sizes, TrainFunctions, UpdateConfig,
    collect_rollout,
};
use crate::trace::ops::{IndexMode, arange, concatenate, sort_by};

// ------------------------------------------------------------------------------------- settings

// The defaults are those of Cleanba.
/// IMPALA with actors and learners on many devices
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,
    /// Flags for actors, learners and their devices
    #[command(flatten)]
    #[serde(flatten)]
    pub sebulba: SebulbaOptions,
    /// Pair each action with the reward and the episode end of the previous action, as Cleanba does
    #[arg(long, default_value = "false")]
    pub parity: bool,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment, over all processes
    #[arg(long, default_value = "50000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "6e-4")]
    pub learning_rate: f64,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value = "20")]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "true")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The number of minibatches; each contains whole trajectories of some environments
    #[arg(long, default_value = "4")]
    pub num_minibatches: usize,
    /// The number of parts of a minibatch whose gradients are averaged into one step
    #[arg(long, default_value = "1")]
    pub gradient_accumulation_steps: usize,
    /// Coefficient of the entropy
    #[arg(long, default_value = "0.01")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "40.0")]
    pub max_grad_norm: f64,
    /// Bootstrap at time limits with the value of the last observation; Cleanba does not
    #[arg(long, default_value = "false")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of parts that the environments are divided into.
    fn parts(&self) -> usize {
        self.num_minibatches * self.gradient_accumulation_steps
    }

    fn check(&self) -> Result<()> {
        ensure(
            self.parts() <= self.sebulba.local_num_envs,
            "num-minibatches",
            self.num_minibatches,
            "at most --local-num-envs over --gradient-accumulation-steps: a part of a minibatch is \
             made of whole environments",
        )?;
        self.sebulba.check(self.num_steps)
    }
}

registered_algorithm!(
    Args,
    "cleanba_impala",
    ALL,
    Args::check,
    train,
    policy,
    vector_defaults = VECTOR_DEFAULTS
);

/// Defaults for environments with vector observations; Cleanba's defaults are for Atari.
const VECTOR_DEFAULTS: &[&str] = &[
    "--total-timesteps=1500000",
    "--local-num-envs=12",
    "--num-actor-threads=1",
    "--learning-rate=1e-3",
    "--vf-coef=0.25",
];

// -------------------------------------------------------------------------------------- network

/// State that gradient steps change; saved as the model. The networks of [`Agent`] depend on the
/// observations: the Nature or the IMPALA network for images, two dense layers for vectors.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: RmsPropState<Agent<T>>, // RMSProp's running mean of squared gradients
}

fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes);
    TrainState { opt_state: RMSPROP.init(&agent), agent }
}

/// RMSProp by PyTorch's formula.
const RMSPROP: RmsProp = RmsProp {
    learning_rate: 0.0,
    decay: 0.99,
    eps: 0.01,
    eps_in_sqrt: false,
    initial_scale: 0.0,
    momentum: 0.0,
};

// --------------------------------------------------------------------------------- trajectories

/// Trajectories of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Trajectories<T> {
    pub obs: T,      // [N, T + 1, ..], in the environment's dtype
    pub actions: T,  // i32[N, T] or f32[N, T, size]
    pub logprobs: T, // f32[N, T]: log probabilities under the policy that acted
    pub rewards: T,  // f32[N, T]: rewards of the actions
    pub dones: T,    // f32[N, T]: 1 where the action ended the episode
    /// `f32[N]`: 1, or 0 for an environment that only pads the minibatch; `None` without padding.
    pub weights: Option<T>,
}

/// Returns the rollout `[T, N]` to train on; with `--parity`, rewards and dones are shifted by one
/// step.
pub fn prepare(rollout: Rollout<Tensor>, args: &Args) -> Rollout<Tensor> {
    if !args.parity {
        return rollout;
    }
    let before = |first: Tensor, x: Tensor| {
        let steps = x.dim(0);
        concatenate(&[first.expand_dims(0), x.slice_axis(0, 0, steps - 1)], 0)
    };
    Rollout {
        rewards: before(rollout.last_reward, rollout.rewards),
        dones: before(rollout.last_done, rollout.dones),
        ..rollout
    }
}

/// Returns the environments of a learner that belong to part `index: i32[]` of M: positions
/// `i32[P]` on the environment axis, and their weights if some of them only pad the part.
///
/// Environment `id` belongs to part `id % M`, so that a part consists of the same environments in
/// every layout. If M does not divide a learner's share of a thread's environments, its parts
/// differ in size; each is padded to the largest size.
fn part_envs(
    env_ids: Tensor,
    share: usize,
    index: Tensor,
    parts: usize,
) -> (Tensor, Option<Tensor>) {
    let num_envs = env_ids.dim(0);
    if share.is_multiple_of(parts) {
        let first = arange(num_envs / parts, DType::I32) * parts as i32;
        return (first + index, None);
    }
    let largest = num_envs / share * share.div_ceil(parts);
    let others = (env_ids % parts as i32).ne(index).to(DType::I32);
    let (others, positions) = sort_by(others, &[arange(num_envs, DType::I32)], 0);
    let weights = 1.0 - others.slice_axis(0, 0, largest).to(DType::F32);
    (positions[0].slice_axis(0, 0, largest), Some(weights))
}

/// Returns the trajectories of part `index: i32[]` of M: every M-th environment.
fn trajectories(data: &Rollout<Tensor>, index: Tensor, args: &Args) -> Trajectories<Tensor> {
    let share = args.sebulba.local_num_envs / args.sebulba.learner_device_ids.len();
    let (chosen, weights) = part_envs(data.env_ids, share, index, args.parts());
    let take = |x: Tensor| {
        let x = x.take_mode(chosen, 1, IndexMode::Clip);
        let axes: Vec<usize> = [1, 0].into_iter().chain(2..x.rank()).collect();
        x.transpose(&axes)
    };
    let obs = concatenate(&[data.obs, data.next_obs.expand_dims(0)], 0);
    Trajectories {
        obs: take(obs),
        actions: take(data.actions),
        logprobs: take(data.logprobs),
        rewards: take(data.rewards),
        dones: take(data.dones),
        weights,
    }
}

// --------------------------------------------------------------------------------------- vtrace

/// Results of V-trace; `f32[N, T]` each.
#[derive(Debug, Clone, Copy, Tree)]
pub struct VTrace<T> {
    pub errors: T, // TD errors to add to the values
    /// Advantages of the actions for the policy gradient, weighted by min(1, ratio).
    pub pg_advantages: T,
}

/// Computes V-trace (Espeholt et al. 2018) with lambda 1 and importance ratios clipped at 1, as
/// `rlax.vtrace_td_error_and_advantage`.
///
/// ```text
/// delta_t = min(1, ratio_t) (r_t + discount_t v_{t+1} - v_t)
/// error_t = delta_t + discount_t min(1, ratio_t) error_{t+1}
/// q_t     = r_t + discount_t (v_{t+1} + error_{t+1})          error_T = 0
/// pg_t    = min(1, ratio_t) (q_t - v_t)
/// ```
///
/// `values` are `f32[N, T + 1]`, all other arguments `f32[N, T]`. No gradient flows through the
/// result.
#[track_caller]
pub fn vtrace(
    rewards: Tensor,
    discounts: Tensor,
    ratios: Tensor,
    values: Tensor,
) -> VTrace<Tensor> {
    let [rewards, discounts, ratios, values] =
        [rewards, discounts, ratios, values].map(Tensor::stop_gradient);
    let steps = rewards.dim(1);
    let weights = ratios.minimum(1.0);
    let (now, next) = (values.slice_axis(1, 0, steps), values.slice_axis(1, 1, steps + 1));
    let deltas = weights * (rewards + discounts * next - now);
    let step = |next_error: Tensor, (delta, discount, weight): (Tensor, Tensor, Tensor)| {
        let error = delta + discount * weight * next_error;
        // The action's value includes the TD error of the next step.
        (error, (error, next_error))
    };
    let by_time = |x: Tensor| x.transpose(&[1, 0]);
    let xs = (by_time(deltas), by_time(discounts), by_time(weights));
    let init = zeros_like(rewards.index_axis(1, 0));
    let (_, (errors, next_errors)) = scan_with(step, init, xs, ScanOptions::reversed());
    let q = rewards + discounts * (next + by_time(next_errors));
    VTrace { errors: by_time(errors), pg_advantages: weights * (q - now) }
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T, // negative sum of the policy's entropies, as Cleanba logs it
}

/// Computes IMPALA's loss of trajectories and its metrics. The loss is a sum over steps and
/// environments: the mean over the environments of the batch, times `num_envs`.
pub fn impala_loss(
    agent: &Agent<Tensor>,
    batch: Trajectories<Tensor>,
    num_envs: f64,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let shape = batch.obs.shape();
    let (envs, steps) = (shape[0], shape[1] - 1);
    let (policy, values) = agent.apply(merge_time_and_env(batch.obs));
    let values = values.reshape([envs, steps + 1]);
    // Policies at all observations except the last of each trajectory.
    let acted = arange(envs, DType::I32).expand_dims(1) * (steps as i32 + 1)
        + arange(steps, DType::I32).expand_dims(0);
    let policy = policy.gather(acted.ravel());
    let of_steps = |x: Tensor| x.reshape([envs, steps]);
    let logprobs = of_steps(policy.log_prob(merge_time_and_env(batch.actions)));
    let ratios = (logprobs - batch.logprobs).exp();
    let discounts = (1.0 - batch.dones) * args.gamma;
    let vtrace = vtrace(batch.rewards, discounts, ratios, values);

    let sum = |x: Tensor| {
        let sums = x.sum(1); // f32[N]
        batch.weights.map_or(sums, |weights| sums * weights).mean(..) * num_envs
    };
    let policy_loss = sum(-logprobs * vtrace.pg_advantages);
    // The target is constant; the gradient of the square flows through the values only.
    let now = values.slice_axis(1, 0, steps);
    let target = now.stop_gradient() + vtrace.errors;
    let value_loss = 0.5 * sum((target - now).square());
    let entropy = sum(of_steps(policy.entropy()));
    let loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy;
    (loss, Metrics { loss, value_loss, policy_loss, entropy: -entropy })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on minibatch `index: i32[]`, with the mean of the gradients of its parts, as
/// Cleanba's `optax.MultiSteps`.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    data: &Rollout<Tensor>,
    (index, learning_rate): (Tensor, Tensor),
    (reduce, args): (&Reduce, &Args),
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state } = train_state;
    let accumulated = args.gradient_accumulation_steps;
    let all_envs = data.env_ids.dim(0) * reduce.learners;
    let gradient = |part: Tensor| {
        let batch = trajectories(data, part, args);
        // Exact sums are scaled by the same number in every layout.
        let num_envs = match reduce.exact {
            true => all_envs as f64 / args.parts() as f64,
            false => (batch.rewards.dim(0) * reduce.learners) as f64,
        };
        let loss = |agent: Agent<Tensor>, batch| impala_loss(&agent, batch, num_envs, args);
        reduce.gradient(&agent, batch, num_envs, loss)
    };
    let (mut metrics, mut grads) = gradient(index * accumulated as i32);
    for part in 1..accumulated {
        let (last, more) = gradient(index * accumulated as i32 + part as i32);
        (metrics, grads) = (last, apply_updates(grads, more));
    }
    let grads = tree::map(grads, |x: Tensor| x / accumulated as f64);
    let grads = clip_by_global_norm(args.max_grad_norm).apply(grads);
    let rmsprop = RMSPROP.with_learning_rate(learning_rate);
    let (agent, opt_state) = rmsprop.step(agent, grads, opt_state);
    (TrainState { agent, opt_state }, metrics)
}

// ------------------------------------------------------------------------------------- training

fn train(args: &Args) -> Result<Summary> {
    let config = UpdateConfig {
        num_steps: args.num_steps,
        gradient_steps: args.num_minibatches,
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
            prepare: |state, parts, _| (state, prepare(Rollout::concatenate(parts), args)),
            gradient_step: |state, data: &Rollout<Tensor>, index, reduce: &Reduce| {
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
