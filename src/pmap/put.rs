//! Values divided over a mesh: [`device_put`], and [`device_get`], which reads them back.

use std::panic::Location;
use std::sync::Arc;

use super::blocks::blocks;
use super::sharded::{Placement, Sharded, Whole, checked, try_map};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::trace::literal::{AlignedBytes, Literal};
use crate::trace::mesh::{Mesh, NamedSharding, PartitionSpec, Shardings};
use crate::trace::op::{ShardingKind, ShardingOp};
use crate::trace::types::TensorType;
use crate::tree::{Tree, path_of};

/// `jax.make_mesh`: the first devices of the process in a grid of `axis_shapes`, whose axes are
/// called `axis_names`.
///
/// # Errors
/// Returns an error if there are too few devices, or as [`Mesh::new`].
#[track_caller]
pub fn make_mesh(axis_shapes: &[usize], axis_names: &[&str]) -> Result<Mesh> {
    let at = Location::caller();
    let there = Runtime::get()?.client.devices().len();
    let count: usize = axis_shapes.iter().product();
    if count > there {
        return Err(Error::Argument(format!(
            "make_mesh at {at}: a grid of {axis_shapes:?} takes {count} devices, and there are \
             {there}. On CPU, Runtime::start(RuntimeOptions::with_cpu_devices({count})) makes as many"
        )));
    }
    Mesh::new(&(0..count).collect::<Vec<usize>>(), axis_shapes, axis_names)
}

/// `jax.device_put` with shardings: every leaf divided over the devices of a mesh, as `shardings`
/// tell: one [`NamedSharding`], or a mesh and the specs of the leaves.
///
/// ```
/// use podracer::{Array, NamedSharding, P, device_get, device_put, make_mesh};
/// # fn main() -> podracer::Result<()> {
/// let mesh = make_mesh(&[1, 1], &["data", "model"])?;
/// let x = Array::new([2, 2], &[1.0f32, 2.0, 3.0, 4.0])?;
/// let x = device_put(&x, NamedSharding::new(&mesh, P(("data", "model"))))?;
/// assert_eq!(device_get(&x)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns an error if a spec names an axis that the mesh does not have, a dimension does not
/// divide, there are more or fewer specs than values, there is no such device, or it is out of
/// memory.
#[track_caller]
pub fn device_put<M: Tree<Array>>(
    tree: &M,
    shardings: impl Into<Shardings>,
) -> Result<M::With<Sharded>> {
    let at = Location::caller();
    let wrong = |problem: String| Error::Argument(format!("device_put at {at}: {problem}"));
    let Shardings { mesh, specs } = shardings.into();
    checked(mesh.devices())?;
    let ops = specs.ops(ShardingKind::FullToShard, &mesh, tree, |leaf: &Array| leaf.ty().rank());
    let mut ops = ops.map_err(wrong)?.into_iter();
    try_map(tree, |path, leaf: &Array| {
        let op = ops.next().expect("one a leaf");
        let part = op.shard_type(leaf.ty());
        let part =
            part.map_err(|problem| wrong(format!("{}: {problem}", path_of("argument", path))))?;
        let literal = leaf.to_literal()?;
        let mut shards = Vec::with_capacity(mesh.size());
        for (position, &device) in mesh.devices().iter().enumerate() {
            let mut bytes = AlignedBytes::zeroed(part.bytes());
            let whole = literal.bytes();
            let whole: &[u8] = (*whole).as_ref();
            blocks(&op, leaf.ty(), &part, position, |in_whole, in_part| {
                bytes.as_mut()[in_part].copy_from_slice(&whole[in_whole]);
            });
            shards.push(Array::from(Literal::from_bytes(part.clone(), bytes)).to(device)?);
        }
        let placement = named(&mesh, &op, leaf.ty().clone());
        Ok(Sharded::placed(mesh.shared_devices().clone(), shards, placement))
    })
}

/// `jax.device_get`: every leaf as one array on the host, put together from its parts. Waits for
/// them.
///
/// # Errors
/// As [`unshard`](super::unshard).
pub fn device_get<M: Tree<Sharded>>(tree: &M) -> Result<M::With<Array>> {
    try_map(tree, |_, leaf: &Sharded| match leaf.placement() {
        Placement::Copies => Ok(Array::from(leaf.shards()[0].to_literal()?)),
        Placement::Blocks => super::sharded::unshard(leaf),
        Placement::Named(whole) => leaf.assembled(whole),
    })
}

/// The placement of a value of type `whole` divided by `op`.
pub(super) fn named(mesh: &Mesh, op: &ShardingOp, whole: TensorType) -> Placement {
    let sharding = NamedSharding::new(mesh, PartitionSpec::of(op));
    Placement::Named(Arc::new(Whole { sharding, ty: whole }))
}
