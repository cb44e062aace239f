//! [`pmap`]: one function on several devices at once, each with its own part of the data. It is JAX's older
//! way; [`shard_map`](crate::shard_map) is the newer one.
//!
//! ```text
//! host              device 0     device 1     ...
//!   replicate  -->  params       params
//!   shard      -->  rows 0..n    rows n..2n
//!                   one compiled program on each, in step at psum, pmean, ...
//!   unreplicate <-- params       params
//! ```
//!
//! Values on the devices stay there between calls. Moving values between hosts and devices is
//! always written out: [`replicate`], [`shard`], [`unreplicate`], [`unshard`].

mod blocks;
mod compiled;
mod put;
mod sharded;
mod sharded_jit;
mod watchdog;

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

pub use self::put::{device_get, device_put, make_mesh};
pub use self::sharded::{
    Sharded, device_put_sharded, devices, replicate, shard, unreplicate, unshard,
};
pub use self::sharded_jit::{ShardedJit, sharded_jit};

use self::compiled::{Compiled, Leaves};
use self::sharded::checked;
use crate::array::Array;
use crate::error::{Error, Loc, Result};
use crate::jit::cache::{FunctionCache, function_cache_methods, leaves_of};
use crate::jit::{Mode, run_program};
use crate::runtime::Runtime;
use crate::trace::axis::Axis;
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch, within_axis};
use crate::trace::types::TensorType;
use crate::trace::vmap::{on_one_device, over_members, varying::varying_outputs};
use crate::tree::{self, Path, Tree};

/// A function mapped over devices; see [`pmap`]. It may be called from several threads.
pub struct Pmap<A, B, F> {
    f: F,
    at: Loc,
    axis: &'static str,
    mode: Mode,
    devices: Option<Vec<usize>>,
    cache: FunctionCache<Compiled, B>,
    argument: PhantomData<fn(A)>,
}

/// `jax.pmap`: maps `f` over devices. Each device runs `f` on its part of every leaf of the
/// argument; `f` gets the token of the axis that the devices form, named `axis`, with which
/// [`psum`](crate::psum), [`pmean`](crate::pmean) and the other collectives work. It is JAX's older way to
/// use several devices; [`shard_map`](crate::shard_map) is the newer one.
///
/// The devices are those of the argument, whose leaves must all be on the same ones. If several
/// processes' devices work together ([`Runtime::start_distributed`]), all of them make the same calls,
/// each with its own parts, and the axis has the members of all, process by process. It is compiled
/// once per signature; the result is asynchronous; arguments given by value, of which no clone is
/// kept, are donated: all as with [`jit()`](crate::jit()).
///
/// ```
/// use podracer::{Array, Tensor, pmap, pmean, replicate, shard, unreplicate};
/// # fn main() -> podracer::Result<()> {
/// let devices = podracer::devices()?;
/// let step = pmap("devices", |axis, (w, x): (Tensor, Tensor)| w + pmean(x.mean(..), axis));
/// let w = replicate(&Array::from(1.0f32), &devices)?;
/// let x = shard(&Array::from([2.0f32; 8]), &devices)?;
/// assert_eq!(unreplicate(&step.call((w, x))?)?.item::<f32>()?, 3.0);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn pmap<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(Axis, A) -> B>(
    axis: &'static str,
    f: F,
) -> Pmap<A, B, F> {
    pmap_with_mode(Mode::Jit, axis, f)
}

/// [`pmap`] by `mode`. In eager and interpreted mode all devices' parts run together on one device
/// or on the host, as a batch.
#[track_caller]
pub fn pmap_with_mode<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(Axis, A) -> B>(
    mode: Mode,
    axis: &'static str,
    f: F,
) -> Pmap<A, B, F> {
    Pmap {
        f,
        at: Location::caller(),
        axis,
        mode,
        devices: None,
        cache: FunctionCache::default(),
        argument: PhantomData,
    }
}

function_cache_methods!(Pmap);

impl<A, B, F> Pmap<A, B, F> {
    /// The cost so far and from now on.
    #[cfg(feature = "rl")]
    pub(crate) fn shared_stats(&self) -> crate::jit::cache::SharedStats {
        self.cache.history.stats.clone()
    }

    /// The devices to run on, by their numbers; needed only if the argument has no leaves.
    pub fn on(mut self, devices: &[usize]) -> Self {
        self.devices = Some(devices.to_vec());
        self
    }
}

impl<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(Axis, A) -> B> Pmap<A, B, F> {
    /// Runs the function on all devices.
    ///
    /// # Errors
    /// [`Error::Trace`] if the function cannot be typed for these parts, or if a collective is in a
    /// branch or loop that only some devices may execute; [`Error::Argument`] if the leaves are on
    /// different devices, and under [`Pmap::assert_max_traces`]; errors from the compiler and the
    /// runtime. An error on one device shows on the results of all.
    #[track_caller]
    pub fn call(&self, args: A::With<Sharded>) -> Result<B::With<Sharded>> {
        let leaves = leaves_of(&args);
        if self.mode == Mode::Jit {
            let entry = self.cache.find_or_compile(
                &args,
                &leaves,
                Location::caller(),
                || self.devices(&args, &leaves).map(drop),
                || self.compile(&args, &leaves),
            )?;
            let results = entry.executable.run(&leaves)?;
            return Ok(tree::rebuild(&entry.template, results));
        }
        let (program, template, axis) = self.program(&args, &leaves)?;
        let devices = self.devices(&args, &leaves)?;
        let results = self.run_together(&program, &leaves, axis, devices)?;
        Ok(tree::rebuild(&template, results))
    }

    /// The Program of one device, for an argument like `args`.
    ///
    /// # Errors
    /// As [`Pmap::call`].
    pub fn make_program(&self, args: &A::With<Sharded>) -> Result<Program> {
        Ok(self.program(args, &leaves_of(args))?.0)
    }

    fn compile(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<(Compiled, B)> {
        let devices = self.devices(args, leaves)?;
        let (program, template, axis) = self.program(args, leaves)?;
        let start = Instant::now();
        let replicated = replicated(&program, leaves, axis)?;
        let compiled = Compiled::new(program, leaves, devices, replicated, self.name())?;
        let lowering = start.elapsed().as_secs_f64() - compiled.outcome.seconds;
        self.cache.history.record_lowering(lowering);
        Ok((compiled, template))
    }

    /// The devices that all leaves are on.
    fn devices(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<Arc<[usize]>> {
        let Some(first) = leaves.first() else {
            return match &self.devices {
                Some(devices) => checked(devices),
                None => checked(&(0..Runtime::get()?.client.devices().len()).collect::<Vec<_>>()),
            };
        };
        let expected = self.devices.as_deref().unwrap_or(first.devices());
        on_the_same(self.name(), args, expected)?;
        Ok(first.shared_devices().clone())
    }

    fn program(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<(Program, B, Axis)> {
        let (here, processes) =
            (self.devices(args, leaves)?.len(), Runtime::get()?.process_count());
        if processes > 1 && self.mode != Mode::Jit {
            return Err(Error::Config(format!(
                "{}: in mode {} the devices of {processes} processes cannot work together",
                self.name(),
                self.mode
            )));
        }
        let axis = Axis::new(self.axis, here * processes);
        let types: Vec<TensorType> = leaves.iter().map(|leaf| leaf.ty().clone()).collect();
        let f = |args| within_axis(axis, || (self.f)(axis, args));
        let (program, template) = self.cache.history.trace("pmap", self.at, args, &types, f)?;
        let program = catch(|| on_one_device(program, self.at))?;
        Ok((program, template, axis))
    }

    /// Runs all members together, as a batch.
    fn run_together(
        &self,
        program: &Program,
        leaves: &Leaves<'_>,
        axis: Axis,
        devices: Arc<[usize]>,
    ) -> Result<Vec<Sharded>> {
        let mapped: Vec<bool> = leaves.iter().map(|leaf| !leaf.is_replicated()).collect();
        let (program, mapped) = catch(|| over_members(program, &mapped, axis, self.at))?;
        let inputs = leaves.iter().map(|leaf| match leaf.is_replicated() {
            true => Ok(leaf.shards()[0].clone()),
            false => leaf.stack(),
        });
        let outputs = run_program(&program, &inputs.collect::<Result<Vec<Array>>>()?, self.mode)?;
        outputs
            .into_iter()
            .zip(mapped)
            .map(|(output, mapped)| match mapped {
                false => Ok(Sharded::on(devices.clone(), vec![output; axis.size()], true)),
                true => {
                    let rows = sharded::rows(&output.to_literal()?);
                    Ok(Sharded::on(devices.clone(), rows, false))
                }
            })
            .collect()
    }
}

/// Returns one flag per result: true if the result is the same on all devices.
fn replicated(program: &Program, leaves: &Leaves<'_>, axis: Axis) -> Result<Vec<bool>> {
    let differ: Vec<bool> = leaves.iter().map(|leaf| !leaf.is_replicated()).collect();
    Ok(catch(|| varying_outputs(program, &differ, axis))?
        .into_iter()
        .map(|differs| !differs)
        .collect())
}

/// Checks that every leaf is on the devices `expected`.
fn on_the_same<M: Tree<Sharded>>(name: &str, args: &M, expected: &[usize]) -> Result<()> {
    let mut wrong = None;
    args.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        if wrong.is_none() && leaf.devices() != expected {
            wrong = Some(format!(
                "{name}: {path} is on devices {:?}, and the function runs on {expected:?}; put it \
                 there with replicate or shard",
                leaf.devices()
            ));
        }
    });
    wrong.map_or(Ok(()), |problem| Err(Error::Argument(problem)))
}
