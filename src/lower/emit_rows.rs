//! Sums, maxima and minima of rows on CPU: reductions over the last axes.
//!
//! The compiler adds the elements of a row one after the other, each addition waiting for the one
//! before it, and compares them so too, with care for NaN and the sign of zero at every element. Here
//! rows are added by a product with ones, and compared by halves, many elements at once. Measured
//! on the CPU plugin (`f32`, microseconds, less what the loop around it takes; a core beside other
//! work):
//!
//! | rows of        | sum    | by a product | maximum | by halves |
//! |----------------|--------|--------------|---------|-----------|
//! | 256 x 12       | 2.6    | 1.0          | 15      | 4.1       |
//! | 256 x 101      | 22     | 2            | 127     | 6         |
//! | 64 x 512       | 27     | 1.4          | 170     | 4         |
//! | 64 x 4,096     | 256    | 4            | 1,498   | 52        |
//! | 1 x 1,600,000  | 644    | 1,936        | 8,600   | 133       |
//!
//! A single long row is added well by the compiler itself, in parts.

use super::emitter::Emitter;
use super::mlir::Value;
use crate::trace::literal::Literal;
use crate::trace::op::{BinaryOp, DotDims, Precision, ReduceOp};

use crate::trace::types::{DType, TensorType};

/// Rows of more elements are compared in vectors of [`LANES`] first, so that the text of the
/// halving stays short.
const LONG: usize = 512;

/// Elements of a vector.
const LANES: usize = 16;

/// How many rows of how many elements a reduction over `axes` is about, if it is done here.
fn rows(op: ReduceOp, ty: &TensorType, axes: &[usize]) -> Option<[usize; 2]> {
    let kept = ty.rank() - axes.len();
    let last = axes.iter().enumerate().all(|(i, &axis)| axis == kept + i);
    if !last || !matches!(ty.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let count = ty.shape[..kept].iter().product();
    let length = ty.shape[kept..].iter().product();
    let pays = match op {
        ReduceOp::Sum => count >= 8 && length >= 16,
        ReduceOp::Max | ReduceOp::Min => count >= 1 && length >= 8,
        ReduceOp::Prod | ReduceOp::And | ReduceOp::Or => false,
    };
    pays.then_some([count, length])
}

impl Emitter<'_> {
    /// A reduction of rows, if that is what it is and a faster form is known.
    pub(super) fn reduce_rows(
        &mut self,
        op: ReduceOp,
        x: Value,
        ty: &TensorType,
        axes: &[usize],
        result: &TensorType,
    ) -> Option<Value> {
        let [count, length] = rows(op, ty, axes)?;
        let table = TensorType::new(ty.dtype, [count, length]);
        let x = self.reshape(x, ty, &table);
        let column = TensorType::new(ty.dtype, [count, 1]);
        let reduced = match op {
            ReduceOp::Max => self.best(BinaryOp::Max, x, &table),
            ReduceOp::Min => self.best(BinaryOp::Min, x, &table),
            _ => self.added(x, &table, &column),
        };
        Some(self.reshape(reduced, &column, result))
    }

    /// The sums of the rows: `[R, N]` to `[R, 1]`.
    fn added(&mut self, x: Value, ty: &TensorType, result: &TensorType) -> Value {
        let ones_ty = TensorType::new(ty.dtype, [ty.shape[1], 1]);
        let ones = self.constant(&Literal::filled(ones_ty.clone(), 1.0));
        let dims = DotDims {
            lhs_contract: [1].into_iter().collect(),
            rhs_contract: [0].into_iter().collect(),
            lhs_batch: Default::default(),
            rhs_batch: Default::default(),
            precision: Precision::Highest,
        };
        self.dot(&dims, &[x, ones], &[ty, &ones_ty], result)
    }

    /// The greatest or least elements of the rows: `[R, N]` to `[R, 1]`.
    fn best(&mut self, op: BinaryOp, x: Value, ty: &TensorType) -> Value {
        let &[count, length] = &ty.shape[..] else { unreachable!("a table") };
        if length <= LONG {
            return self.halved(op, x, ty);
        }
        let (whole, rest) = (length / LANES * LANES, length % LANES);
        let table = |n| TensorType::new(ty.dtype, [count, n]);
        let vectors = TensorType::new(ty.dtype, [count, whole / LANES, LANES]);
        let main = self.columns(x, ty, 0, whole);
        let main = self.reshape(main, &table(whole), &vectors);
        let reduce = if op == BinaryOp::Max { ReduceOp::Max } else { ReduceOp::Min };
        let main = self.reduce_once(reduce, main, &vectors, &[1], &table(LANES));
        let main = self.halved(op, main, &table(LANES));
        if rest == 0 {
            return main;
        }
        let others = self.columns(x, ty, whole, length);
        let others = self.halved(op, others, &table(rest));
        self.binary(op, main, others, &table(1))
    }

    /// As [`best`](Self::best): one half with the other, over and over. Halves of odd rows overlap,
    /// which changes no maximum.
    fn halved(&mut self, op: BinaryOp, x: Value, ty: &TensorType) -> Value {
        let (mut x, mut ty) = (x, ty.clone());
        while ty.shape[1] > 1 {
            let length = ty.shape[1];
            let half = length.div_ceil(2);
            let [a, b] = [[0, half], [length - half, length]]
                .map(|[from, to]| self.columns(x, &ty, from, to));
            ty = TensorType::new(ty.dtype, [ty.shape[0], half]);
            x = self.binary(op, a, b, &ty);
        }
        x
    }

    /// Columns `from` up to `to` of a table.
    fn columns(&mut self, x: Value, ty: &TensorType, from: usize, to: usize) -> Value {
        let result = TensorType::new(ty.dtype, [ty.shape[0], to - from]);
        self.slice(x, ty, &[0, from], &[ty.shape[0], to], &[1, 1], &result)
    }
}
