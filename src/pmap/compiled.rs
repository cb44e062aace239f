//! Non-generic part of [`pmap`](super::pmap): running one executable on several devices.

use smallvec::SmallVec;
use std::sync::Arc;

use super::put;
use super::sharded::{Placement, Sharded};
use super::watchdog::Watch;
use crate::array::{Array, upload_to};
use crate::error::{Error, Result};
use crate::jit::cache::{self, SignatureExecutable};
use crate::jit::{
    CompilerOptions, Effects, aliases, ensure_memory, ensure_program_fits, overridden,
    should_copy_kept,
};
use crate::lower::cache::{CacheOutcome, compile_cached};
use crate::lower::compile_log;
use crate::lower::dump::lowered;
use crate::lower::pjrt::hlo;
use crate::lower::pjrt::{Buffer, CompileOptions, Event, Executable, OptionValue};
use crate::lower::stablehlo::sharding::{REPLICATED, sharding_text};
use crate::lower::stablehlo::{LowerOptions, compile_flags};
use crate::runtime::Runtime;
use crate::timeline;
use crate::trace::axis::AxisVec;
use crate::trace::graph::simplify;
use crate::trace::mesh::Mesh;
use crate::trace::op::{Op, ShardingKind, ShardingOp};
use crate::trace::program::{Equation, Program};
use crate::trace::types::TensorType;

/// Leaves of an argument, in order.
pub(super) type Leaves<'a> = cache::Leaves<'a, Sharded>;

/// An executable on several devices and the data needed to run it on leaves.
pub(super) struct Compiled {
    executable: Executable,
    devices: Arc<[usize]>,
    types: Vec<(TensorType, Placement)>,
    /// True if whole values are on one device, where a block is a copy.
    undivided: bool,
    /// Inputs whose memory results may take.
    donated: Vec<usize>,
    /// The placement of each result.
    placements: Vec<Placement>,
    /// Watchdog for programs whose devices wait for each other.
    watch: Option<Watch>,
    name: String,
    effects: Option<Effects>,
    /// The last argument of a program with callbacks, on each device.
    numbers: Vec<Buffer>,
    /// Cache hit or miss of its compilation, and the time that it took.
    pub(super) outcome: CacheOutcome,
}

impl Compiled {
    /// A Program that each device runs on its own values.
    pub(super) fn new(
        program: Program,
        leaves: &Leaves<'_>,
        devices: Arc<[usize]>,
        replicated: Vec<bool>,
        name: &str,
    ) -> Result<Compiled> {
        let program = simplify(program);
        let ids = ids_of_all(Runtime::get()?.client.ids_by_process(), &devices)?;
        let lowering = LowerOptions {
            num_replicas: ids.len(),
            aliases: aliases(&program),
            ..LowerOptions::default()
        };
        let none = CompilerOptions::new();
        let mut compiled = compile(&program, leaves, lowering, devices, ids, name, &none)?;
        compiled.watch = waits(&program).then(|| Watch::new(name));
        if let Some(effects) = &compiled.effects {
            let numbers = compiled.devices.iter().map(|&to| effects.numbers(to));
            compiled.numbers = numbers.collect::<Result<_>>()?;
        }
        compiled.placements = replicated.into_iter().map(placement).collect();
        Ok(compiled)
    }

    /// A Program over whole values, which the compiler divides over the devices.
    pub(super) fn divided(
        program: Program,
        leaves: &Leaves<'_>,
        devices: Arc<[usize]>,
        name: &str,
        options: &CompilerOptions,
    ) -> Result<Compiled> {
        let program = simplify(program);
        let count = devices.len();
        let text = |leaf: &&Sharded| match leaf.is_replicated() || count == 1 {
            true => REPLICATED.to_string(),
            false => {
                let ones = ",1".repeat(leaf.ty().rank().saturating_sub(1));
                format!("{{devices=[{count}{ones}]<=[{count}]}}")
            }
        };
        let lowering = LowerOptions {
            num_partitions: count,
            in_shardings: leaves.iter().map(text).collect(),
            ..LowerOptions::default()
        };
        let mut compiled = compile_whole(&program, leaves, lowering, devices, name, options)?;
        compiled.undivided = count == 1;
        let parts = compiled.executable.outputs();
        for (i, (part, whole)) in parts.iter().zip(program.output_types()).enumerate() {
            let first = (whole.rank() > 0)
                .then(|| part.shape.with_axis(0, part.shape[0] * count).without_axis(1));
            let placement = if part == whole {
                Placement::Copies
            } else if first.is_some_and(|shape| shape == whole.shape) {
                Placement::Blocks
            } else {
                return Err(Error::Argument(format!(
                    "{name}: the compiler divides result {i}, {whole}, into parts of {part}, and not \
                     along its first axis; use pmap, or arguments divided over a Mesh"
                )));
            };
            compiled.placements.push(placement);
        }
        Ok(compiled)
    }

    /// A Program over whole values, which the compiler divides over a mesh: the arguments as they
    /// are divided, the results by `results`.
    pub(super) fn on_mesh(
        program: Program,
        leaves: &Leaves<'_>,
        mesh: &Mesh,
        results: &[ShardingOp],
        name: &str,
        options: &CompilerOptions,
    ) -> Result<Compiled> {
        let program = simplify(program);
        let text = |spec: &[AxisVec]| sharding_text(mesh.axes(), spec);
        let in_shardings = leaves.iter().map(|leaf| Ok(text(&division(leaf, mesh)?.spec)));
        let lowering = LowerOptions {
            num_partitions: mesh.size(),
            in_shardings: in_shardings.collect::<Result<_>>()?,
            out_shardings: results.iter().map(|op| Some(text(&op.spec))).collect(),
            mesh: mesh.axes().clone(),
            ..LowerOptions::default()
        };
        let devices = mesh.shared_devices().clone();
        let mut compiled = compile_whole(&program, leaves, lowering, devices, name, options)?;
        let parts = compiled.executable.outputs();
        for ((op, whole), part) in results.iter().zip(program.output_types()).zip(parts) {
            let expected = op.shard_type(whole).map_err(Error::Argument)?;
            if *part != expected {
                return Err(Error::Argument(format!(
                    "{name}: the compiler divides a result of {whole} into parts of {part}, and not \
                     of {expected}"
                )));
            }
            compiled.placements.push(put::named(mesh, op, whole.clone()));
        }
        Ok(compiled)
    }

    /// The optimized HLO as text.
    pub(super) fn optimized_hlo_text(&self) -> Result<String> {
        let (format, bytes) = self.executable.optimized_program()?;
        hlo::text(&format, &bytes)
    }

    /// Launches it. Leaves of which another clone exists keep their memory.
    pub(super) fn run(&self, leaves: &[&Sharded]) -> Result<Vec<Sharded>> {
        let _span = timeline::span_of("execute", &self.name);
        let count = self.devices.len();
        let mut kept: SmallVec<[i64; 16]> = SmallVec::new();
        for &input in &self.donated {
            if !leaves[input].is_unique() {
                kept.push(input as i64);
            }
        }
        // Host parts, as interpreted functions give them, are put on their devices for this run.
        let mut uploads: Vec<Buffer> = Vec::new();
        for (position, &device) in self.devices.iter().enumerate() {
            for leaf in leaves {
                if let Some(literal) = leaf.shards()[position].literal() {
                    uploads.push(upload_to(literal, device)?);
                }
            }
        }
        let mut copies: Vec<(usize, usize, Buffer)> = Vec::new();
        if should_copy_kept(&self.donated, &kept, |input| self.types[input].0.bytes()) {
            for (position, &device) in self.devices.iter().enumerate() {
                for input in kept.iter().map(|&input| input as usize) {
                    // A part on the host is uploaded for this run.
                    if let Some(buffer) = leaves[input].shards()[position].buffer() {
                        copies.push((position, input, buffer.copy_to_device(device)?));
                    }
                }
            }
            kept.clear();
        }
        let (mut uploads, mut copied) = (uploads.iter(), copies.iter().peekable());
        let args: SmallVec<[Vec<&Buffer>; 8]> = (0..count)
            .map(|position| {
                let buffers = leaves.iter().enumerate().map(|(input, leaf)| {
                    let is_it =
                        |copy: &&(usize, usize, Buffer)| (copy.0, copy.1) == (position, input);
                    if let Some((.., copy)) = copied.next_if(is_it) {
                        return copy;
                    }
                    let there = leaf.shards()[position].buffer();
                    there.unwrap_or_else(|| uploads.next().expect("one upload a host part"))
                });
                buffers.chain(self.numbers.get(position)).collect()
            })
            .collect();
        let num_outputs = self.executable.outputs().len();
        let mut outputs: SmallVec<[Vec<Buffer>; 8]> =
            (0..count).map(|_| Vec::with_capacity(num_outputs)).collect();
        let timed = timeline::Execution::begin(&self.name);
        if timed.is_none() && self.effects.is_none() {
            self.executable.execute_sharded(&args, &kept, &mut outputs)?;
        } else {
            let mut launch = || -> Result<Vec<Event>> {
                let done =
                    self.executable.execute_sharded_with_events(&args, &kept, &mut outputs)?;
                if let Some(timed) = &timed {
                    for (done, &device) in done.iter().zip(&*self.devices) {
                        let execution = timed.another();
                        done.on_ready(move |_| execution.end(device))?;
                    }
                }
                Ok(done)
            };
            match &self.effects {
                None => drop(launch()?),
                Some(effects) => effects.launch(launch)?,
            }
        }
        let mut columns: SmallVec<[std::vec::IntoIter<Buffer>; 8]> =
            outputs.into_iter().map(Vec::into_iter).collect();
        let results: Vec<Sharded> = self
            .placements
            .iter()
            .map(|placement| {
                let shards = columns.iter_mut().map(|column| column.next().expect("one a result"));
                let shards = shards.map(Array::from_buffer).collect();
                Sharded::placed(self.devices.clone(), shards, placement.clone())
            })
            .collect();
        if let (Some(watch), Some(first)) = (&self.watch, results.first()) {
            watch.launched(first);
        }
        Ok(results)
    }
}

impl SignatureExecutable for Compiled {
    type Leaf = Sharded;

    #[inline]
    fn takes(&self, leaves: &[&Sharded]) -> bool {
        self.types.len() == leaves.len()
            && self.types.iter().zip(leaves).all(|((ty, placement), leaf)| {
                (placement == leaf.placement() || self.undivided && leaf.sharding().is_none())
                    && leaf.devices() == &*self.devices
                    && ty == leaf.ty()
            })
    }

    fn outcome(&self) -> CacheOutcome {
        self.outcome
    }
}

/// Returns true if the program contains a collective, at which a device waits for others.
fn waits(program: &Program) -> bool {
    let one = |equation: &Equation| {
        matches!(equation.op, Op::Collective(_)) || equation.op.subprograms().any(waits)
    };
    program.equations.iter().any(one)
}

/// Returns the signature that distinguishes calls: type and placement of each leaf.
fn signature(leaves: &Leaves<'_>) -> Vec<(TensorType, Placement)> {
    leaves.iter().map(|leaf| (leaf.ty().clone(), leaf.placement().clone())).collect()
}

fn placement(replicated: bool) -> Placement {
    if replicated { Placement::Copies } else { Placement::Blocks }
}

/// The division of a leaf over the mesh.
pub(super) fn division(leaf: &Sharded, mesh: &Mesh) -> Result<ShardingOp> {
    let spec = leaf.sharding().map(|sharding| sharding.spec.clone()).unwrap_or_default();
    spec.op(ShardingKind::FullToShard, mesh, leaf.ty().rank()).map_err(Error::Argument)
}

/// Compiles a Program over whole values, as [`compile`] does; devices wait for each other.
fn compile_whole(
    program: &Program,
    leaves: &Leaves<'_>,
    lowering: LowerOptions,
    devices: Arc<[usize]>,
    name: &str,
    options: &CompilerOptions,
) -> Result<Compiled> {
    let ids = devices.iter().map(|&device| Runtime::get()?.id_of(device));
    let ids = ids.collect::<Result<_>>()?;
    // The compiler's division decides which result takes an input's memory.
    let lowering = LowerOptions { donors: donated(program), ..lowering };
    let mut compiled = compile(program, leaves, lowering, devices, ids, name, options)?;
    if compiled.effects.is_some() {
        return Err(Error::Argument(format!(
            "{name}: callbacks cannot be divided over devices; use pmap, where each device makes its \
             own"
        )));
    }
    compiled.watch = Some(Watch::new(name));
    Ok(compiled)
}

/// Inputs whose memory results may take.
fn donated(program: &Program) -> Vec<usize> {
    let mut inputs: Vec<usize> = aliases(program).into_iter().map(|(input, _)| input).collect();
    inputs.sort_unstable();
    inputs
}

/// The ids of the devices that work together: in every process, those with the indices `devices`.
/// They are ordered process by process, like the members of the axis.
fn ids_of_all(by_process: &[Vec<i64>], devices: &[usize]) -> Result<Vec<i64>> {
    let mut all = Vec::with_capacity(by_process.len() * devices.len());
    for (process, ids) in by_process.iter().enumerate() {
        for &device in devices {
            let &id = ids.get(device).ok_or_else(|| {
                Error::Argument(format!(
                    "process {process} has no device {device}: it has {}, numbered from 0, and all \
                     processes run on the same ones",
                    ids.len()
                ))
            })?;
            all.push(id);
        }
    }
    Ok(all)
}

/// Compiles a Program for these devices: with as many replicas, or as many partitions, as
/// `lowering` states, on the devices with these ids. The flags in `more` override the defaults of
/// this library. Placements, watchdog and the numbers of callbacks are not set.
fn compile(
    program: &Program,
    leaves: &Leaves<'_>,
    lowering: LowerOptions,
    devices: Arc<[usize]>,
    ids: Vec<i64>,
    name: &str,
    more: &CompilerOptions,
) -> Result<Compiled> {
    let runtime = Runtime::get()?;
    ensure_program_fits(program)?;
    let span = timeline::span_of("lower", name);
    let effects = Effects::of(program)?;
    let base = runtime.lower_options(program);
    let lowering = LowerOptions {
        name: name.into(),
        platform: base.platform,
        native_calls: base.native_calls && lowering.num_partitions == 1,
        // The devices share the cores.
        conv_threads: match lowering.num_partitions {
            1 => base.conv_threads.min((base.conv_threads / devices.len()).max(1)),
            _ => 0,
        },
        ..lowering
    };
    let text = lowered(program, &lowering);
    drop(span);
    let mut flags = compile_flags(runtime.client.plugin(), runtime.platform, program);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if runtime.platform.is_host() && devices.len() >= cores {
        // The devices keep all cores busy; spreading one device's operation over them as well only
        // makes threads wait for each other.
        flags.retain(|(name, _)| *name != "xla_cpu_multi_thread_eigen");
        flags.push(("xla_cpu_multi_thread_eigen", OptionValue::Bool(false)));
    }
    let options = CompileOptions {
        num_replicas: lowering.num_replicas,
        num_partitions: lowering.num_partitions,
        device_assignment: Some(ids),
        allow_spmd_sharding_propagation_to_output: lowering.out_shardings.is_empty(),
        env_option_overrides: overridden(flags, more),
        ..CompileOptions::default()
    };
    let _span = timeline::span("compile");
    let (executable, outcome) =
        compile_log::named(name, || compile_cached(&runtime.client, &text, &options))?;
    ensure_memory(&executable)?;
    Ok(Compiled {
        executable,
        devices,
        types: signature(leaves),
        undivided: false,
        donated: donated(program),
        placements: Vec::new(),
        watch: None,
        name: name.to_string(),
        effects,
        numbers: Vec::new(),
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_all_processes_are_counted_process_by_process() {
        let ids = [vec![0, 1, 2], vec![4, 5, 6]];
        assert_eq!(ids_of_all(&ids, &[1, 2]).unwrap(), [1, 2, 5, 6]);
        assert_eq!(ids_of_all(&ids[..1], &[2, 0]).unwrap(), [2, 0]);
        let error = ids_of_all(&[vec![0, 1], vec![4]], &[0, 1]).unwrap_err().to_string();
        assert!(error.contains("process 1 has no device 1: it has 1,"), "{error}");
    }
}
