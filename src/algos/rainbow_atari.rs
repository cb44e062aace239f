//! Rainbow (Hessel et al. 2018) on images: CleanRL's `rainbow_atari.py`. Rainbow is distributional,
//! double and dueling Q-learning with noisy layers, n-step returns and prioritised replay.
//! Environment steps, the replay buffer and gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/rainbow_atari.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Dense, init};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::atoms::Atoms;
use crate::rl::cadence::UpdateSchedule;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{ensure, not_negative, positive, unit, within};
use crate::rl::frames::SampledBatch;
use crate::rl::images::{Convs, Images};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::PlayingImages;
use crate::rl::prioritized::{Batch, Priorities, PrioritizedFrameBuffer};
use crate::rl::q_values::{linear_schedule, of_action};
use crate::rl::saved::load_model;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, Trainer, pools};
use crate::trace::ops::full;
use crate::tree::Tree;
use crate::{Array, DType, Key, Tensor, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "Rainbow for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "rainbow_atari")]
    pub exp_name: String,
    /// Flags shared by all algorithms
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
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value_t = 51)]
    pub n_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value_t = -10.0, allow_negative_numbers = true)]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value_t = 10.0, allow_negative_numbers = true)]
    pub v_max: f64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging); 1 copies the network
    #[arg(long, default_value_t = 1.0)]
    pub tau: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value_t = 8000)]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// The timestep at which learning starts
    #[arg(long, default_value_t = 80_000)]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub train_frequency: usize,
    /// The number of steps n of n-step returns
    #[arg(long, default_value_t = 3)]
    pub n_step: usize,
    /// The exponent alpha of the errors in priorities of the replay buffer
    #[arg(long, default_value_t = 0.5)]
    pub prioritized_replay_alpha: f64,
    /// The initial exponent beta of the importance sampling weights; it is annealed to 1
    #[arg(long, default_value_t = 0.4)]
    pub prioritized_replay_beta: f64,
    /// The epsilon added to the errors in priorities of the replay buffer
    #[arg(long, default_value_t = 1e-6)]
    pub prioritized_replay_eps: f64,
    /// Sample independent noise for every weight, as CleanRL does, instead of the paper's
    /// factorised noise
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub parity: bool,
}

impl Args {
    fn cadence(&self) -> UpdateSchedule {
        let Args { num_envs, train_frequency, target_network_frequency, .. } = *self;
        UpdateSchedule { num_envs, train_frequency, target_network_frequency, most_rounds: 250 }
    }

    /// Returns the atoms of the return distribution.
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

    /// Returns the exponent of the importance sampling weights after `step` timesteps.
    fn beta(&self, step: u64) -> f64 {
        let start = self.prioritized_replay_beta;
        start + (1.0 - start) * (step as f64 / self.total_timesteps as f64).min(1.0)
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        self.atoms().check()?;
        positive(&[("batch-size", self.batch_size)])?;
        within("n-step", self.n_step, 1, 64)?;
        // The buffer also holds the `n_step` rewards that follow a step.
        let least = self.cadence().least_frames() + self.n_step * self.num_envs;
        within("buffer-size", self.buffer_size, least, (1 << 30) - 1)?;
        unit(&[
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("prioritized-replay-alpha", self.prioritized_replay_alpha),
            ("prioritized-replay-beta", self.prioritized_replay_beta),
        ])?;
        let eps = self.prioritized_replay_eps;
        let above = eps.is_finite() && eps > 0.0;
        ensure(above, "prioritized-replay-eps", eps, "a number above 0")?;
        not_negative(&[("learning-rate", self.learning_rate)])
    }
}

algorithm!(Args, "rainbow_atari", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Noisy linear layer (Fortunato et al. 2018), with weights `w + sigma_w * noise` whose noise is
/// resampled.
#[derive(Debug, Clone, Tree)]
pub struct Noisy<T> {
    /// Means of the weights, `[inputs, outputs]`, and of the bias, `[outputs]`.
    pub mean: Dense<T>,
    /// Standard deviations, of the same shapes as the means.
    pub sigma: Dense<T>,
}

impl Noisy<Tensor> {
    /// Initialises means `U(+-1 / sqrt(inputs))`, `sigma` .5 / sqrt(inputs) for the weights and .5
    /// / sqrt(outputs) for the bias.
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

    /// Samples noise for the layer: factorised, the outer product of two vectors, or with `parity`
    /// independent for every weight.
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

    /// Returns the linear layer with this noise applied.
    fn with(&self, noise: &Dense<Tensor>) -> Dense<Tensor> {
        let b = match (self.mean.b, self.sigma.b, noise.b) {
            (Some(mean), Some(sigma), Some(noise)) => Some(mean + sigma * noise),
            (mean, ..) => mean,
        };
        Dense { w: self.mean.w + self.sigma.w * noise.w, b }
    }
}

/// Dueling network (Wang et al. 2016): from images to features, and from features to the value of
/// the state and the advantages of actions, which are combined into the return distribution of each
/// action.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Network from images to features.
    pub convs: Convs<T>,
    /// Hidden layer and output layer from features to logits of the state's return.
    pub value: [Noisy<T>; 2],
    /// Hidden layer and output layer from features to logits of each action's advantage.
    pub advantage: [Noisy<T>; 2],
    /// Type and layout of the images.
    pub images: Images,
}

/// Linear layers of a [`QNetwork`] with noise already applied, or the noise itself: two for the
/// value, two for the advantage.
#[derive(Debug, Clone, Tree)]
pub struct Streams<T> {
    /// Layers of the value stream.
    pub value: [Dense<T>; 2],
    /// Layers of the advantage stream.
    pub advantage: [Dense<T>; 2],
}

impl QNetwork<Tensor> {
    /// Initialises a network.
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

    /// Samples noise for all noisy layers.
    pub fn draw(&self, key: Key<Tensor>, parity: bool) -> Streams<Tensor> {
        let [a, b, c, d] = key.split_n();
        let [value, last] = &self.value;
        let [advantage, end] = &self.advantage;
        Streams {
            value: [value.draw(a, parity), last.draw(b, parity)],
            advantage: [advantage.draw(c, parity), end.draw(d, parity)],
        }
    }

    /// Returns the value and advantage streams with `noise` applied; with `None` they are the
    /// means.
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

    /// Returns probabilities `f32[B, actions, atoms]` for observations `[B, ..]`, computed with
    /// `streams`, the layers that [`QNetwork::streams`] returns.
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

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct Learner<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// The target network.
    pub target: QNetwork<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
}

/// State carried between iterations of training: the learner, and the noise of the acting network.
pub type State<T> =
    TrainState<(Learner<T>, Streams<T>), PrioritizedFrameBuffer<T>, PlayingImages<T>>;

fn learner(key: Key<Tensor>, images: Images, num_actions: usize, args: &Args) -> Learner<Tensor> {
    let q = QNetwork::init(key, images, num_actions, &args.atoms());
    Learner { target: q.clone(), optimizer: args.adam().init(&q), q }
}

// --------------------------------------------------------------------------------------- losses

/// Computes the target distributions for the actions taken, `f32[B, atoms]`, by double Q-learning
/// (van Hasselt et al. 2016): the online network selects the next action, and the target network
/// gives its return distribution.
pub fn goals(
    (q, q_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    (target, target_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    batch: &SampledBatch<Tensor>,
    atoms: &Atoms,
) -> Tensor {
    let best = atoms.mean(q.apply(batch.next_obs, q_streams, atoms)).argmax(-1);
    let next = of_action(target.apply(batch.next_obs, target_streams, atoms), best);
    atoms.project(batch.reward, batch.discount, next)
}

/// Computes the weighted mean of the cross entropies to `goal: f32[B, atoms]`; the cross entropies
/// themselves, `f32[B]`; and the mean value of the actions taken.
pub fn loss(
    q: &QNetwork<Tensor>,
    noise: &Streams<Tensor>,
    goal: Tensor,
    batch: &SampledBatch<Tensor>,
    weights: Tensor,
    atoms: &Atoms,
) -> (Tensor, (Tensor, Tensor)) {
    let probs = q.apply(batch.obs, &q.streams(Some(noise)), atoms);
    let probs = of_action(probs, batch.action); // f32[B, atoms]
    let entropy = -(goal * probs.clip(1e-5, 1.0 - 1e-5).log()).sum(-1);
    ((weights * entropy).mean(..), (entropy, atoms.mean(probs).mean(..)))
}

// --------------------------------------------------------------------------------------- update

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Loss.
    pub td_loss: T,
    /// Mean value of the actions taken.
    pub q_values: T,
}

/// Takes one gradient step on a batch with fresh noise in both networks; also returns the online
/// network's noise and the errors `f32[B]`.
pub fn update(
    learner: Learner<Tensor>,
    batch: &Batch<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> ((Learner<Tensor>, Streams<Tensor>), Tensor, Metrics<Tensor>) {
    let Learner { q, target, optimizer } = learner;
    let atoms = args.atoms();
    let (a, b) = key.split();
    let noise = q.draw(a, args.parity);
    let target_streams = target.streams(Some(&target.draw(b, args.parity)));
    let q_streams = q.streams(Some(&noise));
    let goal = goals((&q, &q_streams), (&target, &target_streams), &batch.drawn, &atoms);
    let ((td_loss, (errors, q_values)), grads) = value_and_grad(|q: QNetwork<Tensor>| {
        loss(&q, &noise, goal, &batch.drawn, batch.weights, &atoms)
    })(q.clone());
    let (q, optimizer) = args.adam().step(q, grads, optimizer);
    ((Learner { q, target, optimizer }, noise), errors, Metrics { td_loss, q_values })
}

/// Updates the target network if `step` is a multiple of `target_network_frequency`.
fn with_target(learner: Learner<Tensor>, step: Tensor, args: &Args) -> Learner<Tensor> {
    let mixed = incremental_update(&learner.q, &learner.target, args.tau);
    let target = periodic_update(&mixed, &learner.target, step, args.target_network_frequency);
    Learner { target, ..learner }
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `train_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    learning: bool,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { learner: (learner, noise), replay, playing } = state;
    let (atoms, priorities) = (args.atoms(), args.priorities());
    let (q, turns) = (&learner.q, args.cadence().turns());
    let streams = q.streams(Some(&noise));
    // Exploration comes from the noisy layers, so that acting samples nothing.
    let act = |obs, _, key| (atoms.mean(q.apply(obs, &streams, &atoms)).argmax(-1), key);
    let (mut playing, seen, games) = playing.turns(envs, q.images, turns, act);
    let replay = replay.add(seen, &priorities);
    if !learning {
        return (TrainState { learner: (learner, noise), replay, playing }, games, None);
    }
    let [key, draw, fresh] = playing.key.split_n();
    playing.key = key;
    let (start, duration) = (args.prioritized_replay_beta, args.total_timesteps as f64);
    let beta = linear_schedule(start, 1.0, duration, playing.step);
    let batch = replay.sample(draw, beta, &priorities);
    let (learner, errors, metrics) = update(learner, &batch, fresh, args);
    let replay = replay.update(batch.rows, errors, &priorities);
    (TrainState { learner, replay, playing }, games, Some(metrics))
}

// ------------------------------------------------------------------------------------- training

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environments, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, images, num_actions) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let init = |handle, key: Key<Tensor>| {
        let [key, network, noise] = key.split_n();
        let learner = learner(network, images, num_actions, args);
        let noise = learner.q.draw(noise, args.parity);
        let (stack, frame, how) = (images.stack(), images.frame(), args.priorities());
        TrainState {
            learner: (learner, noise),
            replay: PrioritizedFrameBuffer::new(
                args.buffer_size,
                args.num_envs,
                stack,
                &frame,
                &how,
            ),
            playing: PlayingImages::start(&envs, handle, key),
        }
    };
    let rounds = |state, learning| {
        let round = |state| round(&envs, state, learning, args);
        let (state, games, metrics) = off_policy::rounds(args.cadence().rounds(), state, round);
        let TrainState { learner: (mut learner, noise), replay, playing } = state;
        if learning {
            learner = with_target(learner, playing.step, args);
        }
        (TrainState { learner: (learner, noise), replay, playing }, games, metrics)
    };
    // Learning never starts before the first n-step transition is complete.
    let complete = ((args.n_step + 1) * args.num_envs) as u64;
    let learning_starts = args.learning_starts.max(complete);
    let pace = LoopConfig { steps: args.cadence().steps(), learning_starts };
    let model = |state: State<Array>| state.learner.0;
    let tell = |trainer: &mut Trainer<'_, Args>, learning| {
        let step = trainer.global_step();
        match learning {
            true => trainer.run.events.scalar("charts/beta", args.beta(step), step),
            false => Ok(()),
        }
    };
    off_policy::train_and_tell(args, pace, (handle, &envs), init, rounds, model, tell)
}

/// Evaluates a saved model without noise.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, images, num_actions) = pools::images(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| learner(key, images, num_actions, args))?.q;
    let atoms = args.atoms();
    let act = with_mode(args.run.mode, |(q, obs): (QNetwork<Tensor>, Tensor)| {
        let returns = q.apply(obs, &q.streams(None), &atoms);
        (atoms.mean(returns).argmax(-1), returns)
    })
    .named("rainbow_atari_play");
    evaluation.play(pool, |obs, _| act.call((q.clone(), obs)))
}
