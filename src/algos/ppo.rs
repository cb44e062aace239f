//! Proximal policy optimization (PPO, Schulman et al. 2017) for discrete actions and vector
//! observations: CleanRL's `ppo.py`. A rollout and the update on it are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo.md`. A struct's parameter `T` is
//! `Tensor` in compiled code and `Array` outside; in shapes, T is `num_steps` and N is `num_envs`.

use crate::distributions::Categorical;
use crate::nn::{Activation, Mlp, init::orthogonal};
use crate::random::permutation;
use crate::rl::prelude::*;

// ------------------------------------------------------------------------------------- settings

/// PPO for discrete actions and vector observations
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
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

registered_algorithm!(Args, "ppo", VECTORS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub actor: Mlp<T>,  // network from observations to action logits
    pub critic: Mlp<T>, // network from observations to values
}

/// Initializes two hidden layers, orthogonal with gain sqrt(2), and an output layer of the given
/// gain.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize, gain: f64) -> Mlp<Tensor> {
    let hidden = orthogonal(2.0f64.sqrt());
    Mlp::init_with(key, &[inputs, 64, 64, outputs], Activation::Tanh, hidden, orthogonal(gain))
}

impl Agent<Tensor> {
    /// Initializes an agent for observations of size `obs_size` and `num_actions` actions.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, num_actions, 0.01),
            critic: network(critic, obs_size, 1, 1.0),
        }
    }

    /// Returns the policy at `obs: f32[.., obs_size]`.
    pub fn policy(&self, obs: Tensor) -> Categorical<Tensor> {
        Categorical::new(self.actor.apply(obs))
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        self.critic.apply(obs).squeeze(-1)
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes.obs_size(), sizes.num_actions);
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // f32[N, obs_size]: last observations
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,      // f32[T, N, obs_size]
    pub actions: T,  // i32[T, N]
    pub rewards: T,  // f32[T, N]
    pub dones: T,    // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T, // f32[N, obs_size]: observations after the last step
}

/// Steps all environments once with sampled actions; returns the transitions of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 4], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, key } = env_state;
    let (key, action_key) = key.split();
    let action = agent.policy(obs).sample(action_key);
    let (handle, step) = envs.step(handle, action);
    let mut reward = step.reward;
    if args.bootstrap_truncated {
        let final_obs = envs.final_obs_of(&step).to(DType::F32);
        let value = |obs| agent.value(obs);
        reward = bootstrap_truncated(reward, step.truncated_only(), final_obs, args.gamma, value);
    }
    let transition = [obs, action, reward, step.done().to(DType::F32)];
    let env_state = EnvState { handle, obs: step.obs.to(DType::F32), key };
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
    let [obs, actions, rewards, dones] = transitions;
    let next_obs = env_state.obs;
    let rollout = Rollout { obs, actions, rewards, dones, next_obs };
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
    pub obs: T,        // f32[B, obs_size]
    pub actions: T,    // i32[B]
    pub logprobs: T,   // f32[B]: log probabilities under the policy that acted
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
    pub values: T,     // f32[B]: values at the time of the rollout
}

/// Returns the samples of a rollout and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(
    rollout: Rollout<Tensor>,
    logprobs: Tensor,   // f32[T, N]
    values: Tensor,     // f32[T, N]
    next_value: Tensor, // f32[N]
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, actions, rewards, dones, .. } = rollout;
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let samples = Samples { obs, actions, logprobs, advantages, returns, values };
    (merge_time_and_env(samples), explained)
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

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn ppo_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(batch.obs);
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

    let value = agent.value(batch.obs);
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
    let grads = clip_grad_norm(grads, args.max_grad_norm);
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
    // The agent has not changed since the rollout: log probabilities and values are computed here in
    // one batch, and not stored at each step.
    let agent = &train_state.agent;
    let values = agent.value(rollout.obs); // f32[T, N]
    let logprobs = agent.policy(rollout.obs).log_prob(rollout.actions); // f32[T, N]
    let next_value = agent.value(rollout.next_obs); // f32[N]
    let (samples, explained_variance) = make_samples(rollout, logprobs, values, next_value, args);
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
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, UpdateMetrics<Tensor>) {
    let RunnerState { train_state, env_state } = state;
    let (mut env_state, rollout, episodes) =
        collect_rollout(envs, &train_state.agent, env_state, args);
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (train_state, metrics) = update(train_state, rollout, shuffle_key, learning_rate, args);
    (RunnerState { train_state, env_state }, episodes, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::discrete(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let train_state = init_train_state(agent_key, &sizes);
        let (handle, first) = envs.reset(handle);
        let env_state = EnvState { handle, obs: first.obs.to(DType::F32), key };
        RunnerState { train_state, env_state }
    });
    let iteration =
        trainer.jit("iteration", |(state, rate)| train_iteration(&envs, state, rate, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let (next_state, episodes, metrics) = iteration.call((state, learning_rate))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::discrete(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, &sizes))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy(obs.to(DType::F32)))
    }))
}
