//! Proximal policy optimisation (PPO) by self-play in two-player games: one network plays against
//! itself and against past snapshots of itself, in the spirit of CleanRL's `ppo_self_play.py`.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_self_play.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::Dense;
use crate::nn::init::orthogonal;
use crate::optim::{Adam, clip_grad_norm};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{batches, expect, not_negative, positive, unit};
use crate::rl::on_policy::{
    Acted, Learner, Metrics, MultiCategorical, Report, Rollout, Samples, annealed, epochs, flat,
    normalize_by_sample_std, orders, policy_loss, rows, value_loss,
};
use crate::rl::saved::load_model;
use crate::rl::spaces::{self, Masked};
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{concatenate, constant, div, iota, stack, where_, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, vmap};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "PPO by self-play in games of two players", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ppo_self_play")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "ConnectFour-v0")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 2_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 16)]
    pub num_envs: usize,
    /// The number of past snapshots of the agent to play against; each of them and the current
    /// agent play in an equal share of the environments
    #[arg(long, default_value_t = 3)]
    pub num_opponents: usize,
    /// The number of updates between snapshots of the agent
    #[arg(long, default_value_t = 25)]
    pub snapshot_frequency: u64,
    /// The number of updates between evaluations against a random player; 0 disables them
    #[arg(long, default_value_t = 50)]
    pub eval_frequency: u64,
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
        let groups = self.num_opponents + 1;
        expect(
            self.num_envs.is_multiple_of(groups),
            "num-envs",
            self.num_envs,
            &format!("a multiple of --num-opponents plus one, {groups}"),
        )?;
        expect(self.snapshot_frequency > 0, "snapshot-frequency", 0, "at least 1")?;
        unit(&[("gamma", self.gamma), ("gae-lambda", self.gae_lambda)])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("clip-coef", self.clip_coef),
            ("ent-coef", self.ent_coef),
            ("vf-coef", self.vf_coef),
            ("max-grad-norm", self.max_grad_norm),
        ])
    }
}

algorithm!(Args, "ppo_self_play", Args::check, train, play);

/// Number of environments in a match against a random player, and the maximum number of moves of
/// each player in a game.
const MATCH: usize = 64;
const TURNS: usize = 64;

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: two shared hidden layers of 128 units, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    /// Hidden layers from features.
    pub hidden: [Dense<T>; 2],
    /// Layer from hidden units to the logits of all action components.
    pub actor: Dense<T>,
    /// Layer from hidden units to values.
    pub critic: Dense<T>,
}

impl Agent<Tensor> {
    /// Initialises an agent.
    pub fn init(key: Key<Tensor>, sizes: &Masked) -> Agent<Tensor> {
        let [first, second, actor, critic] = key.split_n();
        let gain = orthogonal(2.0f64.sqrt());
        Agent {
            hidden: [
                Dense::init(first, sizes.features, 128, gain),
                Dense::init(second, 128, 128, gain),
            ],
            actor: Dense::init(actor, 128, sizes.choices(), orthogonal(0.01)),
            critic: Dense::init(critic, 128, 1, orthogonal(1.0)),
        }
    }

    fn units(&self, features: Tensor) -> Tensor {
        self.hidden[1].apply(self.hidden[0].apply(features).relu()).relu()
    }

    /// Returns action logits `f32[B, choices]` for features `f32[B, features]`.
    fn logits(&self, features: Tensor) -> Tensor {
        self.actor.apply(self.units(features))
    }

    /// Returns the policy and the values `f32[B]` for observations `[B, features + choices]`.
    pub fn apply(&self, obs: Tensor, sizes: &Masked) -> (MultiCategorical<Tensor>, Tensor) {
        let (features, allowed) = sizes.split(obs);
        let x = self.units(features);
        let policy = MultiCategorical::new(self.actor.apply(x), allowed, &sizes.nvec);
        (policy, self.critic.apply(x).squeeze(-1))
    }
}

/// State that an update changes.
pub type TrainState<T> = Learner<T, Agent<T>>;

/// State carried between iterations.
#[derive(Debug, Tree)]
struct Running<T> {
    train: TrainState<T>,
    /// Past snapshots of the agent, `[K, ..]`; `None` with `--num-opponents 0`.
    past: Option<Agent<T>>,
    /// Number of updates so far, `i32[]`.
    updates: T,
    playing: Playing<T>,
}

/// Environment state between two moves of the learner.
#[derive(Debug, Tree)]
struct Playing<T> {
    handle: Handle<T>,
    /// `[N, features + choices]`: observation of the learner.
    obs: T,
    /// `i32[N]`: number of the learner's moves in each game so far.
    turns: T,
    key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// Computes PPO's loss over a minibatch, and its metrics.
pub fn loss(
    agent: &Agent<Tensor>,
    batch: &Samples<Tensor>,
    sizes: &Masked,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let (policy, value) = agent.apply(batch.obs, sizes);
    let logratio = policy.log_prob(batch.actions) - batch.logprobs; // f32[B]
    let advantages =
        if args.norm_adv { normalize_by_sample_std(batch.advantages) } else { batch.advantages };
    let (policy_loss, ratios) = policy_loss(logratio, advantages, args.clip_coef);
    let clip = args.clip_vloss.then_some(args.clip_coef);
    let value_loss = value_loss(value, batch.values, batch.returns, clip);
    let entropy = policy.entropy().mean(..);
    let loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss;
    (loss, Metrics { loss, value_loss, policy_loss, entropy, ratios })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step.
pub fn minibatch_step(
    state: TrainState<Tensor>,
    batch: Samples<Tensor>,
    learning_rate: Tensor,
    sizes: &Masked,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let adam = Adam { eps: 1e-5, ..Adam::default() }.with_learning_rate(learning_rate);
    let clip = |grads| clip_grad_norm(grads, args.max_grad_norm);
    state.descend(|agent| loss(agent, &batch, sizes, args), clip, adam)
}

/// Runs all epochs over a rollout.
fn update(
    state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    learning_rate: Tensor,
    key: Key<Tensor>,
    sizes: &Masked,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let step = |state: TrainState<Tensor>, indices: Tensor| {
        minibatch_step(state, rows(samples, indices), learning_rate, sizes, args)
    };
    let orders = orders(key, args.update_epochs, args.num_minibatches, args.batch_size());
    epochs(state, orders, (args.num_minibatches, None), step)
}

// -------------------------------------------------------------------------------------- rollout

/// Result of one move of the learner and one of the opponent; `[N]` each.
#[derive(Debug, Clone, Copy, Tree)]
struct Turn<T> {
    /// Next observation of the learner.
    obs: T,
    /// 1 if the learner won, -1 if it lost, else 0.
    reward: T,
    /// `bool`: true if either move ended the game.
    end: T,
}

/// Plays one move of the learner, `action`, and one of the opponent, sampled from the logits that
/// `other` returns. Where the learner's move ended the game, the opponent's move is the first of
/// the next game.
fn both(
    envs: &XlaPool,
    handle: Handle<Tensor>,
    action: Tensor,
    other: impl Fn(Tensor) -> Tensor,
    key: Key<Tensor>,
    sizes: &Masked,
) -> (Handle<Tensor>, Turn<Tensor>) {
    let (handle, mine) = envs.step(handle, action);
    let (features, allowed) = sizes.split(mine.obs);
    let reply = MultiCategorical::new(other(features), allowed, &sizes.nvec).sample(key);
    let (handle, theirs) = envs.step(handle, reply);
    let turn = Turn {
        obs: theirs.obs,
        reward: mine.reward - theirs.reward,
        end: mine.done() | theirs.done(),
    };
    (handle, turn)
}

/// Returns the logits of the opponents: the current agent in the first share of the environments,
/// and each past snapshot in one of the other shares.
fn opponents(agent: &Agent<Tensor>, past: &Option<Agent<Tensor>>, features: Tensor) -> Tensor {
    let Some(past) = past else { return agent.logits(features) };
    let (envs, size) = (features.dim(0), features.dim(1));
    let count = past.critic.w.dim(0);
    let part = envs / (count + 1);
    let own = agent.logits(features.slice_axis(0, 0, part));
    let rest = features.slice_axis(0, part, envs).reshape([count, part, size]);
    let theirs = vmap(|(agent, features): (Agent<Tensor>, Tensor)| agent.logits(features))((
        past.clone(),
        rest,
    ));
    concatenate(&[own, flat(theirs)], 0)
}

/// Number of games won, drawn and lost; `f32[]` each.
#[derive(Debug, Clone, Copy, Tree)]
struct Score<T> {
    won: T,
    drawn: T,
    lost: T,
}

impl Score<Tensor> {
    /// Counts the outcomes `reward: f32[..]` where `counts: bool[..]` is true.
    fn of(reward: Tensor, counts: Tensor) -> Score<Tensor> {
        let sum = |which: Tensor| (which & counts).to(DType::F32).sum(..);
        Score { won: sum(reward.gt(0.0)), drawn: sum(reward.eq(0.0)), lost: sum(reward.lt(0.0)) }
    }
}

impl Score<Array> {
    /// Returns the win rate, where a draw counts as half a win; `None` without games.
    fn rate(&self) -> Result<Option<f64>> {
        let [won, drawn, lost] =
            [&self.won, &self.drawn, &self.lost].map(|x| x.item::<f32>().map(f64::from));
        let (won, drawn, lost) = (won?, drawn?, lost?);
        let games = won + drawn + lost;
        Ok((games > 0.0).then(|| (won + drawn / 2.0) / games))
    }
}

/// Metrics of one iteration.
#[derive(Debug, Clone, Copy, Tree)]
struct Told<T> {
    games: EpisodeStats<T>,
    report: Report<T>,
    /// Score against the current agent.
    present: Score<T>,
    /// Score against past snapshots.
    past: Score<T>,
}

/// Collects a rollout and updates on it; compiled as one program.
fn iteration(
    envs: &XlaPool,
    running: Running<Tensor>,
    learning_rate: Tensor,
    sizes: &Masked,
    args: &Args,
) -> (Running<Tensor>, Told<Tensor>) {
    let Running { train, past, updates, playing } = running;
    let agent = &train.agent;
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, turns, key } = playing;
        let [key, draw, reply] = key.split_n();
        let (policy, value) = agent.apply(obs, sizes);
        let action = policy.sample(draw);
        let logprob = policy.log_prob(action);
        let other = |features| opponents(agent, &past, features);
        let (handle, told) = both(envs, handle, action, other, reply, sizes);
        let turns = turns + 1;
        let games = EpisodeStats {
            finished: told.end,
            episodic_return: told.reward,
            episodic_length: turns,
        };
        let turns = where_(told.end, zeros_like(turns), turns);
        let next = Playing { handle, obs: told.obs, turns, key };
        (next, (obs, action, logprob, value, told.reward, told.end, games))
    };
    let length = ScanOptions::length(args.num_steps);
    let (playing, told) = scan_with(turn, playing, (), length);
    let (obs, actions, logprobs, values, rewards, ends, games) = told;
    let Playing { handle, obs: next_obs, turns, key } = playing;
    let (_, next_value) = agent.apply(next_obs, sizes);
    let discounts = (args.gamma, args.gae_lambda);
    let rollout = Rollout { obs, actions, rewards, ends: ends.to(DType::F32), next_obs };
    let acted = Acted { logprobs, values };
    let (samples, explained_variance) = rollout.samples(acted, next_value, discounts);
    let part = args.num_envs / (args.num_opponents + 1);
    let score = |from, to| Score::of(rewards.slice_axis(1, from, to), ends.slice_axis(1, from, to));
    let (present, before) = (score(0, part), score(part, args.num_envs));
    let (key, shuffle) = key.split();
    let (train, metrics) = update(train, samples, learning_rate, shuffle, sizes, args);
    let updates = updates + 1;
    let past = past.map(|past| kept(past, &train.agent, updates, args));
    let playing = Playing { handle, obs: next_obs, turns, key };
    let report = Report { metrics, explained_variance };
    (Running { train, past, updates, playing }, Told { games, report, present, past: before })
}

/// Returns the past snapshots; if a snapshot is due after `updates` updates, `agent` replaces the
/// oldest.
fn kept(past: Agent<Tensor>, agent: &Agent<Tensor>, updates: Tensor, args: &Args) -> Agent<Tensor> {
    let (every, count) = (args.snapshot_frequency as i32, args.num_opponents as i32);
    let due = (updates % every).eq(0);
    let slot = (div(updates, every) - 1) % count;
    let leaves: Vec<Tensor> = tree::leaves(&past)
        .into_iter()
        .zip(tree::leaves(agent))
        .map(|(past, now): (Tensor, Tensor)| {
            let rest = vec![1; now.rank()];
            let here = iota([args.num_opponents], 0, DType::I32).eq(slot) & due;
            let here = here.reshape([&[args.num_opponents], &rest[..]].concat());
            let now = now.expand_dims(0).broadcast_to(past.shape());
            where_(here.broadcast_to(past.shape()), now, past)
        })
        .collect();
    tree::replace(&past, leaves)
}

/// Plays two games per environment against a player that takes uniformly random valid actions: the
/// agent moves first in one and second in the other. Returns 1, 0 or -1 for each game won, drawn or
/// lost, `f32[2 N]`, with the two games of an environment adjacent. Compiled as one program.
fn match_random(
    envs: &XlaPool,
    handle: Handle<Tensor>,
    agent: &Agent<Tensor>,
    key: Key<Tensor>,
    sizes: &Masked,
) -> (Handle<Tensor>, Tensor) {
    let mut handle = handle;
    let mut outcomes = Vec::new();
    let any = |features: Tensor| zeros([features.dim(0), sizes.choices()], DType::F32);
    for (begins, key) in [true, false].into_iter().zip(key.split_vec(2)) {
        let (next, first) = envs.reset(handle);
        let (key, opening) = key.split();
        let (next, obs) = if begins {
            (next, first.obs)
        } else {
            let (features, allowed) = sizes.split(first.obs);
            let any = MultiCategorical::new(any(features), allowed, &sizes.nvec);
            let (next, told) = envs.step(next, any.sample(opening));
            (next, told.obs)
        };
        let turn = |(handle, obs, open, key): Going<Tensor>, ()| {
            let [key, draw, reply] = key.split_n();
            let action = agent.apply(obs, sizes).0.sample(draw);
            let (handle, told) = both(envs, handle, action, any, reply, sizes);
            // Only the first game of each environment counts; otherwise short games would be
            // overrepresented.
            let outcome = where_(open, told.reward, zeros_like(told.reward));
            ((handle, told.obs, open & !told.end, key), outcome)
        };
        let open = zeros([obs.dim(0)], DType::F32).eq(0.0);
        let length = ScanOptions::length(TURNS);
        let (end, rewards) = scan_with(turn, (next, obs, open, key), (), length);
        handle = end.0;
        outcomes.push(rewards.sum(0));
    }
    (handle, stack(&outcomes, 1).ravel())
}

/// Loop state of a match: environment handle, observation, true where the first game is not over,
/// and PRNG key.
type Going<T> = (Handle<T>, T, T, Key<T>);

// ------------------------------------------------------------------------------------- training

fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// Returns the observation and action sizes of the environment, or an error if this algorithm does
/// not support its spaces.
fn sizes(pool: &EnvPool) -> Result<Masked> {
    spaces::masked("ppo_self_play", pool.spec(), 2)
}

fn begin(key: Key<Tensor>, sizes: &Masked) -> TrainState<Tensor> {
    Learner::new(Agent::init(key, sizes))
}

/// Arguments of a match.
type Match<T> = (Handle<T>, Agent<T>, Key<T>);

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let games = pool(args, args.num_envs, args.run.seed)?;
    let sizes = sizes(&games)?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;

    let (handle, envs) = games.xla()?;
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent) = key.split();
        let (handle, first) = envs.reset(handle);
        let train = begin(agent, &sizes);
        let past = (args.num_opponents > 0).then(|| {
            tree::map(train.agent.clone(), |x: Tensor| {
                let shape = [&[args.num_opponents], &x.shape()[..]].concat();
                x.expand_dims(0).broadcast_to(shape)
            })
        });
        let turns = zeros([args.num_envs], DType::I32);
        let playing = Playing { handle, obs: first.obs, turns, key };
        Running { train, past, updates: constant(0i32), playing }
    })
    .named("ppo_self_play_init");
    let learn = with_mode(mode, |(running, rate): (Running<Tensor>, Tensor)| {
        iteration(&envs, running, rate, &sizes, args)
    })
    .named("ppo_self_play")
    .check_nans(args.run.check_nans);
    let (mut match_handle, match_envs) =
        pool(args, MATCH, args.run.seed.wrapping_add(1 << 32))?.xla()?;
    let matches = with_mode(mode, |(handle, agent, key): Match<Tensor>| {
        match_random(&match_envs, handle, &agent, key, &sizes)
    })
    .named("ppo_self_play_match");

    let seed = Key::new(args.run.seed);
    let mut running = trainer.init_or_resume(init.call((handle, seed))?, &envs)?;
    let steps = args.batch_size() as u64;
    while trainer.should_continue() {
        let _span = timeline::span("iteration");
        let update = trainer.global_step() / steps;
        let rate = annealed(args.learning_rate, args.anneal_lr, update, args.num_iterations());
        let (next, told) = learn.call((running, Array::from(rate as f32)))?;
        running = next;
        let at = trainer.global_step() + steps;
        let mut scalars = vec![("charts/learning_rate", rate)];
        let rates =
            [("charts/win_rate_present", &told.present), ("charts/win_rate_past", &told.past)];
        for (tag, score) in rates {
            scalars.extend(score.rate()?.map(|rate| (tag, rate)));
        }
        if args.eval_frequency > 0 && (update + 1).is_multiple_of(args.eval_frequency) {
            let key = Key::new(args.run.seed.wrapping_add(update));
            let agent = running.train.agent.clone();
            let (handle, outcomes) = matches.call((match_handle, agent, key))?;
            match_handle = handle;
            let outcomes = outcomes.to_vec::<f32>()?;
            let won = outcomes.iter().map(|&x| f64::from(x + 1.0) / 2.0).sum::<f64>();
            scalars.push(("eval/win_rate_random", won / outcomes.len() as f64));
        }
        trainer.run.events.scalars(&scalars, at)?;
        trainer.record(&told.games.to_vec()?, Some(&told.report))?;
        trainer.checkpoint_if_due(&running, &envs)?;
    }
    let compile_s = init.stats().seconds() + learn.stats().seconds() + matches.stats().seconds();
    trainer.finish(&running.train, compile_s)
}

/// Evaluates a saved model against a random player; the two take turns at moving first.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // The seed differs from that of training.
    let episodes = evaluation.episodes();
    let pool = pool(args, episodes.div_ceil(2).max(1), args.run.seed.wrapping_add(1 << 33))?;
    let sizes = sizes(&pool)?;
    let agent = load_model(model, |key| begin(key, &sizes))?.agent;
    let seed = Key::new(args.run.seed);
    let (handle, envs) = pool.xla()?;
    let matches = with_mode(args.run.mode, |(handle, agent, key): Match<Tensor>| {
        match_random(&envs, handle, &agent, key, &sizes)
    })
    .named("ppo_self_play_match");
    let (_, outcomes) = matches.call((handle, agent, seed))?;
    let outcomes = outcomes.to_vec::<f32>()?;
    evaluation.returns.extend(outcomes.iter().take(episodes).map(|&x| f64::from(x)));
    Ok(())
}
