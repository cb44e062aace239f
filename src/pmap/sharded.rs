//! [`Sharded`]: a value on several devices, and the transfers between it and the host.

use std::fmt;
use std::sync::{Arc, Weak};

use super::blocks::{blocks, place};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::jit::cache::ArgumentLeaf;
use crate::runtime::Runtime;
use crate::trace::literal::{AlignedBytes, Literal};
use crate::trace::mesh::NamedSharding;
use crate::trace::op::ShardingKind;
use crate::trace::types::{DType, Shape, TensorType};
use crate::tree::{self, Leaf, Path, Tree};

/// A value with one part on each of several devices; the argument and result type of
/// [`pmap`](super::pmap). It stays on its devices between calls. Cheap to clone.
///
/// A `Sharded` given to a mapped function by value, of which no clone exists, is donated: its
/// memory is used again for the results.
#[derive(Clone)]
pub struct Sharded(Arc<Shards>);

struct Shards {
    shards: Vec<Array>,
    devices: Arc<[usize]>,
    placement: Placement,
}

/// Relation of the parts to one another.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Placement {
    /// They are equal.
    Copies,
    /// They are blocks along the first axis, or values of their own.
    Blocks,
    /// They are the shards of a whole value over a mesh.
    Named(Arc<Whole>),
}

/// A value divided over a mesh.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Its division, with an entry for each dimension.
    pub(super) sharding: NamedSharding,
    /// The type of the whole value.
    pub(super) ty: TensorType,
}

impl Leaf for Sharded {}

impl ArgumentLeaf for Sharded {
    fn ty(&self) -> &TensorType {
        Sharded::ty(self)
    }

    fn placement(&self) -> Option<String> {
        let how = match &self.0.placement {
            Placement::Copies => "copies on",
            Placement::Blocks => "divided over",
            Placement::Named(whole) => {
                let NamedSharding { mesh, spec } = &whole.sharding;
                return Some(format!("{spec} on {mesh:?}"));
            }
        };
        Some(format!("{how} devices {:?}", self.devices()))
    }
}

impl Sharded {
    pub(super) fn on(devices: Arc<[usize]>, shards: Vec<Array>, replicated: bool) -> Sharded {
        let placement = if replicated { Placement::Copies } else { Placement::Blocks };
        Sharded::placed(devices, shards, placement)
    }

    pub(super) fn placed(
        devices: Arc<[usize]>,
        shards: Vec<Array>,
        placement: Placement,
    ) -> Sharded {
        Sharded(Arc::new(Shards { shards, devices, placement }))
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.0.placement
    }

    /// The division over a mesh, of values of [`device_put`](super::device_put) and of functions
    /// compiled for a mesh.
    pub fn sharding(&self) -> Option<&NamedSharding> {
        match &self.0.placement {
            Placement::Named(whole) => Some(&whole.sharding),
            Placement::Copies | Placement::Blocks => None,
        }
    }

    /// The type of the whole value that is divided over a mesh; of one part otherwise.
    pub fn global_ty(&self) -> &TensorType {
        match &self.0.placement {
            Placement::Named(whole) => &whole.ty,
            Placement::Copies | Placement::Blocks => self.ty(),
        }
    }

    /// Makes a value from its parts, in the order of the devices, to which they are moved.
    /// `jax.device_put_sharded`.
    ///
    /// # Errors
    /// If the parts are not as many as the devices or not of one type, or if there is no such
    /// device.
    pub fn from_shards(shards: &[Array], devices: &[usize]) -> Result<Sharded> {
        let devices = checked(devices)?;
        let Some(first) = shards.first().filter(|_| shards.len() == devices.len()) else {
            let (parts, count) = (shards.len(), devices.len());
            return Err(Error::Argument(format!("{parts} part(s) for {count} device(s)")));
        };
        if let Some((i, other)) = shards.iter().enumerate().find(|(_, s)| s.ty() != first.ty()) {
            return Err(Error::Argument(format!(
                "the parts must be of one type: part 0 is {}, part {i} is {}",
                first.ty(),
                other.ty()
            )));
        }
        let shards = shards.iter().zip(&*devices).map(|(shard, &device)| shard.to(device));
        let shards = shards.collect::<Result<Vec<Array>>>()?;
        Ok(Sharded::on(devices, shards, false))
    }

    /// The type of each part.
    pub fn ty(&self) -> &TensorType {
        self.0.shards[0].ty()
    }

    /// The sizes of the axes of each part.
    pub fn shape(&self) -> &Shape {
        &self.ty().shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.ty().dtype
    }

    /// The devices, by their numbers.
    pub fn devices(&self) -> &[usize] {
        &self.0.devices
    }

    pub(super) fn shared_devices(&self) -> &Arc<[usize]> {
        &self.0.devices
    }

    /// The parts, in the order of the devices.
    pub fn shards(&self) -> &[Array] {
        &self.0.shards
    }

    /// Returns true if all parts are known to be equal: after [`replicate`], and for results that
    /// are computed only from replicated values, [`psum`](crate::psum) and the like.
    pub fn is_replicated(&self) -> bool {
        match &self.0.placement {
            Placement::Copies => true,
            Placement::Blocks => false,
            Placement::Named(whole) => whole.sharding.is_fully_replicated(),
        }
    }

    /// Returns true if no other clone of it or of its parts exists.
    pub(super) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && self.0.shards.iter().all(Array::is_unique)
    }

    pub(super) fn downgrade(&self) -> WeakSharded {
        WeakSharded(Arc::downgrade(&self.0))
    }

    /// Waits until all parts are computed.
    ///
    /// # Errors
    /// Returns the error of the computation on any device.
    pub fn wait(&self) -> Result<()> {
        self.0.shards.iter().try_for_each(Array::wait)
    }

    /// The parts stacked along a new first axis, on the host. Waits for them.
    ///
    /// # Errors
    /// Returns the error of the computation.
    pub fn stack(&self) -> Result<Array> {
        let shape = self.shape().with_axis(0, self.0.shards.len());
        self.concatenated(TensorType::new(self.dtype(), shape))
    }

    /// A value divided over a mesh, as one array on the host. Waits for its shards.
    pub(super) fn assembled(&self, whole: &Whole) -> Result<Array> {
        let (ty, part) = (&whole.ty, self.ty());
        let NamedSharding { mesh, spec } = &whole.sharding;
        let op = spec.op(ShardingKind::FullToShard, mesh, ty.rank()).map_err(Error::Argument)?;
        let mut bytes = AlignedBytes::zeroed(ty.bytes());
        for (position, shard) in self.shards().iter().enumerate() {
            if op.unmentioned().iter().any(|axis| place(&op, *axis, position) > 0) {
                continue;
            }
            let literal = shard.to_literal()?;
            let values = literal.bytes();
            let values: &[u8] = (*values).as_ref();
            blocks(&op, ty, part, position, |in_whole, in_part| {
                bytes.as_mut()[in_whole].copy_from_slice(&values[in_part]);
            });
        }
        Ok(Array::from(Literal::from_bytes(ty.clone(), bytes)))
    }

    pub(super) fn concatenated(&self, ty: TensorType) -> Result<Array> {
        let mut bytes = AlignedBytes::zeroed(ty.bytes());
        let size = self.ty().bytes();
        for (i, shard) in self.0.shards.iter().enumerate() {
            let literal = shard.to_literal()?;
            let part: &AlignedBytes = &literal.bytes();
            bytes.as_mut()[i * size..(i + 1) * size].copy_from_slice(part.as_ref());
        }
        Ok(Array::from(Literal::from_bytes(ty, bytes)))
    }
}

/// A [`Sharded`] that may be gone.
pub(super) struct WeakSharded(Weak<Shards>);

impl WeakSharded {
    /// The devices that have not finished their parts; none if the value is gone.
    pub(super) fn unfinished(&self) -> Vec<usize> {
        let Some(shards) = self.0.upgrade() else { return vec![] };
        let parts = shards.devices.iter().zip(&shards.shards);
        let late = parts.filter(|(_, shard)| {
            shard.buffer().is_some_and(|buffer| !buffer.is_ready().unwrap_or(true))
        });
        late.map(|(&device, _)| device).collect()
    }
}

/// The rows of a host value along its first axis.
pub(super) fn rows(literal: &Literal) -> Vec<Array> {
    let ty = literal.ty();
    let row = TensorType::new(ty.dtype, ty.shape.without_axis(0));
    rows_of(literal, &row, ty.shape[0])
}

/// `count` equal parts of a host value, one after another.
fn rows_of(literal: &Literal, part: &TensorType, count: usize) -> Vec<Array> {
    let size = part.bytes();
    let bytes = literal.bytes();
    let bytes: &[u8] = (*bytes).as_ref();
    let block = |i: usize| AlignedBytes::copy_of(&bytes[i * size..(i + 1) * size]);
    (0..count).map(|i| Array::from(Literal::from_bytes(part.clone(), block(i)))).collect()
}

impl fmt::Debug for Sharded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match &self.0.placement {
            Placement::Copies => "replicated on",
            Placement::Blocks => "sharded over",
            Placement::Named(whole) => {
                let NamedSharding { mesh, spec } = &whole.sharding;
                return write!(f, "Sharded({}, {spec} on {mesh:?})", whole.ty);
            }
        };
        write!(f, "Sharded({}, {how} devices {:?})", self.ty(), self.0.devices)
    }
}

/// The devices of the process: `0..jax.device_count()`. Starts the runtime if need be; see
/// [`Runtime::start`] for their number.
///
/// # Errors
/// As [`Runtime::get`].
pub fn devices() -> Result<Vec<usize>> {
    Ok((0..Runtime::get()?.client.devices().len()).collect())
}

/// A list of devices that exist, none twice.
pub(super) fn checked(devices: &[usize]) -> Result<Arc<[usize]>> {
    let runtime = Runtime::get()?;
    if devices.is_empty() {
        return Err(Error::Argument("the list of devices is empty".into()));
    }
    for (i, device) in devices.iter().enumerate() {
        runtime.ensure_device(*device)?;
        if devices[..i].contains(device) {
            return Err(Error::Argument(format!("device {device} stands twice in {devices:?}")));
        }
    }
    Ok(devices.into())
}

/// Makes every leaf by `f`, which may fail.
pub(super) fn try_map<M: Tree<P>, P: Leaf, Q: Leaf>(
    tree: &M,
    mut f: impl FnMut(&Path<'_>, &P) -> Result<Q>,
) -> Result<M::With<Q>> {
    let mut leaves = Vec::new();
    let mut failed = None;
    tree.visit_leaves(&Path::ROOT, &mut |path, leaf| {
        if failed.is_none() {
            match f(path, leaf) {
                Ok(leaf) => leaves.push(leaf),
                Err(error) => failed = Some(error),
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let mut leaves = leaves.into_iter();
    Ok(tree.map_leaves_ref(&Path::ROOT, &mut |_, _| leaves.next().expect("one each")))
}

/// Copies every leaf to each of the devices: `flax.jax_utils.replicate`. A leaf that is on a device
/// already is copied from there.
///
/// # Errors
/// Returns an error if there is no such device, or it is out of memory.
pub fn replicate<M: Tree<Array>>(tree: &M, devices: &[usize]) -> Result<M::With<Sharded>> {
    let devices = checked(devices)?;
    try_map(tree, |_, leaf| {
        let literal = leaf.to_literal()?;
        let copies = devices.iter().map(|&device| Array::from(literal.clone()).to(device));
        Ok(Sharded::on(devices.clone(), copies.collect::<Result<_>>()?, true))
    })
}

/// The value that all devices have, as an array on the first of them: `flax.jax_utils.unreplicate`.
/// Nothing is copied.
///
/// # Errors
/// Returns an error if a leaf is not known to be the same on all devices; use its
/// [`Sharded::shards`] then.
pub fn unreplicate<M: Tree<Sharded>>(tree: &M) -> Result<M::With<Array>> {
    try_map(tree, |path, leaf: &Sharded| {
        if !leaf.is_replicated() {
            return Err(Error::Argument(format!(
                "unreplicate: {path} may differ between devices: it was not computed from \
                 replicated values, psum, pmean, all_gather and the like alone. Take its .shards(), \
                 or unshard it"
            )));
        }
        Ok(leaf.shards()[0].clone())
    })
}

/// Divides every leaf along its first axis into one block for each device, in order:
/// `flax.training.common_utils.shard` and `jax.device_put_sharded` in one.
///
/// # Errors
/// Returns an error if a leaf has no first axis or the devices do not divide it evenly, if there is
/// no such device, or it is out of memory.
pub fn shard<M: Tree<Array>>(tree: &M, devices: &[usize]) -> Result<M::With<Sharded>> {
    let devices = checked(devices)?;
    let count = devices.len();
    try_map(tree, |path, leaf: &Array| {
        let ty = leaf.ty();
        if ty.rank() == 0 {
            return Err(Error::Argument(format!(
                "shard: {path} is {ty} and has no axis to divide; replicate it instead"
            )));
        }
        let rows = ty.shape[0];
        if !rows.is_multiple_of(count) {
            let (below, above) = (rows / count * count, rows.div_ceil(count) * count);
            return Err(Error::Argument(format!(
                "shard: the first axis of {path} {ty} has size {rows}, which {count} devices do not \
                 divide evenly; the nearest sizes that they do are {below} and {above}"
            )));
        }
        let literal = leaf.to_literal()?;
        let part = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, rows / count));
        let parts = rows_of(&literal, &part, count);
        let parts = parts.iter().zip(&*devices).map(|(part, &device)| part.to(device));
        Ok(Sharded::on(devices.clone(), parts.collect::<Result<_>>()?, false))
    })
}

/// Concatenates the parts of every leaf along the first axis, on the host: the inverse of
/// [`shard`]. A value divided over a mesh is put together as it is divided. Waits for them.
///
/// # Errors
/// Returns an error if a leaf has no first axis (use [`Sharded::stack`]), or the error of the
/// computation.
pub fn unshard<M: Tree<Sharded>>(tree: &M) -> Result<M::With<Array>> {
    try_map(tree, |path, leaf: &Sharded| {
        if let Placement::Named(whole) = leaf.placement() {
            return leaf.assembled(whole);
        }
        let ty = leaf.ty();
        if ty.rank() == 0 {
            return Err(Error::Argument(format!(
                "unshard: {path} is {ty} on each device and has no axis to join along; use \
                 Sharded::stack"
            )));
        }
        let rows = ty.shape[0] * leaf.shards().len();
        leaf.concatenated(TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, rows)))
    })
}

/// The parts of several trees, one for each device, as one tree: for data that is made per device.
///
/// # Errors
/// As [`Sharded::from_shards`], or if the trees have different structures.
pub fn device_put_sharded<M: Tree<Array>>(
    parts: &[M],
    devices: &[usize],
) -> Result<M::With<Sharded>> {
    let Some(first) = parts.first() else {
        return Err(Error::Argument("device_put_sharded: there are no parts".into()));
    };
    for part in parts {
        tree::same_structure::<Array, Array, M, M>(first, part)
            .map_err(|error| Error::Argument(format!("device_put_sharded: {error}")))?;
    }
    let leaves: Vec<Vec<Array>> = parts.iter().map(tree::leaves).collect();
    let mut index = 0;
    try_map(first, |path, _| {
        let shards: Vec<Array> = leaves.iter().map(|leaves| leaves[index].clone()).collect();
        index += 1;
        Sharded::from_shards(&shards, devices).map_err(|error| match error {
            Error::Argument(text) => Error::Argument(format!("{path}: {text}")),
            other => other,
        })
    })
}
