//! Collectives between the replicas of a program.

#![deny(clippy::wildcard_enum_match_arm)]

use super::emitter::{Emitter, Values};
use super::mlir::{List, Ty, Value, signature};
use crate::trace::op::{AllReduceOp, Collective, CollectiveOp};
use crate::trace::types::{DType, TensorType};

impl Emitter<'_> {
    pub(super) fn collective(
        &mut self,
        collective: &CollectiveOp,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Values {
        let size = collective.axis.size();
        let one = match &collective.kind {
            Collective::AllReduce(op) => return self.all_reduce(*op, size, x, tys),
            Collective::AllGather { at } => {
                let row = TensorType::new(tys[0].dtype, tys[0].shape.with_axis(*at, 1));
                let x = self.reshape(x[0], tys[0], &row);
                let groups = groups(size);
                self.op(format_args!(
                    "\"stablehlo.all_gather\"({x}) <{{all_gather_dim = {at} : i64, {groups}}}> : {}",
                    signature(&[&row], &[result])
                ))
            }
            Collective::ReduceScatter { at } => {
                let row = TensorType::new(tys[0].dtype, result.shape.with_axis(*at, 1));
                let value = self.begin(1)[0];
                let groups = groups(size);
                self.write(format_args!(
                    "\"stablehlo.reduce_scatter\"({}) <{{{groups}, scatter_dimension = {at} : \
                     i64}}> ({{\n",
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
                let groups = groups(size);
                let x = self.op(format_args!(
                    "\"stablehlo.all_to_all\"({x}) <{{concat_dimension = {concat} : i64, {groups}, \
                     split_count = {size} : i64, split_dimension = {split} : i64}}> : {}",
                    signature(&[&row], &[&joined])
                ));
                self.reshape(x, &joined, result)
            }
            Collective::Permute { pairs } => {
                let count = pairs.len();
                let list: Vec<String> =
                    pairs.iter().map(|(source, target)| format!("[{source}, {target}]")).collect();
                self.op(format_args!(
                    "\"stablehlo.collective_permute\"({}) <{{source_target_pairs = dense<[{}]> : \
                     tensor<{count}x2xi64>}}> : {}",
                    x[0],
                    list.join(", "),
                    signature(tys, &[result])
                ))
            }
            Collective::Index => {
                let ty = TensorType::scalar(DType::U32);
                let number = self.op(format_args!("stablehlo.replica_id : {}", Ty(&ty)));
                self.convert(number, &ty, DType::I32)
            }
        };
        Values::from_iter([one])
    }

    /// One exchange for all operands of an element type.
    fn all_reduce(
        &mut self,
        op: AllReduceOp,
        size: usize,
        x: &[Value],
        tys: &[&TensorType],
    ) -> Values {
        let mut results: Values = x.into();
        let mut dtypes: Vec<DType> = tys.iter().map(|ty| ty.dtype).collect();
        dtypes.sort_by_key(|dtype| dtype.name());
        dtypes.dedup();
        for dtype in dtypes {
            let of: Vec<usize> = (0..x.len()).filter(|&i| tys[i].dtype == dtype).collect();
            let operands: Vec<Value> = of.iter().map(|&i| x[i]).collect();
            let types: Vec<&TensorType> = of.iter().map(|&i| tys[i]).collect();
            let values = self.begin(of.len());
            let groups = groups(size);
            self.write(format_args!(
                "\"stablehlo.all_reduce\"({}) <{{{groups}}}> ({{\n",
                List(&operands)
            ));
            self.reducer(op, dtype);
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

/// All replicas in one group.
fn groups(size: usize) -> String {
    let members: Vec<String> = (0..size).map(|i| i.to_string()).collect();
    format!("replica_groups = dense<[[{}]]> : tensor<1x{size}xi64>", members.join(", "))
}
