//! Collectives: communication along named axes, of the devices of a `pmap`, of the mesh of a
//! [`shard_map`](crate::trace::shard_map::shard_map), or of the batch of a
//! [`vmap_axis`](crate::trace::vmap::vmap_axis).

use std::panic::Location;

use super::{axis_of, full_like};
use crate::trace::axis::{Axis, AxisName, AxisNames, AxisVec};
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp, Op};
use crate::trace::tensor::{Tensor, Tensors, at_line, axes_in_scope, bind, fail_op, in_scope, op};
use crate::tree::{self, Path, Tree};

/// Axes in scope, and the groups that their members work in.
#[derive(Clone)]
struct Along {
    axes: AxisVec,
    groups: Option<Vec<Vec<usize>>>,
}

impl Along {
    /// Number of members that exchange values.
    fn size(&self) -> usize {
        let members = || self.axes.iter().map(|axis| axis.size()).product();
        let groups = self.groups.as_ref();
        groups.and_then(|groups| groups.first()).map_or_else(members, Vec::len)
    }
}

/// The axes that `names` stand for here.
#[track_caller]
fn along(op: &'static str, names: AxisNames) -> Along {
    let mut axes = AxisVec::new();
    for name in names.names {
        let axis = match name {
            AxisName::Token(axis) if in_scope(axis) => axis,
            AxisName::Token(axis) => fail_op(
                op,
                format!(
                    "axis `{}` is not in scope here: its token means something only inside the \
                     closure that pmap or vmap_axis gave it to",
                    axis.name()
                ),
            ),
            AxisName::Name(name) => named(op, name),
        };
        if axes.contains(&axis) {
            fail_op(op, format!("axis `{}` is given twice", axis.name()));
        }
        axes.push(axis);
    }
    if axes.is_empty() {
        fail_op(op, "no axis is given; name one or several");
    }
    Along { axes, groups: names.groups }
}

/// The innermost axis in scope with this name.
#[track_caller]
fn named(op: &'static str, name: &str) -> Axis {
    let scope = axes_in_scope();
    if let Some(&axis) = scope.iter().rev().find(|axis| axis.name() == name) {
        return axis;
    }
    let names: Vec<String> = scope.iter().map(|axis| format!("`{}`", axis.name())).collect();
    let there = match names.is_empty() {
        true => "no axis is in scope; shard_map, pmap and vmap_axis bring axes into scope".into(),
        false => format!("in scope are {}", names.join(", ")),
    };
    fail_op(op, format!("there is no axis `{name}` here: {there}"))
}

#[track_caller]
fn exchange(kind: Collective, along: &Along, operands: &[Tensor]) -> Tensors {
    let Along { axes, groups } = along.clone();
    bind(Op::Collective(CollectiveOp { axes, groups, kind }), operands, Location::caller())
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
fn all_reduce<A: Tree<Tensor>>(op: AllReduceOp, x: A, axis: &Along) -> A {
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
#[op]
pub fn psum<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>) -> A {
    let axis = along("psum", axis.into());
    all_reduce(AllReduceOp::Sum, x, &axis)
}

/// `jax.lax.pmean`: the mean of every leaf, a float, over the members of `axis`.
#[op]
pub fn pmean<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>) -> A {
    let axis = along("pmean", axis.into());
    let at = Location::caller();
    x.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        let ty = leaf.ty();
        if !ty.dtype.is_inexact() {
            let path = crate::tree::path_of("argument", path);
            let problem =
                format!("{path} is {ty}, and pmean takes floats; convert with .to(dtype)");
            at_line(at, || fail_op("pmean", problem));
        }
    });
    each(all_reduce(AllReduceOp::Sum, x, &axis), |sum| sum / full_like(sum, axis.size() as f64))
}

/// `jax.lax.pmax`: the greatest of every leaf over the members of `axis`; NaN wins.
#[op]
pub fn pmax<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>) -> A {
    let axis = along("pmax", axis.into());
    all_reduce(AllReduceOp::Max, x, &axis)
}

/// `jax.lax.pmin`: the least of every leaf over the members of `axis`; NaN wins.
#[op]
pub fn pmin<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>) -> A {
    let axis = along("pmin", axis.into());
    all_reduce(AllReduceOp::Min, x, &axis)
}

/// `jax.lax.all_gather`: every leaf of all members, stacked along a new axis `at` in the order of
/// the members.
#[op]
pub fn all_gather<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>, at: isize) -> A {
    let axis = along("all_gather", axis.into());
    each(x, |leaf| {
        let at = axis_of("all_gather", at, leaf.rank() + 1);
        exchange(Collective::AllGather { at }, &axis, &[leaf])[0]
    })
}

/// `jax.lax.all_gather` with `tiled=True`: every leaf of all members, one after another along its
/// axis `at`.
#[op]
pub fn all_gather_tiled<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>, at: isize) -> A {
    let axis = along("all_gather_tiled", axis.into());
    each(x, |leaf| {
        let mut shape = leaf.shape();
        let at = axis_of("all_gather", at, shape.rank());
        let gathered = exchange(Collective::AllGather { at }, &axis, &[leaf])[0];
        shape = shape.without_axis(at).with_axis(at, axis.size().saturating_mul(shape[at]));
        gathered.reshape(shape)
    })
}

/// `jax.lax.psum_scatter`: sums every leaf over the members and gives each member its slice of the
/// sum along axis `at`. That axis must have one slice for each member, and vanishes.
#[op]
pub fn psum_scatter<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>, at: isize) -> A {
    let axis = along("psum_scatter", axis.into());
    each(x, |leaf| {
        let at = axis_of("reduce_scatter", at, leaf.rank());
        exchange(Collective::ReduceScatter { at }, &axis, &[leaf])[0]
    })
}

/// `jax.lax.psum_scatter` with `tiled=True`: axis `at` is divided into one block for each member.
#[op]
pub fn psum_scatter_tiled<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>, at: isize) -> A {
    let axis = along("psum_scatter_tiled", axis.into());
    each(x, |leaf| {
        let at = axis_of("reduce_scatter", at, leaf.rank());
        let blocks = divided("reduce_scatter", leaf, at, axis.size());
        exchange(Collective::ReduceScatter { at }, &axis, &[blocks])[0]
    })
}

/// `jax.lax.all_to_all`: slice `i` of every leaf along axis `split` goes to member `i`; the slices
/// that a member receives are stacked along a new axis `concat`. Axis `split` must have one slice
/// for each member, and vanishes.
#[op]
pub fn all_to_all<A: Tree<Tensor>>(
    x: A,
    axis: impl Into<AxisNames>,
    split: isize,
    concat: isize,
) -> A {
    let axis = along("all_to_all", axis.into());
    each(x, |leaf| {
        let split = axis_of("all_to_all", split, leaf.rank());
        let concat = axis_of("all_to_all", concat, leaf.rank());
        exchange(Collective::AllToAll { split, concat }, &axis, &[leaf])[0]
    })
}

/// `jax.lax.all_to_all` with `tiled=True`: axis `split` of every leaf is divided into one block for
/// each member, and the blocks that a member receives follow one another along axis `concat`.
#[op]
pub fn all_to_all_tiled<A: Tree<Tensor>>(
    x: A,
    axis: impl Into<AxisNames>,
    split: isize,
    concat: isize,
) -> A {
    let axis = along("all_to_all_tiled", axis.into());
    let size = axis.size();
    each(x, |leaf| {
        let split = axis_of("all_to_all", split, leaf.rank());
        let concat = axis_of("all_to_all", concat, leaf.rank());
        let blocks = divided("all_to_all", leaf, split, size);
        let received = exchange(Collective::AllToAll { split, concat }, &axis, &[blocks])[0];
        let shape = received.shape().without_axis(concat);
        let length = size.saturating_mul(shape[concat]);
        received.reshape(shape.without_axis(concat).with_axis(concat, length))
    })
}

/// `jax.lax.ppermute`: member `target` gets every leaf of member `source`, for each pair `(source,
/// target)`. Members that are not a target get zeros.
#[op]
pub fn ppermute<A: Tree<Tensor>>(x: A, axis: impl Into<AxisNames>, pairs: &[(usize, usize)]) -> A {
    let axis = along("ppermute", axis.into());
    let kind = Collective::Permute { pairs: pairs.to_vec() };
    each(x, |leaf| exchange(kind.clone(), &axis, &[leaf])[0])
}

/// `jax.lax.axis_index`: the member's own number along `axis`, a scalar i32.
#[op]
pub fn axis_index(axis: impl Into<AxisNames>) -> Tensor {
    exchange(Collective::Index, &along("axis_index", axis.into()), &[])[0]
}

/// `jax.lax.axis_size`: the number of members along `axis`, or in each of its groups. It is known
/// while tracing.
#[op]
pub fn axis_size(axis: impl Into<AxisNames>) -> usize {
    along("axis_size", axis.into()).size()
}

/// Axis `at` as one axis of blocks, a block for each member, and one within a block.
#[track_caller]
fn divided(op: &str, x: Tensor, at: usize, size: usize) -> Tensor {
    let shape = x.shape();
    if !shape[at].is_multiple_of(size) {
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
