//! [`checkpoint`]: derivatives that recompute the values they need instead of keeping them.

use std::panic::Location;
use std::sync::Arc;

use super::control::types_of;
use super::op::{Op, RematOp};
use super::tensor::{Tensor, bind, bind1, trace_tree};
use crate::tree::{self, Tree};

pub use super::op::RematPolicy;

/// `jax.checkpoint` (`jax.remat`): `f`, whose derivative keeps nothing but the arguments and the
/// captures of `f`, and computes everything else again. It takes less memory and more time. It is
/// typically used for the body of a [`scan`](super::control::scan) and the layers of a deep
/// network.
///
/// ```
/// use podracer::{Array, Tensor, checkpoint, grad, interpret};
/// let f = |x: Tensor| checkpoint(|x: Tensor| x.sin().sin())(x);
/// let slope = interpret(grad(f)).call(Array::from(0.0f32))?;
/// assert_eq!(slope.item::<f32>()?, 1.0);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<A: Tree<Tensor>, B: Tree<Tensor>>(f: impl Fn(A) -> B) -> impl Fn(A) -> B {
    checkpoint_with(RematPolicy::NothingSaveable, f)
}

/// [`checkpoint`] with a policy that selects the values to keep: `jax.checkpoint_policies`.
#[track_caller]
pub fn checkpoint_with<A: Tree<Tensor>, B: Tree<Tensor>>(
    policy: RematPolicy,
    f: impl Fn(A) -> B,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    move |args: A| {
        let (traced, result) = trace_tree::<A, B>("checkpoint", at, &types_of(&args), &f);
        let operands: Vec<Tensor> =
            tree::leaves(&args).into_iter().chain(traced.captures).collect();
        let body = Arc::new(traced.program);
        let op = RematOp { body, policy: policy.clone(), barrier: false };
        tree::replace(&result, bind(Op::Remat(op), &operands, at))
    }
}

/// `lax.optimization_barrier`: the tensors as they are, all of them computed before anything that
/// uses one of them. The compiler moves nothing across and merges nothing through it. Derivatives
/// and batches pass through a barrier too.
///
/// ```
/// use podracer::{Array, Tensor, jit, trace::remat::optimization_barrier};
/// // The sum is read before the update overwrites `x` in place.
/// let f = jit(|x: Tensor| {
///     let (x, sum) = optimization_barrier((x, x.sum(..)));
///     (x.dynamic_update_slice(sum.reshape([1]), &[0]), sum)
/// });
/// let (x, _) = f.call(Array::from([1.0f32, 2.0]))?;
/// assert_eq!(x.to_vec::<f32>()?, [3.0, 2.0]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn optimization_barrier<A: Tree<Tensor>>(x: A) -> A {
    let at = Location::caller();
    let (traced, result) = trace_tree::<A, A>("optimization_barrier", at, &types_of(&x), |x: A| x);
    let policy = RematPolicy::NothingSaveable;
    let op = RematOp { body: Arc::new(traced.program), policy, barrier: true };
    tree::replace(&result, bind(Op::Remat(op), &tree::leaves(&x), at))
}

/// `jax.ad_checkpoint.checkpoint_name`: `x` under a name, for policies that keep it or do not.
#[track_caller]
pub fn checkpoint_name(x: Tensor, name: &'static str) -> Tensor {
    bind1(Op::Name(name), &[x], Location::caller())
}
