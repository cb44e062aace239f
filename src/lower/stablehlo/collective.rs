//! Collectives between the replicas of a program, or between its partitions.

#![deny(clippy::wildcard_enum_match_arm)]

use super::emitter::{Emitter, Values};
use super::mlir::{List, Ty, Value, signature};
use crate::trace::axis::Axis;
use crate::trace::op::{AllReduceOp, BinaryOp, Collective, CollectiveOp};
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    pub(super) fn collective(
        &mut self,
        collective: &CollectiveOp,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Values {
        let size = collective.size();
        let groups = self.groups(collective);
        let replica_groups = replica_groups(&groups);
        let one = match &collective.kind {
            Collective::AllReduce(op) => return self.all_reduce(*op, &groups, x, tys),
            Collective::AllGather { at } => {
                let row = TensorType::new(tys[0].dtype, tys[0].shape.with_axis(*at, 1));
                let x = self.reshape(x[0], tys[0], &row);
                let channel = self.channel(true);
                self.op(format_args!(
                    "\"stablehlo.all_gather\"({x}) <{{all_gather_dim = {at} : i64, \
                     {replica_groups}{channel}}}> : {}",
                    signature(&[&row], &[result])
                ))
            }
            Collective::ReduceScatter { at } => {
                let row = TensorType::new(tys[0].dtype, result.shape.with_axis(*at, 1));
                let (channel, value) = (self.channel(true), self.begin(1)[0]);
                self.write(format_args!(
                    "\"stablehlo.reduce_scatter\"({}) <{{{replica_groups}, scatter_dimension \
                     = {at} : i64{channel}}}> ({{\n",
                    x[0]
                ));
                self.reducer(AllReduceOp::Sum, tys[0].dtype);
                self.margin();
                self.write(format_args!("}}) : {}", signature(&[tys[0]], &[&row])));
                self.end();
                self.reshape(value, &row, result)
            }
            Collective::AllToAll { split, concat } => {
                // The operation concatenates along an existing axis: one of size 1, inserted so
                // that its position is right when the divided axis, then of size 1, is removed.
                let ty = tys[0];
                let before = concat <= split;
                let (split, concat) =
                    if before { (split + 1, *concat) } else { (*split, concat + 1) };
                let row = TensorType::new(ty.dtype, ty.shape.with_axis(concat, 1));
                let joined = row.shape.without_axis(concat).with_axis(concat, size);
                let joined = joined.without_axis(split).with_axis(split, 1);
                let joined = TensorType::new(ty.dtype, joined);
                let x = self.reshape(x[0], ty, &row);
                let channel = self.channel(false);
                let x = self.op(format_args!(
                    "\"stablehlo.all_to_all\"({x}) <{{concat_dimension = {concat} : i64, \
                     {replica_groups}, split_count = {size} : i64, split_dimension = {split} : \
                     i64{channel}}}> : {}",
                    signature(&[&row], &[&joined])
                ));
                self.reshape(x, &joined, result)
            }
            Collective::Permute { pairs } => {
                let all = groups.iter().flat_map(|group| {
                    pairs.iter().map(|&(source, target)| [group[source], group[target]])
                });
                let list: Vec<String> =
                    all.map(|[source, target]| format!("[{source}, {target}]")).collect();
                let channel = self.channel(false);
                self.op(format_args!(
                    "\"stablehlo.collective_permute\"({}) <{{source_target_pairs = dense<[{}]> : \
                     tensor<{}x2xi64>{channel}}}> : {}",
                    x[0],
                    list.join(", "),
                    list.len(),
                    signature(tys, &[result])
                ))
            }
            Collective::Index => self.member_index(collective),
        };
        Values::from_iter([one])
    }

    /// The devices that exchange values: all replicas, or the partitions of a mesh that differ along
    /// the axes only, each list in the order of the members.
    fn groups(&self, collective: &CollectiveOp) -> Vec<Vec<usize>> {
        let mesh = &self.options.mesh;
        let members = |first: usize, axes: &[Axis]| {
            axes.iter().fold(vec![first], |all, axis| {
                let stride = self.stride(*axis);
                let steps = |first: usize| (0..axis.size()).map(move |i| first + i * stride);
                all.into_iter().flat_map(steps).collect()
            })
        };
        let all: Vec<Vec<usize>> = if mesh.is_empty() {
            vec![(0..collective.num_members()).collect()]
        } else {
            let others = mesh.iter().filter(|axis| !collective.is_along(**axis));
            let others: Vec<Axis> = others.copied().collect();
            members(0, &others).into_iter().map(|first| members(first, &collective.axes)).collect()
        };
        let Some(groups) = &collective.groups else { return all };
        let within = |all: &Vec<usize>| {
            groups
                .iter()
                .map(|group| group.iter().map(|&member| all[member]).collect())
                .collect::<Vec<Vec<usize>>>()
        };
        all.iter().flat_map(within).collect()
    }

    /// Distance of the partitions that are neighbors along an axis of the mesh.
    fn stride(&self, axis: Axis) -> usize {
        let after = self.options.mesh.iter().rev().take_while(|&&other| other != axis);
        after.map(|axis| axis.size()).product()
    }

    /// Returns true if devices exchange values as partitions of one program, not as replicas.
    fn between_partitions(&self) -> bool {
        !self.options.mesh.is_empty() && self.options.num_partitions > 1
    }

    /// Attributes of a collective between partitions: a channel of its own, and for those that take
    /// it, that its groups are of devices.
    fn channel(&mut self, grouped: bool) -> String {
        if !self.between_partitions() {
            return String::new();
        }
        self.channels += 1;
        let handle = self.channels;
        let global = if grouped { ", use_global_device_ids" } else { "" };
        format!(", channel_handle = #stablehlo.channel_handle<handle = {handle}, type = 1>{global}")
    }

    /// The member's number along the axes, a scalar i32.
    fn member_index(&mut self, collective: &CollectiveOp) -> Value {
        let (unsigned, ty) = (TensorType::scalar(DType::U32), TensorType::scalar(DType::I32));
        if self.options.mesh.is_empty() {
            let number = self.op(format_args!("stablehlo.replica_id : {}", Ty(&unsigned)));
            return self.convert(number, &unsigned, DType::I32);
        }
        if self.options.num_partitions == 1 {
            return self.index(0);
        }
        let number = self.partition_id(&unsigned);
        let number = self.convert(number, &unsigned, DType::I32);
        let mut index = self.index(0);
        for &axis in &collective.axes {
            let stride = self.index(self.stride(axis));
            let size = self.index(axis.size());
            let place = self.binary(BinaryOp::Div, number, stride, &ty);
            let place = self.binary(BinaryOp::Rem, place, size, &ty);
            let before = self.binary(BinaryOp::Mul, index, size, &ty);
            index = self.binary(BinaryOp::Add, before, place, &ty);
        }
        index
    }

    /// One exchange for all operands of an element type: it costs about as much as one for a single
    /// operand. Between partitions one exchange each, since XLA's partitioner takes no others.
    fn all_reduce(
        &mut self,
        op: AllReduceOp,
        groups: &[Vec<usize>],
        x: &[Value],
        tys: &[&TensorType],
    ) -> Values {
        let mut results: Values = x.into();
        let mut exchanges: Vec<Vec<usize>> = (0..x.len()).map(|i| vec![i]).collect();
        if !self.between_partitions() {
            exchanges.sort_by_key(|exchange| tys[exchange[0]].dtype.name());
            exchanges = exchanges
                .chunk_by(|a, b| tys[a[0]].dtype == tys[b[0]].dtype)
                .map(<[Vec<usize>]>::concat)
                .collect();
        }
        for of in exchanges {
            let operands: Vec<Value> = of.iter().map(|&i| x[i]).collect();
            let types: Vec<&TensorType> = of.iter().map(|&i| tys[i]).collect();
            let values = self.begin(of.len());
            let (groups, channel) = (replica_groups(groups), self.channel(true));
            self.write(format_args!(
                "\"stablehlo.all_reduce\"({}) <{{{groups}{channel}}}> ({{\n",
                List(&operands)
            ));
            self.reducer(op, types[0].dtype);
            self.margin();
            self.write(format_args!("}}) : {}", signature(&types, &types)));
            self.end();
            for (&i, &value) in of.iter().zip(&values) {
                results[i] = value;
            }
        }
        results
    }

    /// The region that combines two elements.
    fn reducer(&mut self, op: AllReduceOp, dtype: DType) {
        let name = match op {
            AllReduceOp::Sum => "add",
            AllReduceOp::Max => "maximum",
            AllReduceOp::Min => "minimum",
        };
        let scalar = TensorType::scalar(dtype);
        let [a, b] = std::array::from_fn(|_| self.new_argument());
        self.margin();
        self.write(format_args!("^bb0({a}: {0}, {b}: {0}):\n", Ty(&scalar)));
        self.open();
        let value = self.op(format_args!("stablehlo.{name} {a}, {b} : {}", Ty(&scalar)));
        self.return_values(&[value], &[&scalar]);
        self.close();
    }
}

/// The groups of devices that exchange values.
fn replica_groups(groups: &[Vec<usize>]) -> String {
    let rows: Vec<String> = groups.iter().map(|group| format!("{group:?}")).collect();
    let (count, size) = (groups.len(), groups.first().map_or(0, Vec::len));
    format!("replica_groups = dense<[{}]> : tensor<{count}x{size}xi64>", rows.join(", "))
}
