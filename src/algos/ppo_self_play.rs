//! Proximal policy optimization (PPO) by self-play in two-player games: one network plays against
//! itself and against past snapshots of itself, in the spirit of CleanRL's `ppo_self_play.py`. A
//! rollout, the update on it and the snapshots are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ppo_self_play.md`.

use crate::distributions::MultiCategorical;
use crate::nn::{Dense, init::orthogonal};
use crate::random::permutation;
use crate::rl::Evaluation;
use crate::rl::environments::spaces::Masked;
use crate::rl::prelude::*;
use crate::trace::ops::{concatenate, div, iota};

// ------------------------------------------------------------------------------------- settings

/// PPO by self-play in games of two players
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "ConnectFour-v0")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "2000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "16")]
    pub num_envs: usize,
    /// The number of past snapshots of the agent that it plays against, in equal shares
    #[arg(long, default_value = "3")]
    pub num_opponents: usize,
    /// The number of updates between snapshots of the agent
    #[arg(long, default_value = "25")]
    pub snapshot_frequency: u64,
    /// The number of updates between evaluations against a random player; 0 disables them
    #[arg(long, default_value = "50")]
    pub eval_frequency: u64,
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
}

impl Args {
    /// Number of samples per update.
    fn batch_size(&self) -> usize {
        self.num_envs * self.num_steps
    }

    /// Number of environments in which the opponent is the current agent, or one of the snapshots.
    fn envs_per_opponent(&self) -> usize {
        self.num_envs / (self.num_opponents + 1)
    }

    fn check(&self) -> Result<()> {
        batches(self.num_envs, self.num_steps, self.num_minibatches, self.total_timesteps)?;
        let shares = self.num_opponents + 1;
        ensure(
            self.num_envs.is_multiple_of(shares),
            "num-envs",
            self.num_envs,
            &format!("a multiple of --num-opponents plus one, {shares}"),
        )
    }
}

registered_algorithm!(
    Args,
    "ppo_self_play",
    TWO_PLAYERS,
    Args::check,
    train,
    policy,
    play = evaluate
);

/// Number of environments in an evaluation against a random player during training.
const EVAL_ENVS: usize = 64;
/// Maximum number of moves of a player in an episode of an evaluation.
const MAX_MOVES: usize = 64;

// -------------------------------------------------------------------------------------- network

/// Actor-critic network: two shared hidden layers of 128 units, a policy head and a value head.
#[derive(Debug, Clone, Tree)]
pub struct Agent<T> {
    pub hidden: [Dense<T>; 2], // hidden layers from features
    pub actor: Dense<T>,       // layer from hidden units to the logits of all action components
    pub critic: Dense<T>,      // layer from hidden units to values
    pub sizes: Masked,
}

impl Agent<Tensor> {
    /// Initializes an agent for observations and actions of the given sizes.
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
            sizes: sizes.clone(),
        }
    }

    fn features(&self, obs: Tensor) -> Tensor {
        self.hidden[1].apply(self.hidden[0].apply(obs).relu()).relu()
    }

    /// Returns the action logits `f32[B, choices]` at observations without mask, `f32[B, features]`.
    fn logits(&self, obs: Tensor) -> Tensor {
        self.actor.apply(self.features(obs))
    }

    /// Returns the policy and the values `f32[B]` at observations `[B, features + choices]`.
    pub fn policy_and_value(&self, obs: Tensor) -> (MultiCategorical<Tensor>, Tensor) {
        let (obs, allowed) = self.sizes.split(obs);
        let features = self.features(obs);
        let policy =
            MultiCategorical::masked(self.actor.apply(features), allowed, &self.sizes.nvec);
        (policy, self.critic.apply(features).squeeze(-1))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub agent: Agent<T>,
    pub opt_state: AdamState<T, Agent<T>>,
}

/// Initializes an agent and its optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Masked) -> TrainState<Tensor> {
    let agent = Agent::init(key, sizes);
    TrainState { opt_state: Adam::default().init(&agent), agent }
}

// ------------------------------------------------------------------------------------ opponents

/// Returns the logits of the opponents: the current agent in the first share of the environments,
/// and each snapshot in one of the other shares.
fn opponent_logits(
    agent: &Agent<Tensor>,
    snapshots: &Option<Agent<Tensor>>,
    obs: Tensor,
    args: &Args,
) -> Tensor {
    let Some(snapshots) = snapshots else { return agent.logits(obs) };
    let (share, obs_size) = (args.envs_per_opponent(), obs.dim(1));
    let current = agent.logits(obs.slice_axis(0, 0, share)); // f32[N / (K + 1), choices]
    let others = obs.slice_axis(0, share, args.num_envs);
    let others = others.reshape([args.num_opponents, share, obs_size]);
    let logits = |(agent, obs): (Agent<Tensor>, Tensor)| agent.logits(obs);
    let past = vmap(logits)((snapshots.clone(), others)); // f32[K, N / (K + 1), choices]
    concatenate(&[current, past.reshape([args.num_opponents * share, current.dim(1)])], 0)
}

/// Returns copies of the agent as its first snapshots, `[num_opponents, ..]`.
fn init_snapshots(agent: &Agent<Tensor>, args: &Args) -> Agent<Tensor> {
    tree::map(agent.clone(), |x: Tensor| {
        let shape = [&[args.num_opponents], &x.shape()[..]].concat();
        x.expand_dims(0).broadcast_to(shape)
    })
}

/// Replaces the oldest snapshot by the agent if a snapshot is due after `num_updates: i32[]`
/// updates.
fn update_snapshots(
    snapshots: Agent<Tensor>,
    agent: &Agent<Tensor>,
    num_updates: Tensor,
    args: &Args,
) -> Agent<Tensor> {
    let (frequency, count) = (args.snapshot_frequency as i32, args.num_opponents as i32);
    let is_due = (num_updates % frequency).eq(0);
    let oldest = (div(num_updates, frequency) - 1) % count;
    let replace = |(snapshots, current): (Tensor, Tensor)| {
        let is_replaced = iota([args.num_opponents], 0, DType::I32).eq(oldest) & is_due;
        let shape = [&[args.num_opponents], &vec![1; current.rank()][..]].concat();
        let is_replaced = is_replaced.reshape(shape).broadcast_to(snapshots.shape());
        let current = current.expand_dims(0).broadcast_to(snapshots.shape());
        where_(is_replaced, current, snapshots)
    };
    let leaves = tree::leaves(&snapshots).into_iter().zip(tree::leaves(agent));
    tree::replace(&snapshots, leaves.map(replace).collect::<Vec<Tensor>>())
}

/// Numbers of episodes won, drawn and lost; `f32[]` each.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Score<T> {
    pub wins: T,
    pub draws: T,
    pub losses: T,
}

impl Score<Tensor> {
    /// Counts the outcomes `rewards: f32[..]` where `dones: f32[..]` is 1.
    fn count(rewards: Tensor, dones: Tensor) -> Score<Tensor> {
        let count = |which: Tensor| (which & dones.gt(0.5)).to(DType::F32).sum(..);
        Score {
            wins: count(rewards.gt(0.0)),
            draws: count(rewards.eq(0.0)),
            losses: count(rewards.lt(0.0)),
        }
    }
}

impl Score<Array> {
    /// Returns the win rate, where a draw counts as half a win; `None` without episodes.
    fn win_rate(&self) -> Result<Option<f64>> {
        let wins = f64::from(self.wins.item::<f32>()?);
        let draws = f64::from(self.draws.item::<f32>()?);
        let episodes = wins + draws + f64::from(self.losses.item::<f32>()?);
        Ok((episodes > 0.0).then(|| (wins + draws / 2.0) / episodes))
    }
}

// -------------------------------------------------------------------------------------- rollout

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>,  // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T, // [N, features + choices]: last observations, in the environment's dtype
    pub episodic_length: T, // i32[N]: number of the learner's moves in each episode so far
    pub key: Key<T>,
}

/// Rollout of T steps of N environments.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Rollout<T> {
    pub obs: T,      // [T, N, features + choices]: observations, in the environment's dtype
    pub actions: T,  // i32[T, N, components]
    pub logprobs: T, // f32[T, N]: log probabilities of the actions
    pub values: T,   // f32[T, N]: values of the observations
    pub rewards: T,  // f32[T, N]
    pub dones: T,    // f32[T, N]: 1 where the step ended its episode
    pub next_obs: T, // [N, features + choices]: observations after the last step
}

/// Result of a move of the learner and a move of the opponent.
#[derive(Debug, Clone, Copy, Tree)]
struct StepOutput<T> {
    /// `[N, features + choices]`: next observations of the learner.
    obs: T,
    /// `f32[N]`: 1 if the learner won, -1 if it lost, else 0.
    reward: T,
    /// `bool[N]`: true if either move ended the episode.
    done: T,
}

/// Steps all environments twice: with the learner's actions, and with actions of the opponent,
/// sampled from the logits that `opponent` returns. Where the learner's move ended the episode, the
/// opponent's move is the first of the next one.
fn step_both_players(
    envs: &XlaPool,
    handle: Handle<Tensor>,
    action: Tensor,
    opponent: impl Fn(Tensor) -> Tensor,
    key: Key<Tensor>,
    sizes: &Masked,
) -> (Handle<Tensor>, StepOutput<Tensor>) {
    let (handle, own_step) = envs.step(handle, action);
    let (obs, allowed) = sizes.split(own_step.obs);
    let reply = MultiCategorical::masked(opponent(obs), allowed, &sizes.nvec).sample(key);
    let (handle, reply_step) = envs.step(handle, reply);
    let reward = own_step.reward - reply_step.reward;
    let done = own_step.done() | reply_step.done();
    (handle, StepOutput { obs: reply_step.obs, reward, done })
}

/// Plays one move of the learner and one of the opponents in all environments. Returns the
/// observations, actions, log probabilities, values, rewards and ends of episodes of this step.
fn env_step(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    snapshots: &Option<Agent<Tensor>>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, ([Tensor; 6], EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, episodic_length, key } = env_state;
    let [key, action_key, reply_key] = key.split_n();
    let (policy, value) = agent.policy_and_value(obs);
    let action = policy.sample(action_key);
    let logprob = policy.log_prob(action);
    let opponent = |obs| opponent_logits(agent, snapshots, obs, args);
    let (handle, step) = step_both_players(envs, handle, action, opponent, reply_key, &agent.sizes);
    let transition = [obs, action, logprob, value, step.reward, step.done.to(DType::F32)];
    let episodic_length = episodic_length + 1;
    let episodes =
        EpisodeStats { finished: step.done, episodic_return: step.reward, episodic_length };
    let episodic_length = where_(step.done, zeros_like(episodic_length), episodic_length);
    (EnvState { handle, obs: step.obs, episodic_length, key }, (transition, episodes))
}

/// Collects a rollout of `num_steps` steps of all environments.
fn collect_rollout(
    envs: &XlaPool,
    agent: &Agent<Tensor>,
    snapshots: &Option<Agent<Tensor>>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, Rollout<Tensor>, EpisodeStats<Tensor>) {
    let step = |env_state, ()| env_step(envs, agent, snapshots, env_state, args);
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
    pub obs: T,        // [B, features + choices]: observations, in the environment's dtype
    pub actions: T,    // i32[B, components]
    pub logprobs: T,   // f32[B]: log probabilities under the policy that acted
    pub advantages: T, // f32[B]
    pub returns: T,    // f32[B]
    pub values: T,     // f32[B]: values at the time of the rollout
}

/// Returns the samples of a rollout and the explained variance of its values,
/// `1 - var(R - v) / var(R)`.
pub fn make_samples(
    agent: &Agent<Tensor>,
    rollout: Rollout<Tensor>,
    args: &Args,
) -> (Samples<Tensor>, Tensor) {
    let Rollout { obs, actions, logprobs, values, rewards, dones, next_obs } = rollout;
    let (_, next_value) = agent.policy_and_value(next_obs); // f32[N]
    let (advantages, returns) =
        compute_gae(rewards, dones, values, next_value, (args.gamma, args.gae_lambda));
    let explained = explained_variance(values, returns);
    let samples = Samples { obs, actions, logprobs, advantages, returns, values };
    (merge_time_and_env(samples), explained)
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
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
    let (policy, value) = agent.policy_and_value(batch.obs);
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
/// `i32[update_epochs * num_minibatches, minibatch_size]`.
fn minibatch_indices(key: Key<Tensor>, args: &Args) -> Tensor {
    let keys = key.split_vec(args.update_epochs).into_iter();
    let orders: Vec<Tensor> = keys.map(|key| permutation(key, args.batch_size())).collect();
    let minibatch_size = args.batch_size() / args.num_minibatches;
    stack(&orders, 0).reshape([args.update_epochs * args.num_minibatches, minibatch_size])
}

/// Takes `num_minibatches` gradient steps in each of `update_epochs` epochs. Returns the metrics of
/// the last gradient step, with the mean `clipfrac` of all.
pub fn run_epochs(
    train_state: TrainState<Tensor>,
    samples: Samples<Tensor>,
    key: Key<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let step = |train_state, indices| {
        gradient_step(train_state, &gather_minibatch(samples, indices), learning_rate, args)
    };
    let (train_state, metrics) = scan(step, train_state, minibatch_indices(key, args));
    let last = tree::map(metrics, |x: Tensor| x.index_axis(0, -1));
    (train_state, Metrics { clipfrac: metrics.clipfrac.mean(..), ..last })
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
    let (samples, explained_variance) = make_samples(&train_state.agent, rollout, args);
    let (train_state, last) = run_epochs(train_state, samples, key, learning_rate, args);
    (train_state, UpdateMetrics { last, explained_variance })
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    /// Past snapshots of the agent, `[num_opponents, ..]`; `None` with `--num-opponents 0`.
    pub snapshots: Option<Agent<T>>,
    pub num_updates: T, // i32[]: number of updates so far
    pub env_state: EnvState<T>,
}

/// Scores of a rollout.
#[derive(Debug, Clone, Copy, Tree)]
struct Scores<T> {
    /// Score against the current agent.
    present: Score<T>,
    /// Score against the snapshots.
    past: Score<T>,
}

/// Outputs of an iteration: episodes, metrics of the update and scores.
type IterationOutput<T> = (EpisodeStats<T>, UpdateMetrics<T>, Scores<T>);

/// Collects a rollout, updates on it and updates the snapshots; compiled as one program.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning_rate: Tensor,
    args: &Args,
) -> (RunnerState<Tensor>, IterationOutput<Tensor>) {
    let RunnerState { train_state, snapshots, num_updates, env_state } = state;
    let (mut env_state, rollout, episodes) =
        collect_rollout(envs, &train_state.agent, &snapshots, env_state, args);
    let score = |from, to| {
        let [rewards, dones] = [rollout.rewards, rollout.dones].map(|x| x.slice_axis(1, from, to));
        Score::count(rewards, dones)
    };
    let share = args.envs_per_opponent();
    let scores = Scores { present: score(0, share), past: score(share, args.num_envs) };
    let (key, shuffle_key) = env_state.key.split();
    env_state.key = key;
    let (train_state, metrics) = update(train_state, rollout, shuffle_key, learning_rate, args);
    let num_updates = num_updates + 1;
    let snapshots = snapshots
        .map(|snapshots| update_snapshots(snapshots, &train_state.agent, num_updates, args));
    let state = RunnerState { train_state, snapshots, num_updates, env_state };
    (state, (episodes, metrics, scores))
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::masked(args, 2, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let mut trainer = Trainer::start(args, args.batch_size() as u64)?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, agent_key) = key.split();
        let train_state = init_train_state(agent_key, &sizes);
        let (handle, first) = envs.reset(handle);
        let snapshots = (args.num_opponents > 0).then(|| init_snapshots(&train_state.agent, args));
        let episodic_length = zeros([args.num_envs], DType::I32);
        let env_state = EnvState { handle, obs: first.obs, episodic_length, key };
        RunnerState { train_state, snapshots, num_updates: constant(0i32), env_state }
    });
    let iteration =
        trainer.jit("iteration", |(state, rate)| train_iteration(&envs, state, rate, args));
    let (eval_pool, _) = pools::masked(args, 2, EVAL_ENVS, args.run.eval_seed())?;
    let (mut eval_handle, eval_envs) = eval_pool.xla()?;
    let play_random =
        trainer.jit("random", |(handle, agent, key)| play_random(&eval_envs, handle, &agent, key));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let iterations = trainer.iteration() + 1;
        let learning_rate = trainer.learning_rate(args.learning_rate, args.anneal_lr);
        let (next_state, (episodes, metrics, scores)) = iteration.call((state, learning_rate))?;
        state = next_state;
        trainer.record(&episodes.to_vec()?, Some(&metrics))?;
        if let Some(rate) = scores.present.win_rate()? {
            trainer.log(&[("charts/win_rate_present", rate)])?;
        }
        if let Some(rate) = scores.past.win_rate()? {
            trainer.log(&[("charts/win_rate_past", rate)])?;
        }
        if args.eval_frequency > 0 && iterations.is_multiple_of(args.eval_frequency) {
            let key = Key::new(args.run.seed.wrapping_add(iterations - 1));
            let agent = state.train_state.agent.clone();
            let (handle, outcomes) = play_random.call((eval_handle, agent, key))?;
            eval_handle = handle;
            let outcomes = outcomes.to_vec::<f32>()?;
            let wins = outcomes.iter().map(|&x| f64::from(x + 1.0) / 2.0).sum::<f64>();
            trainer.log(&[("eval/win_rate_random", wins / outcomes.len() as f64)])?;
        }
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

// ----------------------------------------------------------------------------------- evaluation

/// Loop state of an evaluation: environment handle, observations, `bool[N]` that is true where the
/// first episode is not over, and PRNG key.
type EvalState<T> = (Handle<T>, T, T, Key<T>);

/// Plays two episodes per environment against a player that takes uniformly random valid actions:
/// the agent moves first in one and second in the other. Returns 1, 0 or -1 for each episode won,
/// drawn or lost, `f32[2 N]`, with the two episodes of an environment adjacent. Compiled as one
/// program.
fn play_random(
    envs: &XlaPool,
    mut handle: Handle<Tensor>,
    agent: &Agent<Tensor>,
    key: Key<Tensor>,
) -> (Handle<Tensor>, Tensor) {
    let sizes = &agent.sizes;
    let random_logits = |obs: Tensor| zeros([obs.dim(0), sizes.choices()], DType::F32);
    let mut outcomes = Vec::new();
    for (moves_first, key) in [true, false].into_iter().zip(key.split_vec(2)) {
        let (reset_handle, first) = envs.reset(handle);
        let (key, opening_key) = key.split();
        let (next_handle, obs) = if moves_first {
            (reset_handle, first.obs)
        } else {
            let (obs, allowed) = sizes.split(first.obs);
            let policy = MultiCategorical::masked(random_logits(obs), allowed, &sizes.nvec);
            let (handle, step) = envs.step(reset_handle, policy.sample(opening_key));
            (handle, step.obs)
        };
        let step = |(handle, obs, is_first_episode, key): EvalState<Tensor>, ()| {
            let [key, action_key, reply_key] = key.split_n();
            let action = agent.policy_and_value(obs).0.sample(action_key);
            let (handle, step) =
                step_both_players(envs, handle, action, random_logits, reply_key, sizes);
            // Only the first episode of each environment counts; otherwise short episodes would be
            // overrepresented.
            let outcome = where_(is_first_episode, step.reward, zeros_like(step.reward));
            ((handle, step.obs, is_first_episode & !step.done, key), outcome)
        };
        let is_first_episode = zeros([obs.dim(0)], DType::F32).eq(0.0);
        let init = (next_handle, obs, is_first_episode, key);
        let (last, rewards) = scan_with(step, init, (), ScanOptions::length(MAX_MOVES));
        handle = last.0;
        outcomes.push(rewards.sum(0));
    }
    (handle, stack(&outcomes, 1).ravel())
}

/// Evaluates a saved model against a random player; the two take turns at moving first.
fn evaluate(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let episodes = evaluation.episodes();
    // A seed that neither training nor its evaluations use.
    let seed = args.run.seed.wrapping_add(1 << 33);
    let (pool, sizes) = pools::masked(args, 2, episodes.div_ceil(2).max(1), seed)?;
    let agent = load_model(model, |key| init_train_state(key, &sizes))?.agent;
    let (handle, envs) = pool.xla()?;
    let play_random = jit(|(handle, agent, key)| play_random(&envs, handle, &agent, key))
        .with_mode(args.run.mode)
        .named("ppo_self_play_random");
    let (_, outcomes) = play_random.call((handle, agent, Key::new(args.run.seed)))?;
    let outcomes = outcomes.to_vec::<f32>()?;
    evaluation.returns.extend(outcomes.iter().take(episodes).map(|&x| f64::from(x)));
    Ok(())
}

/// Returns the policy of a saved model: the mode and the logits. Evaluations sample the choices.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::masked(args, 2, 1, args.run.eval_seed())?;
    let agent = load_model(model, |key| init_train_state(key, &sizes))?.agent;
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_multi_categorical(agent.policy_and_value(obs).0)
    }))
}
