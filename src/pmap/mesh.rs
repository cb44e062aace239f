//! [`sharded_jit`]: one function of whole values, which the compiler divides over devices.

use std::marker::PhantomData;
use std::panic::Location;
use std::time::Instant;

use super::core::{Compiled, Leaves};
use super::sharded::Sharded;
use crate::error::{Error, Loc, Result};
use crate::jit::cache::{FunctionCache, function_cache_methods, leaves_of};
use crate::trace::tensor::Tensor;
use crate::trace::types::TensorType;
use crate::tree::{self, Tree};

/// A function divided over devices; see [`sharded_jit`]. It may be called from several threads.
pub struct ShardedJit<A, B, F> {
    f: F,
    at: Loc,
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
    ShardedJit { f, at: Location::caller(), cache: FunctionCache::default(), argument: PhantomData }
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
        let leaves = leaves_of(&args);
        let entry = self.cache.find_or_compile(
            &args,
            &leaves,
            Location::caller(),
            || self.expect_one_mesh(&args, &leaves),
            || self.compile(&args, &leaves),
        )?;
        let results = entry.executable.run(&leaves)?;
        Ok(tree::rebuild(&entry.template, results))
    }

    /// Checks that there are leaves, all on the same devices.
    fn expect_one_mesh(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<()> {
        let Some(first) = leaves.first() else {
            let problem = format!("{}: the argument has no leaves, so no devices", self.name());
            return Err(Error::Argument(problem));
        };
        super::on_the_same(self.name(), args, first.devices())
    }

    fn compile(&self, args: &A::With<Sharded>, leaves: &Leaves<'_>) -> Result<(Compiled, B)> {
        let types = leaves.iter().map(|leaf| whole(leaf)).collect::<Result<Vec<TensorType>>>()?;
        let history = &self.cache.history;
        let f = |args| (self.f)(args);
        let (program, template) = history.trace("sharded_jit", self.at, args, &types, f)?;
        let start = Instant::now();
        let devices = leaves[0].shared_devices().clone();
        let compiled = Compiled::divided(program, leaves, devices, self.name())?;
        history.record_lowering(start.elapsed().as_secs_f64() - compiled.outcome.seconds);
        Ok((compiled, template))
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
