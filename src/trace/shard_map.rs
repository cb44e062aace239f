//! [`shard_map`]: a function of shards as a function of whole values, and
//! [`with_sharding_constraint`].
//!
//! The body is traced over shards and becomes part of the trace around it. An operation on each
//! argument leads into the shards and one on each result out of them, so transformations need no
//! rule for the whole: derivatives, batches and residuals go through equation by equation.
//!
//! ```text
//! a:f32[8,2]                              whole
//! b:f32[2,2] = full_to_shard[..] a        each member of the mesh has its own
//! c:f32[2,2] = psum[axis=model:2] b
//! d:f32[8,2] = shard_to_full[..] c        whole
//! ```

use std::cell::RefCell;
use std::panic::Location;

use super::mesh::{Mesh, Shardings, Specs};
use super::op::{Op, ShardingKind, ShardingOp};
use super::tensor::{
    Tensor, Traced, at_line, axes_in_scope, bind1, fail_op, function, inline, op, trace_tree,
    within_axes,
};
use super::vmap::varying::varying_outputs;
use crate::error::Loc;
use crate::tree::{self, Path, Tree, path_of};

/// `jax.shard_map`: `f` runs on every device of `mesh`, on its shard of each argument, and its
/// results are the shards of the results. `in_specs` and `out_specs` name the axes of the mesh that
/// divide each dimension ([`P`](super::mesh::P)); a value that does not mention an axis is the same
/// along it. Inside, [`psum`](super::ops::psum) and the other collectives take the names of axes:
/// `psum(x, "data")`, or `psum(x, ("data", "model"))` along both.
///
/// A value that `f` captures is whole, and all devices have it. A result must be the same along the
/// axes that its spec does not mention. That is checked, as by JAX's `check_vma=True`. Derivatives
/// are those of `check_vma=False`, and so of [`pmap`](crate::pmap()): the transpose of `psum` is
/// `psum`. A gradient taken of the whole function is the same in both. One taken inside of `f` is
/// that of the member's own loss: reduce it with `pmean` or `psum`, as in a `pmap`.
///
/// It is a function of tensors, for [`sharded_jit`](crate::sharded_jit), `grad` and `vmap`. Compiled
/// for one device ([`jit`](crate::jit())), all members run on it together, as a batch.
///
/// ```
/// use podracer::{Array, Mesh, P, Tensor, jit, psum, shard_map};
/// # fn main() -> podracer::Result<()> {
/// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["x", "y"])?;
/// // Rows over x, columns over y; each device multiplies its block.
/// let product = shard_map(
///     |(a, b): (Tensor, Tensor)| psum(a.matmul(b), "y"),
///     &mesh,
///     (P(("x", "y")), P(("y", None))),
///     P(("x", None)),
/// );
/// let a = Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
/// let b = Array::new([2, 1], &[10.0f32, 1.0])?;
/// assert_eq!(jit(product).call((a, b))?.to_vec::<f32>()?, [12.0, 34.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Ends the trace if a spec names an axis that the mesh does not have, if a dimension does not
/// divide, if there are more or fewer specs than values, or if a result may differ along an axis
/// that its spec does not mention.
#[track_caller]
pub fn shard_map<A: Tree<Tensor>, B: Tree<Tensor>>(
    f: impl Fn(A) -> B,
    mesh: &Mesh,
    in_specs: impl Into<Specs>,
    out_specs: impl Into<Specs>,
) -> impl Fn(A) -> B {
    let at = Location::caller();
    let map =
        Map { mesh: mesh.clone(), in_specs: in_specs.into(), out_specs: out_specs.into(), at };
    move |args| map.apply(&f, args)
}

/// `jax.lax.with_sharding_constraint`: the argument, divided over the devices of a mesh as
/// `shardings` tell: one [`NamedSharding`](super::mesh::NamedSharding), or a mesh and specs. The
/// compiler divides the computation of it so. On one device it is the argument.
///
/// # Errors
/// Ends the trace as [`shard_map`].
#[op]
pub fn with_sharding_constraint<A: Tree<Tensor>>(x: A, shardings: impl Into<Shardings>) -> A {
    let at = Location::caller();
    let Shardings { mesh, specs } = shardings.into();
    let ops = specs.ops(ShardingKind::Constraint, &mesh, &x, |leaf: &Tensor| leaf.rank());
    let ops = ops.unwrap_or_else(|problem| fail_op("with_sharding_constraint", problem));
    let leaves = tree::leaves(&x).into_iter().zip(ops);
    let results: Vec<Tensor> = leaves.map(|(leaf, op)| divided(op, leaf, at)).collect();
    tree::replace(&x, results)
}

fn divided(op: ShardingOp, x: Tensor, at: Loc) -> Tensor {
    bind1(Op::Sharding(op), &[x], at)
}

/// The arguments of a `shard_map` besides its function.
struct Map {
    mesh: Mesh,
    in_specs: Specs,
    out_specs: Specs,
    at: Loc,
}

impl Map {
    fn apply<A: Tree<Tensor>, B: Tree<Tensor>>(&self, f: &impl Fn(A) -> B, args: A) -> B {
        let (mesh, at) = (&self.mesh, self.at);
        let (ops, inputs) = at_line(at, || self.shards(&args));
        let mut types = inputs.iter().map(|input| input.ty());
        let shard = &mut |_: &Path<'_>, _: &Tensor| types.next().expect("a type each");
        let example = args.map_leaves_ref(&Path::ROOT, shard);
        let call = |args| within_axes(mesh.axes(), || f(args));
        let (traced, result) = trace_tree::<A, B>("shard_map", at, &example, call);
        let leaves = at_line(at, || {
            let _scope = function("shard_map");
            let kind = ShardingKind::ShardToFull;
            // The leaves are those of a trace that has ended.
            let types = RefCell::new(traced.program.output_types());
            let rank = |_: &Tensor| types.borrow_mut().next().expect("a type each").rank();
            let specs = self.out_specs.ops(kind, mesh, &result, rank);
            let specs = specs.unwrap_or_else(|problem| {
                let problem = problem.replace("argument", "result");
                fail_op("shard_map", format!("out_specs: {problem}"))
            });
            self.expect_equal(&traced, &ops, &specs, &result);
            self.whole(&traced, inputs, specs)
        });
        tree::replace(&result, leaves)
    }

    /// The shards of the argument's leaves, and the operations that lead to them.
    fn shards<A: Tree<Tensor>>(&self, args: &A) -> (Vec<ShardingOp>, Vec<Tensor>) {
        let _scope = function("shard_map");
        let scope = axes_in_scope();
        if let Some(axis) = self.mesh.axes().iter().find(|axis| scope.contains(axis)) {
            let name = axis.name();
            fail_op("shard_map", format!("axis `{name}` of the mesh is mapped here already"));
        }
        let kind = ShardingKind::FullToShard;
        let ops = self.in_specs.ops(kind, &self.mesh, args, |leaf: &Tensor| leaf.rank());
        let ops =
            ops.unwrap_or_else(|problem| fail_op("shard_map", format!("in_specs: {problem}")));
        let leaves = tree::leaves(args).into_iter().zip(ops.clone());
        let shards = leaves.map(|(leaf, op)| divided(op, leaf, self.at)).collect();
        (ops, shards)
    }

    /// Checks that results are equal along the axes that their specs do not mention.
    fn expect_equal<B: Tree<Tensor>>(
        &self,
        traced: &Traced,
        ops: &[ShardingOp],
        specs: &[ShardingOp],
        result: &B,
    ) {
        for &axis in self.mesh.axes() {
            let differs = |op: &ShardingOp| axis.size() > 1 && op.dimension_of(axis).is_some();
            let mut inputs: Vec<bool> = ops.iter().map(differs).collect();
            inputs.resize(traced.program.inputs.len(), false);
            let outputs = varying_outputs(&traced.program, &inputs, axis);
            let mut leaves = outputs.iter().zip(specs);
            result.visit_leaves(&Path::ROOT, &mut |path, _| {
                let (&differs, spec) = leaves.next().expect("one a leaf");
                if differs && axis.size() > 1 && spec.dimension_of(axis).is_none() {
                    let (leaf, name) = (path_of("result", path), axis.name());
                    fail_op(
                        "shard_map",
                        format!(
                            "out_specs: the spec of {leaf} does not mention axis `{name}`, and the \
                             members along it may have different values. Reduce or gather them \
                             (psum, pmean, all_gather along `{name}`), or mention the axis"
                        ),
                    );
                }
            });
        }
    }

    /// The results of the body over these shards, made whole.
    fn whole(&self, traced: &Traced, shards: Vec<Tensor>, specs: Vec<ShardingOp>) -> Vec<Tensor> {
        let mut inputs = shards;
        inputs.extend(traced.captures.iter().map(|&capture| {
            let (kind, mesh) = (ShardingKind::FullToShard, self.mesh.axes().clone());
            let spec = vec![Default::default(); capture.rank()];
            divided(ShardingOp { kind, mesh, spec }, capture, self.at)
        }));
        let outputs = inline(&traced.program, &inputs).into_iter().zip(specs);
        outputs.map(|(output, op)| divided(op, output, self.at)).collect()
    }
}
