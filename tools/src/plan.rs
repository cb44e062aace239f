//! Prediction of the fastest layout of actors and learners on this machine.

use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use podracer::algos::cleanba_ppo;
use podracer::error::{Error, Result};
use podracer::rl::Algorithm;
use podracer::rl::logging::tensorboard::{Value, read_events};

use crate::simulate::{Costs, Forecast, Shape, simulate};

/// Flags of the command.
#[derive(Debug, Args)]
pub struct Plan {
    /// Id of the environment
    #[arg(long, default_value = "Breakout-v5")]
    env_id: String,
    /// Environments of each process
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    envs: u32,
    /// Devices of the machine
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    devices: u32,
    /// Number of processes, each on a machine like this one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    processes: u32,
    /// Give each device cores of its own; otherwise they share this machine's, as a CPU's do
    #[arg(long)]
    own_cores: bool,
    /// Further flags of cleanba_ppo, such as --network nature
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

impl Plan {
    fn num_envs(&self) -> usize {
        self.envs as usize
    }

    fn num_devices(&self) -> usize {
        self.devices as usize
    }
}

/// Measurements of one short run, in seconds and cores.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    rollout: f64,
    transfer: f64,
    training: f64,
    publish: f64,
    rollout_cores: f64,
    training_cores: f64,
}

/// Measures, simulates, and returns the table of the layouts, fastest first.
pub fn plan(plan: &Plan) -> Result<String> {
    let steps = cleanba_ppo::Args::from_flags(plan.flags.iter().map(String::as_str))
        .map_err(|error| Error::Config(error.to_string()))?
        .num_steps;
    let folder = std::env::temp_dir().join(format!("podracer-plan-{}", std::process::id()));
    let costs = measure(plan, &folder);
    // The probes leave no files that anyone needs.
    let _ = std::fs::remove_dir_all(&folder);
    let costs = costs?;

    let mut rows: Vec<(String, Shape, Forecast)> = Vec::new();
    for (name, shape) in layouts(plan, steps) {
        rows.push((name, shape, simulate(&costs, &shape)));
    }
    rows.sort_by(|a, b| b.2.sps.total_cmp(&a.2.sps));
    let mut text = format!(
        "{} environments of {}: {:.1} ms a rollout of {steps} steps on {:.1} core(s), {:.1} ms an update \
         on {:.1}, on one device\n\n\
         {:<16} {:>7} {:>11} {:>9} {:>12} {:>10}\n",
        plan.num_envs(),
        plan.env_id,
        1e3 * (costs.rollout + plan.num_envs() as f64 * costs.rollout_per_env),
        costs.rollout_cores,
        1e3 * (costs.learn + plan.num_envs() as f64 * costs.learn_per_env),
        costs.learn_cores,
        "layout",
        "threads",
        "envs/thread",
        "steps/s",
        "learner busy",
        "actor busy"
    );
    for (name, shape, forecast) in &rows {
        let Forecast { sps, learner_busy, actor_busy, .. } = forecast;
        let (learner, actor) = (100.0 * learner_busy, 100.0 * actor_busy);
        let (threads, envs) = (shape.threads, shape.envs);
        let _ = writeln!(
            text,
            "{name:<16} {threads:>7} {envs:>11} {sps:>9.0} {learner:>11.0}% {actor:>9.0}%"
        );
    }
    Ok(text)
}

/// Measures two short runs on one device, one with half of the environments, to separate costs that
/// depend on their number from fixed costs.
fn measure(plan: &Plan, folder: &Path) -> Result<Costs> {
    let whole = probe(plan, folder, plan.num_envs(), "0")?;
    let half = probe(plan, folder, plan.num_envs() / 2, "0")?;
    let apart = (plan.num_envs() - plan.num_envs() / 2) as f64;
    let slope = |of: fn(&Measured) -> f64| ((of(&whole) - of(&half)) / apart).max(0.0);
    let rest =
        |of: fn(&Measured) -> f64| (of(&whole) - slope(of) * plan.num_envs() as f64).max(0.0);
    let learn_per_env = slope(|m| m.training);
    let learn = rest(|m| m.training);
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let reduce = if plan.num_devices() > 1 && plan.num_envs().is_multiple_of(2) {
        let two = probe(plan, folder, plan.num_envs(), "0,1")?;
        // Two learners have a core each if there are two cores, and share all of them if there are
        // more.
        let spread = if cores > 2.0 { 1.0 } else { whole.training_cores.max(1.0) };
        (two.training - learn - learn_per_env * plan.num_envs() as f64 / 2.0 * spread).max(0.0)
    } else {
        0.0
    };
    Ok(Costs {
        rollout_per_env: slope(|m| m.rollout),
        rollout: rest(|m| m.rollout),
        transfer_per_env: slope(|m| m.transfer),
        learn_per_env,
        learn,
        // A value below one means waiting, which the times include already.
        rollout_cores: whole.rollout_cores.clamp(1.0, cores),
        learn_cores: whole.training_cores.clamp(1.0, cores),
        reduce,
        publish: whole.publish,
        cores: if plan.own_cores { f64::INFINITY } else { cores },
    })
}

/// Runs twelve updates in which nothing overlaps; the last ten are measured.
fn probe(plan: &Plan, folder: &Path, envs: usize, learners: &str) -> Result<Measured> {
    let folder = folder.display();
    let first = vec![
        format!("--env-id={}", plan.env_id),
        format!("--local-num-envs={envs}"),
        format!("--num-devices={}", plan.num_devices()),
        format!("--learner-device-ids={learners}"),
        format!("--runs-dir={folder}"),
        "--num-actor-threads=1".into(),
        "--no-concurrency".into(),
        "--log-frequency=1".into(),
        "--json".into(),
        "--no-live-view".into(),
    ];
    let flags: Vec<&str> = plan.flags.iter().chain(&first).map(String::as_str).collect();
    let parse = |flags: Vec<&str>| {
        cleanba_ppo::Args::from_flags(flags).map_err(|error| Error::Config(error.to_string()))
    };
    let args = parse(flags.clone())?;
    let total = format!("--total-timesteps={}", 12 * envs * args.num_steps);
    let summary = parse(flags.into_iter().chain([total.as_str()]).collect())?.train()?;
    let files = std::fs::read_dir(&summary.run_dir);
    let files = files.map_err(Error::io("cannot read", Path::new(&summary.run_dir)))?.flatten();
    let events =
        files.map(|file| file.path()).find(|path| path.to_string_lossy().contains("tfevents"));
    let events =
        events.ok_or_else(|| Error::Argument(format!("no events in {}", summary.run_dir)))?;
    let mut measured = Measured::default();
    for event in read_events(events)? {
        if let Value::Scalar { tag, value } = event.value {
            let place = match tag.as_str() {
                "stats/rollout_time" => &mut measured.rollout,
                "stats/data_transfer_time" => &mut measured.transfer,
                "stats/training_time" => &mut measured.training,
                "stats/rollout_cores" => &mut measured.rollout_cores,
                "stats/training_cores" => &mut measured.training_cores,
                "stats/params_put_time" => &mut measured.publish,
                _ => continue,
            };
            *place = value.into();
        }
    }
    Ok(measured)
}

/// Returns every layout of these devices whose numbers divide: with separate actor and learner
/// devices, or with shared ones.
fn layouts(plan: &Plan, num_steps: usize) -> Vec<(String, Shape)> {
    let mut all = Vec::new();
    let ids = |from: usize, count: usize| {
        (from..from + count).map(|id| id.to_string()).collect::<Vec<_>>().join(",")
    };
    let numbers = 1..=plan.num_devices();
    let pairs = numbers.clone().flat_map(|actors| numbers.clone().map(move |all| (actors, all)));
    for (actors, learners) in pairs {
        for (shared, threads) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
            let envs = plan.num_envs() / (actors * threads);
            let divide = envs > 0
                && envs * actors * threads == plan.num_envs()
                && envs.is_multiple_of(learners);
            let fits =
                if shared { actors == learners } else { actors + learners <= plan.num_devices() };
            if !divide || !fits {
                continue;
            }
            let first = if shared { 0 } else { actors };
            let (a, l, d) = (ids(0, actors), ids(first, learners), plan.processes);
            let shape = Shape {
                actors,
                learners,
                shared,
                threads,
                envs,
                processes: plan.processes as usize,
                num_steps,
                concurrency: true,
            };
            all.push((format!("a{a}-l{l}-d{d}"), shape));
        }
    }
    all
}
