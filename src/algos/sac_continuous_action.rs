//! Soft actor-critic for continuous actions: CleanRL's `sac_continuous_action.py` (Haarnoja et al.
//! 2018), with acting, storing, drawing and learning in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/sac_continuous_action.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::distributions::{TanhCorrection, TanhNormal};
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Activation, Dense, Mlp};
use crate::optim::{Adam, AdamState, incremental_update};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::expect;
use crate::rl::replay::{Replay, joined};
use crate::rl::saved::load_tree;
use crate::rl::spaces::{self, Bounds};
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{concatenate, constant, where_};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "SAC for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "sac_continuous_action")]
    pub exp_name: String,
    /// Flags that every algorithm has
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Hopper-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 1_000_000)]
    pub total_timesteps: u64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// How much of the networks the targets take over
    #[arg(long, default_value_t = 0.005)]
    pub tau: f64,
    /// The number of transitions of a gradient step
    #[arg(long, default_value_t = 256)]
    pub batch_size: usize,
    /// Timesteps before learning starts; until then actions are uniform
    #[arg(long, default_value_t = 5_000)]
    pub learning_starts: u64,
    /// The learning rate of the policy's optimiser
    #[arg(long, default_value_t = 3e-4)]
    pub policy_lr: f64,
    /// The learning rate of the critics' optimiser, and of the temperature's
    #[arg(long, default_value_t = 1e-3)]
    pub q_lr: f64,
    /// Steps of the critics between updates of the actor, which are then as many
    #[arg(long, default_value_t = 2)]
    pub policy_frequency: usize,
    /// Steps of the critics between updates of their targets
    #[arg(long, default_value_t = 1)]
    pub target_network_frequency: usize,
    /// The temperature of the entropy, if it is not learned
    #[arg(long, default_value_t = 0.2)]
    pub alpha: f64,
    /// Learn the temperature
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub autotune: bool,
    /// Updates of the actor in one call of the program, after which losses are logged; 0 takes those
    /// of about 100 timesteps. The results are the same
    #[arg(long, default_value_t = 0)]
    pub rounds_per_call: usize,
}

impl Args {
    /// Rounds of one update of the actor in one call of the program.
    fn rounds(&self) -> usize {
        match self.rounds_per_call {
            0 => 100_usize.div_ceil(self.policy_frequency),
            rounds => rounds,
        }
    }

    /// Timesteps of a call.
    fn steps(&self) -> u64 {
        (self.rounds() * self.policy_frequency) as u64
    }

    fn check(&self) -> Result<()> {
        let positive = "at least 1";
        expect(self.batch_size > 0, "batch-size", self.batch_size, positive)?;
        let frequency = self.policy_frequency;
        expect(frequency > 0, "policy-frequency", frequency, positive)?;
        let targets = self.target_network_frequency;
        expect(
            targets > 0 && i32::try_from(targets).is_ok(),
            "target-network-frequency",
            targets,
            &format!("1 to {}", i32::MAX),
        )?;
        let steps = self.steps();
        expect(
            self.total_timesteps >= steps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least {steps}, the timesteps of one call"),
        )?;
        expect(
            self.buffer_size > 0 && i32::try_from(self.buffer_size).is_ok(),
            "buffer-size",
            self.buffer_size,
            &format!("1 to {}", i32::MAX),
        )?;
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        for (flag, x) in [("gamma", self.gamma), ("tau", self.tau)] {
            expect(unit(x), flag, x, "between 0 and 1")?;
        }
        for (flag, x) in [("policy-lr", self.policy_lr), ("q-lr", self.q_lr)] {
            expect(x.is_finite() && x >= 0.0, flag, x, "a number not below 0")?;
        }
        let alpha = self.alpha;
        expect(alpha.is_finite() && alpha > 0.0, "alpha", alpha, "a number above 0")?;
        Ok(())
    }
}

algorithm!(Args, "sac_continuous_action", train, play_model);

// -------------------------------------------------------------------------------------- network

/// Two hidden layers of 256 units, which start as PyTorch's do.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    let [first, second, head] = key.split_n();
    let layers = vec![
        Dense::init_torch(first, inputs, 256),
        Dense::init_torch(second, 256, 256),
        Dense::init_torch(head, 256, outputs),
    ];
    Mlp { layers, activation: Activation::Relu }
}

/// The policy and the two critics.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// Observations to `[.., 2 A]`: means of the actions before the squashing, and what becomes
    /// their spread.
    pub actor: Mlp<T>,
    /// Observations and actions to values.
    pub critics: [Mlp<T>; 2],
}

impl Networks<Tensor> {
    /// New networks.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Networks<Tensor> {
        let [actor, first, second] = key.split_n();
        Networks {
            actor: network(actor, obs_size, 2 * action_size),
            critics: [first, second].map(|key| network(key, obs_size + action_size, 1)),
        }
    }
}

/// The range of the logarithm of the policy's spread.
const LOG_STD: [f64; 2] = [-5.0, 2.0];
/// Haarnoja et al. 2018 add this within the logarithm of the squashing's derivative.
const CORRECTION: TanhCorrection = TanhCorrection::Clipped(1e-6);

/// The distribution of actions `[B, A]` at `obs: f32[B, obs_size]`.
pub fn policy(actor: &Mlp<Tensor>, obs: Tensor, bounds: &Bounds) -> TanhNormal<Tensor> {
    let heads = actor.apply(obs).split(2, -1);
    let (mean, raw) = (heads[0], heads[1]);
    let [low, high] = LOG_STD;
    let log_std = low + 0.5 * (high - low) * (raw.tanh() + 1.0);
    TanhNormal::within(mean, log_std.exp(), bounds.low(), bounds.high())
}

/// The value `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
fn value(critic: &Mlp<Tensor>, obs: Tensor, action: Tensor) -> Tensor {
    critic.apply(concatenate(&[obs, action], -1)).squeeze(-1)
}

/// One step of the environment.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Transition<T> {
    /// `f32[obs_size]`
    pub obs: T,
    /// `f32[A]`
    pub action: T,
    /// `f32[]`
    pub reward: T,
    /// `f32[obs_size]`: what followed, also where an episode ended there.
    pub next_obs: T,
    /// `f32[]`: 1 where the episode ended by the rules of the task.
    pub terminated: T,
}

/// Adam's moments.
#[derive(Debug, Tree)]
pub struct Optimizers<T> {
    /// Of the actor.
    pub actor: AdamState<T, Mlp<T>>,
    /// Of the critics.
    pub critics: AdamState<T, [Mlp<T>; 2]>,
    /// Of the temperature.
    pub log_alpha: AdamState<T, Temperature<T>>,
}

/// The temperature of the entropy.
#[derive(Debug, Clone, Tree)]
pub struct Temperature<T> {
    /// Its logarithm, `f32[]`.
    pub log_alpha: T,
}

/// The networks and what changes with them.
#[derive(Debug, Tree)]
pub struct Learner<T> {
    /// The networks.
    pub networks: Networks<T>,
    /// The critics' targets.
    pub targets: [Mlp<T>; 2],
    /// The temperature of the entropy.
    pub temperature: Temperature<T>,
    /// Adam's moments.
    pub optimizers: Optimizers<T>,
}

/// What training changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The networks.
    pub learner: Learner<T>,
    /// The transitions to learn from.
    pub replay: Replay<T, Transition<T>>,
    /// The environment between two steps.
    pub playing: Playing<T>,
}

/// The environment between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step it.
    pub handle: Handle<T>,
    /// `f32[1, obs_size]`
    pub obs: T,
    /// The randomness to come.
    pub key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// What the critics learn, `f32[B]`: the smaller of the targets' values of an action of the policy,
/// and `alpha` times its surprise.
pub fn goal(
    actor: &Mlp<Tensor>,
    targets: &[Mlp<Tensor>; 2],
    alpha: Tensor,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    gamma: f64,
) -> Tensor {
    let policy = policy(actor, batch.next_obs, bounds);
    let (action, log_prob) = policy.sample_and_log_prob(key, CORRECTION);
    let next = lower_value(targets, batch.next_obs, action) - alpha * log_prob;
    batch.reward + gamma * (1.0 - batch.terminated) * next
}

/// The sum of both critics' mean squared errors, and what is logged of them.
pub fn critic_loss(
    critics: &[Mlp<Tensor>; 2],
    batch: &Transition<Tensor>,
    goal: Tensor,
) -> (Tensor, CriticMetrics<Tensor>) {
    let [first, second] = critics.each_ref().map(|critic| value(critic, batch.obs, batch.action));
    let [first_loss, second_loss] = [first, second].map(|value| (value - goal).square().mean(..));
    let metrics = CriticMetrics {
        qf1_loss: first_loss,
        qf2_loss: second_loss,
        qf1_values: first.mean(..),
        qf2_values: second.mean(..),
    };
    (first_loss + second_loss, metrics)
}

/// `mean(alpha log pi(a) - min_i Q_i(s, a))` for the policy's actions at `noise: f32[B, A]`, which is
/// of the standard normal distribution.
pub fn actor_loss(
    actor: &Mlp<Tensor>,
    critics: &[Mlp<Tensor>; 2],
    alpha: Tensor,
    obs: Tensor,
    noise: Tensor,
    bounds: &Bounds,
) -> Tensor {
    let policy = policy(actor, obs, bounds);
    let x = policy.normal.mean + policy.normal.std * noise;
    let (action, log_prob) =
        (x.tanh() * policy.scale + policy.bias, policy.log_prob_unsquashed(x, CORRECTION));
    (alpha * log_prob - lower_value(critics, obs, action)).mean(..)
}

/// `mean(-alpha (log pi(a) + target))`, for log probabilities `f32[B]` of actions of the policy. The
/// target of the entropy is minus the number of the action's elements.
pub fn alpha_loss(temperature: &Temperature<Tensor>, log_prob: Tensor, target: f64) -> Tensor {
    (-temperature.log_alpha.exp() * (log_prob + target)).mean(..)
}

/// The smaller of two critics' values, `f32[B]`.
fn lower_value(critics: &[Mlp<Tensor>; 2], obs: Tensor, action: Tensor) -> Tensor {
    let [first, second] = critics.each_ref().map(|critic| value(critic, obs, action));
    first.minimum(second)
}

// --------------------------------------------------------------------------------------- update

/// What is logged of the critics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct CriticMetrics<T> {
    /// The first critic's loss.
    pub qf1_loss: T,
    /// The second's.
    pub qf2_loss: T,
    /// The first critic's mean value of the actions taken.
    pub qf1_values: T,
    /// The second's.
    pub qf2_values: T,
}

/// What is logged; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Of the critics.
    pub critics: CriticMetrics<T>,
    /// The mean of both losses.
    pub qf_loss: T,
    /// The actor's loss.
    pub actor_loss: T,
    /// The temperature.
    pub alpha: T,
    /// The temperature's loss; 0 if it is not learned.
    pub alpha_loss: T,
}

fn adam(learning_rate: f64) -> Adam {
    Adam { learning_rate, ..Adam::default() }
}

/// One gradient step of the critics, and their targets' step.
fn critic_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, CriticMetrics<Tensor>) {
    let Learner { networks: Networks { actor, critics }, targets, temperature, optimizers } =
        learner;
    let alpha = temperature.log_alpha.exp();
    let goal = goal(&actor, &targets, alpha, batch, key, bounds, args.gamma);
    let ((_, metrics), grads) =
        value_and_grad(|critics| critic_loss(&critics, batch, goal))(critics.clone());
    let (critics, moments) = adam(args.q_lr).step(critics, grads, optimizers.critics);
    let moved = incremental_update(&critics, &targets, args.tau);
    let targets = match args.target_network_frequency {
        1 => moved,
        frequency => {
            let due = (moments.count % (frequency as i32)).equal(0);
            let leaves = tree::leaves(&moved).into_iter().zip(tree::leaves(&targets));
            let leaves: Vec<Tensor> =
                leaves.map(|(new, old)| where_(due.broadcast_to(new.shape()), new, old)).collect();
            tree::replace(&targets, leaves)
        }
    };
    let networks = Networks { actor, critics };
    let optimizers = Optimizers { critics: moments, ..optimizers };
    (Learner { networks, targets, temperature, optimizers }, metrics)
}

/// One gradient step of the actor, and of the temperature: their losses.
fn actor_step(
    learner: Learner<Tensor>,
    obs: Tensor,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, (Tensor, Tensor)) {
    let Learner { networks: Networks { actor, critics }, targets, temperature, optimizers } =
        learner;
    let (draw, again) = key.split();
    let alpha = temperature.log_alpha.exp();
    let noise = random::normal(draw, [obs.dim(0), bounds.size()], DType::F32);
    let (loss, grads) = value_and_grad(|actor: Mlp<Tensor>| {
        actor_loss(&actor, &critics, alpha, obs, noise, bounds)
    })(actor.clone());
    let (actor, moments) = adam(args.policy_lr).step(actor, grads, optimizers.actor);
    let mut optimizers = Optimizers { actor: moments, ..optimizers };
    let (mut temperature, mut alpha_loss) = (temperature, constant(0.0f32));
    if args.autotune {
        // Of the policy as it is now.
        let (_, log_prob) = policy(&actor, obs, bounds).sample_and_log_prob(again, CORRECTION);
        let target = -(bounds.size() as f64);
        let (loss, grads) = value_and_grad(|temperature: Temperature<Tensor>| {
            self::alpha_loss(&temperature, log_prob, target)
        })(temperature.clone());
        alpha_loss = loss;
        (temperature, optimizers.log_alpha) =
            adam(args.q_lr).step(temperature, grads, optimizers.log_alpha);
    }
    let networks = Networks { actor, critics };
    (Learner { networks, targets, temperature, optimizers }, (loss, alpha_loss))
}

// -------------------------------------------------------------------------------------- rollout

/// One step of the environment: an action of the policy, or any while
/// `exploring`.
fn play(
    envs: &XlaPool,
    actor: &Mlp<Tensor>,
    playing: Playing<Tensor>,
    exploring: bool,
    bounds: &Bounds,
) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
    let Playing { handle, obs, key } = playing;
    let (key, draw) = key.split();
    let shape = [1, bounds.size()];
    let action = if exploring {
        let unit = random::uniform(draw, shape, DType::F32, 0.0, 1.0);
        bounds.low() + unit * (bounds.high() - bounds.low())
    } else {
        policy(actor, obs, bounds).sample_and_log_prob(draw, CORRECTION).0
    };
    let (handle, told) = envs.step(handle, action);
    let next = told.obs.to(DType::F32);
    // Where an episode ended, `obs` is already the next one's.
    let last = told.final_obs.expect("the pool was asked for it").to(DType::F32);
    let done = told.done().expand_dims(-1).broadcast_to(last.shape());
    let transition = Transition {
        obs,
        action,
        reward: told.reward,
        next_obs: where_(done, last, next),
        terminated: told.terminated.to(DType::F32),
    };
    (Playing { handle, obs: next, key }, transition, Games::of(&told))
}

/// About 100 timesteps: rounds of as many steps of the environment as the actor stays the same for,
/// unless `exploring` as many of the critics, then of the actor. One program.
fn rounds(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    exploring: bool,
    bounds: &Bounds,
    args: &Args,
) -> (TrainState<Tensor>, Games<Tensor>, Metrics<Tensor>) {
    let zero = constant(0.0f32);
    let critics =
        CriticMetrics { qf1_loss: zero, qf2_loss: zero, qf1_values: zero, qf2_values: zero };
    let round = |state: TrainState<Tensor>, ()| {
        let TrainState { mut learner, replay, mut playing } = state;
        let (mut rows, mut games) = (Vec::new(), Vec::new());
        for _ in 0..args.policy_frequency {
            let actor = &learner.networks.actor;
            let (next, row, told) = play(envs, actor, playing, exploring, bounds);
            rows.push(row);
            games.push(told);
            playing = next;
        }
        let replay = replay.add(joined(&rows));
        let games = tree::map(joined(&games), |x: Tensor| x.expand_dims(-1)); // [steps, 1]
        let (mut critics, mut actor_loss, mut alpha_loss) = (critics, zero, zero);
        for turn in 1..=args.policy_frequency {
            if exploring {
                break;
            }
            let Playing { handle, obs, key } = playing;
            let [key, draw, noise, actor_key] = key.split_n();
            playing = Playing { handle, obs, key };
            let batch = replay.sample(draw, args.batch_size);
            (learner, critics) = critic_step(learner, &batch, noise, bounds, args);
            if turn == args.policy_frequency {
                // The actor makes up for the steps it stood still.
                for key in actor_key.split_vec(args.policy_frequency) {
                    (learner, (actor_loss, alpha_loss)) =
                        actor_step(learner, batch.obs, key, bounds, args);
                }
            }
        }
        let metrics = Metrics {
            qf_loss: (critics.qf1_loss + critics.qf2_loss) / 2.0,
            critics,
            actor_loss,
            alpha: learner.temperature.log_alpha.exp(),
            alpha_loss,
        };
        (TrainState { learner, replay, playing }, (games, metrics))
    };
    let count = ScanOptions::length(args.rounds());
    let (state, (games, metrics)) = scan_with(count, round, state, ());
    (state, games, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

// ------------------------------------------------------------------------------------- training

/// The size of the observations and the bounds of the actions; refuses what this algorithm cannot
/// act in.
fn sizes(pool: &EnvPool) -> Result<(usize, Bounds)> {
    let (name, spec) = ("sac_continuous_action", pool.spec());
    Ok((spaces::vector(name, spec)?, spaces::bounds(name, spec)?))
}

fn pool(args: &Args, seed: u64) -> Result<EnvPool> {
    EnvPool::make(&args.env_id, PoolOptions { num_threads: 1, seed, ..Default::default() })
}

/// New networks with their targets and optimisers.
fn learner(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Learner<Tensor> {
    let networks = Networks::init(key, obs_size, action_size);
    let start = if args.autotune { 1.0 } else { args.alpha };
    let temperature = Temperature { log_alpha: constant(start.ln() as f32) };
    let optimizers = Optimizers {
        actor: adam(args.policy_lr).init(&networks.actor),
        critics: adam(args.q_lr).init(&networks.critics),
        log_alpha: adam(args.q_lr).init(&temperature),
    };
    Learner { targets: networks.critics.clone(), networks, temperature, optimizers }
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and what the environment, the
/// compiler, the runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = pool(args, args.run.seed)?;
    let (obs_size, bounds) = sizes(&pool)?;
    let mut trainer = Trainer::start(args)?;

    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, draw) = key.split();
        let [obs, action] = [obs_size, bounds.size()].map(|n| TensorType::new(DType::F32, [n]));
        let number = TensorType::scalar(DType::F32);
        let item = Transition {
            obs: obs.clone(),
            action,
            reward: number.clone(),
            next_obs: obs,
            terminated: number,
        };
        let (handle, first) = envs.reset(handle);
        TrainState {
            learner: learner(draw, obs_size, bounds.size(), args),
            replay: Replay::new(args.buffer_size, item),
            playing: Playing { handle, obs: first.obs.to(DType::F32), key },
        }
    })
    .named("sac_init");
    let go_on = |exploring| {
        let (envs, bounds) = (&envs, &bounds);
        with_mode(mode, move |state| rounds(envs, state, exploring, bounds, args))
    };
    let explore = go_on(true).named("sac_explore");
    let learn = go_on(false).named("sac_rounds").check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut state = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.steps();
    while trainer.goes_on(steps, &state, &envs)? {
        let _span = timeline::span("rounds");
        let learning = trainer.step() >= args.learning_starts;
        let rounds = if learning { &learn } else { &explore };
        let (next, games, metrics) = rounds.call(state)?;
        state = next;
        trainer.tell(steps, &games.list()?, learning.then_some(&metrics))?;
    }
    let compile_s = init.stats().seconds() + explore.stats().seconds() + learn.stats().seconds();
    trainer.finish(&state.learner, compile_s)
}

/// Plays a saved model, with the mean of its policy.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Episodes of another seed than those of the training.
    let pool = pool(args, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, bounds) = sizes(&pool)?;
    let size = bounds.size();
    let like = with_mode(args.run.mode, |key: Key<Tensor>| learner(key, obs_size, size, args));
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let actor = load_tree(model, &like.call(seed)?)?.networks.actor;
    let act = with_mode(args.run.mode, |(actor, obs): (Mlp<Tensor>, Tensor)| {
        policy(&actor, obs.to(DType::F32), &bounds).mode()
    })
    .named("sac_play");
    evaluation.play(pool, |obs, _| act.call((actor.clone(), obs)))
}
