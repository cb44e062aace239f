//! Deep deterministic policy gradient (DDPG, Lillicrap et al. 2016) for continuous actions:
//! CleanRL's `ddpg_continuous_action_jax.py`. Environment steps, the replay buffer and gradient
//! steps are one compiled program.
//!
//! Differences from CleanRL, with reasons, are listed in `docs/algos/ddpg_continuous_action.md`.

use clap::Parser;
use serde::Serialize;

use crate::algorithm;
use crate::envs::XlaPool;
use crate::error::Result;
use crate::jit::with_mode;
use crate::nn::{Activation, Mlp, init};
use crate::optim::{Adam, AdamState, incremental_update};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::flags::{ensure, not_negative, positive, unit, within};
use crate::rl::off_policy::{self, LoopConfig, TrainState};
use crate::rl::playing::Playing;
use crate::rl::replay::{ReplayBuffer, Transition};
use crate::rl::saved::load_model;
use crate::rl::spaces::Bounds;
use crate::rl::{EpisodeStats, Evaluation, RunOptions, Summary, pools};
use crate::trace::ops::concatenate;
use crate::tree::{self, Tree};
use crate::{DType, Key, Tensor, TensorType, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// Settings with CleanRL's names and defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "DDPG for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "ddpg_continuous_action")]
    pub exp_name: String,
    /// Flags shared by all algorithms
    #[command(flatten)]
    #[serde(flatten)]
    pub run: RunOptions,

    /// The id of the environment
    #[arg(long, default_value = "Hopper-v4")]
    pub env_id: String,
    /// Total timesteps of the experiment
    #[arg(long, default_value_t = 1_000_000)]
    pub total_timesteps: u64,
    /// The learning rate of the optimisers
    #[arg(long, default_value_t = 3e-4)]
    pub learning_rate: f64,
    /// The size of the replay buffer, in transitions
    #[arg(long, default_value_t = 1_000_000)]
    pub buffer_size: usize,
    /// The discount factor gamma
    #[arg(long, default_value_t = 0.99)]
    pub gamma: f64,
    /// The target network update rate tau (Polyak averaging)
    #[arg(long, default_value_t = 0.005)]
    pub tau: f64,
    /// The number of transitions sampled from the replay buffer per gradient step
    #[arg(long, default_value_t = 256)]
    pub batch_size: usize,
    /// The standard deviation of the exploration noise, relative to the action scale
    #[arg(long, default_value_t = 0.1)]
    pub exploration_noise: f64,
    /// The timestep at which learning starts; actions are sampled uniformly until then
    #[arg(long, default_value_t = 25_000)]
    pub learning_starts: u64,
    /// The number of critic updates between updates of the actor and the target networks
    #[arg(long, default_value_t = 2)]
    pub policy_frequency: usize,
    /// The number of actor updates in one call of the compiled program, after which losses are
    /// logged; 0 covers about 100 timesteps. The results do not depend on it
    #[arg(long, default_value_t = 0)]
    pub updates_per_call: usize,
}

impl Args {
    /// Number of iterations, each with one actor update, in one call of the compiled program.
    fn rounds(&self) -> usize {
        match self.updates_per_call {
            0 => 100_usize.div_ceil(self.policy_frequency),
            rounds => rounds,
        }
    }

    /// Number of timesteps in one call of the compiled program.
    fn steps(&self) -> u64 {
        (self.rounds() * self.policy_frequency) as u64
    }

    fn check(&self) -> Result<()> {
        positive(&[("batch-size", self.batch_size), ("policy-frequency", self.policy_frequency)])?;
        let steps = self.steps();
        ensure(
            self.total_timesteps >= steps,
            "total-timesteps",
            self.total_timesteps,
            &format!("at least {steps}, the timesteps of one call"),
        )?;
        within("buffer-size", self.buffer_size, 1, i32::MAX as usize)?;
        unit(&[("gamma", self.gamma), ("tau", self.tau)])?;
        not_negative(&[
            ("learning-rate", self.learning_rate),
            ("exploration-noise", self.exploration_noise),
        ])
    }
}

algorithm!(Args, "ddpg_continuous_action", Args::check, train, play);

// -------------------------------------------------------------------------------------- network

/// Initialises a network with two hidden layers of 256 units.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    let kernel = init::lecun_normal();
    Mlp::init(key, &[inputs, 256, 256, outputs], Activation::Relu, kernel, kernel)
}

/// The policy and the critic.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// Network from observations to actions before the `tanh`.
    pub actor: Mlp<T>,
    /// Network from observations and actions to values.
    pub critic: Mlp<T>,
}

impl Networks<Tensor> {
    /// Initialises the networks.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Networks<Tensor> {
        let (actor, critic) = key.split();
        Networks {
            actor: network(actor, obs_size, action_size),
            critic: network(critic, obs_size + action_size, 1),
        }
    }
}

/// Returns the actions `f32[B, A]` at `obs: f32[B, obs_size]`.
fn policy(actor: &Mlp<Tensor>, obs: Tensor, bounds: &Bounds) -> Tensor {
    actor.apply(obs).tanh() * bounds.scale() + bounds.bias()
}

/// Returns the values `f32[B]` of `action: f32[B, A]` at `obs: f32[B, obs_size]`.
fn value(critic: &Mlp<Tensor>, obs: Tensor, action: Tensor) -> Tensor {
    critic.apply(concatenate(&[obs, action], -1)).squeeze(-1)
}

/// Adam's moments of each network.
#[derive(Debug, Tree)]
pub struct Optimizers<T> {
    /// Moments of the actor's optimiser.
    pub actor: AdamState<T, Mlp<T>>,
    /// Moments of the critic's optimiser.
    pub critic: AdamState<T, Mlp<T>>,
}

/// The networks, their targets and their optimisers.
#[derive(Debug, Tree)]
pub struct Learner<T> {
    /// The networks.
    pub networks: Networks<T>,
    /// The target networks.
    pub targets: Networks<T>,
    /// Adam's moments.
    pub optimizers: Optimizers<T>,
}

/// State carried between iterations of training.
pub type State<T> = TrainState<Learner<T>, ReplayBuffer<T, Transition<T>>, Playing<T>>;

/// Initialises the networks, their targets and optimisers.
fn learner(key: Key<Tensor>, obs_size: usize, action_size: usize, args: &Args) -> Learner<Tensor> {
    let networks = Networks::init(key, obs_size, action_size);
    let adam = adam(args);
    let optimizers =
        Optimizers { actor: adam.init(&networks.actor), critic: adam.init(&networks.critic) };
    Learner { targets: networks.clone(), networks, optimizers }
}

// --------------------------------------------------------------------------------------- losses

/// Computes the TD targets `f32[B]` with the target critic's value of the target policy's action.
pub fn goal(
    targets: &Networks<Tensor>,
    batch: &Transition<Tensor>,
    bounds: &Bounds,
    gamma: f64,
) -> Tensor {
    let next =
        value(&targets.critic, batch.next_obs, policy(&targets.actor, batch.next_obs, bounds));
    batch.reward + gamma * (1.0 - batch.terminated) * next
}

/// Computes the critic's mean squared error, and its mean value of the actions taken.
pub fn critic_loss(
    critic: &Mlp<Tensor>,
    batch: &Transition<Tensor>,
    goal: Tensor,
) -> (Tensor, Tensor) {
    let value = value(critic, batch.obs, batch.action);
    ((value - goal).square().mean(..), value.mean(..))
}

/// Computes the negative mean value of the policy's actions.
pub fn actor_loss(
    actor: &Mlp<Tensor>,
    critic: &Mlp<Tensor>,
    obs: Tensor,
    bounds: &Bounds,
) -> Tensor {
    -value(critic, obs, policy(actor, obs, bounds)).mean(..)
}

// --------------------------------------------------------------------------------------- update

/// Logged metrics; scalars.
#[derive(Debug, Clone, Copy, Tree)]
pub struct Metrics<T> {
    /// Loss of the critic.
    pub qf1_loss: T,
    /// Mean value, under the critic, of the actions taken.
    pub qf1_values: T,
    /// Loss of the actor.
    pub actor_loss: T,
}

fn adam(args: &Args) -> Adam {
    Adam { learning_rate: args.learning_rate, ..Adam::default() }
}

/// Takes one gradient step of the critic; also returns its loss and its mean value of the actions
/// taken.
pub fn critic_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, (Tensor, Tensor)) {
    let Learner { networks, targets, optimizers } = learner;
    let goal = goal(&targets, batch, bounds, args.gamma);
    let (metrics, grads) =
        value_and_grad(|critic| critic_loss(&critic, batch, goal))(networks.critic.clone());
    let (critic, moments) = adam(args).step(networks.critic, grads, optimizers.critic);
    let networks = Networks { critic, ..networks };
    let optimizers = Optimizers { critic: moments, ..optimizers };
    (Learner { networks, targets, optimizers }, metrics)
}

/// Takes one gradient step of the actor, and updates all target networks.
pub fn actor_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, Tensor) {
    let Learner { networks, targets, optimizers } = learner;
    let Networks { actor, critic } = networks;
    let (loss, grads) =
        value_and_grad(|actor: Mlp<Tensor>| actor_loss(&actor, &critic, batch.obs, bounds))(
            actor.clone(),
        );
    let (actor, moments) = adam(args).step(actor, grads, optimizers.actor);
    let networks = Networks { actor, critic };
    let targets = incremental_update(&networks, &targets, args.tau);
    (Learner { networks, targets, optimizers: Optimizers { actor: moments, ..optimizers } }, loss)
}

// -------------------------------------------------------------------------------------- rollout

/// Takes `policy_frequency` environment steps, with the noisy policy if `learning` and with uniform
/// actions otherwise; then, if `learning`, as many gradient steps of the critic and one of the
/// actor.
fn round(
    envs: &XlaPool,
    state: State<Tensor>,
    learning: bool,
    bounds: &Bounds,
    args: &Args,
) -> (State<Tensor>, EpisodeStats<Tensor>, Option<Metrics<Tensor>>) {
    let TrainState { mut learner, replay, playing } = state;
    let actor = &learner.networks.actor;
    let act = |obs: Tensor, _, key: Key<Tensor>| {
        let (key, draw) = key.split();
        if !learning {
            return (bounds.sample(draw, obs.dim(0)), key);
        }
        let action = policy(actor, obs, bounds);
        let noise = random::normal(draw, action.shape(), DType::F32) * args.exploration_noise;
        (bounds.clip(action + noise * bounds.scale()), key)
    };
    let (mut playing, rows, games) = playing.unrolled(envs, args.policy_frequency, act);
    let replay = replay.add(rows);
    if !learning {
        return (TrainState { learner, replay, playing }, games, None);
    }
    let mut told = None;
    for turn in 1..=args.policy_frequency {
        let (key, draw) = playing.key.split();
        playing.key = key;
        let batch = replay.sample(draw, args.batch_size);
        let (qf1_loss, qf1_values);
        (learner, (qf1_loss, qf1_values)) = critic_step(learner, &batch, bounds, args);
        if turn == args.policy_frequency {
            let actor_loss;
            (learner, actor_loss) = actor_step(learner, &batch, bounds, args);
            told = Some(Metrics { qf1_loss, qf1_values, actor_loss });
        }
    }
    (TrainState { learner, replay, playing }, games, told)
}

// ------------------------------------------------------------------------------------- training

/// Trains an agent and returns a summary. Event files and, if requested, the model are written to
/// the run's folder.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from
/// the environment, compilation, execution and file I/O.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let (pool, obs_size, bounds) = pools::continuous(args, args.run.seed)?;
    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let init = |handle, key: Key<Tensor>| {
        let (key, networks) = key.split();
        let action = TensorType::new(DType::F32, [bounds.size()]);
        TrainState {
            learner: learner(networks, obs_size, bounds.size(), args),
            replay: ReplayBuffer::new(args.buffer_size, Transition::types(obs_size, action)),
            playing: Playing::start(&envs, handle, key),
        }
    };
    let rounds = |state, learning| {
        let round = |state| round(&envs, state, learning, &bounds, args);
        let (state, games, metrics) = off_policy::rounds(args.rounds(), state, round);
        // The metrics of the last iteration are logged.
        (state, games, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
    };
    let pace = LoopConfig { steps: args.steps(), learning_starts: args.learning_starts };
    off_policy::train(args, pace, (handle, &envs), init, rounds, |state| state.learner)
}

/// Evaluates a saved model without noise.
fn play(args: &Args, model: &Checkpoint, evaluation: &mut Evaluation) -> Result<()> {
    let (pool, obs_size, bounds) = pools::continuous(args, args.run.eval_seed())?;
    let new = |key| learner(key, obs_size, bounds.size(), args);
    let actor = load_model(model, new)?.networks.actor;
    let act = with_mode(args.run.mode, |(actor, obs): (Mlp<Tensor>, Tensor)| {
        policy(&actor, obs.to(DType::F32), &bounds)
    })
    .named("ddpg_play");
    evaluation.play(pool, |obs, _| act.call((actor.clone(), obs)))
}
