//! QDagger (Agarwal et al. 2022) on images: CleanRL's `qdagger_dqn_atari_jax_impalacnn.py`. A
//! student network first learns offline from a DQN teacher and then online.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/qdagger_dqn_atari.md`.

use std::path::PathBuf;

use clap::Parser;
use serde::{Deserialize, Serialize};

use crate::algorithm;
use crate::envs::{Handle, XlaPool};
use crate::error::{Error, Result};
use crate::jit::with_mode;
use crate::nn::{Dense, ImpalaCnn, init};
use crate::optim::{Adam, AdamState, incremental_update, periodic_update};
use crate::rl::cadence::UpdateSchedule;
use crate::rl::checkpoint::{self, Checkpoint};
use crate::rl::flags::{ensure, not_negative, positive, unit, within};
use crate::rl::frames::{FrameBuffer, SampledBatch};
use crate::rl::images::{Images, Trunk};
use crate::rl::off_policy::{self, TrainState};
use crate::rl::playing::PlayingImages;
use crate::rl::q_values::{epsilon_greedy, linear_schedule, of_action};
use crate::rl::saved::{Origin, load_model};
use crate::rl::{EpisodeStats, Evaluation, Run, RunOptions, Summary, Trainer, interrupt, pools};
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::constant;
use crate::tree::Tree;
use crate::{Array, DType, Key, Tensor, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "QDagger for Atari games and MinAtar", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "qdagger_dqn_atari")]
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
    #[arg(long, default_value_t = 1e-4)]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value_t = 1)]
    pub num_envs: usize,
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
    #[arg(long, default_value_t = 1000)]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 32)]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 1.0)]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value_t = 0.01)]
    pub end_e: f64,
    /// The fraction of total timesteps over which epsilon is annealed from --start-e to --end-e
    #[arg(long, default_value_t = 0.1)]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value_t = 80_000)]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value_t = 4)]
    pub train_frequency: usize,
    /// The teacher: a model saved with --save-model by a dqn_atari run on the same environment
    #[arg(long)]
    pub teacher_model: Option<PathBuf>,
    /// The number of evaluation episodes whose mean return is the teacher's score, to which the
    /// student's return is compared
    #[arg(long, default_value_t = 10)]
    pub teacher_eval_episodes: usize,
    /// The number of timesteps that the teacher adds to the student's offline replay buffer
    #[arg(long, default_value_t = 500_000)]
    pub teacher_steps: usize,
    /// The number of offline gradient steps on the teacher's transitions
    #[arg(long, default_value_t = 500_000)]
    pub offline_steps: usize,
    /// The softmax temperature of the policies compared in the distillation loss
    #[arg(long, default_value_t = 1.0)]
    pub temperature: f64,
    /// Start online learning at the first online step, as CleanRL does, instead of after
    /// --learning-starts
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub parity: bool,
}

impl Args {
    fn cadence(&self) -> UpdateSchedule {
        let Args { num_envs, train_frequency, target_network_frequency, .. } = *self;
        UpdateSchedule { num_envs, train_frequency, target_network_frequency, most_rounds: 250 }
    }

    /// Returns epsilon after `step` online timesteps. Offline gradient steps count as timesteps, as
    /// in CleanRL.
    fn epsilon(&self, step: u64) -> f64 {
        let progress = ((step + self.offline_steps as u64) as f64 / self.exploration()).min(1.0);
        self.start_e + (self.end_e - self.start_e) * progress
    }

    /// Number of timesteps over which epsilon is annealed.
    fn exploration(&self) -> f64 {
        (self.exploration_fraction * self.total_timesteps as f64).max(1.0)
    }

    fn check(&self) -> Result<()> {
        self.cadence().check("train-frequency", self.total_timesteps)?;
        positive(&[
            ("batch-size", self.batch_size),
            ("teacher-eval-episodes", self.teacher_eval_episodes),
        ])?;
        within("buffer-size", self.buffer_size, self.cadence().least_frames(), i32::MAX as usize)?;
        let steps = self.cadence().steps() as usize;
        ensure(
            self.teacher_steps >= steps.max(8 * self.num_envs),
            "teacher-steps",
            self.teacher_steps,
            &format!("at least {steps}, the timesteps of one call of the program"),
        )?;
        let rounds = self.cadence().rounds();
        ensure(
            self.offline_steps >= rounds,
            "offline-steps",
            self.offline_steps,
            &format!("at least {rounds}, the gradient steps of one call of the program"),
        )?;
        let heat = self.temperature;
        ensure(heat.is_finite() && heat > 0.0, "temperature", heat, "a number above 0")?;
        unit(&[
            ("gamma", self.gamma),
            ("tau", self.tau),
            ("start-e", self.start_e),
            ("end-e", self.end_e),
            ("exploration-fraction", self.exploration_fraction),
        ])?;
        not_negative(&[("learning-rate", self.learning_rate)])
    }
}

algorithm!(Args, "qdagger_dqn_atari", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// The student: IMPALA's network (Espeholt et al. 2018) from images to action values, with 16, 32
/// and 32 features and 256 units.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    /// Encoder from images to hidden units.
    pub trunk: ImpalaCnn<T>,
    /// Layer from hidden units to action values.
    pub head: Dense<T>,
    /// Type and layout of the images.
    pub images: Images,
}

impl QNetwork<Tensor> {
    /// Initialises a student.
    pub fn init(key: Key<Tensor>, images: Images, num_actions: usize) -> QNetwork<Tensor> {
        let (trunk, head) = key.split();
        let shape = match images {
            Images::Atari => [84, 84, 4],
            Images::MinAtar { channels } => [10, 10, channels],
        };
        let kernel = init::lecun_normal();
        QNetwork {
            trunk: ImpalaCnn::init(trunk, shape, &[16, 32, 32], &[256], kernel),
            head: Dense::init(head, 256, num_actions, kernel),
            images,
        }
    }

    /// Returns action values `f32[B, actions]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(self.images.scaled(obs)))
    }
}

/// The teacher: the Q-network of `dqn_atari`.
#[derive(Debug, Clone, Tree)]
pub struct Teacher<T> {
    /// Network from images to features.
    pub trunk: Trunk<T>,
    /// Layer from features to action values.
    pub head: Dense<T>,
}

impl Teacher<Tensor> {
    /// Initialises an untrained teacher, whose shapes are those of a saved one.
    pub fn init(key: Key<Tensor>, images: Images, num_actions: usize) -> Teacher<Tensor> {
        let (trunk, head) = key.split();
        let kernel = init::lecun_normal();
        Teacher {
            trunk: Trunk::init(trunk, images, kernel),
            head: Dense::init(head, images.width(), num_actions, kernel),
        }
    }

    /// Returns action values `f32[B, actions]` for observations `[B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(obs))
    }
}

/// Model that a run of `dqn_atari` saves.
#[derive(Debug, Clone, Tree)]
struct TeacherModel<T> {
    q: Teacher<T>,
    target: Teacher<T>,
    optimizer: AdamState<T, Teacher<T>>,
}

/// State that gradient steps change: the student, its target network and its optimiser.
#[derive(Debug, Clone, Tree)]
pub struct Student<T> {
    /// The network.
    pub q: QNetwork<T>,
    /// The target network.
    pub target: QNetwork<T>,
    /// Adam's moments.
    pub optimizer: AdamState<T, QNetwork<T>>,
}

/// State carried between iterations of online learning.
pub type State<T> = TrainState<Student<T>, FrameBuffer<T>, PlayingImages<T>>;

/// Initialises a student, its target network and its optimiser.
fn student(key: Key<Tensor>, images: Images, num_actions: usize) -> Student<Tensor> {
    let q = QNetwork::init(key, images, num_actions);
    Student { target: q.clone(), optimizer: Adam::default().init(&q), q }
}

// --------------------------------------------------------------------------------------- losses

/// Metrics of one gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Total loss: `td_loss + coefficient * distill_loss`.
    pub loss: T,
    /// Mean squared error to the TD targets.
    pub td_loss: T,
    /// Mean Kullback-Leibler divergence of the student's policy from the teacher's.
    pub distill_loss: T,
    /// Mean value of the actions taken.
    pub q_values: T,
}

/// Computes `td_loss + coefficient * distill_loss` and its metrics; `taught: f32[B, actions]` are
/// the teacher's action values.
pub fn loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    taught: Tensor,
    batch: &SampledBatch<Tensor>,
    coefficient: Tensor,
    temperature: f64,
) -> (Tensor, Metrics<Tensor>) {
    let next = target.apply(batch.next_obs).max(-1);
    let goal = batch.reward + batch.discount * next; // f32[B]
    let values = q.apply(batch.obs);
    let value = of_action(values, batch.action);
    let td_loss = (value - goal).square().mean(..);
    let student = (values / temperature).log_softmax(-1);
    let teacher = (taught / temperature).log_softmax(-1);
    let distill_loss = (teacher.exp() * (teacher - student)).sum(-1).mean(..);
    let loss = td_loss + coefficient * distill_loss;
    (loss, Metrics { loss, td_loss, distill_loss, q_values: value.mean(..) })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a batch.
pub fn update(
    student: Student<Tensor>,
    teacher: &Teacher<Tensor>,
    batch: &SampledBatch<Tensor>,
    coefficient: Tensor,
    args: &Args,
) -> (Student<Tensor>, Metrics<Tensor>) {
    let Student { q, target, optimizer } = student;
    let taught = teacher.apply(batch.obs);
    let ((_, metrics), grads) = value_and_grad(|q: QNetwork<Tensor>| {
        loss(&q, &target, taught, batch, coefficient, args.temperature)
    })(q.clone());
    let adam = Adam { learning_rate: args.learning_rate, ..Adam::default() };
    let (q, optimizer) = adam.step(q, grads, optimizer);
    (Student { q, target, optimizer }, metrics)
}

/// Updates the target network if `step` is a multiple of `target_network_frequency`.
fn with_target(student: Student<Tensor>, step: Tensor, args: &Args) -> Student<Tensor> {
    let Student { q, target, optimizer } = student;
    let mixed = incremental_update(&q, &target, args.tau);
    let target = periodic_update(&mixed, &target, step, args.target_network_frequency);
    Student { q, target, optimizer }
}

/// Takes gradient steps on the teacher's transitions; `done: i32[]` is the number of earlier ones.
fn offline(
    student: Student<Tensor>,
    teacher: &Teacher<Tensor>,
    replay: &FrameBuffer<Tensor>,
    (key, done): (Key<Tensor>, Tensor),
    args: &Args,
) -> (Student<Tensor>, (Key<Tensor>, Tensor), Metrics<Tensor>) {
    let rounds = args.cadence().rounds();
    let round = |(student, key): (Student<Tensor>, Key<Tensor>), ()| {
        let (key, draw) = key.split();
        let batch = replay.sample(draw, args.batch_size, 1, args.gamma);
        let (student, metrics) = update(student, teacher, &batch, constant(1.0f32), args);
        ((student, key), metrics)
    };
    let ((student, key), metrics) =
        scan_with(round, (student, key), (), ScanOptions::length(rounds));
    let done = done + rounds as i32;
    (with_target(student, done, args), (key, done), metrics)
}

// -------------------------------------------------------------------------------------- rollout

/// Returns epsilon-greedy actions for `values`. Epsilon is annealed over `exploration` timesteps,
/// of which `before` have passed at step 0.
fn act(
    values: Tensor,
    (step, before, exploration): (Tensor, usize, f64),
    key: Key<Tensor>,
    args: &Args,
) -> (Tensor, Key<Tensor>) {
    let (key, draw) = key.split();
    let step = step.to(DType::F32) + before as f64;
    let epsilon = linear_schedule(args.start_e, args.end_e, exploration, step);
    (epsilon_greedy(values, epsilon, draw), key)
}

/// Adds the teacher's transitions of as many timesteps to the buffer as one online call takes.
fn fill(
    envs: &XlaPool,
    teacher: &Teacher<Tensor>,
    (replay, playing): (FrameBuffer<Tensor>, PlayingImages<Tensor>),
    args: &Args,
) -> (FrameBuffer<Tensor>, PlayingImages<Tensor>) {
    let (images, turns) = (teacher.trunk.images, args.cadence().turns());
    let round = |(replay, playing): (FrameBuffer<Tensor>, PlayingImages<Tensor>), ()| {
        let by_teacher = |obs, step, key| {
            act(teacher.apply(obs), (step, 0, args.teacher_steps as f64), key, args)
        };
        let (playing, seen, _) = playing.turns(envs, images, turns, by_teacher);
        ((replay.add(seen), playing), ())
    };
    let count = ScanOptions::length(args.cadence().rounds());
    scan_with(round, (replay, playing), (), count).0
}

/// Takes `train_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    teacher: &Teacher<Tensor>,
    coefficient: Tensor,
    learning: bool,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { learner: student, replay, playing } = state;
    let (q, turns) = (&student.q, args.cadence().turns());
    let by_student = |obs, step, key| {
        act(q.apply(obs), (step, args.offline_steps, args.exploration()), key, args)
    };
    let (mut playing, seen, games) = playing.turns(envs, q.images, turns, by_student);
    let replay = replay.add(seen);
    if !learning {
        return (TrainState { learner: student, replay, playing }, games, None);
    }
    let (key, draw) = playing.key.split();
    playing.key = key;
    let batch = replay.sample(draw, args.batch_size, 1, args.gamma);
    let (learner, metrics) = update(student, teacher, &batch, coefficient, args);
    (TrainState { learner, replay, playing }, games, Some(metrics))
}

// ------------------------------------------------------------------------------------- training

/// Loads the teacher from `--teacher-model`.
fn teacher(args: &Args, images: Images, num_actions: usize) -> Result<Teacher<Array>> {
    let Some(path) = &args.teacher_model else {
        return Err(Error::Config(
            "--teacher-model: name the saved model of a dqn_atari run on the same environment, \
             which --save-model leaves in the run's folder"
                .into(),
        ));
    };
    let origin = Origin::read(path)?;
    origin.expect("dqn_atari", path)?;
    let env_id = origin.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or_default();
    if env_id != args.env_id {
        return Err(Error::Config(format!(
            "--teacher-model {}: it was trained on {env_id}, and --env-id is {}",
            path.display(),
            args.env_id
        )));
    }
    let model = load_model(&checkpoint::load(path)?, |key| {
        let q = Teacher::init(key, images, num_actions);
        TeacherModel { target: q.clone(), optimizer: Adam::default().init(&q), q }
    })?;
    Ok(model.q)
}

/// Evaluates a network, with actions that are epsilon-greedy in `values` and an epsilon of `end_e`.
fn evaluate<N: Tree<Tensor>>(
    args: &Args,
    evaluation: &mut Evaluation,
    network: N::With<Array>,
    values: impl Fn(&N, Tensor) -> Tensor,
) -> Result<()>
where
    N::With<Array>: Tree<Array, With<Tensor> = N> + Clone,
{
    let (pool, ..) = pools::images(args, 1, args.run.eval_seed())?;
    let act = with_mode(args.run.mode, |(network, obs, key): (N, Tensor, Key<Tensor>)| {
        let values = values(&network, obs);
        (epsilon_greedy(values, constant(args.end_e as f32), key), values)
    })
    .named("qdagger_dqn_atari_play");
    evaluation.play(pool, |obs, key| act.call((network.clone(), obs, key)))
}

fn mean(returns: &[f64]) -> f64 {
    returns.iter().sum::<f64>() / returns.len().max(1) as f64
}

/// Runs the offline stage: the teacher fills a replay buffer, on which `student` is trained.
/// Returns the student and the compilation time in seconds.
fn learn_from(
    teacher: &Teacher<Array>,
    student: Student<Array>,
    run: &mut Run,
    args: &Args,
) -> Result<(Student<Array>, f64)> {
    let (pool, images, _) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let mode = args.run.mode;
    let [first, second] = [1, 2].map(|k| {
        let seed = args.run.seed.wrapping_add(k << 33);
        Key::new(seed)
    });
    // The capacity is at most `teacher_steps`; if it is smaller, old transitions are overwritten.
    let room = args.buffer_size.min(args.teacher_steps);
    let init = with_mode(mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let replay = FrameBuffer::new(room, args.num_envs, images.stack(), &images.frame());
        (replay, PlayingImages::start(&envs, handle, key))
    })
    .named("qdagger_dqn_atari_teacher_init");
    let fill = with_mode(mode, |(teacher, state): (Teacher<Tensor>, _)| {
        fill(&envs, &teacher, state, args)
    })
    .named("qdagger_dqn_atari_teacher");
    let steps = args.cadence().steps() as usize;
    let mut state = init.call((handle, first))?;
    for _ in 0..args.teacher_steps / steps {
        if interrupt::requested() {
            break;
        }
        let _span = timeline::span("teacher");
        state = fill.call((teacher.clone(), state))?;
    }

    let (replay, _) = state;
    type Inputs = (Student<Tensor>, Teacher<Tensor>, FrameBuffer<Tensor>, (Key<Tensor>, Tensor));
    let learn = with_mode(mode, |(student, teacher, replay, place): Inputs| {
        offline(student, &teacher, &replay, place, args)
    })
    .named("qdagger_dqn_atari_offline")
    .check_nans(args.run.check_nans);
    let rounds = args.cadence().rounds() as u64;
    let (mut student, mut place) = (student, (second, Array::from(0i32)));
    for call in 0..args.offline_steps as u64 / rounds {
        if interrupt::requested() {
            break;
        }
        let _span = timeline::span("offline");
        let inputs = (student, teacher.clone(), replay.clone(), place);
        let (next, at, metrics) = learn.call(inputs)?;
        (student, place) = (next, at);
        let before = call * rounds;
        let columns = [
            ("loss", metrics.loss.to_vec::<f32>()?),
            ("q_loss", metrics.td_loss.to_vec::<f32>()?),
            ("distill_loss", metrics.distill_loss.to_vec::<f32>()?),
        ];
        for step in (before..before + rounds).filter(|step| step.is_multiple_of(100)) {
            for (name, column) in &columns {
                let value = f64::from(column[(step - before) as usize]);
                run.events.scalar(&format!("charts/offline/{name}"), value, step)?;
            }
        }
        let after = before + rounds;
        if after / EVALUATION_INTERVAL != before / EVALUATION_INTERVAL {
            let mut evaluation = Evaluation::new(args.run.eval_episodes);
            let values = |q: &QNetwork<Tensor>, obs| q.apply(obs);
            evaluate(args, &mut evaluation, student.q.clone(), values)?;
            let tag = "charts/offline/avg_episodic_return";
            run.events.scalar(tag, mean(&evaluation.returns), after)?;
        }
    }
    let compile_s = init.stats().seconds() + fill.stats().seconds() + learn.stats().seconds();
    Ok((student, compile_s))
}

/// Number of offline gradient steps between two evaluations of the student.
const EVALUATION_INTERVAL: u64 = 100_000;
/// Number of the student's last episodes whose mean return is compared with the teacher's.
const WINDOW: usize = 10;

/// Progress kept on the host and in checkpoints.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Mean return of the teacher.
    teacher: f64,
    /// Returns of the student's last episodes.
    last: Vec<f64>,
}

impl Progress {
    /// Returns the coefficient of the distillation loss, which falls to 0 as the student's return
    /// approaches the teacher's.
    fn coefficient(&self) -> f64 {
        if self.last.len() < WINDOW {
            return 1.0;
        }
        (1.0 - mean(&self.last) / self.teacher).max(0.0)
    }

    fn push(&mut self, episodic_return: f64) {
        if self.last.len() == WINDOW {
            self.last.remove(0);
        }
        self.last.push(episodic_return);
    }
}

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`] if settings are out of range, and errors from the environments,
/// compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, images, num_actions) = pools::images(args, args.num_envs, args.run.seed)?;
    let teacher = teacher(args, images, num_actions)?;
    let mut trainer = Trainer::start(args, args.cadence().steps())?;

    let mode = args.run.mode;
    let seed = Key::new(args.run.seed);
    let begin = with_mode(mode, |key: Key<Tensor>| {
        let (key, network) = key.split();
        (student(network, images, num_actions), key)
    })
    .named("qdagger_dqn_atari_student");
    let (mut taught, key) = begin.call(seed)?;
    let mut progress = Progress::default();
    let mut compile_s = begin.stats().seconds();
    if args.run.resume.is_none() {
        let mut evaluation = Evaluation::new(args.teacher_eval_episodes);
        let values = |teacher: &Teacher<Tensor>, obs| teacher.apply(obs);
        evaluate(args, &mut evaluation, teacher.clone(), values)?;
        progress.teacher = mean(&evaluation.returns);
        let tag = "charts/teacher/avg_episodic_return";
        trainer.run.events.scalar(tag, progress.teacher, 0)?;
        let seconds;
        (taught, seconds) = learn_from(&teacher, taught, &mut trainer.run, args)?;
        compile_s += seconds;
    }

    let (handle, envs) = pool.xla()?;
    type Start = (Student<Tensor>, Handle<Tensor>, Key<Tensor>);
    let init = with_mode(mode, |(student, handle, key): Start| TrainState {
        learner: student,
        replay: FrameBuffer::new(args.buffer_size, args.num_envs, images.stack(), &images.frame()),
        playing: PlayingImages::start(&envs, handle, key),
    })
    .named("qdagger_dqn_atari_init");
    let go_on = |learning| {
        let envs = &envs;
        type Inputs = (State<Tensor>, Teacher<Tensor>, Tensor);
        with_mode(mode, move |(state, teacher, coefficient): Inputs| {
            let round = |state| round(envs, state, &teacher, coefficient, learning, args);
            let (mut state, games, metrics) =
                off_policy::rounds(args.cadence().rounds(), state, round);
            if learning {
                state.learner = with_target(state.learner, state.playing.step, args);
            }
            (state, games, metrics)
        })
    };
    let explore = go_on(false).named("qdagger_dqn_atari_explore");
    let learn = go_on(true).named("qdagger_dqn_atari_rounds").check_nans(args.run.check_nans);

    let mut state = trainer.init_or_resume(init.call((taught, handle, key))?, &envs)?;
    if trainer.global_step() > 0 {
        progress = serde_json::from_value(trainer.notes.clone())
            .map_err(|error| Error::Argument(format!("the notes of the checkpoint: {error}")))?;
    }
    trainer.notes = serde_json::json!(progress);
    while trainer.should_continue() {
        let _span = timeline::span("rounds");
        // A transition is complete only after the next step.
        let first = if args.parity { 1 } else { args.learning_starts.max(1) };
        let learning = trainer.global_step() >= first;
        let rounds = if learning { &learn } else { &explore };
        let coefficient = progress.coefficient();
        let inputs = (state, teacher.clone(), Array::from(coefficient as f32));
        let (next, games, metrics) = rounds.call(inputs)?;
        state = next;
        let games = games.to_vec()?;
        trainer.record(&games, metrics.as_ref())?;
        let step = trainer.global_step();
        trainer.run.events.scalar("charts/epsilon", args.epsilon(step), step)?;
        if learning {
            trainer.run.events.scalar("charts/distill_coeff", coefficient, step)?;
        }
        games.iter().for_each(|game| progress.push(game.episodic_return));
        trainer.notes = serde_json::json!(progress);
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    let programs = [init.stats().seconds(), explore.stats().seconds(), learn.stats().seconds()];
    compile_s += programs.iter().sum::<f64>();
    trainer.finish(&state.learner, compile_s)
}

/// Evaluates a saved model with an epsilon-greedy policy whose epsilon is `end_e`.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (_, images, num_actions) = pools::images(args, 1, args.run.seed)?;
    let q = load_model(model, |key| student(key, images, num_actions))?.q;
    evaluate(args, evaluation, q, |q: &QNetwork<Tensor>, obs| q.apply(obs))
}
