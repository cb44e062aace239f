//! Distributional Q-learning on images: CleanRL's `c51_atari_jax.py` (Bellemare et al. 2017), with
//! acting, storing, drawing and learning in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/c51_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, init};
use crate::optim::{Adam, AdamState, periodic_update};
use crate::rl::atoms::Atoms;
use crate::rl::cadence::Cadence;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::expect;
use crate::rl::frames::{Drawn, Frames, Seen};
use crate::rl::images::{Images, Trunk};
use crate::rl::saved::load_tree;
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{constant, one_hot, where_, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "C51 for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "c51_atari")]
    pub exp_name: String,
    /// Flags that every algorithm has
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 10_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimiser
    #[arg(long, default_value_t = 2.5e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
    /// The number of atoms, the returns that have a probability
    #[arg(long, default_value_t = 51)]
    pub n_atoms: usize,
    /// The lowest atom
    #[arg(long, default_value_t = -10.0, allow_negative_numbers = true)]
    pub v_min: f64,
    /// The highest atom
    #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
    pub v_max: f64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// Timesteps between updates of the target network
    #[arg(long, default_value_t = 10_000)]
    pub target_network_frequency: usize,
    /// The number of transitions of a gradient step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// The part of random actions at the start
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The part of random actions at the end
    #[arg(long, default_value_t = 0.01)]
    pub end_e: f64,
    /// The part of the timesteps over which it goes from start to end
    #[arg(long, default_value_t = 0.1)]
    pub exploration_fraction: f64,
    /// Timesteps before learning starts
    #[arg(long, default_value_t = 80_000)]
    pub learning_starts: u64,
    /// Timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub train_frequency: usize,
}

impl Args {
    fn cadence(&self) -> Cadence {
        let Args { num_envs, train_frequency, target_network_frequency, .. } = *self;
        Cadence { num_envs, train_frequency, target_network_frequency, most_rounds: 250 }
    }

    /// The returns that have a probability.
    pub fn atoms(&self) -> Atoms {
        Atoms { count: self.n_atoms, v_min: self.v_min, v_max: self.v_max }
    }

    /// Adam as CleanRL has it here: eps depends on the batch.
    fn adam(&self) -> Adam {
        let eps = 0.01 / self.batch_size as f64;
        Adam { learning_rate: self.learning_rate, eps, ..Adam::default() }
    }

    /// Timesteps over which the part of random actions falls.
    fn exploration(&self) -> f64 {
        (self.exploration_fraction * self.total_timesteps as f64).max(1.0)
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        expect(self.batch_size > 0, "batch-size", self.batch_size, "at least 1")?;
        expect(self.n_atoms > 1, "n-atoms", self.n_atoms, "at least 2")?;
        let (low, high) = (self.v_min, self.v_max);
        expect(low.is_finite() && high.is_finite(), "v-min", low, "a number, as --v-max")?;
        expect(low < high, "v-max", high, &format!("above --v-min {low}"))?;
        // New steps, a stack, and what follows it.
        let least = self.train_frequency + 8 * self.num_envs;
        expect(
            self.buffer_size >= least && i32::try_from(self.buffer_size).is_ok(),
            "buffer-size",
            self.buffer_size,
            &format!("at least {least}, and at most {}", i32::MAX),
        )?;
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        for (flag, x) in [
            ("gamma", self.gamma),
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

algorithm!(Args, "c51_atari", train, play_model);

// -------------------------------------------------------------------------------------- network

/// Images to the distribution of the return of each action.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Images to features.
    pub trunk: Trunk<T>,
    /// Features to logits.
    pub head: Dense<T>,
}

impl QNetwork<Tensor> {
    /// A new network.
    pub fn init(
        key: Key<Tensor>,
        images: Images,
        num_actions: usize,
        atoms: &Atoms,
    ) -> QNetwork<Tensor> {
        let (trunk, head) = key.split();
        let kernel = init::lecun_normal();
        QNetwork {
            trunk: Trunk::init(trunk, images, kernel),
            head: Dense::init(head, images.width(), num_actions * atoms.count, kernel),
        }
    }

    /// Probabilities `f32[B, actions, atoms]` of observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor, atoms: &Atoms) -> Tensor {
        let logits = self.head.apply(self.trunk.apply(obs));
        let (rows, all) = (logits.dim(0), logits.dim(1));
        logits.reshape([rows, all / atoms.count, atoms.count]).softmax(-1)
    }
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
    pub replay: Frames<T>,
    /// The environments between two steps.
    pub playing: Playing<T>,
}

/// The environments between two steps.
#[derive(Debug, Tree)]
pub struct Playing<T> {
    /// The right to step them.
    pub handle: Handle<T>,
    /// `[N, ..]`
    pub obs: T,
    /// `i32[N]`: steps since the episode began, up to 255.
    pub age: T,
    /// Timesteps so far, `i32[]`.
    pub step: T,
    /// The randomness to come.
    pub key: Key<T>,
}

// --------------------------------------------------------------------------------------- losses

/// The rows of `probs: f32[B, actions, atoms]` for the actions `i32[B]`: `f32[B, atoms]`.
fn of_action(probs: Tensor, action: Tensor) -> Tensor {
    let taken = one_hot(action, probs.dim(1), DType::Bool).expand_dims(-1);
    where_(taken.broadcast_to(probs.shape()), probs, zeros_like(probs)).sum(1)
}

/// The mean cross entropy to the projected targets, and the mean value of the actions taken;
/// `batch` has rows.
pub fn loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &Drawn<Tensor>,
    atoms: &Atoms,
) -> (Tensor, Tensor) {
    let next = target.apply(batch.next_obs, atoms);
    let next = of_action(next, atoms.mean(next).argmax(-1));
    let goal = atoms.project(batch.reward, batch.discount, next);
    let probs = of_action(q.apply(batch.obs, atoms), batch.action); // f32[B, atoms]
    let entropy = -(goal * probs.clip(1e-5, 1.0 - 1e-5).log()).sum(-1);
    (entropy.mean(..), atoms.mean(probs).mean(..))
}

// --------------------------------------------------------------------------------------- update

/// What is logged of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// The loss.
    pub loss: T,
    /// The mean value of the actions taken.
    pub q_values: T,
}

/// One gradient step on a batch.
pub fn update(
    q: QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    optimizer: AdamState<Tensor, QNetwork<Tensor>>,
    batch: &Drawn<Tensor>,
    args: &Args,
) -> (QNetwork<Tensor>, AdamState<Tensor, QNetwork<Tensor>>, Metrics<Tensor>) {
    let ((loss, q_values), grads) =
        value_and_grad(|q| loss(&q, target, batch, &args.atoms()))(q.clone());
    let (q, optimizer) = args.adam().step(q, grads, optimizer);
    (q, optimizer, Metrics { loss, q_values })
}

// -------------------------------------------------------------------------------------- rollout

/// The best action, or with probability `epsilon` any: `i32[N]`.
fn act(
    q: &QNetwork<Tensor>,
    obs: Tensor,
    epsilon: Tensor,
    atoms: &Atoms,
    key: Key<Tensor>,
) -> Tensor {
    let (which, draw) = key.split();
    let values = atoms.mean(q.apply(obs, atoms));
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
) -> (Playing<Tensor>, Seen<Tensor>, Games<Tensor>) {
    let (start, end) = (args.start_e, args.end_e);
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, age, step, key } = playing;
        let (key, draw) = key.split();
        let progress = step.to(DType::F32) / args.exploration();
        let epsilon = (start + (end - start) * progress.minimum(1.0)).to(DType::F32);
        let action = act(q, obs, epsilon, &args.atoms(), draw);
        let (handle, told) = envs.step(handle, action);
        let seen = Seen {
            frame: q.trunk.images.newest(obs),
            age,
            action,
            reward: told.reward,
            terminated: told.terminated,
            truncated: told.truncated,
        };
        let age = where_(told.first, zeros_like(age), (age + 1).minimum(255));
        let games = Games::of(&told);
        let step = step + args.num_envs as i32;
        (Playing { handle, obs: told.obs, age, step, key }, (seen, games))
    };
    let turns = ScanOptions::length(args.cadence().turns());
    let (playing, (seen, games)) = scan_with(turns, turn, playing, ());
    (playing, seen, games)
}

/// One call of the program: `rounds` times some steps of the environments and, if `learning`, a
/// gradient step; then the target network, if it is due.
fn rounds(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    learning: bool,
    args: &Args,
) -> (TrainState<Tensor>, Games<Tensor>, Metrics<Tensor>) {
    let TrainState { q, target, optimizer, replay, playing } = state;
    let round = |(q, optimizer, replay, playing): Learning<Tensor>, ()| {
        let (playing, seen, games) = play(envs, &q, playing, args);
        let replay = replay.add(seen);
        if !learning {
            let zero = constant(0.0f32);
            let metrics = Metrics { loss: zero, q_values: zero };
            return ((q, optimizer, replay, playing), (games, metrics));
        }
        let (key, draw) = playing.key.split();
        let playing = Playing { key, ..playing };
        let batch = replay.sample(draw, args.batch_size, 1, args.gamma);
        let (q, optimizer, metrics) = update(q, &target, optimizer, &batch, args);
        ((q, optimizer, replay, playing), (games, metrics))
    };
    let count = ScanOptions::length(args.cadence().rounds());
    let start = (q, optimizer, replay, playing);
    let ((q, optimizer, replay, playing), (games, metrics)) = scan_with(count, round, start, ());
    let target = match learning {
        true => periodic_update(&q, &target, playing.step, args.target_network_frequency),
        false => target,
    };
    (TrainState { q, target, optimizer, replay, playing }, games, metrics)
}

/// What a round changes.
type Learning<T> = (QNetwork<T>, AdamState<T, QNetwork<T>>, Frames<T>, Playing<T>);

// ------------------------------------------------------------------------------------- training

/// The environments, stepped by compiled code; what they show, and how many actions there are.
fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, Images, usize)> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..Default::default() };
    let (pool, images) = Images::pool("c51_atari", &args.env_id, options)?;
    let num_actions = spaces::choices("c51_atari", pool.spec())?;
    Ok((pool, images, num_actions))
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and what the environments,
/// the compiler, the runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, images, num_actions) = pool(args, args.num_envs, args.run.seed)?;
    let mut trainer = Trainer::start(args)?;

    let (handle, envs) = pool.xla()?;
    let mode = args.run.mode;
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network) = key.split();
        let q = QNetwork::init(network, images, num_actions, &args.atoms());
        let (handle, first) = envs.reset(handle);
        let (step, age) = (constant(0i32), zeros([args.num_envs], DType::I32));
        TrainState {
            target: q.clone(),
            optimizer: args.adam().init(&q),
            q,
            replay: Frames::new(args.buffer_size, args.num_envs, images.stack(), &images.frame()),
            playing: Playing { handle, obs: first.obs, age, step, key },
        }
    })
    .named("c51_atari_init");
    let go_on = |learning| {
        let envs = &envs;
        with_mode(mode, move |state| rounds(envs, state, learning, args))
    };
    let explore = go_on(false).named("c51_atari_explore");
    let learn = go_on(true).named("c51_atari_rounds").check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut state = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.cadence().steps();
    while trainer.goes_on(steps, &state, &envs)? {
        let _span = timeline::span("rounds");
        // Learning starts with the first call that begins when enough was explored. The first one
        // never learns: a transition needs the step after it.
        let learning = trainer.step() >= args.learning_starts.max(1);
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
    let (pool, images, num_actions) = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let like = with_mode(args.run.mode, |key: Key<Tensor>| {
        let q = QNetwork::init(key, images, num_actions, &args.atoms());
        Model { target: q.clone(), optimizer: args.adam().init(&q), q }
    });
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let Model { q, .. } = load_tree(model, &like.call(seed)?)?;
    let act = with_mode(args.run.mode, |(q, obs, key): (QNetwork<Tensor>, Tensor, Key<Tensor>)| {
        act(&q, obs, constant(args.end_e as f32), &args.atoms(), key)
    })
    .named("c51_atari_play");
    evaluation.play(pool, |obs, key| act.call((q.clone(), obs, key)))
}
