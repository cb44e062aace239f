//! Distributional DQN (C51, Bellemare et al. 2017) for vector observations: CleanRL's `c51_jax.py`.
//! Environment steps, the replay buffer and gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/c51.md`.

use crate::nn::{Activation, Mlp};
use crate::optim::{incremental_update, periodic_update};
use crate::random::{randint, uniform};
use crate::rl::buffers::replay::{ReplayBuffer, Transition};
use crate::rl::prelude::*;
use crate::rl::rollouts::minibatch::merge_time_and_env;
use crate::rl::settings::flags::{
    at_least_one_call, largest_divisor, support, update_schedule, updates_in_calls,
};
use crate::trace::ops::{IndexMode, arange};
use crate::trace::remat::optimization_barrier;

// ------------------------------------------------------------------------------------- settings

/// C51 for discrete actions and vector observations
#[derive(Debug, Clone, Parser, Serialize)]
pub struct Args {
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "CartPole-v1")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value = "500000")]
    pub total_timesteps: u64,
    /// The learning rate of the optimizer
    #[arg(long, default_value = "2.5e-4")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "1")]
    pub num_envs: usize,
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value = "101")]
    pub n_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value = "-100.0", allow_negative_numbers = true)]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value = "100.0", allow_negative_numbers = true)]
    pub v_max: f64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value = "10000")]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value = "0.99")]
    pub gamma: f64,
    /// The number of timesteps between updates of the target network
    #[arg(long, default_value = "500")]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "128")]
    pub batch_size: usize,
    /// The initial epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "1.0")]
    pub start_e: f64,
    /// The final epsilon of epsilon-greedy exploration
    #[arg(long, default_value = "0.05")]
    pub end_e: f64,
    /// The fraction of timesteps over which epsilon falls from --start-e to --end-e
    #[arg(long, default_value = "0.5")]
    pub exploration_fraction: f64,
    /// The timestep at which learning starts
    #[arg(long, default_value = "10000")]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value = "10")]
    pub train_frequency: usize,
    /// Gradient steps in one compiled call; 0: chosen, at most 250
    #[arg(long, default_value = "0")]
    pub updates_per_call: usize,
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
        let eps = 0.01 / self.batch_size as f64; // CleanRL's value.
        Adam { learning_rate: self.learning_rate, eps, ..Adam::default() }
    }

    /// Support of the return distribution: evenly spaced atoms, `f32[atoms]`.
    pub fn atoms(&self) -> Tensor {
        let delta_z = (self.v_max - self.v_min) / (self.n_atoms - 1) as f64;
        let atom = |i| (self.v_min + delta_z * i as f64) as f32;
        constant((0..self.n_atoms).map(atom).collect::<Vec<f32>>().as_slice())
    }

    fn check(&self) -> Result<()> {
        let (train, target) = (self.train_frequency, self.target_network_frequency);
        update_schedule(self.num_envs, ("train-frequency", train), target)?;
        updates_in_calls(self.updates_per_call(), target / train)?;
        at_least_one_call(self.total_timesteps, self.steps_per_call())?;
        support(self.v_min, self.v_max)?;
        within("buffer-size", self.buffer_size, train, i32::MAX as usize)
    }
}

registered_algorithm!(Args, "c51", VECTORS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Network from observations to return distributions: hidden layers of 120 and 84 units.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub layers: Mlp<T>,
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> Self {
        let sizes = [sizes.obs_size(), 120, 84, sizes.num_actions * args.n_atoms];
        QNetwork { layers: Mlp::init(key, &sizes, Activation::Relu) }
    }

    /// Returns probabilities `f32[B, actions, atoms]` for `obs: [B, obs_size]`.
    pub fn apply(&self, obs: Tensor, args: &Args) -> Tensor {
        let logits = self.layers.apply(obs.to(DType::F32));
        logits.reshape([obs.dim(0), logits.dim(1) / args.n_atoms, args.n_atoms]).softmax(-1)
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
    let q = QNetwork::init(key, sizes, args);
    TrainState { target: q.clone(), opt_state: args.optimizer().init(&q), q }
}

// --------------------------------------------------------------------------------------- acting

/// Returns epsilon at a timestep `i32[]`, annealed linearly from `start_e` to `end_e`: `f32[]`.
pub fn linear_schedule(global_step: Tensor, args: &Args) -> Tensor {
    let duration = (args.exploration_fraction * args.total_timesteps as f64).max(1.0);
    let progress = (global_step.to(DType::F32) / duration).minimum(1.0);
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
    pub obs: T,            // f32[N, obs_size]: last observations
    pub global_step: T,    // i32[]: number of timesteps of all environments so far
    pub key: Key<T>,
}

/// Steps all environments once, with epsilon-greedy actions; returns N transitions.
fn env_step(
    envs: &XlaPool,
    q: &QNetwork<Tensor>,
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, (Transition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, global_step, key } = env_state;
    let (key, action_key) = key.split();
    let epsilon = linear_schedule(global_step, args);
    let q_values = (q.apply(obs, args) * args.atoms()).sum(-1);
    let action = epsilon_greedy(q_values, epsilon, action_key);
    let (handle, step) = envs.step(handle, action);
    let transition = Transition {
        obs,
        action,
        reward: step.reward,
        // The final observation where an episode ended: `step.obs` is that after the reset.
        next_obs: envs.next_obs_of(&step).to(DType::F32),
        terminated: step.terminated.to(DType::F32),
    };
    let global_step = global_step + args.num_envs as i32;
    let env_state = EnvState { handle, obs: step.obs.to(DType::F32), global_step, key };
    (env_state, (transition, EpisodeStats::from_step(&step)))
}

// ----------------------------------------------------------------------------------------- loss

/// Metrics of a gradient step; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    pub loss: T,
    pub q_values: T, // mean value of the actions taken
}

/// Projects the distributions of `reward + discount * Z`, where Z has the probabilities
/// `pmf: f32[B, atoms]`, onto the support: `f32[B, atoms]`. `discount: f32[B]` is 0 or at least gamma.
///
/// Atom i moves to `b_i`, in units of atoms, and atom j receives `max(0, 1 - |b_i - j|)` of its
/// probability. As moved atoms are `discount` apart, only the nearest are gathered for each j.
pub fn project(reward: Tensor, discount: Tensor, pmf: Tensor, args: &Args) -> Tensor {
    let (last, j) = ((args.n_atoms - 1) as f64, arange(args.n_atoms, DType::F32));
    let [reward, discount] = [reward, discount].map(|x| x.expand_dims(-1)); // f32[B, 1]
    let b_0 = (reward + discount * args.v_min - args.v_min) / ((args.v_max - args.v_min) / last);
    let spacing = where_(discount.gt(0.0), discount, 1.0);
    let b = |i: Tensor| b_0 + spacing * i;
    // The ends of the support also receive what moves beyond them.
    let below = (pmf * (-b(j)).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
    let above = (pmf * (b(j) - last).clip(0.0, 1.0)).sum(-1).expand_dims(-1);
    let mut projected = below * j.eq(0.0).to(DType::F32) + above * j.eq(last).to(DType::F32);
    // Otherwise XLA computes the division again for each element of each gather.
    let first = optimization_barrier(((j - 1.0 - b_0) / spacing).floor() + 1.0);
    let (first, count) =
        if args.gamma < 0.25 { (first.maximum(0.0), last) } else { (first, 2.0 / args.gamma) };
    for k in 0..=count as usize {
        let i = first + k as f64;
        let probability = pmf.take_along_axis_mode(i.to(DType::I32), -1, IndexMode::Clip);
        let exists = (i.ge(0.0) & i.le(last)).to(DType::F32);
        let share = exists * (1.0 - (b(i) - j).abs()).maximum(0.0);
        projected = projected + share * probability;
    }
    // With discount 0 all atoms move to the reward.
    where_(discount.gt(0.0), projected, (1.0 - (b_0.clip(0.0, last) - j).abs()).maximum(0.0))
}

/// Computes the mean cross entropy to the projected target distributions, and its metrics.
pub fn td_loss(
    q: &QNetwork<Tensor>,
    target: &QNetwork<Tensor>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (Tensor, Metrics<Tensor>) {
    let discount = args.gamma * (1.0 - batch.terminated);
    let next_pmfs = target.apply(batch.next_obs, args); // f32[B, actions, atoms]
    let next_action = (next_pmfs * args.atoms()).sum(-1).argmax(-1);
    let target_pmf = project(batch.reward, discount, q_at_action(next_pmfs, next_action), args);
    let pmf = q_at_action(q.apply(batch.obs, args), batch.action); // f32[B, atoms]
    let loss = -(target_pmf * pmf.clip(1e-5, 1.0 - 1e-5).log()).sum(-1).mean(..);
    (loss, Metrics { loss, q_values: (pmf * args.atoms()).sum(-1).mean(..) })
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a batch.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &Transition<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Metrics<Tensor>) {
    let TrainState { q, target, opt_state } = train_state;
    let ((_, metrics), grads) =
        value_and_grad(|q: QNetwork<Tensor>| td_loss(&q, &target, batch, args))(q.clone());
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
    let updated = incremental_update(q, target, 1.0);
    let target = periodic_update(&updated, target, global_step, args.target_network_frequency);
    TrainState { target, ..train_state }
}

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub replay_buffer: ReplayBuffer<T, Transition<T>>,
    pub env_state: EnvState<T>,
}

/// Results of an iteration: the next state, and the episodes and metrics.
type IterationOutput = (RunnerState<Tensor>, (EpisodeStats<Tensor>, Option<Metrics<Tensor>>));

/// Takes `train_frequency` timesteps in the environments and, if `learning`, one gradient step.
fn train_iteration(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> IterationOutput {
    let RunnerState { train_state, replay_buffer, env_state } = state;
    let step = |env_state, ()| env_step(envs, &train_state.q, env_state, args);
    let num_steps = ScanOptions::length(args.train_frequency / args.num_envs);
    let (mut env_state, (transitions, episodes)) = scan_with(step, env_state, (), num_steps);
    let replay_buffer = replay_buffer.add(merge_time_and_env(transitions));
    if !learning {
        return (RunnerState { train_state, replay_buffer, env_state }, (episodes, None));
    }
    let (key, sample_key) = env_state.key.split();
    env_state.key = key;
    let batch = replay_buffer.sample(sample_key, args.batch_size);
    let (train_state, metrics) = gradient_step(train_state, &batch, args);
    (RunnerState { train_state, replay_buffer, env_state }, (episodes, Some(metrics)))
}

/// Runs `updates_per_call` iterations, and updates the target network after them if it is due;
/// compiled as one program.
fn train_iterations(
    envs: &XlaPool,
    state: RunnerState<Tensor>,
    learning: bool,
    args: &Args,
) -> (RunnerState<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let iteration = |state, ()| train_iteration(envs, state, learning, args);
    let count = ScanOptions::length(args.updates_per_call());
    let (mut state, (episodes, metrics)) = scan_with(iteration, state, (), count);
    if learning {
        state.train_state = update_target(state.train_state, state.env_state.global_step, args);
    }
    (state, episodes, metrics)
}

fn train(args: &Args) -> Result<Summary> {
    let (pool, sizes) = pools::discrete(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let mut trainer = Trainer::start(args, args.steps_per_call())?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, network_key) = key.split();
        let (handle, first) = envs.reset(handle);
        let item = Transition::types(sizes.obs_size(), TensorType::scalar(DType::I32));
        let (obs, global_step) = (first.obs.to(DType::F32), constant(0i32));
        RunnerState {
            train_state: init_train_state(network_key, &sizes, args),
            replay_buffer: ReplayBuffer::new(args.buffer_size, item),
            env_state: EnvState { handle, obs, global_step, key },
        }
    });
    let explore = trainer.jit("explore", |state| train_iterations(&envs, state, false, args));
    let learn = trainer.jit("learn", |state| train_iterations(&envs, state, true, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        let learning = trainer.global_step() >= args.learning_starts;
        let (next_state, episodes, metrics) = match learning {
            true => learn.call(state)?,
            false => explore.call(state)?,
        };
        state = next_state;
        trainer.record(&episodes.to_vec()?, metrics.as_ref())?;
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the best action and the action values. Evaluations are
/// epsilon-greedy with the epsilon `end_e`.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::discrete(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| init_train_state(key, &sizes, args))?.q;
    let epsilon = args.end_e as f32;
    let args = args.clone();
    Ok(Policy::new(pool, q, move |q: &QNetwork<Tensor>, obs| {
        let pmfs = q.apply(obs, &args);
        let q_values = (pmfs * args.atoms()).sum(-1);
        PolicyResults::from_values("q_values", q_values)
            .sampled_by(move |key| epsilon_greedy(q_values, constant(epsilon), key))
            .with_bars(pmfs)
    }))
}
