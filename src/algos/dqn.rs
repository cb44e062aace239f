//! Deep Q-learning for vector observations: CleanRL's `dqn_jax.py` (Mnih et al. 2015), with acting,
//! storing, drawing and learning in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/dqn.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Activation, Mlp, init};
use crate::optim::{Adam, AdamState, incremental_update};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::expect;
use crate::rl::replay::Replay;
use crate::rl::saved::load_tree;
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, cond, scan_with};
use crate::trace::ops::{constant, one_hot, where_, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "DQN for discrete actions and vector observations", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "dqn")]
    pub exp_name: String,
    /// Flags that every algorithm has
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
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 10_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// How much of the network the target takes over; 1 copies
    #[arg(long, default_value_t = 1.0)]
    pub tau: f64,
    /// Timesteps between updates of the target network
    #[arg(long, default_value_t = 500)]
    pub target_network_frequency: usize,
    /// The number of transitions of a gradient step
    #[arg(long, default_value_t = 128)]
    pub batch_size: usize,
    /// The part of random actions at the start
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The part of random actions at the end
    #[arg(long, default_value_t = 0.05)]
    pub end_e: f64,
    /// The part of the timesteps over which it goes from start to end
    #[arg(long, default_value_t = 0.5)]
    pub exploration_fraction: f64,
    /// Timesteps before learning starts
    #[arg(long, default_value_t = 10_000)]
    pub learning_starts: u64,
    /// Timesteps between gradient steps
    #[arg(long, default_value_t = 10)]
    pub train_frequency: usize,
    /// Gradient steps in one call of the program; 0 takes all between two updates of the target
    /// network. The results are the same
    #[arg(long, default_value_t = 0)]
    pub rounds_per_call: usize,
}

impl Args {
    /// Steps of each environment between gradient steps.
    fn turns(&self) -> usize {
        self.train_frequency / self.num_envs
    }

    /// Gradient steps between updates of the target network.
    fn rounds_of_target(&self) -> usize {
        self.target_network_frequency / self.train_frequency
    }

    /// Gradient steps in one call of the program.
    fn rounds(&self) -> usize {
        if self.rounds_per_call == 0 { self.rounds_of_target() } else { self.rounds_per_call }
    }

    /// Timesteps of one call.
    fn steps(&self) -> u64 {
        (self.rounds() * self.train_frequency) as u64
    }

    /// Timesteps over which the part of random actions falls.
    fn exploration(&self) -> f64 {
        (self.exploration_fraction * self.total_timesteps as f64).max(1.0)
    }

    fn check(&self) -> Result<()> {
        let positive = "at least 1";
        expect(self.num_envs > 0, "num-envs", self.num_envs, positive)?;
        expect(self.train_frequency > 0, "train-frequency", self.train_frequency, positive)?;
        expect(self.batch_size > 0, "batch-size", self.batch_size, positive)?;
        let (envs, train, target) =
            (self.num_envs, self.train_frequency, self.target_network_frequency);
        expect(
            train.is_multiple_of(envs),
            "train-frequency",
            train,
            &format!("a multiple of --num-envs {envs}, the timesteps of one step of all"),
        )?;
        expect(
            target > 0 && target.is_multiple_of(train),
            "target-network-frequency",
            target,
            &format!("a multiple of --train-frequency {train}"),
        )?;
        let rounds = self.rounds_of_target();
        expect(
            rounds.is_multiple_of(self.rounds()),
            "rounds-per-call",
            self.rounds_per_call,
            &format!("a divisor of {rounds}, the gradient steps between updates of the target"),
        )?;
        let steps = self.steps();
        expect(
            self.total_timesteps >= steps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least {steps}, the timesteps of one call"),
        )?;
        expect(
            self.buffer_size >= train && i32::try_from(self.buffer_size).is_ok(),
            "buffer-size",
            self.buffer_size,
            &format!("at least --train-frequency {train}, and at most {}", i32::MAX),
        )?;
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        for (flag, x) in [
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("start-e", self.start_e),
            ("end-e", self.end_e),
            ("exploration-fraction", self.exploration_fraction),
        ] {
            expect(unit(x), flag, x, "between 0 and 1")?;
        }
        let rate = self.learning_rate;
        expect(rate.is_finite() && rate >= 0.0, "learning-rate", rate, "a number not below 0")
    }
}

algorithm!(Args, "dqn", train, play_model);

// -------------------------------------------------------------------------------------- network

/// Observations to the value of each action: hidden layers of 120 and 84 units.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// The layers.
    pub layers: Mlp<T>,
}

impl QNetwork<Tensor> {
    /// A new network for observations of `obs_size` numbers.
    pub fn init(key: Key<Tensor>, obs_size: usize, num_actions: usize) -> QNetwork<Tensor> {
        let sizes = [obs_size, 120, 84, num_actions];
        let kernel = init::lecun_normal();
        QNetwork { layers: Mlp::init(key, &sizes, Activation::Relu, kernel, kernel) }
    }

    /// `f32[B, actions]` of `obs: f32[B, obs_size]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.layers.apply(obs)
    }
}

/// One step of one environment.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Transition<T> {
    /// `f32[obs_size]`
    pub obs: T,
    /// `i32[]`
    pub action: T,
    /// `f32[]`
    pub reward: T,
    /// `f32[obs_size]`: what followed, also where an episode ended there.
    pub next_obs: T,
    /// `f32[]`: 1 where the episode ended by the rules of the task.
    pub terminated: T,
}

/// What learning changes.
#[derive(Debug, Tree)]
pub struct TrainState<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// The target network.
    pub target: QNetwork<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
    /// The transitions to learn from.
    pub replay: Replay<T, Transition<T>>,
    /// The environments between two steps.
    pub playing: Playing<T>,
}

/// The environments between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `f32[N, obs_size]`
    pub obs: T,
    /// Timesteps so far, `i32[]`.
    pub step: T,
    /// The randomness to come.
    pub key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// The mean squared error to the targets, and the mean value of the actions taken; `batch` has
/// rows.
pub fn loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &Transition<Tensor>,
    gamma: f64,
) -> (Tensor, Tensor) {
    let next = target.apply(batch.next_obs).max(-1);
    let goal = batch.reward + gamma * (1.0 - batch.terminated) * next; // f32[B]
    let values = q.apply(batch.obs);
    let taken = one_hot(batch.action, values.dim(-1), DType::Bool);
    let value = where_(taken, values, zeros_like(values)).sum(-1);
    ((value - goal).square().mean(..), value.mean(..))
}

// --------------------------------------------------------------------------------------- update

/// What is logged of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// The loss.
    pub td_loss: T,
    /// The mean value of the actions taken.
    pub q_values: T,
}

/// One gradient step on a batch.
pub fn update(
    q: QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    optimizer: AdamState<Tensor, QNetwork<Tensor>>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (QNetwork<Tensor>, AdamState<Tensor, QNetwork<Tensor>>, Metrics<Tensor>) {
    let ((td_loss, q_values), grads) =
        value_and_grad(|q: QNetwork<Tensor>| loss(&q, target, batch, args.gamma))(q.clone());
    let adam = Adam { learning_rate: args.learning_rate, ..Adam::default() };
    let (q, optimizer) = adam.step(q, grads, optimizer);
    (q, optimizer, Metrics { td_loss, q_values })
}

// -------------------------------------------------------------------------------------- rollout

/// The best action, or with probability `epsilon` any: `i32[N]`.
fn act(q: &QNetwork<Tensor>, obs: Tensor, epsilon: Tensor, key: Key<Tensor>) -> Tensor {
    let (which, draw) = key.split();
    let values = q.apply(obs);
    let envs = obs.dim(0);
    let random = random::randint(draw, [envs], 0, values.dim(-1) as i32, DType::I32);
    let explore = random::uniform(which, [envs], DType::F32, 0.0, 1.0).lt(epsilon);
    where_(explore, random, values.argmax(-1))
}

/// `turns` steps of all environments: what they gave, `[T, N, ..]`.
fn play(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
    let (start, end) = (args.start_e, args.end_e);
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, step, key } = playing;
        let (key, draw) = key.split();
        let progress = step.to(DType::F32) / args.exploration();
        let epsilon = (start + (end - start) * progress.minimum(1.0)).to(DType::F32);
        let action = act(q, obs, epsilon, draw);
        let (handle, told) = envs.step(handle, action);
        // Where an episode ended, `obs` is already the next one's.
        let last = told.final_obs.expect("the pool was asked for it").to(DType::F32);
        let next = told.obs.to(DType::F32);
        let transition = Transition {
            obs,
            action,
            reward: told.reward,
            next_obs: where_(told.done().expand_dims(-1).broadcast_to(last.shape()), last, next),
            terminated: told.terminated.to(DType::F32),
        };
        let games = Games::of(&told);
        let step = step + args.num_envs as i32;
        (Playing { handle, obs: next, step, key }, (transition, games))
    };
    let turns = ScanOptions::length(args.turns());
    let (playing, (transitions, games)) = scan_with(turns, turn, playing, ());
    (playing, transitions, games)
}

/// One program: `rounds` times some steps of the environments and, if `learning`, a gradient step;
/// then the target network, if its turn has come.
fn rounds(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    learning: bool,
    args: &Args,
) -> (TrainState<Tensor>, Games<Tensor>, Metrics<Tensor>) {
    let TrainState { q, target, optimizer, replay, playing } = state;
    let round = |(q, optimizer, replay, playing): Learning<Tensor>, ()| {
        let (playing, transitions, games) = play(envs, &q, playing, args);
        let rows = tree::map(transitions, |x: Tensor| {
            x.reshape([&[x.dim(0) * x.dim(1)], &x.shape()[2..]].concat())
        });
        let replay = replay.add(rows);
        if !learning {
            let zero = constant(0.0f32);
            let metrics = Metrics { td_loss: zero, q_values: zero };
            return ((q, optimizer, replay, playing), (games, metrics));
        }
        let Playing { handle, obs, step, key } = playing;
        let (key, draw) = key.split();
        let batch = replay.sample(draw, args.batch_size);
        let (q, optimizer, metrics) = update(q, &target, optimizer, &batch, args);
        let playing = Playing { handle, obs, step, key };
        ((q, optimizer, replay, playing), (games, metrics))
    };
    let count = ScanOptions::length(args.rounds());
    let start = (q, optimizer, replay, playing);
    let ((q, optimizer, replay, playing), (games, metrics)) = scan_with(count, round, start, ());
    let target = match learning {
        true if args.rounds() == args.rounds_of_target() => {
            incremental_update(&q, &target, args.tau)
        }
        true => {
            let due = (playing.step % args.target_network_frequency as i32).equal(0);
            let update = |(q, target)| incremental_update(&q, &target, args.tau);
            cond(due, update, |(_, target): (QNetwork<Tensor>, _)| target, (q.clone(), target))
        }
        false => target,
    };
    (TrainState { q, target, optimizer, replay, playing }, games, metrics)
}

/// What a round changes.
type Learning<T> = (QNetwork<T>, AdamState<T, QNetwork<T>>, Replay<T, Transition<T>>, Playing<T>);

// ------------------------------------------------------------------------------------- training

/// The environments, stepped by compiled code.
fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<EnvPool> {
    let num_threads = args.run.num_threads;
    EnvPool::make(&args.env_id, PoolOptions { num_envs, num_threads, seed, ..Default::default() })
}

/// The sizes of observations and actions; refuses what this algorithm cannot act in.
fn sizes(pool: &EnvPool) -> Result<(usize, usize)> {
    Ok((spaces::vector("dqn", pool.spec())?, spaces::choices("dqn", pool.spec())?))
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and what the environments,
/// the compiler, the runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let pool = pool(args, args.num_envs, args.run.seed)?;
    let (obs_size, num_actions) = sizes(&pool)?;
    let mut trainer = Trainer::start(args)?;

    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network) = key.split();
        let q = QNetwork::init(network, obs_size, num_actions);
        let vector = TensorType::new(DType::F32, [obs_size]);
        let number = TensorType::scalar(DType::F32);
        let item = Transition {
            obs: vector.clone(),
            action: TensorType::scalar(DType::I32),
            reward: number.clone(),
            next_obs: vector,
            terminated: number,
        };
        let (handle, first) = envs.reset(handle);
        let (obs, step) = (first.obs.to(DType::F32), constant(0i32));
        TrainState {
            target: q.clone(),
            optimizer: Adam::default().init(&q),
            q,
            replay: Replay::new(args.buffer_size, item),
            playing: Playing { handle, obs, step, key },
        }
    })
    .named("dqn_init");
    let go_on = |learning| {
        let envs = &envs;
        with_mode(mode, move |state| rounds(envs, state, learning, args))
    };
    let explore = go_on(false).named("dqn_explore");
    let learn = go_on(true).named("dqn_rounds").check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut state = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.steps();
    while trainer.goes_on(steps, &state, &envs)? {
        let _span = timeline::span("rounds");
        // Learning starts with the first call that begins when enough was explored.
        let learning = trainer.step() >= args.learning_starts;
        let rounds = if learning { &learn } else { &explore };
        let (next, games, metrics) = rounds.call(state)?;
        state = next;
        trainer.tell(steps, &games.list()?, learning.then_some(&metrics))?;
    }
    let compile_s = init.stats().seconds() + explore.stats().seconds() + learn.stats().seconds();
    let TrainState { q, target, optimizer, .. } = state;
    trainer.finish(&Model { q, target, optimizer }, compile_s)
}

/// What is saved of a run: all but the transitions and the environments.
#[derive(Debug, Clone, Tree)]
pub struct Model<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// The target network.
    pub target: QNetwork<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
}

/// Plays a saved model with `end_e` random actions.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Episodes of another seed than those of the training.
    let pool = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let (obs_size, num_actions) = sizes(&pool)?;
    let like = with_mode(args.run.mode, |key: Key<Tensor>| {
        let q = QNetwork::init(key, obs_size, num_actions);
        Model { target: q.clone(), optimizer: Adam::default().init(&q), q }
    });
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let Model { q, .. } = load_tree(model, &like.call(seed)?)?;
    let act = with_mode(args.run.mode, |(q, obs, key): (QNetwork<Tensor>, Tensor, Key<Tensor>)| {
        let obs = obs.to(DType::F32);
        (act(&q, obs, constant(args.end_e as f32), key), q.apply(obs))
    })
    .named("dqn_play");
    evaluation.play(pool, |obs, key| act.call((q.clone(), obs, key)))
}
