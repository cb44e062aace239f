//! Training of an algorithm on actors and a learner; the algorithm supplies its network, its
//! preparation of a rollout and its gradient step.

use super::actor_learner::{Learner, Schedule, run_actor_learner};
use super::actors::{Actors, reset_actors};
use super::agent::{Agent, Sizes};
use super::checkpoint::{ActorEnvs, ActorState, Boundary, on_host};
use super::config::UpdateConfig;
use super::exchange::{Across, ensure_same_step};
use super::layout::World;
use super::learner::{BoundaryOf, LearnerLoop, LearnerPrograms};
use super::options::SebulbaOptions;
use super::reduce::Reduce;
use super::rollout::{EnvState, RolloutResults};
use super::setup::{Setup, connect, sizes_of, start_runtime};
use super::status::RunStatus;
use super::view::{LiveView, watch};
use crate::envs::{PoolOptions, XlaPool};
use crate::error::Result;
use crate::jit::jit;
use crate::pmap::{Sharded, pmap, replicate, unreplicate};
use crate::rl::algorithm::Algorithm;
use crate::rl::checkpoint::Checkpoint;
use crate::rl::checkpoint::saved::{Envs, load_model};
use crate::rl::policy::{Policy, PolicyResults};
use crate::rl::run::pools;
use crate::rl::run::trainer::Trainer;
use crate::rl::summary::Summary;
use crate::trace::Axis;
use crate::trace::control::scan;
use crate::tree::{self, Tree};
use crate::{Array, Key, Tensor};

/// Functions of an algorithm, with train state `S`, actors' parameters `P`, rollouts `R`, prepared
/// rollout `D`, metrics `M` and saved model `X`. All but `params` and `model` are traced.
#[derive(Debug)]
pub struct TrainFunctions<Init, Params, Collect, Prepare, Step, Model> {
    /// Makes the initial state from a key; it is the same on every learner device.
    pub init: Init,
    /// Returns the parameters in a state with which actors act.
    pub params: Params,
    /// Collects a rollout on an actor device, from the parameters, the state of the environments and
    /// the number of the first of them, `i32[]`; returns a part for each learner device of the
    /// process.
    pub collect: Collect,
    /// Computes what is needed once per rollout, on each learner device from its parts of all actors'
    /// rollouts.
    pub prepare: Prepare,
    /// Takes a gradient step, from the state, the rollout, the index of the step `i32[]` and the
    /// learning rate `f32[]`.
    pub gradient_step: Step,
    /// Returns the part of a state that is saved as the model.
    pub model: Model,
}

/// Trains an agent and returns the result.
///
/// With `--distributed` an error in one process ends all of them.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for settings out of range, and errors of the
/// environments, compilation, execution and file I/O.
pub fn train<A, S, P, R, D, M, X>(
    args: &A,
    options: &SebulbaOptions,
    config: UpdateConfig,
    functions: TrainFunctions<
        impl Fn(Key<Tensor>, &Sizes) -> S,
        impl Fn(&S::With<Sharded>) -> P::With<Sharded>,
        impl Fn(&XlaPool, &P, EnvState<Tensor>, Tensor) -> RolloutResults<R> + Sync,
        impl Fn(S, Vec<R>, Axis) -> (S, D),
        impl Fn(S, &D, (Tensor, Tensor), &Reduce) -> (S, M),
        impl Fn(S::With<Array>) -> X,
    >,
) -> Result<Summary>
where
    A: Algorithm,
    S: Tree<Tensor>,
    S::With<Sharded>: Tree<Sharded, With<Array> = S::With<Array>>,
    P: Tree<Tensor>,
    P::With<Sharded>: Tree<Sharded, With<Array> = P::With<Array>>,
    P::With<Array>: Clone + Send,
    R: Tree<Tensor> + Send + Sync,
    R::With<Sharded>: Tree<Sharded, With<Array> = R::With<Array>>,
    R::With<Array>: Send,
    D: Tree<Tensor>,
    M: Tree<Tensor, With<Tensor> = M>,
    D::With<Sharded>: Clone,
    X: Tree<Array>,
{
    let processes = connect(options)?;
    let setup = Setup::new(args, options, config, processes.clone());
    let outcome = setup.and_then(|setup| train_on(setup, args, options, config, functions));
    match (processes, outcome) {
        (Some(processes), Err(error)) => processes.abort(&error),
        (_, outcome) => outcome,
    }
}

fn train_on<A, S, P, R, D, M, X>(
    setup: Setup,
    args: &A,
    options: &SebulbaOptions,
    config: UpdateConfig,
    functions: TrainFunctions<
        impl Fn(Key<Tensor>, &Sizes) -> S,
        impl Fn(&S::With<Sharded>) -> P::With<Sharded>,
        impl Fn(&XlaPool, &P, EnvState<Tensor>, Tensor) -> RolloutResults<R> + Sync,
        impl Fn(S, Vec<R>, Axis) -> (S, D),
        impl Fn(S, &D, (Tensor, Tensor), &Reduce) -> (S, M),
        impl Fn(S::With<Array>) -> X,
    >,
) -> Result<Summary>
where
    A: Algorithm,
    S: Tree<Tensor>,
    S::With<Sharded>: Tree<Sharded, With<Array> = S::With<Array>>,
    P: Tree<Tensor>,
    P::With<Sharded>: Tree<Sharded, With<Array> = P::With<Array>>,
    P::With<Array>: Clone + Send,
    R: Tree<Tensor> + Send + Sync,
    R::With<Sharded>: Tree<Sharded, With<Array> = R::With<Array>>,
    R::With<Array>: Send,
    D: Tree<Tensor>,
    M: Tree<Tensor, With<Tensor> = M>,
    D::With<Sharded>: Clone,
    X: Tree<Array>,
{
    let Setup { processes, runtime, layout, sizes, update_steps, .. } = &setup;
    let mut trainer = Trainer::start_rank(args, *update_steps, layout.world.rank)?;
    trainer.devices = layout.num_devices();

    // Programs of the learner.
    let (learners, exact) = (layout.num_learners(), options.deterministic);
    // Not needed if the devices of all processes form one cluster, whose reductions span them.
    let across = processes.clone().filter(|_| runtime.process_count() == 1).map(Across::new);
    let init =
        pmap("learners", |_, key: Key<Tensor>| (functions.init)(key, sizes)).named("sebulba_init");
    let prepare = pmap("learners", |axis, (state, parts): (S, Vec<R>)| {
        (functions.prepare)(state, parts, axis)
    })
    .named("sebulba_prepare");
    let gradient_steps =
        pmap("learners", |axis, (state, data, indices, rate): (S, D, Tensor, Tensor)| {
            let reduce = Reduce { axis, learners, exact, across: across.clone() };
            let step =
                |state, index| (functions.gradient_step)(state, &data, (index, rate), &reduce);
            let (state, metrics) = scan_or_once(step, state, indices);
            (state, data, metrics)
        })
        .named("sebulba_step");

    let keys = jit(|key: Key<Tensor>| key.split_n::<2>());
    let [learner_key, actor_key] = keys.call(Key::new(args.options().seed))?;
    let (env_states, reset_s) = reset_actors(&setup, actor_key)?;
    let state = init.call(replicate(&learner_key, &layout.learners)?)?;
    let (state, env_states, boundary) =
        init_or_resume(&mut trainer, &setup, state, env_states, &functions.params)?;
    if let Some(processes) = processes {
        ensure_same_step(&**processes, trainer.global_step())?;
    }
    let programs = LearnerPrograms {
        prepare: &|state, parts| prepare.call((state, parts)),
        gradient_steps: &|state, data, indices, learning_rate| {
            gradient_steps.call((state, data, indices, learning_rate))
        },
        params: &functions.params,
    };
    let run = Run { setup: &setup, args, options, config, collect: &functions.collect };
    let (state, rollout_s) =
        run_threads(&mut trainer, &run, programs, state, env_states, boundary)?;
    let learner = [init.stats(), prepare.stats(), gradient_steps.stats()];
    let learner_s: f64 = learner.iter().map(|stats| stats.seconds()).sum();
    trainer.add_compile_seconds(reset_s + learner_s + rollout_s);
    trainer.finish(&(functions.model)(state))
}

/// Setup and settings of a run, and what its actors do.
struct Run<'r, A, F> {
    setup: &'r Setup,
    args: &'r A,
    options: &'r SebulbaOptions,
    config: UpdateConfig,
    collect: &'r F,
}

/// Runs the actors and the learner to the end. Returns the learner's train state, and the seconds
/// of compilation of the rollouts.
fn run_threads<A, S, P, R, D, M>(
    trainer: &mut Trainer<'_, A>,
    run: &Run<'_, A, impl Fn(&XlaPool, &P, EnvState<Tensor>, Tensor) -> RolloutResults<R> + Sync>,
    programs: LearnerPrograms<'_, S, P::With<Sharded>, R::With<Sharded>, D, M>,
    state: S,
    env_states: Vec<EnvState<Array>>,
    boundary: BoundaryOf<S, P::With<Sharded>>,
) -> Result<(S::With<Array>, f64)>
where
    A: Algorithm,
    S: Tree<Sharded>,
    P: Tree<Tensor>,
    P::With<Sharded>: Tree<Sharded, With<Array> = P::With<Array>>,
    P::With<Array>: Clone + Send,
    R: Tree<Tensor> + Send + Sync,
    R::With<Sharded>: Tree<Sharded, With<Array> = R::With<Array>>,
    R::With<Array>: Send,
    M: Tree<Sharded>,
{
    let &Run { setup, args, options, config, collect } = run;
    let Setup { layout, envs, update_steps, .. } = setup;
    let updates = args.total_timesteps() / update_steps;
    let resumed_at = trainer.global_step() / update_steps;
    let schedule = Schedule { resumed_at, updates, concurrency: options.concurrency };
    let writes_checkpoints = layout.world.rank == 0 && args.options().checkpoint_frequency > 0;
    // A run of several processes saves only the learner.
    let takes_snapshots = writes_checkpoints && layout.world == World::ALONE;

    let status = &RunStatus::new(layout.num_actors());
    let actors = Actors::new(setup, status, env_states, collect, takes_snapshots);
    let view = LiveView::new(layout, config.num_steps, updates);
    let area = if options.live_view { trainer.above() } else { None };
    let learner = LearnerLoop {
        trainer,
        setup,
        options,
        config,
        updates,
        status,
        programs,
        writes_checkpoints,
    };
    let act = |actor, params: &P::With<Array>| actors.rollout(actor, params);
    let stop = || (0..envs.num_pools()).for_each(|k| envs.pool(k).close());
    let learn = |queues: Learner<'_, _, _>| learner.run(queues, state, boundary);
    let run = || run_actor_learner((layout, schedule), status, act, stop, learn);
    let model = watch(&view, status, area, run)?;
    Ok((model, actors.compile_seconds()))
}

/// Runs `step` for each of `indices: i32[K]` in a compiled loop, or without one if K is 1. Returns
/// the metrics of the last step.
fn scan_or_once<S: Tree<Tensor>, M: Tree<Tensor, With<Tensor> = M>>(
    step: impl Fn(S, Tensor) -> (S, M),
    state: S,
    indices: Tensor,
) -> (S, M) {
    if indices.dim(0) == 1 {
        return step(state, indices.squeeze(0));
    }
    let (state, metrics) = scan(step, state, indices);
    (state, tree::map(metrics, |x: Tensor| x.index_axis(0, -1)))
}

/// Learner's train state, states of the actors' environments, and the boundary before an update.
type StartState<S, P> = (S, Vec<EnvState<Array>>, BoundaryOf<S, P>);

/// Returns the learner's train state, the states of the actors' environments, and the boundary
/// before the next update: those of a new run, or with `--resume` the saved ones.
fn init_or_resume<A: Algorithm, S: Tree<Sharded>, P: Tree<Sharded>>(
    trainer: &mut Trainer<'_, A>,
    setup: &Setup,
    state: S,
    env_states: Vec<EnvState<Array>>,
    params: impl Fn(&S) -> P,
) -> Result<StartState<S, P>> {
    let saves_actors = setup.layout.world == World::ALONE;
    let actors = match saves_actors {
        true => env_states.iter().map(ActorState::of).collect::<Result<_>>()?,
        false => Vec::new(),
    };
    let boundary = Boundary {
        // A resumed run reads the saved one into its structure.
        train: match trainer.is_resuming() || setup.is_interruptible() {
            true => Some(on_host(&unreplicate(&state)?)?),
            false => None,
        },
        behavior_policy: on_host(&unreplicate(&params(&state))?)?,
        actors,
    };
    let mut envs = ActorEnvs { pools: &setup.envs, states: &[] };
    trainer.env_spec = envs.spec();
    if !trainer.is_resuming() {
        trainer.announce_end();
        trainer.film(&mut envs)?;
        return Ok((state, env_states, boundary));
    }
    let mut boundary = trainer.init_or_resume(boundary, envs)?;
    let leaves = tree::into_leaves(replicate(&boundary.train, &setup.layout.learners)?);
    let state = tree::replace(&state, leaves);
    let saved = std::mem::take(&mut boundary.actors).into_iter();
    let env_states = match saves_actors {
        true => saved.zip(env_states).map(|(saved, fresh)| saved.resume(fresh)).collect(),
        false => env_states,
    };
    Ok((state, env_states, boundary))
}

/// Returns the policy of a saved model, with the results of [`PolicyResults::from_distribution`].
///
/// # Errors
/// Returns errors of the environments and of reading the model.
pub fn policy<A: Algorithm, S: Tree<Tensor>>(
    args: &A,
    options: &SebulbaOptions,
    model: &Checkpoint,
    init: impl Fn(Key<Tensor>, &Sizes) -> S,
    agent: impl Fn(S::With<Array>) -> Agent<Array>,
) -> Result<Policy> {
    let pool = pools::recorded_or(args, || {
        start_runtime(options, None)?;
        let run = args.options();
        let pool_options = PoolOptions {
            num_threads: run.num_threads,
            seed: run.eval_seed(),
            clip_actions: true,
            ..PoolOptions::default()
        };
        options.pool(args.env_id(), pool_options)
    })?;
    let sizes = sizes_of::<A>(options, pool.spec())?;
    let agent = agent(load_model(model, |key| init(key, &sizes))?);
    let spec = pool.spec().clone();
    Ok(Policy::new(pool, agent, move |agent: &Agent<Tensor>, obs| {
        PolicyResults::from_distribution(agent.apply(obs).0, &spec)
    }))
}
