//! Division of values over the partitions of a program: the text of XLA's shardings, and the way
//! between a whole value and the shards that a `shard_map` computes with.

use std::mem;

use smallvec::SmallVec;

use super::emitter::{Emitter, Slot};
use super::mlir::{Ty, Value};
use crate::trace::axis::{Axis, AxisVec};
use crate::trace::op::{Op, ShardingKind, ShardingOp, Structure};
use crate::trace::program::{Equation, Program};
use crate::trace::types::TensorType;

/// XLA's text of a value that every device has.
pub(crate) const REPLICATED: &str = "{replicated}";

/// XLA's text of values that each device computes with on its own.
const MANUAL: &str = "{manual}";

/// XLA's text of the division of a value over a mesh, whose devices have numbers in row-major
/// order: axes that divide each dimension, major first.
pub(crate) fn sharding_text(mesh: &[Axis], spec: &[AxisVec]) -> String {
    let mentioned: Vec<Axis> = spec.iter().flatten().copied().collect();
    if mentioned.iter().all(|axis| axis.size() == 1) {
        return REPLICATED.into();
    }
    let place = |axis: &Axis| mesh.iter().position(|other| other == axis).unwrap_or_default();
    let others = mesh.iter().filter(|axis| !mentioned.contains(axis));
    let order: Vec<usize> = mentioned.iter().chain(others.clone()).map(place).collect();
    let copies: usize = others.map(|axis| axis.size()).product();
    let mut tiles: Vec<usize> =
        spec.iter().map(|axes| axes.iter().map(|axis| axis.size()).product()).collect();
    let last = if copies > 1 { " last_tile_dim_replicate" } else { "" };
    if copies > 1 {
        tiles.push(copies);
    }
    let commas = |numbers: &[usize]| {
        numbers.iter().map(|number| number.to_string()).collect::<Vec<String>>().join(",")
    };
    let sizes: Vec<usize> = mesh.iter().map(|axis| axis.size()).collect();
    let devices = match order.is_sorted() {
        true => sizes.iter().product::<usize>().to_string(),
        false => format!("{}]T({}", commas(&sizes), commas(&order)),
    };
    let end = if order.is_sorted() { "]" } else { ")" };
    format!("{{devices=[{}]<=[{devices}{end}{last}}}", commas(&tiles))
}

/// The attribute of an operation, argument or result with this sharding.
pub(super) fn attribute(text: &str) -> String {
    format!("mhlo.sharding = \"{text}\"")
}

impl<'a> Emitter<'a> {
    /// Writes an equation of a Program for a mesh. What shards are computed from is shards too: a
    /// value that constants alone make is passed to each partition first. Otherwise the partitioner
    /// would take it, and all else that is computed from it, for values of one partition.
    pub(super) fn equation_on_mesh(
        &mut self,
        program: &'a Program,
        equation: &'a Equation,
        mut inputs: SmallVec<[Slot<'a>; 4]>,
    ) -> SmallVec<[Slot<'a>; 2]> {
        let op = &equation.op;
        let kind = if let Op::Sharding(sharding) = op { Some(sharding.kind) } else { None };
        let enters = kind == Some(ShardingKind::FullToShard);
        let is_shard =
            |slot: &Slot<'_>| matches!(slot, Slot::Value(value) if self.shards.contains(value));
        let exchanges = matches!(op, Op::Collective(_));
        let of_shards = !enters && (self.in_shards || exchanges || inputs.iter().any(is_shard));
        let reduces = matches!(op, Op::Reduce { .. } | Op::ArgReduce { .. });
        let is_folded = |slot: &Slot<'_>| match slot {
            Slot::Value(value) => self.folded.contains(value),
            Slot::Constant(_) => reduces,
        };
        let folded: SmallVec<[bool; 4]> = inputs.iter().map(is_folded).collect();
        let constant =
            |(slot, &folded): (&Slot<'_>, &bool)| folded || matches!(slot, Slot::Constant(_));
        let is_elementary = matches!(op.structure(), Structure::Elementary);
        let folds = !of_shards
            && kind.is_none()
            && is_elementary
            && inputs.iter().zip(&folded).all(constant);
        if of_shards {
            for (i, &var) in equation.inputs.iter().enumerate().filter(|(i, _)| folded[*i]) {
                let (value, ty) = (self.value(&inputs[i]), program.ty(var));
                inputs[i] = Slot::Value(self.shard_of_copied(value, ty));
            }
        }
        // A loop or branch with divisions of its own has both kinds of values inside.
        let mixed = op.subprograms().any(|program| program.find_mesh(&|_| true).is_some());
        let outside = mem::replace(&mut self.in_shards, of_shards && !mixed);
        let outputs = self.equation(program, equation, &inputs);
        self.in_shards = outside;
        for output in &outputs {
            if let Slot::Value(value) = output {
                if enters || (of_shards && kind != Some(ShardingKind::ShardToFull)) {
                    self.shards.insert(*value);
                } else if folds {
                    self.folded.insert(*value);
                }
            }
        }
        outputs
    }

    /// The shard of a value that all partitions have: the value.
    pub(super) fn shard_of_copied(&mut self, x: Value, ty: &TensorType) -> Value {
        let copied = self.annotated("Sharding", x, ty, ty, REPLICATED);
        self.annotated("SPMDFullToShardShape", copied, ty, ty, MANUAL)
    }

    pub(super) fn sharding(
        &mut self,
        sharding: &ShardingOp,
        x: Value,
        ty: &TensorType,
        result: &TensorType,
    ) -> Value {
        // On one device nothing is divided.
        if self.options.num_partitions == 1 {
            return x;
        }
        let text = sharding_text(&sharding.mesh, &sharding.spec);
        match sharding.kind {
            ShardingKind::Constraint => self.annotated("Sharding", x, ty, ty, &text),
            ShardingKind::FullToShard => {
                let divided = self.annotated("Sharding", x, ty, ty, &text);
                self.annotated("SPMDFullToShardShape", divided, ty, result, MANUAL)
            }
            ShardingKind::ShardToFull => {
                let shard = self.annotated("Sharding", x, ty, ty, MANUAL);
                self.annotated("SPMDShardToFullShape", shard, ty, result, &text)
            }
        }
    }

    /// One of the custom calls that the compiler's partitioner replaces.
    fn annotated(
        &mut self,
        call: &str,
        x: Value,
        ty: &TensorType,
        result: &TensorType,
        text: &str,
    ) -> Value {
        self.op(format_args!(
            "stablehlo.custom_call @{call}({x}) {{{}}} : ({}) -> {}",
            attribute(text),
            Ty(ty),
            Ty(result)
        ))
    }

    /// The number of this partition, a scalar u32.
    pub(super) fn partition_id(&mut self, ty: &TensorType) -> Value {
        self.op(format_args!(
            "\"stablehlo.partition_id\"() {{{}}} : () -> {}",
            attribute(MANUAL),
            Ty(ty)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_xla() {
        let (x, y) = (Axis::named("x", 4), Axis::named("y", 2));
        let text = |spec: &[&[Axis]]| {
            let spec: Vec<AxisVec> = spec.iter().map(|axes| AxisVec::from_slice(axes)).collect();
            sharding_text(&[x, y], &spec)
        };
        assert_eq!(text(&[]), "{replicated}");
        assert_eq!(text(&[&[], &[]]), "{replicated}");
        assert_eq!(text(&[&[x], &[y]]), "{devices=[4,2]<=[8]}");
        assert_eq!(text(&[&[y], &[x]]), "{devices=[2,4]<=[4,2]T(1,0)}");
        assert_eq!(text(&[&[x], &[]]), "{devices=[4,1,2]<=[8] last_tile_dim_replicate}");
        assert_eq!(text(&[&[], &[y]]), "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}");
        assert_eq!(text(&[&[x, y]]), "{devices=[8]<=[8]}");
        assert_eq!(text(&[&[y, x]]), "{devices=[8]<=[4,2]T(1,0)}");
    }
}
