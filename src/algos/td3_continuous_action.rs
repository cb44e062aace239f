//! Twin delayed deep deterministic policy gradients for continuous actions: CleanRL's
//! `td3_continuous_action_jax.py` (Fujimoto et al. 2018), with acting, storing, drawing and learning
//! in one compiled program.
//!
//! What differs from CleanRL, and why, is in `docs/algos/td3_continuous_action.md`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;

use crate::envs::{EnvPool, Handle, PoolOptions, Space, XlaPool};
use crate::error::{Error, Result};
use crate::jit::{Mode, with_mode};
use crate::nn::{Activation, Mlp, init};
use crate::optim::{Adam, AdamState, incremental_update};
use crate::rl::flags::expect;
use crate::rl::replay::Replay;
use crate::rl::{Progress, Run, Summary, checkpoint, interrupt};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::control::{ScanOptions, scan_with};
use crate::trace::ops::{concatenate, constant, where_};
use crate::tree::{self, Tree};
use crate::{Array, DType, Key, Tensor, TensorType, random, value_and_grad};

// ------------------------------------------------------------------------------------- settings

/// The settings, by CleanRL's names and with CleanRL's defaults.
#[derive(Debug, Clone, Parser, Serialize)]
#[command(about = "TD3 for continuous actions", args_override_self = true)]
pub struct Args {
    /// The name of this experiment
    #[arg(long, default_value = "td3_continuous_action")]
    pub exp_name: String,
    /// Seed of the experiment: the same seed gives the same run, bit for bit
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run compiled (jit), operation by operation (eager), or on the host (interpret)
    #[arg(long, value_enum, default_value_t = Mode::Jit)]
    pub mode: Mode,
    /// End with one line of JSON on the standard output, and show no progress bar
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub json: bool,
    /// Save the model into the run's folder, and play it for --eval-episodes
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub save_model: bool,
    /// Episodes that a saved model plays at the end
    #[arg(long, default_value_t = 10)]
    pub eval_episodes: usize,
    /// Stop at the first NaN, and say which operation made it and at what line
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub check_nans: bool,
    /// Record a timeline of the run into this file, for Perfetto or chrome://tracing
    #[arg(long)]
    pub timeline: Option<PathBuf>,
    /// The folder in which the run's folder is made
    #[arg(long, default_value = "runs")]
    pub runs_dir: PathBuf,

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
    /// How much of the networks the targets take over
    #[arg(long, default_value_t = 0.005)]
    pub tau: f64,
    /// The number of transitions of a gradient step
    #[arg(long, default_value_t = 256)]
    pub batch_size: usize,
    /// The noise of the target policy, as a part of the action's scale
    #[arg(long, default_value_t = 0.2)]
    pub policy_noise: f64,
    /// The noise of the actions taken, as a part of the action's scale
    #[arg(long, default_value_t = 0.1)]
    pub exploration_noise: f64,
    /// Timesteps before learning starts; until then actions are uniform
    #[arg(long, default_value_t = 25_000)]
    pub learning_starts: u64,
    /// Steps of the critics between those of the actor and the targets
    #[arg(long, default_value_t = 2)]
    pub policy_frequency: usize,
    /// The largest noise of the target policy, before the scale
    #[arg(long, default_value_t = 0.5)]
    pub noise_clip: f64,
}

impl Args {
    /// The settings of a command line: `Args::from_flags(["--seed", "3"])`.
    ///
    /// # Errors
    /// What clap says.
    pub fn from_flags<'a>(
        flags: impl IntoIterator<Item = &'a str>,
    ) -> std::result::Result<Args, clap::Error> {
        crate::rl::flags::parse_from(
            ["td3_continuous_action"].into_iter().chain(flags).map(Into::into),
        )
    }

    /// Rounds of one step of the actor in one call of the program: about 100 timesteps, after which
    /// losses are logged.
    fn rounds(&self) -> usize {
        100_usize.div_ceil(self.policy_frequency)
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
        for (flag, x) in [
            ("learning-rate", self.learning_rate),
            ("policy-noise", self.policy_noise),
            ("exploration-noise", self.exploration_noise),
            ("noise-clip", self.noise_clip),
        ] {
            expect(x.is_finite() && x >= 0.0, flag, x, "a number not below 0")?;
        }
        Ok(())
    }
}

// -------------------------------------------------------------------------------------- network

/// The bounds of the actions.
#[derive(Debug, Clone)]
pub struct Bounds {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Bounds {
    /// The lower bounds, `f32[A]`.
    fn low(&self) -> Tensor {
        constant(self.low.as_slice())
    }

    /// The upper bounds, `f32[A]`.
    fn high(&self) -> Tensor {
        constant(self.high.as_slice())
    }

    /// Half of the distance between them, `f32[A]`.
    fn scale(&self) -> Tensor {
        (self.high() - self.low()) / 2.0
    }

    /// The middle between them, `f32[A]`.
    fn bias(&self) -> Tensor {
        (self.high() + self.low()) / 2.0
    }

    /// `action: f32[.., A]`, each element between its bounds.
    fn clip(&self, action: Tensor) -> Tensor {
        action.maximum(self.low()).minimum(self.high())
    }
}

/// Two hidden layers of 256 units.
fn network(key: Key<Tensor>, inputs: usize, outputs: usize) -> Mlp<Tensor> {
    let kernel = init::lecun_normal();
    Mlp::init(key, &[inputs, 256, 256, outputs], Activation::Relu, kernel, kernel)
}

/// The policy and the two critics.
#[derive(Debug, Clone, Tree)]
pub struct Networks<T> {
    /// Observations to actions, before the hyperbolic tangent.
    pub actor: Mlp<T>,
    /// Observations and actions to values.
    pub critics: [Mlp<T>; 2],
}

impl Networks<Tensor> {
    /// New networks.
    pub fn init(key: Key<Tensor>, obs_size: usize, action_size: usize) -> Networks<Tensor> {
        let [actor, first, second] = key.split_n();
        Networks {
            actor: network(actor, obs_size, action_size),
            critics: [first, second].map(|key| network(key, obs_size + action_size, 1)),
        }
    }
}

/// The action `f32[B, A]` at `obs: f32[B, obs_size]`.
fn policy(actor: &Mlp<Tensor>, obs: Tensor, bounds: &Bounds) -> Tensor {
    actor.apply(obs).tanh() * bounds.scale() + bounds.bias()
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

/// Adam's moments of each network.
#[derive(Debug, Tree)]
pub struct Optimizers<T> {
    /// Of the actor.
    pub actor: AdamState<T, Mlp<T>>,
    /// Of the critics.
    pub critics: AdamState<T, [Mlp<T>; 2]>,
}

/// The networks and what changes with them.
#[derive(Debug, Tree)]
pub struct Learner<T> {
    /// The networks.
    pub networks: Networks<T>,
    /// The target networks.
    pub targets: Networks<T>,
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

/// What the critics learn, `f32[B]`: the smaller of the targets' values at the target policy's
/// action with noise.
pub fn goal(
    targets: &Networks<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> Tensor {
    let action = policy(&targets.actor, batch.next_obs, bounds);
    let noise = random::normal(key, action.shape(), DType::F32) * args.policy_noise;
    let noise = noise.clip(-args.noise_clip, args.noise_clip) * bounds.scale();
    let action = bounds.clip(action + noise);
    let [first, second] = &targets.critics;
    let next = value(first, batch.next_obs, action).minimum(value(second, batch.next_obs, action));
    batch.reward + args.gamma * (1.0 - batch.terminated) * next
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

/// The negative mean value of the policy's actions, by the first critic.
pub fn actor_loss(
    actor: &Mlp<Tensor>,
    critic: &Mlp<Tensor>,
    obs: Tensor,
    bounds: &Bounds,
) -> Tensor {
    -value(critic, obs, policy(actor, obs, bounds)).mean(..)
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
    /// The actor's loss.
    pub actor_loss: T,
}

fn adam(args: &Args) -> Adam {
    Adam { learning_rate: args.learning_rate, ..Adam::default() }
}

/// One gradient step of the critics.
fn critic_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    key: Key<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, CriticMetrics<Tensor>) {
    let Learner { networks, targets, optimizers } = learner;
    let goal = goal(&targets, batch, key, bounds, args);
    let ((_, metrics), grads) =
        value_and_grad(|critics| critic_loss(&critics, batch, goal))(networks.critics.clone());
    let (critics, moments) = adam(args).step(networks.critics, grads, optimizers.critics);
    let networks = Networks { critics, ..networks };
    let optimizers = Optimizers { critics: moments, ..optimizers };
    (Learner { networks, targets, optimizers }, metrics)
}

/// One gradient step of the actor, and of all targets.
fn actor_step(
    learner: Learner<Tensor>,
    batch: &Transition<Tensor>,
    bounds: &Bounds,
    args: &Args,
) -> (Learner<Tensor>, Tensor) {
    let Learner { networks, targets, optimizers } = learner;
    let Networks { actor, critics } = networks;
    let (loss, grads) =
        value_and_grad(|actor: Mlp<Tensor>| actor_loss(&actor, &critics[0], batch.obs, bounds))(
            actor.clone(),
        );
    let (actor, moments) = adam(args).step(actor, grads, optimizers.actor);
    let networks = Networks { actor, critics };
    let targets = incremental_update(&networks, &targets, args.tau);
    (Learner { networks, targets, optimizers: Optimizers { actor: moments, ..optimizers } }, loss)
}

// -------------------------------------------------------------------------------------- rollout

/// Episodes that ended in some steps.
#[derive(Debug, Clone, Copy, Tree)]
struct Games<T> {
    finished: T,
    episodic_return: T,
    length: T,
}

/// One step of the environment: the policy with noise, or any action while `exploring`.
fn play(
    envs: &XlaPool,
    actor: &Mlp<Tensor>,
    playing: Playing<Tensor>,
    exploring: bool,
    bounds: &Bounds,
    args: &Args,
) -> (Playing<Tensor>, Transition<Tensor>, Games<Tensor>) {
    let Playing { handle, obs, key } = playing;
    let (key, draw) = key.split();
    let shape = [1, bounds.low.len()];
    let action = if exploring {
        let unit = random::uniform(draw, shape, DType::F32, 0.0, 1.0);
        bounds.low() + unit * (bounds.high() - bounds.low())
    } else {
        let noise = random::normal(draw, shape, DType::F32) * args.exploration_noise;
        bounds.clip(policy(actor, obs, bounds) + noise * bounds.scale())
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
    let games = Games {
        finished: told.finished,
        episodic_return: told.episodic_return,
        length: told.episodic_length,
    };
    (Playing { handle, obs: next, key }, transition, games)
}

/// About 100 timesteps: rounds of as many steps of the environment as the actor stays the same for,
/// unless `exploring` as many of the critics, and one of the actor. One program.
fn rounds(
    envs: &XlaPool,
    state: TrainState<Tensor>,
    exploring: bool,
    bounds: &Bounds,
    args: &Args,
) -> (TrainState<Tensor>, Vec<Games<Tensor>>, Metrics<Tensor>) {
    let zero = constant(0.0f32);
    let none = CriticMetrics { qf1_loss: zero, qf2_loss: zero, qf1_values: zero, qf2_values: zero };
    let round = |state: TrainState<Tensor>, ()| {
        let TrainState { mut learner, replay, mut playing } = state;
        let (mut rows, mut games) = (Vec::new(), Vec::new());
        for _ in 0..args.policy_frequency {
            let actor = &learner.networks.actor;
            let (next, row, told) = play(envs, actor, playing, exploring, bounds, args);
            rows.push(row);
            games.push(told);
            playing = next;
        }
        let replay = replay.add(rows_of(&rows));
        let mut metrics = Metrics { critics: none, actor_loss: zero };
        for turn in 1..=args.policy_frequency {
            if exploring {
                break;
            }
            let Playing { handle, obs, key } = playing;
            let [key, draw, noise] = key.split_n();
            playing = Playing { handle, obs, key };
            let batch = replay.sample(draw, args.batch_size);
            (learner, metrics.critics) = critic_step(learner, &batch, noise, bounds, args);
            if turn == args.policy_frequency {
                (learner, metrics.actor_loss) = actor_step(learner, &batch, bounds, args);
            }
        }
        (TrainState { learner, replay, playing }, (games, metrics))
    };
    let count = ScanOptions::length(args.rounds());
    let (state, (games, metrics)) = scan_with(count, round, state, ());
    (state, games, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

/// Transitions `[1, ..]` as one of rows.
fn rows_of(steps: &[Transition<Tensor>]) -> Transition<Tensor> {
    let column = |get: fn(&Transition<Tensor>) -> Tensor| {
        concatenate(&steps.iter().map(get).collect::<Vec<_>>(), 0)
    };
    Transition {
        obs: column(|step| step.obs),
        action: column(|step| step.action),
        reward: column(|step| step.reward),
        next_obs: column(|step| step.next_obs),
        terminated: column(|step| step.terminated),
    }
}

// ------------------------------------------------------------------------------------- training

/// The size of the observations and the bounds of the actions; refuses what this algorithm cannot
/// act in.
fn sizes(pool: &EnvPool) -> Result<(usize, Bounds)> {
    let spec = pool.spec();
    let Space::Box { low, high, shape, .. } = &spec.action else {
        return Err(Error::Config(format!(
            "--env-id {}: td3_continuous_action takes continuous actions, and this environment \
             takes {}; ppo, dqn and c51 fit discrete actions",
            spec.id, spec.action
        )));
    };
    let observation = &spec.observation;
    if !observation.dtype().is_float() || observation.shape().rank() != 1 {
        return Err(Error::Config(format!(
            "--env-id {}: td3_continuous_action takes vectors of floats, and this environment \
             gives {observation}",
            spec.id
        )));
    }
    let size = shape.numel();
    let side = |bound: &crate::envs::Bound| (0..size).map(|i| bound.at(i) as f32).collect();
    let bounds = Bounds { low: side(low), high: side(high) };
    if bounds.low.iter().chain(&bounds.high).any(|bound| !bound.is_finite()) {
        return Err(Error::Config(format!(
            "--env-id {}: td3_continuous_action needs bounds of every action, and this environment \
             takes {}",
            spec.id, spec.action
        )));
    }
    Ok((observation.shape()[0], bounds))
}

fn pool(args: &Args, seed: u64) -> Result<EnvPool> {
    EnvPool::make(&args.env_id, PoolOptions { num_threads: 1, seed, ..Default::default() })
}

/// Trains an agent and gives the result: events and, if asked for, the model are in the run's
/// folder.
///
/// # Errors
/// [`Error::Config`] for settings out of range, and what the environment, the compiler, the
/// runtime and the file system say.
pub fn train(args: &Args) -> Result<Summary> {
    args.check()?;
    let timeline = args.timeline.as_ref().map(timeline::start).transpose()?;
    let pool = pool(args, args.seed)?;
    let (obs_size, bounds) = sizes(&pool)?;
    let action_size = bounds.low.len();
    interrupt::install()?;
    let mut run = Run::create(&args.runs_dir, &args.exp_name, &args.env_id, args.seed, args)?;
    let mut progress = Progress::new(args.total_timesteps, args.json);

    let (handle, envs) = pool.xla()?;
    let envs = envs.with_final_obs()?;
    let init = with_mode(args.mode, |(handle, key): (Handle<Tensor>, Key<Tensor>)| {
        let (key, draw) = key.split();
        let networks = Networks::init(draw, obs_size, action_size);
        let adam = adam(args);
        let optimizers =
            Optimizers { actor: adam.init(&networks.actor), critics: adam.init(&networks.critics) };
        let [obs, action] = [obs_size, action_size].map(|n| TensorType::new(DType::F32, [n]));
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
            learner: Learner { targets: networks.clone(), networks, optimizers },
            replay: Replay::new(args.buffer_size, item),
            playing: Playing { handle, obs: first.obs.to(DType::F32), key },
        }
    })
    .named("td3_init");
    let explore = with_mode(args.mode, |state| rounds(&envs, state, true, &bounds, args))
        .named("td3_explore");
    let learn = with_mode(args.mode, |state| rounds(&envs, state, false, &bounds, args))
        .named("td3_rounds")
        .check_nans(args.check_nans);

    let seed = tree::map(Key::new(args.seed), Array::from);
    let mut state: TrainState<Array> = init.call((handle, seed))?;
    let mut global_step: u64 = 0;
    let steps = args.steps();
    let mut shown = Instant::now();

    while global_step + steps <= args.total_timesteps {
        let span = timeline::span("rounds");
        let exploring = global_step < args.learning_starts;
        let (next, games, metrics) =
            if exploring { explore.call(state)? } else { learn.call(state)? };
        state = next;
        log_games(&mut run, &games, global_step)?;
        global_step += steps;
        if !exploring {
            log(&mut run, &metrics, global_step)?;
        }
        drop(span);
        if shown.elapsed().as_millis() > 200 {
            progress.update(global_step, run.sps(global_step), run.returns.mean());
            shown = Instant::now();
        }
        if interrupt::requested() {
            progress.note("stopped: the events and the model so far are kept");
            break;
        }
    }
    progress.update(global_step, run.sps(global_step), run.returns.mean());
    progress.finish();
    if args.save_model {
        save(&run, &state.learner, args)?;
        for (k, episode) in evaluate(&state.learner.networks.actor, args)?.into_iter().enumerate() {
            run.events.scalar("eval/episodic_return", episode, k as u64)?;
        }
    }
    run.events.flush()?;
    if let Some(timeline) = timeline {
        timeline.finish()?;
    }
    let compile_s = init.stats().seconds() + explore.stats().seconds() + learn.stats().seconds();
    let platform = match args.mode {
        Mode::Interpret => "host".to_string(),
        Mode::Jit | Mode::Eager => Runtime::get()?.client.platform_name().to_string(),
    };
    Ok(run.summary(&args.mode.to_string(), &platform, 1, global_step, compile_s))
}

/// Logs the episodes that ended in a call that began at `start`, at the steps at which they did.
fn log_games(run: &mut Run, games: &[Games<Array>], start: u64) -> Result<()> {
    // Each step of a round has arrays of its own, with a row for each round.
    for (turn, games_of_turn) in games.iter().enumerate() {
        let finished = games_of_turn.finished.to_vec::<bool>()?;
        if !finished.contains(&true) {
            continue;
        }
        let returns = games_of_turn.episodic_return.to_vec::<f32>()?;
        let lengths = games_of_turn.length.to_vec::<i32>()?;
        for round in (0..finished.len()).filter(|&round| finished[round]) {
            let at = start + (round * games.len() + turn + 1) as u64;
            run.episode(returns[round].into(), lengths[round] as u64, at)?;
        }
    }
    Ok(())
}

/// Logs the last losses of a call, under CleanRL's tags.
fn log(run: &mut Run, metrics: &Metrics<Array>, step: u64) -> Result<()> {
    let critics = &metrics.critics;
    let scalars = [
        ("losses/qf1_values", critics.qf1_values.item::<f32>()?),
        ("losses/qf2_values", critics.qf2_values.item::<f32>()?),
        ("losses/qf1_loss", critics.qf1_loss.item::<f32>()?),
        ("losses/qf2_loss", critics.qf2_loss.item::<f32>()?),
        ("losses/actor_loss", metrics.actor_loss.item::<f32>()?),
    ];
    for (tag, value) in scalars {
        run.events.scalar(tag, value.into(), step)?;
    }
    run.events.scalar("charts/SPS", run.sps(step).floor(), step)?;
    if let Some((tag, value)) = scalars.iter().find(|(_, value)| !value.is_finite()) {
        run.events.flush()?;
        return Err(Error::Nan(format!(
            "{tag} is {value} at step {step}; run again with --check-nans to see which operation \
             made it"
        )));
    }
    Ok(())
}

/// Saves networks, targets and optimisers as `{exp_name}.safetensors`, with the settings. The
/// transitions are not kept.
fn save(run: &Run, learner: &Learner<Array>, args: &Args) -> Result<()> {
    let path = run.dir.join(format!("{}.safetensors", args.exp_name));
    checkpoint::save_tree(path, learner, args)
}

/// The returns of `eval_episodes` episodes of the policy without noise.
///
/// # Errors
/// What the environment and the runtime say.
pub fn evaluate(actor: &Mlp<Array>, args: &Args) -> Result<Vec<f64>> {
    // Episodes of another seed than those of the training.
    let mut pool = pool(args, args.seed.wrapping_add(1 << 32))?;
    let (_, bounds) = sizes(&pool)?;
    let act = with_mode(args.mode, |(actor, obs): (Mlp<Tensor>, Tensor)| {
        policy(&actor, obs.to(DType::F32), &bounds)
    })
    .named("td3_eval");
    let mut batch = pool.reset()?;
    let mut returns = Vec::new();
    while returns.len() < args.eval_episodes && !interrupt::requested() {
        let action = act.call((actor.clone(), batch.obs_array()))?;
        batch = pool.step(&action.to_vec::<f32>()?)?;
        returns.extend(pool.take_finished().iter().map(|episode| episode.episodic_return));
    }
    Ok(returns)
}
