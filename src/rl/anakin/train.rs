//! Host side of the training loop.

use super::log::AgentsLog;
use super::memory::{ProgramSizes, ensure_memory};
use super::saved_model::agent_types;
use crate::error::Result;
use crate::rl::anakin::env::AnakinEnv;
use crate::rl::anakin::log::Report;
use crate::rl::anakin::options::AnakinArgs;
use crate::rl::anakin::program::{AgentTree, TrainFn, start_runtime};
use crate::rl::run::trainer::Trainer;
use crate::rl::summary::Summary;
use crate::tree::{self, Tree};
use crate::{Array, Key, Tensor};

/// Maximum number of timesteps that one call of the program reports, over all agents.
const MAX_REPORT: usize = 1 << 26;

/// Trains agents and returns a summary. Event files and, if requested, the models are written to
/// the run's folder.
///
/// `init` returns the initial state of an agent. `train_iterations` runs a number of updates of one
/// agent, with the values `f32[]` of the sweeps. `model` returns the part of the state that
/// `--save-model` saves.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if settings are out of range, and errors from the
/// environments, compilation, execution and file I/O.
pub fn train_agents<A: AnakinArgs, S: AgentTree, M: AgentTree, P: Tree<Array>>(
    args: &A,
    env: &AnakinEnv,
    init: impl Fn(&AnakinEnv, Key<Tensor>, &A) -> S,
    train_iterations: impl Fn(&AnakinEnv, (Vec<Tensor>, S), u64, &A) -> (S, Report<Tensor, M>) + Copy,
    model: impl Fn(S::With<Array>) -> P,
) -> Result<Summary> {
    let options = args.agents();
    let devices = start_runtime(options, args.options())?;
    let init_agent = |key| init(env, key, args);
    let updates_per_call = updates_per_call(args);
    let state = tree::leaves(&agent_types(args, init_agent)?);
    ensure_memory(args, env, &ProgramSizes { state, updates_per_call, devices })?;
    let steps_per_update = args.steps_per_update() as u64;
    let mut trainer = Trainer::start(args, steps_per_update)?;

    let init = trainer.jit("init", |keys: Key<Tensor>| options.for_agents(init_agent, keys));
    let program = |updates| TrainFn::new(args, env, updates, devices, train_iterations);
    let keys = options.keys(args.options().seed)?;
    let mut state = trainer.init_or_resume(init.call(keys)?, ())?;
    trainer.env_spec = Some(env.spec.clone());
    let mut log =
        AgentsLog::new(args, &trainer.extra_state, trainer.global_step() / steps_per_update)?;
    // Updates left: 0 if a resumed run has already taken all of its timesteps; the loop then ends.
    let remaining = |log: &AgentsLog<A>| args.num_updates().saturating_sub(log.num_updates);
    let next_updates = |log: &AgentsLog<A>| remaining(log).min(updates_per_call);
    let train_fn = program(updates_per_call);
    let last_train_fn = program(remaining(&log) % updates_per_call);
    trainer.iteration_steps = next_updates(&log).max(1) * steps_per_update;
    while trainer.should_continue() {
        let updates = next_updates(&log);
        let program = if updates < updates_per_call { &last_train_fn } else { &train_fn };
        let (next_state, report) = program.call(state)?;
        state = next_state;
        if let Err(error) = log.record(&mut trainer.run, &report, updates) {
            // The results so far are written if they can be; the error of the run is reported.
            let _ = log.details(&trainer.run.dir);
            return Err(error);
        }
        trainer.extra_state = log.saved_state()?;
        trainer.advance(updates * steps_per_update)?;
        trainer.iteration_steps = next_updates(&log).max(1) * steps_per_update;
        trainer.checkpoint_if_due(&state, ())?;
    }
    trainer.add_compile_seconds(train_fn.compile_s() + last_train_fn.compile_s());
    let folder = trainer.run.dir.clone();
    // The model is saved before an error of the results can end the run.
    let summary = trainer.finish(&model(state))?;
    let details = log.details(&folder)?;
    let agents = options.num_agents() as u64;
    Ok(Summary {
        num_devices: devices,
        global_step: summary.global_step * agents,
        sps: summary.sps * agents as f64,
        avg_episodic_return: log.mean_return(),
        details,
        ..summary
    })
}

/// Returns the number of updates in one call. The default gives about 64 calls, so that progress is
/// visible and the cost of a call is negligible. It divides the total if a divisor is near, because a
/// last call of another length is compiled separately.
fn updates_per_call<A: AnakinArgs>(args: &A) -> u64 {
    let (options, total) = (args.agents(), args.num_updates());
    if options.updates_per_call > 0 {
        return options.updates_per_call.min(total);
    }
    // The report of a call, which covers every timestep, is kept in memory.
    let steps = args.steps_per_update() * options.num_agents();
    let max = (MAX_REPORT / steps.max(1)).max(1) as u64;
    let wanted = total.div_ceil(64).min(max);
    (wanted..=(wanted * 2).min(max)).find(|n| total.is_multiple_of(*n)).unwrap_or(wanted)
}
