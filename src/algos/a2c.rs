//! Advantage actor-critic (A2C) for discrete actions and vector observations: the synchronous form
//! of A3C (Mnih et al. 2016) without threads, as Stable-Baselines3's `A2C`. A rollout and the update
//! on it are one iteration of a compiled loop.
//!
//! Differences from Stable-Baselines3 and from PPO are listed in `docs/algos/a2c.md`.

use crate::distributions::Categorical;
use crate::nn::{Activation, Mlp, init::orthogonal};
use crate::optim::{RmsProp, RmsPropState};
use crate::rl::prelude::*;

// ------------------------------------------------------------------------------------- settings

// The defaults are those of Stable-Baselines3; `num_envs` is that of its zoo for CartPole.
/// A2C for discrete actions and vector observations
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
    #[arg(long, default_value = "7e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "8")]
    pub num_envs: usize,
    /// The number of steps to run in each environment per update
    #[arg(long, default_value = "5")]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value = "false")]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE); 1 gives n-step returns
    #[arg(long, default_value = "1.0")]
    pub gae_lambda: f64,
    /// Normalize advantages over each batch
    #[arg(long, default_value = "false")]
    pub norm_adv: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value = "0.0")]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value = "0.5")]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value = "0.5")]
    pub max_grad_norm: f64,
    /// The decay rate (alpha) of RMSProp's running mean of squared gradients
    #[arg(long, default_value = "0.99")]
    pub rms_prop_alpha: f64,
    /// The epsilon that RMSProp adds to the root of the mean squared gradient
    #[arg(long, default_value = "1e-5")]
    pub rms_prop_eps: f64,
    /// Bootstrap at time limits with the value of the last observation
    #[arg(long, default_value = "true")]
    pub bootstrap_truncated: bool,
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Total number of updates; remaining timesteps are dropped, as in CleanRL.
    fn num_iterations(&self) -> u64 {
        self.total_timesteps / self.batch_size() as u64
    }

    /// Number of updates in one call of the compiled program: about 2000 timesteps.
    fn updates_per_call(&self) -> usize {
        2000usize.div_ceil(self.batch_size()).min(self.num_iterations() as usize)
    }

    fn optimizer(&self) -> RmsProp {
        RmsProp {
            learning_rate: self.learning_rate,
            decay: self.rms_prop_alpha,
            eps: self.rms_prop_eps,
            eps_in_sqrt: false,
            ..RmsProp::default()
        }
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, 1, self.total_timesteps)
    }
}

registered_algorithm!(Args, "a2c", VECTORS, Args::check, train, policy);

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
    pub opt_state: RmsPropState<Agent<T>>,
    pub num_updates: T, // i32[]: number of updates so far
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes.obs_size(), sizes.num_actions);
    let (opt_state, num_updates) = (args.optimizer().init(&agent), constant(0i32));
    TrainState { agent, opt_state, num_updates }
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
    let rollout = Rollout { obs, actions, rewards, dones, next_obs: env_state.obs };
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
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
}

/// Returns the samples of a rollout, from its values `f32[T, N]`, and the explained variance of the
/// values, `1 - var(R - v) / var(R)`.
pub fn make_samples(
    rollout: Rollout<Tensor>,
    values: Tensor,
    next_value: Tensor,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, actions, rewards, dones, .. } = rollout;
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let samples = Samples { obs, actions, advantages, returns };
    (merge_time_and_env(samples), explained)
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of an update; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub value_loss: T,
    pub policy_loss: T,
    pub entropy: T,            // mean entropy of the policy
    pub explained_variance: T, // explained variance of the values before the update
}

/// Computes A2C's loss over a batch, and its parts: policy loss, value loss and entropy.
pub fn a2c_loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, [Tensor; 3]) {
    let policy = agent.policy(batch.obs);

    let mut advantages = batch.advantages;
    if args.norm_adv {
        let ddof = usize::from(advantages.numel() > 1); // PyTorch's std; 0 for one sample
        advantages = (advantages - advantages.mean(..)) / (advantages.std_ddof(.., ddof) + 1e-8);
    }
    let policy_loss = -(advantages * policy.log_prob(batch.actions)).mean(..);

    let value_loss = (agent.value(batch.obs) - batch.returns).square().mean(..);

    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, [policy_loss, value_loss, entropy])
}

// --------------------------------------------------------------------------------------- update

/// Returns the learning rate of the next update: `f32[]`.
fn learning_rate(num_updates: Tensor, args: &Args) -> Tensor {
    let mut remaining = constant(1.0f32);
    if args.anneal_lr {
        remaining = 1.0 - num_updates.to(DType::F32) / args.num_iterations() as f64;
    }
    args.learning_rate * remaining
}

/// Takes one gradient step on all samples of a rollout.
pub fn update(
    train_state: TrainState<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { agent, opt_state, num_updates } = train_state;
    // The agent has not changed since the rollout: its values are computed here in one batch
    // instead of at each step.
    let values = agent.value(rollout.obs); // f32[T, N]
    let next_value = agent.value(rollout.next_obs); // f32[N]
    let (batch, explained_variance) = make_samples(rollout, values, next_value, args);
    let ((_, [policy_loss, value_loss, entropy]), grads) =
        value_and_grad(|agent: Agent<Tensor>| a2c_loss(&agent, &batch, args))(agent.clone());
    let grads = clip_grad_norm(grads, args.max_grad_norm);
    let rms_prop = args.optimizer().with_learning_rate(learning_rate(num_updates, args));
    let (agent, opt_state) = rms_prop.step(agent, grads, opt_state);
    let metrics = Metrics { value_loss, policy_loss, entropy, explained_variance };
    (TrainState { agent, opt_state, num_updates: num_updates + 1 }, metrics)
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub env_state: EnvState<T>,
}

/// Collects a rollout and updates on it.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    args: &Args,
) -> (RunnerState<Tensor>, (EpisodeStats<Tensor>, Metrics<Tensor>)) {
    let RunnerState { train_state, env_state } = state;
    let (env_state, rollout, episodes) = collect_rollout(envs, &train_state.agent, env_state, args);
    let (train_state, metrics) = update(train_state, rollout, args);
    (RunnerState { train_state, env_state }, (episodes, metrics))
}

/// Runs `updates_per_call` iterations; compiled as one program.
fn train_iterations(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Metrics<Tensor>) {
    let iteration = |state, ()| train_iteration(envs, state, args);
    let count = ScanOptions::length(args.updates_per_call());
    let (state, (episodes, metrics)) = scan_with(iteration, state, (), count);
    (state, episodes, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::discrete(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = if args.bootstrap_truncated { envs.with_final_obs()? } else { envs };
    let mut trainer = Trainer::start(args, (args.updates_per_call() * args.batch_size()) as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let train_state = init_train_state(agent_key, &sizes, args);
        let (handle, first) = envs.reset(handle);
        let env_state = EnvState { handle, obs: first.obs.to(DType::F32), key };
        RunnerState { train_state, env_state }
    });
    let iterations = trainer.jit("iterations", |state| train_iterations(&envs, state, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let (next_state, episodes, metrics) = iterations.call(state)?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the action.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::discrete(args, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, &sizes, args))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_categorical(agent.policy(obs.to(DType::F32)))
    }))
}
