//! Proximal policy optimisation (PPO) with random network distillation (RND, Burda et al. 2018):
//! CleanRL's `ppo_rnd_envpool.py`. The environments are stepped inside the compiled rollout.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_rnd_envpool.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, View};
use crate::optim::{Adam, AdamState, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, not_negative, positive, unit};
use crate::rl::on_policy::{
    self, Learner, Metrics, Minibatch, Playing, Report, Rollout, annealed, bootstrap_truncated,
    explained_variance, flat, gae, normalize_by_sample_std, orders, policy_loss, pool_of,
    value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::Sizes;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::ops::{IndexMode, constant, zeros, zeros_like};
use crate::tree::Tree;
use crate::{Array, DType, Key, Shape, Tensor, random};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(
    about = "PPO with curiosity (random network distillation) on images",
    args_override_self = true
)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_rnd_envpool")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: an Atari game, or one with board observations such as MinAtar's
    #[arg(long, default_value = "MontezumaRevenge-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 2_000_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 1e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 128)]
    pub num_envs: usize,
    /// The number of steps to run in each environment per rollout
    #[arg(long, default_value_t = 128)]
    pub num_steps: usize,
    /// Anneal the learning rate linearly to 0
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub anneal_lr: bool,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.999)]
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
    #[arg(long, default_value_t = 0.1)]
    pub clip_coef: f64,
    /// Use a clipped loss for the value function, as in the paper
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clip_vloss: bool,
    /// Coefficient of the entropy
    #[arg(long, default_value_t = 0.001)]
    pub ent_coef: f64,
    /// Coefficient of the value function
    #[arg(long, default_value_t = 0.5)]
    pub vf_coef: f64,
    /// The maximum norm for gradient clipping
    #[arg(long, default_value_t = 0.5)]
    pub max_grad_norm: f64,
    /// The discount factor of the intrinsic rewards
    #[arg(long, default_value_t = 0.99)]
    pub int_gamma: f64,
    /// Coefficient of the advantages of the intrinsic rewards
    #[arg(long, default_value_t = 1.0)]
    pub int_coef: f64,
    /// Coefficient of the advantages of the extrinsic rewards, those of the environment
    #[arg(long, default_value_t = 2.0)]
    pub ext_coef: f64,
    /// The fraction of samples used to train the predictor
    #[arg(long, default_value_t = 0.25)]
    pub update_proportion: f64,
    /// The number of rollouts with random actions that initialise the observation normalisation
    /// before training
    #[arg(long, default_value_t = 50)]
    pub num_iterations_obs_norm_init: usize,
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
        unit(&[
            ("gamma", self.gamma),
            ("int-gamma", self.int_gamma),
            ("gae-lambda", self.gae_lambda),
            ("update-proportion", self.update_proportion),
        ])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
            ("int-coef", self.int_coef),
            ("ext-coef", self.ext_coef),
        ])
    }
}

algorithm!(Args, "ppo_rnd_envpool", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, a policy head, and two value heads for extrinsic and intrinsic
/// rewards.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from observations to features.
    pub trunk: Encoder<T>,
    /// Residual layer on the features, as input of the value heads.
    pub extra: Dense<T>,
    /// Hidden layer of the size of the features, and output layer to action logits.
    pub actor: [Dense<T>; 2],
    /// Value head of the extrinsic rewards.
    pub critic_ext: Dense<T>,
    /// Value head of the intrinsic rewards.
    pub critic_int: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent for observations of the given view and shape.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, extra, hidden, actor, ext, int] = key.split_n();
        let trunk = encoder(trunk, sizes);
        let (size, small) = (trunk.size(), orthogonal(0.01));
        Agent {
            extra: Dense::init(extra, size, size, orthogonal(0.1)),
            actor: [
                Dense::init(hidden, size, size, small),
                Dense::init(actor, size, sizes.num_actions, small),
            ],
            critic_ext: Dense::init(ext, size, 1, small),
            critic_int: Dense::init(int, size, 1, small),
            trunk,
        }
    }

    /// Returns the policy and the values `f32[B]` of extrinsic and of intrinsic rewards for
    /// observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> (Categorical<Tensor>, [Tensor; 2]) {
        let x = self.trunk.apply(obs);
        let logits = self.actor[1].apply(self.actor[0].apply(x).relu());
        let y = self.extra.apply(x).relu() + x;
        let values = [&self.critic_ext, &self.critic_int].map(|head| head.apply(y).squeeze(-1));
        (Categorical::new(logits), values)
    }
}

/// Initialises the encoder: for frames, the Nature network's convolutions and dense layers of 256
/// and 448 units.
fn encoder(key: Key<Tensor>, sizes: &Sizes) -> Encoder<Tensor> {
    let (encoder, dense) = key.split();
    let mut encoder = Encoder::init(encoder, sizes.view, &sizes.shape);
    if sizes.view == View::Frames {
        let (first, second) = dense.split();
        let gain = orthogonal(2.0f64.sqrt());
        encoder.dense =
            vec![Dense::init(first, 3136, 256, gain), Dense::init(second, 256, 448, gain)];
    }
    encoder
}

/// Convolutions, each followed by a leaky ReLU of slope 0.01, and a dense layer without activation.
#[derive(Debug, Clone, Tree)]
pub struct Features<T> {
    /// Layers of an encoder: convolutions and one dense layer.
    pub layers: Encoder<T>,
}

impl Features<Tensor> {
    /// Returns features `f32[B, size]` for observations `f32[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        let mut x = match self.layers.view {
            View::Frames => obs.transpose(&[0, 2, 3, 1]),
            View::Board | View::Vector => obs,
        };
        for conv in &self.layers.convs {
            x = conv.apply(x).leaky_relu(0.01);
        }
        self.layers.dense[0].apply(x.flatten_from(1))
    }
}

/// Networks of random network distillation: a predictor that is trained on the outputs of a fixed,
/// randomly initialised target.
#[derive(Debug, Clone, Tree)]
pub struct Curiosity<T> {
    /// Fixed target network.
    pub target: Features<T>,
    /// Convolutions and first dense layer of the predictor.
    pub predictor: Features<T>,
    /// Last two layers of the predictor, which predict the target's features.
    pub head: [Dense<T>; 2],
}

impl Curiosity<Tensor> {
    /// Initialises the networks for the part of the observations that [`newest`] returns.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Curiosity<Tensor> {
        let [target, predictor, first, second] = key.split_n();
        let shape = match sizes.view {
            View::Frames => Shape::from([1, 84, 84]),
            View::Board | View::Vector => sizes.shape.clone(),
        };
        let features = |key| Features { layers: Encoder::init(key, sizes.view, &shape) };
        let target = features(target);
        let (size, gain) = (target.layers.size(), orthogonal(2.0f64.sqrt()));
        Curiosity {
            predictor: features(predictor),
            head: [Dense::init(first, size, size, gain), Dense::init(second, size, size, gain)],
            target,
        }
    }

    /// Returns the outputs of the predictor and of the target, `f32[B, size]` each, for whitened
    /// observations `f32[B, ..]`. No gradient flows into the target.
    pub fn apply(&self, white: Tensor) -> [Tensor; 2] {
        let x = self.predictor.apply(white).relu();
        let predicted = self.head[1].apply(self.head[0].apply(x).relu());
        [predicted, self.target.apply(white).stop_gradient()]
    }

    /// Returns the intrinsic reward `1/2 sum((predicted - target)^2)` of each observation,
    /// `f32[B]`.
    pub fn novelty(&self, white: Tensor) -> Tensor {
        let [predicted, target] = self.apply(white);
        0.5 * (predicted - target).square().sum(-1)
    }
}

/// Returns the part of observations `[B, ..]` that the RND networks take, as `f32`: the newest of
/// stacked frames, or the whole observation.
pub fn newest(obs: Tensor, view: View) -> Tensor {
    let obs = match view {
        View::Frames => obs.slice_axis(1, obs.dim(1) - 1, obs.dim(1)),
        View::Board | View::Vector => obs,
    };
    obs.to(DType::F32)
}

/// Running mean and variance, by Chan et al.'s update.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Moments<T> {
    /// Number of examples.
    pub count: T,
    /// Mean of each element.
    pub mean: T,
    /// Variance of each element.
    pub var: T,
}

impl Moments<Tensor> {
    /// Returns the initial statistics for elements of this shape: mean 0, variance 1, count 1e-4.
    pub fn new(shape: &[usize]) -> Moments<Tensor> {
        let mean = zeros(shape, DType::F32);
        Moments { count: constant(1e-4f32), mean, var: mean + 1.0 }
    }

    /// Updates the statistics with the B examples of `x: f32[B, ..]`.
    pub fn update(self, x: Tensor) -> Moments<Tensor> {
        let rows = x.dim(0) as f64;
        let (mean, var) = (x.mean(0), x.var(0));
        let count = self.count + rows;
        let delta = mean - self.mean;
        let squares =
            self.var * self.count + var * rows + delta.square() * self.count * rows / count;
        Moments { count, mean: self.mean + delta * rows / count, var: squares / count }
    }

    /// Normalises `x: f32[B, ..]` by mean and standard deviation, clipped to between -5 and 5.
    pub fn whiten(&self, x: Tensor) -> Tensor {
        ((x - self.mean) * (self.var + 1e-8).rsqrt()).clip(-5.0, 5.0)
    }
}

/// Trained networks: the agent and the RND networks.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// The agent.
    pub agent: Agent<T>,
    /// RND networks. The target's gradients are zero.
    pub curiosity: Curiosity<T>,
}

/// State that an update changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The parameters.
    pub learner: Networks<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, Networks<T>>,
    /// Statistics of the observations that the RND networks take.
    pub seen: Moments<T>,
    /// Statistics of the running intrinsic returns.
    pub returns: Moments<T>,
    /// `f32[N]`: running intrinsic returns.
    pub running: T,
}

/// Computes running returns `f <- gamma f + r` from `start: f32[N]`; returns the last, `f32[N]`,
/// and those of all steps, `f32[T, N]`.
pub fn filter(start: Tensor, rewards: Tensor, gamma: f64) -> (Tensor, Tensor) {
    let turn = |running: Tensor, reward: Tensor| {
        let running = gamma * running + reward;
        (running, running)
    };
    scan(turn, start, rewards)
}

// --------------------------------------------------------------------------------------- losses

/// A rollout as samples, B = T N.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Samples<T> {
    /// `[B, ..]`, in the environment's dtype.
    pub obs: T,
    /// `i32[B]`
    pub actions: T,
    /// `f32[B]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[B]`
    pub advantages: T,
    /// `f32[B]`: returns of the extrinsic rewards.
    pub ext_returns: T,
    /// `f32[B]`: returns of the intrinsic rewards.
    pub int_returns: T,
    /// `f32[B]`: values of the extrinsic rewards, by the critic that acted.
    pub ext_values: T,
    /// `f32[B]`: 1 for the samples that train the predictor, else 0; drawn for each minibatch.
    pub learns: T,
}

/// Computes the predictor's loss: the mean squared error, averaged over the samples where
/// `learns: f32[B]` is 1.
pub fn fwd_loss([predicted, target]: [Tensor; 2], learns: Tensor) -> Tensor {
    let error = (predicted - target).square().mean(-1);
    (error * learns).sum(..) / learns.sum(..).maximum(1.0)
}

/// Computes the loss over a minibatch; returns PPO's metrics and the predictor's loss with it.
pub fn loss(
    learner: &Networks<Tensor>,
    seen: &Moments<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, (Metrics<Tensor>, Tensor)) {
    let Networks { agent, curiosity } = learner;
    let (policy, [ext, int]) = agent.apply(batch.obs);
    let white = seen.whiten(newest(batch.obs, agent.trunk.view));
    let fwd_loss = fwd_loss(curiosity.apply(white), batch.learns);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages =
        if args.norm_adv { normalize_by_sample_std(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(ext, batch.ext_values, batch.ext_returns, clip)
        + value_loss(int, batch.int_returns, batch.int_returns, None);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss + fwd_loss;
    (loss, (Metrics { loss, value_loss, policy_loss, entropy, ratios }, fwd_loss))
}

/// Computes the samples of a rollout with extrinsic rewards. `values` are those of extrinsic and
/// intrinsic rewards by the critics that acted, `f32[T, N]` each; `next_values` are those of the
/// observation after the last step, `f32[N]` each.
pub fn samples(
    rollout: Rollout<Tensor>,
    (logprobs, curiosity_rewards): (Tensor, Tensor),
    values: [Tensor; 2],
    next_values: [Tensor; 2],
    args: &Args,
) -> Samples<Tensor> {
    let Rollout { obs, actions, rewards, ends, .. } = rollout;
    let ([ext_values, int_values], [next_ext, next_int]) = (values, next_values);
    let discounts = (args.gamma, args.gae_lambda);
    let (ext, ext_returns) = gae(rewards, ends, ext_values, next_ext, discounts);
    // Intrinsic returns do not end with the episode.
    let discounts = (args.int_gamma, args.gae_lambda);
    let (int, int_returns) =
        gae(curiosity_rewards, zeros_like(ends), int_values, next_int, discounts);
    Samples {
        obs: flat(obs),
        actions: flat(actions),
        logprobs: flat(logprobs),
        advantages: flat(args.ext_coef * ext + args.int_coef * int),
        ext_returns: flat(ext_returns),
        int_returns: flat(int_returns),
        ext_values: flat(ext_values),
        learns: zeros_like(flat(ext_values)),
    }
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step; compiled as one program. `learns` is, for all minibatches, 1 for the
/// samples that train the predictor, else 0.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    (batch, learns): (Minibatch<Tensor, Samples<Tensor>>, Tensor),
    args: &Args,
) -> (TrainState<Tensor>, (Metrics<Tensor>, Tensor)) {
    let TrainState { learner, optimizer, seen, returns, running } = state;
    let learns = learns.take_mode(batch.turn, 0, IndexMode::Clip);
    let samples = Samples { learns, ..batch.rows() };
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    let loss = |learner: &Networks<Tensor>| loss(learner, &seen, &samples, args);
    let learner = Learner { agent: learner, optimizer };
    let (Learner { agent: learner, optimizer }, metrics) = learner.descend(loss, clip, adam);
    (TrainState { learner, optimizer, seen, returns, running }, metrics)
}

// -------------------------------------------------------------------------------------- rollout

/// A rollout prepared for the update.
#[derive(Debug, Tree)]
struct Collected<T> {
    samples: Samples<T>,
    /// Sample indices of each minibatch.
    orders: T,
    /// 1 for the samples of each minibatch that train the predictor, else 0.
    learns: T,
    games: EpisodeStats<T>,
    explained_variance: T,
    /// Mean of the normalised intrinsic rewards.
    curiosity_reward: T,
}

/// Collects a rollout with the environments stepped inside the loop, and updates the statistics of
/// observations and intrinsic returns; compiled as one program.
fn collect(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Playing<Tensor>, Collected<Tensor>) {
    let TrainState { learner, optimizer, seen, returns, running } = state;
    let Networks { agent, curiosity } = &learner;
    let view = agent.trunk.view;
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, key } = playing;
        let (key, draw) = key.split();
        let (policy, values) = agent.apply(obs);
        let action = policy.sample(draw);
        let logprob = policy.log_prob(action);
        let (handle, step) = envs.step(handle, action);
        let novelty = curiosity.novelty(seen.whiten(newest(step.obs, view)));
        let ends = step.done().to(DType::F32);
        let mut reward = step.reward;
        if args.bootstrap_truncated {
            let (cut, last) = (step.truncated_only(), envs.final_obs_of(&step));
            // Only extrinsic returns are bootstrapped: intrinsic returns do not end with the
            // episode.
            let value = |obs| agent.apply(obs).1[0];
            reward = bootstrap_truncated(reward, cut, last, args.gamma, value);
        }
        let next = Playing { handle, obs: step.obs, key };
        (next, (obs, action, logprob, values, (reward, novelty), ends, EpisodeStats::of(&step)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, told) = scan_with(turn, playing, (), length);
    let (obs, actions, logprobs, [ext_values, int_values], (rewards, novelty), ends, games) = told;
    let Playing { handle, obs: next_obs, key } = playing;
    let (_, next_values) = agent.apply(next_obs);

    let (running, filtered) = filter(running, novelty, args.int_gamma);
    let returns = returns.update(filtered.ravel());
    let curiosity_rewards = novelty * (returns.var + 1e-8).rsqrt();
    let rollout = Rollout { obs, actions, rewards, ends, next_obs };
    let values = [ext_values, int_values];
    let samples = samples(rollout, (logprobs, curiosity_rewards), values, next_values, args);
    let seen = seen.update(newest(samples.obs, view));
    let [key, shuffle, draws] = key.split_n();
    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.batch_size());
    let draws = random::uniform(draws, orders.shape(), DType::F32, 0.0, 1.0);
    let collected = Collected {
        samples,
        orders,
        learns: draws.lt(args.update_proportion).to(DType::F32),
        games,
        explained_variance: explained_variance(flat(ext_values), samples.ext_returns),
        curiosity_reward: curiosity_rewards.mean(..),
    };
    let playing = Playing { handle, obs: next_obs, key };
    (TrainState { learner, optimizer, seen, returns, running }, playing, collected)
}

/// Takes steps with random actions to initialise the observation statistics; compiled as one
/// program.
fn look_around(
    envs: &XlaPool,
    seen: Moments<Tensor>,
    playing: Playing<Tensor>,
    sizes: &Sizes,
    args: &Args,
) -> (Moments<Tensor>, Playing<Tensor>) {
    let turn = |(seen, playing): (Moments<Tensor>, Playing<Tensor>), ()| {
        let Playing { handle, obs, key } = playing;
        let (key, draw) = key.split();
        let action = random::randint(draw, [obs.dim(0)], 0, sizes.num_actions as i32, DType::I32);
        let (handle, step) = envs.step(handle, action);
        let seen = seen.update(newest(step.obs, sizes.view));
        ((seen, Playing { handle, obs: step.obs, key }), ())
    };
    let steps = args.num_iterations_obs_norm_init * args.num_steps;
    scan_with(turn, (seen, playing), (), ScanOptions::length(steps)).0
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..PoolOptions::default() };
    let atari = AtariOptions {
        episodic_life: true,
        reward_clip: true,
        repeat_action_probability: 0.25,
        ..AtariOptions::envpool()
    };
    pool_of(&args.env_id, atari, options)
}

/// Returns the observation and action sizes of the environment, or an error if this algorithm does
/// not support its spaces.
fn sizes(pool: &EnvPool) -> Result<Sizes> {
    Sizes::of("ppo_rnd_envpool", pool.spec(), &[View::Frames, View::Board])
}

fn begin(key: Key<Tensor>, sizes: &Sizes, num_envs: usize) -> TrainState<Tensor> {
    let (agent, curiosity) = key.split();
    let learner =
        Networks { agent: Agent::init(agent, sizes), curiosity: Curiosity::init(curiosity, sizes) };
    let optimizer = Adam::default().init(&learner);
    let shape = match sizes.view {
        View::Frames => Shape::from([1, 84, 84]),
        View::Board | View::Vector => sizes.shape.clone(),
    };
    let (seen, returns) = (Moments::new(&shape), Moments::new(&[]));
    TrainState { learner, optimizer, seen, returns, running: zeros([num_envs], DType::F32) }
}

/// Metrics of one update.
#[derive(Debug, Tree)]
struct Told<T> {
    report: Report<T>,
    /// Loss of the predictor over the last minibatch.
    fwd_loss: T,
}

/// Arguments of a gradient step.
type Step<T> = (TrainState<T>, (Minibatch<T, Samples<T>>, T));

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = pool(args, args.num_envs, args.run.seed)?;
    let sizes = sizes(&pool)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let (handle, mut envs) = pool.xla()?;
    if args.bootstrap_truncated {
        envs = envs.with_final_obs()?;
    }
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent) = key.split();
        let (handle, first) = envs.reset(handle);
        let state = begin(agent, &sizes, args.num_envs);
        let playing = Playing { handle, obs: first.obs, key };
        let (seen, playing) = look_around(&envs, state.seen, playing, &sizes, args);
        (TrainState { seen, ..state }, playing)
    })
    .named("ppo_rnd_init");
    let rollout = with_mode(mode, |(state, playing): (TrainState<Tensor>, Playing<Tensor>)| {
        collect(&envs, state, playing, args)
    })
    .named("ppo_rnd_rollout");
    let learn = with_mode(mode, |(state, batch): Step<Tensor>| minibatch_step(state, batch, args))
        .named("ppo_rnd_step")
        .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.should_continue() {
        let update = trainer.global_step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let (state, playing) = running;

        let span = timeline::span("rollout");
        let (state, playing, collected) = rollout.call((state, playing))?;
        let Collected { samples, orders, learns, games, explained_variance, curiosity_reward } =
            collected;
        let games = games.to_vec()?;
        drop(span);

        let _span = timeline::span("update");
        let learning_rate = Array::from(rate as f32);
        let count = (args.update_epochs, args.num_minibatches);
        let mut fwd_loss = Array::from(0.0f32);
        let first = Minibatch { samples, orders, turn: Array::from(0i32), learning_rate };
        let step = |state, turn| {
            let batch = (first.at(turn), learns.clone());
            let (state, (metrics, forward)) = learn.call((state, batch))?;
            fwd_loss = forward;
            Ok((state, metrics))
        };
        let (state, metrics) = on_policy::steps(state, count, None, step)?;
        running = (state, playing);
        let at = trainer.global_step() + steps;
        let scalars = [
            ("charts/learning_rate", rate),
            ("charts/episode_curiosity_reward", curiosity_reward.item::<f32>()?.into()),
        ];
        trainer.run.events.scalars(&scalars, at)?;
        let report = Report { metrics, explained_variance };
        trainer.record(&games, Some(&Told { report, fwd_loss }))?;
        trainer.checkpoint_if_due(&running, &envs)?;
    }
    let compile_s = init.stats().seconds() + rollout.stats().seconds() + learn.stats().seconds();
    trainer.finish(&running.0, compile_s)
}

/// Evaluates a saved model, sampling actions from its policy.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, &sizes, args.num_envs))?.learner.agent;
    let act =
        with_mode(args.run.mode, |(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
            agent.apply(obs).0.sample(key)
        })
        .named("ppo_rnd_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
