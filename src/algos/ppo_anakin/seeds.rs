//! Training of several agents, of seeds and of sweeps, by one program on all devices.

use std::num::NonZeroUsize;
use std::thread;

use clap::ValueEnum;
use serde::Serialize;

use super::{Args, Env, Report, RunnerState, train_iterations};
use crate::error::Result;
use crate::jit::{Jit, Mode, jit};
use crate::pmap::{Pmap, pmap, shard, unshard};
use crate::rl::Algorithm;
use crate::rl::flags::ensure;
use crate::rl::sweep::Grid;
use crate::runtime::{Runtime, RuntimeOptions};
use crate::trace::Axis;
use crate::trace::control::map;
use crate::tree::Tree;
use crate::{Array, Key, Tensor, vmap};

/// Method by which one device trains several agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeedAxis {
    /// One after another, each as if trained alone; fastest on CPU
    Map,
    /// All agents in one batch, as PureJaxRL does with vmap
    Vmap,
}

/// Maximum number of timesteps that one call of the program reports, over all agents.
const MAX_REPORT: usize = 1 << 26;

impl Args {
    /// Number of updates in one call, of `steps_per_update` timesteps each. The default gives about 64
    /// calls, so that progress is visible and the cost of a call is negligible. It divides the total if a
    /// divisor is near, because a last call of another length is compiled separately.
    pub(super) fn updates_per_call(&self, steps_per_update: usize) -> u64 {
        let total = self.num_updates();
        if self.updates_per_call > 0 {
            return self.updates_per_call.min(total);
        }
        // The report of a call, which covers every timestep, is kept in memory.
        let max = (MAX_REPORT / (steps_per_update * self.num_agents()).max(1)).max(1) as u64;
        let wanted = total.div_ceil(64).min(max);
        (wanted..=wanted * 2).find(|n| total.is_multiple_of(*n)).unwrap_or(wanted)
    }

    /// Points of the sweeps, and the agents of each.
    pub(super) fn grid(&self) -> Grid<'_> {
        Grid::new(&self.sweep, self.num_seeds)
    }

    /// Number of agents: one for each point of the sweeps and seed.
    pub(super) fn num_agents(&self) -> usize {
        self.grid().num_agents()
    }

    /// Returns the values of each sweep for all agents, `f32[agents]`; of one agent, `f32[]`.
    pub(super) fn swept(&self) -> Result<Vec<Array>> {
        let values = |sweep| match &self.grid().values_of_agents(sweep)[..] {
            [value] => Array::new([], &[*value]),
            values => Array::new([values.len()], values),
        };
        (0..self.sweep.len()).map(values).collect()
    }
}

/// Applies `f` to all agents. A single agent has no seed axis.
pub(super) fn for_seeds<A: Tree<Tensor>, B: Tree<Tensor>>(
    args: &Args,
    f: impl Fn(A) -> B,
    all: A,
) -> B {
    match (args.num_agents(), args.seed_axis) {
        (1, _) => f(all),
        (_, SeedAxis::Map) => map(f, all),
        (_, SeedAxis::Vmap) => vmap(f)(all),
    }
}

/// Starts the runtime and returns the number of devices that train the agents: `--num-devices`, or
/// the largest divisor of the number of seeds that does not exceed the number of processors.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if the number of devices does not divide the
/// seeds or some would not be used, and if the runtime already runs with fewer.
pub fn start(args: &Args) -> Result<usize> {
    // Other modes than jit, and `--check-nans`, run on one device.
    let one = args.run.mode != Mode::Jit || args.run.check_nans;
    let asked = args.num_devices;
    let agents = args.num_agents();
    let divisor = match args.sweep[..] {
        [] => format!("a divisor of --num-seeds {agents}"),
        _ => format!("a divisor of the number of agents, {agents}"),
    };
    ensure(asked == 0 || agents.is_multiple_of(asked), "num-devices", asked, &divisor)?;
    let few = "1 in other modes than jit, and with --check-nans";
    ensure(asked <= 1 || !one, "num-devices", asked, few)?;

    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let num_devices_of = |most: usize| {
        let most = if one { 1 } else { most.min(processors).min(agents) };
        (1..=most).rev().find(|n| agents.is_multiple_of(*n)).unwrap_or(1)
    };
    let cpu_devices = if asked > 0 { asked } else { num_devices_of(processors) };
    let runtime = Runtime::running_or_started(RuntimeOptions::with_cpu_devices(cpu_devices))?;
    // The runtime may have been started with fewer devices before.
    let devices = if asked > 0 { asked } else { num_devices_of(runtime.client.devices().len()) };
    runtime.expect_device(devices - 1)?;
    Ok(devices)
}

/// Functions that one device runs.
type Part<'a> = Box<dyn Fn(TrainFnInput<Tensor>) -> TrainFnOutput<Tensor> + 'a>;
type SplitPart<'a> = Box<dyn Fn(Axis, TrainFnInput<Tensor>) -> TrainFnOutput<Tensor> + 'a>;
/// Values of each sweep, and the states.
type TrainFnInput<T> = (Vec<T>, RunnerState<T>);
type TrainFnOutput<T> = (RunnerState<T>, Report<T>);

/// Program that runs a number of updates of the agents of all seeds; each device takes an equal
/// share of the agents.
pub struct TrainFn<'a> {
    devices: Vec<usize>,
    args: &'a Args,
    whole: Jit<TrainFnInput<Tensor>, TrainFnOutput<Tensor>, Part<'a>>,
    split: Pmap<TrainFnInput<Tensor>, TrainFnOutput<Tensor>, SplitPart<'a>>,
}

impl<'a> TrainFn<'a> {
    /// Creates a program that runs `updates` updates on the first `devices` devices, a number that divides
    /// the seeds.
    pub fn new(env: &'a Env, updates: u64, devices: usize, args: &'a Args) -> TrainFn<'a> {
        let part = move |input: TrainFnInput<Tensor>| {
            for_seeds(args, |input| train_iterations(env, input, updates, args), input)
        };
        let whole: Part<'a> = Box::new(part);
        let split: SplitPart<'a> = Box::new(move |_, state| part(state));
        TrainFn {
            devices: (0..devices).collect(),
            args,
            whole: jit(whole)
                .with_mode(args.run.mode)
                .named(Args::NAME)
                .check_nans(args.run.check_nans),
            split: pmap("seeds", split).named(Args::NAME),
        }
    }

    /// Runs the updates; returns the new states and the report. With several seeds every leaf has a
    /// leading seed axis.
    ///
    /// # Errors
    /// Returns errors from compilation and execution.
    pub fn call(&self, state: RunnerState<Array>) -> Result<TrainFnOutput<Array>> {
        let input = (self.args.swept()?, state);
        if self.devices.len() == 1 {
            return self.whole.call(input);
        }
        // Sharding takes milliseconds, a call seconds.
        let (state, report) = self.split.call(shard(&input, &self.devices)?)?;
        Ok((unshard(&state)?, unshard(&report)?))
    }

    /// Returns the time that tracing and compiling took, in seconds.
    pub fn compile_s(&self) -> f64 {
        self.whole.stats().seconds() + self.split.stats().seconds()
    }
}

/// Returns the keys of the agents: the one of seed i of `--seed s` is that of `--seed s + i` alone,
/// for each point of the sweeps.
pub(super) fn keys(args: &Args) -> Result<Key<Array>> {
    if args.num_agents() == 1 {
        return Ok(Key::new(args.run.seed));
    }
    let mut words = Vec::new();
    for i in 0..args.num_agents() {
        let seed = args.run.seed.wrapping_add((i % args.num_seeds) as u64);
        words.extend([(seed >> 32) as u32, seed as u32]);
    }
    Ok(Key::from_data(Array::new([args.num_agents(), 2], &words)?))
}
