//! Compiled program that trains all agents, on all devices.

use std::num::NonZeroUsize;
use std::thread;

use crate::error::Result;
use crate::jit::{Jit, Mode, jit};
use crate::pmap::{Pmap, Sharded, pmap, shard, unshard};
use crate::rl::anakin::env::AnakinEnv;
use crate::rl::anakin::log::Report;
use crate::rl::anakin::options::{AgentOptions, AnakinArgs};
use crate::rl::settings::flags::ensure;
use crate::rl::settings::options::RunOptions;
use crate::runtime::{Runtime, RuntimeOptions};
use crate::trace::Axis;
use crate::tree::Tree;
use crate::{Array, Tensor};

/// Tree of tensors of an agent whose arrays, of all agents, can be divided over devices. Every tree
/// is one.
pub trait AgentTree: Tree<Tensor> {
    /// Divides the agents over devices.
    ///
    /// # Errors
    /// Returns the errors of [`shard`].
    fn shard(agents: &Self::With<Array>, devices: &[usize]) -> Result<Self::With<Sharded>>;

    /// Concatenates the agents of all devices.
    ///
    /// # Errors
    /// Returns the errors of [`unshard`].
    fn unshard(agents: &Self::With<Sharded>) -> Result<Self::With<Array>>;
}

impl<S: Tree<Tensor>> AgentTree for S
where
    S::With<Array>: Tree<Array, With<Sharded> = S::With<Sharded>>,
    S::With<Sharded>: Tree<Sharded, With<Array> = S::With<Array>>,
{
    fn shard(agents: &S::With<Array>, devices: &[usize]) -> Result<S::With<Sharded>> {
        shard(agents, devices)
    }

    fn unshard(agents: &S::With<Sharded>) -> Result<S::With<Array>> {
        unshard(agents)
    }
}

/// Starts the runtime and returns the number of devices that train agents: `--num-devices`, or the
/// largest divisor of the number of agents that does not exceed the devices, nor on a CPU its
/// processors. In other modes than jit, and with `--check-nans`, it is 1.
///
/// # Errors
/// Returns [`Error::Config`](crate::Error::Config) if the number of devices does not divide the
/// agents, or is above 1 where it must be 1, and errors if the runtime already runs with fewer
/// devices.
pub fn start_runtime(options: &AgentOptions, run: &RunOptions) -> Result<usize> {
    // Other modes than jit, and `--check-nans`, run on one device.
    let one = run.mode != Mode::Jit || run.check_nans;
    let asked = options.num_devices;
    let agents = options.num_agents();
    let divisor = match options.sweep[..] {
        [] => format!("a divisor of --num-seeds {agents}"),
        _ => format!("a divisor of the number of agents, {agents}"),
    };
    ensure(asked == 0 || agents.is_multiple_of(asked), "num-devices", asked, &divisor)?;
    let few = "1 in other modes than jit, and with --check-nans";
    ensure(asked <= 1 || !one, "num-devices", asked, few)?;

    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let num_devices_of = |most: usize| {
        let most = if one { 1 } else { most.min(agents) };
        (1..=most).rev().find(|n| agents.is_multiple_of(*n)).unwrap_or(1)
    };
    let cpu_devices = if asked > 0 { asked } else { num_devices_of(processors) };
    let runtime = Runtime::running_or_started(RuntimeOptions::with_cpu_devices(cpu_devices))?;
    // The runtime may have been started with fewer devices before. Those of a CPU share its cores.
    let there = runtime.client.devices().len();
    let most = if runtime.platform.is_host() { there.min(processors) } else { there };
    let devices = if asked > 0 { asked } else { num_devices_of(most) };
    runtime.ensure_device(devices - 1)?;
    Ok(devices)
}

/// Values of each sweep, and the state.
type Input<S> = (Vec<Tensor>, S);
type Output<S, M> = (S, Report<Tensor, M>);
type OutputArrays<S, M> =
    (<S as Tree<Tensor>>::With<Array>, Report<Array, <M as Tree<Tensor>>::With<Array>>);
/// Function that one device runs.
type OneDevice<'a, S, M> = Box<dyn Fn(Input<S>) -> Output<S, M> + 'a>;
type EachDevice<'a, S, M> = Box<dyn Fn(Axis, Input<S>) -> Output<S, M> + 'a>;

/// Program that runs a number of updates of all agents; each device takes an equal share of the
/// agents.
pub struct TrainFn<'a, S, M> {
    devices: Vec<usize>,
    options: &'a AgentOptions,
    one_device: Jit<Input<S>, Output<S, M>, OneDevice<'a, S, M>>,
    each_device: Pmap<Input<S>, Output<S, M>, EachDevice<'a, S, M>>,
}

impl<'a, S: AgentTree + 'a, M: AgentTree + 'a> TrainFn<'a, S, M> {
    /// Creates a program that runs `updates` updates on the first `devices` devices, a number that divides
    /// the agents. `train_iterations` runs the updates of one agent.
    pub fn new<A: AnakinArgs>(
        args: &'a A,
        env: &'a AnakinEnv,
        updates: u64,
        devices: usize,
        train_iterations: impl Fn(&AnakinEnv, Input<S>, u64, &A) -> Output<S, M> + Copy + 'a,
    ) -> TrainFn<'a, S, M> {
        let options = args.agents();
        let run = move |input: Input<S>| {
            options.for_agents(|input| train_iterations(env, input, updates, args), input)
        };
        let one_device: OneDevice<'a, S, M> = Box::new(run);
        let each_device: EachDevice<'a, S, M> = Box::new(move |_, input| run(input));
        TrainFn {
            devices: (0..devices).collect(),
            options,
            one_device: jit(one_device)
                .with_mode(args.options().mode)
                .named(A::NAME)
                .check_nans(args.options().check_nans),
            each_device: pmap("seeds", each_device).named(A::NAME),
        }
    }

    /// Runs the updates; returns the new states and the report. With several agents every leaf has a
    /// leading axis of agents.
    ///
    /// # Errors
    /// Returns errors from compilation and execution.
    pub fn call(&self, state: S::With<Array>) -> Result<OutputArrays<S, M>> {
        let swept = self.options.swept_values()?;
        if self.devices.len() == 1 {
            return self.one_device.call((swept, state));
        }
        // Sharding takes milliseconds, a call seconds.
        let sharded = (shard(&swept, &self.devices)?, S::shard(&state, &self.devices)?);
        drop(state);
        let (state, report) = self.each_device.call(sharded)?;
        let report = Report {
            metrics: M::unshard(&report.metrics)?,
            episode_returns: unshard(&report.episode_returns)?,
            episode_lengths: unshard(&report.episode_lengths)?,
        };
        Ok((S::unshard(&state)?, report))
    }

    /// Returns the time that tracing and compiling took, in seconds.
    pub fn compile_s(&self) -> f64 {
        self.one_device.stats().seconds() + self.each_device.stats().seconds()
    }
}
