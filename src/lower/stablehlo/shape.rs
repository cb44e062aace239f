//! Operations that move elements and compute nothing.

use smallvec::SmallVec;

use super::emitter::{Emitter, Values};
use super::mlir::{List, Ty, Value, signature};
use crate::trace::types::{DType, Shape, TensorType};

impl Emitter<'_> {
    pub(super) fn broadcast(
        &mut self,
        x: Value,
        from: &TensorType,
        axes: &[usize],
        to: &TensorType,
    ) -> Value {
        if from == to {
            return x;
        }
        self.op(format_args!(
            "stablehlo.broadcast_in_dim {x}, dims = [{}] : ({}) -> {}",
            List(axes),
            Ty(from),
            Ty(to)
        ))
    }

    pub(super) fn reshape(&mut self, x: Value, from: &TensorType, to: &TensorType) -> Value {
        if from == to {
            return x;
        }
        self.op(format_args!("stablehlo.reshape {x} : ({}) -> {}", Ty(from), Ty(to)))
    }

    pub(super) fn concat(
        &mut self,
        x: &[Value],
        tys: &[&TensorType],
        axis: usize,
        result: &TensorType,
    ) -> Value {
        if let [x] = x {
            return *x;
        }
        self.op(format_args!(
            "stablehlo.concatenate {}, dim = {axis} : {}",
            List(x),
            signature(tys, &[result])
        ))
    }

    pub(super) fn slice(
        &mut self,
        x: Value,
        from: &TensorType,
        start: &[usize],
        limit: &[usize],
        stride: &[usize],
        to: &TensorType,
    ) -> Value {
        // A shape that stays is the whole: a range as long as its axis with another stride can
        // only have one element.
        if from == to {
            return x;
        }
        let id = self.begin(1)[0];
        self.write(format_args!("stablehlo.slice {x} ["));
        for (i, ((start, limit), stride)) in start.iter().zip(limit).zip(stride).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            self.write(format_args!("{comma}{start}:{limit}"));
            if *stride > 1 {
                self.write(format_args!(":{stride}"));
            }
        }
        self.write(format_args!("] : ({}) -> {}", Ty(from), Ty(to)));
        self.end();
        id
    }

    pub(super) fn dynamic_slice(
        &mut self,
        x: &[Value],
        tys: &[&TensorType],
        result: &TensorType,
    ) -> Value {
        if tys[0] == result {
            return x[0];
        }
        self.op(format_args!(
            "stablehlo.dynamic_slice {}, sizes = [{}] : {}",
            List(x),
            List(&result.shape),
            signature(tys, &[result])
        ))
    }

    pub(super) fn dynamic_update_slice(&mut self, x: &[Value], tys: &[&TensorType]) -> Value {
        if tys[0] == tys[1] {
            return x[1];
        }
        self.op(format_args!(
            "stablehlo.dynamic_update_slice {} : {}",
            List(x),
            signature(tys, &[tys[0]])
        ))
    }

    /// Row `index` (a scalar i32) of a stack.
    pub(super) fn row(&mut self, stack: Value, ty: &TensorType, index: Value) -> Value {
        let window = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, 1));
        let scalar = TensorType::scalar(DType::I32);
        let (x, tys) = self.at_row(&[stack], &[ty], index, &scalar);
        let slice = self.dynamic_slice(&x, &tys, &window);
        self.reshape(slice, &window, &TensorType::new(ty.dtype, ty.shape.without_axis(0)))
    }

    /// A stack with row `index` (a scalar i32) replaced.
    pub(super) fn set_row(
        &mut self,
        stack: Value,
        ty: &TensorType,
        row: Value,
        index: Value,
    ) -> Value {
        let window = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, 1));
        let row = self.as_row(row, &window);
        let scalar = TensorType::scalar(DType::I32);
        let (x, tys) = self.at_row(&[stack, row], &[ty, &window], index, &scalar);
        self.dynamic_update_slice(&x, &tys)
    }

    /// An element of a stack as a stack of one.
    pub(super) fn as_row(&mut self, x: Value, window: &TensorType) -> Value {
        let from = TensorType::new(window.dtype, window.shape.without_axis(0));
        self.reshape(x, &from, window)
    }

    /// Row `index` of a stack, the index known.
    pub(super) fn fixed_row(&mut self, stack: Value, ty: &TensorType, index: usize) -> Value {
        let window = TensorType::new(ty.dtype, ty.shape.without_axis(0).with_axis(0, 1));
        let mut start: SmallVec<[usize; 4]> = SmallVec::from_elem(0, ty.rank());
        let mut limit: SmallVec<[usize; 4]> = SmallVec::from_slice(&ty.shape);
        (start[0], limit[0]) = (index, index + 1);
        let stride: SmallVec<[usize; 4]> = SmallVec::from_elem(1, ty.rank());
        let slice = self.slice(stack, ty, &start, &limit, &stride, &window);
        self.reshape(slice, &window, &TensorType::new(ty.dtype, ty.shape.without_axis(0)))
    }

    /// Operands with start indices for a row.
    fn at_row<'t>(
        &mut self,
        x: &[Value],
        tys: &[&'t TensorType],
        index: Value,
        scalar: &'t TensorType,
    ) -> (Values, SmallVec<[&'t TensorType; 4]>) {
        let rank = tys[0].rank();
        let (mut x, mut tys) = (Values::from_slice(x), SmallVec::from_slice(tys));
        x.push(index);
        if rank > 1 {
            let zero = self.index(0);
            x.extend(std::iter::repeat_n(zero, rank - 1));
        }
        tys.extend(std::iter::repeat_n(scalar, rank));
        (x, tys)
    }

    /// A zero of type `ty` to be overwritten.
    pub(super) fn blank(&mut self, dtype: DType, shape: Shape) -> Value {
        let zero = crate::trace::Literal::filled(TensorType::new(dtype, shape), 0.0);
        self.constant(&zero)
    }
}
