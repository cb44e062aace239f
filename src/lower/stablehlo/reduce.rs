//! Reductions and sorts.

#![deny(clippy::wildcard_enum_match_arm)]

use super::emitter::{Emitter, Values};
use super::mlir::{List, Ty, Value, predicate, signature};
use crate::trace::literal::{Element, Literal};
use crate::trace::op::{ArgOp, BinaryOp, CompareOp, ReduceOp};
use crate::trace::types::{DType, TensorType};

/// The least and the greatest element of a type.
fn bounds(dtype: DType) -> (Literal, Literal) {
    fn pair<T: Element>(low: T, high: T) -> (Literal, Literal) {
        (Literal::scalar(low), Literal::scalar(high))
    }
    match dtype {
        DType::Bool => pair(false, true),
        DType::I8 => pair(i8::MIN, i8::MAX),
        DType::I16 => pair(i16::MIN, i16::MAX),
        DType::I32 => pair(i32::MIN, i32::MAX),
        DType::I64 => pair(i64::MIN, i64::MAX),
        DType::U8 => pair(u8::MIN, u8::MAX),
        DType::U16 => pair(u16::MIN, u16::MAX),
        DType::U32 => pair(u32::MIN, u32::MAX),
        DType::U64 => pair(u64::MIN, u64::MAX),
        DType::F16 => pair(half::f16::NEG_INFINITY, half::f16::INFINITY),
        DType::BF16 => pair(half::bf16::NEG_INFINITY, half::bf16::INFINITY),
        DType::F32 => pair(f32::NEG_INFINITY, f32::INFINITY),
        DType::F64 => pair(f64::NEG_INFINITY, f64::INFINITY),
        DType::C64 | DType::C128 => unreachable!("complex numbers have no order"),
        DType::F8E4M3FN | DType::F8E5M2 | DType::I4 | DType::U4 => {
            unreachable!("{dtype} has no arithmetic")
        }
    }
}

/// Returns the result of a reduction of no elements.
fn identity(op: ReduceOp, dtype: DType) -> Literal {
    let scalar = |value| Literal::filled(TensorType::scalar(dtype), value);
    match op {
        ReduceOp::Sum => scalar(0.0),
        ReduceOp::Prod => scalar(1.0),
        ReduceOp::Max => bounds(dtype).0,
        ReduceOp::Min => bounds(dtype).1,
        ReduceOp::Or => scalar(0.0),
        // All ones: -1, the greatest unsigned number, or true.
        ReduceOp::And if dtype.is_unsigned() => bounds(dtype).1,
        ReduceOp::And => scalar(-1.0),
    }
}

/// Sizes (first axis, other reduced axes, kept axes) of a reduction that is faster in two steps on
/// CPU, over the first axis and then over the others: that of a long tensor over several leading
/// axes, such as a convolution's gradient over batch and space for its bias.
///
/// The compiler's loop over one long row after another keeps all sums in the cache, which its loop
/// over several axes does not (`docs/decisions/0002-convolutions-on-cpu.md`, section 4).
fn two_steps(ty: &TensorType, axes: &[usize]) -> Option<[usize; 3]> {
    let leading = axes.len() >= 2 && axes.iter().enumerate().all(|(i, &axis)| i == axis);
    // Half precision would round the sums in between.
    if !leading || ty.numel() < 1 << 18 || matches!(ty.dtype, DType::F16 | DType::BF16) {
        return None;
    }
    let (reduced, kept) = ty.shape.split_at(axes.len());
    let sizes = [reduced[0], reduced[1..].iter().product(), kept.iter().product()];
    // The sums between the steps must be few, and the kept ones enough for a vector.
    (sizes[0] >= 16 && sizes[2] >= 8 && sizes[1] * sizes[2] <= 1 << 16).then_some(sizes)
}

impl Emitter<'_> {
    pub(super) fn reduce(
        &mut self,
        op: ReduceOp,
        x: Value,
        ty: &TensorType,
        axes: &[usize],
        result: &TensorType,
    ) -> Value {
        if axes.is_empty() {
            return x;
        }
        if matches!(op, ReduceOp::Sum | ReduceOp::Prod)
            && matches!(ty.dtype, DType::F16 | DType::BF16)
        {
            // Rounded to half precision after each addition, a long sum stops growing.
            let [wide, sum] = [ty, result].map(|ty| TensorType::new(DType::F32, &ty.shape));
            let x = self.convert(x, ty, DType::F32);
            let value = self.reduce(op, x, &wide, axes, &sum);
            return self.convert(value, &sum, result.dtype);
        }
        if let Some(value) = self.reduce_rows(op, x, ty, axes, result) {
            return value;
        }
        if self.options.platform.facts().splits_reductions
            && let Some([rows, middle, kept]) = two_steps(ty, axes)
        {
            let flat = TensorType::new(ty.dtype, [rows, middle * kept]);
            let part = TensorType::new(ty.dtype, [middle * kept]);
            let table = TensorType::new(ty.dtype, [middle, kept]);
            let last = TensorType::new(ty.dtype, [kept]);
            let x = self.reshape(x, ty, &flat);
            let x = self.reduce_once(op, x, &flat, &[0], &part);
            // Otherwise the compiler merges the two again.
            let x = self.op(format_args!("stablehlo.optimization_barrier {x} : {}", Ty(&part)));
            let x = self.reshape(x, &part, &table);
            let x = self.reduce_once(op, x, &table, &[0], &last);
            return self.reshape(x, &last, result);
        }
        self.reduce_once(op, x, ty, axes, result)
    }

    pub(super) fn reduce_once(
        &mut self,
        op: ReduceOp,
        x: Value,
        ty: &TensorType,
        axes: &[usize],
        result: &TensorType,
    ) -> Value {
        let name = match op {
            ReduceOp::Sum => "add",
            ReduceOp::Prod => "multiply",
            ReduceOp::Max => "maximum",
            ReduceOp::Min => "minimum",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
        };
        let initial = self.constant(&identity(op, ty.dtype));
        let scalar = TensorType::scalar(ty.dtype);
        self.op(format_args!(
            "stablehlo.reduce({x} init: {initial}) applies stablehlo.{name} across dimensions = \
             [{}] : {}",
            List(axes),
            signature(&[ty, &scalar], &[result])
        ))
    }

    /// The index travels with the value through one reduction, as in JAX: of equal values the
    /// lower index stays, and a NaN, once met, stays.
    pub(super) fn arg_reduce(
        &mut self,
        op: ArgOp,
        x: Value,
        ty: &TensorType,
        axis: usize,
        result: &TensorType,
    ) -> Value {
        if let Some(value) = self.arg_rows(op, x, ty, axis, result) {
            return value;
        }
        let indices_ty = TensorType::new(DType::I32, &ty.shape);
        let values_ty = TensorType::new(ty.dtype, &result.shape);
        let (value_ty, index_ty) = (TensorType::scalar(ty.dtype), TensorType::scalar(DType::I32));
        let (low, high) = bounds(ty.dtype);
        let (worst, beats) = match op {
            ArgOp::Max => (low, CompareOp::Gt),
            ArgOp::Min => (high, CompareOp::Lt),
        };
        let worst = self.constant(&worst);
        let zero = self.index(0);
        let indices = self.op(format_args!("stablehlo.iota dim = {axis} : {}", Ty(&indices_ty)));
        let results = self.begin(2);
        self.write(format_args!(
            "stablehlo.reduce({x} init: {worst}), ({indices} init: {zero}) across dimensions = \
             [{axis}] : {}\n",
            signature(&[ty, &indices_ty, &value_ty, &index_ty], &[&values_ty, result])
        ));
        let [a, i, b, j] = std::array::from_fn(|_| self.new_argument());
        self.margin();
        let (value, index) = (Ty(&value_ty), Ty(&index_ty));
        self.write(format_args!(
            " reducer({a}: {value}, {b}: {value}) ({i}: {index}, {j}: {index}) {{\n"
        ));
        self.open();
        let bool_ty = predicate(&value_ty);
        let mut wins = self.compare(beats, a, b, &value_ty);
        if ty.dtype.is_float() {
            let nan = self.compare(CompareOp::Ne, a, a, &value_ty);
            wins = self.binary(BinaryOp::Or, wins, nan, &bool_ty);
        }
        let equal = self.compare(CompareOp::Eq, a, b, &value_ty);
        let before = self.compare(CompareOp::Lt, i, j, &index_ty);
        let first = self.binary(BinaryOp::And, equal, before, &bool_ty);
        let keeps = self.binary(BinaryOp::Or, wins, first, &bool_ty);
        let value = self.select(wins, a, b, &bool_ty, &value_ty);
        let index = self.select(keeps, i, j, &bool_ty, &index_ty);
        self.return_values(&[value, index], &[&value_ty, &index_ty]);
        self.close();
        self.margin();
        self.out.push('}');
        self.end();
        results[1]
    }

    pub(super) fn sort(&mut self, x: &[Value], tys: &[&TensorType], axis: usize) -> Values {
        let results = self.begin(x.len());
        self.write(format_args!(
            "\"stablehlo.sort\"({}) <{{dimension = {axis} : i64, is_stable = true}}> ({{\n",
            List(x)
        ));
        let key = TensorType::scalar(tys[0].dtype);
        let bool_ty = predicate(&key);
        self.margin();
        self.out.push_str("^bb0(");
        let mut keys = [Value::result(0); 2];
        for (i, ty) in tys.iter().enumerate() {
            let scalar = TensorType::scalar(ty.dtype);
            let [a, b] = std::array::from_fn(|_| self.new_argument());
            if i == 0 {
                keys = [a, b];
            } else {
                self.out.push_str(", ");
            }
            self.write(format_args!("{a}: {0}, {b}: {0}", Ty(&scalar)));
        }
        self.out.push_str("):\n");
        self.open();
        let [a, b] = keys;
        let mut less = self.compare(CompareOp::Lt, a, b, &key);
        if key.dtype.is_float() {
            // Comparisons with NaN are false: a number is ordered before a NaN all the same.
            let number = self.compare(CompareOp::Eq, a, a, &key);
            let nan = self.compare(CompareOp::Ne, b, b, &key);
            let before = self.binary(BinaryOp::And, number, nan, &bool_ty);
            less = self.binary(BinaryOp::Or, less, before, &bool_ty);
        }
        self.return_values(&[less], &[&bool_ty]);
        self.close();
        self.margin();
        self.write(format_args!("}}) : {}", signature(tys, tys)));
        self.end();
        results
    }

    /// Ends a region that gives values.
    pub(super) fn return_values(&mut self, values: &[Value], types: &[&TensorType]) {
        self.margin();
        let (values, types) = (List(values), super::mlir::Types(types));
        self.write(format_args!("stablehlo.return {values} : {types}"));
        self.end();
    }
}
