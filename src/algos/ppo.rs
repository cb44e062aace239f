//! Proximal policy optimisation (PPO, Schulman et al. 2017) for discrete actions and vector
//! observations: CleanRL's `ppo.py` on the environment pool.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo.md`.

use std::borrow::Cow;

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{Batch, EnvPool, PoolOptions};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::optim::{Adam, AdamState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    Acted, Learner, Metrics, Report, Rollout, Samples, annealed, bootstrap_truncated_batch, epochs,
    normalize_by_sample_std, orders, policy_loss, rows, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeRecord, Evaluation, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::tree::Tree;
use crate::{Array, DType, Key, Literal, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO for discrete actions and vector observations", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 500_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 4)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 128)]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The lambda of generalized advantage estimation (GAE)
    #[arg(long, default_value_t = 0.95)]
    pub gae_lambda: f64,
    /// The number of minibatches
    #[arg(long, default_value_t = 4)]
    pub num_minibatches: usize,
    /// The number of epochs over each rollout
    #[arg(long, default_value_t = 4)]
    pub update_epochs: usize,
    /// Normalise advantages over each minibatch
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub norm_adv: bool,
    /// The surrogate clipping coefficient
    #[arg(long, default_value_t = 0.2)]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.01)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// The target KL divergence; the remaining epochs of an update are skipped once it is exceeded
    #[arg(long)]
    pub target_kl: Option<f64>,
    /// Bootstrap with the value of the final observation where a time limit truncates an episode;
    /// CleanRL treats truncation as termination
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
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

    fn check(&self) -> Result<()> {
        positive(&[("update-epochs", self.update_epochs)])?;
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        unit(&[("gamma", self.gamma), ("gae-lambda", self.gae_lambda)])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("target-kl", self.target_kl.unwrap_or(0.0)),
        ])
    }
}

algorithm!(Args, "ppo", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Actor and critic: two networks with two hidden layers of 64 units each.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Network from observations to action logits.
    pub actor: [Dense<T>; 3],
    /// Network from observations to values.
    pub critic: [Dense<T>; 3],
}

/// Initialises two hidden layers, orthogonal with gain sqrt(2), and an output layer of the given
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
    let hidden = layers[0].apply(obs).tanh();
    let hidden = layers[1].apply(hidden).tanh();
    layers[2].apply(hidden)
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of size `obs_size` and `num_actions` actions.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> Agent<Tensor> {
        let (actor, critic) = key.split();
        Agent {
            actor: network(actor, obs_size, num_actions, 0.01),
            critic: network(critic, obs_size, 1, 1.0),
        }
    }

    /// Returns the policy at `obs: f32[.., obs_size]`.
    pub fn policy(&self, obs: Tensor) -> Categorical<Tensor> {
        Categorical::new(forward(&self.actor, obs))
    }

    /// Returns the values `f32[..]` of `obs: f32[.., obs_size]`.
    pub fn value(&self, obs: Tensor) -> Tensor {
        forward(&self.critic, obs).squeeze(-1)
    }
}

/// State that an update changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub agent: Agent<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Agent<T>>,
    /// PRNG key.
    pub key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let policy = agent.policy(batch.obs);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages =
        if args.norm_adv { normalize_by_sample_std(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(agent.value(batch.obs), batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step.
pub fn minibatch_step(
    learner: Learner<Tensor, Agent<Tensor>>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (Learner<Tensor, Agent<Tensor>>, Metrics<Tensor>) {
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    learner.descend(|agent| loss(agent, &batch, args), clip, adam)
}

/// Runs the whole update, `update_epochs` times `num_minibatches` gradient steps, as one program.
/// Returns the next state and the metrics.
pub fn update(
    state: TrainState<Tensor>,
    rollout: Rollout<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Report<Tensor>) {
    let TrainState { agent, optimizer, key } = state;
    let (key, shuffle) = key.split();

    // The policy has not changed since the rollout: values and log probabilities are computed here
    // in one batch instead of being stored at each step.
    let values = agent.value(rollout.obs); // f32[T, N]
    let logprobs = agent.policy(rollout.obs).log_prob(rollout.actions);
    let next_value = agent.value(rollout.next_obs); // f32[N]
    let discounts = (args.gamma, args.gae_lambda);
    let acted = Acted { logprobs, values };
    let (samples, explained_variance) = rollout.samples(acted, next_value, discounts);

    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.batch_size());
    let step =
        |learner, indices| minibatch_step(learner, rows(samples, indices), learning_rate, args);
    let learner = Learner { agent, optimizer };
    let (learner, metrics) = epochs(learner, orders, (args.num_minibatches, args.target_kl), step);
    let Learner { agent, optimizer } = learner;
    (TrainState { agent, optimizer, key }, Report { metrics, explained_variance })
}

// -------------------------------------------------------------------------------------- rollout

/// Host memory of a rollout, filled step by step.
#[derive(Default)]
struct Storage {
    obs: Vec<f32>,
    actions: Vec<i32>,
    rewards: Vec<f32>,
    ends: Vec<f32>,
}

impl Storage {
    fn clear(&mut self) {
        self.obs.clear();
        self.actions.clear();
        self.rewards.clear();
        self.ends.clear();
    }
}

/// Returns the observations of all environments as an array `f32[N, obs_size]`.
fn obs_array(batch: &Batch, num_envs: usize) -> Array {
    let obs = f32s(batch);
    Array::from(Literal::new([num_envs, obs.len() / num_envs], &obs))
}

/// Returns the observations as `f32`, converted from `f64` if necessary.
fn f32s(batch: &Batch) -> Cow<'_, [f32]> {
    match batch.obs_dtype() {
        DType::F32 => Cow::Borrowed(batch.obs()),
        _ => Cow::Owned(batch.obs::<f64>().iter().map(|&x| x as f32).collect()),
    }
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations: the train state and the last observation.
#[derive(Debug, Tree)]
struct Running<T> {
    train: TrainState<T>,
    /// `f32[N, obs_size]`
    obs: T,
}

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Returns the sizes of observations and actions, or an error if this algorithm does not support
/// the environment's spaces.
fn sizes(pool: &EnvPool) -> Result<(usize, usize)> {
    Ok((spaces::vector("ppo", pool.spec())?, spaces::choices("ppo", pool.spec())?))
}

/// Initialises an agent and its optimiser.
fn begin(key: Key<Tensor>, (obs_size, num_actions): (usize, usize)) -> TrainState<Tensor> {
    let (key, agent) = key.split();
    let Learner { agent, optimizer } = Learner::new(Agent::init(agent, obs_size, num_actions));
    TrainState { agent, optimizer, key }
}

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let mut pool = pool(args, args.num_envs, args.run.seed)?;
    let sizes = sizes(&pool)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let mode = args.run.mode;
    let init = with_mode(mode, |key: Key<Tensor>| begin(key, sizes)).named("ppo_init");
    // The key is returned, for the next step.
    let act = with_mode(mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
        let (key, draw) = key.split();
        (agent.policy(obs).sample(draw), key)
    })
    .named("ppo_act");
    // Compiled on the first use, by --bootstrap-truncated.
    let value =
        with_mode(mode, |(agent, obs): (Agent<Tensor>, Tensor)| agent.value(obs.to(DType::F32)))
            .named("ppo_value");
    let learn = with_mode(
        mode,
        |(state, rollout, learning_rate): (TrainState<Tensor>, Rollout<Tensor>, Tensor)| {
            update(state, rollout, learning_rate, args)
        },
    )
    .named("ppo_update")
    .check_nans(args.run.check_nans);

    let (steps, envs) = (args.num_steps, args.num_envs);
    let (size, num_iterations) = (args.batch_size() as u64, args.num_iterations());
    let train = init.call(Key::new(args.run.seed))?;
    let obs = obs_array(&pool.reset()?, envs);
    let mut running = trainer.init_or_resume(Running { train, obs }, &mut pool)?;
    let mut actions = vec![0i32; envs];
    let mut storage = Storage::default();

    while trainer.should_continue() {
        let done = trainer.global_step() / size;
        let learning_rate = annealed(args.learning_rate, args.anneal_lr, done, num_iterations);
        let Running { train: mut state, obs: mut next_obs } = running;

        let span = timeline::span("rollout");
        storage.clear();
        storage.obs.extend(next_obs.to_vec::<f32>()?);
        let mut games = Vec::new();
        for turn in 1..=steps {
            let (chosen, key) = act.call((state.agent.clone(), next_obs, state.key))?;
            state.key = key;
            chosen.copy_to(&mut actions)?;
            storage.actions.extend_from_slice(&actions);
            let batch = pool.step(&actions)?;
            storage.rewards.extend_from_slice(batch.reward());
            if args.bootstrap_truncated {
                let rewards = &mut storage.rewards[(turn - 1) * envs..];
                let value = |obs| value.call((state.agent.clone(), obs));
                bootstrap_truncated_batch(rewards, &batch, args.gamma, value)?;
            }
            let ends = batch.terminated().iter().zip(batch.truncated());
            storage.ends.extend(ends.map(|(&a, &b)| f32::from(u8::from(a || b))));
            if turn < steps {
                storage.obs.extend_from_slice(&f32s(&batch));
            }
            next_obs = obs_array(&batch, envs);
            for episode in pool.take_finished() {
                games.push(EpisodeRecord {
                    step: (turn * envs) as u64,
                    episodic_return: episode.episodic_return,
                    length: episode.length.into(),
                });
            }
        }

        drop(span);
        let _span = timeline::span("update");
        let rollout = Rollout {
            obs: Array::new([steps, envs, sizes.0], &storage.obs)?,
            actions: Array::new([steps, envs], &storage.actions)?,
            rewards: Array::new([steps, envs], &storage.rewards)?,
            ends: Array::new([steps, envs], &storage.ends)?,
            next_obs: next_obs.clone(),
        };
        let rate = Array::from(learning_rate as f32);
        let (train, metrics) = learn.call((state, rollout, rate))?;
        running = Running { train, obs: next_obs };
        let at = trainer.global_step() + size;
        trainer.run.events.scalar("charts/learning_rate", learning_rate, at)?;
        trainer.record(&games, Some(&metrics))?;
        trainer.checkpoint_if_due(&running, &mut pool)?;
    }
    let compile_s = init.stats().seconds()
        + act.stats().seconds()
        + value.stats().seconds()
        + learn.stats().seconds();
    trainer.finish(&running.train, compile_s)
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, sizes))?.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.policy(obs.to(DType::F32)).sample(key)
        })
        .named("ppo_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
