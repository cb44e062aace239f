//! QDagger (Agarwal et al. 2022) on images: CleanRL's `qdagger_dqn_atari_jax_impalacnn.py`. A
//! student network first learns offline from a DQN teacher and then online.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/qdagger_dqn_atari.md`.

use std::path::PathBuf;

use serde::Deserialize;

pub use crate::algos::dqn_atari::QNetwork as Teacher;
use crate::algos::dqn_atari::TrainState as TeacherModel;
use crate::envs::ObsKind;
use crate::nn::{Dense, ImageEncoder, init};
use crate::optim::{incremental_update, periodic_update};
use crate::random::{randint, uniform};
use crate::rl::buffers::frames::{
    FrameBuffer, FrameTransition, SampledBatch, min_buffer_size, newest_frame, stack_and_frame,
};
use crate::rl::checkpoint::saved::SavedMetadata;
use crate::rl::checkpoint::{self};
use crate::rl::prelude::*;
use crate::rl::settings::flags::{
    at_least_one_call, largest_divisor, update_schedule, updates_in_calls,
};
use crate::rl::{Evaluation, Run, interrupt};
use crate::timeline;

// ------------------------------------------------------------------------------------- settings

/// QDagger for Atari games and MinAtar
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "10000000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "1e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "1")]
    pub num_envs: usize,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value = "1000000")]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging); 1 copies the network
    #[arg(long, default_value = "1.0")]
    pub tau: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value = "1000")]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "32")]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "1.0")]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "0.01")]
    pub end_e: f64,
    /// The fraction of timesteps over which epsilon falls from --start-e to --end-e
    #[arg(long, default_value = "0.1")]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value = "80000")]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value = "4")]
    pub train_frequency: usize,
    /// Gradient steps in one compiled call; 0: chosen, at most 250
    #[arg(long, default_value = "0")]
    pub updates_per_call: usize,
    /// The teacher: a model saved with --save-model by a dqn_atari run on the same environment
    #[arg(long)]
    pub teacher_model: Option<PathBuf>,
    /// The number of evaluation episodes that give the teacher's score
    #[arg(long, default_value = "10")]
    pub teacher_eval_episodes: usize,
    /// The number of timesteps of the teacher in the student's offline replay buffer
    #[arg(long, default_value = "500000")]
    pub teacher_steps: usize,
    /// The number of offline gradient steps on the teacher's transitions
    #[arg(long, default_value = "500000")]
    pub offline_steps: usize,
    /// The softmax temperature of the policies compared in the distillation loss
    #[arg(long, default_value = "1.0")]
    pub temperature: f64,
    /// Start online learning at the first online step, as CleanRL does, instead of after
    /// --learning-starts
    #[arg(long, default_value = "false")]
    pub parity: bool,
}

impl Args {
    /// Number of gradient steps in one call of the compiled program.
    fn updates_per_call(&self) -> usize {
        let updates_per_target = self.target_network_frequency / self.train_frequency;
        match self.updates_per_call {
            0 => largest_divisor(updates_per_target, 250),
            updates => updates,
        }
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps_per_call(&self) -> u64 {
        (self.updates_per_call() * self.train_frequency) as u64
    }

    fn optimizer(&self) -> Adam {
        Adam { learning_rate: self.learning_rate, ..Adam::default() }
    }

    /// Epsilon after `steps` online timesteps, for the log. Offline gradient steps count as
    /// timesteps, as in CleanRL.
    fn epsilon(&self, steps: u64) -> f64 {
        let steps = (steps + self.offline_steps as u64) as f64;
        self.start_e + (self.end_e - self.start_e) * (steps / self.exploration_steps()).min(1.0)
    }

    /// Number of timesteps over which epsilon is annealed.
    fn exploration_steps(&self) -> f64 {
        (self.exploration_fraction * self.total_timesteps as f64).max(1.0)
    }

    fn check(&self) -> Result<()> {
        let (train, target) = (self.train_frequency, self.target_network_frequency);
        update_schedule(self.num_envs, ("train-frequency", train), target)?;
        let updates = self.updates_per_call();
        updates_in_calls(updates, target / train)?;
        at_least_one_call(self.total_timesteps, self.steps_per_call())?;
        let least = min_buffer_size(train, self.num_envs);
        within("buffer-size", self.buffer_size, least, i32::MAX as usize)?;
        let steps = self.steps_per_call() as usize;
        ensure(
            self.teacher_steps >= steps.max(least),
            "teacher-steps",
            self.teacher_steps,
            &format!("at least {steps}, the timesteps of one call, and {least}, as --buffer-size"),
        )?;
        ensure(
            self.offline_steps >= updates,
            "offline-steps",
            self.offline_steps,
            &format!("at least {updates}, the gradient steps of one call of the program"),
        )
    }
}

registered_algorithm!(Args, "qdagger_dqn_atari", FOUR_FRAMES_OR_BOARDS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// The student: IMPALA's network (Espeholt et al. 2018) from images to action values, with 16, 32
/// and 32 features and 256 units.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub trunk: ImageEncoder<T>, // residual convolutions and a hidden layer
    pub head: Dense<T>,         // layer from features to action values
    pub obs_kind: ObsKind,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &Sizes) -> QNetwork<Tensor> {
        let (trunk, head) = key.split();
        let Sizes { obs_kind, shape, num_actions } = sizes;
        let (kernel, layers) = (init::lecun_normal(), (&[16, 32, 32][..], &[256][..]));
        let trunk = ImageEncoder::impala(trunk, *obs_kind, shape, layers, kernel);
        let head = Dense::init(head, trunk.size(), *num_actions, kernel);
        QNetwork { trunk, head, obs_kind: *obs_kind }
    }

    /// Returns action values `f32[B, actions]` for `obs: [B, ..]`.
    pub fn apply(&self, obs: Tensor) -> Tensor {
        self.head.apply(self.trunk.apply(obs))
    }
}

/// State that gradient steps change; saved as the model.
#[derive(Debug, Clone, Tree)]
pub struct TrainState<T> {
    pub q: QNetwork<T>,
    pub target: QNetwork<T>,
    pub opt_state: AdamState<T, QNetwork<T>>,
}

/// Initializes the networks and the optimizer.
fn init_train_state(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> TrainState<Tensor> {
    let q = QNetwork::init(key, sizes);
    TrainState { target: q.clone(), opt_state: args.optimizer().init(&q), q }
}

// --------------------------------------------------------------------------------------- acting

/// Returns epsilon after `steps: f32[]` timesteps, annealed linearly from `start_e` to `end_e` over
/// `duration` timesteps: `f32[]`.
pub fn linear_schedule(steps: Tensor, duration: f64, args: &Args) -> Tensor {
    let progress = (steps / duration).minimum(1.0);
    (args.start_e + (args.end_e - args.start_e) * progress).to(DType::F32)
}

/// Returns the actions with the highest of `q_values: f32[N, actions]`, or with probability
/// `epsilon: f32[]` uniformly random ones: `i32[N]`.
pub fn epsilon_greedy(q_values: Tensor, epsilon: Tensor, key: Key<Tensor>) -> Tensor {
    let (explore_key, action_key) = key.split();
    let (num_envs, num_actions) = (q_values.dim(0), q_values.dim(1) as i32);
    let random_actions = randint(action_key, [num_envs], 0, num_actions, DType::I32);
    let explore = uniform(explore_key, [num_envs], DType::F32, 0.0, 1.0).lt(epsilon);
    where_(explore, random_actions, q_values.argmax(-1))
}

/// State of the environments between two steps.
#[derive(Debug, Tree)]
pub struct EnvState<T> {
    pub handle: Handle<T>, // orders the pool's steps, as that of EnvPool's `xla()`
    pub obs: T,            // [N, ..]: last observations
    pub age: T,            // i32[N]: steps since the episode began, up to 255
    pub global_step: T,    // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Steps all environments once, with epsilon-greedy actions of the network `q_values`, where
/// `epsilon` is a function of the timestep; returns N transitions.
fn env_step(
    envs: &XlaPool,
    (q_values, obs_kind): (impl Fn(Tensor) -> Tensor, ObsKind),
    epsilon: impl Fn(Tensor) -> Tensor,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, (FrameTransition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, age, global_step, key } = env_state;
    let (key, action_key) = key.split();
    let action = epsilon_greedy(q_values(obs), epsilon(global_step), action_key);
    let (handle, step) = envs.step(handle, action);
    let transition = FrameTransition {
        frame: newest_frame(obs_kind, obs),
        age,
        action,
        reward: step.reward,
        terminated: step.terminated,
        truncated: step.truncated,
    };
    let age = where_(step.first, zeros_like(age), (age + 1).minimum(255));
    let global_step = global_step + args.num_envs as i32;
    let env_state = EnvState { handle, obs: step.obs, age, global_step, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub loss: T,    // total loss: `td_loss + coefficient * distill_loss`
    pub td_loss: T, // mean squared error to the TD targets
    /// Mean Kullback-Leibler divergence of the student's policy from the teacher's.
    pub distill_loss: T,
    pub q_values: T, // mean value of the actions taken
}

/// Computes `td_loss + coefficient * distill_loss`, and its metrics; `teacher_q_values` are
/// `f32[B, actions]`.
pub fn qdagger_loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    teacher_q_values: Tensor,
    batch: &SampledBatch<Tensor>,
    coefficient: Tensor,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let next_q_value = target.apply(batch.next_obs).max(-1); // f32[B]
    let td_target = batch.reward + batch.discount * next_q_value;
    let q_values = q.apply(batch.obs);
    let q_value = q_at_action(q_values, batch.action);
    let td_loss = (q_value - td_target).square().mean(..);
    let student = (q_values / args.temperature).log_softmax(-1);
    let teacher = (teacher_q_values / args.temperature).log_softmax(-1);
    let distill_loss = (teacher.exp() * (teacher - student)).sum(-1).mean(..);
    let loss = td_loss + coefficient * distill_loss;
    (loss, Metrics { loss, td_loss, distill_loss, q_values: q_value.mean(..) })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a batch.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    teacher: &Teacher<Tensor>,
    batch: &SampledBatch<Tensor>,
    coefficient: Tensor,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { q, target, opt_state } = train_state;
    let teacher_q_values = teacher.apply(batch.obs);
    let ((_, metrics), grads) = value_and_grad(|q: QNetwork<Tensor>| {
        qdagger_loss(&q, &target, teacher_q_values, batch, coefficient, args)
    })(q.clone());
    let (q, opt_state) = args.optimizer().step(q, grads, opt_state);
    (TrainState { q, target, opt_state }, metrics)
}

/// Updates the target network if the timestep is a multiple of `target_network_frequency`.
fn update_target(
    train_state: TrainState<Tensor>,
    global_step: Tensor,
    args: &Args,
) -> TrainState<Tensor> {
    let TrainState { q, target, .. } = &train_state;
    let updated = incremental_update(q, target, args.tau);
    let target = periodic_update(&updated, target, global_step, args.target_network_frequency);
    TrainState { target, ..train_state }
}

// ------------------------------------------------------------------------------- online training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: FrameBuffer<T>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, and the episodes and metrics.
type IterationOutput = (RunnerState<Tensor>, (EpisodeStats<Tensor>, Option<Metrics<Tensor>>));

/// Takes `train_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    (teacher, coefficient): (&Teacher<Tensor>, Tensor),
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { train_state, replay_buffer, env_state } = state;
    let q = &train_state.q;
    let epsilon = |global_step: Tensor| {
        let steps = global_step.to(DType::F32) + args.offline_steps as f64;
        linear_schedule(steps, args.exploration_steps(), args)
    };
    let q_values = |obs| q.apply(obs);
    let step = |env_state, ()| env_step(envs, (q_values, q.obs_kind), epsilon, env_state, args);
    let num_steps = ScanOptions::length(args.train_frequency / args.num_envs);
    let (mut env_state, (transitions, episodes)) = scan_with(step, env_state, (), num_steps);
    let replay_buffer = replay_buffer.add(transitions);
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let (key, sample_key) = env_state.key.split();
    env_state.key = key;
    let batch = replay_buffer.sample(sample_key, args.batch_size, 1, args.gamma);
    let (train_state, metrics) = gradient_step(train_state, teacher, &batch, coefficient, args);
    (RunnerState { train_state, replay_buffer, env_state }, (episodes, Some(metrics)))
}

/// Arguments of the compiled programs of online training: the state, the teacher and the
/// coefficient of the distillation loss `f32[]`.
type TrainInputs<T> = (RunnerState<T>, Teacher<T>, T);

/// Runs `updates_per_call` iterations, and updates the target network after them if it is due;
/// compiled as one program.
fn train_iterations(
    envs: &XlaPool,
    (state, teacher, coefficient): TrainInputs<Tensor>,
    learning: bool,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let iteration =
        |state, ()| train_iteration(envs, state, (&teacher, coefficient), learning, args);
    let count = ScanOptions::length(args.updates_per_call());
    let (mut state, (episodes, metrics)) = scan_with(iteration, state, (), count);
    if learning {
        state.train_state = update_target(state.train_state, state.env_state.global_step, args);
    }
    (state, episodes, metrics)
}

// ------------------------------------------------------------------------------ offline training

/// Adds the teacher's transitions of `steps_per_call` timesteps to the buffer.
fn collect_teacher_steps(
    envs: &XlaPool,
    teacher: &Teacher<Tensor>,
    state: (FrameBuffer<Tensor>, EnvState<Tensor>),
    args: &Args,
) -> (FrameBuffer<Tensor>, EnvState<Tensor>) {
    let obs_kind = teacher.trunk.obs_kind;
    let epsilon = |global_step: Tensor| {
        linear_schedule(global_step.to(DType::F32), args.teacher_steps as f64, args)
    };
    let q_values = |obs| teacher.apply(obs);
    let iteration = |(replay_buffer, env_state): (FrameBuffer<Tensor>, EnvState<Tensor>), ()| {
        let step = |env_state, ()| env_step(envs, (q_values, obs_kind), epsilon, env_state, args);
        let num_steps = ScanOptions::length(args.train_frequency / args.num_envs);
        let (env_state, (transitions, _)) = scan_with(step, env_state, (), num_steps);
        ((replay_buffer.add(transitions), env_state), ())
    };
    scan_with(iteration, state, (), ScanOptions::length(args.updates_per_call())).0
}

/// Takes `updates_per_call` gradient steps on the teacher's transitions after `steps: i32[]` earlier
/// ones, and updates the target network after them if it is due.
fn offline_gradient_steps(
    train_state: TrainState<Tensor>,
    teacher: &Teacher<Tensor>,
    replay_buffer: &FrameBuffer<Tensor>,
    (key, steps): (Key<Tensor>, Tensor),
    args: &Args,
) -> (TrainState<Tensor>, (Key<Tensor>, Tensor), Metrics<Tensor>) {
    let step = |(train_state, key): (TrainState<Tensor>, Key<Tensor>), ()| {
        let (key, sample_key) = key.split();
        let batch = replay_buffer.sample(sample_key, args.batch_size, 1, args.gamma);
        let coefficient = constant(1.0f32);
        let (train_state, metrics) = gradient_step(train_state, teacher, &batch, coefficient, args);
        ((train_state, key), metrics)
    };
    let count = ScanOptions::length(args.updates_per_call());
    let ((train_state, key), metrics) = scan_with(step, (train_state, key), (), count);
    let steps = steps + args.updates_per_call() as i32;
    (update_target(train_state, steps, args), (key, steps), metrics)
}

/// Returns a key of the offline stage.
fn offline_key(args: &Args, stage: u64) -> Key<Array> {
    Key::new(args.run.seed.wrapping_add(stage << 33))
}

/// Steps environments with the teacher for `teacher_steps` timesteps. Returns a buffer of its
/// transitions.
fn collect_teacher_transitions(
    teacher: &Teacher<Array>,
    trainer: &mut Trainer<'_, Args>,
    args: &Args,
) -> Result<FrameBuffer<Array>> {
    let (pool, sizes) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    // A smaller buffer keeps the last transitions.
    let capacity = args.buffer_size.min(args.teacher_steps);
    let init = trainer.jit("teacher_init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (stack, frame) = stack_and_frame(sizes.obs_kind, &sizes.shape);
        let replay_buffer = FrameBuffer::new(capacity, args.num_envs, stack, &frame);
        (replay_buffer, init_env_state(&envs, handle, key))
    });
    let collect = trainer.jit("teacher", |(teacher, state): (Teacher<Tensor>, _)| {
        collect_teacher_steps(&envs, &teacher, state, args)
    });

    let mut state = init.call((handle, offline_key(args, 1)))?;
    for _ in 0..args.teacher_steps as u64 / args.steps_per_call() {
        if interrupt::requested() {
            break;
        }
        let _span = timeline::span("teacher");
        state = collect.call((teacher.clone(), state))?;
    }
    Ok(state.0)
}

/// Trains a student on the teacher's transitions.
fn train_offline(
    teacher: &Teacher<Array>,
    mut train_state: TrainState<Array>,
    trainer: &mut Trainer<'_, Args>,
    args: &Args,
) -> Result<TrainState<Array>> {
    let replay_buffer = collect_teacher_transitions(teacher, trainer, args)?;
    type Inputs<T> = (TrainState<T>, Teacher<T>, FrameBuffer<T>, (Key<T>, T));
    let learn = trainer.jit(
        "offline",
        |(train_state, teacher, replay_buffer, position): Inputs<Tensor>| {
            offline_gradient_steps(train_state, &teacher, &replay_buffer, position, args)
        },
    );

    let updates = args.updates_per_call() as u64;
    let mut position = (offline_key(args, 2), Array::from(0i32));
    for call in 0..args.offline_steps as u64 / updates {
        if interrupt::requested() {
            break;
        }
        let _span = timeline::span("offline");
        let inputs = (train_state, teacher.clone(), replay_buffer.clone(), position);
        let (next_state, next_position, metrics) = learn.call(inputs)?;
        (train_state, position) = (next_state, next_position);
        let (first, end) = (call * updates, (call + 1) * updates);
        log_offline(&metrics, first, &mut trainer.run)?;
        if end / EVALUATION_INTERVAL != first / EVALUATION_INTERVAL {
            let mut evaluation = Evaluation::new(args.run.eval_episodes);
            let policy = policy_of(args, train_state.q.clone(), QNetwork::apply)?;
            policy.play("qdagger_dqn_atari_evaluate", args.run.mode, &mut evaluation)?;
            let tag = "charts/offline/avg_episodic_return";
            trainer.run.events.scalar(tag, mean(&evaluation.returns), end)?;
        }
    }
    Ok(train_state)
}

/// Logs the losses of every 100th gradient step of a call that begins after `first` earlier ones.
fn log_offline(metrics: &Metrics<Array>, first: u64, run: &mut Run) -> Result<()> {
    let columns = [
        ("loss", metrics.loss.to_vec::<f32>()?),
        ("q_loss", metrics.td_loss.to_vec::<f32>()?),
        ("distill_loss", metrics.distill_loss.to_vec::<f32>()?),
    ];
    let steps = first..first + columns[0].1.len() as u64;
    for step in steps.filter(|step| step.is_multiple_of(100)) {
        for (name, column) in &columns {
            let value = f64::from(column[(step - first) as usize]);
            run.events.scalar(&format!("charts/offline/{name}"), value, step)?;
        }
    }
    Ok(())
}

// ------------------------------------------------------------------------------------- training

/// Number of offline gradient steps between two evaluations of the student.
const EVALUATION_INTERVAL: u64 = 100_000;
/// Number of the student's last episodes whose mean return is compared with the teacher's.
const WINDOW: usize = 10;

/// Progress kept on the host and in checkpoints.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Mean return of the teacher.
    teacher_return: f64,
    /// Returns of the student's last episodes.
    last_returns: Vec<f64>,
}

impl Progress {
    /// Returns the coefficient of the distillation loss, which falls to 0 as the student's return
    /// approaches the teacher's.
    fn coefficient(&self) -> f64 {
        if self.last_returns.len() < WINDOW {
            return 1.0;
        }
        (1.0 - mean(&self.last_returns) / self.teacher_return).max(0.0)
    }

    fn push(&mut self, episodic_return: f64) {
        if self.last_returns.len() == WINDOW {
            self.last_returns.remove(0);
        }
        self.last_returns.push(episodic_return);
    }
}

fn mean(returns: &[f64]) -> f64 {
    returns.iter().sum::<f64>() / returns.len().max(1) as f64
}

/// Loads the teacher from `--teacher-model`.
fn load_teacher(args: &Args, sizes: &Sizes) -> Result<Teacher<Array>> {
    let Some(path) = &args.teacher_model else {
        return Err(Error::Config(
            "--teacher-model: name the saved model of a dqn_atari run on the same environment, \
             which --save-model leaves in the run's folder"
                .into(),
        ));
    };
    let metadata = SavedMetadata::read(path)?;
    metadata.ensure_algorithm("dqn_atari", path)?;
    let env_id = metadata.settings.get("env_id").and_then(|id| id.as_str()).unwrap_or_default();
    if env_id != args.env_id {
        return Err(Error::Config(format!(
            "--teacher-model {}: it was trained on {env_id}, and --env-id is {}",
            path.display(),
            args.env_id
        )));
    }
    let model = load_model(&checkpoint::load(path)?, |key| {
        let q = Teacher::init(key, sizes);
        TeacherModel { target: q.clone(), opt_state: Adam::default().init(&q), q }
    })?;
    Ok(model.q)
}

/// Resets the environments.
fn init_env_state(envs: &XlaPool, handle: Handle<Tensor>, key: Key<Tensor>) -> EnvState<Tensor> {
    let (handle, first) = envs.reset(handle);
    let age = zeros([first.obs.dim(0)], DType::I32);
    EnvState { handle, obs: first.obs, age, global_step: constant(0i32), key }
}

/// Initializes the student. If the run is new, evaluates the teacher and trains the student offline.
/// Returns the student, the key of online training and the progress.
fn init_student(
    teacher: &Teacher<Array>,
    sizes: &Sizes,
    trainer: &mut Trainer<'_, Args>,
    args: &Args,
) -> Result<(TrainState<Array>, Key<Array>, Progress)> {
    let init = trainer.jit("student", |key: Key<Tensor>| {
        let (key, network_key) = key.split();
        (init_train_state(network_key, sizes, args), key)
    });
    let (mut train_state, key) = init.call(Key::new(args.run.seed))?;
    let mut progress = Progress::default();
    if args.run.resume.is_none() {
        let mut evaluation = Evaluation::new(args.teacher_eval_episodes);
        let policy = policy_of(args, teacher.clone(), Teacher::apply)?;
        policy.play("qdagger_dqn_atari_teacher", args.run.mode, &mut evaluation)?;
        progress.teacher_return = mean(&evaluation.returns);
        let tag = "charts/teacher/avg_episodic_return";
        trainer.run.events.scalar(tag, progress.teacher_return, 0)?;
        train_state = train_offline(teacher, train_state, trainer, args)?;
    }
    Ok((train_state, key, progress))
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::images(args, args.num_envs, args.run.seed)?;
    let teacher = load_teacher(args, &sizes)?;
    let mut trainer = Trainer::start(args, args.steps_per_call())?;
    let (train_state, key, mut progress) = init_student(&teacher, &sizes, &mut trainer, args)?;

    let (handle, envs) = pool.xla()?;
    type InitInputs<T> = (TrainState<T>, Handle<T>, Key<T>);
    let init = trainer.jit("init", |(train_state, handle, key): InitInputs<Tensor>| {
        let (stack, frame) = stack_and_frame(sizes.obs_kind, &sizes.shape);
        RunnerState {
            train_state,
            replay_buffer: FrameBuffer::new(args.buffer_size, args.num_envs, stack, &frame),
            env_state: init_env_state(&envs, handle, key),
        }
    });
    let explore = trainer.jit("explore", |inputs| train_iterations(&envs, inputs, false, args));
    let learn = trainer.jit("learn", |inputs| train_iterations(&envs, inputs, true, args));

    let state = init.call((train_state, handle, key))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    if trainer.global_step() > 0 {
        progress = serde_json::from_value(trainer.extra_state.clone()).map_err(|error| {
            Error::Argument(format!("the extra state of the checkpoint: {error}"))
        })?;
    }
    trainer.extra_state = serde_json::json!(progress);
    while trainer.should_continue() {
        // A transition is complete only after the next step: the first call never learns.
        let learning_starts = if args.parity { 1 } else { args.learning_starts.max(1) };
        let learning = trainer.global_step() >= learning_starts;
        let coefficient = progress.coefficient();
        let inputs = (state, teacher.clone(), Array::from(coefficient as f32));
        let (next_state, episodes, metrics) = match learning {
            true => learn.call(inputs)?,
            false => explore.call(inputs)?,
        };
        state = next_state;
        let episodes = episodes.to_vec()?;
        trainer.record(&episodes, metrics.as_ref())?;
        trainer.log(&[("charts/epsilon", args.epsilon(trainer.global_step()))])?;
        if learning {
            trainer.log(&[("charts/distill_coeff", coefficient)])?;
        }
        episodes.iter().for_each(|episode| progress.push(episode.episodic_return));
        trainer.extra_state = serde_json::json!(progress);
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a network with these action values, epsilon-greedy in evaluations with the
/// epsilon `end_e`.
fn policy_of<N: Tree<Tensor> + 'static>(
    args: &Args,
    network: N::With<Array>,
    q_values: fn(&N, Tensor) -> Tensor,
) -> Result<Policy>
where
    N::With<Array>: Send + Sync + 'static,
{
    let (pool, _) = pools::images(args, 1, args.run.eval_seed())?;
    let epsilon = args.end_e as f32;
    Ok(Policy::new(pool, network, move |network: &N, obs| {
        let q_values = q_values(network, obs);
        PolicyResults::from_values("q_values", q_values)
            .sampled_by(move |key| epsilon_greedy(q_values, constant(epsilon), key))
    }))
}

/// Returns the policy of a saved model: the best action and the action values. Evaluations are
/// epsilon-greedy with the epsilon `end_e`.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (_, sizes) = pools::images(args, 1, args.run.seed)?;
    let q = load_model(model, |key| init_train_state(key, &sizes, args))?.q;
    policy_of(args, q, QNetwork::apply)
}
