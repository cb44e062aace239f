//! Collectives: communication along a named axis, of the devices of a `pmap` or of the batch of a
//! [`vmap_axis`](crate::trace::vmap::vmap_axis).

use std::panic::Location;

use super::{axis_of, full_like};
use crate::trace::axis::Axis;
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op};
use crate::trace::tensor::{Tensor, Tensors, at_line, bind, fail_op, function, in_scope};
use crate::tree::{self, Path, Tree};

#[track_caller]
fn exchange(kind: Collective, axis: Axis, operands: &[Tensor]) -> Tensors {
    if !in_scope(axis) {
        let problem = format!(
            "axis `{}` is not in scope here: its token means something only inside the closure \
             that pmap or vmap_axis gave it to",
            axis.name()
        );
        fail_op(kind.name(), problem);
    }
    bind(Op::Collective(CollectiveOp { axis, kind }), operands, Location::caller())
}

#[track_caller]
fn each<A: Tree<Tensor>>(x: A, f: impl Fn(Tensor) -> Tensor) -> A {
    // A closure does not know its caller's line.
    let at = Location::caller();
    let results: Vec<Tensor> = at_line(at, || tree::leaves(&x).into_iter().map(f).collect());
    tree::replace(&x, results)
}

/// All leaves in one exchange: it costs about the same for many small tensors as for one.
#[track_caller]
fn all_reduce<A: Tree<Tensor>>(op: AllReduceOp, x: A, axis: Axis) -> A {
    let leaves = tree::leaves(&x);
    if leaves.is_empty() {
        return x;
    }
    tree::replace(&x, exchange(Collective::AllReduce(op), axis, &leaves))
}

/// `jax.lax.psum`: the sum of every leaf over the members of `axis`. Its transpose is `psum`.
///
/// ```
/// use podracer::{Array, Tensor, interpret, psum, vmap_axis};
/// let f = interpret(|x: Tensor| vmap_axis("i", |i, x: Tensor| x / psum(x, i))(x));
/// let shares = f.call(Array::from([1.0f32, 3.0]))?;
/// assert_eq!(shares.to_vec::<f32>()?, [0.25, 0.75]);
/// # Ok::<(), podracer::Error>(())
/// ```
#[track_caller]
pub fn psum<A: Tree<Tensor>>(x: A, axis: Axis) -> A {
    let _scope = function("psum");
    all_reduce(AllReduceOp::Sum, x, axis)
}

/// `jax.lax.pmean`: the mean of every leaf, a float, over the members of `axis`.
#[track_caller]
pub fn pmean<A: Tree<Tensor>>(x: A, axis: Axis) -> A {
    let _scope = function("pmean");
    let at = Location::caller();
    x.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        let ty = leaf.ty();
        if !ty.dtype.is_float() {
            let path = crate::tree::path_of("argument", path);
            let problem =
                format!("{path} is {ty}, and pmean takes floats; convert with .to(dtype)");
            at_line(at, || fail_op("pmean", problem));
        }
    });
    each(psum(x, axis), |sum| sum / full_like(sum, axis.size() as f64))
}

/// `jax.lax.pmax`: the greatest of every leaf over the members of `axis`; NaN wins.
#[track_caller]
pub fn pmax<A: Tree<Tensor>>(x: A, axis: Axis) -> A {
    let _scope = function("pmax");
    all_reduce(AllReduceOp::Max, x, axis)
}

/// `jax.lax.pmin`: the least of every leaf over the members of `axis`; NaN wins.
#[track_caller]
pub fn pmin<A: Tree<Tensor>>(x: A, axis: Axis) -> A {
    let _scope = function("pmin");
    all_reduce(AllReduceOp::Min, x, axis)
}

/// `jax.lax.all_gather`: every leaf of all members, stacked along a new axis `at` in the order of
/// the members.
#[track_caller]
pub fn all_gather<A: Tree<Tensor>>(x: A, axis: Axis, at: isize) -> A {
    let _scope = function("all_gather");
    each(x, |leaf| {
        let at = axis_of("all_gather", at, leaf.rank() + 1);
        exchange(Collective::AllGather { at }, axis, &[leaf])[0]
    })
}

/// `jax.lax.all_gather` with `tiled=True`: every leaf of all members, one after another along its
/// axis `at`.
#[track_caller]
pub fn all_gather_tiled<A: Tree<Tensor>>(x: A, axis: Axis, at: isize) -> A {
    let _scope = function("all_gather_tiled");
    each(x, |leaf| {
        let mut shape = leaf.shape();
        let at = axis_of("all_gather", at, shape.rank());
        let gathered = exchange(Collective::AllGather { at }, axis, &[leaf])[0];
        shape = shape.without_axis(at).with_axis(at, axis.size().saturating_mul(shape[at]));
        gathered.reshape(shape)
    })
}

/// `jax.lax.psum_scatter`: sums every leaf over the members and gives each member its slice of the
/// sum along axis `at`. That axis must have one slice for each member, and vanishes.
#[track_caller]
pub fn psum_scatter<A: Tree<Tensor>>(x: A, axis: Axis, at: isize) -> A {
    let _scope = function("psum_scatter");
    each(x, |leaf| {
        let at = axis_of("reduce_scatter", at, leaf.rank());
        exchange(Collective::ReduceScatter { at }, axis, &[leaf])[0]
    })
}

/// `jax.lax.psum_scatter` with `tiled=True`: axis `at` is divided into one block for each member.
#[track_caller]
pub fn psum_scatter_tiled<A: Tree<Tensor>>(x: A, axis: Axis, at: isize) -> A {
    let _scope = function("psum_scatter_tiled");
    each(x, |leaf| {
        let at = axis_of("reduce_scatter", at, leaf.rank());
        let blocks = divided("reduce_scatter", leaf, at, axis);
        exchange(Collective::ReduceScatter { at }, axis, &[blocks])[0]
    })
}

/// `jax.lax.all_to_all`: slice `i` of every leaf along axis `split` goes to member `i`; the slices
/// that a member receives are stacked along a new axis `concat`. Axis `split` must have one slice
/// for each member, and vanishes.
#[track_caller]
pub fn all_to_all<A: Tree<Tensor>>(x: A, axis: Axis, split: isize, concat: isize) -> A {
    let _scope = function("all_to_all");
    each(x, |leaf| {
        let split = axis_of("all_to_all", split, leaf.rank());
        let concat = axis_of("all_to_all", concat, leaf.rank());
        exchange(Collective::AllToAll { split, concat }, axis, &[leaf])[0]
    })
}

/// `jax.lax.ppermute`: member `target` gets every leaf of member `source`, for each pair `(source,
/// target)`. Members that are not a target get zeros.
#[track_caller]
pub fn ppermute<A: Tree<Tensor>>(x: A, axis: Axis, pairs: &[(usize, usize)]) -> A {
    let _scope = function("ppermute");
    let kind = Collective::Permute { pairs: pairs.to_vec() };
    each(x, |leaf| exchange(kind.clone(), axis, &[leaf])[0])
}

/// `jax.lax.axis_index`: the member's own number along `axis`, a scalar i32.
#[track_caller]
pub fn axis_index(axis: Axis) -> Tensor {
    let _scope = function("axis_index");
    exchange(Collective::Index, axis, &[])[0]
}

/// Axis `at` as one axis of blocks, a block for each member, and one within a block.
#[track_caller]
fn divided(op: &str, x: Tensor, at: usize, axis: Axis) -> Tensor {
    let (shape, size) = (x.shape(), axis.size());
    if shape[at] % size != 0 {
        let problem = format!(
            "axis {at} of {} has size {}, which {size} members do not divide evenly",
            x.ty(),
            shape[at]
        );
        fail_op(op, problem);
    }
    let block = shape[at] / size;
    x.reshape(shape.without_axis(at).with_axis(at, block).with_axis(at, size))
}
