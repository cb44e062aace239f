//! Training loop shared by the algorithms on Sebulba, which supply their networks and losses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::agent::{Agent, Sizes};
use super::board::{Activity, RunStatus};
use super::checkpoint::{ActorEnvs, ActorSnapshot, ActorState, Boundary, on_host};
use super::drive::{ActorRollout, Learner, Schedule, drive};
use super::exchange::{Across, Exchange, expect_same};
use super::layout::{Layout, World};
use super::options::SebulbaOptions;
use super::reduce::Reduce;
use super::rollout::{Playing, Rollout, begin, collect};
use super::stats::processor_time;
use super::view::{LiveView, watch};
use crate::distributed::{Launch, Peer, Secret};
use crate::envs::{EnvPool, Handle, PoolOptions, XlaPool};
use crate::error::{Error, Result};
use crate::jit::{Jit, Mode, jit};
use crate::nn::View;
use crate::pmap::{Sharded, device_put_sharded, pmap, replicate, unreplicate};
use crate::rl::checkpoint::Checkpoint;
use crate::rl::on_policy::annealed;
use crate::rl::saved::load_model;
use crate::rl::{Algorithm, Evaluation, Returns, Summary, Trainer, interrupt};
use crate::runtime::{Node, Runtime, RuntimeOptions};
use crate::timeline;
use crate::trace::control::scan;
use crate::tree::{self, Tree};
use crate::{Array, Key, Tensor, TensorType};

/// Hyperparameters of an update.
#[derive(Debug, Clone, Copy)]
pub struct Update {
    /// Number of steps of a rollout.
    pub num_steps: usize,
    /// Number of gradient steps of an update.
    pub turns: usize,
    /// Initial learning rate.
    pub learning_rate: f64,
    /// If true, the learning rate decreases to 0, linearly in the number of updates.
    pub anneal_lr: bool,
    /// Discount factor for bootstrapping where a time limit truncates an episode; `None` ends the
    /// return there.
    pub bootstrap_truncated: Option<f64>,
}

/// Traced functions of an algorithm, with state `S`, prepared rollout `D` and metrics `M`.
#[derive(Debug)]
pub struct Hooks<Begin, Agents, Prepare, Step> {
    /// Makes the initial state from a key; it is the same on every learner device.
    pub begin: Begin,
    /// Returns the agent in a state, for the actors.
    pub agent: Agents,
    /// Computes what is needed once per rollout, on each learner device for its share.
    pub prepare: Prepare,
    /// Takes a gradient step, from the state, the rollout, the number of the step `i32[]` and the
    /// learning rate `f32[]`.
    pub step: Step,
}

/// Starts the runtime with as many devices as the flags name. GPUs of several processes form one
/// cluster.
fn start(
    options: &SebulbaOptions,
    processes: Option<&Arc<dyn Exchange>>,
) -> Result<&'static Runtime> {
    let wanted = RuntimeOptions::with_cpu_devices(options.devices());
    let Some(processes) = processes.filter(|_| wanted.joins_processes()) else {
        // If the runtime is already running, with enough devices or not, the layout's check reports
        // it.
        return Runtime::running_or_started(wanted);
    };
    // The clients wait for each other, and would not report which process is missing.
    processes.meet(patience(options))?;
    let World { rank, size } = processes.world();
    let store = processes.clone().key_values()?;
    Runtime::start_among(wanted, Node { rank, size, store })
}

/// Creates the environments of all actor threads of this process.
fn pools<A: Algorithm>(
    args: &A,
    options: &SebulbaOptions,
    layout: &Layout,
) -> Result<(Handle<Array>, XlaPool)> {
    let pool = |actor| {
        let run = args.options();
        let like = PoolOptions {
            num_threads: run.num_threads,
            seed: run.seed,
            clip_actions: true,
            ..PoolOptions::default()
        };
        options.pool(args.env_id(), layout.pool_options(actor, like))
    };
    XlaPool::new((0..layout.num_actors()).map(pool).collect::<Result<Vec<EnvPool>>>()?)
}

fn sizes<A: Algorithm>(options: &SebulbaOptions, pool: &crate::envs::EnvSpec) -> Result<Sizes> {
    Sizes::of(A::NAME, pool, options.network, (&options.channels, &options.hiddens))
}

/// Returns the time that a process waits for the others.
fn patience(options: &SebulbaOptions) -> Duration {
    Duration::from_secs(options.join_timeout)
}

/// Connects to the other processes, with `--distributed`.
fn processes(options: &SebulbaOptions) -> Result<Option<Arc<dyn Exchange>>> {
    if !options.distributed {
        return Ok(None);
    }
    // With MPI no address is needed.
    #[cfg(feature = "mpi")]
    if options.launch.coordinator_address.is_none() {
        return Ok(Some(Arc::new(super::mpi::Mpi::join(patience(options))?)));
    }
    let variable = |name: &str| std::env::var(name).ok();
    let launch = Launch::find(&options.launch, variable)?;
    let secret = Secret::find(options.launch.secret_file.as_deref(), variable)?;
    Ok(Some(Arc::new(Peer::join(launch, secret, patience(options))?)))
}

/// Trains an agent and returns the result.
///
/// With `--distributed` an error in one process ends all of them.
///
/// # Errors
/// [`Error::Config`] for settings out of range, and errors of the environments, compilation,
/// execution and file I/O.
pub fn train<A, S, D, M>(
    args: &A,
    options: &SebulbaOptions,
    update: Update,
    hooks: Hooks<
        impl Fn(Key<Tensor>, &Sizes) -> S,
        impl Fn(&S::With<Sharded>) -> Agent<Sharded>,
        impl Fn(S, Rollout<Tensor>) -> (S, D),
        impl Fn(S, &D, (Tensor, Tensor), &Reduce) -> (S, M),
    >,
) -> Result<Summary>
where
    A: Algorithm,
    S: Tree<Tensor>,
    D: Tree<Tensor>,
    M: Tree<Tensor, With<Tensor> = M>,
    D::With<Sharded>: Clone,
{
    let processes = processes(options)?;
    let outcome = train_in(processes.clone(), args, options, update, hooks);
    match (processes, outcome) {
        (Some(processes), Err(error)) => processes.abort(&error),
        (_, outcome) => outcome,
    }
}

fn train_in<A, S, D, M>(
    processes: Option<Arc<dyn Exchange>>,
    args: &A,
    options: &SebulbaOptions,
    update: Update,
    hooks: Hooks<
        impl Fn(Key<Tensor>, &Sizes) -> S,
        impl Fn(&S::With<Sharded>) -> Agent<Sharded>,
        impl Fn(S, Rollout<Tensor>) -> (S, D),
        impl Fn(S, &D, (Tensor, Tensor), &Reduce) -> (S, M),
    >,
) -> Result<Summary>
where
    A: Algorithm,
    S: Tree<Tensor>,
    D: Tree<Tensor>,
    M: Tree<Tensor, With<Tensor> = M>,
    D::With<Sharded>: Clone,
{
    if args.options().mode != Mode::Jit {
        return Err(Error::Config(format!(
            "--mode {}: actors and learners run compiled programs; use ppo_atari_envpool to compare \
             modes",
            args.options().mode
        )));
    }
    let runtime = start(options, processes.as_ref())?;
    let world = processes.as_ref().map_or(World::ALONE, |processes| processes.world());
    let layout = options.layout(world);
    layout.check()?;
    if let Some(processes) = &processes {
        processes.meet(patience(options))?;
        expect_same(&**processes, args)?;
    }
    let (handles, mut envs) = pools(args, options, &layout)?;
    if update.bootstrap_truncated.is_some() {
        envs = envs.with_final_obs()?;
    }
    let sizes = sizes::<A>(options, envs.spec())?;
    let steps = (layout.num_envs() * update.num_steps) as u64;
    if args.total_timesteps() < steps {
        return Err(Error::Config(format!(
            "--total-timesteps {}: must be at least one batch, which is {steps}: {} environments of \
             {} steps",
            args.total_timesteps(),
            layout.num_envs(),
            update.num_steps
        )));
    }
    let mut trainer = Trainer::start_rank(args, steps, world.rank)?;
    trainer.devices = layout.actors.iter().chain(&layout.learners).max().map_or(1, |last| last + 1);

    // Programs of the learner.
    let exact = options.deterministic;
    let learners = layout.num_learners();
    // Not needed if the devices of all processes form one cluster, whose reductions span them.
    let across = processes.clone().filter(|_| runtime.process_count() == 1).map(Across::new);
    let start_state =
        pmap("learners", |_, key: Key<Tensor>| (hooks.begin)(key, &sizes)).named("sebulba_begin");
    let prepare = pmap("learners", |_, (state, parts): (S, Vec<Rollout<Tensor>>)| {
        (hooks.prepare)(state, Rollout::joined(parts))
    })
    .named("sebulba_prepare");
    let update_program =
        pmap("learners", |axis, (state, data, turns, rate): (S, D, Tensor, Tensor)| {
            let reduce = Reduce { axis, learners, exact, across: across.clone() };
            if turns.dim(0) == 1 {
                let (state, metrics) =
                    (hooks.step)(state, &data, (turns.squeeze(0), rate), &reduce);
                return (state, data, metrics);
            }
            let turn = |state: S, turn: Tensor| (hooks.step)(state, &data, (turn, rate), &reduce);
            let (state, metrics) = scan(turn, state, turns);
            (state, data, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
        })
        .named("sebulba_step");
    // Small networks take all gradient steps in one call. On a CPU the convolutions of large
    // networks run a few percent faster outside a loop.
    let per_call = if sizes.view == View::Vector { update.turns } else { 1 };

    // Programs of the actors, one of each for every actor device.
    let [learner_key, actor_key] = {
        let split = jit(|key: Key<Tensor>| key.split_n::<2>());
        split.call(Key::new(args.options().seed))?
    };
    let begins = layout.actors.iter().map(|&device| {
        let run = |(handle, key): (Handle<Tensor>, Key<Tensor>)| begin(&envs, handle, key);
        jit(run).on(device).named("sebulba_reset")
    });
    let begins: Vec<_> = begins.collect();
    let shape = (update.num_steps, layout.learners.len(), exact);
    let rollouts = layout.actors.iter().map(|&device| {
        let run = |(agent, playing, first): (Agent<Tensor>, Playing<Tensor>, Tensor)| {
            collect(&envs, &agent, playing, first, shape, update.bootstrap_truncated)
        };
        jit(run).on(device).named("sebulba_rollout")
    });
    let rollouts: Vec<_> = rollouts.collect();
    let handles = handles.into_data().to_vec::<i32>()?;
    let actor_key = actor_key.into_data().to_literal()?;
    let mut playing = Vec::new();
    for (actor, &handle) in handles.iter().enumerate() {
        let key = Key::from_data(Array::from(actor_key.clone()));
        let handle = Handle::from_data(Array::from(handle));
        let started = begins[actor / layout.threads].call((handle, key))?;
        playing.push(started);
    }

    let learner_key = replicate(&learner_key, &layout.learners)?;
    let mut state = start_state.call(learner_key)?;
    // A run of several processes saves only the learner.
    let saves_actors = world == World::ALONE;
    let mut boundary = {
        let train = on_host(&unreplicate(&state)?)?;
        let behavior_policy = on_host(&unreplicate(&(hooks.agent)(&state))?)?;
        let actors = match saves_actors {
            true => playing.iter().map(ActorState::of).collect::<Result<_>>()?,
            false => Vec::new(),
        };
        Boundary { train, behavior_policy, actors }
    };
    if args.options().resume.is_some() {
        boundary = trainer.init_or_resume(boundary, ActorEnvs { pools: &envs, states: &[] })?;
        let leaves = tree::into_leaves(replicate(&boundary.train, &layout.learners)?);
        state = tree::replace(&state, leaves);
        let saved = std::mem::take(&mut boundary.actors);
        let fresh = playing.into_iter();
        playing = match saves_actors {
            true => fresh.zip(saved).map(|(fresh, saved)| saved.resume(fresh)).collect(),
            false => fresh.collect(),
        };
    }
    let playing: Vec<_> = playing.into_iter().map(|playing| Mutex::new(Some(playing))).collect();
    let writes_checkpoints = world.rank == 0 && args.options().checkpoint_frequency > 0;
    let takes_snapshots = writes_checkpoints && saves_actors;

    let updates = args.total_timesteps() / steps;
    let resumed_at = trainer.global_step() / steps;
    let schedule = Schedule { resumed_at, updates, concurrency: options.concurrency };
    let board = RunStatus::new(layout.num_actors());
    let act = |actor: usize, agent: &Agent<Array>| -> Result<ActorRollout<Rollout<Array>>> {
        let (began, cpu) = (Instant::now(), processor_time());
        let mut place = playing[actor].lock().unwrap_or_else(PoisonError::into_inner);
        let before = place.take().ok_or_else(|| Error::Env("its last rollout failed".into()))?;
        let first = Array::from(layout.first_env(actor) as i32);
        let program = &rollouts[actor / layout.threads];
        let (after, parts, games) = program.call((agent.clone(), before, first))?;
        // Reading the episodes waits for the rollout.
        let games = games.to_vec()?;
        let (rolled, cpu) = (began.elapsed(), processor_time().saturating_sub(cpu));
        let snapshot = match takes_snapshots {
            true => Some(ActorSnapshot::of(&envs, actor, &after)?),
            false => None,
        };
        *place = Some(after);
        let _span = timeline::span("send the rollout");
        board.actors[actor].enter(Activity::Sends);
        let mut sent = Vec::with_capacity(parts.len());
        for (part, &device) in parts.iter().zip(&layout.learners) {
            sent.push(moved(part, device)?);
        }
        sent.iter().try_for_each(|part: &Rollout<Array>| part.env_ids.wait())?;
        let times = (rolled, began.elapsed() - rolled);
        Ok(ActorRollout { parts: sent, games, times, cpu, snapshot })
    };
    let stop = || (0..envs.num_pools()).for_each(|k| envs.pool(k).close());
    let view = LiveView::new(&layout, update.num_steps, schedule.updates);
    let place = if options.live_view { trainer.above() } else { None };
    let shared_trainer = &mut trainer;
    let learn = |mut learner: Learner<'_, _, _>| {
        let mut state = state;
        let mut lengths = Returns::default();
        let publish = |learner: &Learner<'_, Agent<Array>, _>, state: &S::With<Sharded>| {
            board.learner.enter(Activity::GivesParameters);
            let agent = unreplicate(&(hooks.agent)(state))?;
            learner.publish(|device| {
                let there = moved(&agent, device)?;
                // An actor that waited for the parameters inside a call would block others of its
                // device.
                tree::leaves(&there).iter().try_for_each(Array::wait)?;
                Ok(there)
            })
        };
        learner.publish_behind(|device| moved(&boundary.behavior_policy, device))?;
        publish(&learner, &state)?;
        // Saved states of the environments for the next checkpoint; a checkpoint is due only after
        // an update.
        let mut env_states: Vec<Vec<Vec<u8>>> = Vec::new();
        let mut interrupted = false;
        let agree_on_the_end = || -> Result<()> {
            let Some(processes) = &processes else { return Ok(()) };
            let mut stops = [i64::from(interrupt::requested())];
            processes.sum_i64(&mut stops)?;
            if stops[0] > 0 {
                interrupt::request();
            }
            Ok(())
        };
        loop {
            agree_on_the_end()?;
            let checkpoint_envs = ActorEnvs { pools: &envs, states: &env_states };
            shared_trainer.checkpoint_if_due(&boundary, checkpoint_envs)?;
            if !shared_trainer.should_continue() {
                break;
            }
            let rate = annealed(
                update.learning_rate,
                update.anneal_lr,
                shared_trainer.global_step() / steps,
                updates,
            );
            let Some(delivered) = learner.collect()? else { continue };
            let (began, cpu) = (Instant::now(), processor_time());
            let made = learner.update();
            let update_span = timeline::span_of("update", format_args!("{made} -> v{}", made + 1));
            let policy_before = match writes_checkpoints {
                true => on_host(&unreplicate(&(hooks.agent)(&state))?)?,
                false => boundary.behavior_policy.clone(),
            };
            let parts = delivered.parts.iter();
            let parts = parts.map(|parts| device_put_sharded(parts, &layout.learners));
            let (next, mut data) = {
                let _span = timeline::span("prepare");
                board.learner.enter(Activity::Prepares);
                prepare.call((state, parts.collect::<Result<Vec<_>>>()?))?
            };
            state = next;
            let span = timeline::span("learn");
            board.learner.enter(Activity::Learns);
            let rate_there = replicate(&Array::from(rate as f32), &layout.learners)?;
            let mut metrics = None;
            let turns: Vec<i32> = (0..update.turns as i32).collect();
            for turns in turns.chunks(per_call) {
                let turns = replicate(&Array::new([turns.len()], turns)?, &layout.learners)?;
                let (next, kept, told) =
                    update_program.call((state, data, turns, rate_there.clone()))?;
                (state, data, metrics) = (next, kept, Some(told));
                if per_call == 1 {
                    // Wait for each step, so that an interruption takes effect soon.
                    tree::leaves(metrics.as_ref().expect("just told"))
                        .iter()
                        .try_for_each(Sharded::wait)?;
                    interrupted = world == World::ALONE && learner.stops();
                    if interrupted {
                        break;
                    }
                }
            }
            if interrupted {
                // The interrupted update is discarded; the checkpoint holds the state before it.
                continue;
            }
            if writes_checkpoints {
                let snapshots = delivered.snapshots.into_iter();
                let actors;
                (actors, env_states) =
                    snapshots.map(|snapshot| (snapshot.state, snapshot.envs)).unzip();
                let train = on_host(&unreplicate(&state)?)?;
                boundary = Boundary { train, behavior_policy: policy_before, actors };
            }
            let metrics = unreplicate(&metrics.expect("at least one gradient step"))?;
            tree::leaves(&metrics).iter().try_for_each(Array::wait)?;
            drop(span);
            let trained = began.elapsed();
            let trained_cpu = processor_time().saturating_sub(cpu);
            {
                let _span = timeline::span("give parameters");
                publish(&learner, &state)?;
            }
            drop(update_span);
            board.learner.ends();
            board.learner.enter(Activity::Logs);
            let gave = began.elapsed() - trained;
            let waited = delivered.waited;
            let trained = (trained, trained_cpu);
            learner.stats.update(waited, trained, gave, delivered.times.params_queue_get);

            delivered.games.iter().for_each(|game| lengths.push(game.length as f64));
            let at = shared_trainer.global_step() + steps;
            if (at / steps).is_multiple_of(options.log_frequency.max(1)) {
                let waiting = learner.waiting();
                let mut scalars = learner.stats.scalars().to_vec();
                scalars.push(("stats/rollout_queue_size", waiting.rollouts as f64));
                scalars.push(("stats/params_queue_size", waiting.params as f64));
                scalars.push(("charts/learning_rate", rate));
                scalars.push((
                    "charts/avg_episodic_return",
                    shared_trainer.run.returns.mean().unwrap_or_default(),
                ));
                scalars.push(("charts/avg_episodic_length", lengths.mean().unwrap_or_default()));
                shared_trainer.run.events.scalars(&scalars, at)?;
            }
            shared_trainer.record(&delivered.games, Some(&metrics))?;
        }
        match interrupted && writes_checkpoints {
            true => Ok(boundary.train),
            false => unreplicate(&state),
        }
    };
    let run = || drive((&layout, schedule), &board, act, stop, learn);
    watch(&view, &board, place, run).and_then(|model| {
        let learner = [start_state.stats(), prepare.stats(), update_program.stats()];
        let resets = begins.iter().map(Jit::stats).chain(learner);
        // The actors compile in parallel.
        let rollout = rollouts.iter().map(|program| program.stats().seconds()).fold(0.0, f64::max);
        let compile_s = rollout + resets.map(|stats| stats.seconds()).sum::<f64>();
        trainer.finish(&model, compile_s)
    })
}

/// Copies a tree to a device.
fn moved<M: Tree<Array, With<Array> = M>>(tree: &M, device: usize) -> Result<M> {
    let leaves = tree::leaves(tree).iter().map(|x| x.to(device)).collect::<Result<Vec<Array>>>()?;
    Ok(tree::replace(tree, leaves))
}

/// Evaluates a saved model, sampling actions from its policy.
///
/// # Errors
/// Returns the same errors as [`train`].
pub fn play<A: Algorithm, S: Tree<Tensor>>(
    args: &A,
    options: &SebulbaOptions,
    model: &Checkpoint,
    evaluation: &mut Evaluation,
    begin: impl Fn(Key<Tensor>, &Sizes) -> S,
    agent: impl Fn(S::With<Array>) -> Agent<Array>,
) -> Result<()>
where
    S::With<TensorType>: Tree<TensorType, With<Array> = S::With<Array>>,
{
    start(options, None)?;
    let run = args.options();
    let like = PoolOptions {
        num_threads: run.num_threads,
        // Episodes of another seed than those of training.
        seed: run.seed.wrapping_add(1 << 32),
        clip_actions: true,
        ..PoolOptions::default()
    };
    let pool = options.pool(args.env_id(), like)?;
    let sizes = sizes::<A>(options, pool.spec())?;
    let agent = agent(load_model(model, |key| begin(key, &sizes))?);
    let act = jit(|(agent, obs, key): (Agent<Tensor>, Tensor, Key<Tensor>)| {
        let (policy, _) = agent.apply(obs);
        policy.sample_each(key.split_batch(obs.dim(0)))
    })
    .named("sebulba_play");
    evaluation.play(pool, |obs, key| act.call((agent.clone(), obs, key)))
}
