//! Rainbow on images: CleanRL's `rainbow_atari.py` (Hessel et al. 2018), which is distributional, double
//! and dueling Q-learning with noisy layers, n-step returns and prioritised replay; acting, storing,
//! drawing and learning in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/rainbow_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, init};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::atoms::Atoms;
use crate::rl::cadence::Cadence;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::expect;
use crate::rl::frames::{Drawn, Seen};
use crate::rl::images::{Convs, Images};
use crate::rl::prioritized::{Batch, Priorities, PrioritizedFrames};
use crate::rl::saved::load_tree;
use crate::rl::{Evaluation, Games, RunOptions, Summary, Trainer, spaces};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{constant, full, one_hot, where_, zeros, zeros_like};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "Rainbow for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "rainbow_atari")]
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
    #[arg(long, default_value_t = 6.25e-5)]
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
    /// How much of the network the target takes over; 1 copies
    #[arg(long, default_value_t = 1.0)]
    pub tau: f64,
    /// Timesteps between updates of the target network
    #[arg(long, default_value_t = 8000)]
    pub target_network_frequency: usize,
    /// The number of transitions of a gradient step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// Timesteps before learning starts
    #[arg(long, default_value_t = 80_000)]
    pub learning_starts: u64,
    /// Timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub train_frequency: usize,
    /// The number of rewards that a transition sums
    #[arg(long, default_value_t = 3)]
    pub n_step: usize,
    /// The exponent of errors in priorities
    #[arg(long, default_value_t = 0.5)]
    pub prioritized_replay_alpha: f64,
    /// The exponent of importance weights at the start; it rises to 1
    #[arg(long, default_value_t = 0.4)]
    pub prioritized_replay_beta: f64,
    /// Added to the errors in priorities
    #[arg(long, default_value_t = 1e-6)]
    pub prioritized_replay_eps: f64,
    /// Draw the noise of every weight by itself, as CleanRL does and the paper does not
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub parity: bool,
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

    fn adam(&self) -> Adam {
        Adam { learning_rate: self.learning_rate, eps: 1.5e-4, ..Adam::default() }
    }

    fn priorities(&self) -> Priorities {
        Priorities {
            n_steps: self.n_step,
            gamma: self.gamma,
            alpha: self.prioritized_replay_alpha,
            eps: self.prioritized_replay_eps,
            batch_size: self.batch_size,
        }
    }

    /// The exponent of importance weights after some timesteps.
    fn beta(&self, step: u64) -> f64 {
        let start = self.prioritized_replay_beta;
        start + (1.0 - start) * (step as f64 / self.total_timesteps as f64).min(1.0)
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        expect(self.batch_size > 0, "batch-size", self.batch_size, "at least 1")?;
        expect(self.n_atoms > 1, "n-atoms", self.n_atoms, "at least 2")?;
        let (low, high) = (self.v_min, self.v_max);
        expect(low.is_finite() && high.is_finite(), "v-min", low, "a number, as --v-max")?;
        expect(low < high, "v-max", high, &format!("above --v-min {low}"))?;
        expect(
            (1..=64).contains(&self.n_step),
            "n-step",
            self.n_step,
            "a number of steps from 1 to 64",
        )?;
        // New steps, a stack, and the rewards that follow it.
        let least = self.train_frequency + (8 + self.n_step) * self.num_envs;
        expect(
            self.buffer_size >= least && self.buffer_size < 1 << 30,
            "buffer-size",
            self.buffer_size,
            &format!("at least {least}, and below {}", 1 << 30),
        )?;
        for (flag, x) in [
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("prioritized-replay-alpha", self.prioritized_replay_alpha),
            ("prioritized-replay-beta", self.prioritized_replay_beta),
        ] {
            expect((0.0..=1.0).contains(&x), flag, x, "between 0 and 1")?;
        }
        let eps = self.prioritized_replay_eps;
        let positive = eps.is_finite() && eps > 0.0;
        expect(positive, "prioritized-replay-eps", eps, "a number above 0")?;
        let rate = self.learning_rate;
        expect(rate.is_finite() && rate >= 0.0, "learning-rate", rate, "a number not below 0")
    }
}

algorithm!(Args, "rainbow_atari", train, play_model);

// -------------------------------------------------------------------------------------- network

/// A layer whose weights are drawn anew now and then (Fortunato et al. 2018): `w + sigma_w * noise`.
#[derive(Debug, Clone, Tree)]
pub struct Noisy<T> {
    /// The means, `[inputs, outputs]` and `[outputs]`.
    pub mean: Dense<T>,
    /// How much noise there is, alike.
    pub sigma: Dense<T>,
}

impl Noisy<Tensor> {
    /// Means `U(+-1 / sqrt(inputs))`, and .5 / sqrt(inputs) of noise; the bias .5 / sqrt(outputs).
    fn init(key: Key<Tensor>, inputs: usize, outputs: usize) -> Noisy<Tensor> {
        let sigma =
            |shape: &[usize], size: usize| full(shape, 0.5 / (size as f64).sqrt(), DType::F32);
        Noisy {
            mean: Dense::init_torch(key, inputs, outputs),
            sigma: Dense {
                w: sigma(&[inputs, outputs], inputs),
                b: Some(sigma(&[outputs], outputs)),
            },
        }
    }

    /// Noise for it: of an outer product of two vectors, or with `parity` of its own for every
    /// weight.
    fn draw(&self, key: Key<Tensor>, parity: bool) -> Dense<Tensor> {
        let (inputs, outputs) = (self.mean.w.dim(0), self.mean.w.dim(1));
        let normal = |key, shape: &[usize]| random::normal(key, shape, DType::F32);
        let (a, b) = key.split();
        if parity {
            return Dense { w: normal(a, &[inputs, outputs]), b: Some(normal(b, &[outputs])) };
        }
        let root = |x: Tensor| x.sign() * x.abs().sqrt();
        let (from, to) = (root(normal(a, &[inputs])), root(normal(b, &[outputs])));
        Dense { w: from.outer(to), b: Some(to) }
    }

    /// The layer with this noise.
    fn with(&self, noise: &Dense<Tensor>) -> Dense<Tensor> {
        let b = match (self.mean.b, self.sigma.b, noise.b) {
            (Some(mean), Some(sigma), Some(noise)) => Some(mean + sigma * noise),
            (mean, ..) => mean,
        };
        Dense { w: self.mean.w + self.sigma.w * noise.w, b }
    }
}

/// Images to features, and these to the value of a state and the advantages of actions, which
/// together are the distribution of the return of each action (Wang et al. 2016).
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Images to features.
    pub convs: Convs<T>,
    /// Features to logits of the state's return: a hidden layer and the last.
    pub value: [Noisy<T>; 2],
    /// Features to logits of each action's advantage.
    pub advantage: [Noisy<T>; 2],
    /// What the images are.
    pub images: Images,
}

/// The layers of a [`QNetwork`] without noise, or noise for them: two of the value, two of the
/// advantage.
#[derive(Debug, Clone, Tree)]
pub struct Streams<T> {
    /// The value's layers.
    pub value: [Dense<T>; 2],
    /// The advantage's layers.
    pub advantage: [Dense<T>; 2],
}

impl QNetwork<Tensor> {
    /// A new network.
    pub fn init(
        key: Key<Tensor>,
        images: Images,
        num_actions: usize,
        atoms: &Atoms,
    ) -> QNetwork<Tensor> {
        let [convs, a, b, c, d] = key.split_n();
        let (features, width) = (images.features(), images.width());
        QNetwork {
            convs: Convs::init(convs, images, init::torch_default()),
            value: [Noisy::init(a, features, width), Noisy::init(b, width, atoms.count)],
            advantage: [
                Noisy::init(c, features, width),
                Noisy::init(d, width, num_actions * atoms.count),
            ],
            images,
        }
    }

    /// Noise for all its layers.
    pub fn draw(&self, key: Key<Tensor>, parity: bool) -> Streams<Tensor> {
        let [a, b, c, d] = key.split_n();
        let [value, last] = &self.value;
        let [advantage, end] = &self.advantage;
        Streams {
            value: [value.draw(a, parity), last.draw(b, parity)],
            advantage: [advantage.draw(c, parity), end.draw(d, parity)],
        }
    }

    /// Its streams with this noise; without any they are the means.
    pub fn streams(&self, noise: Option<&Streams<Tensor>>) -> Streams<Tensor> {
        let Some(noise) = noise else {
            let means = |layers: &[Noisy<Tensor>; 2]| layers.clone().map(|layer| layer.mean);
            return Streams { value: means(&self.value), advantage: means(&self.advantage) };
        };
        let with = |layers: &[Noisy<Tensor>; 2], noise: &[Dense<Tensor>; 2]| {
            [layers[0].with(&noise[0]), layers[1].with(&noise[1])]
        };
        Streams {
            value: with(&self.value, &noise.value),
            advantage: with(&self.advantage, &noise.advantage),
        }
    }

    /// Probabilities `f32[B, actions, atoms]` of observations `[B, ..]`, by streams of its own.
    pub fn apply(&self, obs: Tensor, streams: &Streams<Tensor>, atoms: &Atoms) -> Tensor {
        let features = self.convs.apply(self.images.scaled(obs));
        let logits = |layers: &[Dense<Tensor>; 2]| {
            let logits = layers[1].apply(layers[0].apply(features).relu());
            let (rows, all) = (logits.dim(0), logits.dim(1));
            logits.reshape([rows, all / atoms.count, atoms.count])
        };
        let (value, advantage) = (logits(&streams.value), logits(&streams.advantage));
        (value + advantage - advantage.mean(1).expand_dims(1)).softmax(-1)
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
    /// The noise of the network that acts.
    pub noise: Streams<T>,
    /// The transitions to learn from.
    pub replay: PrioritizedFrames<T>,
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

/// The distributions that the network is to have for the actions taken, `f32[B, atoms]`: the next
/// action is the best of the network, its return is the target network's (van Hasselt et al. 2016).
pub fn goals(
    (q, q_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    (target, target_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    batch: &Drawn<Tensor>,
    atoms: &Atoms,
) -> Tensor {
    let best = atoms.mean(q.apply(batch.next_obs, q_streams, atoms)).argmax(-1);
    let next = of_action(target.apply(batch.next_obs, target_streams, atoms), best);
    atoms.project(batch.reward, batch.discount, next)
}

/// The cross entropies to `goal: f32[B, atoms]`, weighted, as a mean; each of them, `f32[B]`; and the
/// mean value of the actions taken.
pub fn loss(
    q: &QNetwork<Tensor>,
    noise: &Streams<Tensor>,
    goal: Tensor,
    batch: &Drawn<Tensor>,
    weights: Tensor,
    atoms: &Atoms,
) -> (Tensor, (Tensor, Tensor)) {
    let probs = q.apply(batch.obs, &q.streams(Some(noise)), atoms);
    let probs = of_action(probs, batch.action); // f32[B, atoms]
    let entropy = -(goal * probs.clip(1e-5, 1.0 - 1e-5).log()).sum(-1);
    ((weights * entropy).mean(..), (entropy, atoms.mean(probs).mean(..)))
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

/// One gradient step on a batch, with fresh noise in both networks; also the network's noise and the
/// errors, `f32[B]`.
fn update(
    (q, optimizer): (QNetwork<Tensor>, AdamState<Tensor, QNetwork<Tensor>>),
    target: &QNetwork<Tensor>,
    batch: &Batch<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (Learner<Tensor>, Tensor, Metrics<Tensor>) {
    let atoms = args.atoms();
    let (a, b) = key.split();
    let noise = q.draw(a, args.parity);
    let target_streams = target.streams(Some(&target.draw(b, args.parity)));
    let q_streams = q.streams(Some(&noise));
    let goal = goals((&q, &q_streams), (target, &target_streams), &batch.drawn, &atoms);
    let ((td_loss, (errors, q_values)), grads) = value_and_grad(|q: QNetwork<Tensor>| {
        loss(&q, &noise, goal, &batch.drawn, batch.weights, &atoms)
    })(q.clone());
    let (q, optimizer) = args.adam().step(q, grads, optimizer);
    ((q, optimizer, noise), errors, Metrics { td_loss, q_values })
}

/// What a gradient step changes.
type Learner<T> = (QNetwork<T>, AdamState<T, QNetwork<T>>, Streams<T>);

// -------------------------------------------------------------------------------------- rollout

/// The best action of the network with these streams: `i32[N]`.
fn act(q: &QNetwork<Tensor>, streams: &Streams<Tensor>, obs: Tensor, atoms: &Atoms) -> Tensor {
    atoms.mean(q.apply(obs, streams, atoms)).argmax(-1)
}

/// `turns` steps of all environments: what they gave, `[T, N, ..]`.
fn play(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    noise: &Streams<Tensor>,
    playing: Playing<Tensor>,
    args: &Args,
) -> (Playing<Tensor>, Seen<Tensor>, Games<Tensor>) {
    let streams = q.streams(Some(noise));
    let turn = |playing: Playing<Tensor>, ()| {
        let Playing { handle, obs, age, step, key } = playing;
        let action = act(q, &streams, obs, &args.atoms());
        let (handle, told) = envs.step(handle, action);
        let seen = Seen {
            frame: q.images.newest(obs),
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
    let TrainState { q, target, optimizer, noise, replay, playing } = state;
    let priorities = args.priorities();
    let round = |((q, optimizer, noise), replay, playing): Learning<Tensor>, ()| {
        let (playing, seen, games) = play(envs, &q, &noise, playing, args);
        let replay = replay.add(seen, &priorities);
        if !learning {
            let zero = constant(0.0f32);
            let metrics = Metrics { td_loss: zero, q_values: zero };
            return (((q, optimizer, noise), replay, playing), (games, metrics));
        }
        let [key, draw, fresh] = playing.key.split_n();
        let playing = Playing { key, ..playing };
        let progress = playing.step.to(DType::F32) / args.total_timesteps as f64;
        let start = args.prioritized_replay_beta;
        let beta = start + (1.0 - start) * progress.minimum(1.0);
        let batch = replay.sample(draw, beta, &priorities);
        let (learner, errors, metrics) = update((q, optimizer), &target, &batch, fresh, args);
        let replay = replay.update(batch.rows, errors, &priorities);
        ((learner, replay, playing), (games, metrics))
    };
    let count = ScanOptions::length(args.cadence().rounds());
    let start = ((q, optimizer, noise), replay, playing);
    let (((q, optimizer, noise), replay, playing), (games, metrics)) =
        scan_with(count, round, start, ());
    let target = match learning {
        true => {
            let mixed = incremental_update(&q, &target, args.tau);
            periodic_update(&mixed, &target, playing.step, args.target_network_frequency)
        }
        false => target,
    };
    (TrainState { q, target, optimizer, noise, replay, playing }, games, metrics)
}

/// What a round changes.
type Learning<T> = (Learner<T>, PrioritizedFrames<T>, Playing<T>);

// ------------------------------------------------------------------------------------- training

/// The environments, stepped by compiled code; what they show, and how many actions there are.
fn pool(args: &Args, num_envs: usize, seed: u64) -> Result<(EnvPool, Images, usize)> {
    let num_threads = args.run.num_threads;
    let options = PoolOptions { num_envs, num_threads, seed, ..Default::default() };
    let (pool, images) = Images::pool("rainbow_atari", &args.env_id, options)?;
    let num_actions = spaces::choices("rainbow_atari", pool.spec())?;
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
        let [key, network, noise] = key.split_n();
        let q = QNetwork::init(network, images, num_actions, &args.atoms());
        let (envs_at_once, frame) = (args.num_envs, images.frame());
        let (handle, first) = envs.reset(handle);
        let (step, age) = (constant(0i32), zeros([args.num_envs], DType::I32));
        TrainState {
            target: q.clone(),
            optimizer: args.adam().init(&q),
            noise: q.draw(noise, args.parity),
            q,
            replay: PrioritizedFrames::new(
                args.buffer_size,
                envs_at_once,
                images.stack(),
                &frame,
                &args.priorities(),
            ),
            playing: Playing { handle, obs: first.obs, age, step, key },
        }
    })
    .named("rainbow_atari_init");
    let go_on = |learning| {
        let envs = &envs;
        with_mode(mode, move |state| rounds(envs, state, learning, args))
    };
    let explore = go_on(false).named("rainbow_atari_explore");
    let learn = go_on(true).named("rainbow_atari_rounds").check_nans(args.run.check_nans);

    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let mut state = trainer.state(init.call((handle, seed))?, &envs)?;
    let steps = args.cadence().steps();
    while trainer.goes_on(steps, &state, &envs)? {
        let _span = timeline::span("rounds");
        // Learning starts with the first call that begins when enough was explored, and never
        // before the first transition is complete.
        let complete = ((args.n_step + 1) * args.num_envs) as u64;
        let learning = trainer.step() >= args.learning_starts.max(complete);
        let rounds = if learning { &learn } else { &explore };
        let (next, games, metrics) = rounds.call(state)?;
        state = next;
        trainer.tell(steps, &games.list()?, learning.then_some(&metrics))?;
        if learning {
            let step = trainer.step();
            trainer.run.events.scalar("charts/beta", args.beta(step), step)?;
        }
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

/// Plays a saved model, without noise.
fn play_model(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    // Episodes of another seed than those of the training.
    let (pool, images, num_actions) = pool(args, 1, args.run.seed.wrapping_add(1 << 32))?;
    let like = with_mode(args.run.mode, |key: Key<Tensor>| {
        let q = QNetwork::init(key, images, num_actions, &args.atoms());
        Model { target: q.clone(), optimizer: args.adam().init(&q), q }
    });
    let seed = tree::map(Key::new(args.run.seed), Array::from);
    let Model { q, .. } = load_tree(model, &like.call(seed)?)?;
    let act = with_mode(args.run.mode, |(q, obs): (QNetwork<Tensor>, Tensor)| {
        act(&q, &q.streams(None), obs, &args.atoms())
    })
    .named("rainbow_atari_play");
    evaluation.play(pool, |obs, _| act.call((q.clone(), obs)))
}
