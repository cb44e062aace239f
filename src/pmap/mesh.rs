//! [`sharded_jit`]: one function of whole values, which the compiler divides over devices.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use super::core::{Compiled, Leaves};
use super::sharded::Sharded;
use crate::error::{Error, Loc, Result};
use crate::jit::{Entries, Recompile, Signatures};
use crate::trace::ops::structure_in_scope;
use crate::trace::program::Program;
use crate::trace::tensor::{Tensor, catch, trace_call};
use crate::trace::types::TensorType;
use crate::tree::{self, Path, Tree};

/// A function divided over devices; see [`sharded_jit`]. It may be called from several threads.
pub struct ShardedJit<A, B, F> {
    f: F,
    at: Loc,
    name: String,
    entries: Entries<Entry<B>>,
    signatures: Signatures,
    /// One compilation at a time, so that two threads do not compile the same thing.
    compiling: Mutex<()>,
    argument: PhantomData<fn(A)>,
}

/// One signature's executable and the shape of its result.
struct Entry<B> {
    structure: u64,
    /// Number of the signature.
    signature: usize,
    template: B,
    compiled: Compiled,
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
    ShardedJit {
        f,
        at: Location::caller(),
        name: "program".into(),
        entries: Entries::default(),
        signatures: Signatures::default(),
        compiling: Mutex::default(),
        argument: PhantomData,
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

impl<A, B, F> ShardedJit<A, B, F> {
    /// Gives the function a name, seen in messages, profiles and dumps.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Writes to the standard error the reason for every compilation after the first one: the leaf
    /// of the argument that has another type or is on other devices, the leaves that are new or
    /// gone in its structure, and the line of the call. `PODRACER_EXPLAIN=1` turns it on for all
    /// functions.
    pub fn explain_recompiles(mut self, on: bool) -> Self {
        self.signatures.explain = on;
        self
    }

    /// Sets the number of signatures that stay compiled, at least 1; 256 by default. Beyond it the
    /// least recently used one is dropped with its executable, and compiled again when it is used
    /// again.
    pub fn cache_capacity(mut self, signatures: usize) -> Self {
        self.entries.set_capacity(signatures);
        self
    }

    /// Lets the function be traced for at most `n` signatures: the call that would add one more
    /// fails with [`Error::Argument`], which lists the differences. `chex.assert_max_traces`.
    pub fn assert_max_traces(mut self, n: usize) -> Self {
        self.signatures.most = Some(n);
        self
    }

    /// Explains every compilation after the first one so far: why the function was compiled again.
    pub fn explain(&self) -> Vec<Recompile> {
        self.signatures.recompiles()
    }
}

impl<A: Tree<Tensor>, B: Tree<Tensor>, F: Fn(A) -> B> ShardedJit<A, B, F> {
    /// Runs the function on all devices of its argument.
    ///
    /// # Errors
    /// [`Error::Trace`] if the function cannot be typed for these values; [`Error::Argument`] if
    /// there are no leaves or they are on different devices, and under
    /// [`ShardedJit::assert_max_traces`]; errors from the compiler and the runtime.
    #[track_caller]
    pub fn call(&self, args: A::With<Sharded>) -> Result<B::With<Sharded>> {
        let mut leaves = Leaves::new();
        args.visit_leaves(&Path::ROOT, &mut |_, leaf| leaves.push(leaf));
        let structure = structure_in_scope(tree::structure(&args));
        let entry = match self.find(structure, &leaves) {
            Some(entry) => entry,
            None => self.compile(&args, structure, &leaves, Location::caller())?,
        };
        let results = entry.compiled.run(&leaves)?;
        Ok(tree::rebuild(&entry.template, results))
    }

    fn find(&self, structure: u64, leaves: &Leaves<'_>) -> Option<Arc<Entry<B>>> {
        self.entries.find(|e| e.structure == structure && e.compiled.takes(leaves))
    }

    fn compile(
        &self,
        args: &A::With<Sharded>,
        structure: u64,
        leaves: &Leaves<'_>,
        call: Loc,
    ) -> Result<Arc<Entry<B>>> {
        let _one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have compiled it meanwhile.
        if let Some(entry) = self.find(structure, leaves) {
            return Ok(entry);
        }
        let Some(first) = leaves.first() else {
            let problem = format!("{}: the argument has no leaves, so no devices", self.name);
            return Err(Error::Argument(problem));
        };
        super::on_the_same(&self.name, args, first.devices())?;
        let signature = super::signature(args, structure, leaves, call);
        let signature = self.signatures.note(&self.name, signature)?;
        let (program, template) = self.program(args, leaves)?;
        let devices = first.shared_devices().clone();
        let compiled = Compiled::divided(program, leaves, devices, &self.name)?;
        let entry = Arc::new(Entry { structure, signature, template, compiled });
        let evicted = self.entries.insert(entry.clone());
        self.signatures.forget(evicted.iter().map(|old| old.signature));
        Ok(entry)
    }

    fn program(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<(Program, B)> {
        let types = leaves.iter().map(|leaf| whole(leaf)).collect::<Result<Vec<TensorType>>>()?;
        let build = |tensors: &[Tensor]| -> A {
            let mut tensors = tensors.iter().copied();
            args.map_leaves_ref(&Path::ROOT, &mut |_, _| tensors.next().expect("one a leaf"))
        };
        let trace = || trace_call("sharded_jit", self.at, &types, build, |args| (self.f)(args));
        let (traced, template) = catch(trace)?;
        Ok((traced.program, template))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Array;
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
}
