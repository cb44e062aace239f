//! Division of whole values over the axes of a mesh.

use crate::trace::axis::{Axis, AxisVec};
use crate::trace::types::{Shape, TensorType};

/// A division of a value over a mesh of devices, or the way between the value and its shards.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ShardingOp {
    /// Kind of the operation.
    pub kind: ShardingKind,
    /// The axes of the mesh.
    pub mesh: AxisVec,
    /// Axes that divide each dimension of the value, major first.
    pub spec: Vec<AxisVec>,
}

/// Kind of a [`ShardingOp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShardingKind {
    /// The operand, divided so on its devices: `with_sharding_constraint`.
    Constraint,
    /// The member's shard of a whole value: the way into a `shard_map`.
    FullToShard,
    /// The whole value of the members' shards: the way out of a `shard_map`. Along axes of the mesh
    /// that divide no dimension, the shards are equal.
    ShardToFull,
}

impl ShardingOp {
    /// The name, as printed in Programs and messages.
    pub fn name(&self) -> &'static str {
        match self.kind {
            ShardingKind::Constraint => "sharding_constraint",
            ShardingKind::FullToShard => "full_to_shard",
            ShardingKind::ShardToFull => "shard_to_full",
        }
    }

    /// The dimension that `axis` divides, and the position of the axis among those that do.
    pub fn dimension_of(&self, axis: Axis) -> Option<(usize, usize)> {
        let mut dims = self.spec.iter().enumerate();
        dims.find_map(|(i, axes)| Some((i, axes.iter().position(|&other| other == axis)?)))
    }

    /// Axes of the mesh that divide no dimension.
    pub fn unmentioned(&self) -> AxisVec {
        self.mesh.iter().copied().filter(|&axis| self.dimension_of(axis).is_none()).collect()
    }

    /// Number of parts that each dimension is divided into.
    pub fn parts(&self) -> impl Iterator<Item = usize> + '_ {
        self.spec.iter().map(|axes| axes.iter().map(|axis| axis.size()).product())
    }

    /// The type of a shard of a value of type `whole`.
    ///
    /// # Errors
    /// If a dimension does not divide.
    pub fn shard_type(&self, whole: &TensorType) -> Result<TensorType, String> {
        let mut sizes = Vec::with_capacity(whole.rank());
        for (i, parts) in self.parts().enumerate() {
            let size = whole.shape[i];
            if parts == 0 || !size.is_multiple_of(parts) {
                let names: Vec<&str> = self.spec[i].iter().map(|axis| axis.name()).collect();
                return Err(format!(
                    "dimension {i} of {whole} has size {size}, which mesh axis `{}` of size {parts} \
                     does not divide evenly",
                    names.join("`, `")
                ));
            }
            sizes.push(size / parts);
        }
        Ok(TensorType::new(whole.dtype, Shape::from_iter(sizes)))
    }

    /// The type of the whole value with shards of type `shard`.
    pub fn whole_type(&self, shard: &TensorType) -> TensorType {
        let sizes = self.parts().zip(shard.shape.iter()).map(|(parts, size)| parts * size);
        TensorType::new(shard.dtype, Shape::from_iter(sizes))
    }
}
