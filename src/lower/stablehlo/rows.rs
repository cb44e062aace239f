//! Sums, maxima and minima of rows on CPU: reductions over the last axes.
//!
//! The compiler adds the elements of a row one after the other, each addition waiting for the one
//! before it, and compares them so too, with care for NaN and the sign of zero at every element.
//! Here rows are added by a product with ones, and compared by halves, many elements at once.
//! Measured on the CPU plugin (`f32`, microseconds, without the time of the loop around it; an idle
//! machine):
//!
//! | rows of        | sum    | by a product | maximum | by halves |
//! |----------------|--------|--------------|---------|-----------|
//! | 256 x 16       | 0.8    | 0.4          | 2.6     | 2.2       |
//! | 256 x 101      | 5.2    | 1.5          | 19      | 4.0       |
//! | 64 x 512       | 7.5    | 1.4          | 26      | 3.4       |
//! | 64 x 4,096     | 41     | 26           | 132     | 26        |
//!
//! Few long rows are divided into more and shorter ones first: the sum of 65,536 numbers takes 3.6
//! microseconds instead of 15.

use super::emitter::Emitter;
use super::mlir::{Ty, Value, predicate};
use crate::trace::literal::Literal;
use crate::trace::op::{ArgOp, BinaryOp, CompareOp, DotDims, Precision, ReduceOp};
use crate::trace::types::{DType, TensorType};

/// Rows of more elements are compared in vectors of [`LANES`] first, so that the text of the
/// halving stays short.
const MAX_HALVED_LENGTH: usize = 512;

/// Elements of a vector.
const LANES: usize = 16;

/// Fewer rows are divided before they are added: a product of one row is slow.
const MIN_PARTS: usize = 8;

/// Returns the number of rows and their length in a reduction over `axes`, if these are the last
/// axes and the elements are floats.
fn rows(ty: &TensorType, axes: &[usize]) -> Option<[usize; 2]> {
    let float = matches!(ty.dtype, DType::F32 | DType::F64);
    let kept = ty.rank() - axes.len();
    let last = axes.iter().enumerate().all(|(i, &axis)| axis == kept + i);
    let [count, length] =
        [&ty.shape[..kept], &ty.shape[kept..]].map(|sizes| sizes.iter().product());
    (float && last && count > 0 && length >= MIN_PARTS).then_some([count, length])
}

/// The index of the best element of a shorter row is left to the compiler, which needs up to half as long.
const MIN_SEARCHED_LENGTH: usize = 32;

/// Fewer elements in few rows are left to the compiler.
const MIN_SPLIT_ELEMENTS: usize = 1024;

/// The length of the parts into which a row to be added is divided: about 128, and at least 8
/// parts.
fn part(length: usize) -> Option<usize> {
    let fits = |part: &usize| length.is_multiple_of(*part) && length / part >= MIN_PARTS;
    (16..=256).filter(fits).min_by_key(|&part| part.abs_diff(128))
}

impl Emitter<'_> {
    /// Returns the rows if they are reduced here: on CPU.
    fn pay(&self, rows: Option<[usize; 2]>) -> Option<[usize; 2]> {
        rows.filter(|_| self.options.platform.facts().splits_reductions)
    }

    /// A reduction of rows, if it has that form and a faster form is known.
    pub(super) fn reduce_rows(
        &mut self,
        op: ReduceOp,
        x: Value,
        ty: &TensorType,
        axes: &[usize],
        result: &TensorType,
    ) -> Option<Value> {
        let [count, length] = self.pay(rows(ty, axes))?;
        let table = |rows, columns| TensorType::new(ty.dtype, [rows, columns]);
        let reduced = match op {
            ReduceOp::Max | ReduceOp::Min => {
                let x = self.reshape(x, ty, &table(count, length));
                self.best(op, x, &table(count, length))
            }
            ReduceOp::Sum if count >= MIN_PARTS && length >= LANES => {
                let x = self.reshape(x, ty, &table(count, length));
                self.added(x, &table(count, length))
            }
            ReduceOp::Sum => {
                let part = part(length).filter(|_| count * length >= MIN_SPLIT_ELEMENTS)?;
                let (parts, rest) = (table(count * (length / part), part), length / part);
                let x = self.reshape(x, ty, &parts);
                let sums = self.added(x, &parts);
                let sums_ty = table(count * rest, 1);
                let x = self.reshape(sums, &sums_ty, &table(count, rest));
                let [flat, from] = [TensorType::new(ty.dtype, [count]), table(count, rest)];
                let sums = self.reduce_once(ReduceOp::Sum, x, &from, &[1], &flat);
                return Some(self.reshape(sums, &flat, result));
            }
            ReduceOp::Prod | ReduceOp::And | ReduceOp::Or => return None,
        };
        Some(self.reshape(reduced, &table(count, 1), result))
    }

    /// The sums of the rows: `[R, N]` to `[R, 1]`.
    fn added(&mut self, x: Value, ty: &TensorType) -> Value {
        let ones_ty = TensorType::new(ty.dtype, [ty.shape[1], 1]);
        let ones = self.constant(&Literal::filled(ones_ty.clone(), 1.0));
        let dims = DotDims {
            lhs_contract: [1].into_iter().collect(),
            rhs_contract: [0].into_iter().collect(),
            lhs_batch: Default::default(),
            rhs_batch: Default::default(),
            precision: Precision::Highest,
        };
        let result = TensorType::new(ty.dtype, [ty.shape[0], 1]);
        self.dot(&dims, &[x, ones], &[ty, &ones_ty], &result)
    }

    /// The best elements of the rows: `[R, N]` to `[R, 1]`.
    fn best(&mut self, op: ReduceOp, x: Value, ty: &TensorType) -> Value {
        let &[count, length] = &ty.shape[..] else { unreachable!("a table") };
        if length <= MAX_HALVED_LENGTH {
            return self.halved(op, x, ty);
        }
        let (whole, rest) = (length / LANES * LANES, length % LANES);
        let table = |n| TensorType::new(ty.dtype, [count, n]);
        let vectors = TensorType::new(ty.dtype, [count, whole / LANES, LANES]);
        let main = self.columns(x, ty, 0, whole);
        let main = self.reshape(main, &table(whole), &vectors);
        let main = self.reduce_once(op, main, &vectors, &[1], &table(LANES));
        let main = self.halved(op, main, &table(LANES));
        if rest == 0 {
            return main;
        }
        let others = self.columns(x, ty, whole, length);
        let others = self.halved(op, others, &table(rest));
        self.better(op, main, others, &table(1))
    }

    /// As [`best`](Self::best): one half with the other, over and over. Halves of odd rows overlap,
    /// which changes no maximum.
    fn halved(&mut self, op: ReduceOp, x: Value, ty: &TensorType) -> Value {
        let (mut x, mut ty) = (x, ty.clone());
        while ty.shape[1] > 1 {
            let length = ty.shape[1];
            let half = length.div_ceil(2);
            let [a, b] =
                [[0, half], [length - half, length]].map(|[a, b]| self.columns(x, &ty, a, b));
            ty = TensorType::new(ty.dtype, [ty.shape[0], half]);
            x = self.better(op, a, b, &ty);
        }
        x
    }

    /// The better of two elements; NaN is better than all numbers. If both are zeros, either one.
    ///
    /// Written out, since `maximum` also looks at the signs of zeros, which takes three times as
    /// long.
    fn better(&mut self, op: ReduceOp, a: Value, b: Value, ty: &TensorType) -> Value {
        let bool_ty = predicate(ty);
        let beats = if op == ReduceOp::Max { CompareOp::Ge } else { CompareOp::Le };
        let mut wins = self.compare(beats, a, b, ty);
        if ty.dtype.is_float() {
            let nan = self.compare(CompareOp::Ne, a, a, ty);
            wins = self.binary(BinaryOp::Or, wins, nan, &bool_ty);
        }
        self.select(wins, a, b, &bool_ty, ty)
    }

    /// Returns the index of the best element of each row; of equals, the first: the least index
    /// among the elements that equal the best.
    pub(super) fn arg_rows(
        &mut self,
        op: ArgOp,
        x: Value,
        ty: &TensorType,
        axis: usize,
        result: &TensorType,
    ) -> Option<Value> {
        let rows = rows(ty, &[axis]).filter(|&[_, length]| length >= MIN_SEARCHED_LENGTH);
        let [count, length] = self.pay(rows)?;
        let reduce = match op {
            ArgOp::Max => ReduceOp::Max,
            ArgOp::Min => ReduceOp::Min,
        };
        let table = TensorType::new(ty.dtype, [count, length]);
        let places = TensorType::new(DType::I32, [count, length]);
        let [one, column] = [ty.dtype, DType::I32].map(|dtype| TensorType::new(dtype, [count, 1]));
        let flat = TensorType::new(ty.dtype, [count]);
        let x = self.reshape(x, ty, &table);
        let best = self.best(reduce, x, &table);
        let best = self.reshape(best, &one, &flat);
        let best = self.broadcast(best, &flat, &[0], &table);
        let bool_ty = predicate(&table);
        let equal = self.compare(CompareOp::Eq, x, best, &table);
        // If there is a NaN it is the best element, and equals nothing.
        let nan = self.compare(CompareOp::Ne, x, x, &table);
        let here = self.binary(BinaryOp::Or, equal, nan, &bool_ty);
        let numbers = self.op(format_args!("stablehlo.iota dim = 1 : {}", Ty(&places)));
        let none = self.constant(&Literal::filled(places.clone(), f64::from(i32::MAX)));
        let numbers = self.select(here, numbers, none, &bool_ty, &places);
        let first = self.best(ReduceOp::Min, numbers, &places);
        Some(self.reshape(first, &column, result))
    }

    /// Columns `from` up to `to` of a table.
    fn columns(&mut self, x: Value, ty: &TensorType, from: usize, to: usize) -> Value {
        let result = TensorType::new(ty.dtype, [ty.shape[0], to - from]);
        self.slice(x, ty, &[0, from], &[ty.shape[0], to], &[1, 1], &result)
    }
}
