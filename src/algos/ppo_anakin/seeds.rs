//! Training of several seeds' agents by one program on all devices.

use std::num::NonZeroUsize;
use std::thread;

use clap::ValueEnum;
use serde::Serialize;

use super::{Args, Env, Report, RunnerState, train_iterations};
use crate::error::Result;
use crate::jit::{Jit, Mode, jit};
use crate::pmap::{Pmap, pmap, shard, unshard};
use crate::rl::flags::ensure;
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

/// Applies `f` to the agents of all seeds. A single agent has no seed axis.
pub(super) fn for_seeds<A: Tree<Tensor>, B: Tree<Tensor>>(
    args: &Args,
    f: impl Fn(A) -> B,
    all: A,
) -> B {
    match (args.num_seeds, args.seed_axis) {
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
    let divisor = format!("a divisor of --num-seeds {}", args.num_seeds);
    ensure(asked == 0 || args.num_seeds.is_multiple_of(asked), "num-devices", asked, &divisor)?;
    let few = "1 in other modes than jit, and with --check-nans";
    ensure(asked <= 1 || !one, "num-devices", asked, few)?;

    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let num_devices_of = |most: usize| {
        let most = if one { 1 } else { most.min(processors).min(args.num_seeds) };
        (1..=most).rev().find(|n| args.num_seeds.is_multiple_of(*n)).unwrap_or(1)
    };
    let cpu_devices = if asked > 0 { asked } else { num_devices_of(processors) };
    let runtime = Runtime::running_or_started(RuntimeOptions::with_cpu_devices(cpu_devices))?;
    // The runtime may have been started with fewer devices before.
    let devices = if asked > 0 { asked } else { num_devices_of(runtime.client.devices().len()) };
    runtime.expect_device(devices - 1)?;
    Ok(devices)
}

/// Functions that one device runs in a launch.
type Part<'a> = Box<dyn Fn(RunnerState<Tensor>) -> LaunchOutput<Tensor> + 'a>;
type SplitPart<'a> = Box<dyn Fn(Axis, RunnerState<Tensor>) -> LaunchOutput<Tensor> + 'a>;
type LaunchOutput<T> = (RunnerState<T>, Report<T>);

/// Program that runs a number of updates of the agents of all seeds; each device takes an equal
/// share of the agents.
pub struct Launch<'a> {
    devices: Vec<usize>,
    whole: Jit<RunnerState<Tensor>, LaunchOutput<Tensor>, Part<'a>>,
    split: Pmap<RunnerState<Tensor>, LaunchOutput<Tensor>, SplitPart<'a>>,
}

impl<'a> Launch<'a> {
    /// Creates a launch of `updates` updates on the first `devices` devices, a number that divides
    /// the seeds.
    pub fn new(env: &'a Env, updates: u64, devices: usize, args: &'a Args) -> Launch<'a> {
        let part = move |state: RunnerState<Tensor>| {
            for_seeds(args, |state| train_iterations(env, state, updates, args), state)
        };
        let whole: Part<'a> = Box::new(part);
        let split: SplitPart<'a> = Box::new(move |_, state| part(state));
        Launch {
            devices: (0..devices).collect(),
            whole: jit(whole)
                .with_mode(args.run.mode)
                .named("ppo_anakin")
                .check_nans(args.run.check_nans),
            split: pmap("seeds", split).named("ppo_anakin"),
        }
    }

    /// Runs the updates; returns the new states and the report. With several seeds every leaf has a
    /// leading seed axis.
    ///
    /// # Errors
    /// Returns errors from compilation and execution.
    pub fn call(&self, state: RunnerState<Array>) -> Result<LaunchOutput<Array>> {
        if self.devices.len() == 1 {
            return self.whole.call(state);
        }
        // Sharding takes milliseconds, a launch seconds.
        let (state, report) = self.split.call(shard(&state, &self.devices)?)?;
        Ok((unshard(&state)?, unshard(&report)?))
    }

    /// Returns the time that tracing and compiling took, in seconds.
    pub fn compile_s(&self) -> f64 {
        self.whole.stats().seconds() + self.split.stats().seconds()
    }
}

/// Returns the keys of the seeds: agent i of `--seed s` equals the only agent of `--seed s + i`.
pub(super) fn keys(args: &Args) -> Result<Key<Array>> {
    if args.num_seeds == 1 {
        return Ok(Key::new(args.run.seed));
    }
    let mut words = Vec::new();
    for i in 0..args.num_seeds as u64 {
        let seed = args.run.seed.wrapping_add(i);
        words.extend([(seed >> 32) as u32, seed as u32]);
    }
    Ok(Key::from_data(Array::new([args.num_seeds, 2], &words)?))
}
