//! [`sharded_jit`]: one function of whole values, which the compiler divides over devices.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Instant;

use super::compiled::{Compiled, Leaves, division};
use super::sharded::Sharded;
use crate::error::{Error, Loc, Result};
use crate::jit::cache::{FunctionCache, function_cache_methods, leaves_of};
use crate::jit::{CompilerOptions, Jit};
use crate::trace::axis::AxisVec;
use crate::trace::mesh::{Mesh, PartitionSpec, Shardings};
use crate::trace::op::{Op, ShardingKind, ShardingOp};
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch};
use crate::trace::types::TensorType;
use crate::trace::vmap::on_one_device;
use crate::tree::{self, Path, Tree};

/// A function divided over devices; see [`sharded_jit`]. It may be called from several threads.
pub struct ShardedJit<A, B, F> {
    f: F,
    at: Loc,
    in_shardings: Option<Shardings>,
    out_shardings: Option<Shardings>,
    /// Flags of the compiler, or the problem of a setting that does not go together with shardings.
    options: Result<CompilerOptions, String>,
    cache: FunctionCache<Compiled, B>,
    argument: PhantomData<fn(A)>,
}

/// `jax.jit` of arguments with named shardings on a row of devices: `f` is written for whole
/// values, and the compiler divides the work as the arguments are divided, adding the communication
/// that this needs. A value divided by [`shard`](super::shard) is one value divided along its first
/// axis; a value copied by [`replicate`](super::replicate) is one value that every device has.
///
/// Results are divided along their first axis or copied, as the compiler finds best: typically
/// tensors with the batch axis stay divided, and gradients and parameters are copies. Arguments
/// given by value, of which no clone is kept, are donated, as with [`jit()`](crate::jit()).
///
/// Arguments of [`device_put`](super::device_put) are divided over a [`Mesh`] of several named axes,
/// along any dimension; then the results are divided by [`ShardedJit::out_shardings`], and the
/// function may use [`shard_map`](crate::shard_map()) and
/// [`with_sharding_constraint`](crate::with_sharding_constraint) over that mesh.
///
/// ```
/// use podracer::{Array, Tensor, replicate, shard, sharded_jit, unreplicate};
/// # fn main() -> podracer::Result<()> {
/// let devices = podracer::devices()?;
/// // A mean over the whole batch: no psum is written.
/// let f = sharded_jit(|(w, x): (Tensor, Tensor)| w * x.mean(..));
/// let w = replicate(&Array::from(2.0f32), &devices)?;
/// let x = shard(&Array::from([1.0f32, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]), &devices)?;
/// assert_eq!(unreplicate(&f.call((w, x))?)?.item::<f32>()?, 5.0);
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn sharded_jit<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B>(f: F) -> ShardedJit<A, B, F> {
    ShardedJit::new(f, Location::caller())
}

impl<A, B, F> Jit<A, B, F> {
    /// `in_shardings` of `jax.jit`: the function compiled for a mesh of devices. See
    /// [`ShardedJit::in_shardings`].
    pub fn in_shardings(self, shardings: impl Into<Shardings>) -> ShardedJit<A, B, F> {
        self.sharded().in_shardings(shardings)
    }

    /// `out_shardings` of `jax.jit`: the function compiled for a mesh of devices. See
    /// [`ShardedJit::out_shardings`].
    pub fn out_shardings(self, shardings: impl Into<Shardings>) -> ShardedJit<A, B, F> {
        self.sharded().out_shardings(shardings)
    }

    fn sharded(self) -> ShardedJit<A, B, F> {
        let (f, at, options, cache) = self.into_parts();
        ShardedJit { options, cache, ..ShardedJit::new(f, at) }
    }
}

impl<A, B, F> ShardedJit<A, B, F> {
    fn new(f: F, at: Loc) -> ShardedJit<A, B, F> {
        ShardedJit {
            f,
            at,
            in_shardings: None,
            out_shardings: None,
            options: Ok(CompilerOptions::new()),
            cache: FunctionCache::default(),
            argument: PhantomData,
        }
    }

    /// The division that the argument must have: a call with another one is an error.
    pub fn in_shardings(mut self, shardings: impl Into<Shardings>) -> Self {
        self.in_shardings = Some(shardings.into());
        self
    }

    /// The division of the results. Without it, a result of [`shard_map`](crate::shard_map()) or
    /// [`with_sharding_constraint`](crate::with_sharding_constraint) is divided as that states, one
    /// that is an argument as the argument, and every device has a copy of all others.
    pub fn out_shardings(mut self, shardings: impl Into<Shardings>) -> Self {
        self.out_shardings = Some(shardings.into());
        self
    }
}

/// The type of the whole value.
fn whole(leaf: &Sharded) -> Result<TensorType> {
    let ty = leaf.ty();
    if leaf.is_replicated() {
        return Ok(ty.clone());
    }
    if ty.rank() == 0 {
        return Err(Error::Argument(format!(
            "a value of {ty} on each device is neither divided along an axis nor a copy; replicate it"
        )));
    }
    let rows = ty.shape[0] * leaf.devices().len();
    Ok(TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, rows)))
}

function_cache_methods!(ShardedJit);

impl<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B> ShardedJit<A, B, F> {
    /// Runs the function on all devices of its argument.
    ///
    /// # Errors
    /// [`Error::Trace`] if the function cannot be typed for these values; [`Error::Argument`] if
    /// there are no leaves or they are on different devices, and under
    /// [`ShardedJit::assert_max_traces`]; errors from the compiler and the runtime.
    #[track_caller]
    pub fn call(&self, args: A::With<Sharded>) -> Result<B::With<Sharded>> {
        let (leaves, at) = (leaves_of(&args), Location::caller());
        let entry = self.cache.find_or_compile(
            &args,
            &leaves,
            at,
            || self.ensure_one_mesh(&args, &leaves, at),
            || self.compile(&args, &leaves, at),
        )?;
        let results = entry.executable.run(&leaves)?;
        Ok(tree::rebuild(&entry.template, results))
    }

    /// The optimized HLO that the compiler makes of the function for an argument like `args`, as
    /// text: one device's program, with the communication that the compiler added.
    ///
    /// # Errors
    /// As [`ShardedJit::call`]; or if the platform does not give the text.
    #[track_caller]
    pub fn optimized_hlo_text(&self, args: &A::With<Sharded>) -> Result<String> {
        let leaves = leaves_of(args);
        let at = Location::caller();
        self.ensure_one_mesh(args, &leaves, at)?;
        self.compile(args, &leaves, at)?.0.optimized_hlo_text()
    }

    /// The mesh that the function is compiled for, if it is not a plain row of devices.
    fn mesh(&self, leaves: &Leaves<'_>) -> Option<Mesh> {
        let given = self.in_shardings.as_ref().or(self.out_shardings.as_ref());
        let given = given.map(|shardings| shardings.mesh.clone());
        given.or_else(|| leaves.iter().find_map(|leaf| Some(leaf.sharding()?.mesh.clone())))
    }

    /// The flags of the compiler.
    ///
    /// # Errors
    /// If a setting of the function does not go together with its shardings, or if these are for
    /// different meshes.
    fn options(&self) -> Result<&CompilerOptions> {
        let wrong = |problem: &str| Error::Argument(format!("{}: {problem}", self.name()));
        let mesh = |shardings: &Option<Shardings>| shardings.as_ref().map(|s| s.mesh.clone());
        if let (Some(before), Some(after)) = (mesh(&self.in_shardings), mesh(&self.out_shardings))
            && before != after
        {
            let problem = format!(
                "in_shardings and out_shardings of the function at {} must be for one mesh: they are \
                 for {before:?} and {after:?}",
                self.at
            );
            return Err(wrong(&problem));
        }
        self.options.as_ref().map_err(|problem| wrong(problem))
    }

    /// Checks that there are leaves, all on the same devices, and divided as `in_shardings` tell.
    fn ensure_one_mesh(
        &self,
        args: &A::With<Sharded>,
        leaves: &Leaves<'_>,
        at: &Location<'_>,
    ) -> Result<()> {
        self.options()?;
        if let Some(mesh) = self.mesh(leaves) {
            return self.ensure_on_mesh(args, &mesh).map_err(|error| called_at(error, at));
        }
        let Some(first) = leaves.first() else {
            let problem = format!("{}: the argument has no leaves, so no devices", self.name());
            return Err(Error::Argument(problem));
        };
        super::on_the_same(self.name(), args, first.devices()).map_err(|error| called_at(error, at))
    }

    fn ensure_on_mesh(&self, args: &A::With<Sharded>, mesh: &Mesh) -> Result<()> {
        let name = self.name();
        let wrong = |problem: String| Error::Argument(format!("{name}: {problem}"));
        let kind = ShardingKind::FullToShard;
        let expected = match &self.in_shardings {
            None => None,
            Some(Shardings { specs, .. }) => {
                let ops = specs.ops(kind, mesh, args, |leaf: &Sharded| leaf.ty().rank());
                Some(ops.map_err(|problem| wrong(format!("in_shardings: {problem}")))?)
            }
        };
        let (mut problem, mut index) = (None, 0);
        args.visit_leaves(&Path::ROOT, &mut |path, leaf| {
            let there = leaf.sharding().filter(|sharding| sharding.mesh == *mesh);
            let expected = expected.as_ref().map(|ops| PartitionSpec::of(&ops[index]));
            index += 1;
            let fits = |spec: &PartitionSpec| expected.as_ref().is_none_or(|other| other == spec);
            if problem.is_none() && !there.is_some_and(|sharding| fits(&sharding.spec)) {
                let spec = expected.map(|spec| format!("{spec} on ")).unwrap_or_default();
                problem = Some(format!(
                    "{path} is {leaf:?}, and the function takes it divided by {spec}{mesh:?}; put it \
                     there with device_put"
                ));
            }
        });
        problem.map_or(Ok(()), |problem| Err(wrong(problem)))
    }

    fn compile(
        &self,
        args: &A::With<Sharded>,
        leaves: &Leaves<'_>,
        at: &Location<'_>,
    ) -> Result<(Compiled, B)> {
        let options = self.options()?;
        let mesh = self.mesh(leaves);
        let types = match &mesh {
            Some(_) => leaves.iter().map(|leaf| leaf.global_ty().clone()).collect(),
            None => leaves.iter().map(|leaf| whole(leaf)).collect::<Result<Vec<TensorType>>>()?,
        };
        let history = &self.cache.history;
        let f = |args| (self.f)(args);
        let (program, template) = history.trace("sharded_jit", self.at, args, &types, f)?;
        let start = Instant::now();
        let compiled = match &mesh {
            Some(mesh) => {
                let fits = ensure_this_mesh(&program, mesh, self.name());
                fits.map_err(|error| called_at(error, at))?;
                let results = self.results(&program, &template, leaves, mesh)?;
                Compiled::on_mesh(program, leaves, mesh, &results, self.name(), options)?
            }
            None => {
                let program = catch(|| on_one_device(program, self.at))?;
                let devices = leaves[0].shared_devices().clone();
                Compiled::divided(program, leaves, devices, self.name(), options)?
            }
        };
        history.record_lowering(start.elapsed().as_secs_f64() - compiled.outcome.seconds);
        Ok((compiled, template))
    }

    /// The division of each result.
    fn results(
        &self,
        program: &Program,
        template: &B,
        leaves: &Leaves<'_>,
        mesh: &Mesh,
    ) -> Result<Vec<ShardingOp>> {
        let kind = ShardingKind::ShardToFull;
        if let Some(Shardings { specs, .. }) = &self.out_shardings {
            let types = RefCell::new(program.output_types());
            let rank = |_: &Tensor| types.borrow_mut().next().expect("a type each").rank();
            let ops = specs.ops(kind, mesh, template, rank).and_then(|ops| {
                let fits = |(op, ty): (&ShardingOp, &TensorType)| op.shard_type(ty).map(drop);
                ops.iter().zip(program.output_types()).try_for_each(fits)?;
                Ok(ops)
            });
            return ops.map_err(|problem| {
                let problem = problem.replace("argument", "result");
                let (name, at) = (self.name(), self.at);
                Error::Argument(format!("{name}: out_shardings of the function at {at}: {problem}"))
            });
        }
        let copies = |rank: usize| ShardingOp {
            kind,
            mesh: mesh.axes().clone(),
            spec: vec![AxisVec::new(); rank],
        };
        program
            .outputs
            .iter()
            .map(|var| {
                if let Some(input) = program.inputs.iter().position(|input| input == var) {
                    return division(leaves[input], mesh);
                }
                let made = program.equations.iter().find(|made| made.outputs.contains(var));
                Ok(match made.map(|equation| &equation.op) {
                    Some(Op::Sharding(op)) if op.kind != ShardingKind::FullToShard => op.clone(),
                    _ => copies(program.ty(*var).rank()),
                })
            })
            .collect()
    }
}

/// Adds the line of the call to an error about its argument.
fn called_at(error: Error, at: &Location<'_>) -> Error {
    match error {
        Error::Argument(problem) => Error::Argument(format!("{problem} (called at {at})")),
        other => other,
    }
}

/// Checks that the program's values are divided over no other mesh.
fn ensure_this_mesh(program: &Program, mesh: &Mesh, name: &str) -> Result<()> {
    let Some(other) = program.find_mesh(&|other| other != mesh.axes()) else { return Ok(()) };
    let axes: Vec<String> = other.iter().map(ToString::to_string).collect();
    Err(Error::Argument(format!(
        "{name}: a shard_map or with_sharding_constraint in it is for a mesh of {}, and the argument \
         is on {mesh:?}; use one mesh for both",
        axes.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;
    use crate::jit::jit;
    use crate::pmap::pmap;
    use crate::pmap::{replicate, unreplicate};

    fn address(x: &Sharded) -> *const u8 {
        x.wait().unwrap();
        x.shards()[0].buffer().expect("on its device").unsafe_pointer().unwrap()
    }

    #[test]
    fn a_state_given_by_value_is_donated() {
        let step = sharded_jit(|(w, x): (Tensor, Tensor)| (w * 0.5 + x.sum(..), x.max(..)));
        let x = replicate(&Array::from([1.0f32; 4]), &[0]).unwrap();
        let w = replicate(&Array::from([8.0f32; 1024]), &[0]).unwrap();
        let before = address(&w);
        let (w, _) = step.call((w, x.clone())).unwrap();
        assert_eq!(address(&w), before);
        // A value of which a clone is kept is not donated.
        let (next, _) = step.call((w.clone(), x.clone())).unwrap();
        assert_ne!(address(&next), before);
        let first = |x: &Sharded| unreplicate(x).unwrap().to_vec::<f32>().unwrap()[0];
        assert_eq!((first(&w), first(&next), first(&x)), (8.0, 8.0, 1.0));
    }

    #[test]
    fn large_values_are_donated_after_a_small_one_that_is_kept() {
        let step = |(x, w): (Tensor, Tensor)| (x + 1.0, w * 0.5);
        let large = || Array::from(vec![8.0f32; 1 << 16].as_slice());
        let (mapped, compiled) = (pmap("devices", move |_, state| step(state)), jit(step));
        let small = replicate(&Array::from(1.0f32), &[0]).unwrap();
        // Large data from the host stays there; a result is on the device.
        let (_, w) = mapped.call((small.clone(), replicate(&large(), &[0]).unwrap())).unwrap();
        let before = address(&w);
        let (next, w) = mapped.call((small.clone(), w)).unwrap();
        assert_eq!(address(&w), before);
        assert_eq!(unreplicate(&small).unwrap().item::<f32>().unwrap(), 1.0);
        assert_eq!(unreplicate(&next).unwrap().item::<f32>().unwrap(), 2.0);
        // The same with `jit`.
        let address = |x: &Array| x.buffer().expect("on its device").unsafe_pointer().unwrap();
        let small = Array::from(1.0f32).to(0).unwrap();
        let (_, w) = compiled.call((small.clone(), large())).unwrap();
        w.wait().unwrap();
        let before = address(&w);
        let (next, w) = compiled.call((small.clone(), w)).unwrap();
        w.wait().unwrap();
        assert_eq!(address(&w), before);
        assert_eq!(small.item::<f32>().unwrap(), 1.0);
        assert_eq!(next.item::<f32>().unwrap(), 2.0);
        assert_eq!(w.to_vec::<f32>().unwrap()[7], 2.0);
    }
}
