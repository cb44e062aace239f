//! Proximal policy optimisation (PPO) with an LSTM: CleanRL's `ppo_atari_lstm.py`. The environments
//! are stepped inside the compiled rollout; `--sequence` selects how the update unrolls the LSTM.
//!
//! Differences from CleanRL, and a comparison of both values of `--sequence`, are in
//! `docs/algos/ppo_lstm.md`.

use clap::{Parser, ValueEnum};
use serde::Serialize;

use crate::algorithm;
use crate::distributions::Categorical;
use crate::envs::{AtariOptions, EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::init::orthogonal;
use crate::nn::{Dense, Encoder, LstmCell, View};
use crate::optim::{Adam, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, expect, not_negative, positive, unit};
use crate::rl::on_policy::{
    self, Learner, Metrics, Minibatch, Report, annealed, bootstrap_truncated, explained_variance,
    flat, gae, normalize_by_sample_std, orders, policy_loss, pool_of, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::Sizes;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan, scan_with};
use crate::trace::ops::{IndexMode, ones, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor};

// ------------------------------------------------------------------------------------- settings

/// Method of unrolling the LSTM over a rollout in an update. Both compute the same loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sequence {
    /// One loop over the steps of the rollout; the LSTM state is reset where an episode begins.
    Scan,
    /// Episodes as separate sequences, padded to the longest: a shorter loop over more sequences.
    Split,
}

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO with a memory, on Atari games of single frames", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_atari_lstm")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment: an Atari game, one with board observations such as MinAtar's, or
    /// one with vector observations
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 10_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 8)]
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
    #[arg(long, default_value_t = 0.1)]
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
    /// The method of unrolling the LSTM over a rollout in an update; both compute the same loss
    #[arg(long, value_enum, default_value_t = Sequence::Scan)]
    pub sequence: Sequence,
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
        expect(
            self.num_envs.is_multiple_of(self.num_minibatches),
            "num-minibatches",
            self.num_minibatches,
            &format!(
                "a divisor of --num-envs {}: minibatches are whole environments",
                self.num_envs
            ),
        )?;
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

algorithm!(Args, "ppo_atari_lstm", Args::check, train, play);

/// Number of LSTM units.
const MEMORY: usize = 128;

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: an encoder, an LSTM, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Encoder from observations to features.
    pub trunk: Encoder<T>,
    /// LSTM cell from features to 128 units.
    pub lstm: LstmCell<T>,
    /// Second bias of the gates, PyTorch's `bias_hh`: with Adam, two biases change twice as fast as
    /// one.
    pub recurrent_bias: T,
    /// Layer from hidden units to action logits.
    pub actor: Dense<T>,
    /// Layer from hidden units to values.
    pub critic: Dense<T>,
}

/// LSTM state `(c, h)`, `f32[N, 128]` each.
pub type Memory<T> = (T, T);

impl Agent<Tensor> {
    /// Initialises an agent for observations of the given view and shape.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> Agent<Tensor> {
        let [trunk, input, recurrent, actor, critic] = key.split_n();
        let trunk = Encoder::init(trunk, sizes.view, &sizes.shape);
        let kernel = |key, rows| orthogonal(1.0).draw(key, [rows, 4 * MEMORY], DType::F32);
        Agent {
            lstm: LstmCell {
                w_i: kernel(input, trunk.size()),
                w_h: kernel(recurrent, MEMORY),
                b: zeros([4 * MEMORY], DType::F32),
            },
            recurrent_bias: zeros([4 * MEMORY], DType::F32),
            trunk,
            actor: Dense::init(actor, MEMORY, sizes.num_actions, orthogonal(0.01)),
            critic: Dense::init(critic, MEMORY, 1, orthogonal(1.0)),
        }
    }

    /// Computes the part of the gates `f32[B, 512]` that depends on observations `[B, ..]` and the
    /// biases.
    fn project(&self, obs: Tensor) -> Tensor {
        self.lstm.project(self.trunk.apply(obs)) + self.recurrent_bias
    }

    /// Takes one LSTM step on observations `[N, ..]`. The state is reset first where
    /// `first: f32[N]` is 1, that is, where the observation is the first of an episode.
    pub fn remember(&self, obs: Tensor, first: Tensor, memory: Memory<Tensor>) -> Memory<Tensor> {
        let projected = self.project(obs);
        self.lstm.advance(projected, emptied(memory, first))
    }

    /// Returns the policy and the values `f32[B]` for LSTM outputs `h: f32[B, 128]`.
    pub fn heads(&self, h: Tensor) -> (Categorical<Tensor>, Tensor) {
        (Categorical::new(self.actor.apply(h)), self.critic.apply(h).squeeze(-1))
    }

    /// Unrolls the LSTM over a batch of sequences; returns its outputs `h: f32[T n, 128]` at each
    /// step.
    pub fn run(&self, batch: &Samples<Tensor>) -> Tensor {
        let projected = self.project(flat(batch.obs)); // f32[T n, 512]
        match &batch.split {
            None => {
                let [steps, envs] = [batch.firsts.dim(0), batch.firsts.dim(1)];
                let turn = |memory: Memory<Tensor>, (projected, first): (Tensor, Tensor)| {
                    let memory = self.lstm.advance(projected, emptied(memory, first));
                    (memory, memory.1)
                };
                let projected = projected.reshape([steps, envs, projected.dim(-1)]);
                flat(scan(turn, batch.memory, (projected, batch.firsts)).1)
            }
            Some(split) => {
                let take = |x: Tensor, rows: Tensor| x.take_mode(rows, 0, IndexMode::Clip);
                let start = tree::map(batch.memory, |x: Tensor| take(x, split.env));
                let turn = |memory: Memory<Tensor>, projected: Tensor| {
                    let memory = self.lstm.advance(projected, memory);
                    (memory, memory.1)
                };
                let start = emptied(start, split.fresh);
                let (_, told) = scan(turn, start, take(projected, split.rows)); // f32[L, S, 128]
                take(flat(told), split.places)
            }
        }
    }
}

/// Returns the LSTM state, zero where `first` is 1.
fn emptied((c, h): Memory<Tensor>, first: Tensor) -> Memory<Tensor> {
    let keep = (1.0 - first).expand_dims(-1);
    (c * keep, h * keep)
}

/// State that an update changes.
pub type TrainState<T> = Learner<T, Agent<T>>;

// ------------------------------------------------------------------------------------ sequences

/// T steps of n environments, split at episode boundaries into S sequences padded to L steps.
#[derive(Debug, Clone, Tree)]
pub struct Split<T> {
    /// `i32[L, S]`: index, among the `T n` steps, of the step at each position.
    pub rows: T,
    /// `i32[S]`: index of the sequence's environment.
    pub env: T,
    /// `f32[S]`: 1 where the sequence begins with an episode, 0 where it continues the episode that
    /// was running when the rollout began.
    pub fresh: T,
    /// `i32[T n]`: position of each step in the flattened `[L S]`.
    pub places: T,
}

impl Split<Array> {
    /// Splits several batches of one rollout with `firsts: [T, N]`, which is 1 where an episode
    /// begins; `batches` are the environments of each batch, in order. All results have the same L
    /// and S, rounded up to powers of two (L at most T), so that few programs are compiled.
    ///
    /// # Errors
    /// Returns the errors of [`Array::new`]; none depends on the arguments.
    pub fn of(
        firsts: &[f32],
        num_envs: usize,
        batches: &[Vec<usize>],
    ) -> Result<Vec<Split<Array>>> {
        let steps = firsts.len() / num_envs;
        // Sequences of each batch: index of the environment in the batch, first step, length.
        let pieces = |envs: &Vec<usize>| -> Vec<(usize, usize, usize)> {
            let mut pieces = Vec::new();
            for (place, env) in envs.iter().enumerate() {
                let begins = |t: &usize| *t == 0 || firsts[t * num_envs + env] == 1.0;
                let starts: Vec<usize> = (0..steps).filter(begins).collect();
                for (k, &start) in starts.iter().enumerate() {
                    let end = starts.get(k + 1).copied().unwrap_or(steps);
                    pieces.push((place, start, end - start));
                }
            }
            pieces
        };
        let all: Vec<_> = batches.iter().map(pieces).collect();
        let longest = all.iter().flatten().map(|piece| piece.2).max().unwrap_or(1);
        let length = longest.next_power_of_two().min(steps);
        let most = all.iter().map(Vec::len).max().unwrap_or(1);
        let count = most.next_power_of_two();
        let mut splits = Vec::new();
        for (pieces, envs) in all.iter().zip(batches) {
            let mut rows = vec![0i32; length * count];
            let (mut env, mut fresh) = (vec![0i32; count], vec![1.0f32; count]);
            let mut places = vec![0i32; steps * envs.len()];
            for (s, &(place, start, size)) in pieces.iter().enumerate() {
                env[s] = place as i32;
                fresh[s] = firsts[start * num_envs + envs[place]];
                for l in 0..size {
                    let row = (start + l) * envs.len() + place;
                    rows[l * count + s] = row as i32;
                    places[row] = (l * count + s) as i32;
                }
            }
            splits.push(Split {
                rows: Array::new([length, count], &rows)?,
                env: Array::new([count], &env)?,
                fresh: Array::new([count], &fresh)?,
                places: Array::new([places.len()], &places)?,
            });
        }
        Ok(splits)
    }
}

// --------------------------------------------------------------------------------------- losses

/// Samples: a rollout of T steps of n environments.
#[derive(Debug, Clone, Tree)]
pub struct Samples<T> {
    /// `[T, n, ..]`, in the environment's dtype.
    pub obs: T,
    /// `f32[T, n]`: 1 where `obs` is the first of an episode.
    pub firsts: T,
    /// LSTM state before the first step, `f32[n, 128]` each.
    pub memory: Memory<T>,
    /// `i32[T, n]`
    pub actions: T,
    /// `f32[T, n]`: log probabilities under the policy that acted.
    pub logprobs: T,
    /// `f32[T, n]`
    pub advantages: T,
    /// `f32[T, n]`
    pub returns: T,
    /// `f32[T, n]`: values by the critic that acted.
    pub values: T,
    /// The episodes as separate sequences, with `--sequence split`.
    pub split: Option<Split<T>>,
}

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.heads(agent.run(batch));
    let logratio = policy.log_prob(flat(batch.actions)) - flat(batch.logprobs); // f32[T n]
    let mut advantages = flat(batch.advantages);
    if args.norm_adv {
        advantages = normalize_by_sample_std(advantages);
    }
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, flat(batch.values), flat(batch.returns), clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step; compiled as one program. The samples are the whole rollout,
/// `[T, N, ..]`, of which each minibatch selects some environments; only `split` is that of this
/// minibatch.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Minibatch<Tensor, Samples<Tensor>>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let envs = batch.indices();
    let of = |axis: isize| move |x: Tensor| x.take_mode(envs, axis, IndexMode::Clip);
    let Samples { memory, split, .. } = &batch.samples;
    let (memory, split) = (tree::map(*memory, of(0)), split.clone());
    let whole = Samples { split: None, ..batch.samples.clone() };
    let samples = Samples { memory, split, ..tree::map(whole, of(1)) };
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(batch.learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    state.descend(|agent| loss(agent, &samples, args), clip, adam)
}

// -------------------------------------------------------------------------------------- rollout

/// Environment state between two steps.
#[derive(Debug, Tree)]
struct Playing<T> {
    handle: Handle<T>,
    /// `[N, ..]`, in the environment's dtype.
    obs: T,
    /// `f32[N]`: 1 where `obs` is the first of an episode.
    first: T,
    memory: Memory<T>,
    key: Key<T>,
}

/// A rollout prepared for the update.
#[derive(Debug, Tree)]
struct Collected<T> {
    samples: Samples<T>,
    /// Environment indices of each minibatch.
    orders: T,
    games: EpisodeStats<T>,
    explained_variance: T,
}

/// Collects a rollout with the environments stepped inside the loop; compiled as one program.
fn collect(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Collected<Tensor>) {
    let start = playing.memory;
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, first, memory, key } = playing;
        let (key, draw) = key.split();
        let memory = agent.remember(obs, first, memory);
        let (policy, value) = agent.heads(memory.1);
        let action = policy.sample(draw);
        let logprob = policy.log_prob(action);
        let (handle, step) = envs.step(handle, action);
        let end = step.done().to(DType::F32);
        let mut reward = step.reward;
        if args.bootstrap_truncated {
            let (cut, last) = (step.truncated_only(), envs.final_obs_of(&step));
            // The final observation continues from the episode's LSTM state.
            let value = |obs| agent.heads(agent.remember(obs, zeros_like(end), memory).1).1;
            reward = bootstrap_truncated(reward, cut, last, args.gamma, value);
        }
        // `step.obs` is already the first observation of the next episode where one ended.
        let next = Playing { handle, obs: step.obs, first: end, memory, key };
        (next, (obs, first, action, logprob, value, reward, end, EpisodeStats::of(&step)))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, told) = scan_with(turn, playing, (), length);
    let (obs, firsts, actions, logprobs, values, rewards, ends, games) = told;
    let Playing { handle, obs: next_obs, first, memory, key } = playing;
    let (_, next_value) = agent.heads(agent.remember(next_obs, first, memory).1);
    let discounts = (args.gamma, args.gae_lambda);
    let (advantages, returns) = gae(rewards, ends, values, next_value, discounts);
    let explained_variance = explained_variance(values, returns);
    let samples = Samples {
        obs,
        firsts,
        memory: start,
        actions,
        logprobs,
        advantages,
        returns,
        values,
        split: None,
    };
    let (key, shuffle) = key.split();
    let orders = orders(shuffle, args.update_epochs, args.num_minibatches, args.num_envs);
    let playing = Playing { handle, obs: next_obs, first, memory, key };
    (playing, Collected { samples, orders, games, explained_variance })
}

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..PoolOptions::default() };
    let atari = AtariOptions { stack_num: 1, ..AtariOptions::gymnasium() };
    pool_of(&args.env_id, atari, options)
}

/// Returns the observation and action sizes of the environment, or an error if this algorithm does
/// not support its spaces.
fn sizes(pool: &EnvPool) -> Result<Sizes> {
    Sizes::of("ppo_atari_lstm", pool.spec(), &[View::Frames, View::Board, View::Vector])
}

fn begin(key: Key<Tensor>, sizes: &Sizes) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, sizes))
}

/// Splits the episodes of each minibatch with `--sequence split`, else returns `None` for each.
fn splits(collected: &Collected<Array>, args: &Args) -> Result<Vec<Option<Split<Array>>>> {
    let count = args.update_epochs * args.num_minibatches;
    if args.sequence == Sequence::Scan {
        return Ok(vec![None; count]);
    }
    let orders = collected.orders.to_vec::<i32>()?;
    let batches: Vec<Vec<usize>> = orders
        .chunks(args.num_envs / args.num_minibatches)
        .map(|envs| envs.iter().map(|&env| env as usize).collect())
        .collect();
    let firsts = collected.samples.firsts.to_vec::<f32>()?;
    Ok(Split::of(&firsts, args.num_envs, &batches)?.into_iter().map(Some).collect())
}

/// Arguments of a gradient step.
type Step<T> = (TrainState<T>, Minibatch<T, Samples<T>>);

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
        let train = begin(agent, &sizes);
        let memory = train.agent.lstm.start(args.num_envs);
        let firsts = ones([args.num_envs], DType::F32);
        (train, Playing { handle, obs: first.obs, first: firsts, memory, key })
    })
    .named("ppo_lstm_init");
    let rollout = with_mode(mode, |(agent, playing): (Agent<Tensor>, Playing<Tensor>)| {
        collect(&envs, &agent, playing, args)
    })
    .named("ppo_lstm_rollout");
    let learn = with_mode(mode, |(state, batch): Step<Tensor>| minibatch_step(state, batch, args))
        .named("ppo_lstm_step")
        .check_nans(args.run.check_nans);

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.should_continue() {
        let update = trainer.global_step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let (state, playing) = running;

        let span = timeline::span("rollout");
        let (playing, collected) = rollout.call((state.agent.clone(), playing))?;
        let games = collected.games.to_vec()?;
        drop(span);

        let _span = timeline::span("update");
        let splits = splits(&collected, args)?;
        let Collected { samples, orders, explained_variance, .. } = collected;
        let learning_rate = Array::from(rate as f32);
        let count = (args.update_epochs, args.num_minibatches);
        let first = Minibatch { samples, orders, turn: Array::from(0i32), learning_rate };
        let step = |state, turn: usize| {
            let mut batch = first.at(turn);
            batch.samples.split = splits[turn].clone();
            learn.call((state, batch))
        };
        let (state, metrics) = on_policy::steps(state, count, args.target_kl, step)?;
        running = (state, playing);
        let at = trainer.global_step() + steps;
        trainer.run.events.scalar("charts/learning_rate", rate, at)?;
        trainer.record(&games, Some(&Report { metrics, explained_variance }))?;
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
    let agent = load_model(model, |key| begin(key, &sizes))?.agent;
    type Seen<T> = (Agent<T>, T, T, Memory<T>, Key<T>);
    let act = with_mode(args.run.mode, |(agent, obs, first, memory, key): Seen<Tensor>| {
        let memory = agent.remember(obs, first.to(DType::F32), memory);
        (agent.heads(memory.1).0.sample(key), memory)
    })
    .named("ppo_lstm_play");
    let empty = || Array::zeros([1, MEMORY], DType::F32);
    let mut memory = (empty(), empty());
    evaluation.play_with(pool, |batch, key| {
        let first = Array::from([batch.first()[0]]);
        let seen = (agent.clone(), batch.obs_array(), first, memory.clone(), key);
        let (action, next) = act.call(seen)?;
        memory = next;
        Ok(action)
    })
}
