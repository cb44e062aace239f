//! Rainbow (Hessel et al. 2018) on images: CleanRL's `rainbow_atari.py`. Rainbow is distributional,
//! double and dueling Q-learning with noisy layers, n-step returns and prioritized replay.
//! Environment steps, the replay buffer and gradient steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/rainbow_atari.md`.

use crate::interpret;
use crate::nn::{Dense, Encoder, init};
use crate::optim::{incremental_update, periodic_update};
use crate::random::normal;
use crate::rl::buffers::frames::{
    FrameTransition, SampledBatch, min_buffer_size, newest_frame, stack_and_frame,
};
use crate::rl::buffers::prioritized::{PrioritizedBatch, PrioritizedFrameBuffer, PriorityOptions};
use crate::rl::prelude::*;
use crate::rl::settings::flags::{
    at_least_one_call, largest_divisor, support, update_schedule, updates_in_calls,
};
use crate::trace::ops::{arange, full};

// ------------------------------------------------------------------------------------- settings

/// Rainbow for Atari games and MinAtar
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
    #[arg(long, default_value = "6.25e-5")]
    pub learning_rate: f64,
    /// The number of parallel environments
    #[arg(long, default_value = "1")]
    pub num_envs: usize,
    /// The number of atoms in the support of the return distribution
    #[arg(long, default_value = "51")]
    pub n_atoms: usize,
    /// The smallest atom of the support
    #[arg(long, default_value = "-10.0", allow_negative_numbers = true)]
    pub v_min: f64,
    /// The largest atom of the support
    #[arg(long, default_value = "10.0", allow_negative_numbers = true)]
    pub v_max: f64,
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
    #[arg(long, default_value = "8000")]
    pub target_network_frequency: usize,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value = "32")]
    pub batch_size: usize,
    /// The timestep at which learning starts
    #[arg(long, default_value = "80000")]
    pub learning_starts: u64,
    /// The number of timesteps between gradient steps
    #[arg(long, default_value = "4")]
    pub train_frequency: usize,
    /// Gradient steps in one compiled call; 0: chosen, at most 250
    #[arg(long, default_value = "0")]
    pub updates_per_call: usize,
    /// The number of steps n of n-step returns
    #[arg(long, default_value = "3")]
    pub n_step: usize,
    /// The exponent alpha of the errors in priorities of the replay buffer
    #[arg(long, default_value = "0.5")]
    pub prioritized_replay_alpha: f64,
    /// The initial exponent beta of the importance sampling weights; it is annealed to 1
    #[arg(long, default_value = "0.4")]
    pub prioritized_replay_beta: f64,
    /// The epsilon added to the errors in priorities of the replay buffer
    #[arg(long, default_value = "1e-6")]
    pub prioritized_replay_eps: f64,
    /// Sample independent noise for every weight, as CleanRL does, instead of the paper's
    /// factorized noise
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
        Adam { learning_rate: self.learning_rate, eps: 1.5e-4, ..Adam::default() }
    }

    /// Support of the return distribution: evenly spaced atoms, `f32[atoms]`.
    pub fn atoms(&self) -> Tensor {
        let delta_z = (self.v_max - self.v_min) / (self.n_atoms - 1) as f64;
        let atom = |i| (self.v_min + delta_z * i as f64) as f32;
        constant((0..self.n_atoms).map(atom).collect::<Vec<f32>>().as_slice())
    }

    fn priority_options(&self) -> PriorityOptions {
        PriorityOptions {
            n_steps: self.n_step,
            gamma: self.gamma,
            alpha: self.prioritized_replay_alpha,
            eps: self.prioritized_replay_eps,
            batch_size: self.batch_size,
        }
    }

    fn check(&self) -> Result<()> {
        let (train, target) = (self.train_frequency, self.target_network_frequency);
        update_schedule(self.num_envs, ("train-frequency", train), target)?;
        updates_in_calls(self.updates_per_call(), target / train)?;
        at_least_one_call(self.total_timesteps, self.steps_per_call())?;
        support(self.v_min, self.v_max)?;
        // The buffer also holds the `n_step` rewards that follow a step.
        let least = min_buffer_size(train, self.num_envs) + self.n_step * self.num_envs;
        within("buffer-size", self.buffer_size, least, (1 << 30) - 1)
    }
}

registered_algorithm!(Args, "rainbow_atari", FOUR_FRAMES_OR_BOARDS, Args::check, train, policy);

// -------------------------------------------------------------------------------------- network

/// Linear layer with noise (Fortunato et al. 2018): the weights are `mean + sigma * noise`.
#[derive(Debug, Clone, Tree)]
pub struct NoisyLinear<T> {
    pub mean: Dense<T>, // means of the weights `[inputs, outputs]` and of the bias `[outputs]`
    pub sigma: Dense<T>, // standard deviations, of the same shapes
}

impl NoisyLinear<Tensor> {
    /// Initializes means `U(+-1 / sqrt(inputs))` and standard deviations `0.5 / sqrt(inputs)` of the
    /// weights and `0.5 / sqrt(outputs)` of the bias.
    fn init(key: Key<Tensor>, inputs: usize, outputs: usize) -> NoisyLinear<Tensor> {
        let sigma =
            |shape: &[usize], size: usize| full(shape, 0.5 / (size as f64).sqrt(), DType::F32);
        NoisyLinear {
            mean: Dense::init_torch(key, inputs, outputs),
            sigma: Dense {
                w: sigma(&[inputs, outputs], inputs),
                b: Some(sigma(&[outputs], outputs)),
            },
        }
    }

    /// Samples noise for the layer: factorized, the outer product of two vectors, or with `parity`
    /// independent for every weight.
    fn sample_noise(&self, key: Key<Tensor>, parity: bool) -> Dense<Tensor> {
        let (inputs, outputs) = (self.mean.w.dim(0), self.mean.w.dim(1));
        let normal = |key, shape: &[usize]| normal(key, shape, DType::F32);
        let (a, b) = key.split();
        if parity {
            return Dense { w: normal(a, &[inputs, outputs]), b: Some(normal(b, &[outputs])) };
        }
        let scale = |x: Tensor| x.sign() * x.abs().sqrt();
        let (a, b) = (scale(normal(a, &[inputs])), scale(normal(b, &[outputs])));
        Dense { w: a.outer(b), b: Some(b) }
    }

    /// Returns the linear layer with this noise.
    fn with_noise(&self, noise: &Dense<Tensor>) -> Dense<Tensor> {
        let b = match (self.mean.b, self.sigma.b, noise.b) {
            (Some(mean), Some(sigma), Some(noise)) => Some(mean + sigma * noise),
            (mean, ..) => mean,
        };
        Dense { w: self.mean.w + self.sigma.w * noise.w, b }
    }
}

/// Dueling network (Wang et al. 2016) from images to return distributions: a value stream and an
/// advantage stream, each a hidden layer and an output layer.
#[derive(Debug, Clone, Tree)]
pub struct QNetwork<T> {
    pub encoder: Encoder<T>,            // encoder of convolutions alone
    pub value: [NoisyLinear<T>; 2],     // layers from features to logits of the state's return
    pub advantage: [NoisyLinear<T>; 2], // layers from features to logits of each action's advantage
}

/// Noise of the layers of both streams, or these layers with noise.
#[derive(Debug, Clone, Tree)]
pub struct Streams<T> {
    pub value: [Dense<T>; 2],     // layers of the value stream
    pub advantage: [Dense<T>; 2], // layers of the advantage stream
}

impl QNetwork<Tensor> {
    /// Initializes a network for observations and actions of the given sizes.
    pub fn init(key: Key<Tensor>, sizes: &Sizes, args: &Args) -> Self {
        let [convs, a, b, c, d] = key.split_n();
        // PyTorch's `Conv2d`: kernels and biases `U(+-1 / sqrt(fan_in))`.
        let (kernel, bias) = (init::torch_default(), Some(init::torch_default()));
        let encoder = Encoder::init_convs_with(convs, sizes.obs_kind, &sizes.shape, kernel, bias);
        let (features, width) = (encoder.size(), Encoder::hidden_units(sizes.obs_kind));
        let outputs = sizes.num_actions * args.n_atoms;
        QNetwork {
            encoder,
            value: [
                NoisyLinear::init(a, features, width),
                NoisyLinear::init(b, width, args.n_atoms),
            ],
            advantage: [
                NoisyLinear::init(c, features, width),
                NoisyLinear::init(d, width, outputs),
            ],
        }
    }

    /// Samples noise for all noisy layers.
    pub fn sample_noise(&self, key: Key<Tensor>, args: &Args) -> Streams<Tensor> {
        let [a, b, c, d] = key.split_n();
        let ([v0, v1], [a0, a1]) = (&self.value, &self.advantage);
        Streams {
            value: [v0.sample_noise(a, args.parity), v1.sample_noise(b, args.parity)],
            advantage: [a0.sample_noise(c, args.parity), a1.sample_noise(d, args.parity)],
        }
    }

    /// Returns the layers of both streams with this noise.
    pub fn with_noise(&self, noise: &Streams<Tensor>) -> Streams<Tensor> {
        let add = |layers: &[NoisyLinear<Tensor>; 2], noise: &[Dense<Tensor>; 2]| {
            [layers[0].with_noise(&noise[0]), layers[1].with_noise(&noise[1])]
        };
        Streams {
            value: add(&self.value, &noise.value),
            advantage: add(&self.advantage, &noise.advantage),
        }
    }

    /// Returns the layers of both streams without noise.
    pub fn without_noise(&self) -> Streams<Tensor> {
        let mean = |layers: &[NoisyLinear<Tensor>; 2]| layers.clone().map(|layer| layer.mean);
        Streams { value: mean(&self.value), advantage: mean(&self.advantage) }
    }

    /// Returns probabilities `f32[B, actions, atoms]` for `obs: [B, ..]`, computed with the layers
    /// `streams`.
    pub fn apply(&self, obs: Tensor, streams: &Streams<Tensor>, args: &Args) -> Tensor {
        let features = self.encoder.apply(obs);
        let logits = |[hidden, head]: &[Dense<Tensor>; 2]| {
            let logits = head.apply(hidden.apply(features).relu());
            logits.reshape([obs.dim(0), logits.dim(1) / args.n_atoms, args.n_atoms])
        };
        let (value, advantage) = (logits(&streams.value), logits(&streams.advantage));
        (value + advantage - advantage.mean(1).expand_dims(1)).softmax(-1)
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

/// Returns the importance sampling exponent beta at a timestep `i32[]`, annealed linearly to 1:
/// `f32[]`.
pub fn beta_schedule(global_step: Tensor, args: &Args) -> Tensor {
    let progress = (global_step.to(DType::F32) / args.total_timesteps as f64).minimum(1.0);
    let start = args.prioritized_replay_beta;
    (start + (1.0 - start) * progress).to(DType::F32)
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

/// Steps all environments once; returns N transitions. The noise of the network explores.
fn env_step(
    envs: &XlaPool,
    (q, streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    env_state: EnvState<Tensor>,
    args: &Args,
) -> (EnvState<Tensor>, (FrameTransition<Tensor>, EpisodeStats<Tensor>)) {
    let EnvState { handle, obs, age, global_step, key } = env_state;
    let q_values = (q.apply(obs, streams, args) * args.atoms()).sum(-1);
    let action = q_values.argmax(-1);
    let (handle, step) = envs.step(handle, action);
    let transition = FrameTransition {
        frame: newest_frame(q.encoder.obs_kind, obs),
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
    pub td_loss: T,
    pub q_values: T, // mean value of the actions taken
}

/// Projects the distributions of `reward + discount * Z`, where Z has the probabilities
/// `pmf: f32[B, atoms]`, onto the support: `f32[B, atoms]`. `reward` and `discount` are `f32[B]`.
///
/// Atom i moves to `b_i`, in units of atoms, and atom j receives `max(0, 1 - |b_i - j|)` of its
/// probability.
pub fn project(reward: Tensor, discount: Tensor, pmf: Tensor, args: &Args) -> Tensor {
    let last = (args.n_atoms - 1) as f64;
    let atoms = reward.expand_dims(-1) + discount.expand_dims(-1) * args.atoms(); // f32[B, atoms]
    let delta_z = (args.v_max - args.v_min) / last;
    let b = (atoms.clip(args.v_min, args.v_max) - args.v_min) / delta_z;
    let j = arange(args.n_atoms, DType::F32);
    // Rounding may move the highest atom beyond the last one.
    let distance = (b.minimum(last).expand_dims(-1) - j).abs(); // f32[B, atoms, atoms]
    ((1.0 - distance).maximum(0.0) * pmf.expand_dims(-1)).sum(-2)
}

/// Computes the target distributions `f32[B, atoms]` by double Q-learning (van Hasselt et al. 2016):
/// the online network selects the next action, and the target network evaluates it.
pub fn target_pmf(
    (q, q_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    (target, target_streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    batch: &SampledBatch<Tensor>,
    args: &Args,
) -> Tensor {
    let next_q_values = (q.apply(batch.next_obs, q_streams, args) * args.atoms()).sum(-1);
    let next_pmfs = target.apply(batch.next_obs, target_streams, args); // f32[B, actions, atoms]
    let next_pmf = q_at_action(next_pmfs, next_q_values.argmax(-1));
    project(batch.reward, batch.discount, next_pmf, args)
}

/// Computes the mean cross entropy to `target_pmf: f32[B, atoms]`, weighted by importance, the cross
/// entropies `f32[B]`, and the metrics.
pub fn td_loss(
    (q, streams): (&QNetwork<Tensor>, &Streams<Tensor>),
    target_pmf: Tensor,
    batch: &PrioritizedBatch<Tensor>,
    args: &Args,
) -> (Tensor, (Tensor, Metrics<Tensor>)) {
    let PrioritizedBatch { transitions, weights, .. } = batch;
    let pmfs = q.apply(transitions.obs, streams, args);
    let pmf = q_at_action(pmfs, transitions.action); // f32[B, atoms]
    let cross_entropy = -(target_pmf * pmf.clip(1e-5, 1.0 - 1e-5).log()).sum(-1);
    let td_loss = (*weights * cross_entropy).mean(..);
    let q_values = (pmf * args.atoms()).sum(-1).mean(..);
    (td_loss, (cross_entropy, Metrics { td_loss, q_values }))
}

// --------------------------------------------------------------------------------------- update

/// Takes one gradient step on a batch, with new noise in both networks; also returns the noise of
/// the online network and the errors `f32[B]` of the transitions.
pub fn gradient_step(
    train_state: TrainState<Tensor>,
    batch: &PrioritizedBatch<Tensor>,
    key: Key<Tensor>,
    args: &Args,
) -> (TrainState<Tensor>, Streams<Tensor>, Tensor, Metrics<Tensor>) {
    let TrainState { q, target, opt_state } = train_state;
    let (noise_key, target_key) = key.split();
    let noise = q.sample_noise(noise_key, args);
    let target_streams = target.with_noise(&target.sample_noise(target_key, args));
    let q_streams = q.with_noise(&noise);
    let networks = ((&q, &q_streams), (&target, &target_streams));
    let target_pmf = target_pmf(networks.0, networks.1, &batch.transitions, args);
    let ((_, (errors, metrics)), grads) = value_and_grad(|q: QNetwork<Tensor>| {
        td_loss((&q, &q.with_noise(&noise)), target_pmf, batch, args)
    })(q.clone());
    let (q, opt_state) = args.optimizer().step(q, grads, opt_state);
    (TrainState { q, target, opt_state }, noise, errors, metrics)
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

// ------------------------------------------------------------------------------------- training

/// State carried between iterations.
#[derive(Debug, Tree)]
pub struct RunnerState<T> {
    pub train_state: TrainState<T>,
    pub noise: Streams<T>, // noise of the network that acts
    pub replay_buffer: PrioritizedFrameBuffer<T>,
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
    let RunnerState { train_state, noise, replay_buffer, env_state } = state;
    let (q, options) = (&train_state.q, args.priority_options());
    let streams = q.with_noise(&noise);
    let step = |env_state, ()| env_step(envs, (q, &streams), env_state, args);
    let num_steps = ScanOptions::length(args.train_frequency / args.num_envs);
    let (mut env_state, (transitions, episodes)) = scan_with(step, env_state, (), num_steps);
    let replay_buffer = replay_buffer.add(transitions, &options);
    if !learning {
        return (RunnerState { train_state, noise, replay_buffer, env_state }, (episodes, None));
    }
    let [key, sample_key, noise_key] = env_state.key.split_n();
    env_state.key = key;
    let beta = beta_schedule(env_state.global_step, args);
    let batch = replay_buffer.sample(sample_key, beta, &options);
    let (train_state, noise, errors, metrics) = gradient_step(train_state, &batch, noise_key, args);
    let replay_buffer = replay_buffer.update_priorities(batch.indices, errors, &options);
    let state = RunnerState { train_state, noise, replay_buffer, env_state };
    (state, (episodes, Some(metrics)))
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
    let (pool, sizes) = pools::images(args, args.num_envs, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let mut trainer = Trainer::start(args, args.steps_per_call())?;
    let init = trainer.jit("init", |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let [key, network_key, noise_key] = key.split_n();
        let (handle, first) = envs.reset(handle);
        let (age, global_step) = (zeros([args.num_envs], DType::I32), constant(0i32));
        let train_state = init_train_state(network_key, &sizes, args);
        let (stack, frame) = stack_and_frame(sizes.obs_kind, &sizes.shape);
        let options = args.priority_options();
        RunnerState {
            noise: train_state.q.sample_noise(noise_key, args),
            train_state,
            replay_buffer: PrioritizedFrameBuffer::new(
                args.buffer_size,
                args.num_envs,
                stack,
                &frame,
                &options,
            ),
            env_state: EnvState { handle, obs: first.obs, age, global_step, key },
        }
    });
    let explore = trainer.jit("explore", |state| train_iterations(&envs, state, false, args));
    let learn = trainer.jit("learn", |state| train_iterations(&envs, state, true, args));
    let beta = interpret(|global_step: Tensor| beta_schedule(global_step, args));

    let state = init.call((handle, Key::new(args.run.seed)))?;
    let mut state = trainer.init_or_resume(state, &envs)?;
    while trainer.should_continue() {
        // Learning waits for the first complete n-step transition.
        let complete = ((args.n_step + 1) * args.num_envs) as u64;
        let learning = trainer.global_step() >= args.learning_starts.max(complete);
        let (next_state, episodes, metrics) = match learning {
            true => learn.call(state)?,
            false => explore.call(state)?,
        };
        state = next_state;
        trainer.record(&episodes.to_vec()?, metrics.as_ref())?;
        if learning {
            let beta = beta.call(Array::from(trainer.global_step() as i32))?.item::<f32>()?;
            trainer.log(&[("charts/beta", beta.into())])?;
        }
        trainer.checkpoint_if_due(&state, &envs)?;
    }
    trainer.finish(&state.train_state)
}

/// Returns the policy of a saved model: the best action and the action values.
fn policy(args: &Args, model: &Checkpoint) -> Result<Policy> {
    let (pool, sizes) = pools::images(args, 1, args.run.eval_seed())?;
    let q = load_model(model, |key| init_train_state(key, &sizes, args))?.q;
    let args = args.clone();
    Ok(Policy::new(pool, q, move |q: &QNetwork<Tensor>, obs| {
        let pmfs = q.apply(obs, &q.without_noise(), &args);
        PolicyResults::from_values("q_values", (pmfs * args.atoms()).sum(-1)).with_bars(pmfs)
    }))
}
